//! Writes Triton's metric families: names, help texts, labels and units of Triton 2.51.
//!
//! Durations are cumulative microseconds, summed over requests and not over batches. Mean batch size is therefore
//! `nv_inference_count` / `nv_inference_exec_count`, and mean queue time is queue / success. As in Triton, a rejection by a
//! full queue is not counted, and a queue timeout counts as `REJECTED`.

use plimsoll_sim::ModeSpec;
use plimsoll_wire::prometheus::{Label, PrometheusPage};

use crate::shared::Server;

pub fn write(page: &mut PrometheusPage, server: &Server) {
    let gauges = server.engine.gauges();
    let totals = gauges.totals;
    let metrics = server.engine.metrics.borrow();
    let meter = metrics.total();
    let labels: [Label<'_>; 2] = [("model", &server.model), ("version", "1")];
    // A queue has no batches: each request is a batch of one row.
    let alone = !matches!(server.mode, ModeSpec::Dynamic(_));
    let (items, batches) =
        if alone { (totals.finished, totals.finished) } else { (totals.items, totals.steps) };
    let (queue_ns, compute_ns) = match alone {
        true => (meter.queue.sum, meter.inference.sum),
        false => (totals.queue_ns, totals.compute_ns),
    };
    let us = |ns: u64| (ns / 1_000) as f64;
    let mut counter = |name: &str, help: &str, value: f64| {
        page.counter(&format!("nv_inference_{name}"), help, [(&labels, value)]);
    };
    counter(
        "request_success",
        "Number of successful inference requests, all batch sizes",
        totals.finished as f64,
    );
    counter("count", "Number of inferences performed (does not include cached requests)", items as f64);
    counter(
        "exec_count",
        "Number of model executions performed (does not include cached requests)",
        batches as f64,
    );
    for (name, help, ns) in [
        (
            "request",
            "Cumulative inference request duration in microseconds (includes cached requests)",
            meter.e2e.sum,
        ),
        (
            "queue",
            "Cumulative inference queuing duration in microseconds (includes cached requests)",
            queue_ns,
        ),
        (
            "compute_input",
            "Cumulative compute input duration in microseconds (does not include cached requests)",
            totals.input_ns,
        ),
        (
            "compute_infer",
            "Cumulative compute inference duration in microseconds (does not include cached requests)",
            compute_ns,
        ),
        (
            "compute_output",
            "Cumulative inference compute output duration in microseconds (does not include cached requests)",
            totals.output_ns,
        ),
    ] {
        counter(&format!("{name}_duration_us"), help, us(ns));
    }
    let reasons = [("REJECTED", metrics.expired), ("CANCELED", meter.aborted), ("BACKEND", 0), ("OTHER", 0)];
    let samples = reasons.map(|(reason, n)| ([labels[0], ("reason", reason), labels[1]], n as f64));
    page.counter(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        samples,
    );
    page.gauge(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        [(&labels, f64::from(gauges.waiting))],
    );
}
