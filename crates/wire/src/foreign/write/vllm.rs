//! `vllm bench serve --save-result --save-detailed`: one object per level, one level per line, as `--append-result` writes several.
//!
//! `start_times − queue_times` is when a request was handed over to be sent. Here that is the instant at which it was due, so that a
//! reader who adds the two has latency from the schedule and one who does not has vLLM's own. The first gap of an answer follows its
//! first token: no chunk that names the role is in the lists. Aggregates are by vLLM's definitions
//! (`vllm/benchmarks/serve.py`, `calculate_metrics`): from sending, of answers that finished.

use std::fmt::Write;

use plimsoll_model::{Foreign, ForeignPart, ForeignRow, Load};
use serde_json::{Value, json};

/// Names and values in vLLM's order, lists last: a reader knows the file by the names at its head.
type Fields = Vec<(String, Value)>;

/// The file; `beside` says for each part what the format has no name for, and stands under `plimsoll`.
pub fn write(run: &Foreign, beside: &[Value]) -> String {
    let mut text = String::new();
    for (i, part) in run.parts.iter().enumerate() {
        let fields = fields(run, part, beside.get(i));
        let each = fields.iter().map(|(name, value)| format!("{}: {value}", json!(name)));
        let _ = writeln!(text, "{{{}}}", each.collect::<Vec<_>>().join(", "));
    }
    text
}

/// A request as the lists have it; failed ones have zeros, as vLLM writes them.
#[derive(Default)]
struct Row {
    sent: i64,
    queue: i64,
    ttft: Option<i64>,
    itls: Vec<f64>,
    latency: Option<i64>,
    tokens: Option<u32>,
    prompt: u32,
    error: &'static str,
}

impl Row {
    fn new(row: &ForeignRow) -> Row {
        let due = row.due.or(row.sent).unwrap_or_default();
        let sent = row.sent.unwrap_or(due);
        let mut own = Row {
            sent,
            queue: (sent - due).max(0),
            prompt: row.prompt_tokens.unwrap_or_default(),
            error: row.outcome.how.name(),
            ..Row::default()
        };
        if !row.outcome.is_finished() {
            return own;
        }
        own.error = "";
        own.ttft = row.first_token.map(|at| at - sent);
        own.latency = row.end.map(|at| at - sent);
        own.tokens = row.output_tokens.or(u32::try_from(row.events.len()).ok()).filter(|n| *n > 0);
        own.itls = gaps(row);
        own
    }
}

/// Between tokens, in s. Where only the first and the last are known the one gap is theirs.
fn gaps(row: &ForeignRow) -> Vec<f64> {
    let between = |pair: &[i64]| match pair {
        [a, b] => seconds(b - a),
        _ => 0.0,
    };
    match (row.events.len(), row.first_token, row.last_token) {
        (0, Some(first), Some(last)) if last > first => vec![seconds(last - first)],
        _ => row.events.windows(2).map(between).collect(),
    }
}

fn fields(run: &Foreign, part: &ForeignPart, beside: Option<&Value>) -> Fields {
    let rows: Vec<Row> = part.rows.iter().map(Row::new).collect();
    let each = |of: &dyn Fn(&Row) -> Value| Value::Array(rows.iter().map(of).collect());
    let span = |ns: Option<i64>| json!(seconds(ns.unwrap_or_default()));
    let rate = match part.load {
        Some(Load::Open { rate_per_s }) => json!(rate_per_s),
        _ => json!("inf"),
    };
    let has_tokens = rows.iter().any(|row| row.ttft.is_some());
    let mut fields: Fields = Vec::new();
    let mut put = |name: &str, value: Value| fields.push((name.to_owned(), value));
    put("endpoint_type", json!(if has_tokens { "openai" } else { "http" }));
    put("backend", json!("plimsoll"));
    put("label", Value::Null);
    put("model_id", json!(run.model));
    put("tokenizer_id", Value::Null);
    put("num_prompts", json!(rows.len()));
    put("request_rate", rate);
    put("max_concurrency", json!(part.cap));
    aggregates(&mut put, &rows);
    put("input_lens", each(&|row| json!(row.prompt)));
    put("output_lens", each(&|row| json!(row.tokens.unwrap_or_default())));
    put("ttfts", each(&|row| span(row.ttft)));
    put("itls", each(&|row| json!(row.itls)));
    put("latencies", each(&|row| span(row.latency)));
    put("start_times", each(&|row| json!(seconds(row.sent))));
    put("queue_times", each(&|row| json!(seconds(row.queue))));
    put("errors", each(&|row| json!(row.error)));
    put("plimsoll", beside.cloned().unwrap_or_default());
    fields
}

fn aggregates(put: &mut impl FnMut(&str, Value), rows: &[Row]) {
    let ok: Vec<&Row> = rows.iter().filter(|row| row.error.is_empty()).collect();
    let begin = rows.iter().map(|row| row.sent - row.queue).min().unwrap_or_default();
    let end = rows.iter().map(|row| row.sent + row.latency.unwrap_or_default()).max().unwrap_or_default();
    let duration = seconds(end - begin);
    let output: u64 = ok.iter().filter_map(|row| row.tokens).map(u64::from).sum();
    let input: u64 = ok.iter().map(|row| u64::from(row.prompt)).sum();
    let per_second = |n: u64| json!(if duration > 0.0 { n as f64 / duration } else { 0.0 });
    put("duration", json!(duration));
    put("completed", json!(ok.len()));
    put("failed", json!(rows.len() - ok.len()));
    put("total_input_tokens", json!(input));
    put("total_output_tokens", json!(output));
    put("request_throughput", per_second(ok.len() as u64));
    put("output_throughput", per_second(output));
    put("total_token_throughput", per_second(input + output));
    let ttfts: Vec<f64> = ok.iter().filter_map(|row| row.ttft).map(seconds).collect();
    let latencies: Vec<f64> = ok.iter().filter_map(|row| row.latency).map(seconds).collect();
    let tpots = ok.iter().filter_map(|row| {
        let gaps = f64::from(row.tokens?.checked_sub(1).filter(|n| *n > 0)?);
        Some((seconds(row.latency?) - seconds(row.ttft?)) / gaps)
    });
    let itls = ok.iter().flat_map(|row| row.itls.iter().copied());
    for (metric, values) in
        [("ttft", ttfts), ("tpot", tpots.collect()), ("itl", itls.collect()), ("e2el", latencies)]
    {
        for (statistic, value) in statistics(values) {
            put(&format!("{statistic}_{metric}_ms"), json!(1e3 * value));
        }
    }
}

/// As NumPy makes them: deviation over n, percentiles between neighbours. vLLM writes 0 of nothing.
fn statistics(mut values: Vec<f64>) -> Vec<(&'static str, f64)> {
    values.sort_by(f64::total_cmp);
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
    let at = |p: f64| {
        let rank = values.len().saturating_sub(1) as f64 * p;
        let value = |i: f64| values.get(i as usize).copied().unwrap_or_default();
        value(rank.floor()) + (value(rank.ceil()) - value(rank.floor())) * rank.fract()
    };
    vec![
        ("mean", mean),
        ("median", at(0.5)),
        ("std", (squares / n).sqrt()),
        ("p50", at(0.5)),
        ("p95", at(0.95)),
        ("p99", at(0.99)),
    ]
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{By, ForeignClock, ForeignDue, How, Outcome};

    use super::super::super::vllm::read;
    use super::*;

    const MS: i64 = 1_000_000;

    /// Due at `due` ms and sent `late` after it; tokens at these ms after sending.
    fn answer(due: i64, late: i64, tokens: &[i64]) -> ForeignRow {
        let mut row = ForeignRow::new(Outcome::FINISHED);
        let sent = 1_000_000 * MS + (due + late) * MS;
        row.due = Some(sent - late * MS);
        row.sent = Some(sent);
        row.events = tokens.iter().map(|ms| ms * MS).collect();
        row.first_token = row.events.first().map(|at| sent + at);
        row.first_event = row.first_token;
        row.last_token = row.events.last().map(|at| sent + at);
        row.end = row.last_token.map(|at| at + MS);
        row.output_tokens = Some(tokens.len() as u32);
        row.prompt_tokens = Some(7);
        row
    }

    fn run(parts: Vec<ForeignPart>) -> Foreign {
        Foreign {
            tool: "Plimsoll",
            version: None,
            format: "a run",
            clock: ForeignClock::Wall,
            model: Some("m".to_owned()),
            url: None,
            parts,
            partial: None,
            doubts: Vec::new(),
        }
    }

    #[test]
    fn what_is_written_is_read_back_with_its_due_times() {
        let mut part = ForeignPart::new("level 0");
        part.load = Some(Load::Open { rate_per_s: 10.0 });
        part.rows = vec![answer(0, 0, &[5, 6, 8]), answer(100, 30, &[4]), answer(200, 900, &[4, 40])];
        let mut failed = answer(300, 2, &[3]);
        failed.outcome = Outcome::new(How::Timeout, By::Client, true);
        part.rows.push(failed);
        let second = ForeignPart { rows: vec![answer(5_000, 1, &[9, 10])], ..part.clone() };
        let written = write(&run(vec![part.clone(), second.clone()]), &[]);
        let back = read(written.as_bytes()).expect("a file of vLLM's");
        assert_eq!(back.parts.len(), 2);
        for (part, back) in [part, second].iter().zip(&back.parts) {
            assert_eq!(back.due, ForeignDue::Handed);
            assert_eq!((back.load, back.rows.len()), (part.load, part.rows.len()));
            for (row, back) in part.rows.iter().zip(&back.rows) {
                assert_eq!((back.due, back.sent), (row.due, row.sent));
                assert_eq!(back.outcome.is_finished(), row.outcome.is_finished());
                if row.outcome.is_finished() {
                    let of = |row: &ForeignRow| (row.first_token, row.last_token, row.end, row.output_tokens);
                    assert_eq!(of(back), of(row));
                    assert_eq!(back.events, row.events);
                }
            }
        }
    }
}
