//! Which alerts stand: what is seen at each tick goes in, and what fires or is resolved comes out.
//!
//! While no page answers, alerts of rows neither fire nor resolve, because nothing is known of them; the lost source is the alert.

use std::collections::{HashMap, VecDeque};

use plimsoll_judge::budget::BudgetFile;
use plimsoll_model::{At, Span};

use super::detect::threshold;
use super::row::{BLOCK, RowWatch, evidence};
use super::{Alert, AlertKind, AlertSpec, AlertState};
use crate::rows::{self, Source};
use crate::window::Block;

/// Resolved alerts that are remembered.
const PAST: usize = 200;
/// A row whose signal is missing for so long, and traffic that is missing for so long, are told.
const ABSENT: Span = Span::from_secs(600);
const SILENT: Span = Span::from_secs(600);
/// The queue is a mean over so long.
const QUEUE: Span = Span::from_secs(60);

/// What is seen at a tick.
pub(crate) struct Seen<'a> {
    pub now: At,
    /// What came since the last tick; None = no page answered.
    pub block: Option<&'a Block>,
    /// Pages that do not answer, of so many.
    pub lost: &'a [String],
    pub pages: usize,
    /// Replicas of which nothing moves, and for how long, s.
    pub stalled: &'a [(String, f64)],
}

/// Requests that waited per replica over so long, by the gauge and by queue times.
#[derive(Copy, Clone, Debug)]
struct Waited {
    length: Span,
    gauge: f64,
    little: f64,
}

/// All alerts of a watch.
#[derive(Clone, Debug)]
pub struct Board {
    spec: AlertSpec,
    alpha: f64,
    block_s: f64,
    rows: Vec<Option<RowWatch>>,
    words: Vec<(String, String)>,
    standing: Vec<Alert>,
    past: VecDeque<Alert>,
    number: u64,
    /// Since when something is so, of what takes a while to be an alert.
    since: HashMap<(AlertKind, String), At>,
    queue: VecDeque<Waited>,
    asked: bool,
}

impl Board {
    /// Nothing seen yet.
    pub fn new(file: &BudgetFile, spec: AlertSpec, every: Span) -> Board {
        let row = |budget: &plimsoll_judge::budget::Budget| {
            let allowed = rows::allowed(budget);
            let is_counted = !matches!(rows::source(budget), Source::Nothing(_));
            // Nothing can be bet against "all may be over", and "none may be over" needs no evidence but one.
            (is_counted && allowed < 1.0).then(|| RowWatch::new(allowed.max(1e-9), every))
        };
        Board {
            spec,
            alpha: file.policy.alpha,
            block_s: BLOCK.max(every).as_secs_f64(),
            rows: file.budgets.iter().map(row).collect(),
            words: file.budgets.iter().map(|budget| (budget.id.clone(), rows::words(budget))).collect(),
            standing: Vec::new(),
            past: VecDeque::new(),
            number: 0,
            since: HashMap::new(),
            queue: VecDeque::new(),
            asked: false,
        }
    }

    /// Those that stand, and the last that were resolved, the newest first.
    pub fn alerts(&self) -> Vec<Alert> {
        let standing = self.standing.iter().rev().cloned();
        standing.chain(self.past.iter().rev().cloned()).collect()
    }

    /// The alerts that stand, to be given a diagnosis.
    pub(crate) fn standing(&mut self) -> &mut [Alert] {
        &mut self.standing
    }

    pub(crate) fn step(&mut self, seen: &Seen<'_>) {
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
        self.traffic(block, seen.now);
    }

    fn rows(&mut self, block: &Block, now: At) {
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
                    let said = evidence(words, found, now, row.allowed);
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
            (
                since,
                format!("{words}: for {:.0} s no page has had a signal for it", (now - since).as_secs_f64()),
            )
        });
        self.hold(AlertKind::Absent, id, Some(id), now, found);
    }

    /// A lost page each; where more than half are lost, one alert and not n.
    fn sources(&mut self, seen: &Seen<'_>) {
        let most = 2 * seen.lost.len() > seen.pages && seen.pages > 1;
        let said =
            format!("{} of {} pages do not answer: nothing is known of them", seen.lost.len(), seen.pages);
        self.hold(AlertKind::SourceLost, "fleet", None, seen.now, most.then_some((seen.now, said)));
        let each = if most { &[] } else { seen.lost };
        self.each(
            AlertKind::SourceLost,
            each.iter().map(|page| {
                let name = if page.is_empty() { "the page" } else { page };
                (name.to_owned(), 0.0, format!("{name} does not answer: nothing is known of it"))
            }),
            seen.now,
        );
    }

    fn stalled(&mut self, seen: &Seen<'_>) {
        self.each(
            AlertKind::Stalled,
            seen.stalled.iter().map(|(name, seconds)| {
                let said = format!(
                    "{name} has requests running, and for {seconds:.0} s none of its counters has moved"
                );
                (name.clone(), *seconds, said)
            }),
            seen.now,
        );
    }

    /// One alert for each of these, and none for those that are not among them any more.
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

    fn queue(&mut self, block: &Block, now: At) {
        let (Some(target), Some(waiting)) = (self.spec.queue_per_replica, block.waiting) else { return };
        let little = block.waiting_by_little.unwrap_or(0.0);
        self.queue.push_back(Waited { length: block.length, gauge: waiting, little });
        let known = |queue: &VecDeque<Waited>| queue.iter().map(|part| part.length.0).sum::<i64>();
        while self.queue.front().is_some_and(|oldest| known(&self.queue) - oldest.length.0 >= QUEUE.0) {
            self.queue.pop_front();
        }
        let known = known(&self.queue);
        if known < QUEUE.0 {
            return;
        }
        let mean = |of: fn(&Waited) -> f64| {
            self.queue.iter().map(|part| part.length.0 as f64 * of(part)).sum::<f64>() / known as f64
        };
        let (gauge, little) = (mean(|part| part.gauge), mean(|part| part.little));
        let number = plimsoll_measure::say::number;
        let said = format!(
            "over the last minute {} requests waited per replica by the pages' gauge and {} by their queue times, {} may",
            number(gauge),
            number(little),
            number(target)
        );
        let found = (gauge.max(little) > target).then(|| (now - Span(known), said));
        self.hold(AlertKind::QueueOverTarget, "fleet", None, now, found);
    }

    /// Nobody asks any more: only where somebody did.
    fn traffic(&mut self, block: &Block, now: At) {
        let Some(finished) = block.finished else { return };
        let is_silent = finished <= 0.0 && block.rows.iter().flatten().all(|row| row.n == 0);
        self.asked |= !is_silent;
        let is_silent = is_silent && self.asked;
        let found = self.lasts(AlertKind::NoTraffic, "fleet", is_silent, now, SILENT);
        let found = found.map(|since| {
            (since, format!("no request ended in {:.0} s: no row can be judged", (now - since).as_secs_f64()))
        });
        self.hold(AlertKind::NoTraffic, "fleet", None, now, found);
    }

    /// Since when it is so, where that is long enough ago.
    fn lasts(&mut self, kind: AlertKind, about: &str, is_so: bool, now: At, least: Span) -> Option<At> {
        let key = (kind, about.to_owned());
        if !is_so {
            self.since.remove(&key);
            return None;
        }
        let since = *self.since.entry(key).or_insert(now);
        (now - since >= least).then_some(since)
    }

    /// It is so, since then and for this reason, or it is not.
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
                self.past.push_back(Alert {
                    state: AlertState::Resolved,
                    resolved_s: Some(seconds(now)),
                    ..alert
                });
                if self.past.len() > PAST {
                    self.past.pop_front();
                }
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
                    diagnosis: None,
                });
            }
            (None, None) => {}
        }
    }
}

fn seconds(at: At) -> f64 {
    at.0 as f64 / 1e9
}

fn at(seconds: f64) -> At {
    At((seconds * 1e9) as i64)
}

fn span_words(seconds: i64) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s => format!("{} h", s / 3600),
    }
}
