//! Parses MLPerf LoadGen's trace (`enable_trace`) and its detail log, which states settings and aggregates.
//!
//! The trace is not JSON (`{"key":""loadgen_version""}`), so it is read by line. The begin of a `Sample` has `ts`, the instant it
//! was **scheduled** for; issue and end count from it. A `Token_Latency` counter with an equal `ts` contains the first
//! token, also from the schedule. LoadGen is the only tool whose latencies all count from the schedule. The trace contains no
//! token counts. Its percentiles take the value at ⌊n p⌋.

use std::collections::HashMap;

use plimsoll_model::{
    Doubt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignProcess, ForeignRow, ForeignStatistic,
    Load, Outcome, Rank,
};

use super::json::{self, Json};
use super::{FileRead, later, partial};

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Lines {
    rows: Vec<ForeignRow>,
    /// First tokens by the `ts` of their sample: the counter precedes its sample.
    first: HashMap<i64, i64>,
    ended: bool,
    cut: bool,
}

impl Lines {
    pub(super) fn line(&mut self, line: &[u8]) -> Option<()> {
        let has = |word: &[u8]| memchr::memmem::find(line, word).is_some();
        self.ended |= has(b"\"displayTimeUnit\"") || has(b"\"LastTrace\"");
        let (is_token, is_sample) = (has(b"\"Token_Latency\""), has(b"\"Sample\""));
        if !is_token && !is_sample {
            return Some(());
        }
        let document = json::read(line).ok()?;
        if !document.whole {
            self.cut = true;
            return Some(());
        }
        let root = &document.root;
        // µs with three digits, which are exact ns.
        let due = later((root.get("ts").finite()? * 1e3).round() as i64, 0);
        let args = root.get("args");
        if is_token {
            self.first.insert(
                due,
                later(later(due, args.get("issue_delay").int()?), args.get("issue_to_done").int()?),
            );
        } else if root.get("ph").text() == Some("b") {
            let mut row = ForeignRow::new(Outcome::FINISHED);
            row.due = Some(due);
            row.sent = Some(later(due, args.get("issue_start_ns").int()?));
            row.end = Some(later(due, args.get("complete_ns").int()?));
            self.rows.push(row);
        }
        Some(())
    }
}

pub(super) fn read(lines: &Lines, detail: Option<&FileRead>) -> Foreign {
    let mut part = ForeignPart::new("performance");
    part.due = ForeignDue::Scheduled;
    part.rows = lines.rows.clone();
    for row in &mut part.rows {
        row.first_token = row.due.and_then(|due| lines.first.get(&due)).copied();
        row.first_event = row.first_token;
    }
    part.rows.sort_by_key(|row| row.due);
    let spans = |to: fn(&ForeignRow) -> Option<i64>| -> Vec<f64> {
        part.rows.iter().filter_map(|row| Some((to(row)? - row.due?) as f64)).collect()
    };
    let (whole, first) = (spans(|row| row.end), spans(|row| row.first_token));
    let count = part.rows.len();
    let latency = part.column("latency", "scheduled → complete, ns", whole);
    let first = part.column("first_token", "scheduled → first token, ns", first);
    let all = part.column("queries", "queries issued", vec![1.0; count]);
    let mut version = None;
    let (mut model, mut tokens_off) = (None, false);
    let text = detail.map(|file| String::from_utf8_lossy(file.bytes()).into_owned()).unwrap_or_default();
    for line in text.lines().filter_map(|line| line.trim().strip_prefix(":::MLLOG ")) {
        let Ok(document) = json::read(line.as_bytes()) else { continue };
        let (key, value) = (document.root.get("key"), document.root.get("value"));
        let Some(key) = key.text() else { continue };
        match key {
            "loadgen_version" => version = value.text().and_then(|v| v.split(' ').next()).map(str::to_owned),
            "sut_name" => model = value.text().map(str::to_owned),
            "effective_scenario" if value.text() == Some("Server") => {
                part.process = Some(ForeignProcess::Poisson)
            }
            "effective_target_qps" => {
                part.load =
                    value.finite().filter(|rate| *rate > 0.0).map(|rate_per_s| Load::Open { rate_per_s });
            }
            "result_token_throughput" => tokens_off |= value.finite().is_some_and(|v| v > 0.0 && v < 1e-3),
            "result_query_count" => {
                part.claim(key, Some(all), ForeignStatistic::Count, (1.0, 0.0), value.finite());
            }
            key => aggregate(&mut part, key, value, (latency, first)),
        }
    }
    if tokens_off {
        part.seen.push("result_token_throughput is off by 10⁹: the tool divides by ns".into());
    }
    let mut foreign = Foreign {
        tool: "MLPerf LoadGen",
        version,
        format: "mlperf_log_trace.json",
        clock: ForeignClock::Monotonic,
        model,
        url: None,
        parts: vec![part],
        partial: None,
        doubts: vec![Doubt::ClientLimit, Doubt::LateStamps, Doubt::RepeatedPrompts, Doubt::CutAnswers],
    };
    if lines.cut || !lines.ended {
        partial(
            &mut foreign,
            "the trace ends before its last line; samples in flight then are missing".into(),
        );
    }
    foreign
}

/// Parses `result_first_token_99.00_percentile_latency_ns` and similar keys; whole ns.
fn aggregate(part: &mut ForeignPart, key: &str, value: &Json<'_>, (latency, first): (usize, usize)) {
    let Some(rest) = key.strip_prefix("result_") else { return };
    if rest.contains("time_per_output_token") || rest.contains("time_to_output_token") {
        part.claim(key, None, ForeignStatistic::Mean, (1.0, 0.0), value.finite());
        return;
    }
    let (column, rest) = match rest.strip_prefix("first_token_") {
        Some(rest) => (first, rest),
        None => (latency, rest),
    };
    let statistic = match rest {
        "min_latency_ns" => Some(ForeignStatistic::Least),
        "max_latency_ns" => Some(ForeignStatistic::Most),
        "mean_latency_ns" => Some(ForeignStatistic::Mean),
        rest => rest
            .strip_suffix("_percentile_latency_ns")
            .and_then(|p| p.parse::<f64>().ok())
            .map(|percent| ForeignStatistic::Quantile { p: percent / 100.0, rank: Rank::Above }),
    };
    if let Some(statistic) = statistic {
        part.claim(key, Some(column), statistic, (1.0, 1.0), value.finite());
    }
}
