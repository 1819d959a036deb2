//! GuideLLM's report (version 2, and version 1 whose `args` became `config`): benchmarks, each with its requests by outcome.
//!
//! Instants are epoch seconds. `targeted_start` is the schedule's instant where the strategy has one (constant, poisson, timed
//! traces); elsewhere it means "as soon as possible" and is left out. Tokens between the first and the last are not kept. Its
//! percentiles are read off a running sum of 1/n. Requests that were prepared and never due (`cancelled_requests`) are no failures.

use plimsoll_model::{
    By, Doubt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignProcess, ForeignRow, How, Load,
    Outcome, Rank,
};

use super::json::{Document, Json};
use super::{CUT, failed, hashed, said};

pub(super) fn read(document: &Document<'_>) -> Foreign {
    let root = &document.root;
    let benchmarks = root.get("benchmarks").items();
    let version = root.at(&["metadata", "guidellm_version"]).text().map(str::to_owned);
    let is_first =
        root.at(&["metadata", "version"]).int() == Some(1) || (root.has("args") && !root.has("config"));
    let backend = root.at(&["config", "spec", "backend"]);
    let text = |json: &Json<'_>| json.text().map(str::to_owned);
    Foreign {
        tool: "GuideLLM",
        version,
        format: if is_first { "report, version 1" } else { "report, version 2" },
        clock: ForeignClock::Wall,
        model: text(backend.get("model")).or_else(|| text(root.at(&["args", "model"]))),
        url: text(backend.get("target")).or_else(|| text(root.at(&["args", "target"]))),
        parts: benchmarks.iter().filter(|b| b.is_map()).map(part).collect(),
        partial: (!document.whole).then(|| CUT.to_owned()),
        doubts: vec![
            Doubt::ClientLimit,
            Doubt::LateStamps,
            Doubt::TokensPerEvent,
            Doubt::RepeatedPrompts,
            Doubt::CutAnswers,
        ],
    }
}

fn part(benchmark: &Json<'_>) -> ForeignPart {
    let strategy = benchmark.at(&["config", "strategy"]);
    let kind = strategy.get("type_").text().unwrap_or("unknown strategy").to_owned();
    let streams = strategy.get("streams").count();
    let rate = strategy.get("rate").finite().filter(|rate| *rate > 0.0);
    let mut part = ForeignPart::new(match (rate, streams) {
        (Some(rate), _) => format!("{kind} {rate}/s"),
        (None, Some(streams)) => format!("{kind} {streams}"),
        (None, None) => kind.clone(),
    });
    part.load = match (kind.as_str(), rate, streams) {
        ("synchronous", ..) => Some(Load::Closed { concurrency: 1 }),
        (_, Some(rate_per_s), _) => Some(Load::Open { rate_per_s }),
        (_, None, Some(concurrency)) => Some(Load::Closed { concurrency }),
        ("throughput", ..) => {
            strategy.get("max_concurrency").count().map(|concurrency| Load::Closed { concurrency })
        }
        _ => None,
    };
    part.process = match kind.as_str() {
        "poisson" => Some(ForeignProcess::Poisson),
        "constant" => Some(ForeignProcess::Constant),
        _ => None,
    };
    part.seed = strategy.get("random_seed").int().and_then(|seed| u64::try_from(seed).ok());
    part.cap = strategy.get("max_concurrency").count();
    let is_timed = part.process.is_some() || kind == "replay" || kind == "trace";
    part.due = if is_timed { ForeignDue::Scheduled } else { ForeignDue::Unknown };
    let requests = benchmark.get("requests");
    let ok: Vec<&Json<'_>> = requests.get("successful").items().iter().filter(|r| !r.is_cut()).collect();
    for request in &ok {
        part.rows.push(row(request, Outcome::FINISHED, is_timed));
    }
    for request in requests.get("errored").items().iter().filter(|r| r.is_map() && !r.is_cut()) {
        part.rows.push(row(request, failed(None), is_timed));
    }
    for request in requests.get("incomplete").items().iter().filter(|r| r.is_map() && !r.is_cut()) {
        part.rows.push(row(request, Outcome::new(How::Unfinished, By::Client, false), is_timed));
    }
    part.rows.sort_by_key(|row| row.due.or(row.sent));
    let total = benchmark.at(&["metrics", "request_totals", "total"]).int().unwrap_or(0).max(0) as u64;
    part.rows_missing = total.saturating_sub(part.rows.len() as u64);
    columns(&mut part, benchmark, &ok);
    part
}

fn row(request: &Json<'_>, outcome: Outcome, is_timed: bool) -> ForeignRow {
    let timings = request.at(&["info", "timings"]);
    let at = |name: &str| timings.get(name).seconds_ns().filter(|ns| *ns > 0);
    let mut row = ForeignRow::new(outcome);
    row.due = at("targeted_start").filter(|_| is_timed);
    row.sent = at("request_start");
    row.first_event = at("first_request_iteration");
    row.first_token = at("first_token_iteration");
    row.first_visible = at("first_output_token_iteration");
    row.last_token = at("last_token_iteration");
    row.end = at("request_end").or_else(|| at("resolve_end"));
    let tokens = |block: &str, name: &str| request.at(&[block, name]).count();
    row.prompt_tokens =
        tokens("input_metrics", "text_tokens").or_else(|| tokens("input_metrics", "total_tokens"));
    row.cached_tokens = tokens("input_metrics", "cached_tokens");
    row.output_tokens =
        tokens("output_metrics", "text_tokens").or_else(|| tokens("output_metrics", "total_tokens"));
    row.output_tokens = row.output_tokens.filter(|n| *n > 0);
    row.prompt = request.get("request_args").text().map(hashed);
    row
}

/// By `guidellm/benchmark/schemas`: of the requests that were answered.
fn columns(part: &mut ForeignPart, benchmark: &Json<'_>, ok: &[&Json<'_>]) {
    let time = |request: &Json<'_>, name: &str| request.at(&["info", "timings", name]).finite();
    let between = |from: &str, to: &str| -> Vec<f64> {
        let spans = ok.iter().map(|request| Some(time(request, to)? - time(request, from)?));
        spans.flatten().collect()
    };
    let out = |request: &Json<'_>| request.at(&["output_metrics", "total_tokens"]).count();
    let ms = |spans: Vec<f64>| -> Vec<f64> { spans.into_iter().map(|s| 1e3 * s).collect() };
    // Means per request, counted once per token; of gaps those that begin inside the tool's measuring window.
    let until = benchmark.at(&["scheduler_metrics", "measure_end_time"]).finite().unwrap_or(f64::INFINITY);
    let per_token = |from: &str, less: u32| -> Vec<f64> {
        let mut all = Vec::new();
        for request in ok {
            let (Some(from), Some(to)) = (time(request, from), time(request, "last_token_iteration")) else {
                continue;
            };
            let tokens = out(request).unwrap_or(0).saturating_sub(less).min(1 << 20);
            if less == 0 || from <= until {
                all.extend((0..tokens).map(|_| 1e3 * (to - from) / f64::from(tokens)));
            }
        }
        all
    };
    let count = |block: &str| -> Vec<f64> {
        ok.iter().filter_map(|request| request.at(&[block, "total_tokens"]).finite()).collect()
    };
    let columns: [(&str, &str, Vec<f64>); 9] = [
        (
            "time_to_first_token_ms",
            "request_start → first_token_iteration",
            ms(between("request_start", "first_token_iteration")),
        ),
        (
            "time_to_first_output_token_ms",
            "request_start → first_output_token_iteration",
            ms(between("request_start", "first_output_token_iteration")),
        ),
        ("request_latency", "request_start → request_end", between("request_start", "request_end")),
        (
            "request_dispatch_delay",
            "targeted_start → request_start",
            between("targeted_start", "request_start"),
        ),
        (
            "request_scheduled_latency",
            "targeted_start → request_end",
            between("targeted_start", "request_end"),
        ),
        (
            "inter_token_latency_ms",
            "(last − first token) / (tokens − 1) of a request whose first token came within the measuring window, counted tokens − 1 times",
            per_token("first_token_iteration", 1),
        ),
        (
            "time_per_output_token_ms",
            "(last token − request_start) / tokens of a request, counted once per token: the first token's wait is in it",
            per_token("request_start", 0),
        ),
        ("prompt_token_count", "tokens of the prompt", count("input_metrics")),
        ("output_token_count", "tokens of the answer", count("output_metrics")),
    ];
    for (name, definition, values) in columns {
        let said = benchmark.at(&["metrics", name, "successful"]);
        if !said.is_map() || values.is_empty() {
            continue;
        }
        let column = part.column(name, definition, values);
        for (key, value) in said.fields().iter().filter(|(key, _)| key != "mode" && key != "variance") {
            if let Some(statistic) = said::statistic(key, Rank::Summed) {
                part.claim(format!("{name}.{key}"), Some(column), statistic, (1.0, 0.0), value.finite());
            }
        }
        for (key, value) in said.get("percentiles").fields() {
            let p = match key.as_ref() {
                "p001" => Some(0.001),
                "p999" => Some(0.999),
                key => key.strip_prefix('p').and_then(|p| p.parse::<f64>().ok()).map(|p| p / 100.0),
            };
            if let Some(p) = p {
                let statistic = plimsoll_model::ForeignStatistic::Quantile { p, rank: Rank::Summed };
                part.claim(format!("{name}.{key}"), Some(column), statistic, (1.0, 0.0), value.finite());
            }
        }
    }
}
