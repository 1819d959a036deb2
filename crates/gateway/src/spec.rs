//! Gateway configuration, from a file or from equivalent flags. Each default is explained where it is set.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::path::PathBuf;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Uri};
use plimsoll_policy::{
    AdmissionControlSpec, AdmissionSpec, BreakerSpec, HedgeSpec, RetryBudgetSpec, RouteSpec, SettingError,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::cache::CacheSpec;
use crate::error::{self, conflict, within};
use crate::keys::{KeySource, KeySpec};
use crate::paths::{OpenPaths, PUBLIC_WORD};
use crate::record::RecordSpec;
use crate::rollout::{ReplicaRole, RolloutSpec, ShadowSpec};
use crate::telemetry::TelemetrySpec;
use crate::tiers::Tiers;
use crate::tls::{CertSpec, TlsSpec};
use crate::traces::TracesSpec;

pub const MOST_REPLICAS: usize = 1_000;
/// Maximum of every time setting: one day, in s.
const DAY_S: f64 = 86_400.0;

/// The configuration of a gateway, as a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySpec {
    /// Listen address for clients [default: 127.0.0.1:8080]. Other hosts need an explicit address.
    pub listen: SocketAddr,
    /// Listen address of the admin API with metrics and replica status [default: none]. It is separate, because
    /// clients must not read it.
    pub admin: Option<SocketAddr>,
    /// Key of the admin API, sent as `Authorization: Bearer`; required unless `admin` is on loopback. /healthz and
    /// /readyz need no key.
    pub admin_key: Option<KeySource>,
    /// API keys of clients [default: none, all clients are accepted].
    pub keys: Vec<KeySpec>,
    /// Paths open to clients; others get 403 [default: public]. `public` is the public API of engines, `*` matches
    /// one segment, and a final `/**` matches all paths below. Administrative paths of engines are closed unless
    /// listed.
    pub paths: Vec<String>,
    /// TLS for clients [default: none, plain HTTP].
    pub tls: Option<TlsSpec>,
    /// Endpoint picker for Envoy and other proxies that forward requests themselves [default: none].
    pub picker: Option<PickerSpec>,
    /// Forwarding of the client's key to replicas [default: false]. Without it, the gateway removes the key if it has
    /// `keys`.
    pub forward_keys: bool,
    /// Replicas behind the gateway; at least one is required.
    pub replicas: Vec<ReplicaSpec>,
    /// Fallback lists: model names and the models that may serve them, in order of priority. A request goes to the
    /// first available model that meets its TTFT limit [default: none].
    pub tiers: BTreeMap<String, Vec<String>>,
    /// Number of gateways in front of the same replicas, including this one [default: 1]. Gateways share no state.
    /// Without metrics, each assumes that the others add as much load as itself.
    pub gateways: u32,
    /// Routing policy for requests [default: least_cost].
    pub route: RouteSpec,
    /// Settings of retries and of their budget.
    pub retry: RetryBudgetSpec,
    /// Hedging: a second replica for a request whose first token is late [default: off].
    pub hedge: Option<HedgeSpec>,
    /// Settings of the circuit breakers of replicas.
    pub breaker: BreakerSpec,
    /// Settings of admission and of the request queue.
    pub admission: AdmissionSpec,
    /// Settings of the health checks of replicas.
    pub health: HealthSpec,
    /// Scraping of replica metrics for the load of other clients; null disables it [default: on].
    pub telemetry: Option<TelemetrySpec>,
    /// Warm-up requests before a replica gets traffic [default: none].
    pub warm_up: Option<WarmSpec>,
    /// Settings of the response cache [default: off].
    pub cache: Option<CacheSpec>,
    /// Canary settings for replicas with the role `canary`.
    pub canary: Option<RolloutSpec>,
    /// Shadow settings for replicas with the role `shadow`.
    pub shadow: Option<ShadowSpec>,
    /// Limits on client requests and connections.
    pub limits: LimitSpec,
    /// Recording of requests as runs [default: off].
    pub record: Option<RecordSpec>,
    /// Trace export of requests [default: off].
    pub traces: Option<TracesSpec>,
    /// Routing explanation in a response header for requests with `x-plimsoll-explain: 1` [default: false]. It
    /// reveals names and loads of replicas.
    pub explain_header: bool,
    /// Budget file to evaluate on live traffic [default: none].
    pub budget: Option<PathBuf>,
    /// Replica names in `x-plimsoll-replica` [default: false]. Otherwise the header contains a hash of the name.
    pub name_replicas: bool,
    /// Worker threads; 0 means the number of cores [default: 0].
    pub threads: usize,
    /// PEM file with additional certificate authorities for replicas [default: none].
    pub ca_file: Option<PathBuf>,
    /// Client certificate for replicas that request one [default: none].
    pub client_cert: Option<CertSpec>,
    /// Skips verification of replicas' certificates [default: false].
    pub insecure: bool,
}

/// A replica behind the gateway, with its address.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaSpec {
    /// Base URL: `http://host:8000` or `https://…`. Its path is prepended to the path of each request.
    pub url: String,
    /// Name in metrics [default: host and port].
    #[serde(default)]
    pub name: Option<String>,
    /// Key sent as `Authorization: Bearer`; it replaces the client's header [default: none].
    #[serde(default)]
    pub key: Option<KeySource>,
    /// Role of the replica [default: serve].
    #[serde(default)]
    pub role: ReplicaRole,
    /// Models that the replica serves, as named in requests [default: queried from the replica].
    #[serde(default)]
    pub models: Option<Vec<String>>,
}

/// Endpoint picker: Envoy's external processing over gRPC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PickerSpec {
    /// Listen address for the proxies that send ext_proc requests.
    pub listen: SocketAddr,
    /// TLS for proxies [default: none, plain HTTP/2].
    #[serde(default)]
    pub tls: Option<TlsSpec>,
    /// Number of fallback replicas after the chosen one, best first, for proxies that cannot reach the choice
    /// [default: 1].
    #[serde(default = "fallbacks")]
    pub fallbacks: usize,
}

fn fallbacks() -> usize {
    1
}

impl PickerSpec {
    /// Returns a picker without TLS.
    pub fn new(listen: SocketAddr) -> PickerSpec {
        PickerSpec { listen, tls: None, fallbacks: fallbacks() }
    }

    /// Returns whether any peer that reaches the picker may use it.
    pub fn is_open(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none())
    }
}

/// Settings of the health checks of replicas.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthSpec {
    /// Health endpoint [default: /health]. Any response below 500 is healthy, because a server without the endpoint
    /// is alive too.
    pub path: String,
    /// Health check interval in s of a healthy replica [default: 2.0]. An unhealthy replica is checked four times per
    /// second.
    pub every_s: f64,
    /// Endpoint that lists the served models, queried every 30 s [default: /v1/models]. With null, the replica gets
    /// requests for any model.
    pub models: Option<String>,
    /// Timeout of a health check in s, because the front end of a busy engine is slow but not dead [default: 2.0].
    pub timeout_s: f64,
}

/// Warm-up requests. The first requests of a process compile kernels, load pages and capture graphs, which would
/// delay clients.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmSpec {
    /// Path of the POST requests [default: /v1/completions].
    #[serde(default = "warm_path")]
    pub path: String,
    /// Request body: JSON in a string.
    pub body: String,
    /// Number of warm-up requests, sent in sequence [default: 3].
    #[serde(default = "warm_requests")]
    pub requests: u32,
    /// Time limit for all warm-up requests in s; the replica gets traffic afterwards in any case [default: 60].
    #[serde(default = "warm_within_s")]
    pub within_s: f64,
    /// Idle time in s after which a replica gets another request, so that it is not scaled to zero; 0 disables this
    /// [default: 0].
    #[serde(default)]
    pub idle_s: f64,
}

fn warm_path() -> String {
    "/v1/completions".to_owned()
}

fn warm_requests() -> u32 {
    3
}

fn warm_within_s() -> f64 {
    60.0
}

/// Limits on client requests and connections.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSpec {
    /// Limit on the request body in bytes, else status 413 [default: 32 MiB]. A body is buffered until its response
    /// for retries.
    pub body_bytes: usize,
    /// Limit on the request head in bytes, else status 431; also limits buffered response data for a slow client
    /// [default: 64 KiB].
    pub head_bytes: usize,
    /// Limit on the number of request headers [default: 100].
    pub headers: usize,
    /// Timeout of the TLS handshake in s, so that silent clients do not occupy connections [default: 10].
    pub handshake_s: f64,
    /// Timeout of a request head in s; also closes idle connections [default: 60].
    pub head_s: f64,
    /// Timeout of a request body in s, else status 408 [default: 60].
    pub body_s: f64,
    /// Limit on client connections [default: 10000].
    pub connections: usize,
    /// Time in s after a stop signal during which requests are still accepted, while `/readyz` is 503 [default: 0].
    /// Load balancers notice a stop late.
    pub linger_s: f64,
    /// Time limit in s for responses in flight after the linger period [default: 30].
    pub drain_s: f64,
    /// Silence in s of a stream before a keep-alive comment; 0 disables it [default: 15]. Proxies close silent
    /// connections after 30 or 60 s.
    pub keep_alive_s: f64,
}

impl Default for GatewaySpec {
    fn default() -> GatewaySpec {
        GatewaySpec {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin: None,
            admin_key: None,
            keys: Vec::new(),
            paths: vec![PUBLIC_WORD.to_owned()],
            tls: None,
            picker: None,
            forward_keys: false,
            replicas: Vec::new(),
            tiers: BTreeMap::new(),
            gateways: 1,
            route: RouteSpec::LeastCost { weight: plimsoll_policy::cost::WEIGHT, index_blocks: 1 << 18 },
            retry: RetryBudgetSpec::default(),
            hedge: None,
            breaker: BreakerSpec::default(),
            admission: AdmissionSpec::default(),
            health: HealthSpec::default(),
            telemetry: Some(TelemetrySpec::default()),
            warm_up: None,
            cache: None,
            canary: None,
            shadow: None,
            limits: LimitSpec::default(),
            record: None,
            traces: None,
            explain_header: false,
            budget: None,
            name_replicas: false,
            threads: 0,
            ca_file: None,
            client_cert: None,
            insecure: false,
        }
    }
}

impl Default for HealthSpec {
    fn default() -> HealthSpec {
        HealthSpec {
            path: "/health".to_owned(),
            every_s: 2.0,
            models: Some("/v1/models".to_owned()),
            timeout_s: 2.0,
        }
    }
}

impl Default for LimitSpec {
    fn default() -> LimitSpec {
        LimitSpec {
            body_bytes: 32 << 20,
            head_bytes: 64 << 10,
            headers: 100,
            handshake_s: 10.0,
            head_s: 60.0,
            body_s: 60.0,
            connections: 10_000,
            linger_s: 0.0,
            drain_s: 30.0,
            keep_alive_s: 15.0,
        }
    }
}

impl GatewaySpec {
    /// Returns the part of the configuration that makes decisions, which the simulator uses too.
    pub fn front(&self) -> AdmissionControlSpec {
        AdmissionControlSpec {
            route: self.route,
            retry: self.retry,
            hedge: self.hedge.clone(),
            breaker: self.breaker,
            admission: self.admission.clone(),
            gateways: self.gateways,
        }
    }

    /// Returns the replicas with this role.
    pub fn of(&self, role: ReplicaRole) -> impl Iterator<Item = &ReplicaSpec> {
        self.replicas.iter().filter(move |replica| replica.role == role)
    }

    /// Returns the canary share, by default the canaries' share of the replicas. Returns `None` without a canary.
    pub fn canary_share(&self) -> Option<f64> {
        let (base, canary) =
            (self.of(ReplicaRole::Serve).count() as f64, self.of(ReplicaRole::Canary).count() as f64);
        let asked = self.canary.as_ref().and_then(|canary| canary.share);
        (canary > 0.0).then(|| asked.unwrap_or(canary / (base + canary)))
    }

    /// Returns the share of requests that shadows get copies of, or `None` without a shadow.
    pub fn shadow_share(&self) -> Option<f64> {
        let shadows = self.of(ReplicaRole::Shadow).count() as f64;
        let serving = self.replicas.len() as f64 - shadows;
        let asked = self.shadow.as_ref().and_then(|shadow| shadow.share);
        (shadows > 0.0).then(|| asked.unwrap_or((shadows / serving).min(1.0)))
    }

    /// Returns the configuration of a gateway in front of the shadows. Copies without capacity are dropped, and
    /// nothing is retried.
    pub(crate) fn shadows(&self) -> GatewaySpec {
        let most = self.shadow.clone().unwrap_or_default().requests;
        let admission = AdmissionSpec { per_replica: Some(most), requests: 0, ..self.admission.clone() };
        GatewaySpec {
            replicas: self
                .of(ReplicaRole::Shadow)
                .map(|one| ReplicaSpec { role: ReplicaRole::Serve, ..one.clone() })
                .collect(),
            retry: RetryBudgetSpec { most: 0, ..self.retry },
            hedge: None,
            admission,
            canary: None,
            shadow: None,
            ..self.clone()
        }
    }

    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.validate_replicas()?;
        self.validate_tiers()?;
        within("gateways", self.gateways, 1..=1_000, "")?;
        self.record.as_ref().map_or(Ok(()), RecordSpec::validate)?;
        self.cache.as_ref().map_or(Ok(()), CacheSpec::validate)?;
        self.traces.as_ref().map_or(Ok(()), TracesSpec::validate)?;
        self.front().validate()?;
        if let Some(name) = &self.admission.tenant_header
            && HeaderName::try_from(name).is_err()
        {
            return conflict("admission.tenant_header", format!("{name:?} is no header's name"));
        }
        let classes = self.keys.iter().filter_map(|key| key.class.as_ref());
        if let Some(class) = classes.into_iter().find(|class| self.admission.class(class).is_none()) {
            return conflict("keys", format!("the class {class:?} is none of admission.classes"));
        }
        self.warm_up.as_ref().map_or(Ok(()), WarmSpec::validate)?;
        self.validate_paths()?;
        self.validate_admin()?;
        self.picker.as_ref().map_or(Ok(()), |picker| self.validate_picker(picker))?;
        self.health.validate()?;
        self.telemetry.as_ref().map_or(Ok(()), TelemetrySpec::validate)?;
        self.limits.validate()
    }

    fn validate_replicas(&self) -> Result<(), SettingError> {
        match self.replicas.len() {
            0 => return conflict("replicas", "there is none; write - url: http://host:8000"),
            many if many > MOST_REPLICAS => {
                return conflict("replicas", format!("{many} are more than {MOST_REPLICAS}"));
            }
            _ => {}
        }
        let mut names: Vec<String> = Vec::new();
        for replica in &self.replicas {
            replica.place()?;
            replica.header(self.name_replicas)?;
            let name = replica.named();
            if replica.models.as_ref().is_some_and(Vec::is_empty) {
                let why = format!("{name}: models is empty; leave it out to query the replica");
                return conflict("replicas", why);
            }
            if names.contains(&name) {
                return conflict("replicas", format!("{name} is there twice; give each its own name"));
            }
            names.push(name);
        }
        if self.of(ReplicaRole::Serve).next().is_none() {
            return conflict(
                "replicas",
                "none of them serves: each is a canary or a shadow; add a replica without role:",
            );
        }
        for (key, asked, role) in [
            ("canary", self.canary.is_some(), ReplicaRole::Canary),
            ("shadow", self.shadow.is_some(), ReplicaRole::Shadow),
        ] {
            if asked && self.of(role).next().is_none() {
                return conflict(key, format!("no replica is one; write role: {key} at one of them"));
            }
        }
        self.canary.as_ref().map_or(Ok(()), RolloutSpec::validate)?;
        self.shadow.as_ref().map_or(Ok(()), ShadowSpec::validate)
    }

    fn validate_tiers(&self) -> Result<(), SettingError> {
        Tiers::new(&self.tiers)?;
        let said: Vec<&String> = self.replicas.iter().flat_map(|one| one.models.iter().flatten()).collect();
        // A replica that is queried for its models may serve any model.
        let all_say = self.replicas.iter().all(|one| one.models.is_some());
        for (alias, models) in &self.tiers {
            let wrong = |why: String| conflict("tiers", format!("{alias}: {why}"));
            if models.is_empty() {
                return wrong("names no model; write the first choice, then its fallbacks".to_owned());
            }
            if said.contains(&alias) {
                return wrong("is a model that a replica serves; give the tiers another name".to_owned());
            }
            for (place, model) in models.iter().enumerate() {
                if self.tiers.contains_key(model) {
                    return wrong(format!("{model} is a tier itself; name models that replicas serve"));
                }
                if models[..place].contains(model) {
                    return wrong(format!("{model} is there twice"));
                }
                if all_say && !said.contains(&model) {
                    return wrong(format!("no replica serves {model}; write it under models: of one"));
                }
            }
        }
        Ok(())
    }

    fn validate_paths(&self) -> Result<(), SettingError> {
        if self.paths.is_empty() {
            return conflict("paths", "no path is open; write public, or the allowed paths");
        }
        let open = OpenPaths::new(&self.paths)?;
        let cached = self.cache.iter().flat_map(|cache| &cache.paths).map(|path| ("cache.paths", path));
        let hedged = self.hedge.iter().flat_map(|hedge| &hedge.paths).map(|path| ("hedge.paths", path));
        match cached.chain(hedged).find(|(_, path)| !open.has(path)) {
            Some((key, path)) => {
                conflict(key, format!("{path} is not open to clients; name it under paths: too"))
            }
            None => Ok(()),
        }
    }

    fn validate_picker(&self, picker: &PickerSpec) -> Result<(), SettingError> {
        let taken = [Some(self.listen), self.admin].contains(&Some(picker.listen));
        if taken && picker.listen.port() != 0 {
            return conflict("picker", format!("{} is taken already; take another port", picker.listen));
        }
        for replica in self.replicas.iter().filter(|one| one.role != ReplicaRole::Shadow) {
            let (name, place) = (replica.named(), replica.place()?);
            if place.endpoint().is_none() {
                let why =
                    format!("{name}: a proxy needs an address, such as http://10.0.0.7:8000, not a name");
                return conflict("picker", why);
            }
            if !place.base.is_empty() {
                let why =
                    format!("{name}: a proxy forwards paths unchanged; remove {} from its URL", place.base);
                return conflict("picker", why);
            }
        }
        Ok(())
    }

    fn validate_admin(&self) -> Result<(), SettingError> {
        if self.admin.is_some_and(|admin| admin == self.listen && admin.port() != 0) {
            return conflict("admin", format!("clients connect to {}; use another port", self.listen));
        }
        match self.admin.filter(|admin| !admin.ip().is_loopback() && self.admin_key.is_none()) {
            Some(admin) => conflict(
                "admin",
                format!(
                    "{admin} can be reached from outside; add admin_key: {{env: NAME}}, or take 127.0.0.1"
                ),
            ),
            None => Ok(()),
        }
    }
}

impl HealthSpec {
    fn validate(&self) -> Result<(), SettingError> {
        error::path("health.path", &self.path)?;
        self.models.as_ref().map_or(Ok(()), |path| error::path("health.models", path))?;
        within("health.every_s", self.every_s, 0.01..=DAY_S, " s")?;
        within("health.timeout_s", self.timeout_s, 0.01..=DAY_S, " s")
    }
}

impl WarmSpec {
    fn validate(&self) -> Result<(), SettingError> {
        error::path("warm_up.path", &self.path)?;
        let sound = (0.01..=3_600.0).contains(&self.within_s) && (0.0..=86_400.0).contains(&self.idle_s);
        if !sound || self.requests > 1_000 {
            let why = "write at most 1000 requests, within_s from 0.01 to 3600 and idle_s from 0 to 86400";
            return conflict("warm_up", why);
        }
        Ok(())
    }
}

impl LimitSpec {
    fn validate(&self) -> Result<(), SettingError> {
        within("limits.handshake_s", self.handshake_s, 0.01..=DAY_S, " s")?;
        within("limits.head_s", self.head_s, 0.01..=DAY_S, " s")?;
        within("limits.body_s", self.body_s, 0.01..=DAY_S, " s")?;
        within("limits.linger_s", self.linger_s, 0.0..=DAY_S, " s")?;
        within("limits.drain_s", self.drain_s, 0.0..=DAY_S, " s")?;
        within("limits.keep_alive_s", self.keep_alive_s, 0.0..=DAY_S, " s")?;
        match (8 << 10..=16 << 20).contains(&self.head_bytes) {
            true => Ok(()),
            false => conflict("limits.head_bytes", format!("{} is not from 8192 to 16 MiB", self.head_bytes)),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct ReplicaAddress {
    /// Host and port for the `Host` header.
    pub authority: Authority,
    /// Host without brackets.
    pub host: String,
    pub port: u16,
    /// Set if the replica uses TLS.
    pub tls: bool,
    /// Path prefix without a final slash.
    pub base: String,
}

impl ReplicaAddress {
    /// Returns the socket address for a proxy, or `None` if the host is a name that needs a resolver.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.host.parse().ok()?, self.port))
    }
}

impl ReplicaSpec {
    /// Returns a serving replica. Without `name`, its name is host and port.
    pub fn new(url: impl Into<String>, name: Option<String>) -> ReplicaSpec {
        ReplicaSpec { url: url.into(), name, key: None, role: ReplicaRole::Serve, models: None }
    }

    /// Returns the configured name, or host and port.
    pub fn named(&self) -> String {
        let place = || self.place().map(|place| place.authority.to_string());
        self.name.clone().or_else(|| place().ok()).unwrap_or_default()
    }

    /// Returns the value of `x-plimsoll-replica`: the name, or a hash that reveals neither name nor address. Fails if
    /// the name is not valid in a header.
    pub fn header(&self, name_it: bool) -> Result<HeaderValue, SettingError> {
        let name = self.named();
        let mut hash = SipHasher13::new();
        name.hash(&mut hash);
        let shown = if name_it { name.clone() } else { format!("{:08x}", hash.finish() as u32) };
        HeaderValue::from_str(&shown).or_else(|_| {
            conflict("replicas", format!("{name:?} can't be in a header; use letters, digits and dashes"))
        })
    }

    /// Parses the URL, and fails if it is invalid.
    pub fn place(&self) -> Result<ReplicaAddress, SettingError> {
        let wrong = |why: &str| SettingError::Conflict {
            name: "replicas".to_owned(),
            why: format!("{}: {why}; write http://host:8000", self.shown()),
        };
        let uri: Uri = self.url.parse().map_err(|_| wrong("is no URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("is no http:// or https:// URL")),
        };
        let authority = uri.authority().cloned().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("carries user info, which would be in logs; leave it out"));
        }
        if uri.query().is_some() {
            return Err(wrong("carries a query"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(ReplicaAddress { authority, host, port, tls, base })
    }

    /// Returns the URL without user info, for error messages.
    fn shown(&self) -> String {
        match (self.url.split_once("://"), self.url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
            _ => self.url.clone(),
        }
    }
}
