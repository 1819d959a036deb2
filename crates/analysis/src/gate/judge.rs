//! One budget against a run: every kind of metric comes down to a measured figure and two chances, one that the budget is broken
//! all the same and one that it holds all the same.
//!
//! Latencies and shares go through the evaluator on counts. A tail ratio does so twice (what the median may be, then what may be
//! over the multiple of it). A change against a baseline is the two-sample test of [`plimsoll_math::two_sample`] at the allowed
//! ratio, so that the baseline's own uncertainty counts. Rates and lines have intervals, read as Student's and log-normal ones, each
//! side by itself. A bracket of loads has no chance in it: it decides when both of its ends do.

use plimsoll_math::quantile::{EXCEEDANCES_NEEDED, rank};
use plimsoll_math::special::{normal_cdf, normal_inv, student_t_cdf, student_t_inv};
use plimsoll_math::two_sample::{Arm, Flips, exceedance_differences, percentile_ratio};

use super::against;
use super::select::{Chosen, Measured, Picks, flags, values};
use crate::budget::{
    Amount, Budget, BudgetFile, BudgetMetric, Count, Judged, Percentile, Scope, Unit, decide, of_flags,
    of_values, reserve, shown,
};
use crate::cost;
use crate::findings::{Estimate, Line, Reading};
use crate::order::{Column, interval_ranks, seconds};
use crate::say::number;

/// What is known of one row before the family is looked at.
pub(super) struct Judgement {
    pub what: String,
    pub limit: Option<f64>,
    pub limit_shown: String,
    pub measured: Reading,
    pub measured_shown: String,
    pub count: Option<(Count, f64)>,
    pub p_pass: f64,
    pub p_fail: f64,
    pub needed: Option<u64>,
    /// What is to be said of it beside the verdict.
    pub note: String,
}

impl Judgement {
    fn new(what: String, limit: Option<f64>, limit_shown: String) -> Judgement {
        let measured = Reading::refused("not measured", 0);
        Judgement {
            what,
            limit,
            limit_shown,
            measured,
            measured_shown: "–".into(),
            count: None,
            p_pass: 1.0,
            p_fail: 1.0,
            needed: None,
            note: String::new(),
        }
    }
}

/// The limit of a budget less its margin.
pub(super) fn limit_of(budget: &Budget) -> Option<f64> {
    let kept = |limit: &Amount| budget.margin.as_ref().map_or(0.0, |margin| reserve(limit, margin));
    match (&budget.max, &budget.min) {
        (Some(max), _) => Some(max.value - kept(max)),
        (None, Some(min)) => Some(min.value + kept(min)),
        (None, None) => None,
    }
}

/// The same in words: `≤ 350 ms`.
pub(super) fn limit_words(budget: &Budget) -> String {
    let unit = match (&budget.max, &budget.min) {
        (Some(amount), _) | (_, Some(amount)) => amount.unit.clone(),
        _ => budget.metric.unit(),
    };
    let sign = if budget.metric.has_floor() { "≥" } else { "≤" };
    limit_of(budget).map_or("–".to_owned(), |limit| format!("{sign} {}", shown(limit, &unit)))
}

/// A change in words: `≤ baseline +10 %`, `≥ baseline −5 %`.
pub(super) fn change_words(budget: &Budget, allowed: crate::budget::Relative) -> String {
    let sign = if budget.metric.has_floor() { "≥" } else { "≤" };
    format!(
        "{sign} baseline {} %",
        if budget.metric.has_floor() && allowed.0 == 0.0 { "−0".into() } else { signed(100.0 * allowed.0) }
    )
}

/// The metric that is read: the engine's scope counts from the sent time.
pub(super) fn metric_of(file: &BudgetFile, budget: &Budget) -> BudgetMetric {
    match budget.scope.unwrap_or(file.scope) {
        Scope::User => budget.metric,
        Scope::Engine => budget.metric.after_send(),
    }
}

fn words(file: &BudgetFile, budget: &Budget) -> String {
    match budget.p {
        Some(p) => format!("{} {}", metric_of(file, budget).name(), p.name()),
        None => metric_of(file, budget).name().to_owned(),
    }
}

/// Holds one budget against its levels; an error says what is missing.
pub(super) fn judge(
    file: &BudgetFile,
    budget: &Budget,
    run: &Measured<'_>,
    baseline: Option<&Measured<'_>>,
    chosen: &Chosen<'_, '_>,
) -> Result<Judgement, String> {
    let picks = run.picks(budget.slice.as_ref())?;
    let mut row = Judgement::new(words(file, budget), limit_of(budget), limit_words(budget));
    let alpha = file.policy.alpha;
    match budget.metric.judged() {
        Judged::Percentile => percentile(&mut row, file, budget, chosen, picks, alpha)?,
        Judged::Share => share(&mut row, budget.metric, chosen, picks, alpha)?,
        Judged::TailRatio => tail_ratio(&mut row, budget.metric, chosen, picks, alpha)?,
        Judged::Rate => rate(&mut row, budget, chosen)?,
        Judged::Line => line(&mut row, file, budget, run, baseline, chosen)?,
        Judged::Cost => price(&mut row, file, budget, run, chosen)?,
    }
    Ok(row)
}

// ----------------------------------------------------------------------------------------- counts

fn percentile(
    row: &mut Judgement,
    file: &BudgetFile,
    budget: &Budget,
    chosen: &Chosen<'_, '_>,
    picks: Picks,
    alpha: f64,
) -> Result<(), String> {
    let (metric, p) = (metric_of(file, budget), budget.p.map_or(0.99, |p| p.0));
    let values = values(chosen, metric, picks);
    latency(row, &values, metric.name(), p, chosen.length_s(), alpha)
}

/// A ceiling on a percentile of these values.
pub(super) fn latency(
    row: &mut Judgement,
    values: &[i64],
    name: &str,
    p: f64,
    length_s: f64,
    alpha: f64,
) -> Result<(), String> {
    if values.is_empty() {
        return Err(format!("no request of this slice has a {name}"));
    }
    let Some(limit_s) = row.limit else { return Err("no ceiling".into()) };
    let count = of_values(values, limit_s, p, length_s);
    let decision = decide(&count, 1.0 - p, alpha);
    (row.p_pass, row.p_fail, row.needed) = (decision.p_pass, decision.p_fail, decision.needed);
    row.count = Some((count, 1.0 - p));
    row.measured = quantile(values, count.worth, p, alpha);
    row.measured_shown = match &row.measured {
        Reading::Estimate(_) => figure(&row.measured, &Unit::Time),
        // Too few requests for the percentile itself; the share over the ceiling is what is judged in any case.
        Reading::Refused { .. } => {
            format!("{} over it", figure(&Reading::Estimate(decision.share), &Unit::Share))
        }
    };
    row.note = match count.worth {
        None => "too short a level for its requests: their correlation is not known".into(),
        Some(worth) => too_few(worth, 1.0 - p),
    };
    Ok(())
}

/// What is judged where the percentile itself is refused; empty where it isn't.
fn too_few(worth: f64, allowed: f64) -> String {
    let needed = EXCEEDANCES_NEEDED / allowed.min(1.0 - allowed);
    match worth >= needed * (1.0 - 1e-9) {
        true => String::new(),
        false => format!(
            "{} effective requests, of {} that the percentile takes: the share over the limit is judged",
            number(worth),
            number(needed)
        ),
    }
}

/// A slice of a stage, not judged yet.
pub(super) fn of_stage(name: &str, p: Percentile, slice: &Amount) -> Judgement {
    let what = format!("stage {name} {}", p.name());
    Judgement::new(what, Some(slice.value), format!("≤ {}", slice.shown()))
}

/// The order statistic with the limits that the evaluator would leave undecided at this alpha.
fn quantile(values: &[i64], worth: Option<f64>, p: f64, alpha: f64) -> Reading {
    let n = values.len();
    let Some(n_eff) = worth.filter(|worth| worth * p.min(1.0 - p) >= EXCEEDANCES_NEEDED - 1e-9) else {
        let has = worth.map_or("an unknown number".to_owned(), number);
        return Reading::refused(
            format!("needs {} effective requests, has {has}", number(10.0 / (1.0 - p))),
            n as u64,
        );
    };
    let (low, high) = interval_ranks(n, n_eff, p, alpha);
    let ends = Column::new(values).select(&[rank(n, p), low.max(1), high.min(n)]);
    Reading::Estimate(Estimate {
        value: seconds(ends[0]),
        lower: if low == 0 { f64::NEG_INFINITY } else { seconds(ends[1]) },
        upper: if high > n { f64::INFINITY } else { seconds(ends[2]) },
        n: n as u64,
        n_eff,
    })
}

fn share(
    row: &mut Judgement,
    metric: BudgetMetric,
    chosen: &Chosen<'_, '_>,
    picks: Picks,
    alpha: f64,
) -> Result<(), String> {
    let flags = flags(chosen, metric, picks);
    if flags.is_empty() {
        return Err("no request is in this slice".into());
    }
    let allowed = row.limit.ok_or("no ceiling")?;
    let count = of_flags(&flags);
    let decision = decide(&count, allowed, alpha);
    (row.p_pass, row.p_fail, row.needed) = (decision.p_pass, decision.p_fail, decision.needed);
    row.count = Some((count, allowed));
    row.measured = Reading::Estimate(decision.share);
    row.measured_shown = figure(&row.measured, &Unit::Share);
    Ok(())
}

/// Part of alpha that the uncertainty of the median is given.
const OF_THE_MEDIAN: f64 = 0.02;

/// p99 ≤ R × p50: at most 1 % are over R times what the median may be.
fn tail_ratio(
    row: &mut Judgement,
    metric: BudgetMetric,
    chosen: &Chosen<'_, '_>,
    picks: Picks,
    alpha: f64,
) -> Result<(), String> {
    let of = metric.latency_of_ratio().unwrap_or(BudgetMetric::E2e);
    let values = values(chosen, of, picks);
    let (most, length_s) = (row.limit.ok_or("no ceiling")?, chosen.length_s());
    let first =
        quantile(&values, of_values(&values, f64::INFINITY, 0.5, length_s).worth, 0.5, OF_THE_MEDIAN * alpha);
    let Reading::Estimate(median) = first else {
        return Err(format!("too few requests for the median of {}", of.name()));
    };
    let beyond = |median_s: f64| decide(&of_values(&values, most * median_s, 0.99, length_s), 0.01, alpha);
    row.p_pass = (beyond(median.lower.max(0.0)).p_pass + OF_THE_MEDIAN * alpha).min(1.0);
    row.p_fail = (beyond(median.upper).p_fail + OF_THE_MEDIAN * alpha).min(1.0);
    let count = of_values(&values, most * median.value, 0.99, length_s);
    let decision = decide(&count, 0.01, alpha);
    row.needed = decision.needed;
    row.note = count.worth.map_or(String::new(), |worth| too_few(worth, 0.01));
    row.count = Some((count, 0.01));
    row.measured = match quantile(&values, count.worth, 0.99, alpha) {
        Reading::Estimate(tail) => Reading::Estimate(Estimate {
            value: tail.value / median.value,
            lower: (tail.lower / median.upper).max(0.0),
            upper: tail.upper / median.lower,
            ..tail
        }),
        refused => refused,
    };
    row.measured_shown = figure(&row.measured, &Unit::Plain);
    Ok(())
}

// --------------------------------------------------------------------------------------- baseline

/// Stretches into which each arm is cut.
const UNITS: usize = 20;
/// Requests beyond the percentile that each arm needs.
const BEYOND: f64 = 10.0;

/// A percentile against the baseline's, which has an uncertainty of its own.
pub(super) fn relative(
    file: &BudgetFile,
    budget: &Budget,
    run: &Measured<'_>,
    baseline: Option<&Measured<'_>>,
    chosen: &Chosen<'_, '_>,
) -> Result<Judgement, String> {
    let allowed = budget.relative.map_or(0.0, |relative| relative.0);
    let p = budget.p.map_or(0.99, |p| p.0);
    let limit_shown = change_words(budget, crate::budget::Relative(allowed));
    let mut row = Judgement::new(
        format!("{} against the baseline", words(file, budget)),
        Some(1.0 + allowed),
        limit_shown,
    );
    let baseline = baseline.ok_or("no baseline: give one with --baseline, or `baseline:` in the file")?;
    let other = baseline.choose(file, budget).map_err(|why| format!("of the baseline: {why}"))?;
    let (now, then) = (chosen.offered_per_s(), other.offered_per_s());
    // An onset is a load itself.
    if budget.metric.judged() != Judged::Line && (now / then - 1.0).abs() > 0.1 {
        return Err(format!(
            "the baseline was measured at {}/s and the run at {}/s: not the same load",
            number(then),
            number(now)
        ));
    }
    if budget.metric.judged() != Judged::Percentile {
        figures(&mut row, file, budget, [(run, chosen), (baseline, &other)], allowed)?;
        return Ok(row);
    }
    let metric = metric_of(file, budget);
    let slice = budget.slice.as_ref();
    let arms = [(run, chosen), (baseline, &other)].map(|(measured, chosen)| {
        let picks = measured.picks(slice)?;
        let values = values(chosen, metric, picks);
        if (values.len() as f64) * (1.0 - p) < BEYOND {
            let needed = number(BEYOND / (1.0 - p));
            return Err(format!(
                "{} requests in one of the two runs; {} takes {needed}",
                values.len(),
                words(file, budget)
            ));
        }
        let unit = |u: usize| values[u * values.len() / UNITS..(u + 1) * values.len() / UNITS].iter();
        Ok(Arm::new(&(0..UNITS).map(|u| unit(u).map(|ns| seconds(*ns)).collect()).collect::<Vec<_>>()))
    });
    let [candidate, base] = arms;
    let (candidate, base) = (candidate?, base?);
    let flips = Flips::new(UNITS);
    let differences = exceedance_differences(&base, &candidate, p, 1.0 + allowed);
    row.p_fail = flips.greater(&differences);
    row.p_pass = flips.less(&differences);
    let ratio = percentile_ratio(&base, &candidate, p, &flips, 1.0 - 2.0 * file.policy.alpha);
    row.measured = Reading::Estimate(Estimate {
        value: ratio.value,
        lower: ratio.interval.lower,
        upper: ratio.interval.upper,
        n: candidate.len() as u64,
        n_eff: UNITS as f64,
    });
    row.measured_shown = format!(
        "{}, {} now, {} then",
        against::percent(ratio.value, (ratio.interval.lower, ratio.interval.upper)),
        shown(candidate.quantile(p), &Unit::Time),
        shown(base.quantile(p), &Unit::Time)
    );
    Ok(row)
}

/// Both sides' figure of what is no percentile: shares by their counts, everything else by its estimate and interval.
fn figures(
    row: &mut Judgement,
    file: &BudgetFile,
    budget: &Budget,
    sides: [(&Measured<'_>, &Chosen<'_, '_>); 2],
    allowed: f64,
) -> Result<(), String> {
    if budget.metric.judged() == Judged::Share {
        let [now, then] = sides.map(|(measured, chosen)| {
            Ok::<_, String>(of_flags(&flags(chosen, budget.metric, measured.picks(budget.slice.as_ref())?)))
        });
        return against::share(row, &now?, &then?, allowed);
    }
    let alone = Budget { relative: None, max: None, min: None, margin: None, ..budget.clone() };
    let [now, then] = sides.map(|(measured, chosen)| {
        let own = match alone.metric.judged() {
            // What an onset is held to is not asked here, only what it is.
            Judged::Line => measured.onset(&chosen.traffic).map(Reading::Estimate),
            _ => judge(file, &alone, measured, None, chosen).map(|judged| judged.measured),
        }?;
        own.estimate().copied().ok_or_else(|| "one of the two runs has no figure of it".to_owned())
    });
    let unit = match budget.metric.unit() {
        Unit::Money(_) => Unit::Money(
            file.price.as_ref().and_then(|p| p.bill().ok()).map(|b| b.currency).unwrap_or_default(),
        ),
        unit => unit,
    };
    against::ratio(row, &now?, &then?, (allowed, budget.metric.has_floor()), &unit)
}

pub(super) fn signed(x: f64) -> String {
    if x >= 0.0 { format!("+{}", number(x)) } else { format!("−{}", number(-x)) }
}

// -------------------------------------------------------------------------------- rates and lines

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

fn rate(row: &mut Judgement, budget: &Budget, chosen: &Chosen<'_, '_>) -> Result<(), String> {
    whole(budget)?;
    let [(_, level)] = chosen.levels[..] else {
        return Err("several levels have this load; rates are judged on one".into());
    };
    let rates = &level.summary.rates;
    let reading = match budget.metric {
        BudgetMetric::Goodput => rates.good_per_s.clone().ok_or("no latency ceiling says what is good")?,
        BudgetMetric::OutputTokensPerS => rates.output_tokens_per_s.clone().ok_or("no token is known of")?,
        _ => rates.achieved_per_s.clone(),
    };
    of_reading(row, reading, &Unit::Rate, true, Law::Batches)
}

/// So many items by a deadline: a floor on what is finished per second.
pub(super) fn batch(file: &BudgetFile, chosen: &Chosen<'_, '_>) -> Result<Judgement, String> {
    let batch = file.batch.ok_or("no batch")?;
    let deadline_s = batch.deadline.as_secs_f64();
    let floor = batch.items as f64 / deadline_s;
    let what = format!("{} items by {}", batch.items, shown(deadline_s, &Unit::Time));
    let mut row = Judgement::new(what, Some(floor), format!("≥ {}", shown(floor, &Unit::Rate)));
    let [(_, level)] = chosen.levels[..] else {
        return Err("several levels have this load; a deadline is judged on one".into());
    };
    let rates = &level.summary.rates;
    let reading = rates.items_per_s.clone().unwrap_or_else(|| rates.achieved_per_s.clone());
    of_reading(&mut row, reading, &Unit::Rate, true, Law::Batches)?;
    if let Some(rate) = row.measured.value() {
        row.note = format!("at this rate it takes {}", shown(batch.items as f64 / rate, &Unit::Time));
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

fn whole(budget: &Budget) -> Result<(), String> {
    let sliced = |s: &crate::budget::Slice| s.class.is_some() || s.prompt_tokens.is_some();
    match &budget.slice {
        Some(slice) if sliced(slice) => {
            Err(format!("{} is measured for all requests together, not for a slice", budget.metric.name()))
        }
        _ => Ok(()),
    }
}

fn line(
    row: &mut Judgement,
    file: &BudgetFile,
    budget: &Budget,
    run: &Measured<'_>,
    baseline: Option<&Measured<'_>>,
    chosen: &Chosen<'_, '_>,
) -> Result<(), String> {
    whole(budget)?;
    let own = run.findings.lines.iter().find(|lines| lines.traffic == chosen.traffic);
    let limit = row.limit.ok_or("no limit")?;
    if budget.metric == BudgetMetric::ThroughputBeforeOnset {
        let lines = own.ok_or("the queueing onset takes a sweep: plimsoll sweep")?;
        return match &lines.onset {
            Line::Found { rate, .. } => {
                of_reading(row, Reading::Estimate(*rate), &Unit::Rate, true, Law::Ratio)
            }
            Line::Above { rate_per_s, .. } => {
                row.measured_shown = format!("onset above {}", shown(*rate_per_s, &Unit::Rate));
                row.p_pass = if *rate_per_s >= limit { 0.0 } else { 1.0 };
                Ok(())
            }
            Line::Below { rate_per_s, .. } => {
                row.measured_shown = format!("onset below {}", shown(*rate_per_s, &Unit::Rate));
                row.p_fail = if *rate_per_s <= limit { 0.0 } else { 1.0 };
                Ok(())
            }
            Line::CannotTell { why } => Err(why.clone()),
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
        Line::Found { rate, .. } => (offered / rate.upper, offered / rate.lower),
        Line::Above { rate_per_s, .. } => (0.0, offered / rate_per_s),
        Line::Below { rate_per_s, .. } => (offered / rate_per_s, f64::INFINITY),
        Line::CannotTell { why } => return Err(why.clone()),
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

fn price(
    row: &mut Judgement,
    file: &BudgetFile,
    budget: &Budget,
    run: &Measured<'_>,
    chosen: &Chosen<'_, '_>,
) -> Result<(), String> {
    whole(budget)?;
    let spec = file
        .price
        .as_ref()
        .ok_or("no price: `price: {price: 2.49USD/gpu-hour, gpus: 1, date: …, source: …}`")?;
    let bill = spec.bill().map_err(|e| e.to_string())?;
    let unit = Unit::Money(bill.currency.clone());
    if let Some(Unit::Money(asked)) = budget.max.as_ref().map(|max| &max.unit).filter(|asked| **asked != unit)
    {
        return Err(format!("the ceiling is in {asked} and the price in {}", bill.currency));
    }
    let found = cost::cost(&run.findings, &bill);
    let at_line = found.at_budget.iter().find(|line| line.traffic == chosen.traffic && line.rate.is_some());
    let (costs, note) = match at_line {
        Some(line) => {
            let rate = line.rate.map_or(0.0, |rate| rate.value);
            (&line.costs, format!("at the budget line, {}", shown(rate, &Unit::Rate)))
        }
        None => {
            let id = chosen.ids().first().copied().ok_or("no level")?;
            let level = found.levels.iter().find(|level| level.level == id).ok_or("no level")?;
            (&level.costs, "at the load as it ran: only a sweep finds the budget line".to_owned())
        }
    };
    let reading = match budget.metric {
        BudgetMetric::CostPerGoodRequest => costs.per_good_request.clone(),
        _ => costs.per_request.clone(),
    };
    let law = if at_line.is_some() { Law::Bracket } else { Law::Batches };
    of_reading(row, reading, &unit, false, law)?;
    row.note = note;
    Ok(())
}

/// A reading as it is shown: the value with its interval, or why there is none. What is said of the value's unit holds for the ends.
fn figure(reading: &Reading, unit: &Unit) -> String {
    let Reading::Estimate(e) = reading else { return "–".to_owned() };
    let end = |x: f64| if x.is_finite() { shown(x, unit) } else { "∞".to_owned() };
    let all = [e.value, e.lower.max(0.0), e.upper].map(end);
    let suffix =
        |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit() || "._∞".contains(c)).to_owned();
    let common = suffix(&all[0]);
    if all.iter().all(|text| suffix(text) == common || text == "∞") {
        let bare = all[1..].iter().map(|text| text.trim_end_matches(common.as_str()));
        return format!("{} [{}]", all[0], bare.collect::<Vec<_>>().join(", "));
    }
    format!("{} [{}, {}]", all[0], all[1], all[2])
}
