//! Implements the client as a state machine that decides sends, aborts and retries. The load generator and the simulated
//! client both use it, so that simulated and measured runs behave alike by construction.
//!
//! The caller waits until [`Player::next_at`], takes actions from [`Player::pop`] until there is none, and reports events
//! ([`Player::first_token`], [`Player::ended`]). All times are on the level's axis, whose 0 is its start. Every arrival
//! ends exactly once: by `ended` returning [`AttemptEnd::Final`], or in [`Player::never_sent`].
//!
//! Open loop: arrivals are due at their scheduled times. A late arrival (a slow caller, a ceiling) is sent immediately with
//! its original due time. No arrival is skipped, and the schedule is never re-anchored.
//!
//! Closed loop: the end of one request (or session) starts the next, which is due when it is sent. A simulated user that is
//! rejected with a `Retry-After` waits (`ClientSpec::retry_after_max`). A paced player ([`Player::with_pace`]) never begins
//! two attempts with less distance than its pace.
//!
//! A turn with predecessors is due after the last of them has ended ([`crate::graph`]). If one fails, its successors are
//! never sent.
//!
//! Deadlines for the first token and the total, and cancellations by time, are timers here. Limits that depend on bytes
//! (connect, idle, cancellation after n tokens) are passed in [`AttemptPlan`] and enforced by the driver. Timers of ended
//! attempts stay in the heap until they surface or outnumber the active ones four to one. Immediate removal was rejected:
//! an indexed heap costs more at every send than the rare sweep.

mod action;
mod state;
mod waiting;

pub use action::{Action, AttemptEnd, AttemptPlan, Deadline};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, How, Outcome, Span};

use crate::draw::Arrival;
use crate::policy::{CancelAfter, ClientSpec};
use crate::schedule::{ArrivalFeed, Sequence};
use state::{LiveRequest, NumberHasher, Phase, PlayerTimer, RequestSource, TimerKind};
use waiting::SessionQueue;

#[derive(Debug)]
pub struct Player {
    source: RequestSource,
    spec: ClientSpec,
    seed: u64,
    until: At,
    /// End of the level for turns with predecessors.
    turns_until: At,
    live: HashMap<u64, LiveRequest, BuildHasherDefault<NumberHasher>>,
    flying: u32,
    retrying: u32,
    /// Sessions in progress or not yet begun.
    sessions: HashMap<u64, SessionQueue>,
    /// Timers of retries and later turns.
    wakes: BinaryHeap<Reverse<PlayerTimer>>,
    deadlines: BinaryHeap<Reverse<PlayerTimer>>,
    lost: Vec<AttemptPlan>,
    stopped: bool,
    full_since: At,
    closed_since: Option<At>,
    feed_hash: Option<String>,
    /// Shortest distance between two attempts, and earliest time of the next.
    pace: Span,
    not_before: At,
}

impl Player {
    /// Returns an open loop over these arrivals, in any order. Turns with predecessors wait for their ends.
    pub fn open(mut arrivals: Vec<Arrival>, spec: &ClientSpec, seed: u64) -> Player {
        arrivals.sort_by_key(|a| a.turn);
        let mut sessions: HashMap<u64, SessionQueue> = HashMap::new();
        let mut order: Vec<Arc<Arrival>> = Vec::with_capacity(arrivals.len());
        for arrival in arrivals.into_iter().map(Arc::new) {
            match arrival.session {
                Some(session) => order.extend(sessions.entry(session).or_default().take(arrival)),
                None => order.push(arrival),
            }
        }
        order.sort_by_key(|a| (a.due, a.id));
        Player::new(RequestSource::Open(order.into()), sessions, spec, seed)
    }

    /// Returns an open loop over arrivals that are drawn when due. Equivalent to [`Player::open`] with the complete
    /// schedule.
    pub fn fed(mut feed: ArrivalFeed, spec: &ClientSpec, seed: u64) -> Player {
        match feed.take_drawn() {
            Some(arrivals) => Player { feed_hash: feed.hash(), ..Player::open(arrivals, spec, seed) },
            None => Player::new(RequestSource::Fed(Box::new(feed)), HashMap::new(), spec, seed),
        }
    }

    /// Returns the schedule hash of a fed player, once all arrivals have been taken.
    pub fn schedule_hash(&self) -> Option<String> {
        match &self.source {
            RequestSource::Fed(feed) => feed.hash(),
            _ => self.feed_hash.clone(),
        }
    }

    /// Returns a closed loop with `concurrency` concurrent requests (or sessions); new ones begin before `until`.
    pub fn closed(sequence: Sequence, concurrency: u32, until: At, spec: &ClientSpec, seed: u64) -> Player {
        let slots = (0..concurrency).map(|_| At::ZERO).collect();
        let source = RequestSource::Closed { sequence: Box::new(sequence), slots };
        Player::new(source, HashMap::new(), spec, seed).until(until)
    }

    fn new(
        source: RequestSource,
        sessions: HashMap<u64, SessionQueue>,
        spec: &ClientSpec,
        seed: u64,
    ) -> Player {
        Player {
            source,
            spec: spec.clone(),
            seed,
            until: At::MAX,
            turns_until: At::MAX,
            live: HashMap::default(),
            flying: 0,
            retrying: 0,
            sessions,
            wakes: BinaryHeap::new(),
            deadlines: BinaryHeap::new(),
            lost: Vec::new(),
            stopped: false,
            full_since: At::ZERO,
            closed_since: None,
            feed_hash: None,
            pace: Span::ZERO,
            not_before: At(i64::MIN),
        }
    }

    /// Ends the level at `until`: a turn of a session that is due then or later ends as never sent.
    pub fn until(mut self, until: At) -> Player {
        (self.until, self.turns_until) = (until, until);
        self
    }

    /// Plays sessions that have begun to their end, without a time limit.
    pub fn to_their_ends(mut self) -> Player {
        self.turns_until = At::MAX;
        self
    }

    /// Replaces the ceiling on requests in flight, because each worker gets a part of it.
    pub fn with_ceiling(mut self, ceiling: Option<u32>) -> Player {
        self.spec.max_in_flight = ceiling;
        self
    }

    /// Limits the rate of a closed loop: each attempt begins at least `pace` after the previous one.
    pub fn with_pace(mut self, pace: Span) -> Player {
        self.pace = pace;
        self
    }

    /// Returns the time of the next action; `None` = no action before the next reported event.
    pub fn next_at(&self) -> Option<At> {
        let deadline = self.deadlines.peek().map(|t| t.0.at);
        [deadline, self.next_start()].into_iter().flatten().min()
    }

    /// Returns the next action that is due by `now`. Call it until it returns `None`.
    pub fn pop(&mut self, now: At) -> Option<Action> {
        self.note_ceiling(now);
        loop {
            let deadline = self.deadlines.peek().map(|t| t.0.at).filter(|at| *at <= now);
            let start = self.next_start().filter(|at| *at <= now);
            match (deadline, start) {
                (Some(d), s) if s.is_none_or(|s| d <= s) => {
                    let Some(Reverse(timer)) = self.deadlines.pop() else { continue };
                    let action = self.tell(timer);
                    self.sweep();
                    return Some(action);
                }
                (_, Some(_)) => {
                    if let Some(attempted) = self.begin(now) {
                        return Some(Action::Send(attempted));
                    }
                }
                _ => return None,
            }
        }
    }

    /// Records the first generated token of an attempt.
    pub fn first_token(&mut self, _now: At, request: u64, attempt: u16) {
        if let Some(live) = self.live.get_mut(&request)
            && live.attempt == attempt
            && let Phase::Flying { first, .. } = &mut live.phase
        {
            *first = true;
            self.sweep();
        }
    }

    /// Records the end of an attempt. `retry_after` is the delay that the server requested.
    pub fn ended(
        &mut self,
        now: At,
        request: u64,
        attempt: u16,
        outcome: Outcome,
        retry_after: Option<Span>,
    ) -> AttemptEnd {
        let flying =
            |live: &LiveRequest| live.attempt == attempt && matches!(live.phase, Phase::Flying { .. });
        if !self.live.get(&request).is_some_and(flying) {
            return AttemptEnd::Stale;
        }
        self.note_ceiling(now);
        self.flying -= 1;
        let again = !self.stopped
            && outcome.retryable
            && attempt < self.spec.retries.max
            && self.spec.retries.covers(outcome.how);
        let ended = if again {
            self.retry(now, request, attempt, retry_after)
        } else {
            self.finish(now, request, outcome, retry_after)
        };
        self.sweep();
        ended
    }

    /// Stops new arrivals, turns and retries; they end as never sent. Requests in flight continue.
    pub fn stop(&mut self, now: At) {
        if self.stopped {
            return;
        }
        self.stopped = true;
        self.wakes.clear();
        self.retrying = 0;
        let waiting: Vec<u64> = self
            .live
            .iter()
            .filter(|(_, l)| !matches!(l.phase, Phase::Flying { .. }))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            let Some(live) = self.live.remove(&id) else { continue };
            match live.phase {
                Phase::Retry => self.lose((live.arrival, live.attempt + 1), live.due, false),
                _ if self.is_open() => self.lose((live.arrival, 0), live.due, false),
                _ => {}
            }
        }
        match &mut self.source {
            RequestSource::Closed { slots, .. } => slots.clear(),
            RequestSource::Open(queue) => {
                for arrival in std::mem::take(queue) {
                    let due = arrival.due;
                    self.lose((arrival, 0), due, false);
                }
            }
            RequestSource::Fed(feed) => {
                let rest: Vec<Arrival> = feed.by_ref().collect();
                for arrival in rest {
                    let due = arrival.due;
                    self.lose((Arc::new(arrival), 0), due, false);
                }
            }
        }
        for (_, rest) in std::mem::take(&mut self.sessions) {
            self.abandon(rest.all(), now, false);
        }
    }

    /// Moves the end of the load to `at`. Arrivals due later, and turns that follow them, are dropped from an open loop; a
    /// closed loop begins no later requests.
    pub fn end_at(&mut self, at: At) {
        self.sessions.clear();
        match &mut self.source {
            RequestSource::Open(queue) => queue.retain(|arrival| arrival.due < at),
            RequestSource::Fed(_) | RequestSource::Closed { .. } => {}
        }
        self.until = self.until.min(at);
        self.turns_until = self.turns_until.min(at);
    }

    /// Removes and returns the requests that ended without being sent: stopped early, or a turn of a broken session.
    ///
    /// They are ascending by number. A retry that never began has the number that its attempt would have had.
    pub fn never_sent(&mut self) -> impl Iterator<Item = AttemptPlan> {
        let mut lost = std::mem::take(&mut self.lost);
        lost.sort_by_key(|a| a.arrival.id);
        lost.into_iter()
    }

    pub fn in_flight(&self) -> u32 {
        self.flying
    }

    /// Returns the number of requests that are due and have not ended: in flight, delayed, or waiting for a retry.
    pub fn outstanding(&self, now: At) -> u64 {
        let held = match &self.source {
            RequestSource::Open(queue) => queue.partition_point(|a| a.due <= now) as u64,
            RequestSource::Fed(feed) => feed.held(now),
            RequestSource::Closed { .. } => 0,
        };
        u64::from(self.flying) + u64::from(self.retrying) + held
    }

    /// Returns whether no request is in flight or to come.
    pub fn is_done(&self) -> bool {
        self.live.is_empty() && self.next_at().is_none()
    }

    /// Returns the first time at which the ceiling delayed a request, so that the loop was closed from then on.
    pub fn closed_since(&self) -> Option<At> {
        self.closed_since
    }

    fn is_open(&self) -> bool {
        matches!(self.source, RequestSource::Open(_) | RequestSource::Fed(_))
    }

    fn is_full(&self) -> bool {
        self.spec.max_in_flight.is_some_and(|ceiling| self.flying >= ceiling)
    }

    fn source_at(&self) -> Option<At> {
        match &self.source {
            RequestSource::Open(queue) => queue.front().map(|a| a.due),
            RequestSource::Fed(feed) => feed.due(),
            RequestSource::Closed { slots, .. } => slots.front().copied(),
        }
    }

    /// Returns the earliest time of the next send; `None` at the ceiling.
    fn next_start(&self) -> Option<At> {
        if self.is_full() {
            return None;
        }
        let first = [self.source_at(), self.wakes.peek().map(|t| t.0.at)].into_iter().flatten().min();
        first.map(|at| at.max(self.not_before))
    }

    fn note_ceiling(&mut self, now: At) {
        if self.closed_since.is_some() || !self.is_open() || !self.is_full() {
            return;
        }
        let waiting = [self.source_at(), self.wakes.peek().map(|t| t.0.at)].into_iter().flatten().min();
        self.closed_since = waiting.map(|at| at.max(self.full_since)).filter(|at| *at <= now);
    }

    /// Begins the next retry, turn or start. `None` if it turned out to be void.
    fn begin(&mut self, now: At) -> Option<AttemptPlan> {
        let wake = self.wakes.peek().map(|t| t.0.at);
        if wake.is_some_and(|w| self.source_at().is_none_or(|s| w <= s)) {
            let Reverse(timer) = self.wakes.pop()?;
            let mut live = self.live.remove(&timer.request)?;
            match live.phase {
                Phase::Retry => {
                    self.retrying -= 1;
                    live.attempt += 1;
                }
                _ if !self.is_open() => live.due = now,
                _ => {}
            }
            return Some(self.send(now, live.arrival, live.attempt, live.due));
        }
        let (arrival, due) = match &mut self.source {
            RequestSource::Open(queue) => {
                let arrival = queue.pop_front()?;
                let due = arrival.due;
                (arrival, due)
            }
            RequestSource::Fed(feed) => {
                let arrival = Arc::new(feed.next()?);
                let due = arrival.due;
                (arrival, due)
            }
            RequestSource::Closed { sequence, slots } => {
                let free = slots.pop_front()?;
                if now >= self.until || free >= self.until {
                    return None;
                }
                let start = sequence.next_start().into_iter().map(Arc::new);
                (self.begin_session(start, now)?, now)
            }
        };
        Some(self.send(now, arrival, 0, due))
    }

    /// Starts a session of a closed loop: stores its turns and returns the first one that is due. Other turns without
    /// predecessors follow with their planned distance.
    fn begin_session(&mut self, start: impl Iterator<Item = Arc<Arrival>>, now: At) -> Option<Arc<Arrival>> {
        let mut first: Option<Arc<Arrival>> = None;
        for arrival in start {
            let Some(session) = arrival.session else { return Some(arrival) };
            let Some(free) = self.sessions.entry(session).or_default().take(arrival) else { continue };
            match &first {
                None => first = Some(free),
                Some(first) => {
                    let due = now + (free.due - first.due);
                    self.think(free, due);
                }
            }
        }
        first
    }

    /// Schedules a turn whose due time is known.
    fn think(&mut self, arrival: Arc<Arrival>, due: At) {
        let request = arrival.id;
        self.wakes.push(Reverse(PlayerTimer { at: due, request, attempt: 0, what: TimerKind::Wake }));
        self.live.insert(request, LiveRequest { arrival, due, attempt: 0, phase: Phase::Think });
    }

    fn send(&mut self, now: At, arrival: Arc<Arrival>, attempt: u16, due: At) -> AttemptPlan {
        let request = arrival.id;
        let times = &self.spec.timeouts;
        let mut attempted = AttemptPlan {
            arrival: arrival.clone(),
            attempt,
            due,
            connect_deadline: now + times.connect,
            first_token_deadline: times.first_token.map(|span| now + span),
            total_deadline: now + times.total,
            idle: times.idle,
            cancel_at: None,
            cancel_after_tokens: None,
            broke_off: false,
        };
        let cancel = self.spec.cancel;
        if cancel.share > 0.0 && Stream::new(self.seed, "cancel", request).chance(cancel.share) {
            match cancel.after {
                CancelAfter::Span(span) => attempted.cancel_at = Some(now + span),
                CancelAfter::Share(share) => {
                    let tokens = (f64::from(arrival.output_tokens) * share).round();
                    attempted.cancel_after_tokens = Some(tokens.max(1.0) as u32);
                }
            }
        }
        let mut push = |at: Option<At>, what| {
            if let Some(at) = at {
                self.deadlines.push(Reverse(PlayerTimer { at, request, attempt, what }));
            }
        };
        push(attempted.first_token_deadline, TimerKind::TimeOut(Deadline::FirstToken));
        push(Some(attempted.total_deadline), TimerKind::TimeOut(Deadline::Total));
        push(attempted.cancel_at, TimerKind::Cancel);
        self.live.insert(
            request,
            LiveRequest { arrival, due, attempt, phase: Phase::Flying { first: false, told: false } },
        );
        self.flying += 1;
        self.full_since = now;
        if self.pace > Span::ZERO {
            self.not_before = now + self.pace;
        }
        attempted
    }

    fn tell(&mut self, timer: PlayerTimer) -> Action {
        let PlayerTimer { request, attempt, what, .. } = timer;
        if let Some(LiveRequest { phase: Phase::Flying { told, .. }, .. }) = self.live.get_mut(&request) {
            *told = true;
        }
        match what {
            TimerKind::TimeOut(deadline) => Action::TimeOut { request, attempt, deadline },
            TimerKind::Cancel | TimerKind::Wake => Action::Cancel { request, attempt },
        }
    }

    fn retry(&mut self, now: At, request: u64, attempt: u16, retry_after: Option<Span>) -> AttemptEnd {
        let at = now + self.spec.retries.wait(attempt + 1, self.seed, request, retry_after);
        if let Some(live) = self.live.get_mut(&request) {
            live.phase = Phase::Retry;
        }
        self.retrying += 1;
        self.wakes.push(Reverse(PlayerTimer { at, request, attempt: attempt + 1, what: TimerKind::Wake }));
        AttemptEnd::WillRetry { at }
    }

    fn finish(&mut self, now: At, request: u64, outcome: Outcome, retry_after: Option<Span>) -> AttemptEnd {
        let Some(arrival) = self.live.remove(&request).map(|live| live.arrival) else {
            return AttemptEnd::Final;
        };
        let (over, cut) = match arrival.session {
            Some(session) => self.turn_over(now, session, arrival.turn, outcome),
            None => (true, false),
        };
        let back = now + self.sent_away_for(outcome, retry_after);
        // A user with a due time after the level's end makes no room for another, whether from think time or a
        // `Retry-After`.
        let gone = self.stopped || !over || cut || (back > now && back >= self.until);
        if let (RequestSource::Closed { slots, .. }, false) = (&mut self.source, gone) {
            slots.insert(slots.partition_point(|free| *free <= back), back);
        }
        AttemptEnd::Final
    }

    /// Handles the end of a turn for its successors. Returns whether the session is over, and whether the level's end cut
    /// it.
    fn turn_over(&mut self, now: At, session: u64, turn: u16, outcome: Outcome) -> (bool, bool) {
        let Some(mut waiting) = self.sessions.remove(&session) else { return (true, false) };
        let mut cut = false;
        match !self.stopped && outcome.is_finished() {
            true => {
                for (next, due) in waiting.answered(turn, now) {
                    if due < self.turns_until {
                        self.think(next, due);
                    } else {
                        cut = true;
                        self.abandon(waiting.drop_from(next).into_iter(), due, false);
                    }
                }
            }
            // A simulated user without an answer does not send the next turn.
            false => {
                let rest = waiting.failed(turn);
                let due = now + rest.first().map_or(Span::ZERO, |next| next.think);
                self.abandon(rest.into_iter(), due, !self.stopped);
            }
        }
        let over = waiting.unended == 0;
        if !over {
            self.sessions.insert(session, waiting);
        }
        (over, cut)
    }

    /// Returns the time that a rejected user waits.
    fn sent_away_for(&self, outcome: Outcome, retry_after: Option<Span>) -> Span {
        match (outcome.how, retry_after, self.spec.retry_after_max) {
            (How::Shed, Some(wish), Some(most)) => wish.min(most).max(Span::ZERO),
            _ => Span::ZERO,
        }
    }

    /// Records turns that will not be sent. Only an open loop does so, because its schedule contains them.
    fn abandon(&mut self, rest: impl Iterator<Item = Arc<Arrival>>, due: At, broke_off: bool) {
        if self.is_open() {
            for arrival in rest {
                let due = due.max(arrival.due);
                self.lose((arrival, 0), due, broke_off);
            }
        }
    }

    fn lose(&mut self, (arrival, attempt): (Arc<Arrival>, u16), due: At, broke_off: bool) {
        let idle = self.spec.timeouts.idle;
        self.lost.push(AttemptPlan {
            arrival,
            attempt,
            due,
            connect_deadline: At::MAX,
            first_token_deadline: None,
            total_deadline: At::MAX,
            idle,
            cancel_at: None,
            cancel_after_tokens: None,
            broke_off,
        });
    }

    /// Drops timers of ended attempts at the head, and all of them once they are many.
    fn sweep(&mut self) {
        let live = &self.live;
        let stands = |timer: &PlayerTimer| {
            live.get(&timer.request).is_some_and(|l| match l.phase {
                Phase::Flying { first, told } => {
                    l.attempt == timer.attempt
                        && !told
                        && !(first && timer.what == TimerKind::TimeOut(Deadline::FirstToken))
                }
                _ => false,
            })
        };
        while self.deadlines.peek().is_some_and(|t| !stands(&t.0)) {
            self.deadlines.pop();
        }
        if self.deadlines.len() > 1024 + 4 * self.flying as usize {
            self.deadlines.retain(|t| stands(&t.0));
        }
    }
}
