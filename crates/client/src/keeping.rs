//! Does the server keep the connections that it said it would keep?
//!
//! Either side may end a kept connection at any time (RFC 9112, 9.5). Most servers end one that has been idle for seconds; some
//! end each right after its answer without having said so: llama.cpp does after every streamed one, 13 to 83 µs later. A closed
//! loop writes its next request a tenth of a millisecond after an answer. A look at the socket finds an end that has come; one
//! that is on its way cannot be seen, and the request that meets it fails.
//!
//! So the first end that is found within a second of its answer makes every connection of this client *rest*: until it has
//! been idle for a while, a request takes another one or makes a new one, whose making is in its latency. Ten milliseconds are a hundred
//! times what such a server takes. A request that is lost although its connection had rested makes the rest four times as long
//! as that. What was found is counted and told with the level.
//!
//! Lost: sending such a request again in secret, as curl does with any method and Go and aiohttp with those that may be
//! repeated. Whether the server had begun on it cannot be known, and a request that is served twice is load that no record
//! tells. Lost too: never using a connection again. A server that ends one in ten keeps the other nine, and a server that restarts ends
//! all of them once.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use plimsoll_model::{At, KeptConnections, Span};

/// An end within this of the answer before is the server's way with connections; a later one, of some seconds, is what servers do
/// with connections that nobody uses.
const EARLY: Span = Span::from_secs(1);

const REST_LEAST: Span = Span::from_millis(10);

/// The longest. What rests is held open and not used: longer would be many sockets for one request saved.
const REST_MOST: Span = Span::from_millis(250);

/// How much longer than what was too short.
const LONGER: i64 = 4;

const NEVER: i64 = i64::MAX;

/// What all workers of a client know of it.
#[derive(Clone, Debug)]
pub struct SharedByWorkers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// ns; 0 = none.
    rest: AtomicI64,
    /// When the first rest began, on the run's axis.
    since: AtomicI64,
}

impl Default for SharedByWorkers {
    fn default() -> SharedByWorkers {
        SharedByWorkers(Arc::new(Shared { rest: AtomicI64::new(0), since: AtomicI64::new(NEVER) }))
    }
}

/// One worker's part: what all know, and what it has counted itself since it was last cleared.
#[derive(Debug, Default)]
pub struct Keeping {
    known: SharedByWorkers,
    looks: Cell<u64>,
    ended: Cell<u64>,
    lost: Cell<u64>,
}

impl Keeping {
    pub fn new(known: SharedByWorkers) -> Keeping {
        Keeping { known, ..Keeping::default() }
    }

    /// How long a connection rests after an answer before it is used again; zero until there was a reason.
    pub fn rest(&self) -> Span {
        Span(self.known.0.rest.load(Relaxed))
    }

    /// A kept connection was looked at and stood.
    pub fn stood(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// A kept connection was looked at, or its first byte could not be written, at `now`: it had ended. Its last answer, if it had
    /// carried one, had ended at `idle_since`.
    pub fn ended(&self, idle_since: Option<At>, now: At) {
        self.looks.set(self.looks.get() + 1);
        if idle_since.is_some_and(|since| now - since <= EARLY) {
            self.ended.set(self.ended.get() + 1);
            self.at_least(REST_LEAST, now);
        }
    }

    /// A request was written at `sent` on a connection that had been idle since `idle_since`, and it ended without a byte of an
    /// answer.
    pub fn lost(&self, idle_since: Option<At>, sent: At) {
        let Some(idle) = idle_since.map(|since| sent - since) else { return };
        if idle <= EARLY {
            self.lost.set(self.lost.get() + 1);
            self.at_least(Span(idle.0.saturating_mul(LONGER)).clamp(REST_LEAST, REST_MOST), sent);
        }
    }

    fn at_least(&self, rest: Span, now: At) {
        self.known.0.rest.fetch_max(rest.0, Relaxed);
        self.known.0.since.fetch_min(now.0, Relaxed);
    }

    /// Forgets what was counted; what all know stays known.
    pub fn clear(&self) {
        self.looks.set(0);
        self.ended.set(0);
        self.lost.set(0);
    }

    /// What was counted and what is known.
    pub fn told(&self) -> KeptConnections {
        let rest = self.rest();
        let since = self.known.0.since.load(Relaxed);
        KeptConnections {
            looks: self.looks.get(),
            ended: self.ended.get(),
            lost: self.lost.get(),
            rest: (rest > Span::ZERO).then_some(rest),
            resting_since: (since != NEVER).then_some(At(since)),
        }
    }
}

/// What all workers found of kept connections.
pub fn together(of: impl Iterator<Item = KeptConnections>) -> KeptConnections {
    of.fold(KeptConnections::default(), |all, one| KeptConnections {
        looks: all.looks + one.looks,
        ended: all.ended + one.ended,
        lost: all.lost + one.lost,
        rest: all.rest.max(one.rest),
        resting_since: [all.resting_since, one.resting_since].into_iter().flatten().min(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: i64) -> At {
        At(us * 1000)
    }

    #[test]
    fn an_early_end_makes_connections_rest_and_a_late_one_does_not() {
        let known = SharedByWorkers::default();
        let (a, b) = (Keeping::new(known.clone()), Keeping::new(known));
        a.stood();
        a.ended(Some(us(0)), us(5_000_000));
        // One that was opened ahead and never used.
        a.ended(None, us(5_000_000));
        assert_eq!((a.rest(), a.told()), (Span::ZERO, KeptConnections { looks: 3, ..Default::default() }));
        a.ended(Some(us(5_000_000)), us(5_000_040));
        let told = a.told();
        assert_eq!((told.looks, told.ended, told.lost), (4, 1, 0));
        assert_eq!((told.rest, told.resting_since), (Some(Span::from_millis(10)), Some(us(5_000_040))));
        // The other worker rests too, and has counted nothing.
        assert_eq!((b.rest(), b.told().looks), (Span::from_millis(10), 0));
        a.clear();
        assert_eq!((a.told().looks, a.told().rest), (0, Some(Span::from_millis(10))));
    }

    #[test]
    fn a_request_lost_after_a_rest_makes_the_next_longer_up_to_a_bound() {
        let keeping = Keeping::default();
        let rests: Vec<i64> = [100, 10_000, 40_000, 160_000]
            .map(|idle| {
                keeping.lost(Some(us(1_000_000)), us(1_000_000 + idle));
                keeping.rest().0 / 1_000_000
            })
            .to_vec();
        assert_eq!(rests, [10, 40, 160, 250]);
        // Idle for longer than a second: the server's right, and no way of its own.
        keeping.lost(Some(us(1_000_000)), us(9_000_000));
        assert_eq!((keeping.told().lost, keeping.told().resting_since), (4, Some(us(1_000_100))));
    }
}
