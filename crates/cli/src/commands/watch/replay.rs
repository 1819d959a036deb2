//! `plimsoll watch test` replays a finished run through the live watch in virtual time. Its exit code is for
//! CI: 1 if an alert would have fired or a row is broken.

use plimsoll_model::Manifest;
use plimsoll_report::watched as words;
use plimsoll_watch::replay::{Keep, ReplayFinding, of_pages, of_requests};
use plimsoll_watch::{RowState, WatchRow};
use plimsoll_watchd::config::WatchConfig;
use plimsoll_watchd::record::WatchedSource;
use serde::Serialize;

use crate::commands::gate;
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, WatchArgs};
use crate::out;

#[derive(Serialize)]
struct ReplayOutput {
    run: String,
    requests: Option<ReplayFinding>,
    /// Result from the metrics endpoints that were scraped during the run; `None` without scrapes.
    pages: Option<ReplayFinding>,
}

/// Replays a run and prints the result.
pub fn run(args: &WatchArgs, asked: &WatchConfig, name: &str) -> Result<Exit, Stop> {
    let run = gate::open(name)?;
    let (file, every) = (&asked.budget, asked.spec.every);
    let Manifest { id, clock, time, target, .. } = run.manifest;
    let of = WatchedSource { url: target.url, clock, time };
    if let Some(mut history) = asked.histories(of.clone())? {
        history.keep(&plimsoll_watch::replay::history(file, every, &run.samples, history.wall_ns()));
        history.end();
    }
    let mut recorder = asked.records(of)?;
    let keeps = recorder.is_some();
    let mut keep = |window| {
        recorder.as_mut().map_or(String::new(), |recorder| recorder.keep(window).display().to_string())
    };
    let tested = ReplayOutput {
        run: id,
        requests: of_requests(
            file,
            every,
            &asked.alerts,
            run.attempts,
            keeps.then_some(&mut keep as &mut Keep<'_>),
        ),
        pages: of_pages(
            file,
            every,
            &asked.alerts,
            &run.samples,
            keeps.then_some(&mut keep as &mut Keep<'_>),
        ),
    };
    if let Some(recorder) = recorder {
        recorder.end();
    }
    if tested.requests.is_none() && tested.pages.is_none() {
        return Err(Stop::invalid(format!(
            "{name}: contains no request and no scraped metrics; measure a run with requests"
        )));
    }
    match args.format {
        OutputFormat::Text => {
            let requests = tested.requests.iter().map(|found| words::replayed("its requests", found));
            let pages = tested.pages.iter().map(|found| words::replayed("the servers' pages", found));
            out::line(&requests.chain(pages).collect::<Vec<_>>().join("\n\n"));
        }
        OutputFormat::Json => out::json(&tested),
    }
    Ok(exit(&tested))
}

/// Returns the exit code. It is 1 for an alert or a broken row from either source. It is 3 if the best source
/// leaves a row inconclusive or no row passes, else 0.
fn exit(tested: &ReplayOutput) -> Exit {
    let both = || tested.requests.iter().chain(&tested.pages);
    let any = |rows: &[WatchRow], state: RowState| rows.iter().any(|row| row.state == state);
    if both().any(|found| !found.alerts.is_empty() || any(&found.rows, RowState::Broken)) {
        return Exit::Broken;
    }
    // Requests carry more information than metrics endpoints, so endpoints decide only without requests.
    let rows = both().next().map_or(&[][..], |found| &found.rows);
    match any(rows, RowState::CannotTell) || !any(rows, RowState::Holds) {
        true => Exit::Inconclusive,
        false => Exit::Done,
    }
}
