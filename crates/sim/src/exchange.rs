//! Attempts under way between the virtual client and the world, and the record that each becomes.
//!
//! An attempt is known to the world by one number made of level, attempt and request, so that what is drawn for it is the
//! same however arrivals interleave, and different for every retry and every level.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use plimsoll_model::{At, Attempt, By, Event, EventKind, How, Outcome, Span, Tokens, TokensRule};
use plimsoll_workload::{Action, Attempted, Connections, Player};

use crate::client::LevelPlan;
use crate::slots::Slots;
use crate::world::{Emission, Rejected, Submit, What, World};

/// From a request to the answer that it is refused. Without it a closed loop against a full queue would turn for ever at
/// one instant; this is what a server on the same machine takes.
const REFUSAL: Span = Span::from_micros(100);

/// Attempts under way.
pub(crate) struct Exchanges<'a, 'p> {
    plan: &'a LevelPlan<'p>,
    open: Slots<Exchange>,
    open_count: u32,
    /// Attempts that have or wait for a connection of a bounded pool.
    pooled: u32,
    awaiting: VecDeque<u64>,
    /// Refusals on their way to the client, in order.
    refused: VecDeque<(At, u64, Outcome)>,
    /// When an answer will have paused for too long, unless something comes. Entries may be out of date.
    idle: BinaryHeap<Reverse<(At, u64)>>,
    /// The records of those that ended, in order of their end.
    pub records: Vec<Attempt>,
    /// Set when the player was told of something, which may change what it wants next.
    pub told_player: bool,
    /// Token events seen.
    pub events: u64,
    /// Most attempts in the world at once.
    pub most_open: u32,
}

struct Exchange {
    attempted: Attempted,
    record: Attempt,
    last_event: At,
    tokens: u32,
    /// False while it waits for a connection.
    sent: bool,
}

impl<'a, 'p> Exchanges<'a, 'p> {
    pub fn new(plan: &'a LevelPlan<'p>) -> Exchanges<'a, 'p> {
        Exchanges {
            plan,
            open: Slots::new(),
            open_count: 0,
            pooled: 0,
            awaiting: VecDeque::new(),
            refused: VecDeque::new(),
            idle: BinaryHeap::new(),
            records: Vec::new(),
            told_player: false,
            events: 0,
            most_open: 0,
        }
    }

    pub fn any_open(&self) -> bool {
        self.open_count > 0
    }

    /// The next time at which a refusal arrives or an answer may have paused for too long.
    pub fn next_at(&self) -> Option<At> {
        let idle = self.idle.peek().map(|Reverse((at, _))| *at);
        let refusal = self.refused.front().map(|(at, _, _)| *at);
        [idle, refusal].into_iter().flatten().min()
    }

    /// Delivers refusals, and breaks off the answers that have paused for longer than the client waits.
    pub fn turn(&mut self, world: &mut World, player: &mut Player, now: At) {
        while let Some((_, id, outcome)) = self.refused.pop_front_if(|(at, _, _)| *at <= now) {
            if let Some(slot) = self.open.find(id) {
                self.open.at_mut(slot).record.first_byte = Some(now);
                self.end(world, player, now, id, outcome);
            }
        }
        self.drop_idle(world, player, now);
    }

    /// Does what the player says.
    pub fn act(&mut self, world: &mut World, player: &mut Player, now: At, action: Action) {
        match action {
            Action::Send(attempted) => self.begin(world, now, attempted),
            Action::TimeOut { request, attempt, .. } => {
                let outcome = Outcome::new(How::Timeout, By::Client, true);
                self.break_off(world, player, now, self.world_id(request, attempt), outcome);
            }
            Action::Cancel { request, attempt } => {
                let outcome = Outcome::new(How::Cancelled, By::Client, false);
                self.break_off(world, player, now, self.world_id(request, attempt), outcome);
            }
        }
    }

    /// Books what the world emitted.
    pub fn take(&mut self, world: &mut World, player: &mut Player, emission: Emission) {
        let Emission { at, id, what } = emission;
        let Some(slot) = self.open.find(id) else { return };
        let stream = self.plan.stream;
        let exchange = self.open.at_mut(slot);
        match what {
            What::Admitted | What::PrefillDone => {}
            What::Token { n, .. } => {
                exchange.tokens += n;
                if !stream {
                    return;
                }
                self.events += 1;
                let first = exchange.token(at, n);
                let leave =
                    exchange.attempted.cancel_after_tokens.is_some_and(|after| exchange.tokens >= after);
                if first {
                    let (request, attempt) = (exchange.record.request, exchange.record.attempt);
                    self.told_player = true;
                    player.first_token(At((at - self.plan.start).0), request, attempt);
                    if let Some(idle) = exchange.attempted.idle {
                        self.idle.push(Reverse((at + idle, id)));
                    }
                }
                if leave && exchange.tokens < exchange.record.asked_output {
                    let outcome = Outcome::new(How::Cancelled, By::Client, false);
                    self.break_off(world, player, at, id, outcome);
                }
            }
            What::Finished { reason } => {
                exchange.finish(at, stream, reason.name());
                self.end(world, player, at, id, Outcome::FINISHED);
            }
        }
    }

    /// Ends everything that is under way as unfinished.
    pub fn abandon(&mut self, world: &mut World, player: &mut Player, now: At) {
        // Those that wait for a connection are not to get one now.
        self.awaiting.clear();
        let outcome = Outcome::new(How::Unfinished, By::Client, false);
        for id in self.open.ids() {
            self.break_off(world, player, now, id, outcome);
        }
    }

    /// Ends all: the records, with those of what was due and never sent.
    pub fn conclude(mut self, player: &mut Player) -> Vec<Attempt> {
        let outcome = Outcome::new(How::NeverSent, By::Client, false);
        for attempted in player.never_sent() {
            let record = Attempt { outcome, ..self.record(&attempted) };
            self.records.push(record);
        }
        self.records
    }

    fn begin(&mut self, world: &mut World, now: At, attempted: Attempted) {
        let id = self.world_id(attempted.arrival.id, attempted.attempt);
        let record = self.record(&attempted);
        self.open.insert(id, Exchange { attempted, record, last_event: now, tokens: 0, sent: false });
        self.open_count += 1;
        match self.plan.client.connections {
            Connections::Pool { limit } if self.pooled >= limit => {
                self.awaiting.push_back(id);
            }
            _ => self.send(world, now, id),
        }
    }

    /// Hands an attempt to the world, which may refuse it.
    fn send(&mut self, world: &mut World, now: At, id: u64) {
        let Some(slot) = self.open.find(id) else { return };
        let exchange = self.open.at_mut(slot);
        exchange.sent = true;
        exchange.record.sent = Some(now);
        exchange.record.connected = Some(now);
        self.pooled += 1;
        self.most_open = self.most_open.max(self.pooled);
        let arrival = &exchange.attempted.arrival;
        let submit = Submit {
            id,
            prompt_tokens: arrival.prompt_tokens,
            output_tokens: arrival.output_tokens,
            blocks: arrival.blocks.clone(),
        };
        let Err(rejected) = world.submit(now, submit) else { return };
        exchange.record.answer.status = Some(rejected.status());
        exchange.record.answer.error = Some(rejected.to_string());
        let outcome = match rejected {
            Rejected::QueueFull { .. } => Outcome::new(How::Shed, By::Server, true),
            Rejected::TooLong { .. } | Rejected::DuplicateId { .. } => {
                Outcome::new(How::ClientError, By::Server, false)
            }
        };
        self.refused.push_back((now + REFUSAL, id, outcome));
    }

    /// The client gives an attempt up.
    fn break_off(&mut self, world: &mut World, player: &mut Player, now: At, id: u64, outcome: Outcome) {
        world.cancel(now, id);
        self.end(world, player, now, id, outcome);
    }

    /// Ends an attempt, and gives its connection to those that wait for one.
    fn end(&mut self, world: &mut World, player: &mut Player, now: At, id: u64, outcome: Outcome) {
        self.close(player, now, id, outcome);
        while let Connections::Pool { limit } = self.plan.client.connections
            && self.pooled < limit
            && let Some(next) = self.awaiting.pop_front()
        {
            self.send(world, now, next);
        }
    }

    fn close(&mut self, player: &mut Player, now: At, id: u64, outcome: Outcome) {
        let Some(Exchange { mut record, sent, .. }) = self.open.take(id) else { return };
        self.open_count -= 1;
        self.pooled -= u32::from(sent);
        record.end = Some(now);
        record.outcome = outcome;
        let elapsed = At((now - self.plan.start).0);
        self.told_player = true;
        player.ended(elapsed, record.request, record.attempt, outcome, record.answer.retry_after);
        self.records.push(record);
    }

    fn drop_idle(&mut self, world: &mut World, player: &mut Player, now: At) {
        while let Some(&Reverse((at, id))) = self.idle.peek()
            && at <= now
        {
            self.idle.pop();
            let Some(slot) = self.open.find(id) else { continue };
            let exchange = self.open.at(slot);
            let Some(idle) = exchange.attempted.idle else { continue };
            let due = exchange.last_event + idle;
            if due > now {
                self.idle.push(Reverse((due, id)));
                continue;
            }
            let outcome = Outcome::new(How::Timeout, By::Client, true);
            self.break_off(world, player, now, id, outcome);
        }
    }

    /// 16 bits of level, 8 of attempt, 40 of request.
    fn world_id(&self, request: u64, attempt: u16) -> u64 {
        u64::from(self.plan.id & 0xffff) << 48 | u64::from(attempt & 0xff) << 40 | request & 0xff_ffff_ffff
    }

    /// A record in which nothing has happened yet.
    fn record(&self, attempted: &Attempted) -> Attempt {
        let arrival = &attempted.arrival;
        let due = self.plan.start + Span(attempted.due.0);
        Attempt {
            session: arrival.session,
            turn: arrival.turn,
            class: arrival.class,
            kernel_stamps: true,
            asked_prompt: arrival.prompt_tokens,
            asked_output: arrival.output_tokens,
            prompt_blocks: self.plan.prompts.map_or_else(Vec::new, |prompts| prompts.blocks(arrival)),
            outcome: Outcome::FINISHED,
            ..Attempt::new(arrival.id, attempted.attempt, self.plan.id, due)
        }
    }
}

impl Exchange {
    /// Books a token event. True for the first.
    fn token(&mut self, at: At, n: u32) -> bool {
        let record = &mut self.record;
        let first = record.first_token.is_none();
        if first {
            record.answer.status = Some(200);
            record.first_byte = Some(at);
            record.first_token = Some(at);
            record.first_visible = Some(at);
            record.events.reserve_exact((record.asked_output as usize).min(65_536) + 1);
        }
        record.last_token = Some(at);
        self.last_event = at;
        self.event(at, EventKind::Content, n);
        first
    }

    /// Books the end of a whole answer.
    fn finish(&mut self, at: At, stream: bool, reason: &str) {
        let rule = if stream { TokensRule::UsageRunning } else { TokensRule::Unknown };
        self.event(at, if stream { EventKind::Done } else { EventKind::Body }, 0);
        self.record.first_byte.get_or_insert(at);
        self.record.answer.status = Some(200);
        self.record.answer.finish_reason = Some(reason.to_owned());
        self.record.answer.tokens = Tokens {
            prompt: Some(self.record.asked_prompt),
            output: Some(self.tokens),
            reasoning: None,
            cached: None,
            rule,
        };
    }

    fn event(&mut self, at: At, kind: EventKind, tokens: u32) {
        let offset = at - self.record.sent.unwrap_or(at);
        let tokens = u16::try_from(tokens).unwrap_or(u16::MAX);
        self.record.events.push(Event { offset, user_delay_ns: 0, tokens, kind, coalesced: false });
    }
}
