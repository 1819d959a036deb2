//! The catalogue of levers (SPEC C4), as data.
//!
//! Each entry states the change, the latency terms that it can move, its return, its risk, and the conditions without
//! effect. Efforts are person-days for a team that runs one service, by convention. The user's file replaces them, because
//! a team with a router does not build one. A table in a file next to the binary was rejected. The conditions that rule out
//! a lever are code, and an entry without its condition would be an opinion.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

plimsoll_model::named! {
    /// A term of a request's latency.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Term {
        /// Wait for a slot in the engine.
        Queue => "queue",
        /// Wait for a batch of whole requests to fill.
        BatchWait => "batch wait",
        /// Computation of the prompt before the first token.
        Prefill => "prefill",
        /// Generation of the output tokens, step by step.
        Decode => "decode",
        /// Host work next to the GPU: tokenising, scheduling, launching.
        Host => "host",
        /// Transfer between client and server.
        Network => "network",
        /// Load of a replica or an adapter.
        ColdStart => "cold start",
    }
}

plimsoll_model::named! {
    /// The effort to revert a lever.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Reversible {
        /// By a flag or a restart.
        AtOnce => "at once",
        /// By a rollback of a release.
        ByRollback => "by rollback",
        /// Only by undoing work or contracts.
        Hardly => "hardly",
    }
}

/// A lever of the catalogue.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Lever {
    /// Identifier of the lever in files.
    pub id: &'static str,
    /// Name of the lever in reports.
    pub name: &'static str,
    /// Change that the lever makes.
    pub changes: &'static str,
    /// Latency terms that the lever can move.
    pub moves: &'static [Term],
    /// Benefit of the lever, as a phrase.
    pub returns: &'static str,
    /// Risk of the lever, as text.
    pub risk: &'static str,
    /// Effort in person-days, by convention.
    pub effort_days: f64,
    /// Effort to revert the lever.
    pub reversible: Reversible,
    /// Conditions under which the lever has no effect.
    pub no_help: &'static str,
    /// Whether the lever changes the model and therefore its answers.
    pub touches_model: bool,
    /// Recommended first trial of the lever, as text.
    pub first: &'static str,
}

use Reversible::{AtOnce, ByRollback, Hardly};
use Term::{BatchWait, ColdStart, Decode, Host, Network, Prefill, Queue};

pub fn all() -> &'static [Lever] {
    &CATALOGUE
}

pub fn find(id: &str) -> Option<&'static Lever> {
    CATALOGUE.iter().find(|lever| lever.id == id)
}

macro_rules! lever {
    ($id:literal, $name:literal, $changes:literal, [$($term:ident),*], $returns:literal, risk $risk:literal,
     $days:literal days, $reversible:ident, no help $no_help:literal, model $model:literal, first $first:literal) => {
        Lever { id: $id, name: $name, changes: $changes, moves: &[$($term),*], returns: $returns, risk: $risk,
            effort_days: $days, reversible: $reversible, no_help: $no_help, touches_model: $model, first: $first }
    };
}

static CATALOGUE: [Lever; 27] = [
    lever!("batching", "dynamic batching", "several whole requests share one pass of the model", [Queue, BatchWait],
        "more throughput and a shorter queue", risk "waiting for a batch to fill adds to every request at low load",
        1.0 days, AtOnce, no help "for engines that batch token by token, and below about one request per service time",
        model false, first "raise the preferred size and the queue delay of one instance; compare at the same load"),
    lever!("continuous-batching", "continuous batching", "requests join and leave the batch at every token", [Queue],
        "queue time independent of the longest answer", risk "another engine, with its own defaults",
        5.0 days, ByRollback, no help "for engines with continuous batching, and with one request in flight",
        model false, first "the same model on an engine with continuous batching, with a tenth of the traffic"),
    lever!("request-routing", "request routing", "the replica that gets a request", [Queue, Prefill],
        "an even queue, and more prefix cache hits", risk "stale load data sends bursts to one replica",
        1.0 days, AtOnce, no help "with one replica, and while no replica queues", model false,
        first "least requests in place of round robin; prefix-aware where prompts share beginnings"),
    lever!("model-routing", "model routing", "easy requests go to a smaller model", [Prefill, Decode, Queue],
        "cost, and time for requests of the small model", risk "answers change; a wrong route costs both calls",
        15.0 days, ByRollback, no help "where few requests are easy", model true,
        first "score the small model on an evaluation file before any traffic"),
    lever!("exact-cache", "exact response cache", "a prompt seen before is answered from memory", [Queue, Prefill, Decode],
        "repeats answered in a millisecond, without engine load",
        risk "stale answers; another tenant's answer if the key is too short", 3.0 days, AtOnce,
        no help "where prompts do not repeat", model false,
        first "count hits in shadow for a day; answer only at temperature 0"),
    lever!("semantic-cache", "semantic cache", "a prompt similar to an earlier prompt gets its answer", [Queue, Prefill, Decode],
        "like the exact cache, for more requests", risk "false hits: a wrong answer, fast", 10.0 days, AtOnce,
        no help "where prompts are not similar", model true,
        first "measure the false-hit rate on labelled pairs before it serves users"),
    lever!("prefix-cache", "prefix (KV) reuse", "equal beginnings of prompts are computed once", [Prefill, Queue],
        "the prefill of the shared prefix", risk "less KV memory for running requests; order of prompt parts matters",
        0.5 days, AtOnce, no help "where prompts begin differently", model false,
        first "switch the engine's prefix cache on; put the constant part first in the prompt"),
    lever!("context-trimming", "context trimming", "shorter prompts: fewer passages, shorter history", [Prefill, Queue],
        "prefill and KV memory in proportion", risk "answers lose what was cut", 5.0 days, AtOnce,
        no help "where prefill takes little time", model true,
        first "cut a fifth of each prompt on an evaluation file and score it"),
    lever!("streaming", "streaming", "tokens are sent as they come", [Network],
        "the reader waits for the first token instead of the last",
        risk "proxies that buffer; retries after the first token are seen", 2.0 days, AtOnce,
        no help "where answers stream already, or a program reads them whole", model false,
        first "stream to one client and measure the time to its first byte"),
    // Needs by the table of vLLM, docs.vllm.ai/en/latest/features/quantization.
    lever!("quantisation", "quantisation", "weights in 8 bits (INT8, FP8) or 4 bits (INT4, FP4)",
        [Decode, Prefill, Queue], "faster steps and more KV memory; 4 bits serve decode at small batches",
        risk "answers change; some tasks lose more than others, and 4 bits lose more than 8", 3.0 days,
        ByRollback, no help "where the host or the queue limit takes most of the time", model true,
        first "take the format that your GPU computes, then weigh it with plimsoll tradeoff. FP8 needs Ada, Hopper, Blackwell \
        or MI300, and no calibration if scales are dynamic. INT8 (W8A8) needs Turing to Hopper, and calibration prompts. INT4 \
        (AWQ, GPTQ) stores weights only: it needs Turing or later, calibration prompts, and kernels such as Marlin (Ampere or \
        later). FP4 (NVFP4) needs Blackwell to compute, and calibration prompts"),
    lever!("speculative-decoding", "speculative decoding", "a draft proposes tokens, the model checks several in one step",
        [Decode], "time per token at low load", risk "slower at high load; gains vanish on text the draft can't guess",
        3.0 days, AtOnce, no help "where batches use all compute", model false,
        first "switch it on at a quiet hour and read the accepted length from the metrics"),
    lever!("runtime", "another serving engine", "scheduler and host code", [Host, Queue],
        "the host's time per step", risk "every default differs", 8.0 days, ByRollback,
        no help "where the host takes no share of a step", model false,
        first "the same weights on both, the same schedule, compared request by request"),
    lever!("kernels", "kernel work", "faster attention or matrix kernels", [Prefill, Decode],
        "a share of the step", risk "weeks of work; the next engine release may undo it", 20.0 days, ByRollback,
        no help "where steps are at the memory bandwidth, or the model takes little time", model false,
        first "profile one step: find the kernel below its roofline"),
    lever!("bigger-gpu", "a bigger GPU", "more bandwidth, arithmetic and memory", [Prefill, Decode, Queue],
        "every step, and a larger cache", risk "price per hour; availability", 4.0 days, ByRollback,
        no help "where the host takes the time", model false, first "rent one for an hour and replay this run on it"),
    lever!("replicas", "one more replica", "the load is shared by one more", [Queue, Decode, Prefill],
        "a shorter queue and smaller batches", risk "cost rises immediately, caches are split", 1.0 days, AtOnce,
        no help "where nothing queues and batches are small", model false,
        first "add one, send it its share, compare at the same total load"),
    lever!("autoscaling", "autoscaling", "the number of replicas follows the load",
        [Queue, Prefill, Decode, ColdStart],
        "cost in quiet hours, queue time in busy hours", risk "a cold start is longer than most peaks", 5.0 days,
        AtOnce, no help "at an even load", model false, first "replay a day of traffic against the policy in simulation"),
    lever!("async-split", "asynchronous split", "work without a waiting caller leaves the interactive path", [Queue],
        "capacity for interactive requests", risk "a second path, with its own failures", 10.0 days, ByRollback,
        no help "where every caller waits", model false, first "count the requests that could wait a minute"),
    lever!("max-seqs", "scheduler limit: sequences", "the number of concurrent sequences", [Queue, Decode, Prefill],
        "up: less queue; down: faster tokens", risk "up: preemption; down: queue", 0.25 days, AtOnce,
        no help "where the limit is never met", model false, first "change the flag on one replica, same load"),
    lever!("token-budget", "scheduler limit: token budget", "the number of tokens per step",
        [Prefill, Decode, Queue], "up: earlier first tokens; down: even token gaps", risk "each direction improves one and degrades the other",
        0.25 days, AtOnce, no help "where prompts are far shorter than the budget and the load is light", model false,
        first "change the flag on one replica, same load"),
    lever!("compiled-profile", "compiled batch profile", "an engine compiled for the batch sizes that occur",
        [Prefill, Decode], "each pass of a fixed shape", risk "shapes outside the profile fall back or fail", 2.0 days,
        ByRollback, no help "for engines that decode token by token with captured graphs", model false,
        first "compile for the two batch sizes that carry most requests"),
    lever!("dedicated-pools", "dedicated pools", "prompts and answers on different replicas", [Prefill, Decode, Queue],
        "token gaps without pauses by prompts", risk "the transfer of the KV cache; two pools to size", 10.0 days, ByRollback,
        no help "with one replica, and where prompts are short", model false,
        first "simulate the split at this load; then two replicas of the fleet"),
    lever!("tensor-sharding", "tensor sharding", "twice the GPUs share each layer", [Prefill, Decode, Queue],
        "faster steps, more KV memory", risk "twice the price; the link between GPUs is the new limit", 1.0 days,
        AtOnce, no help "for small models on slow links", model false, first "one replica with twice the group, same load"),
    lever!("pipeline-sharding", "pipeline sharding", "layers distributed over GPUs", [Queue],
        "memory for models that do not fit", risk "bubbles: each request takes as long or longer", 4.0 days, ByRollback,
        no help "where the model fits one group", model false, first "only where weights do not fit: then over nodes"),
    lever!("admission", "admission control", "requests that would be late are rejected immediately",
        [Queue, Prefill, Decode],
        "admitted requests are answered in time, from shorter queues and smaller batches", risk "some requests are rejected", 2.0 days, AtOnce,
        no help "below the stability limit", model false,
        first "a queue limit with Retry-After on one replica, at a load past the limit"),
    lever!("hedging", "hedged requests", "a second attempt on another replica if the first is late",
        [Queue, Prefill, Network],
        "the tail of a replica that stalls", risk "more load when load is the problem", 2.0 days, AtOnce,
        no help "with one replica, and where all replicas are equally slow", model false,
        first "hedge: in the gateway's file, at most 2 % of the prompt tokens"),
    lever!("adapter-preload", "adapter preload", "adapters are loaded before the first request", [ColdStart],
        "the first request of an adapter", risk "memory", 0.5 days, AtOnce, no help "where no adapters are used",
        model false, first "load the ten most used at start"),
    lever!("host", "the host's part of the path", "a faster or freed CPU, fewer hops, kept connections", [Host, Network],
        "the time outside queue and steps", risk "little", 3.0 days, Hardly,
        no help "where queue, prefill and decode are all of the time", model false,
        first "a trace of one request: tokeniser, proxy, connection"),
];
