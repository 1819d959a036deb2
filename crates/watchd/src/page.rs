//! The output of a watch over HTTP: the status page and the Prometheus metrics of the watch itself.

use plimsoll_client::metrics::pushed::PushCounts;
use plimsoll_watch::course::ChartData;
use plimsoll_watch::{AlertState, BudgetWatch, CostNow, RowState, WatchFinding};
use plimsoll_wire::prometheus::{Label, PrometheusPage};

use serde::Serialize;

use crate::outbox::SinkHealth;
use crate::serve::ServedContent;

/// The findings and the health of the alert receivers.
#[derive(Serialize)]
struct WatchSnapshot<'a> {
    #[serde(flatten)]
    found: &'a WatchFinding,
    sinks: &'a [SinkHealth],
}

/// Returns the bodies of all paths, and the event for subscribers.
pub fn bodies(
    found: &WatchFinding,
    sinks: &[SinkHealth],
    pushed: &[(String, PushCounts)],
) -> (Vec<ServedContent>, String) {
    let rows = serde_json::to_string(&WatchSnapshot { found, sinks }).unwrap_or_default();
    let alerts = serde_json::to_string(&found.alerts).unwrap_or_default();
    let mut bodies = first(rows.clone(), alerts);
    let text = metrics(found, sinks, pushed);
    bodies.push(ServedContent::new("/metrics", plimsoll_wire::prometheus::CONTENT_TYPE, text));
    (bodies, rows)
}

/// Returns the chart data of the last hours, with the ceilings for the charts.
pub fn course(course: &ChartData, watched: &BudgetWatch) -> ServedContent {
    let of = if watched.is_of_requests() { "requests" } else { "pages" };
    let said = serde_json::json!({"of": of, "minutes": course.points(), "ceilings": watched.ceilings()});
    ServedContent::new("/v1/course", "application/json", said.to_string())
}

/// Returns the bodies before the first finding.
pub fn nothing() -> Vec<ServedContent> {
    first(String::new(), "[]".to_owned())
}

fn first(rows: String, alerts: String) -> Vec<ServedContent> {
    let page =
        ServedContent { make: html, ..ServedContent::new("/", "text/html; charset=utf-8", rows.clone()) };
    let json = "application/json";
    vec![page, ServedContent::new("/v1/rows", json, rows), ServedContent::new("/v1/alerts", json, alerts)]
}

/// Returns the status page. It shows these rows (JSON, or empty before the first tick) immediately, then
/// subscribes to `/v1/events` and draws every update.
fn html(rows: &str) -> String {
    // `<` is escaped, because text inside a script must not end the script.
    let first = if rows.is_empty() { "null".to_owned() } else { rows.replace('<', "\\u003c") };
    include_str!("page.html").replacen("/*first*/null", &first, 1)
}

/// Returns the verdicts in Prometheus format. An unknown state is a separate sample, never a missing one.
pub fn metrics(found: &WatchFinding, sinks: &[SinkHealth], pushed: &[(String, PushCounts)]) -> String {
    let mut page = PrometheusPage::new();
    let states: Vec<([Label<'_>; 2], f64)> = found
        .rows
        .iter()
        .flat_map(|row| {
            let is = |state: RowState| f64::from(u8::from(row.state == state));
            RowState::ALL.map(|state| ([("id", row.id.as_str()), ("state", state.name())], is(state)))
        })
        .collect();
    gauge(&mut page, "plimsoll_watch_row_state", "1 for the state that a row of the budget is in", &states);
    let shares: Vec<([Label<'_>; 2], f64)> = found
        .rows
        .iter()
        .filter_map(|row| Some((row.id.as_str(), row.over?)))
        .flat_map(|(id, over)| {
            [([("id", id), ("bound", "least")], over[0]), ([("id", id), ("bound", "most")], over[1])]
        })
        .collect();
    gauge(
        &mut page,
        "plimsoll_watch_over_share",
        "Share of requests over the ceiling, at least and at most",
        &shares,
    );
    let allowed: Vec<([Label<'_>; 1], f64)> =
        found.rows.iter().filter_map(|row| Some(([("id", row.id.as_str())], row.allowed?))).collect();
    gauge(
        &mut page,
        "plimsoll_watch_allowed_share",
        "Share of requests that may be over the ceiling",
        &allowed,
    );
    let requests: Vec<([Label<'_>; 1], f64)> =
        found.rows.iter().map(|row| ([("id", row.id.as_str())], row.n as f64)).collect();
    gauge(&mut page, "plimsoll_watch_requests", "Requests in each row", &requests);
    // The labels are kind and subject alone, because an alert id would create a new series per alert.
    let alerts: Vec<([Label<'_>; 2], f64)> = found
        .alerts
        .iter()
        .filter(|alert| alert.state == AlertState::Firing)
        .map(|alert| ([("kind", alert.kind.name()), ("about", alert.about.as_str())], 1.0))
        .collect();
    gauge(&mut page, "plimsoll_watch_alert_firing", "1 for each alert that fires", &alerts);
    receivers(&mut page, sinks);
    came(&mut page, pushed);
    fleet(&mut page, found);
    found.cost.iter().for_each(|cost| costs(&mut page, cost));
    page.finish()
}

fn receivers(page: &mut PrometheusPage, sinks: &[SinkHealth]) {
    type Of<'a> = ([Label<'a>; 1], f64);
    let failing: Vec<Of<'_>> = sinks
        .iter()
        .map(|sink| ([("sink", sink.name.as_str())], f64::from(u8::from(sink.failing))))
        .collect();
    let help = "1 for each receiver of alerts that did not take the last";
    gauge(page, "plimsoll_watch_sink_failing", help, &failing);
    let waiting: Vec<Of<'_>> =
        sinks.iter().map(|sink| ([("sink", sink.name.as_str())], sink.waiting as f64)).collect();
    let help = "Alerts that a receiver has not taken yet";
    gauge(page, "plimsoll_watch_sink_waiting", help, &waiting);
}

/// Writes the counts of pushed samples by result.
fn came(page: &mut PrometheusPage, pushed: &[(String, PushCounts)]) {
    let samples = pushed.iter().flat_map(|(name, counts)| {
        [
            ("taken", counts.taken),
            ("out_of_order", counts.out_of_order),
            ("unknown_name", counts.unknown),
            ("over_bound", counts.over_bound),
        ]
        .map(|(outcome, count)| ([("source", name.as_str()), ("outcome", outcome)], count as f64))
    });
    if !pushed.is_empty() {
        page.counter("plimsoll_watch_pushed_samples_total", "Pushed samples, by outcome", samples);
    }
}

fn fleet(page: &mut PrometheusPage, found: &WatchFinding) {
    let fleet = &found.fleet;
    let [answer, pages] = fleet.pages;
    gauge(page, "plimsoll_watch_pages", "Metrics endpoints that are watched", &[([], pages as f64)]);
    gauge(page, "plimsoll_watch_pages_answering", "Of these, how many answer", &[([], answer as f64)]);
    for (name, help, value) in [
        ("plimsoll_watch_running", "Requests that are computed", fleet.running),
        ("plimsoll_watch_waiting", "Requests that wait", fleet.waiting),
        (
            "plimsoll_watch_requests_per_second",
            "Requests answered per second over the window",
            fleet.requests_per_s,
        ),
        (
            "plimsoll_watch_output_tokens_per_second",
            "Tokens generated per second over the window",
            fleet.output_tokens_per_s,
        ),
        (
            "plimsoll_watch_waiting_per_replica",
            "Waiting requests per replica, for autoscalers",
            per_replica(found),
        ),
    ] {
        value.iter().for_each(|value| gauge(page, name, help, &[([], *value)]));
    }
}

/// Writes the known costs; unknown values are omitted.
fn costs(page: &mut PrometheusPage, cost: &CostNow) {
    let currency = [("currency", cost.currency.as_str())];
    for (name, help, value) in [
        ("plimsoll_watch_cost_per_hour", "What the fleet costs by the hour", cost.per_hour),
        (
            "plimsoll_watch_cost_per_request",
            "What a request cost that was answered in the window",
            cost.per_request,
        ),
        (
            "plimsoll_watch_cost_per_million_output_tokens",
            "What a million tokens cost that were generated in the window",
            cost.per_million_output,
        ),
    ] {
        value.iter().for_each(|value| gauge(page, name, help, &[(currency, *value)]));
    }
}

fn per_replica(found: &WatchFinding) -> Option<f64> {
    let replicas = found.fleet.replicas.iter().filter(|replica| replica.answers).count();
    (replicas > 0).then(|| found.fleet.waiting.map(|waiting| waiting / replicas as f64)).flatten()
}

fn gauge<const N: usize>(
    page: &mut PrometheusPage,
    name: &str,
    help: &str,
    samples: &[([Label<'_>; N], f64)],
) {
    page.gauge(name, help, samples.iter().map(|(labels, value)| (labels, *value)));
}
