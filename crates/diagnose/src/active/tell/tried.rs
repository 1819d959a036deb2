//! The list of experiments that were run, and the announcement before them.

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::active::before::EarlierRun;
use crate::active::block::ExperimentLevel;
use crate::active::choose;
use crate::active::facts;
use crate::active::plan::{ActiveSpec, ExperimentKind, TrafficTraits};
use crate::fact::Observed;
use crate::facts::Finding;

/// An experiment that was run, and its facts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Tried")]
pub struct ExperimentReport {
    /// Name of the experiment, such as `alone`.
    pub experiment: ExperimentKind,
    /// Description of the experiment in a short phrase.
    pub did: String,
    /// Number of requests that the experiment sent.
    pub requests: u64,
    /// Duration of the experiment in seconds.
    pub took_s: f64,
    /// Facts that the experiment showed or refuted.
    pub shows: Vec<Finding>,
}

/// Returns the experiments in the order in which they ran.
pub fn tried(
    blocks: &[ExperimentLevel],
    spec: &ActiveSpec,
    before: Option<&EarlierRun>,
) -> Vec<ExperimentReport> {
    let shown = facts::read(blocks, spec, before);
    let mut all: Vec<ExperimentReport> = Vec::new();
    for block in blocks {
        let took_s = (block.level.drained.max(block.level.stop) - block.level.start).as_secs_f64();
        match all.iter_mut().find(|tried| tried.experiment == block.kind) {
            Some(tried) => {
                tried.requests += block.attempts;
                tried.took_s += took_s;
            }
            None => all.push(ExperimentReport {
                experiment: block.kind,
                did: block.kind.does().to_owned(),
                requests: block.attempts,
                took_s,
                shows: Vec::new(),
            }),
        }
    }
    // A fact of several experiments is listed with the first one that ran.
    for shown in shown {
        let decides = |tried: &&ExperimentReport| {
            let of = choose::decides(tried.experiment);
            of.iter().any(|(fact, _)| *fact == shown.fact)
                || (tried.experiment == ExperimentKind::Together && server(shown.fact))
        };
        let place = all.iter().position(|tried| decides(&tried));
        // The first experiment may show a fact of a later one.
        if let Some(tried) = all.get_mut(place.unwrap_or(0)) {
            tried.shows.push(shown);
        }
    }
    all
}

/// Returns whether the server reports the fact.
fn server(fact: Observed) -> bool {
    matches!(fact, Observed::InFrontOfEngine | Observed::EngineQueue | Observed::PageLost | Observed::KvFull)
}

/// Returns one line with the maximum load of an active diagnosis, for display before it starts.
pub fn announced(spec: &ActiveSpec, traffic: &TrafficTraits) -> String {
    let requests = spec.max_requests as f64;
    // Prompts become four times as long in comparisons of lengths.
    let longest = if traffic.synthetic { 4.0 } else { 1.0 };
    let rate = match spec.max_rate {
        Some(rate) => format!("{rate}/s"),
        None => "the rate that it sustains (not doubled without --max-rate)".to_owned(),
    };
    format!(
        "at most {}, {} requests, {} in flight, {rate}; at most {:.1e} prompt and {:.1e} output tokens; it stops after {} failed requests",
        span(spec.time),
        spec.max_requests,
        spec.max_concurrency,
        requests * traffic.prompt * longest,
        requests * traffic.output * 2.0,
        spec.max_errors
    )
}

fn span(time: Span) -> String {
    let s = time.as_secs_f64();
    if s >= 60.0 { format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0) } else { format!("{s:.0} s") }
}
