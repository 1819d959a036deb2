//! `plimsoll canary` compares canary replicas with stable replicas by their metrics and decides: promote,
//! roll back or keep watching.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_client::metrics::pages::{self, ScrapeError};
use plimsoll_client::metrics::scrape::Scraper;
use plimsoll_client::metrics::told::ScrapeLog;
use plimsoll_model::{Arm, At, Span};
use plimsoll_report::canaried as words;
use plimsoll_watch::canary::{Canary, CanaryFinding, CanarySpec, CanaryVerdict};
use plimsoll_watchd::names::knows;
use plimsoll_watchd::serve::{ServedContent, StatusServer};
use plimsoll_wire::prometheus::PrometheusPage;
use plimsoll_workload::ScrapeSpec;
use plimsoll_workload::TargetSpec;

use super::watch::asked::{address, page, span};
use crate::budget_file;
use crate::exit::{Exit, Stop};
use crate::flags::{CanaryArgs, OutputFormat};
use crate::out;
use crate::screen::KeyWatch;

/// Polling interval of the minute clock and the stop key.
const TICK: Duration = Duration::from_millis(50);

/// Watches until a verdict, the time limit or a stop.
pub fn run(args: &CanaryArgs) -> Result<Exit, Stop> {
    let (spec, every, until) = spec(args)?;
    let (names, arms) = sides(args)?;
    let budget = args.budget.as_deref().map(budget_file::read).transpose()?.map(|text| text.file);
    let target = TargetSpec {
        url: names[0].split_once('=').map_or(&*names[0], |(_, url)| url).to_owned(),
        key_env: args.key_env.clone(),
        ca_file: args.ca_file.clone(),
        tls_verify: !args.insecure,
        ..TargetSpec::default()
    };
    let scrape = ScrapeSpec { discover: false, pages: names, every, ..ScrapeSpec::default() };
    let pages = pages::find(&target, &scrape).map_err(|e| match e {
        ScrapeError::Target { .. } => Stop::usage(e.to_string().replace("--scrape ", "")),
        ScrapeError::Silent { .. } | ScrapeError::Cut { .. } => {
            Stop::unreachable(e.to_string().replace("--scrape ", ""))
        }
        ScrapeError::Local(_) => Stop::invalid(e.to_string()),
    })?;
    if pages.iter().any(|page| page.cadence.is_some()) {
        return Err(Stop::usage(
            "canary: compares replicas by their metrics; name their endpoints (http://host:8000/metrics), not a Prometheus",
        ));
    }
    let listen = Some(&args.listen).filter(|listen| *listen != "none");
    let served = listen
        .map(|listen| StatusServer::start(address(listen)?, &args.readers.spec(), Vec::new()))
        .transpose()?;
    if !args.quiet {
        out::note(&words::begins([args.base.len(), args.canary.len()], &spec));
    }
    if let Some(served) = &served {
        // Parent processes wait for this line, so it is printed even with `--quiet`.
        out::note(&format!("/v1/verdict and /metrics on http://{}", served.addr));
    }
    let ended = Arc::new(AtomicBool::new(false));
    let on_key = Arc::clone(&ended);
    let _keys = KeyWatch::start(!args.quiet, move || on_key.store(true, Ordering::Relaxed));
    let clock = Clock::start();
    let canary = Arc::new(Mutex::new(Canary::new(spec, budget, arms)));
    let taking = Arc::clone(&canary);
    let rows = ScrapeLog::pages(move |read| {
        if let Ok(mut canary) = taking.lock() {
            canary.read(read);
        }
    });
    let scraper = Scraper::each(pages, every, clock, knows, rows);
    let scraper = scraper.map_err(|e| Stop::invalid(format!("cannot scrape: {e}")))?;
    let found = go(args, &canary, (clock, until, &ended), served.as_ref());
    scraper.stop();
    match args.format {
        OutputFormat::Text => out::line(&words::text(&found)),
        OutputFormat::Json => out::json(&found),
    }
    Ok(match found.verdict {
        CanaryVerdict::Promote => Exit::Done,
        CanaryVerdict::RollBack => Exit::Broken,
        CanaryVerdict::KeepWatching if ended.load(Ordering::Relaxed) => Exit::Interrupted,
        CanaryVerdict::KeepWatching => Exit::Inconclusive,
    })
}

/// Evaluates every minute until a verdict or the end.
fn go(
    args: &CanaryArgs,
    canary: &Mutex<Canary>,
    (clock, until, ended): (Clock, Option<At>, &AtomicBool),
    served: Option<&StatusServer>,
) -> CanaryFinding {
    let mut said = String::new();
    loop {
        let now = clock.now();
        let mut canary = canary.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_new = canary.tick(now) || said.is_empty();
        let over = ended.load(Ordering::Relaxed) || until.is_some_and(|until| now >= until);
        if is_new || over {
            let found = canary.finding(now);
            drop(canary);
            served.iter().for_each(|served| show(served, &found));
            if said != found.why {
                said.clone_from(&found.why);
                match args.format {
                    OutputFormat::Text => out::line(&words::change(&found)),
                    OutputFormat::Json => out::json(&found),
                }
            }
            if over || found.verdict != CanaryVerdict::KeepWatching {
                return found;
            }
        } else {
            drop(canary);
        }
        std::thread::sleep(TICK);
    }
}

fn spec(args: &CanaryArgs) -> Result<(CanarySpec, Span, Option<At>), Stop> {
    let before = span("--before", args.before.as_ref())?.unwrap_or(Span::ZERO);
    let some = |flag: &str, text: &String| {
        span(flag, Some(text))?.ok_or_else(|| Stop::usage(format!("{flag}: a time above 0")))
    };
    let (least, every) = (some("--least", &args.least)?, some("--every", &args.every)?);
    if before > Span::ZERO && before < Span::from_secs(600) {
        return Err(Stop::usage("--before: from 10m, better 1h: in less a replica's own share is not known"));
    }
    if every > Span::from_secs(30) {
        return Err(Stop::usage("--every: up to 30s, so that each minute has two scrapes"));
    }
    if !(args.alpha > 0.0 && args.alpha < 0.5) {
        return Err(Stop::usage("--alpha: a share above 0 and under 0.5, such as 0.05"));
    }
    let until = span("--for", args.time.as_ref())?.map(|time| At::ZERO + time);
    Ok((CanarySpec { alpha: args.alpha, before, least, seed: args.seed }, every, until))
}

/// Returns every metrics endpoint as `name=url`, and the side of each name.
fn sides(args: &CanaryArgs) -> Result<(Vec<String>, HashMap<String, Arm>), Stop> {
    let (mut pages, mut arms) = (Vec::new(), HashMap::new());
    for (arm, texts) in [(Arm::Base, &args.base), (Arm::Canary, &args.canary)] {
        for text in texts {
            let page = page(text)?;
            let (name, url) = match page.split_once('=').filter(|(name, _)| !name.contains("//")) {
                Some((name, url)) => (name.to_owned(), url.to_owned()),
                None => {
                    let host = page.split("//").nth(1).and_then(|rest| rest.split('/').next());
                    // Credentials are not part of a name.
                    let host = host.and_then(|host| host.rsplit('@').next()).unwrap_or_default();
                    (host.to_owned(), page.clone())
                }
            };
            if arms.insert(name.clone(), arm).is_some() {
                return Err(Stop::usage(format!(
                    "{name}: is there twice; a replica is on one side (two pages of one host: NAME=URL)"
                )));
            }
            pages.push(format!("{name}={url}"));
        }
    }
    Ok((pages, arms))
}

fn show(served: &StatusServer, found: &CanaryFinding) {
    let verdict = serde_json::to_string(found).unwrap_or_default();
    let bodies = vec![
        ServedContent::new("/v1/verdict", "application/json", verdict.clone()),
        ServedContent::new("/metrics", plimsoll_wire::prometheus::CONTENT_TYPE, metrics(found, "canary")),
    ];
    served.show(bodies, verdict);
}

/// Returns the verdict in Prometheus format. `what` is the subject of the trial: `canary` or `shadow`.
pub fn metrics(found: &CanaryFinding, what: &str) -> String {
    let mut page = PrometheusPage::new();
    let verdicts = [CanaryVerdict::Promote, CanaryVerdict::RollBack, CanaryVerdict::KeepWatching];
    let names =
        verdicts.map(|one| (one.words().replace(' ', "_"), f64::from(u8::from(one == found.verdict))));
    let samples = names.each_ref().map(|(name, is)| ([("verdict", name.as_str())], *is));
    page.gauge(&format!("plimsoll_{what}_verdict"), &format!("1 for the verdict on the {what}"), samples);
    let odds = format!("Evidence that the {what} is worse, this many to one");
    page.gauge(&format!("plimsoll_{what}_worse_odds"), &odds, [([], found.worse)]);
    page.finish()
}
