//! Selects the charts of a run and their content.
//!
//! Axes are logarithmic if the quantity spans decades (latency) and linear if proportions matter
//! (load, throughput). Infinite values (failed requests in the tail) leave the plot: the line ends and the table shows ∞.

use plimsoll_measure::findings::{
    self, CapacityLine, CapacityLines, Curve, Findings, Histogram, LevelFinding, Reading,
};

use super::chart::{CeilingLine, Chart, ChartAxis, ChartMark, ChartSeries, Charts, Shade};
use crate::figure::centile;
use crate::text::detailed;
use crate::{figure, words};

/// Returns every chart of a run, by element id.
pub fn all(findings: &Findings) -> Charts {
    let mut charts = Charts::new();
    for (i, curve) in findings.curves.iter().enumerate() {
        if curve.points.len() < 2 {
            continue;
        }
        let lines = findings.lines.iter().find(|lines| lines.traffic == curve.traffic);
        charts.insert(format!("curve-{i}"), latency_curve(curve, lines));
        charts.insert(format!("throughput-{i}"), throughput(curve, lines));
    }
    for level in detailed(findings) {
        let id = level.summary.level;
        if level.summary.timeline.buckets.len() >= 3 {
            charts.insert(format!("latency-over-time-{id}"), latency_over_time(level));
            charts.insert(format!("flow-over-time-{id}"), flow_over_time(level));
        }
        if level.summary.histograms.iter().any(|h| h.counts.iter().sum::<u64>() > 0) {
            charts.insert(format!("distribution-{id}"), distribution(level));
        }
    }
    charts
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn finite_ms(seconds: f64) -> Option<f64> {
    finite(seconds * 1e3)
}

/// Returns the percentiles against offered load with intervals, the fit, the onset, and the region above the onset.
fn latency_curve(curve: &Curve, lines: Option<&CapacityLines>) -> Chart {
    type Pick = fn(&plimsoll_measure::findings::CurvePoint) -> &Reading;
    let picks: [(&str, &'static str, Pick); 3] =
        [("p50", "--s0", |p| &p.p50), ("p95", "--s1", |p| &p.p95), ("p99", "--s2", |p| &p.p99)];
    let mut series = Vec::new();
    for (label, color, pick) in picks {
        // A refused percentile has no place on the curve, not even as an unbounded band.
        let shown: Vec<_> = curve
            .points
            .iter()
            .filter_map(|point| Some((point.offered_per_s, pick(point).estimate()?)))
            .filter(|(_, estimate)| estimate.value.is_finite())
            .collect();
        if shown.is_empty() {
            continue;
        }
        series.push(ChartSeries {
            x: shown.iter().map(|(load, _)| *load).collect(),
            y: shown.iter().map(|(_, e)| finite_ms(e.value)).collect(),
            low: Some(shown.iter().map(|(_, e)| finite_ms(e.lower)).collect()),
            high: Some(shown.iter().map(|(_, e)| finite_ms(e.upper)).collect()),
            ..ChartSeries::line(label, color)
        });
    }
    if !curve.fit.is_empty() {
        series.push(ChartSeries {
            x: curve.fit.iter().map(|point| point.rate_per_s).collect(),
            y: curve.fit.iter().map(|point| finite_ms(point.fitted_s)).collect(),
            dash: true,
            points: false,
            ..ChartSeries::line(format!("fit of p{}", centile(curve.percentile)), "--s4")
        });
    }
    Chart {
        x: ChartAxis { label: "offered load (requests/s)".into(), ..ChartAxis::default() },
        y: ChartAxis { label: curve.metric.clone(), unit: "ms".into(), log: true, range: None },
        series,
        marks: lines.map(marks).unwrap_or_default(),
        ceilings: lines.and_then(|lines| lines.budget_spec.as_ref()).map_or_else(Vec::new, |budget| {
            let of = |ceiling: &&findings::Ceiling| ceiling.metric.name() == curve.metric;
            budget
                .latency
                .iter()
                .filter(of)
                .map(|c| ceiling(c.metric.name(), c.percentile, c.limit_s))
                .collect()
        }),
        shades: lines.map(shades).unwrap_or_default(),
        sync: None,
    }
}

/// Returns the line of a latency ceiling, for an axis in ms.
fn ceiling(metric: &str, p: f64, seconds: f64) -> CeilingLine {
    CeilingLine { y: 1e3 * seconds, label: format!("{metric} p{} ≤ {}", centile(p), words::time(seconds)) }
}

/// Returns the ceilings of a level on these metrics.
fn ceilings_of(level: &LevelFinding, drawn: &[&str]) -> Vec<CeilingLine> {
    let Some(budget) = &level.summary.budget else { return Vec::new() };
    let rows = budget.rows.iter().filter(|row| drawn.contains(&row.metric.as_str()));
    rows.map(|row| ceiling(&row.metric, row.percentile, row.ceiling)).collect()
}

/// Returns completed and good requests per second against offered load.
fn throughput(curve: &Curve, lines: Option<&CapacityLines>) -> Chart {
    let x: Vec<f64> = curve.points.iter().map(|point| point.offered_per_s).collect();
    let mut series = vec![ChartSeries {
        y: x.iter().copied().map(Some).collect(),
        x: x.clone(),
        dash: true,
        points: false,
        ..ChartSeries::line("offered", "--s4")
    }];
    series.push(ChartSeries {
        x: x.clone(),
        y: curve.points.iter().map(|point| point.achieved_per_s).collect(),
        ..ChartSeries::line("done", "--s0")
    });
    if curve.points.iter().any(|point| point.good_per_s.is_some()) {
        series.push(ChartSeries {
            x,
            y: curve.points.iter().map(|point| point.good_per_s).collect(),
            ..ChartSeries::line("good (budget met)", "--s3")
        });
    }
    Chart {
        x: ChartAxis { label: "offered load (requests/s)".into(), ..ChartAxis::default() },
        y: ChartAxis { label: "requests/s".into(), ..ChartAxis::default() },
        series,
        marks: lines.map(marks).unwrap_or_default(),
        ceilings: Vec::new(),
        shades: lines.map(shades).unwrap_or_default(),
        sync: None,
    }
}

fn marks(lines: &CapacityLines) -> Vec<ChartMark> {
    let mut marks = Vec::new();
    let onset = words::not_p99(lines).map_or_else(|| "onset".to_owned(), |p| format!("onset by {p}"));
    let named = [
        (onset.as_str(), Some(&lines.onset), "--s2"),
        ("stability", Some(&lines.stability), "--ink"),
        ("budget", lines.budget.as_ref(), "--s3"),
    ];
    for (name, line, color) in named {
        if let Some(rate) = line.and_then(CapacityLine::rate) {
            marks.push(ChartMark {
                x: rate.value,
                label: format!("{name} {}", figure::per_second(rate.value)),
                color,
            });
        }
    }
    marks
}

fn shades(lines: &CapacityLines) -> Vec<Shade> {
    let Some(onset) = lines.onset.rate() else { return Vec::new() };
    vec![
        Shade {
            from: Some(onset.value),
            to: None,
            kind: "borrowed",
            color: "--s2",
            label: "past the onset: the queue delays later requests",
        },
        Shade {
            from: Some(onset.lower),
            to: finite(onset.upper),
            kind: "interval",
            color: "--s2",
            label: "95 % interval of the onset",
        },
    ]
}

pub(super) fn time_axis() -> ChartAxis {
    ChartAxis { label: "seconds into the level".into(), ..ChartAxis::default() }
}

/// Returns latency over the time of a level, with the warm-up shaded.
fn latency_over_time(level: &LevelFinding) -> Chart {
    let buckets = &level.summary.timeline.buckets;
    let half = level.summary.timeline.bucket_s / 2.0;
    let x: Vec<f64> = buckets.iter().map(|bucket| bucket.at_s + half).collect();
    let name = &level.summary.latency.leading().metric;
    // With fewer than a hundred requests, the 99th percentile is the slowest one, and has this name.
    let least = buckets.iter().map(|bucket| bucket.arrivals).filter(|n| *n > 0).min().unwrap_or(0);
    let top = if least < 100 { "slowest" } else { "p99" };
    let mut series = vec![
        ChartSeries {
            x: x.clone(),
            y: buckets.iter().map(|b| b.ttft_p50_s.and_then(finite_ms)).collect(),
            ..ChartSeries::line(format!("{name} p50"), "--s0")
        },
        ChartSeries {
            x: x.clone(),
            y: buckets.iter().map(|b| b.ttft_p99_s.and_then(finite_ms)).collect(),
            ..ChartSeries::line(format!("{name} {top}"), "--s2")
        },
    ];
    if name != "e2e" {
        series.push(ChartSeries {
            x,
            y: buckets.iter().map(|b| b.e2e_p50_s.and_then(finite_ms)).collect(),
            ..ChartSeries::line("e2e p50", "--s4")
        });
    }
    Chart {
        x: time_axis(),
        y: ChartAxis { label: "latency".into(), unit: "ms".into(), log: true, range: None },
        series,
        marks: Vec::new(),
        ceilings: ceilings_of(level, &[name.as_str(), "e2e"]),
        shades: warm_up(level),
        sync: Some(format!("level-{}", level.summary.level)),
    }
}

/// Returns arrivals, completions, errors and requests in flight over the time of a level.
fn flow_over_time(level: &LevelFinding) -> Chart {
    let timeline = &level.summary.timeline;
    let buckets = &timeline.buckets;
    let x: Vec<f64> = buckets.iter().map(|bucket| bucket.at_s + timeline.bucket_s / 2.0).collect();
    let rate = |n: u64| Some(n as f64 / timeline.bucket_s);
    let mut series = vec![
        ChartSeries {
            x: x.clone(),
            y: buckets.iter().map(|b| rate(b.arrivals)).collect(),
            ..ChartSeries::line("due/s", "--s4")
        },
        ChartSeries {
            x: x.clone(),
            y: buckets.iter().map(|b| rate(b.completions)).collect(),
            ..ChartSeries::line("done/s", "--s0")
        },
        ChartSeries {
            x: x.clone(),
            y: buckets.iter().map(|b| Some(b.in_flight)).collect(),
            ..ChartSeries::line("in flight", "--s1")
        },
    ];
    if buckets.iter().any(|bucket| bucket.errors > 0) {
        series.push(ChartSeries {
            x,
            y: buckets.iter().map(|b| rate(b.errors)).collect(),
            ..ChartSeries::line("failed/s", "--s2")
        });
    }
    Chart {
        x: time_axis(),
        y: ChartAxis { label: "requests".into(), ..ChartAxis::default() },
        series,
        marks: Vec::new(),
        ceilings: Vec::new(),
        shades: warm_up(level),
        sync: Some(format!("level-{}", level.summary.level)),
    }
}

pub(super) fn warm_up(level: &LevelFinding) -> Vec<Shade> {
    let cut = level.summary.window.warm_up_s;
    if cut <= 0.0 {
        return Vec::new();
    }
    vec![Shade { from: None, to: Some(cut), kind: "interval", color: "--s4", label: "cut as warm-up" }]
}

/// Returns cumulative distributions, because a percentile can be read off no other drawing of a distribution.
fn distribution(level: &LevelFinding) -> Chart {
    let colors = ["--s0", "--s1", "--s3", "--s2"];
    let drawn = level.summary.histograms.iter().filter(|h| h.counts.iter().sum::<u64>() > 0);
    let series: Vec<ChartSeries> =
        drawn.zip(colors).map(|(histogram, color)| cumulative(histogram, color)).collect();
    let names: Vec<&str> = series.iter().map(|series| series.label.as_str()).collect();
    let marks = ceilings_of(level, &names).into_iter();
    let marks =
        marks.map(|ceiling| ChartMark { x: ceiling.y, label: ceiling.label, color: "--ink" }).collect();
    Chart {
        x: ChartAxis { label: "ms".into(), log: true, ..ChartAxis::default() },
        y: ChartAxis { label: "share at or below".into(), unit: "%".into(), log: false, range: None },
        series,
        marks,
        ceilings: Vec::new(),
        shades: Vec::new(),
        sync: None,
    }
}

fn cumulative(histogram: &Histogram, color: &'static str) -> ChartSeries {
    let total = (histogram.counts.iter().sum::<u64>() + histogram.infinite) as f64;
    let mut below = 0u64;
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for (i, &n) in histogram.counts.iter().enumerate() {
        // Only changes and the point before each, because constant sections need no points.
        let next = histogram.counts.get(i + 1).copied().unwrap_or(0);
        below += n;
        if n > 0 || next > 0 {
            x.push(histogram.first_s * histogram.ratio.powi(i as i32 + 1) * 1e3);
            y.push(Some(100.0 * below as f64 / total));
        }
    }
    ChartSeries { x, y, points: false, ..ChartSeries::line(histogram.metric.clone(), color) }
}
