//! Comparison of two periods of live traffic: changes of latencies and failures, by blocks.
//!
//! A percentile is the two edges that enclose it with certainty, so it has changed only if an edge certainly
//! separates the two periods. Means are exact, and their intervals follow from the means of blocks. The requests
//! differ between the periods. Other prompts or another load per replica are therefore reported, and leave the
//! verdict open.

use std::collections::BTreeMap;

use plimsoll_judge::compare::Margins;
use plimsoll_judge::compare::finding::ChangeVerdict;
use plimsoll_math::series::{BATCHES, Mean, ratio};
use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_measure::server_side::{Buckets, Signal};
use serde::Serialize;

use super::{HistoryBlock, KeptSignal};
use crate::bracket::EdgeBracket;

/// Compared latencies, the most important first.
const LATENCIES: [Signal; 4] = [Signal::Ttft, Signal::Tpot, Signal::Itl, Signal::E2e];
const PERCENTILES: [f64; 3] = [0.5, 0.95, 0.99];
/// Error probability of a bound on each side: 2.5 % over all rows (Bonferroni), at most seventeen.
const ALPHA: f64 = 0.025 / 17.0;
/// Maximum ratio at which loads and prompts are comparable.
const ALIKE: f64 = 1.1;

/// A percentile in both periods.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BracketRow {
    pub metric: Signal,
    /// Percentile as a fraction: 0.99 is p99.
    pub p: f64,
    pub base: EdgeBracket,
    pub candidate: EdgeBracket,
    pub verdict: ChangeVerdict,
}

/// A mean, or a share, in both periods.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MeanRow {
    /// Name: a latency in s, or `failed`, a share.
    pub metric: String,
    /// Value before: estimate, lower and upper bound.
    pub base: [f64; 3],
    /// Value after: estimate, lower and upper bound.
    pub candidate: [f64; 3],
    /// Proven change: for latencies a ratio, for failures a difference.
    pub verdict: ChangeVerdict,
}

/// A property of the load in both periods.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LoadRow {
    pub about: &'static str,
    pub base: f64,
    pub candidate: f64,
    /// Set if both values are within a tenth of each other.
    pub alike: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StretchComparison {
    /// Regressed if a row is; inconclusive without a proof, or if the load differs.
    pub verdict: ChangeVerdict,
    pub load: Vec<LoadRow>,
    pub means: Vec<MeanRow>,
    pub percentiles: Vec<BracketRow>,
}

/// Compares two periods. `despite` permits different loads or prompts.
pub fn compare(
    base: &[HistoryBlock],
    candidate: &[HistoryBlock],
    (margins, despite): (&Margins, bool),
) -> StretchComparison {
    let sides = [base, candidate];
    let load = load(&sides);
    let means = means(&sides, margins);
    let percentiles = percentiles(&sides);
    let verdicts = || means.iter().map(|row| row.verdict).chain(percentiles.iter().map(|row| row.verdict));
    let any = |verdict| verdicts().any(|one| one == verdict);
    let verdict = match () {
        () if !despite && load.iter().any(|row| !row.alike) => ChangeVerdict::Inconclusive,
        () if any(ChangeVerdict::Regressed) => ChangeVerdict::Regressed,
        // A percentile within one bucket shows nothing, so a mean decides.
        () if means.is_empty() || means.iter().any(|row| row.verdict == ChangeVerdict::Inconclusive) => {
            ChangeVerdict::Inconclusive
        }
        () if any(ChangeVerdict::Improved) => ChangeVerdict::Improved,
        () => ChangeVerdict::NoChange,
    };
    StretchComparison { verdict, load, means, percentiles }
}

fn load(sides: &[&[HistoryBlock]; 2]) -> Vec<LoadRow> {
    let sum = |blocks: &[HistoryBlock], signal| {
        let each = blocks.iter().filter_map(|block| counted(block, signal));
        each.reduce(|a, b| a + b)
    };
    let per_replica = |blocks: &&[HistoryBlock]| {
        let replicas = |block: &HistoryBlock| {
            Some(stands(block, Signal::ReplicasReady)?.max(1.0) * block.watched.as_secs_f64())
        };
        let seconds: f64 = blocks.iter().filter_map(replicas).sum();
        Some(sum(blocks, Signal::Finished)? / seconds)
    };
    let computed = |blocks: &&[HistoryBlock]| {
        let cached = sum(blocks, Signal::CachedTokens).unwrap_or(0.0);
        Some((sum(blocks, Signal::PromptTokens)? - cached) / sum(blocks, Signal::Finished)?)
    };
    let written =
        |blocks: &&[HistoryBlock]| Some(sum(blocks, Signal::OutputTokens)? / sum(blocks, Signal::Finished)?);
    type Of<'a> = &'a dyn Fn(&&[HistoryBlock]) -> Option<f64>;
    let each: [(&'static str, Of<'_>); 3] = [
        ("requests per second and replica", &per_replica),
        ("prompt tokens computed per request", &computed),
        ("tokens per answer", &written),
    ];
    let row = |(about, of): (&'static str, Of<'_>)| {
        let [base, candidate] = sides.each_ref().map(|side| of(side).filter(|value| value.is_finite()));
        let (base, candidate) = base.zip(candidate)?;
        let alike = base.max(candidate) <= ALIKE * base.min(candidate);
        Some(LoadRow { about, base, candidate, alike })
    };
    each.into_iter().filter_map(row).collect()
}

fn means(sides: &[&[HistoryBlock]; 2], margins: &Margins) -> Vec<MeanRow> {
    let latency = |signal: Signal| {
        let taken = |block: &HistoryBlock| {
            let (sum, count): (Option<f64>, Option<f64>) = told(block, signal)
                .iter()
                .fold((None, None), |all, one| (more(all.0, one.sum), more(all.1, one.count)));
            sum.zip(count)
        };
        row(signal.name(), sides, &taken, |base, candidate| {
            let (lower, upper) = (
                candidate.interval.lower / base.interval.upper,
                candidate.interval.upper / base.interval.lower,
            );
            judged((lower, upper), (1.0 / (1.0 + margins.p50), 1.0 + margins.p50))
        })
    };
    let failed = |block: &HistoryBlock| {
        let failed: Option<f64> = [Signal::Failed, Signal::Refused]
            .into_iter()
            .filter_map(|one| counted(block, one))
            .reduce(|a, b| a + b);
        Some((failed?, failed? + counted(block, Signal::Finished)?))
    };
    let shares = row("failed", sides, &failed, |base, candidate| {
        let (lower, upper) =
            (candidate.interval.lower - base.interval.upper, candidate.interval.upper - base.interval.lower);
        judged((lower, upper), (-margins.errors, margins.errors))
    });
    LATENCIES.into_iter().filter_map(latency).chain(shares).collect()
}

/// Returns a ratio of sums in both periods with its verdict.
fn row(
    metric: &str,
    sides: &[&[HistoryBlock]; 2],
    of: &dyn Fn(&HistoryBlock) -> Option<(f64, f64)>,
    judge: impl Fn(&Mean, &Mean) -> ChangeVerdict,
) -> Option<MeanRow> {
    let [base, candidate] = sides.each_ref().map(|blocks| {
        let parts: Vec<(f64, f64)> = blocks.iter().filter_map(of).collect();
        let batches = batched(&parts);
        let (above, below): (Vec<f64>, Vec<f64>) = batches.into_iter().unzip();
        ratio(&above, &below, 1.0 - 2.0 * ALPHA)
    });
    let (base, candidate) = base.zip(candidate)?;
    let shown = |mean: &Mean| [mean.value, mean.interval.lower, mean.interval.upper];
    Some(MeanRow {
        metric: metric.to_owned(),
        base: shown(&base),
        candidate: shown(&candidate),
        verdict: judge(&base, &candidate),
    })
}

/// Joins neighbouring blocks, because the correlation of a queue must be inside one batch.
fn batched(parts: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let batches = BATCHES.min(parts.len());
    let place = |batch: usize| batch * parts.len() / batches.max(1);
    let sum = |parts: &[(f64, f64)]| parts.iter().fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
    (0..batches).map(|batch| sum(&parts[place(batch)..place(batch + 1)])).collect()
}

/// Returns the verdict of an interval of the change against the accepted range.
fn judged((lower, upper): (f64, f64), (least, most): (f64, f64)) -> ChangeVerdict {
    match () {
        () if lower.is_nan() || upper.is_nan() || lower > upper => ChangeVerdict::Inconclusive,
        () if lower > most => ChangeVerdict::Regressed,
        () if upper < least => ChangeVerdict::Improved,
        () if upper <= most => ChangeVerdict::NoChange,
        () => ChangeVerdict::Inconclusive,
    }
}

fn percentiles(sides: &[&[HistoryBlock]; 2]) -> Vec<BracketRow> {
    let mut found = Vec::new();
    for metric in LATENCIES {
        let whole = |block: &HistoryBlock| told(block, metric).iter().cloned().reduce(Buckets::with);
        let both = sides.each_ref().map(|blocks| blocks.iter().filter_map(whole).collect::<Vec<_>>());
        for p in PERCENTILES {
            let brackets = both.each_ref().map(|parts| EdgeBracket::of(parts, p, ALPHA));
            let [Some(base), Some(candidate)] = brackets else { continue };
            let over = |high: &EdgeBracket, low: &EdgeBracket| {
                high.over_s.zip(low.most_s).is_some_and(|(over, most)| over >= most)
            };
            let verdict = match () {
                () if over(&candidate, &base) => ChangeVerdict::Regressed,
                () if over(&base, &candidate) => ChangeVerdict::Improved,
                () => ChangeVerdict::Inconclusive,
            };
            found.push(BracketRow { metric, p, base, candidate, verdict });
        }
    }
    found
}

/// Returns the histograms of engines, else of gateways.
fn told(block: &HistoryBlock, signal: Signal) -> &[Buckets] {
    own(&block.histograms, signal).map_or(&[], Vec::as_slice)
}

fn counted(block: &HistoryBlock, signal: Signal) -> Option<f64> {
    own(&block.counters, signal).copied()
}

fn stands(block: &HistoryBlock, signal: Signal) -> Option<f64> {
    own(&block.gauges, signal).map(|range| range.mean)
}

fn own<T>(all: &BTreeMap<KeptSignal, T>, signal: Signal) -> Option<&T> {
    all.get(&(SignalLayer::Engine, signal)).or_else(|| all.get(&(SignalLayer::Gateway, signal)))
}

fn more(all: Option<f64>, one: Option<f64>) -> Option<f64> {
    all.into_iter().chain(one).reduce(|a, b| a + b)
}
