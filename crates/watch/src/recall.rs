//! The scrapes of the last minutes, kept for the diagnosis of an alert: the broken period and the last healthy one.
//!
//! Only changed values of a scrape are kept, because names are shared and most values are constant. The number of
//! values is bounded. If the endpoints exceed it, fewer endpoints are kept, each for the whole time. They are
//! selected by a hash of their names, so that the selection is stable and representative of the fleet.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use plimsoll_diagnose::gauges::LevelGauges;
use plimsoll_measure::server_side::{FAILED, SCRAPE, ServerSide};
use plimsoll_model::{At, PageRead, PageSaid, Sample, SeriesName, Span, page};

use crate::alert::AlertDiagnosis;

const KEPT: Span = Span::from_secs(20 * 60);
/// Maximum number of kept values: about 5 MB, and 100 MB during a diagnosis.
const MOST: usize = 300_000;
/// Cost of a scrape in addition to its values, in values.
const SCRAPE_COST: usize = 8;
/// Minimum length of the healthy period, and its minimum distance from the broken one, because the start of the
/// latter is an estimate.
const LEAST: Span = Span::from_secs(60);
const MARGIN: Span = Span::from_secs(20);

/// The values of an endpoint at one instant.
#[derive(Clone, Debug)]
struct PageSnapshot {
    series: Arc<[SeriesName]>,
    values: Vec<f64>,
}

#[derive(Clone, Debug)]
enum Change {
    /// Changed values with their positions.
    Values(Box<[(u32, f64)]>),
    /// All values, because the set of series changed.
    All(PageSnapshot),
    Failed(String),
}

#[derive(Clone, Debug)]
struct Scrape {
    page: Arc<str>,
    at: At,
    change: Change,
}

#[derive(Clone, Default, Debug)]
struct BufferedPage {
    /// Values before the oldest kept scrape; `None` if there are none.
    before: Option<PageSnapshot>,
    /// Number of kept scrapes, at least one.
    scrapes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Recall {
    pages: HashMap<Arc<str>, BufferedPage>,
    scrapes: VecDeque<Scrape>,
    values: usize,
    most: usize,
    /// Limit of the endpoint hash: endpoints with a hash up to it are kept.
    share: u64,
}

impl Default for Recall {
    fn default() -> Recall {
        Recall { pages: HashMap::new(), scrapes: VecDeque::new(), values: 0, most: MOST, share: u64::MAX }
    }
}

impl Recall {
    /// Returns the number of kept values, including the cost of scrapes.
    pub fn len(&self) -> usize {
        self.values
    }

    /// Records a scrape. `last` has the values of the scrape before.
    pub fn push(&mut self, read: &PageRead, last: Option<(&Arc<[SeriesName]>, &[f64])>) {
        if self.is_forgotten(&read.page) {
            return;
        }
        let known = self.pages.get_key_value(read.page.as_str()).map(|(page, _)| Arc::clone(page));
        let change = match &read.said {
            PageSaid::Failed(why) => Change::Failed(why.clone()),
            PageSaid::Values(series, values) => match last.filter(|last| Arc::ptr_eq(last.0, series)) {
                Some((_, last)) if known.is_some() => changed(last, values),
                _ => Change::All(PageSnapshot { series: Arc::clone(series), values: values.clone() }),
            },
            PageSaid::Left | PageSaid::Patience(_) => return,
        };
        let page = known.unwrap_or_else(|| read.page.as_str().into());
        self.pages.entry(Arc::clone(&page)).or_default().scrapes += 1;
        self.values += cost(&change);
        self.scrapes.push_back(Scrape { page, at: read.at, change });
        while self.scrapes.front().is_some_and(|scrape| scrape.at < read.at - KEPT) {
            self.forget_oldest();
        }
        while self.values > self.most && self.pages.len() > 1 {
            self.share /= 2;
            self.forget_pages();
        }
        while self.values > self.most {
            self.forget_oldest();
        }
    }

    fn is_forgotten(&self, page: &str) -> bool {
        // The hash has a fixed seed so that a replay keeps the same endpoints.
        BuildHasherDefault::<DefaultHasher>::default().hash_one(page) > self.share
    }

    fn forget_oldest(&mut self) {
        let Some(Scrape { page, change, .. }) = self.scrapes.pop_front() else { return };
        self.values -= cost(&change);
        let Some(remembered) = self.pages.get_mut(&page) else { return };
        remembered.scrapes -= 1;
        match change {
            Change::All(standing) => remembered.before = Some(standing),
            Change::Values(values) => remembered.before.iter_mut().for_each(|before| before.take(&values)),
            Change::Failed(_) => {}
        }
        if remembered.scrapes == 0 {
            // A returning endpoint starts with all its values.
            self.pages.remove(&page);
        }
    }

    fn forget_pages(&mut self) {
        let mut pages = std::mem::take(&mut self.pages);
        pages.retain(|page, _| !self.is_forgotten(page));
        self.scrapes.retain(|scrape| pages.contains_key(&scrape.page));
        self.pages = pages;
        self.values = self.scrapes.iter().map(|scrape| cost(&scrape.change)).sum();
    }

    /// Returns the diagnosis of a problem since `from`. The reference is the period between the last trouble
    /// (`good_from`) and the start of this one (`good_until`).
    pub fn diagnose(
        &self,
        (since, now): (At, At),
        (good_from, good_until): (At, At),
        every: Span,
    ) -> AlertDiagnosis {
        let oldest = self.scrapes.front().map_or(now, |scrape| scrape.at);
        let (from, until) = (good_from.max(oldest), good_until - MARGIN);
        let every = Span(every.0.max(1));
        let side = |from, to| ServerSide::read(&self.samples(from, to));
        // Start at the scrape before, because counters are counted from there.
        let before = (until - from >= LEAST)
            .then(|| LevelGauges::between(side(from - Span(2 * every.0), until), (from, until)));
        let from = since.min(now - LEAST).max(oldest);
        let side = side(LevelGauges::incident_needs((from, now), every), now);
        let now = LevelGauges::of_incident(side, (from, now), (every, oldest));
        AlertDiagnosis::of(&plimsoll_diagnose::pages::diagnose(&now, before.as_ref()))
    }

    /// Returns the rows of a time range as in a run: all values at an endpoint's first scrape, then changes.
    pub fn samples(&self, from: At, to: At) -> Vec<Sample> {
        let mut told: HashMap<&str, (Option<PageSnapshot>, bool)> =
            self.pages.iter().map(|(page, known)| (&**page, (known.before.clone(), false))).collect();
        let mut rows = Vec::new();
        for scrape in self.scrapes.iter().take_while(|scrape| scrape.at <= to) {
            let Some((stands, begun)) = told.get_mut(&*scrape.page) else { continue };
            let is_in = scrape.at >= from;
            if let (Change::Failed(why), true) = (&scrape.change, is_in) {
                let why = [("why".to_owned(), why.clone())].into_iter();
                rows.push(page::sample(&scrape.page, scrape.at, FAILED, why, 1.0));
                continue;
            }
            let is_first = is_in && !std::mem::replace(begun, *begun || is_in);
            let gone = stands.as_ref().filter(|_| is_in && !is_first).cloned();
            match &scrape.change {
                Change::All(standing) => *stands = Some(standing.clone()),
                Change::Values(values) => stands.iter_mut().for_each(|stands| stands.take(values)),
                Change::Failed(_) => continue,
            }
            if let Some(stands) = stands.as_ref().filter(|_| is_in) {
                tell(scrape, stands, (is_first, gone), &mut rows);
            }
        }
        rows
    }
}

/// Writes the rows of one scrape. `before` has the earlier values, `None` for the first scrape.
fn tell(
    scrape: &Scrape,
    stands: &PageSnapshot,
    (is_first, before): (bool, Option<PageSnapshot>),
    rows: &mut Vec<Sample>,
) {
    let (page, at) = (&*scrape.page, scrape.at);
    rows.push(page::sample(page, at, SCRAPE, std::iter::empty(), stands.values.len() as f64));
    let all = || stands.series.iter().zip(&stands.values);
    match &scrape.change {
        Change::Values(values) if !is_first => rows.extend(
            values.iter().map(|(place, value)| stands.series[*place as usize].sample(page, at, *value)),
        ),
        _ => rows.extend(all().map(|(series, value)| series.sample(page, at, *value))),
    }
    if let (Change::All(_), Some(before)) = (&scrape.change, before) {
        let gone = before.series.iter().filter(|series| !stands.series.contains(series));
        rows.extend(gone.map(|series| series.sample(page, at, f64::NAN)));
    }
}

impl PageSnapshot {
    fn take(&mut self, values: &[(u32, f64)]) {
        for (place, value) in values {
            if let Some(stands) = self.values.get_mut(*place as usize) {
                *stands = *value;
            }
        }
    }
}

fn changed(last: &[f64], now: &[f64]) -> Change {
    let each = last.iter().zip(now).enumerate();
    let other = each.filter(|(_, (last, now))| last.to_bits() != now.to_bits());
    Change::Values(other.map(|(place, (_, now))| (place as u32, *now)).collect())
}

fn cost(change: &Change) -> usize {
    SCRAPE_COST
        + match change {
            Change::Values(values) => values.len(),
            Change::All(standing) => standing.values.len(),
            Change::Failed(_) => 0,
        }
}
