//! Stages that the server reports: their speed-up, their share of the whole, and their effect on it.
//!
//! A stage with a share s of the whole makes it at most 1 / (1 − s) times faster (Amdahl 1967). A speed-up of the whole within
//! the noise is no gain, and is reported as none. The limit covers service time only. With a queue in front, less work may
//! shorten the queue too, but a queue is a separate stage here.

use std::collections::BTreeMap;

use plimsoll_math::bootstrap;
use plimsoll_math::quantile::rank;
use plimsoll_math::rng::Stream;
use plimsoll_math::two_sample::mean_ratio;

use super::finding::{ChangeVerdict, ComparedFigure, ComparedStage, Scale};
use super::pairs::{FEWEST, LevelArm};
use super::rows::{LoadRows, effect};
use super::spec::LEVEL;
use plimsoll_measure::columns::INFINITE;
use plimsoll_measure::findings::Estimate;

/// Upper bound of the ratio below which a stage counts as faster.
const FASTER: f64 = 0.95;

/// Compares the stages of one load. `rows` already have their verdicts.
pub fn stages(side: &LoadRows, rows: &[ComparedFigure]) -> Vec<ComparedStage> {
    if side.cut.units.len() < FEWEST {
        return Vec::new();
    }
    let mut sums = BTreeMap::<String, Sums>::new();
    let (mut whole, mut answers) = (0.0, 0u64);
    for (i, unit) in side.cut.units.iter().enumerate() {
        let pair = &side.pairs[unit.pair];
        for (arm, rows, base) in [(&pair.base, &unit.base, true), (&pair.candidate, &unit.candidate, false)] {
            for (row, e2e_s) in finite(arm, rows) {
                if base && !arm.record(row).answer.stages.is_empty() {
                    whole += e2e_s;
                    answers += 1;
                }
                for stage in &arm.record(row).answer.stages {
                    let sums =
                        sums.entry(stage.name.clone()).or_insert_with(|| Sums::new(side.cut.units.len()));
                    sums.add(i, base, stage.took.as_secs_f64());
                }
            }
        }
    }
    let e2e_s = whole / answers.max(1) as f64;
    let moved = rows.iter().filter(|row| row.metric == "e2e" && row.statistic == "p50");
    let still = moved
        .into_iter()
        .all(|row| matches!(row.verdict, ChangeVerdict::NoChange | ChangeVerdict::Inconclusive));
    sums.into_iter().filter_map(|(name, sums)| sums.stage(name, side, e2e_s, still)).collect()
}

/// Returns the finished rows with their end-to-end time in seconds.
fn finite<'x>(arm: &'x LevelArm, rows: &'x [usize]) -> impl Iterator<Item = (usize, f64)> + 'x {
    let e2e = |row: &usize| match arm.columns.e2e[*row] {
        ns if ns >= 0 && ns != INFINITE => Some((*row, ns as f64 / 1e9)),
        _ => None,
    };
    rows.iter().filter_map(e2e)
}

/// The sums and counts of one stage by unit.
struct Sums {
    base: Vec<(f64, u32)>,
    candidate: Vec<(f64, u32)>,
}

impl Sums {
    fn new(units: usize) -> Sums {
        Sums { base: vec![(0.0, 0); units], candidate: vec![(0.0, 0); units] }
    }

    fn add(&mut self, unit: usize, base: bool, took_s: f64) {
        let sums = if base { &mut self.base } else { &mut self.candidate };
        sums[unit].0 += took_s;
        sums[unit].1 += 1;
    }

    /// Returns the comparison of a stage; `None` if a unit of one side never reported it.
    fn stage(&self, name: String, side: &LoadRows, e2e_s: f64, still: bool) -> Option<ComparedStage> {
        let means = |sums: &[(f64, u32)]| -> Option<Vec<f64>> {
            sums.iter().map(|(sum, n)| (*n > 0).then(|| sum / f64::from(*n))).collect()
        };
        let mean = |sums: &[(f64, u32)]| {
            let n: u32 = sums.iter().map(|s| s.1).sum();
            sums.iter().map(|s| s.0).sum::<f64>() / f64::from(n.max(1))
        };
        let (a, b) = (means(&self.base)?, means(&self.candidate)?);
        let effect = effect(Scale::Ratio, mean_ratio(&a, &b, side.flips, LEVEL))?;
        let base_mean_s = mean(&self.base);
        let share = (base_mean_s / e2e_s).clamp(0.0, 1.0);
        Some(ComparedStage {
            base_mean_s,
            candidate_mean_s: mean(&self.candidate),
            effect,
            share,
            ceiling: 1.0 / (1.0 - share),
            tail_gap_base_s: tail_gap(side, &name, true),
            tail_gap_candidate_s: tail_gap(side, &name, false),
            local_only: effect.upper < FASTER && still,
            name,
        })
    }
}

/// Returns the extra time of a stage in the slowest hundredth of the requests over the middle fifth, in seconds.
///
/// The interval is a bootstrap over units. Summed over the stages and the rest of the whole, these gaps give the gap of the means
/// of `e2e`.
fn tail_gap(side: &LoadRows, name: &str, base: bool) -> Option<Estimate> {
    // (end to end, stage, unit)
    let mut all: Vec<(f64, f64, usize)> = Vec::new();
    for (u, unit) in side.cut.units.iter().enumerate() {
        let pair = &side.pairs[unit.pair];
        let (arm, rows) = if base { (&pair.base, &unit.base) } else { (&pair.candidate, &unit.candidate) };
        for (row, e2e_s) in finite(arm, rows) {
            let stages = &arm.record(row).answer.stages;
            if let Some(stage) = stages.iter().find(|stage| stage.name == name) {
                all.push((e2e_s, stage.took.as_secs_f64(), u));
            }
        }
    }
    if all.len() < FEWEST_FOR_A_GAP {
        return None;
    }
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let units = side.cut.units.len();
    let value = gap(&all, &vec![1; units])?;
    let mut stream = Stream::new(1, "compare tail gap", u64::from(base));
    let redrawn = |picked: &[usize]| {
        let mut times = vec![0u32; units];
        picked.iter().for_each(|unit| times[*unit] += 1);
        gap(&all, &times).unwrap_or(value)
    };
    let found = bootstrap::interval(&mut stream, units, REDRAWS, LEVEL, redrawn);
    let (lower, upper) = (found.lower.min(value), found.upper.max(value));
    Some(Estimate { value, lower, upper, n: all.len() as u64, n_eff: units as f64 })
}

/// Minimum number of requests, at which the slowest hundredth has ten.
const FEWEST_FOR_A_GAP: usize = 1_000;
/// Number of bootstrap replicates for the interval of a gap.
const REDRAWS: usize = 400;

/// Returns the gap of rows in ascending order of the whole, if unit u counts `times[u]` times.
fn gap(rising: &[(f64, f64, usize)], times: &[u32]) -> Option<f64> {
    let total: u64 = rising.iter().map(|row| u64::from(times[row.2])).sum();
    let at = |p: f64| rank(total as usize, p).saturating_sub(1) as u64;
    let (middle, tail) = ((at(0.4), at(0.6)), (at(0.99), total));
    // Sum and count of the stage at the positions from..to of the order.
    let mut sums = [(0.0, 0u64); 2];
    let mut place = 0u64;
    for (_, stage_s, unit) in rising {
        let next = place + u64::from(times[*unit]);
        for (sum, (from, to)) in sums.iter_mut().zip([middle, tail]) {
            let inside = next.min(to).saturating_sub(place.max(from));
            *sum = (sum.0 + stage_s * inside as f64, sum.1 + inside);
        }
        place = next;
    }
    let [middle, tail] = sums;
    (middle.1 > 0 && tail.1 > 0).then(|| tail.0 / tail.1 as f64 - middle.0 / middle.1 as f64)
}
