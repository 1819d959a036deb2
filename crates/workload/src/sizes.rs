//! Defines distributions of token counts and think times, written as one short text.
//!
//! `128`, `uniform:64,256`, `normal:512,64`, `lognormal:512,0.8` (median, sigma of the logarithm), `empirical:FILE`. The
//! lognormal is given by its *median*, because the few longest lengths dominate mean and sigma and are not visible in a
//! histogram. Flags, scenario files and manifests all contain this text.

use std::fmt;

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::Span;

use crate::error::nearest;
use crate::material::ParsedFiles;
use crate::units::{MAX_TOKENS, format_span, parse_span};
use crate::{SpecError, as_text};

const SIZE_WANT: &str = "a size: 128, uniform:64,256, normal:512,64, lognormal:512,0.8 (median, sigma of the log) or empirical:FILE";
const SIZE_NAMES: [&str; 5] = ["fixed", "uniform", "normal", "lognormal", "empirical"];
const PAUSE_WANT: &str =
    "a pause: 5s, exponential:5s, uniform:1s,10s or lognormal:5s,0.8 (median, sigma of the log)";
const PAUSE_NAMES: [&str; 4] = ["fixed", "exponential", "uniform", "lognormal"];

/// A distribution of token counts. A draw is rounded to whole tokens and is at least 1.
#[derive(Clone, PartialEq, Debug)]
pub enum Size {
    /// A constant. For outputs, 0 = no length is requested.
    Fixed(u32),
    /// Uniform over whole numbers, both limits included.
    Uniform(u32, u32),
    /// Normal with this mean and standard deviation; draws below 1 become 1.
    Normal(f64, f64),
    /// Lognormal with this median and this standard deviation of the natural logarithm.
    Lognormal(f64, f64),
    /// A random line of a file with one number per line, each with equal probability.
    Empirical(String),
}

impl Size {
    /// Parses the text form.
    ///
    /// # Errors
    /// Fails with [`SpecError::UnknownValue`] for an unknown distribution and with [`SpecError::Value`] for invalid
    /// parameters.
    pub fn parse(text: &str) -> Result<Size, SpecError> {
        let bad = || SpecError::value("", text, SIZE_WANT);
        let (name, rest) = split(text);
        match name {
            None | Some("fixed") => {
                Ok(Size::Fixed(rest.parse().ok().filter(|n| *n <= MAX_TOKENS).ok_or_else(bad)?))
            }
            Some("uniform") => {
                let (low, high) = pair(rest, tokens, tokens).ok_or_else(bad)?;
                if low <= high { Ok(Size::Uniform(low, high)) } else { Err(bad()) }
            }
            Some("normal") => {
                pair(rest, positive, non_negative).map(|(m, s)| Size::Normal(m, s)).ok_or_else(bad)
            }
            Some("lognormal") => {
                pair(rest, positive, non_negative).map(|(m, s)| Size::Lognormal(m, s)).ok_or_else(bad)
            }
            Some("empirical") if !rest.is_empty() => Ok(Size::Empirical(rest.to_string())),
            Some("empirical") => Err(bad()),
            Some(other) => Err(unknown(other, &SIZE_NAMES)),
        }
    }

    pub(crate) fn draw(&self, stream: &mut Stream, material: &ParsedFiles) -> Result<u32, SpecError> {
        Ok(match self {
            Size::Fixed(n) => *n,
            Size::Uniform(low, high) => low + stream.below(u64::from(high - low) + 1) as u32,
            Size::Normal(mean, sd) => whole(dist::normal(stream, *mean, *sd)),
            Size::Lognormal(median, sigma) => whole(dist::lognormal(stream, *median, *sigma)),
            Size::Empirical(file) => {
                let values = material.lengths(file)?;
                values[stream.below(values.len() as u64) as usize].max(1)
            }
        })
    }

    /// Draws one count; `None` for an empirical distribution, which needs a file.
    pub fn sample(&self, stream: &mut Stream) -> Option<u32> {
        self.draw(stream, &ParsedFiles::default()).ok()
    }

    /// Returns the mean in tokens, before rounding and the minimum of 1.
    ///
    /// # Errors
    /// Fails with [`SpecError::File`] if the file of an empirical distribution is not loaded.
    pub fn mean(&self, material: &ParsedFiles) -> Result<f64, SpecError> {
        Ok(match self {
            Size::Fixed(n) => f64::from(*n),
            Size::Uniform(low, high) => (f64::from(*low) + f64::from(*high)) / 2.0,
            Size::Normal(mean, _) => *mean,
            Size::Lognormal(median, sigma) => median * libm_exp(sigma * sigma / 2.0),
            Size::Empirical(file) => {
                let values = material.lengths(file)?;
                values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64
            }
        })
    }

    /// Returns the file of an empirical distribution.
    pub fn file(&self) -> Option<&str> {
        match self {
            Size::Empirical(file) => Some(file),
            _ => None,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Fixed(n) => write!(f, "{n}"),
            Size::Uniform(low, high) => write!(f, "uniform:{low},{high}"),
            Size::Normal(mean, sd) => write!(f, "normal:{mean},{sd}"),
            Size::Lognormal(median, sigma) => write!(f, "lognormal:{median},{sigma}"),
            Size::Empirical(file) => write!(f, "empirical:{file}"),
        }
    }
}

/// A distribution of think times between the turns of a session.
#[derive(Clone, PartialEq, Debug)]
pub enum Pause {
    Fixed(Span),
    Exponential(Span),
    /// Uniform between the two limits.
    Uniform(Span, Span),
    /// Lognormal with this median and this standard deviation of the natural logarithm.
    Lognormal(Span, f64),
}

impl Pause {
    /// Parses the text form.
    ///
    /// # Errors
    /// Fails with [`SpecError::UnknownValue`] for an unknown distribution and with [`SpecError::Value`] for invalid
    /// parameters.
    pub fn parse(text: &str) -> Result<Pause, SpecError> {
        let bad = || SpecError::value("", text, PAUSE_WANT);
        let span = |t: &str| parse_span(t).ok();
        let (name, rest) = split(text);
        match name {
            None | Some("fixed") => span(rest).map(Pause::Fixed).ok_or_else(bad),
            Some("exponential") => span(rest).map(Pause::Exponential).ok_or_else(bad),
            Some("uniform") => match pair(rest, span, span) {
                Some((low, high)) if low <= high => Ok(Pause::Uniform(low, high)),
                _ => Err(bad()),
            },
            Some("lognormal") => {
                pair(rest, span, non_negative).map(|(m, s)| Pause::Lognormal(m, s)).ok_or_else(bad)
            }
            Some(other) => Err(unknown(other, &PAUSE_NAMES)),
        }
    }

    pub fn draw(&self, stream: &mut Stream) -> Span {
        match self {
            Pause::Fixed(span) => *span,
            Pause::Exponential(mean) => Span::from_secs_f64(dist::exponential(stream, mean.as_secs_f64())),
            Pause::Uniform(low, high) => {
                Span::from_secs_f64(dist::uniform(stream, low.as_secs_f64(), high.as_secs_f64()))
            }
            Pause::Lognormal(median, sigma) => {
                Span::from_secs_f64(dist::lognormal(stream, median.as_secs_f64(), *sigma))
            }
        }
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pause::Fixed(span) => f.write_str(&format_span(*span)),
            Pause::Exponential(mean) => write!(f, "exponential:{}", format_span(*mean)),
            Pause::Uniform(low, high) => write!(f, "uniform:{},{}", format_span(*low), format_span(*high)),
            Pause::Lognormal(median, sigma) => write!(f, "lognormal:{},{sigma}", format_span(*median)),
        }
    }
}

fn libm_exp(x: f64) -> f64 {
    // From libm and not the platform, because session starts depend on this mean.
    libm::exp(x)
}

fn whole(x: f64) -> u32 {
    x.round().clamp(1.0, f64::from(MAX_TOKENS)) as u32
}

fn split(text: &str) -> (Option<&str>, &str) {
    match text.trim().split_once(':') {
        Some((name, rest)) => (Some(name.trim()), rest.trim()),
        None if text.trim().starts_with(|c: char| c.is_alphabetic()) => (Some(text.trim()), ""),
        None => (None, text.trim()),
    }
}

fn pair<A, B>(text: &str, a: impl Fn(&str) -> Option<A>, b: impl Fn(&str) -> Option<B>) -> Option<(A, B)> {
    let (first, second) = text.split_once(',')?;
    Some((a(first.trim())?, b(second.trim())?))
}

fn tokens(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n| (1..=MAX_TOKENS).contains(n))
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|x: &f64| *x > 0.0 && *x <= f64::from(MAX_TOKENS))
}

fn non_negative(text: &str) -> Option<f64> {
    text.parse().ok().filter(|x: &f64| *x >= 0.0 && *x <= f64::from(MAX_TOKENS))
}

fn unknown(given: &str, allowed: &[&str]) -> SpecError {
    SpecError::UnknownValue {
        path: String::new(),
        value: given.to_string(),
        allowed: allowed.iter().map(|s| s.to_string()).collect(),
        nearest: nearest(given, allowed.iter().copied()).map(str::to_string),
    }
}

as_text!(Size, ["string", "integer"], "size", SIZE_WANT, ["128", "lognormal:512,0.8"]);
as_text!(Pause, "string", "pause", PAUSE_WANT, ["5s", "exponential:5s"]);
