//! A split between the replicas that serve and those on trial: a share of all sessions is the canary's.
//!
//! A session stays on its side while the share grows, because its hash decides and the share only moves the mark: what its replica has cached of the
//! conversation is not lost, and nobody sees both versions in turn. Room comes before the split: a request whose side has none goes to the other side
//! rather than wait, and is counted as strayed, so that a canary that can do less is seen as that and costs no client his answer.

use plimsoll_math::rng::mix;
use plimsoll_model::Arm;

use crate::route::ReplicaView;

/// Whose a session (or a request of none) is, where the canary gets this share, 0 to 1, of them.
pub fn arm(session: u64, share: f64) -> Arm {
    // Not the hash that spreads sessions over replicas: what is alike in it would be alike in both.
    let place = (mix(session ^ SALT) >> 11) as f64 / (1u64 << 53) as f64;
    if place < share { Arm::Canary } else { Arm::Base }
}

const SALT: u64 = 0x7c15_9e37_79b9_7f4a;

/// On which side each replica is.
#[derive(Clone, Debug)]
pub(crate) struct Sides {
    arms: Vec<Arm>,
    strayed: u64,
}

impl Sides {
    pub fn new(replicas: usize) -> Sides {
        Sides { arms: vec![Arm::Base; replicas], strayed: 0 }
    }

    /// A replica joins, among those that serve.
    pub fn join(&mut self, replica: u32) {
        if self.arms.len() <= replica as usize {
            self.arms.resize(replica as usize + 1, Arm::Base);
        }
        self.set(replica, Arm::Base);
    }

    pub fn set(&mut self, replica: u32, arm: Arm) {
        self.arms[replica as usize] = arm;
    }

    /// Leaves the replicas of one side, if any of them is there.
    pub(crate) fn prefer(&self, arm: Arm, views: &mut Vec<ReplicaView>) {
        let is_own = |view: &ReplicaView| self.arms[view.replica as usize] == arm;
        if views.iter().any(is_own) {
            self.leave(arm, views);
        }
    }

    /// Leaves the replicas of one side, though none of them is there.
    pub fn leave(&self, arm: Arm, views: &mut Vec<ReplicaView>) {
        views.retain(|view| self.arms[view.replica as usize] == arm);
    }

    /// A request of a side was placed.
    pub fn placed(&mut self, arm: Arm, replica: u32) {
        self.strayed += u64::from(self.arms[replica as usize] != arm);
    }

    /// Requests that were placed on the other side.
    pub fn strayed(&self) -> u64 {
        self.strayed
    }
}
