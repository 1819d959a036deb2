//! Which requests are sent to a replica as one: embeddings that differ in their inputs alone, where an accelerator takes many inputs for little more than one.
//!
//! A request waits only while each replica has as many as it works at, because waiting for company costs time, and who finds a free replica has none to win. Those
//! that wait are sent together as soon as one that is under way ends, or they are as many as may be. A window alone, as inference servers have it, delays the
//! only client of an idle pool, and under overload sends what few came within it to wait at the replica, where nobody joins them: of sixteen clients of a server of one at a time it
//! made batches half as large.

use std::collections::HashMap;
use std::hash::Hash;

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// After a joined request that failed, requests like its own go alone for so long: a client that sends what nobody can answer would have each of them
/// sent twice.
pub const APART: Span = Span::from_secs(10);

/// Which embeddings requests are joined.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JoinSpec {
    /// Requests that a replica works at at a time: who finds one that has fewer waits for nobody.
    pub at_once: u32,
    /// Longest wait for others, ms.
    pub wait_ms: f64,
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
            at_once: 1,
            // Most wait for an end, which comes sooner; a replica that hangs holds nobody longer.
            wait_ms: 200.0,
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
        if !(1..=1_000).contains(&self.at_once) {
            return wrong("batching.at_once", format!("{} is not from 1 to 1000", self.at_once));
        }
        if !(1.0..=10_000.0).contains(&self.wait_ms) {
            return wrong("batching.wait_ms", format!("{} is not from 1 to 10000 ms", self.wait_ms));
        }
        if !(2..=2_048).contains(&self.inputs) {
            return wrong("batching.inputs", format!("{} is not from 2 to 2048", self.inputs));
        }
        if !(2..=1 << 24).contains(&self.tokens) {
            return wrong("batching.tokens", format!("{} is not from 2 to 16777216", self.tokens));
        }
        Ok(())
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
        if self.is_free(model, replicas) {
            self.begins(model);
            return (JoinOffer::Alone, closes);
        }
        self.last += 1;
        self.gathering.insert(key.clone(), Gathering { ticket: self.last, model, size, requests: 1 });
        let until = now + Span::from_secs_f64(self.spec.wait_ms / 1e3);
        (JoinOffer::Opens(self.last, until), closes)
    }

    /// It is sent now. False if it was already, or nobody waits in it any more.
    pub fn close(&mut self, ticket: JoinTicket) -> bool {
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
    pub fn ended(&mut self, model: u64, replicas: u32) -> Option<JoinTicket> {
        match self.count(model).saturating_sub(1) {
            0 => self.under_way.remove(&model),
            left => self.under_way.insert(model, left),
        };
        if !self.is_free(model, replicas) {
            return None;
        }
        let waiting = self.gathering.values().filter(|open| open.model == model);
        let oldest = waiting.map(|open| open.ticket).min()?;
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

    /// Has one of its replicas fewer than it works at?
    fn is_free(&self, model: u64, replicas: u32) -> bool {
        self.count(model) < self.spec.at_once.saturating_mul(replicas)
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
