//! Fleet state for an autoscaler, and validation of its settings.

use crate::setting::SettingError;

/// Limit on the number of replicas; a larger number is probably a typing error.
pub const MOST_REPLICAS: u32 = 10_000;

/// The fleet as an autoscaler sees it.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct FleetSample {
    pub current: u32,
    /// Requests that wait on serving replicas and in the gateway's queue.
    pub waiting: f64,
}

/// Fails unless the value is finite and positive.
pub(crate) fn positive(name: &str, key: &'static str, value: f64) -> Result<(), SettingError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(SettingError::Value { name: name.to_owned(), key, value: value.to_string(), want: "a number over 0" })
}

/// Fails unless the value is finite and not negative.
pub(crate) fn from_zero(name: &str, key: &'static str, value: f64) -> Result<(), SettingError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    let (value, want) = (value.to_string(), "a number from 0");
    Err(SettingError::Value { name: name.to_owned(), key, value, want })
}

/// Fails if a period is 0 s.
pub(crate) fn at_least_one(name: &str, key: &'static str, value: u32) -> Result<(), SettingError> {
    if value > 0 {
        return Ok(());
    }
    Err(SettingError::Value {
        name: name.to_owned(),
        key,
        value: "0".to_owned(),
        want: "a whole number from 1",
    })
}

/// Fails if the range of replicas is empty or too large.
pub(crate) fn range(name: &str, min: u32, max: u32) -> Result<(), SettingError> {
    if max >= min.max(1) && max <= MOST_REPLICAS {
        return Ok(());
    }
    let why = format!("min {min} and max {max}: use 0 ≤ min ≤ max ≤ {MOST_REPLICAS}");
    Err(SettingError::Conflict { name: name.to_owned(), why })
}
