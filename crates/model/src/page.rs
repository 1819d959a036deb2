//! Represents repeated scrapes of a metrics endpoint: the names of its series once, and their values per scrape.
//!
//! Ten thousand replicas of one engine expose equal names at every scrape. The names are shared, because copies would take
//! most of the memory.

use std::sync::Arc;

use crate::{At, Sample, Span, join_labels};

/// A series as exposed by its endpoint.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SeriesName {
    pub name: String,
    /// Labels in the endpoint's order.
    pub labels: Vec<(String, String)>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PageRead {
    /// Name of the endpoint; empty if there is only one.
    pub page: String,
    pub at: At,
    pub said: PageSaid,
}

/// The content of a scrape result.
#[derive(Clone, PartialEq, Debug)]
pub enum PageSaid {
    /// All used series in the endpoint's order, with a value each. NaN = the series is missing from this scrape.
    Values(Arc<[SeriesName]>, Vec<f64>),
    Failed(String),
    /// The endpoint was removed.
    Left,
    /// Time without samples after which the endpoint is lost, because a sender chooses its own interval.
    Patience(Span),
}

impl SeriesName {
    /// Returns one value in the format of a run. `page` is the endpoint's name; an exposed label `source` is renamed then,
    /// as in Prometheus.
    pub fn sample(&self, page: &str, at: At, value: f64) -> Sample {
        let own = |(key, value): &(String, String)| (key.clone(), value.clone());
        sample(page, at, &self.name, self.labels.iter().map(own), value)
    }
}

/// Returns one value of an endpoint in the format of a run.
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

/// Returns the source of a metric: exporters of GPUs, and of a machine and its containers, are separate sources.
pub fn source(name: &str) -> &'static str {
    let begins = |with: &[&str]| with.iter().any(|begin| name.starts_with(begin));
    match () {
        () if begins(&["DCGM_", "gpu_", "amd_gpu_", "nvml_"]) => "gpu",
        () if begins(&["node_", "container_"]) => "host",
        () => "server",
    }
}

/// Returns labels in the format of a run, with the endpoint's name if it has one. An exposed label `source` is renamed
/// then, as in Prometheus.
pub fn labels_of(page: Option<&str>, labels: impl Iterator<Item = (String, String)>) -> String {
    let rename = |(key, value): (String, String)| {
        (if page.is_some() && key == "source" { "exported_source".to_owned() } else { key }, value)
    };
    let mut labels: Vec<(String, String)> = labels.map(rename).collect();
    labels.extend(page.map(|page| ("source".to_owned(), page.to_owned())));
    join_labels(&labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>())
}
