//! inference-perf's folder: `per_request_lifecycle_metrics.json` and the summaries of stages.
//!
//! Seconds of a monotonic clock. First token, last token and end are taken from `chunk_times`: `end_time` holds the client's tokenising, and
//! `output_token_times` gives every token of the client's tokeniser the stamp of its chunk, which is how a median gap of 0 comes
//! about. When a request was due is lost. Stages are not named in the rows; they run one after the other, so the n of the first
//! stage are the n that started first.

use plimsoll_model::{
    Doubt, Foreign, ForeignClock, ForeignPart, ForeignRow, ForeignStatistic, Load, Outcome, Rank,
};

use super::json::{Document, Json};
use super::{CUT, FileRead, ForeignError, failed, hashed, partial, said};

/// A request with what the tool's own metrics are made of.
struct Request {
    row: ForeignRow,
    start: f64,
    latency: f64,
    token_times: Vec<f64>,
}

pub(super) fn read(document: &Document<'_>, summaries: &[&FileRead]) -> Result<Foreign, ForeignError> {
    let mut requests: Vec<Request> =
        document.root.items().iter().filter(|r| r.is_map() && !r.is_cut()).map(request).collect();
    requests.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut said = Vec::new();
    for file in summaries {
        said.push(file.document()?);
    }
    let mut stages: Vec<&Json<'_>> = said.iter().map(|document| &document.root).collect();
    // In the order in which they ran: that of their names is the order in which the folder lists them.
    let total = |stage: &Json<'_>| stage.at(&["load_summary", "count"]).int().unwrap_or(0).max(0) as usize;
    let whole = stages.iter().position(|stage| stages.len() > 1 && total(stage) == requests.len());
    if let Some(whole) = whole {
        stages.remove(whole);
    }
    let sum: usize = stages.iter().map(|stage| total(stage)).sum();
    let mut parts = Vec::new();
    if sum == requests.len() && !stages.is_empty() {
        for (i, stage) in stages.iter().enumerate() {
            let rest = requests.split_off(total(stage).min(requests.len()));
            let own = std::mem::replace(&mut requests, rest);
            parts.push(part(&format!("stage {i}"), own, stage));
        }
    } else {
        parts.push(part("all stages", requests, &Json::Null));
        if let (Some(only), true) = (parts.first_mut(), !stages.is_empty()) {
            only.seen.push(
                "the stages' summaries count other requests than the rows: none was held against them".into(),
            );
        }
    }
    let mut foreign = Foreign {
        tool: "inference-perf",
        version: None,
        format: "per_request_lifecycle_metrics.json",
        clock: ForeignClock::Monotonic,
        model: None,
        url: None,
        parts,
        partial: None,
        doubts: vec![
            Doubt::CoordinatedOmission,
            Doubt::ForfeitedArrivals,
            Doubt::ClientLimit,
            Doubt::LateStamps,
            Doubt::CutAnswers,
        ],
    };
    if !document.whole {
        partial(&mut foreign, CUT.to_owned());
    }
    Ok(foreign)
}

fn request(request: &Json<'_>) -> Request {
    let said = request.at(&["info", "response_metrics"]);
    let error = request.get("error");
    let chunks: Vec<i64> = said.get("chunk_times").items().iter().filter_map(Json::seconds_ns).collect();
    let mut row = ForeignRow::new(if error.is_map() { failed(None) } else { Outcome::FINISHED });
    let sent = request.get("start_time").seconds_ns();
    row.sent = sent;
    row.end = request.get("end_time").seconds_ns();
    row.first_event = chunks.first().copied();
    let usage = said.get("server_usage");
    row.output_tokens = usage.get("completion_tokens").count().or_else(|| said.get("output_tokens").count());
    row.prompt_tokens = usage.get("prompt_tokens").count();
    row.cached_tokens = usage.at(&["prompt_tokens_details", "cached_tokens"]).count();
    row.prompt = request.get("request").text().map(hashed);
    if row.outcome.is_finished() {
        row.first_token = chunks.first().copied();
        row.last_token = chunks.last().copied();
        // Its end_time holds the tokenising.
        row.end = row.last_token.or(row.end);
        row.events = sent.map(|sent| chunks.iter().map(|at| at - sent).collect()).unwrap_or_default();
    }
    let (start, end) = (request.get("start_time").finite(), request.get("end_time").finite());
    Request {
        row,
        start: start.unwrap_or_default(),
        latency: end.unwrap_or_default() - start.unwrap_or_default(),
        token_times: said.get("output_token_times").numbers(),
    }
}

fn part(name: &str, requests: Vec<Request>, stage: &Json<'_>) -> ForeignPart {
    let mut part = ForeignPart::new(name);
    let rate = stage.at(&["load_summary", "requested_rate"]).finite().filter(|rate| *rate > 0.0);
    part.load = rate.map(|rate_per_s| Load::Open { rate_per_s });
    let ok: Vec<&Request> = requests.iter().filter(|request| request.row.outcome.is_finished()).collect();
    let latency: Vec<f64> = ok.iter().map(|request| request.latency).collect();
    let first = ok.iter().filter_map(|request| Some(request.token_times.first()? - request.start)).collect();
    let gaps = ok.iter().flat_map(|request| request.token_times.windows(2).map(|pair| pair[1] - pair[0]));
    let gaps: Vec<f64> = gaps.collect();
    let many = ok.iter().filter(|request| request.token_times.len() > 1);
    let per_token = many.filter_map(|request| {
        let times = &request.token_times;
        Some((times.last()? - times.first()?) / (times.len() as f64 - 1.0))
    });
    let per_token: Vec<f64> = per_token.collect();
    let latencies = stage.at(&["successes", "latency"]);
    let zeros = gaps.iter().filter(|gap| **gap == 0.0).count();
    if zeros > 0 {
        let share = 100.0 * zeros as f64 / gaps.len().max(1) as f64;
        part.seen.push(format!(
            "{share:.0} % of its inter_token_latency are gaps of 0: tokens of its own tokeniser that came in one chunk"
        ));
    }
    let columns = [
        ("request_latency", "start_time → end_time, the client's tokenising in it", latency),
        ("time_to_first_token", "start_time → first of output_token_times", first),
        ("inter_token_latency", "every gap of output_token_times, which share their chunk's stamp", gaps),
        (
            "time_per_output_token",
            "(last − first of output_token_times) / (tokens − 1), tokens of the client",
            per_token,
        ),
    ];
    for (name, definition, values) in columns {
        let column = part.column(name, definition, values);
        said::block(&mut part, name, Some(column), latencies.get(name), Rank::Linear);
    }
    let count = part.column("successes", "requests that were answered", vec![1.0; ok.len()]);
    let said = stage.at(&["successes", "count"]).finite();
    part.claim("successes.count", Some(count), ForeignStatistic::Count, (1.0, 0.0), said);
    part.rows = requests.into_iter().map(|request| request.row).collect();
    part
}
