//! Budgets on what is no request's own: rates, a batch by its deadline, the lines of a sweep, costs.
//!
//! Each is a figure with an interval, read as Student's (over batches) or as log-normal, each side by itself. A bracket of loads
//! has no chance in it: it decides when both of its ends do.

use plimsoll_math::special::{normal_cdf, normal_inv, student_t_cdf, student_t_inv};
use plimsoll_model::Load;

use super::judge::{Judgement, figure};
use super::select::{Chosen, MeasuredRun, Picks, per_s};
use crate::budget::{BudgetFile, BudgetMetric, Limit, Unit, shown};
use crate::cost;
use plimsoll_measure::findings::{CapacityLine, Estimate, KeptUp, LevelFinding, Reading};

/// How far the interval of a figure may be read.
#[derive(Copy, Clone, PartialEq)]
enum Law {
    /// A two-sided 95 % interval of Student's law over [`RATE_BATCHES`] batches.
    Batches,
    /// A two-sided 95 % interval that is normal in the logarithm, each side by itself: a load at which something is reached. An end
    /// at zero or without bound is not known, and proves nothing.
    Ratio,
    /// The two ends of a bracket of loads, between which nothing is known.
    Bracket,
}

/// (chance that a floor or ceiling is broken all the same, chance that it holds all the same) of a figure with its interval.
fn chances(estimate: &Estimate, limit: f64, floor: bool, law: Law) -> (f64, f64) {
    let Estimate { value, lower, upper, .. } = *estimate;
    if floor {
        let broken = against(value, lower, limit, law, |end| end >= limit);
        (broken, against(value, upper, limit, law, |end| end < limit))
    } else {
        let broken = against(value, upper, limit, law, |end| end <= limit);
        (broken, against(value, lower, limit, law, |end| end > limit))
    }
}

/// Chance of this value where the truth lies at the limit, by the end of the interval on the limit's side; `proves` = that end
/// settles it.
fn against(value: f64, end: f64, limit: f64, law: Law, proves: impl Fn(f64) -> bool) -> f64 {
    if law == Law::Bracket || end == value {
        return if proves(end) { 0.0 } else { 1.0 };
    }
    if !end.is_finite() || (law == Law::Ratio && end <= 0.0) {
        return 1.0;
    }
    if !value.is_finite() {
        return if proves(end) { 0.025 } else { 1.0 };
    }
    match law {
        // A limit of nothing lies any number of times below.
        Law::Ratio => {
            let gap = libm::log(limit.max(f64::MIN_POSITIVE) / value) / libm::log(end / value);
            1.0 - normal_cdf(gap * normal_inv(0.975))
        }
        Law::Batches | Law::Bracket => {
            let (gap, freedom) = ((limit - value) / (end - value), RATE_BATCHES - 1.0);
            1.0 - student_t_cdf(gap * student_t_inv(0.975, freedom), freedom)
        }
    }
}

/// Batches that rates are read from.
const RATE_BATCHES: f64 = 20.0;

pub(super) fn rate(row: &mut Judgement, metric: BudgetMetric, chosen: &Chosen<'_>) -> Result<(), String> {
    let reading = over_levels(chosen, |level| {
        let rates = &level.summary.rates;
        Ok(match metric {
            BudgetMetric::Goodput => {
                rates.good_per_s.clone().ok_or("no latency ceiling says what is good")?
            }
            BudgetMetric::OutputTokensPerS => {
                rates.output_tokens_per_s.clone().ok_or("no token is known of")?
            }
            _ => rates.achieved_per_s.clone(),
        })
    })?;
    of_reading(row, reading, &Unit::Rate, true, Law::Batches)?;
    if asked_too_little(row, metric, chosen) {
        row.p_fail = 1.0;
        row.note = format!(
            "the load asked for no more: {} arrived, and the target kept up with it; offer at least as much as the floor",
            shown(chosen.offered_per_s(), &Unit::Rate)
        );
    }
    Ok(())
}

/// Is the floor missed for want of load? An open loop finishes no more than arrives, so that a target that keeps up with
/// less than the floor was never asked whether it can do it.
fn asked_too_little(row: &Judgement, metric: BudgetMetric, chosen: &Chosen<'_>) -> bool {
    let (Some(limit), Some(measured)) = (row.limit, row.measured.estimate()) else { return false };
    let keeps_up = |level: &LevelFinding| {
        let (summary, offered) = (&level.summary, level.summary.rates.offered_per_s);
        let done = summary.rates.achieved_per_s.estimate().is_some_and(|done| done.upper >= offered);
        let kept = match summary.stability.verdict {
            KeptUp::Stable => true,
            KeptUp::Undecided => done,
            KeptUp::Unstable => false,
        };
        matches!(summary.load, Load::Open { .. }) && kept
    };
    let all_of_it = match metric {
        // Tokens are asked for by the request; how many more would have come is not known.
        BudgetMetric::OutputTokensPerS => true,
        // What arrived and was late is the target's.
        BudgetMetric::Goodput => chosen.offered_per_s() < limit && measured.upper >= chosen.offered_per_s(),
        _ => chosen.offered_per_s() < limit,
    };
    measured.value < limit && all_of_it && chosen.levels.iter().all(|(_, level)| keeps_up(level))
}

/// A rate over several levels of one load, each counting for as long as it was: their intervals are of different requests.
fn over_levels(
    chosen: &Chosen<'_>,
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
        // Half-widths until all are added up.
        all.lower = libm::hypot(all.lower, part * (own.value - own.lower));
        all.upper = libm::hypot(all.upper, part * (own.upper - own.value));
        all.n += own.n;
        all.n_eff += own.n_eff;
    }
    Ok(Reading::Estimate(Estimate { lower: all.value - all.lower, upper: all.value + all.upper, ..all }))
}

/// So many items by a deadline: a floor on what is finished per second. Of the levels of a search for saturation the best one is
/// held to it, as one of so many that were tried; the batch is late only where every one of them would be.
pub(super) fn batch(
    file: &BudgetFile,
    run: &MeasuredRun<'_>,
    chosen: &Chosen<'_>,
) -> Result<Judgement, String> {
    let batch = file.batch.ok_or("no batch")?;
    let (deadline_s, floor) = (batch.deadline.as_secs_f64(), batch.floor_per_s());
    let what = format!("{} items by {}", batch.items, shown(deadline_s, &Unit::Time));
    let mut row = Judgement::new(what, Some(floor), format!("≥ {}", shown(floor, &Unit::Rate)));
    let reading = over_levels(chosen, |level| Ok(per_s(level)))?;
    of_reading(&mut row, reading, &Unit::Rate, true, Law::Batches)?;
    let best = chosen.levels.first().map(|(_, level)| *level).ok_or("no level")?;
    let beside = run.tried_beside(&chosen.traffic, best);
    row.p_pass = (row.p_pass * (1 + beside.len()) as f64).min(1.0);
    for other in &beside {
        let late = per_s(other).estimate().map_or(1.0, |rate| chances(rate, floor, true, Law::Batches).1);
        row.p_fail = row.p_fail.max(late);
    }
    if let Some(rate) = row.measured.value() {
        let with = match best.summary.load {
            Load::Saturating { concurrency } | Load::Closed { concurrency } => {
                format!("with {concurrency} in flight")
            }
            _ => "at this rate".to_owned(),
        };
        row.note = format!("{with} it takes {}", shown(batch.items as f64 / rate, &Unit::Time));
    }
    Ok(row)
}

fn of_reading(
    row: &mut Judgement,
    reading: Reading,
    unit: &Unit,
    floor: bool,
    law: Law,
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

/// A slice of what is measured for all requests together is missing.
pub(super) fn whole(metric: BudgetMetric, picks: Picks) -> Result<(), String> {
    match picks.all() {
        true => Ok(()),
        false => Err(format!("{} is measured for all requests together, not for a slice", metric.name())),
    }
}

pub(super) fn line(
    row: &mut Judgement,
    file: &BudgetFile,
    metric: BudgetMetric,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> Result<(), String> {
    let own = run.findings.lines.iter().find(|lines| lines.traffic == chosen.traffic);
    let limit = row.limit.ok_or("no limit")?;
    if metric == BudgetMetric::ThroughputBeforeOnset {
        let lines = own.ok_or("the queueing onset takes a sweep: plimsoll sweep")?;
        return match &lines.onset {
            CapacityLine::Found { rate, .. } => {
                of_reading(row, Reading::Estimate(*rate), &Unit::Rate, true, Law::Ratio)
            }
            CapacityLine::Above { rate_per_s, .. } => {
                row.measured_shown = format!("onset above {}", shown(*rate_per_s, &Unit::Rate));
                row.p_pass = if *rate_per_s >= limit { 0.0 } else { 1.0 };
                Ok(())
            }
            CapacityLine::Below { rate_per_s, .. } => {
                row.measured_shown = format!("onset below {}", shown(*rate_per_s, &Unit::Rate));
                row.p_fail = if *rate_per_s <= limit { 0.0 } else { 1.0 };
                Ok(())
            }
            CapacityLine::CannotTell { why } => Err(why.clone()),
        };
    }
    let of_baseline =
        baseline.and_then(|b| b.findings.lines.iter().find(|lines| lines.traffic == chosen.traffic));
    let lines = own.or(of_baseline).ok_or(
        "utilisation is offered load / measured stability limit, and no sweep measured the limit: gate a sweep, or give one \
         as --baseline",
    )?;
    let offered =
        file.load.as_ref().and_then(|load| load.rate).map_or(chosen.offered_per_s(), |rate| rate.as_per_s());
    // The ends of the bracket: at least and at most this used.
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
    row.measured_shown = figure(&row.measured, &Unit::Share);
    if own.is_none() {
        row.note = "against the stability limit of the baseline".into();
    }
    Ok(())
}

pub(super) fn price(
    row: &mut Judgement,
    file: &BudgetFile,
    limit: &Limit<'_>,
    run: &MeasuredRun<'_>,
    chosen: &Chosen<'_>,
) -> Result<(), String> {
    let spec = file
        .price
        .as_ref()
        .ok_or("no price: `price: {price: 2.49USD/gpu-hour, gpus: 1, date: …, source: …}`")?;
    let bill = spec.bill().map_err(|e| e.to_string())?;
    let unit = Unit::Money(bill.currency.clone());
    if let Some(Unit::Money(asked)) = limit.amount.map(|max| &max.unit).filter(|asked| **asked != unit) {
        return Err(format!("the ceiling is in {asked} and the price in {}", bill.currency));
    }
    let found = cost::cost(&run.findings, &bill);
    let at_line = found.at_budget.iter().find(|line| line.traffic == chosen.traffic && line.rate.is_some());
    // How many sessions a rate between two levels would finish nobody knows.
    let at_line = at_line.filter(|_| limit.metric != BudgetMetric::CostPerSession);
    let (costs, note) = match at_line {
        Some(line) => {
            let rate = line.rate.map_or(0.0, |rate| rate.value);
            (&line.costs, format!("at the budget line, {}", shown(rate, &Unit::Rate)))
        }
        None => {
            let longest = chosen.levels.iter().map(|(_, level)| &level.summary);
            let longest =
                longest.max_by(|a, b| a.window.length_s.total_cmp(&b.window.length_s)).ok_or("no level")?;
            let level = found.levels.iter().find(|level| level.level == longest.level).ok_or("no level")?;
            (&level.costs, "at the load as it ran: only a sweep finds the budget line".to_owned())
        }
    };
    let reading = match limit.metric {
        BudgetMetric::CostPerGoodRequest => costs.per_good_request.clone(),
        BudgetMetric::CostPerSession => {
            costs.per_session.clone().ok_or("no session was played to a good end")?
        }
        _ => costs.per_request.clone(),
    };
    let law = if at_line.is_some() { Law::Bracket } else { Law::Batches };
    of_reading(row, reading, &unit, false, law)?;
    row.note = note;
    Ok(())
}
