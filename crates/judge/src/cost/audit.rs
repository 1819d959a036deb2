//! Cost audit: divides a bill among the uses of the time or the tokens that it pays for.
//!
//! With a price per hour, each instant of a level is shared equally by the attempts in flight, as in processor sharing. An
//! instant without an attempt in flight is idle. The rule needs no model of the engine. It overstates the share of an attempt
//! that waits in a queue, because a queued attempt counts as one in service. A share by tokens was rejected for a price per
//! hour, because a failed attempt holds its place without tokens. With a price per token, an attempt costs its tokens.
//!
//! The parts sum to the bill by construction. Intervals come from blocks of consecutive time (delete-one jackknife of the
//! share with Student's t; Efron and Tibshirani 1993, chapter 11).

use plimsoll_math::special::student_t_inv;
use plimsoll_measure::budget::is_good;
use plimsoll_measure::columns::Columns;
use plimsoll_measure::findings::price::{Bill, EndpointPrice};
use plimsoll_measure::findings::{BudgetSpec, Estimate};
use plimsoll_model::{At, Attempt, How};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Blocks of time per level for the intervals.
const BLOCKS: usize = 20;

plimsoll_model::named! {
    /// A use of the money.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum BillPart {
        /// Complete responses within the limits, if limits are given.
        Good => "good",
        /// Complete responses over a limit.
        Late => "late",
        /// Output of good responses past the stated length.
        OverLong => "over_long",
        /// Prefill of prompt tokens that an earlier turn sent and no cache returned.
        RecomputedPrefix => "recomputed_prefix",
        /// Last attempts without a complete response.
        Failed => "failed",
        /// Attempts that another attempt of their request followed.
        Retried => "retried",
        Cancelled => "cancelled",
        /// Attempts still in flight at the end.
        Unfinished => "unfinished",
        /// Time without an attempt in flight.
        Idle => "idle",
        /// Time that was not observed.
        NotObserved => "not_observed",
    }
}

const PARTS: usize = BillPart::ALL.len();

/// Money by part, in the order of [`BillPart::ALL`].
pub type Amounts = [f64; PARTS];

/// The division of a bill.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AuditFinding {
    pub bill: Bill,
    /// The whole bill, in the currency.
    pub total: f64,
    /// Billed time in seconds.
    pub billed_s: f64,
    /// The parts above zero: good first, then by saving per effort.
    pub parts: Vec<AuditPart>,
    /// Statements on what the data does not show, and how to learn it.
    pub unknown: Vec<String>,
}

/// One use of the money.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AuditPart {
    pub part: BillPart,
    /// Amount in the currency.
    pub amount: f64,
    /// Share of the bill, 0 to 1, with its 95 % interval; without blocks the bounds equal the value.
    pub share: Estimate,
    /// Change that would return the money; empty for the good part.
    pub lever: String,
    /// Assumed effort of the lever: 1 a setting, 2 a change of traffic or capacity, 3 an investigation.
    pub effort: u8,
}

/// Settings of an audit.
#[derive(Clone, Default, Debug)]
pub struct AuditSpec {
    /// Limits that a good response meets; `None` if each complete response is good.
    pub budget: Option<BudgetSpec>,
    /// Output tokens past which a response is too long; `None` if no length is too long.
    pub long_answer: Option<u32>,
}

/// The billed time of a level.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct AuditWindow {
    pub level: u32,
    pub from: At,
    pub to: At,
}

/// A piece of billed time: its money by part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AuditBlock {
    pub seconds: f64,
    pub amounts: Amounts,
}

/// Returns the audit of a run.
pub fn of_run(windows: &[AuditWindow], attempts: &[Attempt], spec: &AuditSpec, bill: &Bill) -> AuditFinding {
    let mut blocks = Vec::new();
    for window in windows.iter().filter(|window| window.to > window.from) {
        let own: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.level == window.level).collect();
        let uses = uses(&own, spec);
        blocks.extend(match bill.rate {
            EndpointPrice::PerHour(hour) => by_time(&uses, (window.from, window.to), hour / 3600.0),
            EndpointPrice::PerMtok { input, output } => by_tokens(&own, &uses, window, [input, output]),
        });
    }
    let mut unknown = vec![
        "Headroom is part of idle: an audit does not compute the load limit; plimsoll sweep URL finds it."
            .to_owned(),
    ];
    let knows = |attempt: &Attempt| attempt.resent.is_some() && attempt.answer.tokens.cached.is_some();
    if !attempts.iter().any(knows) {
        unknown.push("Recomputed prefixes are not known: no response reports cached tokens of a session's earlier turns.".to_owned());
    }
    if spec.long_answer.is_none() {
        unknown.push("Over-long responses are not counted: --long-answer TOKENS sets a length.".to_owned());
    }
    if spec.budget.is_none() {
        unknown.push("Each complete response counts as good: --slo or --budget sets limits.".to_owned());
    }
    finding(&blocks, bill, unknown)
}

/// Returns the finding of these blocks.
pub fn finding(blocks: &[AuditBlock], bill: &Bill, unknown: Vec<String>) -> AuditFinding {
    let sums = |blocks: &mut dyn Iterator<Item = &AuditBlock>| {
        blocks.fold([0.0; PARTS], |sums: Amounts, block| std::array::from_fn(|i| sums[i] + block.amounts[i]))
    };
    let all = sums(&mut blocks.iter());
    let total: f64 = all.iter().sum();
    let n = blocks.len();
    let share = |i: usize| {
        let value = if total > 0.0 { all[i] / total } else { 0.0 };
        let without: Vec<f64> = blocks
            .iter()
            .map(|block| (all[i] - block.amounts[i], total - block.amounts.iter().sum::<f64>()))
            .filter(|(_, total)| *total > 0.0)
            .map(|(part, total)| part / total)
            .collect();
        let (k, mean) = (without.len() as f64, without.iter().sum::<f64>() / without.len().max(1) as f64);
        let squares: f64 = without.iter().map(|share| (share - mean) * (share - mean)).sum();
        let half = match without.len() {
            0 | 1 => 0.0,
            _ => student_t_inv(0.975, k - 1.0) * ((k - 1.0) / k * squares).sqrt(),
        };
        Estimate {
            value,
            lower: (value - half).clamp(0.0, 1.0),
            upper: (value + half).clamp(0.0, 1.0),
            n: n as u64,
            n_eff: n as f64,
        }
    };
    let mut parts: Vec<AuditPart> = BillPart::ALL
        .iter()
        .enumerate()
        .filter(|(i, _)| all[*i] > 0.0)
        .map(|(i, part)| {
            let (lever, effort) = lever(*part);
            AuditPart { part: *part, amount: all[i], share: share(i), lever: lever.to_owned(), effort }
        })
        .collect();
    let rank = |part: &AuditPart| {
        let is_use = matches!(part.part, BillPart::Good | BillPart::NotObserved);
        (
            part.part != BillPart::Good,
            part.part == BillPart::NotObserved,
            -if is_use { 0.0 } else { part.amount / f64::from(part.effort) },
        )
    };
    parts.sort_by(|a, b| rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal));
    let billed_s = blocks.iter().map(|block| block.seconds).sum();
    AuditFinding { bill: bill.clone(), total, billed_s, parts, unknown }
}

/// Returns the change that returns a part, and its effort.
fn lever(part: BillPart) -> (&'static str, u8) {
    match part {
        BillPart::Good | BillPart::NotObserved => ("", 1),
        BillPart::Late => ("more capacity at the peak: plimsoll plan", 2),
        BillPart::OverLong => ("a lower max_tokens", 1),
        BillPart::RecomputedPrefix => ("gateway route: prefix, or a larger cache", 1),
        BillPart::Failed => ("find the cause: plimsoll diagnose RUN", 3),
        BillPart::Retried => ("a retry budget at the gateway", 1),
        BillPart::Cancelled => ("deadlines at admission; cancel upstream", 2),
        BillPart::Unfinished => ("none: they had not ended", 3),
        BillPart::Idle => ("fewer replicas, or scaling: plimsoll plan", 2),
    }
}

/// The use of one attempt. The shares of its prompt and its output belong to other parts than the rest.
struct AttemptUse {
    from: i64,
    to: i64,
    part: BillPart,
    /// Share of the time until the first token.
    prefill: f64,
    /// Share of the prompt that was computed again.
    recomputed: f64,
    /// Share of the output past the stated length.
    over_long: f64,
}

impl AttemptUse {
    /// Divides the money of the prompt and of the output among the parts.
    fn divided(&self, prompt: f64, output: f64) -> Amounts {
        let mut amounts = [0.0; PARTS];
        let (recomputed, over_long) = (prompt * self.recomputed, output * self.over_long);
        amounts[BillPart::RecomputedPrefix as usize] = recomputed;
        amounts[BillPart::OverLong as usize] = over_long;
        amounts[self.part as usize] += prompt - recomputed + output - over_long;
        amounts
    }
}

/// Returns the uses of the attempts of a level, in their order; `None` for an attempt that was not sent.
fn uses(own: &[&Attempt], spec: &AuditSpec) -> Vec<Option<AttemptUse>> {
    let columns = Columns::read(own);
    let mut is_last = vec![false; own.len()];
    let mut is_late = vec![false; own.len()];
    for (row, last) in columns.last.iter().enumerate() {
        is_last[*last as usize] = true;
        is_late[*last as usize] = spec.budget.as_ref().is_some_and(|budget| !is_good(&columns, row, budget));
    }
    let of = |(i, attempt): (usize, &&Attempt)| {
        let from = attempt.sent?.0;
        let to = attempt.end.map_or(i64::MAX, |end| end.0.max(from));
        let is_whole = attempt.answer.broken.is_none();
        let part = match attempt.outcome.how {
            How::Unfinished => BillPart::Unfinished,
            How::Cancelled => BillPart::Cancelled,
            _ if !is_last[i] => BillPart::Retried,
            How::Finished if is_whole && is_late[i] => BillPart::Late,
            How::Finished if is_whole => BillPart::Good,
            _ => BillPart::Failed,
        };
        let (recomputed, over_long) = match part {
            BillPart::Good => (recomputed_share(attempt), over_long_share(attempt, spec.long_answer)),
            _ => (0.0, 0.0),
        };
        let first = attempt.first_token.map_or(to, |first| first.0.clamp(from, to));
        let prefill = if to > from { (first - from) as f64 / (to - from) as f64 } else { 1.0 };
        Some(AttemptUse { from, to, part, prefill, recomputed, over_long })
    };
    own.iter().enumerate().map(of).collect()
}

/// Returns the share of the prompt that an earlier turn sent and no cache returned; 0 if it is not known.
fn recomputed_share(attempt: &Attempt) -> f64 {
    let tokens = &attempt.answer.tokens;
    let (Some(resent), Some(cached)) = (attempt.resent, tokens.cached) else { return 0.0 };
    let prompt = tokens.prompt.unwrap_or(attempt.asked_prompt).max(1);
    (f64::from(resent.saturating_sub(cached)) / f64::from(prompt)).min(1.0)
}

fn over_long_share(attempt: &Attempt, long: Option<u32>) -> f64 {
    let (Some(long), Some(output)) = (long, attempt.answer.tokens.output) else { return 0.0 };
    f64::from(output.saturating_sub(long)) / f64::from(output.max(1))
}

/// Shares each instant among the attempts in flight, in blocks of equal time. `per_s` is the price of a second.
fn by_time(uses: &[Option<AttemptUse>], (start, stop): (At, At), per_s: f64) -> Vec<AuditBlock> {
    let (start, stop) = (start.0, stop.0);
    let length = ((stop - start) as f64 / BLOCKS as f64).max(1.0);
    let mut blocks = [AuditBlock { seconds: 0.0, amounts: [0.0; PARTS] }; BLOCKS];
    let edges = (1..BLOCKS).map(|i| (start + (i as f64 * length) as i64, None));
    let mut events: Vec<(i64, Option<(usize, bool)>)> = edges.collect();
    for (i, used) in uses.iter().enumerate() {
        let Some(used) = used else { continue };
        let (from, to) = (used.from.clamp(start, stop), used.to.clamp(start, stop));
        if to > from {
            events.extend([(from, Some((i, true))), (to, Some((i, false)))]);
        }
    }
    events.push((stop, None));
    events.sort_unstable();
    // Rounding errors of the running sum vanish at each idle instant.
    let (mut in_flight, mut flying, mut now): (Amounts, u64, i64) = ([0.0; PARTS], 0, start);
    for (at, event) in events {
        if at > now {
            let block = (((now - start) as f64 / length) as usize).min(BLOCKS - 1);
            let seconds = (at - now) as f64 * 1e-9;
            let block = &mut blocks[block];
            block.seconds += seconds;
            match flying {
                0 => block.amounts[BillPart::Idle as usize] += seconds * per_s,
                n => {
                    let each = seconds * per_s / n as f64;
                    block
                        .amounts
                        .iter_mut()
                        .zip(&in_flight)
                        .for_each(|(amount, share)| *amount += each * share.max(0.0));
                }
            }
            now = at;
        }
        if let Some((i, begins)) = event {
            let divided = |used: &AttemptUse| used.divided(used.prefill, 1.0 - used.prefill);
            let shares = uses[i].as_ref().map_or([0.0; PARTS], divided);
            let sign = if begins { 1.0 } else { -1.0 };
            in_flight.iter_mut().zip(shares).for_each(|(sum, share)| *sum += sign * share);
            flying = if begins { flying + 1 } else { flying - 1 };
            if flying == 0 {
                in_flight = [0.0; PARTS];
            }
        }
    }
    blocks.into_iter().filter(|block| block.seconds > 0.0).collect()
}

/// Bills each attempt its tokens, in the block of its send time. `price` is per million prompt and generated tokens.
fn by_tokens(
    own: &[&Attempt],
    uses: &[Option<AttemptUse>],
    window: &AuditWindow,
    price: [f64; 2],
) -> Vec<AuditBlock> {
    let span = (window.to - window.from).0.max(1) as f64;
    let mut blocks = [AuditBlock { seconds: span * 1e-9 / BLOCKS as f64, amounts: [0.0; PARTS] }; BLOCKS];
    for (attempt, used) in own.iter().zip(uses) {
        let Some(used) = used else { continue };
        let tokens = &attempt.answer.tokens;
        // A response without a count of prompt tokens is billed those that were asked for, if the prompt was read.
        let is_read = attempt.first_token.is_some() || attempt.outcome.is_finished();
        let asked = if is_read { attempt.asked_prompt } else { 0 };
        let prompt = f64::from(tokens.prompt.unwrap_or(asked)) * price[0] / 1e6;
        let output = f64::from(tokens.output.unwrap_or(0)) * price[1] / 1e6;
        let block = ((used.from - window.from.0).max(0) as f64 / span * BLOCKS as f64) as usize;
        let amounts = &mut blocks[block.min(BLOCKS - 1)].amounts;
        amounts.iter_mut().zip(used.divided(prompt, output)).for_each(|(sum, own)| *sum += own);
    }
    blocks.to_vec()
}

#[cfg(test)]
mod tests {
    use plimsoll_measure::findings::price::PriceSpec;
    use plimsoll_model::{By, Outcome};
    use proptest::prelude::*;

    use super::*;

    const S: i64 = 1_000_000_000;

    fn bill(text: &str) -> Bill {
        PriceSpec::new(plimsoll_measure::findings::price::Price::parse(text).expect("a price"))
            .bill()
            .expect("a bill")
    }

    fn attempt(request: u64, number: u16, seconds: (i64, i64), how: How) -> Attempt {
        let [from, to] = [seconds.0, seconds.1].map(|s| At(s * S));
        let mut attempt = Attempt::new(request, number, 0, from);
        attempt.sent = Some(from);
        attempt.first_token = Some(from + plimsoll_model::Span((to - from).0 / 2));
        attempt.end = Some(to);
        attempt.outcome = Outcome::new(how, By::Server, false);
        attempt
    }

    fn level(seconds: i64) -> AuditWindow {
        AuditWindow { level: 0, from: At(0), to: At(seconds * S) }
    }

    fn amount(found: &AuditFinding, part: BillPart) -> f64 {
        found.parts.iter().find(|one| one.part == part).map_or(0.0, |one| one.amount)
    }

    /// 0 to 10 s: a good response alone. 10 to 20 s: a good response and the first attempt of a retried request, half each.
    /// 20 to 30 s: the retry, which fails. 30 to 40 s: idle. At 3600 per hour a second costs 1.
    #[test]
    fn four_attempts_divide_forty_seconds_as_by_hand() {
        let rows = [
            attempt(0, 0, (0, 10), How::Finished),
            attempt(1, 0, (10, 20), How::Finished),
            attempt(2, 0, (10, 20), How::ServerError),
            attempt(2, 1, (20, 30), How::ServerError),
        ];
        let found = of_run(&[level(40)], &rows, &AuditSpec::default(), &bill("3600USD/h"));
        let want = [
            (BillPart::Good, 15.0),
            (BillPart::Retried, 5.0),
            (BillPart::Failed, 10.0),
            (BillPart::Idle, 10.0),
        ];
        for (part, expected) in want {
            assert!((amount(&found, part) - expected).abs() < 1e-9, "{part:?} {found:#?}");
        }
        assert!((found.total - 40.0).abs() < 1e-9 && (found.billed_s - 40.0).abs() < 1e-9);
        assert_eq!(found.parts[0].part, BillPart::Good);
    }

    /// The first half of the time is prefill; half of the prompt is computed again, and 30 of 40 tokens are too many.
    #[test]
    fn a_recomputed_prefix_and_a_long_answer_are_parts_of_a_good_one() {
        let mut row = attempt(0, 0, (0, 10), How::Finished);
        (row.asked_prompt, row.resent) = (100, Some(60));
        row.answer.tokens.prompt = Some(100);
        row.answer.tokens.cached = Some(10);
        row.answer.tokens.output = Some(40);
        let spec = AuditSpec { long_answer: Some(10), ..AuditSpec::default() };
        let found = of_run(&[level(10)], &[row.clone()], &spec, &bill("3600USD/h"));
        assert!((amount(&found, BillPart::RecomputedPrefix) - 2.5).abs() < 1e-9, "{found:#?}");
        assert!((amount(&found, BillPart::OverLong) - 3.75).abs() < 1e-9);
        assert!((amount(&found, BillPart::Good) - 3.75).abs() < 1e-9);
        // By tokens: 100 prompt tokens at 1, 40 output tokens at 2 per million.
        let found = of_run(&[level(10)], &[row], &spec, &bill("1,2USD/Mtok"));
        assert!((found.total - 180e-6).abs() < 1e-12, "{found:#?}");
        assert!((amount(&found, BillPart::RecomputedPrefix) - 50e-6).abs() < 1e-12);
        assert!((amount(&found, BillPart::OverLong) - 60e-6).abs() < 1e-12);
    }

    /// An embedding has no first token, and its server may count nothing; a failed attempt that was not read costs nothing.
    #[test]
    fn a_whole_response_without_counts_is_billed_the_prompt_that_was_asked() {
        let mut rows = [attempt(0, 0, (0, 1), How::Finished), attempt(1, 0, (0, 1), How::Refused)];
        rows.iter_mut().for_each(|row| (row.asked_prompt, row.first_token) = (50, None));
        let found = of_run(&[level(1)], &rows, &AuditSpec::default(), &bill("2,3USD/Mtok"));
        assert!((found.total - 100e-6).abs() < 1e-12, "{found:#?}");
    }

    proptest! {
        /// The parts are not negative and sum to the price of the time, for any attempts.
        #[test]
        fn the_parts_sum_to_the_bill(
            rows in proptest::collection::vec((0u64..20, 0u16..3, -20i64..120, 0i64..60, 0usize..14), 0..60),
        ) {
            let rows: Vec<Attempt> = rows
                .into_iter()
                .map(|(request, number, from, took, how)| attempt(request, number, (from, from + took), How::ALL[how]))
                .collect();
            let found = of_run(&[level(100)], &rows, &AuditSpec::default(), &bill("3600USD/h"));
            prop_assert!((found.total - 100.0).abs() < 1e-6, "{found:#?}");
            prop_assert!(found.parts.iter().all(|part| part.amount >= 0.0));
            let shares: f64 = found.parts.iter().map(|part| part.share.value).sum();
            prop_assert!((shares - 1.0).abs() < 1e-9);
            prop_assert!(found.parts.iter().all(|part| part.share.lower <= part.share.value && part.share.value <= part.share.upper));
        }
    }
}
