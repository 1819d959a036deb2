//! The two brackets: between the last level that is stable (or meets the budget) and the first that is not.

use plimsoll_math::isotonic::{crossing, rising_fit};

use super::LineLevel;
use super::words::Words;
use crate::budget::ALPHA;
use crate::findings::{BudgetFinding, BudgetRow, CapacityLine, Estimate, Held, LoadKeptUp, Pool};
use crate::purpose::{OVERLOAD, PLACE, PROVE};
use crate::say::{count, number};
use crate::tail::crossing_rate;

/// Returns the bracket of a rule that passes at light loads only: (last load that passes, first load that does not).
///
/// Contradictory levels are split so that the fewest are on the wrong side.
pub fn bracket(verdicts: &[(f64, Option<bool>)]) -> (Option<f64>, Option<f64>) {
    let decided: Vec<(f64, bool)> =
        verdicts.iter().filter_map(|(rate, holds)| Some((*rate, (*holds)?))).collect();
    let wrong = |split: usize| {
        decided[..split].iter().filter(|d| !d.1).count() + decided[split..].iter().filter(|d| d.1).count()
    };
    // Of equal splits the lowest is used, because a load that is not proven to hold must not be reported as capacity.
    let split = (0..=decided.len()).min_by_key(|split| wrong(*split)).unwrap_or(0);
    let holds = decided[..split].iter().rfind(|d| d.1).map(|d| d.0);
    let breaks = decided[split..].iter().find(|d| !d.1).map(|d| d.0);
    (holds, breaks)
}

/// Largest factor over the first unstable level at which throughput counts as saturated. Far above, thrashing is measured.
pub(super) const FULL_UP_TO: f64 = 1.25;

/// Returns the throughput of an overloaded target per second, from the unstable levels just over the limit.
pub fn saturated(good: &[&LineLevel], first_unstable: f64) -> Option<Estimate> {
    let full: Vec<&Estimate> = good
        .iter()
        .filter(|o| {
            o.kept() == LoadKeptUp::Unstable
                && o.rate() >= first_unstable
                && o.rate() <= FULL_UP_TO * first_unstable
        })
        .filter_map(|o| o.full.estimate())
        .collect();
    if full.is_empty() {
        return None;
    }
    let weight = |e: &Estimate| 1.0 / ((e.upper - e.lower).max(1e-9 * e.value) / 3.92).powi(2);
    let total: f64 = full.iter().map(|e| weight(e)).sum();
    let value = full.iter().map(|e| weight(e) * e.value).sum::<f64>() / total;
    let half = 1.96 / total.sqrt();
    let n = full.iter().map(|e| e.n).sum();
    Some(Estimate { value, lower: value - half, upper: value + half, n, n_eff: full.len() as f64 })
}

pub(super) fn kept_verdicts(good: &[&LineLevel]) -> Vec<(f64, Option<bool>)> {
    good.iter()
        .map(|o| {
            let holds = match o.kept() {
                LoadKeptUp::Stable => Some(true),
                LoadKeptUp::Unstable => Some(false),
                LoadKeptUp::Undecided => None,
            };
            (o.rate(), holds)
        })
        .collect()
}

/// Reason of a missing limit if only closed loops were measured.
pub(super) const NO_OPEN_LOOP: &str = "no open loop was measured";

/// Effect of an overload on a target that rejects nothing.
const PILE_UP: &str = "the backlog grows";

/// Returns the effect of unstable levels as a clause. A target that sheds load or fails has few requests in flight.
fn overload<'a>(unstable: impl Iterator<Item = &'a &'a LineLevel>) -> &'static str {
    let (mut grow, mut lose) = (false, false);
    for level in unstable {
        let grows = level.finding.summary.stability.grows();
        (grow, lose) = (grow || grows, lose || !grows);
    }
    match (grow, lose) {
        (_, false) => PILE_UP,
        (false, true) => "requests are rejected or lost",
        (true, true) => "the backlog grows or requests are lost",
    }
}

/// Standard errors (roots of the number finished) subtracted from a closed loop's throughput, because the best level counts.
const LUCK: f64 = 3.0;

/// Returns the load that a closed loop proves to be stable, in requests per second.
///
/// A closed loop cannot overload its target. It starts empty, so it finishes less than the target can. The interval by
/// batches was rejected because filling makes it as wide as the rate in a short level.
fn closed_loop_carries(levels: &[&LineLevel]) -> Option<f64> {
    let closed = levels.iter().filter(|o| !o.is_open() && o.counts()).filter_map(|o| o.achieved());
    let surely = closed.map(|e| e.value * (1.0 - LUCK / (e.n as f64).sqrt()));
    surely.filter(|rate| *rate > 0.0).reduce(f64::max)
}

pub(super) fn stability(good: &[&LineLevel], levels: &[&LineLevel], words: &Words<'_>) -> CapacityLine {
    let (stable, unstable) = bracket(&kept_verdicts(good));
    // Used only if no open-loop level proves more.
    let closed = closed_loop_carries(levels).filter(|rate| {
        stable.is_none() && !good.is_empty() && unstable.is_none_or(|unstable| *rate < unstable)
    });
    if let (Some(rate_per_s), None) = (closed, unstable) {
        let why = "a closed loop finished as many, and no open-loop level was long enough to see whether the backlog grows";
        return CapacityLine::Above { rate_per_s, load: words.at(rate_per_s), why: why.into() };
    }
    match (stable.or(closed), unstable) {
        (None, None) => CapacityLine::CannotTell {
            why: if good.is_empty() {
                NO_OPEN_LOOP.into()
            } else {
                "no level was long enough to see whether the backlog grows".into()
            },
        },
        (Some(rate_per_s), None) => {
            let heaviest = good.last().map_or(0.0, |o| o.rate());
            let why = if heaviest > rate_per_s {
                format!(
                    "the backlog did not grow there, and heavier levels (up to {} requests/s) were too short for a verdict",
                    number(heaviest)
                )
            } else {
                "the backlog did not grow at any level".into()
            };
            CapacityLine::Above { rate_per_s, load: words.at(rate_per_s), why }
        }
        (None, Some(rate_per_s)) => {
            let unstable = good.iter().filter(|o| o.kept() == LoadKeptUp::Unstable);
            let what = overload(unstable);
            CapacityLine::Below { rate_per_s, why: everywhere(what, &kept_verdicts(good)) }
        }
        (Some(stable), Some(unstable)) => {
            let full = saturated(good, unstable);
            // Overload reduced this target's throughput, so the throughput under overload is no limit.
            let inside = full.filter(|full| full.value >= stable / (1.0 + 2.0 * crate::flight::GROWTH_LIMIT));
            let value = inside.map_or((stable * unstable).sqrt(), |full| full.value.min(unstable));
            let lower = inside.map_or(stable, |full| full.lower.min(stable));
            let n = good.iter().map(|o| o.upper.len() as u64).sum();
            let rate = Estimate { value, lower, upper: unstable, n, n_eff: good.len() as f64 };
            let how = format!(
                "{} {} requests/s{} at {} requests/s{}",
                if closed.is_some() { "a closed loop finished" } else { "the backlog is stable at" },
                number(stable),
                match overload(
                    good.iter().filter(|o| o.kept() == LoadKeptUp::Unstable && o.rate() == unstable)
                ) {
                    PILE_UP if closed.is_none() => " and grows".to_owned(),
                    other => format!(", and {other}"),
                },
                number(unstable),
                if inside.is_some() {
                    "; the figure is what the target finished when overloaded"
                } else {
                    ""
                }
            );
            CapacityLine::Found { rate, load: words.at(value.min(stable)), how }
        }
    }
}

/// Returns the verdict of the decided levels, and the load from which on levels are undecided.
fn everywhere(what: &str, verdicts: &[(f64, Option<bool>)]) -> String {
    let decided = verdicts.iter().filter(|verdict| verdict.1.is_some()).count();
    let open: Vec<f64> =
        verdicts.iter().filter(|verdict| verdict.1.is_none()).map(|verdict| verdict.0).collect();
    match open.first() {
        None => format!("{what} at every level"),
        Some(lightest) => format!(
            "{what} at each of the {} with a verdict; {} from {} requests/s up had too few requests",
            count(decided as u64, "level"),
            count(open.len() as u64, "level"),
            number(*lightest)
        ),
    }
}

pub(super) fn budget_verdicts(good: &[&LineLevel]) -> Vec<(f64, Option<bool>)> {
    let judged: Vec<(&LineLevel, &BudgetFinding)> =
        good.iter().filter_map(|o| Some((*o, o.finding.summary.budget.as_ref()?))).collect();
    let verdict = |(i, (o, budget)): (usize, &(&LineLevel, &BudgetFinding))| {
        let holds = match (budget.verdict, o.kept()) {
            // A level that passes only because its queue has not grown long enough yet does not pass.
            (_, LoadKeptUp::Unstable) | (Held::Fail, _) => Some(false),
            // The queue of a short level has had no time to grow, so the level brackets the limit and proves nothing.
            (Held::Pass, _) if !PLACES.contains(&o.level.purpose.as_str()) => Some(true),
            _ if o.level.purpose == PROVE && pooled(&judged[i..]) => Some(true),
            _ => None,
        };
        (o.rate(), holds)
    };
    judged.iter().enumerate().map(verdict).collect()
}

/// Purposes of levels that prove nothing separately.
const PLACES: [&str; 2] = [PLACE, OVERLOAD];

/// Returns whether the first level passes, separately or pooled with heavier levels (lightest first).
///
/// The share over a ceiling rises with the load, so heavier levels bound lighter ones.
fn pooled(levels: &[(&LineLevel, &BudgetFinding)]) -> bool {
    let rows = &levels[0].1.rows;
    let proves = |i: usize| {
        let steady = levels.iter().take_while(|(o, _)| o.kept() != LoadKeptUp::Unstable);
        let pools = steady.map_while(|(_, budget)| Some(budget.rows.get(i)?.pool));
        let pooled = pools.scan(None, |all: &mut Option<Pool>, one| {
            *all = Some(all.map_or(one, |all| all.with(one)));
            *all
        });
        rows[i].verdict == Held::Pass
            || pooled.into_iter().any(|pool| pool.share_at_most(ALPHA) <= rows[i].allowed)
    };
    (0..rows.len()).all(proves)
}

/// Returns whether the level itself proves a ceiling broken, regardless of the later effect of an overload.
fn breaks(o: &LineLevel) -> bool {
    o.finding.summary.budget.as_ref().is_some_and(|budget| budget.verdict == Held::Fail)
}

/// Returns the reason of a budget that passes at no level.
///
/// An unstable level does not meet the budget for long, even if it was too short to break it.
fn never_held(good: &[&LineLevel]) -> String {
    let broken = good.iter().any(|o| breaks(o));
    let mut overflows = good.iter().filter(|o| o.kept() == LoadKeptUp::Unstable && !breaks(o)).peekable();
    let what = match (broken, overflows.peek().is_some()) {
        (_, false) => "the budget is broken".to_owned(),
        (false, true) => overload(overflows).to_owned(),
        (true, true) => format!("the budget is broken or {}", overload(overflows)),
    };
    everywhere(&what, &budget_verdicts(good))
}

/// Returns the reason of a budget limit without an upper end: the budget passes at `proven`, and heavier levels prove nothing.
fn held_up_to(proven: f64, verdicts: &[(f64, Option<bool>)]) -> String {
    let heaviest = verdicts.iter().map(|verdict| verdict.0).fold(proven, f64::max);
    match heaviest > proven {
        true => format!(
            "the budget passes there, and heavier levels (up to {} requests/s) were too short for a verdict",
            number(heaviest)
        ),
        false => "the budget passes there, and no heavier level was measured".to_owned(),
    }
}

pub(super) fn budget(good: &[&LineLevel], words: &Words<'_>) -> CapacityLine {
    let verdicts = budget_verdicts(good);
    match bracket(&verdicts) {
        (None, None) => CapacityLine::CannotTell {
            why: if good.is_empty() {
                NO_OPEN_LOOP.into()
            } else {
                "no level had enough requests to pass or fail the budget".into()
            },
        },
        (Some(rate_per_s), None) => CapacityLine::Above {
            rate_per_s,
            load: words.at(rate_per_s),
            why: held_up_to(rate_per_s, &verdicts),
        },
        (None, Some(rate_per_s)) => CapacityLine::Below { rate_per_s, why: never_held(good) },
        (Some(pass), Some(fail)) => {
            let value = tightest_crossing(good).unwrap_or_else(|| (pass * fail).sqrt()).clamp(pass, fail);
            let n = good.iter().map(|o| o.upper.len() as u64).sum();
            let rate = Estimate { value, lower: pass, upper: fail, n, n_eff: good.len() as f64 };
            let how = format!(
                "every budget passes at {} requests/s{} at {} requests/s",
                number(pass),
                if good.iter().any(|o| o.rate() == fail && breaks(o)) {
                    " and at least one is broken".to_owned()
                } else {
                    format!(", and {}", overload(good.iter().filter(|o| o.rate() == fail)))
                },
                number(fail)
            );
            CapacityLine::Found { rate, load: words.at(value), how }
        }
    }
}

/// Returns the load at which the share over a ceiling reaches the allowed share, for the ceiling that reaches it first.
pub(super) fn tightest_crossing(good: &[&LineLevel]) -> Option<f64> {
    let budgets: Vec<_> =
        good.iter().filter_map(|o| Some((o.rate(), o.finding.summary.budget.as_ref()?))).collect();
    let ceilings: Vec<&BudgetRow> = budgets.first()?.1.rows.iter().collect();
    let crossings = ceilings.into_iter().filter_map(|ceiling| {
        let same = |row: &&BudgetRow| row.metric == ceiling.metric && row.percentile == ceiling.percentile;
        let rows: Vec<_> =
            budgets.iter().filter_map(|(rate, b)| Some((*rate, b.rows.iter().find(same)?))).collect();
        let x: Vec<f64> = rows.iter().map(|row| row.0).collect();
        // Half an exceedance replaces zero, so that the logarithm exists.
        let share = |e: &Estimate| e.value.max(0.5 / e.n.max(1) as f64).ln();
        let y: Vec<f64> = rows.iter().map(|row| share(&row.1.share_over)).collect();
        let weights: Vec<f64> = rows.iter().map(|row| row.1.share_over.n_eff.max(1e-9)).collect();
        let allowed = rows.first()?.1.allowed.max(1e-12).ln();
        crossing_rate(crossing(&x, &rising_fit(&y, &weights), allowed))
    });
    crossings.min_by(f64::total_cmp)
}

/// Returns the brackets that the planner narrows: (last stable, first unstable), (last pass, first fail).
pub(crate) fn brackets(good: &[&LineLevel]) -> [(Option<f64>, Option<f64>); 2] {
    [bracket(&kept_verdicts(good)), bracket(&budget_verdicts(good))]
}

/// Returns the open-loop levels that limits may use, lowest load first.
pub(crate) fn usable<'a>(levels: &[&'a LineLevel]) -> Vec<&'a LineLevel> {
    let mut good: Vec<&LineLevel> =
        levels.iter().copied().filter(|o| o.is_open() && o.rate() > 0.0 && o.counts()).collect();
    good.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_said_to_hold_only_where_it_was_proven() {
        let open = [(10.0, Some(true)), (30.0, None), (20.0, None)];
        assert_eq!(
            held_up_to(10.0, &open),
            "the budget passes there, and heavier levels (up to 30 requests/s) were too short for a verdict"
        );
        let lighter = [(5.0, None), (10.0, Some(true))];
        assert_eq!(held_up_to(10.0, &lighter), "the budget passes there, and no heavier level was measured");
    }
}
