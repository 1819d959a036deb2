//! Defines the text form of spans and rates: `250ms`, `1m30s`, `12/s`, `600/m`.
//!
//! Flags, scenario files and the manifest all use this form, so there is no second copy with another unit. A bare number is
//! rejected as a span, because its unit is unknown. As a rate it is per second, as everywhere in this tool.

use std::borrow::Cow;
use std::fmt;

use plimsoll_model::Span;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serializer, de};

use crate::{SpecError, as_text};

const SPAN_WANT: &str = "a span of time such as 250ms, 60s, 1m30s or 15m (units: ns us ms s m h d)";
const RATE_WANT: &str = "a rate above 0, such as 12/s, 600/m or 40000/h";

const UNITS: [(&str, i64); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Most tokens of a draw. This exceeds any context window in use; a larger draw comes from an unintended tail.
pub const MAX_TOKENS: u32 = 16_000_000;

/// Parses a span: one or more numbers, each with its unit, added up.
///
/// # Errors
/// Fails with [`SpecError::Value`] for a missing or unknown unit, a negative number, or more than 292 years.
pub fn parse_span(text: &str) -> Result<Span, SpecError> {
    let bad = || SpecError::value("", text, SPAN_WANT);
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let unit = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(bad)?.1;
        rest = rest[letters..].trim_start();
        total += number * unit as f64;
    }
    if total.is_finite() && total < i64::MAX as f64 { Ok(Span(total.round() as i64)) } else { Err(bad()) }
}

/// Formats a span in the largest unit that divides it, so that [`parse_span`] returns an equal span.
pub fn format_span(span: Span) -> String {
    let named = [
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    match named.iter().find(|(_, unit)| span.0 != 0 && span.0 % unit == 0) {
        Some((name, unit)) => format!("{}{name}", span.0 / unit),
        None if span.0 == 0 => "0s".to_string(),
        None => format!("{}ns", span.0),
    }
}

/// A rate in arrivals per second: finite and above zero.
#[derive(Copy, Clone, PartialEq, PartialOrd, Debug)]
pub struct Rate(f64);

impl Rate {
    /// Returns a rate in arrivals per second.
    ///
    /// # Errors
    /// Fails with [`SpecError::Value`] if it is not finite or not above zero.
    pub fn per_s(rate: f64) -> Result<Rate, SpecError> {
        if rate.is_finite() && rate > 0.0 {
            Ok(Rate(rate))
        } else {
            Err(SpecError::value("", rate, RATE_WANT))
        }
    }

    /// Parses `12/s`, `600/m`, `40000/h`, or a bare number, which is per second.
    ///
    /// # Errors
    /// Fails with [`SpecError::Value`] for other text, zero, negative numbers and NaN.
    pub fn parse(text: &str) -> Result<Rate, SpecError> {
        let bad = || SpecError::value("", text, RATE_WANT);
        let (number, per) = match text.split_once('/') {
            None => (text.trim(), 1.0),
            Some((number, "s" | "sec")) => (number.trim(), 1.0),
            Some((number, "m" | "min")) => (number.trim(), 60.0),
            Some((number, "h")) => (number.trim(), 3600.0),
            Some(_) => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        Rate::per_s(number / per).map_err(|_| bad())
    }

    /// Returns the rate in arrivals per second.
    pub fn as_per_s(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

as_text!(Rate, ["string", "number"], "rate", RATE_WANT, ["12/s", "600/m"]);

/// The schema of a span's text; the fields themselves are [`Span`]s.
pub struct SpanText;

impl JsonSchema for SpanText {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "span", "examples": ["250ms", "60s", "15m"] })
    }
}

/// Serialises a [`Span`] as text: `#[serde(with = "span_text")]`.
pub mod span_text {
    use super::*;

    /// Writes the text of a span.
    pub fn serialize<S: Serializer>(span: &Span, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format_span(*span))
    }

    /// Parses the text of a span.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Span, D::Error> {
        let text = Cow::<str>::deserialize(d)?;
        parse_span(&text).map_err(de::Error::custom)
    }
}

/// Serialises an optional [`Span`] as text: `#[serde(with = "span_text_opt")]`.
pub mod span_text_opt {
    use super::*;

    /// Writes the text of an optional span.
    pub fn serialize<S: Serializer>(span: &Option<Span>, s: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => s.serialize_some(&format_span(*span)),
            None => s.serialize_none(),
        }
    }

    /// Parses the text of an optional span.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Span>, D::Error> {
        let text = Option::<Cow<str>>::deserialize(d)?;
        text.map(|text| parse_span(&text).map_err(de::Error::custom)).transpose()
    }
}

/// Implements serialisation as text for a type with `parse` and `Display`. A JSON number is accepted in place of its text.
///
/// Arguments are the type, the JSON types, the format's name, a description of accepted values, and examples.
#[macro_export]
macro_rules! as_text {
    ($name:ident, $types:tt, $format:literal, $want:expr, $examples:tt) => {
        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(d: D) -> Result<$name, D::Error> {
                d.deserialize_any($crate::units::TextOrNumber($want, $name::parse))
            }
        }
        impl ::schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({ "type": $types, "format": $format, "examples": $examples })
            }
        }
    };
}

/// A serde visitor for a text or a number: the description of accepted values, and the parser.
pub struct TextOrNumber<T, R>(pub &'static str, pub fn(&str) -> Result<T, R>);

impl<T, R: fmt::Display> de::Visitor<'_> for TextOrNumber<T, R> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }
    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        (self.1)(&n.to_string()).map_err(E::custom)
    }
    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        (self.1)(&n.to_string()).map_err(E::custom)
    }
    fn visit_f64<E: de::Error>(self, n: f64) -> Result<T, E> {
        (self.1)(&n.to_string()).map_err(E::custom)
    }
}
