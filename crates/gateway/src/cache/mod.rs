//! Response cache: an identical request gets the identical bytes again, without a replica.
//!
//! The cache is off unless the configuration has `cache:`. The key covers the raw request bytes, the path, content
//! negotiation and the tenant. The request is not interpreted, so two requests that differ anywhere never share a
//! response. An identical concurrent request shares the response in flight ([`flight`]); only complete responses are
//! stored. Requests of similar meaning share a response only if `semantic:` is configured ([`semantic`]).

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

use flight::{ResponseReader, SharedResponse};
use semantic::question::SemanticQuery;
use semantic::{Semantic, SemanticSpec};

use crate::error::{self, conflict, within};

/// Response header with the cache result.
pub(crate) const CACHE: HeaderName = HeaderName::from_static("x-plimsoll-cache");
/// Request headers that always belong to the cache key. Version and beta headers ([`changes_answer`]) and headers
/// from `Vary` belong to it too.
static DEPENDS: [HeaderName; 4] = [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_TYPE];
/// Request headers that identify the client.
static CREDENTIALS: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];
/// Limit on the number of headers from `Vary` that become part of the key.
const MOST_VARIED: usize = 16;
/// Typical response size in bytes, used to estimate the number of entries.
const USUAL: usize = 4096;

/// Settings of the cache of responses.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheSpec {
    /// Paths of cached POST requests [default: /v1/chat/completions, /v1/completions, /v1/embeddings].
    pub paths: Vec<String>,
    /// Cached requests: deterministic ones or all [default: deterministic].
    pub which: CachedKinds,
    /// Clients that share responses [default: tenant].
    pub scope: Scope,
    /// Lifetime of a cached response in s [default: 3600].
    pub ttl_s: f64,
    /// Total size of cached responses in bytes [default: 256 MiB].
    pub bytes: u64,
    /// Size limit in bytes of a cached response, and of the buffer of a response in flight [default: 4 MiB].
    pub answer_bytes: usize,
    /// Revision of the served model, as free text. A change empties the cache.
    pub revision: String,
    /// Semantic cache: responses for requests of similar meaning, once the false-hit rate is proven low [default:
    /// off].
    pub semantic: Option<SemanticSpec>,
}

/// Kinds of requests whose responses are cached.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CachedKinds {
    /// Requests with temperature 0, embeddings, scores and rankings.
    Deterministic,
    /// All requests. A repeated request gets the first response, even if the model would have written another one.
    All,
}

/// Group of clients that share cached responses.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Clients of one tenant that send the same credentials.
    Tenant,
    /// All clients share the cached responses.
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
    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.paths.iter().try_for_each(|path| error::path("cache.paths", path))?;
        if self.paths.is_empty() {
            return conflict("cache.paths", "the list is empty; remove cache: to store no answers");
        }
        within("cache.ttl_s", self.ttl_s, 0.1..=31_536_000.0, " s")?;
        if !(1 << 10..=1 << 30).contains(&self.answer_bytes) || self.bytes < self.answer_bytes as u64 {
            let why = "write answer_bytes from 1024 to 1 GiB, and bytes no smaller than that";
            return conflict("cache", why);
        }
        self.semantic.as_ref().map_or(Ok(()), SemanticSpec::validate)
    }
}

/// The cache key of a request: a SHA-256, so that no client can construct a collision.
pub type CacheKey = [u8; 32];

/// The result of a cache lookup.
pub enum CacheLookup {
    /// A complete response and its age.
    Whole(Arc<SharedResponse>, Span),
    /// The response in flight of an identical request.
    Flying(ResponseReader),
    /// A miss. The request goes to a replica, and identical requests can join the new flight.
    Nothing(Arc<SharedResponse>, ResponseReader),
}

plimsoll_model::named! {
    /// The source of the response to a cacheable request.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum CacheUse {
        Hit => "hit",
        /// The response of an identical concurrent request.
        Shared => "shared",
        Miss => "miss",
        /// The response to a request of similar meaning.
        Semantic => "semantic",
    }
}

impl CacheUse {
    /// Returns the value of the `x-plimsoll-cache` header.
    pub fn header(self) -> HeaderValue {
        HeaderValue::from_static(self.name())
    }
}

#[derive(Clone)]
struct Whole {
    flight: Arc<SharedResponse>,
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
    /// Responses in flight by key and priority class, so that no request waits in the queue of another class.
    flying: Mutex<HashMap<(CacheKey, usize), Arc<SharedResponse>>>,
    uses: [AtomicU64; CacheUse::ALL.len()],
    /// Headers that responses named in `Vary`.
    varied: Mutex<Vec<HeaderName>>,
    semantic: Option<Semantic>,
}

impl Cache {
    /// Returns an empty cache. `seed` initialises the random samples.
    ///
    /// # Errors
    /// Fails if the URL of an auxiliary server is invalid.
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

    /// Returns the semantic cache, or `None` if it is not configured.
    pub fn semantic(&self) -> Option<&Semantic> {
        self.semantic.as_ref()
    }

    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Returns the cache key of a request with a decompressed body, or `None` if the request is not cacheable.
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

    /// Returns the parts of a request besides the body that must match.
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

    /// Returns the question of a request, or `None` if the request cannot be compared by meaning.
    pub fn question(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: &Bytes,
        tenant: u64,
    ) -> Option<SemanticQuery> {
        let most = self.semantic.as_ref()?.spec().text_bytes;
        let tenant = self.tenant(tenant);
        SemanticQuery::read(body, self.before(path, headers, &tenant), most)
    }

    /// Returns a complete response within its lifetime, and its age.
    pub fn kept(&self, key: &CacheKey, now: At) -> Option<(Arc<SharedResponse>, Span)> {
        let whole = self.whole.get(key)?;
        let age = now - whole.came;
        if age.as_secs_f64() < whole.lasts_s {
            return Some((whole.flight, age));
        }
        self.whole.remove(key);
        None
    }

    /// Returns whether a response is cached, without counting as a use.
    pub(crate) fn is_kept(&self, key: &CacheKey, now: At) -> bool {
        self.whole.peek(key).is_some_and(|whole| (now - whole.came).as_secs_f64() < whole.lasts_s)
    }

    /// Returns whether a request would find a response, complete or in flight.
    pub fn finds(&self, key: CacheKey, class: usize, now: At) -> bool {
        let flying = || self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_kept(&key, now) || flying().get(&(key, class)).is_some_and(|flight| flight.is_open())
    }

    /// Looks up a request and registers a new flight on a miss.
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

    /// Returns a separate flight for a request that goes to a replica although a response is cached.
    pub fn anew(&self, headers: &HeaderMap) -> (Arc<SharedResponse>, ResponseReader) {
        let flight = Arc::new(SharedResponse::new(self.spec.answer_bytes, headers.clone()));
        let reader = flight.join();
        (flight, reader)
    }

    /// Counts the source of a response.
    pub fn used(&self, how: CacheUse) {
        self.uses[how as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a flight. A complete response is stored, and no further request joins the flight.
    pub fn landed(&self, (key, class): (CacheKey, usize), flight: &Arc<SharedResponse>, now: At) {
        if let Some(bytes) = flight.kept().filter(|_| self.is_keyed(flight)) {
            let lasts_s = flight.lasts_s().map_or(self.spec.ttl_s, |lasts| lasts.min(self.spec.ttl_s));
            self.whole.insert(key, Whole { flight: Arc::clone(flight), came: now, bytes, lasts_s });
        }
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if flying.get(&(key, class)).is_some_and(|of| Arc::ptr_eq(of, flight)) {
            flying.remove(&(key, class));
        }
    }

    /// Returns whether the key contains all headers that the response varies by. Missing headers are added to future
    /// keys.
    fn is_keyed(&self, flight: &SharedResponse) -> bool {
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

    /// Writes the metrics to a Prometheus page.
    pub fn write(&self, page: &mut PrometheusPage) {
        let each = CacheUse::ALL.map(|how| {
            let count = self.uses[how as usize].load(Ordering::Relaxed);
            ([("result", how.name())], count as f64)
        });
        let help = "Cacheable requests by source of the answer: a stored answer, a coalesced request, a replica, a similar prompt.";
        page.counter("plimsoll_gateway_cache_requests_total", help, each);
        page.gauge(
            "plimsoll_gateway_cache_bytes",
            "Stored answers, bytes.",
            [([], self.whole.weight() as f64)],
        );
        page.gauge("plimsoll_gateway_cache_answers", "Answers kept.", [([], self.whole.len() as f64)]);
        self.semantic.iter().for_each(|semantic| semantic.write(page));
    }
}

/// Returns the digest of the parts in order. Part boundaries contribute to the digest. SHA-256 is used, because
/// no client may construct a collision with another client's content.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut name = [0; 32];
    name.copy_from_slice(hash.finish().as_ref());
    name
}

/// Returns whether the request limits the age of responses. It then gets no response of a similar request.
pub(crate) fn limits_age(headers: &HeaderMap) -> bool {
    control::max_age(headers).is_some()
}

/// Returns whether a header is part of the key. `own` is set if the cache is per tenant.
fn is_key(name: &HeaderName, own: bool) -> bool {
    DEPENDS.contains(name) || own && CREDENTIALS.contains(name) || changes_answer(name)
}

/// Returns whether a header of this name selects a version of the API.
fn changes_answer(name: &HeaderName) -> bool {
    let text = name.as_str();
    let is_own = CREDENTIALS.contains(name) || text.starts_with("x-stainless-");
    let is_vendor = ["anthropic-", "openai-", "x-goog-"].iter().any(|vendor| text.starts_with(vendor));
    !is_own && (is_vendor || text.ends_with("-beta") || text.ends_with("-version"))
}

/// Returns whether the model's response is deterministic.
fn is_deterministic(path: &str, body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct SamplingFields {
        temperature: Option<f64>,
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    if matches!(last, "embeddings" | "rerank" | "score" | "pooling" | "classify") {
        return true;
    }
    serde_json::from_slice(body).is_ok_and(|asked: SamplingFields| asked.temperature == Some(0.0))
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
