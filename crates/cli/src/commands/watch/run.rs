//! Watches a run in progress, request by request: a run of `plimsoll run`, the record of a gateway, or any
//! other run folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use plimsoll_client::Clock;
use plimsoll_model::{At, Attempt, Span};
use plimsoll_report::watched as words;
use plimsoll_store::{LogFollower, StoreError};
use plimsoll_watch::{BudgetWatch, requests};

use super::asked::WatchConfig;
use super::notify::Notifier;
use super::serve::StatusServer;
use super::{LOOK, ObservedData, WatchInputs, WatchOutputs, exit, go};
use crate::commands::gateway::record;
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, WatchArgs};
use crate::out;
use crate::screen::{KeyWatch, Screen};

/// Watches until the run ends or the user ends the watch.
pub fn watch(args: &WatchArgs, mut asked: WatchConfig, dir: &Path) -> Result<Exit, Stop> {
    let clock = Clock::start();
    let mut source = Source::open(dir, clock)?;
    let senders = std::mem::take(&mut asked.senders);
    let memory = asked.alerts.pairs().iter().map(|pair| pair.long_s).max().unwrap_or(0);
    let what = (asked.budget.name.as_deref(), Span::from_secs(memory));
    let (notifier, _) = Notifier::start(senders, asked.journal.as_ref(), what, clock)?;
    let served = asked
        .listen
        .map(|listen| StatusServer::start(listen, &args.readers, super::page::nothing()))
        .transpose()?;
    let mut screen = Screen::new(args.quiet);
    let ended = Arc::new(AtomicBool::new(false));
    let on_key = Arc::clone(&ended);
    let _keys = KeyWatch::start(!args.quiet, move || on_key.store(true, Ordering::Relaxed));
    let budget = asked.budget_name();
    screen.say(&words::follows(&dir.display().to_string(), asked.spec.every, &budget));
    if let Some(served) = &served {
        out::note(&format!("page, /metrics, /v1/rows and /v1/alerts on http://{}", served.addr));
    }
    let recorder = asked.recorder(clock)?;
    let mut watched = BudgetWatch::new(asked.budget.clone(), asked.spec).priced(asked.price.clone());
    if recorder.is_some() {
        watched = watched.recording();
    }
    let now = clock.now();
    let mut watched = watched.of_requests(asked.alerts.clone(), now);
    // Taken out of the source to free its memory, because the source lives as long as the watch and this is
    // the whole run so far.
    let before = std::mem::take(&mut source.before);
    let course = served.as_ref().map(|_| {
        let mut course = super::history::course(None, clock);
        course.take(requests::before(&asked.budget, before, (clock.anchor().realtime_ns, now)));
        course
    });
    if course.is_some() {
        watched = watched.keeping(clock.anchor().realtime_ns);
    }
    let (came, coming) = mpsc::channel();
    let (over, gone) = (Arc::clone(&ended), Arc::new(AtomicBool::new(false)));
    let is_gone = Arc::clone(&gone);
    let follower = std::thread::spawn(move || {
        let mut last = Ok(());
        while !over.load(Ordering::Relaxed) && last.is_ok() {
            last = source.read().map(|rows| _ = came.send(ObservedData::Requests(rows)));
            if source.is_over() {
                is_gone.store(true, Ordering::Relaxed);
                break;
            }
            std::thread::sleep(LOOK);
        }
        // The remaining requests are evaluated immediately.
        over.store(true, Ordering::Release);
        last
    });
    let until = asked.time.map(|time| At::ZERO + time);
    let mut told = WatchOutputs { course, ..WatchOutputs::new(args, (notifier, recorder), served) };
    let last = go(WatchInputs { watched, coming }, &mut told, (clock, asked.spec, until), &ended);
    let by_key = ended.swap(true, Ordering::Relaxed) && !gone.load(Ordering::Relaxed);
    told.notifier.end();
    if let Some(recorder) = told.recorder {
        recorder.end();
    }
    screen.clear();
    if let Ok(Err(error)) = follower.join() {
        return Err(Stop::invalid(error.to_string()));
    }
    let Some(found) = last else { return Ok(Exit::Inconclusive) };
    match args.format {
        OutputFormat::Text => out::line(&words::text(&found)),
        OutputFormat::Json => out::json(&found),
    }
    Ok(exit(&found, !by_key))
}

/// A run, or the runs in the folder of a gateway record.
struct Source {
    home: Option<PathBuf>,
    /// Attempts that ended before the watch started; used for charts only.
    before: Vec<Attempt>,
    /// Runs in progress. A run with a successor stays open until its last requests end.
    open: Vec<FollowedRun>,
    newest: PathBuf,
    clock: Clock,
    runs: u64,
}

struct FollowedRun {
    follow: LogFollower,
    /// Offset from the axis of the run to the axis of the watch.
    later: Span,
    /// Index of the run, because each run numbers its requests from zero.
    number: u64,
}

/// Request numbers of a run start at this multiple of its index.
const NUMBERS: u64 = 1 << 40;

impl Source {
    /// Opens a source at the current position. Earlier requests are not evaluated.
    fn open(dir: &Path, clock: Clock) -> Result<Source, Stop> {
        let newest = record::newest(dir);
        let home = newest.as_ref().map(|_| dir.to_path_buf());
        let newest = newest.unwrap_or_else(|| dir.to_path_buf());
        let unread =
            |e: StoreError| Stop::usage(format!("{e}; name a metrics endpoint, or a run in progress"));
        let follow = LogFollower::open(&newest).map_err(unread)?;
        let mut follow = follow.ok_or_else(|| {
            let name = newest.display();
            Stop::usage(format!(
                "{name}: not in progress; check the finished run: plimsoll gate {name} --budget FILE"
            ))
        })?;
        let before = follow.read().map_err(unread)?;
        let mut source = Source { home, before, open: Vec::new(), newest, clock, runs: 0 };
        source.add(follow).map_err(unread)?;
        let later = source.open[0].later;
        source.before.iter_mut().for_each(|row| row.shift(later));
        Ok(source)
    }

    fn add(&mut self, follow: LogFollower) -> Result<(), StoreError> {
        let began_ns = plimsoll_store::read_manifest(&self.newest)?.clock.monotonic_ns;
        let later = Span(began_ns - self.clock.anchor().monotonic_ns);
        self.open.push(FollowedRun { follow, later, number: self.runs });
        self.runs += 1;
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<Attempt>, StoreError> {
        let next = self.home.as_deref().and_then(record::newest).filter(|newest| *newest != self.newest);
        if let Some(next) = next
            && let Some(follow) = LogFollower::open(&next)?
        {
            self.newest = next;
            self.add(follow)?;
        }
        let mut rows = Vec::new();
        for run in &mut self.open {
            rows.extend(run.follow.read()?.into_iter().map(|mut row| {
                row.shift(run.later);
                Attempt { request: run.number * NUMBERS + row.request, ..row }
            }));
        }
        self.open.retain(|run| !run.follow.is_ended());
        Ok(rows)
    }

    fn is_over(&self) -> bool {
        self.open.is_empty()
    }
}
