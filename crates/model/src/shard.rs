//! Defines the parts of a load that several machines send, and the error of their clocks.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{Host, RunState};

/// One of the equal parts of a load: whole sessions (or requests, without sessions), assigned in rotation by number.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Shard {
    /// Number of the part, from 0.
    pub index: u32,
    /// Total number of parts of the load.
    pub of: u32,
}

impl Shard {
    /// Most shards of one load. With more, the metrics of a shard have little meaning, and a typing error is likelier.
    pub const MOST: u32 = 10_000;

    /// Parses `index/of`; `None` for other text.
    pub fn parse(text: &str) -> Option<Shard> {
        let (index, of) = text.trim().split_once('/')?;
        let shard = Shard { index: index.parse().ok()?, of: of.parse().ok()? };
        (shard.index < shard.of && shard.of <= Shard::MOST).then_some(shard)
    }

    /// Returns whether this request, or its session, belongs to this part.
    pub fn takes(self, session: Option<u64>, request: u64) -> bool {
        Shard::index_of(self.of, session, request) == self.index
    }

    /// Returns the part out of `of` that this request belongs to.
    pub fn index_of(of: u32, session: Option<u64>, request: u64) -> u32 {
        (session.unwrap_or(request) % u64::from(of.max(1))) as u32
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

/// Facts that shards must agree on, and the state of one shard.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShardPart {
    /// Number of the part, and the total.
    pub shard: Shard,
    /// Start of the load on the clock of shard 0, in ns of the Unix epoch.
    pub start_unix_ns: i64,
    /// Arrivals of all shards together; 0 = this shard did not begin.
    pub arrivals: u64,
    /// Hash of the schedule of all shards together.
    pub schedule_hash: String,
    /// Progress of this shard: running, complete or partial.
    pub progress: RunState,
    /// Largest error of the machine's clock in ns, as reported by the kernel; `null` = unknown.
    #[serde(default)]
    pub clock_error_ns: Option<i64>,
    /// Machine of the shard in a merged run; `null` in the shard's own run, whose manifest has `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Number of requests that were never sent because the shard was lost; the merge wrote their rows.
    #[serde(default)]
    pub lost: u64,
}

/// Comparison of the shards of a merged level.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShardsHealth {
    /// Total number of shards of the run.
    pub of: u32,
    /// Shards that did not start or did not stay until the end.
    pub lost: u32,
    /// Requests that were never sent because of lost shards.
    pub never_sent: u64,
    /// Upper bound on the distance of any two clocks in ns: the sum of the two largest errors. `null` = an error is
    /// unknown.
    pub clocks_apart_ns: Option<i64>,
    /// Set if arrivals were meant to be evenly spaced, which clock differences prevent.
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
