//! The content of a chart as data: `page.js` draws it, without code for loads or latencies.
//!
//! The drawing is generic, so that every decision about *what* is drawn is here in Rust, where it is tested.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde::Serialize;

#[derive(Serialize, Clone, Debug)]
pub struct Chart {
    pub x: ChartAxis,
    pub y: ChartAxis,
    pub series: Vec<ChartSeries>,
    pub marks: Vec<ChartMark>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<CeilingLine>,
    pub shades: Vec<Shade>,
    /// Key of charts with a shared cursor; `None` for a separate one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<String>,
}

#[derive(Serialize, Clone, Debug, Default)]
pub struct ChartAxis {
    pub label: String,
    /// Unit of the axis, possibly empty.
    pub unit: String,
    pub log: bool,
    /// Fixed ends of the axis; `None` if the data decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
}

/// One line, set of points or bars.
#[derive(Serialize, Clone, Debug, Default)]
pub struct ChartSeries {
    pub label: String,
    /// CSS variable of the colour: `--s0` to `--s4`.
    pub color: &'static str,
    /// Horizontal values, ascending.
    pub x: Vec<f64>,
    /// Vertical values; `None` is a gap.
    pub y: Vec<Option<f64>>,
    /// Lower ends of the interval; `None` if none is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<Vec<Option<f64>>>,
    /// Upper ends of the interval; an inner `None` is infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<Vec<Option<f64>>>,
    /// Shape: `bars`, `steps` (hold a value until the next x) or `frontier` (from the previous x); `None` for a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dash: bool,
    /// Whether points are drawn if there are few.
    pub points: bool,
    pub line: bool,
    /// Names of the points; empty if they have none. A name without room is left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

impl ChartSeries {
    pub fn line(label: impl Into<String>, color: &'static str) -> ChartSeries {
        ChartSeries { label: label.into(), color, points: true, line: true, ..ChartSeries::default() }
    }
}

/// A vertical line with its name.
#[derive(Serialize, Clone, Debug)]
pub struct ChartMark {
    pub x: f64,
    pub label: String,
    /// CSS variable that contains the colour.
    pub color: &'static str,
}

/// A horizontal line with its name.
#[derive(Serialize, Clone, Debug)]
pub struct CeilingLine {
    /// Position in the unit of the vertical axis.
    pub y: f64,
    /// Label in the chart, for example `ttft p99 ≤ 500 ms`.
    pub label: String,
}

/// A shaded range of x; an open end reaches to the edge.
#[derive(Serialize, Clone, Debug)]
pub struct Shade {
    pub from: Option<f64>,
    pub to: Option<f64>,
    /// Style: `borrowed` for the region right of the onset, otherwise `interval`.
    pub kind: &'static str,
    /// CSS variable that contains the colour.
    pub color: &'static str,
    pub label: &'static str,
}

/// Every chart of a page by the id of its element.
pub type Charts = BTreeMap<String, Chart>;

/// Returns the place of a chart on a page; empty if there is no chart of this name.
pub(crate) fn place(charts: &Charts, id: &str, title: &str) -> Markup {
    html! { @if charts.contains_key(id) {
        div.chart { div.title { (title) } div id=(id) role="img" aria-label=(title) {} }
    } }
}
