//! Conversion of a recorded request to the rows of a run: one per attempt. The first is due at the arrival of the
//! request.

use plimsoll_math::rng::mix;
use plimsoll_model::outcome::{By, How};
use plimsoll_model::{At, Attempt, Outcome, ServerStage, Span, TokensRule};
use plimsoll_wire::head;

use super::{TrafficRow, TryEnd, UpstreamAttempt};

/// Tokens per prompt block in run folders.
const BLOCK_TOKENS: f64 = 16.0;
/// Number of responses after which the tokens per byte are fixed. Further learning would change the blocks of equal
/// prompts.
const ANSWERS: u32 = 32;

/// A converter of requests to rows. A gateway uses one for all rows, because it learns.
#[derive(Debug)]
pub struct RowMaker {
    /// Key of the hashes for prompt blocks and sessions, so that guessed prompts cannot be verified.
    key: u64,
    /// Sums of prompt tokens as reported by servers and as estimated from bytes, and the number of prompts.
    counted: (u64, u64, u32),
}

impl RowMaker {
    pub fn new(key: u64) -> RowMaker {
        RowMaker { key, counted: (0, 0, 0) }
    }

    /// Returns the rows of a request, on an axis with zero at `base`.
    pub fn rows(&mut self, told: &TrafficRow, base: At) -> Vec<Attempt> {
        let mut rows: Vec<Attempt> = (0..told.tries.len().max(1)).map(|n| blank(told, n as u16)).collect();
        for (row, one) in rows.iter_mut().zip(&told.tries) {
            answered(row, told, one);
        }
        if told.tries.is_empty() {
            let last = &mut rows[0];
            last.end = Some(told.over);
            last.answer.status = told.own_status;
            last.answer.error = told.held_back.then(|| HELD_BACK.to_owned());
            last.outcome = told.own_status.and_then(head::outcome).unwrap_or(CANCELLED);
        }
        if let Some(prompt) = rows.iter().rev().find_map(|row| row.answer.tokens.prompt) {
            self.learn(prompt, told.asked.prompt_tokens);
        }
        let scale = self.scale();
        for row in &mut rows {
            row.asked_prompt = (f64::from(told.asked.prompt_tokens) * scale).round() as u32;
            row.prompt_blocks =
                self.blocks(told, row.answer.tokens.prompt.unwrap_or(row.asked_prompt), scale);
            row.session = told.asked.session.map(|session| mix(session ^ self.key));
            row.shift(At::ZERO - base);
        }
        rows
    }

    fn learn(&mut self, prompt: u32, by_bytes: u32) {
        let (tokens, bytes, answers) = &mut self.counted;
        if *answers < ANSWERS && by_bytes > 0 {
            *tokens += u64::from(prompt);
            *bytes += u64::from(by_bytes);
            *answers += 1;
        }
    }

    /// Returns the reported tokens per estimated token.
    fn scale(&self) -> f64 {
        match self.counted {
            (tokens, bytes, 1..) => (tokens as f64 / bytes as f64).clamp(0.05, 20.0),
            _ => 1.0,
        }
    }

    /// Returns the names of the prompt's full blocks of 16 tokens. A block of the gateway is cut at bytes and may be
    /// longer. It becomes as many names as it has space for, each derived from its hash and an index, so that equal
    /// prefixes stay equal.
    fn blocks(&self, told: &TrafficRow, prompt_tokens: u32, scale: f64) -> Vec<u64> {
        let all = (f64::from(prompt_tokens) / BLOCK_TOKENS) as usize;
        let mut names = Vec::with_capacity(all);
        let until = |end: u32| ((f64::from(end) * scale / BLOCK_TOKENS) as usize).min(all);
        for (block, end) in told.asked.blocks.iter().zip(&told.asked.ends) {
            self.name(&mut names, *block, until(*end));
        }
        if let Some(whole) = told.asked.whole {
            self.name(&mut names, whole, all);
        }
        names
    }

    /// Appends the names derived from one block of the gateway, up to `until` names in total.
    fn name(&self, names: &mut Vec<u64>, block: u64, until: usize) {
        let more = until.saturating_sub(names.len());
        names.extend((0..more as u64).map(|place| mix(mix(block ^ self.key) ^ place)));
    }
}

/// Error text of requests that the gateway rejected because of its SLO budget.
const HELD_BACK: &str = "held back: the budget is broken and its class is shed first";
/// Error text of the slower attempt of a hedged request.
const SUPERSEDED: &str = "hedged: another replica was faster";
const CANCELLED: Outcome = Outcome::new(How::Cancelled, By::Client, false);

/// Returns a row with the values that all attempts of a request share.
fn blank(told: &TrafficRow, attempt: u16) -> Attempt {
    let mut row = Attempt::new(told.number, attempt, 0, told.came);
    row.class = told.class;
    row.asked_output = told.asked.most_tokens.unwrap_or(0);
    row.bytes_out = told.bytes;
    let own = [("gateway_read", told.read), ("gateway_hold", told.held), ("gateway_route", told.routed)];
    let own = own.into_iter().filter(|(_, took)| *took > Span::ZERO);
    row.answer.stages = own.map(|(name, took)| ServerStage { name: name.to_owned(), took }).collect();
    row
}

/// Fills in the outcome of an attempt.
fn answered(row: &mut Attempt, told: &TrafficRow, one: &UpstreamAttempt) {
    row.sent = Some(one.sent).filter(|_| !matches!(one.how, TryEnd::NotSent(_)));
    row.end = Some(one.end);
    row.bytes_in = one.bytes;
    row.answer.replica = Some(one.replica.name.clone());
    if let Some(way) = &one.way {
        (row.connected, row.connection, row.reused) = (Some(way.connected), Some(way.connection), way.reused);
    }
    let (status, by_status) = match one.head {
        Some((at, status, retry_after)) => {
            row.first_byte = Some(at);
            row.answer.status = Some(status);
            row.answer.retry_after = retry_after;
            (status, head::outcome(status))
        }
        None => (0, None),
    };
    row.outcome = match &one.how {
        TryEnd::Cancelled | TryEnd::Superseded => CANCELLED,
        TryEnd::NotSent(_) => Outcome::new(How::Refused, By::Network, true),
        TryEnd::Broken(_) => Outcome::new(How::Reset, By::Network, true),
        TryEnd::Cut | TryEnd::Whole => by_status.unwrap_or(Outcome::FINISHED),
    };
    row.answer.error = match &one.how {
        TryEnd::NotSent(why) | TryEnd::Broken(why) => Some(why.chars().take(200).collect()),
        TryEnd::Superseded => Some(SUPERSEDED.to_owned()),
        TryEnd::Cancelled | TryEnd::Cut | TryEnd::Whole => None,
    };
    if by_status.is_none() && one.head.is_some() {
        from_answer(row, told, one, status);
    }
}

/// Fills in the content of a response with a success status.
fn from_answer(row: &mut Attempt, told: &TrafficRow, one: &UpstreamAttempt, status: u16) {
    let whole = one.how == TryEnd::Whole;
    if let Some((at, visible)) = one.first {
        (row.first_token, row.last_token) = (Some(at), Some(at));
        row.first_visible = Some(at).filter(|_| visible);
    }
    let said = one.tail.read(told.protocol, (status, one.streams), whole);
    if matches!(one.how, TryEnd::Whole | TryEnd::Cut) {
        row.outcome = said.verdict.outcome;
        row.answer.error = said.verdict.answer.error;
    }
    row.answer.finish_reason = said.verdict.answer.finish_reason;
    row.answer.stages.extend(said.verdict.answer.stages);
    row.answer.tokens = said.verdict.answer.tokens;
    let tokens = &mut row.answer.tokens;
    tokens.rule = TokensRule::Unknown;
    // The tail contains too few events to contradict a reported count.
    if one.tail.is_cut() {
        tokens.output = tokens.output.or(tokens.claimed.take());
    }
    if one.first.is_some() {
        row.last_token = said.last_token.or(one.tail.last()).or(row.last_token);
        let events = one.events.saturating_sub(said.without_token);
        match tokens.output {
            Some(output) if output == events => tokens.rule = TokensRule::UsageTotal,
            Some(_) => {}
            // If the server reports no count, one token per event is assumed, as most servers send.
            None if tokens.claimed.is_none() => tokens.output = Some(events.max(1)),
            None => {}
        }
    }
}
