//! Conversion of another tool's rows to attempts of a run. Unknown values stay unknown.
//!
//! If the file has no schedule, an attempt's due time is its send time in the file, because there is no other instant. The
//! evaluation of the run reports this. Rows without any instant have no place on an axis and are left out.

use plimsoll_model::{
    At, Attempt, EndedBy, Event, EventKind, ForeignPart, ForeignRow, How, Level, Load, Quantiles, RateCourse,
    Span, StampSource, TokensRule,
};

use super::known_due;

/// Returns the level and the attempts of a part. `base` is the instant of the file's clock that is 0 on the run's axis.
pub(super) fn level(part: &ForeignPart, id: u32, base: i64) -> (Level, Vec<Attempt>) {
    let mut rows: Vec<&ForeignRow> = part.rows.iter().filter(|row| begin(row).is_some()).collect();
    rows.sort_by_key(|row| begin(row));
    let attempts: Vec<Attempt> =
        rows.iter().enumerate().map(|(i, row)| attempt(row, (i as u64, id), base)).collect();
    let due = |attempt: &Attempt| attempt.due;
    let start = attempts.first().map_or(At::ZERO, due);
    let last = attempts.last().map_or(start, due);
    // The window ends one mean gap after its last arrival.
    let gaps = attempts.len().saturating_sub(1).max(1) as i64;
    let stop = last + Span(((last - start).0 / gaps).max(1));
    let ends = attempts.iter().filter_map(|attempt| attempt.end);
    let drained = ends.fold(stop, At::max);
    let seconds = (stop - start).as_secs_f64();
    let load = part.load.unwrap_or(Load::Open { rate_per_s: attempts.len() as f64 / seconds.max(1e-9) });
    let level = Level {
        id,
        traffic: "steady".into(),
        purpose: "run".into(),
        load,
        rate_course: if part.load.is_some() { RateCourse::Even } else { RateCourse::Shaped },
        start,
        stop,
        drained,
        ended_by: EndedBy::Complete,
        arrivals: attempts.len() as u64,
        schedule_hash: format!("{:016x}", schedule(&attempts)),
        unit: plimsoll_model::SizeUnit::default(),
        generator: plimsoll_model::GeneratorHealth {
            lag: if known_due(part.due) { lag(&attempts) } else { Quantiles::default() },
            stamps: StampSource::User,
            ..Default::default()
        },
    };
    (level, attempts)
}

/// Returns the first instant of a row.
pub(super) fn begin(row: &ForeignRow) -> Option<i64> {
    row.due.or(row.sent)
}

fn attempt(row: &ForeignRow, (number, level): (u64, u32), base: i64) -> Attempt {
    let at = |ns: Option<i64>| ns.map(|ns| At(ns.saturating_sub(base)));
    let mut attempt = Attempt::new(number, 0, level, at(begin(row)).unwrap_or_default());
    let was_sent = row.outcome.how != How::NeverSent;
    attempt.sent = at(row.sent).filter(|_| was_sent);
    attempt.first_byte = at(row.first_event);
    attempt.first_token = at(row.first_token);
    attempt.first_visible = at(row.first_visible).or(attempt.first_token);
    attempt.last_token = at(row.last_token);
    attempt.end = at(row.end);
    // Tools stamp a request before its connection; an event must not precede its request.
    let each = row.output_tokens == Some(row.events.len() as u32);
    attempt.events = row
        .events
        .iter()
        .map(|offset| Event {
            offset: Span((*offset).max(0)),
            user_delay_ns: 0,
            tokens: u16::from(each),
            kind: EventKind::Content,
            coalesced: false,
        })
        .collect();
    attempt.outcome = row.outcome;
    attempt.answer.status = row.status;
    attempt.answer.finish_reason = row.finish_reason.clone();
    let tokens = &mut attempt.answer.tokens;
    (tokens.prompt, tokens.output, tokens.cached) = (row.prompt_tokens, row.output_tokens, row.cached_tokens);
    if each {
        tokens.rule = TokensRule::UsageTotal;
    }
    attempt
}

fn lag(attempts: &[Attempt]) -> Quantiles {
    let mut lags: Vec<i64> = attempts.iter().filter_map(|a| Some((a.sent? - a.due).0)).collect();
    lags.sort_unstable();
    let at = |p: f64| {
        let rank = plimsoll_math::quantile::rank(lags.len(), p);
        lags.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    };
    Quantiles {
        count: lags.len() as u64,
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: lags.last().copied().unwrap_or_default(),
    }
}

/// Returns the FNV-1a hash of the due times: equal schedules have equal hashes.
fn schedule(attempts: &[Attempt]) -> u64 {
    let bytes = attempts.iter().flat_map(|attempt| attempt.due.0.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
