//! The watch file: its format, and the endpoints, lists and listen addresses that its sources resolve to.
//!
//! Each section's behaviour is next to its own module. The format is here and depends on no other module, so
//! that a fuzzer can parse arbitrary bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use plimsoll_client::metrics::targets;
use plimsoll_watch::AlertSpec;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// All keys of a watch file.
pub const KEYS: &str = "sources, budget, every, window, listen, alerts: {false_alarms, queue_per_replica, burn}, sinks: {labels, alertmanager, webhook}, journal, record: {dir, keep_bytes, keep_days}, history: {dir, keep_bytes, keep_days}, price, gpus";

/// A watch file. A flag overrides the value in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct WatchFile {
    #[serde(deserialize_with = "sources")]
    pub sources: Vec<SourceLine>,
    pub budget: Option<PathBuf>,
    pub every: Option<String>,
    pub window: Option<String>,
    pub listen: Option<String>,
    pub alerts: AlertSpec,
    pub sinks: SinkSpec,
    pub journal: Option<PathBuf>,
    pub record: Option<RetentionSpec>,
    pub history: Option<RetentionSpec>,
    /// Price (per hour, GPU-hour, replica-hour or Mtok), or a price file.
    pub price: Option<String>,
    /// Number of GPUs of the endpoint, over all replicas.
    pub gpus: Option<u32>,
}

/// One or more metrics endpoints. A plain URL is one metrics endpoint.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct SourceLine {
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub url: Option<String>,
    #[serde(default)]
    pub urls: Vec<String>,
    /// Prometheus target file: `[{"targets": ["host:port"], "labels": {…}}]`.
    #[serde(default)]
    pub file_sd: Option<PathBuf>,
    #[serde(default)]
    pub http_sd: Option<String>,
    /// DNS name; every address of the name is a metrics endpoint.
    #[serde(default)]
    pub dns: Option<String>,
    /// URL of a Prometheus server that scrapes the metrics endpoints.
    #[serde(default)]
    pub prometheus: Option<String>,
    /// Label selector for the targets of that server: `{job="vllm"}`.
    #[serde(default, rename = "match")]
    pub matches: Option<String>,
    /// Listen address for metrics from OpenTelemetry exporters.
    #[serde(default)]
    pub otlp: Option<String>,
    /// Environment variable with the token that senders must present.
    #[serde(default)]
    pub key_env: Option<String>,
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

/// Deserialises sources. A plain URL is a metrics endpoint.
fn sources<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SourceLine>, D::Error> {
    struct Line(SourceLine);
    struct Reads;
    impl<'de> Visitor<'de> for Reads {
        type Value = Line;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a URL (http://host:8000/metrics) or a mapping ({url, name})")
        }

        fn visit_str<E: serde::de::Error>(self, url: &str) -> Result<Line, E> {
            Ok(Line(SourceLine { url: Some(url.to_owned()), ..SourceLine::default() }))
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Line, A::Error> {
            SourceLine::deserialize(MapAccessDeserializer::new(map)).map(Line)
        }
    }
    impl<'de> Deserialize<'de> for Line {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Line, D::Error> {
            from.deserialize_any(Reads)
        }
    }
    Ok(Vec::<Line>::deserialize(from)?.into_iter().map(|line| line.0).collect())
}

/// The resolved sources of a watch file.
#[derive(Default)]
pub struct ResolvedSources {
    /// Metrics endpoints that are named directly and do not change.
    pub pages: Vec<String>,
    pub lists: Vec<PageList>,
    /// Listen addresses for pushed metrics.
    pub pushed: Vec<PushSpec>,
}

impl WatchFile {
    pub fn read(text: &str) -> Result<WatchFile, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }

    /// Returns the resolved sources. Relative paths are resolved against the folder of `path`, the watch
    /// file.
    pub fn named(&self, path: &Path) -> Result<ResolvedSources, String> {
        let mut found = ResolvedSources::default();
        self.sources.iter().try_for_each(|line| listed(line, path, &mut found))?;
        Ok(found)
    }
}

/// Adds the sources of one entry of the file.
fn listed(line: &SourceLine, file: &Path, found: &mut ResolvedSources) -> Result<(), String> {
    let ResolvedSources { pages, lists, pushed } = found;
    let of_file = |why: String| format!("{}: sources: {why}", file.display());
    for url in line.url.iter().chain(&line.urls) {
        let named = line.name.as_ref().filter(|_| line.urls.is_empty());
        pages.push(page(&named.map_or_else(|| url.clone(), |name| format!("{name}={url}")))?);
    }
    match (&line.prometheus, &line.matches) {
        (Some(server), Some(selector)) => pages.push(page(&targets::url(server, selector))?),
        (None, None) => {}
        _ => {
            let what = "prometheus and match go together: {prometheus: \"http://prometheus:9090\", match: '{job=\"vllm\"}'}";
            return Err(of_file(what.to_owned()));
        }
    }
    lists.extend(line.file_sd.iter().map(|list| beside(file, list)));
    lists.extend(line.http_sd.clone().map(PageList::Url));
    if let Some(url) = &line.dns {
        lists.push(PageList::of_name(url).map_err(of_file)?);
    }
    let own = push(line).map_err(of_file)?;
    if own.is_none() && (line.key_env.is_some() || line.key_file.is_some()) {
        let what = "key_env and key_file set the key of push clients; set the token of a metrics endpoint with --key-env";
        return Err(of_file(what.to_owned()));
    }
    pushed.extend(own);
    Ok(())
}

/// Returns the listen address of an entry, or `None` if the entry is not a push source.
fn push(line: &SourceLine) -> Result<Option<PushSpec>, String> {
    let Some(text) = &line.otlp else { return Ok(None) };
    let listen = listen(text)
        .ok_or_else(|| format!("otlp: {text}: write the listen address as PORT or ADDRESS:PORT"))?;
    Ok(Some(PushSpec { listen, key_env: line.key_env.clone(), key_file: line.key_file.clone() }))
}

/// Returns the metrics URL of a source. The URL of an endpoint becomes its `/metrics` URL.
pub fn page(text: &str) -> Result<String, String> {
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !name.contains("//") => (Some(name), url),
        _ => (None, text),
    };
    let Some((scheme, rest)) =
        url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
    else {
        return Err(format!("{text}: is neither a URL (http://host:8000/metrics) nor a watch file (.yaml)"));
    };
    // The user types braces and quotes unescaped.
    if let Some((server, selector)) = url.split_once("/api/v1/query?query=") {
        return Ok(targets::url(server, &targets::decoded(selector)));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let url = match path.trim_end_matches('/') {
        "" | "v1" => format!("{scheme}://{host}/metrics"),
        _ => url.to_owned(),
    };
    Ok(name.map_or(url.clone(), |name| format!("{name}={url}")))
}

/// Parses a listen address. A port without an address listens on loopback.
pub fn listen(text: &str) -> Option<SocketAddr> {
    let bare = text.trim().trim_start_matches(':');
    let whole = match bare.bytes().all(|b| b.is_ascii_digit()) && !bare.is_empty() {
        true => format!("127.0.0.1:{bare}"),
        false => bare.replace("localhost:", "127.0.0.1:"),
    };
    whole.parse().ok()
}

/// Receivers of alerts.
#[derive(Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct SinkSpec {
    /// Labels to add to every alert.
    pub labels: BTreeMap<String, String>,
    pub alertmanager: Option<AlertmanagerSpec>,
    pub webhook: Option<WebhookSpec>,
}

/// Alertmanager instances and their connection settings.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertmanagerSpec {
    pub urls: Vec<String>,
    /// Interval between two posts of an alert [default: 30s].
    #[serde(default)]
    pub resend: Option<String>,
    /// Environment variable with a bearer token.
    #[serde(default)]
    pub key_env: Option<String>,
    #[serde(default)]
    pub key_file: Option<String>,
    /// Additional headers; a value may contain `$NAME` of the environment.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// PEM file of additional trusted root certificates.
    #[serde(default)]
    pub ca_file: Option<String>,
    /// Disables the check of TLS certificates; `false` by default.
    #[serde(default)]
    pub insecure: bool,
}

/// Webhook URL, message body and credentials.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSpec {
    #[serde(default)]
    pub url: Option<String>,
    /// Environment variable with the URL, if the URL is a secret.
    #[serde(default)]
    pub url_env: Option<String>,
    /// Message body: JSON whose strings may contain `{{name}}`; `None` sends all fields.
    #[serde(default)]
    pub body: Option<Value>,
    /// Environment variable with the signing key.
    #[serde(default)]
    pub sign_env: Option<String>,
    #[serde(default)]
    pub sign_file: Option<String>,
    /// Environment variable with a bearer token.
    #[serde(default)]
    pub key_env: Option<String>,
    #[serde(default)]
    pub key_file: Option<String>,
    /// Additional headers; a value may contain `$NAME` of the environment.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// PEM file of additional trusted root certificates.
    #[serde(default)]
    pub ca_file: Option<String>,
    /// Disables the check of TLS certificates; `false` by default.
    #[serde(default)]
    pub insecure: bool,
}

/// The storage of run folders (alert windows or a history) and its retention.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionSpec {
    /// Folder that contains the run folders.
    pub dir: PathBuf,
    /// Maximum total size in bytes; the oldest run folders are removed first [default: 1 GiB].
    #[serde(default = "keep_bytes")]
    pub keep_bytes: u64,
    #[serde(default = "keep_days")]
    pub keep_days: f64,
}

fn keep_bytes() -> u64 {
    1 << 30
}

fn keep_days() -> f64 {
    30.0
}

impl RetentionSpec {
    /// Returns the default retention for this folder.
    pub fn new(dir: PathBuf) -> RetentionSpec {
        RetentionSpec { dir, keep_bytes: keep_bytes(), keep_days: keep_days() }
    }

    /// # Errors
    /// Fails if a value is invalid, with a one-line message. `section` is the section of the watch file.
    pub fn check(&self, section: &str) -> Result<(), String> {
        match self {
            _ if self.dir.as_os_str().is_empty() => Err(format!("{section}.dir: names no folder")),
            _ if !(self.keep_days > 0.0 && self.keep_days.is_finite()) => {
                Err(format!("{section}.keep_days: days, above 0"))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum PageList {
    /// JSON target list in a file (`file_sd`): `[{"targets": ["host:8000"]}]`.
    File(PathBuf),
    /// JSON target list at a URL (`http_sd`).
    Url(String),
    /// DNS name (`dns`) whose every address is a metrics endpoint: host, port, path.
    Name(String, u16, String),
}

impl PageList {
    /// Parses a DNS source with its metrics path: `http://vllm.prod.svc:8000/metrics`.
    pub fn of_name(url: &str) -> Result<PageList, String> {
        let wrong = || {
            format!(
                "dns: {url}: write the page as one of its replicas has it: http://vllm.prod.svc:8000/metrics"
            )
        };
        if url.starts_with("https://") {
            return Err(format!(
                "dns: {url}: a certificate is for a name and not for its addresses; use http_sd"
            ));
        }
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        let port = port.parse().map_err(|_| wrong())?;
        let path = if path.is_empty() { "metrics" } else { path };
        match host.is_empty() || authority.contains('@') {
            true => Err(wrong()),
            false => Ok(PageList::Name(host.to_owned(), port, format!("/{path}"))),
        }
    }
}

/// Returns a list file, with its path resolved against the file that names it.
pub fn beside(file: &Path, list: &Path) -> PageList {
    PageList::File(file.parent().unwrap_or(Path::new(".")).join(list))
}

/// A listen address for OTLP metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PushSpec {
    pub listen: SocketAddr,
    /// Environment variable with the token that senders must present.
    pub key_env: Option<String>,
    pub key_file: Option<PathBuf>,
}
