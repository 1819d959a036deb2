//! Parses MLPerf Endpoints' folder: `events.jsonl` (events, monotonic ns), `config.yaml`, `performance/result_summary.json`.
//!
//! Due times are not recorded and follow from the settings: cumulative `max(1, int(expovariate(target_qps / 1e9)))` of Python's
//! `Random(scheduler_random_seed)`, the first arrival after the first draw. One offset is unknown; it is set so that the least late
//! request is on time. The tool counts a truncated answer as complete. So an answer without a finish reason is assumed to be
//! truncated. Its percentiles are lower ranks.

use std::collections::HashMap;

use plimsoll_model::{
    By, Doubt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignProcess, ForeignRow, ForeignStatistic,
    How, Load, Outcome, Rank,
};

use super::json::{self, Json};
use super::{CUT, FileRead, ForeignError, failed, hashed, partial, said};

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Lines {
    rows: Vec<ForeignRow>,
    /// Row of each sample that is in flight.
    open: HashMap<String, usize>,
    /// Answers that are complete without a finish reason.
    unfinished: u64,
    cut: bool,
}

impl Lines {
    pub(super) fn line(&mut self, line: &[u8]) -> Option<()> {
        let document = json::read(line).ok()?;
        if !document.whole {
            self.cut = true;
            return Some(());
        }
        let root = &document.root;
        let (what, at) = (root.get("event_type").text()?, root.get("timestamp_ns").int()?);
        let id = root.get("sample_uuid").text().unwrap_or_default();
        if what == "sample.issued" {
            let mut row = ForeignRow::new(Outcome::new(How::Unfinished, By::Client, false));
            row.sent = Some(at);
            row.prompt = root.get("data").items().get(1).and_then(Json::text).map(hashed);
            self.open.insert(id.to_owned(), self.rows.len());
            self.rows.push(row);
            return Some(());
        }
        let Some(row) = self.open.get(id).and_then(|at| self.rows.get_mut(*at)) else { return Some(()) };
        let sent = row.sent.unwrap_or(at);
        match what {
            "sample.recv_first" => {
                row.first_token = Some(at);
                row.first_event = Some(at);
                row.events.push(at - sent);
            }
            "sample.recv_non_first" => row.events.push(at - sent),
            "sample.complete" if row.end.is_none() => {
                row.end = Some(at);
                let reason = root.get("finish_reason").text();
                row.finish_reason = reason.map(str::to_owned);
                row.outcome = match (root.get("data"), reason) {
                    (Json::Null, _) => failed(None),
                    (_, Some(_)) => Outcome::FINISHED,
                    (_, None) => Outcome::new(How::Truncated, By::Server, true),
                };
                self.unfinished += u64::from(reason.is_none());
            }
            what if what.starts_with("error.") => (row.outcome, row.end) = (failed(None), Some(at)),
            _ => {}
        }
        Some(())
    }
}

pub(super) fn read(
    lines: &Lines,
    summary: Option<&FileRead>,
    config: Option<&FileRead>,
) -> Result<Foreign, ForeignError> {
    let said = summary.map(FileRead::document).transpose()?;
    let root = said.as_ref().map_or(&Json::Null, |document| &document.root);
    let config = config.map(|file| String::from_utf8_lossy(file.bytes()).into_owned()).unwrap_or_default();
    let setting = |name: &str| {
        let lines = config.lines().map(str::trim);
        lines
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim())
    };
    let mut part = ForeignPart::new("performance");
    part.rows = lines.rows.clone();
    part.rows.sort_by_key(|row| row.sent);
    let qps = setting("target_qps").and_then(|text| text.parse::<f64>().ok()).filter(|qps| *qps > 0.0);
    let is_poisson = config.lines().any(|line| line.trim() == "type: poisson");
    let concurrency = setting("target_concurrency").and_then(|text| text.parse().ok());
    part.load = concurrency
        .map(|concurrency| Load::Closed { concurrency })
        .or(qps.map(|rate_per_s| Load::Open { rate_per_s }));
    part.cap = concurrency;
    part.process = is_poisson.then_some(ForeignProcess::Poisson);
    part.seed = setting("scheduler_random_seed").and_then(|text| text.parse().ok());
    if lines.rows.iter().all(|row| row.events.len() < 2) {
        part.seen.push(
            "only the first token of each answer is stamped (stream_all_chunks was off): no tpot of ours"
                .into(),
        );
    }
    if lines.unfinished > 0 {
        part.seen.push(format!(
            "{} answers were counted as complete without a finish reason: they are treated as truncated",
            lines.unfinished
        ));
    }
    if is_poisson && qps.is_some() && part.seed.is_some() {
        part.due = ForeignDue::Regenerated;
    }
    columns(&mut part, root);
    let mut foreign = Foreign {
        tool: "MLPerf Endpoints",
        version: root.get("version").text().map(str::to_owned),
        format: "events.jsonl",
        clock: ForeignClock::Monotonic,
        model: None,
        url: config
            .lines()
            .map(str::trim)
            .find_map(|line| line.strip_prefix("- http").map(|rest| format!("http{rest}"))),
        parts: vec![part],
        partial: None,
        doubts: vec![
            Doubt::CoordinatedOmission,
            Doubt::ClientLimit,
            Doubt::LateStamps,
            Doubt::TokenCounts,
            Doubt::RepeatedPrompts,
        ],
    };
    if lines.cut {
        partial(&mut foreign, CUT.to_owned());
    }
    Ok(foreign)
}

fn columns(part: &mut ForeignPart, root: &Json<'_>) {
    let spans = |to: fn(&ForeignRow) -> Option<i64>| -> Vec<f64> {
        part.rows.iter().filter_map(|row| Some((to(row)? - row.sent?) as f64)).collect()
    };
    let (first, whole) = (spans(|row| row.first_token), spans(|row| row.end));
    let all = vec![1.0; part.rows.len()];
    for (name, definition, values) in
        [("ttft", "issued → first chunk, ns", first), ("latency", "issued → complete, ns", whole)]
    {
        let column = part.column(name, definition, values);
        let block = root.get(name);
        for (key, value) in block.fields() {
            // The deviation is over n − 1.
            let statistic = match key.as_ref() {
                "std_dev" => Some(ForeignStatistic::SampleDeviation),
                key => said::statistic(key, Rank::Below),
            };
            if let Some(statistic) = statistic {
                part.claim(format!("{name}.{key}"), Some(column), statistic, (1.0, 0.0), value.finite());
            }
        }
        said::block(part, name, Some(column), block.get("percentiles"), Rank::Below);
    }
    said::block(part, "tpot", None, root.get("tpot"), Rank::Below);
    let all = part.column("samples", "samples issued", all);
    let issued = root.get("n_samples_issued").finite();
    part.claim("n_samples_issued", Some(all), ForeignStatistic::Count, (1.0, 0.0), issued);
}
