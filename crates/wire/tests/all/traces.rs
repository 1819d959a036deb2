//! Traces of other tools: known documents, both encodings of OTLP, and invalid bytes.

use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};
use plimsoll_wire::trace::{ParsedTrace, TraceError, TraceFormat, otlp, read, read_otlp_json};
use proptest::collection::vec;
use proptest::prelude::*;

fn check(bytes: &[u8], format: TraceFormat) -> ParsedTrace {
    let parsed = read(bytes).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(parsed.format, format);
    for span in &parsed.spans {
        assert!(span.attributes.windows(2).all(|pair| pair[0].0 < pair[1].0), "sorted, each once: {span:?}");
        assert!(span.events.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns), "in order: {span:?}");
        assert!(span.end_ns >= span.start_ns, "{span:?}");
    }
    parsed
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

#[test]
fn vllms_own_span_keeps_its_stages() {
    let parsed = check(include_bytes!("../../fixtures/otlp/vllm_llm_request.json"), TraceFormat::OtlpJson);
    let [span] = parsed.spans.as_slice() else { panic!("one span: {parsed:?}") };
    assert_eq!(
        (span.name.as_str(), span.service.as_deref()),
        ("llm_request", Some("unknown_service:python"))
    );
    assert_eq!(
        span.attribute("gen_ai.latency.e2e").and_then(AttributeValue::number),
        Some(1.415048599243164)
    );
    assert_eq!(span.attribute("gen_ai.usage.prompt_tokens"), Some(&AttributeValue::Int(14)));
    assert_eq!(span.attribute("vllm.instrumenting_module_name"), Some(&text("vllm.llm_engine")));
    assert_eq!(span.took_ns(), 1795175382395923178 - 1795175380980287488);
}

/// Traces of MLflow, and spans as Phoenix and OpenTelemetry's console exporter write them.
#[test]
fn tracers_own_json_is_refused_with_what_to_send_instead() {
    for file in [
        r#"{"trace":{"trace_info":{"trace_id":"tr-1f","tags":{"service.name":"a"}},"spans":[{"trace_id":"nohhT9tqMMPBFQguoB2Vmw==",
            "span_id":"GVsIHK95xjw=","name":"a","start_time_unix_nano":1,"attributes":[]}]}}"#,
        r#"{"traces":[{"trace_id":"tr-1f","trace_location":{"type":"MLFLOW_EXPERIMENT"},"request_time":"2026-11-20T11:49:40.980Z"}]}"#,
        r#"{"data":[{"name":"a","context":{"trace_id":"ff","span_id":"aa"},"parent_id":null,"start_time":"2023-01-01T00:00:00Z","attributes":{"a":1}}]}"#,
        r#"{"name":"a","trace_id":"ff","span_id":"aa","start_time_unix_nano":5}"#,
    ] {
        let said = read(file.as_bytes()).expect_err("no OTLP").to_string();
        assert!(said.contains("send them as OTLP to `plimsoll collect`"), "{said}");
    }
}

const OTLP: &str = r#"{"resourceSpans":[{"resource":{"attributes":[
  {"key":"service.name","value":{"stringValue":"shop"}},{"key":"host.name","value":{"stringValue":"a1"}},
  {"key":"telemetry.sdk.name","value":{"stringValue":"x"}}]},
 "scopeSpans":[{"scope":{"name":"lib"},"spans":[
  {"traceId":"5B8EFFF798038103D269B633813FC60C","spanId":"EEE19B7EC3C1B174","parentSpanId":"EEE19B7EC3C1B173","name":"I",
   "startTimeUnixNano":"1544712660000000000","endTimeUnixNano":1544712661000000000,"kind":2,"traceState":"v=1,ot=th:8;rv:2",
   "attributes":[{"key":"n","value":{"intValue":"-7"}},{"key":"r","value":{"doubleValue":0.5}},{"key":"b","value":{"boolValue":true}},
    {"key":"l","value":{"arrayValue":{"values":[{"intValue":"1"},{"stringValue":"x"}]}}},
    {"key":"m","value":{"kvlistValue":{"values":[{"key":"k","value":{"boolValue":false}}]}}},{"key":"n","value":{"intValue":8}}],
   "events":[{"timeUnixNano":"1544712660900000000","name":"late"},{"timeUnixNano":"1544712660300000000","name":"early"}],
   "status":{"code":2,"message":"no"}},
  {"traceId":"","spanId":"EEE19B7EC3C1B175","name":"no trace","startTimeUnixNano":"1","endTimeUnixNano":"2"}]}]}]}"#;

#[test]
fn otlps_json_is_read_whole_by_line_and_as_a_list() {
    let parsed = check(OTLP.as_bytes(), TraceFormat::OtlpJson);
    assert_eq!(parsed.notes.refused, 1, "the span without a trace");
    let [span] = parsed.spans.as_slice() else { panic!("one span: {parsed:?}") };
    let expected = TraceSpan {
        trace: 0x5b8efff798038103d269b633813fc60c,
        id: 0xeee19b7ec3c1b174,
        parent: Some(0xeee19b7ec3c1b173),
        name: "I".into(),
        service: Some("shop".into()),
        kind: SpanKind::Server,
        start_ns: 1544712660000000000,
        end_ns: 1544712661000000000,
        failed: true,
        attributes: vec![
            ("b".into(), AttributeValue::Flag(true)),
            ("host.name".into(), text("a1")),
            ("l".into(), text(r#"[1,"x"]"#)),
            ("m".into(), text(r#"{"k":false}"#)),
            ("n".into(), AttributeValue::Int(8)),
            ("otel.scope.name".into(), text("lib")),
            ("otel.status_description".into(), text("no")),
            ("r".into(), AttributeValue::Real(0.5)),
        ],
        events: vec![
            SpanEvent { at_ns: 1544712660300000000, name: "early".into() },
            SpanEvent { at_ns: 1544712660900000000, name: "late".into() },
        ],
        // A threshold of 0x8… lets half of them through.
        weight: 2.0,
    };
    assert_eq!(*span, expected);
    let line = OTLP.replace('\n', " ");
    assert_eq!(check(format!("{line}\n{line}\n").as_bytes(), TraceFormat::OtlpJson).spans.len(), 2);
    assert_eq!(check(format!("[{line},{line}]").as_bytes(), TraceFormat::OtlpJson).spans.len(), 2);
    assert_eq!(read_otlp_json(OTLP.as_bytes()).map(|parsed| parsed.spans.len()), Ok(1));
    assert!(read_otlp_json(br#"{"data":[]}"#).is_err());
    // A request without spans is valid, as in protobuf; the error of any other document names the expected content and not the
    // file formats.
    assert_eq!(read_otlp_json(b"{}").map(|parsed| parsed.spans.len()), Ok(0));
    assert_eq!(read_otlp_json(br#"{"resourceSpans":[]}"#).map(|parsed| parsed.spans.len()), Ok(0));
    for wrong in [&br#"{"resource_metrics":[]}"#[..], b"[]", br#"{"traceEvents":[]}"#] {
        let said = read_otlp_json(wrong).expect_err("no traces").to_string();
        assert!(said.contains("expected an object with resourceSpans"), "{said}");
    }
}

#[test]
fn jaegers_download_is_read() {
    let file = br#"{"data":[{"traceID":"a1b2","spans":[
      {"traceID":"a1b2","spanID":"1","operationName":"GET /","references":[],"startTime":1700000000000000,"duration":1500,
       "tags":[{"key":"span.kind","type":"string","value":"server"},{"key":"sampler.type","value":"probabilistic"},{"key":"sampler.param","value":0.01}],
       "logs":[{"timestamp":1700000000000700,"fields":[{"key":"event","value":"first"}]}],"processID":"p1"},
      {"traceID":"a1b2","spanID":"0000000000000002","operationName":"db","references":[{"refType":"FOLLOWS_FROM","spanID":"9"},{"refType":"CHILD_OF","traceID":"a1b2","spanID":"0000000000000001"}],
       "startTime":1700000000000200,"duration":300,"tags":[{"key":"error","type":"bool","value":true}],"logs":[],"processID":"p2"}],
      "processes":{"p1":{"serviceName":"front","tags":[{"key":"host.name","value":"h"}]},"p2":{"serviceName":"store"}},"warnings":null}],
      "total":0,"limit":0,"errors":null}"#;
    let parsed = check(file, TraceFormat::Jaeger);
    let [front, store] = parsed.spans.as_slice() else { panic!("two spans: {parsed:?}") };
    assert_eq!((front.trace, front.id, front.parent), (0xa1b2, 1, None));
    assert_eq!((front.service.as_deref(), front.kind), (Some("front"), SpanKind::Server));
    assert_eq!((front.start_ns, front.took_ns()), (1700000000000000000, 1_500_000));
    assert_eq!(front.events, vec![SpanEvent { at_ns: 1700000000000700000, name: "first".into() }]);
    assert_eq!(front.attribute("host.name"), Some(&text("h")));
    assert_eq!((store.parent, store.failed, store.service.as_deref()), (Some(1), true, Some("store")));
    // Only the root has the sampler's share; it applies to the whole trace.
    assert_eq!((front.weight, store.weight), (100.0, 100.0));
}

/// As PyTorch 2.6 writes it, cut to what matters: two steps, a launch in each, one kernel before the first.
const KINETO: &str = r#"{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA H200"}],"cuda_runtime_version":12040,"with_stack":0,"traceEvents":[
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":77,"tid":77,"ts":1000.500,"dur":400,"args":{"External id":1}},
 {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":77,"tid":77,"ts":1010,"dur":100,"args":{"External id":2,"Input Dims":[[8,8],[8,8]]}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":77,"tid":77,"ts":1020.25,"dur":10,"args":{"correlation":5}},
 {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1100,"dur":250,"args":{"correlation":5,"device":0,"stream":7}},
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#2","pid":77,"tid":77,"ts":1500,"dur":400},
 {"ph":"X","cat":"kernel","name":"stray","pid":0,"tid":7,"ts":900,"dur":10,"args":{"correlation":99}},
 {"ph":"s","id":5,"pid":77,"tid":77,"ts":1020.25,"cat":"ac2g","name":"ac2g"},
 {"ph":"B","cat":"py","name":"outer","pid":77,"tid":78,"ts":10},{"ph":"B","cat":"py","name":"inner","pid":77,"tid":78,"ts":20},
 {"ph":"E","pid":77,"tid":78,"ts":30},{"ph":"E","pid":77,"tid":78,"ts":40},{"ph":"B","name":"never ends","pid":77,"tid":78,"ts":50},
 {"ph":"b","cat":"req","id":"r-1","name":"request","pid":77,"tid":1,"ts":100},{"ph":"b","cat":"req","id":"r-1","name":"queue","pid":77,"tid":2,"ts":110},
 {"ph":"e","cat":"req","id":"r-1","name":"queue","pid":77,"tid":3,"ts":120},{"ph":"e","cat":"req","id":"r-1","name":"request","pid":77,"tid":1,"ts":150},
 {"name":"process_name","ph":"M","ts":0,"pid":77,"tid":0,"args":{"name":"python"}},{"name":"process_labels","ph":"M","pid":77,"args":{"labels":"CPU"}},
 {"name":"thread_name","ph":"M","pid":77,"tid":77,"args":{"name":"thread 77 (main)"}}
],"traceName":"t.json","displayTimeUnit":"ms","baseTimeNanoseconds":1700000000000000000}"#;

#[test]
fn a_profilers_slices_become_steps() {
    let parsed = check(KINETO.as_bytes(), TraceFormat::Chrome);
    let find =
        |name: &str| parsed.spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}"));
    let parent = |name: &str| {
        let span = find(name);
        parsed.spans.iter().find(|other| other.trace == span.trace && Some(other.id) == span.parent)
    };
    assert_eq!(parsed.spans.len(), 11);
    assert_eq!((parsed.notes.unused, parsed.notes.unended), (1, 1), "a flow; what never ends");
    let step = find("ProfilerStep#1");
    assert_eq!((step.start_ns, step.took_ns(), step.parent), (1700000000001000500, 400_000, None));
    assert_eq!(step.service.as_deref(), Some("python (CPU)"));
    assert_eq!(step.attribute("thread.name"), Some(&text("thread 77 (main)")));
    // The kernel hangs below the call that launched it, and so in the step, though another track ran it.
    for (child, of) in
        [("gemm", "cudaLaunchKernel"), ("cudaLaunchKernel", "aten::mm"), ("aten::mm", "ProfilerStep#1")]
    {
        assert_eq!(parent(child).map(|span| span.name.as_str()), Some(of), "{child}");
        assert_eq!(find(child).trace, step.trace);
    }
    assert_eq!(find("cudaLaunchKernel").start_ns, 1700000000001020250);
    let file = find("stray").trace;
    let traces = [step.trace, find("ProfilerStep#2").trace, file, find("request").trace];
    assert_eq!(traces.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    assert_eq!(parent("inner").map(|span| span.name.as_str()), Some("outer"));
    assert_eq!((find("outer").took_ns(), find("outer").trace), (30_000, file));
    assert_eq!(parent("queue").map(|span| span.name.as_str()), Some("request"));
    assert_eq!(find("queue").took_ns(), 10_000);
}

#[test]
fn a_list_of_events_may_lack_its_end() {
    let whole = br#"[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},{"ph":"X","name":"b","pid":1,"tid":1,"ts":1.5,"dur":1}]"#;
    assert_eq!(check(whole, TraceFormat::Chrome).spans.len(), 2);
    for (cut, spans) in [(whole.len() - 1, 2), (whole.len() - 20, 1)] {
        let parsed = check(&whole[..cut], TraceFormat::Chrome);
        assert_eq!((parsed.spans.len(), parsed.notes.cut_off), (spans, true));
    }
}

#[test]
fn what_is_no_trace_is_named() {
    let said =
        |bytes: &[u8]| read(bytes).map(|parsed| parsed.spans.len()).expect_err("no traces").to_string();
    assert!(said(b"").contains("it is empty"));
    assert!(said(b"PAR1....").contains("found Parquet"));
    assert!(said(b"SQLite format 3\0...").contains("an SQLite database"));
    assert!(said(b"hello").contains("text that begins with \"hello\""));
    assert!(said(br#"{"benchmarks":[],"args":{"x":1},"metadata":{}}"#).contains("keys benchmarks, metadata"));
    assert!(said(b"[1,2]").contains("line 1, column 2"));
    assert_eq!(
        read(b"{\"resourceSpans\":[\n{\"scopeSpans\":7}]}"),
        Err(TraceError::Json {
            line: 2,
            column: 15,
            what: "invalid type: integer `7`, expected a sequence".into()
        })
    );
    assert!(said(b"\x0a\x05ab").contains("as many bytes as its length field"));
    // A line of a log has ids too and is no span.
    assert!(said(br#"{"trace_id":"ab","span_id":"cd","message":"hi"}"#).contains("message"));
}

#[test]
fn a_long_name_is_not_copied_into_every_span() {
    let long = "x".repeat(100_000);
    let spans: Vec<TraceSpan> =
        (1..2_000).map(|id| TraceSpan { id, service: Some(long.clone()), ..plain() }).collect();
    let parsed = check(&otlp::encode(&spans), TraceFormat::OtlpProtobuf);
    assert!(parsed.spans.iter().all(|span| span.service.as_ref().is_some_and(|name| name.len() == 256)));
}

fn plain() -> TraceSpan {
    TraceSpan {
        trace: 7,
        id: 1,
        parent: None,
        name: "n".into(),
        service: Some("s".into()),
        kind: SpanKind::Server,
        start_ns: 1_700_000_000_000_000_000,
        end_ns: 1_700_000_000_000_000_001,
        failed: false,
        attributes: Vec::new(),
        events: Vec::new(),
        weight: 1.0,
    }
}

fn a_value() -> impl Strategy<Value = AttributeValue> {
    prop_oneof![
        any::<bool>().prop_map(AttributeValue::Flag),
        any::<i64>().prop_map(AttributeValue::Int),
        proptest::num::f64::NORMAL.prop_map(AttributeValue::Real),
        ".{0,12}".prop_map(AttributeValue::Text),
    ]
}

prop_compose! {
    fn a_span()(
        trace in 1..u128::MAX,
        id in 1..u64::MAX,
        parent in proptest::option::of(1..u64::MAX),
        (name, service) in (".{0,8}", proptest::option::of("[a-z]{1,3}")),
        kind in 0..6u8,
        (start_ns, took) in (0..2_000_000_000_000_000_000i64, 0..1_000_000_000_000i64),
        failed in any::<bool>(),
        attributes in proptest::collection::btree_map("[a-z.]{1,8}", a_value(), 0..6),
        events in vec((0..2_000_000_000_000_000_000i64, ".{0,5}"), 0..3),
        threshold in 0..(1u64 << 53),
    ) -> TraceSpan {
        let mut events: Vec<SpanEvent> = events.into_iter().map(|(at_ns, name)| SpanEvent { at_ns, name }).collect();
        events.sort_by_key(|event| event.at_ns);
        TraceSpan {
            trace, id, parent, name, service, kind: SpanKind::from_u8(kind), start_ns, end_ns: start_ns + took, failed,
            attributes: attributes.into_iter().collect(), events,
            // Thresholds with at most 53 bits are exact as doubles.
            weight: (1u64 << 53) as f64 / ((1u64 << 53) - threshold) as f64,
        }
    }
}

/// A document of every format, to be damaged.
fn documents() -> Vec<Vec<u8>> {
    vec![
        otlp::encode(&[plain(), TraceSpan { id: 2, parent: Some(1), failed: true, ..plain() }]),
        OTLP.as_bytes().to_vec(),
        KINETO.as_bytes().to_vec(),
        include_bytes!("../../fixtures/otlp/vllm_llm_request.json").to_vec(),
    ]
}

#[test]
fn every_truncation_of_every_format_ends_well() {
    for document in documents() {
        for cut in 0..document.len() {
            if let Ok(parsed) = read(&document[..cut]) {
                assert!(parsed.spans.len() < 500);
            }
        }
    }
}

proptest! {
    #[test]
    fn spans_survive_otlp(spans in vec(a_span(), 1..20)) {
        let parsed = read(&otlp::encode(&spans)).expect("its own bytes");
        prop_assert_eq!(parsed.format, TraceFormat::OtlpProtobuf);
        for (read, sent) in parsed.spans.iter().zip(&spans) {
            prop_assert!((read.weight / sent.weight - 1.0).abs() < 1e-9 * sent.weight);
            prop_assert_eq!(&TraceSpan { weight: sent.weight, ..read.clone() }, sent);
        }
        prop_assert_eq!(parsed.spans.len(), spans.len());
    }

    #[test]
    fn several_messages_with_their_lengths_are_one_file(batches in vec(vec(a_span(), 1..4), 1..5)) {
        let mut file = Vec::new();
        for batch in &batches {
            let message = otlp::encode(batch);
            file.extend_from_slice(&(message.len() as u32).to_be_bytes());
            file.extend_from_slice(&message);
        }
        let parsed = read(&file).expect("the collector's file");
        prop_assert_eq!(parsed.spans.len(), batches.iter().map(Vec::len).sum::<usize>());
    }

    #[test]
    fn bytes_that_lie_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let _ = otlp::decode(&bytes, &mut Vec::new());
    }

    #[test]
    fn damage_never_panics_and_never_grows(which in 0..4usize, hits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        let mut document = documents().swap_remove(which);
        for (place, byte) in hits {
            let place = place.index(document.len());
            document[place] = byte;
        }
        if let Ok(parsed) = read(&document) {
            prop_assert!(parsed.spans.len() <= document.len());
        }
    }
}

/// Every field of the document once as null and once left out.
fn nulled(json: &serde_json::Value) -> Vec<[serde_json::Value; 2]> {
    fn paths(value: &serde_json::Value, path: String, all: &mut Vec<String>) {
        use serde_json::Value;
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                let path = format!("{path}/{key}");
                all.push(path.clone());
                paths(value, path, all);
            }),
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(n, value)| paths(value, format!("{path}/{n}"), all));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    paths(json, String::new(), &mut all);
    let without = |path: &String| {
        let (mut null, mut absent) = (json.clone(), json.clone());
        *null.pointer_mut(path).expect("a field") = serde_json::Value::Null;
        let (parent, key) = path.rsplit_once('/').expect("a field");
        absent.pointer_mut(parent).and_then(|parent| parent.as_object_mut()).expect("a parent").remove(key);
        [null, absent]
    };
    all.iter().map(without).collect()
}

/// protobuf's JSON: null is accepted for every field and means that the field is absent.
#[test]
fn null_means_absent_for_every_field_of_otlp() {
    use plimsoll_wire::otlp_json::to_protobuf;
    let parse = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON");
    let traces = parse(include_bytes!("../../fixtures/otlp/traces.json"));
    let metrics = parse(include_bytes!("../../fixtures/otlp/delta_metrics.json"));
    let (of_traces, of_metrics) = (nulled(&traces), nulled(&metrics));
    assert!(of_traces.len() > 30 && of_metrics.len() > 30, "{} {}", of_traces.len(), of_metrics.len());
    let spans = |value: &serde_json::Value| {
        read_otlp_json(value.to_string().as_bytes()).map(|parsed| format!("{:?}", parsed.spans)).ok()
    };
    assert!(of_traces.iter().filter(|[null, _]| spans(null).is_some()).count() > 30);
    for [null, absent] in &of_traces {
        assert_eq!(spans(null), spans(absent), "{null}");
    }
    for [null, absent] in of_metrics {
        let bytes =
            |value: &serde_json::Value| to_protobuf(value.to_string().as_bytes()).map_err(|e| e.to_string());
        assert_eq!(bytes(&null), bytes(&absent), "{null}");
        assert!(bytes(&null).is_ok(), "{null}");
    }
}
