//! What a page said, scrape by scrape → rows.
//!
//! Rows are kept where a value has changed since the last scrape, because a page of a thousand rows a second would outweigh the
//! records; a mark says that somebody looked, another one that a scrape failed, and NaN that a series has left the page. Names that
//! nobody reads are kept at the first scrape and then once a minute.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_model::{At, Sample, Span, join_labels};
use plimsoll_wire::exposition::ExposedValue;

/// Series of one page that are followed.
const MOST_SERIES: usize = 50_000;
/// Looks between two rows of a name that nobody reads.
const UNKNOWN_EVERY: u64 = 60;

/// Where rows go. Called from the thread of whoever reads or takes pages.
pub type ToRows = Arc<dyn Fn(Sample) + Send + Sync>;

/// What was told of a page.
pub(crate) struct Told {
    /// Its name, where it is written on every row.
    name: Option<String>,
    /// Does it mark the scrapes? Of several pages of one server the first does.
    pub marks: bool,
    knows: fn(&str) -> bool,
    pub scrapes: u64,
    series: HashMap<(String, String), Last>,
}

struct Last {
    value: f64,
    scrape: u64,
}

impl Told {
    pub fn new((name, marks): (Option<String>, bool), knows: fn(&str) -> bool) -> Told {
        Told { name, marks, knows, scrapes: 0, series: HashMap::new() }
    }

    /// What it said last counts as never said.
    pub fn forget(&mut self) {
        self.series.values_mut().for_each(|last| last.value = f64::NAN);
    }

    /// It could not be scraped.
    pub fn failed(&self, at: At, why: &str, rows: &ToRows) {
        rows(self.row(at, "scrape_failed", &[("why", why)], 1.0));
    }

    /// It may be silent for so long before it is lost: how often it speaks is somebody else's choice.
    pub fn may_be_silent(&self, at: At, patience: Span, rows: &ToRows) {
        rows(self.row(at, "scrape_patience", &[], patience.as_secs_f64()));
    }

    /// It is nobody's page any more.
    pub fn left(&mut self, at: At, rows: &ToRows) {
        self.tell(at, Vec::new(), rows);
        rows(self.row(at, "scrape_left", &[], 1.0));
    }

    /// What it said.
    pub fn tell(&mut self, at: At, found: Vec<ExposedValue>, rows: &ToRows) {
        self.scrapes += 1;
        let scrape = self.scrapes;
        if self.marks {
            rows(self.row(at, "scrape_samples", &[], found.len() as f64));
        }
        for ExposedValue { name, labels, value } in found {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let text = self.labels(&labels);
            let known = (self.knows)(&name);
            let full = self.series.len() >= MOST_SERIES;
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
                None if full => continue,
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

    /// Labels as the run keeps them, with the page's name; a label of that name on the page is set aside as Prometheus does.
    fn labels(&self, labels: &[(&str, &str)]) -> String {
        let Some(page) = &self.name else { return join_labels(labels) };
        let rename = |(key, value): &(&str, &str)| {
            let key = if *key == "source" { "exported_source" } else { key };
            (key.to_owned(), (*value).to_owned())
        };
        let mut all: Vec<(String, String)> = labels.iter().map(rename).collect();
        all.push(("source".to_owned(), page.clone()));
        join_labels(&all.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>())
    }
}

fn sample(at: At, name: String, labels: String, value: f64) -> Sample {
    let source = if name.starts_with("DCGM_") { "gpu" } else { "server" };
    Sample { at, source: source.to_owned(), name, labels, value }
}
