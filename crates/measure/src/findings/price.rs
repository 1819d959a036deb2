//! Prices: what the user says is paid, with its date and source, and the bill that follows for the endpoint measured.
//!
//! A price without a currency is refused, and a price per GPU without a number of GPUs as well: a guess at either is wrong by a
//! factor that nobody sees.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A price as a file says it; the flag `--price` is its first field.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceSpec {
    /// `2.49USD/gpu-hour`, `9.9EUR/replica-hour`, `20USD/h` (the whole endpoint) or `0.5,1.5USD/Mtok` (input,output).
    pub price: Price,
    /// GPUs of the endpoint, over all replicas: needed with a price per GPU-hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Replicas of the endpoint: needed with a price per replica-hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// When the price held, as `2026-11-20`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A price with its currency, read from and written as `2.49USD/gpu-hour`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Price {
    /// The amount and what it is for.
    pub per: Per,
    /// The currency, as written.
    pub currency: String,
}

/// What is paid for.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Per {
    /// An hour of the whole endpoint.
    Hour(f64),
    GpuHour(f64),
    ReplicaHour(f64),
    Mtok {
        /// Of prompts.
        input: f64,
        /// Generated.
        output: f64,
    },
}

/// What the endpoint costs as a whole.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// An hour of all of it.
    PerHour(f64),
    /// A million tokens.
    PerMtok {
        /// Of prompts.
        input: f64,
        /// Generated.
        output: f64,
    },
}

/// A price worked out for one endpoint, with where it comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bill {
    /// What the endpoint costs as a whole.
    pub rate: Rate,
    /// The currency of every figure.
    pub currency: String,
    /// The price as it was given.
    pub given: PriceSpec,
}

/// Why a price can't be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PriceError {
    /// Not a price.
    #[error(
        "{text}: write 2.49USD/gpu-hour, 9.9USD/replica-hour, 20USD/h (the whole endpoint), 1.5USD/Mtok or \
         0.5,1.5USD/Mtok (input,output)"
    )]
    Form {
        /// What was written.
        text: String,
    },
    /// An amount of nothing.
    #[error("{text}: the currency is missing, such as 2.49USD/gpu-hour")]
    NoCurrency {
        /// What was written.
        text: String,
    },
    /// A price for one, and nobody said of how many.
    #[error("a price per {what}-hour needs the number of {what}s of the endpoint: give --{what}s N")]
    HowMany {
        /// `gpu` or `replica`.
        what: &'static str,
    },
    /// None of them.
    #[error("{what}s: 0 of them serve nothing; give at least 1")]
    Zero {
        /// `gpu` or `replica`.
        what: &'static str,
    },
    #[error("date {text}: write it as 2026-11-20")]
    Date {
        /// What was written.
        text: String,
    },
}

impl Price {
    /// Reads `2.49USD/gpu-hour` and its kin.
    pub fn parse(text: &str) -> Result<Price, PriceError> {
        let form = || PriceError::Form { text: text.to_owned() };
        let (amount, per) = text.split_once('/').ok_or_else(form)?;
        let is_figure = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
        let end = amount.find(|c| !is_figure(c));
        let (figures, currency) = end.map_or((amount, ""), |end| amount.split_at(end));
        let currency = currency.trim();
        let figures: Option<Vec<f64>> = figures.split(',').map(|f| f.parse().ok()).collect();
        let figures = figures.ok_or_else(form)?;
        if currency.is_empty() {
            return Err(PriceError::NoCurrency { text: text.to_owned() });
        }
        if !currency.chars().all(char::is_alphabetic) && currency.chars().count() > 1 {
            return Err(form());
        }
        let per = match (per.trim(), figures.as_slice()) {
            ("Mtok", [output]) => Per::Mtok { input: 0.0, output: *output },
            ("Mtok", [input, output]) => Per::Mtok { input: *input, output: *output },
            ("h" | "hour", [hour]) => Per::Hour(*hour),
            ("gpu-hour" | "gpu-h", [hour]) => Per::GpuHour(*hour),
            ("replica-hour" | "replica-h", [hour]) => Per::ReplicaHour(*hour),
            _ => return Err(form()),
        };
        Ok(Price { per, currency: currency.to_owned() })
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let currency = &self.currency;
        match self.per {
            Per::Hour(hour) => write!(f, "{hour}{currency}/h"),
            Per::GpuHour(hour) => write!(f, "{hour}{currency}/gpu-hour"),
            Per::ReplicaHour(hour) => write!(f, "{hour}{currency}/replica-hour"),
            Per::Mtok { input, output } => write!(f, "{input},{output}{currency}/Mtok"),
        }
    }
}

impl TryFrom<String> for Price {
    type Error = PriceError;

    fn try_from(text: String) -> Result<Price, PriceError> {
        Price::parse(&text)
    }
}

impl From<Price> for String {
    fn from(price: Price) -> String {
        price.to_string()
    }
}

impl PriceSpec {
    /// A price alone, as a flag gives it.
    pub fn new(price: Price) -> PriceSpec {
        PriceSpec { price, gpus: None, replicas: None, date: None, source: None }
    }

    /// What the endpoint costs as a whole.
    ///
    /// # Errors
    /// It is a price for one, and how many there are was not said; or the date is none.
    pub fn bill(&self) -> Result<Bill, PriceError> {
        if let Some(date) = self.date.as_ref().filter(|date| !is_day(date)) {
            return Err(PriceError::Date { text: date.clone() });
        }
        let all = |one: f64, count: Option<u32>, what: &'static str| match count {
            None => Err(PriceError::HowMany { what }),
            Some(0) => Err(PriceError::Zero { what }),
            Some(count) => Ok(Rate::PerHour(one * f64::from(count))),
        };
        let rate = match self.price.per {
            Per::Hour(hour) => Rate::PerHour(hour),
            Per::GpuHour(hour) => all(hour, self.gpus, "gpu")?,
            Per::ReplicaHour(hour) => all(hour, self.replicas, "replica")?,
            Per::Mtok { input, output } => Rate::PerMtok { input, output },
        };
        Ok(Bill { rate, currency: self.price.currency.clone(), given: self.clone() })
    }
}

impl Rate {
    /// Of a million prompt tokens, where tokens are what is paid.
    pub fn input_price(&self) -> Option<f64> {
        match self {
            Rate::PerMtok { input, .. } => Some(*input),
            Rate::PerHour(_) => None,
        }
    }

    /// Of a million generated tokens, likewise.
    pub fn output_price(&self) -> Option<f64> {
        match self {
            Rate::PerMtok { output, .. } => Some(*output),
            Rate::PerHour(_) => None,
        }
    }
}

impl Bill {
    /// What so many tokens, or so many seconds, cost.
    pub fn of(&self, input_tokens: f64, output_tokens: f64, seconds: f64) -> f64 {
        match self.rate {
            Rate::PerMtok { input, output } => (input * input_tokens + output * output_tokens) / 1e6,
            Rate::PerHour(hour) => hour * seconds / 3600.0,
        }
    }
}

/// `2026-11-20`.
fn is_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let number = |text: &str, digits: usize| {
        (text.len() == digits && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse::<u32>().ok())
            .flatten()
    };
    number(year, 4).is_some()
        && number(month, 2).is_some_and(|month| (1..=12).contains(&month))
        && number(day, 2).is_some_and(|day| (1..=31).contains(&day))
}
