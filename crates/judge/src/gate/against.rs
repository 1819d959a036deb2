//! Rows on the change against a baseline, whose figure is also uncertain.
//!
//! A percentile is compared by the two-sample test of [`plimsoll_math::two_sample`] at the allowed ratio, on the requests. Rates, costs and the
//! onset are known by estimate and 95 % interval only; they are normal in the logarithm, each side separately. A share may be zero. It therefore uses the
//! square-and-add interval of a difference (Zou and Donner 2008) of one share and a multiple of the other. Comparing two points was
//! rejected, because equal rates differ by a few per cent in any two runs.

use plimsoll_math::proportion::scaled_difference;
use plimsoll_math::special::{normal_cdf, normal_inv};
use plimsoll_math::two_sample::{ArmSample, Flips, exceedance_differences, percentile_ratio};

use super::judge::judge;
use super::select::{MeasuredRun, SelectedLevels, flags, values};
use super::{GateInput, GateRow, JudgedRow};
use crate::budget::{AmountUnit, Budget, Count, MetricKind, RowPlan, of_flags, shown, signed};
use plimsoll_measure::findings::{Estimate, Reading};
use plimsoll_measure::order::seconds;
use plimsoll_measure::say::number;

/// Number of periods of each arm.
const UNITS: usize = 20;
/// Minimum number of requests beyond the percentile in each arm.
const BEYOND: f64 = 10.0;

/// Evaluates the change of a row against the baseline, which is also uncertain.
pub(super) fn relative(
    gate: &GateInput<'_>,
    plan: &RowPlan,
    row: &mut GateRow,
    chosen: &SelectedLevels<'_>,
) -> Result<(), String> {
    let allowed = plan.row.relative.map_or(0.0, |relative| relative.0);
    let (run, metric, p) = (gate.run, plan.metric, plan.row.p.map_or(0.99, |p| p.0));
    row.what = format!("{} against the baseline", plan.metric_name());
    row.limit = Some(1.0 + allowed);
    let baseline =
        gate.baseline.ok_or("no baseline: give one with --baseline, or `baseline:` in the file")?;
    let other = baseline.select(gate.file, &plan.load).map_err(|why| format!("of the baseline: {why}"))?;
    let (now, then) = (chosen.offered_per_s(), other.offered_per_s());
    // An onset is a load itself.
    if metric.kind() != MetricKind::Line && (now / then - 1.0).abs() > 0.1 {
        return Err(format!(
            "the baseline was measured at {}/s and the run at {}/s: not the same load",
            number(then),
            number(now)
        ));
    }
    if metric.kind() != MetricKind::Percentile {
        return figures(row, gate, plan, [(run, chosen), (baseline, &other)], allowed);
    }
    let arms = [(run, chosen), (baseline, &other)].map(|(measured, chosen)| {
        let requests = measured.requests(plan.row.slice.as_ref())?;
        let values = values(chosen, metric, requests);
        if (values.len() as f64) * (1.0 - p) < BEYOND {
            let needed = number(BEYOND / (1.0 - p));
            return Err(format!(
                "{} requests in one of the two runs; {} needs {needed}",
                values.len(),
                plan.metric_name()
            ));
        }
        let unit = |u: usize| values[u * values.len() / UNITS..(u + 1) * values.len() / UNITS].iter();
        Ok(ArmSample::new(&(0..UNITS).map(|u| unit(u).map(|ns| seconds(*ns)).collect()).collect::<Vec<_>>()))
    });
    let [candidate, base] = arms;
    let (candidate, base) = (candidate?, base?);
    let flips = Flips::new(UNITS);
    let differences = exceedance_differences(&base, &candidate, p, 1.0 + allowed);
    row.p_fail = flips.greater(&differences);
    row.p_pass = flips.less(&differences);
    let ratio = percentile_ratio(&base, &candidate, p, &flips, 1.0 - 2.0 * gate.alpha);
    row.measured = Reading::Estimate(Estimate {
        value: ratio.value,
        lower: ratio.interval.lower,
        upper: ratio.interval.upper,
        n: candidate.len() as u64,
        n_eff: UNITS as f64,
    });
    row.measured_shown = format!(
        "{}, {} now, {} then",
        percent(ratio.value, (ratio.interval.lower, ratio.interval.upper)),
        shown(candidate.quantile(p), &AmountUnit::Time),
        shown(base.quantile(p), &AmountUnit::Time)
    );
    Ok(())
}

/// Evaluates the change of a metric that is no percentile: shares by their counts, others by estimate and interval.
fn figures(
    row: &mut GateRow,
    gate: &GateInput<'_>,
    plan: &RowPlan,
    sides: [(&MeasuredRun<'_>, &SelectedLevels<'_>); 2],
    allowed: f64,
) -> Result<(), String> {
    if plan.metric.kind() == MetricKind::Share {
        let [now, then] = sides.map(|(measured, chosen)| {
            let requests = measured.requests(plan.row.slice.as_ref())?;
            Ok::<_, String>(of_flags(&flags(chosen, plan.metric, requests)))
        });
        return share(row, &now?, &then?, allowed);
    }
    let unlimited =
        RowPlan { limit: None, row: Budget { max: None, min: None, ..plan.row.clone() }, ..plan.clone() };
    let [now, then] = sides.map(|(run, chosen)| {
        let own = match plan.metric.kind() {
            // The onset itself is compared, not its limit.
            MetricKind::Line => run.onset(&chosen.traffic).map(Reading::Estimate),
            _ => {
                let blank = GateRow::new(String::new(), String::new(), String::new(), plan.role);
                let gate = GateInput { run, baseline: None, ..*gate };
                let one =
                    JudgedRow::new(blank, Ok(chosen), |one, levels| judge(&gate, &unlimited, one, levels));
                if one.row.missing { Err(one.row.why) } else { Ok(one.row.measured) }
            }
        }?;
        own.estimate().copied().ok_or_else(|| "one of the two runs has no figure of it".to_owned())
    });
    let unit = match plan.metric.unit() {
        AmountUnit::Money(_) => {
            let bill = gate.file.price.as_ref().and_then(|price| price.bill().ok());
            AmountUnit::Money(bill.map(|bill| bill.currency).unwrap_or_default())
        }
        unit => unit,
    };
    ratio(row, &now?, &then?, (allowed, plan.is_floor()), &unit)
}

/// Evaluates the change of a rate, a cost or an onset. `allowed` is the allowed change, with the sign of the metric.
///
/// # Errors
/// Fails if the figure is zero in one of the runs.
pub(super) fn ratio(
    row: &mut GateRow,
    now: &Estimate,
    then: &Estimate,
    (allowed, floor): (f64, bool),
    unit: &AmountUnit,
) -> Result<(), String> {
    if now.value.is_nan() || now.value <= 0.0 || then.value.is_nan() || then.value <= 0.0 {
        return Err("it is zero in one of the two runs, so there is no ratio".into());
    }
    let side = |of: &Estimate, end: f64| {
        if end > 0.0 { libm::log(end / of.value) / NORMAL_975 } else { f64::NEG_INFINITY }
    };
    let gap = libm::log(now.value / then.value);
    // The ratio's lower side has the candidate's lower side and the baseline's upper one.
    let down = libm::hypot(side(now, now.lower), side(then, then.upper));
    let up = libm::hypot(side(now, now.upper), side(then, then.lower));
    let room = libm::log1p(allowed) - gap;
    // Probabilities of so small a ratio if the true one is at the limit, and of so large a one.
    let (over, under) = (tail(room, up), tail(-room, down));
    (row.p_pass, row.p_fail) = if floor { (under, over) } else { (over, under) };
    let z = normal_inv(0.975);
    let end = |gap: f64| if gap.is_nan() { f64::NAN } else { libm::exp(gap) };
    let lower = if down.is_finite() { end(gap - z * down) } else { 0.0 };
    let upper = if up.is_finite() { end(gap + z * up) } else { f64::INFINITY };
    row.measured =
        Reading::Estimate(Estimate { value: libm::exp(gap), lower, upper, n: now.n, n_eff: now.n_eff });
    row.measured_shown =
        words(libm::exp(gap), (lower, upper), shown(now.value, unit), shown(then.value, unit));
    Ok(())
}

/// Evaluates the change of a share.
pub(super) fn share(row: &mut GateRow, now: &Count, then: &Count, allowed: f64) -> Result<(), String> {
    let side = |count: &Count| {
        let worth =
            count.worth.filter(|worth| worth.n_eff > 0.0).ok_or("too few requests in one of the two runs")?;
        Ok::<_, String>((count.over_most as f64 / count.n.max(1) as f64 * worth.n_eff, worth.n_eff))
    };
    let (now_counts, then_counts) = (side(now)?, side(then)?);
    let times = 1.0 + allowed;
    let reach = |level: f64| scaled_difference(then_counts, now_counts, times, level);
    row.p_pass = one_sided(|level| reach(level).upper <= 0.0);
    row.p_fail = one_sided(|level| reach(level).lower > 0.0);
    if now.over_most == 0 && then.over_most == 0 {
        row.why = "none in either run, and a ratio to zero is undefined: limit it with `max`".into();
    }
    let (a, b) = (now_counts.0 / now_counts.1, then_counts.0 / then_counts.1);
    // The plain difference of the shares, because a ratio to zero does not exist.
    let plain = scaled_difference(then_counts, now_counts, 1.0, 0.95);
    row.measured = Reading::Estimate(Estimate {
        value: a - b,
        lower: plain.lower,
        upper: plain.upper,
        n: now.n,
        n_eff: now_counts.1,
    });
    let points = |x: f64| signed(100.0 * x);
    row.measured_shown = format!(
        "{} points [{}, {}], {} now, {} then",
        points(a - b),
        points(plain.lower),
        points(plain.upper),
        shown(a, &AmountUnit::Share),
        shown(b, &AmountUnit::Share)
    );
    Ok(())
}

const NORMAL_975: f64 = 1.959_963_984_540_054;

/// Returns the probability that a normal variable of this spread exceeds the gap.
fn tail(gap: f64, spread: f64) -> f64 {
    match spread {
        s if !s.is_finite() || s.is_nan() => 1.0,
        s if s <= 0.0 && gap >= 0.0 => 0.0,
        s if s <= 0.0 => 1.0,
        s => 1.0 - normal_cdf(gap / s),
    }
}

/// Returns the error probability at which an interval just proves a claim: half of 1 − level.
fn one_sided(proves: impl Fn(f64) -> bool) -> f64 {
    let (mut yes, mut no) = (0.0, 1.0 - 1e-9);
    if proves(no) {
        return 0.5e-9;
    }
    if !proves(yes) {
        return 1.0;
    }
    for _ in 0..40 {
        let middle = 0.5 * (yes + no);
        if proves(middle) { yes = middle } else { no = middle }
    }
    0.5 * (1.0 - yes)
}

fn words(ratio: f64, interval: (f64, f64), now: String, then: String) -> String {
    format!("{}, {now} now, {then} then", percent(ratio, interval))
}

/// Returns a ratio with its interval as a change: `+11 % [+8, +14]`.
pub(super) fn percent(ratio: f64, (lower, upper): (f64, f64)) -> String {
    let percent = |x: f64| if x.is_finite() { signed(100.0 * (x - 1.0)) } else { "∞".to_owned() };
    format!("{} % [{}, {}]", percent(ratio), percent(lower), percent(upper))
}
