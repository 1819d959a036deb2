//! Attempts in flight between the virtual client and the world, and their records.
//!
//! The world identifies an attempt by one number made of level, attempt and request. Random draws for it are
//! therefore independent of the order of arrivals, and differ for every retry and every level.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use plimsoll_model::{
    At, Attempt, By, Event, EventKind, How, Outcome, Quantiles, ServerStage, SizeUnit, Span, Tokens,
    TokensRule,
};
use plimsoll_workload::{Action, AttemptPlan, BlockNames, Player};

use crate::client::links::{SimConnection, SimConnections};
use crate::client::{Events, Lags, RowSink, SimLevelPlan};
use crate::engine::meter::RequestLifetime;
use crate::engine::slots::Slots;
use crate::fleet::world::World;
use crate::traffic::{Emission, EngineRejection, Failure, RequestEvent, Submit};

/// Time from a request to its rejection, as on a server on the same machine. Without it, a closed loop against a full
/// queue would never leave one instant.
const REFUSAL: Span = Span::from_micros(100);

pub(crate) struct Exchanges<'a, 'p> {
    plan: &'a SimLevelPlan<'p>,
    open: Slots<Exchange>,
    open_count: u32,
    /// Connections of the client, and the attempts that wait for one.
    pub links: SimConnections,
    awaiting: VecDeque<u64>,
    /// Rejections on their way to the client, in order.
    refused: VecDeque<(At, u64, Outcome)>,
    /// Ends of the requests that the world does not serve.
    external: BinaryHeap<Reverse<(At, u64)>>,
    /// Time at which the pause of a response becomes too long, unless an event arrives. Entries may be out of date.
    idle: BinaryHeap<Reverse<(At, u64)>>,
    names: Option<&'a mut BlockNames>,
    /// Sink for the records of ended attempts, in order of their end.
    pub rows: &'a mut dyn RowSink,
    lags: Lags,
    /// Number of requests whose first attempt has its record.
    requests: u64,
    pub begun: u64,
    /// Set if the player got an event, which may change its next action.
    pub told_player: bool,
    pub events: u64,
}

struct Exchange {
    attempted: AttemptPlan,
    record: Attempt,
    last_event: At,
    tokens: u32,
    /// Prompt tokens from a prefix cache; `None` before the first admission.
    cached: Option<u32>,
    /// Time in the dependency in front of the engine; `None` without one.
    depends: Option<Span>,
    /// Times of admission and of the end of the prefill; `None` before that.
    admitted: Option<At>,
    prefilled: Option<At>,
    /// Timestamps for the server's histograms.
    life: RequestLifetime,
    /// Time at which the client started the attempt: later than due if a limit delayed it.
    begun: At,
    /// Connection; `None` while the attempt waits for one.
    link: Option<SimConnection>,
}

impl<'a, 'p> Exchanges<'a, 'p> {
    pub fn new(
        plan: &'a SimLevelPlan<'p>,
        names: Option<&'a mut BlockNames>,
        rows: &'a mut dyn RowSink,
    ) -> Exchanges<'a, 'p> {
        Exchanges {
            plan,
            open: Slots::new(),
            open_count: 0,
            links: SimConnections::new(plan.client.connections, plan.load, plan.start),
            awaiting: VecDeque::new(),
            refused: VecDeque::new(),
            external: BinaryHeap::new(),
            idle: BinaryHeap::new(),
            names,
            rows,
            lags: Lags::default(),
            requests: 0,
            begun: 0,
            told_player: false,
            events: 0,
        }
    }

    pub(crate) fn any_open(&self) -> bool {
        self.open_count > 0
    }

    /// Returns the next time at which a rejection or an external response arrives, or a pause may be too long.
    pub fn next_at(&self) -> Option<At> {
        // Entries outlive their responses; without an open response they have no effect.
        let idle = self.idle.peek().filter(|_| self.any_open()).map(|Reverse((at, _))| *at);
        let refusal = self.refused.front().map(|(at, _, _)| *at);
        let external = self.external.peek().map(|Reverse((at, _))| *at);
        [idle, refusal, external].into_iter().flatten().min()
    }

    /// Delivers rejections and external responses, and aborts the responses with a pause over the client's limit.
    pub fn turn(&mut self, world: &mut World, player: &mut Player, now: At) {
        while let Some((_, id, outcome)) = self.refused.pop_front_if(|(at, _, _)| *at <= now) {
            if let Some(slot) = self.open.find(id) {
                self.open.at_mut(slot).record.first_byte = Some(now);
                self.end(world, player, now, id, outcome);
            }
        }
        while let Some(&Reverse((at, id))) = self.external.peek()
            && at <= now
        {
            self.external.pop();
            // A request that the client has abandoned is gone.
            if let Some(slot) = self.open.find(id) {
                self.open.at_mut(slot).answered(at, self.plan.events);
                self.end(world, player, at, id, Outcome::FINISHED);
            }
        }
        self.drop_idle(world, player, now);
    }

    /// Executes an action of the player.
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

    /// Records an emission of the world.
    pub fn take(&mut self, world: &mut World, player: &mut Player, emission: Emission) {
        let Emission { at, id, what } = emission;
        let Some(slot) = self.open.find(id) else { return };
        let stream = self.plan.stream;
        let exchange = self.open.at_mut(slot);
        if self.plan.gauges {
            exchange.life.take(world.meter(exchange.life.replica), at.0, &what);
        }
        match what {
            RequestEvent::Placed { replica } => exchange.record.answer.replica = Some(replica.to_string()),
            RequestEvent::Depends { takes } => exchange.depends = Some(takes),
            RequestEvent::Admitted { cached } => {
                exchange.cached = Some(cached);
                exchange.admitted = Some(at);
            }
            RequestEvent::PrefillDone => exchange.prefilled = Some(at),
            RequestEvent::Preempted => {}
            RequestEvent::Token { n, .. } => {
                exchange.tokens += n;
                if !stream {
                    return;
                }
                self.events += 1;
                let first = exchange.token(at, n, self.plan.events);
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
            RequestEvent::Finished { reason } => {
                exchange.finish(at, stream, reason.name(), self.plan.events);
                self.end(world, player, at, id, Outcome::FINISHED);
            }
            RequestEvent::Failed(failure) => {
                let outcome = exchange.fail(at, failure, self.plan.events);
                self.end(world, player, at, id, outcome);
            }
        }
    }

    /// Ends all attempts in flight as unfinished.
    pub fn abandon(&mut self, world: &mut World, player: &mut Player, now: At) {
        // Attempts that wait for a connection must not get one now.
        self.awaiting.clear();
        let outcome = Outcome::new(How::Unfinished, By::Client, false);
        for id in self.open.ids() {
            self.break_off(world, player, now, id, outcome);
        }
    }

    /// Ends the level: writes the records of due requests that were never sent. Returns the number of requests and
    /// the quantiles of their lag.
    pub fn conclude(mut self, player: &mut Player) -> (u64, Quantiles) {
        let outcome = Outcome::new(How::NeverSent, By::Client, false);
        for attempted in player.never_sent() {
            let mut record = Attempt { outcome, ..self.record(&attempted) };
            record.answer.error = attempted.why_never_sent().map(str::to_owned);
            self.leave(record);
        }
        (self.requests, self.lags.quantiles())
    }

    fn leave(&mut self, record: Attempt) {
        self.requests += u64::from(record.attempt == 0);
        self.rows.attempt(record);
    }

    fn begin(&mut self, world: &mut World, now: At, attempted: AttemptPlan) {
        let id = self.world_id(attempted.arrival.id, attempted.attempt);
        let record = self.record(&attempted);
        self.open.insert(
            id,
            Exchange {
                attempted,
                record,
                last_event: now,
                tokens: 0,
                cached: None,
                depends: None,
                admitted: None,
                prefilled: None,
                life: RequestLifetime::new(now.0, now.0, 0),
                begun: now,
                link: None,
            },
        );
        self.open_count += 1;
        self.begun += 1;
        match self.links.take(now) {
            Some(link) => self.send(world, now, id, link),
            None => self.awaiting.push_back(id),
        }
    }

    /// Sends an attempt to the world, which may reject it.
    fn send(&mut self, world: &mut World, now: At, id: u64, link: SimConnection) {
        let Some(slot) = self.open.find(id) else { return };
        let exchange = self.open.at_mut(slot);
        exchange.link = Some(link);
        exchange.record.sent = Some(now);
        exchange.record.connected = Some(link.since);
        exchange.record.connection = Some(link.number);
        exchange.record.reused = link.carried;
        exchange.life = RequestLifetime::new(now.0, now.0, exchange.attempted.arrival.prompt_tokens);
        let arrival = &exchange.attempted.arrival;
        if let Some(latency) = self.plan.external.latency(arrival) {
            self.external.push(Reverse((now + latency, id)));
            return;
        }
        let blocks = match &mut self.names {
            Some(names) => names.of(arrival),
            None => Vec::new(),
        };
        let class = usize::from(arrival.class);
        let (priority, queue_timeout) = self.plan.queues.get(class).copied().unwrap_or_default();
        let submit = Submit {
            blocks,
            priority,
            queue_timeout,
            session: arrival.session,
            adapter: self.plan.adapters.get(class).copied().flatten(),
            items: if self.plan.unit == SizeUnit::Items { arrival.prompt_tokens } else { 0 },
            ..Submit::new(id, arrival.prompt_tokens, arrival.output_tokens)
        };
        let Err(rejected) = world.submit(now, submit) else { return };
        exchange.record.answer.status = rejected.status();
        exchange.record.answer.error = Some(rejected.to_string());
        exchange.record.answer.retry_after = rejected.retry_after();
        let outcome = match rejected {
            EngineRejection::QueueFull { .. } => Outcome::new(How::Shed, By::Server, true),
            EngineRejection::TooLong { .. }
            | EngineRejection::TooManyItems { .. }
            | EngineRejection::DuplicateId { .. } => Outcome::new(How::ClientError, By::Server, false),
            EngineRejection::Unavailable { status, .. } => status_outcome(status),
            EngineRejection::Reset => Outcome::new(How::Reset, By::Network, true),
        };
        self.refused.push_back((now + REFUSAL, id, outcome));
    }

    /// Aborts an attempt on the client's side.
    fn break_off(&mut self, world: &mut World, player: &mut Player, now: At, id: u64, outcome: Outcome) {
        let replica = self.open.find(id).map(|slot| self.open.at(slot).life.replica);
        if world.cancel(now, id)
            && let Some(replica) = replica
        {
            world.meter(replica).aborted += 1;
        }
        self.end(world, player, now, id, outcome);
    }

    /// Ends an attempt, and gives its connection to the next waiting one.
    fn end(&mut self, world: &mut World, player: &mut Player, now: At, id: u64, outcome: Outcome) {
        self.close(player, now, id, outcome);
        // Attempts that were aborted while waiting are skipped.
        while let Some(&next) = self.awaiting.front() {
            if self.open.find(next).is_none() {
                self.awaiting.pop_front();
            } else if let Some(link) = self.links.take(now) {
                self.awaiting.pop_front();
                self.send(world, now, next, link);
            } else {
                return;
            }
        }
    }

    fn close(&mut self, player: &mut Player, now: At, id: u64, outcome: Outcome) {
        let Some(Exchange { mut record, begun, link, depends, admitted, prefilled, .. }) = self.open.take(id)
        else {
            return;
        };
        self.open_count -= 1;
        if let Some(link) = link {
            self.links.give(link, outcome);
            if record.attempt == 0 {
                // Only the generator's own lag counts: a wait for a connection is caused by the pool policy.
                self.lags.add(begun - record.due);
            }
        }
        record.end = Some(now);
        record.outcome = outcome;
        if self.plan.gauges {
            record.answer.stages = stages(&record, depends, admitted, prefilled, now);
        }
        let elapsed = At((now - self.plan.start).0);
        self.told_player = true;
        player.ended(elapsed, record.request, record.attempt, outcome, record.answer.retry_after);
        self.leave(record);
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

    /// Returns the id in the world: 16 bits of level, 8 of attempt, 40 of request.
    fn world_id(&self, request: u64, attempt: u16) -> u64 {
        u64::from(self.plan.id & 0xffff) << 48 | u64::from(attempt & 0xff) << 40 | request & 0xff_ffff_ffff
    }

    fn record(&self, attempted: &AttemptPlan) -> Attempt {
        let arrival = &attempted.arrival;
        let due = self.plan.start + Span(attempted.due.0);
        Attempt {
            kernel_stamps: true,
            prompt_blocks: self.plan.prompts.map_or_else(Vec::new, |prompts| prompts.blocks(arrival)),
            outcome: Outcome::FINISHED,
            ..arrival.row(attempted.attempt, self.plan.id, due)
        }
    }
}

impl Exchange {
    /// Records a token event. Returns `true` for the first.
    fn token(&mut self, at: At, n: u32, events: Events) -> bool {
        let record = &mut self.record;
        let first = record.first_token.is_none();
        if first {
            record.answer.status = Some(200);
            record.first_byte = Some(at);
            record.first_token = Some(at);
            record.first_visible = Some(at);
            if events == Events::All {
                record.events.reserve_exact((record.asked_output as usize).min(65_536) + 1);
            }
        }
        record.last_token = Some(at);
        self.last_event = at;
        self.event(at, EventKind::Content, n, events);
        first
    }

    /// Records a complete response of another service, which has no tokens.
    fn answered(&mut self, at: At, events: Events) {
        self.event(at, EventKind::Body, 0, events);
        self.record.first_byte = Some(at);
        self.record.answer.status = Some(200);
    }

    /// Records the end of a complete response.
    fn finish(&mut self, at: At, stream: bool, reason: &str, events: Events) {
        let rule = if stream { TokensRule::UsageRunning } else { TokensRule::Unknown };
        self.event(at, if stream { EventKind::Done } else { EventKind::Body }, 0, events);
        self.record.first_byte.get_or_insert(at);
        self.record.answer.status = Some(200);
        self.record.answer.finish_reason = Some(reason.to_owned());
        self.record.answer.tokens = Tokens {
            prompt: Some(self.record.asked_prompt),
            output: Some(self.tokens),
            reasoning: None,
            cached: self.cached,
            rule,
            claimed: None,
        };
    }

    /// Records a failure and returns the outcome.
    fn fail(&mut self, at: At, failure: Failure, events: Events) -> Outcome {
        let began = self.record.first_byte.is_some();
        match failure {
            Failure::Status { status, why } => {
                self.record.first_byte.get_or_insert(at);
                self.record.answer.error = Some(why.to_owned());
                if began {
                    self.event(at, EventKind::Error, 0, events);
                    return Outcome::new(How::StreamError, By::Server, true);
                }
                self.record.answer.status = Some(status);
                status_outcome(status)
            }
            Failure::Reset => Outcome::new(How::Reset, By::Network, true),
            Failure::Cut => Outcome::new(How::Truncated, By::Server, true),
        }
    }

    fn event(&mut self, at: At, kind: EventKind, tokens: u32, events: Events) {
        if events == Events::Ends {
            return;
        }
        let offset = at - self.record.sent.unwrap_or(at);
        let tokens = u16::try_from(tokens).unwrap_or(u16::MAX);
        self.record.events.push(Event { offset, user_delay_ns: 0, tokens, kind, coalesced: false });
    }
}

/// Returns the server's stage times: dependency, queue, prefill, decode. A stage that did not end is left out. All
/// are left out if the world has none (drawn times).
fn stages(
    record: &Attempt,
    depends: Option<Span>,
    admitted: Option<At>,
    prefilled: Option<At>,
    end: At,
) -> Vec<ServerStage> {
    let entered = record.sent.map(|sent| sent + depends.unwrap_or(Span::ZERO));
    let instants = [entered, admitted, prefilled, Some(end)];
    let names = ["queue", "prefill", "decode"];
    let of = |(i, name): (usize, &str)| {
        let took = instants[i + 1]? - instants[i]?;
        Some(ServerStage { name: name.to_owned(), took })
    };
    if prefilled.is_none() && record.outcome.is_finished() {
        return Vec::new();
    }
    let ended = if record.outcome.is_finished() { 3 } else { 2 };
    let before = depends.filter(|_| admitted.is_some());
    let before = before.map(|took| ServerStage { name: "dependency".to_owned(), took });
    before.into_iter().chain(names.into_iter().take(ended).enumerate().map_while(of)).collect()
}

/// Returns the outcome of a request with this error status.
fn status_outcome(status: u16) -> Outcome {
    match status {
        429 | 503 => Outcome::new(How::Shed, By::Server, true),
        500.. => Outcome::new(How::ServerError, By::Server, true),
        _ => Outcome::new(How::ClientError, By::Server, false),
    }
}
