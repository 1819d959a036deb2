//! Errors of tracers: clocks, lost parents, duplicate spans, loops.

use plimsoll_model::TraceSpan;
use plimsoll_model::trace::SpanKind;
use plimsoll_profile::Stage::*;
use plimsoll_profile::{RuleError, RuleFile, Rules, read};

use super::{BASE, MS, Said, e2e, requests, span};

/// Returns a call of 100 ms with a server span of 80 ms whose clock is off by `off`.
fn call(off: i64) -> Vec<TraceSpan> {
    vec![
        span(1, 0, "POST", 0, 100).of("app", SpanKind::Client),
        span(2, 1, "handler", 10 + off, 90 + off).of("engine", SpanKind::Server),
        span(3, 2, "prefill", 20 + off, 80 + off).of("engine", SpanKind::Internal),
    ]
}

#[test]
fn a_servers_clock_is_moved_into_its_clients_span() {
    for off in [-500, -30, -5, 0, 5, 30, 500] {
        let spans = call(off);
        assert_eq!(e2e(&spans), [(Prefill, 60), (Network, 20), (Unattributed, 20)], "off by {off}");
        assert_eq!(requests(&spans).count.shifted, u64::from(off.abs() > 10), "off by {off}");
    }
}

#[test]
fn a_server_longer_than_its_client_is_a_stream_or_a_contradiction() {
    // A span that started during the call is a stream that continued.
    let mut spans = call(0);
    spans[2].end_ns = BASE + 400 * MS;
    spans[1].end_ns = BASE + 400 * MS;
    assert_eq!(requests(&spans).count.skewed, 0);
    // A span that starts before its call and is longer than it: no clock shift explains that.
    let mut spans = call(0);
    (spans[1].start_ns, spans[1].end_ns) = (BASE - 50 * MS, BASE + 90 * MS);
    let found = requests(&spans);
    assert_eq!((found.count.skewed, found.list.len()), (1, 0));
}

#[test]
fn a_failed_request_is_set_aside_unless_asked_for() {
    let mut spans = call(0);
    spans[0].failed = true;
    let found = requests(&spans);
    assert_eq!((found.count.failed, found.count.profiled), (1, 0));
    assert_eq!(read(&spans, &Rules::shipped(), true).count.profiled, 1);
}

#[test]
fn lost_parents_doubles_loops_and_negative_lengths_are_counted() {
    let spans = [
        span(1, 0, "gateway", 0, 100),
        span(2, 77, "rerank", 10, 30),
        span(3, 88, "rerank", 5000, 5010),
        span(4, 1, "decode", 40, 60),
        span(4, 1, "decode", 40, 90),
        span(5, 6, "prefill", 31, 35),
        span(6, 5, "prefill", 31, 36),
        span(7, 1, "thing", 95, 92),
    ];
    let found = requests(&spans);
    let count = &found.count;
    assert_eq!((count.orphans, count.lost, count.duplicates, count.loops, count.negative), (2, 1, 1, 2, 1));
    assert_eq!(e2e(&spans), [(Gateway, 25), (Rerank, 20), (Prefill, 5), (Decode, 50)]);
}

#[test]
fn nobody_guesses_which_span_was_the_request() {
    // Two pieces of a trace without its root, neither of which contains the other.
    let pieces = [span(2, 1, "rerank", 10, 30), span(3, 1, "decode", 40, 90)];
    let found = requests(&pieces);
    assert_eq!((found.count.rootless, found.list.len()), (1, 0));
    // A piece that contains the other is the request, as far as the trace shows.
    let one = [span(2, 1, "gateway", 10, 90), span(3, 9, "decode", 40, 90)];
    let found = requests(&one);
    assert_eq!((found.count.root_parent_missing, found.count.orphans), (1, 1));
    assert_eq!(e2e(&one), [(Gateway, 30), (Decode, 50)]);
}

/// A tracer gives two spans one id: neither may disappear from the path.
#[test]
fn another_span_with_the_same_id_is_no_double() {
    let spans = [
        span(1, 0, "gateway", 0, 100),
        span(2, 1, "queue", 0, 30),
        span(2, 1, "prefill", 30, 60),
        span(4, 1, "decode", 60, 100),
    ];
    let count = requests(&spans).count;
    assert_eq!((count.clashes, count.duplicates), (1, 0));
    assert_eq!(e2e(&spans), [(Queue, 30), (Prefill, 30), (Decode, 40)]);
}

#[test]
fn the_two_sides_of_a_call_may_share_an_id() {
    for flip in [false, true] {
        let mut spans = vec![
            span(1, 0, "gateway", 0, 100).of("gw", SpanKind::Internal),
            span(2, 1, "POST", 10, 90).of("gw", SpanKind::Client),
            span(2, 1, "serve", 20, 80).of("engine", SpanKind::Server),
            span(3, 2, "decode", 30, 70).of("engine", SpanKind::Internal),
        ];
        if flip {
            spans.swap(1, 2);
        }
        let gateway = "gateway";
        assert_eq!(spans[0].name, gateway);
        assert_eq!(e2e(&spans), [(Gateway, 20), (Decode, 40), (Network, 20), (Unattributed, 20)], "{flip}");
        assert_eq!(requests(&spans).count.duplicates, 0);
    }
}

#[test]
fn a_users_rule_comes_before_the_shipped_ones() {
    let spans = [span(1, 0, "gateway", 0, 100), span(2, 1, "rerank", 10, 60)];
    let file: RuleFile = serde_json::from_value(serde_json::json!({
        "version": 1,
        "rules": [{"stage": "postprocess", "name": "^rerank$", "kind": ["internal"]}]
    }))
    .expect("a rule file");
    let rules = Rules::new(Some(&file)).expect("rules");
    let found = read(&spans, &rules, false);
    assert_eq!(found.list[0].e2e_stages[Postprocess.index()], 50 * MS);
    // An explicit stage of a span has priority.
    let own = [span(1, 0, "x", 0, 100).with("plimsoll.stage", "tokenize")];
    assert_eq!(e2e(&own), [(Tokenise, 100)]);
    for (rule, says) in [
        (serde_json::json!({"stage": "queue"}), "rules[0]: has no condition"),
        (serde_json::json!({"stage": "queue", "name": "("}), "rules[0].name: unclosed group"),
    ] {
        let file: RuleFile =
            serde_json::from_value(serde_json::json!({"version": 1, "rules": [rule]})).expect("a rule file");
        let error: RuleError = Rules::new(Some(&file)).err().expect("refused");
        assert!(error.to_string().starts_with(says), "{error}");
    }
}

#[test]
fn the_shipped_rules_know_what_tools_call_their_spans() {
    for (name, stage) in [
        ("tokenize", Tokenise),
        ("detokenize", Detokenise),
        ("prefill_forward", Prefill),
        ("decode_loop", Decode),
        ("decode image", Preprocess),
        ("queue", Queue),
        ("prefill waiting", Queue),
        ("wait_for_batch", BatchWait),
        ("VectorStoreRetriever", Retrieve),
        ("CohereRerank", Rerank),
        ("embed_query", Embed),
        ("build_prompt", PromptAssembly),
        ("rate_limit check", RateLimit),
        ("verify_api_key", Auth),
        ("connection pool acquire", ClientWait),
        ("tls.handshake", Network),
        ("compute", Compute),
        ("serialize_response", Serialise),
        ("output filter", Postprocess),
    ] {
        assert_eq!(e2e(&[span(1, 0, name, 0, 10)]), [(stage, 10)], "{name}");
    }
    for name in ["message_queue_listener_count", "author lookup", "SELECT"] {
        let found = e2e(&[span(1, 0, name, 0, 10)]);
        assert!(found == [(Unattributed, 10)] || found == [(Queue, 10)], "{name}: {found:?}");
    }
}
