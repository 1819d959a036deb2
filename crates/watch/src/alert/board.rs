//! The alerts of a watch: the facts of each tick go in, fired and resolved alerts come out.
//!
//! While no metrics endpoint responds, alerts of rows neither fire nor resolve, because their state is unknown. The
//! lost source is the alert.

use std::collections::{HashMap, VecDeque};

use plimsoll_model::{At, Span};

use super::burn::{Minute, span_words};
use super::cold::ColdStarts;
use super::detect::threshold;
use super::doubled::TtftRegression;
use super::row::{BLOCK, RowWatch, evidence};
use super::{Alert, AlertDiagnosis, AlertKind, AlertSpec, AlertState};
use crate::counts::TickBlock;
use crate::finding::ReplicaNow;
use crate::fleet::{FleetView, by};
use crate::source::{LiveRow, LiveRows};

/// Number of resolved alerts that are kept.
pub const PAST: usize = 200;
/// Time after which a missing signal of a row, or missing traffic, is an alert.
const ABSENT: Span = Span::from_secs(600);
const SILENT: Span = Span::from_secs(600);
/// Averaging time of the queue length.
const QUEUE: Span = Span::from_secs(60);

pub(crate) struct TickFacts<'a> {
    pub now: At,
    /// Counters since the last tick; `None` if no endpoint responded.
    pub block: Option<&'a TickBlock>,
    pub fleet: &'a FleetView,
}

/// The state that a watch leaves to the next one: its alerts and counts, on the next one's clock.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct BoardState {
    /// Firing alerts, and the last resolved ones, oldest first.
    pub alerts: Vec<Alert>,
    /// Row ids with the counts of a minute, oldest first.
    pub minutes: Vec<(String, Minute)>,
}

/// Waiting requests per replica over an interval, by the gauge and by queue times.
#[derive(Copy, Clone, Debug)]
struct QueueInterval {
    length: Span,
    gauge: f64,
    little: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct AlertBoard {
    spec: AlertSpec,
    alpha: f64,
    block_s: f64,
    rows: Vec<Option<RowWatch>>,
    words: Vec<(String, String)>,
    /// Set if requests are watched instead of metrics endpoints.
    of_requests: bool,
    standing: Vec<Alert>,
    past: VecDeque<Alert>,
    number: u64,
    /// Start of each condition that must last before it is an alert.
    since: HashMap<(AlertKind, String), At>,
    queue: VecDeque<QueueInterval>,
    doubled: TtftRegression,
    pub(crate) cold: ColdStarts,
    asked: bool,
}

impl AlertBoard {
    pub(crate) fn new(live: &LiveRows, spec: AlertSpec, every: Span) -> AlertBoard {
        // A bet against "all may exceed" is impossible, and "none may exceed" needs a single observation only.
        let row = |row: &LiveRow| {
            (row.is_count() && row.allowed() < 1.0)
                .then(|| RowWatch::new(row.allowed().max(1e-9), row.counted().1, every, spec.pairs()))
        };
        let rows = live.rows.iter().map(row).collect();
        AlertBoard {
            spec,
            alpha: live.alpha,
            block_s: BLOCK.max(every).as_secs_f64(),
            rows,
            words: live.rows.iter().map(|row| (row.plan.row.id.clone(), row.plan.words())).collect(),
            of_requests: live.of_requests,
            standing: Vec::new(),
            past: VecDeque::new(),
            number: 0,
            since: HashMap::new(),
            queue: VecDeque::new(),
            doubled: TtftRegression::default(),
            cold: ColdStarts::default(),
            asked: false,
        }
    }

    /// Returns the firing alerts, and the last resolved ones, newest first.
    pub fn alerts(&self) -> Vec<Alert> {
        let standing = self.standing.iter().rev().cloned();
        standing.chain(self.past.iter().rev().cloned()).collect()
    }

    /// Returns the earliest start of the alerts that fired at this instant and need a diagnosis; `None` if there are
    /// none.
    pub(crate) fn undiagnosed(&self, now: At) -> Option<At> {
        let new = self.standing.iter().filter(|alert| alert.is_new(now));
        new.map(|alert| at(alert.since_s)).min()
    }

    /// Returns the alerts that fired at this instant and need a recorded window.
    pub(crate) fn fired(&self, now: At) -> Vec<Alert> {
        let is_new = |alert: &&Alert| alert.kind.has_window() && alert.fired_s == seconds(now);
        self.standing.iter().filter(is_new).filter(|alert| alert.run.is_none()).cloned().collect()
    }

    /// Sets the run folder of the window in the alerts that fired at this instant.
    pub(crate) fn recorded(&mut self, now: At, run: &str) {
        let is_new = |alert: &&mut Alert| alert.kind.has_window() && alert.fired_s == seconds(now);
        self.standing.iter_mut().filter(is_new).for_each(|alert| alert.run = Some(run.to_owned()));
    }

    /// Returns the range of the last healthy period, without latency or failure alerts.
    pub(crate) fn good(&self) -> (At, At) {
        let past = self.past.iter().filter(|alert| alert.kind.is_diagnosed());
        let from = past.filter_map(|alert| alert.resolved_s).fold(f64::NEG_INFINITY, f64::max);
        let standing = self.standing.iter().filter(|alert| alert.kind.is_diagnosed());
        let until = standing.map(|alert| alert.since_s).fold(f64::INFINITY, f64::min);
        (at(from.max(-1e9)), at(until.min(1e9)))
    }

    /// Sets the diagnosis of the alerts that fired at this instant. They share one cause to the extent that metrics
    /// endpoints show it.
    pub(crate) fn diagnosed(&mut self, now: At, diagnosis: &AlertDiagnosis) {
        for alert in self.standing.iter_mut().filter(|alert| alert.is_new(now)) {
            alert.diagnosis = Some(Box::new(diagnosis.clone()));
            if !diagnosis.do_first.is_empty() {
                alert.do_first.clone_from(&diagnosis.do_first);
            }
        }
    }

    /// Resumes an earlier watch. Firing alerts stay until they are seen to be over; alerts that this watch no longer
    /// evaluates are resolved now.
    pub(crate) fn resume(&mut self, kept: BoardState, now: At) {
        let number = |alert: &Alert| -> Option<u64> { alert.id.rsplit('/').next()?.parse().ok() };
        self.number = kept.alerts.iter().filter_map(number).max().unwrap_or(0);
        for mut alert in kept.alerts {
            // Alerts of an older version have no first step, and no other text is displayed.
            alert.do_first = alert.first_step().to_owned();
            match alert.stands() && self.is_watched(&alert) {
                true => self.standing.push(alert),
                false => self.past(alert, now),
            }
        }
        self.asked = self.standing.iter().any(|alert| alert.kind == AlertKind::NoTraffic);
        for (row, (id, _)) in self.rows.iter_mut().zip(&self.words) {
            let minutes = kept.minutes.iter().filter(|(of, _)| of == id).map(|(_, minute)| *minute);
            row.iter_mut().for_each(|row| row.burn.resume(minutes.clone(), now));
        }
    }

    fn is_watched(&self, alert: &Alert) -> bool {
        let is_row = || {
            let mut rows = self.rows.iter().zip(&self.words);
            rows.any(|(row, (id, _))| row.is_some() && *id == alert.about)
        };
        match alert.kind {
            AlertKind::CeilingBroken | AlertKind::BurnRate | AlertKind::Absent => is_row(),
            AlertKind::QueueOverTarget => self.spec.queue_per_replica.is_some(),
            _ => true,
        }
    }

    pub(crate) fn minutes_after(&self, at: At) -> Vec<(String, Minute)> {
        let rows = self.rows.iter().zip(&self.words).filter_map(|(row, (id, _))| Some((row.as_ref()?, id)));
        rows.flat_map(|(row, id)| row.burn.closed_after(at).map(move |minute| (id.clone(), minute))).collect()
    }

    pub(crate) fn step(&mut self, seen: &TickFacts<'_>) {
        self.hold(
            AlertKind::Watchdog,
            "watch",
            None,
            seen.now,
            Some((seen.now, "the watch runs".to_owned())),
        );
        self.sources(seen);
        self.stalled(seen);
        let Some(block) = seen.block else { return };
        self.rows(block, seen.now);
        self.queue(block, seen.now);
        self.first_tokens(block, seen.now);
        self.starts(block, seen);
        self.traffic(block, seen.now);
    }

    fn rows(&mut self, block: &TickBlock, now: At) {
        let judged = self.rows.iter().flatten().count();
        let threshold = threshold(self.block_s, judged, self.spec.false_alarms);
        for place in 0..self.rows.len() {
            let Some(mut row) = self.rows[place].take() else { continue };
            let (id, words) = self.words[place].clone();
            self.absent(&id, &words, block.rows[place].is_none(), now);
            if let Some(over) = block.rows[place] {
                row.push(block.at - block.length, block.at, over);
                self.ceiling((&id, &words), &mut row, threshold, now);
                let burns = row.burn.proven(now, row.allowed).map(|(pair, share)| {
                    let pace = share / row.allowed;
                    let said = format!(
                        "{words}: over the last {} the allowance is used up {pace:.1} times as fast as in 30 days",
                        span_words(pair.long_s)
                    );
                    (now - Span::from_secs(pair.short_s), said)
                });
                self.hold(AlertKind::BurnRate, &id, Some(&id), now, burns);
            }
            self.rows[place] = Some(row);
        }
    }

    fn ceiling(&mut self, (id, words): (&str, &str), row: &mut RowWatch, threshold: f64, now: At) {
        let standing = self.standing.iter().find(|a| a.kind == AlertKind::CeilingBroken && a.about == id);
        match standing.map(|alert| at(alert.fired_s)) {
            None => {
                if let Some(found) = row.broken(now, threshold) {
                    let said = evidence(words, found, now, row);
                    self.hold(AlertKind::CeilingBroken, id, Some(id), now, Some((found.0, said)));
                }
            }
            Some(fired) if row.holds_since(fired, self.alpha) => {
                self.hold(AlertKind::CeilingBroken, id, Some(id), now, None);
                row.begin_again();
            }
            Some(_) => {}
        }
    }

    fn absent(&mut self, id: &str, words: &str, is_absent: bool, now: At) {
        let found = self.lasts(AlertKind::Absent, id, is_absent, now, ABSENT).map(|since| {
            (since, format!("{words}: no metrics for it in {:.0} s", (now - since).as_secs_f64()))
        });
        self.hold(AlertKind::Absent, id, Some(id), now, found);
    }

    /// Sets an alert per lost endpoint; if more than half are lost, a single one.
    fn sources(&mut self, seen: &TickFacts<'_>) {
        let FleetView { lost, pages, .. } = seen.fleet;
        let most = 2 * lost.len() > *pages && *pages > 1;
        let said =
            format!("{} of {pages} pages do not answer{}; their state is unknown", lost.len(), by(lost));
        self.hold(AlertKind::SourceLost, "fleet", None, seen.now, most.then_some((seen.now, said)));
        let each = if most { &[] } else { &lost[..] };
        self.each(
            AlertKind::SourceLost,
            each.iter().map(|page| {
                let name = if page.name.is_empty() { "the page" } else { &page.name };
                let by = by(std::slice::from_ref(page));
                (name.to_owned(), 0.0, format!("{name} does not answer{by}; its state is unknown"))
            }),
            seen.now,
        );
    }

    fn stalled(&mut self, seen: &TickFacts<'_>) {
        let replicas = &seen.fleet.replicas;
        let stalled = replicas.iter().filter_map(|ReplicaNow { name, stalled_s, .. }| {
            let seconds = (*stalled_s)?;
            let said =
                format!("{name} has requests running, and for {seconds:.0} s none of its counters has moved");
            Some((name.clone(), seconds, said))
        });
        // The state of a replica is unknown while its endpoint fails, so its alert stays.
        let is_silent = |name: &str| replicas.iter().any(|replica| !replica.answers && replica.name == name);
        let frozen = |alert: &&Alert| alert.kind == AlertKind::Stalled && is_silent(&alert.about);
        let frozen = self.standing.iter().filter(frozen);
        let frozen = frozen.map(|alert| (alert.about.clone(), 0.0, alert.evidence.clone()));
        let all: Vec<_> = stalled.chain(frozen).collect();
        self.each(AlertKind::Stalled, all.into_iter(), seen.now);
    }

    /// Sets one alert for each entry, and resolves the alerts of other entries.
    fn each(&mut self, kind: AlertKind, found: impl Iterator<Item = (String, f64, String)>, now: At) {
        let found: Vec<_> = found.collect();
        let gone = |alert: &&Alert| {
            alert.kind == kind
                && alert.about != "fleet"
                && !found.iter().any(|(about, ..)| *about == alert.about)
        };
        let gone: Vec<String> = self.standing.iter().filter(gone).map(|alert| alert.about.clone()).collect();
        gone.iter().for_each(|about| self.hold(kind, about, None, now, None));
        for (about, seconds, said) in found {
            let since = now - Span((seconds * 1e9) as i64);
            self.hold(kind, &about, None, now, Some((since, said)));
        }
    }

    fn queue(&mut self, block: &TickBlock, now: At) {
        let (Some(target), Some(waiting)) = (self.spec.queue_per_replica, block.waiting) else { return };
        let little = block.waiting_by_little;
        self.queue.push_back(QueueInterval { length: block.length, gauge: waiting, little });
        let known = |queue: &VecDeque<QueueInterval>| queue.iter().map(|part| part.length.0).sum::<i64>();
        while self.queue.front().is_some_and(|oldest| known(&self.queue) - oldest.length.0 >= QUEUE.0) {
            self.queue.pop_front();
        }
        let known = known(&self.queue);
        if known < QUEUE.0 {
            return;
        }
        let mean = |of: fn(&QueueInterval) -> Option<f64>| -> Option<f64> {
            let parts = self.queue.iter().map(|part| Some(part.length.0 as f64 * of(part)?));
            Some(parts.sum::<Option<f64>>()? / known as f64)
        };
        let (gauge, little) = (mean(|part| Some(part.gauge)).unwrap_or(0.0), mean(|part| part.little));
        let number = plimsoll_measure::say::number;
        // An endpoint without queue times has no value by Little's law.
        let by_little = little.map_or(String::new(), |l| format!(" and {} by their queue times", number(l)));
        let said = format!(
            "over the last minute {} requests waited per replica by the metrics{by_little}; the limit is {}",
            number(gauge),
            number(target)
        );
        let found = (gauge.max(little.unwrap_or(0.0)) > target).then(|| (now - Span(known), said));
        self.hold(AlertKind::QueueOverTarget, "fleet", None, now, found);
    }

    /// Compares times to first token with a healthy hour; a firing alert keeps its reason.
    fn first_tokens(&mut self, block: &TickBlock, now: At) {
        let Some(first) = &block.first else { return };
        let good = !self.standing.iter().any(|alert| alert.kind.is_diagnosed());
        let by = (good, self.alpha, self.spec.false_alarms);
        let found = self.doubled.step((block.at - block.length, block.at), first, by);
        let stands = self.standing.iter().find(|alert| alert.kind == AlertKind::TtftDoubled);
        let said = stands.map(|alert| alert.evidence.clone());
        let found = found.map(|(since, says)| (since, said.unwrap_or(says)));
        self.hold(AlertKind::TtftDoubled, "fleet", None, now, found);
    }

    /// Sets the alert on more starts since a deploy; it stays until no replica has started for a while.
    fn starts(&mut self, block: &TickBlock, seen: &TickFacts<'_>) {
        let found = self.cold.step(seen.now, block.length, &seen.fleet.present);
        let stands = self.standing.iter().find(|alert| alert.kind == AlertKind::ColdStarts);
        let stands = stands.filter(|_| !self.cold.is_quiet(seen.now));
        let found = found.or_else(|| stands.map(|alert| (at(alert.since_s), alert.evidence.clone())));
        self.hold(AlertKind::ColdStarts, "fleet", None, seen.now, found);
    }

    /// Sets the alert on missing traffic, if there was traffic before.
    fn traffic(&mut self, block: &TickBlock, now: At) {
        let Some(finished) = block.finished else { return };
        let ended = finished > 0.0 || block.cancelled > 0;
        let is_silent = !ended && block.rows.iter().flatten().all(|row| row.n == 0);
        self.asked |= !is_silent;
        let is_silent = is_silent && self.asked;
        let found = self.lasts(AlertKind::NoTraffic, "fleet", is_silent, now, SILENT);
        let found = found.map(|since| {
            (
                since,
                format!("no request ended in {:.0} s: no row can be evaluated", (now - since).as_secs_f64()),
            )
        });
        self.hold(AlertKind::NoTraffic, "fleet", None, now, found);
    }

    /// Returns the start of the condition, if it has lasted for `least`.
    fn lasts(&mut self, kind: AlertKind, about: &str, is_so: bool, now: At, least: Span) -> Option<At> {
        let key = (kind, about.to_owned());
        if !is_so {
            self.since.remove(&key);
            return None;
        }
        if let Some(stands) = self.standing.iter().find(|alert| alert.kind == kind && alert.about == about) {
            return Some(at(stands.since_s));
        }
        let since = *self.since.entry(key).or_insert(now);
        (now - since >= least).then_some(since)
    }

    /// Fires or keeps the alert if the condition is true, and resolves it otherwise.
    fn hold(
        &mut self,
        kind: AlertKind,
        about: &str,
        row: Option<&str>,
        now: At,
        found: Option<(At, String)>,
    ) {
        let place = self.standing.iter().position(|alert| alert.kind == kind && alert.about == about);
        match (place, found) {
            (Some(place), Some((_, said))) => self.standing[place].evidence = said,
            (Some(place), None) => {
                let alert = self.standing.remove(place);
                self.past(alert, now);
            }
            (None, Some((since, evidence))) => {
                self.number += 1;
                self.standing.push(Alert {
                    id: format!("{}/{about}/{}", kind.name(), self.number),
                    kind,
                    about: about.to_owned(),
                    row: row.map(str::to_owned),
                    state: AlertState::Firing,
                    since_s: seconds(since),
                    fired_s: seconds(now),
                    resolved_s: None,
                    evidence,
                    do_first: kind.first_step(self.of_requests).to_owned(),
                    diagnosis: None,
                    run: None,
                });
            }
            (None, None) => {}
        }
    }

    /// Resolves an alert, now unless it ended before.
    fn past(&mut self, alert: Alert, now: At) {
        let resolved_s = alert.resolved_s.or(Some(seconds(now)));
        self.past.push_back(Alert { state: AlertState::Resolved, resolved_s, ..alert });
        if self.past.len() > PAST {
            self.past.pop_front();
        }
    }
}

pub(super) fn seconds(at: At) -> f64 {
    at.0 as f64 / 1e9
}

pub(crate) fn at(seconds: f64) -> At {
    At((seconds * 1e9) as i64)
}
