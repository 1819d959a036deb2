//! How replicas' own pages of metrics are read: how much is on each, whoever sent it. Names of signals are those by which `run` and `watch` read pages
//! ([`plimsoll_measure::server_side`]); other lines are passed over unread.

use std::collections::BTreeMap;

use plimsoll_measure::server_side::ServerSide;
use plimsoll_measure::server_side::signal::Signal;
use plimsoll_measure::server_side::table::Table;
use plimsoll_model::{At, Sample, join_labels};
use plimsoll_policy::{Said, SettingError};
use plimsoll_wire::exposition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters of which one moves whenever anything is computed.
const PROGRESS: [Signal; 4] = [Signal::OutputTokens, Signal::PromptTokens, Signal::Steps, Signal::Finished];
/// What comes of asking for a page: the names of [`Replica::pages`](crate::replica::Replica::pages).
pub const PAGES: [&str; 3] = ["read", "unreadable", "silent"];

/// How replicas' own pages are read.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySpec {
    /// The page of metrics. Where it ends with `/loads` it is read as SGLang's, with `/slots` as llama.cpp's.
    pub path: String,
    /// Between two pages of a replica, seconds.
    pub every_s: f64,
}

impl Default for TelemetrySpec {
    fn default() -> TelemetrySpec {
        TelemetrySpec { path: "/metrics".to_owned(), every_s: 1.0 }
    }
}

impl TelemetrySpec {
    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        let conflict = |name: &str, why| Err(SettingError::Conflict { name: name.to_owned(), why });
        if !self.path.starts_with('/') {
            return conflict("telemetry.path", format!("{:?} is no path; it begins with /", self.path));
        }
        if !(0.1..=5.0).contains(&self.every_s) {
            let why = format!("{} is not from 0.1 to 5 s: an older page says nothing of now", self.every_s);
            return conflict("telemetry.every_s", why);
        }
        Ok(())
    }
}

/// What a page says. `None` = neither what is computed nor what waits, or a part of the page is missing.
pub fn read(path: &str, page: &[u8]) -> Option<Said> {
    let wants = |name: &str| Table::shipped().of(name).iter().any(|row| is_read(row.signal));
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
    Some(Said { running, waiting, kv_usage: of(Signal::KvUsage), progress })
}

fn is_read(signal: Signal) -> bool {
    matches!(signal, Signal::Running | Signal::Waiting | Signal::KvUsage) || PROGRESS.contains(&signal)
}
