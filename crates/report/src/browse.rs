//! The page of many runs: a list with filters, a chart of one figure over its runs, and links to each run.
//!
//! The rows travel as JSON and the page's script draws a hundred at a time, because ten thousand table rows take a browser seconds. The same page
//! is served live and written as one file; a live page also fetches change points and opens reports.

use std::collections::BTreeMap;

use maud::html;
use plimsoll_judge::history::change::{ChangeSpec, fewest};
use plimsoll_measure::findings::{Estimate, Held, Trust};
use serde::Serialize;

use crate::html::page::script_page;

const SCRIPT: &str = include_str!("html/browse.js");
const STYLE: &str = include_str!("html/browse.css");

/// A figure of a run: value, lower and upper end of its 95 % interval in seconds, and 1 if it is based on few requests. An infinite end is `null`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RowFigure(f64, f64, Option<f64>, u8);

impl RowFigure {
    /// Takes an estimate, or what was seen of one that is refused.
    pub fn new(seen: &Estimate, few: bool) -> RowFigure {
        let finite = |value: f64| value.is_finite().then(|| rounded(value));
        RowFigure(rounded(seen.value), rounded(seen.lower.max(0.0)), finite(seen.upper), u8::from(few))
    }
}

/// Four digits, because a page shows three and ten thousand runs have a quarter of a million figures.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// A run in the list. Absent fields are left out, because a page contains ten thousand of these.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RunRow {
    pub name: String,
    /// Random id of the run.
    pub id: String,
    /// Kind of its writer, such as `run` or `sweep`.
    pub kind: String,
    /// Start, seconds of the Unix epoch.
    pub began_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Version of the engine, if the server reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Model, or the address where no model is known.
    pub target: String,
    pub load: String,
    /// Target and load, or target and kind without a load. Runs of one experiment compare. The page's script forms the same text.
    #[serde(skip)]
    pub experiment: String,
    /// `partial` or `not finished`; `None` for a whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    /// Verdict of the run's own SLO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<Held>,
    /// Share of the requests that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<f64>,
    /// Figures of the last measured level by name, such as `ttft p99`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, RowFigure>,
    /// Address of the run's report, relative to the page; `None` where none was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
}

/// A change of one figure within an experiment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RowChange {
    /// Id of the first run of the new regime.
    pub at: String,
    /// New value over old, with its 95 % interval.
    pub ratio: [f64; 3],
}

/// Changes by experiment, then by figure.
pub type RowChanges = BTreeMap<String, BTreeMap<String, Vec<RowChange>>>;

#[derive(Serialize)]
struct PageData<'a> {
    folder: &'a str,
    /// A server answers `run`, `compare` and `changes`.
    live: bool,
    /// Fewest runs of an experiment in which a change can be proven.
    fewest: usize,
    runs: &'a [RunRow],
    changes: &'a RowChanges,
}

/// Fewest runs of an experiment in which a change can be proven.
pub fn fewest_runs() -> usize {
    let spec = ChangeSpec::default();
    fewest(spec.alpha, spec.min_segment).unwrap_or(usize::MAX)
}

/// The whole page. `changes` is empty where the page is `live`, because the server finds the changes of the shown experiment.
pub fn page(folder: &str, live: bool, runs: &[RunRow], changes: &RowChanges) -> String {
    let data = PageData { folder, live, fewest: fewest_runs(), runs, changes };
    let json = serde_json::to_string(&data).unwrap_or_else(|_| "{}".into());
    let content = html! {
        h1 { "Runs in " (folder) }
        p.soft #count { (runs.len()) " runs" }
        noscript { p { "This page needs JavaScript. " code { "plimsoll ls " (folder) } " lists the same runs." } }
        form.filters #filters {
            label { "Find " input #find type="search" placeholder="name, label, target, load"; }
            label { "Experiment " select #experiment { option value="" { "all" } } }
            label { "Label " select #label { option value="" { "all" } } }
            label { "Measurement " select #trust { option value="" { "all" } } }
            label { "SLO " select #slo { option value="" { "all" } } }
        }
        div.chart {
            div.filters {
                label { "Figure " select #figure {} }
                label { "Colour by " select #colour { option value="version" { "version" } option value="label" { "label" } option value="" { "nothing" } } }
            }
            p.title #charted {}
            div #plot role="img" aria-label="figure over runs" {}
            p.small.soft #changed {}
        }
        div.filters {
            button #compare type="button" disabled { "Compare two runs" }
            span.small.soft #hint { "Select two runs: the first is the base." }
        }
        div.scroll tabindex="0" role="region" aria-label="runs" { table #runs { thead {} tbody {} } }
        p { button #more type="button" hidden { "Show more" } }
    };
    script_page(&format!("Plimsoll: runs in {folder}"), STYLE, (&json, SCRIPT), live, &content)
}
