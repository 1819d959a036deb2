//! What an autoscaler is shown, and the checks of what is asked of one.

use crate::setting::SettingError;

/// More replicas than this are a slip of the pen.
pub const MOST_REPLICAS: u32 = 10_000;

/// A fleet as an autoscaler sees it.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Fleet {
    /// Replicas asked for at present.
    pub current: u32,
    /// Requests that wait on replicas that serve, and in front of all of them.
    pub waiting: f64,
}

/// Refuses what is not a finite number over zero.
pub(crate) fn positive(name: &str, key: &'static str, value: f64) -> Result<(), SettingError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(SettingError::Value { name: name.to_owned(), key, value: value.to_string(), want: "a number over 0" })
}

/// Refuses what is not a finite number from zero.
pub(crate) fn from_zero(name: &str, key: &'static str, value: f64) -> Result<(), SettingError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    let (value, want) = (value.to_string(), "a number from 0");
    Err(SettingError::Value { name: name.to_owned(), key, value, want })
}

/// Refuses a period of no seconds.
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

/// Refuses a range that is none.
pub(crate) fn range(name: &str, min: u32, max: u32) -> Result<(), SettingError> {
    if max >= min.max(1) && max <= MOST_REPLICAS {
        return Ok(());
    }
    let why = format!("min {min} and max {max}: use 0 ≤ min ≤ max ≤ {MOST_REPLICAS}");
    Err(SettingError::Conflict { name: name.to_owned(), why })
}
