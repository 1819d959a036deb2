//! Parses `sglang.bench_serving --output-file … --output-details`: JSON Lines, requests as parallel lists, without timestamps.
//!
//! Without timestamps there is no schedule, no concurrency and no order: each request is on a separate time axis. The
//! tool skips the chunk with the role. It does not record `latency`. So e2e and tpot can't be recomputed to the
//! last digit: the sum of ttft and gaps lacks the time after the last token.

use plimsoll_model::{
    Doubt, Foreign, ForeignClock, ForeignPart, ForeignProcess, ForeignRow, ForeignStatistic, Load, Outcome,
    Rank,
};

use super::json::Json;
use super::{CUT, ForeignError, documents, failed, later, signed_ns, span_ns};

const TOOL: &str = "SGLang bench";

pub(super) fn read(bytes: &[u8]) -> Result<Foreign, ForeignError> {
    let (runs, whole) = documents(TOOL, bytes)?;
    let runs: Vec<&Json<'_>> = runs.iter().filter(|run| run.is_map()).collect();
    let parts: Vec<ForeignPart> = runs.iter().enumerate().map(|(i, run)| part(run, i)).collect();
    if parts.iter().all(|part| part.rows.is_empty()) {
        let why = "aggregates only; run it with --output-details to keep requests".to_owned();
        return Err(ForeignError::Refused { tool: TOOL, why });
    }
    Ok(Foreign {
        tool: TOOL,
        version: None,
        format: "JSON Lines with details",
        clock: ForeignClock::None,
        model: None,
        url: None,
        parts,
        partial: (!whole).then(|| CUT.to_owned()),
        doubts: vec![
            Doubt::CoordinatedOmission,
            Doubt::ForfeitedArrivals,
            Doubt::ClientLimit,
            Doubt::LateStamps,
            Doubt::RepeatedPrompts,
            Doubt::CutAnswers,
            Doubt::NoOrder,
        ],
    })
}

fn part(run: &Json<'_>, number: usize) -> ForeignPart {
    let mut part = ForeignPart::new(format!("run {}", number + 1));
    part.cap = run.get("max_concurrency").count();
    part.load = match (run.get("request_rate").finite().filter(|rate| *rate > 0.0), part.cap) {
        (Some(rate_per_s), _) => Some(Load::Open { rate_per_s }),
        (None, Some(concurrency)) => Some(Load::Closed { concurrency }),
        (None, None) => None,
    };
    part.process = matches!(part.load, Some(Load::Open { .. })).then_some(ForeignProcess::Poisson);
    let list = |name: &str| run.get(name).items();
    let (ins, outs, ttfts, itls) = (list("input_lens"), list("output_lens"), list("ttfts"), list("itls"));
    let errors = list("errors");
    let (mut first, mut gaps, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for (i, ttft) in ttfts.iter().enumerate() {
        let error = errors.get(i).and_then(Json::text).unwrap_or_default();
        let ttft = ttft.finite().filter(|s| *s > 0.0 && error.is_empty());
        let mut row = ForeignRow::new(if ttft.is_some() { Outcome::FINISHED } else { failed(None) });
        row.sent = Some(0);
        row.prompt_tokens = ins.get(i).and_then(Json::count).filter(|n| *n > 0);
        if let Some(at) = span_ns(ttft, 1.0) {
            let own = itls.get(i).map(Json::numbers).unwrap_or_default();
            row.output_tokens = outs.get(i).and_then(Json::count).filter(|n| *n > 0);
            row.events = own.iter().fold(vec![at], |mut events, gap| {
                let last = events.last().copied().unwrap_or(at);
                events.push(later(last, signed_ns(*gap, 1.0)));
                events
            });
            row.first_token = Some(at);
            row.last_token = row.events.last().copied();
            row.end = row.last_token;
            first.extend(ttft);
            gaps.extend(own);
            tokens.extend(outs.get(i).and_then(Json::finite));
        }
        part.rows.push(row);
    }
    part.seen
        .push("the file has no timestamps: the schedule and the requests in flight cannot be checked".into());
    let columns = [
        ("ttft", Some(part.column("ttft", "sending → first token", first))),
        ("itl", Some(part.column("itl", "every gap between tokens", gaps))),
        ("tpot", None),
        ("e2e_latency", None),
    ];
    for (metric, column) in columns {
        for (key, value) in run.fields() {
            let kind = key.strip_suffix("_ms").and_then(|key| key.strip_suffix(metric)?.strip_suffix('_'));
            if let Some(statistic) = kind.and_then(|kind| super::said::statistic(kind, Rank::Linear)) {
                part.claim(key.as_ref(), column, statistic, (1e3, 0.0), value.finite());
            }
        }
    }
    let tokens = part.column("output tokens", "output_lens of the answers", tokens);
    let exact = (1.0, 0.0);
    let (sum, count) = (run.get("total_output_tokens").finite(), run.get("completed").finite());
    part.claim("total_output_tokens", Some(tokens), ForeignStatistic::Sum, exact, sum);
    part.claim("completed", Some(tokens), ForeignStatistic::Count, exact, count);
    part
}
