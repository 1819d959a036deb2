//! The finding of a formula: input figures, results, formula, assumptions, limits of validity and a curve.
//!
//! All formulas share one type, because their results are read in one way. A result without its assumptions is the mistake
//! that this command exists to prevent. Times are seconds, rates are per second, shares are of 1.

use schemars::JsonSchema;
use serde::Serialize;

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LawError {
    /// A figure is impossible, or figures contradict each other; the text gives the remedy.
    #[error("{0}")]
    Input(String),
    /// The formula does not apply to this system; the text gives the reason and an alternative.
    #[error("{0}")]
    NotFor(String),
}

impl LawError {
    pub(super) fn input(what: impl Into<String>) -> LawError {
        LawError::Input(what.into())
    }
}

/// The quantity of a figure, which sets its unit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Quantity")]
pub enum CalcUnit {
    /// A duration or a time, in seconds.
    Time,
    /// A number of requests per second.
    Rate,
    /// A number of tokens per second.
    TokenRate,
    /// A share as a fraction of 1.
    Share,
    /// A number of items.
    Count,
    /// A ratio to a baseline.
    Factor,
    /// A percentile, as a share of 1.
    Percentile,
    /// A number without a unit.
    Plain,
}

/// A figure with its quantity and interval.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CalcFigure {
    /// Name of the figure.
    pub name: String,
    /// Value; null if it is infinite or refused.
    pub value: f64,
    /// Quantity and unit of the value.
    pub quantity: CalcUnit,
    /// 95 % interval if the value was estimated from measured points; a null end is infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Reason for a refused value, or a remark on the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl CalcFigure {
    /// Returns a figure without interval and note.
    pub fn new(name: impl Into<String>, value: f64, quantity: CalcUnit) -> CalcFigure {
        CalcFigure { name: name.into(), value, quantity, interval: None, note: None }
    }

    pub fn note(mut self, note: impl Into<String>) -> CalcFigure {
        self.note = Some(note.into());
        self
    }

    /// Returns a figure without a value, with the reason.
    pub fn refused(name: impl Into<String>, quantity: CalcUnit, why: impl Into<String>) -> CalcFigure {
        CalcFigure::new(name, f64::NAN, quantity).note(why)
    }
}

/// The result of a formula.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct LawFinding {
    /// Name of the formula on the command line.
    pub law: &'static str,
    /// Title of the result.
    pub title: String,
    /// Input figures.
    pub given: Vec<CalcFigure>,
    /// Computed figures.
    pub answers: Vec<CalcFigure>,
    /// Formula, one line per equation.
    pub formula: Vec<String>,
    /// Source of the formula.
    pub source: &'static str,
    /// Assumptions of the formula.
    pub assumes: Vec<String>,
    /// Systems that the formula does not apply to, with an alternative.
    pub not_for: Vec<String>,
    /// Warnings about this result.
    pub warnings: Vec<String>,
    /// Curve that contains the result.
    pub curve: Option<CalcCurve>,
}

impl LawFinding {
    pub fn answer(&self, name: &str) -> Option<f64> {
        self.answers.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// A curve with its axes, points and marks.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Curve")]
pub struct CalcCurve {
    /// Horizontal axis.
    pub x: CurveAxis,
    /// Vertical axis.
    pub y: CurveAxis,
    /// Named lines of the curve.
    pub lines: Vec<CurveLine>,
    /// Highlighted points.
    pub points: Vec<Point>,
    /// Vertical marks.
    pub marks: Vec<CurveMark>,
}

/// An axis of a curve.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CurveAxis {
    /// Label of the axis.
    pub name: String,
    /// Quantity and unit of the axis.
    pub quantity: CalcUnit,
    /// Least and largest value shown; values beyond them are cut off.
    pub range: [f64; 2],
    /// Whether the axis is logarithmic.
    pub log: bool,
}

impl CurveAxis {
    /// Returns a linear axis from 0 to `most`.
    pub fn to(name: impl Into<String>, quantity: CalcUnit, most: f64) -> CurveAxis {
        CurveAxis { name: name.into(), quantity, range: [0.0, most], log: false }
    }
}

/// A named line of a curve.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CurveLine {
    /// Name of the line.
    pub name: String,
    /// Points (x, y), by ascending x.
    pub at: Vec<[f64; 2]>,
}

impl CurveLine {
    /// Returns the line of a function of x at evenly spaced positions of the axis.
    pub fn of(name: impl Into<String>, x: &CurveAxis, y: impl Fn(f64) -> f64) -> CurveLine {
        const STEPS: u32 = 240;
        let [from, to] = x.range;
        let place = |i: u32| {
            let share = f64::from(i) / f64::from(STEPS);
            if x.log { from * libm::pow(to / from, share) } else { from + (to - from) * share }
        };
        let at = (0..=STEPS).map(|i| [place(i), y(place(i))]).filter(|[_, y]| y.is_finite()).collect();
        CurveLine { name: name.into(), at }
    }
}

/// A highlighted point of a curve.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Point {
    /// Position (x, y).
    pub at: [f64; 2],
    /// Label; empty for one of many measured points.
    pub name: String,
}

/// A vertical mark of a curve.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CurveMark {
    /// Position on the horizontal axis.
    pub x: f64,
    /// Label of the mark.
    pub name: String,
}
