//! Parses GuideLLM's report (version 2, and version 1 whose `args` became `config`): benchmarks, each with its requests by outcome.
//!
//! Before 0.4, a report has benchmarks only, with `args` in place of `config`. Its requests use other names for these instants:
//! 0.2 has `scheduler_info.targeted_start_time` and `first_token_time`; 0.3 has `scheduler_info.request_timings`.
//!
//! Instants are epoch seconds. `targeted_start` is the scheduled instant if the strategy has one (constant, poisson, timed
//! traces); otherwise it means "as soon as possible" and is left out. Tokens between the first and the last are not recorded. Its
//! percentiles are read off a running sum of 1/n. Requests that were prepared and never due (`cancelled_requests`) are not failures.

use plimsoll_model::{
    By, Doubt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignProcess, ForeignRow, ForeignStatistic,
    How, Load, Outcome, Rank,
};

use super::json::{Document, Json};
use super::{CUT, failed, hashed, said};

pub(super) fn read(document: &Document<'_>) -> Foreign {
    let root = &document.root;
    let benchmarks = root.get("benchmarks").items();
    let version = root.at(&["metadata", "guidellm_version"]).text().map(str::to_owned);
    let is_old =
        !root.has("metadata") && !root.has("config") && benchmarks.iter().any(|b| b.has("run_stats"));
    let is_first =
        root.at(&["metadata", "version"]).int() == Some(1) || (root.has("args") && !root.has("config"));
    let backend = root.at(&["config", "spec", "backend"]);
    let text = |json: &Json<'_>| json.text().map(str::to_owned);
    Foreign {
        tool: "GuideLLM",
        version,
        format: match (is_old, is_first) {
            (true, _) => "report before 0.4",
            (_, true) => "report, version 1",
            _ => "report, version 2",
        },
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
    let strategy = match benchmark.at(&["config", "strategy"]) {
        strategy if strategy.is_map() => strategy,
        _ => benchmark.at(&["args", "strategy"]),
    };
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
    let total = benchmark.at(&["metrics", "request_totals", "total"]);
    let total = total.int().or(benchmark.at(&["request_totals", "total"]).int()).unwrap_or(0).max(0) as u64;
    part.rows_missing = total.saturating_sub(part.rows.len() as u64);
    columns(&mut part, benchmark, &ok);
    part
}

fn row(request: &Json<'_>, outcome: Outcome, is_timed: bool) -> ForeignRow {
    let at = |name: &str| instant(request, name).seconds_ns().filter(|ns| *ns > 0);
    let mut row = ForeignRow::new(outcome);
    row.due = at("targeted_start").filter(|_| is_timed);
    row.sent = at("request_start");
    row.first_event = at("first_request_iteration");
    row.first_token = at("first_token_iteration");
    row.first_visible = at("first_output_token_iteration");
    row.last_token = at("last_token_iteration");
    row.end = at("request_end").or_else(|| at("resolve_end"));
    let tokens = |block: &str, name: &str| request.at(&[block, name]).count();
    let old = |name: &str| request.get(name).count();
    row.prompt_tokens = tokens("input_metrics", "text_tokens")
        .or_else(|| tokens("input_metrics", "total_tokens"))
        .or_else(|| old("prompt_tokens"));
    row.cached_tokens = tokens("input_metrics", "cached_tokens");
    row.output_tokens = tokens("output_metrics", "text_tokens")
        .or_else(|| tokens("output_metrics", "total_tokens"))
        .or_else(|| old("output_tokens"));
    row.output_tokens = row.output_tokens.filter(|n| *n > 0);
    row.prompt = request.get("request_args").text().map(hashed);
    row
}

/// Resolution of the difference of two doubles in seconds since 1970.
const EPOCH_S: f64 = 1e-6;

/// Returns the units of a metric per second; 0 if it is not a time span.
fn span_unit(name: &str) -> f64 {
    match name {
        "prompt_token_count" | "output_token_count" => 0.0,
        name if name.ends_with("_ms") => 1e3,
        _ => 1.0,
    }
}

/// Returns an instant of a request by its current name, from its place in any version.
fn instant<'a>(request: &'a Json<'a>, name: &str) -> &'a Json<'a> {
    let scheduler = |path: &[&str]| {
        let path: Vec<&str> = std::iter::once("scheduler_info").chain(path.iter().copied()).collect();
        request.at(&path)
    };
    let places = [
        request.at(&["info", "timings", name]),
        // Versions 0.3 and 0.2.
        match name {
            "targeted_start" => scheduler(&["scheduler_timings", "targeted_start"]),
            "first_request_iteration" | "first_token_iteration" => {
                scheduler(&["request_timings", "first_iteration"])
            }
            "last_token_iteration" => scheduler(&["request_timings", "last_iteration"]),
            name => scheduler(&["request_timings", name]),
        },
        match name {
            "targeted_start" => scheduler(&["targeted_start_time"]),
            "request_start" => request.get("start_time"),
            "request_end" => request.get("end_time"),
            "first_token_iteration" => request.get("first_token_time"),
            "last_token_iteration" => request.get("last_token_time"),
            name => scheduler(&[name]),
        },
    ];
    let [today, three, two] = places;
    [today, three].into_iter().find(|json| json.number().is_some()).unwrap_or(two)
}

/// Computes the aggregates of the answered requests, by `guidellm/benchmark/schemas`.
fn columns(part: &mut ForeignPart, benchmark: &Json<'_>, ok: &[&Json<'_>]) {
    let time = |request: &Json<'_>, name: &str| instant(request, name).finite();
    let between = |from: &str, to: &str| -> Vec<f64> {
        let spans = ok.iter().map(|request| Some(time(request, to)? - time(request, from)?));
        spans.flatten().collect()
    };
    let out = |request: &Json<'_>| {
        request
            .at(&["output_metrics", "total_tokens"])
            .count()
            .or_else(|| request.get("output_tokens").count())
    };
    let ms = |spans: Vec<f64>| -> Vec<f64> { spans.into_iter().map(|s| 1e3 * s).collect() };
    // Before 0.4 the file weights these by tokens and counts requests, and its instants have the resolution of a double for epoch seconds.
    let is_old = benchmark.has("run_stats");
    let rounded = |name: &str, statistic: ForeignStatistic| match (is_old, statistic) {
        (false, _) | (_, ForeignStatistic::Count) => 0.0,
        (true, ForeignStatistic::Sum) => span_unit(name) * EPOCH_S * ok.len() as f64,
        (true, _) => span_unit(name) * EPOCH_S,
    };
    let tokens: Vec<Option<u32>> = ok.iter().map(|request| request.get("output_tokens").count()).collect();
    let is_even = tokens.windows(2).all(|pair| pair[0] == pair[1]);
    let is_weighed = |name: &str, statistic: ForeignStatistic| {
        let of_tokens = matches!(name, "inter_token_latency_ms" | "time_per_output_token_ms");
        let any = matches!(
            statistic,
            ForeignStatistic::Count
                | ForeignStatistic::Sum
                | ForeignStatistic::Least
                | ForeignStatistic::Most
        );
        is_old && of_tokens && !is_even && !any
    };
    // Means per request, counted once per token; gaps only if they begin inside the tool's measuring window.
    let until = benchmark.at(&["scheduler_metrics", "measure_end_time"]).finite().unwrap_or(f64::INFINITY);
    let per_token = |from: &str, less: u32| -> Vec<f64> {
        let mut all = Vec::new();
        for request in ok {
            let (Some(from), Some(to)) = (time(request, from), time(request, "last_token_iteration")) else {
                continue;
            };
            let tokens = out(request).unwrap_or(0).saturating_sub(less).min(1 << 20);
            if is_old {
                all.extend((tokens > 0).then(|| 1e3 * (to - from) / f64::from(tokens)));
            } else if less == 0 || from <= until {
                all.extend((0..tokens).map(|_| 1e3 * (to - from) / f64::from(tokens)));
            }
        }
        all
    };
    let count = |block: &str, old: &str| -> Vec<f64> {
        let of = |request: &&&Json<'_>| {
            request.at(&[block, "total_tokens"]).finite().or_else(|| request.get(old).finite())
        };
        ok.iter().filter_map(|request| of(&request)).collect()
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
        ("prompt_token_count", "tokens of the prompt", count("input_metrics", "prompt_tokens")),
        ("output_token_count", "tokens of the answer", count("output_metrics", "output_tokens")),
    ];
    for (name, definition, values) in columns {
        let said = benchmark.at(&["metrics", name, "successful"]);
        if !said.is_map() || values.is_empty() {
            continue;
        }
        let column = part.column(name, definition, values);
        for (key, value) in said.fields().iter().filter(|(key, _)| key != "mode" && key != "variance") {
            let known = said::statistic(key, Rank::Summed).filter(|known| !is_weighed(name, *known));
            if let Some(statistic) = known {
                let scale = (1.0, rounded(name, statistic));
                part.claim(format!("{name}.{key}"), Some(column), statistic, scale, value.finite());
            }
        }
        for (key, value) in said.get("percentiles").fields() {
            let p = match key.as_ref() {
                "p001" => Some(0.001),
                "p999" => Some(0.999),
                key => key.strip_prefix('p').and_then(|p| p.parse::<f64>().ok()).map(|p| p / 100.0),
            };
            if let Some(p) = p {
                let statistic = ForeignStatistic::Quantile { p, rank: Rank::Summed };
                if !is_weighed(name, statistic) {
                    let scale = (1.0, rounded(name, statistic));
                    part.claim(format!("{name}.{key}"), Some(column), statistic, scale, value.finite());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format of GuideLLM 0.2, with instants that a double rounds.
    #[test]
    fn a_report_before_0_4_is_read() {
        let request = r#"{"request_id":"r","scheduler_info":{"targeted_start_time":1744728125.0},"prompt_tokens":32,"output_tokens":16,"start_time":1744728125.001,"end_time":1744728125.3,"first_token_time":1744728125.05,"last_token_time":1744728125.29}"#;
        let report = format!(
            r#"{{"benchmarks":[{{"type_":"generative_benchmark","args":{{"strategy":{{"type_":"constant","rate":2.0}}}},"run_stats":{{}},"request_totals":{{"total":2}},"metrics":{{"time_to_first_token_ms":{{"successful":{{"mean":49.0,"count":2}}}},"inter_token_latency_ms":{{"successful":{{"mean":16.0,"count":2,"total_sum":32.0}}}}}},"requests":{{"successful":[{request},{request}],"errored":[],"incomplete":[]}}}}]}}"#
        );
        assert_eq!(super::super::kind::sniff(report.as_bytes()), Some(super::super::Kind::GuideLlm));
        let read = read(&super::super::document("GuideLLM", report.as_bytes()).expect("JSON"));
        let part = &read.parts[0];
        let row = &part.rows[0];
        assert_eq!((part.rows.len(), part.rows_missing, read.format), (2, 0, "report before 0.4"));
        assert_eq!((row.prompt_tokens, row.output_tokens), (Some(32), Some(16)));
        assert_eq!(part.load, Some(Load::Open { rate_per_s: 2.0 }));
        let ms = |to: Option<i64>| (to.unwrap_or(0) - row.sent.unwrap_or(0)) as f64 / 1e6;
        assert!((ms(row.first_token) - 49.0).abs() < 0.01 && (ms(row.end) - 299.0).abs() < 0.01, "{row:?}");
        for claim in &part.claims {
            let values = &part.columns[claim.column.expect("a column")].values;
            let ours = match claim.statistic {
                ForeignStatistic::Count => values.len() as f64,
                ForeignStatistic::Sum => values.iter().sum(),
                _ => values.iter().sum::<f64>() / values.len() as f64,
            };
            assert!((ours - claim.value).abs() <= claim.rounded_to, "{claim:?}: {ours}");
        }
        assert_eq!(part.claims.len(), 5);
    }
}
