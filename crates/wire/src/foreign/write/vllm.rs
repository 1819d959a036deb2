//! `vllm bench serve --save-result --save-detailed`: one object per level, one level per line, as `--append-result` writes several.
//!
//! `start_times − queue_times` is when a request was handed over to be sent. Here that is the instant at which it was due, so that a
//! reader who adds the two has latency from the schedule and one who does not has vLLM's own. The first gap of an answer follows its
//! first token: no chunk that names the role is in the lists. Aggregates are by vLLM's definitions
//! (`vllm/benchmarks/serve.py`, `calculate_metrics`): from sending, of answers that finished.

use std::fmt::{self, Write};

use plimsoll_model::{Foreign, ForeignPart, ForeignRow, Load};
use serde_json::{Value, json};

use super::statistics::{Sorted, seconds};

/// Writes the file; `beside` says for each part what the format has no name for, and stands under `plimsoll`.
///
/// # Errors
/// What `out` says.
pub fn write(out: &mut dyn Write, run: &Foreign, beside: &[Value]) -> fmt::Result {
    for (i, part) in run.parts.iter().enumerate() {
        let rows: Vec<Row> = part.rows.iter().map(Row::new).collect();
        // Names in vLLM's order, lists last: a reader knows the file by the names at its head.
        let head = head(run, part, &rows);
        for (i, (name, value)) in head.iter().enumerate() {
            let before = if i == 0 { "{" } else { ", " };
            write!(out, "{before}{}: {value}", json!(name))?;
        }
        lists(out, &rows)?;
        writeln!(out, ", \"plimsoll\": {}}}", beside.get(i).unwrap_or(&Value::Null))?;
    }
    Ok(())
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
    prompt: Option<u32>,
    error: &'static str,
}

impl Row {
    fn new(row: &ForeignRow) -> Row {
        let due = row.due.or(row.sent).unwrap_or_default();
        let sent = row.sent.unwrap_or(due);
        let mut own = Row {
            sent,
            queue: (sent - due).max(0),
            prompt: row.prompt_tokens,
            error: row.outcome.how.name(),
            ..Row::default()
        };
        if !row.outcome.is_finished() {
            return own;
        }
        own.error = "";
        own.ttft = row.first_token.map(|at| at - sent);
        own.latency = row.end.map(|at| at - sent);
        own.tokens = row.output_tokens.filter(|n| *n > 0);
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

fn head(run: &Foreign, part: &ForeignPart, rows: &[Row]) -> Vec<(String, Value)> {
    let rate = match part.load {
        Some(Load::Open { rate_per_s }) => json!(rate_per_s),
        _ => json!("inf"),
    };
    let has_tokens = rows.iter().any(|row| row.ttft.is_some());
    let mut fields = Vec::new();
    let mut put = |name: &str, value: Value| fields.push((name.to_owned(), value));
    put("endpoint_type", json!(if has_tokens { "openai" } else { "http" }));
    put("backend", json!("plimsoll"));
    put("label", Value::Null);
    put("model_id", json!(run.model));
    put("tokenizer_id", Value::Null);
    put("num_prompts", json!(rows.len()));
    put("request_rate", rate);
    put("max_concurrency", json!(part.cap));
    aggregates(&mut put, rows);
    fields
}

fn lists(out: &mut dyn Write, rows: &[Row]) -> fmt::Result {
    let span = |ns: Option<i64>| json!(seconds(ns.unwrap_or_default()));
    list(out, "input_lens", rows, |row| json!(row.prompt.unwrap_or_default()))?;
    list(out, "output_lens", rows, |row| json!(row.tokens.unwrap_or_default()))?;
    list(out, "ttfts", rows, |row| span(row.ttft))?;
    list(out, "itls", rows, |row| json!(row.itls))?;
    list(out, "latencies", rows, |row| span(row.latency))?;
    list(out, "start_times", rows, |row| json!(seconds(row.sent)))?;
    list(out, "queue_times", rows, |row| json!(seconds(row.queue)))?;
    list(out, "errors", rows, |row| json!(row.error))
}

fn list(out: &mut dyn Write, name: &str, rows: &[Row], of: impl Fn(&Row) -> Value) -> fmt::Result {
    for (i, row) in rows.iter().enumerate() {
        match i {
            0 => write!(out, ", \"{name}\": [{}", of(row))?,
            _ => write!(out, ", {}", of(row))?,
        }
    }
    if rows.is_empty() { write!(out, ", \"{name}\": []") } else { out.write_char(']') }
}

fn aggregates(put: &mut impl FnMut(&str, Value), rows: &[Row]) {
    let ok: Vec<&Row> = rows.iter().filter(|row| row.error.is_empty()).collect();
    let begin = rows.iter().map(|row| row.sent - row.queue).min().unwrap_or_default();
    let end = rows.iter().map(|row| row.sent + row.latency.unwrap_or_default()).max().unwrap_or_default();
    let duration = seconds(end - begin);
    // Of tokens that no answer says there is no sum, and none of them is zero.
    let sum = |of: fn(&Row) -> Option<u32>| {
        let said = ok.iter().filter_map(|row| of(row)).map(u64::from);
        ok.iter().any(|row| of(row).is_some()).then(|| said.sum::<u64>())
    };
    let (input, output) = (sum(|row| row.prompt), sum(|row| row.tokens));
    put("duration", json!(duration));
    put("completed", json!(ok.len()));
    put("failed", json!(rows.len() - ok.len()));
    let both = input.zip(output).map(|(input, output)| input + output);
    for (name, sum) in [("total_input_tokens", input), ("total_output_tokens", output)] {
        sum.into_iter().for_each(|sum| put(name, json!(sum)));
    }
    let rates = [
        ("request_throughput", Some(ok.len() as u64)),
        ("output_throughput", output),
        ("total_token_throughput", both),
    ];
    for (name, sum) in rates {
        sum.filter(|_| duration > 0.0).into_iter().for_each(|sum| put(name, json!(sum as f64 / duration)));
    }
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
        // vLLM writes 0 of nothing; what is not there is left out.
        let Some(values) = Sorted::new(values) else { continue };
        let statistics = [
            ("mean", values.mean()),
            ("median", values.at(0.5)),
            ("std", values.deviation()),
            ("p50", values.at(0.5)),
            ("p95", values.at(0.95)),
            ("p99", values.at(0.99)),
        ];
        for (statistic, value) in statistics {
            put(&format!("{statistic}_{metric}_ms"), json!(1e3 * value));
        }
    }
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
        let mut written = String::new();
        write(&mut written, &run(vec![part.clone(), second.clone()]), &[]).expect("a string takes all");
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
