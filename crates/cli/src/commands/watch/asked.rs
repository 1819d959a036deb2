//! What a watch is asked, from flags and a watch file.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use plimsoll_client::target::without_user;
use plimsoll_client::{Clock, targets};
use plimsoll_judge::budget::{BUDGET_VERSION, BudgetFile};
use plimsoll_judge::cost::PriceSpec;
use plimsoll_model::{Span, Time};
use plimsoll_watch::{AlertSpec, WatchSpec};
use plimsoll_workload::TargetSpec;
use plimsoll_workload::parse_span;
use plimsoll_workload::scrape::ScrapeSpec;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::history::HistoryWriter;
use super::lists::{self, PageList};
use super::notify::{Senders, SinkSpec};
use super::pushed::{PushKind, PushSpec};
use super::record::{KeptSpec, Recorded, Recorder};
use super::traces::{AskedTraces, TracesSpec};
use crate::budget_file;
use crate::exit::Stop;
use crate::flags::{PriceArgs, WatchArgs};
use crate::out;
use crate::{price, yaml};

const EVERY: Span = Span::from_secs(5);
const WINDOW: Span = Span::from_secs(300);
const LISTEN: &str = "127.0.0.1:9464";

/// What is to be done with the sources.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Watch them.
    Watch,
    /// Say what they can judge.
    Lint,
    /// Say what would have alerted during a finished run.
    Test,
}

/// Everything that a watch is asked.
pub struct AskedWatch {
    /// What for.
    pub doing: Doing,
    /// How pages are asked.
    pub target: TargetSpec,
    /// Which pages: those that are always the same, and those of the lists as they are now.
    pub scrape: ScrapeSpec,
    /// Which of them are always the same.
    pub fixed: Vec<String>,
    /// Lists of others.
    pub lists: Vec<PageList>,
    /// Addresses that others push to.
    pub pushed: Vec<PushSpec>,
    /// Traces that are passed on.
    pub traces: Option<AskedTraces>,
    /// The run that is being written, or a folder of them, instead of pages.
    pub run: Option<PathBuf>,
    /// How the budget is watched.
    pub spec: WatchSpec,
    /// What is alerted on.
    pub alerts: AlertSpec,
    /// Who is told.
    pub senders: Senders,
    /// Where alerts are kept.
    pub journal: Option<PathBuf>,
    /// Where their windows are kept.
    pub record: Option<KeptSpec>,
    /// Where the past is kept.
    pub history: Option<KeptSpec>,
    /// The budget; one without rows where traces are passed on and nothing is judged.
    pub budget: BudgetFile,
    /// Its file.
    pub budget_path: Option<PathBuf>,
    /// What is paid.
    pub price: Option<PriceSpec>,
    /// Where it is served.
    pub listen: Option<SocketAddr>,
    /// When it ends.
    pub time: Option<Span>,
}

/// A watch file. What a flag says goes before what it says.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct WatchFile {
    #[serde(deserialize_with = "sources")]
    sources: Vec<SourceLine>,
    budget: Option<PathBuf>,
    every: Option<String>,
    window: Option<String>,
    listen: Option<String>,
    alerts: AlertSpec,
    sinks: SinkSpec,
    journal: Option<PathBuf>,
    record: Option<KeptSpec>,
    history: Option<KeptSpec>,
    price: Option<String>,
    gpus: Option<u32>,
    traces: Option<TracesSpec>,
}

/// One page, or several; a URL alone is a page.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct SourceLine {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    urls: Vec<String>,
    /// Prometheus' list of targets: `[{"targets": ["host:port"], "labels": {…}}]`.
    #[serde(default)]
    file_sd: Option<PathBuf>,
    /// The same at a URL.
    #[serde(default)]
    http_sd: Option<String>,
    /// A page at each address of a name.
    #[serde(default)]
    dns: Option<String>,
    /// A Prometheus that scrapes the pages.
    #[serde(default)]
    prometheus: Option<String>,
    /// Which of its targets, by their labels: `{job="vllm"}`.
    #[serde(default, rename = "match")]
    matches: Option<String>,
    /// Where a Prometheus writes to.
    #[serde(default)]
    remote_write: Option<String>,
    /// Where OpenTelemetry's exporters send metrics to.
    #[serde(default)]
    otlp: Option<String>,
    /// Environment variable with the token that whoever pushes has to know.
    #[serde(default)]
    key_env: Option<String>,
    /// File with it.
    #[serde(default)]
    key_file: Option<PathBuf>,
}

/// Reads sources, of which those that are URLs alone are pages.
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

/// Reads flags and files.
///
/// # Errors
/// The first that is wrong or missing, in one line.
pub fn read(args: &WatchArgs) -> Result<AskedWatch, Stop> {
    let (doing, sources, run) = doing(args)?;
    let (mut file, named) = match (doing, run.is_some()) {
        (Doing::Test, _) => (replayed(sources)?, Named::default()),
        (_, true) => (WatchFile::default(), Named::default()),
        _ => named(sources)?,
    };
    let Named { pages: fixed, lists, pushed } = named;
    let has_source = run.is_some() || !(fixed.is_empty() && lists.is_empty() && pushed.is_empty());
    let traces = file.traces.as_ref().map(TracesSpec::asked).transpose()?;
    let budget_path = args.budget.clone().or(file.budget.take());
    let budget = match &budget_path {
        Some(path) if traces.is_some() && !has_source => {
            return Err(Stop::usage(format!(
                "{}: there is no source that it could be held against; write sources: [{{url: \"http://host:8000/metrics\"}}], or leave it out: traces need none",
                path.display()
            )));
        }
        Some(path) => budget_file::read(path)?.file,
        None if traces.is_some() && !has_source => nothing_promised(),
        None => {
            return Err(Stop::usage(
                "no budget: name the file with --budget budget.yaml (plimsoll budget init begins one)",
            ));
        }
    };
    let spec = cadence(args, (&file, &budget))?;
    file.alerts.check().map_err(Stop::usage)?;
    let senders = file.sinks.senders().map_err(Stop::usage)?;
    if !senders.is_empty() && file.journal.is_none() {
        return Err(Stop::usage(
            "sinks: without a journal a restart loses or doubles alerts; write journal: FILE, where it can keep them",
        ));
    }
    let record = args.record.clone().map(KeptSpec::new).or(file.record.take());
    record.iter().try_for_each(|kept| kept.check("record")).map_err(Stop::usage)?;
    let history = args.history.clone().map(KeptSpec::new).or(file.history.take());
    history.iter().try_for_each(|kept| kept.check("history")).map_err(Stop::usage)?;
    if history.is_some() && run.is_some() {
        return Err(Stop::usage("--history: a run keeps its requests itself; history is of metrics pages"));
    }
    let price = PriceArgs {
        price: args.price.price.clone().or(file.price.take()),
        gpus: args.price.gpus.or(file.gpus),
    };
    let listen = args.listen.clone().or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
    let mut target = TargetSpec {
        key_env: args.key_env.clone(),
        ca_file: args.ca_file.clone(),
        tls_verify: !args.insecure,
        ..TargetSpec::default()
    };
    // Keys are for the host of what is named first: a page, or a list's URL.
    target.url = match (fixed.first(), lists.first()) {
        (None, Some(PageList::Url(url))) => url.clone(),
        (first, _) => first.map(|page| url_of(page).to_owned()).unwrap_or_default(),
    };
    let pages = lists::read(&lists, &target, &fixed)?;
    if let (true, Some(page)) = (target.url.is_empty(), pages.first()) {
        url_of(page).clone_into(&mut target.url);
    }
    Ok(AskedWatch {
        doing,
        run,
        target,
        scrape: ScrapeSpec { discover: false, pages, every: spec.every },
        fixed,
        lists,
        pushed,
        traces,
        spec,
        alerts: file.alerts,
        senders,
        journal: file.journal,
        record,
        history,
        budget,
        budget_path,
        price: price::of_fleet(&price)?,
        listen: (listen != "none").then(|| address(&listen)).transpose()?,
        time: span("--for", args.time.as_ref())?,
    })
}

/// A budget file without rows.
fn nothing_promised() -> BudgetFile {
    let file = serde_json::from_value(serde_json::json!({ "version": BUDGET_VERSION }));
    file.expect("all else in a budget file has a default")
}

/// The URL of a page that may have a name before it.
fn url_of(page: &str) -> &str {
    page.split_once('=').filter(|(name, _)| !name.contains("//")).map_or(page, |(_, url)| url)
}

/// What is to be done, with which sources, or with which run that is being written.
fn doing(args: &WatchArgs) -> Result<(Doing, &[String], Option<PathBuf>), Stop> {
    let (doing, sources) = match args.sources.split_first() {
        Some((word, rest)) if word == "lint" => (Doing::Lint, rest),
        Some((word, rest)) if word == "test" => (Doing::Test, rest),
        _ => (Doing::Watch, &args.sources[..]),
    };
    if (doing == Doing::Test) != args.replay.is_some() {
        return Err(Stop::usage(
            "watch test and --replay go together: plimsoll watch test watch.yaml --replay RUN",
        ));
    }
    let run = match sources {
        [one] if Path::new(one).is_dir() => Some(PathBuf::from(one)),
        _ => None,
    };
    match (doing, &run) {
        (Doing::Lint, Some(_)) => {
            Err(Stop::usage("watch lint: is about pages; requests themselves tell every latency and share"))
        }
        _ => Ok((doing, sources, run)),
    }
}

/// How often is looked, and how far back.
fn cadence(args: &WatchArgs, (file, budget): (&WatchFile, &BudgetFile)) -> Result<WatchSpec, Stop> {
    let every = span("--every", args.every.as_ref().or(file.every.as_ref()))?.unwrap_or(EVERY);
    let own = budget.load.as_ref().and_then(|load| load.window);
    let window = span("--window", args.window.as_ref().or(file.window.as_ref()))?.or(own).unwrap_or(WINDOW);
    checked(WatchSpec { every, window })
}

fn checked(spec: WatchSpec) -> Result<WatchSpec, Stop> {
    let WatchSpec { every, window } = spec;
    if every < Span::from_millis(100) {
        return Err(Stop::usage("--every: from 100ms"));
    }
    if window < Span(8 * every.0) {
        let (every, least) = (every.as_secs_f64(), 8.0 * every.as_secs_f64());
        return Err(Stop::usage(format!(
            "--window: at least eight scrapes, because with fewer nothing can be decided; they come every {every} s: write {least:.0}s or more"
        )));
    }
    Ok(spec)
}

impl AskedWatch {
    /// The budget's file, for people.
    pub fn budget_name(&self) -> String {
        self.budget_path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// What writes windows of alerts, where they are to be kept.
    ///
    /// # Errors
    /// Its folder can't be made.
    pub fn recorder(&self, clock: Clock) -> Result<Option<Recorder>, Stop> {
        let url = match &self.run {
            Some(run) => run.display().to_string(),
            None => without_user(&self.target.url),
        };
        self.records(Recorded { url, clock: clock.anchor(), time: Time::Real })
    }

    /// The same of what has its own axis.
    ///
    /// # Errors
    /// Its folder can't be made.
    pub fn records(&self, of: Recorded) -> Result<Option<Recorder>, Stop> {
        let what = (&self.budget, self.spec.every);
        self.record.clone().map(|spec| Recorder::start(spec, what, of)).transpose()
    }

    /// What writes the history, where one is to be kept.
    ///
    /// # Errors
    /// Its folder can't be made, or another watch writes it.
    pub fn history(&self, clock: Clock) -> Result<Option<HistoryWriter>, Stop> {
        let url = without_user(&self.target.url);
        self.histories(Recorded { url, clock: clock.anchor(), time: Time::Real })
    }

    /// The same of what has its own axis.
    ///
    /// # Errors
    /// As [`AskedWatch::history`].
    pub fn histories(&self, of: Recorded) -> Result<Option<HistoryWriter>, Stop> {
        let what = (&self.budget, self.spec.every);
        self.history.clone().map(|spec| HistoryWriter::start(spec, what, of)).transpose()
    }

    /// Looks no more often than this.
    ///
    /// # Errors
    /// The window is too short for it.
    pub fn no_faster(&mut self, cadence: Option<Span>) -> Result<(), Stop> {
        let every = self.spec.every.max(cadence.unwrap_or_default());
        self.spec = checked(WatchSpec { every, ..self.spec })?;
        self.scrape.every = every;
        Ok(())
    }
}

/// What a watch file says of a replay: its sources are not asked and nobody is told, so that it can be tested where neither is there.
fn replayed(sources: &[String]) -> Result<WatchFile, Stop> {
    match sources {
        [] => Ok(WatchFile::default()),
        [one] if is_file(one) => {
            let file = file(Path::new(one))?;
            Ok(WatchFile {
                sources: Vec::new(),
                sinks: SinkSpec::default(),
                journal: None,
                record: None,
                history: None,
                traces: None,
                ..file
            })
        }
        [other, ..] => Err(Stop::usage(format!(
            "watch test {other}: takes a watch file (.yaml) or only --budget FILE; the run goes after --replay"
        ))),
    }
}

fn is_file(text: &str) -> bool {
    !text.contains("//") && [".yaml", ".yml", ".json"].iter().any(|end| text.ends_with(end))
}

/// Where samples come from.
#[derive(Default)]
struct Named {
    /// Pages that are always the same.
    pages: Vec<String>,
    /// Lists of others.
    lists: Vec<PageList>,
    /// Addresses that others push to.
    pushed: Vec<PushSpec>,
}

/// The watch file, or an empty one, and the pages that it or the words name.
fn named(sources: &[String]) -> Result<(WatchFile, Named), Stop> {
    let (file, Named { pages, lists, pushed }) = match sources {
        [] => {
            let what = "watch lint: name a metrics page (http://host:8000/metrics) or a watch file";
            return Err(Stop::usage(what));
        }
        [one] if is_file(one) => {
            let file = file(Path::new(one))?;
            let mut found = Named::default();
            for line in &file.sources {
                listed(line, Path::new(one), &mut found)?;
            }
            (file, found)
        }
        several => {
            let pages = several.iter().map(|text| page(text)).collect::<Result<_, Stop>>()?;
            (WatchFile::default(), Named { pages, ..Named::default() })
        }
    };
    if pages.is_empty() && lists.is_empty() && pushed.is_empty() && file.traces.is_none() {
        return Err(Stop::usage(format!(
            "{}: names no source; write sources: [{{url: \"http://host:8000/metrics\"}}]",
            sources[0]
        )));
    }
    // Beside others each page has a name of its own that says where it is; of several at one address only those of lists could be told from it.
    let hosts: HashSet<&str> = pages.iter().filter_map(|page| host(page)).collect();
    let told_apart = pages.len() > 1 && hosts.len() == pages.len();
    let named = told_apart || !lists.is_empty() || !pushed.is_empty();
    let named = |page: String| match host(&page).filter(|_| named) {
        Some(host) => format!("{host}={page}"),
        None => page,
    };
    Ok((file, Named { pages: pages.into_iter().map(named).collect(), lists, pushed }))
}

/// Where a page is that has no name, without a user and a password.
fn host(page: &str) -> Option<&str> {
    let (scheme, rest) = page.split_once("://")?;
    let host = rest.split('/').next()?.rsplit('@').next()?;
    (!scheme.contains('=')).then_some(host)
}

/// A time above 0, where one is said.
///
/// # Errors
/// It is none, or not above 0.
pub fn span(flag: &str, text: Option<&String>) -> Result<Option<Span>, Stop> {
    let parsed = text.map(|text| parse_span(text)).transpose();
    match parsed.map_err(|e| Stop::usage(format!("{flag} {e}")))? {
        Some(span) if span.0 <= 0 => Err(Stop::usage(format!("{flag}: a time above 0, such as 5s"))),
        other => Ok(other),
    }
}

fn file(path: &Path) -> Result<WatchFile, Stop> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| out::unread(&name, &e))?;
    serde_saphyr::from_str(&text).map_err(|e| {
        Stop::usage(format!(
            "{name}{}; keys: sources, budget, every, window, listen, alerts: {{false_alarms, queue_per_replica, burn}}, sinks: {{labels, alertmanager, webhook}}, journal, record: {{dir, keep_bytes, keep_days}}, history: {{dir, keep_bytes, keep_days}}, price, gpus, traces: {{listen, key_env, key_file, to, keep, wait, memory_mb}}",
            yaml::wrong(&e)
        ))
    })
}

/// Adds the pages of one line of the file.
fn listed(line: &SourceLine, file: &Path, found: &mut Named) -> Result<(), Stop> {
    let Named { pages, lists, pushed } = found;
    let of_file = |why: String| Stop::usage(format!("{}: sources: {why}", file.display()));
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
    lists.extend(line.file_sd.iter().map(|list| lists::beside(file, list)));
    lists.extend(line.http_sd.clone().map(PageList::Url));
    if let Some(url) = &line.dns {
        lists.push(PageList::of_name(url).map_err(of_file)?);
    }
    let own: Vec<PushSpec> = push(line).map_err(of_file)?;
    if own.is_empty() && (line.key_env.is_some() || line.key_file.is_some()) {
        let what = "key_env and key_file say what whoever pushes has to know; a page's token is named with --key-env";
        return Err(of_file(what.to_owned()));
    }
    pushed.extend(own);
    Ok(())
}

/// The addresses of one line that others push to.
fn push(line: &SourceLine) -> Result<Vec<PushSpec>, String> {
    let kinds =
        [("remote_write", PushKind::RemoteWrite, &line.remote_write), ("otlp", PushKind::Otlp, &line.otlp)];
    let named = kinds.into_iter().filter_map(|(key, kind, text)| Some((key, kind, text.as_ref()?)));
    let spec = |(key, kind, text): (&str, PushKind, &String)| {
        let listen = listen(text)
            .ok_or_else(|| format!("{key}: {text}: write PORT or ADDRESS:PORT, on which it listens"))?;
        Ok(PushSpec { kind, listen, key_env: line.key_env.clone(), key_file: line.key_file.clone() })
    };
    named.map(spec).collect()
}

/// A page's URL; an endpoint's own stands for its page.
///
/// # Errors
/// It is neither.
pub fn page(text: &str) -> Result<String, Stop> {
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !name.contains("//") => (Some(name), url),
        _ => (None, text),
    };
    let Some((scheme, rest)) =
        url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
    else {
        return Err(Stop::usage(format!(
            "{text}: is neither a URL (http://host:8000/metrics) nor a watch file (.yaml)"
        )));
    };
    // Braces and quotes are typed as they are.
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

/// Where to listen.
///
/// # Errors
/// It is no address.
pub fn address(text: &str) -> Result<SocketAddr, Stop> {
    listen(text).ok_or_else(|| Stop::usage(format!("--listen {text}: write PORT, ADDRESS:PORT or none")))
}

/// An address of this machine; a port alone is loopback's.
pub fn listen(text: &str) -> Option<SocketAddr> {
    let bare = text.trim().trim_start_matches(':');
    let whole = match bare.bytes().all(|b| b.is_ascii_digit()) && !bare.is_empty() {
        true => format!("127.0.0.1:{bare}"),
        false => bare.replace("localhost:", "127.0.0.1:"),
    };
    whole.parse().ok()
}
