//! One load from several machines: which part of it a run is, and how far the machines' clocks lay apart.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{Host, RunState};

/// One of the equal parts of a load. Parts are whole sessions (requests, where there are none), dealt in turn by number.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Shard {
    /// Its number, from 0.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

impl Shard {
    /// Most shards of one load: beyond them a shard's own figures say little, and a typing slip is likelier.
    pub const MOST: u32 = 10_000;

    /// Reads `index/of`, as it is typed; `None` where it is none.
    pub fn parse(text: &str) -> Option<Shard> {
        let (index, of) = text.trim().split_once('/')?;
        let shard = Shard { index: index.parse().ok()?, of: of.parse().ok()? };
        (shard.index < shard.of && shard.of <= Shard::MOST).then_some(shard)
    }

    /// Is this request, or the session that it is a turn of, one of this part?
    pub fn takes(self, session: Option<u64>, request: u64) -> bool {
        Shard::index_of(self.of, session, request) == self.index
    }

    /// Which of so many parts it falls into.
    pub fn index_of(of: u32, session: Option<u64>, request: u64) -> u32 {
        (session.unwrap_or(request) % u64::from(of.max(1))) as u32
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

/// What shards must agree on, and how one of them fared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShardPart {
    /// Which part.
    pub shard: Shard,
    /// When the load began, by the clock of shard 0: ns of the Unix epoch.
    pub start_unix_ns: i64,
    /// Arrivals of all shards together; 0 = this one did not begin.
    pub arrivals: u64,
    /// Hash of the schedule of all shards together.
    pub schedule_hash: String,
    /// How far this one got.
    pub progress: RunState,
    /// The largest error of its machine's clock, ns, as the kernel reports it. `None` = unknown.
    #[serde(default)]
    pub clock_error_ns: Option<i64>,
    /// Its machine, in a merged run; in the shard's own, `host` of the manifest says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Its requests that were never sent because it was lost: the merge wrote their rows.
    #[serde(default)]
    pub lost: u64,
}

/// How the shards of a merged level fared together.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShardsHealth {
    /// How many the load was cut into.
    pub of: u32,
    /// Of these, those that did not come, or did not stay to the end.
    pub lost: u32,
    /// Requests that were never sent for that reason.
    pub never_sent: u64,
    /// No two of their clocks were further apart than this, ns: the two largest errors together. `None` = not all are known.
    pub clocks_apart_ns: Option<i64>,
    /// Arrivals were meant to be evenly spaced, which clocks apart undo.
    pub constant: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_leave_nothing_out() {
        for of in 1..9 {
            for (session, request) in (0..200).flat_map(|n| [(None, n), (Some(n), n * 7)]) {
                let takers = (0..of).filter(|index| Shard { index: *index, of }.takes(session, request));
                assert_eq!(takers.count(), 1);
            }
        }
    }

    #[test]
    fn what_is_typed_is_a_part_or_nothing() {
        assert_eq!(Shard::parse("1/4"), Some(Shard { index: 1, of: 4 }));
        for wrong in ["4/4", "1", "", "1/0", "-1/4", "1/4/2", "a/b", "0/10001"] {
            assert_eq!(Shard::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Shard { index: 1, of: 4 }.to_string(), "1/4");
    }
}
