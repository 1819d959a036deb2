//! Standardisation of the candidate to the base's mix: requests weighted by class and prompt length.
//!
//! A candidate with more long prompts seems slower in every percentile although no kind of request became slower (Simpson 1951).
//! If both sides served different requests, each of the candidate's is weighted by the relative frequency of its kind in the
//! base. Only the request defines its kind, because the response is the target's result.

use std::collections::BTreeMap;

use plimsoll_math::quantile::rank;

use super::pairs::{CutLevels, LevelArm, LevelPair};

/// Quartiles of the base at which prompt lengths are divided.
const QUARTILES: [f64; 3] = [0.25, 0.5, 0.75];

/// A kind of request: class, and bucket of prompt lengths.
pub type RequestStratum = (u16, usize);

/// The kinds of requests on both sides.
pub struct Strata {
    edges: Vec<u32>,
    /// Number of requests of each kind, base and candidate.
    pub counts: BTreeMap<RequestStratum, (usize, usize)>,
    totals: (usize, usize),
}

impl Strata {
    /// Counts the kinds of the rows that count.
    pub fn of(pairs: &[LevelPair], cut: &CutLevels) -> Strata {
        let mut lengths: Vec<u32> = Vec::new();
        for unit in &cut.units {
            let arm = &pairs[unit.pair].base;
            lengths.extend(unit.base.iter().map(|row| arm.columns.asked_prompt[*row]));
        }
        lengths.sort_unstable();
        let at = |p: &f64| lengths.get(rank(lengths.len(), *p).saturating_sub(1)).copied();
        let mut edges: Vec<u32> = QUARTILES.iter().filter_map(at).collect();
        edges.dedup();
        let mut strata = Strata { edges, counts: BTreeMap::new(), totals: (0, 0) };
        for unit in &cut.units {
            let pair = &pairs[unit.pair];
            for row in &unit.base {
                let kind = strata.kind(&pair.base, *row);
                strata.counts.entry(kind).or_default().0 += 1;
                strata.totals.0 += 1;
            }
            for row in &unit.candidate {
                let kind = strata.kind(&pair.candidate, *row);
                strata.counts.entry(kind).or_default().1 += 1;
                strata.totals.1 += 1;
            }
        }
        strata
    }

    /// Returns the kind of a row.
    pub fn kind(&self, arm: &LevelArm, row: usize) -> RequestStratum {
        let length = arm.columns.asked_prompt[row];
        (arm.record(row).class, self.edges.partition_point(|edge| *edge < length))
    }

    /// Returns the weight of a candidate's request of this kind.
    pub fn weight(&self, kind: RequestStratum) -> f64 {
        let (base, candidate) = self.counts.get(&kind).copied().unwrap_or_default();
        if candidate == 0 {
            return 0.0;
        }
        let share = |n: usize, of: usize| n as f64 / of.max(1) as f64;
        share(base, self.totals.0) / share(candidate, self.totals.1)
    }

    /// Returns the share of the base's requests of kinds that the candidate has none of, so that none can replace them.
    pub fn uncovered(&self) -> f64 {
        let missing: usize = self.counts.values().filter(|(_, candidate)| *candidate == 0).map(|n| n.0).sum();
        missing as f64 / self.totals.0.max(1) as f64
    }

    /// Returns the share of a kind on both sides.
    pub fn shares(&self, kind: RequestStratum) -> (f64, f64) {
        let (base, candidate) = self.counts.get(&kind).copied().unwrap_or_default();
        (base as f64 / self.totals.0.max(1) as f64, candidate as f64 / self.totals.1.max(1) as f64)
    }

    /// Describes a kind, for example with its class and prompt lengths.
    pub fn name(&self, (class, bucket): RequestStratum) -> String {
        let lengths = match (bucket.checked_sub(1).map(|i| self.edges[i]), self.edges.get(bucket)) {
            (None, Some(upper)) => format!("prompt up to {upper}"),
            (Some(lower), Some(upper)) => format!("prompt {} to {upper}", lower + 1),
            (Some(lower), None) => format!("prompt over {lower}"),
            (None, None) => "all prompts".to_owned(),
        };
        format!("class {class}, {lengths}")
    }
}
