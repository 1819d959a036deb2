//! Writes the `/metrics` endpoint: the names, units and labels of a current vLLM, then metrics of this engine.
//!
//! Engines that answer whole requests also have Triton's metrics (`triton_page`), and SGLang profiles have SGLang's
//! (`sglang_page`). The names of vLLM come first, because dashboards and autoscalers use them; the engine's own names begin
//! with `plimsoll_`. The `_created` gauges of vLLM are omitted, because they are an artefact of its client library.

use plimsoll_client::clock;
use plimsoll_sim::engine::meter::{BucketHistogram, ReplicaMeter};
use plimsoll_sim::spec::BLOCK_TOKENS;
use plimsoll_sim::{EngineGauges, ModeSpec};
use plimsoll_wire::prometheus::{Label, PrometheusPage};

use crate::shared::Server;
use crate::{sglang_page, triton_page};

pub(crate) fn write(server: &Server) -> String {
    let mut page = PrometheusPage::new();
    // A batcher only represents Triton. A queue has both fronts and therefore both sets of metrics.
    if !matches!(server.mode, ModeSpec::Dynamic(_)) {
        engine(&mut page, server);
        requests(&mut page, server);
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

/// Returns the number of each replica, the value of vLLM's label `engine`.
fn engines(count: usize) -> Vec<String> {
    (0..count).map(|engine| engine.to_string()).collect()
}

/// Writes the gauges of each replica, one line per replica with vLLM's label `engine`.
fn engine(page: &mut PrometheusPage, server: &Server) {
    let replicas = server.engine.replica_gauges();
    let names = engines(replicas.len());
    let labels: Vec<[Label<'_>; 2]> =
        names.iter().map(|name| [("engine", name.as_str()), ("model_name", server.model.as_str())]).collect();
    let lines = |value: fn(&EngineGauges) -> f64| {
        labels.iter().zip(&replicas).map(move |(labels, gauges)| (labels, value(gauges)))
    };
    page.gauge(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        lines(|gauges| f64::from(gauges.running)),
    );
    page.gauge(
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        lines(|gauges| f64::from(gauges.waiting)),
    );
    waiting_by_reason(page, &labels, &replicas);
    if replicas.iter().any(|gauges| gauges.kv_blocks > 0) {
        cache(page, &labels, &replicas);
    }
    page.counter(
        "vllm:num_preemptions_total",
        "Cumulative number of preemption from the engine.",
        lines(|gauges| gauges.totals.preempted as f64),
    );
    page.gauge(
        "plimsoll_replicas_ready",
        "Replicas that take requests.",
        [([], f64::from(server.engine.gauges().ready))],
    );
}

fn waiting_by_reason(page: &mut PrometheusPage, labels: &[[Label<'_>; 2]], replicas: &[EngineGauges]) {
    let mut lines = Vec::new();
    for (labels, gauges) in labels.iter().zip(replicas) {
        lines.push(([labels[0], labels[1], ("reason", "capacity")], f64::from(gauges.waiting)));
        lines.push(([labels[0], labels[1], ("reason", "deferred")], 0.0));
    }
    page.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason.", lines);
}

/// Writes the metrics of the KV cache and prefix cache, if the engine has one.
fn cache(page: &mut PrometheusPage, labels: &[[Label<'_>; 2]], replicas: &[EngineGauges]) {
    let lines = |value: fn(&EngineGauges) -> f64| {
        labels.iter().zip(replicas).map(move |(labels, gauges)| (labels, value(gauges)))
    };
    page.gauge(
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        lines(EngineGauges::kv_usage),
    );
    page.counter(
        "vllm:prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        lines(|gauges| gauges.totals.prefix_queries as f64),
    );
    page.counter(
        "vllm:prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        lines(|gauges| gauges.totals.prefix_hits as f64),
    );
    if replicas.iter().any(|gauges| gauges.totals.drafts.checked > 0) {
        let mut drafts = |what: &str, help: &str, value: fn(&EngineGauges) -> f64| {
            page.counter(&format!("vllm:spec_decode_num_{what}_total"), help, lines(value));
        };
        drafts("drafts", "Number of spec decoding drafts.", |of| of.totals.drafts.checked as f64);
        drafts("draft_tokens", "Number of draft tokens.", |of| of.totals.drafts.proposed as f64);
        drafts("accepted_tokens", "Number of accepted tokens.", |of| of.totals.drafts.accepted as f64);
    }
    let size = BLOCK_TOKENS.to_string();
    let blocks: Vec<String> = replicas.iter().map(|gauges| gauges.kv_blocks.to_string()).collect();
    let lines = labels.iter().zip(&blocks).map(|(labels, blocks)| {
        ([("block_size", size.as_str()), labels[0], ("num_gpu_blocks", blocks)], 1.0)
    });
    page.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", lines);
}

/// Writes the request metrics of each replica.
fn requests(page: &mut PrometheusPage, server: &Server) {
    let metrics = server.engine.metrics.borrow();
    let model: Label<'_> = ("model_name", &server.model);
    let names = engines(metrics.meters.len());
    let each = || names.iter().map(|name| [("engine", name.as_str()), model]).zip(&metrics.meters);
    let totals = |page: &mut PrometheusPage, name: &str, help: &str, value: fn(&ReplicaMeter) -> u64| {
        page.counter(name, help, each().map(|(labels, meter)| (labels, value(meter) as f64)));
    };
    totals(page, "vllm:prompt_tokens_total", "Number of prefill tokens processed.", |meter| {
        meter.prompt_tokens
    });
    totals(page, "vllm:generation_tokens_total", "Number of generation tokens processed.", |meter| {
        meter.generation_tokens
    });
    let ended = each().flat_map(|(labels, meter)| {
        meter.ended().map(move |(reason, n)| ([labels[0], labels[1], ("finished_reason", reason)], n as f64))
    });
    page.counter("vllm:request_success_total", "Count of successfully processed requests.", ended);
    page.counter(
        "vllm:admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        [([model, ("reason", "max_num_queued_reqs")], metrics.refused_queue as f64)],
    );
    let labels: Vec<[Label<'_>; 2]> = each().map(|(labels, _)| labels).collect();
    let times = metrics.meters.first().map(ReplicaMeter::times);
    for (place, (name, _)) in times.into_iter().flatten().enumerate() {
        let all: Vec<&BucketHistogram> = metrics.meters.iter().map(|meter| meter.times()[place].1).collect();
        per_engine(page, name, &labels, &all, 1e9);
    }
    let sizes = metrics.meters.first().map(ReplicaMeter::sizes);
    for (place, (name, _)) in sizes.into_iter().flatten().enumerate() {
        let all: Vec<&BucketHistogram> = metrics.meters.iter().map(|meter| meter.sizes()[place].1).collect();
        per_engine(page, name, &labels, &all, 1.0);
    }
    let iterations: Vec<BucketHistogram> = server.engine.iterations().into_iter().flatten().collect();
    let names = engines(iterations.len());
    let engines: Vec<[Label<'_>; 2]> = names.iter().map(|name| [("engine", name.as_str()), model]).collect();
    if !iterations.is_empty() {
        let all: Vec<&BucketHistogram> = iterations.iter().collect();
        per_engine(page, "iteration_tokens_total", &engines, &all, 1.0);
    }
    let name = "request_max_num_generation_tokens";
    counts(page, &format!("vllm:{name}"), help(name), &[("engine", "0"), model], &metrics.max_tokens);
}

/// Writes one of vLLM's histograms for each replica; `unit` is the number of counted units per unit of the name.
fn per_engine(
    page: &mut PrometheusPage,
    name: &str,
    labels: &[[Label<'_>; 2]],
    all: &[&BucketHistogram],
    unit: f64,
) {
    let Some(first) = all.first() else { return };
    let bounds: Vec<f64> = first.bounds.iter().map(|bound| *bound as f64 / unit).collect();
    let each = labels.iter().zip(all);
    let each = each.map(|(labels, histogram)| (labels, &histogram.counts, histogram.sum as f64 / unit));
    page.histograms(&format!("vllm:{name}"), help(name), &bounds, each);
}

/// Returns vLLM's help text of a histogram.
fn help(name: &str) -> &'static str {
    match name {
        "time_to_first_token_seconds" => "Histogram of time to first token in seconds.",
        "inter_token_latency_seconds" => "Histogram of inter-token latency in seconds.",
        "request_time_per_output_token_seconds" => "Histogram of time_per_output_token_seconds per request.",
        "e2e_request_latency_seconds" => "Histogram of e2e request latency in seconds.",
        "request_queue_time_seconds" => "Histogram of time spent in WAITING phase for request.",
        "request_prefill_time_seconds" => "Histogram of time spent in PREFILL phase for request.",
        "request_decode_time_seconds" => "Histogram of time spent in DECODE phase for request.",
        "request_inference_time_seconds" => "Histogram of time spent in RUNNING phase for request.",
        "request_prompt_tokens" => "Number of prefill tokens processed.",
        "request_generation_tokens" => "Number of generation tokens processed.",
        "iteration_tokens_total" => "Histogram of number of tokens per engine_step.",
        _ => "Histogram of maximum number of requested generation tokens.",
    }
}

/// Writes the metrics that vLLM lacks: the lateness and cost of this engine.
fn own(page: &mut PrometheusPage, server: &Server) {
    let metrics = server.engine.metrics.borrow();
    seconds(
        page,
        "plimsoll_engine_wake_lateness_seconds",
        "Delay from a token's virtual time to its detection by the engine.",
        &[],
        &metrics.wake_late,
    );
    seconds(
        page,
        "plimsoll_engine_write_lateness_seconds",
        "Delay from a token's virtual time to its write call.",
        &[],
        &metrics.write_late,
    );
    page.gauge("plimsoll_engine_connections", "Open connections.", [([], server.open() as f64)]);
    let counters: [(&str, &str, f64); 6] = [
        (
            "plimsoll_engine_requests_total",
            "Requests accepted by the engine.",
            server.engine.gauges().totals.submitted as f64,
        ),
        ("plimsoll_engine_connections_total", "Connections accepted.", metrics.connections as f64),
        (
            "plimsoll_engine_connections_timed_out_total",
            "Connections closed because they were slow or idle for too long.",
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
        page.counter(name, help, [([], value)]);
    }
}

/// Writes a histogram of times in seconds.
pub(crate) fn seconds(
    page: &mut PrometheusPage,
    name: &str,
    help: &str,
    labels: &[Label<'_>],
    histogram: &BucketHistogram,
) {
    let bounds: Vec<f64> = histogram.bounds.iter().map(|ns| *ns as f64 / 1e9).collect();
    page.histograms(name, help, &bounds, [(labels, &histogram.counts, histogram.sum as f64 / 1e9)]);
}

/// Writes a histogram of token counts.
fn counts(
    page: &mut PrometheusPage,
    name: &str,
    help: &str,
    labels: &[Label<'_>],
    histogram: &BucketHistogram,
) {
    let bounds: Vec<f64> = histogram.bounds.iter().map(|bound| *bound as f64).collect();
    page.histograms(name, help, &bounds, [(labels, &histogram.counts, histogram.sum as f64)]);
}
