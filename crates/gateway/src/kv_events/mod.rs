//! KV cache events of engines that publish them (vLLM's `--kv-events-config`, SGLang's): where they are published, and how it goes with a replica's. How they are
//! followed is [`follow`]'s, what is made of them [`plimsoll_policy::kv_caches`]'s.

pub mod follow;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_model::{At, Span};
use plimsoll_policy::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where an engine publishes what changes in its KV cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KvEventsSpec {
    /// Where its PUB socket listens: `tcp://host:5557`.
    pub endpoint: String,
    /// Where its ROUTER socket listens that sends missed batches again; none = what was missed stays so.
    #[serde(default, alias = "replay")]
    pub replay_endpoint: Option<String>,
    /// The topic that it publishes under.
    #[serde(default)]
    pub topic: String,
}

impl KvEventsSpec {
    /// Checks everything that the types can't. `replica`: whose it is.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self, replica: &str) -> Result<(), SettingError> {
        host_port(&self.endpoint, replica, "kv_events.endpoint")?;
        match &self.replay_endpoint {
            Some(replay) => host_port(replay, replica, "kv_events.replay_endpoint").map(drop),
            None => Ok(()),
        }
    }
}

/// `tcp://host:port` as `host:port`.
fn host_port<'a>(endpoint: &'a str, replica: &str, key: &str) -> Result<&'a str, SettingError> {
    let wrong = |why: &str| SettingError::Conflict {
        name: "replicas".to_owned(),
        why: format!("{replica}: {key} {endpoint:?} {why}"),
    };
    let place =
        endpoint.strip_prefix("tcp://").ok_or_else(|| wrong("is no tcp://host:port; only TCP is spoken"))?;
    let (host, port) = place.rsplit_once(':').ok_or_else(|| wrong("has no port; vLLM's is 5557"))?;
    if host.is_empty() || host == "*" || host == "0.0.0.0" {
        return Err(wrong("is where the engine listens; write its host, such as tcp://10.0.0.7:5557"));
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(place),
        _ => Err(wrong("has no port from 1 to 65535")),
    }
}

/// How it goes with a replica's events.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum KvStanding {
    /// The file names none.
    #[default]
    Off,
    /// They were not heard yet.
    Connecting,
    /// They are followed.
    Followed,
    /// They are not: what is cached is guessed by what was sent.
    Broken {
        /// Why.
        why: String,
    },
}

/// What is counted of a replica's events.
#[derive(Debug, Default)]
pub struct KvCounts {
    /// Batches that were taken.
    pub batches: AtomicU64,
    /// Batches that could not be read.
    pub unreadable: AtomicU64,
    /// Times that batches were missing.
    pub gaps: AtomicU64,
    /// Times that missing batches were asked for again: got, and not.
    pub replays: [AtomicU64; 2],
    /// Times that the engine's count began anew.
    pub restarts: AtomicU64,
    /// When a batch came last, ns of the gateway's clock; 0 = never.
    last: AtomicI64,
    standing: Mutex<KvStanding>,
}

impl KvCounts {
    /// How it goes.
    pub fn standing(&self) -> KvStanding {
        self.lock().clone()
    }

    pub(crate) fn set(&self, standing: KvStanding) {
        *self.lock() = standing;
    }

    /// A batch came. How old it was is not told, because only two machines' wall clocks would say it.
    pub(crate) fn came(&self, now: At) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.last.store(now.0, Ordering::Relaxed);
    }

    /// How long ago the last batch came. `None` = none came.
    pub fn last(&self, now: At) -> Option<Span> {
        let last = self.last.load(Ordering::Relaxed);
        (last != 0).then(|| now - At(last))
    }

    fn lock(&self) -> MutexGuard<'_, KvStanding> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where in the count of an engine's batches one is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KvTurn {
    /// The first that is heard.
    First,
    /// The one after the last.
    Next,
    /// Those from this one on are missing.
    Gap(u64),
    /// The count began anew: the engine did.
    Restarted,
}

/// The count of an engine's batches, as far as they were heard.
#[derive(Copy, Clone, Debug, Default)]
pub struct KvSequence {
    /// The number that comes next.
    next: Option<u64>,
}

impl KvSequence {
    /// The batch of this number came.
    pub fn take(&mut self, number: u64) -> KvTurn {
        let turn = match self.next {
            None => KvTurn::First,
            Some(next) if number == next => KvTurn::Next,
            Some(next) if number > next => KvTurn::Gap(next),
            Some(_) => KvTurn::Restarted,
        };
        self.next = Some(number.saturating_add(1));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::{KvEventsSpec, KvSequence, KvTurn};

    #[test]
    fn a_batch_that_is_missing_is_seen_and_so_is_a_count_that_begins_anew() {
        let mut sequence = KvSequence::default();
        let turns = [7, 8, 11, 12, 0, 1, 1].map(|number| sequence.take(number));
        let want = [
            KvTurn::First,
            KvTurn::Next,
            KvTurn::Gap(9),
            KvTurn::Next,
            KvTurn::Restarted,
            KvTurn::Next,
            KvTurn::Restarted,
        ];
        assert_eq!(turns, want);
        assert_eq!(sequence.take(u64::MAX), KvTurn::Gap(2));
    }

    #[test]
    fn an_endpoint_that_can_not_be_connected_to_is_told_what_to_be() {
        let said = |endpoint: &str| {
            let spec =
                KvEventsSpec { endpoint: endpoint.to_owned(), replay_endpoint: None, topic: String::new() };
            spec.validate("r0").err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(said("tcp://10.0.0.7:5557"), "");
        assert_eq!(said("tcp://[::1]:5557"), "");
        assert!(said("tcp://*:5557").contains("write its host, such as tcp://10.0.0.7:5557"));
        assert!(said("ipc:///tmp/a").contains("only TCP is spoken"));
        assert!(said("tcp://a").contains("has no port"));
        assert!(said("tcp://a:0").contains("has no port from 1 to 65535"));
    }
}
