//! Unit tests of the rules, for `promtool test rules`. Alerts must fire on a broken series, and must not fire on a
//! healthy one or on one slow request in a quiet hour. They are exported with the rules, because a rule that never
//! fired is unproven.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_judge::budget::BudgetFile;

use super::row::{CountExpression, ExportRow};
use super::rules::{INTERVAL_S, always_there};
use super::source::{ExportSource, Metric, quoted};
use super::{ExportSpec, slug};
use crate::alert::AlertKind;

/// Requests of a busy source between two scrapes.
const BUSY: u64 = 60;
/// The number of scrapes until the event, and the evaluation time. Silence is tested over an hour. Firing is tested
/// early, because `promtool` takes time for every evaluated minute.
struct When {
    calm: u64,
    seen: &'static str,
}

const HOUR: When = When { calm: 120, seen: "75m" };
const SOON: When = When { calm: 20, seen: "25m" };

/// Returns the test file of these rules.
pub(crate) fn tests(
    name: &str,
    file: &BudgetFile,
    rows: &[ExportRow],
    (source, spec): (&ExportSource, &ExportSpec),
) -> String {
    let budget = spec.name(file);
    let counted: Vec<(&ExportRow, &CountExpression)> =
        rows.iter().filter_map(|row| Some((row, row.counted.as_ref()?))).collect();
    let mut out = format!(
        "# promtool test rules {name}-rules-test.yml\nrule_files: [{name}-rules.yml]\nevaluation_interval: {INTERVAL_S}s\ntests:\n"
    );
    let there = always_there(source).map(|metric| metric.example(&[]));
    let series = |inputs: &mut dyn Iterator<Item = Input>| -> Series {
        let mut all: Series = inputs.map(|input| (input.series, input.grows)).collect();
        // A row may use that series too.
        there.iter().for_each(|there| _ = all.entry(there.clone()).or_insert([0; 3]));
        all
    };
    let all = |of: fn(&CountExpression) -> Vec<Input>| {
        series(&mut counted.iter().flat_map(|(_, counted)| of(counted)))
    };
    if !counted.is_empty() {
        test(&mut out, &HOUR, "a healthy source fires no alert", &all(healthy));
        let any = format!("ALERTS{{alertname!={}}}", quoted(&AlertKind::Watchdog.alert_name()));
        expect(&mut out, &HOUR, &any, None);
    }
    let mine = |row: &ExportRow, kind: AlertKind| {
        format!(
            "ALERTS{{alertname={},about={},budget={},alertstate=\"firing\"}}",
            quoted(&kind.alert_name()),
            quoted(&row.lint.id),
            quoted(&budget)
        )
    };
    for (row, counted) in &counted {
        let name = format!("{}: every request over it fires an alert", slug(&row.lint.id));
        test(&mut out, &SOON, &name, &series(&mut broken(counted).into_iter()));
        expect(&mut out, &SOON, &format!("count({})", mine(row, AlertKind::CeilingBroken)), Some(1));
    }
    // One test covers slow requests of all latencies, because they share their counters; another covers failures.
    for (is_latency, what) in [(true, "slow"), (false, "failed")] {
        let allows = |row: &ExportRow, counted: &CountExpression| {
            row.allowed > 0.0 && counted.latency.is_some() == is_latency
        };
        let of: Vec<_> = counted.iter().filter(|(row, counted)| allows(row, counted)).collect();
        if of.is_empty() {
            continue;
        }
        let name = format!("one {what} in a quiet hour fires no alert");
        test(&mut out, &HOUR, &name, &series(&mut of.iter().flat_map(|(_, counted)| lonely(counted))));
        for (row, _) in of {
            expect(&mut out, &HOUR, &mine(row, AlertKind::CeilingBroken), None);
            expect(&mut out, &HOUR, &mine(row, AlertKind::BurnRate), None);
        }
    }
    if let Some(there) = &there {
        vanish(&mut out, there, &budget);
    }
    out
}

/// Writes the test in which all targets disappear: no alert for half an hour, and an alert within five minutes after.
fn vanish(out: &mut String, there: &str, budget: &str) {
    let _ = writeln!(
        out,
        "  - name: \"a source that vanishes fires an alert\"\n    interval: {INTERVAL_S}s\n    input_series:\n      - {{series: '{there}', values: '1x60 stale'}}\n    \
         promql_expr_test:"
    );
    let lost = format!(
        "ALERTS{{alertname={},budget={},alertstate=\"firing\"}}",
        quoted(&AlertKind::SourceLost.alert_name()),
        quoted(budget)
    );
    let seen = |seen| When { calm: 0, seen };
    expect(out, &seen("29m"), &lost, None);
    expect(out, &seen("35m"), &format!("count({lost})"), Some(1));
}

/// A series and its increments: per scrape before the event, at the event, and per scrape after it.
struct Input {
    series: String,
    grows: [u64; 3],
}

type Series = BTreeMap<String, [u64; 3]>;

fn test(out: &mut String, when: &When, name: &str, series: &Series) {
    let before = when.calm;
    let _ = writeln!(out, "  - name: {}\n    interval: {INTERVAL_S}s\n    input_series:", quoted(name));
    for (series, [calm, once, then]) in series {
        let (until, at) = (calm * before, calm * before + once);
        let _ = writeln!(
            out,
            "      - {{series: '{series}', values: '0+{calm}x{before} {at}+{then}x40'}}",
            at = at.max(until)
        );
    }
    *out += "    promql_expr_test:\n";
}

fn expect(out: &mut String, when: &When, expr: &str, count: Option<u64>) {
    let samples = count.map_or("[]".to_owned(), |count| format!("[{{labels: '{{}}', value: {count}}}]"));
    let _ = writeln!(out, "      - {{expr: '{expr}', eval_time: {}, exp_samples: {samples}}}", when.seen);
}

/// Returns the increments of the buckets up to an edge, and of all.
fn inputs(counted: &CountExpression, below: [u64; 3], all: [u64; 3], failed: [u64; 3]) -> Vec<Input> {
    let bucket = |metric: &Metric, le: &str, grows| Input { series: metric.example(&[le]), grows };
    let mut inputs = Vec::new();
    if let Some(latency) = &counted.latency {
        for metric in latency.metrics.iter().take(1) {
            inputs.extend(latency.lower.iter().map(|edge| bucket(metric, edge, below)));
            inputs.push(bucket(metric, &latency.upper, below));
            inputs.push(bucket(metric, &latency.all, all));
        }
    }
    let failures = counted.failed.iter().enumerate();
    // The failures go to one of several counters.
    inputs.extend(failures.map(|(number, metric)| Input {
        series: metric.example(&[]),
        grows: if number == 0 { failed } else { [0; 3] },
    }));
    let finished = counted.finished.iter().take(1);
    inputs.extend(finished.map(|metric| Input { series: metric.example(&[]), grows: below }));
    inputs
}

fn healthy(counted: &CountExpression) -> Vec<Input> {
    let (busy, none) = ([BUSY, BUSY, BUSY], [0; 3]);
    inputs(counted, busy, busy, none)
}

fn broken(counted: &CountExpression) -> Vec<Input> {
    let (busy, stops, none, begins) = ([BUSY; 3], [BUSY, 0, 0], [0; 3], [0, 0, BUSY]);
    let is_latency = counted.latency.is_some();
    inputs(counted, stops, busy, if is_latency { none } else { begins })
}

/// Returns the inputs of two requests per minute, with a single one over the ceiling.
fn lonely(counted: &CountExpression) -> Vec<Input> {
    let (quiet, none) = ([1, 1, 1], [0; 3]);
    match counted.latency.is_some() {
        true => inputs(counted, [1, 0, 1], quiet, none),
        false => inputs(counted, [1, 0, 1], none, [0, 1, 0]),
    }
}
