//! Request bodies: forwarding and parsing.

use plimsoll_gateway::request::{ParsedRequest, PromptBlocks};
use proptest::prelude::*;
use serde_json::json;

use crate::kit::{ASK, Act, Mock, ask, gateway, is_empty, request, send};

#[test]
fn bodies_pass_byte_for_byte_and_hop_headers_do_not() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |_| {});
    let text = format!(
        "POST /v1/completions?a=1 HTTP/1.1\r\nHost: gateway\r\nConnection: close, x-private\r\nX-Private: 1\r\nTE: trailers\r\nX-Kept: 2\r\nX-Request-Id: mine\r\nAuthorization: Bearer k\r\nContent-Length: {}\r\n\r\n{ASK}",
        ASK.len()
    );
    let answer = send(gateway.addr, text.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body, b"{\"object\": \"text_completion\",\n \"odd\":1}");
    assert_eq!(answer.header("x-own"), Some("7"));
    assert_eq!(answer.header("x-request-id"), Some("mine"));
    assert_eq!(answer.header("x-plimsoll-replica"), Some("r0"));
    assert_eq!(answer.header("keep-alive"), None);
    let seen = String::from_utf8(mock.last.lock().unwrap().clone()).expect("text");
    let (head, body) = seen.split_once("\r\n\r\n").expect("a head");
    assert_eq!(body, ASK);
    let head = head.to_lowercase();
    assert!(head.starts_with("post /v1/completions?a=1 http/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: {}\r\n", mock.addr)), "{head}");
    for kept in ["x-kept: 2", "x-request-id: mine", "authorization: bearer k"] {
        assert!(head.contains(kept), "{head}");
    }
    for dropped in ["x-private", "te:", "connection:"] {
        assert!(!head.contains(dropped), "{dropped} in {head}");
    }
    is_empty(&gateway);
}

#[test]
fn what_is_too_large_or_malformed_is_refused_and_never_sent() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| {
        spec.limits.body_bytes = 2 << 20;
        spec.limits.body_s = 0.3;
    });
    let big = request(&format!(r#"{{"model":"m","prompt":"{}"}}"#, "word ".repeat(200_000)));
    assert_eq!(send(gateway.addr, &big).expect("an answer").status, 200, "a prompt of a megabyte");
    assert_eq!(mock.count(), 1);
    let refused: [(&str, u16); 7] = [
        ("POST / HTTP/1.1\r\nHost: g\r\nContent-Length: 2147483648\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nHost: g\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        ("POST / HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: g\r\nX: a\r\n b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: g\r\nX : a\r\n\r\n", 400),
        // The body never arrives.
        ("POST / HTTP/1.1\r\nHost: g\r\nContent-Length: 10\r\n\r\nabc", 408),
    ];
    for (text, status) in refused {
        let answer = send(gateway.addr, text.as_bytes());
        assert_eq!(answer.map(|answer| answer.status), Some(status), "{text:?}");
    }
    let headers = (0..300).map(|n| format!("X{n}: 1\r\n")).collect::<String>();
    let flood = format!("GET / HTTP/1.1\r\nHost: g\r\n{headers}\r\n");
    assert_eq!(send(gateway.addr, flood.as_bytes()).expect("an answer").status, 431);
    let _ = send(gateway.addr, &[0xff; 4096]);
    assert_eq!(mock.count(), 1, "none of that was sent on");
    assert_eq!(ask(&gateway).status, 200);
    is_empty(&gateway);
}

#[test]
fn a_long_beginning_in_common_keeps_prompts_together_and_the_index_is_bounded() {
    let (a, b) = (Mock::new(Act::Answer), Mock::new(Act::Answer));
    let gateway = gateway(&[&a, &b], |spec| {
        spec.route = plimsoll_policy::RouteSpec::LeastCost { weight: 0.2, index_blocks: 1_000 };
    });
    let ask = |system: &str, user: u32| {
        let body = json!({"model": "m", "messages": [
            {"role": "system", "content": system.repeat(400)}, {"role": "user", "content": user.to_string()}
        ]});
        let answer = send(gateway.addr, &request(&body.to_string())).expect("an answer");
        answer.header("x-plimsoll-replica").expect("named").to_owned()
    };
    for system in ["you are a pilot; ", "you are a cook; ", "you write tests; "] {
        let home = ask(system, 0);
        assert!((1..10).all(|user| ask(system, user) == home), "{system}");
    }
    for n in 0..500 {
        let prompt = format!("{n} {}", "unique ".repeat(200));
        send(gateway.addr, &request(&json!({"prompt": prompt}).to_string())).expect("an answer");
    }
    assert!(gateway.pool.shown().2 <= 1_001, "{} blocks", gateway.pool.shown().2);
    is_empty(&gateway);
}

#[test]
fn blocks_are_those_of_the_prompt_alone() {
    let read = |text: &str| ParsedRequest::read(text.as_bytes(), PromptBlocks::Blocks);
    let prompt = "x".repeat(100_000);
    let one = read(&format!(
        r#"{{"temperature":0.1,"model":"m","prompt":"{prompt}","stream":true,"max_tokens":7}}"#
    ));
    let other = read(&format!(r#"{{"model":"m","seed":9,"prompt":"{prompt} and more"}}"#));
    assert!(one.streams && !other.streams);
    assert_eq!((one.most_tokens, other.most_tokens), (Some(7), None));
    // The prompt has nine blocks of 256 bytes, then blocks of an eighth of the preceding prompt (288, 324, 364, …).
    // The last one ends less than an eighth before the end.
    assert_eq!(one.blocks.len(), 41);
    assert_eq!(one.ends[7..11], [512, 576, 648, 729]);
    assert_eq!(one.blocks, other.blocks);
    assert_eq!(one.ends.last(), Some(&24_933));
    let elsewhere = read(&format!(r#"{{"model":"n","prompt":"{prompt}"}}"#));
    assert_ne!(one.blocks[0], elsewhere.blocks[0], "another model shares nothing");
    assert!(read(r#"{"prompt": "short"}"#).blocks.is_empty());
}

fn values() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        any::<f64>().prop_map(|x| json!(x)),
        ".{0,20}".prop_map(|s| json!(s)),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|list| json!(list)),
            prop::collection::btree_map(".{0,8}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    /// The parser finds the values that serde finds in any object, and does not panic on invalid JSON.
    #[test]
    fn the_walk_finds_what_a_parser_finds(
        before in prop::collection::btree_map("[a-z\"\\\\]{1,8}", values(), 0..5),
        most in any::<u32>(),
        stream in any::<bool>(),
        prompt in ".{0,40}",
        pretty in any::<bool>(),
    ) {
        let mut object = json!(before);
        object["max_tokens"] = json!(most);
        object["stream"] = json!(stream);
        object["prompt"] = json!(prompt);
        let map = object.as_object_mut().expect("an object");
        for other in ["messages", "input", "tools", "system", "max_completion_tokens", "max_output_tokens"] {
            map.remove(other);
        }
        let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) };
        let asked = ParsedRequest::read(text.expect("JSON").as_bytes(), PromptBlocks::Blocks);
        prop_assert_eq!(asked.most_tokens, Some(most));
        prop_assert_eq!(asked.streams, stream);
        let written = serde_json::to_string(&prompt).expect("JSON");
        prop_assert_eq!(asked.prompt_tokens, (written.len() as u32 / 4).max(1));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(prop_oneof![
        any::<u8>(), Just(b'"'), Just(b'{'), Just(b'}'), Just(b'['), Just(b']'), Just(b':'), Just(b','), Just(b'\\')
    ], 0..200)) {
        let _ = ParsedRequest::read(&bytes, PromptBlocks::Blocks);
        let _ = ParsedRequest::read(&[b"{\"model\":".as_slice(), &bytes].concat(), PromptBlocks::Blocks);
    }
}
