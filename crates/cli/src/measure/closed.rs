//! The result of a measurement: its manifest, the settings for its figures, and its exit code.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_client::Clock;
use plimsoll_measure::findings::{BudgetSpec, Findings, Trust};
use plimsoll_measure::{LineSpec, REPLICATES, SweepSpec};
use plimsoll_model::{
    Attempt, EndedBy, Fingerprint, Manifest, RunState, Sample, TimeBase, run::SCHEMA_VERSION,
};
use plimsoll_profile::cold_start;
use plimsoll_store::StoreError;
use plimsoll_workload::Scenario;
use serde_json::Value;

use super::Kinds;
use crate::exit::{Exit, Stop};

/// A measurement that has ended, with its run folder.
pub struct FinishedMeasurement {
    pub manifest: Manifest,
    pub dir: PathBuf,
    /// Reason why the folder is incomplete; `None` if it is complete.
    pub unkept: Option<String>,
}

impl FinishedMeasurement {
    /// Returns the exit code, from storage errors, an early stop and the validity.
    pub fn exit(&self, findings: &Findings, stopped: bool) -> Exit {
        match &self.unkept {
            Some(why) => {
                crate::out::note(&format!(
                    "plimsoll: the run is incomplete: {why}; the written part is readable"
                ));
                Exit::Invalid
            }
            None if stopped => Exit::Interrupted,
            None => verdict(findings),
        }
    }
}

/// Returns the manifest of a measurement that starts now. The target has only its URL.
pub(super) fn manifest(
    kind: &str,
    id: String,
    (time, clock): (TimeBase, Clock),
    scenario: &Scenario,
    whole: Value,
) -> Manifest {
    Manifest {
        schema: SCHEMA_VERSION,
        tool: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
        kind: kind.into(),
        id,
        label: None,
        progress: RunState::Running,
        time,
        clock: clock.anchor(),
        seed: scenario.seed,
        nonce: scenario.nonce.unwrap_or_default(),
        reproduce: String::new(),
        repeats: None,
        shard: None,
        shards: Vec::new(),
        host: plimsoll_client::doctor::host(),
        target: Fingerprint { url: scenario.target.url.clone(), facts: BTreeMap::new() },
        flags: Vec::new(),
        scenario: whole,
        levels: Vec::new(),
        findings: None,
    }
}

/// Returns the exit code for the validity of a measurement.
pub fn verdict(findings: &Findings) -> Exit {
    let nothing_reached = !findings.levels.is_empty()
        && findings.levels.iter().all(|level| {
            let by = &level.summary.counts.by_outcome;
            let requests = level.summary.counts.requests;
            let refused = by.get(&plimsoll_model::How::Refused).copied().unwrap_or(0);
            requests > 0 && refused == requests
        });
    match findings.validity.verdict {
        _ if nothing_reached => Exit::Unreachable,
        Trust::Valid | Trust::Short | Trust::Suspect => Exit::Done,
        Trust::Invalid => Exit::Invalid,
    }
}

/// Returns the settings for the load limits of a run: its sweep's settings or the defaults.
pub fn line_spec(manifest: &Manifest) -> LineSpec {
    let sweep = manifest.scenario.get("sweep").cloned();
    let spec: Option<SweepSpec> = sweep.and_then(|value| serde_json::from_value(value).ok());
    match spec {
        Some(spec) => spec.line_spec(REPLICATES),
        None => {
            let budget = manifest.scenario.get("budget").cloned();
            let budget = budget.and_then(|value| serde_json::from_value(value).ok());
            SweepSpec { budget, ..SweepSpec::default() }.line_spec(REPLICATES)
        }
    }
}

/// Computes all findings of a run from its rows.
pub fn findings(manifest: &Manifest, attempts: &[Attempt], samples: &[Sample]) -> Findings {
    Findings {
        cold_start: cold_start::of(manifest, attempts),
        ..plimsoll_measure::analyse(manifest, attempts, samples, &line_spec(manifest))
    }
}

/// Returns the scenario as stored in the manifest, including the search if there is one.
pub(super) fn whole_scenario(
    scenario: &Scenario,
    sweep: Option<&Kinds>,
    (budget, looks): (Option<&BudgetSpec>, Option<usize>),
) -> Value {
    let mut value = serde_json::to_value(scenario).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        let budget = budget.map(|budget| ("budget", serde_json::to_value(budget).unwrap_or_default()));
        let looks = looks.map(|looks| ("looks", looks.into()));
        object.extend([budget, looks].into_iter().flatten().map(|(key, value)| (key.to_owned(), value)));
    }
    if let (Some((sweep, traffic)), Some(object)) = (sweep, value.as_object_mut()) {
        if let Some(sweep) = sweep {
            object.insert("sweep".into(), serde_json::to_value(sweep).unwrap_or_default());
        }
        let kinds: BTreeMap<_, _> = traffic.iter().cloned().collect();
        object.insert("traffic".into(), serde_json::to_value(kinds).unwrap_or_default());
    }
    value
}

pub(super) fn progress(manifest: &Manifest) -> RunState {
    let mut ended = manifest.levels.iter().rev().map(|level| level.ended_by);
    let why = ended.find_map(|by| match by {
        EndedBy::User => Some("stopped by the user; the requests in flight ended first"),
        EndedBy::UserNow => Some("stopped immediately by the user"),
        EndedBy::Cut => Some("the generator was cut off"),
        EndedBy::Ceiling => Some("a ceiling was reached"),
        EndedBy::Errors => Some("too many requests failed"),
        EndedBy::Complete | EndedBy::Known | EndedBy::DrainLimit => None,
    });
    match why {
        Some(why) => RunState::Partial { why: why.into() },
        None => RunState::Complete,
    }
}

pub(super) fn kept(error: StoreError) -> Stop {
    match error {
        StoreError::Exists { .. } => Stop::usage(error.to_string()),
        other => Stop::invalid(other.to_string()),
    }
}
