//! GuideLLM's report, version 2 (`guidellm/benchmark/schemas`, 0.8.1): a benchmark per level, each with its requests by outcome.
//!
//! It has the schedule: `targeted_start` is when a request was due, and `request_scheduled_latency` counts from there; its other latencies
//! count from `request_start`. A failed request has no `request_end`, and its latency is 0 in `errored`, as GuideLLM writes it. All requests
//! count, because it has no phase for those that warm up other than a time at the front. Where it wants a figure that a run has not, a
//! delay is −1 and a distribution has a count of 0: so it writes them itself.

use std::fmt::{self, Write};

use plimsoll_model::{Foreign, ForeignPart, ForeignProcess, ForeignRow, How, Load};
use serde_json::{Map, Value, json};

use super::distribution::{self, Weighted};

/// The version whose definitions these are.
const VERSION: &str = "0.8.1";
/// What it writes for a delay that is not known.
const UNKNOWN: f64 = -1.0;

/// Writes the report of a run whose identity is `id`; `beside` says for each part what the format has no name for, and stands under `plimsoll`.
///
/// # Errors
/// What `out` says.
pub fn write(out: &mut dyn Write, run: &Foreign, id: &str, beside: &[Value]) -> fmt::Result {
    let metadata = json!({
        "version": 2,
        "guidellm_version": VERSION,
        "python_version": "",
        "platform": "",
        "plimsoll": {"run": id, "version": run.version, "partial": run.partial},
    });
    // Its reader wants data, and knows kinds that say where prompts came from. None of them is ours.
    let spec = json!({"spec": {
        "backend": backend(run),
        "profile": profile(&run.parts),
        "data": [{"kind": "in_memory_dict", "data": {"run": [id]}}],
    }});
    write!(out, "{{\"metadata\": {metadata}, \"config\": {spec}, \"benchmarks\": [")?;
    for (i, part) in run.parts.iter().enumerate() {
        let rows: Vec<Row> = part.rows.iter().map(Row::new).collect();
        if i > 0 {
            out.write_char(',')?;
        }
        write!(out, "\n{{\"type_\": \"generative_benchmark\", \"config\": {}", config(run, part, id, i))?;
        for (name, block) in blocks(part, &rows) {
            write!(out, ", \"{name}\": {block}")?;
        }
        requests(out, i, &rows)?;
        write!(out, ", \"plimsoll\": {}}}", beside.get(i).unwrap_or(&Value::Null))?;
    }
    out.write_str("\n]}\n")
}

/// Which of the three lists a request stands in.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Status {
    Successful,
    Incomplete,
    Errored,
}

impl Status {
    const ALL: [(Status, &str); 3] = [
        (Status::Successful, "successful"),
        (Status::Incomplete, "incomplete"),
        (Status::Errored, "errored"),
    ];
}

/// A request, its instants in s as a reader of the file will have them.
struct Row<'a> {
    row: &'a ForeignRow,
    status: Status,
    due: Option<f64>,
    sent: Option<f64>,
    first: Option<f64>,
    visible: Option<f64>,
    last: Option<f64>,
    /// Of a whole answer.
    end: Option<f64>,
    resolve_start: Option<f64>,
    /// However it ended.
    resolve_end: f64,
    tokens: Option<u32>,
}

impl<'a> Row<'a> {
    fn new(row: &'a ForeignRow) -> Row<'a> {
        let at = |ns: Option<i64>| ns.map(|ns| decimal(ns).parse().unwrap_or_default());
        let sent = row.sent.filter(|_| row.outcome.how != How::NeverSent);
        let status = match row.outcome.how {
            How::Finished => Status::Successful,
            How::Cancelled | How::Unfinished | How::NeverSent => Status::Incomplete,
            _ => Status::Errored,
        };
        let last_known = row.end.or(row.last_token).or(sent).or(row.due);
        Row {
            row,
            status,
            due: at(row.due),
            sent: at(sent),
            first: at(row.first_token),
            visible: at(row.first_visible.or(row.first_token)),
            last: at(row.last_token),
            end: at(row.end.filter(|_| status == Status::Successful)),
            resolve_start: at(sent.or(row.due)),
            resolve_end: at(last_known).unwrap_or_default(),
            tokens: row.output_tokens.or(u32::try_from(row.events.len()).ok()).filter(|n| *n > 0),
        }
    }

    fn latency(&self) -> Option<f64> {
        Some(self.end? - self.sent?)
    }

    fn ttft_ms(&self) -> Option<f64> {
        Some(1e3 * (self.first? - self.sent?))
    }

    fn itl_ms(&self) -> Option<f64> {
        let gaps = self.tokens?.checked_sub(1).filter(|n| *n > 0)?;
        Some(1e3 * (self.last? - self.first?) / f64::from(gaps))
    }

    fn tpot_ms(&self) -> Option<f64> {
        Some(1e3 * (self.last.unwrap_or(self.over()) - self.sent?) / f64::from(self.tokens?))
    }

    fn over(&self) -> f64 {
        self.end.unwrap_or(self.resolve_end)
    }

    fn iterations(&self) -> usize {
        self.row.events.len()
    }

    /// When its tokens came, as GuideLLM takes it: evenly from the first to the last, as many per iteration.
    fn output(&self) -> Vec<Weighted> {
        let many = self.first.zip(self.last).filter(|_| self.iterations() > 1);
        let Some((first, last)) = many else {
            return vec![(self.last.unwrap_or(self.over()), f64::from(self.tokens.unwrap_or(0)))];
        };
        let mut all = vec![(first, f64::from(u8::from(self.tokens.is_some())))];
        all.extend(self.later(first, last));
        all
    }

    fn later(&self, first: f64, last: f64) -> impl Iterator<Item = Weighted> {
        let gaps = self.iterations().saturating_sub(1);
        let each = (f64::from(self.tokens.unwrap_or(0)) - 1.0) / gaps as f64;
        let count = if self.tokens.is_some_and(|tokens| tokens > 1) { gaps } else { 0 };
        let step = (last - first) / gaps as f64;
        (1..=count).map(move |i| (if i == gaps { last } else { first + step * i as f64 }, each))
    }

    fn prompt(&self) -> Weighted {
        (self.first.unwrap_or(self.over()), f64::from(self.row.prompt_tokens.unwrap_or(0)))
    }
}

/// ns as s, to the last digit: a float of the seconds since 1970 is off by a quarter of a microsecond.
fn decimal(ns: i64) -> String {
    format!("{}.{:09}", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000))
}

// ----------------------------------------------------------------------------------------- settings

fn backend(run: &Foreign) -> Value {
    json!({
        "kind": "openai_http",
        "target": run.url.as_deref().unwrap_or("unknown"),
        "model": run.model.as_deref().unwrap_or_default(),
    })
}

fn process(part: &ForeignPart) -> &'static str {
    match part.process {
        Some(ForeignProcess::Poisson) => "poisson",
        Some(ForeignProcess::Constant) => "constant",
        None => "trace",
    }
}

fn strategy(part: &ForeignPart) -> Value {
    match part.load {
        // The rate is no setting of a trace's; a reader who wants one finds it.
        Some(Load::Open { rate_per_s }) => json!({"type_": process(part), "rate": rate_per_s}),
        Some(Load::Closed { concurrency }) => json!({"type_": "concurrent", "streams": concurrency.max(1)}),
        Some(Load::Saturating { concurrency } | Load::Wave { requests: concurrency }) => {
            json!({"type_": "throughput", "max_concurrency": concurrency.max(1)})
        }
        None => json!({"type_": "trace"}),
    }
}

/// Of a report, by its first benchmark.
fn profile(parts: &[ForeignPart]) -> Value {
    let rates: Vec<f64> = parts
        .iter()
        .filter_map(|part| match part.load {
            Some(Load::Open { rate_per_s }) => Some(rate_per_s),
            _ => None,
        })
        .collect();
    match parts.first().map(|part| (part.load, part.process)) {
        Some((Some(Load::Closed { concurrency }), _)) => {
            json!({"kind": "concurrent", "streams": [concurrency.max(1)]})
        }
        Some((Some(Load::Open { .. }), Some(ForeignProcess::Poisson))) => {
            json!({"kind": "poisson", "rate": rates})
        }
        Some((Some(Load::Open { .. }), Some(ForeignProcess::Constant))) => {
            json!({"kind": "constant", "rate": rates})
        }
        Some((Some(Load::Saturating { concurrency } | Load::Wave { requests: concurrency }), _)) => {
            json!({"kind": "throughput", "max_concurrency": concurrency.max(1)})
        }
        _ => json!({"kind": "replay"}),
    }
}

fn config(run: &Foreign, part: &ForeignPart, id: &str, index: usize) -> Value {
    json!({
        "id_": format!("{id}-{index}"),
        "run_id": id,
        "run_index": index,
        "strategy": strategy(part),
        "constraints": {},
        "confidence": null,
        "profile": profile(std::slice::from_ref(part)),
        "requests": {},
        "backend": backend(run),
        "environment": {},
    })
}

// ---------------------------------------------------------------------------------------- aggregates

/// State and metrics, in GuideLLM's order.
fn blocks(part: &ForeignPart, rows: &[Row<'_>]) -> [(&'static str, Value); 3] {
    let of = |status: Status| rows.iter().filter(|row| row.status == status).count();
    let totals = json!({
        "successful": of(Status::Successful),
        "incomplete": of(Status::Incomplete),
        "errored": of(Status::Errored),
        "total": rows.len(),
    });
    let begins = rows.iter().filter_map(|row| row.due.into_iter().chain(row.sent).reduce(f64::min));
    let begin = begins.reduce(f64::min).unwrap_or_default();
    let sent = rows.iter().filter_map(|row| row.sent).reduce(f64::min).unwrap_or(begin);
    let end = rows.iter().map(|row| row.over()).reduce(f64::max).unwrap_or(begin);
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let (n, sum) = values.fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
        if n > 0.0 { sum / n } else { UNKNOWN }
    };
    let late = mean(&mut rows.iter().filter_map(|row| Some(row.sent? - row.due?)));
    let state = json!({
        "start_time": begin,
        "end_time": end,
        "start_requests_time": sent,
        "end_requests_time": end,
        "created_requests": rows.len(),
        "processed_requests": rows.len(),
        "successful_requests": totals["successful"],
        "errored_requests": totals["errored"],
        "cancelled_requests": totals["incomplete"],
    });
    let scheduler = json!({
        "start_time": begin,
        "request_start_time": sent,
        "measure_start_time": begin,
        "measure_end_time": end,
        "request_end_time": end,
        "end_time": end,
        "requests_made": totals,
        "queued_time_avg": UNKNOWN,
        "resolve_start_delay_avg": UNKNOWN,
        "resolve_targeted_start_delay_avg": UNKNOWN,
        "request_start_delay_avg": UNKNOWN,
        "request_targeted_start_delay_avg": late,
        "request_time_avg": mean(&mut rows.iter().filter_map(|row| row.latency())),
        "resolve_end_delay_avg": UNKNOWN,
        "resolve_time_avg": UNKNOWN,
        "finalized_delay_avg": UNKNOWN,
        "processed_delay_avg": UNKNOWN,
        "strategy_type": strategy(part)["type_"],
    });
    let metrics = metrics(part, rows, totals, (begin, end));
    [("scheduler_state", state), ("scheduler_metrics", scheduler), ("metrics", metrics)]
}

fn metrics(part: &ForeignPart, rows: &[Row<'_>], totals: Value, window: (f64, f64)) -> Value {
    // One value per request; a request without one is not in the distribution, unless GuideLLM takes 0 for it.
    let each = |of: &dyn Fn(&Row<'_>) -> Option<f64>| {
        by_status(rows, |row| of(row).map(|value| (value, 1.0)), |values| distribution::of(values, None))
    };
    let or_zero = |of: &dyn Fn(&Row<'_>) -> Option<f64>| each(&|row| Some(of(row).unwrap_or(0.0)));
    let weighted = |of: &dyn Fn(&Row<'_>) -> Option<Weighted>| {
        by_status(rows, of, |values| distribution::of(values, None))
    };
    let rate = |of: &dyn Fn(&Row<'_>) -> Vec<Weighted>| {
        by_status(rows, of, |events| distribution::rate(events, window))
    };
    let of_events = |of: &dyn Fn(&Row<'_>) -> Vec<Weighted>| {
        let weights =
            |row: &Row<'_>| of(row).into_iter().map(|(_, tokens)| (tokens, 1.0)).collect::<Vec<_>>();
        by_status(rows, weights, |values| distribution::of(values, None))
    };
    let later = |row: &Row<'_>| match (row.first, row.last) {
        (Some(first), Some(last)) => row.later(first, last).collect(),
        _ => Vec::new(),
    };
    let both = |row: &Row<'_>| {
        let (prompt, output) = (row.row.prompt_tokens, row.tokens);
        (prompt.is_some() || output.is_some())
            .then(|| f64::from(prompt.unwrap_or(0)) + f64::from(output.unwrap_or(0)))
    };
    let total_events = |row: &Row<'_>| {
        let mut all = vec![row.prompt()];
        all.append(&mut row.output());
        all
    };
    let mut all = json!({
        "request_totals": totals,
        "requests_per_second": rate(&|row| vec![(row.over(), 1.0)]),
        "request_concurrency": by_status(
            rows,
            |row| row.resolve_start.map(|begin| (begin, row.over())),
            |spans| distribution::concurrency(spans, window),
        ),
        "request_latency": or_zero(&|row| row.latency()),
        "request_streaming_iterations_count": each(&|row| Some(row.iterations() as f64)),
        "prompt_token_count": or_zero(&|row| row.row.prompt_tokens.map(f64::from)),
        "output_token_count": or_zero(&|row| row.tokens.map(f64::from)),
        "total_token_count": or_zero(&both),
        "time_to_first_token_ms": each(&|row| row.ttft_ms()),
        "time_to_first_output_token_ms": each(&|row| Some(1e3 * (row.visible? - row.sent?))),
        "time_per_output_token_ms": weighted(&|row| {
            Some((row.tpot_ms().unwrap_or(0.0), f64::from(row.tokens.unwrap_or(0))))
        }),
        "inter_token_latency_ms": weighted(&|row| {
            row.first?;
            Some((row.itl_ms().unwrap_or(0.0), f64::from(row.tokens.unwrap_or(1)) - 1.0))
        }),
        "time_to_last_round_trip_ms": each(&|_| None),
        "avg_round_trip_time_ms": each(&|_| None),
        "prompt_tokens_per_second": rate(&|row| vec![row.prompt()]),
        "output_tokens_per_second": rate(&|row| row.output()),
        "tokens_per_second": rate(&total_events),
        "output_tokens_per_iteration": of_events(&|row| row.output()),
        "iter_tokens_per_iteration": of_events(&later),
        "text": {"tokens": null, "words": null, "characters": null},
        "image": {"tokens": null, "images": null, "pixels": null, "bytes": null},
        "video": {"tokens": null, "frames": null, "seconds": null, "bytes": null},
        "audio": {"tokens": null, "samples": null, "seconds": null, "bytes": null},
        "tool_call": {"tokens": null, "mixed_tokens": null, "count": null},
    });
    // Only an open loop has a schedule to be late against.
    if matches!(part.load, Some(Load::Open { .. })) {
        all["request_dispatch_delay"] = each(&|row| Some(row.sent? - row.due?));
        all["request_scheduled_latency"] = each(&|row| Some(row.end? - row.due?));
    }
    all
}

/// A distribution for each list of requests and one for all.
fn by_status<'a, T: Copy, I: IntoIterator<Item = T>>(
    rows: &[Row<'a>],
    of: impl Fn(&Row<'a>) -> I,
    distribution: impl Fn(Vec<T>) -> Value,
) -> Value {
    let mut all = Map::new();
    for (status, name) in Status::ALL {
        let own = rows.iter().filter(|row| row.status == status).flat_map(&of);
        all.insert(name.to_owned(), distribution(own.collect()));
    }
    all.insert("total".to_owned(), distribution(rows.iter().flat_map(&of).collect()));
    Value::Object(all)
}

// ------------------------------------------------------------------------------------------ requests

fn requests(out: &mut dyn Write, index: usize, rows: &[Row<'_>]) -> fmt::Result {
    out.write_str(", \"requests\": {")?;
    for (status, name) in Status::ALL {
        write!(out, "\"{name}\": [")?;
        let own = rows.iter().enumerate().filter(|(_, row)| row.status == status);
        for (n, (i, row)) in own.enumerate() {
            out.write_str(if n == 0 { "\n" } else { ",\n" })?;
            request(out, &format!("{index}-{i}"), row)?;
        }
        out.write_str("], ")?;
    }
    out.write_str("\"total\": null}")
}

fn request(out: &mut dyn Write, id: &str, row: &Row<'_>) -> fmt::Result {
    let (own, sent) = (row.row, row.row.sent.filter(|_| row.sent.is_some()));
    let (status, error) = match row.status {
        Status::Successful => ("completed", None),
        Status::Incomplete => ("cancelled", None),
        Status::Errored => ("errored", Some(own.outcome.how.name())),
    };
    write!(
        out,
        "{{\"type_\": \"generative_request_stats\", \"request_id\": \"{id}\", \"info\": {{\"request_id\": \"{id}\", \
         \"status\": \"{status}\", \"error\": {}, \"timings\": {{",
        json!(error)
    )?;
    let resolve_end = own.end.or(own.last_token).or(sent).or(own.due);
    let instants = [
        ("targeted_start", own.due),
        ("resolve_start", sent.or(own.due)),
        ("request_start", sent),
        ("first_request_iteration", own.first_event),
        ("first_token_iteration", own.first_token),
        ("first_output_token_iteration", own.first_visible.or(own.first_token)),
        ("last_token_iteration", own.last_token),
        ("request_end", own.end.filter(|_| row.end.is_some())),
        ("resolve_end", resolve_end),
    ];
    for (name, at) in instants {
        match at {
            Some(ns) => write!(out, "\"{name}\": {}, ", decimal(ns))?,
            None => write!(out, "\"{name}\": null, ")?,
        }
    }
    let iterations = row.iterations();
    write!(out, "\"request_iterations\": {iterations}, \"token_iterations\": {iterations}}}}}")?;
    let input = json!({
        "text_tokens": own.prompt_tokens,
        "total_tokens": own.prompt_tokens,
        "cached_tokens": own.cached_tokens,
    });
    let output = json!({"text_tokens": own.output_tokens, "total_tokens": own.output_tokens});
    write!(out, ", \"input_metrics\": {input}, \"output_metrics\": {output}")?;
    let figures: [(&str, Option<f64>); 6] = [
        ("request_latency", row.latency()),
        ("request_dispatch_delay", row.sent.zip(row.due).map(|(sent, due)| sent - due)),
        ("request_scheduled_latency", row.end.zip(row.due).map(|(end, due)| end - due)),
        ("time_to_first_token_ms", row.ttft_ms()),
        ("time_per_output_token_ms", row.tpot_ms()),
        ("inter_token_latency_ms", row.itl_ms()),
    ];
    for (name, value) in figures {
        write!(out, ", \"{name}\": {}", json!(value))?;
    }
    out.write_char('}')
}
