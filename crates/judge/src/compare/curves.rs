//! Comparison of two sweeps: capacity limits, and levels at nearly equal loads.
//!
//! The intervals of both sweeps are combined by MOVER on logarithms (Zou and Donner 2008). The distance of the ratio's lower end
//! is the root of the sum of two squares: the candidate's lower distance and the base's upper one. A bootstrap over both sweeps
//! was rejected because it would need their rows and give no more. A limit that was not found still bounds the ratio on one side.

use super::finding::{ArmFigure, ChangeVerdict, ComparedFigure, Effect, Scale, WorseWay};
use super::spec::Margins;
use plimsoll_math::special::{normal_cdf, normal_inv};
use plimsoll_measure::findings::{
    CapacityLine, CapacityLines, Curve, CurvePoint, Estimate, Findings, Reading,
};
use plimsoll_measure::say::number;

/// Largest ratio of two loads that count as equal.
const NEAR: f64 = 1.05;

/// Compares the capacity limits of both sweeps, and levels at nearly equal loads.
pub fn rows(base: &Findings, candidate: &Findings, margins: &Margins) -> Vec<ComparedFigure> {
    let mut rows = Vec::new();
    for lines in &base.lines {
        let Some(other) = candidate.lines.iter().find(|other| other.traffic == lines.traffic) else {
            continue;
        };
        let mut own: Vec<ComparedFigure> = named(lines)
            .into_iter()
            .zip(named(other))
            .map(|((name, a), (_, b))| {
                line_row(&format!("{name} ({})", lines.traffic), (a, b), margins.lines)
            })
            .collect();
        let curve = |findings: &'_ Findings| {
            findings.curves.iter().find(|curve| curve.traffic == lines.traffic).map(onset_of)
        };
        own[ONSET].described = match (curve(base), curve(candidate)) {
            (Some(a), Some(b)) if a != b => Some(format!("it is where {a} there, and where {b} here")),
            _ => None,
        };
        if !same_budget(lines, other) {
            (own[BUDGET].primary, own[BUDGET].described) = (false, Some("the budgets differ".into()));
        }
        rows.append(&mut own);
    }
    for curve in &base.curves {
        let Some(other) = candidate.curves.iter().find(|other| other.traffic == curve.traffic) else {
            continue;
        };
        for point in &curve.points {
            let apart = |other: &&CurvePoint| (other.offered_per_s / point.offered_per_s).ln().abs();
            let nearest = other.points.iter().min_by(|x, y| apart(x).total_cmp(&apart(y)));
            if let Some(near) = nearest.filter(|near| apart(near) < NEAR.ln()) {
                rows.extend(point_rows(&curve.metric, point, near, margins));
            }
        }
    }
    rows
}

/// Index of the onset in [`named`].
const ONSET: usize = 0;
/// Index of the budget limit in [`named`].
const BUDGET: usize = 2;

/// Returns the definition of a curve's onset. A p50 begins to rise at another load than a p99 of one target.
fn onset_of(curve: &Curve) -> String {
    let (p, times) = (number(100.0 * curve.percentile), number(curve.knee_factor));
    format!("p{p} of {} reaches {times} × its zero-contention value", curve.metric)
}

/// Returns whether both limits have equal budgets, regardless of the budgets' names.
fn same_budget(a: &CapacityLines, b: &CapacityLines) -> bool {
    match (&a.budget_spec, &b.budget_spec) {
        (Some(a), Some(b)) => a.latency == b.latency && a.error_rate == b.error_rate,
        _ => true,
    }
}

fn named(lines: &CapacityLines) -> [(&'static str, Option<&CapacityLine>); 3] {
    [
        ("onset", Some(&lines.onset)),
        ("stability limit", Some(&lines.stability)),
        ("budget limit", lines.budget.as_ref()),
    ]
}

fn line_row(
    metric: &str,
    (a, b): (Option<&CapacityLine>, Option<&CapacityLine>),
    margin: f64,
) -> ComparedFigure {
    let figure = |line: Option<&CapacityLine>| {
        let e = line.and_then(CapacityLine::rate);
        ArmFigure { value: e.map(|e| e.value), n: e.map_or(0, |e| e.n), n_eff: e.map_or(0.0, |e| e.n_eff) }
    };
    let method = "the sweeps' own intervals, together (MOVER)";
    let mut row =
        ComparedFigure { primary: true, margin, worse: WorseWay::Lower, ..blank(metric, "rate", method) };
    (row.base, row.candidate) = (figure(a), figure(b));
    let (Some(a), Some(b)) = (a, b) else {
        // Without a budget on either side there is nothing to test.
        row.primary = a.is_some() || b.is_some();
        row.why = Some("missing on at least one side".into());
        return row;
    };
    match (range(a), range(b)) {
        (Some(x), Some(y)) => {
            let (effect, p) = ratio(x, y);
            row.effect = effect;
            row.p = p;
            if row.effect.is_none() {
                row.why = Some("neither sweep found it".into());
            }
        }
        _ => row.why = Some("inconclusive in at least one sweep".into()),
    }
    row
}

/// A limit with its ends; the value is `None` if only a side of the limit is known.
type Range = (Option<f64>, f64, f64);

fn range(line: &CapacityLine) -> Option<Range> {
    match line {
        CapacityLine::Found { rate, .. } => Some((Some(rate.value), rate.lower, rate.upper)),
        CapacityLine::Above { rate_per_s, .. } => Some((None, *rate_per_s, f64::INFINITY)),
        CapacityLine::Below { rate_per_s, .. } => Some((None, 0.0, *rate_per_s)),
        CapacityLine::CannotTell { .. } => None,
    }
}

/// Returns candidate over base with its interval, and the two-sided p-value of a ratio of 1.
fn ratio(a: Range, b: Range) -> (Option<Effect>, Option<f64>) {
    let (value, lower, upper) = match (a.0, b.0) {
        (None, None) => return (None, None),
        (Some(x), Some(y)) => {
            let ln = (y / x).ln();
            let down = f64::hypot((y / b.1).ln(), (a.2 / x).ln());
            let up = f64::hypot((b.2 / y).ln(), (x / a.1).ln());
            (ln, ln - down, ln + up)
        }
        // One limit is outside the measured levels. Its end bounds the ratio, and nothing else is known.
        _ => {
            let (lower, upper) = ((b.1 / a.2).ln(), (b.2 / a.1).ln());
            (if lower.is_finite() { lower } else { upper }, lower, upper)
        }
    };
    let effect = Effect { scale: Scale::Ratio, value: value.exp(), lower: lower.exp(), upper: upper.exp() };
    let half = if value > 0.0 { value - lower } else { upper - value };
    let p = match half {
        half if half > 0.0 && half.is_finite() => 2.0 * normal_cdf(-value.abs() / half * normal_inv(0.975)),
        // An end without width is either known to be on one side, or unknown.
        _ if lower > 0.0 || upper < 0.0 => 0.0,
        _ => 1.0,
    };
    ((!value.is_nan()).then_some(effect), Some(p))
}

/// Compares the percentiles of two levels at nearly equal loads, as a description.
fn point_rows(metric: &str, a: &CurvePoint, b: &CurvePoint, margins: &Margins) -> Vec<ComparedFigure> {
    let of = |point: &CurvePoint| [point.p50.clone(), point.p95.clone(), point.p99.clone()];
    let names = [("p50", margins.p50), ("p95", margins.p95), ("p99", margins.p99)];
    let figure = |e: &Estimate| ArmFigure { value: Some(e.value), n: e.n, n_eff: e.n_eff };
    let at = format!("{metric} at {} requests/s", number(a.offered_per_s));
    let mut rows = Vec::new();
    for ((x, y), (name, margin)) in of(a).iter().zip(of(b).iter()).zip(names) {
        let (Some(x), Some(y)) = (Reading::estimate(x), Reading::estimate(y)) else { continue };
        let (effect, p) = ratio((Some(x.value), x.lower, x.upper), (Some(y.value), y.lower, y.upper));
        let method = "the levels' own intervals, together (MOVER)";
        let row = ComparedFigure { margin, effect, p, ..blank(&at, name, method) };
        rows.push(ComparedFigure { base: figure(x), candidate: figure(y), ..row });
    }
    rows
}

fn blank(metric: &str, statistic: &str, method: &str) -> ComparedFigure {
    let nothing = ArmFigure { value: None, n: 0, n_eff: 0.0 };
    ComparedFigure {
        metric: metric.to_owned(),
        statistic: statistic.to_owned(),
        primary: false,
        base: nothing,
        candidate: nothing,
        effect: None,
        worse: WorseWay::Higher,
        margin: 0.0,
        p: None,
        p_family: None,
        differences: Vec::new(),
        method: method.to_owned(),
        verdict: ChangeVerdict::Inconclusive,
        why: None,
        needs_s: None,
        described: None,
        as_it_came: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_measure::findings::BudgetSpec;

    #[test]
    fn two_intervals_make_one() {
        // ln 1.2 with half-widths 0.03 and 0.04 on a side: 0.05 together.
        let around = |x: f64, half: f64| (Some(x), x * (-half).exp(), x * half.exp());
        let (effect, p) = ratio(around(10.0, 0.03), around(12.0, 0.04));
        let effect = effect.expect("both found");
        assert!((effect.value - 1.2).abs() < 1e-12);
        assert!((effect.lower - 1.2 * (-0.05f64).exp()).abs() < 1e-12, "{effect:?}");
        assert!((effect.upper - 1.2 * 0.05f64.exp()).abs() < 1e-12, "{effect:?}");
        assert!(p.expect("a p") < 1e-9);
        // At the end of the interval p is 5 %.
        let (_, p) = ratio(around(10.0, 0.03), around(10.0 * 0.05f64.exp(), 0.04));
        assert!((p.expect("a p") - 0.05).abs() < 1e-9);
    }

    fn lines(budget: Option<BudgetSpec>) -> CapacityLines {
        let at = |rate_per_s: f64| CapacityLine::Below { rate_per_s, why: String::new() };
        CapacityLines {
            traffic: "steady".into(),
            onset: at(100.0),
            onset_percentile: Some(0.99),
            stability: at(200.0),
            budget: budget.as_ref().map(|_| at(150.0)),
            budget_spec: budget,
            mix: plimsoll_measure::findings::Lengths::default(),
            think_time_s: 10.0,
            hold: None,
        }
    }

    #[test]
    fn budgets_are_one_by_what_they_hold_and_not_by_name() {
        let budget = |name: &str, error_rate| {
            Some(BudgetSpec { name: name.into(), error_rate: Some(error_rate), ..BudgetSpec::default() })
        };
        assert!(same_budget(&lines(budget("a", 0.01)), &lines(budget("b", 0.01))));
        assert!(!same_budget(&lines(budget("a", 0.01)), &lines(budget("a", 0.02))));
        assert!(
            same_budget(&lines(budget("a", 0.01)), &lines(None)),
            "one is missing, and that is said elsewhere"
        );
    }

    #[test]
    fn a_line_beyond_the_levels_bounds_the_ratio_on_one_side() {
        let found = (Some(10.0), 9.0, 11.0);
        let (above, p) = ratio(found, (None, 22.0, f64::INFINITY));
        let above = above.expect("bounded");
        assert_eq!((above.lower.round(), above.upper), (2.0, f64::INFINITY));
        assert_eq!(p, Some(0.0));
        assert_eq!(ratio((None, 5.0, f64::INFINITY), (None, 6.0, f64::INFINITY)), (None, None));
    }
}
