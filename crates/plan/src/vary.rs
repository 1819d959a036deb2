//! The configurations of a search: an engine's GPUs, their number, its scheduler's settings, its batching delay, the
//! router.
//!
//! Every combination of the requested values is a candidate. Other GPUs and other numbers of them come only from the
//! catalogue, with the server's defaults. A setting for one GPU's memory does not apply to another's. Varying one setting
//! at a time was rejected, because more GPUs only pay together with more sequences.

use std::collections::BTreeMap;

use plimsoll_sim::catalogue::gpus;
use plimsoll_sim::{EngineSpec, ModeSpec, RouteSpec};
use plimsoll_workload::closest;

use super::spec::{PlanError, PlanSpec};
use crate::change::{Change, PairChange, pair};
use plimsoll_judge::cost::{Per, PriceSpec};

/// Maximum number of candidates of a search.
pub const MOST: usize = 4096;

/// The values to vary; an empty list keeps the plan's value.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VarySpec {
    /// GPUs of the catalogue, by name.
    pub gpus: Vec<String>,
    /// GPUs that share each layer.
    pub tensor_parallel: Vec<u32>,
    pub max_seqs: Vec<u32>,
    /// Maximum tokens of a step.
    pub token_budget: Vec<u32>,
    /// Whether a prompt may be split over steps (chunked prefill).
    pub chunking: Vec<bool>,
    /// Whether equal prefixes share KV blocks (prefix cache).
    pub prefix_cache: Vec<bool>,
    /// Maximum items of a batch (Triton).
    pub max_batch: Vec<u32>,
    /// Longest wait for a batch to fill (Triton), µs.
    pub delay_us: Vec<u64>,
    pub routes: Vec<RouteSpec>,
    /// Prices of other GPUs, by name; the plan's price applies to its GPU.
    pub prices: BTreeMap<String, PriceSpec>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PlanCandidate {
    pub words: Vec<String>,
    pub spec: PlanSpec,
    pub asked: bool,
    /// Reason why it can't be built; `None` if it can.
    pub refused: Option<String>,
}

/// The keys that [`VarySpec::add`] accepts.
const KEYS: [&str; 9] =
    ["gpu", "tp", "max_seqs", "token_budget", "chunking", "prefix_cache", "max_batch", "delay_us", "route"];

impl VarySpec {
    /// Returns the default variations. For an engine of the catalogue: number of GPUs, sequences, tokens of a step and
    /// router. For a batcher: batch and delay.
    pub fn around(engine: &EngineSpec) -> VarySpec {
        let mut vary = VarySpec {
            routes: vec![RouteSpec::RoundRobin {}, RouteSpec::LeastRequests {}],
            ..VarySpec::default()
        };
        match &engine.mode {
            ModeSpec::Batching(batching) => {
                if pair(batching).is_some() {
                    vary.tensor_parallel = vec![1, 2, 4, 8];
                }
                let seqs = batching.max_seqs;
                vary.max_seqs = vec![(seqs / 4).max(1), (seqs / 2).max(1), seqs, seqs.saturating_mul(2)];
                let budget = batching.token_budget;
                vary.token_budget = vec![(budget / 4).max(1), budget, budget.saturating_mul(2)];
            }
            ModeSpec::Dynamic(dynamic) => {
                let most = dynamic.max_batch_size;
                vary.max_batch = vec![(most / 2).max(1), most, most.saturating_mul(2)];
                vary.delay_us = vec![0, 1_000, 5_000];
            }
            ModeSpec::Queue(_) | ModeSpec::Canned(_) => {}
        }
        vary
    }

    /// Parses `key=value,value`: `tp=1,2,4`, `max_seqs=128,256`, `gpu=h100,a100`, `chunking=on,off`,
    /// `route=least_requests,prefix`.
    ///
    /// # Errors
    /// Fails if the key is unknown, or a value can't be parsed.
    pub fn add(&mut self, text: &str) -> Result<(), PlanError> {
        let wrong = |what: String| PlanError::Setting(format!("--vary {text}: {what}"));
        let (key, values) = text
            .split_once('=')
            .ok_or_else(|| wrong("write a key and its values, such as tp=1,2,4".to_owned()))?;
        let values: Vec<&str> = values.split(',').map(str::trim).filter(|value| !value.is_empty()).collect();
        if values.is_empty() {
            return Err(wrong("no value; such as tp=1,2,4".to_owned()));
        }
        let key = key.trim();
        match key {
            "gpu" => self.gpus = read(&values, gpu).map_err(wrong)?,
            "tp" => self.tensor_parallel = read(&values, count).map_err(wrong)?,
            "max_seqs" => self.max_seqs = read(&values, count).map_err(wrong)?,
            "token_budget" => self.token_budget = read(&values, count).map_err(wrong)?,
            "chunking" => self.chunking = read(&values, switch).map_err(wrong)?,
            "prefix_cache" => self.prefix_cache = read(&values, switch).map_err(wrong)?,
            "max_batch" => self.max_batch = read(&values, count).map_err(wrong)?,
            "delay_us" => self.delay_us = read(&values, micros).map_err(wrong)?,
            "route" => {
                self.routes =
                    read(&values, |v| RouteSpec::parse(v).map_err(|e| e.to_string())).map_err(wrong)?
            }
            _ => {
                let near = closest(key, KEYS, KEYS.len()).join(", ");
                return Err(wrong(format!("no such setting; there are {near}")));
            }
        }
        Ok(())
    }

    /// Fails if the plan's engine lacks a setting.
    fn fits(&self, engine: &EngineSpec) -> Result<(), PlanError> {
        let batching = match &engine.mode {
            ModeSpec::Batching(batching) => Some(batching),
            _ => None,
        };
        let sequences = [
            ("max_seqs", self.max_seqs.is_empty()),
            ("token_budget", self.token_budget.is_empty()),
            ("chunking", self.chunking.is_empty()),
            ("prefix_cache", self.prefix_cache.is_empty()),
        ];
        let batches = [("max_batch", self.max_batch.is_empty()), ("delay_us", self.delay_us.is_empty())];
        let dynamic = matches!(engine.mode, ModeSpec::Dynamic(_));
        let machines = [("gpu", self.gpus.is_empty()), ("tp", self.tensor_parallel.is_empty())];
        let refused = |keys: &[(&'static str, bool)], has: bool| {
            keys.iter().find(|(_, empty)| !empty && !has).map(|(key, _)| *key)
        };
        let known = batching.is_some_and(|batching| pair(batching).is_some());
        let none = refused(&sequences, batching.is_some())
            .or(refused(&batches, dynamic))
            .or(refused(&machines, known));
        match none {
            None => Ok(()),
            Some(key) => Err(PlanError::Setting(format!(
                "--vary {key}: {} has no such setting; gpu and tp need a profile MODEL@GPU",
                engine.name
            ))),
        }
    }
}

fn read<T>(values: &[&str], one: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    values.iter().map(|value| one(value)).collect()
}

fn count(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().filter(|n| (1..=1 << 20).contains(n));
    found.ok_or_else(|| format!("{text} is not a whole number from 1 to 1048576"))
}

fn micros(text: &str) -> Result<u64, String> {
    let found = text.parse().ok().filter(|us| *us <= 3_600_000_000);
    found.ok_or_else(|| format!("{text} is not a number of µs up to an hour"))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text} is neither on nor off")),
    }
}

fn gpu(text: &str) -> Result<String, String> {
    let all = gpus::all();
    if all.iter().any(|gpu| gpu.name == text) {
        return Ok(text.to_owned());
    }
    let near = closest(text, all.iter().map(|gpu| gpu.name), 4).join(", ");
    Err(format!("{text} is no GPU of the catalogue; did you mean {near}?"))
}

/// Returns every combination, the configured plan first.
///
/// # Errors
/// Fails if the engine lacks a setting, or there are too many combinations.
pub fn candidates(plan: &PlanSpec, vary: &VarySpec) -> Result<Vec<PlanCandidate>, PlanError> {
    vary.fits(&plan.world.engine)?;
    let mut all = vec![PlanCandidate { words: Vec::new(), spec: plan.clone(), asked: true, refused: None }];
    for axis in axes(plan, vary) {
        if all.len().saturating_mul(axis.len()) > MOST {
            let what = format!("--vary: more than {MOST} combinations; name fewer values");
            return Err(PlanError::Setting(what));
        }
        all = all.iter().flat_map(|candidate| axis.iter().map(|step| step.apply(candidate))).collect();
    }
    let mut out: Vec<PlanCandidate> = Vec::new();
    for mut candidate in all {
        let known = |other: &PlanCandidate| {
            other.spec.world == candidate.spec.world && other.refused.is_none() == candidate.refused.is_none()
        };
        if candidate.refused.is_some() || !out.iter().any(known) {
            candidate.asked = candidate.refused.is_none() && candidate.spec.world == plan.world;
            out.push(candidate);
        }
    }
    if !out.iter().any(|candidate| candidate.asked) {
        let words = vec!["as requested".to_owned()];
        out.push(PlanCandidate { words, spec: plan.clone(), asked: true, refused: None });
    }
    out.sort_by_key(|candidate| !candidate.asked);
    Ok(out)
}

/// One value of one setting.
#[derive(Clone, Debug)]
struct Step {
    change: Change,
    /// GPUs and price of a replica on another machine; `None` if the machine is unchanged.
    machine: Option<(u32, Option<PriceSpec>)>,
}

fn axes(plan: &PlanSpec, vary: &VarySpec) -> Vec<Vec<Step>> {
    fn of<T: Clone>(values: &[T], change: impl Fn(T) -> Change) -> Vec<Step> {
        values.iter().cloned().map(|value| Step { change: change(value), machine: None }).collect()
    }
    let all = [
        machines(plan, vary),
        of(&vary.max_seqs, Change::Slots),
        of(&vary.token_budget, Change::TokenBudget),
        of(&vary.chunking, Change::Chunking),
        of(&vary.prefix_cache, Change::PrefixCache),
        of(&vary.max_batch, Change::MaxBatch),
        of(&vary.delay_us, Change::DelayUs),
        of(&vary.routes, Change::Route),
    ];
    all.into_iter().filter(|axis| !axis.is_empty()).collect()
}

/// Returns GPUs and their numbers, each with a price: the plan's price for its GPU, else the price given for that GPU.
fn machines(plan: &PlanSpec, vary: &VarySpec) -> Vec<Step> {
    let ModeSpec::Batching(batching) = &plan.world.engine.mode else { return Vec::new() };
    let Some(own) = pair(batching) else { return Vec::new() };
    if vary.gpus.is_empty() && vary.tensor_parallel.is_empty() {
        return Vec::new();
    }
    let group = own.tensor_parallel.unwrap_or(1);
    let gpus = if vary.gpus.is_empty() { vec![own.gpu.clone()] } else { vary.gpus.clone() };
    let groups = if vary.tensor_parallel.is_empty() { vec![group] } else { vary.tensor_parallel.clone() };
    let price = |gpu: &str, tensor_parallel: u32| {
        let given = vary.prices.get(gpu).or(plan.price.as_ref().filter(|_| gpu == own.gpu))?;
        // A price per replica-hour applies only to the plan's GPU and its number of GPUs.
        let same = gpu == own.gpu && tensor_parallel == group;
        (same || !matches!(given.price.per, Per::ReplicaHour(_))).then(|| given.clone())
    };
    let mut out = Vec::new();
    for gpu in &gpus {
        for &tensor_parallel in &groups {
            let change = Change::Pair(PairChange {
                gpu: Some(gpu.clone()),
                tensor_parallel: Some(tensor_parallel),
                dtype: None,
                fresh_limits: true,
            });
            out.push(Step { change, machine: Some((tensor_parallel, price(gpu, tensor_parallel))) });
        }
    }
    out
}

impl Step {
    fn apply(&self, to: &PlanCandidate) -> PlanCandidate {
        let mut out = to.clone();
        out.words.push(words(&self.change));
        if let Err(why) = self.change.apply(&mut out.spec.world) {
            out.refused = Some(why);
        }
        if let Some((gpus, price)) = &self.machine {
            out.spec.gpus_per_replica = Some(*gpus);
            out.spec.price.clone_from(price);
        }
        out
    }
}

fn words(change: &Change) -> String {
    let on = |is: bool| if is { "on" } else { "off" };
    match change {
        Change::Pair(PairChange { gpu: Some(gpu), tensor_parallel: None | Some(1), .. }) => gpu.clone(),
        Change::Pair(PairChange { gpu: Some(gpu), tensor_parallel: Some(group), .. }) => {
            format!("{gpu} × {group}")
        }
        Change::Slots(most) => format!("{most} seqs"),
        Change::TokenBudget(most) => format!("{most} tokens/step"),
        Change::Chunking(is) => format!("chunking {}", on(*is)),
        Change::PrefixCache(is) => format!("prefix cache {}", on(*is)),
        Change::MaxBatch(most) => format!("batches of {most}"),
        Change::DelayUs(us) => format!("delay {us} µs"),
        Change::Route(route) => route_name(route).to_owned(),
        other => format!("{other:?}"),
    }
}

fn route_name(route: &RouteSpec) -> &'static str {
    match route {
        RouteSpec::RoundRobin {} => "round robin",
        RouteSpec::Random {} => "random",
        RouteSpec::LeastRequests {} => "least requests",
        RouteSpec::LeastTokens {} => "least tokens",
        RouteSpec::PowerOfTwo { .. } => "power of two",
        RouteSpec::PeakEwma { .. } => "peak EWMA",
        RouteSpec::Session { .. } => "session",
        RouteSpec::Prefix { .. } => "prefix",
        RouteSpec::LeastCost { .. } => "least cost",
    }
}
