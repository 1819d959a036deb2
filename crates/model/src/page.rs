//! A metrics page as it is read again and again: the names of its series once, and their values each time.
//!
//! Ten thousand replicas of one engine show the same names, and a page shows them at every scrape: they are shared, because copies of them would be most of the memory.

use std::sync::Arc;

use crate::{At, Sample, Span, join_labels};

/// A series as its page spells it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SeriesName {
    /// The metric's name.
    pub name: String,
    /// Its labels, in the page's order.
    pub labels: Vec<(String, String)>,
}

/// What came of a page at one instant.
#[derive(Clone, PartialEq, Debug)]
pub struct PageRead {
    /// What the page is called; empty where there is only one.
    pub page: String,
    pub at: At,
    pub said: PageSaid,
}

/// See [`PageRead`].
#[derive(Clone, PartialEq, Debug)]
pub enum PageSaid {
    /// It was read: all of its series that anybody asks for, in its order, and a value of each. NaN: it is not on the page.
    Values(Arc<[SeriesName]>, Vec<f64>),
    /// It was not, for this reason.
    Failed(String),
    /// It is nobody's page any more.
    Left,
    /// It may be silent for so long before it is lost, because how often it speaks is its sender's choice.
    Patience(Span),
}

impl SeriesName {
    /// One value of it, as a run keeps it. `page`: what the page is called; a label `source` of its own is set aside then, as Prometheus does.
    pub fn sample(&self, page: &str, at: At, value: f64) -> Sample {
        let own = |(key, value): &(String, String)| (key.clone(), value.clone());
        sample(page, at, &self.name, self.labels.iter().map(own), value)
    }
}

/// A row of a page.
pub fn sample(
    page: &str,
    at: At,
    name: &str,
    labels: impl Iterator<Item = (String, String)>,
    value: f64,
) -> Sample {
    let labels = labels_of((!page.is_empty()).then_some(page), labels);
    Sample { at, source: source(name).into(), name: name.into(), labels: labels.into(), value }
}

/// Who says a row of this name: exporters of GPUs are a source of their own.
pub fn source(name: &str) -> &'static str {
    if name.starts_with("DCGM_") { "gpu" } else { "server" }
}

/// Labels as a run keeps them, with the page's name where it has one; a label of that name on the page is set aside then, as Prometheus does.
pub fn labels_of(page: Option<&str>, labels: impl Iterator<Item = (String, String)>) -> String {
    let rename = |(key, value): (String, String)| {
        (if page.is_some() && key == "source" { "exported_source".to_owned() } else { key }, value)
    };
    let mut labels: Vec<(String, String)> = labels.map(rename).collect();
    labels.extend(page.map(|page| ("source".to_owned(), page.to_owned())));
    join_labels(&labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>())
}
