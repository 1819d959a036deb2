//! Scraping of replica metrics for load from all clients. The signal names come from `run` and `watch`
//! ([`plimsoll_measure::server_side`]); other lines are skipped.

use std::collections::BTreeMap;

use plimsoll_measure::server_side::ServerSide;
use plimsoll_measure::server_side::signal::Signal;
use plimsoll_measure::server_side::table::SignalTable;
use plimsoll_model::{At, Sample, join_labels};
use plimsoll_policy::{ReportedLoad, SettingError};
use plimsoll_wire::exposition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{self, conflict};

/// Counters; any computation increases at least one of them.
const PROGRESS: [Signal; 4] = [Signal::OutputTokens, Signal::PromptTokens, Signal::Steps, Signal::Finished];
/// Results of a scrape, in the order of the counts in `Replica::pages`.
pub const PAGES: [&str; 3] = ["read", "unreadable", "silent"];

/// Settings of scraping the metrics of replicas.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySpec {
    /// Metrics endpoint [default: /metrics]. A path that ends with `/loads` is parsed as SGLang's, with `/slots` as
    /// llama.cpp's.
    pub path: String,
    /// Scrape interval in s [default: 1.0].
    pub every_s: f64,
}

impl Default for TelemetrySpec {
    fn default() -> TelemetrySpec {
        TelemetrySpec { path: "/metrics".to_owned(), every_s: 1.0 }
    }
}

impl TelemetrySpec {
    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        error::path("telemetry.path", &self.path)?;
        if !(0.1..=5.0).contains(&self.every_s) {
            let why = format!("{} is not from 0.1 to 5 s, because older metrics are stale", self.every_s);
            return conflict("telemetry.every_s", why);
        }
        Ok(())
    }
}

/// Parses a metrics exposition. Returns `None` if it contains neither running nor waiting requests, or if it is
/// truncated.
pub fn read(path: &str, page: &[u8]) -> Option<ReportedLoad> {
    let wants = |name: &str| SignalTable::shipped().of(name).iter().any(|row| is_read(row.signal));
    let rows = match path.rsplit('/').next() {
        Some("loads") => exposition::sglang_loads(page),
        Some("slots") => exposition::llamacpp_slots(page),
        _ => exposition::read_of(page, wants).ok()?.rows,
    };
    let sample = |row: exposition::ExposedValue| Sample {
        at: At::ZERO,
        source: "server".into(),
        labels: join_labels(&row.labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>())
            .into(),
        name: row.name.into(),
        value: row.value,
    };
    let samples: Vec<Sample> = rows.into_iter().map(sample).collect();
    let said: BTreeMap<Signal, f64> = ServerSide::said(&samples);
    let of = |signal| said.get(&signal).copied();
    let (running, waiting) = (of(Signal::Running), of(Signal::Waiting));
    running.or(waiting)?;
    let progress = PROGRESS.iter().filter_map(|signal| of(*signal)).reduce(|a, b| a + b);
    Some(ReportedLoad { running, waiting, kv_usage: of(Signal::KvUsage), progress })
}

fn is_read(signal: Signal) -> bool {
    matches!(signal, Signal::Running | Signal::Waiting | Signal::KvUsage) || PROGRESS.contains(&signal)
}
