//! What every autoscaler is shown, and the checks of what is asked of one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// More replicas than this are a slip of the pen.
pub const MOST_REPLICAS: u32 = 10_000;

/// What is looked at.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Requests in flight on a replica, waiting ones included.
    #[default]
    InFlight,
    /// Requests that wait on a replica.
    Waiting,
    /// Share of the KV cache in use, 0 to 1.
    KvUsage,
}

/// One replica as an autoscaler sees it.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum ReplicaMetric {
    /// It serves, and this is its metric.
    Ready(f64),
    /// It is on its way and does not serve yet.
    NotReady,
    /// It should serve, and says nothing.
    Missing,
}

/// What an autoscaler is shown.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Fleet<'a> {
    /// Replicas asked for at present.
    pub current: u32,
    /// Each of them.
    pub metrics: &'a [ReplicaMetric],
    /// Requests that wait in front of all replicas because none serves.
    pub unplaced: u32,
}

impl Fleet<'_> {
    /// The sum of the metric over what serves, and what waits in front.
    pub fn total(&self) -> f64 {
        let served = self
            .metrics
            .iter()
            .map(|metric| if let ReplicaMetric::Ready(value) = metric { *value } else { 0.0 });
        served.sum::<f64>() + f64::from(self.unplaced)
    }
}

/// Refuses what is not a finite number over zero.
pub(crate) fn positive(name: &str, key: &'static str, value: f64) -> Result<(), SettingError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(SettingError::Value { name: name.to_owned(), key, value: value.to_string(), want: "a number over 0" })
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
pub(crate) fn range(name: &str, min: u32, max: u32, least: u32) -> Result<(), SettingError> {
    if min >= least && max >= min.max(1) && max <= MOST_REPLICAS {
        return Ok(());
    }
    let why = format!("min {min} and max {max}: use {least} ≤ min ≤ max ≤ {MOST_REPLICAS}");
    Err(SettingError::Conflict { name: name.to_owned(), why })
}
