//! Finds the metrics endpoints of servers: the configured ones, or else those discovered on the target's host.
//!
//! Discovery sends requests only to a host that the user named. It follows no redirect and sends keys to the target's host
//! only. Other ports of that host may belong to other services. Discovery tries one only if the target reports on its own
//! port that it is Triton, whose metrics are on another port. It sends no keys there, and accepts the result only if it is
//! Triton and lists the model. Exporters of the machine are the other exception ([`crate::metrics::exporters`]). A URL that ends with `/api/v1/query` is a Prometheus server, and the metrics of its targets
//! are read ([`crate::metrics::targets`]).

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use futures_util::future::{join, join_all};
use futures_util::stream::{StreamExt, TryStreamExt};
use http::Uri;
use plimsoll_model::{Protocol, Span};
use plimsoll_wire::exposition::{self, CutPage, ExposedValue};
use plimsoll_wire::kserve::metadata::read_server;
use plimsoll_wire::prometheus_api::{self, RangeSeries};
use plimsoll_workload::{Connections, ScrapeSpec, TargetSpec};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::clock::Clock;
use crate::driver::exchange::exchange;
use crate::driver::exchange_watch::{OutgoingRequest, WholeAnswer};
use crate::driver::recording::AttemptEnding;
use crate::http1::keeping::KeepaliveShared;
use crate::http1::pool::ConnectionPool;
use crate::http1::stamp::SocketMeter;
use crate::metrics::exporters::{self, Exporter};
use crate::metrics::nvml;
use crate::metrics::targets;
use crate::target::{Target, TargetError, without_user};
use crate::tls::SharedTls;

/// Longest wait for a scrape, unless scrapes are further apart.
pub(crate) const PATIENCE: Span = Span::from_secs(2);
/// Most bytes of an exposition that are read.
const PAGE_MAX: usize = 16 << 20;
/// Default metrics port of Triton. Deployments that move its three ports keep their order: HTTP, gRPC, metrics.
const TRITON_PORT: u16 = 8002;

#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// The URL of a metrics endpoint is invalid.
    #[error("--scrape {page}: {source}")]
    Target {
        /// URL as configured, without user and password.
        page: String,
        source: TargetError,
    },
    /// A configured metrics endpoint did not return metrics.
    #[error("--scrape {page}: {why}")]
    Silent {
        /// URL of the metrics endpoint as configured.
        page: String,
        /// Reason, or the response that arrived instead.
        why: String,
    },
    /// A configured metrics endpoint returned an incomplete exposition. The next one may be complete.
    #[error("--scrape {page}: {why}")]
    Cut {
        /// URL of the metrics endpoint as configured.
        page: String,
        why: String,
    },
    /// This machine can't make the request.
    #[error("cannot scrape: {0}")]
    Local(#[from] std::io::Error),
}

/// The reason that a scrape returned no values.
#[derive(Debug)]
pub(crate) struct Unread {
    pub why: String,
    /// Set if the endpoint responded with an incomplete exposition.
    pub is_cut: bool,
}

impl From<String> for Unread {
    fn from(why: String) -> Unread {
        Unread { why, is_cut: false }
    }
}

impl From<CutPage> for Unread {
    fn from(cut: CutPage) -> Unread {
        Unread { why: cut.to_string(), is_cut: true }
    }
}

/// The format of a metrics endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Form {
    Text,
    SglangLoads,
    LlamaSlots,
    /// llama.cpp properties; scraped once, because they are constant.
    LlamaProps,
    /// The NVIDIA driver of this machine, read without a request.
    Nvml,
    /// A Prometheus server: the last scrapes of the targets that these matchers select.
    Prometheus {
        matchers: String,
        names: String,
    },
}

impl Form {
    fn read(&self, body: &[u8]) -> Result<Vec<ExposedValue>, CutPage> {
        Ok(match self {
            Form::Text => exposition::read(body)?.rows,
            Form::SglangLoads => exposition::sglang_loads(body),
            Form::LlamaSlots => exposition::llamacpp_slots(body),
            Form::LlamaProps => exposition::llamacpp_props(body),
            Form::Prometheus { .. } | Form::Nvml => Vec::new(),
        })
    }
}

#[derive(Clone, Debug)]
pub struct MetricsPage {
    /// Name that distinguishes several endpoints; otherwise empty.
    pub name: String,
    /// URL for display.
    pub url: String,
    /// Scrape interval of Prometheus; `None` if the endpoint is scraped directly.
    pub cadence: Option<Span>,
    /// Exporter that was found beside the target; `None` for the metrics of a server.
    pub(crate) exporter: Option<&'static Exporter>,
    target: Target,
    form: Form,
}

impl MetricsPage {
    fn new(url: String, target: Target, form: Form) -> MetricsPage {
        MetricsPage { name: String::new(), url, cadence: None, exporter: None, target, form }
    }

    /// Restricts a Prometheus query to series whose names match this expression.
    #[must_use]
    pub fn of_names(mut self, only: &str) -> MetricsPage {
        if let Form::Prometheus { names, .. } = &mut self.form {
            only.clone_into(names);
        }
        self
    }

    /// Returns whether the page is of the target's machine: an exporter beside the target, or the driver.
    pub fn is_exporter(&self) -> bool {
        self.exporter.is_some() || self.is_driver()
    }

    fn is_of_gpus(&self) -> bool {
        self.exporter.is_some_and(Exporter::is_of_gpus)
    }

    /// Returns whether the page is the NVIDIA driver of this machine.
    pub(crate) fn is_driver(&self) -> bool {
        self.form == Form::Nvml
    }

    /// Returns the matchers and names of a Prometheus query; `None` for other endpoints.
    pub(crate) fn asks_prometheus(&self) -> Option<(&str, &str)> {
        match &self.form {
            Form::Prometheus { matchers, names } => Some((matchers, names)),
            _ => None,
        }
    }

    /// Returns whether the format is Prometheus text.
    pub(crate) fn is_text(&self) -> bool {
        self.form == Form::Text
    }

    /// Parses a response body in the endpoint's format.
    pub(crate) fn read(&self, body: &[u8]) -> Result<Vec<ExposedValue>, CutPage> {
        self.form.read(body)
    }

    /// Returns whether every scrape returns equal values.
    pub(crate) fn is_constant(&self) -> bool {
        self.form == Form::LlamaProps
    }
}

/// Finds the endpoints to scrape: the configured ones, or else those discovered on the target's host.
///
/// An empty result is no error if none was configured. Blocks for some seconds at most.
///
/// # Errors
/// Fails if a configured endpoint can't be used or returns no metrics.
pub fn find(target: &TargetSpec, spec: &ScrapeSpec) -> Result<Vec<MetricsPage>, ScrapeError> {
    let found = found(target, spec, true)?.into_iter();
    found.map(|(page, silent)| silent.map_or(Ok(page), Err)).collect()
}

/// Returns the configured endpoints and the errors of the unresponsive ones, because those may recover.
///
/// # Errors
/// Fails if a configured endpoint can't be used, or none returns metrics.
pub fn find_any(
    target: &TargetSpec,
    spec: &ScrapeSpec,
) -> Result<(Vec<MetricsPage>, Vec<ScrapeError>), ScrapeError> {
    let found = found(target, spec, true)?;
    let is_silent = |silent: &Option<ScrapeError>| matches!(silent, Some(ScrapeError::Silent { .. }));
    let are_all = !found.is_empty() && found.iter().all(|(_, silent)| is_silent(silent));
    let (pages, silent): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let mut silent: Vec<ScrapeError> = silent.into_iter().flatten().collect();
    if are_all { Err(silent.remove(0)) } else { Ok((pages, silent)) }
}

/// Returns the configured endpoints without scraping them, so that a continued watch can report endpoints as lost.
///
/// # Errors
/// Fails if the URL of a configured endpoint is invalid.
pub fn trust(target: &TargetSpec, spec: &ScrapeSpec) -> Result<Vec<MetricsPage>, ScrapeError> {
    Ok(found(target, spec, false)?.into_iter().map(|(page, _)| page).collect())
}

/// Returns the response of this URL. Keys are sent if it is on the target's host. Blocks for some seconds at most.
pub fn fetch(target: &TargetSpec, url: &str) -> Result<Vec<u8>, String> {
    let (runtime, page) = asked(&spec_of(target, url))?;
    let body = runtime.block_on(async { MetricsPageReader::new(page, Clock::start()).body(PATIENCE).await });
    body.map_err(|unread| unread.why)
}

/// Returns the history that Prometheus stores for its targets, restricted to these names (RE2). The target's URL contains
/// the range query. Blocks for some seconds at most.
pub fn kept(target: &TargetSpec, names: &str) -> Result<Vec<RangeSeries>, String> {
    let (server, query) = targets::kept_query(&target.url, names)?;
    let (runtime, page) = asked(&TargetSpec { url: server.to_owned(), ..target.clone() })?;
    runtime.block_on(async { MetricsPageReader::new(page, Clock::start()).query(&query, PATIENCE).await })
}

fn asked(spec: &TargetSpec) -> Result<(LocalRuntime, MetricsPage), String> {
    let target = Target::new(spec, None).map_err(|e| e.to_string())?;
    let url = spec.url.clone();
    let page = MetricsPage::new(url, target, Form::Text);
    Ok((runtime().map_err(|e| e.to_string())?, page))
}

/// A metrics endpoint, and its error if a scrape was tried.
type PageAttempt = (MetricsPage, Option<ScrapeError>);

fn found(target: &TargetSpec, spec: &ScrapeSpec, asks: bool) -> Result<Vec<PageAttempt>, ScrapeError> {
    let (target, spec) = (target.clone(), spec.clone());
    let thread = std::thread::Builder::new().name("scrape-find".into()).spawn(move || {
        let runtime = runtime()?;
        runtime.block_on(async {
            match spec.pages.is_empty() {
                false => named(&target, &spec.pages, asks).await,
                true if spec.discover => {
                    let found = discovered_at_each(&target, &spec.ports).await;
                    Ok(found.into_iter().map(|page| (page, None)).collect())
                }
                true => Ok(Vec::new()),
            }
        })
    })?;
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the scraping thread died").into()))
}

pub(crate) fn runtime() -> std::io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// Most endpoints that are tried concurrently.
const AT_ONCE: usize = 64;

async fn named(target: &TargetSpec, pages: &[String], asks: bool) -> Result<Vec<PageAttempt>, ScrapeError> {
    let several = pages.len() > 1;
    let tls = &SharedTls::default();
    let written = pages.iter().enumerate().map(|(number, text)| async move {
        let name = if several { (number + 1).to_string() } else { String::new() };
        let mut page = written(target, (name, text), tls)?;
        let silent = answer(&mut page, asks).await.err().map(|Unread { why, is_cut }| {
            let page = targets::decoded(&without_user(text));
            if is_cut { ScrapeError::Cut { page, why } } else { ScrapeError::Silent { page, why } }
        });
        Ok((page, silent))
    });
    futures_util::stream::iter(written).buffered(AT_ONCE).try_collect().await
}

/// Parses an endpoint as configured; `name` is its default name.
fn written(
    target: &TargetSpec,
    (name, text): (String, &str),
    tls: &SharedTls,
) -> Result<MetricsPage, ScrapeError> {
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !name.contains("//") => (name.to_owned(), url),
        _ => (name, text),
    };
    let wrong = |source| ScrapeError::Target { page: targets::decoded(&without_user(text)), source };
    let at = Target::sharing(&spec_of(target, url), None, tls).map_err(wrong)?;
    let form = match at.base().rsplit('/').next().unwrap_or_default() {
        "loads" => Form::SglangLoads,
        "slots" => Form::LlamaSlots,
        "query" => {
            let matchers = targets::matchers(url)
                .map_err(|why| wrong(TargetError::Url { url: targets::decoded(url), why }))?;
            Form::Prometheus { matchers, names: ".+".to_owned() }
        }
        _ => Form::Text,
    };
    Ok(MetricsPage { name, ..MetricsPage::new(url.to_owned(), at, form) })
}

/// Scrapes the endpoint once if `asks` is set. A Prometheus is always queried, because its scrape interval is needed.
async fn answer(page: &mut MetricsPage, asks: bool) -> Result<(), Unread> {
    let looker = MetricsPageReader::new(page.clone(), Clock::start());
    match page.asks_prometheus() {
        Some((matchers, _)) => page.cadence = Some(targets::cadence(&looker, matchers).await?),
        None if asks => _ = looker.get(PATIENCE).await?,
        None => {}
    }
    Ok(())
}

/// Discovers the metrics endpoints of all targets, and the exporters of their machines at these ports. Several endpoints are named
/// by host and port.
async fn discovered_at_each(target: &TargetSpec, ports: &[u16]) -> Vec<MetricsPage> {
    let mut origins: Vec<String> = target.urls().filter_map(|url| origin(url)).collect();
    let mut seen = HashSet::new();
    origins.retain(|origin| seen.insert(origin.clone()));
    let each = origins.iter().map(|origin| async move {
        let (own, exporters) =
            join(discovered(target, origin), exporters_beside(target, origin, ports)).await;
        (origin, own, exporters)
    });
    let found: Vec<_> = futures_util::stream::iter(each).buffered(AT_ONCE).collect().await;
    let several = origins.len() > 1 || found.iter().any(|(_, _, exporters)| !exporters.is_empty());
    let (mut servers, mut machines) = (Vec::new(), Vec::new());
    for (origin, own, exporters) in found {
        let host = origin.split_once("://").map_or(origin.as_str(), |(_, host)| host);
        let name = if several { host } else { "" };
        servers.extend(own.into_iter().map(|page| MetricsPage { name: name.to_owned(), ..page }));
        // Several targets of one machine share its exporters.
        machines.extend(exporters.into_iter().filter(|page| seen.insert(page.url.clone())));
    }
    servers.extend(machines);
    servers
}

/// Returns the pages of the exporters that run on the target's machine at these ports.
async fn exporters_beside(target: &TargetSpec, origin: &str, ports: &[u16]) -> Vec<MetricsPage> {
    let sockets = exporters::sockets(origin, ports).await;
    let is_here = sockets.first().is_some_and(|socket| socket.ip().is_loopback());
    let at = sockets.into_iter().map(|socket| async move {
        let reader = page_beside(target, &format!("http://{socket}/metrics"))?;
        let exporter = Exporter::of(&reader.get(exporters::PATIENCE).await.ok()?)?;
        Some(MetricsPage { name: socket.to_string(), exporter: Some(exporter), ..reader.page })
    });
    let mut found: Vec<MetricsPage> = join_all(at).await.into_iter().flatten().collect();
    // An exporter reports more than the driver.
    if is_here && !found.iter().any(MetricsPage::is_of_gpus) && !nvml::rows().is_empty() {
        let here = Target::new(&bare(target, origin), None).ok();
        let page = here.map(|here| MetricsPage::new("the NVIDIA driver (NVML)".to_owned(), here, Form::Nvml));
        found.extend(page.map(|page| MetricsPage { name: "nvml".to_owned(), ..page }));
    }
    found
}

/// Returns the reader of another port of the target's host, without keys; `None` if the URL is invalid.
fn page_beside(target: &TargetSpec, url: &str) -> Option<MetricsPageReader> {
    MetricsPageReader::at(&bare(target, url), Form::Text)
}

/// Discovers the metrics endpoints of one target's host.
async fn discovered(target: &TargetSpec, origin: &str) -> Vec<MetricsPage> {
    let mut found = Vec::new();
    if target.protocol == Protocol::KserveGrpc {
        // The gRPC port supports no GET, and Triton's metrics port is one above it.
        found.extend(tritons_beside(target, origin, 1).await);
        return found;
    }
    for path in ["metrics", "prometheus/metrics"] {
        if found.is_empty() {
            found.extend(look_for(target, &format!("{origin}/{path}"), Form::Text).await);
        }
    }
    if found.is_empty() {
        found.extend(of_triton(target, origin).await);
    }
    for (path, form) in
        [("v1/loads", Form::SglangLoads), ("slots", Form::LlamaSlots), ("props", Form::LlamaProps)]
    {
        found.extend(look_for(target, &format!("{origin}/{path}"), form).await);
    }
    // All endpoints belong to one server; their metric names differ, so their series do not overlap.
    found
}

async fn look_for(target: &TargetSpec, url: &str, form: Form) -> Option<MetricsPage> {
    let looker = MetricsPageReader::at(&spec_of(target, url), form)?;
    let rows = looker.get(PATIENCE).await.ok()?;
    (!rows.is_empty()).then_some(looker.page)
}

/// Finds the metrics endpoint of a target that reports itself as Triton: two ports above, or at the default port.
async fn of_triton(target: &TargetSpec, origin: &str) -> Option<MetricsPage> {
    let said = MetricsPageReader::at(&spec_of(target, &format!("{origin}/v2")), Form::Text)?
        .body(PATIENCE)
        .await
        .ok()?;
    if read_server(&said).ok()?.name != "triton" {
        return None;
    }
    tritons_beside(target, origin, 2).await
}

/// Finds Triton's metrics endpoint `above` ports above the target's port, or at the default port.
async fn tritons_beside(target: &TargetSpec, origin: &str, above: u16) -> Option<MetricsPage> {
    let uri: Uri = origin.parse().ok()?;
    let beside = uri.port_u16().and_then(|port| port.checked_add(above)).filter(|port| *port != TRITON_PORT);
    for port in beside.into_iter().chain([TRITON_PORT]) {
        let looker = page_beside(target, &format!("http://{}:{port}/metrics", uri.host()?))?;
        if looker.get(PATIENCE).await.is_ok_and(|rows| is_tritons(&rows, target.model.as_deref())) {
            return Some(looker.page);
        }
    }
    None
}

/// Returns whether these are Triton's metrics and include the model, because a host may run several Tritons.
fn is_tritons(rows: &[ExposedValue], model: Option<&str>) -> bool {
    let of_it = |row: &ExposedValue| {
        let is = |(key, value): &(String, String)| key == "model" && Some(value.as_str()) == model;
        row.name.starts_with("nv_inference_") && (model.is_none() || row.labels.iter().any(is))
    };
    rows.iter().any(of_it)
}

/// Returns the target of a metrics endpoint, without keys and headers.
fn bare(target: &TargetSpec, url: &str) -> TargetSpec {
    TargetSpec {
        url: url.to_owned(),
        tls_verify: target.tls_verify,
        ca_file: target.ca_file.clone(),
        stream: false,
        ..TargetSpec::default()
    }
}

/// Returns the target of a metrics endpoint, with keys and headers if it is on a target's host.
fn spec_of(target: &TargetSpec, url: &str) -> TargetSpec {
    let page = bare(target, url);
    let same = |a: Option<Uri>, b: Option<Uri>| match (a, b) {
        (Some(a), Some(b)) => a.host() == b.host() && a.scheme() == b.scheme(),
        _ => false,
    };
    if !target.urls().any(|own| same(url.parse().ok(), own.parse().ok())) {
        return page;
    }
    TargetSpec {
        headers: target.headers.clone(),
        key_env: target.key_env.clone(),
        key_file: target.key_file.clone(),
        token: target.token.clone(),
        client_cert: target.client_cert.clone(),
        client_key: target.client_key.clone(),
        ..page
    }
}

fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

/// A metrics endpoint with its connection.
pub(crate) struct MetricsPageReader {
    pub(crate) page: MetricsPage,
    pool: ConnectionPool,
    /// Set after a failed scrape; the name is then resolved again, because it may point to another machine.
    is_lost: Cell<bool>,
    /// Size of the last response in bytes, the estimate for the next one.
    length: Cell<usize>,
}

impl MetricsPageReader {
    /// Returns the scraper of an endpoint that may not exist; `None` if the URL is invalid.
    fn at(spec: &TargetSpec, form: Form) -> Option<MetricsPageReader> {
        let target = Target::new(spec, None).ok()?;
        Some(MetricsPageReader::new(MetricsPage::new(spec.url.clone(), target, form), Clock::start()))
    }

    pub(crate) fn new(page: MetricsPage, clock: Clock) -> MetricsPageReader {
        let pool = ConnectionPool::new(
            page.target.resolve(),
            SocketMeter::new(clock),
            Arc::new(AtomicU32::new(0)),
            KeepaliveShared::default(),
        );
        pool.set_policy(Connections::Prewarmed, 1, page.target.resolve());
        MetricsPageReader { page, pool, is_lost: Cell::new(false), length: Cell::new(0) }
    }

    pub(crate) async fn get(&self, patience: Span) -> Result<Vec<ExposedValue>, Unread> {
        Ok(self.page.read(&self.body(patience).await?)?)
    }

    /// Runs a Prometheus query with this expression.
    pub(crate) async fn query(&self, expression: &str, patience: Span) -> Result<Vec<RangeSeries>, String> {
        let path = format!("{}?query={}", self.page.target.base(), targets::encoded(expression));
        let uri: Uri = path.parse().map_err(|_| "the matchers are too long".to_owned())?;
        match self.fetch(&uri, patience).await.map_err(|unread| unread.why)? {
            (200, body) => prometheus_api::range(&body),
            // The body contains the reason of the rejection.
            (status, body) => Err(match prometheus_api::range(&body) {
                Err(why) if (400..500).contains(&status) => format!("HTTP {status}: {why}"),
                _ => format!("HTTP {status}"),
            }),
        }
    }

    /// Returns the body of a scrape, unparsed.
    pub(crate) async fn body(&self, patience: Span) -> Result<Vec<u8>, Unread> {
        let uri = self.page.target.uri("").map_err(|e| e.to_string())?;
        match self.fetch(&uri, patience).await? {
            (200, body) => Ok(body),
            (status, _) => Err(format!("HTTP {status}").into()),
        }
    }

    async fn fetch(&self, uri: &Uri, patience: Span) -> Result<(u16, Vec<u8>), Unread> {
        if self.is_lost.get() {
            let target = self.page.target.clone();
            let resolved = tokio::task::spawn_blocking(move || target.resolve());
            if let Ok(Ok(route)) = tokio::time::timeout(patience.as_duration(), resolved).await {
                self.pool.set_policy(Connections::Prewarmed, 1, route);
            }
        }
        let answered = self.attempt(uri, patience).await;
        self.is_lost.set(answered.is_err());
        answered
    }

    async fn attempt(&self, uri: &Uri, patience: Span) -> Result<(u16, Vec<u8>), Unread> {
        let request = OutgoingRequest::new(Some(self.page.target.gets(uri).bare()));
        let seen = WholeAnswer::to(PAGE_MAX);
        seen.body.borrow_mut().reserve_exact(self.length.get() + self.length.get() / 16);
        let asked = exchange(&self.pool, patience, &request, &seen);
        let ending = tokio::time::timeout(patience.as_duration(), asked).await;
        let WholeAnswer { head, body, .. } = seen;
        let (head, body) = (head.into_inner(), body.into_inner());
        let Some(head) = head else {
            return Err(match ending {
                Err(_) => "timeout".to_owned(),
                // Kept apart, because a refused port, an unknown host and a certificate need different fixes.
                Ok(AttemptEnding::Told { error: Some(why), .. } | AttemptEnding::Broken { error: why })
                    if !why.is_empty() =>
                {
                    why
                }
                Ok(_) => "no connection".to_owned(),
            }
            .into());
        };
        let Ok(ending) = ending else { return Err("timeout".to_owned().into()) };
        if body.len() > PAGE_MAX {
            return Err("the page is too long".to_owned().into());
        }
        // An incomplete exposition could end inside a number and would appear as counters that fell.
        if head.status == 200 && !matches!(ending, AttemptEnding::Whole) {
            return Err(CutPage::Connection.into());
        }
        exposition::check_end(&body, head.content_type.as_deref())?;
        self.length.set(body.len());
        Ok((head.status, body))
    }
}
