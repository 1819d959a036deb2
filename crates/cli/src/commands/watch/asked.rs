//! The settings of a watch, from flags and a watch file.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use plimsoll_judge::budget::BudgetFile;
use plimsoll_model::Span;
use plimsoll_watch::BudgetWatchSpec;
use plimsoll_workload::TargetSpec;
use plimsoll_workload::parse_span;
use plimsoll_workload::scrape::ScrapeSpec;

use plimsoll_watchd::config::{WatchConfig, checked};
use plimsoll_watchd::file::{self, PageList, ResolvedSources, RetentionSpec, SinkSpec, WatchFile, listen};
use plimsoll_watchd::lists;

use crate::budget_file;
use crate::exit::Stop;
use crate::flags::{PriceArgs, WatchArgs};
use crate::out;
use crate::{price, yaml};

const EVERY: Span = Span::from_secs(5);
const WINDOW: Span = Span::from_secs(300);
const LISTEN: &str = "127.0.0.1:9464";

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum WatchMode {
    Watch,
    /// Report the budget rows that the sources can decide.
    Lint,
    /// Report the alerts that a finished run would have raised.
    Test,
}

/// Reads the settings from flags and files.
///
/// # Errors
/// Fails on the first invalid or missing setting, with a one-line message.
pub fn read(args: &WatchArgs, doing: WatchMode) -> Result<WatchConfig, Stop> {
    let sources = &args.sources[..];
    let run = source_run(sources, doing)?;
    let (mut file, named) = match (doing, run.is_some()) {
        (WatchMode::Test, _) => (replayed(sources)?, ResolvedSources::default()),
        (_, true) => (WatchFile::default(), ResolvedSources::default()),
        _ => named(sources)?,
    };
    let ResolvedSources { pages: fixed, lists, pushed } = named;
    let budget_path = args.budget.clone().or(file.budget.take()).ok_or_else(|| {
        Stop::usage("no budget: name the file with --budget budget.yaml (plimsoll budget init begins one)")
    })?;
    let budget = budget_file::read(&budget_path)?.file;
    let spec = cadence(args, (&file, &budget))?;
    file.alerts.check().map_err(Stop::usage)?;
    let senders = file.sinks.senders().map_err(Stop::usage)?;
    if !senders.is_empty() && file.journal.is_none() {
        return Err(Stop::usage(
            "sinks: without a journal a restart loses or repeats alerts; add journal: FILE",
        ));
    }
    let record = args.record.clone().map(RetentionSpec::new).or(file.record.take());
    record.iter().try_for_each(|kept| kept.check("record")).map_err(Stop::usage)?;
    let history = args.history.clone().map(RetentionSpec::new).or(file.history.take());
    history.iter().try_for_each(|kept| kept.check("history")).map_err(Stop::usage)?;
    if history.is_some() && run.is_some() {
        return Err(Stop::usage(
            "--history: applies to metrics endpoints; a run already stores its requests",
        ));
    }
    let price = PriceArgs {
        price: args.price.price.clone().or(file.price.take()),
        gpus: args.price.gpus.or(file.gpus),
    };
    let said = match (&args.price.price, sources.first()) {
        (None, Some(file)) => format!("{file}: price:"),
        _ => price::FLAG.to_owned(),
    };
    let listen = args.listen.clone().or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
    let mut target = TargetSpec {
        key_env: args.key_env.clone(),
        ca_file: args.ca_file.clone(),
        tls_verify: !args.insecure,
        ..TargetSpec::default()
    };
    // The API key is scoped to the host of the first source: a metrics endpoint or a list's URL.
    target.url = match (fixed.first(), lists.first()) {
        (None, Some(PageList::Url(url))) => url.clone(),
        (first, _) => first.map(|page| url_of(page).to_owned()).unwrap_or_default(),
    };
    let pages = lists::begin(&lists, &target, &fixed)?;
    if let (true, Some(page)) = (target.url.is_empty(), pages.first()) {
        url_of(page).clone_into(&mut target.url);
    }
    Ok(WatchConfig {
        run,
        target,
        scrape: ScrapeSpec { discover: false, pages, every: spec.every, ..ScrapeSpec::default() },
        fixed,
        lists,
        pushed,
        spec,
        alerts: file.alerts,
        senders,
        journal: file.journal,
        record,
        history,
        budget,
        budget_path,
        price: price::of_fleet(&price, &said)?,
        listen: (listen != "none").then(|| address(&listen)).transpose()?,
        time: span("--for", args.time.as_ref())?,
        readers: args.readers.spec(),
        format: args.format,
        quiet: args.quiet,
    })
}

/// Returns the URL of a metrics endpoint, without an optional `NAME=` prefix.
fn url_of(page: &str) -> &str {
    page.split_once('=').filter(|(name, _)| !name.contains("//")).map_or(page, |(_, url)| url)
}

/// Returns the run in progress or the folder of runs that the sources name, if they name one.
fn source_run(sources: &[String], doing: WatchMode) -> Result<Option<PathBuf>, Stop> {
    let run = match sources {
        [one] if Path::new(one).is_dir() => Some(PathBuf::from(one)),
        _ => None,
    };
    match (doing, &run) {
        (WatchMode::Lint, Some(_)) => Err(Stop::usage(
            "watch lint: checks metrics endpoints only; requests provide every latency and share",
        )),
        _ => Ok(run),
    }
}

/// Returns the scrape interval and the evaluation window.
fn cadence(args: &WatchArgs, (file, budget): (&WatchFile, &BudgetFile)) -> Result<BudgetWatchSpec, Stop> {
    let every = span("--every", args.every.as_ref().or(file.every.as_ref()))?.unwrap_or(EVERY);
    let own = budget.load.as_ref().and_then(|load| load.window);
    let window = span("--window", args.window.as_ref().or(file.window.as_ref()))?.or(own).unwrap_or(WINDOW);
    checked(BudgetWatchSpec { every, window })
}

/// Returns the settings of a replay from a watch file. Sources and sinks are dropped, so that the file can be
/// tested without them.
fn replayed(sources: &[String]) -> Result<WatchFile, Stop> {
    match sources {
        [] => Ok(WatchFile::default()),
        [one] if is_file(one) => {
            let file = watch_file(Path::new(one))?;
            Ok(WatchFile {
                sources: Vec::new(),
                sinks: SinkSpec::default(),
                journal: None,
                record: None,
                history: None,
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

/// Returns the watch file, or an empty one, and the endpoints that the file or the arguments name.
fn named(sources: &[String]) -> Result<(WatchFile, ResolvedSources), Stop> {
    let (file, ResolvedSources { pages, lists, pushed }) = match sources {
        [] => {
            let what =
                "watch: name a metrics endpoint (http://host:8000/metrics), a watch file or a growing run";
            return Err(Stop::usage(what));
        }
        [one] if is_file(one) => {
            let file = watch_file(Path::new(one))?;
            let found = file.named(Path::new(one)).map_err(Stop::usage)?;
            (file, found)
        }
        several => {
            let pages = several.iter().map(|text| page(text)).collect::<Result<_, Stop>>()?;
            (WatchFile::default(), ResolvedSources { pages, ..ResolvedSources::default() })
        }
    };
    if pages.is_empty() && lists.is_empty() && pushed.is_empty() {
        return Err(Stop::usage(format!(
            "{}: names no source; write sources: [{{url: \"http://host:8000/metrics\"}}]",
            sources[0]
        )));
    }
    // With several sources, each endpoint is named by its address. Endpoints that share an address get this
    // name only to distinguish them from lists and pushed metrics.
    let hosts: HashSet<&str> = pages.iter().filter_map(|page| host(page)).collect();
    let told_apart = pages.len() > 1 && hosts.len() == pages.len();
    let named = told_apart || !lists.is_empty() || !pushed.is_empty();
    let named = |page: String| match host(&page).filter(|_| named) {
        Some(host) => format!("{host}={page}"),
        None => page,
    };
    Ok((file, ResolvedSources { pages: pages.into_iter().map(named).collect(), lists, pushed }))
}

/// Returns host and port of an unnamed endpoint, without credentials.
fn host(page: &str) -> Option<&str> {
    let (scheme, rest) = page.split_once("://")?;
    let host = rest.split('/').next()?.rsplit('@').next()?;
    (!scheme.contains('=')).then_some(host)
}

/// Parses a duration above 0.
///
/// # Errors
/// Fails if the text is not a duration or is not above 0.
pub fn span(flag: &str, text: Option<&String>) -> Result<Option<Span>, Stop> {
    let parsed = text.map(|text| parse_span(text)).transpose();
    match parsed.map_err(|e| Stop::usage(format!("{flag} {e}")))? {
        Some(span) if span.0 <= 0 => Err(Stop::usage(format!("{flag}: a time above 0, such as 5s"))),
        other => Ok(other),
    }
}

fn watch_file(path: &Path) -> Result<WatchFile, Stop> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| out::unread(&name, &e))?;
    WatchFile::read(&text).map_err(|e| {
        let problem = yaml::wrong(&e);
        // The parser lists the allowed keys of the section already.
        let keys = match problem.contains("unknown field") {
            true => String::new(),
            false => format!("; keys: {}", file::KEYS),
        };
        Stop::usage(format!("{name}{problem}{keys}"))
    })
}

/// Returns the metrics URL of a source. The URL of an endpoint becomes its `/metrics` URL.
pub fn page(text: &str) -> Result<String, Stop> {
    file::page(text).map_err(Stop::usage)
}

pub fn address(text: &str) -> Result<SocketAddr, Stop> {
    listen(text).ok_or_else(|| Stop::usage(format!("--listen {text}: write PORT, ADDRESS:PORT or none")))
}
