//! Represents time as integers: [`At`] is an instant, [`Span`] a difference of two.
//!
//! Both count nanoseconds. An [`At`] counts from the start of its run and may be negative (a connection from the warm-up).
//! Floating-point seconds were rejected: they lose nanoseconds after 104 days, and two machines could differ in the last
//! bit of a schedule. They appear only in output for users.

use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An instant: nanoseconds since the start of the run.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct At(pub i64);

/// A difference of two instants, in nanoseconds.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Span(pub i64);

impl At {
    /// Start of the run.
    pub const ZERO: At = At(0);
    /// Later than all events.
    pub const MAX: At = At(i64::MAX);

    /// Returns the seconds since the start of the run, for display and for computations of metrics.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Span {
    pub const ZERO: Span = Span(0);
    pub const MAX: Span = Span(i64::MAX);

    /// Returns a span of whole microseconds.
    pub const fn from_micros(us: i64) -> Span {
        Span(us * 1_000)
    }

    /// Returns a span of whole milliseconds.
    pub const fn from_millis(ms: i64) -> Span {
        Span(ms * 1_000_000)
    }

    /// Returns a span of whole seconds.
    pub const fn from_secs(s: i64) -> Span {
        Span(s * 1_000_000_000)
    }

    /// Converts seconds, rounded to the nearest nanosecond. Saturates at the limits, and NaN gives zero.
    pub fn from_secs_f64(s: f64) -> Span {
        Span((s * 1e9).round() as i64)
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Converts to the standard library's unsigned duration; a negative span gives zero.
    pub fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0.max(0) as u64)
    }
}

impl From<Duration> for Span {
    fn from(d: Duration) -> Span {
        Span(i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl Add<Span> for At {
    type Output = At;
    fn add(self, span: Span) -> At {
        At(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for At {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub<Span> for At {
    type Output = At;
    fn sub(self, span: Span) -> At {
        At(self.0.saturating_sub(span.0))
    }
}

impl Sub<At> for At {
    type Output = Span;
    fn sub(self, earlier: At) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl Neg for Span {
    type Output = Span;
    fn neg(self) -> Span {
        Span(self.0.saturating_neg())
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t={:.6}s", self.as_secs_f64())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.as_secs_f64())
    }
}
