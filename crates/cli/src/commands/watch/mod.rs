//! `plimsoll watch`: a budget file held against live traffic, from servers' metrics pages.

mod asked;
mod page;
mod serve;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_client::pages::{self, MetricsPage, ScrapeError};
use plimsoll_client::scrape::Scraper;
use plimsoll_measure::server_side::ServerSide;
use plimsoll_measure::server_side::table::Table;
use plimsoll_model::{At, Sample};
use plimsoll_report::watched as words;
use plimsoll_watch::lint::{lint, unreachable};
use plimsoll_watch::{Alert, AlertKind, RowState, WatchFinding, WatchSpec, Watched};

use crate::exit::{Exit, Stop};
use crate::flags::{Format, WatchArgs};
use crate::out;
use crate::screen::{KeyWatch, Screen};
use asked::AskedWatch;
use serve::Served;

/// How often it is seen whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Watches until it is stopped, or says what could be judged.
pub fn run(args: &WatchArgs) -> Result<Exit, Stop> {
    let asked = asked::read(args)?;
    let pages = find(&asked)?;
    if asked.lint {
        return linted(args, &asked, pages);
    }
    watch(args, asked, pages)
}

fn find(asked: &AskedWatch) -> Result<Vec<MetricsPage>, Stop> {
    pages::find(&asked.target, &asked.scrape).map_err(|e| match e {
        ScrapeError::Target { .. } => Stop::usage(e.to_string().replace("--scrape ", "")),
        ScrapeError::Silent { .. } => Stop::unreachable(e.to_string().replace("--scrape ", "")),
        ScrapeError::Local(_) => Stop::invalid(e.to_string()),
    })
}

fn knows(name: &str) -> bool {
    !Table::shipped().of(name).is_empty()
}

/// One scrape of every page against every row.
fn linted(args: &WatchArgs, asked: &AskedWatch, pages: Vec<MetricsPage>) -> Result<Exit, Stop> {
    let clock = Clock::start();
    let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
    let kept = Arc::clone(&samples);
    let rows = Arc::new(move |sample: Sample| {
        if let Ok(mut kept) = kept.lock() {
            kept.push(sample);
        }
    });
    let scraper = Scraper::start(pages, asked.spec.every, clock, knows, rows);
    scraper.map_err(|e| Stop::invalid(format!("cannot scrape: {e}")))?.stop();
    let samples = samples.lock().map(|samples| samples.clone()).unwrap_or_default();
    let found = lint(&asked.budget.file, &ServerSide::read(&samples), clock.now());
    match args.format {
        Format::Text => {
            out::line(&words::lint(&found));
            unreachable(&asked.budget.file).iter().for_each(|line| out::line(line));
        }
        Format::Json => out::json(&found),
    }
    Ok(if found.iter().any(|row| row.judged) { Exit::Done } else { Exit::Inconclusive })
}

fn watch(args: &WatchArgs, asked: AskedWatch, pages: Vec<MetricsPage>) -> Result<Exit, Stop> {
    let AskedWatch { spec, alerts, time, listen, budget, .. } = asked;
    let WatchSpec { every, .. } = spec;
    let served = listen.map(|listen| Served::start(listen, args.listen_open)).transpose()?;
    let clock = Clock::start();
    let mut screen = Screen::new(args.quiet);
    let ended = Arc::new(AtomicBool::new(false));
    let on_key = Arc::clone(&ended);
    let _keys = KeyWatch::start(!args.quiet, move || on_key.store(true, Ordering::Relaxed));
    screen.say(&words::begins(pages.len(), every, &budget.path.display().to_string()));
    if let Some(served) = &served {
        // Parents of this process wait for this line: it comes even when it is to be quiet.
        out::note(&format!("page, /metrics, /v1/rows and /v1/alerts on http://{}", served.addr));
    }
    let watched = Arc::new(Mutex::new(Watched::new(budget.file, spec).alerting(alerts)));
    let taking = Arc::clone(&watched);
    let rows = Arc::new(move |sample: Sample| {
        if let Ok(mut watched) = taking.lock() {
            watched.push(sample);
        }
    });
    let scraper = Scraper::start(pages, every, clock, knows, rows);
    let scraper = scraper.map_err(|e| Stop::invalid(format!("cannot scrape: {e}")))?;
    let mut states: Vec<Option<RowState>> = Vec::new();
    let mut told: Vec<Alert> = Vec::new();
    let (mut due, mut last) = (clock.now(), None);
    let until = time.map(|time| At::ZERO + time);
    loop {
        let now = clock.now();
        let over = ended.load(Ordering::Relaxed) || until.is_some_and(|until| now >= until);
        if now >= due || over {
            // A scrape takes a while: what it brings a moment later is in the next tick.
            while due <= now {
                due += every;
            }
            let Ok(mut watched) = watched.lock() else { break };
            watched.tick(now);
            let found = watched.finding(now);
            drop(watched);
            changes(args, &found, &mut states);
            called(args, &found, &mut told);
            served.iter().for_each(|served| served.show(&found));
            last = Some(found);
        }
        if over {
            break;
        }
        std::thread::sleep(LOOK);
    }
    scraper.stop();
    screen.clear();
    let Some(found) = last else { return Ok(Exit::Inconclusive) };
    match args.format {
        Format::Text => out::line(&words::text(&found)),
        Format::Json => out::json(&found),
    }
    Ok(exit(&found, until.is_some() && !ended.load(Ordering::Relaxed)))
}

/// A line per row whose state is another than before.
fn changes(args: &WatchArgs, found: &WatchFinding, states: &mut Vec<Option<RowState>>) {
    states.resize(found.rows.len(), None);
    for (row, state) in found.rows.iter().zip(states) {
        if *state == Some(row.state) {
            continue;
        }
        let before = state.replace(row.state);
        match args.format {
            Format::Text => out::line(&words::change(found.at_s, row, before)),
            Format::Json => {
                out::line(&serde_json::json!({"at_s": found.at_s, "before": before, "row": row}).to_string());
            }
        }
    }
}

/// A line per alert that fires or is resolved. The watchdog is for machines.
fn called(args: &WatchArgs, found: &WatchFinding, told: &mut Vec<Alert>) {
    let is_told =
        |alert: &Alert| told.iter().any(|before| before.id == alert.id && before.state == alert.state);
    let people = found.alerts.iter().rev().filter(|alert| alert.kind != AlertKind::Watchdog);
    for alert in people.clone().filter(|alert| !is_told(alert)) {
        match args.format {
            Format::Text => out::line(&words::alert(found.at_s, alert)),
            Format::Json => {
                out::line(&serde_json::json!({"at_s": found.at_s, "alert": alert}).to_string());
            }
        }
    }
    *told = people.cloned().collect();
}

/// 1 broken; 5 nothing answers; 3 nothing decided; 0 something holds and nothing is broken. Where nobody asked for an end, a person ended it.
fn exit(found: &WatchFinding, by_time: bool) -> Exit {
    let any = |state: RowState| found.rows.iter().any(|row| row.state == state);
    match () {
        () if !by_time => Exit::Interrupted,
        () if any(RowState::Broken) || any(RowState::Stalled) => Exit::Broken,
        () if any(RowState::SourceLost) => Exit::Unreachable,
        () if any(RowState::CannotTell) || !any(RowState::Holds) => Exit::Inconclusive,
        () => Exit::Done,
    }
}
