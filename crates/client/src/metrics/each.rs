//! Staggers the scrapes of many metrics endpoints, because ten thousand simultaneous scrapes would be a burst for servers
//! and client.
//!
//! Each endpoint keeps its phase: the next scrape is due one cadence after the last due time. Counts therefore cover even
//! intervals.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::pin::Pin;
use std::sync::mpsc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use plimsoll_model::{At, Span};

use crate::clock::Clock;
use crate::metrics::pages::MetricsPage;
use crate::metrics::scrape::{ScrapeRequest, ScraperCommand, ScraperCommands, Source, patience};
use crate::metrics::told::ScrapeLog;

/// Longest distance between the first scrapes of two endpoints, so that a few endpoints start soon.
const APART: Span = Span(2_000_000);
/// Interval at which changed settings are checked.
const LOOK: Span = Span(50_000_000);
/// Time that the starting thread waits for the first scrapes.
const BEGUN: Span = Span::from_secs(1);

/// Name and URL, which identify an endpoint.
type Key = (String, String);

pub(crate) struct ScrapeSchedule {
    pub every: Span,
    pub clock: Clock,
    pub knows: fn(&str) -> bool,
    pub rows: ScrapeLog,
    pub waiting: DuePages,
}

/// Endpoints between scrapes, ordered by due time.
#[derive(Default)]
pub(crate) struct DuePages {
    due: BinaryHeap<Reverse<(At, u64)>>,
    pages: HashMap<u64, Source>,
    next: u64,
}

type PendingScrapes<'a> = FuturesUnordered<Pin<Box<dyn Future<Output = (Source, At)> + 'a>>>;

impl DuePages {
    fn push(&mut self, at: At, page: Source) {
        self.due.push(Reverse((at, self.next)));
        self.pages.insert(self.next, page);
        self.next += 1;
    }

    fn pop(&mut self, now: At) -> Option<(At, Source)> {
        while let Some(Reverse((at, number))) = self.due.peek().copied().filter(|due| due.0.0 <= now) {
            self.due.pop();
            if let Some(page) = self.pages.remove(&number) {
                return Some((at, page));
            }
        }
        None
    }
}

impl ScrapeSchedule {
    /// Scrapes until the sender of the settings ends the scraper.
    pub async fn go(mut self, pages: Vec<MetricsPage>, asked: &ScraperCommands, told: &mpsc::Sender<()>) {
        let (begun, mut first) = (self.clock.now(), pages.len());
        let mut known: HashSet<Key> = HashSet::new();
        let named = pages.len() > 1 || pages.iter().any(|page| !page.name.is_empty());
        self.add(pages, &mut known, named);
        let (rows, how) = (self.rows.clone(), (self.clock, patience(self.every), self.every));
        let mut flying: PendingScrapes<'_> = FuturesUnordered::new();
        let mut is_told = false;
        loop {
            let now = self.clock.now();
            while let Some((due, mut page)) = self.waiting.pop(now) {
                let rows = &rows;
                flying.push(Box::pin(async move {
                    page.scrape(how, rows).await;
                    (page, due)
                }));
            }
            if !is_told && (first == 0 || now - begun >= BEGUN) {
                (is_told, _) = (true, told.send(()));
            }
            let next = self.waiting.due.peek().map_or(At::MAX, |due| due.0.0).min(now + LOOK);
            if let Some((page, due)) = landed(&mut flying, next - now).await {
                first = first.saturating_sub(usize::from(page.is_new()));
                self.back(page, due, &known);
            }
            let ScraperCommand { wish, pages } = asked.take();
            if let Some(pages) = pages {
                self.replace(pages, &mut known);
            }
            if wish == ScrapeRequest::End {
                return;
            }
        }
    }

    /// Adds endpoints, with staggered first scrapes.
    fn add(&mut self, pages: Vec<MetricsPage>, known: &mut HashSet<Key>, named: bool) {
        let apart = Span(APART.0.min(self.every.0 / pages.len().max(1) as i64));
        let mut due = self.clock.now();
        for page in pages.into_iter().filter(|page| known.insert(key(page))) {
            self.waiting.push(due, Source::new(page, self.clock, (named, true), self.knows));
            due += apart;
        }
    }

    /// Returns a scraped endpoint to the queue, unless it was removed meanwhile. Due times that a slow scrape missed are
    /// skipped.
    fn back(&mut self, mut page: Source, mut due: At, known: &HashSet<Key>) {
        let now = self.clock.now();
        if !known.contains(&key(page.page())) {
            return page.left(now, &self.rows);
        }
        let missed = (now - due).0 / self.every.0;
        due += Span(self.every.0 * (missed + 1));
        self.waiting.push(due, page);
    }

    fn replace(&mut self, pages: Vec<MetricsPage>, known: &mut HashSet<Key>) {
        let now = self.clock.now();
        let stay: HashSet<Key> = pages.iter().map(key).collect();
        for (_, mut page) in self.waiting.pages.extract_if(|_, page| !stay.contains(&key(page.page()))) {
            page.left(now, &self.rows);
        }
        // An endpoint that is being scraped is removed when its scrape ends.
        known.retain(|key| stay.contains(key));
        self.add(pages, known, true);
    }
}

/// Returns the next finished scrape, or `None` after `within`.
async fn landed(flying: &mut PendingScrapes<'_>, within: Span) -> Option<(Source, At)> {
    let next = async {
        match flying.next().await {
            Some(landed) => landed,
            None => std::future::pending().await,
        }
    };
    tokio::time::timeout(Span(within.0.max(0)).as_duration(), next).await.ok()
}

fn key(page: &MetricsPage) -> Key {
    (page.name.clone(), page.url.clone())
}
