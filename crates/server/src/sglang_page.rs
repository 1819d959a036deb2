//! Writes SGLang's metrics for engines with an SGLang profile: state, tokens and latencies.
//!
//! Names and help texts follow sgl-project/sglang `docs/references/production_metrics.md`. The exposition also has vLLM's
//! metrics, as for every engine. Omitted are `gen_throughput`, a rate over SGLang's log interval, and metrics of its Python
//! process. The histograms use vLLM's buckets.

use plimsoll_sim::{EngineGauges, ModeSpec};
use plimsoll_wire::prometheus::{Label, PrometheusPage};

use crate::page::seconds;
use crate::shared::Server;

const BLOCK_TOKENS: f64 = plimsoll_sim::spec::BLOCK_TOKENS as f64;

/// Returns whether the engine has an SGLang profile.
pub(crate) fn is_meant(mode: &ModeSpec) -> bool {
    let ModeSpec::Batching(batching) = mode else { return false };
    batching.origin.as_ref().is_some_and(|origin| origin.server == "sglang")
}

pub(crate) fn write(page: &mut PrometheusPage, server: &Server) {
    let labels: [Label<'_>; 1] = [("model_name", &server.model)];
    let gauges = server.engine.gauges();
    state(page, &labels, &gauges);
    let metrics = server.engine.metrics.borrow();
    let meter = metrics.total();
    let counters = [
        ("prompt_tokens_total", "Number of prefill tokens processed.", meter.prompt_tokens as f64),
        ("generation_tokens_total", "Number of generation tokens processed.", meter.generation_tokens as f64),
        ("cached_tokens_total", "Number of cached prompt tokens.", gauges.totals.prefix_hits as f64),
        ("num_requests_total", "Number of requests processed.", gauges.totals.finished as f64),
        ("num_retracted_requests_total", "Number of retracted requests.", gauges.totals.preempted as f64),
    ];
    for (name, help, value) in counters {
        page.counter(&format!("sglang:{name}"), help, [(&labels, value)]);
    }
    for (name, help, histogram) in [
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &meter.ttft),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &meter.itl),
        ("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", &meter.e2e),
        ("queue_time_seconds", "Histogram of queueing time in seconds.", &meter.queue),
    ] {
        seconds(page, &format!("sglang:{name}"), help, &labels, histogram);
    }
}

fn state(page: &mut PrometheusPage, labels: &[Label<'_>; 1], gauges: &EngineGauges) {
    let totals = &gauges.totals;
    // Measured since the start; SGLang measures its last prefill batch.
    let hit_rate = match totals.prefix_queries {
        0 => 0.0,
        queries => totals.prefix_hits as f64 / queries as f64,
    };
    for (name, help, value) in [
        ("num_running_reqs", "The number of running requests", f64::from(gauges.running)),
        ("num_queue_reqs", "The number of requests in the waiting queue", f64::from(gauges.waiting)),
        ("num_used_tokens", "The number of used tokens", f64::from(gauges.kv_blocks_used) * BLOCK_TOKENS),
        (
            "max_total_num_tokens",
            "Maximum total number of tokens in the KV cache pool",
            f64::from(gauges.kv_blocks) * BLOCK_TOKENS,
        ),
        ("token_usage", "The token usage", gauges.kv_usage()),
        ("cache_hit_rate", "The cache hit rate", hit_rate),
        (
            "spec_accept_length",
            "The average acceptance length of speculative decoding.",
            totals.drafts.accepted_length().unwrap_or(0.0),
        ),
    ] {
        page.gauge(&format!("sglang:{name}"), help, [(labels, value)]);
    }
}
