//! Drives one level on one worker: turns the player's actions into requests, and their endings into rows.
//!
//! Any task that notices a due arrival fires it: the pacer's timer, or a task that has just read a clock. A busy thread
//! therefore does not delay a request behind responses. The pump polls a new attempt for the first time immediately. On a
//! kept connection that poll writes the request, instead of queueing it behind a thousand readable sockets.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_model::{At, Attempt, By, Carries, How, MediaCounts, Outcome, SizeUnit, Span};
use plimsoll_wire::DecodedEvent;
use plimsoll_workload::{Action, AttemptEnd, AttemptPlan, Connections, Deadline, Player};
use tokio::sync::Notify;

use crate::driver::answers::AnswerStore;
use crate::driver::exchange::exchange;
use crate::driver::flight::{CANCELLED, ExchangeRecorder, Flight, KeyHasher};
use crate::driver::level::{LevelContext, SessionName};
use crate::driver::live::WorkerCounters;
use crate::driver::prepare::BodyPrefetcher;
use crate::driver::recording::{AnswerReading, AttemptEnding, ReadProgress, Recording, never_sent, own_lag};
use crate::driver::task_pool::TaskPool;
use crate::histogram::LogHistogram;
use crate::http1::header_template::RequestNames;
use crate::http1::pool::ConnectionPool;
use crate::http1::request::AttemptKey;
use crate::http1::stamp::SocketMeter;
use crate::timer::Timer;

/// Most actions per pump before other tasks run. The limit bounds starvation in a closed loop against a target that rejects
/// immediately.
const PUMP_MAX: u32 = 256;

/// Closed loop: most endings, and longest time, that are collected before their successors start together.
const OWED_MAX: u32 = 16;
const OWED_WAIT: Span = Span::from_micros(100);

/// Closed loop: most requests that are built before the first of them is written.
///
/// A target that answers faster than the next request is built falls asleep after each, and every write then pays for
/// waking it.
const TOGETHER: usize = OWED_MAX as usize;

/// Closed loop: interval between the endings of attempts that got no socket on this machine.
///
/// Without the delay each would be followed by another failure, tens of thousands per second. This rate suffices to detect
/// a free socket.
const NO_SOCKET_APART: Span = Span::from_millis(50);

/// The counts of a level on one worker.
#[derive(Debug, Default)]
pub struct WorkerTally {
    /// Generator lag of every first attempt (open loop).
    pub lag: LogHistogram,
    pub events: u64,
    /// Token events that were coalesced with others.
    pub coalesced: u64,
    pub begun: u64,
    /// Attempts without a socket on this machine, the only ones that the client itself rejects.
    pub no_socket: u64,
}

/// The resources of a worker that all its levels use.
#[derive(Debug)]
pub struct WorkerState {
    pub meter: Rc<SocketMeter>,
    /// Connection pools, indexed by endpoint number.
    pub pools: Vec<ConnectionPool>,
    pub hands: Rc<TaskPool>,
    pub timer: Timer,
    /// Its shard of the live counters.
    pub shard: Arc<WorkerCounters>,
}

/// The driver of one level on one worker.
#[derive(Debug)]
pub struct LevelDriver {
    bench: Rc<WorkerState>,
    shared: Arc<LevelContext>,
    player: RefCell<Player>,
    flights: RefCell<HashMap<AttemptKey, Rc<Flight>, BuildHasherDefault<KeyHasher>>>,
    ahead: RefCell<BodyPrefetcher>,
    answers: RefCell<AnswerStore>,
    idle: RefCell<BinaryHeap<Reverse<(At, AttemptKey)>>>,
    armed: Cell<At>,
    pumping: Cell<bool>,
    /// Endings since the last pump, and the latest time of the next pump.
    owed: Cell<u32>,
    owed_until: Cell<At>,
    over: Cell<bool>,
    /// End of the newest attempt without a socket.
    no_socket_at: Cell<At>,
    /// Wakes the attempts that wait for that end.
    stopped: Notify,
    /// Set after a ceiling was reached; no new requests begin.
    held: Cell<bool>,
    scratch: RefCell<Vec<DecodedEvent>>,
    /// Notifies the worker's main loop of new work.
    pub news: Notify,
    /// Notifies the task that starts the successors of ended requests.
    pub starts: Notify,
    pub tally: RefCell<WorkerTally>,
}

impl LevelDriver {
    /// Returns the driver of a level that has not begun.
    pub fn new(
        bench: Rc<WorkerState>,
        shared: Arc<LevelContext>,
        player: Player,
        ahead: BodyPrefetcher,
    ) -> Rc<LevelDriver> {
        Rc::new(LevelDriver {
            bench,
            shared,
            player: RefCell::new(player),
            flights: RefCell::default(),
            ahead: RefCell::new(ahead),
            answers: RefCell::default(),
            idle: RefCell::default(),
            armed: Cell::new(At::MAX),
            pumping: Cell::new(false),
            owed: Cell::new(0),
            owed_until: Cell::new(At::MAX),
            over: Cell::new(false),
            no_socket_at: Cell::new(At::ZERO),
            stopped: Notify::new(),
            held: Cell::new(false),
            scratch: RefCell::default(),
            news: Notify::new(),
            starts: Notify::new(),
            tally: RefCell::default(),
        })
    }

    pub fn now(&self) -> At {
        self.bench.meter.clock.now()
    }

    /// Converts `at` to the player's axis, whose zero is the start of the level.
    fn played(&self, at: At) -> At {
        At((at - self.shared.start).0)
    }

    /// Converts a time of the player to the run's axis.
    fn at(&self, played: At) -> At {
        self.shared.start + Span(played.0)
    }

    /// Returns whether all requests have ended.
    pub fn is_over(&self) -> bool {
        self.over.get() || (self.player.borrow().is_done() && self.flights.borrow().is_empty())
    }

    /// Returns the first time at which a ceiling or a full pool delayed a request.
    pub fn closed_since(&self) -> Option<At> {
        let by_player = self.player.borrow().closed_since().map(|at| self.at(at));
        let by_pools = self.bench.pools.iter().map(ConnectionPool::waited_since);
        by_pools.chain([by_player]).flatten().min()
    }

    /// Takes all due actions, then arms the timer for the next one.
    pub fn pump(self: &Rc<LevelDriver>) {
        if self.pumping.replace(true) {
            // A nested call returns, because the outer pump continues.
            return;
        }
        self.owed.set(0);
        self.owed_until.set(At::MAX);
        let mut left = PUMP_MAX;
        let mut now;
        let mut ready = Vec::new();
        loop {
            now = self.now();
            let action = self.player.borrow_mut().pop(self.played(now));
            match action {
                Some(Action::Send(attempted)) => {
                    ready.push(self.make(attempted, now));
                    if self.shared.open || ready.len() >= TOGETHER {
                        self.launch(&mut ready);
                    }
                }
                Some(Action::TimeOut { request, attempt, deadline }) => {
                    let outcome = Outcome::new(How::Timeout, By::Client, true);
                    let error = match deadline {
                        Deadline::FirstToken => "no token in time",
                        Deadline::Total => "not ended in time",
                    };
                    self.give_up((request, attempt), outcome, Some(error));
                }
                Some(Action::Cancel { request, attempt }) => {
                    self.give_up((request, attempt), CANCELLED, None)
                }
                None if ready.is_empty() => break,
                // An attempt that ends immediately may make room for another.
                None => self.launch(&mut ready),
            }
            left -= 1;
            if left == 0 {
                self.launch(&mut ready);
                self.news.notify_one();
                break;
            }
        }
        self.sweep_idle(now);
        self.account_for_lost(By::Client);
        self.pumping.set(false);
        if self.is_over() {
            self.news.notify_one();
        } else if left > 0 {
            self.rearm(now);
        }
    }

    /// Fires the actions due by `now`, a clock reading that the caller already has.
    fn noticed(self: &Rc<LevelDriver>, now: At) {
        if now >= self.armed.get().min(self.owed_until.get()) {
            self.pump();
        }
    }

    /// Handles the room that an ended request leaves.
    ///
    /// An open loop pumps immediately. A closed loop first reads the other available responses, then starts all successors
    /// together. The target is then woken once; otherwise it would sleep between single requests, and each write would pay
    /// for waking it.
    fn ended(self: &Rc<LevelDriver>, now: At) {
        if self.shared.open {
            return self.pump();
        }
        if self.pumping.get() {
            return;
        }
        let owed = self.owed.get() + 1;
        self.owed.set(owed);
        if owed == 1 {
            self.owed_until.set(now + OWED_WAIT);
            self.starts.notify_one();
        }
        if owed >= OWED_MAX || now >= self.owed_until.get() {
            self.pump();
        }
    }

    fn rearm(&self, now: At) {
        let next = self.player.borrow().next_at().map_or(At::MAX, |at| self.at(at));
        let idle = self.idle.borrow().peek().map_or(At::MAX, |entry| entry.0.0);
        let next = next.min(idle);
        let passed = self.armed.get() <= now;
        // An early timer costs one spurious check, but arming it for every ending would cost a system call each.
        if next < self.armed.get() || passed {
            self.armed.set(next);
            if next < At::MAX && self.bench.timer.arm(self.bench.meter.clock.to_monotonic_ns(next)).is_err() {
                self.news.notify_one();
            }
        }
    }

    /// Builds the bodies of upcoming requests while there is time.
    pub fn prepare(&self) {
        let mut ahead = self.ahead.borrow_mut();
        while ahead.wants_more() && (self.armed.get() - self.now()) > ahead.room() {
            let begun = self.now();
            if !ahead.prepare_next(&self.shared) {
                break;
            }
            ahead.took(self.now() - begun);
        }
    }

    /// Builds an attempt: its row, its request and its entry in `flights`.
    fn make(&self, attempted: AttemptPlan, now: At) -> Rc<Flight> {
        let AttemptPlan { arrival, attempt, due, idle, cancel_after_tokens, .. } = attempted;
        let key = (arrival.id, attempt);
        let answers = self.answers.borrow();
        let said = answers.of(arrival.session);
        let prepared = self.ahead.borrow_mut().take(&arrival, attempt, &self.shared, said);
        let mut row = self.row(&arrival, attempt, self.at(due));
        if !self.shared.open {
            self.note_begun(&mut row);
        }
        (row.prompt_blocks, row.media) = (prepared.blocks, prepared.media);
        if attempt == 0 {
            self.bench.shard.request(arrival.prompt_tokens);
            self.tally.borrow_mut().begun += 1;
        }
        let endpoint = usize::from(row.target);
        let reading = self.reading(arrival.class, row.media);
        let mut flight = Flight::new(key, endpoint, now, Recording::new(row, reading));
        flight.idle = idle;
        flight.cancel_after_tokens = cancel_after_tokens.map(u64::from);
        let flight = Rc::new(flight);
        self.flights.borrow_mut().insert(key, Rc::clone(&flight));
        let close = matches!(self.shared.client.connections, Connections::Fresh);
        let (attempt, request) = (self.shared.name(key), self.shared.request_name(arrival.id));
        let session = SessionName(&request, arrival.session);
        let names = RequestNames { attempt: &attempt, request: &request, session: &session };
        flight.request.set(Some(self.shared.requests.endpoints[endpoint].opening.with(
            &prepared.body,
            names,
            close,
        )));
        flight
    }

    /// Starts the attempts in `ready` without yielding between them.
    fn launch(self: &Rc<LevelDriver>, ready: &mut Vec<Rc<Flight>>) {
        let connect = self.shared.client.timeouts.connect;
        for flight in ready.drain(..) {
            let following = ExchangeRecorder { stage: Rc::clone(self), flight: Rc::clone(&flight) };
            let hand = self.bench.hands.begin(Box::pin(async move {
                let (stage, flight) = (&following.stage, &following.flight);
                let ending =
                    exchange(&stage.bench.pools[flight.endpoint], connect, &flight.request, &following).await;
                if !stage.shared.open && ending.lacks_socket() {
                    stage.await_turn().await;
                }
                stage.end(flight, ending);
            }));
            *flight.hand.borrow_mut() = hand;
        }
    }

    /// Waits until an attempt without a socket may end, at most until the window's end, because no attempt follows after
    /// it.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing is sent then: a millisecond of lateness is of no matter"
    )]
    async fn await_turn(&self) {
        let now = self.now();
        let turn = self.no_socket_at.get().max(now) + NO_SOCKET_APART;
        self.no_socket_at.set(turn);
        let wait = turn.min(self.shared.start + self.shared.window) - now;
        if wait > Span::ZERO {
            tokio::select! {
                () = tokio::time::sleep(wait.as_duration()) => {}
                () = self.stopped.notified() => {}
            }
        }
    }

    fn row(&self, arrival: &plimsoll_workload::Arrival, attempt: u16, due: At) -> Attempt {
        self.shared.requests.of(arrival.class).row(arrival.row(attempt, self.shared.id, due))
    }

    /// Records the start of an attempt before any event, so that a killed generator leaves a trace of it.
    fn note_begun(&self, row: &mut Attempt) {
        let fresh = std::mem::replace(&mut row.outcome, Outcome::new(How::Unfinished, By::Client, false));
        self.shared.sink.begun(row);
        row.outcome = fresh;
    }

    fn reading(&self, class: u16, carried: MediaCounts) -> AnswerReading {
        let spec = &self.shared.requests.of(class).spec;
        AnswerReading {
            protocol: spec.protocol,
            stream: spec.stream,
            ignore_eos: spec.ignore_eos,
            results: spec.results(carried.documents),
            sound_ms: (spec.protocol.carries() == Carries::Sound).then_some(carried.audio_ms),
            keep_text: self.shared.keep_text || self.shared.prompts.wants_answers(class),
        }
    }

    /// Returns the ending of an attempt that the run did not wait for.
    pub fn unfinished() -> AttemptEnding {
        AttemptEnding::told(
            How::Unfinished,
            By::Client,
            false,
            "still in flight when the run stopped waiting",
        )
    }

    /// Ends an attempt on the client's initiative: closes its row and drops its task.
    fn give_up(self: &Rc<LevelDriver>, key: AttemptKey, outcome: Outcome, error: Option<&str>) {
        let flight = self.flights.borrow().get(&key).cloned();
        if let Some(flight) = flight {
            self.end(&flight, AttemptEnding::Told { outcome, error: error.map(str::to_owned) });
            if let Some(hand) = flight.hand.borrow_mut().take() {
                hand.leave();
            }
        }
    }

    /// Closes and delivers an attempt's row. Only the first call for a flight has an effect.
    pub fn end(self: &Rc<LevelDriver>, flight: &Rc<Flight>, ending: AttemptEnding) {
        let Some(recording) = flight.recording.borrow_mut().take() else { return };
        let now = self.now();
        self.flights.borrow_mut().remove(&flight.key);
        let target = &self.shared.requests.endpoints[flight.endpoint].target;
        let (mut attempt, events, coalesced) = recording.finish(ending, now, |text| target.scrub(text));
        if attempt.answer.status == Some(401) {
            target.key_refused();
        }
        if let Some(sent) = attempt.sent {
            if !self.shared.open {
                // The lag excludes a wait for a connection, because that wait belongs to the target or the policy.
                let waited = if flight.waited.get() { flight.ready.get() - flight.begun } else { Span::ZERO };
                attempt.due = if attempt.attempt == 0 { sent - waited.max(Span::ZERO) } else { attempt.due };
            } else if attempt.attempt == 0 {
                let lag = own_lag(attempt.due, flight.begun, flight.ready.get(), sent);
                self.tally.borrow_mut().lag.record(lag.0);
            }
        }
        {
            let mut tally = self.tally.borrow_mut();
            tally.events += events;
            tally.coalesced += coalesced;
            tally.no_socket +=
                u64::from((attempt.outcome.how, attempt.outcome.by) == (How::Refused, By::Client));
        }
        // In an open loop the next turn is due by the response's stamp, not by the time of its read. A closed loop
        // continues from now.
        let at = if self.shared.open { attempt.end.unwrap_or(now).min(now) } else { now };
        let ended = self.player.borrow_mut().ended(
            self.played(at),
            flight.key.0,
            flight.key.1,
            attempt.outcome,
            attempt.answer.retry_after,
        );
        if attempt.outcome.is_finished() && attempt.first_token.is_none() {
            self.whole(&attempt);
        }
        let is_over = !matches!(ended, AttemptEnd::WillRetry { .. });
        self.keep_answer(&mut attempt, is_over);
        if is_over {
            self.bench.shard.ended(!attempt.outcome.is_finished());
            if !self.held.get() && self.shared.at_ceiling() {
                // The watching thread detects this at its next tick and records the reason.
                self.held.set(true);
                self.player.borrow_mut().stop(self.played(now));
                self.account_for_lost(By::Client);
            }
        }
        self.shared.sink.attempt(attempt);
        self.ended(now);
    }

    /// Keeps an answer that later turns repeat, and removes its text from the row unless text is recorded.
    fn keep_answer(&self, attempt: &mut Attempt, is_over: bool) {
        if !self.shared.prompts.wants_answers(attempt.class) {
            return;
        }
        let text = match self.shared.keep_text {
            true => attempt.answer.text.clone(),
            false => attempt.answer.text.take(),
        };
        if is_over {
            self.answers.borrow_mut().over(attempt, text);
        }
    }

    /// Counts a complete answer in the live counters: its latency, and the rows of a batch.
    fn whole(&self, attempt: &Attempt) {
        let from = if self.shared.open { Some(attempt.due) } else { attempt.sent };
        if let (Some(from), Some(end)) = (from, attempt.end) {
            self.bench.shard.first_token(end - from);
        }
        if self.shared.requests.of(attempt.class).spec.protocol.counts() == SizeUnit::Items {
            self.bench.shard.token_events(0, u64::from(attempt.asked_prompt));
        }
    }

    /// Ends the load at `at`, as if a stop was requested then.
    pub fn end_at(self: &Rc<LevelDriver>, at: At) {
        self.player.borrow_mut().end_at(self.played(at));
        self.pump();
    }

    /// Begins no new arrivals from now on.
    pub fn stop(self: &Rc<LevelDriver>, by: By) {
        self.player.borrow_mut().stop(self.played(self.now()));
        self.stopped.notify_waiters();
        self.account_for_lost(by);
        self.pump();
    }

    /// Ends everything in flight as unfinished.
    pub(crate) fn stop_now(self: &Rc<LevelDriver>, by: By) {
        self.stop(by);
        let keys: Vec<AttemptKey> = self.flights.borrow().keys().copied().collect();
        for key in keys {
            let outcome = Outcome::new(How::Unfinished, by, false);
            self.give_up(key, outcome, Some("still in flight when the run stopped waiting"));
        }
        self.over.set(true);
        self.news.notify_one();
    }

    /// Writes rows for arrivals that will not be sent. A retry that is not sent ends its request; the others never counted
    /// as begun.
    fn account_for_lost(&self, by: By) {
        let lost: Vec<AttemptPlan> = self.player.borrow_mut().never_sent().collect();
        for attempted in lost {
            if attempted.attempt > 0 {
                self.bench.shard.ended(true);
            }
            let mut row = self.row(&attempted.arrival, attempted.attempt, self.at(attempted.due));
            row.answer.error = attempted.why_never_sent().map(str::to_owned);
            let row = never_sent(row, by);
            if self.shared.prompts.wants_answers(row.class) {
                self.answers.borrow_mut().over(&row, None);
            }
            self.shared.sink.attempt(row);
        }
    }

    /// Counts an attempt whose request was written.
    pub fn sent(&self) {
        self.bench.shard.sent();
    }

    pub fn tokens(self: &Rc<LevelDriver>, flight: &Flight, due: At, progress: &ReadProgress) {
        let shard = &self.bench.shard;
        shard.token_events(u64::from(progress.token_events), progress.tokens);
        let newest = flight.last_read.get().unwrap_or(At::ZERO);
        if progress.first_token {
            let from = if self.shared.open { due } else { flight.begun };
            shard.first_token(newest - from);
            self.player.borrow_mut().first_token(self.played(newest), flight.key.0, flight.key.1);
        }
        self.noticed(newest);
    }

    /// Runs `f` with a reusable buffer for decoded events.
    pub(crate) fn with_scratch<T>(&self, f: impl FnOnce(&mut Vec<DecodedEvent>) -> T) -> T {
        f(&mut self.scratch.borrow_mut())
    }

    /// Starts the idle limit of a response that has begun.
    pub(crate) fn watch_idle(&self, flight: &Flight) {
        if let (Some(idle), Some(read)) = (flight.idle, flight.last_read.get()) {
            self.idle.borrow_mut().push(Reverse((read + idle, flight.key)));
            if read + idle < self.armed.get() {
                self.rearm(read);
            }
        }
    }

    /// Checks the responses whose idle limit may have expired.
    ///
    /// A response that progressed meanwhile is rescheduled, so an active stream costs one check per limit and not one per
    /// event.
    fn sweep_idle(self: &Rc<LevelDriver>, now: At) {
        loop {
            let key = match self.idle.borrow_mut().peek() {
                Some(Reverse((at, key))) if *at <= now => *key,
                _ => return,
            };
            self.idle.borrow_mut().pop();
            let flight = self.flights.borrow().get(&key).cloned();
            let Some(flight) = flight else { continue };
            let (Some(idle), Some(read)) = (flight.idle, flight.last_read.get()) else { continue };
            if read + idle <= now {
                let outcome = Outcome::new(How::Timeout, By::Client, true);
                self.give_up(key, outcome, Some("the answer paused for longer than the idle limit"));
            } else {
                self.idle.borrow_mut().push(Reverse((read + idle, key)));
            }
        }
    }
}
