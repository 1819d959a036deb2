//! `f64` that may be infinite, in JSON: a number, or the text `"inf"` / `"-inf"`. JSON's own way out, `null`, would read
//! back as "not measured".

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What stands in the file.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Number {
    /// A finite number.
    Finite(f64),
    /// Not a finite number.
    Infinite(Infinite),
}

/// The words for it.
#[derive(Serialize, Deserialize, JsonSchema)]
pub enum Infinite {
    /// Beyond every number.
    #[serde(rename = "inf")]
    Plus,
    /// Below every number.
    #[serde(rename = "-inf")]
    Minus,
    /// Undefined. It is never written on purpose, and reads back as what it is.
    #[serde(rename = "nan")]
    Undefined,
}

impl From<f64> for Number {
    fn from(x: f64) -> Number {
        if x.is_finite() {
            Number::Finite(x)
        } else if x.is_nan() {
            Number::Infinite(Infinite::Undefined)
        } else if x > 0.0 {
            Number::Infinite(Infinite::Plus)
        } else {
            Number::Infinite(Infinite::Minus)
        }
    }
}

impl From<Number> for f64 {
    fn from(number: Number) -> f64 {
        match number {
            Number::Finite(x) => x,
            Number::Infinite(Infinite::Plus) => f64::INFINITY,
            Number::Infinite(Infinite::Minus) => f64::NEG_INFINITY,
            Number::Infinite(Infinite::Undefined) => f64::NAN,
        }
    }
}

/// Writes the number or the word.
pub fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Number::from(*x).serialize(serializer)
}

/// Reads the number or the word.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Number::deserialize(deserializer).map(f64::from)
}

/// The same for an optional number.
pub mod option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Number;

    /// Writes the number, the word, or null.
    pub fn serialize<S: Serializer>(x: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        x.map(Number::from).serialize(serializer)
    }

    /// Reads the number, the word, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<Number>::deserialize(deserializer).map(|number| number.map(f64::from))
    }
}
