//! A request's rows, as every run has them: one per attempt, the first due when the request came.

use plimsoll_math::rng::mix;
use plimsoll_model::outcome::{By, How};
use plimsoll_model::{At, Attempt, Outcome, ServerStage, Span, TokensRule};
use plimsoll_wire::head;

use super::{TrafficRow, Try, TryEnd};

/// Tokens of a block as all runs name them.
const BLOCK_TOKENS: f64 = 16.0;
/// Answers after which the tokens of a prompt's byte are taken as known. They are not learnt for ever, because with each change equal prompts
/// would get other blocks.
const ANSWERS: u32 = 32;

/// Turns requests into rows. One for all rows of a gateway, because it learns.
#[derive(Debug)]
pub struct RowMaker {
    /// Keys the names of prompts' blocks and of sessions, so that nobody can hold a guess against them.
    key: u64,
    /// Tokens as servers count them, and as the gateway does (by bytes), of so many prompts.
    counted: (u64, u64, u32),
}

impl RowMaker {
    pub fn new(key: u64) -> RowMaker {
        RowMaker { key, counted: (0, 0, 0) }
    }

    /// The rows of a request, on an axis whose zero is `base`.
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

    /// Tokens by the servers' count per token by bytes.
    fn scale(&self) -> f64 {
        match self.counted {
            (tokens, bytes, 1..) => (tokens as f64 / bytes as f64).clamp(0.05, 20.0),
            _ => 1.0,
        }
    }

    /// Names of the prompt's full blocks of sixteen tokens. The gateway cuts at bytes, and wider further on: a block of its own is as many of these as it
    /// has tokens for, each named by it and by its place in it, so that equal beginnings are equal here as well.
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

    /// Names as many as there are to be up to `until` after one block of the gateway's.
    fn name(&self, names: &mut Vec<u64>, block: u64, until: usize) {
        let more = until.saturating_sub(names.len());
        names.extend((0..more as u64).map(|place| mix(mix(block ^ self.key) ^ place)));
    }
}

/// What rows say of requests that the gateway refused because of its budget.
const HELD_BACK: &str = "held back: the budget is broken and its class gives way";
/// And of a hedged request's slower attempt.
const SUPERSEDED: &str = "hedged: another replica was faster";
const CANCELLED: Outcome = Outcome::new(How::Cancelled, By::Client, false);

/// What is known of all attempts of a request.
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

/// Puts in what became of one attempt.
fn answered(row: &mut Attempt, told: &TrafficRow, one: &Try) {
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

/// What an answer under a good status says of itself.
fn from_answer(row: &mut Attempt, told: &TrafficRow, one: &Try, status: u16) {
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
    // The end alone shows too few events to contradict a count.
    if one.tail.is_cut() {
        tokens.output = tokens.output.or(tokens.claimed.take());
    }
    if one.first.is_some() {
        row.last_token = said.last_token.or(one.tail.last()).or(row.last_token);
        let events = one.events.saturating_sub(said.without_token);
        match tokens.output {
            Some(output) if output == events => tokens.rule = TokensRule::UsageTotal,
            Some(_) => {}
            // What servers don't say is taken to be one token an event, as most of them send.
            None if tokens.claimed.is_none() => tokens.output = Some(events.max(1)),
            None => {}
        }
    }
}
