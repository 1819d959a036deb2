//! A finished run under a watch, in virtual time: what would have alerted, and when. The watch is the live one; only its clock is the run's.
//!
//! Requests come at the instant at which they ended, as from a run that is being written, and pages as they were read. Verdicts look back over the
//! whole run, so that they are about the same requests as a gate's; alerts have windows of their own and are those of a live watch.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::ServerSide;
use plimsoll_model::{At, Attempt, Sample, Span};
use serde::{Deserialize, Serialize};

use crate::history::HistoryBlock;
use crate::record::{AlertWindow, ended};
use crate::{Alert, AlertKind, AlertSpec, WatchRow, WatchSpec, Watched};

/// What a watch would have said of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Replayed {
    /// How often it looked, s.
    pub every_s: f64,
    /// How long there was something to see, s.
    pub watched_s: f64,
    /// Alerts in the order in which they fired, in seconds of the run.
    pub alerts: Vec<Alert>,
    /// The budget's rows over all of it.
    pub rows: Vec<WatchRow>,
}

/// Keeps the window of alerts, and says in which run folder.
pub type Keep<'a> = dyn FnMut(AlertWindow) -> String + 'a;

/// The history of a run: what its pages counted, in blocks. `wall_ns`: the run's beginning on the wall clock, ns since 1970.
pub fn history(file: &BudgetFile, every: Span, samples: &[Sample], wall_ns: i64) -> Vec<HistoryBlock> {
    let Some((samples, every, (from, to))) = of_servers(samples, every) else { return Vec::new() };
    let mut watched = Watched::new(file.clone(), WatchSpec { every, window: every }).keeping(wall_ns);
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

/// Replays the requests of a run; `None` where it has none.
pub fn of_requests(
    file: &BudgetFile,
    every: Span,
    alerts: &AlertSpec,
    mut rows: Vec<Attempt>,
    keep: Option<&mut Keep<'_>>,
) -> Option<Replayed> {
    rows.sort_by_key(ended);
    let from = rows.iter().map(|row| row.due).min()?;
    let to = rows.last().map(ended)?.max(from + Span(1));
    let spec = WatchSpec { every, window: to - from + every };
    let watched = Watched::new(file.clone(), spec).of_requests(alerts.clone(), from);
    let watched = if keep.is_some() { watched.recording() } else { watched };
    let mut rows = rows.into_iter().peekable();
    Some(go(watched, (from, to), (every, keep), |watched, now| {
        watched.take(std::iter::from_fn(|| rows.next_if(|row| ended(row) <= now)));
    }))
}

/// Replays what servers' pages said during a run; `None` where nobody read one. A page that was read less often than asked for is looked at as
/// often as it was read.
pub fn of_pages(
    file: &BudgetFile,
    every: Span,
    alerts: &AlertSpec,
    samples: &[Sample],
    keep: Option<&mut Keep<'_>>,
) -> Option<Replayed> {
    let (samples, every, (from, to)) = of_servers(samples, every)?;
    let spec = WatchSpec { every, window: to - from + every };
    let watched = Watched::new(file.clone(), spec).alerting(alerts.clone());
    let mut samples = samples.into_iter().peekable();
    Some(go(watched, (from, to), (every, keep), |watched, now| {
        while let Some(sample) = samples.next_if(|sample| sample.at <= now) {
            watched.push(&sample);
        }
    }))
}

/// What servers said, in order of time, how often it is looked at, and from when to when.
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

/// Ticks from one instant to another; what has come until a tick is handed over before it.
fn go(
    mut watched: Watched,
    (from, to): (At, At),
    (every, mut keep): (Span, Option<&mut Keep<'_>>),
    mut come: impl FnMut(&mut Watched, At),
) -> Replayed {
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
    Replayed {
        every_s: every.as_secs_f64(),
        watched_s: (to - from).as_secs_f64(),
        alerts,
        rows: watched.finding(now).rows,
    }
}

/// Each alert once, as it was last; a watch forgets those that were resolved long ago. The watchdog is about the watch itself.
fn note(told: &mut Vec<Alert>, watched: &Watched) {
    for alert in watched.alerts().into_iter().rev().filter(|alert| alert.kind != AlertKind::Watchdog) {
        match told.iter_mut().rev().find(|before| before.id == alert.id) {
            Some(before) => *before = alert,
            None => told.push(alert),
        }
    }
}
