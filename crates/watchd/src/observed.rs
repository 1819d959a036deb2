//! The initial manifest of a run that records other clients' traffic. It has no seed and no schedule, because no load is sent.

use plimsoll_model::run::SCHEMA_VERSION;
use plimsoll_model::{ClockAnchor, Fingerprint, Manifest, RunState, TimeBase};
use serde_json::Value;

/// Returns the manifest of a run of this kind that starts now on this time axis.
pub fn manifest(
    kind: &str,
    (time, clock): (TimeBase, ClockAnchor),
    target: Fingerprint,
    scenario: Value,
) -> Manifest {
    Manifest {
        schema: SCHEMA_VERSION,
        tool: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
        kind: kind.into(),
        id: format!("{:016x}", plimsoll_client::random()),
        label: None,
        progress: RunState::Running,
        time,
        clock,
        seed: 0,
        nonce: 0,
        reproduce: format!("plimsoll {kind}"),
        repeats: None,
        shard: None,
        shards: Vec::new(),
        host: plimsoll_client::doctor::host(),
        target,
        flags: Vec::new(),
        scenario,
        levels: Vec::new(),
        findings: None,
    }
}
