//! The counters of each metrics endpoint between successful scrapes: once per scrape, at the time of the scrape,
//! regardless of the tick.
//!
//! The last values of each endpoint are kept ([`crate::page_state`]), together with the state of its replicas.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use plimsoll_diagnose::gauges::STALLED;
use plimsoll_measure::server_side::table::{SignalLayer, SignalPart};
use plimsoll_measure::server_side::{GaugeSeries, PageLayout, ServerSide, Signal};
use plimsoll_model::{At, SeriesName, Span};

use crate::alert::cold::ReplicaPresence;
use crate::counts::TickCounts;
use crate::finding::ReplicaNow;
use crate::fleet::{FleetView, LostPage};
use crate::history::{KeptSignal, gather};
use crate::lint::counts_failures;
use crate::page_state::{Layouts, PageState, ScrapeDelta};
use crate::source::LiveRows;

/// Number of scrape intervals without success after which an endpoint is lost, because a scrape may be slow.
const LOST_AFTER: i64 = 3;
const LOST_AT_LEAST: Span = Span::from_secs(2);
/// Stall limit like [`STALLED`] for an endpoint without token counters, which shows no progress during long
/// responses.
const STALLED_WITHOUT_TOKENS: Span = Span::from_secs(600);
/// Maximum stored length of a reason, because an endpoint's response may have any length and the reason goes into
/// alerts.
const WHY: usize = 300;

/// Counters that rise while a replica computes.
const COUNTERS: [Signal; 4] = [Signal::Finished, Signal::OutputTokens, Signal::PromptTokens, Signal::Steps];

#[derive(Clone, Default, Debug)]
pub(crate) struct Pages {
    pages: BTreeMap<String, Page>,
    layouts: Layouts,
    /// Time of the last progress of replicas that an earlier watch called stalled.
    stood: HashMap<String, At>,
}

#[derive(Clone, Default, Debug)]
struct Page {
    tried: Option<At>,
    /// Error of the last scrape; empty after a success.
    why: String,
    scraped: PageState,
    /// Time after which the endpoint is lost, if its sender sets one; else `None`.
    patience: Option<Span>,
    replicas: Vec<ReplicaState>,
    /// Gauge values for the history; empty without a history.
    gauges: Vec<(KeptSignal, f64)>,
}

/// A replica at its last successful scrape.
#[derive(Clone, Debug)]
struct ReplicaState {
    seen: ReplicaPresence,
    running: Option<f64>,
    waiting: Option<f64>,
    kv_usage: Option<f64>,
    /// Time at which a counter last rose, or the replica was last idle.
    moved: At,
}

impl Pages {
    /// Returns the series of an endpoint and their last values.
    pub fn last(&self, page: &str) -> Option<(&Arc<[SeriesName]>, &[f64])> {
        self.pages.get(page)?.scraped.last()
    }

    /// Records that an earlier watch saw no progress of a replica since `since`.
    pub fn stood(&mut self, replica: String, since: At) {
        self.stood.insert(replica, since);
    }

    pub fn failed(&mut self, page: &str, at: At, mut why: String) {
        if let Some((end, _)) = why.char_indices().nth(WHY) {
            why.truncate(end);
        }
        let page = self.pages.entry(page.to_owned()).or_default();
        page.why = why;
        page.tried = page.tried.max(Some(at));
    }

    pub fn left(&mut self, page: &str) {
        self.pages.remove(page);
    }

    pub fn patience(&mut self, page: &str, patience: Span) {
        self.pages.entry(page.to_owned()).or_default().patience = Some(patience);
    }

    /// Processes a scrape: adds the gains since the scrape before. Returns `true` if the set of series changed.
    pub fn read(
        &mut self,
        name: &str,
        at: At,
        said: (Arc<[SeriesName]>, Vec<f64>),
        (rows, came): (&LiveRows, &mut TickCounts),
    ) -> bool {
        let page = self.pages.entry(name.to_owned()).or_default();
        page.tried = page.tried.max(Some(at));
        page.why.clear();
        let Some(step) = page.scraped.read(name, at, said, &mut self.layouts) else { return false };
        let ScrapeDelta { side, layout, from, is_other } = step;
        if let Some(from) = from {
            came.add(&side, &layout, (from, at), rows);
        }
        if came.keeps_all {
            page.gauges = gather::gauges(&side, &layout);
        }
        page.replicas = side
            .replicas()
            .iter()
            .enumerate()
            .map(|(number, replica)| {
                let before = page.replicas.iter().find(|before| before.seen.name == replica.name);
                let moved = before.map(|before| before.moved).or_else(|| self.stood.remove(&replica.name));
                state(&side, number, (from, at), moved)
            })
            .collect();
        came.restarts += page.replicas.iter().filter(|replica| replica.seen.fell).count() as u64;
        came.newest = came.newest.max(Some(at));
        is_other
    }

    /// Drops series that no endpoint exports any more, and the novelties of the last tick.
    pub(crate) fn ticked(&mut self) {
        self.layouts.forget();
        for replica in self.pages.values_mut().flat_map(|page| &mut page.replicas) {
            (replica.seen.fell, replica.seen.came) = (false, None);
        }
    }

    /// Returns the state of all endpoints, apart from counters.
    pub fn fleet(&self, now: At, every: Span) -> FleetView {
        let signals = self.layouts.each().flat_map(PageLayout::signals);
        let mut fleet = FleetView {
            pages: self.pages.len(),
            of_engines: signals.filter(|one| one.1 != SignalLayer::Gateway).map(|one| one.0).collect(),
            counts_failures: self
                .layouts
                .each()
                .any(|layout| counts_failures(|signal| layout.may_say(signal))),
            gateways: self.pages.values().filter(|page| page.replicas.is_empty()).count(),
            ..FleetView::default()
        };
        for (name, page) in &self.pages {
            let answers = !page.is_lost(now, every);
            if !answers {
                fleet.lost.push(LostPage { name: name.clone(), why: page.why.clone() });
            }
            for replica in &page.replicas {
                fleet.replicas.push(ReplicaNow {
                    name: replica.seen.name.clone(),
                    running: replica.running,
                    waiting: replica.waiting,
                    answers,
                    stalled_s: page.stalled_s(replica).filter(|_| answers),
                });
                if answers {
                    fleet.present.push(replica.seen.clone());
                    fleet.kv_usage = fleet.kv_usage.into_iter().chain(replica.kv_usage).reduce(f64::max);
                }
            }
        }
        fleet
    }

    /// Returns the combined gauges of the endpoints that respond; `answering` is their number of replicas.
    pub fn gauges(&self, (now, every): (At, Span), answering: usize) -> BTreeMap<KeptSignal, f64> {
        let pages = self.pages.values().filter(|page| !page.is_lost(now, every));
        gather::fleet(pages.map(|page| &page.gauges[..]), answering)
    }

    /// Returns the number of stored entries: endpoints, values, replicas, former series, layouts.
    pub fn size(&self) -> [usize; 5] {
        let sum = |of: fn(&Page) -> usize| self.pages.values().map(of).sum();
        [
            self.pages.len(),
            sum(|page| page.scraped.size()[0]),
            sum(|page| page.replicas.len()),
            sum(|page| page.scraped.size()[1]),
            self.layouts.len(),
        ]
    }
}

impl Page {
    fn is_lost(&self, now: At, every: Span) -> bool {
        let patience = Span(LOST_AFTER * every.0).max(LOST_AT_LEAST);
        let patience = self.patience.map_or(patience, |own| own.max(patience));
        self.scraped.good.is_none_or(|good| good < now - patience)
    }

    /// Returns the time without progress of a replica in s; `None` if it is not stalled.
    fn stalled_s(&self, replica: &ReplicaState) -> Option<f64> {
        replica.running.filter(|running| *running >= 1.0)?;
        let still = self.scraped.good? - replica.moved;
        let counts_tokens = self.scraped.layout().is_some_and(|layout| layout.has(Signal::OutputTokens));
        let least = if counts_tokens { STALLED } else { STALLED_WITHOUT_TOKENS };
        (still >= least).then(|| still.as_secs_f64())
    }
}

/// Returns the state of a replica at this scrape. `moved` is the time of its last progress.
fn state(
    side: &ServerSide,
    number: usize,
    (before, at): (Option<At>, At),
    moved: Option<At>,
) -> ReplicaState {
    let gained = |signal: &Signal| side.gained_of(number, *signal, before?, at);
    let gained: Vec<_> = COUNTERS.iter().filter_map(gained).collect();
    let level = |signal| level(side.gauge_of(number, signal));
    let stood = |signal, part| side.stood_of(number, signal, &part, at);
    let running = level(Signal::Running);
    let is_idle = running.is_none_or(|running| running < 1.0);
    // If output tokens are counted at the end of a response (SGLang), token gaps are counted continuously.
    let gaps = before.and_then(|before| side.histogram_of(number, Signal::Itl, before, at));
    let is_written = gaps.and_then(|gaps| gaps.count).is_some_and(|gaps| gaps > 0.0);
    let moves = is_idle || is_written || gained.iter().any(|gained| gained.value > 0.0);
    let came = before.and_then(|before| side.histogram_of(number, Signal::Ttft, before, at));
    ReplicaState {
        seen: ReplicaPresence {
            name: side.replicas()[number].name.clone(),
            began_s: level(Signal::StartTime),
            fell: gained.iter().any(|gained| gained.resets > 0),
            answered: stood(Signal::Finished, SignalPart::Counter),
            first: stood(Signal::Ttft, SignalPart::Sum).zip(stood(Signal::Ttft, SignalPart::Count)),
            came: came.and_then(|came| came.sum.zip(came.count)),
        },
        running,
        waiting: level(Signal::Waiting),
        kv_usage: level(Signal::KvUsage),
        moved: moved.filter(|_| !moves).unwrap_or(at),
    }
}

fn level(series: Option<GaugeSeries>) -> Option<f64> {
    series.and_then(|series| series.steps.last().map(|step| step.value))
}
