//! Hedged requests: a copy elsewhere once the first token is late, the first answer wins, the other is cancelled.
//!
//! Dean and Barroso, "The tail at scale" (2013). What the copies cost is simulated with them: they queue, fill batches and take KV
//! memory until they are cancelled. Copies are kept to a share of the requests sent so far, as every careful client does: a hedge
//! without that bound doubles the load of a fleet that is slow everywhere. Taking the smaller of two latencies drawn from the
//! run's own (`plimsoll calc hedge`) is the formula for a fleet with room; here it lost, because the copies' own load is the question.

use std::collections::VecDeque;

use plimsoll_model::At;
use plimsoll_sim::traffic::{Detail, Emission, Submit, What};
use plimsoll_sim::{World, WorldSpec};

use crate::replay::{DRAIN_NS, ReplayRequest, Times};

/// When a copy is sent, and how many may be.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct HedgeSpec {
    /// So long after the request without a token of its answer, ns.
    pub after_ns: i64,
    /// Copies at most, as a share of the requests sent so far.
    pub most_share: f64,
}

/// Requests that were hedged.
#[derive(Clone, Debug)]
pub struct Hedged {
    /// When each was answered, by whichever try.
    pub times: Vec<Times>,
    /// Copies sent.
    pub copies: u64,
}

/// One of the two tries.
const FIRST: usize = 0;
const COPY: usize = 1;

/// A request in flight.
#[derive(Copy, Clone, Default)]
struct Flight {
    /// Where the first try went.
    place: Option<u32>,
    /// Which tries are running.
    running: [bool; 2],
    /// The try whose token came first.
    winner: Option<usize>,
}

struct Hedging<'a> {
    world: World,
    asked: &'a [ReplayRequest],
    flights: Vec<Flight>,
    hedged: Hedged,
    spec: HedgeSpec,
    sent: usize,
    open: usize,
    /// Requests in the order of sending, each looked at once, `after_ns` later.
    unlooked: VecDeque<usize>,
}

/// Sends these requests at their times, and copies of the late ones elsewhere. The first tries have the same chance in the engine as
/// without hedging.
///
/// # Errors
/// The world can't be built.
pub fn play(
    world: &WorldSpec,
    asked: &[ReplayRequest],
    seed: u64,
    spec: HedgeSpec,
) -> Result<Hedged, String> {
    let mut world = World::of(world, seed).map_err(|e| e.to_string())?;
    world.set_detail(Detail::Ends);
    let hedged = Hedged { times: vec![Times::default(); asked.len()], copies: 0 };
    let flights = vec![Flight::default(); asked.len()];
    let unlooked = VecDeque::new();
    let mut all = Hedging { world, asked, flights, hedged, spec, sent: 0, open: 0, unlooked };
    let (mut now, mut out) = (At::ZERO, Vec::new());
    let last = At(asked.last().map_or(0, |one| one.due_ns).saturating_add(DRAIN_NS));
    while let Some(limit) = all.limit(last) {
        now = all.world.advance(limit, &mut out).max(now);
        out.drain(..).for_each(|emission| all.take(emission));
        if now >= last {
            break;
        }
        all.send(now);
        all.look(now);
    }
    Ok(all.hedged)
}

impl Hedging<'_> {
    /// How far time may go before something is sent; none when all is over.
    fn limit(&self, last: At) -> Option<At> {
        let due = self.asked.get(self.sent).map(|one| one.due_ns);
        if due.is_none() && self.open == 0 {
            return None;
        }
        let look = self.unlooked.front().map(|index| self.late_ns(*index));
        Some(At(due.into_iter().chain(look).fold(last.0, i64::min)))
    }

    fn late_ns(&self, index: usize) -> i64 {
        self.asked[index].due_ns.saturating_add(self.spec.after_ns)
    }

    fn id(&self, index: usize, which: usize) -> u64 {
        (index + which * self.asked.len()) as u64
    }

    fn send(&mut self, now: At) {
        while let Some(one) = self.asked.get(self.sent).filter(|one| At(one.due_ns) <= now) {
            let index = self.sent;
            self.sent += 1;
            if self.world.submit(now, one.submit(self.id(index, FIRST))).is_ok() {
                self.flights[index].running[FIRST] = true;
                self.open += 1;
                self.unlooked.push_back(index);
            }
        }
    }

    /// Sends copies of what is late by now.
    fn look(&mut self, now: At) {
        while let Some(&index) = self.unlooked.front().filter(|index| self.late_ns(**index) <= now.0) {
            self.unlooked.pop_front();
            let Flight { place, running, winner } = self.flights[index];
            let allowed = (self.hedged.copies + 1) as f64 <= self.spec.most_share * self.sent as f64;
            let (Some(place), true) = (place, allowed && running[FIRST] && winner.is_none()) else {
                continue;
            };
            let copy =
                Submit { elsewhere_than: Some(place), ..self.asked[index].submit(self.id(index, COPY)) };
            if self.world.submit(now, copy).is_ok() {
                self.flights[index].running[COPY] = true;
                self.hedged.copies += 1;
            }
        }
    }

    fn take(&mut self, Emission { at, id, what }: Emission) {
        let (which, index) = (id as usize / self.asked.len(), id as usize % self.asked.len());
        if !self.flights[index].running[which] {
            // What a loser emitted at the very instant at which it lost.
            return;
        }
        let since_due = at.0 - self.asked[index].due_ns;
        match what {
            What::Placed { replica } if which == FIRST => self.flights[index].place = Some(replica),
            What::Token { .. } => {
                self.win(at, index, which);
                self.hedged.times[index].first.get_or_insert(since_due);
            }
            What::Finished { .. } => {
                self.win(at, index, which);
                self.hedged.times[index].end = Some(since_due);
                self.stop(index, which);
            }
            What::Failed(_) => self.stop(index, which),
            _ => {}
        }
    }

    /// The first to say anything has won; the other is taken back.
    fn win(&mut self, at: At, index: usize, which: usize) {
        let flight = &mut self.flights[index];
        let other = 1 - which;
        if flight.winner.replace(which).is_none() && flight.running[other] {
            flight.running[other] = false;
            let id = self.id(index, other);
            self.world.cancel(at, id);
        }
    }

    fn stop(&mut self, index: usize, which: usize) {
        let flight = &mut self.flights[index];
        flight.running[which] = false;
        self.open -= usize::from(!flight.running.contains(&true));
    }
}
