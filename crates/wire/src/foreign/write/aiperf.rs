//! AIPerf's folder (0.13.0, export schema 1.4), of one level: `profile_export.jsonl`, a line per request, and
//! `profile_export_aiperf.json`, the aggregates.
//!
//! A credit is issued when a request is due, so that `effective_latency` is latency from due; its other latencies count from the start of
//! the request. That the credit is the schedule's instant is said by `plimsoll_due_ns` on each line: AIPerf's own credits are issued after
//! pacing and are no schedule. What does not count is of the phase `warmup`, which AIPerf leaves out of its aggregates. Tokens are the server's, for
//! its own count as for `usage_*`. Aggregates are by its metrics (`aiperf/metrics/types`), of requests that were answered.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use plimsoll_model::{Foreign, ForeignClock, ForeignPart, ForeignProcess, ForeignRow, How, Load};
use serde_json::{Map, Value, json};

use super::statistics::Sorted;

/// The version whose definitions these are.
const VERSION: &str = "0.13.0";
const SCHEMA: &str = "1.4";

/// The values of each metric, over the answers of a level, with the metric's unit.
type Metrics = BTreeMap<&'static str, (&'static str, Vec<f64>)>;

/// Writes the lines of a level and returns its aggregates. `id` is the run's identity, `beside` what the format has no name for; `time` writes an
/// instant in ms since 1970.
///
/// # Errors
/// What `out` says.
pub fn write(
    out: &mut dyn Write,
    run: &Foreign,
    part: &ForeignPart,
    (id, beside): (&str, &Value),
    time: fn(i64) -> String,
) -> Result<Value, fmt::Error> {
    let mut seen = Seen::default();
    for (number, row) in part.rows.iter().enumerate() {
        let metrics = metrics(row);
        let metadata = metadata(row, number);
        let mut line = json!({"metadata": metadata, "metrics": value(&metrics)});
        if let Some(error) = error(row) {
            line["error"] = error;
        }
        writeln!(out, "{line}")?;
        seen.push(row, &metrics);
    }
    Ok(seen.summary(run, part, (id, beside), time))
}

/// A request's metrics: one value, or all gaps.
fn metrics(row: &ForeignRow) -> Vec<(&'static str, &'static str, Vec<f64>)> {
    let ms = |ns: i64| ns as f64 / 1e6;
    let mut all = Vec::new();
    let (Some(sent), true) = (row.sent, row.outcome.is_finished()) else { return all };
    let mut put = |tag: &'static str, unit: &'static str, value: Option<f64>| {
        all.extend(value.map(|value| (tag, unit, vec![value])));
    };
    let since = |at: Option<i64>| at.map(|at| ms(at.saturating_sub(sent)));
    let ttft = since(row.first_token);
    let latency = since(row.last_token.or(row.end));
    put("time_to_first_token", "ms", ttft);
    put("time_to_first_output_token", "ms", ttft.and(since(row.first_visible.or(row.first_token))));
    put("request_latency", "ms", latency);
    let count = |tokens: Option<u32>| tokens.map(f64::from);
    let (prompt, output) = (count(row.prompt_tokens), count(row.output_tokens));
    put("input_sequence_length", "tokens", prompt);
    put("output_sequence_length", "tokens", output);
    put("usage_prompt_tokens", "tokens", prompt);
    put("usage_completion_tokens", "tokens", output);
    put("usage_total_tokens", "tokens", prompt.zip(output).map(|(prompt, output)| prompt + output));
    put("usage_prompt_cache_read_tokens", "tokens", count(row.cached_tokens));
    put("decode_duration", "ms", ttft.zip(latency).map(|(first, last)| last - first));
    let gap = ttft.zip(latency).zip(output.filter(|tokens| *tokens >= 2.0));
    let gap = gap.map(|((first, last), tokens)| (last - first) / (tokens - 1.0));
    put("inter_token_latency", "ms", gap);
    let speed = gap.filter(|gap| *gap > 0.0).map(|gap| 1e3 / gap);
    put("output_token_throughput_per_user", "tokens/sec/user", speed);
    let gaps: Vec<f64> =
        row.events.iter().zip(row.events.iter().skip(1)).map(|(a, b)| ms(b.saturating_sub(*a))).collect();
    put("time_to_second_token", "ms", gaps.first().copied());
    if !gaps.is_empty() {
        all.push(("inter_chunk_latency", "ms", gaps));
    }
    all
}

fn value(metrics: &[(&'static str, &'static str, Vec<f64>)]) -> Value {
    let each = metrics.iter().map(|(tag, unit, values)| {
        let value = match values.as_slice() {
            // Tokens are whole there.
            [one] if *unit == "tokens" => json!(*one as u64),
            [one] if *tag != "inter_chunk_latency" => json!(one),
            all => json!(all),
        };
        ((*tag).to_owned(), json!({"value": value, "unit": unit}))
    });
    Value::Object(each.collect())
}

fn metadata(row: &ForeignRow, number: usize) -> Value {
    let begin = row.sent.or(row.due).unwrap_or_default();
    json!({
        "session_num": number,
        "turn_index": 0,
        "credit_issued_ns": row.due,
        "plimsoll_due_ns": row.due,
        "request_start_ns": begin,
        "request_ack_ns": row.first_event,
        "request_end_ns": row.end.or(row.last_token).unwrap_or(begin),
        "worker_id": "plimsoll",
        "record_processor_id": "plimsoll",
        "benchmark_phase": if row.counted { "profiling" } else { "warmup" },
        "was_cancelled": row.outcome.how == How::Cancelled,
    })
}

/// How a request failed, in a word: what a server said of it may hold what was asked.
fn error(row: &ForeignRow) -> Option<Value> {
    let how = row.outcome.how.name();
    let is_error = !row.outcome.is_finished();
    is_error.then(|| json!({"code": row.status.filter(|code| *code >= 400), "type": how, "message": how}))
}

/// What is kept while lines are written.
#[derive(Default)]
struct Seen {
    metrics: Metrics,
    /// ms from due to the end, of every request that counts.
    effective: Vec<f64>,
    answered: u64,
    /// By what they say.
    errors: BTreeMap<String, (Value, u64)>,
    /// First start and last content of the answers.
    span: Option<(i64, i64)>,
}

impl Seen {
    fn push(&mut self, row: &ForeignRow, metrics: &[(&'static str, &'static str, Vec<f64>)]) {
        if !row.counted {
            return;
        }
        if let (Some(due), Some(end)) = (row.due, row.end) {
            self.effective.push(end.saturating_sub(due) as f64 / 1e6);
        }
        if let Some(error) = error(row) {
            self.errors.entry(error.to_string()).or_insert((error, 0)).1 += 1;
            return;
        }
        self.answered += 1;
        for (tag, unit, values) in metrics {
            self.metrics.entry(tag).or_insert_with(|| (unit, Vec::new())).1.extend(values);
        }
        if let (Some(sent), Some(last)) = (row.sent, row.last_token.or(row.end)) {
            let (from, to) = self.span.unwrap_or((sent, last));
            self.span = Some((from.min(sent), to.max(last)));
        }
    }

    fn summary(
        self,
        run: &Foreign,
        part: &ForeignPart,
        (id, beside): (&str, &Value),
        time: fn(i64) -> String,
    ) -> Value {
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
        put("schema_version", json!(SCHEMA));
        put("aiperf_version", json!(VERSION));
        put("benchmark_id", json!(id));
        put("input_config", input(run, part));
        put("was_cancelled", json!(false));
        put("is_complete", json!(run.partial.is_none()));
        let errors = self.errors.values();
        let errors = errors.map(|(error, count)| json!({"error_details": error, "count": count}));
        put("error_summary", Value::Array(errors.collect()));
        put("plimsoll", beside.clone());
        if let (Some((from, to)), ForeignClock::Wall) = (self.span, run.clock) {
            put("start_time", json!(time(from / 1_000_000)));
            put("end_time", json!(time(to / 1_000_000)));
        }
        let mut total = |name: &str, unit: &str, value: f64| {
            put(name, json!({"unit": unit, "avg": value}));
        };
        total("request_count", "requests", self.answered as f64);
        let failed: u64 = self.errors.values().map(|(_, count)| count).sum();
        if failed > 0 {
            total("error_request_count", "requests", failed as f64);
        }
        // A sum over some of the answers would be too low.
        let sum = |tag: &str| {
            let (_, values) = self.metrics.get(tag)?;
            (values.len() as u64 == self.answered).then(|| values.iter().sum::<f64>())
        };
        let (input, output) = (sum("input_sequence_length"), sum("output_sequence_length"));
        for (name, sum) in [("total_isl", input), ("total_osl", output), ("total_output_tokens", output)] {
            sum.into_iter().for_each(|sum| total(name, "tokens", sum));
        }
        let seconds = self.span.map(|(from, to)| to.saturating_sub(from) as f64 / 1e9);
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0.0) {
            total("benchmark_duration", "sec", seconds);
            total("request_throughput", "requests/sec", self.answered as f64 / seconds);
            let both = input.zip(output).map(|(input, output)| input + output);
            for (name, sum) in [("output_token_throughput", output), ("total_token_throughput", both)] {
                sum.into_iter().for_each(|sum| total(name, "tokens/sec", sum / seconds));
            }
        }
        let effective = ("effective_latency", ("ms", self.effective));
        for (tag, (unit, values)) in self.metrics.into_iter().chain([effective]) {
            if let Some(block) = block(unit, values) {
                all.insert(tag.to_owned(), block);
            }
        }
        Value::Object(all)
    }
}

fn block(unit: &str, values: Vec<f64>) -> Option<Value> {
    let values = Sorted::new(values)?;
    let mut all = json!({
        "unit": unit,
        "avg": values.mean(),
        "min": values.least(),
        "max": values.most(),
        "std": values.deviation(),
        "count": values.len(),
        "sum": values.sum(),
    });
    for percent in [1, 5, 10, 25, 50, 75, 90, 95, 99] {
        all[format!("p{percent}")] = json!(values.at(f64::from(percent) / 100.0));
    }
    Some(all)
}

/// What was asked, in AIPerf's words: arrivals of any other process are a schedule that it was given. Its reader wants a dataset and an address;
/// where there is none it is told one that the rules of names keep free.
fn input(run: &Foreign, part: &ForeignPart) -> Value {
    let mut phase = json!({"name": "profiling", "kind": "profiling", "requests": part.rows.len()});
    match (part.load, part.process) {
        (Some(Load::Open { rate_per_s }), Some(process)) => {
            phase["type"] = json!(match process {
                ForeignProcess::Constant => "constant",
                ForeignProcess::Poisson => "poisson",
            });
            phase["rate"] = json!(rate_per_s);
        }
        (Some(Load::Open { .. }) | None, _) => phase["type"] = json!("fixed_schedule"),
        (Some(Load::Closed { concurrency } | Load::Saturating { concurrency }), _)
        | (Some(Load::Wave { requests: concurrency }), _) => {
            phase["type"] = json!("concurrency");
            phase["concurrency"] = json!(concurrency.max(1));
        }
    }
    let streams = part.rows.iter().any(|row| row.first_token.is_some());
    let url = run.url.as_deref().filter(|url| url.starts_with("http")).unwrap_or("http://none.invalid");
    json!({
        "models": {"items": [{"name": run.model.as_deref().unwrap_or("unknown")}]},
        "endpoint": {"type": if streams { "chat" } else { "embeddings" }, "streaming": streams, "urls": [url]},
        "datasets": [{"name": "main", "type": "synthetic", "entries": part.rows.len()}],
        "phases": [phase],
    })
}
