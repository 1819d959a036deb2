//! Sampling error of a split: 95 % intervals of a part's times for other requests of an equal load. The verdict on
//! its slice of a budget uses them.
//!
//! Requests in a queue are correlated, so they are counted by their design effect, as for the percentiles of a level
//! ([`plimsoll_measure::order`]). Means use contiguous blocks. The error of an inferred part is separate
//! ([`super::BoundedValue`]), because it does not shrink with more requests. A slice passes or is broken only if both ends
//! of that error agree.

use super::Answer;
use super::finding::{Basis, PartSlice, total};
use super::split::{Split, WaitPart};
use crate::finding::DurationFigures;
use crate::sample::{blocks_for, mean_by_blocks};
use plimsoll_measure::budget::{Decision, StageBudget, decide, of_batches};
use plimsoll_measure::findings::{Held, Reading};
use plimsoll_measure::order;

/// The split requests of a level, in order of due times.
pub(super) struct SampledSplit<'a> {
    pub splits: &'a [Split],
    /// Splits at both ends of the inference error.
    pub ends: &'a [Vec<Split>],
    /// Time from the first due time to the last, s.
    pub length_s: f64,
}

fn column(splits: &[Split], of: impl Fn(&Split) -> f64) -> Vec<i64> {
    splits.iter().map(|split| of(split).round() as i64).collect()
}

impl SampledSplit<'_> {
    fn blocks(&self) -> Result<usize, String> {
        blocks_for(&column(self.splits, total), self.length_s)
    }

    /// Returns the times of a part, or of the whole, with intervals.
    pub fn times(&self, of: impl Fn(&Split) -> f64) -> DurationFigures {
        let values = column(self.splits, of);
        let mean_s = values.iter().sum::<i64>() as f64 / values.len().max(1) as f64 / 1e9;
        let n = values.len() as u64;
        match self.blocks() {
            Err(why) => {
                let refused = || Reading::refused(why.clone(), n);
                DurationFigures {
                    mean_s,
                    mean: refused(),
                    p50: refused(),
                    p90: refused(),
                    p95: refused(),
                    p99: refused(),
                }
            }
            Ok(blocks) => {
                let mean = mean_by_blocks(&values, blocks);
                match order::percentiles("", &values, self.length_s) {
                    Some((set, _)) => DurationFigures {
                        mean_s,
                        mean,
                        p50: set.p50,
                        p90: set.p90,
                        p95: set.p95,
                        p99: set.p99,
                    },
                    None => {
                        let none = || Reading::refused("no requests", 0);
                        DurationFigures { mean_s, mean, p50: none(), p90: none(), p95: none(), p99: none() }
                    }
                }
            }
        }
    }

    /// Returns the parts compared with the slices of a budget. Several slices in one part are compared together.
    pub fn slices(
        &self,
        budget: &StageBudget,
        alpha: f64,
        known: &[(WaitPart, Basis)],
        answer: Option<&Answer>,
    ) -> Vec<PartSlice> {
        let mut by_part: Vec<(WaitPart, String, f64)> = Vec::new();
        for (name, amount) in &budget.slices {
            let Some(part) = WaitPart::named(name) else { continue };
            match by_part.iter_mut().find(|(known, ..)| *known == part) {
                Some((_, names, slice_s)) => {
                    names.push_str(" + ");
                    names.push_str(name);
                    *slice_s += amount.value;
                }
                None => by_part.push((part, name.clone(), amount.value)),
            }
        }
        let basis = |part: WaitPart| {
            known.iter().find(|(of, _)| *of == part).map_or(Basis::Measured, |(_, basis)| *basis)
        };
        by_part
            .into_iter()
            .map(|(part, name, slice_s)| {
                let empty = PartSlice {
                    part,
                    name,
                    basis: basis(part),
                    slice_s,
                    p: budget.p.0,
                    measured: Reading::refused(
                        "time before the queue, queue and prefill cannot be separated",
                        0,
                    ),
                    requests_over: None,
                    time_over: 0.0,
                    used: 0.0,
                    verdict: Held::Inconclusive,
                };
                match empty.basis {
                    Basis::Unknown => empty,
                    _ => self.slice(empty, alpha, answer),
                }
            })
            .collect()
    }

    fn slice(&self, asked: PartSlice, alpha: f64, answer: Option<&Answer>) -> PartSlice {
        let of = |split: &Split| split[asked.part as usize];
        let values = column(self.splits, of);
        let sum = |all: &[i64]| all.iter().map(|ns| *ns as f64).sum::<f64>();
        let whole = sum(&column(self.splits, total)).max(1.0);
        let limit_ns = (asked.slice_s * 1e9) as i64;
        let excess: Vec<i64> = values.iter().map(|ns| (ns - limit_ns).max(0)).collect();
        let decided = self.decided(&values, asked.slice_s, (asked.p, alpha));
        let mut verdicts = vec![decided.held];
        if let (Basis::Inferred, Some(answer)) = (asked.basis, answer) {
            let (half, ns) = answer.half(asked.part, asked.p);
            let moved = |factor: f64, by: f64| -> Vec<i64> {
                values.iter().map(|value| (*value as f64 * factor + by).max(0.0) as i64).collect()
            };
            let ends = self.ends.iter().map(|end| column(end, of));
            let all = ends.chain([moved(1.0 - half, -ns), moved(1.0 + half, ns)]);
            verdicts.extend(all.map(|values| self.decided(&values, asked.slice_s, (asked.p, alpha)).held));
        }
        let all = |held: Held| verdicts.iter().all(|one| *one == held);
        let times = self.times(of);
        let measured = times
            .rows()
            .iter()
            .find(|(p, _)| (p - asked.p).abs() < 1e-9)
            .map(|(_, reading)| (*reading).clone());
        PartSlice {
            measured: measured.unwrap_or_else(|| {
                Reading::refused("shown at p50, p90, p95 and p99 only", values.len() as u64)
            }),
            requests_over: Some(decided.share),
            time_over: sum(&excess) / whole,
            used: times.mean_s / asked.slice_s,
            verdict: match () {
                () if all(Held::Pass) => Held::Pass,
                () if all(Held::Fail) => Held::Fail,
                () => Held::Inconclusive,
            },
            ..asked
        }
    }

    fn decided(&self, values: &[i64], slice_s: f64, (p, alpha): (f64, f64)) -> Decision {
        let blocks = self.blocks().ok().map(|blocks| blocks.max(2));
        decide(&of_batches(values, slice_s, p, blocks), 1.0 - p, alpha)
    }
}
