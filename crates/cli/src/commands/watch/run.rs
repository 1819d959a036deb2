//! A watch over a run while it is written, request by request: of `plimsoll run`, of a gateway's record, of anything that writes a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_client::Clock;
use plimsoll_model::{At, Attempt, Span};
use plimsoll_report::watched as words;
use plimsoll_store::{Follow, StoreError};
use plimsoll_watch::Watched;

use super::asked::AskedWatch;
use super::notify::Notifier;
use super::serve::Served;
use super::{LOOK, Telling, exit, go};
use crate::commands::gateway::record;
use crate::exit::{Exit, Stop};
use crate::flags::{Format, WatchArgs};
use crate::out;
use crate::screen::{KeyWatch, Screen};

/// Watches until the run ends, or somebody ends the watch.
pub fn watch(args: &WatchArgs, mut asked: AskedWatch, dir: &Path) -> Result<Exit, Stop> {
    let clock = Clock::start();
    let mut source = Source::open(dir)?;
    let senders = std::mem::take(&mut asked.senders);
    let memory = asked.alerts.pairs().iter().map(|pair| pair.long_s).max().unwrap_or(0);
    let what = (asked.budget.name.as_deref(), Span::from_secs(memory));
    let (notifier, _) = Notifier::start(senders, asked.journal.as_ref(), what, clock)?;
    let served = asked
        .listen
        .map(|listen| Served::start(listen, args.listen_open, super::page::nothing()))
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
    let watched = Watched::new(asked.budget.clone(), asked.spec);
    let watched = Arc::new(Mutex::new(watched.of_requests(asked.alerts.clone(), clock.now())));
    let (taking, over, gone) = (Arc::clone(&watched), Arc::clone(&ended), Arc::new(AtomicBool::new(false)));
    let is_gone = Arc::clone(&gone);
    let follower = std::thread::spawn(move || {
        let mut last = Ok(());
        while !over.load(Ordering::Relaxed) && last.is_ok() {
            last = source.read().map(|rows| {
                if let Ok(mut watched) = taking.lock() {
                    watched.take(rows);
                }
            });
            if source.is_over() {
                is_gone.store(true, Ordering::Relaxed);
                break;
            }
            std::thread::sleep(LOOK);
        }
        // What is over is judged at once.
        over.store(true, Ordering::Relaxed);
        last
    });
    let until = asked.time.map(|time| At::ZERO + time);
    let mut told = Telling::new(args, notifier, served);
    let last = go(&watched, &mut told, (clock, asked.spec, until), &ended);
    let by_key = ended.swap(true, Ordering::Relaxed) && !gone.load(Ordering::Relaxed);
    told.notifier.end();
    screen.clear();
    if let Ok(Err(error)) = follower.join() {
        return Err(Stop::invalid(error.to_string()));
    }
    let Some(found) = last else { return Ok(Exit::Inconclusive) };
    match args.format {
        Format::Text => out::line(&words::text(&found)),
        Format::Json => out::json(&found),
    }
    Ok(exit(&found, !by_key))
}

/// One run, or those of a folder that a gateway records into.
struct Source {
    /// Where further ones come.
    home: Option<PathBuf>,
    /// Those that are being written: one whose successor was begun waits for requests that go on.
    open: Vec<Follow>,
    newest: PathBuf,
}

impl Source {
    /// From now on: what ended before is not looked at.
    fn open(dir: &Path) -> Result<Source, Stop> {
        let newest = record::newest(dir);
        let home = newest.as_ref().map(|_| dir.to_path_buf());
        let newest = newest.unwrap_or_else(|| dir.to_path_buf());
        let unread =
            |e: StoreError| Stop::usage(format!("{e}; name a metrics page, or a run that is being written"));
        let follow = Follow::open(&newest).map_err(unread)?;
        let mut follow = follow.ok_or_else(|| {
            let name = newest.display();
            Stop::usage(format!(
                "{name}: nobody is writing it; judge what is there: plimsoll gate {name} --budget FILE"
            ))
        })?;
        follow.read().map_err(unread)?;
        Ok(Source { home, open: vec![follow], newest })
    }

    fn read(&mut self) -> Result<Vec<Attempt>, StoreError> {
        let next = self.home.as_deref().and_then(record::newest).filter(|newest| *newest != self.newest);
        if let Some(next) = next
            && let Some(follow) = Follow::open(&next)?
        {
            self.open.push(follow);
            self.newest = next;
        }
        let mut rows = Vec::new();
        for follow in &mut self.open {
            rows.extend(follow.read()?);
        }
        self.open.retain(|follow| !follow.is_ended());
        Ok(rows)
    }

    fn is_over(&self) -> bool {
        self.open.is_empty()
    }
}
