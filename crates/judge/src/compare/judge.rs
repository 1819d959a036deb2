//! Verdicts from effects, intervals and margins.
//!
//! One interval decides, and it is the one shown. *Regressed* and *improved* need an interval without "nothing changed", also
//! after the correction for the family. *No change* needs an interval within the margin, per row. If the whole passes only when
//! every row passes, no correction is needed (Berger 1982). A verdict by p only was rejected: with enough requests every
//! difference has a small p, relevant or not.

use plimsoll_math::two_sample::{Flips, holm, step_down};

use super::finding::{ChangeVerdict, ComparedFigure, Effect, Scale, WorseWay};
use super::spec::LEVEL;
use plimsoll_measure::say::number;

/// Computes the family-wise p-values of the rows of one load, which sign flips of its units test jointly.
///
/// If slow changes are known, from turn to turn or along the run, the rows are tested against them too, by Holm.
pub fn jointly(rows: &mut [ComparedFigure], flips: &Flips) {
    let asked: Vec<usize> =
        (0..rows.len()).filter(|i| rows[*i].primary && !rows[*i].differences.is_empty()).collect();
    let differences: Vec<Vec<f64>> = asked.iter().map(|i| rows[*i].differences.clone()).collect();
    let by_slow: Vec<f64> =
        differences.iter().map(|of_row| flips.by_slow_alone(of_row).unwrap_or(0.0)).collect();
    let joint = step_down(flips, &differences);
    for ((i, p), by_slow) in asked.into_iter().zip(joint).zip(holm(&by_slow)) {
        rows[i].p_family = Some(p.max(by_slow));
    }
}

/// Sets the verdict of every row: the family together, the others separately.
///
/// The flips of a load use the share of α that its rows have in the family. Each row without flips (failures, limits) does
/// too. The latter use all of α if every row of the loads is significant.
pub fn judge(loads: &mut [&mut [ComparedFigure]], lines: &mut [ComparedFigure]) {
    let asked = |row: &&mut ComparedFigure| row.primary && row.p.is_some();
    let family =
        loads.iter_mut().flat_map(|rows| rows.iter_mut()).chain(lines.iter_mut()).filter(asked).count();
    let mut latest: f64 = 0.0;
    for rows in loads.iter_mut() {
        let of_load = rows.iter().filter(|row| row.p_family.is_some()).count().max(1);
        for p in rows.iter_mut().filter_map(|row| row.p_family.as_mut()) {
            *p = (*p * family as f64 / of_load as f64).min(1.0);
            latest = latest.max(*p);
        }
    }
    let others = |row: &&mut ComparedFigure| row.primary && row.p.is_some() && row.p_family.is_none();
    let mut single: Vec<&mut ComparedFigure> =
        loads.iter_mut().flat_map(|rows| rows.iter_mut()).chain(lines.iter_mut()).filter(others).collect();
    let among = holm(&single.iter().map(|row| row.p.unwrap_or(1.0)).collect::<Vec<_>>());
    for (row, among) in single.iter_mut().zip(among) {
        let own = row.p.unwrap_or(1.0) * family as f64;
        row.p_family = Some(own.min(among.max(latest)).min(1.0));
    }
    loads.iter_mut().flat_map(|rows| rows.iter_mut()).chain(lines).for_each(decide);
}

fn decide(row: &mut ComparedFigure) {
    let Some(effect) = row.effect.filter(|_| row.why.is_none()) else {
        row.verdict = ChangeVerdict::Inconclusive;
        return;
    };
    if let Some(why) = &row.described {
        (row.verdict, row.why) = (ChangeVerdict::Inconclusive, Some(why.clone()));
        return;
    }
    let p = if row.primary { row.p_family } else { row.p };
    (row.verdict, row.why) = verdict(&effect, row.worse, row.margin, p.unwrap_or(1.0));
}

/// Returns (value, lower, upper) on a scale where higher is worse and zero is no change.
fn turned(effect: &Effect, worse: WorseWay) -> (f64, f64, f64) {
    let Effect { scale, value, lower, upper } = *effect;
    let of = |x: f64| if scale == Scale::Ratio { x.ln() } else { x };
    match worse {
        WorseWay::Higher => (of(value), of(lower), of(upper)),
        WorseWay::Lower => (-of(value), -of(upper), -of(lower)),
    }
}

fn verdict(effect: &Effect, worse: WorseWay, margin: f64, p: f64) -> (ChangeVerdict, Option<String>) {
    let (value, lower, upper) = turned(effect, worse);
    let limit = match effect.scale {
        Scale::Ratio => margin.ln_1p(),
        Scale::Difference => margin,
    };
    let significant = p <= 1.0 - LEVEL;
    let (within, within_better) = (upper < limit, lower > -limit);
    match (lower > 0.0, upper < 0.0) {
        (true, _) if within => (ChangeVerdict::NoChange, Some("worse, within the margin".into())),
        (true, _) if significant => (ChangeVerdict::Regressed, None),
        (true, _) => (
            ChangeVerdict::Inconclusive,
            Some("worse on its own, not significant after correction for all figures".into()),
        ),
        (_, true) if within_better => (ChangeVerdict::NoChange, Some("better, within the margin".into())),
        (_, true) if significant => (ChangeVerdict::Improved, None),
        _ if within => (ChangeVerdict::NoChange, None),
        _ => (ChangeVerdict::Inconclusive, settle(value, upper, limit)),
    }
}

/// Returns the factor on the number of requests at which the interval ends within the margin.
///
/// The effect is assumed to stay; the width is proportional to the inverse root of the number.
fn settle(value: f64, upper: f64, limit: f64) -> Option<String> {
    let (reach, room) = (upper - value, limit - value);
    if !reach.is_finite() {
        return Some("the interval has no end: too few requests".into());
    }
    if room <= 0.0 {
        return Some("the estimate is past the margin, and may be chance".into());
    }
    let times = (reach / room) * (reach / room);
    (times > 1.0).then(|| {
        format!("a verdict needs about {} times as many requests", number((10.0 * times).ceil() / 10.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(
        scale: Scale,
        worse: WorseWay,
        (value, lower, upper): (f64, f64, f64),
        p: f64,
        wanted: ChangeVerdict,
    ) {
        let effect = Effect { scale, value, lower, upper };
        assert_eq!(verdict(&effect, worse, 0.1, p).0, wanted, "{effect:?} p {p}");
    }

    #[test]
    fn the_interval_decides() {
        use ChangeVerdict::*;
        let ratio = |interval, p, wanted| is(Scale::Ratio, WorseWay::Higher, interval, p, wanted);
        ratio((1.13, 1.04, 1.22), 0.01, Regressed);
        // The interval is unchanged, but among that many figures it may be random.
        ratio((1.13, 1.04, 1.22), 0.2, Inconclusive);
        // Significantly worse, and significantly by less than a tenth.
        ratio((1.05, 1.02, 1.08), 0.001, NoChange);
        ratio((0.8, 0.7, 0.85), 0.001, Improved);
        ratio((0.97, 0.95, 0.99), 0.001, NoChange);
        ratio((1.0, 0.95, 1.05), 1.0, NoChange);
        ratio((0.9, 0.7, 1.05), 0.3, NoChange);
        ratio((1.0, 0.8, 1.25), 1.0, Inconclusive);
        ratio((f64::INFINITY, f64::INFINITY, f64::INFINITY), 0.001, Regressed);
        // A rate that falls by a fifth is worse; a share that rises by two percentage points is within ten.
        is(Scale::Ratio, WorseWay::Lower, (0.8, 0.75, 0.85), 0.001, Regressed);
        is(Scale::Ratio, WorseWay::Lower, (1.3, 1.2, 1.4), 0.001, Improved);
        is(Scale::Difference, WorseWay::Higher, (0.02, -0.01, 0.05), 0.3, NoChange);
        is(Scale::Difference, WorseWay::Higher, (0.3, 0.2, 0.4), 0.001, Regressed);
    }

    #[test]
    fn says_what_would_settle_it() {
        // From 0.10 reached to 0.05 of room: twice as far, four times the requests.
        assert_eq!(
            settle(0.05, 0.15, 0.10).as_deref(),
            Some("a verdict needs about 4 times as many requests")
        );
        assert_eq!(
            settle(0.0, f64::INFINITY, 0.1).as_deref(),
            Some("the interval has no end: too few requests")
        );
    }
}
