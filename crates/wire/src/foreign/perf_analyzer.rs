//! GenAI-Perf's raw file, which perf_analyzer writes: `profile_export.json` with every event of every answer, epoch ns.
//!
//! Events are read here, not the tool's idea of them: an event counts as tokens where its delta or text is not empty. What its
//! own tokeniser counted is in its aggregates alone, so those per token can't be recomputed. `usage` is read where it is there.

use plimsoll_model::{
    Doubt, Foreign, ForeignClock, ForeignPart, ForeignRow, ForeignStatistic, Load, Outcome, Rank,
};

use super::json::{self, Document, Json};
use super::{CUT, FileRead, ForeignError, failed, hashed, partial, said};

pub(super) fn read(document: &Document<'_>, summary: Option<&FileRead>) -> Result<Foreign, ForeignError> {
    let summary = summary.map(FileRead::document).transpose()?;
    let said = summary.as_ref().map_or(&Json::Null, |document| &document.root);
    let root = &document.root;
    let experiments = root.get("experiments").items();
    let mut parts: Vec<ForeignPart> = experiments.iter().map(part).collect();
    if let ([part], [experiment]) = (parts.as_mut_slice(), experiments) {
        let requests = experiment.get("requests").items().iter();
        let whole: Vec<f64> = requests.filter(|r| !r.is_cut()).filter_map(latency_ms).collect();
        columns(part, &whole, said);
    }
    let text = |json: &Json<'_>| json.text().map(str::to_owned);
    let mut foreign = Foreign {
        tool: "GenAI-Perf",
        version: text(root.get("version")).map(|version| format!("perf_analyzer {version}")),
        format: "profile_export.json",
        clock: ForeignClock::Wall,
        model: said.at(&["input_config", "model_names"]).items().first().and_then(text),
        url: text(said.at(&["input_config", "endpoint", "url"])),
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

fn part(experiment: &Json<'_>) -> ForeignPart {
    let asked = experiment.get("experiment");
    let (mode, value) = (asked.get("mode").text().unwrap_or("load"), asked.get("value").finite());
    let mut part = ForeignPart::new(format!("{mode} {}", value.unwrap_or_default()));
    match (mode, value.filter(|value| *value > 0.0)) {
        ("concurrency", Some(n)) => {
            part.load = Some(Load::Closed { concurrency: n as u32 });
            part.cap = Some(n as u32);
        }
        ("request_rate", Some(rate_per_s)) => part.load = Some(Load::Open { rate_per_s }),
        _ => {}
    }
    part.rows = experiment.get("requests").items().iter().filter(|r| !r.is_cut()).map(row).collect();
    part.rows.sort_by_key(|row| row.sent);
    part
}

fn row(request: &Json<'_>) -> ForeignRow {
    let stamps: Vec<i64> = request.get("response_timestamps").items().iter().filter_map(Json::int).collect();
    let sent = request.get("timestamp").int();
    let mut row = ForeignRow::new(if stamps.is_empty() { failed(None) } else { Outcome::FINISHED });
    row.sent = sent;
    row.first_event = stamps.first().copied();
    row.end = stamps.last().copied();
    row.prompt = request.at(&["request_inputs", "payload"]).text().map(hashed);
    let mut tokens = 0u32;
    for (at, output) in stamps.iter().zip(request.get("response_outputs").items()) {
        let body = output.get("response").text().unwrap_or_default();
        // One read may hold several events; they have one stamp.
        let mut any = false;
        for data in body.lines().filter_map(|line| line.strip_prefix("data:")) {
            let Ok(event) = json::read(data.trim().as_bytes()) else { continue };
            let choice = event.root.get("choices").items().first().unwrap_or(&Json::Null);
            let piece = choice.at(&["delta", "content"]).text().or_else(|| choice.get("text").text());
            if piece.is_some_and(|piece| !piece.is_empty()) {
                (any, tokens) = (true, tokens + 1);
            }
            let reason = choice.get("finish_reason").text();
            row.finish_reason = reason.map(str::to_owned).or(row.finish_reason.take());
            let usage = event.root.get("usage");
            row.output_tokens = usage.get("completion_tokens").count().or(row.output_tokens);
            row.prompt_tokens = usage.get("prompt_tokens").count().or(row.prompt_tokens);
        }
        if any {
            row.first_token.get_or_insert(*at);
            row.last_token = Some(*at);
            row.events.extend(sent.map(|sent| at - sent));
        }
    }
    row.output_tokens = row.output_tokens.or((tokens > 0).then_some(tokens));
    row
}

/// The tool's own latency: the event that holds nothing but `[DONE]` is no response to it, and one that ends in it is.
fn latency_ms(request: &Json<'_>) -> Option<f64> {
    let stamps: Vec<i64> = request.get("response_timestamps").items().iter().filter_map(Json::int).collect();
    let outputs = request.get("response_outputs").items();
    let is_done = |output: &Json<'_>| {
        let body = output.get("response").text().unwrap_or_default();
        body.is_empty() || body.trim_end().ends_with("[DONE]")
    };
    let last = stamps.iter().zip(outputs).rev().find(|(_, output)| !is_done(output)).map(|(at, _)| *at);
    Some((last.or(stamps.last().copied())? - request.get("timestamp").int()?) as f64 / 1e6)
}

fn columns(part: &mut ForeignPart, whole: &[f64], said: &Json<'_>) {
    let ms = |to: fn(&ForeignRow) -> Option<i64>| -> Vec<f64> {
        let ok = part.rows.iter().filter(|row| row.outcome.is_finished());
        ok.filter_map(|row| Some((to(row)? - row.sent?) as f64 / 1e6)).collect()
    };
    let first = ms(|row| row.first_token);
    let whole: Vec<f64> = whole.to_vec();
    let ok = whole.len();
    let first = part.column("time_to_first_token", "timestamp → first event with text, ms", first);
    let whole = part.column("request_latency", "timestamp → last event but the closing [DONE], ms", whole);
    said::block(part, "time_to_first_token", Some(first), said.get("time_to_first_token"), Rank::Linear);
    said::block(part, "request_latency", Some(whole), said.get("request_latency"), Rank::Linear);
    for name in ["inter_token_latency", "output_sequence_length"] {
        said::block(part, name, None, said.get(name), Rank::Linear);
    }
    let all = part.column("requests", "requests that were answered", vec![1.0; ok]);
    let count = said.at(&["request_count", "avg"]).finite();
    part.claim("request_count", Some(all), ForeignStatistic::Count, (1.0, 0.0), count);
}
