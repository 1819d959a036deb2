//! A list of requests against a simulated world, and when each was answered: what a lever's gain and a plan are made of.
//!
//! The virtual client (`sim::client`) does more (time-outs, retries, records of every request) and is slower; a search simulates the
//! same arrivals some hundred times and keeps two instants of each.

use plimsoll_model::At;
use plimsoll_sim::traffic::{Detail, Submit, What};
use plimsoll_sim::{World, WorldSpec};

use crate::findings::Metric;

/// Nanoseconds after the last arrival until what runs is given up.
const DRAIN_NS: i64 = 1_800_000_000_000;

/// A request to be simulated.
#[derive(Clone, PartialEq, Debug)]
pub struct Asked {
    /// When it is due, from the start of the level, ns.
    pub due_ns: i64,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens.
    pub output: u32,
    /// Names of its prompt's blocks.
    pub blocks: Vec<u64>,
    /// Its session.
    pub session: Option<u64>,
}

/// When a request had its first token and its end, ns from its due time.
#[derive(Copy, Clone, Debug, Default)]
pub struct Times {
    /// First token.
    pub first: Option<i64>,
    /// End of the answer; `None` = refused, failed, or not answered by the end of the drain.
    pub end: Option<i64>,
}

impl Times {
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

/// Sends these requests at their times; nobody gives up and nobody tries again. One entry per request, in order.
///
/// # Errors
/// The world can't be built.
pub fn play(world: &WorldSpec, asked: &[Asked], seed: u64) -> Result<Vec<Times>, String> {
    let mut world = World::of(world, seed).map_err(|e| e.to_string())?;
    world.set_detail(Detail::Ends);
    let mut times = vec![Times::default(); asked.len()];
    let (mut next, mut open) = (0, 0usize);
    let limit = At(asked.last().map_or(0, |last| last.due_ns) + DRAIN_NS);
    let mut now = At::ZERO;
    let mut out = Vec::new();
    while next < asked.len() || open > 0 {
        let due = asked.get(next).map(|one| At(one.due_ns));
        let event = if open > 0 { world.next_event() } else { None };
        let Some(turn) = [due, event].into_iter().flatten().min() else { break };
        if turn > limit {
            break;
        }
        if due == Some(turn) {
            now = now.max(turn);
            world.step(now, &mut out);
        } else {
            now = world.advance(due.unwrap_or(limit), &mut out).max(now);
        }
        for emission in out.drain(..) {
            let slot = emission.id as usize;
            let since = emission.at.0 - asked[slot].due_ns;
            match emission.what {
                What::Token { .. } if times[slot].first.is_none() => times[slot].first = Some(since),
                What::Finished { .. } => {
                    times[slot].end = Some(since);
                    open -= 1;
                }
                What::Failed(_) => open -= 1,
                _ => {}
            }
        }
        while asked.get(next).is_some_and(|one| At(one.due_ns) <= now) {
            let one = &asked[next];
            let request = Submit {
                blocks: one.blocks.clone(),
                session: one.session,
                ..Submit::new(next as u64, one.prompt, one.output)
            };
            open += usize::from(world.submit(now, request).is_ok());
            next += 1;
        }
    }
    Ok(times)
}
