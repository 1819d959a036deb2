//! Analysis of a complete run: every level, the limits, the sustained level, and trust.
//!
//! A finished run that is read from disk and a sweep in progress use one function. The screen at the end of a sweep and the run
//! folder therefore agree.

use std::collections::BTreeMap;

use plimsoll_model::{At, Attempt, EndedBy, Level, Load, Manifest, Sample, TimeBase};

use crate::columns::Columns;
use crate::findings::{
    CapacityLine, CapacityLines, FINDINGS_SCHEMA, Findings, Held, LoadKeptUp, ParetoCurve, Reading,
    SustainedLine,
};
use crate::gather::LevelAccumulator;
use crate::lines::{self, LineLevel, LineSpec};
use crate::network::{Network, SeenOfNetwork};
use crate::purpose::{COLD, ISOLATED, WARM_UP};
use crate::say::number;
use crate::server_side::report;
use crate::tail::UpperTail;
use crate::validity::judge_run;

/// Recomputes all findings of a run from its rows.
pub fn analyse(manifest: &Manifest, attempts: &[Attempt], samples: &[Sample], spec: &LineSpec) -> Findings {
    let mut observed = Vec::new();
    each_level(manifest, attempts, |level, own| {
        observed.push(observe(manifest, &level, &Columns::read(&own), samples, spec).0);
    });
    let mut findings = analyse_observed(&observed, spec);
    findings.server = report(&findings.levels, samples);
    // The connections of a simulated client are numbers, so there is no network.
    if manifest.time == TimeBase::Real {
        findings.network = Network::of_attempts(attempts);
    }
    findings
}

/// The findings of a run that is read attempt by attempt, without keeping attempts. Figures need a tenth of an attempt's data.
#[derive(Default)]
pub struct StreamedRun {
    levels: Levels,
    network: SeenOfNetwork,
    connected: bool,
}

impl StreamedRun {
    /// Adds an attempt; attempts may come in any order.
    pub fn push(&mut self, attempt: &Attempt) {
        self.levels.0.entry(attempt.level).or_default().push(attempt);
        if attempt.connection.is_some() {
            self.connected = true;
            self.network.push(&attempt.tcp);
        }
    }

    /// Returns the findings that [`analyse`] returns for these attempts.
    pub fn findings(self, manifest: &Manifest, samples: &[Sample], spec: &LineSpec) -> Findings {
        let network = (manifest.time == TimeBase::Real && self.connected).then(|| self.network.network());
        let mut observed = Vec::new();
        for (level, columns) in self.levels.read(manifest) {
            observed.push(observe(manifest, &level, &columns, samples, spec).0);
        }
        let mut findings = analyse_observed(&observed, spec);
        findings.server = report(&findings.levels, samples);
        findings.network = network;
        findings
    }

    /// Returns the findings and rows that [`analyse_rows`] returns for these attempts.
    pub fn rows(
        mut self,
        manifest: &Manifest,
        samples: &[Sample],
        spec: &LineSpec,
    ) -> (Findings, Vec<LevelRows>) {
        self.network = SeenOfNetwork::default();
        observed_rows(manifest, self.levels.read(manifest), samples, spec)
    }
}

/// The gathered records of each level.
#[derive(Default)]
struct Levels(BTreeMap<u32, LevelAccumulator>);

impl Levels {
    /// Returns each level that counts, up to its last record, with its columns.
    fn read(mut self, manifest: &Manifest) -> impl Iterator<Item = (Level, Columns)> {
        let levels = manifest.levels.iter().filter(|level| counts(level));
        levels.map(move |level| {
            let gathered = self.0.remove(&level.id).unwrap_or_default();
            let level = as_far_as_it_got(level, gathered.last_end(), gathered.first_tries());
            (level, gathered.into_columns())
        })
    }
}

fn observe(
    manifest: &Manifest,
    level: &Level,
    columns: &Columns,
    samples: &[Sample],
    spec: &LineSpec,
) -> (LineLevel, (usize, usize)) {
    // No limits are computed for a run of single loads.
    let upper = if is_sweep(manifest.levels.iter()) { UpperTail::keep } else { UpperTail::nothing };
    LineLevel::of_columns(level, columns, &of_level(samples, level), spec.budget.as_ref(), upper)
}

/// Returns whether a level counts. Levels of warm-up, cold start or isolated requests are in the rows and in no figure.
fn counts(level: &Level) -> bool {
    ![WARM_UP, COLD, ISOLATED].contains(&level.purpose.as_str())
}

/// Returns the findings of observed levels in order of execution, without levels of warm-up.
pub fn analyse_observed(observed: &[LineLevel], spec: &LineSpec) -> Findings {
    findings(observed, spec, is_sweep(observed.iter().map(|o| &o.level)))
}

/// Returns whether the levels belong to a search, so that limits can be computed. A run of single loads has none.
fn is_sweep<'a>(mut levels: impl Iterator<Item = &'a Level>) -> bool {
    levels.any(|level| counts(level) && level.purpose != "run")
}

/// A level with the columns that its figures and its budget use.
pub struct LevelRows {
    /// Level, up to its last record.
    pub level: Level,
    pub columns: Columns,
    /// Range of the requests that count.
    pub window: (usize, usize),
}

/// Returns the findings with the rows, for callers that evaluate more than the summary.
pub fn analyse_rows(
    manifest: &Manifest,
    attempts: &[Attempt],
    samples: &[Sample],
    spec: &LineSpec,
) -> (Findings, Vec<LevelRows>) {
    let mut read = Vec::new();
    each_level(manifest, attempts, |level, own| read.push((level, Columns::read(&own))));
    observed_rows(manifest, read, samples, spec)
}

fn observed_rows(
    manifest: &Manifest,
    read: impl IntoIterator<Item = (Level, Columns)>,
    samples: &[Sample],
    spec: &LineSpec,
) -> (Findings, Vec<LevelRows>) {
    let (mut observed, mut rows) = (Vec::new(), Vec::new());
    for (level, columns) in read {
        let (seen, window) = observe(manifest, &level, &columns, samples, spec);
        observed.push(seen);
        rows.push(LevelRows { level, columns, window });
    }
    let mut findings = analyse_observed(&observed, spec);
    findings.server = report(&findings.levels, samples);
    (findings, rows)
}

/// Passes every level that counts with its records to `take`.
fn each_level<'a>(
    manifest: &Manifest,
    attempts: &'a [Attempt],
    mut take: impl FnMut(Level, Vec<&'a Attempt>),
) {
    let mut by_level: BTreeMap<u32, Vec<&Attempt>> = BTreeMap::new();
    for attempt in attempts {
        by_level.entry(attempt.level).or_default().push(attempt);
    }
    for level in manifest.levels.iter().filter(|level| counts(level)) {
        let own = by_level.remove(&level.id).unwrap_or_default();
        let last_end = own.iter().filter_map(|a| a.end).max();
        let requests = own.iter().filter(|a| a.attempt == 0).count();
        take(as_far_as_it_got(level, last_end, requests as u64), own);
    }
}

pub(crate) fn of_level<'a>(samples: &'a [Sample], level: &Level) -> Vec<&'a Sample> {
    samples.iter().filter(|s| s.at >= level.start && s.at < level.drained).collect()
}

/// Ends a level at its last row if its generator was killed, because later arrivals were never sent.
pub(crate) fn as_far_as_it_got(level: &Level, last_end: Option<At>, requests: u64) -> Level {
    let mut level = level.clone();
    if level.ended_by == EndedBy::Cut {
        let last = last_end.unwrap_or(level.start);
        level.stop = level.stop.min(last);
        level.drained = last;
        level.arrivals = requests;
    }
    level
}

/// Returns the findings of observed levels.
pub fn findings(observed: &[LineLevel], spec: &LineSpec, is_sweep: bool) -> Findings {
    let levels: Vec<_> = observed.iter().map(|o| o.finding.clone()).collect();
    let zero: Vec<&LineLevel> =
        observed.iter().filter(|o| matches!(o.level.load, Load::Closed { concurrency: 1 })).collect();
    let mut kinds: Vec<&str> = Vec::new();
    if is_sweep {
        for o in observed {
            if !kinds.contains(&o.level.traffic.as_str()) {
                kinds.push(&o.level.traffic);
            }
        }
    }
    let (mut all_lines, mut curves) = (Vec::new(), Vec::new());
    for kind in kinds {
        let own: Vec<&LineLevel> = observed.iter().filter(|o| o.level.traffic == kind).collect();
        let mut read = lines::read(kind, &own, &zero, spec);
        read.lines.hold = own.iter().rfind(|o| o.level.purpose == "hold").map(|o| {
            let before: Vec<&LineLevel> = own.iter().copied().filter(|o| o.level.purpose != "hold").collect();
            let line = line_to_hold(&lines::read(kind, &before, &zero, spec).lines);
            let zero_s = read.curve.zero_contention.value();
            hold(o, line.map_or("load", |line| line.0), zero_s, read.curve.percentile, spec.knee_factor)
        });
        all_lines.push(read.lines);
        curves.push(read.curve);
    }
    let validity = judge_run(&levels);
    Findings {
        schema: FINDINGS_SCHEMA,
        validity,
        lines: all_lines,
        curves,
        pareto: ParetoCurve::all(&levels),
        levels,
        cost: None,
        server: None,
        network: None,
        cold_start: None,
    }
}

// ------------------------------------------------------------------------------------------- hold

/// Returns the limit to sustain and the load for it.
///
/// The limit is the lower of onset and budget limit, and the load is the lower end of its interval. At the onset itself a
/// correct verdict is "inconclusive" every second time. Without both limits the load is just under the last stable load.
pub(crate) fn line_to_hold(lines: &CapacityLines) -> Option<(&'static str, f64)> {
    let lower = |line: &CapacityLine| match line {
        CapacityLine::Found { rate, .. } => {
            Some(if rate.lower > 0.0 { rate.lower } else { 0.9 * rate.value })
        }
        CapacityLine::Above { rate_per_s, .. } => Some(*rate_per_s),
        CapacityLine::Below { .. } | CapacityLine::CannotTell { .. } => None,
    };
    let onset = lower(&lines.onset).map(|rate| ("onset", rate));
    let budget = lines.budget.as_ref().and_then(lower).map(|rate| ("budget", rate));
    let least = [onset, budget].into_iter().flatten().min_by(|a, b| a.1.total_cmp(&b.1));
    least.or_else(|| lower(&lines.stability).map(|rate| ("stability", 0.95 * rate)))
}

fn hold(o: &LineLevel, line: &str, zero_s: Option<f64>, percentile: f64, factor: f64) -> SustainedLine {
    let summary = &o.finding.summary;
    let budget = summary.budget.as_ref().map(|b| b.verdict);
    let tail = summary.latency.leading().at(percentile).and_then(Reading::estimate);
    let over = match (tail, zero_s) {
        (Some(tail), Some(zero_s)) => tail.lower > factor * zero_s,
        _ => false,
    };
    let rises = summary.drift.drifts && summary.drift.change_share.is_some_and(|change| change > 0.0);
    let (verdict, why) = match (summary.stability.verdict, line, budget) {
        (LoadKeptUp::Unstable, ..) => (Held::Fail, summary.stability.why.clone()),
        _ if rises => (Held::Fail, "latency rose during the level".to_owned()),
        (_, "budget", Some(Held::Fail)) => (Held::Fail, "the budget was broken".to_owned()),
        (_, "onset", _) if over => {
            (Held::Fail, format!("the tail stayed over {} × its zero-contention value", number(factor)))
        }
        (LoadKeptUp::Undecided, ..) => (Held::Inconclusive, summary.stability.why.clone()),
        (_, "budget", Some(Held::Inconclusive)) => {
            (Held::Inconclusive, "too few requests to judge the budget".to_owned())
        }
        _ => (Held::Pass, summary.stability.why.clone()),
    };
    SustainedLine {
        line: line.to_owned(),
        level: o.level.id,
        rate_per_s: o.rate(),
        held_s: o.level.window().as_secs_f64(),
        verdict,
        why,
    }
}
