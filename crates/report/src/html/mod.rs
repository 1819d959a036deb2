//! The report: one HTML file that opens offline and says everything to someone who was not there.
//!
//! Styles, scripts and data are inside the file; a content-security policy forbids the network. Every figure stands in
//! a table; the charts (uPlot, vendored, MIT) only show it again. Text is escaped by maud.

pub mod chart;
mod charts;
pub mod compare;
pub mod device;
pub mod diagnose;
mod mark;
mod page;
pub mod plan;
pub mod profile;
pub mod selftest;
mod server;
pub mod wait;

use maud::{Markup, PreEscaped, html};
use plimsoll_diagnose::Diagnosis;
use plimsoll_diagnose::active::tell::Tried;
use plimsoll_measure::findings::{
    CapacityLines, Curve, Findings, LevelFinding, LevelSummary, Reading, Validity,
};
use plimsoll_model::{Manifest, RunState};
use plimsoll_plan::finding::PlanFinding;

use self::page::page;
use crate::figure::centile;
use crate::headline::headline;
use crate::text::{budget_cells, detailed};
use crate::{cost, endpoints, figure, words};

/// What stands on a run's page beside what the run itself says.
#[derive(Copy, Clone, Default)]
pub struct Beside<'a> {
    /// Where the run was a diagnosis: what was found, and what was tried.
    pub diagnosed: Option<(&'a Diagnosis, &'a [Tried])>,
    /// A plan that was made of the run.
    pub planned: Option<&'a PlanFinding>,
}

/// The whole page.
pub fn render(manifest: &Manifest, findings: &Findings, beside: Beside<'_>) -> String {
    let Beside { diagnosed, planned } = beside;
    let mut charts = charts::all(findings);
    server::charts(findings, &mut charts);
    charts.extend(planned.map(plan::charts).unwrap_or_default());
    let shown = detailed(findings);
    let endpoints = endpoints::of(manifest);
    let content = html! {
        (head(manifest, findings))
        @if let Some((diagnosis, tried)) = diagnosed { (diagnose::section(diagnosis, tried)) }
        @for lines in &findings.lines { (lines_section(lines)) }
        @for (i, curve) in findings.curves.iter().enumerate() {
            (curve_section(i, curve, charts.contains_key(&format!("curve-{i}"))))
        }
        @if let Some(planned) = planned { (plan::section(planned, &charts)) }
        @for level in &shown { (level_section(level, &endpoints, &charts)) }
        @if findings.levels.len() > shown.len() { (levels_table(findings)) }
        (server::section(findings, &charts))
        (network_section(findings))
        (cost_section(findings))
        (validity_section(&findings.validity))
        (generator_section(findings))
        (run_section(manifest))
    };
    let css = if planned.is_some() { plan::CSS } else { "" };
    page(&format!("Plimsoll: {}", manifest.target.url), css, Some(&charts), &content)
}

fn head(manifest: &Manifest, findings: &Findings) -> Markup {
    let trust = words::trust(findings.validity.verdict);
    let model = manifest.target.facts.get("model").and_then(Option::as_deref);
    html! {
        header {
            h1 { "Load line of " (endpoints::title(manifest)) }
            p.soft {
                @if let Some(model) = model { "model " (model) " · " }
                (manifest.kind) @if manifest.time == plimsoll_model::run::Time::Virtual { " in virtual time" } " · " (figure::date(manifest.clock.realtime_ns)) " · " (manifest.tool) " "
                span.badge.(trust) { "measurement " (trust) }
            }
            @if let Some(protocol) = words::protocol(manifest) { p.soft { (protocol) } }
            @if let Some(shards) = words::shards(manifest) { p.soft { (shards) } }
            @if let RunState::Partial { why } = &manifest.progress {
                p.suspect { strong { "This run is partial: " } (why) }
            }
            div.verdict { @for sentence in headline(findings) { p { (sentence) } } }
        }
    }
}

fn network_section(findings: &Findings) -> Markup {
    let Some(found) = &findings.network else { return html! {} };
    let said = crate::network::lines(found);
    html! { section { @for (place, (_, line)) in said.iter().enumerate() {
        @if place == 0 { h2 { (line) } } @else { p { (line) } }
    } } }
}

/// Whole sessions: how they ended, and what each comes to in tokens.
fn sessions_part(summary: &LevelSummary) -> Markup {
    let Some(sessions) = &summary.sessions else { return html! {} };
    html! {
        h3 { "Sessions" }
        p { (words::sessions(sessions)) "." }
        @if let Some(tokens) = &sessions.tokens {
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                thead { tr { th.left scope="col" { "of a session" } th scope="col" { "mean" } th scope="col" { "share" } } }
                tbody { @for row in words::session_rows(tokens, &summary.rates) { tr { @for cell in row { td { (cell) } } } } }
            } }
        }
    }
}

/// Each endpoint's own figures, where there are several.
fn endpoints_part(summary: &LevelSummary, endpoints: &[String]) -> Markup {
    if summary.targets.is_empty() {
        return html! {};
    }
    let exists = |place: usize| summary.targets.iter().any(|one| endpoints::latencies(one)[place].is_some());
    let shown: Vec<usize> = (0..3).filter(|place| exists(*place)).collect();
    html! {
        h3 { "By endpoint" }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr {
                th.left scope="col" { "endpoint" } th scope="col" { "requests" } th scope="col" { "failed" } th scope="col" { "done/s" }
                @for place in &shown { th scope="col" { (endpoints::LATENCIES[*place]) " p50, ms" } th scope="col" { "p99" } }
            } }
            tbody { @for one in &summary.targets { tr {
                td.left { (endpoints::name(endpoints, one)) }
                td { (figure::count(one.requests)) } td { (figure::count(one.failed)) }
                td { (one.achieved_per_s.value().map(figure::number).unwrap_or_default()) }
                @for place in &shown {
                    @match endpoints::latencies(one)[*place] {
                        Some(set) => { (latency_cell(&set.p50)) (latency_cell(&set.p99)) }
                        None => { td {} td {} }
                    }
                }
            } } }
        } }
    }
}

fn cost_section(findings: &Findings) -> Markup {
    let Some(found) = &findings.cost else { return html! {} };
    html! {
        section {
            h2 { (cost::title(&found.bill)) }
            table {
                thead { tr { @for name in cost::COLUMNS { th scope="col" { (name.trim_start_matches('<')) } } } }
                tbody {
                    @for row in cost::rows(found, findings) { tr { @for cell in row { td { (cell) } } } }
                }
            }
            @for line in cost::sessions(found) { p { (line) } }
            @if let Some(why) = cost::missing(found) { p.soft { (why) } }
        }
    }
}

fn lines_section(lines: &CapacityLines) -> Markup {
    html! {
        section {
            h2 { "Lines for " (lines.traffic) " traffic" }
            p.soft { "They hold for this mix: " (words::mix(&lines.mix)) "." }
            @if let Some(svg) = mark::draw(lines) { div.chart.mark { (PreEscaped(svg)) } }
            div.cards {
                @for (name, line) in words::named_lines(lines) {
                    @let (value, why) = words::line(line);
                    div.card {
                        div.name { (name) }
                        div.figure {
                            @match value.split_once(" [") {
                                Some((figure, interval)) => { (figure) " " span.soft.small { "[" (interval) } }
                                None => { (value) }
                            }
                        }
                        p.small { (why) }
                        @if let plimsoll_measure::findings::CapacityLine::Found { load, .. } = line {
                            p.small.soft { (words::load_words(load, lines.think_time_s)) }
                        }
                    }
                }
                @if let Some(hold) = &lines.hold {
                    div.card {
                        div.name { "held" }
                        div.figure { (words::held(hold.verdict)) }
                        p.small { (figure::per_second(hold.rate_per_s)) " for " (words::time(hold.held_s)) ". " (words::sentence(&hold.why)) }
                    }
                }
            }
        }
    }
}

fn curve_section(i: usize, curve: &Curve, drawn: bool) -> Markup {
    html! {
        section {
            h2 { "The curve, " (curve.traffic) " traffic" }
            p {
                "With zero contention p" (centile(curve.percentile)) " of " code { (curve.metric) } " is "
                (words::latency(&curve.zero_contention)) " ms (" (curve.zero_contention_from) "). "
                "The onset is where it reaches " (figure::number(curve.knee_factor)) " × that; right of it time is borrowed from the requests behind."
            }
            @if drawn {
                div.chart { div.title { "Latency against offered load" } div id=(format!("curve-{i}")) role="img" aria-label="Latency against offered load; the figures are in the table below" {} }
                div.chart { div.title { "What was done with the load" } div id=(format!("throughput-{i}")) role="img" aria-label="Requests done and good against offered load; the figures are in the table below" {} }
            }
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                thead { tr {
                    th scope="col" { "offered/s" } th scope="col" { "done/s" } th scope="col" { "good/s" } th scope="col" { "in flight" }
                    th scope="col" { (curve.metric) " p50, ms" } th scope="col" { "p90" } th scope="col" { "p95" } th scope="col" { "p99 [95 %]" }
                    th scope="col" { "failed" } th scope="col" { "load" } th scope="col" { "budget" } th scope="col" { "trust" } th scope="col" { "run for" }
                } }
                tbody { @for point in &curve.points {
                    tr.(point.purpose) {
                        td { (figure::number(point.offered_per_s)) }
                        td { (optional(point.achieved_per_s)) }
                        td { (optional(point.good_per_s)) }
                        td { (figure::number(point.in_flight)) }
                        @for reading in [&point.p50, &point.p90, &point.p95, &point.p99] { (latency_cell(reading)) }
                        td { (figure::percent(point.error_rate)) }
                        td.(words::kept(point.stability)) { (words::kept(point.stability)) }
                        td { (point.budget.map(words::held).unwrap_or("")) }
                        td.(words::trust(point.trust)) { (words::trust(point.trust)) }
                        td { (point.purpose) }
                    }
                } }
            } }
            @if !curve.ladder.is_empty() {
                details {
                    summary { "How the capacity was bracketed: a closed-loop ladder" }
                    div.scroll tabindex="0" role="region" aria-label="Table" { table {
                        thead { tr { th scope="col" { "in flight" } th scope="col" { "done/s" } th scope="col" { "Little’s law off by" } } }
                        tbody { @for rung in &curve.ladder { tr {
                            td { (rung.concurrency) } td { (figure::number(rung.achieved_per_s)) }
                            td { (rung.little_disagreement.map(figure::percent).unwrap_or_default()) }
                        } } }
                    } }
                }
            }
        }
    }
}

fn optional(value: Option<f64>) -> String {
    value.map(figure::number).unwrap_or_default()
}

fn latency_cell(reading: &Reading) -> Markup {
    let (value, interval) = words::latency_cell(reading);
    let why = match reading {
        Reading::Refused { why, .. } => Some(why.as_str()),
        Reading::Estimate(_) => None,
    };
    html! { td title=[why] { (value) @if let Some(interval) = interval { span.ci { (interval) } } } }
}

fn level_section(level: &LevelFinding, endpoints: &[String], charts: &chart::Charts) -> Markup {
    let summary = &level.summary;
    let id = summary.level;
    let trust = words::trust(level.validity.verdict);
    html! {
        section {
            h2 { "Level " (id) ": " (words::level(summary)) }
            p.soft {
                (words::time(summary.window.length_s)) " counted after " (words::time(summary.window.warm_up_s))
                " of warm-up (" (summary.window.rule) ") · " span.(trust) { (trust) } " · "
                span.(words::kept(summary.stability.verdict)) { (words::kept(summary.stability.verdict)) }
                ": " (summary.stability.why)
            }
            @if let Some(cut) = summary.window.cut_words() {
                p { "Shaded at the left of the charts over time, and in no figure: " (cut) "." }
            }
            @if let Some(slow) = &summary.slow_stretch {
                p { "Not steady: " (slow.words()) "; every figure holds it." }
            }
            (percentile_table(level))
            (endpoints_part(summary, endpoints))
            (sessions_part(summary))
            (errors_table(level))
            @if let Some(budget) = &summary.budget {
                h3 { "Budget “" (budget.name) "”: " (words::held(budget.verdict)) }
                div.scroll tabindex="0" role="region" aria-label="Table" { table {
                    thead { tr { th scope="col" { "metric" } th scope="col" { "ceiling" } th scope="col" { "measured" } th scope="col" { "share over [95 %]" } th scope="col" { "allowed" } th.left scope="col" { "verdict" } } }
                    tbody { @for row in &budget.rows { tr { @for cell in budget_cells(row) { td { (cell) } } } } }
                } }
            }
            @for (key, title) in [
                (format!("latency-over-time-{id}"), "Latency over time"),
                (format!("flow-over-time-{id}"), "Requests over time"),
                (format!("distribution-{id}"), "Distribution: share of observations at or below"),
            ] {
                @if charts.contains_key(&key) { div.chart { div.title { (title) } div id=(key) role="img" aria-label=(title) {} } }
            }
        }
    }
}

fn percentile_table(level: &LevelFinding) -> Markup {
    let latency = &level.summary.latency;
    html! {
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr {
                th scope="col" { "ms" } th scope="col" { "n" } th scope="col" { "n_eff" } th scope="col" { "p50" } th scope="col" { "p90" } th scope="col" { "p95" } th scope="col" { "p99" } th scope="col" { "p99.9" } th scope="col" { "max" }
            } }
            tbody { @for set in latency.all() { tr {
                td { code { (set.metric) } }
                td { (figure::count(set.n)) }
                td { (set.p99.seen().or(set.p50.seen()).map(|e| figure::number(e.n_eff)).unwrap_or_default()) }
                @for (_, reading) in set.rows() { (latency_cell(reading)) }
                td { (set.max_s.map(words::ms).unwrap_or_default()) }
            } } }
        } }
        p.small.soft {
            "Latencies count from the due time unless the name says after_send; failed and unfinished requests rank as ∞. "
            "Small figures are 95 % intervals. " (words::FEW_SAYS) " (hover for the reason)."
            @if let Some(longer) = words::settles_in(&level.summary, false) { " " (longer) }
            @if let Some(itl) = &latency.itl {
                " itl: tokens per event by " (itl.rule.name()) "; " (figure::percent(itl.exact_share)) " of its gaps are exact."
            }
        }
    }
}

fn errors_table(level: &LevelFinding) -> Markup {
    let counts = &level.summary.counts;
    html! {
        h3 { "How requests ended" }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr { th scope="col" { "outcome" } th scope="col" { "requests" } th scope="col" { "share" } th scope="col" { "attempts" } } }
            tbody {
                @for (how, n) in &counts.by_outcome { tr {
                    td { (how.name().replace('_', " ")) }
                    td { (figure::count(*n)) }
                    td { (figure::percent(*n as f64 / counts.requests.max(1) as f64)) }
                    td { (figure::count(counts.attempts_by_outcome.get(how).copied().unwrap_or(0))) }
                } }
                @for (broken, n) in &counts.broken { tr {
                    td { "finished, but " (broken.name().replace('_', " ")) }
                    td { (figure::count(*n)) }
                    td { (figure::percent(*n as f64 / counts.requests.max(1) as f64)) }
                    td {}
                } }
            }
        } }
        @if !counts.errors.is_empty() {
            ul.small { @for error in &counts.errors { li { (words::error(error)) } } }
        }
    }
}

fn levels_table(findings: &Findings) -> Markup {
    // Whole answers have no first token and no time per token: no columns for them.
    let streams = findings.levels.iter().any(|level| level.summary.latency.ttft.is_some());
    let leading = if streams { "ttft" } else { "e2e" };
    html! {
        section {
            h2 { "Every level, in order of execution" }
            details {
                summary { (findings.levels.len()) " levels" }
                div.scroll tabindex="0" role="region" aria-label="Table" { table {
                    thead { tr {
                        th scope="col" { "level" } th.left scope="col" { "traffic" } th.left scope="col" { "run for" } th.left scope="col" { "load" } th scope="col" { "requests" } th scope="col" { "failed" }
                        th scope="col" { (leading) " p50, ms" } th scope="col" { "p99" } @if streams { th scope="col" { "tpot p50" } th scope="col" { "e2e p99" } } th scope="col" { "in flight" } th scope="col" { "trust" }
                    } }
                    tbody { @for level in &findings.levels {
                        @let s = &level.summary;
                        tr {
                            td { (s.level) }
                            td.left { (s.traffic) } td.left { (s.purpose) } td.left { (words::load_kept(s)) }
                            td { (figure::count(s.counts.requests)) } td { (figure::count(s.counts.failed)) }
                            (latency_cell(&s.latency.leading().p50)) (latency_cell(&s.latency.leading().p99))
                            @if streams {
                                @match &s.latency.tpot { Some(tpot) => { (latency_cell(&tpot.p50)) } None => { td {} } }
                                (latency_cell(&s.latency.e2e.p99))
                            }
                            td { (figure::number(s.concurrency.mean)) }
                            td.(words::trust(level.validity.verdict)) { (words::trust(level.validity.verdict)) }
                        }
                    } }
                } }
            }
        }
    }
}

fn validity_section(validity: &Validity) -> Markup {
    let trust = words::trust(validity.verdict);
    html! {
        section {
            h2 { "How far this may be trusted: " span.(trust) { (trust) } }
            @if !validity.reasons.is_empty() {
                div.scroll tabindex="0" role="region" aria-label="Table" { table {
                    thead { tr { th scope="col" { "check" } th.left scope="col" { "where" } th scope="col" { "verdict" } th.left scope="col" { "figure" } th.left scope="col" { "what it means" } th.left scope="col" { "what to do" } } }
                    tbody { @for words::Group { worst, levels } in words::grouped(&validity.reasons) {
                        @let verdict = words::trust(worst.verdict);
                        tr {
                            td { (worst.check.replace('_', " ")) }
                            td.wrap { (levels) }
                            td.(verdict) { (verdict) }
                            td.wrap { (worst.figure) }
                            td.wrap { (words::sentence(&worst.means)) }
                            td.wrap { (words::sentence(&worst.advice)) }
                        }
                    } }
                } }
            }
            @if !validity.passed.is_empty() {
                details open[validity.reasons.is_empty()] {
                    summary { (validity.passed.len()) " checks found nothing" }
                    div.scroll tabindex="0" role="region" aria-label="Table" { table { tbody { @for passed in &validity.passed {
                        tr { td { (passed.check.replace('_', " ")) } td.wrap { (passed.figure) @if let Some(note) = &passed.note { "; " (note) } } }
                    } } } }
                }
            }
        }
    }
}

fn generator_section(findings: &Findings) -> Markup {
    let us = |ns: i64| figure::number(ns as f64 / 1e3);
    html! {
        section {
            h2 { "How the generator fared" }
            p.small.soft {
                "Lag: sent − due. Delay: user-space stamp − kernel stamp, which latencies do not contain where the kernel stamps. "
                "Coalesced: events that came out of one read with a later one; their times are upper bounds."
            }
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                thead { tr {
                    th scope="col" { "level" } th scope="col" { "lag p50, µs" } th scope="col" { "p99" } th scope="col" { "max" } th scope="col" { "delay p50, µs" } th scope="col" { "p99" } th scope="col" { "stamps" }
                    th scope="col" { "busiest thread" } th scope="col" { "waiting for a core" } th scope="col" { "coalesced" } th scope="col" { "connections" }
                } }
                tbody { @for level in &findings.levels {
                    @let g = &level.summary.generator;
                    tr {
                        td { (level.summary.level) }
                        td { (us(g.lag.p50_ns)) } td { (us(g.lag.p99_ns)) } td { (us(g.lag.max_ns)) }
                        td { (us(g.user_delay.p50_ns)) } td { (us(g.user_delay.p99_ns)) }
                        td { (format!("{:?}", g.stamps).to_lowercase()) }
                        td { (g.cpu_share_max.map(figure::percent).unwrap_or_else(|| "unknown".into())) }
                        td { (g.run_queue_share_max.map(figure::percent).unwrap_or_else(|| "unknown".into())) }
                        td { (figure::percent(g.events_coalesced as f64 / g.events.max(1) as f64)) }
                        td { (g.connects) }
                    }
                } }
            } }
        }
    }
}

fn run_section(manifest: &Manifest) -> Markup {
    html! {
        section {
            h2 { "The run" }
            h3 { "Repeat it" }
            pre { (manifest.reproduce) }
            h3 { "Target" }
            div.scroll tabindex="0" role="region" aria-label="Table" { table { tbody {
                @for flag in &manifest.flags {
                    tr { td { "outside what was measured" } td.wrap { (flag) } }
                }
                @for (fact, value) in &manifest.target.facts {
                    tr { td { (fact.replace('_', " ")) } td.wrap { (value.as_deref().unwrap_or("unknown")) } }
                }
                tr { td { "measured from" } td.wrap { (manifest.host.os) ", " (manifest.host.cpu) ", " (manifest.host.cores) " cores" } }
                tr { td { "run" } td.wrap { (manifest.id) " · seed " (manifest.seed) " · nonce " (manifest.nonce) } }
            } } }
            details {
                summary { "The scenario, every default written out" }
                pre { (serde_json::to_string_pretty(&manifest.scenario).unwrap_or_default()) }
            }
        }
    }
}
