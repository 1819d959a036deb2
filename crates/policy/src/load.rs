//! Load of a replica in the router's own count: booked before a request is sent, and released at any end.
//!
//! The replica's own queue length lost as a base, because it is some scrapes old. Between two scrapes, all requests
//! would go to the replica that seemed idle.

use plimsoll_model::At;

use crate::affinity::ExpectedHit;

/// Requests and tokens on a replica.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct ReplicaLoad {
    pub requests: u32,
    /// Prompt and output tokens of the requests in flight.
    pub tokens: u64,
    /// Uncached prompt tokens of requests without a first token.
    pub backlog: u64,
    /// Requests between their first and last token.
    pub decoding: u32,
}

impl ReplicaLoad {
    /// Returns the load of one request before its first token.
    pub fn of_one(tokens: u64, uncached: u32) -> ReplicaLoad {
        ReplicaLoad { requests: 1, tokens, backlog: u64::from(uncached), decoding: 0 }
    }

    /// Returns the load of this request after its first token.
    pub fn begun(self) -> ReplicaLoad {
        ReplicaLoad { backlog: 0, decoding: self.requests, ..self }
    }

    /// Returns the sum of two loads.
    #[must_use]
    pub fn and(mut self, other: ReplicaLoad) -> ReplicaLoad {
        self.add(other);
        self
    }

    pub fn add(&mut self, other: ReplicaLoad) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.backlog += other.backlog;
        self.decoding += other.decoding;
    }

    /// Subtracts a load, saturating at zero.
    pub fn take(&mut self, other: ReplicaLoad) {
        self.requests = self.requests.saturating_sub(other.requests);
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.backlog = self.backlog.saturating_sub(other.backlog);
        self.decoding = self.decoding.saturating_sub(other.decoding);
    }
}

/// Returns the assumed load of `others` other routers on each replica: for each router, the mean load of this one.
/// Without it, a router with an eighth of the requests would attribute decode steps to an eighth of the streams. It
/// would overestimate the cost of concurrent requests eight times.
pub fn unseen(own: &[ReplicaLoad], replicas: usize, others: u32) -> ReplicaLoad {
    if others == 0 || replicas == 0 {
        return ReplicaLoad::default();
    }
    let mut sum = ReplicaLoad::default();
    own.iter().for_each(|&load| sum.add(load));
    let (others, many) = (u64::from(others), replicas as u64);
    let share = |sum: u64| (sum * others + many / 2) / many;
    ReplicaLoad {
        requests: share(u64::from(sum.requests)) as u32,
        tokens: share(sum.tokens),
        backlog: share(sum.backlog),
        decoding: share(u64::from(sum.decoding)) as u32,
    }
}

/// A request on a replica, with the replica's load at the time of sending, which its times are compared with.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Booking {
    pub replica: u32,
    pub load: ReplicaLoad,
    pub sent: At,
    /// Prompt tokens to compute before its first token, including those ahead of it.
    pub work: u64,
    /// Requests that decoded on the replica at the time of sending.
    pub beside: u32,
    /// Time of the first token, and the requests that decoded then; `None` before it.
    pub first: Option<(At, u32)>,
    /// Expected prefix-cache hit of the prompt.
    pub expected: ExpectedHit,
}

impl Booking {
    /// Returns the booking of a request on a replica with this load.
    pub fn new(replica: u32, on: ReplicaLoad, own: ReplicaLoad, sent: At) -> Booking {
        let work = on.backlog + own.backlog;
        Booking {
            replica,
            load: own,
            sent,
            work,
            beside: on.decoding,
            first: None,
            expected: ExpectedHit::default(),
        }
    }
}
