//! The concurrent requests of a replica, and the limit that binds.
//!
//! A sequence is observed in mid-response more often if it is long. The KV cache capacity is therefore divided by the
//! length-biased context and half a block. Prompt plus half an output would be wrong: with random output lengths, the
//! difference is a factor.

use plimsoll_sim::engine::scheduler::policy::PolicySpec;
use plimsoll_sim::spec::BLOCK_TOKENS;
use plimsoll_sim::spec::dynamic::DynamicSpec;
use plimsoll_sim::{BatchingSpec, EngineSpec, ModeSpec, SimSpecError, StepSpec};

use super::finding::Slots;
use super::mix::Mix;
use super::spec::{PlanError, PlanSpec};

/// Returns the concurrent requests of a replica of this plan; `None` for an engine without a limit.
pub fn slots(spec: &PlanSpec, mix: &Mix) -> Result<Option<Slots>, PlanError> {
    Ok(of_engine(&spec.world.engine, mix)?)
}

/// Returns the concurrent requests of this engine; `None` without a limit.
pub fn of_engine(engine: &EngineSpec, mix: &Mix) -> Result<Option<Slots>, SimSpecError> {
    match &engine.mode {
        ModeSpec::Canned(_) => Ok(None),
        ModeSpec::Queue(queue) => {
            let servers = f64::from(queue.servers);
            Ok(Some(Slots::plain(servers, "servers", format!("{servers} servers take one request each"))))
        }
        ModeSpec::Batching(batching) => of_batching(batching, mix).map(Some),
        ModeSpec::Dynamic(dynamic) => Ok(Some(of_dynamic(dynamic, mix))),
    }
}

fn of_dynamic(spec: &DynamicSpec, mix: &Mix) -> Slots {
    let items = mix.prompt.max(1.0);
    let batch = if spec.dynamic_batching.is_some() { f64::from(spec.max_batch_size) } else { items };
    let slots = f64::from(spec.instances) * (batch / items).max(1.0);
    let why = format!("{} instances × a batch of {batch:.0} items, {items:.1} per request", spec.instances);
    Slots::plain(slots, "max_batch", why)
}

/// Returns the slots of an engine that batches sequences: the least of sequences, KV cache and tokens of a step.
///
/// # Errors
/// Fails if the engine has no memory for a KV cache.
pub(crate) fn of_batching(spec: &BatchingSpec, mix: &Mix) -> Result<Slots, SimSpecError> {
    let kv_tokens = f64::from(spec.blocks()?) * f64::from(BLOCK_TOKENS);
    let half_block = f64::from(BLOCK_TOKENS) / 2.0;
    // The guaranteed-no-evict policy reserves the whole output from the start.
    let ahead = match (&spec.policy, mix.output > 0.0) {
        (PolicySpec::NoEvict(_), true) => mix.output_squared / (2.0 * mix.output),
        _ => 0.0,
    };
    let each = mix.context + ahead + half_block;
    let drafted = spec.speculative.as_ref().map_or(0, |speculative| speculative.draft_tokens);
    let by_kv = kv_tokens / each;
    let by_budget = f64::from(spec.token_budget) / (1.0 + f64::from(drafted));
    let by_seqs = match &spec.policy {
        PolicySpec::Static(fixed) => f64::from(fixed.batch.min(spec.max_seqs)),
        _ => f64::from(spec.max_seqs),
    };
    let kv = format!(
        "{kv_tokens:.0} tokens of KV cache are enough for {by_kv:.1} sequences of {each:.0} tokens (mean context in mid-answer{})",
        if ahead > 0.0 { " and the reservation for the rest" } else { "" }
    );
    let (slots, binding, why) = if by_kv <= by_seqs && by_kv <= by_budget {
        (by_kv, "kv_cache", format!("{kv}, fewer than the {by_seqs:.0} sequences allowed"))
    } else if by_seqs <= by_budget {
        (by_seqs, "max_seqs", format!("{by_seqs:.0} concurrent sequences are allowed; {kv}"))
    } else {
        let why = format!(
            "a step of {} tokens is enough for {by_budget:.0} sequences that compute {} each; {kv}",
            spec.token_budget,
            1 + drafted
        );
        (by_budget, "token_budget", why)
    };
    let memory = match &spec.step {
        StepSpec::Roofline(roofline) => Some(roofline),
        StepSpec::Linear(_) => None,
    };
    Ok(Slots {
        weights_gb: memory.map(|roofline| roofline.weights_per_gpu() / 1e9),
        kv_bytes_per_token: memory
            .map(|roofline| roofline.kv_bytes_per_token() * f64::from(roofline.tensor_parallel)),
        kv_tokens: Some(kv_tokens),
        ..Slots::plain(slots, binding, why)
    })
}

impl Slots {
    fn plain(slots: f64, binding: &str, why: String) -> Slots {
        Slots {
            slots,
            binding: binding.to_owned(),
            why,
            weights_gb: None,
            kv_bytes_per_token: None,
            kv_tokens: None,
        }
    }
}
