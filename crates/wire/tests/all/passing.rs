//! Spans that are passed on: nothing of them is another but the weight.

use plimsoll_wire::trace::passing::{PassingSpan, join, split};
use plimsoll_wire::trace::{export, otlp};
use proptest::prelude::*;

const TRACES: &[u8] = include_bytes!("../../fixtures/otlp/traces.binpb");

fn spans(body: &[u8]) -> Vec<PassingSpan> {
    let mut found = Vec::new();
    split(body, &mut found).expect("a body");
    found
}

fn passed(body: &[u8], weight: f64) -> Vec<u8> {
    join(&spans(body).into_iter().map(|span| (span.bytes, weight)).collect::<Vec<_>>())
}

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = bytes.len();
    let len = if len < 128 { vec![len as u8] } else { vec![len as u8 | 0x80, (len >> 7) as u8] };
    [&[number << 3 | 2], &len[..], bytes].concat()
}

/// One span with this `tracestate`, an event with an attribute, a link and a field that nobody knows; a resource and a scope with more than names.
fn request(state: &str) -> Vec<u8> {
    let text =
        |key: &str, value: &str| [field(1, key.as_bytes()), field(2, &field(1, value.as_bytes()))].concat();
    let event = [field(2, b"exception"), field(3, &text("exception.stacktrace", "at a"))].concat();
    let link = [field(1, &[7; 16]), field(2, &[8; 8])].concat();
    let parts =
        [field(1, &[9; 16]), field(2, &[1; 8]), field(5, b"chat"), field(11, &event), field(13, &link)];
    let odd = [(250 << 3_u32 | 5) as u8 | 0x80, 15, 1, 2, 3, 4];
    let state = if state.is_empty() { Vec::new() } else { field(3, state.as_bytes()) };
    let span = [parts.concat(), odd.to_vec(), state].concat();
    let scope =
        [field(1, &[field(1, b"sdk"), field(2, b"1.0")].concat()), field(3, b"schema"), field(2, &span)]
            .concat();
    let resource =
        field(1, &[field(1, &text("service.name", "a")), field(1, &text("os.type", "linux"))].concat());
    field(1, &[resource, field(3, b"https"), field(2, &scope)].concat())
}

#[test]
fn real_spans_are_as_they_were() {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    otlp::decode(TRACES, &mut before).expect("a body");
    otlp::decode(&passed(TRACES, 1.0), &mut after).expect("a body");
    assert!(before.len() > 3 && before.iter().any(|span| span.weight > 1.0));
    before.iter_mut().for_each(|span| span.weight = 1.0);
    assert_eq!(before, after);
    let service = spans(TRACES)[0].span.service.clone();
    assert_eq!(service, before[0].service);
    otlp::decode(&passed(TRACES, 20.0), &mut after).expect("a body");
    assert!(after[before.len()..].iter().all(|span| (span.weight - 20.0).abs() < 1e-9));
}

#[test]
fn of_all_that_is_in_a_span_only_the_weight_is_another() {
    for (state, weight, told) in [
        ("", 1.0, "ot=th:0"),
        ("", 100.0, "ot=th:fd70a3d70a3d7"),
        ("ot=th:8;rv:aaaaaaaaaaaaaa,vendor=x", 4.0, "ot=th:c;rv:aaaaaaaaaaaaaa,vendor=x"),
        ("a=1,ot=p:2,b=2", 2.0, "ot=th:8,a=1,b=2"),
    ] {
        assert_eq!(passed(&request(state), weight), request(told), "{state}");
    }
    let of = |state: &str| spans(&request(state))[0].randomness;
    assert_eq!([of(""), of("ot=rv:0000000000000f"), of("ot=rv:zz")], [None, Some(15), None]);
}

proptest! {
    #[test]
    fn damage_never_panics(place in 0usize..4_000, byte in any::<u8>(), cut in 0usize..4_000) {
        let mut body = TRACES.to_vec();
        let len = body.len();
        body[place % len] = byte;
        body.truncate(cut.max(1).min(len));
        let mut found = Vec::new();
        if split(&body, &mut found).is_ok() {
            let all: Vec<_> = found.into_iter().map(|span| (span.bytes, 2.0)).collect();
            prop_assert_eq!(spans(&join(&all)).len(), all.len());
        }
    }
}

/// What a receiver says that it left out is read as it is written; what is no such answer says nothing.
#[test]
fn what_a_receiver_left_out_is_read() {
    for count in [0, 1, 300] {
        assert_eq!(export::rejected(&export::response(count, export::SPANS)), count);
    }
    for other in [&b"{}"[..], b"ok", b"<html>", &[0x0a, 0xff], TRACES] {
        assert_eq!(export::rejected(other), 0, "{other:?}");
    }
}
