//! A budget against the baseline's own figure, which has an uncertainty of its own.
//!
//! A percentile is held by the two-sample test of [`plimsoll_math::two_sample`] at the allowed ratio, on the requests themselves. Of
//! rates, costs, shares and the onset each side is known by an estimate and its 95 % interval only. A quantity above zero is taken as normal in its
//! logarithm, each side of the interval by itself; a share, which may be zero, through the square-and-add interval of a difference (Zou and Donner
//! 2008) of one share and a multiple of the other. A percentage of two points lost, as everywhere: equal rates differ by a few per cent in any two runs.

use plimsoll_math::proportion::scaled_difference;
use plimsoll_math::special::{normal_cdf, normal_inv};
use plimsoll_math::two_sample::{Arm, Flips, exceedance_differences, percentile_ratio};

use super::judge::{Judgement, judge};
use super::select::{Chosen, MeasuredRun, flags, values};
use crate::budget::{Budget, BudgetFile, Count, Judged, Limit, Relative, Unit, of_flags, shown, signed};
use plimsoll_measure::findings::{Estimate, Reading};
use plimsoll_measure::order::seconds;
use plimsoll_measure::say::number;

/// Stretches into which each arm is cut.
const UNITS: usize = 20;
/// Requests beyond the percentile that each arm needs.
const BEYOND: f64 = 10.0;

/// A percentile against the baseline's, which has an uncertainty of its own.
pub(super) fn relative(
    file: &BudgetFile,
    budget: &Budget,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> Result<Judgement, String> {
    let allowed = budget.relative.map_or(0.0, |relative| relative.0);
    let limit = Limit::of(file, budget);
    let (metric, p) = (limit.metric, limit.p.map_or(0.99, |p| p.0));
    let what = format!("{} against the baseline", limit.what());
    let mut row = Judgement::new(what, Some(1.0 + allowed), limit.change_words(Relative(allowed)));
    let baseline = baseline.ok_or("no baseline: give one with --baseline, or `baseline:` in the file")?;
    let other = baseline.choose(file, budget).map_err(|why| format!("of the baseline: {why}"))?;
    let (now, then) = (chosen.offered_per_s(), other.offered_per_s());
    // An onset is a load itself.
    if metric.judged() != Judged::Line && (now / then - 1.0).abs() > 0.1 {
        return Err(format!(
            "the baseline was measured at {}/s and the run at {}/s: not the same load",
            number(then),
            number(now)
        ));
    }
    if metric.judged() != Judged::Percentile {
        figures(&mut row, file, limit, [(run, chosen), (baseline, &other)], allowed)?;
        return Ok(row);
    }
    let arms = [(run, chosen), (baseline, &other)].map(|(measured, chosen)| {
        let picks = measured.picks(limit.slice)?;
        let values = values(chosen, metric, picks);
        if (values.len() as f64) * (1.0 - p) < BEYOND {
            let needed = number(BEYOND / (1.0 - p));
            return Err(format!(
                "{} requests in one of the two runs; {} takes {needed}",
                values.len(),
                limit.what()
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
        percent(ratio.value, (ratio.interval.lower, ratio.interval.upper)),
        shown(candidate.quantile(p), &Unit::Time),
        shown(base.quantile(p), &Unit::Time)
    );
    Ok(row)
}

/// Both sides' figure of what is no percentile: shares by their counts, everything else by its estimate and interval.
fn figures(
    row: &mut Judgement,
    file: &BudgetFile,
    limit: Limit<'_>,
    sides: [(&MeasuredRun<'_>, &Chosen<'_>); 2],
    allowed: f64,
) -> Result<(), String> {
    if limit.metric.judged() == Judged::Share {
        let [now, then] = sides.map(|(measured, chosen)| {
            Ok::<_, String>(of_flags(&flags(chosen, limit.metric, measured.picks(limit.slice)?)))
        });
        return share(row, &now?, &then?, allowed);
    }
    let alone = Limit { value: None, amount: None, ..limit };
    let [now, then] = sides.map(|(measured, chosen)| {
        let own = match limit.metric.judged() {
            // What an onset is held to is not asked here, only what it is.
            Judged::Line => measured.onset(&chosen.traffic).map(Reading::Estimate),
            _ => judge(file, &alone, measured, None, chosen).map(|judged| judged.measured),
        }?;
        own.estimate().copied().ok_or_else(|| "one of the two runs has no figure of it".to_owned())
    });
    let unit = match limit.metric.unit() {
        Unit::Money(_) => Unit::Money(
            file.price.as_ref().and_then(|p| p.bill().ok()).map(|b| b.currency).unwrap_or_default(),
        ),
        unit => unit,
    };
    ratio(row, &now?, &then?, (allowed, limit.floor), &unit)
}

/// Fills a row that asks by how much a rate, a cost or an onset has changed. `allowed`: the most it may be worse, signed as the metric goes.
///
/// # Errors
/// What one of the two runs lacks.
pub(super) fn ratio(
    row: &mut Judgement,
    now: &Estimate,
    then: &Estimate,
    (allowed, floor): (f64, bool),
    unit: &Unit,
) -> Result<(), String> {
    if now.value.is_nan() || now.value <= 0.0 || then.value.is_nan() || then.value <= 0.0 {
        return Err("it is zero in one of the two runs, so there is no ratio".into());
    }
    let side = |of: &Estimate, end: f64| {
        if end > 0.0 { libm::log(end / of.value) / NORMAL_975 } else { f64::NEG_INFINITY }
    };
    let gap = libm::log(now.value / then.value);
    // How far the ratio reaches down: the candidate's lower side and the baseline's upper one.
    let down = libm::hypot(side(now, now.lower), side(then, then.upper));
    let up = libm::hypot(side(now, now.upper), side(then, then.lower));
    let room = libm::log1p(allowed) - gap;
    // Chance of so small a ratio if it were past what is allowed, and of so large a one if it were within.
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

/// The same for shares: how often something happens now and then.
pub(super) fn share(row: &mut Judgement, now: &Count, then: &Count, allowed: f64) -> Result<(), String> {
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
        row.note = "none in either run, and no multiple of nothing can be shown: hold it with `max`".into();
    }
    let (a, b) = (now_counts.0 / now_counts.1, then_counts.0 / then_counts.1);
    // Of the plain difference, in shares: a ratio to nothing is none.
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
        shown(a, &Unit::Share),
        shown(b, &Unit::Share)
    );
    Ok(())
}

const NORMAL_975: f64 = 1.959_963_984_540_054;

/// Chance that a normal of this spread lies this far out.
fn tail(gap: f64, spread: f64) -> f64 {
    match spread {
        s if !s.is_finite() || s.is_nan() => 1.0,
        s if s <= 0.0 => {
            if gap >= 0.0 {
                0.0
            } else {
                1.0
            }
        }
        s => 1.0 - normal_cdf(gap / s),
    }
}

/// The chance of error at which an interval just proves something: half of one less its level.
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

/// A ratio with its interval as a change: `+11 % [+8, +14]`.
pub(super) fn percent(ratio: f64, (lower, upper): (f64, f64)) -> String {
    let percent = |x: f64| if x.is_finite() { signed(100.0 * (x - 1.0)) } else { "∞".to_owned() };
    format!("{} % [{}, {}]", percent(ratio), percent(lower), percent(upper))
}
