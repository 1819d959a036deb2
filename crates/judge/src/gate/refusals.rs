//! What speaks against a run beside its budgets: that it can't be trusted, or that its mean improved while its tail broke.

use plimsoll_math::series;
use plimsoll_model::RunState;

use super::select::{Picks, values};
use super::{GateRow, JudgedRow, MeasuredRun, RowRole};
use crate::budget::{Budget, BudgetFile, Judged, Limit, Unit, shown, signed};
use plimsoll_measure::columns::INFINITE;
use plimsoll_measure::findings::{Held, LevelFinding, Reason, Trust};
use plimsoll_measure::say::count;
use plimsoll_measure::validity::lets_nothing_pass;

/// How far what was judged may be trusted: the levels it came from, or the run where it came from none.
pub fn trust(run: &MeasuredRun<'_>, judged: &[JudgedRow]) -> Trust {
    let used: Vec<u32> = judged.iter().flat_map(|one| one.row.levels.iter().copied()).collect();
    let of_levels = run.findings.levels.iter().filter(|level| used.contains(&level.summary.level));
    let worst = of_levels.map(|level| level.validity.verdict).max();
    match (run.is_sweep(), worst) {
        (true, Some(worst)) => worst,
        (_, worst) => worst.unwrap_or_default().max(run.findings.validity.verdict),
    }
}

/// Takes back what passed on records of which some that matter to it are missing; says whether there was any.
pub fn bar(run: &MeasuredRun<'_>, judged: &mut [JudgedRow]) -> bool {
    let mut barred = false;
    for one in judged.iter_mut().filter(|one| one.row.role != RowRole::Tracked && one.row.held == Held::Pass)
    {
        let metric = one.budget.as_ref().map(|budget| budget.metric);
        let used = |level: &&LevelFinding| {
            one.row.levels.is_empty() || one.row.levels.contains(&level.summary.level)
        };
        let mut reasons = run.findings.levels.iter().filter(used).flat_map(|level| &level.validity.reasons);
        let Some(reason) = reasons.find(|reason| lets_nothing_pass(reason, metric)) else { continue };
        one.row.held = Held::Inconclusive;
        one.row.why = format!("it would hold, and nothing passes on these records: {}", reason.figure);
        barred |= one.row.role == RowRole::Decides;
    }
    barred
}

pub fn refusals(
    file: &BudgetFile,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    judged: &[JudgedRow],
    trust: Trust,
) -> Vec<String> {
    let mut said = doubts(run, judged, trust);
    if let RunState::Partial { why } = &run.manifest.progress {
        said.push(format!("the run is partial: {why}. What is judged are the levels that are there"));
    }
    if trust == Trust::Invalid {
        return said;
    }
    let Some(baseline) = baseline else { return said };
    let broken = judged.iter().filter(|one| one.row.held == Held::Fail && one.row.role == RowRole::Decides);
    for one in broken {
        let Some(budget) = one.budget.as_ref().filter(|budget| is_tail(budget)) else { continue };
        if let Some(line) = better_mean(file, budget, &one.row, run, baseline)
            && !said.contains(&line)
        {
            said.push(line);
        }
    }
    said
}

/// What was cut of the levels that were judged: no row holds it, so it is said beside them.
pub fn cut(run: &MeasuredRun<'_>, judged: &[JudgedRow]) -> Vec<String> {
    let used = |id: u32| judged.iter().any(|one| one.row.levels.contains(&id));
    let levels = run.findings.levels.iter().filter(|level| used(level.summary.level));
    levels
        .filter_map(|level| {
            Some(format!("level {}, {}", level.summary.level, level.summary.window.cut_words()?))
        })
        .collect()
}

/// Why the measurement is not, or not quite, to be trusted: of the run and of the levels that were judged.
fn doubts(run: &MeasuredRun<'_>, judged: &[JudgedRow], trust: Trust) -> Vec<String> {
    if trust == Trust::Valid {
        return Vec::new();
    }
    let used = |id: u32| judged.iter().any(|one| one.row.levels.contains(&id));
    let levels =
        run.findings.levels.iter().filter(|level| trust == Trust::Invalid || used(level.summary.level));
    // Those of the levels that were judged first: of a sweep's dozen levels one line a check is enough.
    let reasons = levels.flat_map(|level| &level.validity.reasons).chain(&run.findings.validity.reasons);
    let mut checks: Vec<(&Reason, Vec<&str>)> = Vec::new();
    // What has too few requests for its own budget says so in its row; how many a p99 would take that nobody asks for is no doubt.
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

fn is_tail(budget: &Budget) -> bool {
    budget.metric.judged() == Judged::Percentile && budget.p.is_some_and(|p| p.0 >= 0.9)
}

/// Batches of a mean.
const MEAN_BATCHES: usize = 20;

/// "Improves the mean and breaks p99": in those words, where the mean really is lower than the baseline's.
fn better_mean(
    file: &BudgetFile,
    budget: &Budget,
    row: &GateRow,
    run: &MeasuredRun<'_>,
    baseline: &MeasuredRun<'_>,
) -> Option<String> {
    let limit = Limit::of(file, budget);
    let mean = |measured: &MeasuredRun<'_>| {
        let chosen = measured.choose(file, budget).ok()?;
        let picks: Picks = measured.picks(limit.slice).ok()?;
        let finite = values(&chosen, limit.metric, picks).into_iter().filter(|ns| *ns != INFINITE);
        series::mean(&finite.map(|ns| ns as f64 / 1e9).collect::<Vec<_>>(), MEAN_BATCHES, 0.9)
    };
    let (now, then) = (mean(run)?, mean(baseline)?);
    let half = |mean: &series::Mean| 0.5 * (mean.interval.upper - mean.interval.lower);
    let sure = then.value - now.value > libm::hypot(half(&now), half(&then));
    sure.then(|| {
        format!(
            "Refused: the change improves the mean of {} by {} % ({}, was {}) and breaks {}: {} against {}.",
            limit.metric.name(),
            signed(100.0 * (1.0 - now.value / then.value)).trim_start_matches('+'),
            shown(now.value, &Unit::Time),
            shown(then.value, &Unit::Time),
            budget.p.map_or("its tail".into(), |p| p.name()),
            row.measured_shown.split(" [").next().unwrap_or_default(),
            row.limit_shown
        )
    })
}
