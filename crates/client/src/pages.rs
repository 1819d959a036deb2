//! Which pages of metrics a server shows: those that are named, else what the endpoint's own host is found to show.
//!
//! Nothing is asked of a host that the user did not name, no redirect is followed, and keys go to the endpoint's own host alone.
//! Ports of that host other than the endpoint's own are somebody else's until shown otherwise: one is looked at only where the
//! endpoint says on its own port that it is a server whose page lies beside it (Triton), without keys, and the page counts only
//! where it is such a server's and knows the model. A URL that ends with `/api/v1/query` is a Prometheus, whose targets' pages are read ([`crate::targets`]). Exporters of GPUs have no place of their own to be guessed from an
//! endpoint: they are named.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use futures_util::stream::{StreamExt, TryStreamExt};
use http::Uri;
use plimsoll_model::{Protocol, Span};
use plimsoll_wire::exposition::{self, CutPage, ExposedValue};
use plimsoll_wire::kserve::metadata::read_server;
use plimsoll_wire::prometheus_api::{self, RangeSeries};
use plimsoll_workload::{Connections, ScrapeSpec, TargetSpec};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::clock::Clock;
use crate::exchange::exchange;
use crate::exchange_watch::{Outgoing, WholeAnswer};
use crate::keeping::SharedByWorkers;
use crate::pool::ConnectionPool;
use crate::recording::Ending;
use crate::stamp::Meter;
use crate::target::{Target, TargetError, without_user};
use crate::targets;
use crate::tls::SharedTls;

/// Longest wait for a page, unless looks are further apart.
pub(crate) const PATIENCE: Span = Span::from_secs(2);
/// Longest page, bytes.
const PAGE_MAX: usize = 16 << 20;
/// Where a Triton shows its metrics unless it is told otherwise. Whoever moves its three ports keeps their order: HTTP, gRPC,
/// metrics.
const TRITON_PORT: u16 = 8002;

/// Why nothing can be scraped.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// A page cannot be used as it is written.
    #[error("--scrape {page}: {source}")]
    Target {
        /// As the user wrote it, without user and password.
        page: String,
        /// What is wrong.
        source: TargetError,
    },
    /// A page that was named does not answer as one.
    #[error("--scrape {page}: {why}")]
    Silent {
        /// As the user wrote it.
        page: String,
        /// What came instead.
        why: String,
    },
    /// A page that was named answered, and a part of the page is missing: the next answer may be whole.
    #[error("--scrape {page}: {why}")]
    Cut {
        /// As the user wrote it.
        page: String,
        /// What is missing.
        why: String,
    },
    /// This machine cannot make the attempt.
    #[error("cannot scrape: {0}")]
    Local(#[from] std::io::Error),
}

/// Why a page says nothing.
#[derive(Debug)]
pub(crate) struct Unread {
    pub why: String,
    /// The page answered, and a part of it is missing.
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

/// How an answer is read.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Form {
    Text,
    SglangLoads,
    LlamaSlots,
    /// Asked once: it does not change.
    LlamaProps,
    /// A Prometheus: what it scraped of those of its targets that these matchers pick.
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
            Form::Prometheus { .. } => Vec::new(),
        })
    }
}

#[derive(Clone, Debug)]
pub struct MetricsPage {
    /// What it is called, where there are several; else empty.
    pub name: String,
    /// Its URL, for people.
    pub url: String,
    /// How often it has anything new, where that is somebody else's choice.
    pub cadence: Option<Span>,
    target: Target,
    form: Form,
}

impl MetricsPage {
    /// Of a Prometheus only series whose names match this expression are asked.
    #[must_use]
    pub fn of_names(mut self, only: &str) -> MetricsPage {
        if let Form::Prometheus { names, .. } = &mut self.form {
            only.clone_into(names);
        }
        self
    }

    /// The matchers and names that a Prometheus is asked for, where it is one.
    pub(crate) fn asks_prometheus(&self) -> Option<(&str, &str)> {
        match &self.form {
            Form::Prometheus { matchers, names } => Some((matchers, names)),
            _ => None,
        }
    }

    /// Is it text, as Prometheus reads it?
    pub(crate) fn is_text(&self) -> bool {
        self.form == Form::Text
    }

    /// What it says.
    pub(crate) fn read(&self, body: &[u8]) -> Result<Vec<ExposedValue>, CutPage> {
        self.form.read(body)
    }

    /// Does it say the same at every look?
    pub(crate) fn is_constant(&self) -> bool {
        self.form == Form::LlamaProps
    }
}

/// Finds the pages that are to be scraped: those that are named, else what the endpoint's own host shows. None is no error
/// where none was named. Blocks for some seconds at most.
///
/// # Errors
/// A named page can't be used or does not answer as one.
pub fn find(target: &TargetSpec, spec: &ScrapeSpec) -> Result<Vec<MetricsPage>, ScrapeError> {
    let found = found(target, spec, true)?.into_iter();
    found.map(|(page, silent)| silent.map_or(Ok(page), Err)).collect()
}

/// The pages that are named, and why some of them do not answer as one, if another does: they may come back.
///
/// # Errors
/// A named page can't be used, or none answers as one.
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

/// The pages that are named, whether they answer or not: whoever has watched them before goes on, and tells that they are lost.
///
/// # Errors
/// A named page can't be used as it is written.
pub fn trust(target: &TargetSpec, spec: &ScrapeSpec) -> Result<Vec<MetricsPage>, ScrapeError> {
    Ok(found(target, spec, false)?.into_iter().map(|(page, _)| page).collect())
}

/// What this URL answers, with the keys of the endpoint where it is its host. Blocks for some seconds at most.
pub fn fetch(target: &TargetSpec, url: &str) -> Result<Vec<u8>, String> {
    let (runtime, page) = asked(&spec_of(target, url))?;
    let body = runtime.block_on(async { Looker::new(page, Clock::start()).body(PATIENCE).await });
    body.map_err(|unread| unread.why)
}

/// What a Prometheus kept of its targets' pages: the answer to a query of a range, by its URL, of these names (RE2). Blocks for some seconds at most.
pub fn kept(target: &TargetSpec, names: &str) -> Result<Vec<RangeSeries>, String> {
    let (server, query) = targets::kept_query(&target.url, names)?;
    let (runtime, page) = asked(&TargetSpec { url: server.to_owned(), ..target.clone() })?;
    runtime.block_on(async { Looker::new(page, Clock::start()).query(&query, PATIENCE).await })
}

fn asked(spec: &TargetSpec) -> Result<(LocalRuntime, MetricsPage), String> {
    let target = Target::new(spec, None).map_err(|e| e.to_string())?;
    let url = spec.url.clone();
    let page = MetricsPage { name: String::new(), url, cadence: None, target, form: Form::Text };
    Ok((runtime().map_err(|e| e.to_string())?, page))
}

/// A page, and why it does not answer as one, where it was asked.
type Asked = (MetricsPage, Option<ScrapeError>);

fn found(target: &TargetSpec, spec: &ScrapeSpec, asks: bool) -> Result<Vec<Asked>, ScrapeError> {
    let (target, spec) = (target.clone(), spec.clone());
    let thread = std::thread::Builder::new().name("scrape-find".into()).spawn(move || {
        let runtime = runtime()?;
        runtime.block_on(async {
            match spec.pages.is_empty() {
                false => named(&target, &spec.pages, asks).await,
                true if spec.discover => {
                    Ok(discovered_at_each(&target).await.into_iter().map(|page| (page, None)).collect())
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

/// Pages that are asked at the same time whether they are there.
const AT_ONCE: usize = 64;

async fn named(target: &TargetSpec, pages: &[String], asks: bool) -> Result<Vec<Asked>, ScrapeError> {
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

/// A page as the user wrote it; `name`: what it is called unless that is said.
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
    Ok(MetricsPage { name, url: url.to_owned(), cadence: None, target: at, form })
}

/// Asks the page, where it is to answer, and a Prometheus in any case, because it says how often it has anything new.
async fn answer(page: &mut MetricsPage, asks: bool) -> Result<(), Unread> {
    let looker = Looker::new(page.clone(), Clock::start());
    match page.asks_prometheus() {
        Some((matchers, _)) => page.cadence = Some(targets::cadence(&looker, matchers).await?),
        None if asks => _ = looker.get(PATIENCE).await?,
        None => {}
    }
    Ok(())
}

/// What the endpoints' hosts show; of several each page is called by its host and port.
async fn discovered_at_each(target: &TargetSpec) -> Vec<MetricsPage> {
    let mut origins: Vec<String> = target.urls().filter_map(|url| origin(url)).collect();
    let mut seen = HashSet::new();
    origins.retain(|origin| seen.insert(origin.clone()));
    let several = origins.len() > 1;
    let each = origins.iter().map(|origin| async move {
        let mut pages = discovered(target, origin).await;
        let host = origin.split_once("://").map_or(origin.as_str(), |(_, host)| host);
        pages.iter_mut().filter(|_| several).for_each(|page| host.clone_into(&mut page.name));
        pages
    });
    futures_util::stream::iter(each).buffered(AT_ONCE).concat().await
}

/// What an endpoint's host shows, without being told.
async fn discovered(target: &TargetSpec, origin: &str) -> Vec<MetricsPage> {
    let mut found = Vec::new();
    if target.protocol == Protocol::KserveGrpc {
        // Its port answers no GET; Triton's page is one above it.
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
    // One server's pages: their names differ, their series do not overlap.
    found
}

async fn look_for(target: &TargetSpec, url: &str, form: Form) -> Option<MetricsPage> {
    let looker = Looker::at(&spec_of(target, url), form)?;
    let rows = looker.get(PATIENCE).await.ok()?;
    (!rows.is_empty()).then_some(looker.page)
}

/// The page of a server that says of itself to be a Triton: two ports above the endpoint's, else at the usual place.
async fn of_triton(target: &TargetSpec, origin: &str) -> Option<MetricsPage> {
    let said =
        Looker::at(&spec_of(target, &format!("{origin}/v2")), Form::Text)?.body(PATIENCE).await.ok()?;
    if read_server(&said).ok()?.name != "triton" {
        return None;
    }
    tritons_beside(target, origin, 2).await
}

/// A Triton's page so many ports above the endpoint's, else at the usual place.
async fn tritons_beside(target: &TargetSpec, origin: &str, above: u16) -> Option<MetricsPage> {
    let uri: Uri = origin.parse().ok()?;
    let beside = uri.port_u16().and_then(|port| port.checked_add(above)).filter(|port| *port != TRITON_PORT);
    for port in beside.into_iter().chain([TRITON_PORT]) {
        let looker =
            Looker::at(&bare(target, &format!("http://{}:{port}/metrics", uri.host()?)), Form::Text)?;
        if looker.get(PATIENCE).await.is_ok_and(|rows| is_tritons(&rows, target.model.as_deref())) {
            return Some(looker.page);
        }
    }
    None
}

/// Is it a Triton's page, and one that knows this model? There may be several Tritons on a host.
fn is_tritons(rows: &[ExposedValue], model: Option<&str>) -> bool {
    let of_it = |row: &ExposedValue| {
        let is = |(key, value): &(String, String)| key == "model" && Some(value.as_str()) == model;
        row.name.starts_with("nv_inference_") && (model.is_none() || row.labels.iter().any(is))
    };
    rows.iter().any(of_it)
}

/// The target of a page, without keys and headers.
fn bare(target: &TargetSpec, url: &str) -> TargetSpec {
    TargetSpec {
        url: url.to_owned(),
        tls_verify: target.tls_verify,
        ca_file: target.ca_file.clone(),
        stream: false,
        ..TargetSpec::default()
    }
}

/// The same, with keys and headers where it is an endpoint's own host.
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

/// A page with its connection.
pub(crate) struct Looker {
    pub(crate) page: MetricsPage,
    pool: ConnectionPool,
    /// Nobody answered the last time: its name may stand for another machine by now.
    is_lost: Cell<bool>,
    /// Bytes of the last answer: the next one is about as long.
    length: Cell<usize>,
}

impl Looker {
    /// Of a page that may be there.
    fn at(spec: &TargetSpec, form: Form) -> Option<Looker> {
        let target = Target::new(spec, None).ok()?;
        Some(Looker::new(
            MetricsPage { name: String::new(), url: spec.url.clone(), cadence: None, target, form },
            Clock::start(),
        ))
    }

    pub(crate) fn new(page: MetricsPage, clock: Clock) -> Looker {
        let pool = ConnectionPool::new(
            page.target.resolve(),
            Meter::new(clock),
            Arc::new(AtomicU32::new(0)),
            SharedByWorkers::default(),
        );
        pool.set_policy(Connections::Prewarmed, 1, page.target.resolve());
        Looker { page, pool, is_lost: Cell::new(false), length: Cell::new(0) }
    }

    /// What the page says now, or why it says nothing.
    pub(crate) async fn get(&self, patience: Span) -> Result<Vec<ExposedValue>, Unread> {
        Ok(self.page.read(&self.body(patience).await?)?)
    }

    /// What a Prometheus says of this expression, or why it says nothing.
    pub(crate) async fn query(&self, expression: &str, patience: Span) -> Result<Vec<RangeSeries>, String> {
        let path = format!("{}?query={}", self.page.target.base(), targets::encoded(expression));
        let uri: Uri = path.parse().map_err(|_| "the matchers are too long".to_owned())?;
        match self.fetch(&uri, patience).await.map_err(|unread| unread.why)? {
            (200, body) => prometheus_api::range(&body),
            // Why it refuses is in the body.
            (status, body) => Err(match prometheus_api::range(&body) {
                Err(why) if (400..500).contains(&status) => format!("HTTP {status}: {why}"),
                _ => format!("HTTP {status}"),
            }),
        }
    }

    /// The page as it came.
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
        let request = Outgoing::new(Some(self.page.target.gets(uri).bare()));
        let seen = WholeAnswer::to(PAGE_MAX);
        seen.body.borrow_mut().reserve_exact(self.length.get() + self.length.get() / 16);
        let asked = exchange(&self.pool, patience, &request, &seen);
        let ending = tokio::time::timeout(patience.as_duration(), asked).await;
        let WholeAnswer { head, body, .. } = seen;
        let (head, body) = (head.into_inner(), body.into_inner());
        let Some(head) = head else {
            return Err(match ending {
                Err(_) => "timeout".to_owned(),
                // A refused port, a name without an address and a certificate are mended in different places.
                Ok(Ending::Told { error: Some(why), .. } | Ending::Broken { error: why })
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
        // Half a page, and in its last line half a number, would be counters that fell.
        if head.status == 200 && !matches!(ending, Ending::Whole) {
            return Err(CutPage::Connection.into());
        }
        exposition::check_end(&body, head.content_type.as_deref())?;
        self.length.set(body.len());
        Ok((head.status, body))
    }
}
