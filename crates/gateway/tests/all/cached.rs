//! Response cache and coalescing. The reference is the number of requests at the replica, and the bytes that each
//! client received.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use plimsoll_gateway::cache::{CacheSpec, CachedKinds, Scope};
use plimsoll_gateway::stats::RequestEnd;
use plimsoll_gateway::{Gateway, GatewaySpec};

use crate::kit::{Act, EVENT, Mock, gateway, is_empty, post, request, until};

const SAME: &str = r#"{"prompt": "hello", "temperature": 0, "stream": true}"#;

fn caching(mock: &Mock, change: impl FnOnce(&mut CacheSpec)) -> Gateway {
    let mut spec = CacheSpec::default();
    change(&mut spec);
    gateway(&[mock], |of: &mut GatewaySpec| of.cache = Some(spec))
}

/// Returns a client that has sent its request and not read the response yet.
fn asked(addr: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(addr).expect("it listens");
    socket.write_all(&request(SAME)).expect("sent");
    socket
}

fn rest(mut socket: TcpStream) -> String {
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

fn events(text: &str) -> usize {
    text.matches(std::str::from_utf8(EVENT).expect("text").trim_end()).count()
}

/// Returns the number of requests at the replica for two sequential requests.
fn asks(gateway: &Gateway, mock: &Mock, [first, second]: [(&str, &str); 2]) -> usize {
    let before = mock.count();
    for (header, body) in [first, second] {
        assert_eq!(post(gateway.addr, header, body).status, 200, "{header} {body}");
    }
    mock.count() - before
}

#[test]
fn who_asks_again_gets_the_same_bytes_without_a_replica() {
    let mock = Mock::new(Act::Answer);
    let gateway = caching(&mock, |_| {});
    for act in [Act::Answer, Act::Stream(5, Duration::from_millis(1))] {
        mock.set(act.clone());
        let body = format!("{{\"temperature\": 0.0, \"prompt\": \"{act:?}\"}}");
        let first = post(gateway.addr, "", &body);
        let again = post(gateway.addr, "", &body);
        assert_eq!((first.status, again.status), (200, 200));
        assert_eq!(first.text(), again.text());
        assert_eq!(first.header("content-type"), again.header("content-type"));
        assert_eq!(
            (first.header("x-plimsoll-cache"), again.header("x-plimsoll-cache")),
            (Some("miss"), Some("hit"))
        );
        assert_eq!((first.header("age"), again.header("age").is_some()), (None, true));
        assert!(again.is_whole());
        // A cached response has no replica, and a new request id.
        assert_eq!(again.header("x-plimsoll-replica"), None);
        assert_ne!(first.header("x-request-id"), again.header("x-request-id"));
    }
    assert_eq!(mock.count(), 2);
    assert_eq!([RequestEnd::Answered, RequestEnd::Cached].map(|end| gateway.stats.ended(end)), [2, 2]);
    is_empty(&gateway);
}

#[test]
fn a_request_that_differs_in_anything_its_answer_may_depend_on_is_another() {
    let mock = Mock::new(Act::Answer);
    let gateway = caching(&mock, |_| {});
    let (alice, bob) = ("Authorization: Bearer alice\r\n", "Authorization: Bearer bob\r\n");
    let a = r#"{"temperature": 0, "prompt": "a"}"#;
    for (header, body, of) in [
        (alice, a, "other credentials"),
        ("X-Api-Key: alice\r\n", a, "other credentials"),
        ("Accept: text/event-stream\r\n", a, "another form"),
        ("", r#"{"temperature": 0, "prompt": "a", "seed": 1}"#, "another field"),
        ("", r#"{"temperature": 0, "prompt": "a" }"#, "another byte"),
    ] {
        post(gateway.addr, "", a);
        assert_eq!(asks(&gateway, &mock, [(header, body), (header, body)]), 1, "{of}");
    }
    assert_eq!(asks(&gateway, &mock, [(bob, a), (alice, a)]), 1, "alice's is kept, bob's is new");
    // These requests are not deterministic, or demand a fresh response.
    let hot = r#"{"temperature": 0.7, "prompt": "a"}"#;
    let unsaid = r#"{"prompt": "a"}"#;
    for (header, body) in [
        ("", hot),
        ("", unsaid),
        ("", "no JSON"),
        ("Cache-Control: no-store\r\n", a),
        ("cache-control: max-age=0, No-Cache\r\n", a),
    ] {
        assert_eq!(asks(&gateway, &mock, [(header, body), (header, body)]), 2, "{header} {body}");
    }
    assert_eq!(asks(&gateway, &mock, [("", a), ("", a)]), 0, "still kept");
    drop(gateway);

    let gateway = caching(&mock, |spec| (spec.scope, spec.which) = (Scope::Everybody, CachedKinds::All));
    assert_eq!(asks(&gateway, &mock, [(bob, hot), (alice, hot)]), 1, "asked for");
}

#[test]
fn answers_are_forgotten_by_age_and_by_revision_and_only_what_came_whole_is_kept() {
    let mock = Mock::new(Act::Answer);
    let gateway = caching(&mock, |spec| spec.ttl_s = 1.5);
    assert_eq!(asks(&gateway, &mock, [("", SAME), ("", SAME)]), 1);
    sleep(Duration::from_millis(1_700));
    assert_eq!(asks(&gateway, &mock, [("", SAME), ("", SAME)]), 1, "too old once");
    drop(gateway);

    let mut kept = None;
    let gateway = crate::kit::gateway(&[&mock], |spec| {
        spec.cache = Some(CacheSpec { revision: "1".to_owned(), ..CacheSpec::default() });
        kept = Some(spec.clone());
    });
    let mut spec = kept.expect("a spec");
    assert_eq!(asks(&gateway, &mock, [("", SAME), ("", SAME)]), 1);
    gateway.reloader().reload(&spec).expect("a sound spec");
    assert_eq!(asks(&gateway, &mock, [("", SAME), ("", SAME)]), 0, "nothing changed");
    spec.cache.iter_mut().for_each(|cache| cache.revision = "2".to_owned());
    gateway.reloader().reload(&spec).expect("a sound spec");
    assert_eq!(asks(&gateway, &mock, [("", SAME), ("", SAME)]), 1, "another model");

    let bad = [
        Act::Cut,
        Act::Status(400, ""),
        Act::Status(500, ""),
        Act::Status(429, "retry-after: 1\r\n"),
        // Each event has 65 kB, so 100 of them exceed the buffer.
        Act::Flood(100),
    ];
    for (number, act) in bad.into_iter().enumerate() {
        mock.set(act.clone());
        let body = format!("{{\"temperature\": 0, \"prompt\": \"{number}\"}}");
        let first = post(gateway.addr, "", &body);
        assert_ne!(first.header("x-plimsoll-cache"), Some("hit"));
        mock.set(Act::Answer);
        until("it is answered afresh", || post(gateway.addr, "", &body).text().contains("text_completion"));
    }
    is_empty(&gateway);
}

#[test]
fn who_asks_the_same_meanwhile_reads_along_from_the_beginning() {
    let mock = Mock::new(Act::Stream(40, Duration::from_millis(50)));
    let gateway = caching(&mock, |_| {});
    let leader = asked(gateway.addr);
    until("the replica has it", || mock.count() == 1);
    sleep(Duration::from_millis(150));
    let followers: Vec<TcpStream> = (0..5).map(|_| asked(gateway.addr)).collect();
    until("all read along", || gateway.stats.ended(RequestEnd::Cached) == 5);
    // A disconnect of the first or another client does not affect the remaining ones.
    drop(leader);
    let mut followers = followers.into_iter();
    drop(followers.next());
    for follower in followers {
        let text = rest(follower);
        assert_eq!(events(&text), 40, "{text}");
        assert!(text.contains("x-plimsoll-cache: shared") && text.ends_with("0\r\n\r\n"), "{text}");
    }
    assert_eq!((mock.count(), mock.gone.load(Ordering::SeqCst)), (1, 0));
    is_empty(&gateway);
    assert_eq!([RequestEnd::Answered, RequestEnd::Cached].map(|end| gateway.stats.ended(end)), [1, 5]);
    // The response is complete although its first client never read the end.
    assert_eq!(events(&rest(asked(gateway.addr))), 40);
    assert_eq!(mock.count(), 1);
}

#[test]
fn when_all_have_gone_the_replica_hears_of_it_before_and_after_the_head() {
    for act in [Act::Silence, Act::Wedge] {
        let mock = Mock::new(act);
        let gateway = caching(&mock, |_| {});
        let clients: Vec<TcpStream> = (0..3).map(|_| asked(gateway.addr)).collect();
        until("the replica has it", || mock.count() == 1);
        sleep(Duration::from_millis(100));
        assert_eq!(mock.gone.load(Ordering::SeqCst), 0);
        drop(clients);
        // After the last reader has left, a new request goes to the replica.
        until("the replica's client went", || mock.gone.load(Ordering::SeqCst) == mock.count());
        is_empty(&gateway);
        mock.set(Act::Answer);
        assert!(rest(asked(gateway.addr)).contains("text_completion"), "nobody joins what was given up");
    }
}

#[test]
fn what_a_twin_was_refused_each_asks_for_itself_and_a_stream_that_breaks_tells_all_its_readers() {
    let mock = Mock::new(Act::Silence);
    let gateway = caching(&mock, |_| {});
    let clients: Vec<TcpStream> = (0..3).map(|_| asked(gateway.addr)).collect();
    until("the replica has it", || mock.count() == 1);
    sleep(Duration::from_millis(50));
    mock.set(Act::Status(400, ""));
    // The hanging response breaks with the replica's connection and is retried. The other requests are then sent
    // separately.
    let late = asked(gateway.addr);
    mock.leave();
    let again = Mock::at(mock.addr, Act::Status(400, ""));
    for client in clients.into_iter().chain([late]) {
        let text = rest(client);
        assert!(text.starts_with("HTTP/1.1 4") || text.starts_with("HTTP/1.1 5"), "{text}");
        assert!(!text.contains("shared"), "{text}");
    }
    drop((again, gateway));

    let mock = Mock::new(Act::Stream(4, Duration::from_millis(50)));
    let gateway = caching(&mock, |_| {});
    mock.set(Act::Cut);
    let clients = [asked(gateway.addr), asked(gateway.addr)];
    for client in clients {
        let text = rest(client);
        assert!(
            events(&text) == 2 && text.contains("stream_broken") && text.ends_with("0\r\n\r\n"),
            "{text}"
        );
    }
    is_empty(&gateway);
}

#[test]
fn a_reader_that_does_not_read_holds_no_more_than_is_written() {
    let mock = Mock::new(Act::Flood(2_000));
    let gateway = caching(&mock, |spec| spec.answer_bytes = 1 << 20);
    // Without readers, the gateway reads no more of the replica's 130 MB than the buffer and the sockets hold.
    let (slow, quick) = (asked(gateway.addr), asked(gateway.addr));
    until("the replica has it", || mock.count() == 1);
    let taken = || mock.flooded.load(Ordering::SeqCst);
    let mut before = 0;
    until("it stands still", || {
        sleep(Duration::from_millis(200));
        std::mem::replace(&mut before, taken()) == taken() && taken() > 0
    });
    assert!(taken() < 40 << 20, "{} bytes", taken());
    // After the slow client has left, the other one gets the complete response.
    drop(slow);
    let text = rest(quick);
    assert!(text.len() > 2_000 * 65_000 && text.ends_with("0\r\n\r\n"), "{} bytes", text.len());
    is_empty(&gateway);
}

/// Returns the number of requests at the replica for two requests with these headers. The replica's responses have
/// the header lines of `says`.
fn asks_of(says: fn(&str) -> String, headers: [&str; 2]) -> usize {
    let mock = Mock::new(Act::Says(says));
    let gateway = caching(&mock, |_| {});
    asks(&gateway, &mock, headers.map(|header| (header, SAME)))
}

fn answer(lines: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{lines}content-length: {}\r\n\r\n{body}", body.len())
}

const SOUND: &str = "{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}";

#[test]
fn an_answer_is_given_again_as_far_as_its_own_head_allows() {
    let of = |says| asks_of(says, ["", ""]);
    assert_eq!(of(|_| answer("", SOUND)), 1);
    assert_eq!(of(|_| answer("cache-control: max-age=60\r\n", SOUND)), 1);
    assert_eq!(of(|_| answer("cache-control: private, max-age=60\r\n", SOUND)), 2);
    assert_eq!(of(|_| answer("cache-control: no-store\r\n", SOUND)), 2);
    assert_eq!(of(|_| answer("vary: *\r\n", SOUND)), 2);
    assert_eq!(of(|_| answer("set-cookie: a=b\r\n", SOUND)), 2);
    assert_eq!(of(|_| answer("vary: accept\r\n", SOUND)), 1);
    // A header from `Vary` that is not in the key becomes part of the next key.
    let vary: fn(&str) -> String = |_| answer("vary: X-User\r\n", SOUND);
    assert_eq!(asks_of(vary, ["x-user: alice\r\n", "x-user: bob\r\n"]), 2);
    let mock = Mock::new(Act::Says(vary));
    let gateway = caching(&mock, |_| {});
    let users = ["alice", "alice", "bob", "alice", "bob"];
    users.iter().for_each(|user| drop(post(gateway.addr, &format!("x-user: {user}\r\n"), SAME)));
    assert_eq!(mock.count(), 3, "the first, and each user's own");
}

#[test]
fn versions_and_betas_are_parts_of_the_key_and_an_asked_age_is_kept_to() {
    let of = |headers| asks_of(|_| answer("", SOUND), headers);
    assert_eq!(of(["anthropic-beta: a\r\n", "anthropic-beta: b\r\n"]), 2);
    assert_eq!(of(["openai-beta: a\r\n", ""]), 2);
    assert_eq!(of(["api-version: 1\r\n", "api-version: 2\r\n"]), 2);
    assert_eq!(of(["accept-language: de\r\n", "accept-language: en\r\n"]), 2);
    assert_eq!(of(["user-agent: a\r\n", "user-agent: b\r\n"]), 1);
    assert_eq!(of(["", "cache-control: max-age=60\r\n"]), 1);
    assert_eq!(of(["", "cache-control: max-age=0\r\n"]), 2);
    assert_eq!(of(["", "pragma: no-cache\r\n"]), 2);
}

#[test]
fn an_answer_of_no_use_is_given_to_nobody_else() {
    let of = |says| asks_of(says, ["", ""]);
    assert_eq!(of(|_| answer("", "{\"error\":{\"message\":\"x\"}}")), 2);
    assert_eq!(of(|_| answer("", "{\"object\":\"error\",\"message\":\"x\"}")), 2);
    assert_eq!(of(|_| answer("", "{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"abort\"}]}")), 2);
    assert_eq!(of(|_| answer("", "{\"choices\":[]}")), 2);
    assert_eq!(of(|_| answer("", "")), 2);
    assert_eq!(
        of(|_| answer(
            "content-type: text/event-stream\r\n",
            "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"error\":{\"code\":502},\"choices\":[]}\n\ndata: [DONE]\n\n"
        )),
        2
    );
}
