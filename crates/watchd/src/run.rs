//! Watches a run in progress, request by request: a run of `plimsoll run`, the record of a gateway, or any
//! other run folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use plimsoll_client::Clock;
use plimsoll_console::exit::Stop;
use plimsoll_console::numbered::folders;
use plimsoll_model::{Attempt, PageRead, Span};
use plimsoll_store::{LogFollower, StoreError};

use crate::LOOK;

/// Data that a source sends to the loop of the watch.
pub(crate) enum ObservedData {
    Page(PageRead),
    Requests(Vec<Attempt>),
}

/// Prefix of the run folders of a gateway record, before their number.
pub const GATEWAY_PREFIX: &str = "gateway-";

/// Returns the newest run folder of a gateway in `dir`; `None` if there is none.
fn newest(dir: &Path) -> Option<PathBuf> {
    folders(dir, GATEWAY_PREFIX).pop().map(|(_, newest)| newest)
}

/// Sends the requests that end, until the run or the watch ends. Sets `over` at the end, and returns whether the run ended.
pub(crate) fn follow(
    mut runs: FollowedRuns,
    sends: mpsc::Sender<ObservedData>,
    over: Arc<AtomicBool>,
) -> JoinHandle<Result<bool, StoreError>> {
    std::thread::spawn(move || {
        let mut last = Ok(());
        while !over.load(Ordering::Relaxed) && last.is_ok() && !runs.is_over() {
            last = runs.read().map(|rows| _ = sends.send(ObservedData::Requests(rows)));
            std::thread::sleep(LOOK);
        }
        // The remaining requests are evaluated immediately.
        over.store(true, Ordering::Release);
        last.map(|()| runs.is_over())
    })
}

/// A run, or the runs in the folder of a gateway record.
pub struct FollowedRuns {
    home: Option<PathBuf>,
    /// Attempts that ended before the watch started; used for charts only.
    pub before: Vec<Attempt>,
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

impl FollowedRuns {
    /// Opens a source at the current position. Earlier requests are not evaluated.
    pub fn open(dir: &Path, clock: Clock) -> Result<FollowedRuns, Stop> {
        let newest = newest(dir);
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
        let mut source = FollowedRuns { home, before, open: Vec::new(), newest, clock, runs: 0 };
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
        let next = self.home.as_deref().and_then(newest).filter(|newest| *newest != self.newest);
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
