//! What is on a replica, as its router counts it: booked before a request is sent, and taken off on each way it can end.
//!
//! Nobody is asked: a replica's own queue length is some scrapes old when it is read, and between two scrapes everything would go to the one
//! that looked empty.

use plimsoll_model::At;

use crate::affinity::Expected;

/// Requests and tokens on a replica.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Load {
    /// Requests sent and not ended.
    pub requests: u32,
    /// Tokens of their prompts and answers.
    pub tokens: u64,
    /// Prompt tokens still to be computed: of requests without a first token, less what the replica has cached.
    pub backlog: u64,
    /// Requests that have their first token and not their last.
    pub decoding: u32,
}

impl Load {
    /// One request's share of a load, before its first token.
    pub fn of_one(tokens: u64, uncached: u32) -> Load {
        Load { requests: 1, tokens, backlog: u64::from(uncached), decoding: 0 }
    }

    /// This request's first token has come.
    pub fn begun(self) -> Load {
        Load { backlog: 0, decoding: self.requests, ..self }
    }

    /// Both together.
    #[must_use]
    pub fn and(mut self, other: Load) -> Load {
        self.add(other);
        self
    }

    pub fn add(&mut self, other: Load) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.backlog += other.backlog;
        self.decoding += other.decoding;
    }

    /// Takes off what was added before. More than there is leaves nothing.
    pub fn take(&mut self, other: Load) {
        self.requests = self.requests.saturating_sub(other.requests);
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.backlog = self.backlog.saturating_sub(other.backlog);
        self.decoding = self.decoding.saturating_sub(other.decoding);
    }
}

/// What `others` routers that nobody hears of are taken to have on each of so many replicas: as much as this one has on the mean one. Without it a router that
/// sees an eighth of the requests takes a step's length for the work of an eighth of the streams, and thinks company eight times as costly as it is.
pub fn unseen(own: &[Load], replicas: usize, others: u32) -> Load {
    if others == 0 || replicas == 0 {
        return Load::default();
    }
    let mut sum = Load::default();
    own.iter().for_each(|&load| sum.add(load));
    let (others, many) = (u64::from(others), replicas as u64);
    let share = |sum: u64| (sum * others + many / 2) / many;
    Load {
        requests: share(u64::from(sum.requests)) as u32,
        tokens: share(sum.tokens),
        backlog: share(sum.backlog),
        decoding: share(u64::from(sum.decoding)) as u32,
    }
}

/// A request on a replica, and what was there when it was sent: what its times are held against.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Booking {
    pub replica: u32,
    pub load: Load,
    pub sent: At,
    /// Prompt tokens to be computed before its first token: those that were ahead of it, and its own.
    pub work: u64,
    /// Requests that were decoding when it was sent.
    pub beside: u32,
    /// When its first token came, and requests decoding then.
    pub first: Option<(At, u32)>,
    /// What of its prompt is taken to be cached there.
    pub expected: Expected,
}

impl Booking {
    /// A request that is sent now to a replica with this load.
    pub fn new(replica: u32, on: Load, own: Load, sent: At) -> Booking {
        let work = on.backlog + own.backlog;
        Booking {
            replica,
            load: own,
            sent,
            work,
            beside: on.decoding,
            first: None,
            expected: Expected::default(),
        }
    }
}
