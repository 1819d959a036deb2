//! Parses `vllm bench serve --save-result` of the Python client and of the Rust client: one object per run, requests as parallel lists.
//!
//! Rows need `--save-detailed`. Times are seconds, `start_times` of a monotonic clock. A request is handed over at
//! `start_times − queue_times`, after the loop has slept and before it waits for a slot under `--max-concurrency`. On chat, the
//! first chunk has the role and the last one the finish reason. Tokens are between them, so the list of gaps is longer by two.
//! The older `benchmark_serving.py` has a `backend` in place of an `endpoint_type`, and no start times.
//! The Rust client (known by `steady_state`) records no `queue_times` and counts starts from the bench's own.

use plimsoll_model::{
    By, Doubt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignProcess, ForeignRow, ForeignStatistic,
    How, Load, Outcome, Rank,
};

use super::json::Json;
use super::{CUT, ForeignError, documents, failed, later, signed_ns, span_ns};

const TOOL: &str = "vLLM bench";

pub(super) fn read(bytes: &[u8]) -> Result<Foreign, ForeignError> {
    let (runs, whole) = documents(TOOL, bytes)?;
    let runs: Vec<&Json<'_>> = runs.iter().filter(|run| run.is_map()).collect();
    let is_rust = runs.iter().any(|run| run.has("steady_state"));
    let mut parts: Vec<ForeignPart> = runs.iter().enumerate().map(|(i, run)| part(run, i)).collect();
    let has_starts =
        !parts.is_empty() && parts.iter().all(|part| part.rows.iter().any(|row| row.first_start()));
    if !has_starts {
        parts.iter_mut().for_each(durations_only);
    }
    let first = runs.first();
    let text = |name: &str| first.and_then(|run| run.get(name).text()).map(str::to_owned);
    let mut doubts = vec![
        Doubt::CoordinatedOmission,
        Doubt::ClientLimit,
        Doubt::LateStamps,
        Doubt::TokensPerEvent,
        Doubt::RepeatedPrompts,
        Doubt::CutAnswers,
    ];
    if is_rust {
        doubts.push(Doubt::HiddenRetries);
    }
    if !has_starts {
        doubts.push(Doubt::NoOrder);
    }
    Ok(Foreign {
        tool: TOOL,
        version: None,
        format: if is_rust { "the client in Rust" } else { "the client in Python" },
        clock: if has_starts { ForeignClock::Monotonic } else { ForeignClock::None },
        model: text("model_id"),
        url: None,
        parts,
        partial: (!whole).then(|| CUT.to_owned()),
        doubts,
    })
}

/// Returns whether the row's send time is on a clock, and not the 0 of a separate axis per request.
trait StartStamp {
    fn first_start(&self) -> bool;
}

impl StartStamp for ForeignRow {
    fn first_start(&self) -> bool {
        self.sent.is_some_and(|sent| sent != 0)
    }
}

fn durations_only(part: &mut ForeignPart) {
    for row in &mut part.rows {
        let Some(sent) = row.sent.filter(|sent| *sent != 0) else { continue };
        let own = |at: &mut Option<i64>| *at = at.map(|at| at - sent);
        own(&mut row.due);
        own(&mut row.sent);
        own(&mut row.first_event);
        own(&mut row.first_token);
        own(&mut row.last_token);
        own(&mut row.end);
    }
}

fn part(run: &Json<'_>, number: usize) -> ForeignPart {
    let mut part = ForeignPart::new(match run.get("date").text() {
        Some(date) => format!("run of {date}"),
        None => format!("run {}", number + 1),
    });
    let rate = run.get("request_rate").number();
    let burstiness = run.get("burstiness").number();
    let ramps = run.get("ramp_up_strategy").text().is_some();
    part.cap = run.get("max_concurrency").count();
    part.load = match (rate.filter(|rate| rate.is_finite() && *rate > 0.0), part.cap) {
        (Some(rate_per_s), _) => Some(Load::Open { rate_per_s }),
        (None, Some(concurrency)) => Some(Load::Closed { concurrency }),
        (None, None) => {
            run.get("num_prompts").count().filter(|_| !ramps).map(|requests| Load::Wave { requests })
        }
    };
    if rate.is_some_and(f64::is_finite) && !ramps {
        part.process = match burstiness {
            Some(1.0) => Some(ForeignProcess::Poisson),
            Some(b) if b.is_infinite() => Some(ForeignProcess::Constant),
            _ => None,
        };
    }
    let itls = rows(&mut part, run);
    columns(&mut part, run, itls);
    part
}

/// Fills the rows and returns every gap of the answers, in s.
fn rows(part: &mut ForeignPart, run: &Json<'_>) -> Vec<f64> {
    let list = |name: &str| run.get(name).items();
    let (starts, queues) = (list("start_times"), list("queue_times"));
    let (ttfts, itls, latencies) = (list("ttfts"), list("itls"), list("latencies"));
    let (ins, outs, errors) = (list("input_lens"), list("output_lens"), list("errors"));
    let n = [starts, ttfts, latencies, queues, outs].iter().map(|list| list.len()).max().unwrap_or(0);
    let is_chat = ["endpoint_type", "backend"]
        .iter()
        .any(|key| run.get(key).text().is_some_and(|kind| kind.contains("chat")));
    let constant = match (part.process, part.load) {
        (Some(ForeignProcess::Constant), Some(Load::Open { rate_per_s })) if queues.is_empty() => {
            Some(rate_per_s)
        }
        _ => None,
    };
    let mut roles = 0u64;
    let mut all_gaps = Vec::new();
    for i in 0..n {
        let error = errors.get(i).and_then(Json::text).unwrap_or_default();
        let output = outs.get(i).and_then(Json::count);
        let latency = latencies.get(i).and_then(Json::finite);
        let ttft = ttfts.get(i).and_then(Json::finite);
        // A failed request has 0 in every list.
        let answered =
            latency.is_none_or(|s| s > 0.0) && (ttft.is_some_and(|s| s > 0.0) || latency.is_some());
        let ok = error.is_empty() && answered;
        // The lists of a truncated file end early. Rows after their end are unknown, not failed.
        let is_lost = run.is_cut() && ttft.is_none() && latency.is_none() && error.is_empty();
        let mut row = ForeignRow::new(match (ok, is_lost) {
            (true, _) => Outcome::FINISHED,
            (false, true) => Outcome::new(How::Unfinished, By::Client, false),
            (false, false) => failed(None),
        });
        let sent = starts.get(i).and_then(Json::seconds_ns).unwrap_or(0);
        row.sent = Some(sent);
        row.due = queues.get(i).and_then(Json::seconds_ns).map(|queue| later(sent, -queue.max(0)));
        if let Some(rate) = constant {
            row.due = Some(((i as f64 + 1.0) / rate * 1e9).round() as i64);
        }
        row.prompt_tokens = ins.get(i).and_then(Json::count).filter(|n| *n > 0);
        if ok {
            row.output_tokens = output.filter(|n| *n > 0);
            let gaps = itls.get(i).map(Json::numbers).unwrap_or_default();
            roles += u64::from(stream(&mut row, ttft, &gaps, is_chat));
            let all = ttft.map(|ttft| ttft + gaps.iter().sum::<f64>());
            all_gaps.extend_from_slice(&gaps);
            row.end = span_ns(latency.or(all), 1.0).map(|span| later(sent, span));
        }
        part.rows.push(row);
    }
    if !queues.is_empty() {
        part.due = ForeignDue::Handed;
    } else if constant.is_some() {
        part.due = ForeignDue::Scheduled;
    }
    if roles > 0 {
        part.seen.push(format!(
            "{roles} answers have a chunk more than tokens at their start: the file's ttft is that of the chunk that names \
             the role, and its first itl is the wait for the first token"
        ));
    }
    all_gaps
}

/// Assigns the chunks of a row; returns whether the first was the role's.
fn stream(row: &mut ForeignRow, ttft: Option<f64>, gaps: &[f64], is_chat: bool) -> bool {
    let (Some(sent), Some(first)) = (row.sent, span_ns(ttft, 1.0)) else { return false };
    row.first_event = Some(later(sent, first));
    let mut at = first;
    let mut chunks = vec![first];
    for gap in gaps {
        at = later(at, signed_ns(*gap, 1.0));
        chunks.push(at);
    }
    let more = row.output_tokens.map_or(0, |tokens| (chunks.len() as i64) - i64::from(tokens));
    let is_role = is_chat && more >= 1 && chunks.len() > 1;
    if is_role {
        chunks.remove(0);
    }
    if more >= if is_chat { 2 } else { 1 } && chunks.len() > 1 {
        chunks.pop();
    }
    row.first_token = chunks.first().map(|at| later(sent, *at));
    row.last_token = chunks.last().map(|at| later(sent, *at));
    row.events = chunks;
    is_role
}

/// Computes the client's aggregates from its lists: `vllm/benchmarks/serve.py`, `calculate_metrics`.
fn columns(part: &mut ForeignPart, run: &Json<'_>, itls: Vec<f64>) {
    let list = |name: &str| run.get(name).items();
    let ok: Vec<bool> = part.rows.iter().map(|row| row.outcome.is_finished()).collect();
    let of = |items: &[Json<'_>]| -> Vec<f64> {
        let ok = |i: usize| ok.get(i).copied().unwrap_or(false);
        items.iter().enumerate().filter(|(i, _)| ok(*i)).filter_map(|(_, v)| v.finite()).collect()
    };
    let (ttfts, latencies, outs) = (of(list("ttfts")), of(list("latencies")), of(list("output_lens")));
    let many = outs.iter().zip(ttfts.iter().zip(&latencies)).filter(|(out, _)| **out > 1.0);
    let tpots: Vec<f64> = many.map(|(out, (ttft, all))| (all - ttft) / (out - 1.0)).collect();
    let mut put = |name: &str, definition: &str, values: Vec<f64>| {
        (!values.is_empty()).then(|| part.column(name, definition, values))
    };
    let metrics = [
        ("ttft", put("ttft", "sending → first chunk, which on chat names the role and has no token", ttfts)),
        (
            "tpot",
            put(
                "tpot",
                "(latency − ttft) / (output tokens − 1): the role's chunk begins it, the chunk after the last token ends it",
                tpots,
            ),
        ),
        ("itl", put("itl", "every gap between chunks, including the role chunk and the end chunk", itls)),
        ("e2el", put("e2el", "sending → end of the answer", latencies)),
    ];
    let output = put("output tokens", "output_lens of the answers", outs);
    let input = of(list("input_lens"));
    let input = put("prompt tokens", "input_lens of the answers", input);
    for (metric, column) in metrics {
        for (key, value) in run.fields() {
            let Some(kind) = key.strip_suffix("_ms").and_then(|key| key.strip_suffix(metric)) else {
                continue;
            };
            let Some(kind) = kind.strip_suffix('_') else { continue };
            if let Some(statistic) = super::said::statistic(kind, Rank::Linear) {
                part.claim(key.as_ref(), column, statistic, (1e3, 0.0), value.finite());
            }
        }
    }
    let seconds = run.get("duration").finite().filter(|s| *s > 0.0);
    let exact = (1.0, 0.0);
    part.claim(
        "total_output_tokens",
        output,
        ForeignStatistic::Sum,
        exact,
        run.get("total_output_tokens").finite(),
    );
    part.claim(
        "total_input_tokens",
        input,
        ForeignStatistic::Sum,
        exact,
        run.get("total_input_tokens").finite(),
    );
    let answers = output.or(input);
    part.claim("completed", answers, ForeignStatistic::Count, exact, run.get("completed").finite());
    if let Some(seconds) = seconds {
        let rate = ForeignStatistic::PerSecond { seconds };
        part.claim("output_throughput", output, rate, exact, run.get("output_throughput").finite());
    }
}
