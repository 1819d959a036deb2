//! Requests against a simulated world, and when each was answered: what a lever's gain and a plan are made of.
//!
//! The virtual client (`sim::client`) does more (time-outs, retries, records of every request) and is slower; a search simulates the
//! same arrivals some hundred times and keeps two instants of each. Requests come one by one and leave one by one
//! ([`play_each`]), so that a day of them takes no more memory than those in flight; [`play`] keeps them all, for who asks again.
//!
//! Turns of sessions that wait for others' answers are stepped by the client machine that steps them everywhere
//! ([`plimsoll_workload::Player`]): when they are due depends on the world ([`Stepped`]). Those of a run that was recorded wait for each other as
//! they did then ([`crate::recorded`]).

use std::collections::{HashMap, VecDeque};
use std::iter::Peekable;

use plimsoll_model::{At, By, How, Outcome};
use plimsoll_sim::traffic::{Detail, Emission, RequestEvent, Submit};
use plimsoll_sim::{World, WorldSpec};
use plimsoll_workload::{Action, Arrival, Player};

use plimsoll_measure::findings::Metric;

use crate::recorded::{ReplayTurn, Turns};

/// Nanoseconds after the last arrival until what runs is given up.
pub const DRAIN_NS: i64 = 1_800_000_000_000;

#[derive(Clone, PartialEq, Debug)]
pub struct ReplayRequest {
    /// When it is due, from the start of the level, ns.
    pub due_ns: i64,
    pub prompt: u32,
    pub output: u32,
    /// Names of its prompt's blocks.
    pub blocks: Vec<u64>,
    pub session: Option<u64>,
    /// Its place in it, where later turns wait for earlier ones.
    pub turn: Option<ReplayTurn>,
    /// Of a closed loop: it is due this long after some request has ended and made room for it, ns. None: it is due when it is due.
    pub think_ns: Option<i64>,
}

/// When a request was due, and had its first token and its end, ns from then.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestTimes {
    /// When it was due, ns from the start: where it waits for others that is not known before.
    pub due_ns: i64,
    pub first: Option<i64>,
    /// End of the answer; `None` = refused, failed, or not answered by the end of the drain.
    pub end: Option<i64>,
}

impl RequestTimes {
    /// Seconds; `+∞` where it was not answered, none where the metric does not exist.
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

/// A request and when it is due, from the start, ns. Its id does not count: requests are numbered as they come.
#[derive(Clone, PartialEq, Debug)]
pub struct DueRequest {
    /// When, ns.
    pub at_ns: i64,
    pub request: Submit,
}

/// A request that is over, whichever way.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReplayedRequest {
    /// Its number, from 0 in the order of due times.
    pub index: u64,
    /// When it was due, ns.
    pub due_ns: i64,
    /// When it left, ns from the start: its end, its failure, its refusal; [`i64::MAX`] = still there when all was given up.
    pub left_ns: i64,
    /// Output tokens asked for.
    pub output: u32,
    pub times: RequestTimes,
}

/// Who looks on while requests are played.
pub trait ReplayWatch {
    /// A request is due and is about to be handed in.
    fn due(&mut self, _index: u64, _due_ns: i64) {}
    /// Is it let in, with so many in flight? What is not is over at once, without an answer.
    fn admits(&mut self, _in_flight: usize) -> bool {
        true
    }
    /// A request is over. In the order of their ends.
    fn over(&mut self, over: ReplayedRequest);
    /// Time has passed; what the world says of itself can be taken.
    fn passed(&mut self, _world: &mut World, _now: At) {}
    /// Is enough known? Asked after every instant; then what is in flight is over by giving up.
    fn enough(&self) -> bool {
        false
    }
}

/// Where requests come from.
pub trait ReplaySource {
    /// When the next one is due, as far as it is known.
    fn next_at(&mut self) -> Option<At>;
    /// The next one, if it is due by now. Requests are numbered as they come out here.
    fn pop(&mut self, now: At) -> Option<DueRequest>;
    /// A request is over. What will therefore never be sent: when each was due, and its output tokens.
    fn over(&mut self, _index: u64, _now: At, _answered: bool) -> Vec<(i64, u32)> {
        Vec::new()
    }
    /// All is given up: what was still to come.
    fn stop(&mut self, _now: At) -> Vec<(i64, u32)> {
        Vec::new()
    }
}

/// Requests whose times are known.
pub struct Listed<I: Iterator<Item = DueRequest>>(pub Peekable<I>);

impl<I: Iterator<Item = DueRequest>> ReplaySource for Listed<I> {
    fn next_at(&mut self) -> Option<At> {
        self.0.peek().map(|one| At(one.at_ns))
    }

    fn pop(&mut self, now: At) -> Option<DueRequest> {
        self.0.next_if(|one| At(one.at_ns) <= now)
    }
}

/// Sessions whose turns are due when those that they come after have ended.
pub struct Stepped<F: FnMut(&Arrival) -> Submit> {
    player: Player,
    submit: F,
    /// The arrival of each request in flight.
    sent: HashMap<u64, u64>,
    next: u64,
}

impl<F: FnMut(&Arrival) -> Submit> Stepped<F> {
    /// A client that has begun nothing, and how its arrivals are handed in. Its time-outs are not kept here.
    pub fn new(player: Player, submit: F) -> Stepped<F> {
        Stepped { player, submit, sent: HashMap::new(), next: 0 }
    }

    fn never_sent(&mut self) -> Vec<(i64, u32)> {
        let lost: Vec<(i64, u32)> =
            self.player.never_sent().map(|one| (one.due.0, one.arrival.output_tokens)).collect();
        self.next += lost.len() as u64;
        lost
    }
}

impl<F: FnMut(&Arrival) -> Submit> ReplaySource for Stepped<F> {
    fn next_at(&mut self) -> Option<At> {
        self.player.next_at()
    }

    fn pop(&mut self, now: At) -> Option<DueRequest> {
        while let Some(action) = self.player.pop(now) {
            if let Action::Send(one) = action {
                self.sent.insert(self.next, one.arrival.id);
                self.next += 1;
                return Some(DueRequest { at_ns: one.due.0, request: (self.submit)(&one.arrival) });
            }
        }
        None
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
    /// Number of the window's first.
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

    /// A number that is never in flight.
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

/// Sends requests when they are due; nobody gives up and nobody tries again. What has no end `drain_ns` after the last due
/// time is over without one.
pub fn play_each(
    world: &mut World,
    mut source: impl ReplaySource,
    drain_ns: i64,
    watch: &mut impl ReplayWatch,
) {
    world.set_detail(Detail::Ends);
    let (mut played, mut now, mut last_ns) = (Played::default(), At::ZERO, 0i64);
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

/// What has been sent so far.
#[derive(Default)]
struct Played {
    open: Open,
    sent: u64,
}

impl Played {
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

    /// Turns that will not be: they are due and over at once, without an answer.
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
    /// Is it due when others have ended?
    fn waits(&self) -> bool {
        self.think_ns.is_some() || self.turn.is_some_and(|turn| turn.after.is_some())
    }

    /// As it is handed in.
    pub fn submit(&self, id: u64) -> Submit {
        Submit {
            blocks: self.blocks.clone(),
            session: self.session,
            ..Submit::new(id, self.prompt, self.output)
        }
    }
}

/// All times, by number.
struct Kept {
    times: Vec<RequestTimes>,
    /// Most that may be in flight.
    most: usize,
}

impl ReplayWatch for Kept {
    fn admits(&mut self, in_flight: usize) -> bool {
        in_flight < self.most
    }

    fn over(&mut self, over: ReplayedRequest) {
        self.times[over.index as usize] = over.times;
    }
}

/// Sends these requests at their times; nobody gives up and nobody tries again. One entry per request, in order.
pub fn play(world: &WorldSpec, asked: &[ReplayRequest], seed: u64) -> Result<Vec<RequestTimes>, String> {
    play_at_most(usize::MAX, world, asked, seed)
}

/// The same behind a door that turns away at once whoever finds `most` requests in flight.
pub(crate) fn play_at_most(
    most: usize,
    world: &WorldSpec,
    asked: &[ReplayRequest],
    seed: u64,
) -> Result<Vec<RequestTimes>, String> {
    let mut world = World::of(world, seed).map_err(|e| e.to_string())?;
    let mut kept = Kept { times: vec![RequestTimes::default(); asked.len()], most };
    if asked.iter().any(ReplayRequest::waits) {
        let mut turns = Turns::new(asked);
        play_each(&mut world, &mut turns, DRAIN_NS, &mut kept);
        let mut times = vec![RequestTimes::default(); asked.len()];
        turns.order.iter().zip(kept.times).for_each(|(one, of)| times[*one] = of);
        return Ok(times);
    }
    let due = asked.iter().map(|one| DueRequest { at_ns: one.due_ns, request: one.submit(0) });
    play_each(&mut world, Listed(due.peekable()), DRAIN_NS, &mut kept);
    Ok(kept.times)
}
