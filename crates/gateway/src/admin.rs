//! What operators read: metrics, the replicas, whether the gateway is ready. On an address of its own, and read-only.

use std::rc::Rc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use plimsoll_policy::{Held, Standing};
use plimsoll_wire::prometheus::{self, PrometheusPage};
use serde_json::json;
use std::sync::atomic::Ordering;

use crate::doors;
use crate::pool::{ATTEMPTS, Shown};
use crate::proxy::Worker;
use crate::stats::REASONS;

/// Answers an operator.
pub fn answer(worker: &Rc<Worker>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let key = worker.rules.now().admin_key;
    // What an orchestrator asks says nothing of anybody, and orchestrators seldom hold keys.
    let is_open = matches!(path, "/healthz" | "/readyz");
    if key.is_some_and(|key| !is_open && !doors::is_shown(request.headers(), &key)) {
        let mut refused = text(StatusCode::UNAUTHORIZED, "show the admin key as Authorization: Bearer\n");
        refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refused;
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET: nothing here can be changed\n");
    }
    match path {
        "/metrics" => of(prometheus::CONTENT_TYPE, metrics(worker)),
        "/v1/replicas" => of("application/json", replicas(worker)),
        "/v1/budget" => match worker.traffic.as_ref().map(|traffic| traffic.budget.pages().json) {
            Some(json) if !json.is_empty() => of("application/json", json),
            _ => text(
                StatusCode::NOT_FOUND,
                "no budget is in force, or it was not evaluated yet; --budget FILE names one\n",
            ),
        },
        "/v1/scale" => of("application/json", json!(worker.pool.queued().1).to_string()),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match worker.pool.any_usable() {
            true => text(StatusCode::OK, "ok\n"),
            false => text(StatusCode::SERVICE_UNAVAILABLE, "no replica answers\n"),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /metrics, /v1/replicas, /v1/scale, /v1/budget, /healthz and /readyz\n",
        ),
    }
}

fn of(kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn text(status: StatusCode, line: &'static str) -> Response<Full<Bytes>> {
    let mut response = of("text/plain; charset=utf-8", line.to_owned());
    *response.status_mut() = status;
    response
}

/// Prompt tokens a second, where a slope is known.
fn per_s(shown: &Shown) -> Option<f64> {
    (shown.speed.prefill.per > 0.0).then(|| 1.0 / shown.speed.prefill.per)
}

fn replicas(worker: &Worker) -> String {
    let (shown, left, remembered) = worker.pool.shown();
    let each: Vec<serde_json::Value> = worker
        .pool
        .replicas
        .iter()
        .zip(&shown)
        .map(|(replica, shown)| {
            json!({
                "name": replica.name,
                "standing": shown.standing,
                "requests": shown.load.requests,
                "tokens": shown.load.tokens,
                "prompt_tokens_waiting": shown.load.backlog,
                "streams_decoding": shown.load.decoding,
                "penalty_s": shown.penalty.as_secs_f64(),
                "prefill_tokens_per_s": per_s(shown),
                "ttft_base_s": shown.speed.prefill.base,
                "step_s": shown.speed.step.base,
                "step_s_per_stream": shown.speed.step.per,
            })
        })
        .collect();
    json!({"replicas": each, "retries_left": left, "prompt_blocks_remembered": remembered}).to_string()
}

fn metrics(worker: &Worker) -> String {
    let (shown, left, remembered) = worker.pool.shown();
    let mut page = PrometheusPage::new();
    worker.stats.write(&mut page);
    let rules = worker.rules.now();
    rules.doors.write(&mut page);
    rules.cache.iter().for_each(|cache| cache.write(&mut page));
    let replicas = &worker.pool.replicas;
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Shown) -> f64| {
        let labels: Vec<[(&str, &str); 1]> =
            replicas.iter().map(|replica| [("replica", replica.name.as_str())]).collect();
        let each: Vec<(&[(&str, &str)], f64)> =
            labels.iter().zip(&shown).map(|(labels, shown)| (&labels[..], value(shown))).collect();
        page.gauge(name, help, &each);
    };
    gauge("plimsoll_gateway_replica_usable", "1: the replica may get requests.", &|shown| {
        f64::from(u8::from(matches!(shown.standing, Standing::Ready | Standing::Trial)))
    });
    gauge("plimsoll_gateway_replica_requests", "Requests on the replica.", &|shown| {
        f64::from(shown.load.requests)
    });
    gauge(
        "plimsoll_gateway_replica_waiting_tokens",
        "Prompt tokens on it that are not computed.",
        &|shown| shown.load.backlog as f64,
    );
    gauge("plimsoll_gateway_replica_decoding", "Streams that decode on it.", &|shown| {
        f64::from(shown.load.decoding)
    });
    gauge("plimsoll_gateway_replica_penalty_seconds", "What is laid on its cost for shedding.", &|shown| {
        shown.penalty.as_secs_f64()
    });
    let labels: Vec<[(&str, &str); 2]> = replicas
        .iter()
        .flat_map(|replica| {
            ATTEMPTS.map(|outcome| [("replica", replica.name.as_str()), ("outcome", outcome)])
        })
        .collect();
    let counts = replicas
        .iter()
        .flat_map(|replica| replica.attempts.iter().map(|count| count.load(Ordering::Relaxed) as f64));
    let each: Vec<(&[(&str, &str)], f64)> =
        labels.iter().zip(counts).map(|(labels, count)| (&labels[..], count)).collect();
    page.counter("plimsoll_gateway_attempts_total", "Attempts by replica and by how they ended.", &each);
    page.gauge("plimsoll_gateway_retries_left", "Retries that the budget holds.", &[(&[], left)]);
    let help = "Blocks of prompts that the router remembers.";
    page.gauge("plimsoll_gateway_prompt_blocks", help, &[(&[], remembered as f64)]);
    queue(worker, &mut page);
    let budget = worker.traffic.as_ref().map(|traffic| traffic.budget.pages().metrics);
    page.finish() + budget.as_deref().unwrap_or_default()
}

/// What waits, what was refused, and what an autoscaler should know.
fn queue(worker: &Worker, page: &mut PrometheusPage) {
    let (held, signal) = worker.pool.queued();
    let names: Vec<&str> = worker.admission.classes.iter().map(|class| class.name.as_str()).collect();
    let labels: Vec<[(&str, &str); 1]> = names.iter().map(|name| [("class", *name)]).collect();
    let mut by_class = |name: &str, help: &str, value: &dyn Fn(&Held) -> f64| {
        let each: Vec<(&[(&str, &str)], f64)> =
            labels.iter().zip(&held).map(|(labels, held)| (&labels[..], value(held))).collect();
        page.gauge(name, help, &each);
    };
    by_class("plimsoll_gateway_queue_requests", "Requests that wait for a replica.", &|held| {
        f64::from(held.requests)
    });
    by_class("plimsoll_gateway_queue_tokens", "Their prompt tokens that no replica has cached.", &|held| {
        held.tokens as f64
    });
    let labels: Vec<[(&str, &str); 2]> =
        names.iter().flat_map(|name| REASONS.map(|reason| [("class", *name), ("reason", reason)])).collect();
    let counts = worker.pool.refused.iter().flatten().map(|count| count.load(Ordering::Relaxed) as f64);
    let each: Vec<(&[(&str, &str)], f64)> =
        labels.iter().zip(counts).map(|(labels, count)| (&labels[..], count)).collect();
    let help = "Requests that were not sent, by class and reason.";
    page.counter("plimsoll_gateway_sheds_total", help, &each);
    for (name, help, value) in [
        ("offered_tokens_per_second", "Uncached prompt tokens that come.", signal.offered_tokens_per_s),
        (
            "capacity_tokens_per_second",
            "Prompt tokens that the replicas compute.",
            signal.capacity_tokens_per_s,
        ),
        ("pool_saturation", "What comes over what the replicas can do.", signal.saturation),
        ("desired_replicas", "Replicas that the load asks for.", f64::from(signal.desired_replicas)),
    ] {
        page.gauge(&format!("plimsoll_gateway_{name}"), help, &[(&[], value)]);
    }
}
