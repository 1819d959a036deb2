//! Parses AIPerf's folder: `profile_export.jsonl` (one line per request) and `profile_export_aiperf.json` (aggregates, settings).
//!
//! Instants are epoch ns. There is no due time: the credit is issued after pacing and after the limit on concurrency, so it is
//! not a schedule. Gaps between credits show forfeited requests. Chunks are `inter_chunk_latency` after the first token.
//! Token counts are the server's (`usage_*`) if it reports them, because a client's tokeniser need not match the server's.
//! Phases other than `profiling` are skipped.

use std::collections::BTreeMap;

use plimsoll_model::{
    By, Doubt, Foreign, ForeignClock, ForeignPart, ForeignProcess, ForeignRow, ForeignStatistic, How, Load,
    Outcome, Rank,
};

use super::json::{self, Json};
use super::{CUT, FileRead, ForeignError, failed, later, partial, said, signed_ns, span_ns};

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Lines {
    rows: Vec<ForeignRow>,
    /// Values of each metric, of the answered requests.
    metrics: BTreeMap<String, Vec<f64>>,
    /// Answers whose own token count differs from the server's.
    miscounted: u64,
    other_phases: u64,
    cut: bool,
}

impl Lines {
    pub(super) fn line(&mut self, line: &[u8]) -> Option<()> {
        let document = json::read(line).ok()?;
        if !document.whole {
            self.cut = true;
            return Some(());
        }
        let (meta, metrics) = (document.root.get("metadata"), document.root.get("metrics"));
        if !meta.is_map() {
            return None;
        }
        if meta.get("benchmark_phase").text().is_some_and(|phase| phase != "profiling") {
            self.other_phases += 1;
            return Some(());
        }
        let value = |tag: &str| metrics.at(&[tag, "value"]).finite();
        let error = document.root.get("error");
        let mut row = ForeignRow::new(match (error.is_map(), meta.get("was_cancelled")) {
            (_, Json::Flag(true)) => Outcome::new(How::Cancelled, By::Client, false),
            (true, _) => failed(error.get("code").int().and_then(|code| u16::try_from(code).ok())),
            _ => Outcome::FINISHED,
        });
        let sent = meta.get("request_start_ns").int();
        row.sent = sent;
        row.end = meta.get("request_end_ns").int();
        if let (Some(sent), Some(first)) = (sent, span_ns(value("time_to_first_token"), 1e3)) {
            row.first_token = Some(later(sent, first));
            let mut at = first;
            row.events.push(at);
            for gap in metrics.at(&["inter_chunk_latency", "value"]).items().iter().filter_map(Json::finite) {
                at = later(at, signed_ns(gap, 1e3));
                row.events.push(at);
            }
            row.last_token = Some(later(sent, at));
            let visible = span_ns(value("time_to_first_output_token"), 1e3);
            row.first_visible = visible.map(|span| later(sent, span));
        }
        let count = |tag: &str| metrics.at(&[tag, "value"]).int().and_then(|n| u32::try_from(n).ok());
        let usage = count("usage_completion_tokens");
        let own = count("output_sequence_length");
        row.output_tokens = usage.or(own).filter(|n| *n > 0);
        row.prompt_tokens = count("usage_prompt_tokens").or_else(|| count("input_sequence_length"));
        row.cached_tokens = count("usage_prompt_cache_read_tokens");
        row.first_event = meta.get("request_ack_ns").int();
        self.miscounted += u64::from(usage.is_some() && own.is_some() && usage != own);
        if row.outcome.is_finished() {
            for (tag, block) in metrics.fields() {
                let values = self.metrics.entry(tag.to_string()).or_default();
                match block.get("value") {
                    Json::List(items) => values.extend(items.iter().filter_map(Json::finite)),
                    one => values.extend(one.finite()),
                }
            }
        }
        self.rows.push(row);
        Some(())
    }
}

pub(super) fn read(lines: &Lines, summary: Option<&FileRead>) -> Result<Foreign, ForeignError> {
    let summary = summary.map(FileRead::document).transpose()?;
    let root = summary.as_ref().map_or(&Json::Null, |document| &document.root);
    let mut part = ForeignPart::new("profiling");
    settings(&mut part, root);
    part.rows = lines.rows.clone();
    part.rows.sort_by_key(|row| row.sent);
    for (tag, values) in &lines.metrics {
        let said = root.get(tag);
        // Rates and totals belong to the run, not to its requests.
        if !said.is_map() || said.fields().len() < 4 || values.is_empty() {
            continue;
        }
        let column = part.column(tag, definition(tag), values.clone());
        said::block(&mut part, tag, Some(column), said, Rank::Linear);
    }
    let finished = part.rows.iter().filter(|row| row.outcome.is_finished()).count();
    let all = part.column("requests", "requests that were answered", vec![1.0; finished]);
    let count = root.at(&["request_count", "avg"]).finite();
    part.claim("request_count", Some(all), ForeignStatistic::Count, (1.0, 0.0), count);
    if lines.miscounted > 0 {
        part.seen.push(format!(
            "{} of {finished} answers: the tool's tokeniser count differs from the server's token count (its inter_token_latency is \
             over its own count; ours is over the server's)",
            lines.miscounted
        ));
    }
    let text = |json: &Json<'_>| json.text().map(str::to_owned);
    let config = root.get("input_config");
    let mut foreign = Foreign {
        tool: "AIPerf",
        version: text(root.get("aiperf_version")),
        format: "profile_export.jsonl",
        clock: ForeignClock::Wall,
        model: config.at(&["models", "items"]).items().first().and_then(|model| text(model.get("name"))),
        url: config.at(&["endpoint", "urls"]).items().first().and_then(text),
        parts: vec![part],
        partial: None,
        doubts: vec![
            Doubt::CoordinatedOmission,
            Doubt::ForfeitedArrivals,
            Doubt::ClientLimit,
            Doubt::LateStamps,
            Doubt::TokensPerEvent,
            Doubt::RepeatedPrompts,
        ],
    };
    if lines.cut || summary.is_some_and(|document| !document.whole) {
        partial(&mut foreign, CUT.to_owned());
    }
    Ok(foreign)
}

fn settings(part: &mut ForeignPart, root: &Json<'_>) {
    let phases = root.at(&["input_config", "phases"]).items();
    let phase = phases.iter().find(|phase| phase.get("name").text() == Some("profiling")).or(phases.first());
    let Some(phase) = phase else { return };
    part.cap = phase.get("concurrency").count();
    let rate = phase.get("rate").finite().filter(|rate| *rate > 0.0);
    part.load = match (rate, part.cap) {
        (Some(rate_per_s), _) => Some(Load::Open { rate_per_s }),
        (None, Some(concurrency)) => Some(Load::Closed { concurrency }),
        (None, None) => None,
    };
    part.process = match phase.get("type").text() {
        Some("poisson") => Some(ForeignProcess::Poisson),
        Some("constant") => Some(ForeignProcess::Constant),
        _ => None,
    };
}

fn definition(tag: &str) -> &'static str {
    match tag {
        "time_to_first_token" => "request_start → first chunk with content",
        "request_latency" => "request_start → last chunk with content, of requests that were answered",
        "inter_token_latency" => {
            "(request_latency − time_to_first_token) / (tokens − 1), tokens by the tool's own tokeniser"
        }
        "inter_chunk_latency" => "every gap between chunks",
        "effective_latency" => {
            "credit issued → end: the credit comes after pacing and after the limit on concurrency"
        }
        _ => "as the rows keep it",
    }
}
