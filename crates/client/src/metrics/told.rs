//! Converts the scrapes of a metrics endpoint to rows.
//!
//! A row is recorded when a value has changed since the last scrape, because a thousand rows per second would outweigh the
//! records. Marks record each scrape and each failed scrape, and NaN records that a series disappeared. Unused names are
//! recorded at the first scrape and then once a minute.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use plimsoll_model::{At, PageRead, PageSaid, Sample, SeriesName, Span, page};
use plimsoll_wire::exposition::{self, ExposedValue};

use crate::metrics::exporters::Exporter;
use crate::metrics::shared::{MOST_SERIES, PageSample, PageShape, SeriesInterner};

/// Scrapes between two rows of an unused name.
const UNKNOWN_EVERY: u64 = 60;

type Rows = dyn Fn(Sample) + Send + Sync;

/// The receiver of scraped values. It is called from the thread that scrapes or receives metrics.
#[derive(Clone)]
pub enum ScrapeLog {
    /// Receives single rows of changed values, as recorded by a run.
    Changes(Arc<Rows>),
    /// Receives whole scrapes of known names, for live evaluation.
    Pages(Arc<dyn Fn(PageRead) + Send + Sync>, Arc<SeriesInterner>),
}

impl ScrapeLog {
    /// Returns a receiver of changed rows.
    pub fn changes(take: impl Fn(Sample) + Send + Sync + 'static) -> ScrapeLog {
        ScrapeLog::Changes(Arc::new(take))
    }

    /// Returns a receiver of whole scrapes.
    pub fn pages(take: impl Fn(PageRead) + Send + Sync + 'static) -> ScrapeLog {
        ScrapeLog::Pages(Arc::new(take), Arc::default())
    }
}

impl fmt::Debug for ScrapeLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScrapeLog::Changes(_) => "ToRows::Changes",
            ScrapeLog::Pages(..) => "ToRows::Pages",
        })
    }
}

/// The state of one metrics endpoint between scrapes.
pub(crate) struct PageLogState {
    /// Name that is written on every row; `None` = no name.
    name: Option<String>,
    /// Set if this endpoint records the scrape marks. Of several endpoints of one server, the first does.
    pub marks: bool,
    knows: fn(&str) -> bool,
    /// Exporter of the machine: of its many series only the used ones are recorded.
    pub exporter: Option<&'static Exporter>,
    pub scrapes: u64,
    series: HashMap<(String, String), Last>,
    /// Text of the last scrape, if whole scrapes are received.
    shape: Option<Arc<PageShape>>,
    order: SeriesOrder,
    /// Series of the last scrape.
    shown: Option<Arc<[SeriesName]>>,
}

/// The order of an exposition's series, which detects an exposition that was cut between two lines.
#[derive(Default)]
struct SeriesOrder {
    /// Hashes of the series of the last complete exposition.
    before: Vec<u64>,
    /// Length of the shorter exposition that was rejected last.
    refused: usize,
}

impl SeriesOrder {
    /// Returns whether the exposition is a proper prefix of the previous one. A second one in a row with that length is
    /// accepted, because the last series may have been removed.
    fn lacks_end(&mut self, series: impl Iterator<Item = u64>) -> bool {
        let series: Vec<u64> = series.collect();
        let is_shorter = series.len() < self.before.len() && self.before.starts_with(&series);
        if is_shorter && self.refused != series.len() {
            self.refused = series.len();
            return true;
        }
        (self.before, self.refused) = (series, 0);
        false
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Error of an exposition that [`SeriesOrder`] detects as cut.
const SHORTER: &str = "the page was cut short: it ends before series that it had";

struct Last {
    value: f64,
    scrape: u64,
}

impl PageLogState {
    pub fn new((name, marks): (Option<String>, bool), knows: fn(&str) -> bool) -> PageLogState {
        let (series, order) = (HashMap::new(), SeriesOrder::default());
        let (exporter, scrapes, shape, shown) = (None, 0, None, None);
        PageLogState { name, marks, knows, exporter, scrapes, series, shape, order, shown }
    }

    /// Discards the last values, as if they were never received.
    pub fn forget(&mut self) {
        self.series.values_mut().for_each(|last| last.value = f64::NAN);
    }

    pub fn failed(&mut self, at: At, why: &str, rows: &ScrapeLog) {
        match rows {
            ScrapeLog::Changes(rows) if !self.marks => self.changes(at, Vec::new(), &**rows),
            ScrapeLog::Changes(rows) => rows(self.row(at, "scrape_failed", &[("why", why)], 1.0)),
            ScrapeLog::Pages(pages, _) => pages(self.read(at, PageSaid::Failed(why.to_owned()))),
        }
    }

    /// Sets the time without samples after which the endpoint is lost, because a sender chooses its own interval.
    pub(crate) fn may_be_silent(&self, at: At, patience: Span, rows: &ScrapeLog) {
        match rows {
            ScrapeLog::Changes(rows) => rows(self.row(at, "scrape_patience", &[], patience.as_secs_f64())),
            ScrapeLog::Pages(pages, _) => pages(self.read(at, PageSaid::Patience(patience))),
        }
    }

    /// Records that the endpoint was removed.
    pub fn left(&mut self, at: At, rows: &ScrapeLog) {
        match rows {
            ScrapeLog::Changes(to) => {
                self.changes(at, Vec::new(), &**to);
                to(self.row(at, "scrape_left", &[], 1.0));
            }
            ScrapeLog::Pages(pages, _) => pages(self.read(at, PageSaid::Left)),
        }
    }

    /// Records the values of a scrape.
    pub fn tell(&mut self, at: At, found: Vec<ExposedValue>, rows: &ScrapeLog) {
        match rows {
            ScrapeLog::Changes(rows) => self.changes(at, found, &**rows),
            ScrapeLog::Pages(pages, names) => {
                let found_any = !found.is_empty();
                self.scrapes += 1;
                pages(self.read(at, said(names.of(found, self.knows), found_any)));
            }
        }
    }

    /// Records an exposition in text form; an incomplete one counts as a failed scrape.
    pub(crate) fn tell_text(&mut self, at: At, page: &[u8], rows: &ScrapeLog) {
        match rows {
            ScrapeLog::Changes(to) => match exposition::read(page).map(|page| page.rows) {
                Ok(found)
                    if self.order.lacks_end(found.iter().map(|row| hash(&(&row.name, &row.labels)))) =>
                {
                    self.failed(at, SHORTER, rows);
                }
                Ok(found) => self.changes(at, found, &**to),
                Err(why) => self.failed(at, &why.to_string(), rows),
            },
            ScrapeLog::Pages(pages, names) => {
                self.scrapes += 1;
                let shown = match names.read(&mut self.shape, page, self.knows) {
                    Ok(shown) => shown,
                    Err(why) => return self.failed(at, &why.to_string(), rows),
                };
                let is_same = self.shown.as_ref().is_some_and(|before| Arc::ptr_eq(before, &shown.0));
                if !shown.1.is_empty() && !is_same {
                    if self.order.lacks_end(shown.0.iter().map(hash)) {
                        return self.failed(at, SHORTER, rows);
                    }
                    self.shown = Some(Arc::clone(&shown.0));
                }
                let found_any =
                    !shown.1.is_empty() || exposition::read(page).is_ok_and(|page| !page.rows.is_empty());
                pages(self.read(at, said(shown, found_any)));
            }
        }
    }

    fn read(&self, at: At, said: PageSaid) -> PageRead {
        PageRead { page: self.name.clone().unwrap_or_default(), at, said }
    }

    fn changes(&mut self, at: At, mut found: Vec<ExposedValue>, rows: &Rows) {
        // The reader has already cut the longest expositions.
        let mut all = found.len();
        let is_cut = all >= exposition::MOST_ROWS;
        if let Some(exporter) = self.exporter {
            found.retain(|row| (self.knows)(&row.name) && exporter.keeps(row));
        }
        if found.len() > MOST_SERIES {
            found.retain(|row| (self.knows)(&row.name));
        }
        if is_cut || found.len() > MOST_SERIES {
            if self.marks {
                return rows(self.row(at, "scrape_failed", &[("why", &too_long())], 1.0));
            }
            (found, all) = (Vec::new(), 0);
        }
        self.scrapes += 1;
        let scrape = self.scrapes;
        if self.marks {
            rows(self.row(at, "scrape_samples", &[], all as f64));
        }
        for ExposedValue { name, labels, value } in found {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let text = self.labels(&labels);
            let known = (self.knows)(&name);
            let key = (name, text);
            match self.series.get_mut(&key) {
                Some(last) => {
                    last.scrape = scrape;
                    let same = last.value.to_bits() == value.to_bits();
                    if same || (!known && !scrape.is_multiple_of(UNKNOWN_EVERY)) {
                        continue;
                    }
                    last.value = value;
                }
                None => _ = self.series.insert(key.clone(), Last { value, scrape }),
            }
            rows(sample(at, key.0, key.1, value));
        }
        self.series.retain(|(name, labels), last| {
            let gone = last.scrape != scrape;
            if gone {
                rows(sample(at, name.clone(), labels.clone(), f64::NAN));
            }
            !gone
        });
    }

    fn row(&self, at: At, name: &str, labels: &[(&str, &str)], value: f64) -> Sample {
        sample(at, name.to_owned(), self.labels(labels), value)
    }

    /// Returns labels in the format of a run, with the endpoint's name.
    fn labels(&self, labels: &[(&str, &str)]) -> String {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        page::labels_of(self.name.as_deref(), labels)
    }
}

/// Returns the result of a scrape. An exposition without rows fails; one with only unused names has no values.
///
/// An exposition over the series limit fails, because the missing rest would be unnoticed replicas.
fn said((series, values): PageSample, found_any: bool) -> PageSaid {
    match found_any {
        true if series.len() >= MOST_SERIES => PageSaid::Failed(too_long()),
        true => PageSaid::Values(series, values),
        false => PageSaid::Failed("the page was empty".to_owned()),
    }
}

fn too_long() -> String {
    format!(
        "the page has {MOST_SERIES} series or more, and the rest of it would be missing: name the metrics endpoint of each replica"
    )
}

fn sample(at: At, name: String, labels: String, value: f64) -> Sample {
    Sample { at, source: page::source(&name).into(), name: name.into(), labels: labels.into(), value }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn page(replicas: usize) -> String {
        (0..replicas).map(|n| format!("vllm:num_requests_running{{engine=\"{n}\"}} 1\n")).collect()
    }

    /// Returns whether an exposition with `replicas` replicas is accepted.
    fn is_read(replicas: usize) -> bool {
        let told: Arc<Mutex<Vec<PageRead>>> = Arc::default();
        let taken = Arc::clone(&told);
        let rows = ScrapeLog::pages(move |read| taken.lock().expect("no panic before").push(read));
        PageLogState::new((None, true), |_| true).tell_text(At(0), page(replicas).as_bytes(), &rows);
        let told = told.lock().expect("no panic before");
        match &told[0].said {
            PageSaid::Values(series, values) => (series.len(), values.len()) == (replicas, replicas),
            PageSaid::Failed(why) => !why.contains("50000 series"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_that_is_too_long_to_be_followed_says_so() {
        assert!(is_read(MOST_SERIES - 1));
        assert!(!is_read(MOST_SERIES + 1));
    }
    /// Returns the rows that a run records from one scrape of `page`.
    fn recorded(page: &str) -> Vec<Sample> {
        let told: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let taken = Arc::clone(&told);
        let rows = ScrapeLog::changes(move |row| taken.lock().expect("no panic before").push(row));
        let knows = |name: &str| name.starts_with("vllm:");
        PageLogState::new((None, true), knows).tell_text(At(0), page.as_bytes(), &rows);
        std::mem::take(&mut *told.lock().expect("no panic before"))
    }

    /// In a run too, unused names are dropped first, and an exposition that is still too long fails.
    #[test]
    fn a_page_that_is_too_long_for_a_run_says_so() {
        let strange: String = (0..MOST_SERIES).map(|n| format!("other{{n=\"{n}\"}} 1\n")).collect();
        let rows = recorded(&(strange.clone() + &page(300)));
        assert_eq!(rows.iter().filter(|row| row.name.starts_with("vllm:")).count(), 300);
        assert_eq!(rows.len(), 301, "and the mark of the scrape");
        assert_eq!(rows[0].value, (MOST_SERIES + 300) as f64);
        let rows = recorded(&page(MOST_SERIES + 1));
        assert_eq!(rows.len(), 1);
        assert!(
            rows[0].name.as_str() == "scrape_failed" && rows[0].labels.contains("50000 series"),
            "{rows:?}"
        );
    }
}
