//! Traffic split between serving and canary replicas: a share of all sessions belongs to the canary.
//!
//! A session stays on its side while the share grows, because its hash is fixed and the share only moves the
//! boundary. The prefix cache of the conversation is kept, and a client does not alternate between versions. Capacity
//! takes precedence over the split: a request without capacity on its side goes to the other side and is counted as
//! strayed. A canary with less capacity thus becomes visible without a failed request.

use plimsoll_math::rng::mix;
use plimsoll_model::Arm;

use crate::route::ReplicaView;

/// Returns the side of a session, or of a request without one. `share` is the canary's share from 0 to 1.
pub fn arm(session: u64, share: f64) -> Arm {
    // The salt differs from the hash for session routing, because correlated hashes would load replicas unevenly.
    let place = (mix(session ^ SALT) >> 11) as f64 / (1u64 << 53) as f64;
    if place < share { Arm::Canary } else { Arm::Base }
}

const SALT: u64 = 0x7c15_9e37_79b9_7f4a;

#[derive(Clone, Debug)]
pub(crate) struct ReplicaArms {
    arms: Vec<Arm>,
    strayed: u64,
}

impl ReplicaArms {
    pub fn new(replicas: usize) -> ReplicaArms {
        ReplicaArms { arms: vec![Arm::Base; replicas], strayed: 0 }
    }

    /// Adds a replica on the base side.
    pub fn join(&mut self, replica: u32) {
        if self.arms.len() <= replica as usize {
            self.arms.resize(replica as usize + 1, Arm::Base);
        }
        self.set(replica, Arm::Base);
    }

    pub fn set(&mut self, replica: u32, arm: Arm) {
        self.arms[replica as usize] = arm;
    }

    /// Keeps only the replicas of a side, if there are any.
    pub(crate) fn prefer(&self, arm: Arm, views: &mut Vec<ReplicaView>) {
        let is_own = |view: &ReplicaView| self.arms[view.replica as usize] == arm;
        if views.iter().any(is_own) {
            self.leave(arm, views);
        }
    }

    /// Keeps only the replicas of a side, even if none is left.
    pub fn leave(&self, arm: Arm, views: &mut Vec<ReplicaView>) {
        views.retain(|view| self.arms[view.replica as usize] == arm);
    }

    /// Records the placement of a request of this side.
    pub fn placed(&mut self, arm: Arm, replica: u32) {
        self.strayed += u64::from(self.arms[replica as usize] != arm);
    }

    /// Returns the number of requests placed on the other side.
    pub fn strayed(&self) -> u64 {
        self.strayed
    }
}
