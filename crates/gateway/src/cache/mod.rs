//! Answers that were given once: the same request gets the same bytes again, without a replica.
//!
//! Off unless the file has `cache:`. What is the same is the request's own bytes, its path, what it accepts and its tenant: nothing is read into it, so that no
//! two requests that differ in anything share an answer. A request whose twin is under way reads that one's answer as it comes ([`flight`]); only
//! answers that came whole are kept. Requests that ask the same in other words share one only where `semantic:` is asked for ([`semantic`]).

mod control;
pub mod flight;
pub mod semantic;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_TYPE, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use plimsoll_model::{At, Span};
use plimsoll_policy::setting::SettingError;
use plimsoll_wire::prometheus::PrometheusPage;
use quick_cache::Weighter;
use quick_cache::sync::Cache as Store;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use flight::{Reader, SharedFlight};
use semantic::question::Question;
use semantic::{Semantic, SemanticSpec};

use crate::same::digest;

/// Says on an answer whether it came from here.
pub(crate) const CACHE: HeaderName = HeaderName::from_static("x-plimsoll-cache");
/// Headers of a request that its answer may depend on; others are versions and betas, by their names ([`changes_answer`]), and those that answers name in `Vary`.
static DEPENDS: [HeaderName; 4] = [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_TYPE];
/// And those that say who asks.
static CREDENTIALS: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];
/// Most headers that answers name in `Vary` and that are part of the key from then on.
const MOST_VARIED: usize = 16;
/// An answer as large as most are, bytes: how many entries are made room for.
const USUAL: usize = 4096;

/// Which answers are kept, and for how long.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheSpec {
    /// Requests to these paths, by POST.
    pub paths: Vec<String>,
    /// Which of them: those whose answer is the same each time, or all.
    pub which: CachedKinds,
    /// Who may get another's answer.
    pub scope: Scope,
    /// How long an answer is kept, seconds.
    pub ttl_s: f64,
    /// All answers together, bytes.
    pub bytes: u64,
    /// The largest answer that is kept, and what of an answer under way is held for its readers, bytes.
    pub answer_bytes: usize,
    /// Any text; another one forgets all answers (the model behind the replicas has changed).
    pub revision: String,
    /// Give answers to requests that ask the same in other words, once that is proven to be false seldom enough; none = never.
    pub semantic: Option<SemanticSpec>,
}

/// Which requests' answers are kept.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CachedKinds {
    /// Those that say temperature 0, and embeddings, scores and ranks.
    Deterministic,
    /// All: who asks twice gets the first answer again, also where the model would have written another.
    All,
}

/// Whose answers a request may get.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Its own tenant's, and of those only what the same credentials asked.
    Tenant,
    /// Everybody's.
    Everybody,
}

impl Default for CacheSpec {
    fn default() -> CacheSpec {
        let paths = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];
        CacheSpec {
            paths: paths.map(str::to_owned).to_vec(),
            which: CachedKinds::Deterministic,
            scope: Scope::Tenant,
            ttl_s: 3_600.0,
            bytes: 256 << 20,
            answer_bytes: 4 << 20,
            revision: String::new(),
            semantic: None,
        }
    }
}

impl CacheSpec {
    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        let wrong = |name: &str, why: String| Err(SettingError::Conflict { name: name.to_owned(), why });
        if let Some(path) = self.paths.iter().find(|path| !path.starts_with('/')) {
            return wrong("cache.paths", format!("{path:?} is no path; it begins with /"));
        }
        if self.paths.is_empty() {
            return wrong("cache.paths", "there is none; leave cache: out to keep nothing".to_owned());
        }
        if !(0.1..=31_536_000.0).contains(&self.ttl_s) {
            return wrong("cache.ttl_s", format!("{} is not from 0.1 to 31536000 s", self.ttl_s));
        }
        if !(1 << 10..=1 << 30).contains(&self.answer_bytes) || self.bytes < self.answer_bytes as u64 {
            let why = "write answer_bytes from 1024 to 1 GiB, and bytes no smaller than that";
            return wrong("cache", why.to_owned());
        }
        self.semantic.as_ref().map_or(Ok(()), SemanticSpec::validate)
    }
}

/// What makes two requests the same: a SHA-256 of it, so that nobody can make another's.
pub type CacheKey = [u8; 32];

/// What a request finds.
pub enum CacheLookup {
    /// An answer that came whole, so long ago.
    Whole(Arc<SharedFlight>, Span),
    /// The answer of its twin, which is under way.
    Flying(Reader),
    /// Nothing: it goes to a replica, and whoever asks the same from now on reads along.
    Nothing(Arc<SharedFlight>, Reader),
}

plimsoll_model::named! {
    /// What became of requests that could have been answered from here.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum CacheUse {
        /// An answer that was kept.
        Hit => "hit",
        /// Its twin's answer.
        Shared => "shared",
        /// A replica's.
        Miss => "miss",
        /// The answer to the same in other words.
        Semantic => "semantic",
    }
}

impl CacheUse {
    /// As a header's value.
    pub fn header(self) -> HeaderValue {
        HeaderValue::from_static(self.name())
    }
}

/// An answer that came whole.
#[derive(Clone)]
struct Whole {
    flight: Arc<SharedFlight>,
    came: At,
    bytes: u64,
    lasts_s: f64,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<CacheKey, Whole> for ByBytes {
    fn weight(&self, _: &CacheKey, whole: &Whole) -> u64 {
        whole.bytes
    }
}

pub struct Cache {
    spec: CacheSpec,
    whole: Store<CacheKey, Whole, ByBytes>,
    /// Under way, by what is the same and the class: nobody waits in another class's queue.
    flying: Mutex<HashMap<(CacheKey, usize), Arc<SharedFlight>>>,
    uses: [AtomicU64; CacheUse::ALL.len()],
    /// Headers that answers named in `Vary`.
    varied: Mutex<Vec<HeaderName>>,
    semantic: Option<Semantic>,
}

impl Cache {
    /// An empty one. `seed`: of what is drawn.
    ///
    /// # Errors
    /// The URL of a server that is to be asked on the side can't be read.
    pub fn new(spec: &CacheSpec, seed: u64) -> Result<Cache, SettingError> {
        let entries = (spec.bytes as usize / USUAL).clamp(16, 1 << 20);
        Ok(Cache {
            spec: spec.clone(),
            whole: Store::with_weighter(entries, spec.bytes, ByBytes),
            flying: Mutex::default(),
            uses: Default::default(),
            varied: Mutex::default(),
            semantic: spec.semantic.as_ref().map(|spec| Semantic::new(spec, seed)).transpose()?,
        })
    }

    /// What it knows of requests that ask the same in other words, where that is asked for.
    pub fn semantic(&self) -> Option<&Semantic> {
        self.semantic.as_ref()
    }

    /// How it was asked for.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// What is the same as this request, whose body is unpacked; `None` = it is not answered from here, nor kept.
    pub fn key(&self, path: &str, headers: &HeaderMap, body: &Bytes, tenant: u64) -> Option<CacheKey> {
        let is_cached = self.spec.paths.iter().any(|cached| cached == path);
        if !is_cached || control::refuses_kept(headers) {
            return None;
        }
        if self.spec.which == CachedKinds::Deterministic && !is_deterministic(path, body) {
            return None;
        }
        let tenant = self.tenant(tenant);
        let before = self.before(path, headers, &tenant);
        Some(digest(before.into_iter().chain([&body[..]])))
    }

    fn tenant(&self, tenant: u64) -> [u8; 8] {
        if self.spec.scope == Scope::Tenant { tenant.to_le_bytes() } else { [0; 8] }
    }

    /// What of two requests must be the same beside their bodies.
    fn before<'a>(&'a self, path: &'a str, headers: &'a HeaderMap, tenant: &'a [u8; 8]) -> Vec<&'a [u8]> {
        let own = self.spec.scope == Scope::Tenant;
        let varied = self.varied.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<&HeaderName> =
            headers.keys().filter(|name| is_key(name, own) || varied.contains(name)).collect();
        names.sort_unstable_by_key(|name| name.as_str());
        let headers = names.into_iter().flat_map(|name| {
            headers.get_all(name).iter().flat_map(|value| [name.as_str().as_bytes(), value.as_bytes()])
        });
        [self.spec.revision.as_bytes(), path.as_bytes(), tenant].into_iter().chain(headers).collect()
    }

    /// What a request asks, where that may be compared by its meaning.
    pub fn question(&self, path: &str, headers: &HeaderMap, body: &Bytes, tenant: u64) -> Option<Question> {
        let most = self.semantic.as_ref()?.spec().text_bytes;
        let tenant = self.tenant(tenant);
        Question::read(body, self.before(path, headers, &tenant), most)
    }

    /// An answer that came whole and is not too old, and its age.
    pub fn kept(&self, key: &CacheKey, now: At) -> Option<(Arc<SharedFlight>, Span)> {
        let whole = self.whole.get(key)?;
        let age = now - whole.came;
        if age.as_secs_f64() < whole.lasts_s {
            return Some((whole.flight, age));
        }
        self.whole.remove(key);
        None
    }

    /// Is an answer kept, without its being used?
    pub(crate) fn is_kept(&self, key: &CacheKey, now: At) -> bool {
        self.whole.peek(key).is_some_and(|whole| (now - whole.came).as_secs_f64() < whole.lasts_s)
    }

    /// Would a request find an answer, whole or under way?
    pub fn finds(&self, key: CacheKey, class: usize, now: At) -> bool {
        let flying = || self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_kept(&key, now) || flying().get(&(key, class)).is_some_and(|flight| flight.is_open())
    }

    /// What a request finds; it reads whatever that is.
    pub fn find(&self, (key, headers): (CacheKey, &HeaderMap), class: usize, now: At) -> CacheLookup {
        let is_fresh = |age: Span| control::max_age(headers).is_none_or(|most| age.as_secs_f64() <= most);
        let kept = self.kept(&key, now);
        if let Some((flight, age)) = kept.filter(|(flight, age)| is_fresh(*age) && flight.is_for(headers)) {
            return CacheLookup::Whole(flight, age);
        }
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flying.get(&(key, class)).filter(|flight| flight.is_open()) {
            return CacheLookup::Flying(flight.join());
        }
        let (flight, reader) = self.anew(headers);
        flying.insert((key, class), Arc::clone(&flight));
        CacheLookup::Nothing(flight, reader)
    }

    /// A flight of its own for a request that goes to a replica although an answer is kept.
    pub fn anew(&self, headers: &HeaderMap) -> (Arc<SharedFlight>, Reader) {
        let flight = Arc::new(SharedFlight::new(self.spec.answer_bytes, headers.clone()));
        let reader = flight.join();
        (flight, reader)
    }

    /// A request was answered so.
    pub fn used(&self, how: CacheUse) {
        self.uses[how as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// An answer is over: it is kept where it came whole. Nobody joins it any more.
    pub fn landed(&self, (key, class): (CacheKey, usize), flight: &Arc<SharedFlight>, now: At) {
        if let Some(bytes) = flight.kept().filter(|_| self.is_keyed(flight)) {
            let lasts_s = flight.lasts_s().map_or(self.spec.ttl_s, |lasts| lasts.min(self.spec.ttl_s));
            self.whole.insert(key, Whole { flight: Arc::clone(flight), came: now, bytes, lasts_s });
        }
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if flying.get(&(key, class)).is_some_and(|of| Arc::ptr_eq(of, flight)) {
            flying.remove(&(key, class));
        }
    }

    /// Are all headers that an answer varies by part of its key? Those that are not are, from now on.
    fn is_keyed(&self, flight: &SharedFlight) -> bool {
        let Some(names) = flight.varies() else { return false };
        let own = self.spec.scope == Scope::Tenant;
        let mut varied = self.varied.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh: Vec<HeaderName> =
            names.into_iter().filter(|name| !is_key(name, own) && !varied.contains(name)).collect();
        let is_keyed = fresh.is_empty();
        varied.extend(fresh);
        varied.truncate(MOST_VARIED);
        is_keyed
    }

    /// Writes what it counts on a page.
    pub fn write(&self, page: &mut PrometheusPage) {
        let labels = CacheUse::ALL.map(|how| [("result", how.name())]);
        let counts = CacheUse::ALL.map(|how| self.uses[how as usize].load(Ordering::Relaxed) as f64);
        let each: Vec<(&[(&str, &str)], f64)> =
            labels.iter().zip(counts).map(|(labels, count)| (&labels[..], count)).collect();
        let help = "Requests that the cache could have answered: from what it keeps, from a twin's answer under way, by a replica, with the answer to the same in other words.";
        page.counter("plimsoll_gateway_cache_requests_total", help, &each);
        page.gauge(
            "plimsoll_gateway_cache_bytes",
            "Answers kept, bytes.",
            &[(&[], self.whole.weight() as f64)],
        );
        page.gauge("plimsoll_gateway_cache_answers", "Answers kept.", &[(&[], self.whole.len() as f64)]);
        self.semantic.iter().for_each(|semantic| semantic.write(page));
    }
}

/// Does a request say how old an answer may be? Then it gets none that was given to another question.
pub(crate) fn limits_age(headers: &HeaderMap) -> bool {
    control::max_age(headers).is_some()
}

/// Must a header be equal in two requests that are the same? `own`: only of one tenant's.
fn is_key(name: &HeaderName, own: bool) -> bool {
    DEPENDS.contains(name) || own && CREDENTIALS.contains(name) || changes_answer(name)
}

/// Does a header of this name choose a version of what is asked?
fn changes_answer(name: &HeaderName) -> bool {
    let text = name.as_str();
    let is_own = CREDENTIALS.contains(name) || text.starts_with("x-stainless-");
    let is_vendor = ["anthropic-", "openai-", "x-goog-"].iter().any(|vendor| text.starts_with(vendor));
    !is_own && (is_vendor || text.ends_with("-beta") || text.ends_with("-version"))
}

/// Does a model give the same answer each time?
fn is_deterministic(path: &str, body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Sampling {
        temperature: Option<f64>,
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    if matches!(last, "embeddings" | "rerank" | "score" | "pooling" | "classify") {
        return true;
    }
    serde_json::from_slice(body).is_ok_and(|asked: Sampling| asked.temperature == Some(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_named() {
        assert!(CacheSpec::default().validate().is_ok());
        let refuses = |change: fn(&mut CacheSpec), word: &str| {
            let mut spec = CacheSpec::default();
            change(&mut spec);
            let why = spec.validate().expect_err("a slip").to_string();
            assert!(why.contains(word), "{why}");
        };
        refuses(|spec| spec.paths.clear(), "cache.paths");
        refuses(|spec| spec.paths = vec!["v1/embeddings".to_owned()], "begins with /");
        refuses(|spec| spec.ttl_s = 0.0, "cache.ttl_s");
        refuses(|spec| spec.ttl_s = f64::NAN, "cache.ttl_s");
        refuses(|spec| spec.answer_bytes = 0, "answer_bytes");
        refuses(|spec| spec.bytes = 1 << 20, "no smaller");
    }
}
