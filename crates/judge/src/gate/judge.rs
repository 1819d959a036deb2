//! One budget row on a run: a measured figure, and two error probabilities, of a pass and of a failure.
//!
//! Latencies and shares are counts for the fixed-sample evaluator, a tail ratio is two counts. Metrics of whole levels are in `rates`,
//! changes against a baseline in `against`.

use plimsoll_math::quantile::EffectiveN;
use plimsoll_measure::findings::{Estimate, Held, Reading};
use plimsoll_measure::order;
use plimsoll_measure::say::{count as plural, number};

use super::rates::{gpu, line, price, rate, whole};
use super::select::{SelectedLevels, flags, stage_times, values};
use super::{GateInput, GateRow, JudgedRow};
use crate::budget::{
    Amount, AmountUnit, BudgetMetric, Count, Decision, MetricKind, RowPlan, SelectedRequests, decide,
    decide_ratio, of_flags, of_values, shown,
};
use plimsoll_measure::budget::OF_THE_MEDIAN;

/// Evaluates the limit of a plan on its levels; an error names the missing data.
pub(super) fn judge(
    gate: &GateInput<'_>,
    plan: &RowPlan,
    one: &mut JudgedRow,
    levels: &SelectedLevels<'_>,
) -> Result<(), String> {
    let requests = gate.run.requests(plan.row.slice.as_ref())?;
    let (row, metric) = (&mut one.row, plan.metric);
    row.limit = plan.limit;
    if matches!(metric.kind(), MetricKind::Rate | MetricKind::Line | MetricKind::Cost | MetricKind::Gpu) {
        whole(metric, requests)?;
    }
    match metric.kind() {
        MetricKind::Percentile => one.outgrown = percentile(row, plan, levels, requests, gate.alpha)?,
        MetricKind::Share => share(row, metric, levels, requests, gate.alpha)?,
        MetricKind::TailRatio => tail_ratio(row, metric, levels, requests, gate.alpha)?,
        MetricKind::Rate => rate(row, metric, levels)?,
        MetricKind::Line => line(row, gate, plan, levels)?,
        MetricKind::Cost => price(row, gate, plan, levels)?,
        MetricKind::Gpu => gpu(row, gate, metric, levels)?,
    }
    Ok(())
}

/// Evaluates a ceiling on a percentile. Returns whether a growing queue breaks it.
fn percentile(
    row: &mut GateRow,
    plan: &RowPlan,
    levels: &SelectedLevels<'_>,
    requests: SelectedRequests,
    alpha: f64,
) -> Result<bool, String> {
    let (metric, p) = (plan.metric, plan.row.p.map_or(0.99, |p| p.0));
    let values = values(levels, metric, requests);
    let decision = latency(row, &values, metric.name(), p, levels.length_s(), alpha)?;
    // A slice may not be the part that grows the queue.
    if !requests.is_all() || !metric.holds_the_queue() {
        return Ok(false);
    }
    // If the queue grows on all levels, the least certain growth counts.
    let each =
        levels.levels.iter().map(|(_, level)| decision.where_it_piles_up(&level.summary.stability, alpha));
    let least_sure = each.map(|decision| decision.p_fail).max_by(f64::total_cmp);
    let outgrown = least_sure.filter(|p| *p < decision.p_fail);
    if let Some(p_fail) = outgrown {
        (row.p_fail, row.needed, row.needed_s) = (p_fail, None, None);
    }
    Ok(outgrown.is_some())
}

/// Evaluates the row's ceiling on a percentile of these values.
fn latency(
    row: &mut GateRow,
    values: &[i64],
    name: &str,
    p: f64,
    length_s: f64,
    alpha: f64,
) -> Result<Decision, String> {
    if values.is_empty() {
        return Err(format!("no request of this slice has a {name}"));
    }
    let Some(limit_s) = row.limit else { return Err("no ceiling".into()) };
    let count = of_values(values, limit_s, p, length_s);
    let decision = decide(&count, 1.0 - p, alpha);
    row.decided(&count, &decision, length_s);
    row.measured = order::percentile(values, p, length_s);
    row.measured_shown = match row.measured.seen() {
        Some(_) => figure(&row.measured, &AmountUnit::Time),
        // Of so few requests none is expected beyond the percentile; the share over the ceiling decides in any case.
        None => format!("{} over it", figure(&Reading::Estimate(decision.share), &AmountUnit::Share)),
    };
    let over = format!("over {}", shown(limit_s, &AmountUnit::Time));
    let short =
        count.worth.is_none().then_some("too short a level for its requests: their correlation is not known");
    row.why = joined([
        short.unwrap_or_default().to_owned(),
        decision.words(&count, &over, per_s(count.n, length_s)),
    ]);
    Ok(decision)
}

impl GateRow {
    /// Records the evaluation of a count over a period of `length_s`.
    fn decided(&mut self, count: &Count, decision: &Decision, length_s: f64) {
        (self.p_pass, self.p_fail, self.by) = (decision.p_pass, decision.p_fail, decision.by);
        (self.share_over, self.allowed) = (Some(decision.share), Some(decision.allowed));
        self.design_effect = count.worth.map(|worth| count.n as f64 / worth.n_eff);
        self.needed = decision.needed;
        self.needed_s = decision.needed.map(|needed| needed as f64 * length_s.max(1e-9) / count.n as f64);
    }
}

fn joined(parts: [String; 2]) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn per_s(n: u64, length_s: f64) -> Option<f64> {
    (length_s > 0.0).then(|| n as f64 / length_s)
}

/// Share of the finished requests that may lack a stage. With more, its slice gets no verdict, because the others may differ.
const MOST_LACKING: f64 = 0.05;

/// Evaluates the slice of a stage, if the requests report its times.
pub(super) fn stage(
    gate: &GateInput<'_>,
    one: &mut JudgedRow,
    levels: &SelectedLevels<'_>,
    (name, p, slice): (&str, f64, &Amount),
) -> Result<(), String> {
    let row = &mut one.row;
    (row.limit, row.limit_shown) = (Some(slice.value), format!("≤ {}", slice.shown()));
    let (times, lacking) = stage_times(levels, name);
    let all = times.len() as u64 + lacking;
    if lacking as f64 > MOST_LACKING * all as f64 {
        return Err(format!("{lacking} of {} report no `{name}`", plural(all, "request")));
    }
    latency(row, &times, &format!("stage `{name}`"), p, levels.length_s(), gate.alpha)?;
    if lacking > 0 {
        let left = format!("{} without it left out", plural(lacking, "request"));
        row.why = joined([std::mem::take(&mut row.why), left]);
    }
    let measured = row.measured_shown.split(" [").next().unwrap_or_default();
    one.defect = format!("{} {measured} > {}", row.what, slice.shown());
    Ok(())
}

/// Number of failures from which they show whether they come in bursts.
const FEW_FAILURES: u64 = 10;

fn share(
    row: &mut GateRow,
    metric: BudgetMetric,
    levels: &SelectedLevels<'_>,
    requests: SelectedRequests,
    alpha: f64,
) -> Result<(), String> {
    let flags = flags(levels, metric, requests);
    if flags.is_empty() {
        return Err("no request is in this slice".into());
    }
    let count = of_flags(&flags);
    let decision = decide(&count, row.limit.ok_or("no ceiling")?, alpha);
    row.decided(&count, &decision, levels.length_s());
    row.measured = Reading::Estimate(decision.share);
    row.measured_shown = figure(&row.measured, &AmountUnit::Share);
    let did = match metric {
        BudgetMetric::ErrorRate => "failed",
        BudgetMetric::RetryRate => "were retried",
        _ => "failed or were retried",
    };
    row.why = decision.words(&count, did, per_s(count.n, levels.length_s()));
    let seen = count.over_most;
    if decision.held == Held::Pass && (1..FEW_FAILURES).contains(&seen) {
        row.why = format!(
            "{seen} seen, too few to show whether they come in bursts: the pass assumes independent failures"
        );
    }
    Ok(())
}

/// Evaluates p99 ≤ R × p50: at most 1 % are over R times what the median may be.
fn tail_ratio(
    row: &mut GateRow,
    metric: BudgetMetric,
    levels: &SelectedLevels<'_>,
    requests: SelectedRequests,
    alpha: f64,
) -> Result<(), String> {
    let of = metric.latency_of_ratio().unwrap_or(BudgetMetric::E2e);
    let values = values(levels, of, requests);
    let (most, length_s) = (row.limit.ok_or("no ceiling")?, levels.length_s());
    let worth = of_values(&values, f64::INFINITY, 0.5, length_s).worth.unwrap_or(EffectiveN::known(0.0));
    let [middle, tail] = [0.5, 0.99].map(|p| order::percentile(&values, p, length_s));
    let median = order::between(&values, (0.5, worth), OF_THE_MEDIAN * alpha);
    let Some((median, middle)) = median.zip(middle.seen()) else {
        return Err(format!("too few requests for the median of {}", of.name()));
    };
    let beyond = |median_s: f64| {
        let count = of_values(&values, most * median_s, 0.99, length_s);
        (count, decide(&count, 0.01, alpha))
    };
    let (count, decision) = beyond(middle.value);
    row.decided(&count, &decision, length_s);
    [row.p_pass, row.p_fail] =
        decide_ratio([Some(median[0].max(0.0)), Some(median[1])], alpha, |median_s| beyond(median_s).1);
    let over = format!("over {} × the median", number(most));
    row.why = decision.words(&count, &over, per_s(count.n, length_s));
    row.measured = tail.map(|tail| Estimate {
        value: tail.value / middle.value,
        lower: (tail.lower / middle.upper).max(0.0),
        upper: tail.upper / middle.lower,
        ..*tail
    });
    row.measured_shown = figure(&row.measured, &AmountUnit::Plain);
    Ok(())
}

/// Returns a reading as text: the value with its interval, and a `*` if it is based on few requests. Of a half-open interval the known end is
/// shown, `≥` or `≤`. The unit is written once if it is common to all figures.
pub(super) fn figure(reading: &Reading, unit: &AmountUnit) -> String {
    let Some(e) = reading.seen() else { return "–".to_owned() };
    let value = format!("{}{}", shown(e.value, unit), if reading.estimate().is_none() { "*" } else { "" });
    match (e.lower.is_finite(), e.upper.is_finite()) {
        (false, false) => return value,
        (true, false) => return format!("{value} [≥ {}]", shown(e.lower.max(0.0), unit)),
        (false, true) => return format!("{value} [≤ {}]", shown(e.upper, unit)),
        (true, true) => {}
    }
    let ends = [e.lower.max(0.0), e.upper].map(|end| shown(end, unit));
    let suffix =
        |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit() || "._∞".contains(c)).to_owned();
    let common = suffix(&shown(e.value, unit));
    if ends.iter().all(|text| suffix(text) == common) {
        let bare = ends.iter().map(|text| text.trim_end_matches(common.as_str()));
        return format!("{value} [{}]", bare.collect::<Vec<_>>().join(", "));
    }
    format!("{value} [{}]", ends.join(", "))
}
