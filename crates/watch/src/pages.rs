//! Each page by itself: what it counted from one good scrape to the next, once per scrape and at the scrape's own instant, whenever that is told.
//!
//! Of a page its last values are kept ([`crate::scraped`]), and what its replicas are doing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use plimsoll_diagnose::gauges::STALLED;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::table::SignalPart;
use plimsoll_measure::server_side::{PageLayout, Series, ServerSide, Signal};
use plimsoll_model::{At, SeriesName, Span};

use crate::alert::cold::ReplicaSeen;
use crate::came::{Around, Came, GAINED, Teller};
use crate::finding::ReplicaNow;
use crate::history::{KeptSignal, gather};
use crate::lint::counts_failures;
use crate::over::{OverCount, over};
use crate::rows::{self, RowSource};
use crate::scraped::{Layouts, Scraped, Step};

/// A page without a good scrape for so many cadences is lost, and never sooner than this: a scrape may be slow.
const LOST_AFTER: i64 = 3;
const LOST_AT_LEAST: Span = Span::from_secs(2);
/// As [`STALLED`], of a page that counts no tokens: it says nothing while long answers are written.
const STALLED_WITHOUT_TOKENS: Span = Span::from_secs(600);
/// Characters of a reason that are kept, because a page's answer may be of any length and the reason goes into alerts.
const WHY: usize = 300;

/// What moves while a replica computes.
const COUNTERS: [Signal; 4] = [Signal::Finished, Signal::OutputTokens, Signal::PromptTokens, Signal::Steps];

#[derive(Clone, Default, Debug)]
pub(crate) struct Pages {
    pages: BTreeMap<String, Page>,
    layouts: Layouts,
    /// When replicas moved last that an earlier watch had called stalled.
    stood: HashMap<String, At>,
}

/// A page that does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LostPage {
    /// Its name; empty where there is only one.
    pub name: String,
    /// What its last scrape failed by; empty = nobody scraped it.
    pub why: String,
}

/// What these fail by, as it goes on after what is said of all of them: `: HTTP 503`, or where they differ `, such as a: HTTP 503`.
pub(crate) fn by(lost: &[LostPage]) -> String {
    match lost.iter().find(|page| !page.why.is_empty()) {
        None => String::new(),
        Some(LostPage { why, .. }) if lost.iter().all(|page| page.why == *why) => format!(": {why}"),
        Some(LostPage { name, why }) => format!(", such as {name}: {why}"),
    }
}

#[derive(Clone, Default, Debug)]
struct Page {
    tried: Option<At>,
    /// What the last scrape failed by; empty = it was good.
    why: String,
    scraped: Scraped,
    /// Lost after so long, where that is its sender's choice.
    patience: Option<Span>,
    replicas: Vec<ReplicaState>,
    /// Where its gauges stand, where they are kept.
    gauges: Vec<(KeptSignal, f64)>,
}

/// A replica at its last good scrape.
#[derive(Clone, Debug)]
struct ReplicaState {
    seen: ReplicaSeen,
    running: Option<f64>,
    waiting: Option<f64>,
    kv_usage: Option<f64>,
    /// When a counter moved last, or it had nothing to do.
    moved: At,
}

impl Pages {
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// The series of a page and their values, as they were read last.
    pub fn last(&self, page: &str) -> Option<(&Arc<[SeriesName]>, &[f64])> {
        self.pages.get(page)?.scraped.last()
    }

    /// A replica that had not moved since then when an earlier watch ended.
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

    /// A page was read: adds what it counted since it was read before. True where it shows other series than then.
    pub fn read(
        &mut self,
        name: &str,
        at: At,
        said: (Arc<[SeriesName]>, Vec<f64>),
        (file, came): (&BudgetFile, &mut Came),
    ) -> bool {
        let page = self.pages.entry(name.to_owned()).or_default();
        page.tried = page.tried.max(Some(at));
        page.why.clear();
        let Some(step) = page.scraped.read(name, at, said, &mut self.layouts) else { return false };
        let Step { side, layout, from, is_other } = step;
        if let Some(from) = from {
            count(&side, &layout, (from, at), (file, came));
        }
        if let Some(kept) = &mut came.kept {
            from.into_iter().for_each(|from| kept.add(&side, &layout, (from, at)));
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

    /// Lets go of what no page shows any more, and of what was new at the last tick.
    pub(crate) fn ticked(&mut self) {
        self.layouts.forget();
        for replica in self.pages.values_mut().flat_map(|page| &mut page.replicas) {
            (replica.seen.fell, replica.seen.came) = (false, None);
        }
    }

    /// What is known of all pages beside what they counted.
    pub fn around<T>(&self, answering: usize, with: impl FnOnce(&Around<'_>) -> T) -> T {
        let layouts: Vec<&PageLayout> = self.layouts.each().collect();
        let is_engines = |signal| layouts.iter().any(|layout| layout.is_engines(signal));
        let teller = |signal| if is_engines(signal) { Teller::Engines } else { Teller::Gateways };
        let counts_failures = layouts.iter().any(|layout| counts_failures(|signal| layout.may_say(signal)));
        let gateways = self.pages.values().filter(|page| page.replicas.is_empty()).count();
        with(&Around { teller: &teller, counts_failures, gateways, answering })
    }

    /// Pages without a good scrape for some cadences.
    pub fn lost(&self, now: At, every: Span) -> Vec<LostPage> {
        let lost = self.pages.iter().filter(|(_, page)| page.is_lost(now, every));
        lost.map(|(name, page)| LostPage { name: name.clone(), why: page.why.clone() }).collect()
    }

    /// Every replica that was ever on a page.
    pub fn replicas(&self, now: At, every: Span) -> Vec<ReplicaNow> {
        let each = self.pages.values().flat_map(|page| {
            let answers = !page.is_lost(now, every);
            page.replicas.iter().map(move |replica| ReplicaNow {
                name: replica.seen.name.clone(),
                running: replica.running,
                waiting: replica.waiting,
                answers,
                stalled_s: page.stalled_s(replica).filter(|_| answers),
            })
        });
        each.collect()
    }

    /// What the pages tell of each replica that answers.
    pub fn seen(&self, now: At, every: Span) -> Vec<ReplicaSeen> {
        let answering = self.pages.values().filter(|page| !page.is_lost(now, every));
        answering.flat_map(|page| page.replicas.iter().map(|replica| replica.seen.clone())).collect()
    }

    /// Where the gauges of those that answer stand, together; `answering`: how many replicas that is.
    pub fn gauges(&self, (now, every): (At, Span), answering: usize) -> BTreeMap<KeptSignal, f64> {
        let pages = self.pages.values().filter(|page| !page.is_lost(now, every));
        gather::fleet(pages.map(|page| &page.gauges[..]), answering)
    }

    /// The fullest KV cache of those that answer.
    pub fn kv_usage(&self, now: At, every: Span) -> Option<f64> {
        let answering = self.pages.values().filter(|page| !page.is_lost(now, every));
        answering.flat_map(|page| &page.replicas).filter_map(|replica| replica.kv_usage).reduce(f64::max)
    }

    /// How much is remembered: pages, values, replicas, series that left, layouts.
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

    /// For how long nothing of a replica has moved, s, where that is too long.
    fn stalled_s(&self, replica: &ReplicaState) -> Option<f64> {
        replica.running.filter(|running| *running >= 1.0)?;
        let still = self.scraped.good? - replica.moved;
        let counts_tokens = self.scraped.layout().is_some_and(|layout| layout.has(Signal::OutputTokens));
        let least = if counts_tokens { STALLED } else { STALLED_WITHOUT_TOKENS };
        (still >= least).then(|| still.as_secs_f64())
    }
}

/// Adds what one page counted between two scrapes.
fn count(
    side: &ServerSide,
    layout: &PageLayout,
    (from, to): (At, At),
    (file, came): (&BudgetFile, &mut Came),
) {
    let teller = |signal| if layout.is_engines(signal) { Teller::Engines } else { Teller::Gateways };
    came.since = Some(came.since.map_or(from, |since| since.min(from)));
    for (place, signal) in GAINED.into_iter().enumerate() {
        if let Some(gained) = side.gained(signal, from, to) {
            came.of(teller(signal)).gain(place, gained.value);
        }
    }
    for (place, budget) in file.budgets.iter().enumerate() {
        match rows::source(budget) {
            RowSource::Latency { signal, limit_s } => {
                let over = latency(side, signal, limit_s, (from, to));
                over.into_iter().for_each(|over| came.of(teller(signal)).row(place, over));
            }
            RowSource::TailRatio { signal, .. } => {
                let taken = side.histogram(signal, from, to).filter(|taken| !taken.edges.is_empty());
                taken.into_iter().for_each(|taken| came.of(teller(signal)).tail(place, taken));
            }
            _ => {}
        }
    }
    if let Some(first) = side.histogram(Signal::Ttft, from, to) {
        came.of(teller(Signal::Ttft)).first(first);
    }
    let seconds = (to - from).as_secs_f64();
    let replica_s = seconds * side.replicas().len().max(1) as f64;
    if let Some(mean) = side.gauge(Signal::Waiting).and_then(|series| series.mean(from, to)) {
        came.of(teller(Signal::Waiting)).waits(mean * seconds, replica_s);
    }
    if let Some(waited_s) = side.histogram(Signal::QueueTime, from, to).and_then(|taken| taken.sum) {
        came.of(teller(Signal::QueueTime)).queued(waited_s, replica_s);
    }
}

/// Requests over a ceiling, replica by replica, because each has a sum of its own.
fn latency(side: &ServerSide, signal: Signal, limit_s: f64, (from, to): (At, At)) -> Option<OverCount> {
    let each = (0..side.replicas().len()).filter_map(|replica| side.histogram_of(replica, signal, from, to));
    let each: Vec<OverCount> = each.filter_map(|buckets| over(&buckets, limit_s)).collect();
    match each.is_empty() {
        true => over(&side.histogram(signal, from, to)?, limit_s),
        false => Some(each.into_iter().fold(OverCount::default(), OverCount::with)),
    }
}

/// What a page tells of a replica. `moved`: when it had moved last.
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
    // Where an answer's tokens are counted when it ends (SGLang), the gaps between them are counted as they come.
    let gaps = before.and_then(|before| side.histogram_of(number, Signal::Itl, before, at));
    let is_written = gaps.and_then(|gaps| gaps.count).is_some_and(|gaps| gaps > 0.0);
    let moves = is_idle || is_written || gained.iter().any(|gained| gained.value > 0.0);
    let came = before.and_then(|before| side.histogram_of(number, Signal::Ttft, before, at));
    ReplicaState {
        seen: ReplicaSeen {
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

fn level(series: Option<Series>) -> Option<f64> {
    series.and_then(|series| series.steps.last().map(|step| step.value))
}
