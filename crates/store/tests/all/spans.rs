//! Tests the trace spans of a run: written, killed, read.

use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};
use plimsoll_store::code::{get_span, put_span};
use plimsoll_store::{Origin, RunWriter, each_span, open, read_spans};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::kit;

fn a_value() -> impl Strategy<Value = AttributeValue> {
    prop_oneof![
        any::<bool>().prop_map(AttributeValue::Flag),
        any::<i64>().prop_map(AttributeValue::Int),
        (proptest::num::f64::ANY).prop_map(|n| AttributeValue::Real(if n.is_nan() { 0.5 } else { n })),
        ".{0,12}".prop_map(AttributeValue::Text),
    ]
}

prop_compose! {
    fn a_span()(
        trace in any::<u128>(), id in any::<u64>(), parent in proptest::option::of(any::<u64>()),
        (name, service) in (".{0,8}", proptest::option::of("[a-z]{0,3}")), kind in 0..6u8,
        (start_ns, end_ns, failed) in (any::<i64>(), any::<i64>(), any::<bool>()),
        attributes in vec(("[a-z.]{0,8}", a_value()), 0..5),
        events in vec((any::<i64>(), ".{0,5}"), 0..3), weight in 1.0..1e6f64,
    ) -> TraceSpan {
        let events = events.into_iter().map(|(at_ns, name)| SpanEvent { at_ns, name }).collect();
        let kind = SpanKind::from_u8(kind);
        TraceSpan { trace, id, parent, name, service, kind, start_ns, end_ns, failed, attributes, events, weight }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn spans_survive_the_log_and_parquet(spans in vec(a_span(), 0..40)) {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("run");
        let writer = RunWriter::create(&dir, kit::manifest()).unwrap();
        let sink = writer.sink();
        spans.iter().for_each(|span| sink.span(span));
        writer.finish(kit::manifest()).unwrap();
        prop_assert_eq!(dir.join("spans.parquet").exists(), !spans.is_empty());
        let mut each = Vec::new();
        each_span(&dir, |span| each.push(span)).unwrap();
        prop_assert_eq!(&each, &spans);
        prop_assert_eq!(read_spans(&dir).unwrap(), spans);
        prop_assert!(open(&dir).unwrap().attempts.is_empty());
    }

    #[test]
    fn bytes_that_lie_are_no_span(span in a_span(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = Vec::new();
        put_span(&mut bytes, &span);
        prop_assert_eq!(get_span(&bytes).unwrap(), span);
        let at = cut.index(bytes.len());
        prop_assert!(get_span(&bytes[..at]).is_err());
        bytes[at] = byte;
        let _ = get_span(&bytes);
    }
}

#[test]
fn what_was_flushed_survives_its_writer() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("run");
    let writer = RunWriter::create(&dir, kit::manifest()).unwrap();
    let span = |id| TraceSpan {
        trace: 1,
        id,
        parent: None,
        name: "n".into(),
        service: None,
        kind: SpanKind::Client,
        start_ns: 1,
        end_ns: 2,
        failed: false,
        attributes: vec![("k".into(), AttributeValue::Real(f64::INFINITY))],
        events: Vec::new(),
        weight: 1.0,
    };
    let spans: Vec<TraceSpan> = (1..=3).map(span).collect();
    spans.iter().for_each(|span| writer.sink().span(span));
    writer.flush().unwrap();
    // The writer is active: a snapshot that changes no file.
    assert_eq!(read_spans(&dir).unwrap(), spans);
    assert!(!dir.join("spans.parquet").exists());
    drop(writer);
    assert_eq!(read_spans(&dir).unwrap(), spans);
    assert!(dir.join("spans.parquet").exists());
    assert_eq!(open(&dir).unwrap().origin, Origin::Finished);
}
