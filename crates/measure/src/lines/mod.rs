//! Reads the curve and the three capacity limits from the levels of one kind of traffic.
//!
//! **Queueing onset**: the load at which the tail of `ttft` reaches a factor (1.5) of its zero-contention value. It uses a
//! monotone fit of ln p99 on load, with a bootstrap over batches whose spread the levels share. `tail::fit` explains the error
//! of separate levels. Segmented regression and Kneedle were rejected because their knee depends on the last level.
//! **Stability limit**: the bracket [last stable, first unstable] by the in-flight rule. The estimate between is the
//! throughput of the overloaded target per second.
//! **Budget limit**: the bracket [last pass, first fail] of the budget by Beta bounds. The estimate between is the crossing
//! of the share over the tightest ceiling.

mod limits;
mod onset;
mod words;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Attempt, Level, Load, Sample};

use crate::columns::Columns;
use crate::findings::{
    BudgetSpec, CapacityLines, Curve, CurvePoint, Estimate, Held, LadderRung, Lengths, LevelFinding,
    LoadKeptUp, Reading, Trust,
};
use crate::gather::LevelAccumulator;
use crate::summary::{full_throughput, summarise_columns};
use crate::tail::{UpperTail, fit};
use crate::validity;
use crate::whole::{as_far_as_it_got, of_level};

use crate::purpose::IDLE;
pub use limits::{bracket, saturated};
pub(crate) use limits::{brackets, usable};
use limits::{budget, budget_verdicts, stability};
pub(crate) use onset::idle_costs;
use onset::{onset, under_the_limit, zero_contention};
use words::Words;

/// The settings of the capacity limits.
#[derive(Clone, PartialEq, Debug)]
pub struct LineSpec {
    /// Multiple of the zero-contention value that marks the onset.
    pub knee_factor: f64,
    /// Percentile for the onset, if the data support it.
    pub percentile: f64,
    /// Think time of a user between a response and the next request, in seconds.
    pub think_time_s: f64,
    /// Budget; `None` if there is none.
    pub budget: Option<BudgetSpec>,
    pub seed: u64,
    pub replicates: usize,
}

/// A level with the values that the limits need.
#[derive(Clone, Debug)]
pub struct LineLevel {
    pub level: Level,
    pub finding: LevelFinding,
    /// Upper values of its leading latency.
    pub upper: UpperTail,
    /// Name of the leading latency.
    pub metric: &'static str,
    /// Throughput per second after the target was saturated.
    full: Reading,
}

impl LineLevel {
    /// Summarises and evaluates one level from its records.
    pub fn new(
        level: &Level,
        own: &[&Attempt],
        samples: &[&Sample],
        budget: Option<&BudgetSpec>,
    ) -> LineLevel {
        LineLevel::of_columns(level, &Columns::read(own), samples, budget, UpperTail::keep).0
    }

    /// Summarises and evaluates a level whose records were gathered as they ended. Samples of other levels are skipped.
    pub fn gathered(
        level: &Level,
        gathered: LevelAccumulator,
        samples: &[Sample],
        budget: Option<&BudgetSpec>,
    ) -> LineLevel {
        let level = as_far_as_it_got(level, gathered.last_end(), gathered.first_tries());
        let samples = of_level(samples, &level);
        LineLevel::of_columns(&level, &gathered.into_columns(), &samples, budget, UpperTail::keep).0
    }

    /// Summarises and evaluates a level from its columns, and returns the range of the requests that count.
    ///
    /// `upper` selects the values of the leading latency that are kept for the limits.
    pub(crate) fn of_columns(
        level: &Level,
        columns: &Columns,
        samples: &[&Sample],
        budget: Option<&BudgetSpec>,
        upper: fn(&[i64]) -> UpperTail,
    ) -> (LineLevel, (usize, usize)) {
        let (summary, (from, to)) = summarise_columns(level, columns, samples, budget);
        let (metric, leading) = columns.leading();
        let upper = upper(&leading[from..to]);
        let full = full_throughput(columns, (level.start, level.stop));
        let validity = validity::judge(level, &summary);
        let observed = LineLevel {
            level: level.clone(),
            finding: LevelFinding { summary, validity },
            upper,
            metric,
            full,
        };
        (observed, (from, to))
    }

    /// Returns the offered load as drawn, in requests per second.
    pub fn rate(&self) -> f64 {
        self.finding.summary.rates.offered_per_s
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.level.load, Load::Open { .. })
    }

    /// Returns whether limits may use the level.
    fn counts(&self) -> bool {
        self.finding.validity.verdict != Trust::Invalid && self.finding.summary.counts.requests > 0
    }

    pub(crate) fn kept(&self) -> LoadKeptUp {
        self.finding.summary.stability.verdict
    }

    fn achieved(&self) -> Option<&Estimate> {
        self.finding.summary.rates.achieved_per_s.estimate()
    }
}

/// The curve and the limits of one kind of traffic.
pub struct CurveAndLines {
    pub curve: Curve,
    pub lines: CapacityLines,
}

/// Percentiles that an onset may use, best first.
const LADDER_OF_PERCENTILES: [f64; 4] = [0.99, 0.95, 0.9, 0.5];

/// Minimum number of levels for a fit.
const LEAST_LEVELS: usize = 3;

/// Reads curve and limits of one kind of traffic.
///
/// `zero` contains the levels at concurrency 1. They may be of any kind of traffic, because isolated requests do not differ.
pub fn read(traffic: &str, levels: &[&LineLevel], zero: &[&LineLevel], spec: &LineSpec) -> CurveAndLines {
    let mut open: Vec<&LineLevel> =
        levels.iter().copied().filter(|o| o.is_open() && o.rate() > 0.0).collect();
    open.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    let good: Vec<&LineLevel> = open.iter().copied().filter(|o| o.counts()).collect();
    let capacity = ladder_capacity(levels);
    let reference = zero_contention(&good, zero, capacity, spec.percentile, spec.seed);
    let words = Words { good: &good, think_time_s: spec.think_time_s };
    let stability = stability(&good, levels, &words);
    let limit = stability.rate().map(|limit| limit.value).or(capacity);
    let mut stream = Stream::new(spec.seed, "onset", 0);
    let fit = reference.as_ref().and_then(|zero| {
        let p = zero.percentile;
        let points: Vec<(f64, &UpperTail)> =
            good.iter().filter(|o| o.upper.supports(p)).map(|o| (o.rate(), &o.upper)).collect();
        (points.len() >= LEAST_LEVELS).then(|| {
            let draws = (&mut stream, spec.replicates);
            fit(&points, &zero.observed.upper, p, spec.knee_factor, limit, draws)
        })
    });
    let onset = onset(&good, reference.as_ref(), zero, fit.as_ref(), spec, &words);
    let budget = spec.budget.as_ref().map(|_| under_the_limit(budget(&good, &words), &stability, &words));
    let lines = CapacityLines {
        traffic: traffic.to_owned(),
        onset: under_the_limit(onset, &stability, &words),
        onset_percentile: Some(reference.as_ref().map_or(spec.percentile, |zero| zero.percentile)),
        stability,
        budget,
        budget_spec: spec.budget.clone(),
        mix: mix(&good, levels),
        think_time_s: spec.think_time_s,
        hold: None,
    };
    let mut points: Vec<CurvePoint> = open.iter().map(|o| point(o)).collect();
    // Levels that are inconclusive separately and hold when pooled with heavier levels.
    for (rate, _) in budget_verdicts(&good).into_iter().filter(|(_, holds)| *holds == Some(true)) {
        let of_rate = points.iter_mut().filter(|point| point.offered_per_s == rate);
        of_rate.for_each(|point| point.budget = Some(Held::Pass));
    }
    let curve = Curve {
        traffic: traffic.to_owned(),
        points,
        ladder: ladder(levels),
        metric: open.first().or(zero.first()).map_or("ttft", |o| o.metric).to_owned(),
        percentile: reference.as_ref().map_or(spec.percentile, |zero| zero.percentile),
        knee_factor: spec.knee_factor,
        zero_contention: reference.as_ref().map_or_else(
            || Reading::refused("no level without contention has enough requests", 0),
            |zero| {
                let (upper, p) = (&zero.observed.upper, zero.percentile);
                let (lower_s, upper_s) = upper.interval_s(p, &mut stream, spec.replicates);
                Reading::Estimate(Estimate {
                    value: upper.quantile_s(p),
                    lower: lower_s,
                    upper: upper_s,
                    n: upper.len() as u64,
                    n_eff: upper.n_eff(p),
                })
            },
        ),
        zero_contention_from: reference.map_or_else(|| "none".to_owned(), |zero| zero.from),
        fit: fit.map_or_else(Vec::new, |fit| fit.line),
    };
    CurveAndLines { curve, lines }
}

/// Returns the lengths of the level with the most requests.
fn mix(good: &[&LineLevel], levels: &[&LineLevel]) -> Lengths {
    let largest = good.iter().chain(levels).max_by_key(|o| o.upper.len());
    largest.map(|o| o.finding.summary.lengths.clone()).unwrap_or_default()
}

/// Returns the highest throughput of a closed loop or of a stable open-loop level, in requests per second.
pub(crate) fn ladder_capacity(levels: &[&LineLevel]) -> Option<f64> {
    let closed = levels.iter().filter(|o| !o.is_open()).filter_map(|o| o.achieved()).map(|e| e.value);
    let open = levels.iter().filter(|o| o.is_open() && o.kept() != LoadKeptUp::Unstable).map(|o| o.rate());
    closed.chain(open).max_by(f64::total_cmp)
}

fn ladder(levels: &[&LineLevel]) -> Vec<LadderRung> {
    let mut rungs: Vec<LadderRung> = levels
        .iter()
        .filter(|o| o.level.purpose != IDLE)
        .filter_map(|o| match o.level.load {
            Load::Closed { concurrency } | Load::Saturating { concurrency } => Some(LadderRung {
                level: o.level.id,
                concurrency,
                achieved_per_s: o.achieved()?.value,
                little_disagreement: o.finding.summary.concurrency.little.as_ref().map(|l| l.disagreement),
            }),
            Load::Open { .. } | Load::Wave { .. } => None,
        })
        .collect();
    rungs.sort_by_key(|rung| rung.concurrency);
    rungs
}

fn point(o: &LineLevel) -> CurvePoint {
    let summary = &o.finding.summary;
    let leading = summary.latency.leading();
    CurvePoint {
        level: o.level.id,
        purpose: o.level.purpose.clone(),
        offered_per_s: o.rate(),
        achieved_per_s: o.achieved().map(|e| e.value),
        good_per_s: summary.rates.good_per_s.as_ref().and_then(Reading::value),
        in_flight: summary.concurrency.mean,
        p50: leading.p50.clone(),
        p90: leading.p90.clone(),
        p95: leading.p95.clone(),
        p99: leading.p99.clone(),
        error_rate: summary.counts.error_rate.map_or(0.0, |e| e.value),
        stability: o.kept(),
        budget: summary.budget.as_ref().map(|b| b.verdict),
        trust: o.finding.validity.verdict,
    }
}
