//! Embeddings requests that are sent as one. Truth is what the replica was asked, and that each client reads what it would have read alone.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use plimsoll_gateway::cache::CacheSpec;
use plimsoll_gateway::stats::{End, RequestStage};
use plimsoll_gateway::traffic::rows::RowMaker;
use plimsoll_gateway::traffic::{Traffic, TrafficRow, TryEnd};
use plimsoll_gateway::{Gateway, GatewaySpec};
use plimsoll_model::{At, Outcome, Span};
use plimsoll_policy::JoinSpec;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::doors::key;
use crate::embedder::{Embedder, Manner, inputs, tokens, vector};
use crate::kit::{Act, Answer, Mock, gateway, get, is_empty, message, recorded, send, until};

/// One that waits as long as it may, so that only what it is about ends a wait.
fn patient(spec: &mut GatewaySpec) {
    spec.batching = Some(JoinSpec { wait_ms: 10_000.0, ..JoinSpec::default() });
    spec.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    // What is tried again is not what these are about.
    (spec.retry.share, spec.retry.reserve_per_s) = (1.0, 1_000.0);
}

fn embeds(embedder: &Embedder) -> Mock {
    Mock::new(Act::Embed(embedder.clone()))
}

fn post(header: &str, body: &str) -> Vec<u8> {
    message("/v1/embeddings", header, body)
}

fn sends(addr: SocketAddr, header: &str, body: &Value) -> JoinHandle<Answer> {
    let bytes = post(header, &body.to_string());
    spawn(move || send(addr, &bytes).expect("an answer"))
}

/// A client that has sent its request and reads nothing.
fn asked(addr: SocketAddr, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(addr).expect("it listens");
    socket.write_all(&post("", &body.to_string())).expect("sent");
    socket
}

/// A line of the operators' page.
fn counted(gateway: &Gateway, line: &str) -> f64 {
    let page = get(gateway.admin.expect("asked for"), "/metrics", "").text();
    let found = page.lines().find_map(|of| of.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{line} in {page}")).parse().expect("a number")
}

fn until_waiting(gateway: &Gateway, count: usize) {
    until("they wait for others", || counted(gateway, "plimsoll_gateway_batching_waiting") as usize == count);
}

fn how(gateway: &Gateway, how: &str) -> usize {
    counted(gateway, &format!("plimsoll_gateway_batching_requests_total{{how=\"{how}\"}}")) as usize
}

/// Does a client have what it would have alone: each of its inputs' vectors, byte for byte, in the order of their numbers?
fn is_own(asked: &Value, answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let told: BTreeMap<&str, &RawValue> = serde_json::from_str(&text).expect("an object");
    assert_eq!(told["model"].get(), asked["model"].to_string());
    assert_eq!((told["id"].get(), told["object"].get()), ("\"e-1\"", "\"list\""));
    let data: Vec<BTreeMap<&str, &RawValue>> = serde_json::from_str(told["data"].get()).expect("a list");
    let mut read: Vec<(usize, &str)> = data
        .iter()
        .map(|one| (one["index"].get().parse().expect("a number"), one["embedding"].get()))
        .collect();
    read.sort_unstable();
    let inputs = inputs(asked);
    let vectors: Vec<String> = inputs.iter().map(|input| vector(input, asked)).collect();
    let expected: Vec<(usize, &str)> = vectors.iter().map(String::as_str).enumerate().collect();
    assert_eq!(read, expected, "{asked}");
}

fn usage(answer: &Answer) -> [u64; 2] {
    let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
    ["prompt_tokens", "total_tokens"].map(|name| told["usage"][name].as_u64().expect("a count"))
}

#[test]
fn who_finds_a_free_replica_waits_for_nobody() {
    let embedder = Embedder::new(Manner::Right);
    let (a, b) = (embeds(&embedder), embeds(&embedder));
    let gateway = gateway(&[&a, &b], patient);
    for number in 0..5 {
        let body = json!({"model": "m", "input": format!("text {number}")});
        let answer = sends(gateway.addr, "", &body).join().expect("a client");
        is_own(&body, &answer);
        assert_eq!(answer.header("x-plimsoll-batch"), None);
    }
    // One is under way, and the other replica is free.
    let shut = Embedder::new(Manner::Right).shut();
    [&a, &b].iter().for_each(|mock| mock.set(Act::Embed(shut.clone())));
    let clients: Vec<_> =
        (0..2).map(|n| sends(gateway.addr, "", &json!({"model": "m", "input": n.to_string()}))).collect();
    until("both replicas have one", || shut.requests().len() == 2);
    shut.open();
    clients.into_iter().for_each(|client| assert_eq!(client.join().expect("a client").status, 200));
    assert_eq!(gateway.stats.sum(RequestStage::Join), Span::ZERO);
    assert_eq!((how(&gateway, "alone"), how(&gateway, "joined")), (7, 0));
    is_empty(&gateway);
}

#[test]
fn who_waits_is_sent_as_one_when_a_replica_is_free_and_each_gets_its_own() {
    let embedder = Embedder::new(Manner::Reversed).shut();
    let mock = embeds(&embedder);
    let gateway = gateway(&[&mock], patient);
    let first = sends(gateway.addr, "", &json!({"model": "m", "input": "first"}));
    until("the replica has it", || mock.count() == 1);
    // Three kinds of requests that can't be one: their own forms, and inputs of another kind.
    let kinds: [Vec<Value>; 3] = [
        vec![
            json!({"model": "m", "input": "one \"quoted\" \\ text, [1]"}),
            json!({"model": "m", "input": ["two", "and } three"]}),
            json!({"model": "m", "input": ["ä€😀 four"]}),
        ],
        vec![
            json!({"model": "m", "input": "one", "dimensions": 2, "encoding_format": "base64"}),
            json!({"model": "m", "input": ["two", "three"], "dimensions": 2, "encoding_format": "base64"}),
        ],
        vec![
            json!({"model": "m", "input": [1, 2, 3]}),
            json!({"model": "m", "input": [[4, 5], [6]]}),
            json!({"model": "m", "input": [[7, 8, 9, 10]]}),
        ],
    ];
    let clients: Vec<Vec<_>> = kinds
        .iter()
        .map(|kind| kind.iter().map(|body| (body, sends(gateway.addr, "", body))).collect())
        .collect();
    until_waiting(&gateway, 8);
    embedder.open();
    assert_eq!(first.join().expect("a client").status, 200);
    for (kind, clients) in kinds.iter().zip(clients) {
        let answers: Vec<Answer> = clients
            .into_iter()
            .map(|(body, client)| {
                let answer = client.join().expect("a client");
                is_own(body, &answer);
                assert_eq!(answer.header("x-plimsoll-batch"), Some(kind.len().to_string().as_str()));
                answer
            })
            .collect();
        // What the server counted is theirs together.
        let counted: u64 = kind.iter().flat_map(inputs).map(|input| tokens(&input) as u64).sum();
        for place in 0..2 {
            assert_eq!(answers.iter().map(|answer| usage(answer)[place]).sum::<u64>(), counted);
        }
        if kind[0]["input"].is_array() {
            // Of tokens each one's share is known.
            let own =
                kind.iter().map(|body| inputs(body).iter().map(|input| tokens(input) as u64).sum::<u64>());
            assert_eq!(
                answers.iter().map(|answer| usage(answer)[0]).collect::<Vec<_>>(),
                own.collect::<Vec<_>>()
            );
        }
    }
    let mut requests = embedder.requests();
    requests.sort_unstable();
    assert_eq!(requests, [1, 3, 4, 4]);
    assert_eq!(gateway.stats.ended(End::Answered), 9, "each client is counted");
    assert_eq!([how(&gateway, "alone"), how(&gateway, "joined"), how(&gateway, "again")], [1, 8, 0]);
    assert_eq!(counted(&gateway, "plimsoll_gateway_batches_total"), 3.0);
    assert_eq!(counted(&gateway, "plimsoll_gateway_batch_inputs_total"), 11.0);
    is_empty(&gateway);
}

#[test]
fn as_many_as_may_are_sent_without_waiting_any_longer() {
    let embedder = Embedder::new(Manner::Right).shut();
    let mock = embeds(&embedder);
    let gateway = gateway(&[&mock], |spec| {
        patient(spec);
        spec.batching.iter_mut().for_each(|batching| (batching.wait_ms, batching.inputs) = (2_000.0, 4));
    });
    let body = |n: usize| json!({"model": "m", "input": vec!["word"; n]});
    let mut clients = vec![sends(gateway.addr, "", &body(1))];
    until("the replica has it", || mock.count() == 1);
    // Four inputs are as many as may be; five are more, and go as they came.
    for (n, requests) in [(3, 1), (1, 2), (5, 3)] {
        clients.push(sends(gateway.addr, "", &body(n)));
        until("it is there", || {
            mock.count() == requests
                && counted(&gateway, "plimsoll_gateway_batching_waiting") as usize == usize::from(n == 3)
        });
    }
    embedder.open();
    clients.into_iter().for_each(|client| assert_eq!(client.join().expect("a client").status, 200));
    assert_eq!(embedder.requests(), [1, 4, 5]);
    // And when they have waited for as long as they may they are sent though the replica is not free.
    let shut = Embedder::new(Manner::Right).shut();
    mock.set(Act::Embed(shut.clone()));
    let clients: Vec<_> = (0..3).map(|_| sends(gateway.addr, "", &body(1))).collect();
    until("they have waited", || shut.requests().iter().sum::<usize>() == 3);
    shut.open();
    clients.into_iter().for_each(|client| assert_eq!(client.join().expect("a client").status, 200));
    is_empty(&gateway);
}

/// However the replica answers what stands for several, each client has what it would have had alone.
#[test]
fn every_client_reads_its_own_whatever_the_replica_makes_of_a_joined_request() {
    let manners = [
        Manner::Right,
        Manner::Reversed,
        Manner::Fewer,
        Manner::More,
        Manner::Twice,
        Manner::Unnumbered,
        Manner::Cut,
        Manner::NotJson,
        Manner::Complains,
        Manner::Hangs,
        Manner::Packed,
        Manner::Refuses(400),
        Manner::Refuses(413),
        Manner::Refuses(422),
        Manner::Refuses(500),
    ];
    for (number, manner) in manners.into_iter().enumerate() {
        let embedder = Embedder::new(manner).shut();
        let mock = embeds(&embedder);
        let gateway = gateway(&[&mock], |spec| {
            patient(spec);
            spec.breaker.consecutive = 1_000;
            (spec.breaker.success_share, spec.threads) = (0.0, 2);
        });
        let body = |n: usize| json!({"model": "m", "input": (0..1 + n % 3).map(|k| format!("{number} {n} {k}")).collect::<Vec<_>>()});
        // A list of one is one to this replica, which answers it rightly.
        let single = |n: usize| json!({"model": "m", "input": format!("{number} {n}")});
        let first = sends(gateway.addr, "", &single(100));
        until("the replica has it", || mock.count() == 1);
        let bodies: Vec<Value> = (0..8)
            .map(|n| if manner == Manner::Right || manner == Manner::Reversed { body(n) } else { single(n) })
            .collect();
        let clients: Vec<_> = bodies.iter().map(|body| sends(gateway.addr, "", body)).collect();
        until_waiting(&gateway, 8);
        embedder.open();
        assert_eq!(first.join().expect("a client").status, 200);
        for (body, client) in bodies.iter().zip(clients) {
            is_own(body, &client.join().expect("a client"));
        }
        let is_right = matches!(manner, Manner::Right | Manner::Reversed);
        assert_eq!(how(&gateway, "again"), if is_right { 0 } else { 8 }, "{manner:?}");
        assert_eq!(gateway.stats.ended(End::Answered), 9, "{manner:?}");
        if !is_right {
            // For a while they are not joined again.
            let shut = Embedder::new(manner).shut();
            mock.set(Act::Embed(shut.clone()));
            let clients: Vec<_> = (0..3).map(|n| sends(gateway.addr, "", &single(n))).collect();
            until("each goes alone", || shut.requests() == [1, 1, 1]);
            shut.open();
            clients.into_iter().for_each(|client| assert_eq!(client.join().expect("a client").status, 200));
        }
        is_empty(&gateway);
    }
}

/// Forty clients with inputs of their own choice, ten times each, through two threads and three replicas.
#[test]
fn over_many_interleavings_nobody_reads_anothers() {
    let embedder = Embedder {
        takes: (Duration::from_millis(2), Duration::from_micros(50)),
        ..Embedder::new(Manner::Reversed)
    };
    let poisoned = Embedder { poison: Some(("poison", 400)), ..embedder.clone() };
    let mocks = [embeds(&embedder), embeds(&poisoned), embeds(&embedder)];
    let gateway = gateway(&mocks.each_ref(), |spec| {
        patient(spec);
        spec.batching.iter_mut().for_each(|batching| (batching.wait_ms, batching.inputs) = (20.0, 16));
        spec.threads = 2;
    });
    let addr = gateway.addr;
    let clients: Vec<_> = (0..40_u64)
        .map(|client| {
            spawn(move || {
                let mut chance = client * 7_919 + 1;
                let mut draw = |most: u64| {
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (chance >> 33) % most
                };
                for turn in 0..10 {
                    let text = |k: u64| format!("client {client} turn {turn} input {k}");
                    let many = 1 + draw(6);
                    let input = match draw(4) {
                        0 => json!(text(0)),
                        1 => json!((0..many).map(text).collect::<Vec<_>>()),
                        2 => json!((0..many).map(|k| client * 1_000 + k).collect::<Vec<_>>()),
                        _ => json!((0..many).map(|k| vec![client, k]).collect::<Vec<_>>()),
                    };
                    let model = if draw(2) == 0 { "m" } else { "n" };
                    let mut body = json!({"model": model, "input": input});
                    if draw(3) == 0 {
                        body["encoding_format"] = json!("base64");
                    }
                    if draw(40) == 0 {
                        body["input"] = json!("poison");
                    }
                    let answer = send(addr, &post("", &body.to_string())).expect("an answer");
                    // One replica refuses that, and only that.
                    if body["input"] != json!("poison") || answer.status == 200 {
                        is_own(&body, &answer);
                    } else {
                        assert_eq!(answer.status, 400);
                    }
                    sleep(Duration::from_micros(draw(3_000)));
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("its own each time"));
    assert!(how(&gateway, "joined") > 40, "{} were joined", how(&gateway, "joined"));
    assert_eq!(gateway.stats.all(), 400);
    is_empty(&gateway);
}

#[test]
fn one_that_is_at_fault_is_told_so_and_nobody_else() {
    for status in [400, 422] {
        let embedder = Embedder { poison: Some(("poison", status)), ..Embedder::new(Manner::Right) }.shut();
        let mock = embeds(&embedder);
        // Nothing is to be tried again by the budget, and that is nobody's concern here.
        let gateway = gateway(&[&mock], |spec| {
            patient(spec);
            spec.retry.most = 0;
        });
        let first = sends(gateway.addr, "", &json!({"model": "m", "input": "first"}));
        until("the replica has it", || mock.count() == 1);
        let bodies: Vec<Value> =
            ["a", "b", "poison", "c"].iter().map(|text| json!({"model": "m", "input": text})).collect();
        let clients: Vec<_> = bodies.iter().map(|body| sends(gateway.addr, "", body)).collect();
        until_waiting(&gateway, 4);
        embedder.open();
        assert_eq!(first.join().expect("a client").status, 200);
        for (body, client) in bodies.iter().zip(clients) {
            let answer = client.join().expect("a client");
            if body["input"] == "poison" {
                assert_eq!((answer.status, answer.text().contains("poison")), (status, true));
                continue;
            }
            is_own(body, &answer);
        }
        assert_eq!([End::Answered, End::Refused].map(|end| gateway.stats.ended(end)), [4, 1]);
        assert_eq!(gateway.stats.retries.load(Ordering::Relaxed), 4, "each is sent once more");
        is_empty(&gateway);
    }
}

#[test]
fn a_failure_is_tried_again_within_the_budget_and_a_shed_is_everybodys() {
    for (act, status) in [
        (Act::Status(500, ""), 500),
        (Act::Status(429, "retry-after: 7\r\n"), 429),
        (Act::Status(401, ""), 401),
        (Act::Hang, 502),
    ] {
        let embedder = Embedder::new(Manner::Right).shut();
        let mock = embeds(&embedder);
        let gateway = gateway(&[&mock], |spec| {
            patient(spec);
            spec.retry.most = 0;
        });
        let first = sends(gateway.addr, "", &json!({"model": "m", "input": "first"}));
        until("the replica has it", || mock.count() == 1);
        mock.set(act.clone());
        let clients: Vec<_> =
            (0..3).map(|n| sends(gateway.addr, "", &json!({"model": "m", "input": n.to_string()}))).collect();
        until_waiting(&gateway, 3);
        embedder.open();
        assert_eq!(first.join().expect("a client").status, 200);
        for client in clients {
            let answer = client.join().expect("a client");
            assert_eq!(answer.status, status, "{act:?}: {}", answer.text());
            assert_eq!(answer.header("retry-after"), (status == 429).then_some("7"));
        }
        // A kept connection that is closed without a word is replaced by another one.
        assert_eq!(mock.count(), if status == 502 { 3 } else { 2 }, "{act:?}");
        assert_eq!(how(&gateway, "again"), 0);
        is_empty(&gateway);
    }
}

#[test]
fn one_that_leaves_takes_nobody_along_and_when_all_have_gone_the_replica_hears_of_it() {
    let mock = Mock::new(Act::Silence);
    let gateway = gateway(&[&mock], |spec| {
        patient(spec);
        spec.batching.iter_mut().for_each(|batching| batching.inputs = 3);
    });
    let body = |n: usize| json!({"model": "m", "input": n.to_string()});
    let first = asked(gateway.addr, &body(0));
    until("the replica has it", || mock.count() == 1);
    // Who leaves before they are sent is not sent.
    let gone = asked(gateway.addr, &body(1));
    until_waiting(&gateway, 1);
    drop(gone);
    until_waiting(&gateway, 0);
    let embedder = Embedder::new(Manner::Right).shut();
    mock.set(Act::Embed(embedder.clone()));
    let stays = sends(gateway.addr, "", &body(2));
    let mut leaves = Vec::new();
    for waiting in [2, 0] {
        if waiting == 2 {
            until_waiting(&gateway, 1);
        }
        leaves.push(asked(gateway.addr, &body(3)));
        until_waiting(&gateway, waiting);
    }
    until("the replica has them", || embedder.requests() == [3]);
    drop(leaves);
    until("their clients went", || gateway.stats.ended(End::Cancelled) == 3);
    embedder.open();
    is_own(&body(2), &stays.join().expect("a client"));
    drop(first);
    until("the first went too", || mock.gone.load(Ordering::SeqCst) == 1);
    // All of them.
    mock.set(Act::Silence);
    let before = mock.count();
    let mut clients = vec![asked(gateway.addr, &body(4))];
    until("the replica has it", || mock.count() == before + 1);
    clients.extend((0..3).map(|_| asked(gateway.addr, &body(5))));
    until("the replica has all", || mock.count() == before + 2);
    drop(clients);
    until("the replica's clients went", || mock.gone.load(Ordering::SeqCst) == 3);
    until("all are counted", || gateway.stats.ended(End::Cancelled) == 8);
    is_empty(&gateway);
}

#[test]
fn who_asks_by_another_key_or_in_another_form_is_not_joined() {
    let embedder = Embedder::new(Manner::Right).shut();
    let mock = embeds(&embedder);
    let gateway = gateway(&[&mock], patient);
    let same = json!({"model": "m", "input": "x"});
    let first = sends(gateway.addr, "", &same);
    until("the replica has it", || mock.count() == 1);
    let apart = [
        ("Authorization: Bearer alice\r\n", same.clone()),
        ("Authorization: Bearer bob\r\n", same.clone()),
        ("X-Session-Id: 7\r\n", same.clone()),
        ("X-Own: 1\r\n", same.clone()),
        ("X-Plimsoll-Class: bulk\r\n", same.clone()),
        ("X-Slo-Ttft-Ms: 60000\r\n", same.clone()),
        ("", json!({"model": "other", "input": "x"})),
        ("", json!({"model": "m", "input": "x", "user": "me"})),
        ("", json!({"model": "m", "input": "x", "dimensions": 3})),
        ("", json!({"model": "m", "input": [1]})),
    ];
    // A model of its own has no request under way: that one is sent at once.
    let clients: Vec<_> = apart.iter().map(|(header, body)| sends(gateway.addr, header, body)).collect();
    until_waiting(&gateway, 9);
    until("the other model's is there", || mock.count() == 2);
    // These name a request, and no more.
    let named = [
        ("x-request-id: mine\r\n", "mine"),
        (
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nx-request-id: yours\r\n",
            "yours",
        ),
    ];
    let named: Vec<_> = named.map(|(header, id)| (id, sends(gateway.addr, header, &same))).into();
    until_waiting(&gateway, 11);
    embedder.open();
    assert_eq!(first.join().expect("a client").status, 200);
    for ((_, body), client) in apart.iter().zip(clients) {
        let answer = client.join().expect("a client");
        is_own(body, &answer);
        assert_eq!(answer.header("x-plimsoll-batch"), None);
    }
    for (id, client) in named {
        let answer = client.join().expect("a client");
        is_own(&same, &answer);
        assert_eq!((answer.header("x-request-id"), answer.header("x-plimsoll-batch")), (Some(id), Some("2")));
    }
    is_empty(&gateway);
}

#[test]
fn what_is_kept_is_not_sent_and_who_asks_the_same_reads_along() {
    let embedder = Embedder::new(Manner::Right).shut();
    let mock = embeds(&embedder);
    let gateway = gateway(&[&mock], |spec| {
        patient(spec);
        spec.cache = Some(CacheSpec::default());
    });
    let body = |text: &str| json!({"model": "m", "input": text});
    let first = sends(gateway.addr, "", &body("first"));
    until("the replica has it", || mock.count() == 1);
    let texts = ["a", "b", "a"];
    let mut clients = Vec::new();
    for (text, waiting) in texts.iter().zip([1, 2, 2]) {
        clients.push(sends(gateway.addr, "", &body(text)));
        until_waiting(&gateway, waiting);
    }
    // The third has come when it reads along with the first.
    until("it reads along", || {
        embedder.open();
        gateway.stats.ended(End::Cached) == 1
    });
    assert_eq!(first.join().expect("a client").status, 200);
    for (text, client) in texts.iter().zip(clients) {
        is_own(&body(text), &client.join().expect("a client"));
    }
    assert_eq!(embedder.requests(), [1, 2]);
    let again = sends(gateway.addr, "", &body("b")).join().expect("a client");
    is_own(&body("b"), &again);
    assert_eq!((again.header("x-plimsoll-cache"), embedder.requests().len()), (Some("hit"), 2));
    is_empty(&gateway);
}

/// The lines of the operators' page on keys after five requests of two keys of one tenant, with and without `batching`, and what each client read.
fn by_keys(batching: Option<JoinSpec>) -> (Vec<String>, Vec<Vec<u8>>) {
    let embedder = Embedder::new(Manner::Right).shut();
    let mock = embeds(&embedder);
    let is_joined = batching.is_some();
    let gateway = gateway(&[&mock], |spec| {
        patient(spec);
        spec.batching = batching;
        spec.keys = ["alice", "bob"].map(|id| key(id, &format!("the-secret-of-{id}"))).into();
        spec.keys.iter_mut().for_each(|key| key.tenant = Some("both".to_owned()));
    });
    let header = |id: &str| format!("Authorization: Bearer the-secret-of-{id}\r\n");
    let body = |text: &str| json!({"model": "m", "input": text});
    let mut clients = vec![sends(gateway.addr, &header("alice"), &body("first"))];
    until("the replica has it", || mock.count() == 1);
    for (place, (id, text)) in
        [("alice", "word"), ("alice", "text"), ("bob", "item"), ("bob", "list")].iter().enumerate()
    {
        clients.push(sends(gateway.addr, &header(id), &body(text)));
        match is_joined {
            true => until_waiting(&gateway, place + 1),
            false => until("it is there", || mock.count() == place + 2),
        }
    }
    embedder.open();
    let bodies = clients.into_iter().map(|client| client.join().expect("a client").body).collect();
    assert_eq!(
        embedder.requests(),
        if is_joined { vec![1, 2, 2] } else { vec![1; 5] },
        "keys are not joined"
    );
    assert!(!String::from_utf8_lossy(&mock.last.lock().expect("nobody panicked")).contains("secret"));
    is_empty(&gateway);
    let page = get(gateway.admin.expect("asked for"), "/metrics", "").text();
    (
        page.lines().filter(|line| line.starts_with("plimsoll_gateway_key_")).map(str::to_owned).collect(),
        bodies,
    )
}

#[test]
fn each_key_is_charged_as_if_its_requests_had_been_sent_alone() {
    let (alone, bodies) = by_keys(None);
    assert_eq!(by_keys(Some(JoinSpec { wait_ms: 10_000.0, ..JoinSpec::default() })), (alone.clone(), bodies));
    assert!(
        alone.iter().any(|line| line.contains("key=\"alice\",tenant=\"both\",outcome=\"admitted\"} 3")),
        "{alone:?}"
    );
}

/// Rows as a record has them, by their clients' bodies.
fn rows(told: &std::sync::mpsc::Receiver<Box<TrafficRow>>, count: usize) -> Vec<TrafficRow> {
    let mut rows: Vec<TrafficRow> =
        (0..count).map(|_| *told.recv_timeout(Duration::from_secs(60)).expect("a row")).collect();
    rows.sort_by_key(|row| row.number);
    rows
}

#[test]
fn each_client_has_its_row_with_what_became_of_it() {
    let embedder = Embedder { poison: Some(("poison", 400)), ..Embedder::new(Manner::Right) }.shut();
    let mock = embeds(&embedder);
    let (traffic, told) = Traffic::channel(1.0);
    let gateway = recorded(&[&mock], Some(Arc::clone(&traffic)), patient);
    let body = |text: &str| json!({"model": "m", "input": text});
    let first = sends(gateway.addr, "", &body("first"));
    until("the replica has it", || mock.count() == 1);
    let mut clients = Vec::new();
    let texts = ["a b c", "d", "e f"];
    for (place, text) in texts.iter().enumerate() {
        clients.push(sends(gateway.addr, "", &body(text)));
        until_waiting(&gateway, place + 1);
    }
    let leaves = asked(gateway.addr, &body("gone"));
    until_waiting(&gateway, 4);
    // They are sent when the first is answered; the replica holds them for as long as one needs to leave.
    let held = Embedder::new(Manner::Right).shut();
    mock.set(Act::Embed(held.clone()));
    embedder.open();
    assert_eq!(first.join().expect("a client").status, 200);
    until("the replica has them", || held.requests() == [4]);
    drop(leaves);
    until("it went", || gateway.stats.ended(End::Cancelled) == 1);
    held.open();
    clients.into_iter().for_each(|client| assert_eq!(client.join().expect("a client").status, 200));
    let mut maker = RowMaker::new(1);
    let told_rows = rows(&told, 5);
    let attempts: Vec<_> = told_rows.iter().map(|row| maker.rows(row, At::ZERO)).collect();
    for (place, attempts) in attempts.iter().enumerate() {
        let [row] = &attempts[..] else { panic!("{attempts:?}") };
        assert_eq!(row.answer.replica.as_deref(), Some("r0"));
        if place == 4 {
            // It had been sent, and its client went away before an answer's head.
            assert!(
                row.sent.is_some() && row.first_byte.is_none() && row.outcome != Outcome::FINISHED,
                "{row:?}"
            );
            continue;
        }
        assert_eq!((row.outcome, row.answer.status), (Outcome::FINISHED, Some(200)), "{row:?}");
        assert!(
            row.sent >= Some(row.due) && row.first_byte > row.sent && row.end >= row.first_byte,
            "{row:?}"
        );
        // By their bytes: 5, 1 and 3 of the counted seven words (and "gone", which is one).
        let prompts = [1, 2, 1, 1];
        assert_eq!(row.answer.tokens.prompt, Some(prompts[place]), "{place}: {row:?}");
    }
    assert!(told_rows[1..4].iter().all(|row| row.held > Span::ZERO && row.explained.is_some()));
    // One that is at fault: those who share it are tried again, which their rows say.
    let shut = embedder.shut();
    mock.set(Act::Embed(shut.clone()));
    let first = sends(gateway.addr, "", &body("first"));
    until("the replica has it", || mock.count() == 3);
    let clients: Vec<_> = ["a", "poison"].map(|text| sends(gateway.addr, "", &body(text))).into();
    until_waiting(&gateway, 2);
    shut.open();
    assert_eq!(first.join().expect("a client").status, 200);
    let mut statuses: Vec<u16> =
        clients.into_iter().map(|client| client.join().expect("a client").status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400]);
    for row in &rows(&told, 3)[1..] {
        let tries: Vec<_> =
            row.tries.iter().map(|one| (one.number, one.head.map(|head| head.1), one.how.clone())).collect();
        assert_eq!(tries.len(), 2);
        assert_eq!(tries[0], (0, Some(400), TryEnd::Whole));
        assert!(tries[1].0 == 1 && tries[1].2 == TryEnd::Whole, "{tries:?}");
    }
    assert!(told.try_recv().is_err(), "and no row but theirs");
    drop(gateway);
}

#[test]
fn another_reading_of_the_file_puts_it_in_force_at_once() {
    let embedder = Embedder::new(Manner::Right).shut();
    let mock = embeds(&embedder);
    let mut kept = None;
    let gateway = gateway(&[&mock], |spec| {
        spec.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        kept = Some(spec.clone());
    });
    let mut spec = kept.expect("a spec");
    let body = json!({"model": "m", "input": "x"});
    let mut clients: Vec<_> = (0..3).map(|_| sends(gateway.addr, "", &body)).collect();
    until("each is sent", || mock.count() == 3);
    spec.batching = Some(JoinSpec { wait_ms: 10_000.0, ..JoinSpec::default() });
    assert!(gateway.reloader().reload(&spec).expect("a sound spec").later.is_empty());
    clients.push(sends(gateway.addr, "", &body));
    until("nobody is under way that it knows", || mock.count() == 4);
    clients.extend((0..2).map(|_| sends(gateway.addr, "", &body)));
    until_waiting(&gateway, 2);
    // Off again: who waits is sent as before.
    spec.batching = None;
    gateway.reloader().reload(&spec).expect("a sound spec");
    clients.push(sends(gateway.addr, "", &body));
    until("it is sent", || embedder.requests().contains(&1) && mock.count() >= 5);
    embedder.open();
    clients.into_iter().for_each(|client| is_own(&body, &client.join().expect("a client")));
    assert_eq!(embedder.requests().iter().sum::<usize>(), 7);
    let slip = GatewaySpec { batching: Some(JoinSpec { inputs: 1, ..JoinSpec::default() }), ..spec.clone() };
    assert!(slip.validate().expect_err("a slip").to_string().contains("batching.inputs"));
    let slip = JoinSpec { may_differ: vec!["no header".to_owned()], ..JoinSpec::default() };
    let slip = GatewaySpec { batching: Some(slip), ..spec };
    assert!(slip.validate().expect_err("a slip").to_string().contains("batching.may_differ"));
    is_empty(&gateway);
}
