//! Hand-computed critical paths, and invariants of any tree.

use plimsoll_math::rng::Stream;
use plimsoll_model::TraceSpan;
use plimsoll_model::trace::SpanKind;
use plimsoll_profile::Stage::{self, *};
use plimsoll_profile::retime::FACTORS;

use super::{BASE, MS, Said, e2e, requests, span, ttft};

/// Returns an application request: authorised, two concurrent searches, ranked, sent to a vLLM inside a separate
/// call.
fn application() -> Vec<TraceSpan> {
    let engine = span(8, 7, "llm_request", 110, 490)
        .of("vllm", SpanKind::Server)
        .with("gen_ai.latency.time_in_queue", 0.040)
        .with("gen_ai.latency.time_in_model_prefill", 0.060)
        .with("gen_ai.latency.time_in_model_decode", 0.260)
        .with("gen_ai.latency.time_to_first_token", 0.110)
        .with("gen_ai.latency.e2e", 0.380);
    vec![
        span(1, 0, "POST /ask", 0, 500).of("app", SpanKind::Server).with("http.route", "/ask"),
        span(2, 1, "authenticate", 0, 10).of("app", SpanKind::Internal),
        span(3, 1, "vector search", 10, 40).of("app", SpanKind::Internal),
        span(4, 1, "keyword search query", 10, 70).with("openinference.span.kind", "RETRIEVER"),
        span(5, 4, "SELECT", 20, 65).of("app", SpanKind::Client),
        span(6, 1, "rerank", 70, 100).of("app", SpanKind::Internal),
        span(7, 1, "chat llama", 105, 495)
            .of("app", SpanKind::Client)
            .with("gen_ai.operation.name", "chat")
            .event("first_token", 225),
        engine,
    ]
}

#[test]
fn each_stage_gets_its_own_and_only_the_branch_that_binds_counts() {
    // The shorter search ended at 40, within the longer one: none of its time is on the path. 10 ms of the engine's
    // time to first token are before its queue, and 10 ms remain after the last token.
    assert_eq!(
        e2e(&application()),
        [
            (Gateway, 10),
            (Auth, 10),
            (Retrieve, 60),
            (Rerank, 30),
            (Queue, 40),
            (Prefill, 60),
            (Decode, 260),
            (Network, 10),
            (Unattributed, 20),
        ]
    );
}

#[test]
fn the_way_to_the_first_token_is_a_path_of_its_own() {
    // The engine had it at 220, the caller at 225: 5 ms each way are the network's.
    assert_eq!(
        ttft(&application()),
        [
            (Gateway, 5),
            (Auth, 10),
            (Retrieve, 60),
            (Rerank, 30),
            (Queue, 40),
            (Prefill, 60),
            (Network, 10),
            (Unattributed, 10)
        ]
    );
}

#[test]
fn a_faster_stage_helps_until_the_other_branch_binds() {
    let found = requests(&application());
    let faster = |stage: Stage| {
        let one = found.list[0].faster.iter().find(|one| one.stage == stage).expect("on the path");
        (
            one.e2e.map(|ns| (ns / MS as f64).round() as i64),
            one.ttft.map(|ns| (ns / MS as f64).round() as i64),
        )
    };
    // Only decode: 260 ms divided by 1.25, 2, 5, 10 and removed, without effect before the first token.
    assert_eq!(faster(Decode), ([448, 370, 292, 266, 240], [225; 5]));
    // Both searches are retrieval: all of the 60 ms disappear.
    assert_eq!(faster(Retrieve).0[4], 440);
    assert_eq!(faster(Retrieve).1[4], 165);
    // Two branches of two stages: without the longer one the shorter still takes its 30 ms.
    let two = [
        span(1, 0, "POST", 0, 100).of("app", SpanKind::Server).with("http.route", "/ask"),
        span(2, 1, "rerank", 0, 30),
        span(3, 1, "vector search", 0, 80),
    ];
    let found = requests(&two);
    let search = found.list[0].faster.iter().find(|one| one.stage == Retrieve).expect("on the path");
    assert_eq!(search.e2e[FACTORS.len() - 1], 50.0 * MS as f64);
    assert!(found.list[0].faster.iter().all(|one| one.stage != Rerank), "it never bound");
}

#[test]
fn a_stream_outlives_the_handler_that_began_it() {
    let spans = [
        span(1, 0, "POST /chat", 0, 50).of("app", SpanKind::Server).with("http.route", "/chat"),
        span(2, 1, "prefill", 20, 60),
        span(3, 1, "decode", 60, 400),
        span(4, 1, "write audit log", 45, 900),
    ];
    // The log is not part of the request, which ends with the last token.
    assert_eq!(e2e(&spans), [(Gateway, 20), (Prefill, 40), (Decode, 340)]);
    let count = requests(&spans).count;
    assert_eq!((count.extended, count.background), (1, 1));
}

#[test]
fn a_real_vllm_span_is_laid_out_inside_itself() {
    // The attributes of a recorded real server (vLLM's span).
    let mut real = span(1, 0, "llm_request", 0, 0)
        .with("gen_ai.latency.time_to_first_token", 0.07972097396850586)
        .with("gen_ai.latency.e2e", 1.415048599243164)
        .with("gen_ai.latency.time_in_queue", 3.5513000057108e-05)
        .with("gen_ai.latency.time_in_model_prefill", 0.035650408000037714)
        .with("gen_ai.latency.time_in_model_decode", 1.336151376000089)
        .with("gen_ai.latency.time_in_model_inference", 1.3718017840001266);
    (real.start_ns, real.end_ns) = (1_795_175_380_980_287_488, 1_795_175_382_395_923_178);
    let found = requests(&[real]);
    let request = &found.list[0];
    let ms = |stage: Stage| (request.e2e_stages[stage.index()] as f64 / 1e6 * 100.0).round() / 100.0;
    assert_eq!((ms(Queue), ms(Prefill), ms(Decode)), (0.04, 35.65, 1336.15));
    // 1415.64 − 1371.84: 44.0 ms before the queue, the rest after the last token.
    assert_eq!(ms(Unattributed), 43.80);
    assert_eq!(request.ttft, Some(79_720_974));
    assert_eq!((found.count.laid_out, found.count.residual_over_5_percent), (1, 0));
    assert!(found.nameless[0].engine && found.nameless[0].name == "llm_request");
}

#[test]
fn a_preempted_request_is_flagged() {
    let preempted = span(1, 0, "llm_request", 0, 1000)
        .with("gen_ai.latency.time_in_queue", 0.3)
        .with("gen_ai.latency.time_in_model_prefill", 0.2)
        .with("gen_ai.latency.time_in_model_decode", 0.9)
        .with("gen_ai.latency.e2e", 1.0);
    assert_eq!(requests(std::slice::from_ref(&preempted)).count.residual_over_5_percent, 1);
    // Excess time is cut, and the sum stays the whole.
    assert_eq!(e2e(&[preempted]), [(Queue, 300), (Prefill, 200), (Decode, 500)]);
}

#[test]
fn a_model_call_that_nobody_looked_into_stays_one() {
    let call = span(1, 0, "chat tiny", 0, 120).with("gen_ai.operation.name", "chat");
    assert_eq!(e2e(std::slice::from_ref(&call)), [(ModelCall, 120)]);
    let split = call.with("gen_ai.server.time_to_first_token", 0.031);
    assert_eq!(e2e(std::slice::from_ref(&split)), [(Decode, 89), (ModelCall, 31)]);
    assert_eq!(ttft(&[split]), [(ModelCall, 31)]);
}

#[test]
fn what_no_rule_knows_is_listed_with_its_time() {
    let spans = [
        span(1, 0, "POST", 0, 100).of("app", SpanKind::Server).with("http.route", "/ask"),
        span(2, 1, "frobnicate", 10, 60),
        span(3, 2, "rerank", 20, 30),
    ];
    assert_eq!(e2e(&spans), [(Gateway, 50), (Rerank, 10), (Unattributed, 40)]);
    let found = requests(&spans);
    assert_eq!((found.nameless.len(), &*found.nameless[0].name), (1, "frobnicate"));
    assert_eq!(found.nameless[0].weighted_ns, 40.0 * MS as f64);
}

/// Returns a random tree: spans inside and slightly around their parents, with a few names, and first tokens at
/// random.
fn random(stream: &mut Stream, spans: u64) -> Vec<TraceSpan> {
    let names = ["gateway", "rerank", "vector search", "prefill", "decode", "queue", "thing", "llm_request"];
    let mut tree: Vec<TraceSpan> = Vec::new();
    for id in 1..=spans {
        let parent = if id == 1 { 0 } else { 1 + stream.below(id - 1) };
        let (low, high) = match tree.get((parent as usize).wrapping_sub(1)) {
            Some(p) => ((p.start_ns - BASE) / MS, (p.end_ns - BASE) / MS),
            None => (0, 1000),
        };
        let reach = (high - low).max(1) as u64;
        let start = low + stream.below(reach + 10) as i64 - 5;
        let end = if id == 1 { 1000 } else { start + stream.below(reach + 40) as i64 };
        let mut one = span(id, parent, names[stream.below(8) as usize], if id == 1 { 0 } else { start }, end);
        if stream.chance(0.1) {
            one = one.event("first_token", start + stream.below(reach) as i64);
        }
        if one.name == "llm_request" {
            one = one
                .with("gen_ai.latency.time_in_queue", 0.001 * stream.below(30) as f64)
                .with("gen_ai.latency.time_in_model_decode", 0.001 * stream.below(300) as f64)
                .with("gen_ai.latency.time_to_first_token", 0.001 * stream.below(100) as f64);
        }
        tree.push(one);
    }
    tree
}

#[test]
fn of_any_tree_the_stages_add_up_to_the_nanosecond_and_speed_never_hurts() {
    let mut stream = Stream::new(5, "trees", 0);
    let (mut with_first, mut retimed) = (0, 0);
    for round in 0..3000u64 {
        let size = 1 + stream.below(if round % 50 == 0 { 200 } else { 25 });
        let spans = random(&mut stream, size);
        let found = requests(&spans);
        for request in &found.list {
            assert_eq!(request.e2e_stages.iter().sum::<i64>(), request.e2e, "round {round}");
            assert!(
                request.e2e_stages.iter().chain(&request.ttft_stages).all(|ns| *ns >= 0),
                "round {round}"
            );
            if let Some(ttft) = request.ttft {
                assert_eq!(request.ttft_stages.iter().sum::<i64>(), ttft, "round {round}");
                with_first += 1;
            }
            for one in &request.faster {
                retimed += 1;
                let (mut e2e, mut ttft) = (request.e2e as f64, request.ttft.unwrap_or(0) as f64);
                for (k, factor) in FACTORS.into_iter().enumerate() {
                    let slack = 1.0 + 1e-9 * request.e2e as f64;
                    assert!(one.e2e[k] <= e2e + slack, "round {round}: {one:?} of {e2e}");
                    assert!(one.ttft[k] <= ttft + slack, "round {round}: {one:?} of {ttft}");
                    assert!(one.e2e[k] >= request.e2e as f64 / factor - slack, "round {round}");
                    (e2e, ttft) = (one.e2e[k], one.ttft[k]);
                }
            }
        }
    }
    assert!(with_first > 300 && retimed > 3000, "{with_first} {retimed}");
}

#[test]
fn of_work_in_a_row_the_saving_is_the_stages_own_time() {
    let mut stream = Stream::new(6, "rows", 0);
    for _ in 0..200 {
        let mut spans = vec![span(1, 0, "gateway", 0, 0)];
        let mut at = 0;
        for id in 2..2 + stream.below(12) {
            at += stream.below(20) as i64;
            let took = stream.below(50) as i64;
            let name = ["rerank", "vector search", "prefill", "decode"][stream.below(4) as usize];
            spans.push(span(id, 1, name, at, at + took));
            at += took;
        }
        spans[0].end_ns = BASE + (at + 7) * MS;
        let found = requests(&spans);
        let request = &found.list[0];
        for one in &request.faster {
            let own = request.e2e_stages[one.stage.index()] as f64;
            for (k, factor) in FACTORS.into_iter().enumerate() {
                let then = request.e2e as f64 - own * (1.0 - 1.0 / factor);
                assert!((one.e2e[k] - then).abs() < 1.0, "{one:?}: {then}");
            }
        }
    }
}
