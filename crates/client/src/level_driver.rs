//! One level on one worker: turns the player's steps into requests, and their ends into rows.
//!
//! A due arrival is fired by whoever notices it first. The pacer's timer is one; every task that has just read a clock is
//! another, so that a thread busy with answers does not leave a request waiting behind them. The first poll of a new
//! attempt happens at once and inside the pump: on a kept connection that already writes the request, instead of
//! queueing it behind a thousand readable sockets.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_model::{At, Attempt, By, Carries, How, MediaCounts, Outcome, SizeUnit, Span};
use plimsoll_wire::Decoded;
use plimsoll_workload::{Action, AttemptEnd, Attempted, Connections, Deadline, Player};
use tokio::sync::Notify;

use crate::answers::Answers;
use crate::exchange::exchange;
use crate::flight::{CANCELLED, Flight, Following, KeyHasher};
use crate::header_template::RequestNames;
use crate::histogram::LogHistogram;
use crate::level::{SessionName, Shared};
use crate::live::Shard;
use crate::pool::ConnectionPool;
use crate::prepare::Ahead;
use crate::recording::{AnswerReading, Ending, ReadProgress, Recording, never_sent, own_lag};
use crate::request::AttemptKey;
use crate::stamp::Meter;
use crate::task_pool::TaskPool;
use crate::timer::Timer;

/// Actions taken in one pump before other tasks get their turn. Bounds the starvation that a closed loop against a
/// target that refuses at once would cause.
const PUMP_MAX: u32 = 256;

/// Closed loop: most ends whose successors wait for each other, and for how long at most.
const OWED_MAX: u32 = 16;
const OWED_WAIT: Span = Span::from_micros(100);

/// Closed loop: most requests that are made ready before the first of them is written. A target that answers faster than
/// the next request can be made falls asleep after each, and every write pays for waking it.
const TOGETHER: usize = OWED_MAX as usize;

/// Closed loop: how far apart attempts end for which this machine had no socket. Each would be followed at once by one that finds none
/// either, tens of thousands of them a second; so many a second are enough to see when there is room again.
const NO_SOCKET_APART: Span = Span::from_millis(50);

/// What a level counted on one worker.
#[derive(Debug, Default)]
pub struct Tally {
    /// The generator's own lag of every first attempt (open loop).
    pub lag: LogHistogram,
    pub events: u64,
    /// Of those, coalesced ones.
    pub coalesced: u64,
    pub begun: u64,
    /// Attempts for which this machine had no socket: the only ones that the client itself refuses.
    pub no_socket: u64,
}

/// What a worker has for every level.
#[derive(Debug)]
pub struct Bench {
    pub meter: Rc<Meter>,
    /// Its connections, by endpoint.
    pub pools: Vec<ConnectionPool>,
    pub hands: Rc<TaskPool>,
    pub timer: Timer,
    /// Its part of the live counters.
    pub shard: Arc<Shard>,
}

/// See the module's head.
#[derive(Debug)]
pub struct LevelDriver {
    bench: Rc<Bench>,
    shared: Arc<Shared>,
    player: RefCell<Player>,
    flights: RefCell<HashMap<AttemptKey, Rc<Flight>, BuildHasherDefault<KeyHasher>>>,
    ahead: RefCell<Ahead>,
    answers: RefCell<Answers>,
    idle: RefCell<BinaryHeap<Reverse<(At, AttemptKey)>>>,
    armed: Cell<At>,
    pumping: Cell<bool>,
    /// Ends since the last pump, and when that pump must come.
    owed: Cell<u32>,
    owed_until: Cell<At>,
    over: Cell<bool>,
    /// When the newest attempt without a socket ends.
    no_socket_at: Cell<At>,
    /// Wakes those that wait for such an end.
    stopped: Notify,
    /// A ceiling was reached: nothing new is begun.
    held: Cell<bool>,
    scratch: RefCell<Vec<Decoded>>,
    /// Tells the worker's main loop that there is something to look at.
    pub news: Notify,
    /// Tells the task that starts what ends have made room for.
    pub starts: Notify,
    pub tally: RefCell<Tally>,
}

impl LevelDriver {
    /// A level about to begin.
    pub fn new(bench: Rc<Bench>, shared: Arc<Shared>, player: Player, ahead: Ahead) -> Rc<LevelDriver> {
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

    /// This instant.
    pub fn now(&self) -> At {
        self.bench.meter.clock.now()
    }

    /// `at` on the player's axis, which begins with the level.
    fn played(&self, at: At) -> At {
        At((at - self.shared.start).0)
    }

    /// A player's instant on the run's axis.
    fn at(&self, played: At) -> At {
        self.shared.start + Span(played.0)
    }

    /// Has everything ended?
    pub fn is_over(&self) -> bool {
        self.over.get() || (self.player.borrow().is_done() && self.flights.borrow().is_empty())
    }

    /// When a ceiling or a full pool first held something back.
    pub fn closed_since(&self) -> Option<At> {
        let by_player = self.player.borrow().closed_since().map(|at| self.at(at));
        let by_pools = self.bench.pools.iter().map(ConnectionPool::waited_since);
        by_pools.chain([by_player]).flatten().min()
    }

    /// Does all that is due, then arms the timer for what comes next.
    pub fn pump(self: &Rc<LevelDriver>) {
        if self.pumping.replace(true) {
            // Called from within: the pump that runs goes on.
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
                // What ends as soon as it is begun may make room for more.
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

    /// Fires what is due by `now`, a clock reading the caller has at hand anyway.
    fn noticed(self: &Rc<LevelDriver>, now: At) {
        if now >= self.armed.get().min(self.owed_until.get()) {
            self.pump();
        }
    }

    /// An end has made room. An open loop looks at once at what is due. A closed loop first reads the other answers that
    /// are there, then starts all their successors: a target that is woken once finds them all, where one that has been
    /// read and answered one by one falls asleep in between, and each write pays for waking it.
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
        // A timer that fires too early costs one look; arming it for every end costs a system call each.
        if next < self.armed.get() || passed {
            self.armed.set(next);
            if next < At::MAX && self.bench.timer.arm(next).is_err() {
                self.news.notify_one();
            }
        }
    }

    /// Makes what will soon be due ready to send, while there is time.
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

    /// Makes an attempt ready: its row, its request, its place among the flights.
    fn make(&self, attempted: Attempted, now: At) -> Rc<Flight> {
        let Attempted { arrival, attempt, due, idle, cancel_after_tokens, .. } = attempted;
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
        flight.request.set(Some(self.shared.endpoints[endpoint].opening.with(&prepared.body, names, close)));
        flight
    }

    /// Begins attempts that are ready, one straight after the other.
    fn launch(self: &Rc<LevelDriver>, ready: &mut Vec<Rc<Flight>>) {
        let connect = self.shared.client.timeouts.connect;
        for flight in ready.drain(..) {
            let following = Following { stage: Rc::clone(self), flight: Rc::clone(&flight) };
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

    /// Until an attempt without a socket may end: not past the window, after which nothing follows it.
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
        let row = self.shared.spec.placed(arrival.row(attempt, self.shared.id, due));
        Attempt { asked_output: self.shared.options.asked_output(row.asked_output), ..row }
    }

    /// Tells of an attempt before anything can happen to it, so that a generator that is killed leaves it behind.
    fn note_begun(&self, row: &mut Attempt) {
        let fresh = std::mem::replace(&mut row.outcome, Outcome::new(How::Unfinished, By::Client, false));
        self.shared.sink.begun(row);
        row.outcome = fresh;
    }

    fn reading(&self, class: u16, carried: MediaCounts) -> AnswerReading {
        let spec = &self.shared.spec;
        AnswerReading {
            protocol: spec.protocol,
            stream: spec.stream,
            ignore_eos: spec.ignore_eos,
            results: spec.results(carried.documents),
            sound_ms: (spec.protocol.carries() == Carries::Sound).then_some(carried.audio_ms),
            keep_text: self.shared.keep_text || self.shared.prompts.wants_answers(class),
        }
    }

    /// The ending of an attempt that the run did not wait for.
    pub fn unfinished() -> Ending {
        Ending::told(How::Unfinished, By::Client, false, "still in flight when the run stopped waiting")
    }

    /// Ends an attempt by the client's own will: its row is closed now, its task dropped.
    fn give_up(self: &Rc<LevelDriver>, key: AttemptKey, outcome: Outcome, error: Option<&str>) {
        let flight = self.flights.borrow().get(&key).cloned();
        if let Some(flight) = flight {
            self.end(&flight, Ending::Told { outcome, error: error.map(str::to_owned) });
            if let Some(hand) = flight.hand.borrow_mut().take() {
                hand.leave();
            }
        }
    }

    /// Closes an attempt's row and hands it over. Only the first call for a flight does anything.
    pub fn end(self: &Rc<LevelDriver>, flight: &Rc<Flight>, ending: Ending) {
        let Some(recording) = flight.recording.borrow_mut().take() else { return };
        let now = self.now();
        self.flights.borrow_mut().remove(&flight.key);
        let target = &self.shared.endpoints[flight.endpoint].target;
        let (mut attempt, events, coalesced) = recording.finish(ending, now, |text| target.scrub(text));
        if attempt.answer.status == Some(401) {
            target.key_refused();
        }
        if let Some(sent) = attempt.sent {
            if !self.shared.open {
                // What the client itself takes before it writes is nobody's wait; a connection that had to be waited for is.
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
        // A turn that comes after this one is due by the answer's own stamp, not by when it was read. A closed loop goes on from now.
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
                // The watching thread sees it at its next look, and says why the level ended.
                self.held.set(true);
                self.player.borrow_mut().stop(self.played(now));
                self.account_for_lost(By::Client);
            }
        }
        self.shared.sink.attempt(attempt);
        self.ended(now);
    }

    /// Keeps what later turns repeat, and lets no row have it that was not to.
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

    /// Counts a whole answer for the eye: how long it took, and the rows of its batch where it has one.
    fn whole(&self, attempt: &Attempt) {
        let from = if self.shared.open { Some(attempt.due) } else { attempt.sent };
        if let (Some(from), Some(end)) = (from, attempt.end) {
            self.bench.shard.first_token(end - from);
        }
        if self.shared.spec.protocol.counts() == SizeUnit::Items {
            self.bench.shard.token_events(0, u64::from(attempt.asked_prompt));
        }
    }

    /// The load ends at this instant, as if it had been asked to.
    pub fn end_at(self: &Rc<LevelDriver>, at: At) {
        self.player.borrow_mut().end_at(self.played(at));
        self.pump();
    }

    /// No new arrivals from now on.
    pub fn stop(self: &Rc<LevelDriver>, by: By) {
        self.player.borrow_mut().stop(self.played(self.now()));
        self.stopped.notify_waiters();
        self.account_for_lost(by);
        self.pump();
    }

    /// Everything in flight ends now, as unfinished.
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

    /// Rows for arrivals that will not be sent. One that had been tried ends its request; the others never counted as
    /// begun.
    fn account_for_lost(&self, by: By) {
        let lost: Vec<Attempted> = self.player.borrow_mut().never_sent().collect();
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

    /// An attempt's request went out.
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

    /// Runs `f` with a buffer for decoded events.
    pub(crate) fn with_scratch<T>(&self, f: impl FnOnce(&mut Vec<Decoded>) -> T) -> T {
        f(&mut self.scratch.borrow_mut())
    }

    /// An answer has begun: from now on it may not pause for longer than its idle limit.
    pub(crate) fn watch_idle(&self, flight: &Flight) {
        if let (Some(idle), Some(read)) = (flight.idle, flight.last_read.get()) {
            self.idle.borrow_mut().push(Reverse((read + idle, flight.key)));
            if read + idle < self.armed.get() {
                self.rearm(read);
            }
        }
    }

    /// Looks at the answers whose idle limit may have passed; one that moved meanwhile is looked at again later, so a
    /// lively stream costs one look per limit and not one per event.
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
