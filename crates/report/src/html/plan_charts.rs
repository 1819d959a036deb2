//! The charts of a plan: latency against load with its headroom, and the Pareto fronts of the options.

use plimsoll_measure::findings::Estimate;
use plimsoll_plan::finding::{PlanFinding, PlanOption, PlanPoint};

use super::chart::{CeilingLine, Chart, ChartAxis, ChartMark, ChartSeries, Charts, Shade};
use crate::figure::centile;
use crate::plan::named;
use crate::{figure, words};

/// Limit of curves per chart; more are unreadable.
const CURVES: usize = 5;
const COLORS: [&str; CURVES] = ["--s2", "--s0", "--s3", "--s1", "--s4"];

/// Returns the charts of a plan, by the names that its sections use.
pub(crate) fn of(found: &PlanFinding) -> Charts {
    let mut charts = Charts::new();
    if found.curve.len() > 1 {
        charts.insert("curve".to_owned(), curve(found));
    }
    let cost = pareto(found, |o| Some((o.per_hour?, o.latency_s? * 1e3)), |o| o.on_cost_front);
    if let Some((all, front)) = cost {
        let currency = found.cost.as_ref().map_or("cost", |cost| cost.bill.currency.as_str());
        let label = found
            .slo
            .latency
            .first()
            .map_or("latency".to_owned(), |c| format!("{} p{}", c.metric.name(), centile(c.percentile)));
        let axes =
            (format!("{currency} an hour"), ChartAxis { label, unit: "ms".into(), ..ChartAxis::default() });
        charts.insert("pareto-cost".to_owned(), points(axes, all, front));
    }
    let tokens = pareto(found, |o| Some((o.tokens_per_user?, o.tokens_per_gpu?)), |o| o.on_token_front);
    if let Some((all, front)) = tokens {
        let y = ChartAxis { label: "output tokens/s per GPU".into(), ..ChartAxis::default() };
        charts.insert(
            "pareto-tokens".to_owned(),
            points(("output tokens/s per user".to_owned(), y), all, front),
        );
    }
    charts
}

fn curve(found: &PlanFinding) -> Chart {
    let first = found.curve.first().map_or(&[][..], |point| &point.figures);
    let ends = |i: usize, end: fn(&Estimate) -> f64| {
        let at = |point: &PlanPoint| {
            point
                .figures
                .get(i)
                .and_then(|f| f.value.estimate())
                .map(|e| end(e) * 1e3)
                .filter(|ms| ms.is_finite())
        };
        found.curve.iter().map(at).collect::<Vec<_>>()
    };
    let series = first.iter().enumerate().zip(COLORS).map(|((i, figure), color)| ChartSeries {
        x: found.curve.iter().map(|point| point.rate_per_s).collect(),
        y: ends(i, |e| e.value),
        low: Some(ends(i, |e| e.lower)),
        high: Some(ends(i, |e| e.upper)),
        ..ChartSeries::line(named(figure), color)
    });
    let mut marks = vec![ChartMark {
        x: found.load.peak_per_s,
        label: format!("planned {}", figure::per_second(found.load.peak_per_s)),
        color: "--s3",
    }];
    if found.rules.peak != 1.0 {
        marks.push(ChartMark {
            x: found.load.rate_per_s,
            label: format!("mean {}", figure::per_second(found.load.rate_per_s)),
            color: "--s4",
        });
    }
    let breaks =
        found.chosen.as_ref().and_then(|chosen| chosen.breaks_at.value()).filter(|at| at.is_finite());
    marks.extend(breaks.map(|x| ChartMark {
        x,
        label: format!("breaks {}", figure::per_second(x)),
        color: "--s2",
    }));
    let ceilings = first.iter().filter_map(|figure| {
        let limit_s = figure.limit_s?;
        Some(CeilingLine {
            y: 1e3 * limit_s, label: format!("{} ≤ {}", named(figure), words::time(limit_s))
        })
    });
    let ceilings = ceilings.collect();
    let mut shades = Vec::new();
    if let Some(breaks) = breaks {
        shades.push(Shade {
            from: Some(found.load.peak_per_s),
            to: Some(breaks),
            kind: "interval",
            color: "--s3",
            label: "headroom between the peak and the breaking point",
        });
        shades.push(Shade {
            from: Some(breaks),
            to: None,
            kind: "borrowed",
            color: "--s2",
            label: "past the breaking point",
        });
    }
    Chart {
        x: ChartAxis { label: "load (requests/s)".into(), ..ChartAxis::default() },
        y: ChartAxis { label: "latency".into(), unit: "ms".into(), log: true, range: None },
        series: series.collect(),
        marks,
        ceilings,
        shades,
        sync: None,
    }
}

type Points = Vec<(f64, f64)>;

/// Returns all options that meet the SLO and those on the front, by x.
fn pareto(
    found: &PlanFinding,
    at: impl Fn(&PlanOption) -> Option<(f64, f64)>,
    on_front: impl Fn(&PlanOption) -> bool,
) -> Option<(Points, Points)> {
    let held = || found.options.iter().filter(|option| option.refused.is_none());
    let finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
    let sorted = |mut points: Points| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let all = sorted(held().filter_map(&at).filter(finite).collect());
    let front = sorted(held().filter(|option| on_front(option)).filter_map(&at).filter(finite).collect());
    (all.len() > 1).then_some((all, front))
}

fn points((label, y): (String, ChartAxis), all: Points, front: Points) -> Chart {
    let series = |points: &Points| ChartSeries {
        x: points.iter().map(|point| point.0).collect(),
        y: points.iter().map(|point| Some(point.1)).collect(),
        ..ChartSeries::default()
    };
    Chart {
        x: ChartAxis { label, ..ChartAxis::default() },
        y,
        series: vec![
            ChartSeries { label: "options".into(), color: "--s4", points: true, line: false, ..series(&all) },
            ChartSeries { label: "front".into(), color: "--s0", points: true, line: true, ..series(&front) },
        ],
        marks: Vec::new(),
        ceilings: Vec::new(),
        shades: Vec::new(),
        sync: None,
    }
}
