//! An `f64` in JSON that may be infinite: a number, or the text `"inf"` or `"-inf"`.
//!
//! JSON's usual replacement, `null`, was rejected because it would be read back as "not measured".

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that may be infinite.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Number {
    /// A finite number.
    Finite(f64),
    /// A text for a value that is not finite.
    Infinite(Infinite),
}

/// The text of a value that is not finite.
#[derive(Serialize, Deserialize, JsonSchema)]
pub enum Infinite {
    /// Positive infinity.
    #[serde(rename = "inf")]
    Plus,
    /// Negative infinity.
    #[serde(rename = "-inf")]
    Minus,
    /// Not a number. No figure should have this value; it is read back unchanged.
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

/// Writes the number or its text.
///
/// # Errors
/// Fails if the serializer fails.
pub fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Number::from(*x).serialize(serializer)
}

/// Reads the number or its text.
///
/// # Errors
/// Fails if the value is neither a number nor one of the texts.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Number::deserialize(deserializer).map(f64::from)
}

/// Serialisation of an optional number.
pub mod option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Number;

    /// Writes the number, its text, or null.
    ///
    /// # Errors
    /// Fails if the serializer fails.
    pub fn serialize<S: Serializer>(x: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        x.map(Number::from).serialize(serializer)
    }

    /// Reads the number, its text, or null.
    ///
    /// # Errors
    /// Fails if the value is none of them.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<Number>::deserialize(deserializer).map(|number| number.map(f64::from))
    }
}
