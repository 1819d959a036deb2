//! One budget against a run: every kind of metric comes down to a measured figure and two chances, one that the budget is broken
//! all the same and one that it holds all the same.
//!
//! Latencies and shares go through the evaluator on counts. A tail ratio does so twice (what the median may be, then what may be
//! over the multiple of it). What is no request's own is in `rates`, a change against a baseline in `against`.

use plimsoll_math::quantile::EffectiveN;

use super::rates::{line, price, rate, whole};
use super::select::{Chosen, MeasuredRun, Picks, flags, values};
use crate::budget::{
    Amount, BudgetFile, BudgetMetric, Count, Decision, Judged, Limit, Percentile, Unit, decide, of_flags,
    of_values, shown,
};
use plimsoll_measure::findings::{Estimate, Held, Reading, VerdictBasis};
use plimsoll_measure::order;
use plimsoll_measure::say::number;

/// What is known of one row before the family is judged.
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
    /// By which rule it stands.
    pub by: Option<VerdictBasis>,
    /// Broken because requests pile up, however few of them are independent.
    pub outgrown: bool,
    /// What is to be said of it beside the verdict.
    pub note: String,
}

impl Judgement {
    pub(super) fn new(what: String, limit: Option<f64>, limit_shown: String) -> Judgement {
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
            by: None,
            outgrown: false,
            note: String::new(),
        }
    }

    fn decided(&mut self, decision: &Decision) {
        (self.p_pass, self.p_fail) = (decision.p_pass, decision.p_fail);
        (self.needed, self.by) = (decision.needed, decision.by);
    }

    fn say(&mut self, more: String) {
        let both = [std::mem::take(&mut self.note), more];
        self.note = both.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    }
}

/// Holds one budget against its levels; an error says what is missing.
pub(super) fn judge(
    file: &BudgetFile,
    limit: &Limit<'_>,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> Result<Judgement, String> {
    let picks = run.picks(limit.slice)?;
    let mut row = Judgement::new(limit.what(), limit.value, limit.words());
    let alpha = file.policy.alpha;
    if matches!(limit.metric.judged(), Judged::Rate | Judged::Line | Judged::Cost) {
        whole(limit.metric, picks)?;
    }
    match limit.metric.judged() {
        Judged::Percentile => percentile(&mut row, limit, chosen, picks, alpha)?,
        Judged::Share => share(&mut row, limit.metric, chosen, picks, alpha)?,
        Judged::TailRatio => tail_ratio(&mut row, limit.metric, chosen, picks, alpha)?,
        Judged::Rate => rate(&mut row, limit.metric, chosen)?,
        Judged::Line => line(&mut row, file, limit.metric, run, baseline, chosen)?,
        Judged::Cost => price(&mut row, file, limit, run, chosen)?,
    }
    Ok(row)
}

// ----------------------------------------------------------------------------------------- counts

fn percentile(
    row: &mut Judgement,
    limit: &Limit<'_>,
    chosen: &Chosen<'_>,
    picks: Picks,
    alpha: f64,
) -> Result<(), String> {
    let (metric, p) = (limit.metric, limit.p.map_or(0.99, |p| p.0));
    let values = values(chosen, metric, picks);
    let decision = latency(row, &values, metric.name(), p, chosen.length_s(), alpha)?;
    // Of a slice it isn't known whether it is what piles up.
    if picks.all() && metric.holds_the_queue() {
        outgrown(row, chosen, decision, alpha);
    }
    Ok(())
}

/// Levels that all pile up break a ceiling that most of their requests are over, at the least sure growth among them.
fn outgrown(row: &mut Judgement, chosen: &Chosen<'_>, decision: Decision, alpha: f64) {
    let levels =
        chosen.levels.iter().map(|(_, level)| decision.where_it_piles_up(&level.summary.stability, alpha));
    let least_sure = levels.map(|decision| decision.p_fail).max_by(f64::total_cmp);
    if let Some(p_fail) = least_sure.filter(|p| *p < decision.p_fail) {
        (row.p_fail, row.needed, row.outgrown) = (p_fail, None, true);
    }
}

/// A ceiling on a percentile of these values.
pub(super) fn latency(
    row: &mut Judgement,
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
    row.decided(&decision);
    row.count = Some((count, 1.0 - p));
    row.measured = order::percentile(values, p, length_s);
    row.measured_shown = match row.measured.seen() {
        Some(_) => figure(&row.measured, &Unit::Time),
        // Of so few requests not one is expected beyond the percentile; the share over the ceiling is what is judged in any case.
        None => format!("{} over it", figure(&Reading::Estimate(decision.share), &Unit::Share)),
    };
    if count.worth.is_none() {
        row.note = "too short a level for its requests: their correlation is not known".into();
    }
    let over = format!("over {}", shown(limit_s, &Unit::Time));
    row.say(decision.words(&count, &over, per_s(count.n, length_s)));
    Ok(decision)
}

fn per_s(n: u64, length_s: f64) -> Option<f64> {
    (length_s > 0.0).then(|| n as f64 / length_s)
}

/// A slice of a stage, not judged yet.
pub(super) fn of_stage(name: &str, p: Percentile, slice: &Amount) -> Judgement {
    let what = format!("stage {name} {}", p.name());
    Judgement::new(what, Some(slice.value), format!("≤ {}", slice.shown()))
}

/// Failures from which their own course says whether they come in bursts.
const FEW_FAILURES: u64 = 10;

fn share(
    row: &mut Judgement,
    metric: BudgetMetric,
    chosen: &Chosen<'_>,
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
    row.decided(&decision);
    row.count = Some((count, allowed));
    row.measured = Reading::Estimate(decision.share);
    row.measured_shown = figure(&row.measured, &Unit::Share);
    let did = match metric {
        BudgetMetric::ErrorRate => "failed",
        BudgetMetric::RetryRate => "were tried again",
        _ => "failed or were tried again",
    };
    row.note = decision.words(&count, did, per_s(count.n, chosen.length_s()));
    // Whether failures come in bursts is seen by the failures only.
    let seen = count.over_most;
    if decision.held == Held::Pass && (1..FEW_FAILURES).contains(&seen) {
        row.note = format!(
            "{seen} seen, too few to tell whether they come in bursts: a pass takes it that they come singly"
        );
    }
    Ok(())
}

/// Part of alpha that the uncertainty of the median is given.
const OF_THE_MEDIAN: f64 = 0.02;

/// p99 ≤ R × p50: at most 1 % are over R times what the median may be.
fn tail_ratio(
    row: &mut Judgement,
    metric: BudgetMetric,
    chosen: &Chosen<'_>,
    picks: Picks,
    alpha: f64,
) -> Result<(), String> {
    let of = metric.latency_of_ratio().unwrap_or(BudgetMetric::E2e);
    let values = values(chosen, of, picks);
    let (most, length_s) = (row.limit.ok_or("no ceiling")?, chosen.length_s());
    let worth = of_values(&values, f64::INFINITY, 0.5, length_s).worth;
    let worth = worth.unwrap_or(EffectiveN::known(0.0));
    let Some(median) = order::between(&values, (0.5, worth), OF_THE_MEDIAN * alpha) else {
        return Err(format!("too few requests for the median of {}", of.name()));
    };
    let beyond = |median_s: f64| decide(&of_values(&values, most * median_s, 0.99, length_s), 0.01, alpha);
    row.p_pass = (beyond(median[0].max(0.0)).p_pass + OF_THE_MEDIAN * alpha).min(1.0);
    row.p_fail = (beyond(median[1]).p_fail + OF_THE_MEDIAN * alpha).min(1.0);
    let [middle, tail] = [0.5, 0.99].map(|p| order::percentile(&values, p, length_s));
    let Some(middle) = middle.seen() else {
        return Err(format!("too few requests for the median of {}", of.name()));
    };
    let count = of_values(&values, most * middle.value, 0.99, length_s);
    let decision = decide(&count, 0.01, alpha);
    row.needed = decision.needed;
    row.by = decision.by;
    let over = format!("over {} × the median", number(most));
    row.note = decision.words(&count, &over, per_s(count.n, length_s));
    row.count = Some((count, 0.01));
    row.measured = tail.map(|tail| Estimate {
        value: tail.value / middle.value,
        lower: (tail.lower / middle.upper).max(0.0),
        upper: tail.upper / middle.lower,
        ..*tail
    });
    row.measured_shown = figure(&row.measured, &Unit::Plain);
    Ok(())
}

/// A reading as it is shown: the value with its interval, a `*` where it rests on few requests. Of an interval with an open end the known
/// one is shown, `≥` or `≤`. What is said of the value's unit holds for the ends.
pub(super) fn figure(reading: &Reading, unit: &Unit) -> String {
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
