//! Parses a change written as text, and applies it to the world and the traffic.
//!
//! [`Change`] covers the world; this module adds the rate and lengths of the traffic.

use plimsoll_sim::catalogue::Dtype;
use plimsoll_sim::{ModeSpec, RouteSpec, WorldSpec};
use plimsoll_workload::Rate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::{Change, PairChange};
use crate::recorded::is_closed;
use crate::replay::ReplayRequest;

#[derive(Clone, PartialEq, Debug)]
pub enum AskedChange {
    /// Factor on the arrival rate; 1 changes nothing.
    Rate(f64),
    /// New arrival rate, requests per second.
    RateTo(f64),
    /// Factor on the prompt lengths; 1 changes nothing.
    Prompts(f64),
    /// Factor on the output lengths; 1 changes nothing.
    Outputs(f64),
    /// Difference in replicas.
    ReplicasBy(i64),
    World(Change),
}

/// A change as text, with its parsed parts.
#[derive(Clone, PartialEq, Debug)]
pub struct ParsedChange {
    pub text: String,
    /// Parsed changes, applied together.
    pub changes: Vec<AskedChange>,
}

pub const WORDS: &str = "rate 2x, rate 50/s, prompts +30%, outputs -20%, cache off, replicas -1, replicas 4, route least_requests, \
                         slots 64, weights fp8, gpu h200; separate several with commas";

impl ParsedChange {
    /// Parses a change, or several joint changes separated by commas.
    ///
    /// # Errors
    /// Fails with a sentence that lists the accepted changes.
    pub fn parse(text: &str) -> Result<ParsedChange, String> {
        let changes: Result<Vec<AskedChange>, String> =
            text.split(',').map(|part| parse(part.trim())).collect();
        Ok(ParsedChange { text: text.trim().to_owned(), changes: changes? })
    }
}

fn parse(text: &str) -> Result<AskedChange, String> {
    let wrong = || format!("{text:?} is no change; write {WORDS}");
    let (word, value) = text.split_once(char::is_whitespace).ok_or_else(wrong)?;
    let value = value.trim();
    let factor =
        || factor(value).ok_or_else(|| format!("{text:?}: {value:?} is no factor; write 2x, +30% or -20%"));
    match word {
        "rate" if value.contains('/') => {
            let rate = Rate::parse(value).map_err(|e| format!("{text:?}: {e}"))?;
            Ok(AskedChange::RateTo(rate.as_per_s()))
        }
        "rate" | "traffic" => Ok(AskedChange::Rate(factor()?)),
        "prompts" | "prompt" => Ok(AskedChange::Prompts(factor()?)),
        "outputs" | "output" | "answers" => Ok(AskedChange::Outputs(factor()?)),
        "cache" if value == "off" => Ok(AskedChange::World(Change::PrefixCache(false))),
        "replicas" => {
            replicas(value).ok_or_else(|| format!("{text:?}: write replicas -1, replicas +2 or replicas 4"))
        }
        "route" => RouteSpec::parse(value)
            .map(|to| AskedChange::World(Change::Route(to)))
            .map_err(|e| format!("{text:?}: {e}")),
        "slots" => match value.parse() {
            Ok(slots) if slots > 0 => Ok(AskedChange::World(Change::Slots(slots))),
            _ => Err(format!("{text:?}: write slots N, N from 1")),
        },
        "weights" | "dtype" => {
            let dtype =
                Dtype::of(value).ok_or_else(|| format!("{text:?}: write weights fp8 or weights bf16"))?;
            Ok(another_pair(PairChange { dtype: Some(dtype), ..PairChange::default() }))
        }
        "gpu" => Ok(another_pair(PairChange { gpu: Some(value.to_owned()), ..PairChange::default() })),
        _ => Err(wrong()),
    }
}

fn another_pair(change: PairChange) -> AskedChange {
    AskedChange::World(Change::Pair(change))
}

/// Parses a factor over 0: `2x`, `+30%`, `-20%`.
fn factor(text: &str) -> Option<f64> {
    let factor = match (text.strip_suffix(['x', '×']), text.strip_suffix('%')) {
        (Some(times), _) => times.trim().parse::<f64>().ok()?,
        (None, Some(percent)) if percent.starts_with(['+', '-']) => {
            1.0 + percent.trim().parse::<f64>().ok()? / 100.0
        }
        _ => return None,
    };
    (factor.is_finite() && factor > 0.0 && factor <= 1000.0).then_some(factor)
}

fn replicas(text: &str) -> Option<AskedChange> {
    if text.starts_with(['+', '-']) {
        return text.parse().ok().filter(|by| *by != 0).map(AskedChange::ReplicasBy);
    }
    text.parse().ok().filter(|to| *to > 0).map(|to| AskedChange::World(Change::Replicas(to)))
}

#[derive(Clone, PartialEq, Debug)]
pub struct ChangedScenario {
    pub world: WorldSpec,
    pub traffic: RequestChange,
}

/// A change of the requests.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RequestChange {
    /// Factor on the arrival rate; 1 changes nothing.
    pub rate: f64,
    /// Factor on the prompt lengths; 1 changes nothing.
    pub prompts: f64,
    /// Factor on the output lengths; 1 changes nothing.
    pub outputs: f64,
}

impl RequestChange {
    pub(crate) const AS_IT_IS: RequestChange = RequestChange { rate: 1.0, prompts: 1.0, outputs: 1.0 };

    pub fn apply(&self, asked: &[ReplayRequest]) -> Vec<ReplayRequest> {
        let longer = |tokens: u32, by: f64| ((f64::from(tokens) * by).round() as u32).max(1);
        let one = |one: &ReplayRequest| {
            let prompt = longer(one.prompt, self.prompts);
            let mut blocks = one.blocks.clone();
            // A removed prompt end loses its block names; an added end is new and gets no shared name.
            blocks.truncate(prompt as usize / 16);
            ReplayRequest {
                due_ns: (one.due_ns as f64 / self.rate) as i64,
                prompt,
                output: longer(one.output, self.outputs),
                blocks,
                session: one.session,
                turn: one.turn,
                think_ns: one.think_ns,
            }
        };
        asked.iter().map(one).collect()
    }
}

/// Applies the changes to this world under this load.
///
/// # Errors
/// Fails with the reason, as a phrase, if the engine can't express a change.
pub fn make(
    asking: &ParsedChange,
    world: &WorldSpec,
    asked: &[ReplayRequest],
    rate_per_s: f64,
) -> Result<ChangedScenario, String> {
    let mut changed = ChangedScenario { world: world.clone(), traffic: RequestChange::AS_IT_IS };
    for change in &asking.changes {
        apply(change, &mut changed, asked, rate_per_s)?;
    }
    changed.world.validate().map_err(|e| e.to_string())?;
    Ok(changed)
}

fn apply(
    change: &AskedChange,
    changed: &mut ChangedScenario,
    asked: &[ReplayRequest],
    rate_per_s: f64,
) -> Result<(), String> {
    let replicas = changed.world.fleet.replicas;
    match change {
        AskedChange::Rate(_) | AskedChange::RateTo(_) if is_closed(asked) => {
            return Err(
                "in a closed loop the answers set the rate; measure an open loop (--rate) to change it"
                    .to_owned(),
            );
        }
        AskedChange::Rate(by) => changed.traffic.rate *= by,
        AskedChange::RateTo(rate) if rate_per_s > 0.0 => changed.traffic.rate = rate / rate_per_s,
        AskedChange::RateTo(_) => return Err("the run has no rate to start from".to_owned()),
        AskedChange::Prompts(by) => changed.traffic.prompts *= by,
        AskedChange::Outputs(by) if matches!(changed.world.engine.mode, ModeSpec::Batching(_)) => {
            changed.traffic.outputs *= by;
        }
        AskedChange::Outputs(_) => {
            return Err("answers of this endpoint come whole: their length has no effect".to_owned());
        }
        AskedChange::ReplicasBy(by) => {
            let left = i64::from(replicas) + by;
            if left < 1 {
                return Err(format!("{replicas} of {replicas} replicas down: none is left to answer"));
            }
            changed.world.fleet.replicas = u32::try_from(left).map_err(|_| "too many replicas".to_owned())?;
        }
        AskedChange::World(Change::Route(_)) if replicas < 2 => {
            return Err(
                "there is one replica, so routing has no effect; add replicas N to the change".to_owned()
            );
        }
        AskedChange::World(change) => {
            if *change == Change::PrefixCache(false) {
                shares_prompts(&changed.world, asked)?;
            }
            change.apply(&mut changed.world)?;
        }
    }
    Ok(())
}

/// Fails if the cache has no effect, because then a removal has none.
fn shares_prompts(world: &WorldSpec, asked: &[ReplayRequest]) -> Result<(), String> {
    let ModeSpec::Batching(batching) = &world.engine.mode else {
        return Err("this engine has no prefix cache".to_owned());
    };
    if !batching.prefix_cache {
        return Err("the prefix cache is off already".to_owned());
    }
    let mut seen = std::collections::HashSet::new();
    if asked.iter().flat_map(|one| &one.blocks).any(|name| !seen.insert(*name)) {
        return Ok(());
    }
    Err("no two prompts of this run share a prefix, so the cache has no effect".to_owned())
}
