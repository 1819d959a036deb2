//! Rendezvous hashing with bounded load: assigns a key to a replica.
//!
//! Each replica gets a weight from key and number, and the largest wins (Thaler and Ravishankar 1998). A new or
//! removed replica moves only its own keys. A hash ring lost, because it needs hundreds of points per replica for
//! equal balance. The bound is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018).
//! With m requests in flight on n replicas, a replica gets at most ⌈c (m + 1) / n⌉. A key spills to the next replica
//! *in its own order*, so it always spills to the same one.

use crate::route::ReplicaView;

/// Returns the index in `views` of a key's replica under a bound of `c ≥ 1`, or `None` if `views` is empty.
pub fn place(key: u64, views: &[ReplicaView], bound: f64) -> Option<usize> {
    let most = most_requests(views, bound);
    let fits = |view: &ReplicaView| view.load.requests < most;
    let heaviest = |only_fitting: bool| {
        let places = 0..views.len();
        places
            .filter(|&place| !only_fitting || fits(&views[place]))
            .max_by_key(|&place| (weight(key, views[place].replica), views[place].replica))
    };
    // A replica below the bound always exists by construction.
    heaviest(true).or_else(|| heaviest(false))
}

/// Returns the load bound ⌈c (m + 1) / n⌉, including the next request.
pub(crate) fn most_requests(views: &[ReplicaView], bound: f64) -> u32 {
    let requests: u64 = views.iter().map(|view| u64::from(view.load.requests)).sum();
    let even = (requests + 1) as f64 / views.len().max(1) as f64;
    (bound * even).ceil() as u32
}

/// Returns the weight of a replica for a key. Both pass the finaliser of SplitMix64, which spreads every bit.
fn weight(key: u64, replica: u32) -> u64 {
    mix(mix(key ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_add(mix(u64::from(replica).wrapping_add(0xd1b5_4a32_d192_ed03))))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
