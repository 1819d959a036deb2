//! What a law says: the figures that went in, those that came out, the formula, what it takes for granted, where it does not hold, and
//! its curve.
//!
//! One type for all laws, because they are read in one way: an answer without its assumptions is the mistake that this command exists to
//! prevent. Times are seconds, rates per second, shares of 1.

use schemars::JsonSchema;
use serde::Serialize;

/// Why a law gives no answer.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LawError {
    /// A figure can't be meant, or figures contradict each other: which, and what to give.
    #[error("{0}")]
    Input(String),
    /// The law does not hold for what it was asked about: why, and what does.
    #[error("{0}")]
    NotFor(String),
}

impl LawError {
    pub(super) fn input(what: impl Into<String>) -> LawError {
        LawError::Input(what.into())
    }
}

/// What a figure counts.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Seconds.
    Time,
    /// Per second.
    Rate,
    /// Tokens per second.
    TokenRate,
    /// A share of 1.
    Share,
    /// How many.
    Count,
    /// How many times as much.
    Factor,
    /// A percentile, as a share of 1.
    Percentile,
    /// A bare number.
    Plain,
}

/// One figure.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CalcFigure {
    /// What it is.
    pub name: String,
    /// How much; null where it is infinite or refused.
    pub value: f64,
    /// Of what.
    pub quantity: Quantity,
    /// 95 % interval, where it was estimated from measured points; an end that is null is infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Why it is not given, or what to know about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl CalcFigure {
    /// A figure as it is.
    pub fn new(name: impl Into<String>, value: f64, quantity: Quantity) -> CalcFigure {
        CalcFigure { name: name.into(), value, quantity, interval: None, note: None }
    }

    /// With something to know about it.
    pub fn note(mut self, note: impl Into<String>) -> CalcFigure {
        self.note = Some(note.into());
        self
    }

    /// One that is not given, with the reason.
    pub fn refused(name: impl Into<String>, quantity: Quantity, why: impl Into<String>) -> CalcFigure {
        CalcFigure::new(name, f64::NAN, quantity).note(why)
    }
}

/// What a law says.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct LawFinding {
    /// The law's name on the command line.
    pub law: &'static str,
    /// What it is about, in words.
    pub title: String,
    /// What went in.
    pub given: Vec<CalcFigure>,
    /// What came out.
    pub answers: Vec<CalcFigure>,
    /// The formula, a line each.
    pub formula: Vec<String>,
    /// Who found it.
    pub source: &'static str,
    /// What it takes for granted.
    pub assumes: Vec<String>,
    /// Where it does not hold, and what to take instead.
    pub not_for: Vec<String>,
    /// What to know about this answer.
    pub warnings: Vec<String>,
    /// The curve on which the answer lies.
    pub curve: Option<Curve>,
}

impl LawFinding {
    pub fn answer(&self, name: &str) -> Option<f64> {
        self.answers.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// A curve to draw.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Curve {
    /// Horizontal.
    pub x: CurveAxis,
    /// Vertical.
    pub y: CurveAxis,
    /// Lines, each with its name.
    pub lines: Vec<CurveLine>,
    /// Points of interest.
    pub points: Vec<Point>,
    /// Vertical lines.
    pub marks: Vec<CurveMark>,
}

/// An axis.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CurveAxis {
    /// What it shows.
    pub name: String,
    /// Of what.
    pub quantity: Quantity,
    /// Least and largest value shown; what lies beyond is cut off.
    pub range: [f64; 2],
    /// Logarithmic?
    pub log: bool,
}

impl CurveAxis {
    /// A linear axis from 0.
    pub fn to(name: impl Into<String>, quantity: Quantity, most: f64) -> CurveAxis {
        CurveAxis { name: name.into(), quantity, range: [0.0, most], log: false }
    }
}

/// One line of a curve.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CurveLine {
    /// Its name.
    pub name: String,
    /// (x, y), by ascending x.
    pub at: Vec<[f64; 2]>,
}

impl CurveLine {
    /// A function of x at evenly spaced places of the axis.
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

/// A point of interest.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Point {
    /// Where.
    pub at: [f64; 2],
    /// What it is; empty for one of many measured ones.
    pub name: String,
}

/// A vertical line.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct CurveMark {
    /// Where.
    pub x: f64,
    /// What it marks.
    pub name: String,
}
