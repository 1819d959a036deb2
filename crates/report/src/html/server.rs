//! The server's side on a run's page: its report in sentences, and its gauges over the time of each level.
//!
//! Requests and the KV cache have separate charts. On the axis of a count, a share is unreadable, and two axes on one chart suggest that
//! their crossing has a meaning. A value that the server does not report has no line, and is named below.

use maud::html;
use plimsoll_measure::findings::Findings;
use plimsoll_measure::server_side::{LevelReport, ServerMoment};

use super::chart::{Chart, ChartAxis, ChartSeries, Charts, place};
use super::charts::{time_axis, warm_up};
use crate::document::Document;
use crate::server::{heading, lines};
use crate::text::detailed;

/// Adds the charts of every level that is shown in detail.
pub fn charts(findings: &Findings, charts: &mut Charts) {
    let Some(told) = &findings.server else { return };
    for level in detailed(findings) {
        let id = level.summary.level;
        let Some(own) = told.levels.iter().find(|own| own.level == id && own.course.len() >= 3) else {
            continue;
        };
        let sync = Some(format!("level-{id}"));
        let chart = |y: ChartAxis, series: Vec<ChartSeries>| Chart {
            x: time_axis(),
            y,
            series,
            marks: Vec::new(),
            ceilings: Vec::new(),
            shades: warm_up(level),
            sync: sync.clone(),
        };
        let requests: Vec<ChartSeries> = [
            ("running", "--s0", (|moment| moment.running) as fn(&ServerMoment) -> Option<f64>),
            ("waiting", "--s2", |moment| moment.waiting),
        ]
        .into_iter()
        .filter_map(|(name, color, of)| over_time(own, name, color, of, 1.0))
        .collect();
        if !requests.is_empty() {
            let y = ChartAxis { label: "requests in the server".into(), ..ChartAxis::default() };
            charts.insert(format!("server-{id}"), chart(y, requests));
        }
        if let Some(kv) = over_time(own, "KV cache in use", "--s4", |moment| moment.kv_usage, 100.0) {
            let y = ChartAxis { label: "KV cache in use".into(), unit: "%".into(), log: false, range: None };
            charts.insert(format!("server-kv-{id}"), chart(y, vec![kv]));
        }
        if let Some(power) = over_time(own, "power of the GPUs", "--s1", |moment| moment.power_w, 1.0) {
            let y = ChartAxis { label: "power".into(), unit: "W".into(), log: false, range: None };
            charts.insert(format!("gpu-power-{id}"), chart(y, vec![power]));
        }
        let active: Vec<ChartSeries> = [
            ("SM active", "--s0", (|moment| moment.sm_active) as fn(&ServerMoment) -> Option<f64>),
            ("memory active", "--s2", |moment| moment.dram_active),
        ]
        .into_iter()
        .filter_map(|(name, color, of)| over_time(own, name, color, of, 100.0))
        .collect();
        if !active.is_empty() {
            let y = ChartAxis { label: "GPU active".into(), unit: "%".into(), log: false, range: None };
            charts.insert(format!("gpu-active-{id}"), chart(y, active));
        }
        let gib = 1.0 / 1_073_741_824.0;
        if let Some(memory) = over_time(own, "GPU memory in use", "--s4", |moment| moment.gpu_memory, gib) {
            let y =
                ChartAxis { label: "GPU memory in use".into(), unit: "GiB".into(), log: false, range: None };
            charts.insert(format!("gpu-memory-{id}"), chart(y, vec![memory]));
        }
    }
}

/// Returns a gauge over the level; `None` if it was never known.
fn over_time(
    level: &LevelReport,
    name: &str,
    color: &'static str,
    of: fn(&ServerMoment) -> Option<f64>,
    times: f64,
) -> Option<ChartSeries> {
    let y: Vec<Option<f64>> =
        level.course.iter().map(|moment| of(moment).map(|value| times * value)).collect();
    y.iter().any(Option::is_some).then(|| ChartSeries {
        x: level.course.iter().map(|moment| moment.at_s).collect(),
        y,
        ..ChartSeries::line(name, color)
    })
}

pub fn section(page: &mut Document, findings: &Findings, charts: &Charts) {
    let Some(told) = &findings.server else { return };
    let shown: Vec<u32> = detailed(findings).iter().map(|level| level.summary.level).collect();
    page.section(heading(told), |section| {
        lines(told, &shown).into_iter().for_each(|line| section.says(line));
        for id in &shown {
            let which = if shown.len() > 1 { format!(", level {id}") } else { String::new() };
            let requests = format!("Requests in the server{which} (means of what was read)");
            let kv = format!("KV cache in use{which}");
            let unknown = told.levels.iter().find(|own| own.level == *id).map(unknown).unwrap_or_default();
            section.drawn(html! {
                (place(charts, &format!("server-{id}"), &requests))
                (place(charts, &format!("server-kv-{id}"), &kv))
                @for (chart, title) in [("power", "Power of the GPUs"), ("active", "GPU activity"), ("memory", "GPU memory in use")] {
                    (place(charts, &format!("gpu-{chart}-{id}"), &format!("{title}{which}")))
                }
                @if !unknown.is_empty() {
                    p.small.soft { "Not reported by this server" (which) ", so unknown (never zero): " (unknown.join(", ")) "." }
                }
            });
        }
    });
}

/// Returns the names of charted values that the server does not report.
fn unknown(level: &LevelReport) -> Vec<&'static str> {
    [
        (level.running.is_none(), "requests running"),
        (level.waiting.is_none(), "requests waiting"),
        (level.running_limit.is_none(), "the most that may run"),
        (level.kv_usage.is_none(), "the KV cache in use"),
        (level.prefix_hits.is_none(), "prefix hits"),
        (level.preempted.is_none(), "preemptions"),
    ]
    .into_iter()
    .filter_map(|(missing, name)| missing.then_some(name))
    .collect()
}
