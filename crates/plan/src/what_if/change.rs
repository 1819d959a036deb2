//! A change that somebody thinks of, in words, and the world and the traffic that it makes.
//!
//! Only what the engine can express is changed. A fitted linear engine knows no model and no GPU: what another dtype or another GPU
//! would do to it is refused, not guessed.

use plimsoll_sim::catalogue::{Dtype, gpus};
use plimsoll_sim::{BatchingSpec, ModeSpec, PairSpec, RouteSpec, StepSpec, WorldSpec};
use plimsoll_workload::Rate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::levers::change::like;
use crate::replay::ReplayRequest;

/// What is to change.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// So many times the arrivals.
    Rate(f64),
    /// So many requests per second.
    RateTo(f64),
    /// Prompts so many times as long.
    Prompts(f64),
    /// Answers so many times as long.
    Outputs(f64),
    /// No prompt token comes from a cache any more.
    CacheOff,
    /// Replicas more or fewer.
    ReplicasBy(i64),
    /// So many replicas.
    ReplicasTo(u32),
    /// Another router.
    Route(RouteSpec),
    /// So many sequences at once on a replica.
    Slots(u32),
    /// Weights in another dtype.
    Weights(Dtype),
    /// Another GPU.
    Gpu(String),
}

/// A change in words, with what it makes.
#[derive(Clone, PartialEq, Debug)]
pub struct Asking {
    /// As it was written.
    pub text: String,
    /// What it means; several hold together.
    pub changes: Vec<Change>,
}

/// What can be written.
pub const WORDS: &str = "rate 2x, rate 50/s, prompts +30%, outputs -20%, cache off, replicas -1, replicas 4, route least_requests, \
                         slots 64, weights fp8, gpu h200; several at once with commas";

impl Asking {
    /// Reads a change, or several that hold together, separated by commas.
    ///
    /// # Errors
    /// What is no change, in a sentence with what would be.
    pub fn parse(text: &str) -> Result<Asking, String> {
        let changes: Result<Vec<Change>, String> = text.split(',').map(|part| parse(part.trim())).collect();
        Ok(Asking { text: text.trim().to_owned(), changes: changes? })
    }
}

fn parse(text: &str) -> Result<Change, String> {
    let wrong = || format!("{text:?} is no change; write {WORDS}");
    let (word, value) = text.split_once(char::is_whitespace).ok_or_else(wrong)?;
    let value = value.trim();
    let factor =
        || factor(value).ok_or_else(|| format!("{text:?}: {value:?} is no factor; write 2x, +30% or -20%"));
    match word {
        "rate" if value.contains('/') => {
            let rate = Rate::parse(value).map_err(|e| format!("{text:?}: {e}"))?;
            Ok(Change::RateTo(rate.as_per_s()))
        }
        "rate" | "traffic" => Ok(Change::Rate(factor()?)),
        "prompts" | "prompt" => Ok(Change::Prompts(factor()?)),
        "outputs" | "output" | "answers" => Ok(Change::Outputs(factor()?)),
        "cache" if value == "off" => Ok(Change::CacheOff),
        "replicas" => {
            replicas(value).ok_or_else(|| format!("{text:?}: write replicas -1, replicas +2 or replicas 4"))
        }
        "route" => RouteSpec::parse(value).map(Change::Route).map_err(|e| format!("{text:?}: {e}")),
        "slots" => match value.parse() {
            Ok(slots) if slots > 0 => Ok(Change::Slots(slots)),
            _ => Err(format!("{text:?}: write slots N, N from 1")),
        },
        "weights" | "dtype" => Dtype::of(value)
            .map(Change::Weights)
            .ok_or_else(|| format!("{text:?}: write weights fp8 or weights bf16")),
        "gpu" => Ok(Change::Gpu(value.to_owned())),
        _ => Err(wrong()),
    }
}

/// `2x`, `+30%`, `-20%`: a factor over 0.
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

fn replicas(text: &str) -> Option<Change> {
    if text.starts_with(['+', '-']) {
        return text.parse().ok().filter(|by| *by != 0).map(Change::ReplicasBy);
    }
    text.parse().ok().filter(|to| *to > 0).map(Change::ReplicasTo)
}

/// The world and the traffic as changed.
#[derive(Clone, PartialEq, Debug)]
pub struct Changed {
    /// The world.
    pub world: WorldSpec,
    /// How the requests change.
    pub traffic: RequestChange,
}

/// How requests change.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RequestChange {
    /// Arrivals are so many times as fast.
    pub rate: f64,
    /// Prompts are so many times as long.
    pub prompts: f64,
    /// Answers are so many times as long.
    pub outputs: f64,
}

impl RequestChange {
    /// As they are.
    pub const AS_IT_IS: RequestChange = RequestChange { rate: 1.0, prompts: 1.0, outputs: 1.0 };

    /// These requests, changed.
    pub fn apply(&self, asked: &[ReplayRequest]) -> Vec<ReplayRequest> {
        let longer = |tokens: u32, by: f64| ((f64::from(tokens) * by).round() as u32).max(1);
        let one = |one: &ReplayRequest| {
            let prompt = longer(one.prompt, self.prompts);
            let mut blocks = one.blocks.clone();
            // What is cut off a prompt's end is no longer named; what is added is new, and has no name that anybody shares.
            blocks.truncate(prompt as usize / 16);
            ReplayRequest {
                due_ns: (one.due_ns as f64 / self.rate) as i64,
                prompt,
                output: longer(one.output, self.outputs),
                blocks,
                session: one.session,
            }
        };
        asked.iter().map(one).collect()
    }
}

/// Makes the changes to this world under this load.
///
/// # Errors
/// Why the engine can't express one of them, in a sentence part.
pub fn make(
    asking: &Asking,
    world: &WorldSpec,
    asked: &[ReplayRequest],
    rate_per_s: f64,
) -> Result<Changed, String> {
    let mut changed = Changed { world: world.clone(), traffic: RequestChange::AS_IT_IS };
    for change in &asking.changes {
        apply(change, &mut changed, asked, rate_per_s)?;
    }
    changed.world.validate().map_err(|e| e.to_string())?;
    Ok(changed)
}

fn apply(
    change: &Change,
    changed: &mut Changed,
    asked: &[ReplayRequest],
    rate_per_s: f64,
) -> Result<(), String> {
    let replicas = changed.world.fleet.replicas;
    match change {
        Change::Rate(by) => changed.traffic.rate *= by,
        Change::RateTo(rate) if rate_per_s > 0.0 => changed.traffic.rate = rate / rate_per_s,
        Change::RateTo(_) => return Err("the run has no rate to start from".to_owned()),
        Change::Prompts(by) => changed.traffic.prompts *= by,
        Change::Outputs(by) if is_batching(&changed.world) => changed.traffic.outputs *= by,
        Change::Outputs(_) => {
            return Err("answers of this endpoint come whole: nothing hangs on their length".to_owned());
        }
        Change::CacheOff => cache_off(changed, asked)?,
        Change::ReplicasBy(by) => {
            let left = i64::from(replicas) + by;
            if left < 1 {
                return Err(format!("{replicas} of {replicas} replicas down: none is left to answer"));
            }
            changed.world.fleet.replicas = u32::try_from(left).map_err(|_| "too many replicas".to_owned())?;
        }
        Change::ReplicasTo(to) => changed.world.fleet.replicas = *to,
        Change::Route(_) if replicas < 2 => {
            return Err(
                "there is one replica, so every router does the same; write replicas N with it".to_owned()
            );
        }
        Change::Route(route) => changed.world.fleet.route = *route,
        Change::Slots(slots) => match &mut changed.world.engine.mode {
            ModeSpec::Batching(batching) => batching.max_seqs = *slots,
            ModeSpec::Queue(queue) => queue.servers = *slots,
            ModeSpec::Dynamic(dynamic) => dynamic.instances = *slots,
            ModeSpec::Canned(_) => return Err("drawn times know no slots".to_owned()),
        },
        Change::Weights(dtype) => {
            let dtype = Some(*dtype);
            another_pair(changed, "the weights' dtype", |pair| PairSpec { dtype, kv_blocks: None, ..pair })?;
        }
        Change::Gpu(gpu) => {
            if !gpus::all().iter().any(|known| known.name == *gpu) {
                let known = gpus::all();
                let near = plimsoll_workload::closest(gpu, known.iter().map(|one| one.name), 3).join(", ");
                return Err(format!("no GPU {gpu:?} in the catalogue; nearest: {near}"));
            }
            another_pair(changed, "the GPU", |pair| PairSpec { gpu: gpu.clone(), kv_blocks: None, ..pair })?;
        }
    }
    Ok(())
}

fn is_batching(world: &WorldSpec) -> bool {
    matches!(world.engine.mode, ModeSpec::Batching(_))
}

fn cache_off(changed: &mut Changed, asked: &[ReplayRequest]) -> Result<(), String> {
    let ModeSpec::Batching(batching) = &mut changed.world.engine.mode else {
        return Err("this engine has no prefix cache".to_owned());
    };
    if !batching.prefix_cache {
        return Err("the prefix cache is off already".to_owned());
    }
    let mut seen = std::collections::HashSet::new();
    let shared = asked.iter().flat_map(|one| &one.blocks).any(|name| !seen.insert(*name));
    if !shared {
        return Err(
            "no two prompts of this run begin alike, so nothing comes from the cache that could be lost"
                .to_owned(),
        );
    }
    batching.prefix_cache = false;
    Ok(())
}

/// The engine as another pair of model and GPU, under the limits of the one that runs.
fn another_pair(
    changed: &mut Changed,
    what: &str,
    to: impl FnOnce(PairSpec) -> PairSpec,
) -> Result<(), String> {
    let ModeSpec::Batching(now) = &changed.world.engine.mode else {
        return Err(format!("this engine knows no model and no GPU, so {what} changes nothing in it"));
    };
    let fitted =
        "its step is linear, which knows no model and no GPU; name what runs with --profile MODEL@GPU";
    let (Some(origin), StepSpec::Roofline(_)) = (&now.origin, &now.step) else {
        return Err(format!("{what}: {}: {fitted}", changed.world.engine.name));
    };
    let pair = PairSpec {
        model: origin.model.clone(),
        gpu: origin.gpu.clone(),
        dtype: Dtype::of(&origin.dtype),
        kv_dtype: Dtype::of(&origin.kv_dtype),
        tensor_parallel: Some(origin.tensor_parallel.max(1)),
        ..PairSpec::default()
    };
    let resolved = |pair: PairSpec| pair.resolve().map_err(|e| format!("{what}: {e}"));
    if step_of(&resolved(pair.clone())?.mode) != Some(&now.step) {
        return Err(format!(
            "{what}: {} is not {}@{} as the catalogue has it (calibrated or made by hand), so another pair cannot be made of it",
            changed.world.engine.name, origin.model, origin.gpu
        ));
    }
    let next = like(&resolved(to(pair))?, now).ok_or_else(|| format!("{what}: no such engine"))?;
    changed.world.engine = next;
    Ok(())
}

fn step_of(mode: &ModeSpec) -> Option<&StepSpec> {
    match mode {
        ModeSpec::Batching(BatchingSpec { step, .. }) => Some(step),
        _ => None,
    }
}
