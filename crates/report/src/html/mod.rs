//! Renders the report: one HTML file that opens offline and explains the run without other sources.
//!
//! Styles, scripts and data are inside the file; a content-security policy forbids the network. Every figure is in
//! a table; the charts (uPlot, vendored, MIT) only repeat it. maud escapes all text.

pub(crate) mod bars;
pub mod chart;
mod charts;
mod mark;
pub(crate) mod page;
pub(crate) mod plan_charts;
mod server;

use maud::{Markup, PreEscaped, html};
use plimsoll_diagnose::Diagnosis;
use plimsoll_diagnose::active::tell::ExperimentReport;
use plimsoll_measure::findings::{CapacityLines, Curve, Findings, LevelFinding, LevelSummary, Validity};
use plimsoll_model::{Manifest, RunState};
use plimsoll_plan::finding::PlanFinding;

use self::chart::{Charts, place};
use crate::document::{Document, Phrase, latency};
use crate::endpoints::{self, GroupNames};
use crate::figure::centile;
use crate::headline::headline;
use crate::table::TextTable;
use crate::text::{budget_notes, budget_table, detailed};
use crate::{cold_start, cost, diagnose, figure, network, pareto, plan, words};

/// The parts of a run's page that the run itself does not contain.
#[derive(Copy, Clone, Default)]
pub struct PageContext<'a> {
    /// Diagnosis and its experiments, if the run was an active diagnosis.
    pub diagnosed: Option<(&'a Diagnosis, &'a [ExperimentReport])>,
    /// Plan from the run; `None` without one.
    pub planned: Option<&'a PlanFinding>,
}

pub fn render(manifest: &Manifest, findings: &Findings, beside: PageContext<'_>) -> String {
    let PageContext { diagnosed, planned } = beside;
    let mut charts = charts::all(findings);
    server::charts(findings, &mut charts);
    pareto::charts(&findings.pareto, &mut charts);
    charts.extend(planned.map(plan_charts::of).unwrap_or_default());
    let shown = detailed(findings);
    let mut page = Document::default();
    head(&mut page, manifest, findings);
    if let Some((diagnosis, tried)) = diagnosed {
        page.section("Diagnosis", |section| diagnose::fill(section, &manifest.target.url, diagnosis, tried));
    }
    if let Some(found) = &findings.cold_start {
        cold_start::fill(&mut page, found);
    }
    findings.lines.iter().for_each(|lines| lines_section(&mut page, lines));
    findings.curves.iter().enumerate().for_each(|(i, curve)| curve_section(&mut page, i, curve, &charts));
    findings.pareto.iter().enumerate().for_each(|(i, curve)| pareto::draw(&mut page, i, curve, &charts));
    if let Some(planned) = planned {
        plan::beside(&mut page, planned, &charts);
    }
    let groups = GroupNames::of(manifest);
    shown.iter().for_each(|level| level_section(&mut page, level, (manifest, &groups), &charts));
    if findings.levels.len() > shown.len() {
        levels_section(&mut page, findings);
    }
    server::section(&mut page, findings, &charts);
    if let Some(found) = &findings.network {
        network::fill(&mut page, found);
    }
    if let Some(found) = &findings.cost {
        cost::fill(&mut page, found, findings);
    }
    validity_section(&mut page, &findings.validity);
    generator_section(&mut page, findings);
    run_section(&mut page, manifest);
    let kind = if findings.lines.is_empty() { "Run" } else { "Load limits" };
    let title = Phrase::from(format!("{kind} of {}", endpoints::title(manifest)));
    page.charted(&format!("Plimsoll: {}", manifest.target.url), &title, &charts)
}

fn head(page: &mut Document, manifest: &Manifest, findings: &Findings) {
    let trust = words::trust(findings.validity.verdict);
    let model = manifest.target.facts.get("model").and_then(Option::as_deref);
    page.drawn(html! {
        p.soft {
            @if let Some(model) = model { "model " (model) " · " }
            (manifest.kind) @if manifest.time == plimsoll_model::run::TimeBase::Virtual { " in virtual time" } " · " (figure::date(manifest.clock.realtime_ns)) " · " (manifest.tool) " "
            span.badge.(trust) { "measurement " (trust) }
        }
    });
    for said in [words::protocol(manifest), words::shards(manifest)].into_iter().flatten() {
        page.says(Phrase::from(said).soft());
    }
    if let RunState::Partial { why } = &manifest.progress {
        page.drawn(html! { p.suspect { strong { "This run is partial: " } (why) } });
    }
    let budgets = findings.levels.iter().filter(|_| findings.lines.is_empty());
    let held = budgets.filter_map(|level| Some(level.summary.budget.as_ref()?.verdict)).max();
    page.coloured_verdict(held.map_or("", words::held), &headline(findings));
}

fn lines_section(page: &mut Document, lines: &CapacityLines) {
    let drawn = html! {
            p.soft { "They apply to this mix: " (words::mix(&lines.mix)) "." }
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
    };
    page.section(format!("Load limits of {} traffic", lines.traffic), |section| section.drawn(drawn));
}

fn curve_section(page: &mut Document, i: usize, curve: &Curve, charts: &Charts) {
    page.section(format!("The curve, {} traffic", curve.traffic), |section| {
        section.drawn(html! {
            p {
                "With zero contention p" (centile(curve.percentile)) " of " code { (curve.metric) } " is "
                (words::latency(&curve.zero_contention)) " ms (" (curve.zero_contention_from) "). "
                "The onset is where it reaches " (figure::number(curve.knee_factor)) " × that; at higher loads the queue delays later requests."
            }
            (place(charts, &format!("curve-{i}"), "Latency against offered load"))
            (place(charts, &format!("throughput-{i}"), "Throughput against offered load"))
        });
        section.table(curve_table(curve));
        if !curve.ladder.is_empty() {
            let ladder = ladder_table(curve).markup();
            section.drawn(html! { details { summary { "Capacity search: closed-loop concurrency steps" } (ladder) } });
        }
    });
}

fn curve_table(curve: &Curve) -> TextTable {
    let metric = format!("{} p50, ms", curve.metric);
    let columns = [
        "<offered/s",
        "done/s",
        "good/s",
        "in flight",
        &metric,
        "p90",
        "p95",
        "p99 [95 %]",
        "failed",
        "load",
        "budget",
        "trust",
        "run for",
    ];
    let optional = |value: Option<f64>| Phrase::from(value.map(figure::number).unwrap_or_default());
    let mut table = TextTable::new(&columns);
    for point in &curve.points {
        let (kept, trust) = (words::kept(point.stability), words::trust(point.trust));
        table.row(
            [
                figure::number(point.offered_per_s).into(),
                optional(point.achieved_per_s),
                optional(point.good_per_s),
                figure::number(point.in_flight).into(),
            ]
            .into_iter()
            .chain([&point.p50, &point.p90, &point.p95, &point.p99].map(latency))
            .chain([
                figure::percent(point.error_rate).into(),
                Phrase::from(kept).class(kept),
                point.budget.map_or("", words::held).into(),
                Phrase::from(trust).class(trust),
                point.purpose.to_string().into(),
            ]),
        );
    }
    table
}

fn ladder_table(curve: &Curve) -> TextTable {
    let mut table = TextTable::new(&["<in flight", "done/s", "Little’s law off by"]);
    for rung in &curve.ladder {
        table.row([
            rung.concurrency.to_string(),
            figure::number(rung.achieved_per_s),
            rung.little_disagreement.map(figure::percent).unwrap_or_default(),
        ]);
    }
    table
}

fn level_section(
    page: &mut Document,
    level: &LevelFinding,
    (manifest, groups): (&Manifest, &GroupNames),
    charts: &Charts,
) {
    let summary = &level.summary;
    let id = summary.level;
    page.section(format!("Level {id}: {}", words::level(summary)), |section| {
        section.drawn(window(level));
        section.table(percentile_table(level));
        section.drawn(reading_notes(summary));
        section.titled("By endpoint", groups.endpoint_table(summary));
        section.titled(groups.class_heading(), groups.class_table(summary));
        if let Some(sessions) = &summary.sessions {
            let is_chain = groups.is_chain();
            section.section(if is_chain { "Chains" } else { "Sessions" }, |section| {
                section.says(format!("{}.", words::sessions(sessions, is_chain)));
                if !is_chain {
                    section.table(words::session_table(sessions, &summary.rates));
                }
            });
        }
        section.section("Outcomes", |section| {
            section.table(outcome_table(summary));
            let in_one_event = words::in_one_event(manifest, summary);
            section.list(summary.counts.errors.iter().map(words::error).chain(in_one_event));
        });
        if let Some(budget) = &summary.budget {
            let heading = format!("Budget “{}”: {}", budget.name, words::held(budget.verdict));
            section.titled(heading, budget_table(budget));
            section.list(budget_notes(budget));
        }
        section.drawn(html! {
            (place(charts, &format!("latency-over-time-{id}"), "Latency over time"))
            (place(charts, &format!("flow-over-time-{id}"), "Requests over time"))
            (place(charts, &format!("distribution-{id}"), "Distribution: share of observations at or below"))
        });
    });
}

/// Describes the counted window of a level.
fn window(level: &LevelFinding) -> Markup {
    let summary = &level.summary;
    let (trust, kept) = (words::trust(level.validity.verdict), words::kept(summary.stability.verdict));
    html! {
        p.soft {
            (words::time(summary.window.length_s)) " counted after " (words::time(summary.window.warm_up_s))
            " of warm-up (" (summary.window.rule) ") · " span.(trust) { (trust) } " · " span.(kept) { (kept) } ": " (summary.stability.why)
        }
        @if let Some(cut) = summary.window.cut_words() {
            p { "Shaded at the left of the charts over time, and in no figure: " (cut) "." }
        }
        @if let Some(slow) = &summary.slow_stretch {
            p { "Not steady: " (slow.words()) "; every figure includes that period." }
        }
    }
}

fn percentile_table(level: &LevelFinding) -> TextTable {
    let mut table = TextTable::new(&["<ms", "n", "n_eff", "p50", "p90", "p95", "p99", "p99.9", "max"]);
    for set in level.summary.latency.all() {
        let n_eff = set.p99.seen().or(set.p50.seen()).map(|e| figure::number(e.n_eff)).unwrap_or_default();
        let name = Phrase::drawn(set.metric.as_str(), html! { code { (set.metric) } });
        let figures = set.rows().into_iter().map(|(_, reading)| latency(reading));
        let max = set.max_s.map(words::ms).unwrap_or_default();
        table.row(
            [name, figure::count(set.n).into(), n_eff.into()].into_iter().chain(figures).chain([max.into()]),
        );
    }
    table
}

fn reading_notes(summary: &LevelSummary) -> Markup {
    html! { p.small.soft {
        "Latencies count from the due time unless the name contains after_send; failed and unfinished requests rank as ∞. "
        "Small figures are 95 % intervals. " (words::FEW_SAYS) " (hover for the reason)."
        @if let Some(longer) = words::settles_in(summary, false) { " " (longer) }
        @if summary.latency.rtf.is_some() { " " (words::RTF_SAYS) "." }
        @if let Some(itl) = &summary.latency.itl {
            " itl: tokens per event by " (itl.rule.name()) "; " (figure::percent(itl.exact_share)) " of its gaps are exact."
        }
    } }
}

fn outcome_table(summary: &LevelSummary) -> TextTable {
    let counts = &summary.counts;
    let share = |n: u64| figure::percent(n as f64 / counts.requests.max(1) as f64);
    let mut table = TextTable::new(&["<outcome", "requests", "share", "attempts"]);
    for (how, n) in &counts.by_outcome {
        let attempts = counts.attempts_by_outcome.get(how).copied().unwrap_or(0);
        table.row([how.name().replace('_', " "), figure::count(*n), share(*n), figure::count(attempts)]);
    }
    for (broken, n) in &counts.broken {
        let name = format!("finished, but {}", broken.name().replace('_', " "));
        table.row([name, figure::count(*n), share(*n), String::new()]);
    }
    table
}

fn levels_section(page: &mut Document, findings: &Findings) {
    // Whole answers have no first token and no time per token, so they need no columns for them.
    let streams = findings.levels.iter().any(|level| level.summary.latency.ttft.is_some());
    let leading = if streams { "ttft p50, ms" } else { "e2e p50, ms" };
    let columns = [
        "<level",
        "<traffic",
        "<run for",
        "<load",
        "requests",
        "failed",
        leading,
        "p99",
        "tpot p50",
        "e2e p99",
        "in flight",
        "trust",
    ];
    let mut table = TextTable::new(&columns);
    for level in &findings.levels {
        let s = &level.summary;
        let trust = words::trust(level.validity.verdict);
        let (tpot, e2e) = match &s.latency.tpot {
            _ if !streams => (Phrase::default(), Phrase::default()),
            tpot => (
                tpot.as_ref().map(|tpot| latency(&tpot.p50)).unwrap_or_default(),
                latency(&s.latency.e2e.p99),
            ),
        };
        table.row([
            s.level.to_string().into(),
            s.traffic.as_str().into(),
            s.purpose.to_string().into(),
            words::load_kept(s).into(),
            figure::count(s.counts.requests).into(),
            figure::count(s.counts.failed).into(),
            latency(&s.latency.leading().p50),
            latency(&s.latency.leading().p99),
            tpot,
            e2e,
            figure::number(s.concurrency.mean).into(),
            Phrase::from(trust).class(trust),
        ]);
    }
    page.section("Every level, in order of execution", |section| {
        let summary = format!("{} levels", findings.levels.len());
        section.drawn(html! { details { summary { (summary) } (table.markup()) } });
    });
}

fn validity_section(page: &mut Document, validity: &Validity) {
    let trust = words::trust(validity.verdict);
    let heading = "Trust in the measurement: ";
    let mut reasons =
        TextTable::new(&["<check", "<where", "<verdict", "<figure", "<what it means", "<what to do"]);
    for words::ReasonGroup { worst, levels } in words::grouped(&validity.reasons) {
        let verdict = words::trust(worst.verdict);
        reasons.row([
            worst.check.replace('_', " ").into(),
            levels.into(),
            Phrase::from(verdict).class(verdict),
            worst.figure.as_str().into(),
            words::sentence(&worst.means).into(),
            words::sentence(&worst.advice).into(),
        ]);
    }
    let mut passed = TextTable::new(&["<", "<"]);
    for one in &validity.passed {
        let note = one.note.as_ref().map_or(String::new(), |note| format!("; {note}"));
        passed.row([one.check.replace('_', " "), format!("{}{note}", one.figure)]);
    }
    page.section(
        Phrase::drawn(format!("{heading}{trust}"), html! { (heading) span.(trust) { (trust) } }),
        |section| {
            section.table(reasons);
            if let Some(says) = words::unchecked(validity) {
                section.says(says);
            }
            section.drawn(html! { @if !validity.passed.is_empty() {
                details open[validity.reasons.is_empty()] {
                    summary { (validity.passed.len()) " checks passed" }
                    (passed.markup())
                }
            } });
        },
    );
}

fn generator_section(page: &mut Document, findings: &Findings) {
    let us = |ns: i64| figure::number(ns as f64 / 1e3);
    let share = |share: Option<f64>| share.map_or_else(|| "unknown".to_owned(), figure::percent);
    let columns = [
        "<level",
        "lag p50, µs",
        "p99",
        "max",
        "delay p50, µs",
        "p99",
        "stamps",
        "busiest thread",
        "waiting for a core",
        "coalesced",
        "connections",
    ];
    let mut table = TextTable::new(&columns);
    for level in &findings.levels {
        let g = &level.summary.generator;
        table.row([
            level.summary.level.to_string(),
            us(g.lag.p50_ns),
            us(g.lag.p99_ns),
            us(g.lag.max_ns),
            us(g.user_delay.p50_ns),
            us(g.user_delay.p99_ns),
            format!("{:?}", g.stamps).to_lowercase(),
            share(g.cpu_share_max),
            share(g.run_queue_share_max),
            figure::percent(g.events_coalesced as f64 / g.events.max(1) as f64),
            g.connects.to_string(),
        ]);
    }
    page.section("Load generator", |section| {
        section.drawn(html! { p.small.soft {
            "Lag: sent − due. Delay: user-space stamp − kernel stamp, which latencies exclude if the kernel stamps. "
            "Coalesced: events read together with a later event; their times are upper bounds."
        } });
        section.table(table);
    });
}

fn run_section(page: &mut Document, manifest: &Manifest) {
    let mut table = TextTable::new(&["<", "<"]);
    manifest.flags.iter().for_each(|flag| table.row(["outside what was measured", flag]));
    for (fact, value) in &manifest.target.facts {
        table.row([fact.replace('_', " ").as_str(), value.as_deref().unwrap_or("unknown")]);
    }
    let host = &manifest.host;
    table.row(["measured from".to_owned(), format!("{}, {}, {} cores", host.os, host.cpu, host.cores)]);
    let run = format!("{} · seed {} · nonce {}", manifest.id, manifest.seed, manifest.nonce);
    table.row(["run".to_owned(), run]);
    page.section("The run", |section| {
        section.section("Repeat the run", |section| section.drawn(html! { pre { (manifest.reproduce) } }));
        section.titled("Target", table);
        section.drawn(html! { details {
            summary { "The scenario, every default written out" }
            pre { (serde_json::to_string_pretty(&manifest.scenario).unwrap_or_default()) }
        } });
    });
}
