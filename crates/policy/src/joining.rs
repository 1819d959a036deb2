//! Which requests are sent to a replica as one: embeddings that differ in their inputs alone, where an accelerator takes many inputs for little more than one.
//!
//! A request waits only while as many are under way as there are replicas, because waiting for company costs time, and who finds a free replica has none to
//! win. Those that wait are sent together as soon as one that is under way ends, or they are as many as may be, or a short window is over: some servers work
//! at several at once. After the window they go on waiting while each replica has two, one that it works at and one that is there when it is done: sent,
//! they would wait there, where nobody joins them. A window alone, as inference servers have it, delays the only client of an idle pool, and under overload sends what
//! few came within it.

use std::collections::HashMap;
use std::hash::Hash;

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// After a joined request that failed, requests like its own go alone for so long: a client that sends what nobody can answer would have each of them
/// sent twice.
pub const APART: Span = Span::from_secs(10);

/// Requests that a replica has after which more only wait there.
const AHEAD: u32 = 2;

/// Which embeddings requests are joined.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JoinSpec {
    /// Longest wait for others, ms; who finds a replica without a request waits for nobody.
    pub window_ms: f64,
    /// Longest wait where each replica has two requests already, ms.
    pub busy_ms: f64,
    /// Most inputs of a joined request.
    pub inputs: u32,
    /// Most tokens of it, four bytes each.
    pub tokens: u64,
    /// Headers in which requests that are joined may differ, because the replica's answer does not depend on them; it gets the first one's.
    pub may_differ: Vec<String>,
}

impl Default for JoinSpec {
    fn default() -> JoinSpec {
        let may_differ = ["traceparent", "tracestate", "baggage", "x-stainless-retry-count"];
        JoinSpec {
            // A fifth of what a batch of short texts takes on one accelerator, and less than a caller notices.
            window_ms: 5.0,
            // As long as a large batch takes; a replica that hangs holds nobody longer than that.
            busy_ms: 100.0,
            // What Text Embeddings Inference takes in a request, unless told otherwise.
            inputs: 32,
            // And in a batch.
            tokens: 16_384,
            may_differ: may_differ.map(str::to_owned).to_vec(),
        }
    }
}

impl JoinSpec {
    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), SettingError> {
        let wrong = |name: &str, why: String| Err(SettingError::Conflict { name: name.to_owned(), why });
        if !(1.0..=1_000.0).contains(&self.window_ms) {
            return wrong("batching.window_ms", format!("{} is not from 1 to 1000 ms", self.window_ms));
        }
        if !(self.window_ms..=10_000.0).contains(&self.busy_ms) {
            let why = format!("{} is not from window_ms ({}) to 10000 ms", self.busy_ms, self.window_ms);
            return wrong("batching.busy_ms", why);
        }
        if !(2..=2_048).contains(&self.inputs) {
            return wrong("batching.inputs", format!("{} is not from 2 to 2048", self.inputs));
        }
        if !(2..=1 << 24).contains(&self.tokens) {
            return wrong("batching.tokens", format!("{} is not from 2 to 16777216", self.tokens));
        }
        Ok(())
    }

    /// How long those wait that opened at `at`, and how long where replicas are busy.
    fn windows(&self, at: At) -> (At, At) {
        let after = |ms: f64| at + Span::from_secs_f64(ms / 1e3);
        (after(self.window_ms), after(self.busy_ms))
    }
}

/// What a request adds to a joined one.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct JoinSize {
    /// Its inputs.
    pub inputs: u32,
    /// Their tokens.
    pub tokens: u64,
}

/// A joined request's number.
pub type JoinTicket = u64;

/// What becomes of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum JoinOffer {
    /// It is sent as it is, now.
    Alone,
    /// It waits for others, at most until then.
    Opens(JoinTicket, At),
    /// It waits with others.
    Joins(JoinTicket),
}

/// Those that wait to be sent as one.
#[derive(Clone, Debug)]
struct Gathering {
    ticket: JoinTicket,
    model: u64,
    size: JoinSize,
    requests: u32,
    /// When its window is over, and when it has waited as long as it may.
    until: (At, At),
}

/// See the module. `K`: what is the same of requests that may be joined.
#[derive(Clone, Debug)]
pub struct Joiner<K> {
    spec: JoinSpec,
    gathering: HashMap<K, Gathering>,
    /// Requests under way, joined or not, by their model.
    under_way: HashMap<u64, u32>,
    /// Requests that go alone, and until when.
    apart: HashMap<K, At>,
    last: JoinTicket,
}

impl<K: Clone + Eq + Hash> Joiner<K> {
    /// One that nobody waits in.
    pub fn new(spec: &JoinSpec) -> Joiner<K> {
        Joiner {
            spec: spec.clone(),
            gathering: HashMap::new(),
            under_way: HashMap::new(),
            apart: HashMap::new(),
            last: 0,
        }
    }

    /// A request has come. `replicas`: those that may answer for its model. Also says whose turn it is by that: what this one does not fit in, or fills.
    ///
    /// Who goes alone is under way from now on, and so is whose turn it is, until [`ended`](Joiner::ended) is told.
    pub fn offer(
        &mut self,
        (key, model): (&K, u64),
        size: JoinSize,
        replicas: u32,
        now: At,
    ) -> (JoinOffer, Option<JoinTicket>) {
        let most = JoinSize { inputs: self.spec.inputs, tokens: self.spec.tokens };
        let goes_alone = self.apart.get(key).is_some_and(|until| now < *until);
        if goes_alone || size.inputs >= most.inputs || size.tokens >= most.tokens {
            self.begins(model);
            return (JoinOffer::Alone, None);
        }
        let mut closes = None;
        if let Some(open) = self.gathering.get_mut(key) {
            let all =
                JoinSize { inputs: open.size.inputs + size.inputs, tokens: open.size.tokens + size.tokens };
            let ticket = open.ticket;
            let fits = all.inputs <= most.inputs && all.tokens <= most.tokens;
            if fits {
                (open.size, open.requests) = (all, open.requests + 1);
            }
            if !fits || all.inputs == most.inputs || all.tokens == most.tokens {
                closes = self.close(ticket).then_some(ticket);
            }
            if fits {
                return (JoinOffer::Joins(ticket), closes);
            }
        }
        if self.count(model) < replicas {
            self.begins(model);
            return (JoinOffer::Alone, closes);
        }
        self.last += 1;
        let until = self.spec.windows(now);
        self.gathering.insert(key.clone(), Gathering { ticket: self.last, model, size, requests: 1, until });
        (JoinOffer::Opens(self.last, until.0), closes)
    }

    /// Has it waited long enough? Until when otherwise; `None` = it is sent now, or was, or nobody waits in it any more.
    pub fn waits(&mut self, ticket: JoinTicket, replicas: u32, now: At) -> Option<At> {
        let (_, open) = self.find(ticket)?;
        let (window, most) = open.until;
        let until = if self.count(open.model) >= AHEAD * replicas { most } else { window };
        if now < until {
            return Some(until);
        }
        self.close(ticket);
        None
    }

    /// It is sent now. False if it was already, or nobody waits in it any more.
    fn close(&mut self, ticket: JoinTicket) -> bool {
        let Some(key) = self.find(ticket).map(|(key, _)| key.clone()) else { return false };
        let open = self.gathering.remove(&key);
        open.iter().for_each(|open| self.begins(open.model));
        true
    }

    /// One that waited has gone. False if what it waited in was sent already.
    pub fn left(&mut self, ticket: JoinTicket, size: JoinSize) -> bool {
        let Some(key) = self.find(ticket).map(|(key, _)| key.clone()) else { return false };
        if let Some(open) = self.gathering.get_mut(&key) {
            open.size.inputs -= size.inputs;
            open.size.tokens -= size.tokens;
            open.requests -= 1;
            if open.requests == 0 {
                self.gathering.remove(&key);
            }
        }
        true
    }

    /// One that was under way has ended; says whose turn it is by that.
    pub fn ended(&mut self, model: u64, replicas: u32, now: At) -> Option<JoinTicket> {
        let left = self.count(model).saturating_sub(1);
        match left {
            0 => self.under_way.remove(&model),
            left => self.under_way.insert(model, left),
        };
        let is_due = |open: &&Gathering| {
            open.model == model && (left < replicas || left < AHEAD * replicas && now >= open.until.0)
        };
        let oldest = self.gathering.values().filter(is_due).map(|open| open.ticket).min()?;
        self.close(oldest).then_some(oldest)
    }

    /// A joined request failed: those like it go alone for a while.
    pub fn failed(&mut self, key: &K, now: At) {
        self.apart.retain(|_, until| now < *until);
        self.apart.insert(key.clone(), now + APART);
    }

    /// Requests under way, of all models.
    pub fn under_way(&self) -> u32 {
        self.under_way.values().sum()
    }

    fn count(&self, model: u64) -> u32 {
        self.under_way.get(&model).copied().unwrap_or(0)
    }

    fn begins(&mut self, model: u64) {
        *self.under_way.entry(model).or_default() += 1;
    }

    fn find(&self, ticket: JoinTicket) -> Option<(&K, &Gathering)> {
        self.gathering.iter().find(|(_, open)| open.ticket == ticket)
    }
}
