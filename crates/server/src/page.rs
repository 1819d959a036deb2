//! The `/metrics` page: the names, units and labels of a current vLLM, then what this engine says of itself.
//!
//! Engines that answer whole requests have Triton's as well (`triton_page`), profiles of SGLang its own (`sglang_page`).
//!
//! vLLM's metrics are what dashboards and autoscalers know; the engine's own begin with `plimsoll_`. vLLM's `_created`
//! gauges are left out: they are an artefact of its client library.

use plimsoll_sim::{Gauges, ModeSpec};
use plimsoll_wire::prometheus::{Label, Page};

use crate::clock;
use crate::metrics::Histogram;
use crate::serve::Server;
use crate::{sglang_page, triton_page};

/// Writes the page.
pub(crate) fn write(server: &Server) -> String {
    let mut page = Page::new();
    // A batcher is a Triton and nothing else; a queue has both fronts, and both pages.
    if !matches!(server.mode, ModeSpec::Dynamic(_)) {
        let labels: [Label<'_>; 2] = [("engine", "0"), ("model_name", &server.model)];
        engine(&mut page, server, &labels);
        requests(&mut page, server, &labels);
    }
    if sglang_page::is_meant(&server.mode) {
        sglang_page::write(&mut page, server);
    }
    if server.infers.is_some() {
        triton_page::write(&mut page, server);
    }
    own(&mut page, server);
    page.finish()
}

fn engine(page: &mut Page, server: &Server, labels: &[Label<'_>; 2]) {
    replicas(page, server);
    let gauges = server.engine.gauges();
    let metrics = server.engine.metrics.borrow();
    let model = labels[1];
    let by = |name, value| [labels[0], model, (name, value)];
    page.gauge(
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason.",
        &[(&by("reason", "capacity"), f64::from(gauges.waiting)), (&by("reason", "deferred"), 0.0)],
    );
    page.counter(
        "vllm:prompt_tokens_total",
        "Number of prefill tokens processed.",
        &[(labels, metrics.prompt_tokens as f64)],
    );
    page.counter(
        "vllm:generation_tokens_total",
        "Number of generation tokens processed.",
        &[(labels, metrics.generation_tokens as f64)],
    );
    page.counter(
        "vllm:request_success_total",
        "Count of successfully processed requests.",
        &[
            (&by("finished_reason", "stop"), metrics.ended_stop as f64),
            (&by("finished_reason", "length"), metrics.ended_length as f64),
            (&by("finished_reason", "abort"), metrics.aborted as f64),
            (&by("finished_reason", "error"), metrics.failed as f64),
        ],
    );
    page.counter(
        "vllm:admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        &[(&[model, ("reason", "max_num_queued_reqs")], metrics.refused_queue as f64)],
    );
}

/// What each replica says of itself: one line for each, told apart by vLLM's own label.
fn replicas(page: &mut Page, server: &Server) {
    let replicas = server.engine.replica_gauges();
    let names: Vec<String> = (0..replicas.len()).map(|i| i.to_string()).collect();
    let labels: Vec<[Label<'_>; 2]> =
        names.iter().map(|name| [("engine", name.as_str()), ("model_name", server.model.as_str())]).collect();
    let lines = |value: fn(&Gauges) -> f64| -> Vec<(&[Label<'_>], f64)> {
        labels.iter().zip(&replicas).map(|(labels, gauges)| (&labels[..], value(gauges))).collect()
    };
    page.gauge(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        &lines(|gauges| f64::from(gauges.running)),
    );
    page.gauge(
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        &lines(|gauges| f64::from(gauges.waiting)),
    );
    page.gauge(
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        &lines(Gauges::kv_usage),
    );
    page.counter(
        "vllm:prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        &lines(|gauges| gauges.totals.prefix_queries as f64),
    );
    page.counter(
        "vllm:prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        &lines(|gauges| gauges.totals.prefix_hits as f64),
    );
    page.counter(
        "vllm:num_preemptions_total",
        "Cumulative number of preemption from the engine.",
        &lines(|gauges| gauges.totals.preempted as f64),
    );
    page.gauge(
        "plimsoll_replicas_ready",
        "Replicas that take requests.",
        &[(&[], f64::from(server.engine.gauges().ready))],
    );
}

fn requests(page: &mut Page, server: &Server, labels: &[Label<'_>; 2]) {
    let metrics = server.engine.metrics.borrow();
    let times: [(&str, &str, &Histogram); 8] = [
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &metrics.ttft),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &metrics.itl),
        (
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            &metrics.tpot,
        ),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &metrics.e2e),
        (
            "request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            &metrics.queue,
        ),
        (
            "request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            &metrics.prefill,
        ),
        (
            "request_decode_time_seconds",
            "Histogram of time spent in DECODE phase for request.",
            &metrics.decode,
        ),
        (
            "request_inference_time_seconds",
            "Histogram of time spent in RUNNING phase for request.",
            &metrics.inference,
        ),
    ];
    for (name, help, histogram) in times {
        seconds(page, &format!("vllm:{name}"), help, labels, histogram);
    }
    let sizes: [(&str, &str, &Histogram); 3] = [
        ("request_prompt_tokens", "Number of prefill tokens processed.", &metrics.prompts),
        ("request_generation_tokens", "Number of generation tokens processed.", &metrics.generated),
        (
            "request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            &metrics.max_tokens,
        ),
    ];
    for (name, help, histogram) in sizes {
        let bounds: Vec<f64> = histogram.bounds.iter().map(|bound| *bound as f64).collect();
        let sum = histogram.sum as f64;
        page.histogram(&format!("vllm:{name}"), help, labels, &bounds, &histogram.counts, sum);
    }
}

/// What no vLLM has: how late this engine is, and what it costs.
fn own(page: &mut Page, server: &Server) {
    let metrics = server.engine.metrics.borrow();
    seconds(
        page,
        "plimsoll_engine_wake_lateness_seconds",
        "From a token's virtual time to the engine's noticing it.",
        &[],
        &metrics.wake_late,
    );
    seconds(
        page,
        "plimsoll_engine_write_lateness_seconds",
        "From a token's virtual time to the instant before its write call.",
        &[],
        &metrics.write_late,
    );
    page.gauge("plimsoll_engine_connections", "Open connections.", &[(&[], server.open() as f64)]);
    let counters: [(&str, &str, f64); 6] = [
        (
            "plimsoll_engine_requests_total",
            "Requests handed to the engine and taken.",
            server.engine.gauges().totals.submitted as f64,
        ),
        ("plimsoll_engine_connections_total", "Connections accepted.", metrics.connections as f64),
        (
            "plimsoll_engine_connections_timed_out_total",
            "Connections ended for being slow or idle too long.",
            metrics.timed_out as f64,
        ),
        (
            "plimsoll_engine_error_answers_total",
            "Answers with a status of 400 or more.",
            metrics.errors as f64,
        ),
        (
            "plimsoll_engine_cpu_seconds_total",
            "CPU time of the serving thread.",
            clock::thread_cpu_ns() as f64 / 1e9,
        ),
        ("process_cpu_seconds_total", "CPU time of the process.", clock::process_cpu_ns() as f64 / 1e9),
    ];
    for (name, help, value) in counters {
        page.counter(name, help, &[(&[], value)]);
    }
}

/// A histogram of times.
pub(crate) fn seconds(page: &mut Page, name: &str, help: &str, labels: &[Label<'_>], histogram: &Histogram) {
    let bounds: Vec<f64> = histogram.bounds.iter().map(|ns| *ns as f64 / 1e9).collect();
    page.histogram(name, help, labels, &bounds, &histogram.counts, histogram.sum as f64 / 1e9);
}
