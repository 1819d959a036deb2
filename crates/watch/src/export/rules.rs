//! Prometheus rules: each row's counts as recording rules, its verdict, and the alerts of `watch` to the extent that
//! PromQL can express them.
//!
//! The rules use only features of Prometheus 2.42. Two parts are left out because PromQL can't express them. The
//! first is the narrowing of a bracket by a histogram's sum. The second is the e-detector, whose false-alarm rate is
//! per file; a bound on five minutes' counts at 1e-5 replaces it.

use std::fmt::Write as _;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::budget::{AmountUnit, shown};
use plimsoll_measure::server_side::Signal;
use plimsoll_measure::server_side::table::SignalPart;

use super::evidence::{ALERT_ALPHA, lower, upper};
use super::row::{CountExpression, ExportRow};
use super::source::{ExportSource, Metric, decimal, quoted};
use super::{ExportSpec, comments, slug};
use crate::alert::burn::span_words;
use crate::alert::{AlertKind, Pair};

pub(crate) const INTERVAL_S: i64 = 30;
/// Window of the counts, as PromQL and in s. With at least five scrapes in it, an increase is complete.
pub(crate) const WINDOW: &str = "5m";
const WINDOW_S: i64 = 300;
/// Minimum n_eff for a verdict, as in the gate.
const LEAST_N_EFF: f64 = 20.0;

/// Returns a recorded series of a row.
pub(crate) fn recorded(what: &str, id: &str, budget: &str) -> String {
    format!("plimsoll:{what}{{about={},budget={}}}", quoted(id), quoted(budget))
}

pub(crate) fn rules(
    file: &BudgetFile,
    source: &ExportSource,
    rows: &[ExportRow],
    spec: &ExportSpec,
) -> String {
    let budget = spec.name(file);
    let mut out = comments(file, source, rows);
    out += "# Counts use increase() over five minutes: scrape every minute or more often. Until there is a day of history, requests count as\n";
    out += "# independent (plimsoll:design_effect:1d is 1).\ngroups:\n";
    for row in rows {
        if let Some(counted) = &row.counted {
            group(&mut out, &format!("plimsoll-{}-{}", slug(&budget), slug(&row.lint.id)));
            Row { row, counted, budget: &budget, file }.write(&mut out);
        }
    }
    group(&mut out, &format!("plimsoll-{}-fleet", slug(&budget)));
    fleet(&mut out, source, &budget, spec);
    out
}

fn group(out: &mut String, name: &str) {
    let _ = writeln!(out, "  - name: {}\n    interval: {INTERVAL_S}s\n    rules:", quoted(name));
}

fn record(out: &mut String, name: &str, expr: &str, about: &str, budget: &str) {
    let _ = writeln!(out, "      - record: {name}");
    expression(out, expr);
    let _ = writeln!(out, "        labels: {{about: {}, budget: {}}}", quoted(about), quoted(budget));
}

fn expression(out: &mut String, expr: &str) {
    out.push_str("        expr: |\n");
    expr.lines().for_each(|line| _ = writeln!(out, "          {line}"));
}

struct AlertRule<'a> {
    kind: AlertKind,
    expr: String,
    lasts: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    summary: String,
}

fn alert(out: &mut String, rule: &AlertRule<'_>) {
    let _ = writeln!(out, "      - alert: {}", rule.kind.alert_name());
    expression(out, &rule.expr);
    let _ = writeln!(out, "        for: {}", rule.lasts);
    let labels: Vec<String> =
        rule.labels.iter().map(|(name, value)| format!("{name}: {}", quoted(value))).collect();
    let _ = writeln!(out, "        labels: {{{}}}", labels.join(", "));
    let _ = writeln!(out, "        annotations: {{summary: {}}}", quoted(&rule.summary));
}

struct Row<'a> {
    row: &'a ExportRow,
    counted: &'a CountExpression,
    budget: &'a str,
    file: &'a BudgetFile,
}

impl Row<'_> {
    fn own(&self, what: &str) -> String {
        recorded(what, &self.row.lint.id, self.budget)
    }

    fn record(&self, out: &mut String, what: &str, expr: &str) {
        record(out, &format!("plimsoll:{what}"), expr, &self.row.lint.id, self.budget);
    }

    fn write(&self, out: &mut String) {
        let counted = self.counted;
        self.record(out, "requests:increase5m", &counted.requests(WINDOW));
        self.record(out, "over_least:increase5m", &counted.over_least(WINDOW));
        if !counted.is_exact() {
            self.record(out, "over_most:increase5m", &counted.over_most(WINDOW));
        }
        self.record(out, "allowed:ratio", &format!("vector({})", self.row.allowed));
        self.design_effect(out);
        self.verdict(out);
        self.ceiling(out);
        self.burn(out);
        self.absent(out);
    }

    fn most(&self) -> &'static str {
        if self.counted.is_exact() { "over_least:increase5m" } else { "over_most:increase5m" }
    }

    /// Writes the design effect: the variance of the share between intervals of five minutes over its expected
    /// variance. The median over a day is used, so that an incident does not weaken its own evidence. An hour without
    /// requests over the ceiling counts as 1.
    fn design_effect(&self, out: &mut String) {
        let (n, most) = (self.own("requests:increase5m"), self.own(self.most()));
        self.record(out, "over:ratio5m", &format!("{most} / ({n} > 0)"));
        let share = self.own("over:ratio5m");
        let p = format!("(sum_over_time({most}[1h]) / sum_over_time({n}[1h]))");
        let expr = format!(
            "(clamp_min(avg_over_time({n}[1h]) * stdvar_over_time({share}[1h]) / ({p} * (1 - {p})), 1)\n\
             and {p} > 0 and {p} < 1 and count_over_time({share}[1h]) >= {})\nor 0 * {n} + 1",
            1800 / INTERVAL_S
        );
        self.record(out, "design_effect:1h", &expr);
        let hours = self.own("design_effect:1h");
        self.record(out, "design_effect:1d", &format!("quantile_over_time(0.5, {hours}[1d]) or 0 * {n} + 1"));
    }

    /// Returns a recorded count over a longer window. Windows of five minutes overlap, so each evaluation counts for
    /// its own interval.
    fn over_time(&self, what: &str, window_s: i64) -> String {
        let series = self.own(what);
        match window_s <= WINDOW_S {
            true => series,
            false => format!(
                "sum_over_time({series}[{}]) * {}",
                promql_span(window_s),
                INTERVAL_S as f64 / WINDOW_S as f64
            ),
        }
    }

    /// Writes the share's bounds at the file's alpha over its window, and the verdict: 0 passes, 1 inconclusive, 2
    /// broken, 3 no traffic.
    fn verdict(&self, out: &mut String) {
        let window = self.file.load.as_ref().and_then(|load| load.window);
        let window_s = window.map_or(WINDOW_S, |window| (window.0 / 1_000_000_000).max(WINDOW_S));
        let alpha = self.file.policy.alpha;
        let effect = self.own("design_effect:1d");
        self.record(out, "requests:window", &self.over_time("requests:increase5m", window_s));
        let n = self.own("requests:window");
        let count = |what: &str| format!("({}) / {effect}", self.over_time(what, window_s));
        let share = |bound: String| format!("{bound}\n  * {effect} / {n}");
        self.record(out, "share_lower:ratio", &share(lower(&count("over_least:increase5m"), alpha)));
        self.record(
            out,
            "share_upper:ratio",
            &format!("clamp_max({}, 1)", share(upper(&count(self.most()), alpha))),
        );
        let (low, high, allowed) =
            (self.own("share_lower:ratio"), self.own("share_upper:ratio"), self.row.allowed);
        let enough = format!("({n} / {effect} >= bool {LEAST_N_EFF})");
        let expr = format!(
            "3 * ({n} == bool 0) + ({n} > bool 0) * (1\n  + {enough} * ({low} > bool {allowed})\n  - {enough} * ({high} <= bool {allowed}))"
        );
        self.record(out, "verdict", &expr);
    }

    fn ceiling(&self, out: &mut String) {
        let Row { row, budget, .. } = self;
        let (n, least, effect) = (
            self.own("requests:increase5m"),
            self.own("over_least:increase5m"),
            self.own("design_effect:1d"),
        );
        // If no request may exceed the ceiling, a single one is proof.
        let proven = match row.allowed > 0.0 {
            true => format!("{}\n  * {effect} / {n}", lower(&format!("{least} / {effect}"), ALERT_ALPHA)),
            false => format!("{least} / {n}"),
        };
        let summary = format!(
            "{}: more than {{{{ $value | humanizePercentage }}}} of the requests of 5 min are over it, proven at 1e-5; {} is allowed",
            row.lint.budget,
            shown(row.allowed, &AmountUnit::Share)
        );
        alert(
            out,
            &AlertRule {
                kind: AlertKind::CeilingBroken,
                expr: format!("{proven}\n> {}", row.allowed),
                lasts: "1m",
                labels: vec![("about", &row.lint.id), ("budget", budget), ("severity", "page")],
                summary,
            },
        );
    }

    fn burn(&self, out: &mut String) {
        let Row { row, budget, .. } = self;
        for LintPairOf { pair, severity } in pairs(row) {
            let (long, short) = (self.burns(pair, pair.long_s), self.burns(pair, pair.short_s));
            let watched = pair.long_s / 2 / INTERVAL_S;
            let n = self.own("requests:increase5m");
            let expr = format!(
                "({long})\nand ({short})\nand count_over_time({n}[{}]) >= {watched}",
                promql_span(pair.long_s)
            );
            let windows = span_words(pair.long_s);
            let summary = format!(
                "{}: over the last {windows} more than {{{{ $value | humanizePercentage }}}} of the requests were over it, {} times the allowed pace, proven at 1e-5",
                row.lint.budget, pair.factor
            );
            alert(
                out,
                &AlertRule {
                    kind: AlertKind::BurnRate,
                    expr,
                    lasts: "0s",
                    labels: vec![
                        ("about", &row.lint.id),
                        ("budget", budget),
                        ("severity", severity),
                        ("window", &windows),
                    ],
                    summary,
                },
            );
        }
    }

    /// Returns the condition that the share of a window is proven beyond the pair's burn rate.
    fn burns(&self, pair: &Pair, window_s: i64) -> String {
        let effect = self.own("design_effect:1d");
        let n = self.over_time("requests:increase5m", window_s);
        let count = format!("({}) / {effect}", self.over_time("over_least:increase5m", window_s));
        format!(
            "{}\n  * {effect} / ({n}) > {}",
            lower(&count, ALERT_ALPHA),
            decimal(pair.factor * self.row.allowed)
        )
    }

    fn absent(&self, out: &mut String) {
        let Row { row, budget, .. } = self;
        let n = self.own("over_least:increase5m");
        alert(
            out,
            &AlertRule {
                kind: AlertKind::Absent,
                expr: format!("absent({n})"),
                lasts: "10m",
                labels: vec![("about", &row.lint.id), ("budget", budget), ("severity", "ticket")],
                summary: format!(
                    "{}: its series are missing; check that the server still has these edges and labels",
                    row.lint.budget
                ),
            },
        );
    }
}

struct LintPairOf<'a> {
    pair: &'a Pair,
    severity: &'static str,
}

/// Returns the reachable pairs. Pairs over a day and more do not page.
fn pairs(row: &ExportRow) -> impl Iterator<Item = LintPairOf<'_>> {
    let reachable = row.lint.burn.iter().filter(|pair| pair.reachable && row.allowed > 0.0);
    reachable.map(|one| LintPairOf {
        pair: &one.pair,
        severity: if one.pair.long_s < 86_400 { "page" } else { "ticket" },
    })
}

/// Returns a duration in the form `5m`, `6h` or `3d`.
fn promql_span(seconds: i64) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s % 3600 == 0 => format!("{}h", s / 3600),
        s if s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// Writes the alerts of the fleet: missing traffic, stalls, long queues, and a watchdog.
fn fleet(out: &mut String, source: &ExportSource, budget: &str, spec: &ExportSpec) {
    for (name, signal) in [("waiting", Signal::Waiting), ("running", Signal::Running)] {
        if let Some(sum) = gauge(source, signal) {
            record(out, &format!("plimsoll:{name}:sum"), &sum, "fleet", budget);
        }
    }
    let found =
        [queue(source, budget, spec), stalled(source, budget), silent(source, budget), lost(source, budget)];
    found.iter().flatten().for_each(|rule| alert(out, rule));
    let summary = "always fires: if it is missing, the monitoring is down".to_owned();
    let (kind, expr) = (AlertKind::Watchdog, "vector(1)".to_owned());
    alert(out, &AlertRule { kind, expr, lasts: "0s", labels: of_fleet(budget, "none"), summary });
}

fn of_fleet<'a>(budget: &'a str, severity: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![("about", "fleet"), ("budget", budget), ("severity", severity)]
}

/// Returns the alert on waiting requests per replica over the limit, as a mean over a minute.
fn queue<'a>(source: &ExportSource, budget: &'a str, spec: &ExportSpec) -> Option<AlertRule<'a>> {
    let (target, waiting) = (spec.queue_per_replica?, gauge(source, Signal::Waiting)?);
    let running = source.metrics(Signal::Running, &SignalPart::Gauge);
    let replicas = format!("count({})", running.first()?.with(&[]));
    Some(AlertRule {
        kind: AlertKind::QueueOverTarget,
        expr: format!("avg_over_time((({waiting}) / {replicas})[1m:15s]) > {target}"),
        lasts: "1m",
        labels: of_fleet(budget, "page"),
        summary: format!("{{{{ $value | humanize }}}} requests wait per replica; the limit is {target}"),
    })
}

/// Returns the alert on running requests without progress.
fn stalled<'a>(source: &ExportSource, budget: &'a str) -> Option<AlertRule<'a>> {
    let running = source.metrics(Signal::Running, &SignalPart::Gauge).first()?.with(&[]);
    let (moving, window) = moving(source);
    let gained = |metric: &str| format!("sum by (instance) (increase({metric}[{window}]))");
    let (counted, others) = moving.split_first()?;
    let still = format!("sum by (instance) ({running}) >= 1\nand {} == 0", gained(counted));
    let but = others.iter().map(|other| format!("\nunless {} > 0", gained(other)));
    Some(AlertRule {
        kind: AlertKind::Stalled,
        expr: std::iter::once(still).chain(but).collect(),
        lasts: "0s",
        labels: of_fleet(budget, "page"),
        summary: "{{ $labels.instance }} has requests running, and its counters do not move".to_owned(),
    })
}

/// Returns the alert on missing traffic.
fn silent<'a>(source: &ExportSource, budget: &'a str) -> Option<AlertRule<'a>> {
    let finished = source.metrics(Signal::Finished, &SignalPart::Counter).first()?.with(&[]);
    let asked = |window: &str, back: &str| format!("sum(increase({finished}[{window}]{back}))");
    Some(AlertRule {
        kind: AlertKind::NoTraffic,
        expr: format!("{} == 0 and {} > 0", asked("10m", ""), asked("1h", " offset 10m")),
        lasts: "0s",
        labels: of_fleet(budget, "ticket"),
        summary: "no request ended in 10 min: no row can be evaluated".to_owned(),
    })
}

/// Returns a series that a server exports from its first second, so that its absence proves a lost source. It is a
/// gauge, because counters may appear with their first event.
pub(crate) fn always_there(source: &ExportSource) -> Option<Metric> {
    use Signal::*;
    let gauges = [Running, Waiting, KvUsage, ReplicasReady].map(|signal| (signal, SignalPart::Gauge));
    let counters = [Finished, OutputTokens].map(|signal| (signal, SignalPart::Counter));
    gauges.iter().chain(&counters).find_map(|(signal, part)| source.metrics(*signal, part).into_iter().next())
}

/// Returns the alert on a failing target, or on no target, because `up` is missing then too. `up` has only target
/// labels.
fn lost<'a>(source: &ExportSource, budget: &'a str) -> Option<AlertRule<'a>> {
    let of_target = source.scope.iter().filter(|(label, _)| label == "job" || label == "instance");
    let matchers: Vec<String> =
        of_target.map(|(label, value)| format!("{label}={}", quoted(value))).collect();
    let down = (!matchers.is_empty()).then(|| format!("up{{{}}} == 0", matchers.join(",")));
    let gone = always_there(source).map(|metric| format!("absent({})", metric.with(&[])));
    let exprs: Vec<String> = down.into_iter().chain(gone).collect();
    (!exprs.is_empty()).then(|| AlertRule {
        kind: AlertKind::SourceLost,
        expr: exprs.join("\nor "),
        lasts: "2m",
        labels: of_fleet(budget, "page"),
        summary: "{{ with $labels.instance }}{{ . }} does not answer{{ else }}a target is missing{{ end }}: its state is unknown"
            .to_owned(),
    })
}

/// Returns the sum of a gauge over all replicas.
pub(crate) fn gauge(source: &ExportSource, signal: Signal) -> Option<String> {
    let each = source.metrics(signal, &SignalPart::Gauge);
    let each: Vec<String> = each.iter().map(|metric| format!("sum({})", metric.with(&[]))).collect();
    (!each.is_empty()).then(|| each.join(" + "))
}

/// Returns counters that include one that rises while a server computes, and the window in which it must. Some servers count
/// output tokens at the end (SGLang, llama.cpp), but steps or token gaps continuously.
fn moving(source: &ExportSource) -> (Vec<String>, &'static str) {
    let of = |signal, part| -> Vec<String> {
        source.metrics(signal, &part).iter().map(|metric| metric.with(&[])).collect()
    };
    let written = [
        of(Signal::OutputTokens, SignalPart::Counter),
        of(Signal::Steps, SignalPart::Counter),
        of(Signal::Itl, SignalPart::Count),
    ]
    .concat();
    match written.is_empty() {
        // Without a token counter, long responses show no progress.
        true => (of(Signal::Finished, SignalPart::Counter), "10m"),
        false => (written, "2m"),
    }
}
