//! The virtual client's connections: reused, new per request, or bounded, with the records of a measured client.
//!
//! The network takes no time here, so a connection has no cost. Only its record matters: its age, its earlier
//! requests, and waits for it. Connections are reused last in, first out, as in `plimsoll-client`. Each level opens
//! its connections before the load; reusing the connections of an earlier level, as sockets do, would change no time.

use plimsoll_model::{At, How, Load, Outcome};
use plimsoll_workload::Connections;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct SimConnection {
    pub number: u32,
    /// Time at which the connection was established.
    pub since: At,
    /// Set if the connection has carried an earlier request.
    pub carried: bool,
}

pub(crate) struct SimConnections {
    policy: Connections,
    idle: Vec<SimConnection>,
    /// Number of connections that carry a request.
    busy: u32,
    /// Number of opened connections, including those opened before the load.
    pub made: u32,
    /// Maximum number of connections that carried a request simultaneously.
    pub most_busy: u32,
    /// Time at which the first request had to wait for a connection; `None` if none had to.
    pub waited_since: Option<At>,
}

impl SimConnections {
    /// Opens the connections that a measured client opens in advance: half a second of the rate, or one per request
    /// in flight.
    pub fn new(policy: Connections, load: Load, now: At) -> SimConnections {
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
            SimConnections { policy, idle: Vec::new(), busy: 0, made: 0, most_busy: 0, waited_since: None };
        links.idle = (0..ahead).map(|_| links.open(now)).collect();
        links
    }

    /// Returns a connection for a request; `None` if the pool is exhausted and the request must wait.
    pub fn take(&mut self, now: At) -> Option<SimConnection> {
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

    /// Returns a connection to the pool. After an aborted response it is not reused.
    pub fn give(&mut self, link: SimConnection, outcome: Outcome) {
        self.busy -= 1;
        let whole = matches!(outcome.how, How::Finished | How::Shed | How::ServerError | How::ClientError);
        if whole && !matches!(self.policy, Connections::Fresh) {
            self.idle.push(SimConnection { carried: true, ..link });
        }
    }

    fn open(&mut self, now: At) -> SimConnection {
        let number = self.made;
        self.made += 1;
        SimConnection { number, since: now, carried: false }
    }
}
