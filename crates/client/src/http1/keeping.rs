//! Measures whether the server keeps connections open, and delays their reuse if it does not.
//!
//! Either side may close a persistent connection at any time (RFC 9112, 9.5). Most servers close one that has been idle for
//! seconds. Some close each one right after a response without announcing it: llama.cpp does so after every streamed
//! response, 13 to 83 µs later. A closed loop writes its next request a tenth of a millisecond after a response. A check of
//! the socket finds a close that has arrived, but not one in transit, and the request that meets it fails.
//!
//! The first close within a second of a response therefore makes every connection of this client *rest*. Until a connection
//! has been idle for that time, a request uses another one or opens a new one. The setup is then part of its latency. The
//! first rest of ten milliseconds is a hundred times the delay of such a server. If a request is lost on a rested
//! connection, the rest becomes four times as long. The level reports these counts.
//!
//! Resending such a request silently was rejected, although curl does it for any method and Go and aiohttp for repeatable
//! ones. The server may have started the request, and a request served twice is load that no record shows. Never reusing a
//! connection was rejected too. A server that closes one in ten keeps the other nine, and a server that restarts closes all
//! of them once.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use plimsoll_model::{At, KeptConnections, Span};

/// A close within this time of the last response is the server's policy. A later one, after some seconds, is its idle
/// timeout.
const EARLY: Span = Span::from_secs(1);

const REST_LEAST: Span = Span::from_millis(10);

/// Longest rest. Resting connections stay open unused, so a longer rest would need many sockets to save one request.
const REST_MOST: Span = Span::from_millis(250);

/// Factor between the idle time after which a request was lost and the next rest.
const LONGER: i64 = 4;

const NEVER: i64 = i64::MAX;

/// The state of kept connections that all workers of a client share.
#[derive(Clone, Debug)]
pub struct KeepaliveShared(Arc<KeepaliveState>);

#[derive(Debug)]
struct KeepaliveState {
    /// Rest in ns; 0 = none.
    rest: AtomicI64,
    /// Start of the first rest, on the run's axis.
    since: AtomicI64,
}

impl Default for KeepaliveShared {
    fn default() -> KeepaliveShared {
        KeepaliveShared(Arc::new(KeepaliveState { rest: AtomicI64::new(0), since: AtomicI64::new(NEVER) }))
    }
}

/// One worker's view: the shared state, and its counts since the last `clear`.
#[derive(Debug, Default)]
pub struct KeepaliveStats {
    known: KeepaliveShared,
    looks: Cell<u64>,
    ended: Cell<u64>,
    lost: Cell<u64>,
}

impl KeepaliveStats {
    pub fn new(known: KeepaliveShared) -> KeepaliveStats {
        KeepaliveStats { known, ..KeepaliveStats::default() }
    }

    /// Returns the idle time after a response before a connection is reused; zero until a server closed one early.
    pub fn rest(&self) -> Span {
        Span(self.known.0.rest.load(Relaxed))
    }

    /// Records a check that found a kept connection open.
    pub fn stood(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// Records a check, or a failed write of a first byte, that found a kept connection closed at `now`. `idle_since` is
    /// the end of its last response; `None` if it has carried none.
    pub fn ended(&self, idle_since: Option<At>, now: At) {
        self.looks.set(self.looks.get() + 1);
        if idle_since.is_some_and(|since| now - since <= EARLY) {
            self.ended.set(self.ended.get() + 1);
            self.at_least(REST_LEAST, now);
        }
    }

    /// Records that a request written at `sent` got no response byte before its connection ended. The connection was idle
    /// since `idle_since`.
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

    /// Resets the worker's counts; the shared state remains.
    pub fn clear(&self) {
        self.looks.set(0);
        self.ended.set(0);
        self.lost.set(0);
    }

    /// Returns the counts and the shared state.
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

/// Merges the counts of all workers.
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
        let known = KeepaliveShared::default();
        let (a, b) = (KeepaliveStats::new(known.clone()), KeepaliveStats::new(known));
        a.stood();
        a.ended(Some(us(0)), us(5_000_000));
        // A connection that was opened ahead and never used.
        a.ended(None, us(5_000_000));
        assert_eq!((a.rest(), a.told()), (Span::ZERO, KeptConnections { looks: 3, ..Default::default() }));
        a.ended(Some(us(5_000_000)), us(5_000_040));
        let told = a.told();
        assert_eq!((told.looks, told.ended, told.lost), (4, 1, 0));
        assert_eq!((told.rest, told.resting_since), (Some(Span::from_millis(10)), Some(us(5_000_040))));
        // The other worker rests too, although its counts are zero.
        assert_eq!((b.rest(), b.told().looks), (Span::from_millis(10), 0));
        a.clear();
        assert_eq!((a.told().looks, a.told().rest), (0, Some(Span::from_millis(10))));
    }

    #[test]
    fn a_request_lost_after_a_rest_makes_the_next_longer_up_to_a_bound() {
        let keeping = KeepaliveStats::default();
        let rests: Vec<i64> = [100, 10_000, 40_000, 160_000]
            .map(|idle| {
                keeping.lost(Some(us(1_000_000)), us(1_000_000 + idle));
                keeping.rest().0 / 1_000_000
            })
            .to_vec();
        assert_eq!(rests, [10, 40, 160, 250]);
        // Idle for longer than a second, so the close is an idle timeout.
        keeping.lost(Some(us(1_000_000)), us(9_000_000));
        assert_eq!((keeping.told().lost, keeping.told().resting_since), (4, Some(us(1_000_100))));
    }
}
