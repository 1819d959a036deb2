//! The place of a failure: the one finding of the run that explains it best, with its figures.
//!
//! Each check makes the later ones irrelevant. The order is: an isolated request over the ceiling, failures, a growing queue, a load above the onset,
//! time before sending, the slowest stage. Guessing was rejected: without such a finding the row names what to measure.

use plimsoll_model::Load;

use super::select::{SelectedLevels, stages_beyond, values};
use super::{GateInput, GateRow};
use crate::budget::{AmountUnit, BudgetMetric, MetricKind, RowPlan, SelectedRequests, of_values, shown};
use plimsoll_measure::columns::INFINITE;
use plimsoll_measure::findings::{CapacityLine, CapacityLines, ErrorCount, LoadKeptUp};
use plimsoll_measure::order::seconds;
use plimsoll_measure::say::{number, percent};
use plimsoll_measure::whole::LevelRows;

/// Returns the cause of a failure as text: `ttft p99 612 ms > 350 ms at 12 req/s: queueing past the onset at 9.8 req/s`.
pub(super) fn sentence(
    gate: &GateInput<'_>,
    plan: &RowPlan,
    row: &GateRow,
    levels: &SelectedLevels<'_>,
) -> String {
    let first = row.measured_shown.split(" [").next().unwrap_or_default();
    let sign = if plan.is_floor() { "<" } else { ">" };
    let limit = row.limit_shown.trim_start_matches(['≤', '≥', ' ']);
    let measured = match (row.measured.value(), row.share_over.zip(row.allowed)) {
        (Some(value), _) if value.is_infinite() => "falls among failed requests".to_owned(),
        (Some(_), _) => format!("{first} {sign} {limit}"),
        (None, Some((share, allowed))) => {
            let (share, allowed) = (percent(share.value), percent(allowed));
            format!("is over {limit} for {share} of the requests ({allowed} may be)")
        }
        (None, None) => format!("breaks {limit}"),
    };
    let load = number(levels.offered_per_s());
    format!("{} {measured} at {load} req/s: {}", row.what, cause(gate, plan, levels))
}

fn cause(gate: &GateInput<'_>, plan: &RowPlan, levels: &SelectedLevels<'_>) -> String {
    let is_latency = plan.metric.kind() == MetricKind::Percentile;
    let causes: [&dyn Fn() -> Option<String>; 6] = [
        &|| is_latency.then(|| floor(gate, plan)).flatten(),
        &|| errors(plan, levels),
        &|| unstable(gate, levels),
        &|| past_onset(gate, levels),
        &|| is_latency.then(|| before_sending(plan, levels)).flatten(),
        &|| is_latency.then(|| stage(plan, levels)).flatten(),
    ];
    causes.iter().find_map(|cause| cause()).unwrap_or_else(|| {
        let onset = lines(gate, levels).and_then(|(lines, _)| lines.onset.rate());
        match onset.map(|rate| rate.value) {
            Some(rate) => format!(
                "not queueing, the onset is at {} req/s; the run has no stage times to locate the slow stage",
                number(rate)
            ),
            None => "not located: the run has no onset, no single-request level and no stage times; `plimsoll sweep` \
                     finds the first two"
                .to_owned(),
        }
    })
}

/// Returns that an isolated request already exceeds the ceiling.
fn floor(gate: &GateInput<'_>, plan: &RowPlan) -> Option<String> {
    let (p, limit_s) = (plan.row.p?, plan.limit?);
    for measured in [Some(gate.run), gate.baseline].into_iter().flatten() {
        let isolated = |rows: &&LevelRows| matches!(rows.level.load, Load::Closed { concurrency: 1 });
        let Some(rows) = measured.levels.iter().find(isolated) else { continue };
        let finding = measured.finding(rows.level.id)?;
        let single = SelectedLevels { levels: vec![(rows, finding)], traffic: rows.level.traffic.clone() };
        let mut values = values(&single, plan.metric, SelectedRequests::default());
        if values.len() < 20 {
            continue;
        }
        // The median, because then half of all requests exceed the ceiling even isolated.
        let at = plimsoll_math::quantile::rank(values.len(), 0.5) - 1;
        let median = seconds(*values.select_nth_unstable(at).1);
        if median > limit_s {
            return Some(format!(
                "a single request with no contention already takes {} (p50); no load is low enough for {}",
                shown(median, &AmountUnit::Time),
                p.name()
            ));
        }
    }
    None
}

/// Returns that failures suffice to exceed the allowed share.
fn errors(plan: &RowPlan, levels: &SelectedLevels<'_>) -> Option<String> {
    let (mut failed, mut requests) = (0, 0);
    let mut most: Option<&ErrorCount> = None;
    for (_, finding) in &levels.levels {
        let counts = &finding.summary.counts;
        failed += counts.failed - counts.cancelled.min(counts.failed);
        requests += counts.requests;
        most = most.or(counts.errors.first());
    }
    let share = failed as f64 / requests.max(1) as f64;
    let allowed = match plan.metric.kind() {
        MetricKind::Share => Some(0.0).filter(|_| plan.metric != BudgetMetric::RetryRate),
        _ => plan.allowed,
    }?;
    (share > allowed).then(|| {
        let how = most.map_or(String::new(), |error| {
            let status = error.status.map_or(String::new(), |status| format!(" {status}"));
            let text =
                if error.text.is_empty() { String::new() } else { format!(" “{}”", brief(&error.text)) };
            format!(", mostly {}{status}{text}", error.how.name())
        });
        format!("{} of the requests failed{how}", percent(share))
    })
}

fn brief(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { short + "…" } else { short }
}

fn unstable(gate: &GateInput<'_>, levels: &SelectedLevels<'_>) -> Option<String> {
    let (_, level) =
        levels.levels.iter().find(|(_, l)| l.summary.stability.verdict == LoadKeptUp::Unstable)?;
    let stability = &level.summary.stability;
    let grows = stability.growth_share.is_none_or(|growth| growth.lower > stability.limit_share);
    if !grows {
        // Unstable because of rejections, not of a queue.
        return Some(stability.why.clone());
    }
    let growth =
        stability.growth_share.map_or(String::new(), |g| format!(" by {} of the arrivals", percent(g.value)));
    let limit = lines(gate, levels).and_then(|(lines, whose)| {
        Some(format!(", past the stability limit at {} req/s{whose}", number(lines.stability.rate()?.value)))
    });
    Some(format!("the backlog grows{growth}{}", limit.unwrap_or_default()))
}

/// Returns the lines of this traffic, of the run or of the baseline, and a suffix that names the baseline.
fn lines<'m>(gate: &GateInput<'m>, levels: &SelectedLevels<'_>) -> Option<(&'m CapacityLines, &'static str)> {
    let of_baseline = || gate.baseline?.lines(&levels.traffic).map(|lines| (lines, " (of the baseline)"));
    gate.run.lines(&levels.traffic).map(|lines| (lines, "")).or_else(of_baseline)
}

fn past_onset(gate: &GateInput<'_>, levels: &SelectedLevels<'_>) -> Option<String> {
    let (lines, whose) = lines(gate, levels)?;
    let offered = levels.offered_per_s();
    match &lines.onset {
        CapacityLine::Found { rate, .. } if offered > rate.value => {
            Some(format!("queueing past the onset at {} req/s{whose}", number(rate.value)))
        }
        CapacityLine::Below { rate_per_s, .. } if offered >= *rate_per_s => {
            Some(format!("queueing: the onset is below {} req/s{whose}", number(*rate_per_s)))
        }
        _ => None,
    }
}

/// Returns that the row passes from the send time on, so that the generator or the connection broke it.
fn before_sending(plan: &RowPlan, levels: &SelectedLevels<'_>) -> Option<String> {
    let after = plan.metric.after_send();
    if after == plan.metric {
        return None;
    }
    let (p, limit_s) = (plan.row.p?, plan.limit?);
    let is_within = |metric| {
        let values = values(levels, metric, SelectedRequests::default());
        let count = of_values(&values, limit_s, p.0, levels.length_s());
        count.n > 0 && (count.over_most as f64) < (1.0 - p.0) * count.n as f64
    };
    // A row that its limit did not break, such as one against a baseline, shows nothing about the time before sending.
    (!is_within(plan.metric) && is_within(after)).then(|| {
        format!("latency from sending passes; the time is lost earlier, waiting for a connection or in the generator ({} {})", after.name(), p.name())
    })
}

/// Returns the stage with most of the time of the requests over the ceiling.
fn stage(plan: &RowPlan, levels: &SelectedLevels<'_>) -> Option<String> {
    let limit_ns = (plan.limit? * 1e9).min((INFINITE - 1) as f64) as i64;
    let stages = stages_beyond(levels, plan.metric, limit_ns);
    let total: f64 = stages.iter().map(|(_, s)| s).sum();
    let (name, mean_s) = stages.first()?;
    (total > 0.0).then(|| {
        format!(
            "in the requests over the limit, {} takes {} of the time that the server reports ({} on average)",
            name,
            percent(mean_s / total),
            shown(*mean_s, &AmountUnit::Time)
        )
    })
}
