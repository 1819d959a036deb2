//! Defines the run: its manifest, its target, and the points of its time series.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{At, Level, ShardPart, SharedText};

/// Version of the run folder's format and of `run.json`. Readers reject other versions.
pub const SCHEMA_VERSION: u32 = 1;

/// Progress of a run: running, complete or partial.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// Run in progress, or with a writer that died.
    Running,
    /// Complete run, with all its data.
    Complete,
    /// Incomplete run, with all data that was measured until then.
    Partial {
        /// Reason: interrupted, disk full, recovered from the log after a crash.
        why: String,
    },
}

/// Tie between the run's axis and the machine's clocks: `At(0)` is this instant on both.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClockAnchor {
    /// Time of CLOCK_MONOTONIC at that instant in ns.
    pub monotonic_ns: i64,
    /// CLOCK_REALTIME (Unix epoch) in ns.
    pub realtime_ns: i64,
}

/// Clock of a run's timestamps.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Time")]
pub enum TimeBase {
    /// Clocks of the machine; default of a manifest.
    #[default]
    Real,
    /// Virtual time of a simulation from 0; `clock` is the time at which the simulation ran.
    Virtual,
}

impl TimeBase {
    fn is_real(&self) -> bool {
        *self == TimeBase::Real
    }
}

/// Machine that sent the load.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Operating system and kernel version.
    pub os: String,
    /// Name of the CPU model.
    pub cpu: String,
    /// Number of logical CPUs available to the process.
    pub cores: u32,
    /// CPU frequency governor; `null` if there is none.
    pub governor: Option<String>,
}

/// Known facts of the target. A key that is missing or `null` is unknown, and unknown never counts as unchanged.
///
/// Usual keys: `model`, `model_digest`, `tokeniser_digest`, `engine`, `engine_version`, `engine_flags`, `gpu`, `driver`,
/// `replicas`, `max_context`, `max_seqs`, `server_header`. A simulated target also has `dtype`, `kv_dtype`,
/// `tensor_parallel`, `server` (whose rules and host it models), `kv_blocks` and `basis`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Fingerprint {
    /// Endpoint as configured, without user info.
    pub url: String,
    /// Detected or configured facts; `null` = requested but unknown.
    pub facts: BTreeMap<String, Option<String>>,
}

/// The fact of a [`Fingerprint`] that states whether requests enabled tracing; absent if the server decided.
pub const TRACING: &str = "tracing";
/// Value for requests with the sampled flag set in `traceparent`.
pub const TRACED: &str = "sampled";
pub const NOT_TRACED: &str = "not sampled";

/// The run whose schedule a run repeats.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Repeats")]
pub struct RerunOrigin {
    /// Id of the run that was repeated.
    pub id: String,
    /// Endpoint of the run that was repeated.
    pub url: String,
    /// Model that the repeated run requested.
    pub model: Option<String>,
    /// Folder of the repeated run, as configured.
    pub folder: String,
}

/// Manifest of a run, the file `run.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Format version: [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Tool and version that wrote the run.
    pub tool: String,
    /// Kind of writer: `run`, `sweep`, `demo`, `simulate`, `rerun`, `import`, `gateway`.
    pub kind: String,
    /// Random id of the run, 16 hex digits.
    pub id: String,
    /// User's label of the run; `null` = no label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Progress of the run: running, complete or partial.
    pub progress: RunState,
    /// Clock of the timestamps: real or virtual time.
    #[serde(default, skip_serializing_if = "TimeBase::is_real")]
    pub time: TimeBase,
    /// Start of the run on the machine's clocks.
    pub clock: ClockAnchor,
    /// Seed of all random choices of the run.
    pub seed: u64,
    /// Nonce that salts the prompts.
    pub nonce: u64,
    /// Command that repeats the run; secrets appear as `$NAME`.
    pub reproduce: String,
    /// Run whose schedule was repeated, arrival by arrival; `null` = a new schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<RerunOrigin>,
    /// Part of a load that this run sent; `null` = all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardPart>,
    /// Shards of a merged run, by number. `host` and `clock` of the run come from the first shard that began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardPart>,
    /// Machine that sent the load of the run.
    pub host: Host,
    /// Target of the run, as measured.
    pub target: Fingerprint,
    /// Warnings about a simulated target that is used outside its calibrated range. Empty without warnings and for a real
    /// target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Resolved scenario of the run, with every default.
    pub scenario: Value,
    /// List of the levels in order of execution.
    pub levels: Vec<Level>,
    /// Findings: summaries per level, validity, lines. They are stored for readers; judges recompute them from the rows.
    pub findings: Option<Value>,
}

impl Manifest {
    /// Returns whether the requests are the stages of a chain.
    pub fn is_chain(&self) -> bool {
        self.scenario.get("chain").and_then(Value::as_bool).unwrap_or(false)
    }
}

/// One point of a time series in `server.parquet`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub at: At,
    /// Source of the value: `client` (the generator itself), `server`, `gpu`, `gateway`.
    pub source: SharedText,
    /// Name of the metric, as its source spells it.
    pub name: SharedText,
    /// Labels as `key=value`, comma-separated, sorted ([`join_labels`]); empty without labels.
    pub labels: SharedText,
    pub value: f64,
}

/// Joins labels in the format of a [`Sample`]: `key=value`, comma-separated, sorted by key. A backslash escapes commas,
/// equal signs and backslashes in values.
pub fn join_labels(labels: &[(&str, &str)]) -> String {
    let mut sorted = labels.to_vec();
    sorted.sort_unstable();
    let mut out = String::new();
    for (key, value) in sorted {
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(key);
        out.push('=');
        for letter in value.chars() {
            if matches!(letter, ',' | '=' | '\\') {
                out.push('\\');
            }
            out.push(letter);
        }
    }
    out
}

/// Splits the labels of a [`Sample`], the inverse of [`join_labels`]. A part without an equal sign is a key with an empty
/// value.
pub fn split_labels(text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    let (mut key, mut value, mut in_value, mut escaped) = (String::new(), String::new(), false, false);
    for letter in text.chars() {
        match letter {
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            ',' if !escaped => {
                labels.push((std::mem::take(&mut key), std::mem::take(&mut value)));
                in_value = false;
                continue;
            }
            '=' if !escaped && !in_value => in_value = true,
            letter if in_value => value.push(letter),
            letter => key.push(letter),
        }
        escaped = false;
    }
    if !key.is_empty() || in_value {
        labels.push((key, value));
    }
    labels
}
