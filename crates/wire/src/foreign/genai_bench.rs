//! genai-bench's result of one level: `individual_request_metrics` without stamps or order, and their statistics.
//!
//! Its `tpot` is output latency / (tokens − 1). Requests stand on axes of their own: no schedule, no concurrency. The folder's
//! `experiment_metadata.json` holds the command line with its key and is not opened.

use plimsoll_model::{
    Doubt, Foreign, ForeignClock, ForeignPart, ForeignRow, ForeignStatistic, Load, Outcome, Rank,
};

use super::json::{Document, Json};
use super::{CUT, failed, partial, said, span_ns};

pub(super) fn read(document: &Document<'_>) -> Foreign {
    let root = &document.root;
    let said = root.get("aggregated_metrics");
    let mut part = ForeignPart::new(said.get("scenario").text().unwrap_or("all requests"));
    part.cap = said.get("num_concurrency").count();
    part.load = part.cap.map(|concurrency| Load::Closed { concurrency });
    part.seen
        .push("no stamp is kept: neither the order of requests nor those in flight can be looked at".into());
    let requests: Vec<&Json<'_>> =
        root.get("individual_request_metrics").items().iter().filter(|r| r.is_map() && !r.is_cut()).collect();
    let per_s = if root.get("_time_unit").text() == Some("ms") { 1e3 } else { 1.0 };
    let is_ok = |request: &Json<'_>| request.get("error_code").int().is_none();
    for request in &requests {
        let status = request.get("error_code").int().and_then(|code| u16::try_from(code).ok());
        let mut row = ForeignRow::new(if is_ok(request) { Outcome::FINISHED } else { failed(status) });
        row.status = status;
        row.sent = Some(0);
        if is_ok(request) {
            row.first_token = span_ns(request.get("ttft").finite(), per_s);
            row.first_event = row.first_token;
            row.end = span_ns(request.get("e2e_latency").finite(), per_s);
            row.last_token = row.end.filter(|_| row.first_token.is_some());
            row.output_tokens = request.get("num_output_tokens").count().filter(|n| *n > 0);
            row.prompt_tokens = request.get("num_input_tokens").count().filter(|n| *n > 0);
        }
        part.rows.push(row);
    }
    for (name, block) in said.get("stats").fields().iter().filter(|(_, block)| block.is_map()) {
        let ok = requests.iter().filter(|request| is_ok(request));
        let values: Vec<f64> = ok.filter_map(|request| request.get(name).finite()).collect();
        let column = (!values.is_empty()).then(|| part.column(name, "as the rows keep it", values));
        said::block(&mut part, name, column, block, Rank::Linear);
    }
    let all = part.column("requests", "requests", vec![1.0; requests.len()]);
    let count = said.get("num_requests").finite();
    part.claim("num_requests", Some(all), ForeignStatistic::Count, (1.0, 0.0), count);
    let mut foreign = Foreign {
        tool: "genai-bench",
        version: None,
        format: "result of one level",
        clock: ForeignClock::None,
        model: None,
        url: None,
        parts: vec![part],
        partial: None,
        doubts: vec![
            Doubt::CoordinatedOmission,
            Doubt::ForfeitedArrivals,
            Doubt::ClientLimit,
            Doubt::LateStamps,
            Doubt::TokensPerEvent,
            Doubt::RepeatedPrompts,
            Doubt::WarmUp,
            Doubt::HiddenRetries,
            Doubt::CutAnswers,
            Doubt::NoOrder,
        ],
    };
    if !document.whole {
        partial(&mut foreign, CUT.to_owned());
    }
    foreign
}
