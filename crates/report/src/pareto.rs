//! Renders throughput against speed per user, as MLPerf Endpoints draws it: a table, and two charts with one axis.

use plimsoll_measure::findings::{ParetoCurve, ParetoPoint, Reading, Trust};
use plimsoll_model::Load;

use crate::document::{self, Document, Phrase};
use crate::html::chart::{Chart, ChartAxis, ChartSeries, Charts, place};
use crate::table::TextTable;
use crate::{figure, words};

const PER_USER: &str = "tokens/s per user (1 / TPOT p90)";

/// Adds the table. A terminal shows the loads of the frontier, or all with `all`; a page shows all.
pub(crate) fn fill(page: &mut Document, curve: &ParetoCurve, all: bool) {
    page.section(title(curve), |section| {
        section.table(table(curve, all));
        section.list(notes(curve));
        let hidden = curve.points.iter().filter(|point| !point.is_pareto).count();
        if !all && hidden > 0 {
            let hidden = figure::counted(hidden as u64, "load");
            section.terminal(|terminal| {
                terminal.says(format!("{hidden} off the frontier: plimsoll show RUN --details"));
            });
        }
    });
}

/// Adds the section of a page: the charts, then the table.
pub(crate) fn draw(page: &mut Document, i: usize, curve: &ParetoCurve, charts: &Charts) {
    page.section(title(curve), |section| {
        section.drawn(place(charts, &format!("pareto-{i}"), "Throughput against tokens/s per user"));
        section.drawn(place(charts, &format!("pareto-ttft-{i}"), "TTFT p90 against tokens/s per user"));
        section.table(table(curve, true));
        section.list(notes(curve));
    });
}

/// Adds the charts of all curves.
pub(crate) fn charts(curves: &[ParetoCurve], charts: &mut Charts) {
    for (i, curve) in curves.iter().enumerate() {
        charts.insert(format!("pareto-{i}"), chart(curve, throughput(curve), true, |p| figure_of(rate(p))));
        let axis = ChartAxis { label: "TTFT p90".into(), unit: "ms".into(), log: true, range: None };
        let ttft = |point: &ParetoPoint| figure_of(&point.ttft_p90).map(|seconds| 1e3 * seconds);
        charts.insert(format!("pareto-ttft-{i}"), chart(curve, axis, false, ttft));
    }
}

fn title(curve: &ParetoCurve) -> String {
    let gpus = curve.gpus.map_or(String::new(), |gpus| format!(", {}", figure::counted(gpus.into(), "GPU")));
    format!("Throughput against speed per user, {} traffic{gpus}", curve.traffic)
}

fn table(curve: &ParetoCurve, all: bool) -> TextTable {
    let columns = ["<load", &format!("<{} [95 %]", unit(curve)), "<tokens/s/user", "<TTFT p90, ms", "<"];
    let mut table = TextTable::new(&columns);
    for point in &curve.points {
        let number = |reading: &Reading| match words::cell(reading, figure::number) {
            (value, Some(interval)) => format!("{value} {interval}"),
            (value, None) => value,
        };
        // A short level needs no word, because its figures are marked.
        let trust = matches!(point.trust, Trust::Suspect | Trust::Invalid).then(|| words::trust(point.trust));
        let mark = (all && point.is_pareto).then_some("Pareto");
        let said: Vec<&str> = mark.into_iter().chain(trust).collect();
        let row: [Phrase; 5] = [
            short(point).into(),
            number(rate(point)).into(),
            number(&point.tokens_per_s_per_user).into(),
            document::latency(&point.ttft_p90),
            said.join(", ").into(),
        ];
        match all || point.is_pareto {
            true => table.row(row),
            false => table.page_row(row),
        }
    }
    table
}

fn notes(curve: &ParetoCurve) -> Vec<String> {
    let mut notes = vec![
        "Tokens/s per user is 1 / TPOT p90, and TTFT counts from sending, as in MLPerf Endpoints 1.0. A Pareto load has no other \
         with more of both."
            .to_owned(),
    ];
    if curve.gpus.is_none() {
        notes.push("The number of GPUs is unknown: --gpus N gives tokens/s per GPU.".to_owned());
    }
    notes
}

fn unit(curve: &ParetoCurve) -> &'static str {
    if curve.gpus.is_some() { "tokens/s/GPU" } else { "tokens/s" }
}

fn rate(point: &ParetoPoint) -> &Reading {
    point.tokens_per_s_per_gpu.as_ref().unwrap_or(&point.tokens_per_s)
}

/// Returns the finite figure of a reading, also of a refused one, because the table marks it.
fn figure_of(reading: &Reading) -> Option<f64> {
    reading.seen().map(|e| e.value).filter(|value| value.is_finite())
}

fn throughput(curve: &ParetoCurve) -> ChartAxis {
    let label = if curve.gpus.is_some() { "tokens/s per GPU" } else { "tokens/s, all GPUs" };
    ChartAxis { label: label.into(), ..ChartAxis::default() }
}

/// Returns a chart over the speed per user: the frontier, with steps as MLPerf draws it, and the other loads.
fn chart(
    curve: &ParetoCurve,
    y: ChartAxis,
    steps: bool,
    height: impl Fn(&ParetoPoint) -> Option<f64>,
) -> Chart {
    let mut places: Vec<(f64, f64, &ParetoPoint)> = Vec::new();
    for point in &curve.points {
        let Some((x, y)) = figure_of(&point.tokens_per_s_per_user).zip(height(point)) else { continue };
        places.push((x, y, point));
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    // A drawing has one point per x, and two loads of an engine may have the speed in common.
    for i in 1..places.len() {
        places[i].0 = places[i].0.max(places[i - 1].0 * (1.0 + 1e-9));
    }
    let most = places.last().map_or(1.0, |place| place.0);
    let series = |label: &str, color, is_pareto: bool| {
        let own: Vec<_> = places.iter().filter(|place| place.2.is_pareto == is_pareto).collect();
        (!own.is_empty()).then(|| ChartSeries {
            x: own.iter().map(|place| place.0).collect(),
            y: own.iter().map(|place| Some(place.1)).collect(),
            shape: (is_pareto && steps).then_some("frontier"),
            line: is_pareto,
            labels: own.iter().map(|place| short(place.2)).collect(),
            ..ChartSeries::line(label, color)
        })
    };
    let drawn = [series("Pareto loads", "--s0", true), series("other loads", "--s4", false)];
    Chart {
        x: ChartAxis { label: PER_USER.into(), range: Some([0.0, 1.12 * most]), ..ChartAxis::default() },
        y,
        series: drawn.into_iter().flatten().collect(),
        marks: Vec::new(),
        ceilings: Vec::new(),
        shades: Vec::new(),
        sync: Some(format!("pareto-{}", curve.traffic)),
    }
}

/// Returns the load of a point in the fewest characters.
fn short(point: &ParetoPoint) -> String {
    match point.load {
        Load::Closed { concurrency } | Load::Saturating { concurrency } => format!("{concurrency} in flight"),
        Load::Open { .. } | Load::Wave { .. } => words::load(&point.load),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_measure::findings::Estimate;

    use super::*;

    fn point(concurrency: u32, tokens: f64, user: f64, is_pareto: bool) -> ParetoPoint {
        let reading = |value: f64| {
            Reading::Estimate(Estimate { value, lower: value, upper: value, n: 90, n_eff: 90.0 })
        };
        ParetoPoint {
            level: concurrency,
            load: Load::Closed { concurrency },
            tokens_per_s: reading(tokens),
            tokens_per_s_per_gpu: None,
            tokens_per_s_per_user: reading(user),
            ttft_p90: reading(0.120),
            is_pareto,
            trust: Trust::Valid,
        }
    }

    #[test]
    fn loads_of_equal_speed_keep_their_points_and_their_names() {
        let points =
            vec![point(1, 50.0, 50.0, false), point(2, 100.0, 50.0, true), point(8, 240.0, 30.0, true)];
        let mut curve = ParetoCurve { traffic: "steady".into(), gpus: None, points };
        curve.set_gpus(Some(2));
        let mut drawn = Charts::new();
        charts(std::slice::from_ref(&curve), &mut drawn);
        let chart = &drawn["pareto-0"];
        let x: Vec<f64> = chart.series.iter().flat_map(|series| series.x.clone()).collect();
        assert!(x.iter().all(|a| x.iter().filter(|b| *b == a).count() == 1), "{x:?}");
        assert_eq!(chart.series[0].labels, ["8 in flight", "2 in flight"]);
        assert_eq!(chart.series[0].y, [Some(120.0), Some(50.0)]);
        assert_eq!(drawn["pareto-ttft-0"].series[0].y, [Some(120.0), Some(120.0)]);
        let mut page = Document::default();
        fill(&mut page, &curve, false);
        let text = page.text("");
        assert!(text.contains("tokens/s/GPU") && text.contains("1 load off the frontier"), "{text}");
        assert!(!text.contains("1 in flight") && text.contains("2 in flight"), "{text}");
    }
}
