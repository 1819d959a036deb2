//! Draws due times of requests: arrival processes with a given mean rate over a window.
//!
//! *Renewal* processes (constant, Poisson, gamma, Weibull) are drawn gap by gap and start in equilibrium: the first gap is
//! the rest of a length-biased one. The expected number of arrivals in any window is then exactly rate × length. Starting
//! with an ordinary gap was rejected: at CV 3 it adds four arrivals to every level, which at low rates equals the measured
//! difference. Rescaling to the exact count was rejected too. It turns a Poisson process into a binomial one and hides its
//! burstiness at the scale of the window.
//!
//! *Shapes* (ramp, step, spike, diurnal) are relative heights over the window, normalised to a mean of 1. A renewal process
//! of unit rate is drawn in operational time. The inverse of the cumulated rate maps it back (Çinlar 1975, the exact
//! method). Shapes are therefore no piecewise approximations.
//!
//! All transcendental functions come from `libm`. The standard library's differ in the last bits between machines, and one
//! bit changes the schedule.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, RateCourse, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SpecError;
use crate::units::{SpanText, span_text, span_text_opt};

/// Arrival process: the distribution of arrivals in time. The mean rate is set by the load.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "process", rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrivalSpec {
    /// Constant gaps between arrivals, without randomness.
    Constant,
    /// Independent arrivals with exponential gaps (a Poisson process).
    #[default]
    Poisson,
    /// Gamma-distributed gaps: a coefficient of variation of 1 is Poisson, above 1 bursty, below 1 more regular.
    Gamma {
        /// Coefficient of variation of the gaps (standard deviation / mean).
        cv: f64,
    },
    /// Independent gaps from a Weibull distribution.
    Weibull {
        /// Coefficient of variation of the gaps (standard deviation / mean).
        cv: f64,
    },
    /// Bursts: a Poisson process that switches between two rates, each for an exponential time (Markov-modulated, MMPP-2).
    OnOff {
        /// Mean length of a burst, such as `2s`.
        #[serde(with = "span_text")]
        #[schemars(with = "SpanText")]
        on: Span,
        /// Mean length of a pause, such as `8s`.
        #[serde(with = "span_text")]
        #[schemars(with = "SpanText")]
        off: Span,
        /// Rate in a pause relative to the rate in a burst, 0 to 1; default 0.
        #[serde(default)]
        floor: f64,
    },
    /// Linear change of the rate over the window.
    Ramp {
        /// Relative rate at the start; default 0.
        #[serde(default)]
        from: f64,
        /// Relative rate at the end of the window.
        to: f64,
        /// Coefficient of variation of the gaps in operational time; default 1.
        #[serde(default = "one")]
        cv: f64,
    },
    /// Steps of equal length.
    Step {
        /// Relative rate of each step, in order.
        heights: Vec<f64>,
        /// Coefficient of variation of the gaps in operational time; default 1.
        #[serde(default = "one")]
        cv: f64,
    },
    /// Constant rate with one spike at a given time.
    Spike {
        /// Rate of the spike relative to the rest.
        height: f64,
        /// Start of the spike, as a share of the window; default 0.5.
        #[serde(default = "half")]
        at: f64,
        /// Length of the spike, as a share of the window; default 0.1.
        #[serde(default = "tenth")]
        share: f64,
        /// Coefficient of variation of the gaps in operational time; default 1.
        #[serde(default = "one")]
        cv: f64,
    },
    /// Sinusoidal rate, as over a day.
    Diurnal {
        /// Highest rate / lowest rate, at least 1.
        peak_to_trough: f64,
        /// Length of a day; default: the window.
        #[serde(default, with = "span_text_opt")]
        #[schemars(with = "Option<SpanText>")]
        period: Option<Span>,
        /// Start of the level as a share of the day; default 0, the mean on the way up.
        #[serde(default)]
        phase: f64,
        /// Coefficient of variation of the gaps in operational time; default 1.
        #[serde(default = "one")]
        cv: f64,
    },
    /// Replay of a trace: its times, sizes and shared blocks, scaled in time.
    ///
    /// A load rate also scales time, so that burstiness is kept. It is the mean of the *whole* trace; a shorter window has
    /// the trace's rate in that part.
    Trace {
        /// Trace file: CSV or JSON Lines, optionally gzipped.
        file: String,
        /// Speed-up relative to the recording; default 1, or the factor that gives the load's rate.
        #[serde(default)]
        speed: Option<f64>,
        /// Source of the request sizes; default `own`.
        #[serde(default)]
        sizes: TraceSizes,
        /// Repeat the trace if the window is longer; default true. Each lap has new text, so that no cache contains it from
        /// the previous lap.
        #[serde(default = "yes")]
        repeat: bool,
    },
}

/// Source of the sizes in a replay.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceSizes {
    /// Sizes of the requests in the trace.
    #[default]
    Own,
    /// Sizes of the scenario; the block ids of the trace are then unused.
    Drawn,
}

fn one() -> f64 {
    1.0
}
fn half() -> f64 {
    0.5
}
fn tenth() -> f64 {
    0.1
}
fn yes() -> bool {
    true
}

/// Most arrivals of one level, because the schedule is kept in memory.
pub(crate) const MAX_ARRIVALS: f64 = 50e6;

impl ArrivalSpec {
    /// Returns the process of a named kind of traffic: `steady` is Poisson, `burst` gamma gaps with a CV of 3.
    pub fn named(name: &str) -> Option<ArrivalSpec> {
        match name {
            "steady" => Some(ArrivalSpec::Poisson),
            "burst" => Some(ArrivalSpec::Gamma { cv: 3.0 }),
            _ => None,
        }
    }

    /// Returns the intended shape of the rate. Random bursts leave it even; shapes and recordings do not.
    pub fn rate_course(&self) -> RateCourse {
        match self {
            ArrivalSpec::Constant
            | ArrivalSpec::Poisson
            | ArrivalSpec::Gamma { .. }
            | ArrivalSpec::Weibull { .. }
            | ArrivalSpec::OnOff { .. } => RateCourse::Even,
            ArrivalSpec::Ramp { .. }
            | ArrivalSpec::Step { .. }
            | ArrivalSpec::Spike { .. }
            | ArrivalSpec::Diurnal { .. }
            | ArrivalSpec::Trace { .. } => RateCourse::Shaped,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        let within = |path: &str, x: f64, low: f64, high: f64, want: &str| match x >= low && x <= high {
            true => Ok(()),
            false => Err(SpecError::value(path, x, want)),
        };
        let shape_cv = |cv: f64| within("cv", cv, 0.0, 50.0, "a coefficient of variation from 0 to 50");
        let height = |path: &str, x: f64| within(path, x, 0.0, 1e9, "a relative height of 0 or more");
        match self {
            ArrivalSpec::Constant | ArrivalSpec::Poisson => Ok(()),
            ArrivalSpec::Gamma { cv } | ArrivalSpec::Weibull { cv } => {
                within("cv", *cv, 0.01, 50.0, "a coefficient of variation from 0.01 to 50")
            }
            ArrivalSpec::OnOff { on, off, floor } => {
                for (path, span) in [("on", on), ("off", off)] {
                    if span.0 <= 0 {
                        return Err(SpecError::value(
                            path,
                            crate::units::format_span(*span),
                            "a span above 0",
                        ));
                    }
                }
                within("floor", *floor, 0.0, 1.0, "a ratio between 0 and 1")
            }
            ArrivalSpec::Ramp { from, to, cv } => {
                height("from", *from)?;
                height("to", *to)?;
                within("to", from + to, f64::MIN_POSITIVE, 2e9, "above 0 where `from` is 0")?;
                shape_cv(*cv)
            }
            ArrivalSpec::Step { heights, cv } => {
                heights.iter().try_for_each(|h| height("heights", *h))?;
                let total = heights.iter().sum::<f64>();
                within("heights", total, f64::MIN_POSITIVE, 1e12, "a list with at least one height above 0")?;
                shape_cv(*cv)
            }
            ArrivalSpec::Spike { height: h, at, share, cv } => {
                height("height", *h)?;
                within("at", *at, 0.0, 1.0, "a share of the window between 0 and 1")?;
                within("share", *share, 0.0, 1.0 - at, "a share of the window that ends inside it")?;
                shape_cv(*cv)
            }
            ArrivalSpec::Diurnal { peak_to_trough, period, phase, cv } => {
                within("peak_to_trough", *peak_to_trough, 1.0, 1e6, "a ratio of at least 1")?;
                within("phase", *phase, 0.0, 1.0, "a share of the day between 0 and 1")?;
                if period.is_some_and(|p| p.0 <= 0) {
                    return Err(SpecError::value("period", "0s", "a span above 0"));
                }
                shape_cv(*cv)
            }
            ArrivalSpec::Trace { speed, .. } => match speed {
                Some(x) if !(x.is_finite() && *x > 0.0) => {
                    Err(SpecError::value("speed", x, "a factor above 0, such as 4"))
                }
                _ => Ok(()),
            },
        }
    }

    /// Returns due times within `[0, window)`, ascending. Not used for traces, whose times come from their rows.
    pub(crate) fn times(&self, rate_per_s: f64, window: Span, stream: &mut Stream) -> Vec<At> {
        let length = window.as_secs_f64();
        match self {
            ArrivalSpec::OnOff { on, off, floor } => {
                bursts(rate_per_s, length, on.as_secs_f64(), off.as_secs_f64(), *floor, stream)
            }
            _ => match self.shape(length) {
                None => renewal(&self.gaps(), rate_per_s, length, stream).map(stamp).collect(),
                Some(shape) => {
                    // Operational time runs from 0 to rate × window, at one arrival per unit.
                    let total = rate_per_s * length;
                    renewal(&self.gaps(), 1.0, total, stream)
                        .map(|u| stamp(shape.invert(u / total).min(length)))
                        .collect()
                }
            },
        }
        .into_iter()
        .filter(|at| at.0 >= 0 && at.0 < window.0)
        .collect()
    }

    fn gaps(&self) -> Gaps {
        match self {
            ArrivalSpec::Constant => Gaps::of_cv(0.0),
            ArrivalSpec::Gamma { cv } => Gaps::of_cv(*cv),
            ArrivalSpec::Weibull { cv } => {
                let (shape, scale) = dist::weibull_from_mean_cv(1.0, *cv);
                Gaps::Weibull { shape, scale }
            }
            ArrivalSpec::Ramp { cv, .. }
            | ArrivalSpec::Step { cv, .. }
            | ArrivalSpec::Spike { cv, .. }
            | ArrivalSpec::Diurnal { cv, .. } => Gaps::of_cv(*cv),
            ArrivalSpec::Poisson | ArrivalSpec::OnOff { .. } | ArrivalSpec::Trace { .. } => Gaps::Exponential,
        }
    }

    fn shape(&self, length: f64) -> Option<Shape> {
        match self {
            ArrivalSpec::Ramp { from, to, .. } => Some(Shape::lines(vec![(length, *from, *to)])),
            ArrivalSpec::Step { heights, .. } => {
                let each = length / heights.len() as f64;
                Some(Shape::lines(heights.iter().map(|h| (each, *h, *h)).collect()))
            }
            ArrivalSpec::Spike { height, at, share, .. } => Some(Shape::lines(vec![
                (length * at, 1.0, 1.0),
                (length * share, *height, *height),
                (length * (1.0 - at - share).max(0.0), 1.0, 1.0),
            ])),
            ArrivalSpec::Diurnal { peak_to_trough, period, phase, .. } => {
                let swing = (peak_to_trough - 1.0) / (peak_to_trough + 1.0);
                Some(Shape::sine(length, swing, period.map_or(length, Span::as_secs_f64), *phase))
            }
            _ => None,
        }
    }
}

fn stamp(seconds: f64) -> At {
    At((seconds * 1e9).round() as i64)
}

/// A gap distribution with mean 1.
enum Gaps {
    Equal,
    Exponential,
    Gamma { shape: f64, scale: f64 },
    Weibull { shape: f64, scale: f64 },
}

impl Gaps {
    fn of_cv(cv: f64) -> Gaps {
        match cv {
            _ if cv < 0.01 => Gaps::Equal,
            1.0 => Gaps::Exponential,
            _ => {
                let (shape, scale) = dist::gamma_from_mean_cv(1.0, cv);
                Gaps::Gamma { shape, scale }
            }
        }
    }

    fn draw(&self, stream: &mut Stream) -> f64 {
        match self {
            Gaps::Equal => 1.0,
            Gaps::Exponential => dist::exponential(stream, 1.0),
            Gaps::Gamma { shape, scale } => dist::gamma(stream, *shape, *scale),
            Gaps::Weibull { shape, scale } => dist::weibull(stream, *shape, *scale),
        }
    }

    /// Draws the rest of the gap that contains time zero: uniform × a length-biased gap (Cox, Renewal Theory, 1962, §5.2).
    ///
    /// The length-biased gamma distribution is gamma with a shape larger by one. For X Weibull with shape k, (X/scale)^k is
    /// length-biased gamma with shape 1 + 1/k.
    fn first(&self, stream: &mut Stream) -> f64 {
        match self {
            Gaps::Equal => stream.uniform(),
            Gaps::Exponential => dist::exponential(stream, 1.0),
            Gaps::Gamma { shape, scale } => stream.uniform() * dist::gamma(stream, shape + 1.0, *scale),
            Gaps::Weibull { shape, scale } => {
                let power = dist::gamma(stream, 1.0 + 1.0 / shape, 1.0);
                stream.uniform() * scale * libm::pow(power, 1.0 / shape)
            }
        }
    }
}

/// Returns arrival times in `[0, length)` of an equilibrium renewal process.
///
/// Gaps are summed before the division by the rate. The sum of 10⁷ of them is then off by less than a microsecond at any
/// rate.
fn renewal<'a>(
    gaps: &'a Gaps,
    rate: f64,
    length: f64,
    stream: &'a mut Stream,
) -> impl Iterator<Item = f64> + use<'a> {
    let first = gaps.first(stream);
    let mut sum = first;
    let mut n = 0u64;
    std::iter::from_fn(move || {
        let at = sum / rate;
        if at >= length {
            return None;
        }
        n += 1;
        // Equal gaps are multiplied and not added, because sums accumulate errors.
        sum = if matches!(gaps, Gaps::Equal) { first + n as f64 } else { sum + gaps.draw(stream) };
        Some(at)
    })
}

/// Returns the arrival times of an MMPP-2 that starts in its stationary state.
fn bursts(rate: f64, length: f64, on: f64, off: f64, floor: f64, stream: &mut Stream) -> Vec<At> {
    let high = rate * (on + off) / (on + off * floor);
    let mut bursting = stream.chance(on / (on + off));
    let (mut now, mut out) = (0.0, Vec::new());
    while now < length {
        let (mean, level) = if bursting { (on, high) } else { (off, high * floor) };
        let end = now + dist::exponential(stream, mean);
        let gap = |stream: &mut Stream| match level > 0.0 {
            true => dist::exponential(stream, 1.0 / level),
            false => f64::INFINITY,
        };
        let mut at = now + gap(stream);
        while at < end.min(length) {
            out.push(stamp(at));
            at += gap(stream);
        }
        (now, bursting) = (end, !bursting);
    }
    out
}

/// A relative rate over the window, with the inverse of its cumulated form.
struct Shape {
    /// Pieces: length, height at the start, height at the end, area before the piece.
    pieces: Vec<(f64, f64, f64, f64)>,
    sine: Option<Sine>,
    length: f64,
    area: f64,
}

struct Sine {
    swing: f64,
    omega: f64,
    phase: f64,
}

impl Sine {
    /// ∫₀ᵗ 1 + swing · sin(ωs + φ) ds
    fn area(&self, t: f64) -> f64 {
        t + self.swing / self.omega * (libm::cos(self.phase) - libm::cos(self.omega * t + self.phase))
    }
}

impl Shape {
    fn lines(parts: Vec<(f64, f64, f64)>) -> Shape {
        let (mut area, mut length) = (0.0, 0.0);
        let mut pieces = Vec::new();
        for (long, from, to) in parts {
            pieces.push((long, from, to, area));
            area += long * (from + to) / 2.0;
            length += long;
        }
        Shape { pieces, sine: None, length, area }
    }

    fn sine(length: f64, swing: f64, period: f64, phase: f64) -> Shape {
        let tau = 2.0 * std::f64::consts::PI;
        let sine = Sine { swing, omega: tau / period, phase: tau * phase };
        let area = sine.area(length);
        Shape { pieces: Vec::new(), sine: Some(sine), length, area }
    }

    /// Returns the time before which the share `u` of the area is located.
    fn invert(&self, u: f64) -> f64 {
        let target = u * self.area;
        if let Some(sine) = &self.sine {
            let (mut low, mut high) = (0.0, self.length);
            // 60 halvings reach below a nanosecond in a year. Newton's method would too, but needs a guard at the trough.
            for _ in 0..60 {
                let middle = 0.5 * (low + high);
                if sine.area(middle) < target { low = middle } else { high = middle }
            }
            return 0.5 * (low + high);
        }
        let i = self.pieces.partition_point(|p| p.3 <= target).max(1) - 1;
        let before: f64 = self.pieces[..i].iter().map(|p| p.0).sum();
        let (long, from, to, area) = self.pieces[i];
        let wanted = target - area;
        // Solves from·t + (to − from)/(2·long)·t² = wanted, in the form that keeps its digits when the slope is small.
        let slope = if long > 0.0 { (to - from) / long } else { 0.0 };
        let root = libm::sqrt((from * from + 2.0 * slope * wanted).max(0.0));
        let t = if from + root > 0.0 { 2.0 * wanted / (from + root) } else { 0.0 };
        before + t.min(long)
    }
}
