//! The series of a source by signal, and the edges of its histograms. They are read from a scrape, of a known server
//! or of the user's, because a rule on a missing name or edge never fires.

use std::collections::BTreeSet;

use plimsoll_measure::server_side::table::SignalPart;
use plimsoll_measure::server_side::{ExposedSeries, ServerSide, Signal};
use plimsoll_model::{At, Sample, Span};

/// Recorded scrapes of servers, reduced to the used series.
pub const PAGES: [(&str, &str); 5] = [
    ("vllm", include_str!("../../data/pages/vllm.txt")),
    ("sglang", include_str!("../../data/pages/sglang.txt")),
    ("triton", include_str!("../../data/pages/triton.txt")),
    ("llama.cpp", include_str!("../../data/pages/llama.cpp.txt")),
    ("gateway", include_str!("../../data/pages/gateway.txt")),
];

/// A scrape, and the selector of its series: `job="vllm"`.
#[derive(Clone, Debug)]
pub struct ExportSource {
    /// Name in files: of the server, or of the scrape.
    pub name: String,
    /// Additional labels of every selector.
    pub scope: Vec<(String, String)>,
    pub(crate) side: ServerSide,
    series: Vec<ExposedSeries>,
}

/// Time of the only scrape, because a histogram is the difference of two.
pub(crate) const UNTIL: At = At(1_000_000_000);

impl ExportSource {
    /// Returns the source of one scrape.
    pub fn new(name: String, scope: Vec<(String, String)>, page: &[Sample]) -> ExportSource {
        let again = page.iter().map(|sample| Sample { at: UNTIL, ..sample.clone() });
        let first = page.iter().map(|sample| Sample { at: UNTIL - Span::from_secs(1), ..sample.clone() });
        let both: Vec<Sample> = first.chain(again).collect();
        ExportSource { name, scope, side: ServerSide::read(&both), series: ServerSide::exposed(page) }
    }

    /// Returns the metrics for this part of a signal, which are summed; empty if there are none.
    pub(crate) fn metrics(&self, signal: Signal, part: &SignalPart) -> Vec<Metric> {
        let of = |one: &&ExposedSeries| one.row.signal == signal && one.row.part == *part;
        let names: BTreeSet<&str> = self.series.iter().filter(of).map(|one| one.name.as_str()).collect();
        names.into_iter().map(|name| self.metric(name, signal, part)).collect()
    }

    fn metric(&self, name: &str, signal: Signal, part: &SignalPart) -> Metric {
        let own = self.series.iter();
        let own = own.filter(|one| one.name == name && one.row.signal == signal && one.row.part == *part);
        let mut matchers = BTreeSet::new();
        for one in own {
            matchers.extend(one.row.only.iter().map(|(label, values)| matcher(label, values)));
            // Ranks of one parallel group export the same requests, so only the first counts.
            let ranks = ["tp_rank", "pp_rank"].into_iter();
            let ranks = ranks.filter(|rank| one.labels.iter().any(|(label, _)| label == rank));
            matchers.extend(ranks.map(|rank| format!("{rank}=~\"0|\"")));
        }
        let scope = self.scope.iter().map(|(label, value)| matcher(label, &[value]));
        Metric { name: name.to_owned(), matchers: scope.chain(matchers).collect() }
    }

    /// Returns the matcher for an edge (in s) of a signal's histogram; infinity matches all.
    pub(crate) fn edge(&self, signal: Signal, edge_s: f64) -> Option<String> {
        let buckets =
            self.series.iter().filter(|one| one.row.signal == signal && one.row.part == SignalPart::Bucket);
        let texts = buckets.filter_map(|one| {
            let text = &one.labels.iter().find(|(label, _)| label == "le")?.1;
            let value: f64 = text.parse().ok()?;
            let seconds = value * one.row.factor;
            let is_it =
                seconds == edge_s || (edge_s.is_finite() && (seconds - edge_s).abs() <= 1e-9 * edge_s);
            is_it.then(|| spellings(text, value))
        });
        let texts: BTreeSet<String> = texts.flatten().collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        (!texts.is_empty()).then(|| matcher("le", &texts))
    }
}

/// Returns the spellings of a value: endpoints write `1` or `1.0`, and Prometheus 3 always writes the second.
fn spellings(text: &str, value: f64) -> Vec<String> {
    let mut all = vec![text.to_owned()];
    if value.is_finite() && value == value.trunc() {
        all.extend([format!("{value:.0}"), format!("{value:.1}")]);
    }
    all
}

/// Returns `label="value"`, or a pattern for several values.
fn matcher<T: AsRef<str>>(label: &str, values: &[T]) -> String {
    match values {
        [one] => format!("{label}={}", quoted(one.as_ref())),
        several => {
            let patterns: Vec<String> = several.iter().map(|value| plain(value.as_ref())).collect();
            format!("{label}=~{}", quoted(&patterns.join("|")))
        }
    }
}

/// Returns an escaped pattern for literal text.
fn plain(text: &str) -> String {
    let special = |letter: char| ".+*?()[]{}|^$\\".contains(letter);
    text.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter])).collect()
}

/// Returns quoted text for PromQL, YAML and JSON.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a number without rounding noise: `0.01`, not `0.010000000000000009`.
pub(crate) fn decimal(x: f64) -> f64 {
    format!("{x:.12}").parse().unwrap_or(x)
}

/// A metric and its label matchers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Metric {
    pub name: String,
    matchers: Vec<String>,
}

impl Metric {
    /// Returns a selector of the metric: `name{matchers, more}`.
    pub fn with(&self, more: &[&str]) -> String {
        let all: Vec<&str> = self.matchers.iter().map(String::as_str).chain(more.iter().copied()).collect();
        if all.is_empty() { self.name.clone() } else { format!("{}{{{}}}", self.name, all.join(",")) }
    }

    /// Returns one matching series for unit tests; of several patterns the first non-empty one.
    pub fn example(&self, more: &[&str]) -> String {
        let one = |matcher: &str| -> Option<String> {
            let Some((label, pattern)) = matcher.split_once("=~") else { return Some(matcher.to_owned()) };
            let pattern: String = serde_json::from_str(pattern).ok()?;
            let first = pattern.split('|').next()?.replace('\\', "");
            Some(format!("{label}={}", quoted(&first)))
        };
        let all = self.matchers.iter().map(String::as_str).chain(more.iter().copied());
        format!("{}{{{}}}", self.name, all.filter_map(one).collect::<Vec<_>>().join(","))
    }

    /// Returns the increase as PromQL: `sum(increase(name{…}[5m]))`.
    pub(crate) fn increase(&self, more: &[&str], window: &str) -> String {
        format!("sum(increase({}[{window}]))", self.with(more))
    }
}
