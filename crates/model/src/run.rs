//! The run: its manifest, the target it measured, and the time series beside it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{At, Level, ShardPart, SharedText};

/// Version of the run folder's layout and of `run.json`. Readers refuse what they do not know.
pub const SCHEMA_VERSION: u32 = 1;

/// How far a run got.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// Being written, or its writer died.
    Running,
    /// All of it is there.
    Complete,
    /// Something is missing; all that was measured until then is there.
    Partial {
        /// Why: interrupted, disk full, recovered from the log after a crash.
        why: String,
    },
}

/// Ties the run's own axis to the machine's clocks: `At(0)` is this instant on both.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClockAnchor {
    /// CLOCK_MONOTONIC, ns.
    pub monotonic_ns: i64,
    /// CLOCK_REALTIME (unix epoch), ns.
    pub realtime_ns: i64,
}

/// Whose time the stamps of a run are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Time {
    /// The machine's clocks'. A manifest that says nothing means this.
    #[default]
    Real,
    /// A simulation's: it began at 0, and `clock` says only when the simulation was run.
    Virtual,
}

impl Time {
    fn is_real(&self) -> bool {
        *self == Time::Real
    }
}

/// The machine the load came from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Operating system and kernel.
    pub os: String,
    /// CPU model.
    pub cpu: String,
    /// Logical CPUs available to the process.
    pub cores: u32,
    /// CPU frequency governor, where there is one.
    pub governor: Option<String>,
}

/// What is known of the target. A key that is missing or `null` is unknown, and unknown never counts as unchanged.
///
/// Usual keys: `model`, `model_digest`, `tokeniser_digest`, `engine`, `engine_version`, `engine_flags`, `gpu`,
/// `driver`, `replicas`, `max_context`, `max_seqs`, `server_header`; of a simulated one also `dtype`, `kv_dtype`,
/// `tensor_parallel`, `server` (whose rules and host it has), `kv_blocks` and `basis`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Fingerprint {
    /// The endpoint as the user named it, without user info.
    pub url: String,
    /// What was learnt or told; `None` = asked for and unknown.
    pub facts: BTreeMap<String, Option<String>>,
}

/// The fact of a [`Fingerprint`] that says whether requests asked to be traced; absent where they left it to the server.
pub const TRACING: &str = "tracing";
/// They did: the sampled flag of their `traceparent` was set.
pub const TRACED: &str = "sampled";
pub const NOT_TRACED: &str = "not sampled";

/// Which run's schedule a run sent again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Repeats {
    /// Its id.
    pub id: String,
    /// What it measured.
    pub url: String,
    /// The model it asked for.
    pub model: Option<String>,
    /// The folder it was read from, as it was named.
    pub folder: String,
}

/// `run.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Layout version: [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Tool and version that wrote it.
    pub tool: String,
    /// What kind of writer: `run`, `sweep`, `demo`, `simulate`, `rerun`, `import`, `gateway`.
    pub kind: String,
    /// Random identity of the run, 16 hex digits.
    pub id: String,
    /// What its user calls it; `None` = nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How far it got.
    pub progress: RunState,
    /// Whose time its stamps are.
    #[serde(default, skip_serializing_if = "Time::is_real")]
    pub time: Time,
    /// When it began, on the machine's clocks.
    pub clock: ClockAnchor,
    /// Seed of everything drawn.
    pub seed: u64,
    /// Nonce that salts the prompts.
    pub nonce: u64,
    /// A command that repeats the run; secrets appear as `$NAME`.
    pub reproduce: String,
    /// The run whose schedule it sent again, arrival by arrival; `None` = a schedule of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
    /// The part of a load that it sent; `None` = all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardPart>,
    /// Of a run merged from shards: all of them, by number. Its `host` and `clock` are those of the first that began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardPart>,
    /// The machine the load came from.
    pub host: Host,
    /// What was measured.
    pub target: Fingerprint,
    /// What to know before believing a simulated target: where it is used outside what its figures were found for. Empty
    /// where there is nothing to say, and where the target is real.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// The scenario as resolved, every default written out.
    pub scenario: Value,
    /// The levels, in order of execution.
    pub levels: Vec<Level>,
    /// What was found: summaries per level, validity, lines. Judges recompute it from the rows; it is kept for readers.
    pub findings: Option<Value>,
}

/// One point of a time series in `server.parquet`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub at: At,
    /// Who said it: `client` (the generator itself), `server`, `gpu`, `gateway`.
    pub source: SharedText,
    /// The metric's name, as its source spells it.
    pub name: SharedText,
    /// Labels as `key=value`, comma-separated, sorted ([`join_labels`]); empty where there are none.
    pub labels: SharedText,
    pub value: f64,
}

/// Labels as a [`Sample`] holds them: `key=value`, comma-separated, sorted by key. Commas, equal signs and backslashes in values are
/// escaped with a backslash.
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

/// The labels of a [`Sample`] as they were before [`join_labels`]; a part without an equal sign is a key with an empty value.
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
