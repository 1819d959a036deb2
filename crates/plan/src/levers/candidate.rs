//! Translates a lever into a changed world or changed traffic for simulation.
//!
//! Only parameters of the engine's model are simulated. The finding states assumptions next to the figure, for example the
//! accepted length of a draft or the removable share of a prompt. Each setting of a lever is a separate candidate, because
//! "change the limit" is no advice without the direction.

use std::collections::HashSet;

use plimsoll_sim::catalogue::Dtype;
use plimsoll_sim::engine::speculation::{DraftSpec, SpeculativeSpec};
use plimsoll_sim::{
    AdmissionControlSpec, AutoscaleSpec, BatchingSpec, DisaggregationSpec, HedgeSpec, KedaSpec, ModeSpec,
    PolicySpec, RouteSpec, StepSpec, WorldSpec,
};

use crate::change::{Change, PairChange, pair};
use crate::recorded::{in_loop_of, is_closed};
use crate::replay::{ReplayRequest, RequestTimes, play, play_at_most};

/// A lever with a setting, as a simulated world.
#[derive(Clone, Debug)]
pub struct LeverCandidate {
    pub lever: &'static str,
    pub setting: String,
    pub world: WorldSpec,
    pub traffic: TrafficChange,
    /// Factor on the price per hour; `None` if unknown.
    pub hourly: Option<f64>,
    pub assumes: Option<String>,
    /// The worlds with the assumption at its worst and at its best; the interval covers both.
    pub range: Vec<WorldSpec>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum TrafficChange {
    AsItIs,
    /// Keeps this share of each prompt and cuts its end.
    Trimmed(f64),
    /// Answers repeated prompts from a cache in front of the engine.
    WithoutRepeats,
    /// Rejects a request that finds this many in flight.
    AtMost(u32),
}

impl TrafficChange {
    /// Returns the requests that reach the engine, and the due times of cached requests.
    pub fn apply(&self, asked: &[ReplayRequest]) -> (Vec<ReplayRequest>, Vec<i64>) {
        match self {
            TrafficChange::AsItIs | TrafficChange::AtMost(_) => (asked.to_vec(), Vec::new()),
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
                in_loop_of(asked, &mut sent);
                (sent, hits)
            }
        }
    }

    /// Returns the reason if the change can't be simulated on these requests.
    pub fn refused(&self, asked: &[ReplayRequest]) -> Option<&'static str> {
        // Turns behind a removed turn wait for no response. They would arrive at their recorded times and not in the closed
        // loop.
        let has_turns = asked.iter().any(|one| one.turn.is_some());
        let is_refused = *self == TrafficChange::WithoutRepeats && has_turns && is_closed(asked);
        is_refused.then_some(
            "in a closed loop a session continues sooner after a cached answer, which is not simulated",
        )
    }

    /// Returns the times of each request that reaches the engine. Rejected requests have no response.
    pub fn play(
        &self,
        world: &WorldSpec,
        asked: &[ReplayRequest],
        seed: u64,
    ) -> Result<Vec<RequestTimes>, String> {
        match self {
            TrafficChange::AtMost(limit) => play_at_most(*limit as usize, world, asked, seed),
            _ => play(world, asked, seed),
        }
    }
}

/// Waiting requests per additional replica of the autoscaler.
const WAITING_PER_REPLICA: f64 = 4.0;
/// Share of a prompt that trimming keeps.
const TRIMMED: f64 = 0.8;
/// Assumed gain of better kernels: a tenth of each step, twice that at best and 0 at worst.
const KERNELS: f64 = 0.1;
/// Tokens proposed by a draft.
const DRAFTED: u32 = 3;
/// Tokens per step with a draft that fits the text badly, typically and well. Published means for drafts trained with their
/// model are 2.5 to 3.4 (`plimsoll_sim::engine::speculation::ACCEPTED`); other drafts are worse.
const ACCEPTED: [f64; 3] = [1.6, 2.5, 3.0];

/// Share of prompt tokens that a gateway may send a second time: its default and five times that.
const HEDGED: [f64; 2] = [0.02, 0.1];

/// Returns every lever that this world can simulate, except admission control, whose limit is searched.
pub fn candidates(world: &WorldSpec) -> Vec<LeverCandidate> {
    let mut all = Vec::new();
    of_traffic(world, &mut all);
    of_fleet(world, &mut all);
    hedges(world, &mut all);
    if let ModeSpec::Batching(batching) = &world.engine.mode {
        of_scheduler(world, batching, &mut all);
        of_steps(world, batching, &mut all);
    }
    all
}

fn candidate(lever: &'static str, setting: impl Into<String>, world: WorldSpec) -> LeverCandidate {
    let setting = setting.into();
    LeverCandidate {
        lever,
        setting,
        world,
        traffic: TrafficChange::AsItIs,
        hourly: Some(1.0),
        assumes: None,
        range: Vec::new(),
    }
}

/// Returns a lever that is one change; `None` if the engine can't express it.
fn changed(
    lever: &'static str,
    setting: impl Into<String>,
    world: &WorldSpec,
    change: &Change,
) -> Option<LeverCandidate> {
    let world = change.made(world).ok().filter(|world| world.validate().is_ok())?;
    Some(candidate(lever, setting, world))
}

fn of_traffic(world: &WorldSpec, all: &mut Vec<LeverCandidate>) {
    let assumes = Some("a hit takes 1 ms; the cache forgets nothing".to_owned());
    let exact = candidate("exact-cache", "in front of the endpoint", world.clone());
    all.push(LeverCandidate { traffic: TrafficChange::WithoutRepeats, assumes, ..exact });
    let assumes = Some("a fifth of each prompt can go, from its end".to_owned());
    let trimmed = candidate("context-trimming", "prompts a fifth shorter", world.clone());
    all.push(LeverCandidate { traffic: TrafficChange::Trimmed(TRIMMED), assumes, ..trimmed });
}

fn of_fleet(world: &WorldSpec, all: &mut Vec<LeverCandidate>) {
    let fleet = &world.fleet;
    let replicas = fleet.replicas;
    if fleet.autoscale.is_some() || fleet.disaggregation.is_some() || replicas == 0 {
        return;
    }
    let hourly = Some(f64::from(replicas + 1) / f64::from(replicas));
    let setting = format!("{} in place of {replicas}", replicas + 1);
    let more = changed("replicas", setting, world, &Change::Replicas(replicas + 1));
    all.extend(more.map(|more| LeverCandidate { hourly, ..more }));
    // Zero tolerance: a second without a queue is no reason to remove a replica within a run of minutes.
    let by_queue = KedaSpec {
        min: replicas,
        max: 2 * replicas,
        polling_s: 15,
        tolerance: 0.0,
        ..KedaSpec::new(WAITING_PER_REPLICA)
    };
    let assumes = format!(
        "one more replica per {WAITING_PER_REPLICA} waiting requests, polled every 15 s, with the cold start of the fleet"
    );
    let setting = format!("{replicas} to {} by the queue", 2 * replicas);
    let scaled = changed("autoscaling", setting, world, &Change::Autoscale(AutoscaleSpec::Keda(by_queue)));
    all.extend(scaled.map(|scaled| LeverCandidate { hourly: None, assumes: Some(assumes), ..scaled }));
    if replicas < 2 {
        return;
    }
    let routes = [("least requests", RouteSpec::LeastRequests {}), ("prefix-aware", prefix_route())];
    for (name, route) in routes {
        if std::mem::discriminant(&route) != std::mem::discriminant(&fleet.route) {
            all.extend(changed("request-routing", name, world, &Change::Route(route)));
        }
    }
    let prefill_replicas = (replicas / 2).max(1);
    let split = Change::Disaggregation(DisaggregationSpec {
        prefill_replicas,
        decode_replicas: replicas - prefill_replicas,
        transfer_gb_per_s: 64.0,
        kv_bytes_per_token: None,
    });
    let assumes = Some("the KV cache moves at 64 GB/s".to_owned());
    let setting = format!("{prefill_replicas} for prompts, {} for answers", replicas - prefill_replicas);
    all.extend(
        changed("dedicated-pools", setting, world, &split).map(|split| LeverCandidate { assumes, ..split }),
    );
}

/// Adds a gateway that hedges with the fleet's routing, so that the comparison isolates the hedge. An existing gateway gets
/// the hedge.
fn hedges(world: &WorldSpec, all: &mut Vec<LeverCandidate>) {
    let fleet = &world.fleet;
    let front = fleet
        .gateway
        .clone()
        .unwrap_or_else(|| AdmissionControlSpec { route: fleet.route, ..AdmissionControlSpec::default() });
    if fleet.replicas < 2 || front.hedge.is_some() {
        return;
    }
    for share in HEDGED {
        let hedge = HedgeSpec { share, ..HedgeSpec::default() };
        let setting = format!("at most {:.0} % of the prompt tokens a second time", 100.0 * share);
        let hedging = Change::Gateway(Box::new(AdmissionControlSpec { hedge: Some(hedge), ..front.clone() }));
        let assumes = Some("as plimsoll gateway hedges (hedge: in its file)".to_owned());
        all.extend(
            changed("hedging", setting, world, &hedging).map(|hedging| LeverCandidate { assumes, ..hedging }),
        );
    }
}

pub fn admission(world: &WorldSpec, in_flight: u32) -> LeverCandidate {
    let setting = format!("at most {in_flight} requests in flight");
    let assumes = Some("rejected requests are not retried".to_owned());
    let limited = candidate("admission", setting, world.clone());
    LeverCandidate { traffic: TrafficChange::AtMost(in_flight), assumes, ..limited }
}

fn prefix_route() -> RouteSpec {
    RouteSpec::parse("prefix").unwrap_or(RouteSpec::LeastRequests {})
}

fn of_scheduler(world: &WorldSpec, batching: &BatchingSpec, all: &mut Vec<LeverCandidate>) {
    if !batching.prefix_cache {
        all.extend(changed("prefix-cache", "on", world, &Change::PrefixCache(true)));
    }
    if matches!(batching.policy, PolicySpec::Static(_)) {
        let assumes = Some("vLLM's rules on the same steps".to_owned());
        let continuous =
            changed("continuous-batching", "vLLM's rules", world, &Change::Policy(PolicySpec::default()));
        all.extend(continuous.map(|continuous| LeverCandidate { assumes, ..continuous }));
    }
    for seqs in [batching.max_seqs.saturating_mul(2), batching.max_seqs / 2] {
        let setting = format!("{seqs} in place of {}", batching.max_seqs);
        all.extend(changed("max-seqs", setting, world, &Change::Slots(seqs)));
    }
    let now = batching.token_budget;
    for budget in [now.saturating_mul(4), now.saturating_mul(2), now / 2, now / 4] {
        if (64..=plimsoll_sim::spec::MAX_TOKEN_BUDGET).contains(&budget) {
            let setting = format!("{budget} in place of {now}");
            all.extend(changed("token-budget", setting, world, &Change::TokenBudget(budget)));
        }
    }
}

fn of_steps(world: &WorldSpec, batching: &BatchingSpec, all: &mut Vec<LeverCandidate>) {
    if batching.speculative.is_none() {
        let linear = matches!(batching.step, StepSpec::Linear(_));
        let draft = if linear { DraftSpec::Lookup } else { DraftSpec::Layers { layers: 1 } };
        let [worst, usual, best] = ACCEPTED;
        let drafted = ACCEPTED.map(|accepted_length| {
            let draft = draft.clone();
            Change::Speculative(SpeculativeSpec { draft_tokens: DRAFTED, accepted_length, draft })
        });
        let assumes = format!("{usual} tokens accepted per step ({worst} to {best} in the interval)");
        let setting = format!("{DRAFTED} tokens drafted");
        all.extend(ranged("speculative-decoding", &setting, world, drafted, assumes));
    }
    let kernels = [1.0, 1.0 - KERNELS, 1.0 - 2.0 * KERNELS].map(|left| Change::FasterSteps(1.0 / left));
    let assumes = "a tenth less time per step (none to a fifth in the interval)";
    all.extend(ranged("kernels", "steps a tenth shorter", world, kernels, assumes.to_owned()));
    let host = [1.0, 0.5, 0.0].map(Change::Host);
    let assumes = "half the host's time (all of it to none in the interval)";
    all.extend(ranged("runtime", "half the host's time", world, host, assumes.to_owned()));
    of_pair(world, batching, all);
}

/// Returns a lever with an assumed gain: worst, typical and best.
fn ranged(
    lever: &'static str,
    setting: &str,
    world: &WorldSpec,
    changes: [Change; 3],
    assumes: String,
) -> Option<LeverCandidate> {
    let [worst, usual, best] = changes.map(|change| change.made(world).ok());
    let (worst, usual, best) = (worst?, usual?, best?);
    Some(LeverCandidate {
        assumes: Some(assumes),
        range: vec![worst, best],
        ..candidate(lever, setting, usual)
    })
}

/// Adds the levers that need another combination of model and GPU.
fn of_pair(world: &WorldSpec, batching: &BatchingSpec, all: &mut Vec<LeverCandidate>) {
    let Some(pair) = pair(batching) else { return };
    let other = |change: PairChange| Change::Pair(change);
    if pair.dtype == Some(Dtype::Bf16) {
        let fp8 = other(PairChange { dtype: Some(Dtype::Fp8), ..PairChange::default() });
        all.extend(changed("quantisation", "weights in fp8", world, &fp8));
    }
    let group = pair.tensor_parallel.unwrap_or(1);
    let twice = other(PairChange { tensor_parallel: Some(2 * group), ..PairChange::default() });
    let sharded =
        changed("tensor-sharding", format!("{} GPUs in place of {group}", 2 * group), world, &twice);
    all.extend(sharded.map(|sharded| LeverCandidate { hourly: Some(2.0), ..sharded }));
    if let Some((_, next)) = NEXT_GPU.iter().find(|(gpu, _)| *gpu == pair.gpu) {
        let bigger = other(PairChange { gpu: Some((*next).to_owned()), ..PairChange::default() });
        let bigger = changed("bigger-gpu", format!("{next} in place of {}", pair.gpu), world, &bigger);
        all.extend(bigger.map(|bigger| LeverCandidate { hourly: None, ..bigger }));
    }
}

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
