//! Objections to a run apart from its rows: an untrusted measurement, or a mean that improved while the tail broke.

use plimsoll_math::series;
use plimsoll_model::RunState;

use super::select::values;
use super::{GateInput, GateRow, JudgedRow, MeasuredRun, RowRole};
use crate::budget::{AmountUnit, MetricKind, RowPlan, shown, signed};
use plimsoll_measure::columns::INFINITE;
use plimsoll_measure::findings::{Held, LevelFinding, Reason, Trust};
use plimsoll_measure::say::count;
use plimsoll_measure::validity::lets_nothing_pass;

/// Returns the trust in the judged levels, or in the run if no level was judged.
pub fn trust(run: &MeasuredRun<'_>, judged: &[JudgedRow]) -> Trust {
    let used: Vec<u32> = judged.iter().flat_map(|one| one.row.levels.iter().copied()).collect();
    let of_levels = run.findings.levels.iter().filter(|level| used.contains(&level.summary.level));
    let worst = of_levels.map(|level| level.validity.verdict).max();
    match (run.is_sweep(), worst) {
        (true, Some(worst)) => worst,
        (_, worst) => worst.unwrap_or_default().max(run.findings.validity.verdict),
    }
}

/// Makes passed rows inconclusive if records that matter to them are missing. Returns whether a deciding row was one of them.
pub fn bar(run: &MeasuredRun<'_>, judged: &mut [JudgedRow]) -> bool {
    let mut barred = false;
    for one in judged.iter_mut().filter(|one| one.row.role != RowRole::Tracked && one.row.held == Held::Pass)
    {
        let metric = one.plan.as_ref().map(|plan| plan.row.metric);
        let used = |level: &&LevelFinding| {
            one.row.levels.is_empty() || one.row.levels.contains(&level.summary.level)
        };
        let mut reasons = run.findings.levels.iter().filter(used).flat_map(|level| &level.validity.reasons);
        let Some(reason) = reasons.find(|reason| lets_nothing_pass(reason, metric)) else { continue };
        one.row.held = Held::Inconclusive;
        one.row.why = format!("it would pass, but these records are not valid for a pass: {}", reason.figure);
        barred |= one.row.role == RowRole::Decides;
    }
    barred
}

pub fn refusals(gate: &GateInput<'_>, judged: &[JudgedRow], trust: Trust) -> Vec<String> {
    let mut said = doubts(gate.run, judged, trust);
    if let RunState::Partial { why } = &gate.run.manifest.progress {
        said.push(format!("the run is partial: {why}. The verdict covers only the recorded levels"));
    }
    if trust == Trust::Invalid {
        return said;
    }
    let Some(baseline) = gate.baseline else { return said };
    let broken = judged.iter().filter(|one| one.row.held == Held::Fail && one.row.role == RowRole::Decides);
    for one in broken {
        let Some(plan) = one.plan.as_ref().filter(|plan| is_tail(plan)) else { continue };
        if let Some(line) = better_mean(gate, plan, &one.row, baseline)
            && !said.contains(&line)
        {
            said.push(line);
        }
    }
    said
}

/// Returns the warm-up that was cut from the judged levels, because no row contains it.
pub fn cut(run: &MeasuredRun<'_>, judged: &[JudgedRow]) -> Vec<String> {
    let used = |id: u32| judged.iter().any(|one| one.row.levels.contains(&id));
    let levels = run.findings.levels.iter().filter(|level| used(level.summary.level));
    levels
        .filter_map(|level| {
            Some(format!("level {}, {}", level.summary.level, level.summary.window.cut_words()?))
        })
        .collect()
}

/// Returns the reasons why the run or the judged levels are not fully trusted.
fn doubts(run: &MeasuredRun<'_>, judged: &[JudgedRow], trust: Trust) -> Vec<String> {
    if trust == Trust::Valid {
        return Vec::new();
    }
    let used = |id: u32| judged.iter().any(|one| one.row.levels.contains(&id));
    let levels =
        run.findings.levels.iter().filter(|level| trust == Trust::Invalid || used(level.summary.level));
    // The levels come first. A sweep has a dozen levels, so each check has one line.
    let reasons = levels.flat_map(|level| &level.validity.reasons).chain(&run.findings.validity.reasons);
    let mut checks: Vec<(&Reason, Vec<&str>)> = Vec::new();
    // Without the check of sample sizes, because a row with too few requests reports that itself.
    for reason in reasons.filter(|reason| reason.verdict == trust && reason.check != "samples") {
        match checks.iter_mut().find(|(first, _)| first.check == reason.check) {
            Some((_, figures)) if figures.contains(&reason.figure.as_str()) => {}
            Some((_, figures)) => figures.push(&reason.figure),
            None => checks.push((reason, vec![&reason.figure])),
        }
    }
    let suspect = if trust == Trust::Suspect { "the measurement is suspect: " } else { "" };
    let line = |(reason, figures): (&Reason, Vec<&str>)| {
        let also = match figures.len() - 1 {
            0 => String::new(),
            n => format!(" (and on {})", count(n as u64, "other level")),
        };
        format!("{suspect}{}: {}{also}. {}", reason.check, reason.figure, reason.means)
    };
    checks.into_iter().map(line).collect()
}

fn is_tail(plan: &RowPlan) -> bool {
    plan.metric.kind() == MetricKind::Percentile && plan.row.p.is_some_and(|p| p.0 >= 0.9)
}

/// Number of batches of a mean.
const MEAN_BATCHES: usize = 20;

/// Returns that the change improves the mean and breaks the tail, if the mean is certainly lower than the baseline's.
fn better_mean(
    gate: &GateInput<'_>,
    plan: &RowPlan,
    row: &GateRow,
    baseline: &MeasuredRun<'_>,
) -> Option<String> {
    let mean = |measured: &MeasuredRun<'_>| {
        let levels = measured.select(gate.file, &plan.load).ok()?;
        let requests = measured.requests(plan.row.slice.as_ref()).ok()?;
        let finite = values(&levels, plan.metric, requests).into_iter().filter(|ns| *ns != INFINITE);
        series::mean(&finite.map(|ns| ns as f64 / 1e9).collect::<Vec<_>>(), MEAN_BATCHES, 0.9)
    };
    let (now, then) = (mean(gate.run)?, mean(baseline)?);
    let half = |mean: &series::Mean| 0.5 * (mean.interval.upper - mean.interval.lower);
    let sure = then.value - now.value > libm::hypot(half(&now), half(&then));
    sure.then(|| {
        format!(
            "Refused: the change improves the mean of {} by {} % ({}, was {}) and breaks {}: {} against {}.",
            plan.metric.name(),
            signed(100.0 * (1.0 - now.value / then.value)).trim_start_matches('+'),
            shown(now.value, &AmountUnit::Time),
            shown(then.value, &AmountUnit::Time),
            plan.row.p.map_or("its tail".into(), |p| p.name()),
            row.measured_shown.split(" [").next().unwrap_or_default(),
            row.limit_shown
        )
    })
}
