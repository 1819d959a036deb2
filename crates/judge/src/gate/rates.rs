//! Rows on metrics of whole levels: rates, a batch by its deadline, the lines of a sweep, costs.
//!
//! Each metric is a figure with an interval: Student's over batches, or log-normal, each side separately. A bracket of loads has no error
//! probability; it decides if both ends do.

use plimsoll_math::special::{normal_cdf, normal_inv, student_t_cdf, student_t_inv};
use plimsoll_model::Load;

use super::judge::figure;
use super::select::{MeasuredRun, SelectedLevels, per_s};
use super::{GateInput, GateRow};
use crate::budget::{AmountUnit, Batch, BudgetMetric, RowPlan, SelectedRequests, shown};
use crate::cost;
use plimsoll_measure::findings::{CapacityLine, Estimate, LevelFinding, LoadKeptUp, Reading};

/// The interpretation of an interval.
#[derive(Copy, Clone, PartialEq)]
enum IntervalRule {
    /// Two-sided 95 % interval of Student's distribution over [`RATE_BATCHES`] batches.
    Batches,
    /// Two-sided 95 % interval that is normal in the logarithm, each side separately, of a load. An end at zero or infinity is unknown
    /// and proves nothing.
    Ratio,
    /// Bracket of loads, between whose ends nothing is known.
    Bracket,
}

/// Returns the error probabilities of a pass and of a failure of a figure with its interval.
fn chances(estimate: &Estimate, limit: f64, floor: bool, law: IntervalRule) -> (f64, f64) {
    let Estimate { value, lower, upper, .. } = *estimate;
    if floor {
        let broken = against(value, lower, limit, law, |end| end >= limit);
        (broken, against(value, upper, limit, law, |end| end < limit))
    } else {
        let broken = against(value, upper, limit, law, |end| end <= limit);
        (broken, against(value, lower, limit, law, |end| end > limit))
    }
}

/// Returns the probability of this value if the true one is at the limit. `end` is the end of the interval on the limit's side, and `proves`
/// returns whether that end decides.
fn against(value: f64, end: f64, limit: f64, law: IntervalRule, proves: impl Fn(f64) -> bool) -> f64 {
    if law == IntervalRule::Bracket || end == value {
        return if proves(end) { 0.0 } else { 1.0 };
    }
    if !end.is_finite() || (law == IntervalRule::Ratio && end <= 0.0) {
        return 1.0;
    }
    if !value.is_finite() {
        return if proves(end) { 0.025 } else { 1.0 };
    }
    match law {
        // A limit of zero is infinitely far below.
        IntervalRule::Ratio => {
            let gap = libm::log(limit.max(f64::MIN_POSITIVE) / value) / libm::log(end / value);
            1.0 - normal_cdf(gap * normal_inv(0.975))
        }
        IntervalRule::Batches | IntervalRule::Bracket => {
            let (gap, freedom) = ((limit - value) / (end - value), RATE_BATCHES - 1.0);
            1.0 - student_t_cdf(gap * student_t_inv(0.975, freedom), freedom)
        }
    }
}

/// Number of batches of a rate.
const RATE_BATCHES: f64 = 20.0;

pub(super) fn rate(
    row: &mut GateRow,
    metric: BudgetMetric,
    chosen: &SelectedLevels<'_>,
) -> Result<(), String> {
    let reading = over_levels(chosen, |level| {
        let rates = &level.summary.rates;
        Ok(match metric {
            BudgetMetric::Goodput => {
                rates.good_per_s.clone().ok_or("no latency limit defines a good request")?
            }
            BudgetMetric::OutputTokensPerS => {
                rates.output_tokens_per_s.clone().ok_or("no token is known of")?
            }
            _ => rates.achieved_per_s.clone(),
        })
    })?;
    of_reading(row, reading, &AmountUnit::Rate, true, IntervalRule::Batches)?;
    if asked_too_little(row, metric, chosen) {
        row.p_fail = 1.0;
        row.why = format!(
            "the offered load is below the floor: {} arrived, and the target served it; offer at least the floor",
            shown(chosen.offered_per_s(), &AmountUnit::Rate)
        );
    }
    Ok(())
}

/// Returns whether the floor is missed only because the load was too low. An open loop completes no more than arrives, so a stable target below
/// the floor was never tested at the floor.
fn asked_too_little(row: &GateRow, metric: BudgetMetric, chosen: &SelectedLevels<'_>) -> bool {
    let (Some(limit), Some(measured)) = (row.limit, row.measured.estimate()) else { return false };
    let keeps_up = |level: &LevelFinding| {
        let (summary, offered) = (&level.summary, level.summary.rates.offered_per_s);
        let done = summary.rates.achieved_per_s.estimate().is_some_and(|done| done.upper >= offered);
        let kept = match summary.stability.verdict {
            LoadKeptUp::Stable => true,
            LoadKeptUp::Undecided => done,
            LoadKeptUp::Unstable => false,
        };
        matches!(summary.load, Load::Open { .. }) && kept
    };
    let all_of_it = match metric {
        // Requests set their number of tokens, so the possible maximum is unknown.
        BudgetMetric::OutputTokensPerS => true,
        // Late responses to requests that arrived are the target's failure.
        BudgetMetric::Goodput => chosen.offered_per_s() < limit && measured.upper >= chosen.offered_per_s(),
        _ => chosen.offered_per_s() < limit,
    };
    measured.value < limit && all_of_it && chosen.levels.iter().all(|(_, level)| keeps_up(level))
}

/// Returns a rate over several levels of one load, weighted by their lengths. Their intervals are independent.
fn over_levels(
    chosen: &SelectedLevels<'_>,
    read: impl Fn(&LevelFinding) -> Result<Reading, String>,
) -> Result<Reading, String> {
    if let [(_, only)] = chosen.levels[..] {
        return read(only);
    }
    let whole_s = chosen.length_s().max(1e-9);
    let mut all = Estimate { value: 0.0, lower: 0.0, upper: 0.0, n: 0, n_eff: 0.0 };
    for (_, level) in &chosen.levels {
        let reading = read(level)?;
        let Reading::Estimate(own) = reading else { return Ok(reading) };
        let part = level.summary.window.length_s / whole_s;
        all.value += part * own.value;
        // Half-widths until the sum is complete.
        all.lower = libm::hypot(all.lower, part * (own.value - own.lower));
        all.upper = libm::hypot(all.upper, part * (own.upper - own.value));
        all.n += own.n;
        all.n_eff += own.n_eff;
    }
    Ok(Reading::Estimate(Estimate { lower: all.value - all.lower, upper: all.value + all.upper, ..all }))
}

/// Evaluates a number of items by a deadline as a floor on the rate. Of a search for saturation the best level is evaluated, corrected for the
/// number of levels tried. The batch is late only if every level would be.
pub(super) fn batch(
    row: &mut GateRow,
    batch: Batch,
    run: &MeasuredRun<'_>,
    chosen: &SelectedLevels<'_>,
) -> Result<(), String> {
    let (deadline_s, floor) = (batch.deadline.as_secs_f64(), batch.floor_per_s());
    row.what = format!("{} items by {}", batch.items, shown(deadline_s, &AmountUnit::Time));
    (row.limit, row.limit_shown) = (Some(floor), format!("≥ {}", shown(floor, &AmountUnit::Rate)));
    let reading = over_levels(chosen, |level| Ok(per_s(level)))?;
    of_reading(row, reading, &AmountUnit::Rate, true, IntervalRule::Batches)?;
    let best = chosen.levels.first().map(|(_, level)| *level).ok_or("no level")?;
    let beside = run.tried_beside(&chosen.traffic, best);
    row.p_pass = (row.p_pass * (1 + beside.len()) as f64).min(1.0);
    for other in &beside {
        let late =
            per_s(other).estimate().map_or(1.0, |rate| chances(rate, floor, true, IntervalRule::Batches).1);
        row.p_fail = row.p_fail.max(late);
    }
    if let Some(rate) = row.measured.value() {
        let with = match best.summary.load {
            Load::Saturating { concurrency } | Load::Closed { concurrency } => {
                format!("with {concurrency} in flight")
            }
            _ => "at this rate".to_owned(),
        };
        row.why = format!("{with} it takes {}", shown(batch.items as f64 / rate, &AmountUnit::Time));
    }
    Ok(())
}

fn of_reading(
    row: &mut GateRow,
    reading: Reading,
    unit: &AmountUnit,
    floor: bool,
    law: IntervalRule,
) -> Result<(), String> {
    let Reading::Estimate(estimate) = &reading else {
        let Reading::Refused { why, .. } = reading else { return Err("not measured".into()) };
        return Err(why);
    };
    if let Some(limit) = row.limit {
        (row.p_pass, row.p_fail) = chances(estimate, limit, floor, law);
    }
    row.measured_shown = figure(&reading, unit);
    row.measured = reading;
    Ok(())
}

/// Fails for a slice, because the metric is measured for all requests together.
pub(super) fn whole(metric: BudgetMetric, requests: SelectedRequests) -> Result<(), String> {
    match requests.is_all() {
        true => Ok(()),
        false => Err(format!("{} is measured for all requests together, not for a slice", metric.name())),
    }
}

pub(super) fn line(
    row: &mut GateRow,
    gate: &GateInput<'_>,
    plan: &RowPlan,
    chosen: &SelectedLevels<'_>,
) -> Result<(), String> {
    let own = gate.run.lines(&chosen.traffic);
    let limit = row.limit.ok_or("no limit")?;
    if plan.metric == BudgetMetric::ThroughputBeforeOnset {
        let lines = own.ok_or("the queueing onset takes a sweep: plimsoll sweep")?;
        return match &lines.onset {
            CapacityLine::Found { rate, .. } => {
                of_reading(row, Reading::Estimate(*rate), &AmountUnit::Rate, true, IntervalRule::Ratio)
            }
            CapacityLine::Above { rate_per_s, .. } => {
                row.measured_shown = format!("onset above {}", shown(*rate_per_s, &AmountUnit::Rate));
                row.p_pass = if *rate_per_s >= limit { 0.0 } else { 1.0 };
                Ok(())
            }
            CapacityLine::Below { rate_per_s, .. } => {
                row.measured_shown = format!("onset below {}", shown(*rate_per_s, &AmountUnit::Rate));
                row.p_fail = if *rate_per_s <= limit { 0.0 } else { 1.0 };
                Ok(())
            }
            CapacityLine::CannotTell { why } => Err(why.clone()),
        };
    }
    let of_baseline = gate.baseline.and_then(|base| base.lines(&chosen.traffic));
    let lines = own.or(of_baseline).ok_or(
        "utilisation is offered load / measured stability limit, and no sweep measured the limit: gate a sweep, or give one \
         as --baseline",
    )?;
    let offered = gate.file.steady_load().rate_per_s.unwrap_or_else(|| chosen.offered_per_s());
    // The ends of the bracket: minimum and maximum utilisation.
    let (least, most) = match &lines.stability {
        CapacityLine::Found { rate, .. } => (offered / rate.upper, offered / rate.lower),
        CapacityLine::Above { rate_per_s, .. } => (0.0, offered / rate_per_s),
        CapacityLine::Below { rate_per_s, .. } => (offered / rate_per_s, f64::INFINITY),
        CapacityLine::CannotTell { why } => return Err(why.clone()),
    };
    row.p_pass = if most <= limit { 0.0 } else { 1.0 };
    row.p_fail = if least > limit { 0.0 } else { 1.0 };
    let value = lines.stability.rate().map_or(most, |rate| offered / rate.value);
    row.measured = Reading::Estimate(Estimate { value, lower: least, upper: most, n: 0, n_eff: 0.0 });
    row.measured_shown = figure(&row.measured, &AmountUnit::Share);
    if own.is_none() {
        row.why = "against the stability limit of the baseline".into();
    }
    Ok(())
}

pub(super) fn price(
    row: &mut GateRow,
    gate: &GateInput<'_>,
    plan: &RowPlan,
    chosen: &SelectedLevels<'_>,
) -> Result<(), String> {
    let spec = gate
        .file
        .price
        .as_ref()
        .ok_or("no price: `price: {price: 2.49USD/gpu-hour, gpus: 1, date: …, source: …}`")?;
    let bill = spec.bill().map_err(|e| e.to_string())?;
    let unit = AmountUnit::Money(bill.currency.clone());
    if let Some(AmountUnit::Money(currency)) =
        plan.row.max.as_ref().map(|max| &max.unit).filter(|asked| **asked != unit)
    {
        return Err(format!("the ceiling is in {currency} and the price in {}", bill.currency));
    }
    let found = cost::cost(&gate.run.findings, &bill);
    let at_line = found.at_budget.iter().find(|line| line.traffic == chosen.traffic && line.rate.is_some());
    // The number of sessions at a rate between two levels is unknown.
    let at_line = at_line.filter(|_| plan.metric != BudgetMetric::CostPerSession);
    let (costs, note) = match at_line {
        Some(line) => {
            let rate = line.rate.map_or(0.0, |rate| rate.value);
            (&line.costs, format!("at the budget limit, {}", shown(rate, &AmountUnit::Rate)))
        }
        None => {
            let longest = chosen.levels.iter().map(|(_, level)| &level.summary);
            let longest =
                longest.max_by(|a, b| a.window.length_s.total_cmp(&b.window.length_s)).ok_or("no level")?;
            let level = found.levels.iter().find(|level| level.level == longest.level).ok_or("no level")?;
            (&level.costs, "at the load of the run: only a sweep finds the budget limit".to_owned())
        }
    };
    let reading = match plan.metric {
        BudgetMetric::CostPerGoodRequest => costs.per_good_request.clone(),
        BudgetMetric::CostPerSession => {
            costs.per_session.clone().ok_or("no session was played to a good end")?
        }
        _ => costs.per_request.clone(),
    };
    let law = if at_line.is_some() { IntervalRule::Bracket } else { IntervalRule::Batches };
    of_reading(row, reading, &unit, false, law)?;
    row.why = note;
    Ok(())
}

/// Evaluates a ceiling on the energy per token, or on the largest memory use that was observed.
pub(super) fn gpu(
    row: &mut GateRow,
    gate: &GateInput<'_>,
    metric: BudgetMetric,
    chosen: &SelectedLevels<'_>,
) -> Result<(), String> {
    let of = |level: &LevelFinding| {
        let server = gate.run.findings.server.as_ref();
        let own = server.and_then(|told| told.levels.iter().find(|own| own.level == level.summary.level));
        own.and_then(|own| own.gpu.as_ref()).ok_or(
            "no GPU exporter was read: start the DCGM exporter or AMD's on the endpoint's host, or name it with --scrape",
        )
    };
    if metric == BudgetMetric::EnergyPerToken {
        let reading = over_levels(chosen, |level| {
            Ok(of(level)?.per_token.clone().ok_or("no power, or no number of tokens, is known")?)
        })?;
        return of_reading(row, reading, &AmountUnit::Energy, false, IntervalRule::Ratio);
    }
    let each: Result<Vec<f64>, String> = chosen
        .levels
        .iter()
        .map(|(_, level)| Ok(of(level)?.memory_max.ok_or("the exporter reports no used memory")?))
        .collect();
    let value = each?.into_iter().fold(0.0, f64::max);
    let n = chosen.levels.len() as u64;
    let most = Reading::Estimate(Estimate { value, lower: value, upper: value, n, n_eff: n as f64 });
    of_reading(row, most, &AmountUnit::Bytes, false, IntervalRule::Bracket)?;
    row.why = "the largest use at a scrape; a shorter peak is not visible".into();
    Ok(())
}
