//! Which replica a key belongs to: rendezvous hashing with a bound on the load.
//!
//! Every replica gets a weight made of key and name, the heaviest wins (Thaler and Ravishankar 1998). Adding or losing a
//! replica moves only the keys of that replica; a ring needs hundreds of points per replica for the same evenness. The
//! bound is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018): with m requests in
//! flight on n replicas nobody takes more than ⌈c (m + 1) / n⌉, and a key spills to the *next in its own order*, so
//! that the place it spills to is the same each time.

use crate::route::ReplicaView;

/// The place in `views` that a key belongs to under a bound of `c ≥ 1`. `None` where there are no views.
pub fn place(key: u64, views: &[ReplicaView], bound: f64) -> Option<usize> {
    let most = most_requests(views, bound);
    let fits = |view: &ReplicaView| view.load.requests < most;
    let heaviest = |only_fitting: bool| {
        let places = 0..views.len();
        places
            .filter(|&place| !only_fitting || fits(&views[place]))
            .max_by_key(|&place| (weight(key, views[place].replica), views[place].replica))
    };
    // The bound leaves room somewhere by its construction.
    heaviest(true).or_else(|| heaviest(false))
}

/// ⌈c (m + 1) / n⌉: the most requests that a replica may have with the next one.
pub(crate) fn most_requests(views: &[ReplicaView], bound: f64) -> u32 {
    let requests: u64 = views.iter().map(|view| u64::from(view.load.requests)).sum();
    let even = (requests + 1) as f64 / views.len().max(1) as f64;
    (bound * even).ceil() as u32
}

/// The weight of a replica for a key: both through the finaliser of SplitMix64, which spreads every bit.
fn weight(key: u64, replica: u32) -> u64 {
    mix(mix(key ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_add(mix(u64::from(replica).wrapping_add(0xd1b5_4a32_d192_ed03))))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
