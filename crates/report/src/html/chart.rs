//! What a chart shows, as data: `page.js` draws it, and knows nothing of loads or latencies.
//!
//! Keeping the drawing generic keeps every decision about *what* is drawn here in Rust, where it is tested.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde::Serialize;

#[derive(Serialize, Clone, Debug)]
pub struct Chart {
    pub x: ChartAxis,
    pub y: ChartAxis,
    pub series: Vec<Series>,
    pub marks: Vec<ChartMark>,
    /// Horizontal lines: ceilings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<CeilingLine>,
    /// Shaded ranges of x.
    pub shades: Vec<Shade>,
    /// Charts with the same key share their cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<String>,
}

#[derive(Serialize, Clone, Debug, Default)]
pub struct ChartAxis {
    pub label: String,
    /// Its unit, if any.
    pub unit: String,
    pub log: bool,
    /// Fixed ends, where the data should not decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
}

/// One line, set of points or bars.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Series {
    pub label: String,
    /// CSS variable of its colour: `--s0` to `--s4`.
    pub color: &'static str,
    /// Abscissae, ascending.
    pub x: Vec<f64>,
    /// Ordinates; `None` is a gap.
    pub y: Vec<Option<f64>>,
    /// Lower ends of the interval, if shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<Vec<Option<f64>>>,
    /// Upper ends; `None` in it is infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<Vec<Option<f64>>>,
    /// `bars`, `steps` or, when absent, a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<&'static str>,
    /// Draw the line dashed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dash: bool,
    /// Draw points where there are few.
    pub points: bool,
    pub line: bool,
}

impl Series {
    pub fn line(label: impl Into<String>, color: &'static str) -> Series {
        Series { label: label.into(), color, points: true, line: true, ..Series::default() }
    }
}

/// A vertical line with its name.
#[derive(Serialize, Clone, Debug)]
pub struct ChartMark {
    pub x: f64,
    pub label: String,
    /// CSS variable of its colour.
    pub color: &'static str,
}

/// A horizontal line with its name.
#[derive(Serialize, Clone, Debug)]
pub struct CeilingLine {
    /// Where, in the unit of the vertical axis.
    pub y: f64,
    /// What may not be over it.
    pub label: String,
}

/// A shaded range of x; an open end reaches to the edge.
#[derive(Serialize, Clone, Debug)]
pub struct Shade {
    pub from: Option<f64>,
    pub to: Option<f64>,
    /// `borrowed` for the region right of the onset, else `interval`.
    pub kind: &'static str,
    /// CSS variable of its colour.
    pub color: &'static str,
    /// What it says, in the legend.
    pub label: &'static str,
}

/// Every chart of a page by the id of the element it is drawn into.
pub type Charts = BTreeMap<String, Chart>;

/// The place of a chart on a page, where there is one of that name.
pub(crate) fn place(charts: &Charts, id: &str, title: &str) -> Markup {
    html! { @if charts.contains_key(id) {
        div.chart { div.title { (title) } div id=(id) role="img" aria-label=(title) {} }
    } }
}
