//! API-key authentication: the active keys, their remaining rate limits, and the charge of a request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use plimsoll_client::Clock;
use plimsoll_model::Span;
use plimsoll_policy::{RateLimit, SettingError};
use plimsoll_wire::prometheus::PrometheusPage;

use crate::error::conflict;
use crate::keys::{Digest, KeySpec, MOST_KEYS, is_plain};
use crate::request::BYTES_PER_TOKEN;

/// Headers that contain keys of clients: OpenAI's, Anthropic's and Azure's.
pub(crate) const IN: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];

pub struct ActiveKey {
    pub id: String,
    pub tenant: String,
    pub class: Option<String>,
    digest: Digest,
    limited: bool,
    used: Arc<KeyUsage>,
}

/// The usage of a key. It survives configuration reloads.
struct KeyUsage {
    rate: Mutex<RateLimit>,
    requests: AtomicU64,
    refused: AtomicU64,
    prompt_tokens: AtomicU64,
    answer_tokens: AtomicU64,
}

#[derive(Default)]
pub struct Authenticator {
    keys: Vec<Arc<ActiveKey>>,
    by_digest: HashMap<u64, Vec<Arc<ActiveKey>>>,
}

/// The reason for an authentication failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthError {
    Missing,
    Unknown,
}

impl Authenticator {
    /// Returns the keys of a configuration. A key that `before` contains keeps its remaining rate limit.
    ///
    /// # Errors
    /// Fails if a key is unavailable or configured twice.
    pub fn new(
        specs: &[KeySpec],
        before: Option<&Authenticator>,
        clock: Clock,
    ) -> Result<Authenticator, SettingError> {
        let mut doors = Authenticator::default();
        if specs.len() > MOST_KEYS {
            return conflict("keys", format!("{} are more than {MOST_KEYS}", specs.len()));
        }
        let known: HashMap<&str, &Arc<ActiveKey>> =
            before.iter().flat_map(|doors| &doors.keys).map(|key| (key.id.as_str(), key)).collect();
        let mut ids = std::collections::HashSet::new();
        let now = clock.now();
        for spec in specs {
            let tenant = spec.tenant.as_ref().unwrap_or(&spec.id);
            for name in [&spec.id, tenant].into_iter().chain(&spec.class) {
                if !is_plain(name) {
                    return conflict("keys", format!("{name:?}: write 1 to 64 letters, digits and -_.:@/"));
                }
            }
            let what = format!("keys: {}", spec.id);
            if !ids.insert(&spec.id) {
                return conflict(&what, "is there twice; give each its own id");
            }
            spec.rate.validate(&what)?;
            let digest = spec.key.digest(&what)?;
            if let Some(other) = doors.find(&digest) {
                return conflict(&what, format!("is the same key as {}", other.id));
            }
            let used = match known.get(spec.id.as_str()) {
                Some(key) => Arc::clone(&key.used),
                None => Arc::new(KeyUsage::new(RateLimit::new(&spec.rate, now))),
            };
            let key = Arc::new(ActiveKey {
                id: spec.id.clone(),
                tenant: tenant.clone(),
                class: spec.class.clone(),
                digest,
                limited: spec.rate.requests_per_min.is_some() || spec.rate.tokens_per_min.is_some(),
                used,
            });
            doors.by_digest.entry(digest.short()).or_default().push(Arc::clone(&key));
            doors.keys.push(key);
        }
        // Rates change only after all keys are valid, because a rejected configuration must change nothing.
        for (key, spec) in doors.keys.iter().zip(specs) {
            key.used.rate.lock().unwrap_or_else(PoisonError::into_inner).change(&spec.rate, now);
        }
        Ok(doors)
    }

    /// Returns whether all clients are accepted.
    pub(crate) fn are_open(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the key of a request, or `None` if all clients are accepted. Fails if the key is missing or unknown.
    pub fn admit(&self, headers: &HeaderMap) -> Result<Option<Arc<ActiveKey>>, AuthError> {
        if self.are_open() {
            return Ok(None);
        }
        let key = shown(headers).ok_or(AuthError::Missing)?;
        self.find(&Digest::of(key)).map(|key| Some(Arc::clone(key))).ok_or(AuthError::Unknown)
    }

    fn find(&self, digest: &Digest) -> Option<&Arc<ActiveKey>> {
        self.by_digest.get(&digest.short())?.iter().find(|key| key.digest.is(digest))
    }

    /// Writes the usage of each key to a Prometheus page.
    pub fn write(&self, page: &mut PrometheusPage) {
        if self.are_open() {
            return;
        }
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let mut family =
            |name: &str, help: &str, label: &str, read: &dyn Fn(&KeyUsage) -> [(&'static str, f64); 2]| {
                let each = self.keys.iter().flat_map(|key| {
                    let labels = [("key", &*key.id), ("tenant", &*key.tenant)];
                    read(&key.used).map(|(which, count)| ([labels[0], labels[1], (label, which)], count))
                });
                page.counter(name, help, each);
            };
        family(
            "plimsoll_gateway_key_requests_total",
            "Requests by key: admitted, or over its limit.",
            "outcome",
            &|used| [("admitted", value(&used.requests)), ("limited", value(&used.refused))],
        );
        family(
            "plimsoll_gateway_key_tokens_total",
            "Tokens by key, four bytes or one event of a stream each.",
            "kind",
            &|used| [("prompt", value(&used.prompt_tokens)), ("answer", value(&used.answer_tokens))],
        );
    }
}

impl KeyUsage {
    fn new(rate: RateLimit) -> KeyUsage {
        let none = AtomicU64::default;
        KeyUsage {
            rate: Mutex::new(rate),
            requests: none(),
            refused: none(),
            prompt_tokens: none(),
            answer_tokens: none(),
        }
    }
}

/// Returns the key of a request; in `Authorization` it follows `Bearer`.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    let (name, value) = IN.into_iter().find_map(|name| headers.get(&name).map(|value| (name, value)))?;
    let value = value.as_bytes().trim_ascii();
    if name != AUTHORIZATION {
        return Some(value);
    }
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Returns whether the request carries the key with this digest.
pub fn is_shown(headers: &HeaderMap, digest: &Digest) -> bool {
    shown(headers).is_some_and(|key| Digest::of(key).is(digest))
}

/// Removes the key headers, because a key for this gateway must not reach other servers.
pub fn strip(headers: &mut HeaderMap) {
    IN.iter().for_each(|name| {
        headers.remove(name);
    });
}

/// The rate-limit charge of a request. A drop refunds the unused part.
pub struct RateCharge {
    key: Arc<ActiveKey>,
    clock: Clock,
    prompt: u64,
    taken: u64,
    answer: u64,
    waived: bool,
}

impl RateCharge {
    /// Charges a request to its key.
    ///
    /// # Errors
    /// Fails with the time to wait if the key exceeds its limit.
    pub fn take(
        key: Arc<ActiveKey>,
        prompt: u32,
        most_answer: Option<u32>,
        clock: Clock,
    ) -> Result<RateCharge, Span> {
        let prompt = u64::from(prompt);
        let taken = prompt + u64::from(most_answer.unwrap_or(0));
        if key.limited {
            let mut rate = key.used.rate.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(wait) = rate.take(taken, clock.now()) {
                drop(rate);
                key.used.refused.fetch_add(1, Ordering::Relaxed);
                return Err(wait);
            }
        }
        key.used.requests.fetch_add(1, Ordering::Relaxed);
        Ok(RateCharge { key, clock, prompt, taken, answer: 0, waived: false })
    }

    /// Adds output tokens to the count of the response.
    pub fn answered(&mut self, tokens: u64) {
        self.answer += tokens;
    }

    /// Records bytes of a response that is not a stream, converted to tokens.
    pub fn passes(&mut self, bytes: usize) {
        self.answered((bytes / BYTES_PER_TOKEN) as u64);
    }

    /// Replaces the estimated output tokens by the count that the response reports, because events and bytes are only
    /// estimates.
    pub fn reports(&mut self, tokens: u32) {
        self.answer = u64::from(tokens);
    }

    /// Refunds all tokens, because no replica answered.
    pub(crate) fn waive(mut self) {
        self.waived = true;
    }
}

impl Drop for RateCharge {
    fn drop(&mut self) {
        let (prompt, answer) = if self.waived { (0, 0) } else { (self.prompt, self.answer) };
        let used = &self.key.used;
        used.prompt_tokens.fetch_add(prompt, Ordering::Relaxed);
        used.answer_tokens.fetch_add(answer, Ordering::Relaxed);
        if self.key.limited {
            let mut rate = used.rate.lock().unwrap_or_else(PoisonError::into_inner);
            rate.settle(self.taken, prompt + answer, self.clock.now());
        }
    }
}
