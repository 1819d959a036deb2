//! Prices of an endpoint: the user's price with its date and source, and the resulting bill.
//!
//! A price without a currency is rejected, and so is a price per GPU without a number of GPUs. A guess at either would be
//! wrong by a factor that is not visible in the result.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A price as written in a file; the flag `--price` sets its first field.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceSpec {
    /// Price: `2.49USD/gpu-hour`, `9.9EUR/replica-hour`, `20USD/h` (the whole endpoint) or `0.5,1.5USD/Mtok` (input,output).
    pub price: Price,
    /// GPUs of the endpoint over all replicas; required with a price per GPU-hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Replicas of the endpoint; required with a price per replica-hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Date at which the price was valid, as `2026-11-20`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Source of the price, such as an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A price with its currency, read and written as `2.49USD/gpu-hour`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Price {
    /// Amount and unit of the price.
    pub per: Per,
    /// Currency as the user wrote it, such as `USD`.
    pub currency: String,
}

/// The unit of a price, with the amount.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Per {
    /// Price per hour of the whole endpoint.
    Hour(f64),
    GpuHour(f64),
    ReplicaHour(f64),
    Mtok {
        /// Price per million prompt tokens, in the stated currency.
        input: f64,
        /// Price per million generated tokens, in the stated currency.
        output: f64,
    },
}

/// The price of the whole endpoint.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Rate")]
pub enum EndpointPrice {
    /// Price per hour of the whole endpoint.
    PerHour(f64),
    /// Price per million tokens, prompt and generated.
    PerMtok {
        /// Price per million prompt tokens, in the stated currency.
        input: f64,
        /// Price per million generated tokens, in the stated currency.
        output: f64,
    },
}

/// The price of one endpoint, with its source.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bill {
    /// Price of the whole endpoint, per hour or per token.
    pub rate: EndpointPrice,
    /// Currency of all amounts, such as `USD`.
    pub currency: String,
    /// Price as given by the user.
    pub given: PriceSpec,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PriceError {
    /// The text is not a price.
    #[error(
        "{text}: write 2.49USD/gpu-hour, 9.9USD/replica-hour, 20USD/h (the whole endpoint), 1.5USD/Mtok or \
         0.5,1.5USD/Mtok (input,output)"
    )]
    Form {
        /// Text of the price, as the user gave it.
        text: String,
    },
    #[error("{text}: the currency is missing, such as 2.49USD/gpu-hour")]
    NoCurrency {
        /// Text of the price, as the user gave it.
        text: String,
    },
    /// The price is per GPU or replica, and their number is missing.
    #[error("a price per {what}-hour needs the number of {what}s of the endpoint: give --{what}s N")]
    HowMany {
        /// `gpu` or `replica`.
        what: &'static str,
    },
    /// The number of GPUs or replicas is zero.
    #[error("{what}s: 0 of them serve nothing; give at least 1")]
    Zero {
        /// `gpu` or `replica`.
        what: &'static str,
    },
    #[error("date {text}: write it as 2026-11-20")]
    Date {
        /// Text of the date, as the user gave it.
        text: String,
    },
}

impl Price {
    /// Parses a price such as `2.49USD/gpu-hour`.
    ///
    /// # Errors
    /// Fails if the text is not a price or has no currency.
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
    /// Returns a price without number of GPUs or replicas, date and source.
    pub fn new(price: Price) -> PriceSpec {
        PriceSpec { price, gpus: None, replicas: None, date: None, source: None }
    }

    /// Returns the price of the whole endpoint.
    ///
    /// # Errors
    /// Fails if the price is per GPU or replica and their number is missing or zero, or if the date is not valid.
    pub fn bill(&self) -> Result<Bill, PriceError> {
        if let Some(date) = self.date.as_ref().filter(|date| !is_day(date)) {
            return Err(PriceError::Date { text: date.clone() });
        }
        let all = |one: f64, count: Option<u32>, what: &'static str| match count {
            None => Err(PriceError::HowMany { what }),
            Some(0) => Err(PriceError::Zero { what }),
            Some(count) => Ok(EndpointPrice::PerHour(one * f64::from(count))),
        };
        let rate = match self.price.per {
            Per::Hour(hour) => EndpointPrice::PerHour(hour),
            Per::GpuHour(hour) => all(hour, self.gpus, "gpu")?,
            Per::ReplicaHour(hour) => all(hour, self.replicas, "replica")?,
            Per::Mtok { input, output } => EndpointPrice::PerMtok { input, output },
        };
        Ok(Bill { rate, currency: self.price.currency.clone(), given: self.clone() })
    }
}

impl EndpointPrice {
    /// Returns the price per million prompt tokens, or `None` for an hourly price.
    pub fn input_price(&self) -> Option<f64> {
        match self {
            EndpointPrice::PerMtok { input, .. } => Some(*input),
            EndpointPrice::PerHour(_) => None,
        }
    }

    /// Returns the price per million generated tokens, or `None` for an hourly price.
    pub fn output_price(&self) -> Option<f64> {
        match self {
            EndpointPrice::PerMtok { output, .. } => Some(*output),
            EndpointPrice::PerHour(_) => None,
        }
    }
}

impl Bill {
    /// Returns the cost of a number of tokens, or of a number of seconds with an hourly price.
    pub fn of(&self, input_tokens: f64, output_tokens: f64, seconds: f64) -> f64 {
        match self.rate {
            EndpointPrice::PerMtok { input, output } => (input * input_tokens + output * output_tokens) / 1e6,
            EndpointPrice::PerHour(hour) => hour * seconds / 3600.0,
        }
    }
}

/// Returns whether `text` is a date such as `2026-11-20`.
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
