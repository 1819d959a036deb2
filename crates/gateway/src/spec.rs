//! What a gateway is asked: a file, or flags that stand for one. Every default says why.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::path::PathBuf;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Uri};
use plimsoll_policy::{AdmissionSpec, BreakerSpec, FrontSpec, HedgeSpec, RetrySpec, RouteSpec, SettingError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::cache::CacheSpec;
use crate::keys::{KeySource, KeySpec};
use crate::paths::{OpenPaths, PUBLIC_WORD};
use crate::record::RecordSpec;
use crate::rollout::{ReplicaRole, RolloutSpec, ShadowSpec};
use crate::telemetry::TelemetrySpec;
use crate::tiers::Tiers;
use crate::tls::{CertSpec, TlsSpec};
use crate::traces::TracesSpec;

pub const MOST_REPLICAS: usize = 1_000;

/// A gateway file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySpec {
    /// Where clients connect. Loopback, so that nothing is open to others unasked.
    pub listen: SocketAddr,
    /// Where metrics and the replicas' state are served; none = nowhere. An address of its own: clients must not read it.
    pub admin: Option<SocketAddr>,
    /// What operators show as `Authorization: Bearer`; needed where `admin` is not on loopback. /healthz and /readyz are open.
    pub admin_key: Option<KeySource>,
    /// Who may send requests; none = everybody.
    pub keys: Vec<KeySpec>,
    /// Paths that clients may ask for; others get 403. `public` stands for the public API of engines; `*` is one segment, `/**` at the end all below.
    /// Administrative paths of engines are closed unless they are named here.
    pub paths: Vec<String>,
    /// TLS towards clients; none = plain HTTP.
    pub tls: Option<TlsSpec>,
    /// Where Envoys, and other proxies of a cluster, ask which replica gets a request that they carry themselves; none = nowhere.
    pub picker: Option<PickerSpec>,
    /// Pass the client's key on to replicas; otherwise it ends here, where there are keys.
    pub forward_keys: bool,
    /// The servers behind it.
    pub replicas: Vec<ReplicaSpec>,
    /// Names that stand for several models: a request for one is asked of the first of these that is there and answers within its time limit.
    pub tiers: BTreeMap<String, Vec<String>>,
    /// Gateways in front of the same replicas, this one too. They share nothing; each takes the others to have as much on the replicas as it has itself, where no page says it.
    pub gateways: u32,
    /// How requests are spread over them.
    pub route: RouteSpec,
    /// How much is tried a second time.
    pub retry: RetrySpec,
    /// When a second replica is asked because the first is late with its first token; none = never.
    pub hedge: Option<HedgeSpec>,
    /// When a replica is ejected.
    pub breaker: BreakerSpec,
    /// Who is let in, who waits, and in what order.
    pub admission: AdmissionSpec,
    /// How it is seen that a replica answers.
    pub health: HealthSpec,
    /// How replicas' own pages of metrics are read, which say what others have there; null = they are not.
    pub telemetry: Option<TelemetrySpec>,
    /// What a replica is sent before it gets requests; none = nothing.
    pub warm_up: Option<WarmSpec>,
    /// Which answers are kept for those who ask the same again; none = no answer is.
    pub cache: Option<CacheSpec>,
    /// How replicas whose role is `canary` get requests and are judged.
    pub canary: Option<RolloutSpec>,
    /// How replicas whose role is `shadow` get copies.
    pub shadow: Option<ShadowSpec>,
    /// What clients may do.
    pub limits: LimitSpec,
    /// Where requests are recorded as runs; none = nowhere.
    pub record: Option<RecordSpec>,
    /// Where traces of requests go, and which are kept; none = nowhere.
    pub traces: Option<TracesSpec>,
    /// Answer a request that asks for it (`x-plimsoll-explain: 1`) with why it went where it went, in a header of that name: replicas' names and
    /// loads, which strangers should not read.
    pub explain_header: bool,
    /// The budget file that is held against the requests that come; none = none.
    pub budget: Option<PathBuf>,
    /// Name the replica in `x-plimsoll-replica`; otherwise the header carries a hash of the name, which tells outsiders nothing.
    pub name_replicas: bool,
    /// Threads; 0 = as many as cores.
    pub threads: usize,
    /// PEM file of further authorities that replicas' certificates are checked against.
    pub ca_file: Option<PathBuf>,
    /// What replicas that ask for a certificate are shown.
    pub client_cert: Option<CertSpec>,
    /// Don't check replicas' certificates.
    pub insecure: bool,
}

/// One server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaSpec {
    /// Where it is: `http://host:8000`, or `https://…`; a path is put in front of each request's.
    pub url: String,
    /// What it is called in metrics; its host and port unless told otherwise.
    #[serde(default)]
    pub name: Option<String>,
    /// What it wants to see as `Authorization: Bearer`; stands for the client's own.
    #[serde(default)]
    pub key: Option<KeySource>,
    /// What it is there for.
    #[serde(default)]
    pub role: ReplicaRole,
    /// The models that it serves, by the names that requests ask for; unless told otherwise, it is asked.
    #[serde(default)]
    pub models: Option<Vec<String>>,
}

/// An endpoint picker: Envoy's external processing over gRPC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PickerSpec {
    /// Where proxies connect.
    pub listen: SocketAddr,
    /// TLS towards them; none = HTTP/2 in the clear.
    #[serde(default)]
    pub tls: Option<TlsSpec>,
    /// Further replicas that are named behind the chosen one, the next best first, for a proxy that can't reach that: it tries them in this order.
    #[serde(default = "fallbacks")]
    pub fallbacks: usize,
}

fn fallbacks() -> usize {
    1
}

impl PickerSpec {
    /// One that is asked in the clear.
    pub fn new(listen: SocketAddr) -> PickerSpec {
        PickerSpec { listen, tls: None, fallbacks: fallbacks() }
    }

    /// May whoever reaches it ask?
    pub fn is_open(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none())
    }
}

/// How it is seen that a replica answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthSpec {
    /// The page that is asked for. Any answer below 500 counts: a server without the page is alive too.
    pub path: String,
    /// Between two looks at a replica that answers, seconds; one that doesn't is asked four times a second.
    pub every_s: f64,
    /// The page that says which models it serves, looked at as well every 30 s; none = it is not asked, and gets requests for any.
    pub models: Option<String>,
    /// How long an answer may take, seconds: an engine's front is slow while it is busy, and that is not dead.
    pub timeout_s: f64,
}

/// Requests by which a replica warms up: the first ones of a process compile kernels, load pages and capture graphs, for which no client should wait.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmSpec {
    /// Where they go, by POST.
    #[serde(default = "warm_path")]
    pub path: String,
    /// The body, as JSON in a string.
    pub body: String,
    /// How many, one after another.
    #[serde(default = "warm_requests")]
    pub requests: u32,
    /// How long all of them may take, seconds; then the replica gets requests as it is.
    #[serde(default = "warm_within_s")]
    pub within_s: f64,
    /// Send one more whenever a replica had no request for so long, seconds, so that it is not scaled to zero; 0 = never.
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

/// What clients may do before they are told off.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSpec {
    /// Largest request body, bytes (413): a request is kept whole until it is answered, so that it can be sent again.
    pub body_bytes: usize,
    /// Largest request head, bytes (431), and what of an answer waits at most for a slow reader.
    pub head_bytes: usize,
    /// Most header lines.
    pub headers: usize,
    /// Longest time for a TLS handshake, seconds: who opens connections and says nothing holds none of them for long.
    pub handshake_s: f64,
    /// Longest time for a head to come, seconds; an idle connection is closed after it too.
    pub head_s: f64,
    /// Longest time for a body to come, seconds (408).
    pub body_s: f64,
    /// Most connections of clients.
    pub connections: usize,
    /// How long requests are taken as before after a stop was asked for, seconds, while `/readyz` is 503: load balancers learn of a stop late.
    pub linger_s: f64,
    /// How long answers may go on after that, seconds.
    pub drain_s: f64,
    /// Silence in a stream after which a comment keeps the client's connection open, seconds; 0 = never. Proxies close at 30 or 60.
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
            retry: RetrySpec::default(),
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
    /// What is decided, without what it takes to carry it out: what a simulation reads.
    pub fn front(&self) -> FrontSpec {
        FrontSpec {
            route: self.route,
            retry: self.retry,
            hedge: self.hedge.clone(),
            breaker: self.breaker,
            admission: self.admission.clone(),
            gateways: self.gateways,
        }
    }

    /// Replicas of this role.
    pub fn of(&self, role: ReplicaRole) -> impl Iterator<Item = &ReplicaSpec> {
        self.replicas.iter().filter(move |replica| replica.role == role)
    }

    /// The canary's share where none is said otherwise: as much for each replica as for any other. `None` = there is no canary.
    pub fn canary_share(&self) -> Option<f64> {
        let (base, canary) =
            (self.of(ReplicaRole::Serve).count() as f64, self.of(ReplicaRole::Canary).count() as f64);
        let asked = self.canary.as_ref().and_then(|canary| canary.share);
        (canary > 0.0).then(|| asked.unwrap_or(canary / (base + canary)))
    }

    /// The share of which shadows get copies. `None` = there is no shadow.
    pub fn shadow_share(&self) -> Option<f64> {
        let shadows = self.of(ReplicaRole::Shadow).count() as f64;
        let serving = self.replicas.len() as f64 - shadows;
        let asked = self.shadow.as_ref().and_then(|shadow| shadow.share);
        (shadows > 0.0).then(|| asked.unwrap_or((shadows / serving).min(1.0)))
    }

    /// A gateway's file in front of its shadows alone: who has no room is left out, and nothing is tried again.
    pub(crate) fn shadows(&self) -> GatewaySpec {
        let most = self.shadow.clone().unwrap_or_default().requests;
        let admission = AdmissionSpec { per_replica: Some(most), requests: 0, ..self.admission.clone() };
        GatewaySpec {
            replicas: self
                .of(ReplicaRole::Shadow)
                .map(|one| ReplicaSpec { role: ReplicaRole::Serve, ..one.clone() })
                .collect(),
            retry: RetrySpec { most: 0, ..self.retry },
            hedge: None,
            admission,
            canary: None,
            shadow: None,
            ..self.clone()
        }
    }

    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.validate_replicas()?;
        self.validate_tiers()?;
        if !(1..=1_000).contains(&self.gateways) {
            return conflict("gateways", format!("{} is not from 1 to 1000", self.gateways));
        }
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
            0 => return conflict("replicas", "there is none; write - url: http://host:8000".to_owned()),
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
                let why = format!("{name}: models names none; leave it out, and the replica is asked");
                return conflict("replicas", why);
            }
            if names.contains(&name) {
                return conflict("replicas", format!("{name} is there twice; give each its own name"));
            }
            names.push(name);
        }
        if self.of(ReplicaRole::Serve).next().is_none() {
            return conflict("replicas", "none of them serves: each is a canary or a shadow".to_owned());
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
        // One that is asked may serve anything.
        let all_say = self.replicas.iter().all(|one| one.models.is_some());
        for (alias, models) in &self.tiers {
            let wrong = |why: String| conflict("tiers", format!("{alias}: {why}"));
            if models.is_empty() {
                return wrong("names no model; write the first choice, and what stands in for it".to_owned());
            }
            if said.contains(&alias) {
                return wrong("is a model that a replica serves; give the tiers another name".to_owned());
            }
            for (place, model) in models.iter().enumerate() {
                if self.tiers.contains_key(model) {
                    return wrong(format!(
                        "{model} stands for models itself; name those that replicas serve"
                    ));
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
            return conflict(
                "paths",
                "no path is open; write public, or the paths that clients may ask for".to_owned(),
            );
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
                    format!("{name}: a proxy wants an address, such as http://10.0.0.7:8000, and no name");
                return conflict("picker", why);
            }
            if !place.base.is_empty() {
                let why =
                    format!("{name}: a proxy sends paths as they come; leave {} out of its URL", place.base);
                return conflict("picker", why);
            }
        }
        Ok(())
    }

    fn validate_admin(&self) -> Result<(), SettingError> {
        if self.admin.is_some_and(|admin| admin == self.listen && admin.port() != 0) {
            return conflict("admin", format!("{} is where clients connect; take another port", self.listen));
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
        if !self.path.starts_with('/') {
            return conflict("health.path", format!("{:?} is no path; it begins with /", self.path));
        }
        if let Some(path) = self.models.as_ref().filter(|path| !path.starts_with('/')) {
            return conflict("health.models", format!("{path:?} is no path; it begins with /"));
        }
        seconds("health.every_s", self.every_s, 0.01)?;
        seconds("health.timeout_s", self.timeout_s, 0.01)
    }
}

impl WarmSpec {
    fn validate(&self) -> Result<(), SettingError> {
        if !self.path.starts_with('/') {
            return conflict("warm_up.path", format!("{:?} is no path; it begins with /", self.path));
        }
        let sound = (0.01..=3_600.0).contains(&self.within_s) && (0.0..=86_400.0).contains(&self.idle_s);
        if !sound || self.requests > 1_000 {
            let why = "write at most 1000 requests, within_s from 0.01 to 3600 and idle_s from 0 to 86400";
            return conflict("warm_up", why.to_owned());
        }
        Ok(())
    }
}

impl LimitSpec {
    fn validate(&self) -> Result<(), SettingError> {
        seconds("limits.handshake_s", self.handshake_s, 0.01)?;
        seconds("limits.head_s", self.head_s, 0.01)?;
        seconds("limits.body_s", self.body_s, 0.01)?;
        seconds("limits.linger_s", self.linger_s, 0.0)?;
        seconds("limits.drain_s", self.drain_s, 0.0)?;
        seconds("limits.keep_alive_s", self.keep_alive_s, 0.0)?;
        match (8 << 10..=16 << 20).contains(&self.head_bytes) {
            true => Ok(()),
            false => conflict("limits.head_bytes", format!("{} is not from 8192 to 16 MiB", self.head_bytes)),
        }
    }
}

fn conflict(name: &str, why: String) -> Result<(), SettingError> {
    Err(SettingError::Conflict { name: name.to_owned(), why })
}

fn seconds(name: &str, seconds: f64, least: f64) -> Result<(), SettingError> {
    match (least..=86_400.0).contains(&seconds) {
        true => Ok(()),
        false => conflict(name, format!("{seconds} is not from {least} to 86400 s")),
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct ReplicaAddress {
    /// Its host and port, as requests name it.
    pub authority: Authority,
    /// Its host, without brackets.
    pub host: String,
    pub port: u16,
    /// Is it spoken to over TLS?
    pub tls: bool,
    /// What is put in front of each path; without a slash at its end.
    pub base: String,
}

impl ReplicaAddress {
    /// What a proxy knows it by. `None` = it is named, and only a resolver knows.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.host.parse().ok()?, self.port))
    }
}

impl ReplicaSpec {
    /// A server, and what it is called if not by its host and port.
    pub fn new(url: impl Into<String>, name: Option<String>) -> ReplicaSpec {
        ReplicaSpec { url: url.into(), name, key: None, role: ReplicaRole::Serve, models: None }
    }

    /// What it is called.
    pub fn named(&self) -> String {
        let place = || self.place().map(|place| place.authority.to_string());
        self.name.clone().or_else(|| place().ok()).unwrap_or_default()
    }

    /// What answers carry in `x-plimsoll-replica`: its name, or a hash that tells it from others and says neither where it is nor what it is called.
    pub fn header(&self, name_it: bool) -> Result<HeaderValue, SettingError> {
        let name = self.named();
        let mut hash = SipHasher13::new();
        name.hash(&mut hash);
        let shown = if name_it { name.clone() } else { format!("{:08x}", hash.finish() as u32) };
        HeaderValue::from_str(&shown).map_err(|_| SettingError::Conflict {
            name: "replicas".to_owned(),
            why: format!("{name:?} can't be in a header; use letters, digits and dashes"),
        })
    }

    /// Where it is.
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

    /// The URL without user info.
    fn shown(&self) -> String {
        match (self.url.split_once("://"), self.url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
            _ => self.url.clone(),
        }
    }
}
