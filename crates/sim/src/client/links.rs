//! The virtual client's connections: kept, made anew, or bounded, with the records that a measured client leaves of them.
//!
//! The network takes no time here, so a connection costs nothing and only its story is told: when it stood, what it had
//! carried before, and who waited for one. Kept ones are used last in, first out, as `plimsoll-client` uses its own. Each
//! level opens its own ahead of the load; that they outlive a level, as sockets do, would change no instant.

use plimsoll_model::{At, How, Load, Outcome};
use plimsoll_workload::Connections;

/// A connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub number: u32,
    pub since: At,
    /// Has it carried a request before?
    pub carried: bool,
}

pub(crate) struct Links {
    policy: Connections,
    idle: Vec<Link>,
    /// Connections that carry a request.
    busy: u32,
    /// Connections made, those ahead of the load included.
    pub made: u32,
    /// Most that carried a request at once.
    pub most_busy: u32,
    /// When the first request had to wait for one.
    pub waited_since: Option<At>,
}

impl Links {
    /// Opens ahead what a measured client would: half a second of the rate, or one for each in flight.
    pub fn new(policy: Connections, load: Load, now: At) -> Links {
        let expected = match load {
            Load::Open { rate_per_s } => (rate_per_s * 0.5).clamp(4.0, 512.0) as u32,
            Load::Closed { concurrency } | Load::Saturating { concurrency } => concurrency,
            Load::Wave { requests } => requests,
        };
        let ahead = match policy {
            Connections::Prewarmed => expected,
            Connections::Pool { limit } => expected.min(limit),
            Connections::Fresh => 0,
        };
        let mut links =
            Links { policy, idle: Vec::new(), busy: 0, made: 0, most_busy: 0, waited_since: None };
        links.idle = (0..ahead).map(|_| links.open(now)).collect();
        links
    }

    /// One for a request; `None` where the pool has none left, and the request is to wait.
    pub fn take(&mut self, now: At) -> Option<Link> {
        if let Connections::Pool { limit } = self.policy
            && self.busy >= limit
        {
            self.waited_since.get_or_insert(now);
            return None;
        }
        self.busy += 1;
        self.most_busy = self.most_busy.max(self.busy);
        Some(self.idle.pop().unwrap_or_else(|| self.open(now)))
    }

    /// Takes one back. One on which an answer was broken off carries no other.
    pub fn give(&mut self, link: Link, outcome: Outcome) {
        self.busy -= 1;
        let whole = matches!(outcome.how, How::Finished | How::Shed | How::ServerError | How::ClientError);
        if whole && !matches!(self.policy, Connections::Fresh) {
            self.idle.push(Link { carried: true, ..link });
        }
    }

    fn open(&mut self, now: At) -> Link {
        let number = self.made;
        self.made += 1;
        Link { number, since: now, carried: false }
    }
}
