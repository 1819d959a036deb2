//! A Grafana dashboard in the classic format (schema version 41), on the recorded series of the rules.
//!
//! It has a verdict per row, the share over the ceiling as a band between certain and possible, the histograms, and
//! the fleet. A bracket is never drawn as a line, so there is no `histogram_quantile`.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::Signal;
use plimsoll_measure::server_side::table::SignalPart;
use serde_json::{Value, json};

use super::row::ExportRow;
use super::rules::{gauge, recorded};
use super::source::ExportSource;
use super::{ExportSpec, slug};

/// Columns of Grafana's grid.
const WIDTH: u64 = 24;

pub(crate) fn dashboard(
    file: &BudgetFile,
    source: &ExportSource,
    rows: &[ExportRow],
    spec: &ExportSpec,
) -> String {
    let budget = spec.name(file);
    let mut grid = Grid::default();
    grid.add((WIDTH, 3), |at, id| not_judged(at, id, source, rows));
    for row in rows.iter().filter(|row| row.counted.is_some()) {
        grid.add((6, 8), |at, id| verdict(at, id, row, &budget));
        grid.add((18, 8), |at, id| share(at, id, row, &budget));
    }
    let mut drawn: Vec<Signal> = Vec::new();
    for latency in rows.iter().filter_map(|row| row.counted.as_ref()?.latency.as_ref()) {
        if !drawn.contains(&latency.signal) {
            drawn.push(latency.signal);
            grid.add((12, 8), |at, id| heatmap(at, id, source, latency.signal));
        }
    }
    for (title, unit, queries) in fleet(source) {
        grid.add((12, 8), |at, id| lines(at, id, &title, unit, &queries));
    }
    grid.add((WIDTH, 8), alerts);
    let board = json!({
        "title": format!("Plimsoll: {budget}"),
        "uid": format!("plimsoll-{}", slug(&budget)).chars().take(40).collect::<String>(),
        "tags": ["plimsoll"],
        "schemaVersion": 41,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {"list": [{
            "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "hide": 0,
            "refresh": 1, "regex": "", "multi": false, "includeAll": false, "skipUrlSync": false,
        }]},
        "panels": grid.panels,
    });
    serde_json::to_string_pretty(&board).unwrap_or_default() + "\n"
}

/// The grid layout: panels from left to right, then the next line.
#[derive(Default)]
struct Grid {
    panels: Vec<Value>,
    x: u64,
    y: u64,
    line: u64,
}

impl Grid {
    fn add(&mut self, (width, height): (u64, u64), panel: impl FnOnce(Value, usize) -> Value) {
        if self.x + width > WIDTH {
            (self.x, self.y, self.line) = (0, self.y + self.line, 0);
        }
        let at = json!({"x": self.x, "y": self.y, "w": width, "h": height});
        self.panels.push(panel(at, self.panels.len() + 1));
        self.x += width;
        self.line = self.line.max(height);
    }
}

fn source_of_data() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn target(number: usize, expr: &str, legend: &str) -> Value {
    let letter = char::from(b'A' + u8::try_from(number % 26).unwrap_or_default());
    json!({"refId": letter.to_string(), "expr": expr, "legendFormat": legend, "datasource": source_of_data()})
}

fn not_judged(at: Value, id: usize, source: &ExportSource, rows: &[ExportRow]) -> Value {
    let judged = rows.iter().filter(|row| row.counted.is_some()).count();
    let mut text =
        format!("{judged} of {} rows are evaluated from the metrics of {}.", rows.len(), source.name);
    for row in rows.iter().filter(|row| row.counted.is_none()) {
        text += &format!("\n\n**{}** ({}) is not: {}.", row.lint.id, row.lint.budget, row.lint.says);
    }
    json!({
        "id": id, "type": "text", "title": "", "gridPos": at, "transparent": true,
        "options": {"mode": "markdown", "content": text},
    })
}

fn verdict(at: Value, id: usize, row: &ExportRow, budget: &str) -> Value {
    let states = [
        (0, "pass", "green"),
        (1, "inconclusive", "yellow"),
        (2, "broken", "red"),
        (3, "no traffic", "blue"),
    ];
    let options: serde_json::Map<String, Value> = states
        .iter()
        .map(|(value, words, colour)| {
            (value.to_string(), json!({"text": words, "color": colour, "index": value}))
        })
        .collect();
    let unknown = json!({"type": "special", "options": {"match": "null+nan", "result": {"text": "unknown", "color": "purple", "index": 4}}});
    json!({
        "id": id, "type": "stat", "title": format!("{}: {}", row.lint.id, row.lint.budget),
        "description": format!("Evaluated {}.", row.lint.says),
        "gridPos": at, "datasource": source_of_data(),
        "targets": [target(0, &recorded("verdict", &row.lint.id, budget), "")],
        "fieldConfig": {
            "defaults": {
                "mappings": [{"type": "value", "options": options}, unknown], "noValue": "unknown",
                "color": {"mode": "thresholds"},
                "thresholds": {"mode": "absolute", "steps": [{"color": "purple", "value": null}]},
            },
            "overrides": [],
        },
        "options": {"colorMode": "background", "graphMode": "none", "reduceOptions": {"calcs": ["last"], "values": false}},
    })
}

/// Returns the panel of a row's share: the certain share, and the possible one stacked on it. The allowed share is a
/// threshold.
fn share(at: Value, id: usize, row: &ExportRow, budget: &str) -> Value {
    let of = |what: &str| recorded(what, &row.lint.id, budget);
    let (n, least) = (of("requests:increase5m"), of("over_least:increase5m"));
    let mut targets = vec![target(0, &format!("{least} / ({n} > 0)"), "over for certain")];
    if !row.counted.as_ref().is_some_and(super::row::CountExpression::is_exact) {
        let maybe = format!("({} - {least}) / ({n} > 0)", of("over_most:increase5m"));
        targets.push(target(1, &maybe, "perhaps over"));
    }
    let steps = json!([{"color": "transparent", "value": null}, {"color": "red", "value": row.allowed}]);
    json!({
        "id": id, "type": "timeseries",
        "title": format!("{}: share of requests over it, 5 min; the line is the allowed share", row.lint.id),
        "description": format!("Evaluated {}.", row.lint.says),
        "gridPos": at, "datasource": source_of_data(), "targets": targets,
        "fieldConfig": {
            "defaults": {
                "unit": "percentunit", "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {
                    "spanNulls": false, "lineWidth": 0, "fillOpacity": 60, "drawStyle": "line",
                    "stacking": {"mode": "normal", "group": "A"}, "thresholdsStyle": {"mode": "line"},
                },
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": {"mode": "multi"}},
    })
}

fn heatmap(at: Value, id: usize, source: &ExportSource, signal: Signal) -> Value {
    let metrics = source.metrics(signal, &SignalPart::Bucket);
    let each = metrics
        .iter()
        .map(|metric| format!("sum by (le) (increase({}[$__rate_interval]))", metric.with(&[])));
    let targets: Vec<Value> = each
        .enumerate()
        .map(|(number, expr)| {
            let mut target = target(number, &expr, "{{le}}");
            target["format"] = json!("heatmap");
            target
        })
        .collect();
    json!({
        "id": id, "type": "heatmap", "title": format!("{}: the server's buckets", signal.name()),
        "gridPos": at, "datasource": source_of_data(), "targets": targets,
        "options": {"calculate": false, "yAxis": {"unit": "s"}, "color": {"mode": "scheme", "scheme": "Oranges"}, "cellGap": 1},
    })
}

type Query = (String, &'static str);
type Plot = (String, &'static str, Vec<Query>);

/// Returns the fleet panels for the signals that the source has.
fn fleet(source: &ExportSource) -> Vec<Plot> {
    let rate = |signal| {
        let metric = source.metrics(signal, &SignalPart::Counter).into_iter().next()?;
        Some(format!("sum(rate({}[$__rate_interval]))", metric.with(&[])))
    };
    let named = |query: Option<String>, name: &'static str| query.map(|query| (query, name));
    let max = |signal| {
        let metric = source.metrics(signal, &SignalPart::Gauge).into_iter().next()?;
        Some(format!("max({})", metric.with(&[])))
    };
    let plots: [(&str, &'static str, Vec<Option<Query>>); 4] = [
        (
            "Requests",
            "short",
            vec![
                named(gauge(source, Signal::Waiting), "waiting"),
                named(gauge(source, Signal::Running), "running"),
            ],
        ),
        (
            "Answered, per second",
            "reqps",
            vec![
                named(rate(Signal::Finished), "answered"),
                named(rate(Signal::Failed), "failed"),
                named(rate(Signal::Refused), "refused"),
            ],
        ),
        (
            "Tokens, per second",
            "short",
            vec![named(rate(Signal::OutputTokens), "generated"), named(rate(Signal::PromptTokens), "prompt")],
        ),
        ("KV cache, the fullest", "percentunit", vec![named(max(Signal::KvUsage), "in use")]),
    ];
    let known = plots.into_iter().map(|(title, unit, queries)| {
        (title.to_owned(), unit, queries.into_iter().flatten().collect::<Vec<_>>())
    });
    known.filter(|(_, _, queries)| !queries.is_empty()).collect()
}

fn lines(at: Value, id: usize, title: &str, unit: &str, queries: &[Query]) -> Value {
    let each = queries.iter().enumerate();
    let targets: Vec<Value> = each.map(|(number, (expr, legend))| target(number, expr, legend)).collect();
    json!({
        "id": id, "type": "timeseries", "title": title, "gridPos": at, "datasource": source_of_data(), "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"spanNulls": false}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": {"mode": "multi"}},
    })
}

fn alerts(at: Value, id: usize) -> Value {
    let mut table = target(
        0,
        "ALERTS{alertname=~\"Plimsoll.+\",alertname!=\"PlimsollWatchdog\",alertstate=\"firing\"}",
        "",
    );
    table["format"] = json!("table");
    table["instant"] = json!(true);
    json!({
        "id": id, "type": "table", "title": "Alerts that fire", "gridPos": at, "datasource": source_of_data(), "targets": [table],
        "fieldConfig": {"defaults": {"noValue": "none"}, "overrides": []},
        "options": {"showHeader": true},
    })
}
