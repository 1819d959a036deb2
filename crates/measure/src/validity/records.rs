//! Checks of the rows, for rows of this program and of other programs that filled the folder.
//!
//! A missing row usually belongs to a slow request, because a cut, an overflow or a crash removes the requests in flight.
//! Missing rows therefore prevent every pass, however few they are. The verdict only rates the usefulness of the rest.

use super::{Bench, Limits};
use crate::budget::BudgetMetric;
use crate::columns::OUTPUT;
use crate::findings::{LevelSummary, Reason, Records, Trust};
use crate::say::{count, ms, number, percent};

/// Share of missing or repeated rows. One is a fault; beyond one in a hundred a p99 can be anywhere.
const ROWS: Limits = Limits { suspect: 0.0, invalid: 0.01 };
/// Share of attempts with impossible timestamps.
///
/// One in a thousand is a tenth of the tail of a p99, and may be a single slip of a clock. Above it, the timestamps are wrong.
const ORDER: Limits = Limits { suspect: 0.0, invalid: 0.001 };
/// Share of complete responses without a first token, on a level with streaming.
///
/// Some servers send a few responses in one piece. Above twice the share beyond a p99, these can be its whole tail.
const FIRST_TOKENS: Limits = Limits { suspect: 0.02, invalid: 0.2 };

/// Names of the checks that [`lets_nothing_pass`] uses.
const MISSING_ROWS: &str = "rows";
const NO_FIRST_TOKEN: &str = "first_tokens";
/// Name of the check that all machines of a sharded load sent requests.
pub(super) const LOST_SHARDS: &str = "shards";
const NO_COUNT: &str = "token_counts";

/// Returns whether this reason prevents a budget on this metric from passing, even if the measurement is only suspect.
///
/// With `None` it prevents a comparison from finding an improvement. The missing data may be what the budget is about.
pub fn lets_nothing_pass(reason: &Reason, metric: Option<BudgetMetric>) -> bool {
    match reason.check.as_str() {
        MISSING_ROWS | NO_FIRST_TOKEN | LOST_SHARDS => true,
        NO_COUNT => metric.is_some_and(|metric| {
            matches!(
                metric,
                BudgetMetric::Tpot
                    | BudgetMetric::Ntpot
                    | BudgetMetric::Itl
                    | BudgetMetric::TpotTailRatio
                    | BudgetMetric::OutputTokensPerS
                    | BudgetMetric::Goodput
            )
        }),
        _ => false,
    }
}

pub fn records(bench: &mut Bench, summary: &LevelSummary) {
    all_there(bench, summary);
    in_order(bench, summary);
    let records = &summary.records;
    if records.streamed > 0 {
        let share = records.first_token_missing as f64 / records.streamed as f64;
        bench.say(
            NO_FIRST_TOKEN,
            FIRST_TOKENS.judge(share),
            format!(
                "{} of {} whole answers without a first token",
                records.first_token_missing, records.streamed
            ),
            "the other answers stream, so ttft covers only part of the requests and may miss its tail",
            "use e2e, and find the cause of these answers",
        );
    }
    if records.output_contradicted as f64 > OUTPUT * records.answers as f64 {
        return contradicted(bench, records);
    }
    // If no response has a token count, no figure uses counts.
    if records.answers > records.output_unknown {
        let share = records.output_unknown as f64 / records.answers as f64;
        bench.say(
            NO_COUNT,
            if share > OUTPUT { Trust::Suspect } else { Trust::Valid },
            format!("{} of {} answers without a count of their output tokens", records.output_unknown, records.answers),
            "figures per token leave these answers out, and tokens per second take them to be as long as the others",
            "configure the server to report usage with every answer",
        );
    }
}

/// Reports that the server's token counts contradict its events.
fn contradicted(bench: &mut Bench, records: &Records) {
    let n = records.output_contradicted;
    let each = |sum: u64| number(sum as f64 / n as f64);
    let empties = match records.claimed_empties {
        0 => String::new(),
        all => format!(" and {} without", each(all)),
    };
    bench.say(
        NO_COUNT,
        Trust::Suspect,
        format!(
            "in {n} of {} answers the server reports {} output tokens for {} events with text{empties} (means)",
            records.answers,
            each(records.claimed_tokens),
            each(records.claimed_texts)
        ),
        "the two contradict each other, so the number of tokens is unknown and figures per token are refused",
        "correct the usage that the server or its gateway reports, or use only e2e and ttft",
    );
}

/// Checks that each arrival has exactly one row.
fn all_there(bench: &mut Bench, summary: &LevelSummary) {
    let records = &summary.records;
    let arrivals = records.arrivals.unwrap_or(records.requests);
    let lost = arrivals.saturating_sub(records.requests);
    let more = records.requests.saturating_sub(arrivals);
    let mut parts = Vec::new();
    if lost > 0 {
        parts.push(format!("{} of {} left no row", lost, count(arrivals, "arrival")));
    }
    if records.attempts_missing > 0 {
        parts.push(format!("{} left no row", count(records.attempts_missing, "earlier attempt")));
    }
    if more > 0 {
        parts.push(format!("{} more than the {arrivals} that arrived", count(more, "request")));
    }
    if records.doubled > 0 {
        parts.push(format!("{} there more than once", count(records.doubled, "row")));
    }
    let figure = match parts.is_empty() {
        true => count(records.requests, "request") + ", each there once",
        false => parts.join(", "),
    };
    let odd = lost + more + records.attempts_missing + records.doubled;
    bench.say(
        MISSING_ROWS,
        ROWS.judge(odd as f64 / arrivals.max(1) as f64),
        figure,
        "the rows differ from the load on the target, and the missing rows may be the slowest, so no verdict passes",
        "do not use the figures: find the program that wrote or cut the rows, and measure again",
    );
}

/// Checks that timestamps are ordered: due ≤ sent ≤ first byte ≤ first token ≤ last token ≤ end, and events in sequence.
fn in_order(bench: &mut Bench, summary: &LevelSummary) {
    let records = &summary.records;
    let share = records.disordered as f64 / records.attempts.max(1) as f64;
    let by = match records.back_max_s {
        back if back > 0.0 => format!(", by up to {}", ms(back)),
        _ => String::new(),
    };
    let figure = match records.disordered {
        0 => "every stamp after the one before it".to_owned(),
        n => format!("the stamps of {} ({}) contradict each other{by}", count(n, "attempt"), percent(share)),
    };
    bench.say(
        "stamp_order",
        ORDER.judge(share),
        figure,
        "a request can't be answered before it is sent, so the latencies are wrong",
        "do not use the figures: check the clock of the program that wrote them",
    );
}
