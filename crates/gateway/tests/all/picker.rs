//! The endpoint picker, used by a scripted proxy. The reference is what the proxy reports. After any sequence of
//! messages no load stays booked, and each request is counted once.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_gateway::stats::RequestEnd;
use plimsoll_gateway::traffic::rows::RowMaker;
use plimsoll_gateway::{Gateway, PickerSpec, ReplicaRole, TrafficRecorder};
use plimsoll_model::{At, How};
use plimsoll_policy::RouteSpec;

use crate::kit::{ASK, Act, Mock, is_empty, recorded, send, started, until};
use crate::proxy_kit::{
    Ask, BUFFERED, Call, DUPLEX, NONE, PROCESS, STREAMED, Told, field, number, picking, piece, response,
};

const EVENT: &[u8] = b"data: {\"choices\":[{\"index\":0,\"text\":\" word\"}]}\n\n";
const STREAM: &[(&str, &str)] = &[("content-type", "text/event-stream")];

fn booked(gateway: &Gateway) -> u32 {
    gateway.pool.shown().0.iter().map(|shown| shown.load.requests).sum()
}

/// Sends a stream of two events on a routed call to its end. Returns the reply to the response head.
fn streams(call: &Call, mode: usize) -> Told {
    call.say(&response(200, STREAM, false, None));
    let head = call.hear();
    assert_eq!(head.kind, 2);
    if mode == NONE {
        call.say(&field(7, field(1, "")));
        assert_eq!(call.hear().kind, 6);
        return head;
    }
    let whole = [EVENT, EVENT, b"data: [DONE]\n\n"].concat();
    let pieces: Vec<&[u8]> = if mode == BUFFERED { vec![&whole] } else { whole.chunks(20).collect() };
    for (place, part) in pieces.iter().enumerate() {
        call.say(&piece(5, part, place + 1 == pieces.len()));
        let told = call.hear();
        assert_eq!(told.kind, 4);
        if mode == DUPLEX {
            assert_eq!(told.body.as_deref().map(str::as_bytes), Some(*part), "it goes on as it came");
            assert_eq!(told.end, place + 1 == pieces.len());
        }
    }
    head
}

#[test]
fn in_every_mode_somebody_is_named_once_and_given_back_at_the_end() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |_| {});
    let address = mock.addr.to_string();
    let modes = [NONE, STREAMED, BUFFERED, DUPLEX];
    let mut asked = 0;
    for request in modes {
        for answer in modes {
            let (call, told) =
                Call::ask(&gateway, &Ask::new((request, answer)).with("x-request-id", "own"), ASK);
            let named: Vec<&Told> = told.iter().filter(|one| one.to.is_some()).collect();
            assert_eq!(named.len(), 1, "{request} {answer}: {told:?}");
            assert_eq!(named[0].first(), address);
            assert_eq!(named[0].kind, if request == BUFFERED { 3 } else { 1 });
            assert_eq!(named[0].set["x-request-id"], "own");
            assert_eq!(booked(&gateway), 1, "before anything is sent");
            if matches!(request, NONE | STREAMED) {
                call.say(&piece(4, ASK.as_bytes(), true));
                assert_eq!((call.hear().kind, booked(&gateway)), (3, 1));
            }
            let head = streams(&call, answer);
            assert_eq!(head.set["x-plimsoll-replica"], "r0");
            assert!(head.set.contains_key("x-plimsoll-queue-ms"));
            assert_eq!(call.ended(), "0", "{request} {answer}");
            is_empty(&gateway);
            asked += 1;
            assert_eq!((gateway.stats.ended(RequestEnd::Answered), gateway.stats.all()), (asked, asked));
        }
    }
    assert_eq!(mock.count(), 0, "it sends nothing itself");
}

/// Trailers end bodies in both directions; a request without a body is answered after its head.
#[test]
fn trailers_and_heads_alone_are_ends_too() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |_| {});
    let call = Call::begin(gateway.picker.expect("asked for"), PROCESS);
    call.say(&Ask::new((DUPLEX, DUPLEX)).message());
    call.say(&piece(4, ASK.as_bytes(), false));
    call.say(&field(6, field(1, "")));
    assert_eq!(call.hear().first(), mock.addr.to_string());
    let back = call.hear();
    assert_eq!((back.kind, back.body.as_deref(), back.end), (3, Some(ASK), false));
    assert_eq!(call.hear().kind, 5);
    call.say(&response(200, STREAM, false, None));
    call.say(&piece(5, &[EVENT, b"data: [DONE]\n\n"].concat(), false));
    call.say(&field(7, field(1, "")));
    assert_eq!([call.hear().kind, call.hear().kind, call.hear().kind], [2, 4, 6]);
    assert_eq!(call.ended(), "0");
    // If trailers arrive instead of a body, only the metadata can name the replica.
    let call = Call::begin(gateway.picker.expect("asked for"), PROCESS);
    call.say(&Ask::new((BUFFERED, NONE)).message());
    assert_eq!(call.hear().kind, 1);
    call.say(&field(6, field(1, "")));
    assert_eq!(call.hear().first(), mock.addr.to_string());
    call.say(&response(204, &[], true, None));
    assert_eq!(call.hear().kind, 2);
    assert_eq!(call.ended(), "0");
    let look = Ask { end: true, ..Ask::new((DUPLEX, DUPLEX)) };
    let (call, told) = Call::ask(&gateway, &look, "");
    assert_eq!((told.len(), told[0].first()), (1, mock.addr.to_string().as_str()));
    call.say(&response(200, &[], true, None));
    assert_eq!((call.hear().kind, call.ended().as_str()), (2, "0"));
    is_empty(&gateway);
    assert_eq!(gateway.stats.ended(RequestEnd::Answered), 3);
}

/// After each message of a request, the proxy disconnects or ends its stream. No load stays booked, and one request
/// counts once.
#[test]
fn a_proxy_that_goes_away_at_any_point_leaves_nothing_behind() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |_| {});
    let course: [(Vec<u8>, usize); 6] = [
        (Ask::new((DUPLEX, DUPLEX)).message(), 0),
        (piece(4, &ASK.as_bytes()[..10], false), 0),
        (piece(4, &ASK.as_bytes()[10..], true), 2),
        (response(200, STREAM, false, None), 1),
        (piece(5, EVENT, false), 1),
        (piece(5, b"data: [DONE]\n\n", true), 1),
    ];
    let mut counted = 0;
    for steps in 0..=course.len() {
        for half_closes in [false, true] {
            let mut call = Call::begin(gateway.picker.expect("asked for"), PROCESS);
            for (message, answers) in &course[..steps] {
                call.say(message);
                (0..*answers).for_each(|_| drop(call.hear()));
            }
            if half_closes {
                call.said_all();
                assert_eq!(call.ended(), "0");
            }
            drop(call);
            is_empty(&gateway);
            // A request counts from its head on, if the head arrived before the reset.
            counted += u64::from(steps >= 3 || half_closes && steps >= 1);
            until("it is counted", || gateway.stats.all() >= counted);
        }
    }
    let (answered, gone) =
        (gateway.stats.ended(RequestEnd::Answered), gateway.stats.ended(RequestEnd::Cancelled));
    assert_eq!(answered, 2, "whole ones");
    assert!((8..=10).contains(&gone) && gateway.stats.all() == answered + gone, "{gone}, each of them once");
}

/// The call also breaks inside a frame, at every byte of a request's messages.
#[test]
fn a_call_that_breaks_anywhere_leaves_nothing_behind() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |_| {});
    let frame = |message: &[u8]| [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
    let call = [
        frame(&Ask::new((DUPLEX, DUPLEX)).message()),
        frame(&piece(4, ASK.as_bytes(), true)),
        frame(&response(200, STREAM, false, None)),
        frame(&piece(5, EVENT, false)),
    ]
    .concat();
    for at in (0..call.len()).step_by(13) {
        let mut one = Call::begin(gateway.picker.expect("asked for"), PROCESS);
        one.say_bytes(&call[..at]);
        one.said_all();
        let end = one.ended();
        assert!(end == "0" || end == "3 the call ends within a message", "at {at}: {end}");
    }
    is_empty(&gateway);
    // The call is the same, whatever the size of the pieces.
    for size in [1, 7, 100] {
        let one = Call::begin(gateway.picker.expect("asked for"), PROCESS);
        call.chunks(size).for_each(|part| one.say_bytes(part));
        assert_eq!([one.hear().kind, one.hear().kind, one.hear().kind, one.hear().kind], [1, 3, 2, 4]);
    }
    is_empty(&gateway);
}

#[test]
fn what_is_no_call_is_told_so() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |spec| spec.limits.body_bytes = 4 << 10);
    let picker = gateway.picker.expect("asked for");
    let ended = |path: &str, message: &[u8]| {
        let mut call = Call::begin(picker, path);
        call.say(message);
        call.said_all();
        call.ended()
    };
    let observing = [Ask::new((DUPLEX, DUPLEX)).message(), number(10, 1)].concat();
    for (path, message, code) in [
        ("/envoy.service.ext_proc.v3.ExternalProcessor/Other", &b""[..], "12 "),
        (PROCESS, b"\xff\xff\xff", "3 "),
        (PROCESS, &response(200, &[], true, None), "3 no request headers"),
        (PROCESS, &field(99, "what nobody knows"), "3 "),
        (PROCESS, &observing, "9 "),
        (PROCESS, &Ask::new((5, 0)).message(), "9 "),
        ("/grpc.health.v1.Health/Check", &b"\x0a\x09nobod"[..], "3 "),
    ] {
        let end = ended(path, message);
        assert!(end.starts_with(code), "{path}: {end}");
    }
    let huge = Call::begin(picker, PROCESS);
    huge.say_bytes(&[0, 255, 255, 255, 255]);
    assert!(huge.ended().starts_with("8 "), "a length of 4 GiB is not waited for");
    // These are a second request head, and a second response head.
    let (call, _) = Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK);
    call.say(&Ask::new((DUPLEX, DUPLEX)).message());
    assert!(call.ended().starts_with("3 "));
    let (call, _) = Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK);
    call.say(&response(200, &[], false, None));
    call.say(&response(200, &[], false, None));
    assert!(call.ended().starts_with("3 "));
    is_empty(&gateway);
    // HTTP/1, and other traffic than gRPC, is no call.
    assert!(send(picker, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_none_or(|answer| answer.status >= 400));
}

/// Returns the status and the body of the immediate response to the client.
fn refused(told: &[Told]) -> (u16, String) {
    let last = told.last().expect("an answer");
    assert_eq!(last.kind, 7, "{told:?}");
    assert_eq!(last.set["content-type"], "application/json");
    let body: serde_json::Value = serde_json::from_str(last.body.as_deref().expect("a body")).expect("JSON");
    (last.status.expect("a status"), body["error"]["code"].as_str().expect("a code").to_owned())
}

#[test]
fn who_is_not_let_in_and_what_can_not_be_read_is_told_off() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |spec| {
        // This is the SHA-256 of "foo".
        let sha256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        let key = serde_json::json!({"id": "alice", "key": {"sha256": sha256}});
        spec.keys = vec![serde_json::from_value(key).expect("a key")];
        spec.limits.body_bytes = 1 << 10;
        spec.limits.headers = 20;
    });
    let ask = Ask::new((DUPLEX, DUPLEX));
    let own = ask.clone().with("authorization", "Bearer foo");
    assert_eq!(refused(&Call::ask(&gateway, &ask, ASK).1), (401, "invalid_api_key".to_owned()));
    let (call, told) = Call::ask(&gateway, &own, ASK);
    assert_eq!(told[0].first(), mock.addr.to_string());
    assert!(told[0].remove.iter().any(|name| name == "authorization"), "the key ends here: {told:?}");
    drop(call);
    let long = "x".repeat(2 << 10);
    assert_eq!(refused(&Call::ask(&gateway, &own, &long).1), (413, "body_too_large".to_owned()));
    let buffered = Ask { modes: (BUFFERED, NONE), ..own.clone() };
    assert_eq!(refused(&Call::ask(&gateway, &buffered, &long).1), (413, "body_too_large".to_owned()));
    let odd = own.clone().with("x-plimsoll-class", "nobody's");
    assert_eq!(refused(&Call::ask(&gateway, &odd, ASK).1), (400, "unknown_class".to_owned()));
    let many = (0..30).fold(own.clone(), |ask, number| ask.with(&format!("x-{number}"), "1"));
    assert_eq!(refused(&Call::ask(&gateway, &many, ASK).1), (431, "too_many_headers".to_owned()));
    let headless = Ask { headers: own.headers[3..].to_vec(), ..own };
    assert_eq!(refused(&Call::ask(&gateway, &headless, ASK).1), (400, "bad_head".to_owned()));
    is_empty(&gateway);
    assert_eq!(gateway.stats.ended(RequestEnd::Bad), 5);
    // The body never arrives.
    let quick = picking(&[&mock], |spec| spec.limits.body_s = 0.1);
    let call = Call::begin(quick.picker.expect("asked for"), PROCESS);
    call.say(&ask.message());
    assert_eq!(refused(&[call.hear()]), (408, "slow_body".to_owned()));
    assert_eq!((quick.stats.ended(RequestEnd::Bad), quick.stats.all()), (1, 1));
    assert_eq!(gateway.stats.ended(RequestEnd::Unauthorized), 1);
}

#[test]
fn a_full_queue_sheds_and_who_waits_gets_the_next_place() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |spec| {
        spec.admission.per_replica = Some(1);
        spec.admission.requests = 1;
    });
    let ask = Ask::new((DUPLEX, DUPLEX));
    let (first, _) = Call::ask(&gateway, &ask, ASK);
    let waits = || {
        let call = Call::begin(gateway.picker.expect("asked for"), PROCESS);
        call.say(&ask.message());
        call.say(&piece(4, ASK.as_bytes(), true));
        until("it waits", || gateway.pool.queued().0.iter().any(|held| held.requests == 1));
        call
    };
    let second = waits();
    let (_, told) = Call::ask(&gateway, &ask, ASK);
    assert_eq!(refused(&told), (429, "queue_full".to_owned()));
    let after: u64 = told[0].set["retry-after"].parse().expect("seconds");
    assert!((1..=60).contains(&after), "{after}");
    // A queued request leaves the queue when its call is reset or its stream ends.
    drop(second);
    until("nobody waits", || gateway.pool.queued().0.iter().all(|held| held.requests == 0));
    let mut third = waits();
    third.said_all();
    assert_eq!(third.ended(), "0");
    until("nobody waits", || gateway.pool.queued().0.iter().all(|held| held.requests == 0));
    let fourth = waits();
    drop(first);
    assert_eq!(fourth.hear().first(), mock.addr.to_string());
    drop(fourth);
    is_empty(&gateway);
    assert_eq!(
        (gateway.stats.ended(RequestEnd::Overloaded), gateway.stats.ended(RequestEnd::Cancelled)),
        (1, 4)
    );
}

#[test]
fn only_those_that_the_proxy_allows_are_named() {
    let mocks = [0; 4].map(|_| Mock::new(Act::Silence));
    let gateway = picking(&mocks.each_ref(), |spec| {
        spec.route = RouteSpec::LeastRequests {};
        spec.picker.as_mut().expect("asked for").fallbacks = 9;
    });
    let address = |place: usize| mocks[place].addr.to_string();
    let among = |subset: &[String]| Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)).among(subset), ASK);
    let mut kept = Vec::new();
    for _ in 0..6 {
        let (call, told) = among(&[address(3), address(1)]);
        let mut named: Vec<String> =
            told[0].to.as_deref().expect("somebody").split(',').map(str::to_owned).collect();
        assert_eq!(told[0].first(), named[0]);
        named.sort();
        let mut allowed = [address(1), address(3)];
        allowed.sort();
        assert_eq!(named, allowed, "and those behind the first one too");
        kept.push(call);
    }
    let loads: Vec<u32> = gateway.pool.shown().0.iter().map(|shown| shown.load.requests).collect();
    assert_eq!(loads, [0, 3, 0, 3], "by the route, among those");
    let (_all, told) = among(&["127.0.0.1".to_owned()]);
    assert_eq!(told[0].to.as_deref().map(|to| to.split(',').count()), Some(4), "an ip is all its ports");
    for nobody in [vec![], vec!["10.9.9.9:1".to_owned()], vec!["no address".to_owned()]] {
        assert_eq!(refused(&among(&nobody).1), (503, "no_replica".to_owned()), "{nobody:?}");
    }
    mocks[1].leave();
    until("it is down", || !gateway.pool.is_up(1));
    assert_eq!(refused(&among(&[address(1)]).1), (503, "no_replica".to_owned()));
    drop(kept);
}

/// If the allowed replica is full, a request waits for it without blocking requests that can go elsewhere.
#[test]
fn a_subset_is_kept_in_the_queue() {
    let mocks = [0; 2].map(|_| Mock::new(Act::Silence));
    let gateway = picking(&mocks.each_ref(), |spec| spec.admission.per_replica = Some(1));
    let only = Ask::new((DUPLEX, DUPLEX)).among(&[mocks[0].addr.to_string()]);
    let (first, _) = Call::ask(&gateway, &only, ASK);
    let second = Call::begin(gateway.picker.expect("asked for"), PROCESS);
    second.say(&only.message());
    second.say(&piece(4, ASK.as_bytes(), true));
    until("it waits", || gateway.pool.queued().0.iter().any(|held| held.requests == 1));
    let (other, told) = Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK);
    assert_eq!(told[0].first(), mocks[1].addr.to_string());
    drop(other);
    sleep(Duration::from_millis(100));
    assert_eq!(booked(&gateway), 1, "the other's place is not for it");
    drop(first);
    assert_eq!(second.hear().first(), mocks[0].addr.to_string());
}

/// A proxy that failed over to the next endpoint reports it. The load moves to the actual replica, and the
/// unreachable one is not penalised.
#[test]
fn a_request_that_another_replica_served_is_booked_there() {
    let mocks = [0; 2].map(|_| Mock::new(Act::Silence));
    let gateway = picking(&mocks.each_ref(), |_| {});
    let (call, told) = Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK);
    let both: Vec<&str> = told[0].to.as_deref().expect("somebody").split(',').collect();
    assert_eq!(both.len(), 2, "the next best is named behind");
    let place =
        |address: &str| mocks.iter().position(|mock| mock.addr.to_string() == address).expect("one of them");
    let (chosen, served) = (place(both[0]), place(both[1]));
    call.say(&response(200, STREAM, false, Some(both[1])));
    assert_eq!(call.hear().set["x-plimsoll-replica"], format!("r{served}"));
    let loads: Vec<u32> = gateway.pool.shown().0.iter().map(|shown| shown.load.requests).collect();
    assert_eq!((loads[chosen], loads[served]), (0, 1));
    drop(call);
    is_empty(&gateway);
}

/// One of two replicas has its first token after 120 ms; the reports of the proxy are sufficient to learn this.
#[test]
fn speeds_are_learnt_from_what_the_proxy_shows() {
    let mocks = [0; 2].map(|_| Mock::new(Act::Silence));
    let gateway = picking(&mocks.each_ref(), |spec| spec.telemetry = None);
    let slow = mocks[0].addr.to_string();
    let mut reached = [0u32; 2];
    for number in 0..40_usize {
        let body = format!(
            "{{\"model\": \"m\", \"stream\": true, \"prompt\": \"{number} {}\"}}",
            "word ".repeat(400)
        );
        // The first requests alternate between the replicas, so that both speeds are known.
        let mut ask = Ask::new((DUPLEX, DUPLEX));
        ask.subset = (number < 6).then(|| vec![mocks[number % 2].addr.to_string()]);
        let (call, told) = Call::ask(&gateway, &ask, &body);
        let is_slow = told[0].first() == slow;
        reached[usize::from(!is_slow)] += 1;
        call.say(&response(200, STREAM, false, None));
        call.hear();
        if is_slow {
            sleep(Duration::from_millis(120));
        }
        for (place, part) in [EVENT, EVENT, EVENT, b"data: [DONE]\n\n"].into_iter().enumerate() {
            call.say(&piece(5, part, place == 3));
            call.hear();
        }
        assert_eq!(call.ended(), "0");
    }
    assert!(reached[0] < reached[1], "{reached:?}");
    let speeds: Vec<f64> = gateway.pool.shown().0.iter().map(|shown| shown.speed.prefill.at(500.0)).collect();
    assert!(speeds[0] > speeds[1], "{speeds:?}");
    is_empty(&gateway);
}

/// A status counts for a replica as it does in the gateway's own responses.
#[test]
fn what_a_replica_answers_is_held_against_it() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |_| {});
    for (status, headers, end) in [
        (200, &[][..], RequestEnd::Answered),
        (404, &[][..], RequestEnd::Refused),
        (429, &[("retry-after", "3")][..], RequestEnd::Shed),
        (503, &[("retry-after", "3")][..], RequestEnd::Shed),
        (500, &[][..], RequestEnd::Failed),
    ] {
        let before = gateway.stats.ended(end);
        let (call, _) = Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK);
        call.say(&response(status, headers, true, None));
        call.hear();
        assert_eq!(call.ended(), "0");
        until("it is counted", || gateway.stats.ended(end) == before + 1);
        let penalty = gateway.pool.shown().0[0].penalty.as_secs_f64();
        match status {
            200 | 404 => assert_eq!(penalty, 0.0, "{status}"),
            429 => assert!(penalty > 0.0, "it asked for time"),
            _ => {}
        }
    }
    is_empty(&gateway);
}

/// For a name with a fallback list, the body for the replica contains the model's name, and its length is reported.
#[test]
fn a_tiers_request_names_the_model_that_it_is_asked_of() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |spec| {
        spec.tiers = [("chat".to_owned(), vec!["large".to_owned()])].into();
        spec.replicas[0].models = Some(vec!["large".to_owned()]);
    });
    let body = ASK.replace("\"m\"", "\"chat\"");
    let meant = ASK.replace("\"m\"", "\"large\"");
    let picker = gateway.picker.expect("asked for");
    for modes in [(DUPLEX, NONE), (BUFFERED, NONE)] {
        let call = Call::begin(picker, PROCESS);
        call.say(&Ask::new(modes).message());
        if modes.0 == BUFFERED {
            call.hear();
        }
        call.say(&piece(4, body.as_bytes(), true));
        let named = call.hear();
        assert_eq!(named.first(), mock.addr.to_string());
        assert_eq!(named.set["content-length"], meant.len().to_string());
        let sent = if modes.0 == BUFFERED { named } else { call.hear() };
        assert_eq!(sent.body.as_deref(), Some(meant.as_str()));
        call.say(&response(200, &[], false, None));
        assert_eq!(call.hear().set["x-plimsoll-model"], "large");
    }
    is_empty(&gateway);
}

/// Requests through the picker are recorded like any others.
#[test]
fn what_is_picked_is_recorded() {
    let mock = Mock::new(Act::Silence);
    let (traffic, told) = TrafficRecorder::channel(0.0);
    let gateway = recorded(&[&mock], Some(traffic), |spec| {
        spec.picker = Some(PickerSpec::new(([127, 0, 0, 1], 0).into()));
    });
    let (call, _) = Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK);
    streams(&call, DUPLEX);
    assert_eq!(call.ended(), "0");
    drop(Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK).0);
    let mut maker = RowMaker::new(1);
    let mut next = || {
        let one = told.recv_timeout(Duration::from_secs(60)).expect("a row within a minute");
        maker.rows(&one, At::ZERO)
    };
    let (whole, left) = (next(), next());
    assert_eq!((whole.len(), left.len()), (1, 1));
    let row = &whole[0];
    assert_eq!(row.outcome.how, How::Finished, "{row:?}");
    assert_eq!((row.answer.status, row.answer.tokens.output), (Some(200), Some(2)));
    assert_eq!(row.answer.replica.as_deref(), Some("r0"));
    assert!(row.first_token >= row.first_byte && row.end >= row.last_token, "{row:?}");
    assert_eq!(left[0].outcome.how, How::Cancelled);
}

#[test]
fn health_is_that_of_the_pool() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |_| {});
    let says = |service: &str| {
        let call = Call::begin(gateway.picker.expect("asked for"), "/grpc.health.v1.Health/Check");
        call.say(&field(1, service));
        call.hear_bytes()
    };
    let ready = ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"];
    assert!(ready.iter().all(|service| says(service) == [8, 1]), "serving");
    mock.leave();
    until("nobody is there", || !gateway.pool.any_usable());
    assert!(ready.iter().all(|service| says(service) == [8, 2]), "not serving");
    assert_eq!(says("liveness"), [8, 1], "it lives");
    let call = Call::begin(gateway.picker.expect("asked for"), "/grpc.health.v1.Health/Check");
    call.say(&field(1, "nobody"));
    assert!(call.ended().starts_with("5 "));
}

/// A stop lets calls in progress finish, and accepts no new ones.
#[test]
fn a_stop_waits_for_requests_that_were_placed() {
    let mock = Mock::new(Act::Silence);
    let gateway = picking(&[&mock], |_| {});
    let (stopper, picker) = (gateway.stopper(), gateway.picker.expect("asked for"));
    let (call, _) = Call::ask(&gateway, &Ask::new((DUPLEX, DUPLEX)), ASK);
    let pool = std::sync::Arc::clone(&gateway.pool);
    let ends = std::thread::spawn(move || gateway.wait());
    stopper.stop();
    until("it listens no more", || std::net::TcpStream::connect(picker).is_err());
    assert_eq!(pool.shown().0[0].load.requests, 1);
    streams(&call, DUPLEX);
    assert_eq!(call.ended(), "0");
    drop(call);
    ends.join().expect("a thread").expect("a sound end");
    assert_eq!(pool.shown().0[0].load.requests, 0);
}

#[test]
fn a_replica_that_a_proxy_can_not_find_is_refused_in_the_file() {
    let why = |url: &str, change: fn(&mut plimsoll_gateway::GatewaySpec)| {
        let mut spec = plimsoll_gateway::GatewaySpec {
            replicas: vec![plimsoll_gateway::ReplicaSpec::new(url, None)],
            picker: Some(PickerSpec::new(([127, 0, 0, 1], 9002).into())),
            ..Default::default()
        };
        change(&mut spec);
        spec.validate().err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(why("http://10.0.0.1:8000/v1", |_| {}), "");
    assert_eq!(why("http://[::1]:8000", |_| {}), "");
    assert!(why("http://engine:8000", |_| {}).contains("a proxy needs an address"));
    assert!(why("http://10.0.0.1:8000/base", |_| {}).contains("remove /base"));
    let taken = why("http://10.0.0.1:8000", |spec| spec.listen.set_port(9002));
    assert!(taken.contains("127.0.0.1:9002 is taken"), "{taken}");
    // The gateway itself sends copies to shadows, so they may have a host name.
    let shadow = why("http://10.0.0.1:8000", |spec| {
        let mut shadow = plimsoll_gateway::ReplicaSpec::new("http://engine:8000", None);
        shadow.role = ReplicaRole::Shadow;
        spec.replicas.push(shadow);
    });
    assert_eq!(shadow, "");
}

/// Equal requests in equal order go to equal replicas through the picker and through the gateway, under every policy
/// including random picks. Each request stays open until it is released.
#[test]
fn the_picker_chooses_as_the_gateway_does() {
    /// A step of the scenario: open a request with this body, or release the oldest open one.
    enum Step {
        Opens(String, Option<&'static str>),
        LetsGo,
    }
    let system = "a system prompt that many share, and which is longer than a block of 256 bytes. ".repeat(8);
    let steps: Vec<Step> = (0..36)
        .flat_map(|number| {
            let own = format!("question {} {}", number % 7, "x ".repeat(number * 40));
            let body = format!(
                "{{\"model\":\"m\",\"stream\":true,\"max_tokens\":{},\"prompt\":\"{system}{own}\"}}",
                8 + number
            );
            let session = ["a", "b", "c", "d", "e"].get(number % 6).copied();
            let opens = Step::Opens(body, session);
            if number % 3 == 2 { vec![opens, Step::LetsGo] } else { vec![opens] }
        })
        .collect();
    let clock = Clock::start();
    for route in [
        "least_cost",
        "round_robin",
        "random",
        "least_requests",
        "least_tokens",
        "power_of_two",
        "peak_ewma",
        "session",
        "prefix",
    ] {
        let mocks = [0; 4].map(|_| Mock::new(Act::Silence));
        let gateway = || {
            started(&mocks.each_ref(), clock, None, |spec| {
                spec.route = RouteSpec::parse(route).expect("known");
                spec.picker = Some(PickerSpec::new(([127, 0, 0, 1], 0).into()));
                (spec.telemetry, spec.admission.ahead_s) = (None, 0.0);
                // Replicas have fixed names, so that the session's hash does not depend on the ports.
                spec.health.models = None;
            })
        };
        let (by_picker, by_gateway) = (gateway(), gateway());
        let mut picked = Vec::new();
        let mut open = std::collections::VecDeque::new();
        for step in &steps {
            match step {
                Step::Opens(body, session) => {
                    let ask = Ask::new((DUPLEX, DUPLEX));
                    let ask = session.map_or(ask.clone(), |session| ask.with("x-session-id", session));
                    let (call, told) = Call::ask(&by_picker, &ask, body);
                    let named: SocketAddr = told[0].first().parse().expect("an address");
                    picked.push(mocks.iter().position(|mock| mock.addr == named).expect("one of them"));
                    open.push_back(call);
                }
                Step::LetsGo => {
                    drop(open.pop_front());
                    until("it is given back", || booked(&by_picker) as usize == open.len());
                }
            }
        }
        let mut passed = Vec::new();
        let mut open = std::collections::VecDeque::new();
        for step in &steps {
            match step {
                Step::Opens(body, session) => {
                    let before = mocks.each_ref().map(Mock::count);
                    let session =
                        session.map_or(String::new(), |session| format!("x-session-id: {session}\r\n"));
                    let request = format!(
                        "POST /v1/completions HTTP/1.1\r\nHost: a\r\ncontent-type: application/json\r\n{session}content-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    let mut socket = std::net::TcpStream::connect(by_gateway.addr).expect("it listens");
                    std::io::Write::write_all(&mut socket, request.as_bytes()).expect("sent");
                    let reached =
                        || mocks.iter().zip(before).position(|(mock, before)| mock.count() > before);
                    until("it is at a replica", || reached().is_some());
                    passed.push(reached().expect("it was seen"));
                    open.push_back(socket);
                }
                Step::LetsGo => {
                    drop(open.pop_front());
                    until("it is given back", || booked(&by_gateway) as usize == open.len());
                }
            }
        }
        assert_eq!(picked, passed, "{route}");
        let several = (0..4).filter(|place| picked.contains(place)).count();
        assert!(several > 1, "{route}: a choice that is none shows nothing: {picked:?}");
    }
}
