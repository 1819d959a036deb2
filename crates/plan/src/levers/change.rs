//! A lever as a changed world, or as changed traffic: what is simulated in its place.
//!
//! Only what the engine's model knows is simulated. What it has to assume (a draft's accepted length, how much of a prompt can
//! be cut) stands beside the figure. A lever may have several settings; each is a candidate of its own, because "change the
//! limit" is no advice without the direction.

use std::collections::HashSet;

use plimsoll_sim::RouteSpec;
use plimsoll_sim::catalogue::origin::OriginSpec;
use plimsoll_sim::catalogue::{Dtype, gpus};
use plimsoll_sim::engine::speculation::{DraftSpec, SpeculativeSpec};
use plimsoll_sim::{
    AutoscaleSpec, BatchingSpec, DisaggregationSpec, EngineSpec, ModeSpec, PairSpec, PolicySpec,
    QueueDepthSpec, StepSpec, WorldSpec,
};

use super::evidence::Late;
use super::hedge::{self, HedgeSpec};
use crate::replay::{ReplayRequest, Times, play, play_at_most};
use plimsoll_measure::say::number;

/// A lever with a setting, as the world that it makes.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its id in the catalogue.
    pub lever: &'static str,
    /// The setting, in words.
    pub setting: String,
    /// The world with it.
    pub world: WorldSpec,
    /// The traffic with it.
    pub traffic: TrafficChange,
    /// Factor on the price per hour; `None` = not known.
    pub hourly: Option<f64>,
    /// What the figure assumes.
    pub assumes: Option<String>,
    /// The world with the assumption at its worst and at its best: the interval reaches over both.
    pub range: Vec<WorldSpec>,
}

/// What becomes of the traffic.
#[derive(Clone, PartialEq, Debug)]
pub enum TrafficChange {
    /// Nothing.
    AsItIs,
    /// This share of each prompt is left; what is cut is its end.
    Trimmed(f64),
    /// Prompts that came before are answered elsewhere.
    WithoutRepeats,
    /// Whoever finds this many in flight is turned away at once.
    AtMost(u32),
    /// Late ones are asked a second time, elsewhere.
    Hedged(HedgeSpec),
}

impl TrafficChange {
    /// The requests that reach the engine, and the due times of those that do not have to.
    pub fn apply(&self, asked: &[ReplayRequest]) -> (Vec<ReplayRequest>, Vec<i64>) {
        match self {
            TrafficChange::AsItIs | TrafficChange::AtMost(_) | TrafficChange::Hedged(_) => {
                (asked.to_vec(), Vec::new())
            }
            TrafficChange::Trimmed(share) => {
                let trim = |one: &ReplayRequest| {
                    let prompt = ((f64::from(one.prompt) * share) as u32).max(1);
                    let mut cut = ReplayRequest { prompt, ..one.clone() };
                    cut.blocks.truncate(prompt as usize / 16);
                    cut
                };
                (asked.iter().map(trim).collect(), Vec::new())
            }
            TrafficChange::WithoutRepeats => {
                let (mut seen, mut sent, mut hits) = (HashSet::new(), Vec::new(), Vec::new());
                for one in asked {
                    match one.blocks.last() {
                        Some(last) if !seen.insert((*last, one.prompt)) => hits.push(one.due_ns),
                        _ => sent.push(one.clone()),
                    }
                }
                (sent, hits)
            }
        }
    }

    /// When each of those that reach the engine was answered. What is turned away is not.
    ///
    /// # Errors
    /// The world can't be built.
    pub fn play(&self, world: &WorldSpec, asked: &[ReplayRequest], seed: u64) -> Result<Vec<Times>, String> {
        match self {
            TrafficChange::AtMost(limit) => play_at_most(*limit as usize, world, asked, seed),
            TrafficChange::Hedged(spec) => Ok(hedge::play(world, asked, seed, *spec)?.times),
            _ => play(world, asked, seed),
        }
    }
}

/// Waiting requests for which an autoscaler starts one more replica.
const WAITING_PER_REPLICA: f64 = 4.0;
/// Share of a prompt that trimming leaves.
const TRIMMED: f64 = 0.8;
/// What better kernels are taken to bring: a tenth of each step, at best twice that and at worst nothing.
const KERNELS: f64 = 0.1;
/// Tokens that a draft proposes.
const DRAFTED: u32 = 3;
/// Tokens that a step then brings: with a draft that fits the text badly, usually, and well. Published means for drafts trained
/// with their model are 2.5 to 3.4 (`plimsoll_sim::engine::speculation::ACCEPTED`); others are worse.
const ACCEPTED: [f64; 3] = [1.6, 2.5, 3.0];

/// Late is what has no token after this percentile of the time to it; and copies at most, as a share of the requests.
const HEDGES: [(f64, f64); 2] = [(0.95, 0.05), (0.8, 0.2)];

/// Every lever that can be simulated on this world, but for admission control, whose limit is searched. `late` is when a request is late
/// ([`Evidence::late`](super::Evidence)).
pub fn candidates(world: &WorldSpec, late: &[Late]) -> Vec<Candidate> {
    let mut all = Vec::new();
    of_traffic(world, &mut all);
    of_fleet(world, &mut all);
    hedges(world, late, &mut all);
    if let ModeSpec::Batching(batching) = &world.engine.mode {
        of_scheduler(world, batching, &mut all);
        of_steps(world, batching, &mut all);
    }
    all
}

fn candidate(lever: &'static str, setting: impl Into<String>, world: WorldSpec) -> Candidate {
    let setting = setting.into();
    Candidate {
        lever,
        setting,
        world,
        traffic: TrafficChange::AsItIs,
        hourly: Some(1.0),
        assumes: None,
        range: Vec::new(),
    }
}

fn of_traffic(world: &WorldSpec, all: &mut Vec<Candidate>) {
    let assumes = Some("a hit takes 1 ms; the cache forgets nothing".to_owned());
    let exact = candidate("exact-cache", "in front of the endpoint", world.clone());
    all.push(Candidate { traffic: TrafficChange::WithoutRepeats, assumes, ..exact });
    let assumes = Some("a fifth of each prompt can go, from its end".to_owned());
    let trimmed = candidate("context-trimming", "prompts a fifth shorter", world.clone());
    all.push(Candidate { traffic: TrafficChange::Trimmed(TRIMMED), assumes, ..trimmed });
}

fn of_fleet(world: &WorldSpec, all: &mut Vec<Candidate>) {
    let fleet = &world.fleet;
    let replicas = fleet.replicas;
    if fleet.autoscale.is_some() || fleet.disaggregation.is_some() || replicas == 0 {
        return;
    }
    let mut more = world.clone();
    more.fleet.replicas += 1;
    let hourly = Some(f64::from(replicas + 1) / f64::from(replicas));
    all.push(Candidate {
        hourly,
        ..candidate("replicas", format!("{} in place of {replicas}", replicas + 1), more)
    });
    // A second of quiet is no reason to send one away again within a run of minutes.
    let by_queue = QueueDepthSpec {
        depth: WAITING_PER_REPLICA,
        min: replicas,
        max: 2 * replicas,
        interval_s: 15,
        down_after_s: 300,
    };
    let mut scaled = world.clone();
    scaled.fleet.autoscale = Some(AutoscaleSpec::QueueDepth(by_queue));
    let assumes = format!(
        "one more for every {WAITING_PER_REPLICA} that wait, looked at every 15 s, after a cold start as of the fleet"
    );
    let setting = format!("{replicas} to {} by the queue", 2 * replicas);
    all.push(Candidate { hourly: None, assumes: Some(assumes), ..candidate("autoscaling", setting, scaled) });
    if replicas < 2 {
        return;
    }
    let routes = [("least requests", RouteSpec::LeastRequests {}), ("prefix-aware", prefix_route())];
    for (name, route) in routes {
        if std::mem::discriminant(&route) != std::mem::discriminant(&fleet.route) {
            let mut routed = world.clone();
            routed.fleet.route = route;
            all.push(candidate("request-routing", name, routed));
        }
    }
    let mut split = world.clone();
    let prefill_replicas = (replicas / 2).max(1);
    split.fleet.replicas = 1;
    split.fleet.disaggregation = Some(DisaggregationSpec {
        prefill_replicas,
        decode_replicas: replicas - prefill_replicas,
        transfer_gb_per_s: 64.0,
        kv_bytes_per_token: None,
    });
    let assumes = Some("the KV cache moves at 64 GB/s".to_owned());
    let setting = format!("{prefill_replicas} for prompts, {} for answers", replicas - prefill_replicas);
    all.push(Candidate { assumes, ..candidate("dedicated-pools", setting, split) });
}

fn hedges(world: &WorldSpec, late: &[Late], all: &mut Vec<Candidate>) {
    if world.fleet.replicas < 2 || world.fleet.disaggregation.is_some() {
        return;
    }
    for (percentile, most_share) in HEDGES {
        let Some(at) = late.iter().find(|late| late.percentile == percentile) else { continue };
        let spec = HedgeSpec { after_ns: (1e9 * at.after_s) as i64, most_share };
        let setting = format!(
            "after {} ms without an answer's first token, at most {:.0} % of the requests",
            number(1e3 * at.after_s),
            100.0 * most_share
        );
        let assumes = Some("the copy goes to another replica, and the loser is cancelled at once".to_owned());
        let hedged = candidate("hedging", setting, world.clone());
        all.push(Candidate { traffic: TrafficChange::Hedged(spec), assumes, ..hedged });
    }
}

/// Admission control at this limit.
pub fn admission(world: &WorldSpec, in_flight: u32) -> Candidate {
    let setting = format!("at most {in_flight} requests in flight");
    let assumes = Some("who is turned away does not come back".to_owned());
    let limited = candidate("admission", setting, world.clone());
    Candidate { traffic: TrafficChange::AtMost(in_flight), assumes, ..limited }
}

fn prefix_route() -> RouteSpec {
    RouteSpec::parse("prefix").unwrap_or(RouteSpec::LeastRequests {})
}

fn with(world: &WorldSpec, change: impl FnOnce(&mut BatchingSpec)) -> WorldSpec {
    let mut world = world.clone();
    if let ModeSpec::Batching(batching) = &mut world.engine.mode {
        change(batching);
    }
    world
}

fn of_scheduler(world: &WorldSpec, batching: &BatchingSpec, all: &mut Vec<Candidate>) {
    if !batching.prefix_cache {
        all.push(candidate("prefix-cache", "on", with(world, |b| b.prefix_cache = true)));
    }
    if matches!(batching.policy, PolicySpec::Static(_)) {
        let assumes = Some("vLLM's rules on the same steps".to_owned());
        let continuous = with(world, |b| b.policy = PolicySpec::default());
        all.push(Candidate { assumes, ..candidate("continuous-batching", "vLLM's rules", continuous) });
    }
    for seqs in [batching.max_seqs.saturating_mul(2), batching.max_seqs / 2] {
        if seqs >= 1 {
            let setting = format!("{seqs} in place of {}", batching.max_seqs);
            all.push(candidate("max-seqs", setting, with(world, |b| b.max_seqs = seqs)));
        }
    }
    for budget in [
        batching.token_budget.saturating_mul(4),
        batching.token_budget * 2,
        batching.token_budget / 2,
        batching.token_budget / 4,
    ] {
        if (64..=plimsoll_sim::spec::MAX_TOKEN_BUDGET).contains(&budget) {
            let setting = format!("{budget} in place of {}", batching.token_budget);
            all.push(candidate("token-budget", setting, with(world, |b| b.token_budget = budget)));
        }
    }
}

fn of_steps(world: &WorldSpec, batching: &BatchingSpec, all: &mut Vec<Candidate>) {
    if batching.speculative.is_none() {
        let linear = matches!(batching.step, StepSpec::Linear(_));
        let draft = if linear { DraftSpec::Lookup } else { DraftSpec::Layers { layers: 1 } };
        let drafted = |accepted_length: f64| {
            let draft = draft.clone();
            with(world, |b| {
                b.speculative = Some(SpeculativeSpec { draft_tokens: DRAFTED, accepted_length, draft })
            })
        };
        let [worst, usual, best] = ACCEPTED;
        let assumes = Some(format!("{usual} tokens accepted per step ({worst} to {best} in the interval)"));
        let range = vec![drafted(worst), drafted(best)];
        let setting = format!("{DRAFTED} tokens drafted");
        all.push(Candidate { assumes, range, ..candidate("speculative-decoding", setting, drafted(usual)) });
    }
    let kernels = [1.0, 1.0 - KERNELS, 1.0 - 2.0 * KERNELS].map(|left| faster_steps(world, 1.0 / left));
    if let [Some(worst), Some(usual), Some(best)] = kernels {
        let assumes = Some("a tenth less time per step (none to a fifth in the interval)".to_owned());
        let setting = "steps a tenth shorter";
        all.push(Candidate { assumes, range: vec![worst, best], ..candidate("kernels", setting, usual) });
    }
    if let [Some(worst), Some(usual), Some(best)] = [1.0, 0.5, 0.0].map(|left| with_host(world, left)) {
        let assumes = Some("half the host's time (all of it to none in the interval)".to_owned());
        let setting = "half the host's time";
        all.push(Candidate { assumes, range: vec![worst, best], ..candidate("runtime", setting, usual) });
    }
    if let Some(origin) = &batching.origin {
        of_pair(world, batching, origin, all);
    }
}

/// Levers that need another pair of model and GPU.
fn of_pair(world: &WorldSpec, batching: &BatchingSpec, origin: &OriginSpec, all: &mut Vec<Candidate>) {
    let pair = PairSpec {
        model: origin.model.clone(),
        gpu: origin.gpu.clone(),
        dtype: Dtype::of(&origin.dtype),
        kv_dtype: Dtype::of(&origin.kv_dtype),
        tensor_parallel: Some(origin.tensor_parallel.max(1)),
        ..PairSpec::default()
    };
    let resolved = |pair: PairSpec| -> Option<WorldSpec> {
        let engine = like(&pair.resolve().ok()?, batching)?;
        let mut world = world.clone();
        world.engine = engine;
        world.validate().ok().map(|()| world)
    };
    // The pair as it is must be what runs; a calibrated or hand-made engine is not made anew from its name.
    let same = resolved(pair.clone()).is_some_and(|again| step_of(&again.engine) == step_of(&world.engine));
    if !same {
        return;
    }
    if pair.dtype == Some(Dtype::Bf16)
        && let Some(world) = resolved(PairSpec { dtype: Some(Dtype::Fp8), ..pair.clone() })
    {
        all.push(candidate("quantisation", "weights in fp8", world));
    }
    let group = origin.tensor_parallel.max(1);
    if let Some(world) = resolved(PairSpec { tensor_parallel: Some(2 * group), ..pair.clone() }) {
        let setting = format!("{} GPUs in place of {group}", 2 * group);
        all.push(Candidate { hourly: Some(2.0), ..candidate("tensor-sharding", setting, world) });
    }
    let next = NEXT_GPU.iter().find(|(gpu, _)| *gpu == origin.gpu).map(|(_, next)| *next);
    if let Some(next) = next.filter(|next| gpus::all().iter().any(|gpu| gpu.name == *next))
        && let Some(world) = resolved(PairSpec { gpu: next.to_owned(), ..pair })
    {
        let setting = format!("{next} in place of {}", origin.gpu);
        all.push(Candidate { hourly: None, ..candidate("bigger-gpu", setting, world) });
    }
}

/// What is usually rented next.
const NEXT_GPU: [(&str, &str); 8] = [
    ("t4", "l4"),
    ("l4", "l40s"),
    ("a30", "a100"),
    ("a40", "l40s"),
    ("l40s", "h100"),
    ("a100", "h100"),
    ("h100", "h200"),
    ("h200", "b200"),
];

/// Another pair under the limits of the engine that runs; its memory decides the KV cache anew.
pub(crate) fn like(pair: &EngineSpec, now: &BatchingSpec) -> Option<EngineSpec> {
    let ModeSpec::Batching(fresh) = &pair.mode else { return None };
    let mut mode = fresh.clone();
    mode.policy = now.policy.clone();
    mode.prefix_cache = now.prefix_cache;
    mode.max_seqs = now.max_seqs;
    mode.token_budget = now.token_budget;
    mode.chunked_prefill = now.chunked_prefill;
    mode.long_prefill_threshold = now.long_prefill_threshold;
    mode.queue_limit = now.queue_limit;
    mode.speculative = now.speculative.clone();
    mode.front_ms = now.front_ms;
    mode.emit_us = now.emit_us;
    Some(EngineSpec { name: pair.name.clone(), mode: ModeSpec::Batching(mode) })
}

fn step_of(engine: &EngineSpec) -> Option<&StepSpec> {
    match &engine.mode {
        ModeSpec::Batching(batching) => Some(&batching.step),
        _ => None,
    }
}

/// The same engine with this share of what the host adds; none where nothing is known of it.
fn with_host(world: &WorldSpec, left: f64) -> Option<WorldSpec> {
    let ModeSpec::Batching(batching) = &world.engine.mode else { return None };
    let StepSpec::Roofline(_) = &batching.step else { return None };
    Some(with(world, |b| {
        b.emit_us *= left;
        b.front_ms *= left;
        if let StepSpec::Roofline(roofline) = &mut b.step {
            roofline.host.layer_us *= left;
            roofline.host.step_us *= left;
            roofline.host.request_us *= left;
        }
    }))
}

/// The same engine with the GPU's part of a step `factor` times as fast; the host's stays. None for engines without steps.
pub fn faster_steps(world: &WorldSpec, factor: f64) -> Option<WorldSpec> {
    let ModeSpec::Batching(_) = &world.engine.mode else { return None };
    Some(with(world, |b| match &mut b.step {
        StepSpec::Linear(linear) => {
            linear.base_us = (linear.base_us / factor).max(0.001);
            linear.decode_us /= factor;
            linear.prefill_us /= factor;
            linear.context_ns /= factor;
            if let Some(overlap) = &mut linear.overlap {
                overlap.weights_us /= factor;
                overlap.token_us /= factor;
            }
        }
        StepSpec::Roofline(roofline) => {
            let gpu = &mut roofline.gpu;
            gpu.tflops *= factor;
            gpu.bandwidth_tb_s *= factor;
            gpu.attention_tflops = gpu.attention_tflops.map(|tflops| tflops * factor);
            gpu.linear_floor_us /= factor;
            gpu.decode_floor_us /= factor;
            gpu.decode_per_head_ns /= factor;
            gpu.prefill_per_head_ns /= factor;
            gpu.prefill_floor_us /= factor;
            gpu.allreduce_us /= factor;
            gpu.allreduce_gb_s *= factor;
            gpu.experts.floor_us /= factor;
        }
    }))
}
