//! A watch of a finished run in virtual time: the alerts that would have fired, with their times. The code is that of
//! the live watch; only the clock is the run's.
//!
//! Requests arrive at their end, as from a run in progress, and scrapes at their times. Verdicts use the whole run as
//! their window, so that they cover the requests of a gate. Alerts use the windows of a live watch.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::ServerSide;
use plimsoll_model::{At, Attempt, Sample, Span};
use serde::{Deserialize, Serialize};

use crate::history::HistoryBlock;
use crate::record::{AlertWindow, ended};
use crate::{Alert, AlertKind, AlertSpec, BudgetWatch, BudgetWatchSpec, WatchRow};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplayFinding {
    pub every_s: f64,
    pub watched_s: f64,
    /// Alerts in the order in which they fired, in seconds of the run.
    pub alerts: Vec<Alert>,
    /// Rows of the budget over the whole run.
    pub rows: Vec<WatchRow>,
}

/// Records the window of alerts and returns the name of its run folder.
pub type Keep<'a> = dyn FnMut(AlertWindow) -> String + 'a;

/// Returns the history of a run: the counters of its endpoints in blocks. `wall_ns` is the start of the run on the
/// wall clock, ns since 1970.
pub fn history(file: &BudgetFile, every: Span, samples: &[Sample], wall_ns: i64) -> Vec<HistoryBlock> {
    let Some((samples, every, (from, to))) = of_servers(samples, every) else { return Vec::new() };
    let mut watched =
        BudgetWatch::new(file.clone(), BudgetWatchSpec { every, window: every }).keeping(wall_ns);
    let (mut samples, mut now) = (samples.into_iter().peekable(), from);
    loop {
        while let Some(sample) = samples.next_if(|sample| sample.at <= now) {
            watched.push(&sample);
        }
        watched.tick(now);
        if now >= to {
            return watched.blocks_ended(true);
        }
        now = (now + every).min(to);
    }
}

/// Replays the requests of a run; `None` if it has none.
pub fn of_requests(
    file: &BudgetFile,
    every: Span,
    alerts: &AlertSpec,
    mut rows: Vec<Attempt>,
    keep: Option<&mut Keep<'_>>,
) -> Option<ReplayFinding> {
    rows.sort_by_key(ended);
    let from = rows.iter().map(|row| row.due).min()?;
    let to = rows.last().map(ended)?.max(from + Span(1));
    let spec = BudgetWatchSpec { every, window: to - from + every };
    let watched = BudgetWatch::new(file.clone(), spec).of_requests(alerts.clone(), from);
    let watched = if keep.is_some() { watched.recording() } else { watched };
    let mut rows = rows.into_iter().peekable();
    Some(go(watched, (from, to), (every, keep), |watched, now| {
        watched.take(std::iter::from_fn(|| rows.next_if(|row| ended(row) <= now)));
    }))
}

/// Replays the scrapes of a run; `None` if it has none. Endpoints that were scraped less often than `every` are
/// evaluated at their scrape interval.
pub fn of_pages(
    file: &BudgetFile,
    every: Span,
    alerts: &AlertSpec,
    samples: &[Sample],
    keep: Option<&mut Keep<'_>>,
) -> Option<ReplayFinding> {
    let (samples, every, (from, to)) = of_servers(samples, every)?;
    let spec = BudgetWatchSpec { every, window: to - from + every };
    let watched = BudgetWatch::new(file.clone(), spec).alerting(alerts.clone());
    let mut samples = samples.into_iter().peekable();
    Some(go(watched, (from, to), (every, keep), |watched, now| {
        while let Some(sample) = samples.next_if(|sample| sample.at <= now) {
            watched.push(&sample);
        }
    }))
}

/// Returns the scrapes in order of time, the tick interval, and the time range.
fn of_servers(samples: &[Sample], every: Span) -> Option<(Vec<Sample>, Span, (At, At))> {
    let mut samples: Vec<Sample> =
        samples.iter().filter(|sample| sample.source != "client").cloned().collect();
    let side = ServerSide::read(&samples);
    if side.is_empty() {
        return None;
    }
    let every = every.max(side.cadence().unwrap_or(every));
    samples.sort_by_key(|sample| sample.at);
    let (from, to) = (samples.first()?.at, samples.last()?.at);
    Some((samples, every, (from, to)))
}

/// Ticks from one instant to another; data up to a tick is passed in before it.
fn go(
    mut watched: BudgetWatch,
    (from, to): (At, At),
    (every, mut keep): (Span, Option<&mut Keep<'_>>),
    mut come: impl FnMut(&mut BudgetWatch, At),
) -> ReplayFinding {
    let (mut now, mut alerts) = (from, Vec::new());
    loop {
        come(&mut watched, now);
        watched.tick(now);
        if let Some((keep, window)) = keep.as_mut().zip(watched.fired(now)) {
            let run = keep(window);
            watched.recorded(now, &run);
        }
        note(&mut alerts, &watched);
        if now >= to {
            break;
        }
        now = (now + every).min(to);
    }
    ReplayFinding {
        every_s: every.as_secs_f64(),
        watched_s: (to - from).as_secs_f64(),
        alerts,
        rows: watched.finding(now).rows,
    }
}

/// Keeps the last state of each alert, because a watch forgets alerts that were resolved long ago. The watchdog is
/// left out because it concerns the watch itself.
fn note(told: &mut Vec<Alert>, watched: &BudgetWatch) {
    for alert in watched.alerts().into_iter().rev().filter(|alert| alert.kind != AlertKind::Watchdog) {
        match told.iter_mut().rev().find(|before| before.id == alert.id) {
            Some(before) => *before = alert,
            None => told.push(alert),
        }
    }
}
