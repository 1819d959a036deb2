//! A change of a simulated world, used by levers, what-ifs and searches.
//!
//! A change applies only to parameters of the engine's model. A fitted linear engine has no model and no GPU, so a change
//! of dtype or GPU is refused and not guessed.

use plimsoll_sim::catalogue::{Dtype, gpus};
use plimsoll_sim::engine::speculation::SpeculativeSpec;
use plimsoll_sim::{
    AdmissionControlSpec, AutoscaleSpec, BatchingSpec, DisaggregationSpec, EngineSpec, ModeSpec, PairSpec,
    PolicySpec, RouteSpec, StepSpec, WorldSpec,
};
use plimsoll_workload::closest;

/// A changed setting with its new value.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    Replicas(u32),
    Route(RouteSpec),
    Autoscale(AutoscaleSpec),
    /// Separate replicas for prefill and decode.
    Disaggregation(DisaggregationSpec),
    /// Concurrent requests of a replica: sequences, servers or instances.
    Slots(u32),
    TokenBudget(u32),
    /// Whether a prompt may be split over steps (chunked prefill).
    Chunking(bool),
    /// Whether equal prefixes share KV blocks (prefix cache).
    PrefixCache(bool),
    Policy(PolicySpec),
    Speculative(SpeculativeSpec),
    MaxBatch(u32),
    /// Longest wait for a batch to fill, µs.
    DelayUs(u64),
    /// Speed-up of the GPU part of each step; the host part is unchanged.
    FasterSteps(f64),
    /// Remaining share of the host's time.
    Host(f64),
    /// A different combination of model and GPU.
    Pair(PairChange),
    /// A gateway in front of the fleet, which routes in place of the router.
    Gateway(Box<AdmissionControlSpec>),
}

/// A change of model, GPU and dtype; `None` leaves a field unchanged.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PairChange {
    /// GPU, by its name in the catalogue.
    pub gpu: Option<String>,
    /// GPUs that share each layer.
    pub tensor_parallel: Option<u32>,
    pub dtype: Option<Dtype>,
    /// Whether the scheduler limits are the server's defaults for the new pair; otherwise the limits of the current engine.
    pub fresh_limits: bool,
}

impl Change {
    /// Applies the change.
    ///
    /// # Errors
    /// Fails with the reason, as a phrase, if the engine can't express the change.
    pub fn apply(&self, world: &mut WorldSpec) -> Result<(), String> {
        let fleet = &mut world.fleet;
        match self {
            Change::Replicas(to) => fleet.replicas = *to,
            Change::Route(to) => fleet.route = *to,
            Change::Autoscale(to) => fleet.autoscale = Some(to.clone()),
            Change::Disaggregation(to) => {
                fleet.replicas = 1;
                fleet.disaggregation = Some(to.clone());
            }
            Change::Gateway(to) => fleet.gateway = Some((**to).clone()),
            Change::Pair(to) => world.engine = to.engine(&world.engine)?,
            setting => setting.set(&mut world.engine.mode)?,
        }
        Ok(())
    }

    /// Returns the changed world.
    ///
    /// # Errors
    /// Fails with the reason, as a phrase, if the engine can't express the change.
    pub fn made(&self, world: &WorldSpec) -> Result<WorldSpec, String> {
        let mut world = world.clone();
        self.apply(&mut world)?;
        Ok(world)
    }

    fn set(&self, mode: &mut ModeSpec) -> Result<(), String> {
        match (mode, self) {
            (ModeSpec::Batching(batching), Change::Slots(to)) => batching.max_seqs = *to,
            (ModeSpec::Queue(queue), Change::Slots(to)) => queue.servers = *to,
            (ModeSpec::Dynamic(dynamic), Change::Slots(to)) => dynamic.instances = *to,
            (ModeSpec::Canned(_), Change::Slots(_)) => return Err("drawn times know no slots".to_owned()),
            (ModeSpec::Batching(batching), Change::TokenBudget(to)) => batching.token_budget = *to,
            (ModeSpec::Batching(batching), Change::Chunking(is)) => batching.chunked_prefill = *is,
            (ModeSpec::Batching(batching), Change::PrefixCache(is)) => batching.prefix_cache = *is,
            (ModeSpec::Batching(batching), Change::Policy(to)) => batching.policy = to.clone(),
            (ModeSpec::Batching(batching), Change::Speculative(to)) => {
                batching.speculative = Some(to.clone())
            }
            (ModeSpec::Dynamic(dynamic), Change::MaxBatch(to)) => dynamic.max_batch_size = *to,
            (ModeSpec::Dynamic(dynamic), Change::DelayUs(us)) => {
                dynamic.dynamic_batching.get_or_insert_default().max_queue_delay_us = *us;
            }
            (ModeSpec::Batching(batching), Change::FasterSteps(factor)) => {
                faster_steps(&mut batching.step, *factor)
            }
            (ModeSpec::Batching(batching), Change::Host(left)) => host(batching, *left)?,
            _ => return Err("this engine has no such setting".to_owned()),
        }
        Ok(())
    }
}

/// Returns the catalogue pair of an engine; `None` if the engine is not from the catalogue.
pub fn pair(batching: &BatchingSpec) -> Option<PairSpec> {
    let origin =
        batching.origin.as_ref().filter(|origin| !origin.model.is_empty() && !origin.gpu.is_empty())?;
    Some(PairSpec {
        model: origin.model.clone(),
        gpu: origin.gpu.clone(),
        dtype: Dtype::of(&origin.dtype),
        kv_dtype: Dtype::of(&origin.kv_dtype),
        tensor_parallel: Some(origin.tensor_parallel.max(1)),
        ..PairSpec::default()
    })
}

impl PairChange {
    fn engine(&self, now: &EngineSpec) -> Result<EngineSpec, String> {
        let ModeSpec::Batching(batching) = &now.mode else {
            return Err("this engine has no model and no GPU, so neither can be changed".to_owned());
        };
        let (Some(pair), StepSpec::Roofline(_)) = (pair(batching), &batching.step) else {
            let name = &now.name;
            return Err(format!(
                "{name}: its step is linear and has no model and no GPU; name them with --profile MODEL@GPU"
            ));
        };
        let other = self.gpu.as_ref().filter(|gpu| gpus::all().iter().all(|known| known.name != **gpu));
        if let Some(gpu) = other {
            let near = closest(gpu, gpus::all().iter().map(|one| one.name), 3).join(", ");
            return Err(format!("no GPU {gpu:?} in the catalogue; nearest: {near}"));
        }
        let to = PairSpec {
            gpu: self.gpu.clone().unwrap_or_else(|| pair.gpu.clone()),
            tensor_parallel: self.tensor_parallel.or(pair.tensor_parallel),
            dtype: self.dtype.or(pair.dtype),
            ..pair.clone()
        };
        if self.fresh_limits {
            if (&to.gpu, to.tensor_parallel, to.dtype) == (&pair.gpu, pair.tensor_parallel, pair.dtype) {
                return Ok(now.clone());
            }
            let server =
                batching.origin.as_ref().and_then(|o| serde_json::from_value(o.server.clone().into()).ok());
            let server = server.ok_or("the settings of its server are unknown")?;
            return PairSpec { server, ..to }.resolve().map_err(|e| e.to_string());
        }
        let resolved = |pair: PairSpec| pair.resolve().map_err(|e| e.to_string());
        // The current pair must equal the running engine, because a calibrated or hand-made engine can't be rebuilt from
        // its name.
        if step_of(&resolved(pair.clone())?) != Some(&batching.step) {
            return Err(format!(
                "{} differs from {}@{} of the catalogue (calibrated or edited manually), so its model or GPU cannot change",
                now.name, pair.model, pair.gpu
            ));
        }
        like(&resolved(to)?, batching).ok_or_else(|| "no such engine".to_owned())
    }
}

/// Returns another pair under the limits of the current engine; its memory determines the KV cache.
fn like(pair: &EngineSpec, now: &BatchingSpec) -> Option<EngineSpec> {
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

/// Multiplies the host's time by the share that is left.
fn host(batching: &mut BatchingSpec, left: f64) -> Result<(), String> {
    let StepSpec::Roofline(roofline) = &mut batching.step else {
        return Err("a fitted step does not separate the host's part".to_owned());
    };
    roofline.host.layer_us *= left;
    roofline.host.step_us *= left;
    roofline.host.request_us *= left;
    batching.emit_us *= left;
    batching.front_ms *= left;
    Ok(())
}

/// Divides the GPU part of a step by `factor`; the host part is unchanged.
fn faster_steps(step: &mut StepSpec, factor: f64) {
    match step {
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
    }
}
