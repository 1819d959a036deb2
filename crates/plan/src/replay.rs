//! Sends requests to a simulated world and records their response times, for levers and plans.
//!
//! The virtual client (`sim::client`) has more functions (time-outs, retries, records of every request) and is slower. A
//! search simulates the same arrivals some hundred times and keeps two times of each. Requests are issued and finished one
//! by one ([`play_each`]), so a day of requests needs memory only for those in flight. [`play`] keeps all times.
//!
//! Turns of sessions that wait for responses are stepped by the common client machine ([`plimsoll_workload::Player`]),
//! because their due times depend on the world ([`SessionRequests`]). Turns of a recorded run wait for each other as in the record
//! ([`crate::recorded`]).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::iter::Peekable;

use plimsoll_model::{At, By, How, Outcome};
use plimsoll_sim::traffic::{Detail, Emission, RequestEvent, Submit};
use plimsoll_sim::{World, WorldSpec};
use plimsoll_workload::chain::ExternalClasses;
use plimsoll_workload::{Action, Arrival, Player};

use plimsoll_measure::findings::Metric;

use crate::recorded::{ReplayTurn, Turns};

/// Time after the last arrival at which the rest is given up, ns.
pub const DRAIN_NS: i64 = 1_800_000_000_000;

#[derive(Clone, PartialEq, Debug)]
pub struct ReplayRequest {
    /// Due time from the start of the level, ns.
    pub due_ns: i64,
    pub prompt: u32,
    pub output: u32,
    /// Names of the prompt's blocks.
    pub blocks: Vec<u64>,
    pub session: Option<u64>,
    /// Position in the session; `None` if no later turn waits.
    pub turn: Option<ReplayTurn>,
    /// Interval between a freed place and the due time in a closed loop, ns; `None` if it has a fixed due time.
    pub think_ns: Option<i64>,
}

/// The due time of a request, with its first token and its end in ns from then.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestTimes {
    /// Due time, ns from the start. For a request that waits for others, it is only known in the simulation.
    pub due_ns: i64,
    pub first: Option<i64>,
    /// End of the response; `None` if the request was refused, failed, or was unanswered at the end of the drain.
    pub end: Option<i64>,
}

impl RequestTimes {
    /// Returns a metric in seconds; `+∞` without a response, `None` if the metric does not exist.
    pub fn metric(self, metric: Metric, output: u32) -> Option<f64> {
        let seconds = |ns: Option<i64>| ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
        match metric {
            Metric::Ttft => Some(if self.end.is_some() { seconds(self.first) } else { f64::INFINITY }),
            Metric::E2e => Some(seconds(self.end)),
            Metric::Tpot if output < 2 => None,
            Metric::Tpot => match (self.first, self.end) {
                (Some(first), Some(end)) => Some((end - first) as f64 / 1e9 / f64::from(output - 1)),
                _ => Some(f64::INFINITY),
            },
        }
    }
}

/// A request and its due time, ns from the start. Its id is ignored, because requests are numbered when they are issued.
#[derive(Clone, PartialEq, Debug)]
pub struct DueRequest {
    /// Due time, ns from the start.
    pub at_ns: i64,
    pub request: Submit,
}

/// A finished request with any outcome.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReplayedRequest {
    /// Number from 0, in due order.
    pub index: u64,
    /// Due time, ns from the start.
    pub due_ns: i64,
    /// Time of its end, failure or refusal, ns from the start; [`i64::MAX`] if it was in flight when the replay stopped.
    pub left_ns: i64,
    pub output: u32,
    pub times: RequestTimes,
}

pub trait ReplayWatch {
    /// Reports a request that is due and about to be submitted.
    fn due(&mut self, _index: u64, _due_ns: i64) {}
    /// Returns whether a request is admitted with this many in flight. A rejected request ends immediately without a
    /// response.
    fn admits(&mut self, _in_flight: usize) -> bool {
        true
    }
    /// Reports a finished request, in the order of ends.
    fn over(&mut self, over: ReplayedRequest);
    /// Reports that time has passed; the observer may read the world's metrics.
    fn passed(&mut self, _world: &mut World, _now: At) {}
    /// Returns whether the replay may stop. It is called after every event; a stop gives up the requests in flight.
    fn enough(&self) -> bool {
        false
    }
}

pub trait ReplaySource {
    /// Returns the due time of the next request, if known.
    fn next_at(&mut self) -> Option<At>;
    /// Returns the next request if it is due by now. Requests are numbered in the order of these calls.
    fn pop(&mut self, now: At) -> Option<DueRequest>;
    /// Records the end of a request. Returns the due time and output tokens of each request that will therefore never be
    /// sent.
    fn over(&mut self, _index: u64, _now: At, _answered: bool) -> Vec<(i64, u32)> {
        Vec::new()
    }
    /// Gives up all outstanding requests and returns them.
    fn stop(&mut self, _now: At) -> Vec<(i64, u32)> {
        Vec::new()
    }
}

pub struct TimedRequests<I: Iterator<Item = DueRequest>>(pub Peekable<I>);

impl<I: Iterator<Item = DueRequest>> ReplaySource for TimedRequests<I> {
    fn next_at(&mut self) -> Option<At> {
        self.0.peek().map(|one| At(one.at_ns))
    }

    fn pop(&mut self, now: At) -> Option<DueRequest> {
        self.0.next_if(|one| At(one.at_ns) <= now)
    }
}

/// Sessions whose turns are due after the end of their predecessors.
pub struct SessionRequests<F: FnMut(&Arrival) -> Submit> {
    player: Player,
    submit: F,
    /// Requests that another service answers, with their ends.
    external: ExternalClasses,
    outside: BinaryHeap<Reverse<(At, u64)>>,
    /// Arrival of each request in flight.
    sent: HashMap<u64, u64>,
    next: u64,
}

impl<F: FnMut(&Arrival) -> Submit> SessionRequests<F> {
    /// Returns a source for an unstarted client; `submit` converts its arrivals. The client's time-outs are not applied.
    pub fn new(player: Player, external: ExternalClasses, submit: F) -> SessionRequests<F> {
        SessionRequests {
            player,
            submit,
            external,
            outside: BinaryHeap::new(),
            sent: HashMap::new(),
            next: 0,
        }
    }

    fn never_sent(&mut self) -> Vec<(i64, u32)> {
        let lost: Vec<(i64, u32)> =
            self.player.never_sent().map(|one| (one.due.0, one.arrival.output_tokens)).collect();
        self.next += lost.len() as u64;
        lost
    }
}

impl<F: FnMut(&Arrival) -> Submit> ReplaySource for SessionRequests<F> {
    fn next_at(&mut self) -> Option<At> {
        let outside = self.outside.peek().map(|Reverse((at, _))| *at);
        [self.player.next_at(), outside].into_iter().flatten().min()
    }

    fn pop(&mut self, now: At) -> Option<DueRequest> {
        loop {
            if let Some(&Reverse((at, request))) = self.outside.peek()
                && at <= now
            {
                self.outside.pop();
                self.player.ended(at, request, 0, Outcome::FINISHED, None);
                continue;
            }
            let action = self.player.pop(now)?;
            if let Action::Send(one) = action {
                if let Some(latency) = self.external.latency(&one.arrival) {
                    self.outside.push(Reverse((one.due + latency, one.arrival.id)));
                    continue;
                }
                self.sent.insert(self.next, one.arrival.id);
                self.next += 1;
                return Some(DueRequest { at_ns: one.due.0, request: (self.submit)(&one.arrival) });
            }
        }
    }

    fn over(&mut self, index: u64, now: At, answered: bool) -> Vec<(i64, u32)> {
        let Some(request) = self.sent.remove(&index) else { return Vec::new() };
        let outcome = match answered {
            true => Outcome::new(How::Finished, By::Server, false),
            false => Outcome::new(How::ServerError, By::Server, false),
        };
        self.player.ended(now, request, 0, outcome, None);
        self.never_sent()
    }

    fn stop(&mut self, now: At) -> Vec<(i64, u32)> {
        self.player.stop(now);
        self.never_sent()
    }
}

/// Requests in flight, by number. They end nearly in order, so a window that moves with the oldest is enough.
#[derive(Default)]
struct Open {
    window: VecDeque<Option<Flight>>,
    /// Number of the window's first request.
    base: u64,
    count: usize,
}

#[derive(Copy, Clone)]
struct Flight {
    due_ns: i64,
    output: u32,
    first: Option<i64>,
}

impl Open {
    fn push(&mut self, flight: Flight) {
        self.window.push_back(Some(flight));
        self.count += 1;
    }

    /// Reserves a number that is never in flight.
    fn skip(&mut self) {
        match self.window.is_empty() {
            true => self.base += 1,
            false => self.window.push_back(None),
        }
    }

    fn at(&mut self, index: u64) -> Option<&mut Flight> {
        self.window.get_mut(index.checked_sub(self.base)? as usize)?.as_mut()
    }

    fn take(&mut self, index: u64) -> Option<Flight> {
        let flight = self.window.get_mut(index.checked_sub(self.base)? as usize)?.take()?;
        self.count -= 1;
        while self.window.front().is_some_and(Option::is_none) {
            self.window.pop_front();
            self.base += 1;
        }
        Some(flight)
    }
}

/// Sends requests when they are due, without time-outs and retries. A request without an end `drain_ns` after the last due
/// time ends without a response.
pub fn play_each(
    world: &mut World,
    mut source: impl ReplaySource,
    drain_ns: i64,
    watch: &mut impl ReplayWatch,
) {
    world.set_detail(Detail::Ends);
    let (mut played, mut now, mut last_ns) = (ReplayState::default(), At::ZERO, 0i64);
    let mut out = Vec::new();
    while !watch.enough() {
        let due = source.next_at();
        if due.is_none() && played.open.count == 0 {
            break;
        }
        let limit = due.unwrap_or(At(last_ns.saturating_add(drain_ns)));
        now = world.advance(limit, &mut out).max(now);
        out.drain(..).for_each(|emission| played.end(emission, &mut source, watch));
        watch.passed(world, now);
        if due.is_none() && now >= limit {
            break;
        }
        while let Some(DueRequest { at_ns, request }) = source.pop(now) {
            let index = played.sent;
            (last_ns, played.sent) = (at_ns, played.sent + 1);
            watch.due(index, at_ns);
            let admitted = watch.admits(played.open.count);
            played.open.push(Flight { due_ns: at_ns, output: request.output_tokens, first: None });
            if !admitted || world.submit(now, Submit { id: index, ..request }).is_err() {
                played.leave(index, now.0, false, &mut source, watch);
            }
        }
    }
    for index in played.open.base..played.sent {
        played.leave(index, i64::MAX, false, &mut source, watch);
    }
    played.never_sent(source.stop(now), i64::MAX, watch);
}

#[derive(Default)]
struct ReplayState {
    open: Open,
    sent: u64,
}

impl ReplayState {
    fn end(
        &mut self,
        Emission { at, id, what }: Emission,
        source: &mut impl ReplaySource,
        watch: &mut impl ReplayWatch,
    ) {
        match what {
            RequestEvent::Token { .. } => {
                if let Some(flight) = self.open.at(id) {
                    flight.first.get_or_insert(at.0 - flight.due_ns);
                }
            }
            RequestEvent::Finished { .. } => self.leave(id, at.0, true, source, watch),
            RequestEvent::Failed(_) => self.leave(id, at.0, false, source, watch),
            _ => {}
        }
    }

    fn leave(
        &mut self,
        index: u64,
        left_ns: i64,
        answered: bool,
        source: &mut impl ReplaySource,
        watch: &mut impl ReplayWatch,
    ) {
        if let Some(Flight { due_ns, output, first }) = self.open.take(index) {
            let times = RequestTimes { due_ns, first, end: answered.then_some(left_ns - due_ns) };
            watch.over(ReplayedRequest { index, due_ns, left_ns, output, times });
            let lost = source.over(index, At(left_ns), answered);
            self.never_sent(lost, left_ns, watch);
        }
    }

    /// Reports turns that will never be sent; each is due and ends immediately, without a response.
    fn never_sent(&mut self, lost: Vec<(i64, u32)>, left_ns: i64, watch: &mut impl ReplayWatch) {
        for (due_ns, output) in lost {
            let index = self.sent;
            self.sent += 1;
            self.open.skip();
            watch.due(index, due_ns);
            watch.over(ReplayedRequest {
                index,
                due_ns,
                left_ns: left_ns.max(due_ns),
                output,
                times: RequestTimes { due_ns, ..RequestTimes::default() },
            });
        }
    }
}

impl ReplayRequest {
    /// Returns whether the due time depends on the end of other requests.
    fn waits(&self) -> bool {
        self.think_ns.is_some() || self.turn.is_some_and(|turn| turn.after.is_some())
    }

    /// Returns the request as submitted to the world.
    pub fn submit(&self, id: u64) -> Submit {
        Submit {
            blocks: self.blocks.clone(),
            session: self.session,
            ..Submit::new(id, self.prompt, self.output)
        }
    }
}

/// Times of all requests, by number.
struct RequestTimeLog {
    times: Vec<RequestTimes>,
    /// Limit of requests in flight.
    most: usize,
}

impl ReplayWatch for RequestTimeLog {
    fn admits(&mut self, in_flight: usize) -> bool {
        in_flight < self.most
    }

    fn over(&mut self, over: ReplayedRequest) {
        self.times[over.index as usize] = over.times;
    }
}

/// Sends these requests at their times, without time-outs and retries. Returns one entry per request, in order.
pub fn play(world: &WorldSpec, asked: &[ReplayRequest], seed: u64) -> Result<Vec<RequestTimes>, String> {
    play_at_most(usize::MAX, world, asked, seed)
}

/// Sends these requests and rejects each one that finds `most` requests in flight.
pub(crate) fn play_at_most(
    most: usize,
    world: &WorldSpec,
    asked: &[ReplayRequest],
    seed: u64,
) -> Result<Vec<RequestTimes>, String> {
    let mut world = World::of(world, seed).map_err(|e| e.to_string())?;
    let mut kept = RequestTimeLog { times: vec![RequestTimes::default(); asked.len()], most };
    if asked.iter().any(ReplayRequest::waits) {
        let mut turns = Turns::new(asked);
        play_each(&mut world, &mut turns, DRAIN_NS, &mut kept);
        let mut times = vec![RequestTimes::default(); asked.len()];
        turns.order.iter().zip(kept.times).for_each(|(one, of)| times[*one] = of);
        return Ok(times);
    }
    let due = asked.iter().map(|one| DueRequest { at_ns: one.due_ns, request: one.submit(0) });
    play_each(&mut world, TimedRequests(due.peekable()), DRAIN_NS, &mut kept);
    Ok(kept.times)
}
