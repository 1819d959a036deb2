//! Admin API on a separate address: metrics, replica status and readiness. Its only write operation controls a canary
//! rollout.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use plimsoll_model::Span;
use plimsoll_policy::{PageStanding, PageView, QueueShare, ReplicaAvailability};
use plimsoll_wire::prometheus::{self, PrometheusPage};
use serde_json::json;

use crate::auth;
use crate::pool::ReplicaStatus;
use crate::proxy::Worker;
use crate::replica::{ATTEMPTS, Replica};
use crate::rollout::{ReplicaRole, Rollout, RolloutCommand};
use crate::stats::{ENDS, REASONS};
use crate::telemetry::PAGES;

/// Limits on the body of an operator's request: size in bytes, and time.
const MOST_BODY: usize = 4 << 10;
const BODY_WITHIN: Duration = Duration::from_secs(10);

pub async fn answer(worker: &Rc<Worker>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let key = worker.rules.now().admin_key;
    // Probes of orchestrators need no key, because their responses contain no sensitive data.
    let is_open = matches!(path, "/healthz" | "/readyz");
    if key.is_some_and(|key| !is_open && !auth::is_shown(request.headers(), &key)) {
        let mut refused = text(StatusCode::UNAUTHORIZED, "send the admin key as Authorization: Bearer\n");
        refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refused;
    }
    if request.method() == Method::POST && path == "/v1/canary" {
        return rollout(worker, request).await;
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET, and POST of /v1/canary\n");
    }
    match path {
        "/metrics" => of(prometheus::CONTENT_TYPE, metrics(worker)),
        "/v1/replicas" => of("application/json", replicas(worker)),
        "/v1/budget" => match worker.traffic.as_ref().map(|traffic| traffic.budget.pages().json) {
            Some(json) if !json.is_empty() => of("application/json", json),
            _ => text(
                StatusCode::NOT_FOUND,
                "no budget is active, or its first evaluation is pending; set one with --budget FILE\n",
            ),
        },
        "/v1/scale" => of("application/json", json!(worker.pool.queued().1).to_string()),
        "/v1/canary" => match &worker.pool.rollout {
            Some(rollout) => of("application/json", stands(rollout)),
            None => text(StatusCode::NOT_FOUND, NO_CANARY),
        },
        // The format is that of `plimsoll canary`, for existing rollout controllers.
        "/v1/verdict" => match worker.pool.rollout.as_ref().map(Rollout::judged) {
            Some(judged) if !judged.json.is_empty() => of("application/json", judged.json),
            Some(_) => text(StatusCode::NOT_FOUND, "the canary has no verdict yet; retry later\n"),
            None => text(StatusCode::NOT_FOUND, NO_CANARY),
        },
        "/v1/shadow" => match worker.traffic.as_ref().map(|traffic| traffic.shadow()) {
            Some(judged) if !judged.json.is_empty() => of("application/json", judged.json),
            _ => text(StatusCode::NOT_FOUND, "there is no shadow, or it has no verdict yet\n"),
        },
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match worker.unready() {
            None => text(StatusCode::OK, "ok\n"),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "unknown path; the paths are /metrics, /v1/replicas, /v1/scale, /v1/budget, /v1/canary, /v1/verdict, /v1/shadow, /healthz and /readyz\n",
        ),
    }
}

const NO_CANARY: &str = "there is no canary; write role: canary at a replica of the gateway's file\n";

/// Returns the stage and the verdict of a rollout as JSON.
fn stands(rollout: &Rollout) -> String {
    let judged = rollout.judged();
    let verdict: serde_json::Value = serde_json::from_str(&judged.json).unwrap_or_default();
    json!({"rollout": rollout.stand(), "may_promote": judged.may_promote, "why": judged.why, "verdict": verdict})
        .to_string()
}

/// Applies an operator's command: promotion, rollback or another share.
async fn rollout(worker: &Rc<Worker>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let Some(rollout) = &worker.pool.rollout else {
        return text(StatusCode::NOT_FOUND, NO_CANARY);
    };
    // JSON is required, because a page in an operator's browser can post a form to this address, but not JSON.
    let is_json = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !is_json {
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send the header content-type: application/json\n");
    }
    let reading = Limited::new(request.into_body(), MOST_BODY).collect();
    let Ok(Ok(body)) = tokio::time::timeout(BODY_WITHIN, reading).await else {
        return text(StatusCode::BAD_REQUEST, "the body is too long, or was not received in time\n");
    };
    let ask = match serde_json::from_slice::<RolloutCommand>(&body.to_bytes()) {
        Ok(ask) => ask,
        Err(error) => {
            let forms = r#"write {"do": "share", "share": 0.25}, {"do": "promote"} or {"do": "roll_back"}"#;
            return text(StatusCode::BAD_REQUEST, format!("{error}: {forms}\n"));
        }
    };
    match rollout.asked(ask, worker.budget_state()) {
        Ok(stand) => {
            worker.pool.set_stand(stand);
            of("application/json", stands(rollout))
        }
        Err(why) => text(StatusCode::CONFLICT, format!("{why}\n")),
    }
}

fn of(kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn text(status: StatusCode, line: impl Into<String>) -> Response<Full<Bytes>> {
    let mut response = of("text/plain; charset=utf-8", line.into());
    *response.status_mut() = status;
    response
}

/// Returns the prefill speed in tokens per s, or `None` if it is not learnt yet.
fn per_s(shown: &ReplicaStatus) -> Option<f64> {
    (shown.speed.prefill.per > 0.0).then(|| 1.0 / shown.speed.prefill.per)
}

fn replicas(worker: &Worker) -> String {
    let (shown, left, remembered) = worker.pool.shown();
    let mut each = listed(&shown, Replica::role);
    if let Some(shadow) = &worker.shadow {
        let pool = &shadow.worker.pool;
        each.extend(listed(&pool.shown().0, |_| ReplicaRole::Shadow));
    }
    json!({"replicas": each, "retries_left": left, "prompt_blocks_remembered": remembered}).to_string()
}

fn listed(shown: &[ReplicaStatus], role: impl Fn(&Replica) -> ReplicaRole) -> Vec<serde_json::Value> {
    let each = shown.iter().map(|shown| {
        json!({
            "models": shown.replica.models(),
            "name": shown.replica.name,
            "role": role(&shown.replica),
            "standing": shown.standing,
            "requests": shown.load.requests,
            "tokens": shown.load.tokens,
            "prompt_tokens_waiting": shown.load.backlog,
            "streams_decoding": shown.load.decoding,
            "penalty_s": shown.penalty.as_secs_f64(),
            "requests_of_others": shown.page.others,
            "page": page(&shown.page),
            "prefill_tokens_per_s": per_s(shown),
            "ttft_base_s": shown.speed.prefill.base,
            "step_s": shown.speed.step.base,
            "step_s_per_stream": shown.speed.step.per,
        })
    });
    each.collect()
}

/// Returns a replica's scraped metrics and their use as JSON.
fn page(page: &PageView) -> serde_json::Value {
    let said = page.said.unwrap_or_default();
    json!({
        "standing": page.standing,
        "age_s": page.age.map(Span::as_secs_f64),
        "running": said.running,
        "waiting": said.waiting,
        "kv_usage": said.kv_usage,
    })
}

fn replica_label(shown: &ReplicaStatus) -> [(&str, &str); 1] {
    [("replica", &shown.replica.name)]
}

fn value(count: &AtomicU64) -> f64 {
    count.load(Ordering::Relaxed) as f64
}

/// Returns the counts of each replica, labelled by replica and outcome.
fn by_outcome<'a, const N: usize>(
    shown: &[&'a ReplicaStatus],
    outcomes: [&'static str; N],
    counts: fn(&Replica) -> &[AtomicU64; N],
) -> impl Iterator<Item = ([(&'a str, &'a str); 2], f64)> {
    shown.iter().copied().flat_map(move |shown| {
        let label = move |(outcome, count)| ([replica_label(shown)[0], ("outcome", outcome)], value(count));
        outcomes.into_iter().zip(counts(&shown.replica)).map(label)
    })
}

/// Writes the scraped metrics of replicas. A replica without a successful scrape has none.
fn pages(shown: &[&ReplicaStatus], page: &mut PrometheusPage) {
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&PageView) -> Option<f64>| {
        let known = shown.iter().filter_map(|shown| Some((replica_label(shown), value(&shown.page)?)));
        page.gauge(name, help, known);
    };
    gauge("plimsoll_gateway_replica_page_age_seconds", "Age of the replica's metrics.", &|page| {
        page.age.map(Span::as_secs_f64)
    });
    gauge("plimsoll_gateway_replica_page_believed", "1: the router uses the replica's metrics.", &|page| {
        page.said.map(|_| f64::from(u8::from(page.standing == PageStanding::Believed)))
    });
    gauge("plimsoll_gateway_replica_kv_usage", "Share of its KV cache in use, from its metrics.", &|page| {
        page.said?.kv_usage
    });
    gauge(
        "plimsoll_gateway_replica_others_requests",
        "Estimated requests of other clients on the replica.",
        &|page| Some(f64::from(page.others)),
    );
    let help = "Scrapes of replica metrics by outcome.";
    page.counter("plimsoll_gateway_pages_total", help, by_outcome(shown, PAGES, |replica| &replica.pages));
}

fn metrics(worker: &Worker) -> String {
    let (shown, left, remembered) = worker.pool.shown();
    let mut page = PrometheusPage::new();
    worker.stats.write(&mut page);
    let rules = worker.rules.now();
    rules.doors.write(&mut page);
    rules.cache.iter().for_each(|cache| cache.write(&mut page));
    // Each replica name has one time series. A draining replica with the name of an active one is left out.
    let is_shown = |one: &&ReplicaStatus| {
        one.replica.is_named()
            || shown.iter().all(|other| !other.replica.is_named() || other.replica.name != one.replica.name)
    };
    let shown: Vec<&ReplicaStatus> = shown.iter().filter(is_shown).collect();
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&ReplicaStatus) -> f64| {
        page.gauge(name, help, shown.iter().map(|shown| (replica_label(shown), value(shown))));
    };
    gauge("plimsoll_gateway_replica_usable", "1: the replica may get requests.", &|shown| {
        f64::from(u8::from(matches!(shown.standing, ReplicaAvailability::Ready | ReplicaAvailability::Trial)))
    });
    gauge("plimsoll_gateway_replica_requests", "Requests on the replica.", &|shown| {
        f64::from(shown.load.requests)
    });
    gauge(
        "plimsoll_gateway_replica_waiting_tokens",
        "Prompt tokens on the replica that wait for prefill.",
        &|shown| shown.load.backlog as f64,
    );
    gauge("plimsoll_gateway_replica_decoding", "Streams in decode on the replica.", &|shown| {
        f64::from(shown.load.decoding)
    });
    gauge("plimsoll_gateway_replica_penalty_seconds", "Cost penalty for rejected requests.", &|shown| {
        shown.penalty.as_secs_f64()
    });
    let help = "Attempts by replica and outcome.";
    let attempts = by_outcome(&shown, ATTEMPTS, |replica| &replica.attempts);
    page.counter("plimsoll_gateway_attempts_total", help, attempts);
    pages(&shown, &mut page);
    page.gauge("plimsoll_gateway_retries_left", "Retries left in the retry budget.", [([], left)]);
    let help = "Blocks of prompts that the router remembers.";
    page.gauge("plimsoll_gateway_prompt_blocks", help, [([], remembered as f64)]);
    queue(worker, &mut page);
    let judged = trials(worker, &mut page);
    let budget = worker.traffic.as_ref().map(|traffic| traffic.budget.pages().metrics);
    let traced = worker
        .traffic
        .as_ref()
        .map(|traffic| traffic.traced.lock().map(|lines| lines.clone()).unwrap_or_default());
    page.finish() + budget.as_deref().unwrap_or_default() + &judged + traced.as_deref().unwrap_or_default()
}

/// Writes the metrics of canary and shadows. Returns the metrics of their verdicts.
fn trials(worker: &Worker, page: &mut PrometheusPage) -> String {
    let mut judged = String::new();
    if let Some(rollout) = &worker.pool.rollout {
        let help = "The canary's share of sessions; 0 once it is promoted or rolled back.";
        page.gauge("plimsoll_gateway_canary_share", help, [([], rollout.share())]);
        let help = "Requests sent to the other side of a rollout, because their side was full.";
        page.counter("plimsoll_gateway_strayed_total", help, [([], worker.pool.strayed() as f64)]);
        judged += &rollout.judged().metrics;
    }
    if let Some(shadow) = &worker.shadow {
        let stats = &shadow.worker.stats;
        let ends = ENDS.map(|(end, name)| ([("outcome", name)], stats.ended(end) as f64));
        page.counter("plimsoll_gateway_shadow_requests_total", "Shadow copies by outcome.", ends);
        judged += &worker.traffic.as_ref().map(|traffic| traffic.shadow().metrics).unwrap_or_default();
    }
    judged
}

/// Writes the metrics of queue, rejections and autoscaling.
fn queue(worker: &Worker, page: &mut PrometheusPage) {
    let (held, signal) = worker.pool.queued();
    let names: Vec<&str> = worker.admission.classes.iter().map(|class| class.name.as_str()).collect();
    let mut by_class = |name: &str, help: &str, value: &dyn Fn(&QueueShare) -> f64| {
        page.gauge(name, help, names.iter().zip(&held).map(|(name, held)| ([("class", *name)], value(held))));
    };
    by_class("plimsoll_gateway_queue_requests", "Requests in the queue.", &|held| f64::from(held.requests));
    by_class("plimsoll_gateway_queue_tokens", "Uncached prompt tokens of queued requests.", &|held| {
        held.tokens as f64
    });
    let sheds = names.iter().zip(&worker.pool.refused).flat_map(|(name, counts)| {
        let count = |(reason, count)| ([("class", *name), ("reason", reason)], value(count));
        REASONS.into_iter().zip(counts).map(count)
    });
    let help = "Requests that were not sent, by class and reason.";
    page.counter("plimsoll_gateway_sheds_total", help, sheds);
    for (name, help, value) in [
        (
            "offered_tokens_per_second",
            "Rate of uncached prompt tokens in new requests.",
            signal.offered_tokens_per_s,
        ),
        (
            "capacity_tokens_per_second",
            "Rate of prompt tokens that the replicas can compute.",
            signal.capacity_tokens_per_s,
        ),
        ("pool_saturation", "Offered tokens divided by capacity.", signal.saturation),
        ("desired_replicas", "Replicas that the load needs.", f64::from(signal.desired_replicas)),
    ] {
        page.gauge(&format!("plimsoll_gateway_{name}"), help, [([], value)]);
    }
}
