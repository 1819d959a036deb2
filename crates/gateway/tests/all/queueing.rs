//! The queue: order, waiting time, and responses to rejected requests.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_client::Clock;
use plimsoll_gateway::budget::BudgetStatusPages;
use plimsoll_gateway::stats::{RequestEnd, RequestStage};
use plimsoll_gateway::traffic::rows::RowMaker;
use plimsoll_gateway::{Gateway, GatewaySpec, ReplicaSpec, TrafficRecorder};
use plimsoll_model::{At, BudgetState, How};

use crate::kit::{ASK, Act, Answer, Mock, ask, gateway, is_empty, request, send, until};

/// Returns a request with additional header lines.
fn with(headers: &str) -> Vec<u8> {
    let text = String::from_utf8(request(ASK)).expect("text");
    text.replace("Connection: close\r\n", &format!("Connection: close\r\n{headers}")).into_bytes()
}

fn later(addr: SocketAddr, headers: &str) -> JoinHandle<Answer> {
    let bytes = with(headers);
    std::thread::spawn(move || send(addr, &bytes).expect("an answer"))
}

/// Limits the replica to one request, so that the queue is predictable.
fn one_at_a_time(spec: &mut GatewaySpec) {
    spec.admission.per_replica = Some(1);
    spec.admission.tenant_header = Some("x-tenant".to_owned());
}

fn waiting(gateway: &plimsoll_gateway::Gateway) -> u32 {
    gateway.pool.queued().0.iter().map(|held| held.requests).sum()
}

#[test]
fn a_tenant_with_few_requests_does_not_wait_behind_one_with_many() {
    let mock = Mock::new(Act::Stream(2, Duration::from_millis(20)));
    let gateway = gateway(&[&mock], one_at_a_time);
    let (said, order) = mpsc::channel();
    let mut threads = Vec::new();
    for (tenant, count) in [("many", 30), ("few", 5)] {
        let before = waiting(&gateway);
        for _ in 0..count {
            let (said, addr) = (said.clone(), gateway.addr);
            threads.push(std::thread::spawn(move || {
                let answer = send(addr, &with(&format!("X-Tenant: {tenant}\r\n"))).expect("an answer");
                assert_eq!(answer.status, 200);
                said.send(tenant).expect("somebody listens");
            }));
        }
        // One of the first requests is in progress or already finished.
        until("they wait", || waiting(&gateway) >= (before + count).min(20));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("answered"));
    let order: Vec<&str> = order.try_iter().collect();
    let last = order.iter().rposition(|&tenant| tenant == "few").expect("five of them");
    let before = order[..last].iter().filter(|&&tenant| tenant == "many").count();
    // Fair turns put five of the many between the five, and up to ten were served before the few arrived. In order of
    // arrival it would be 30.
    assert!(before <= 20, "{before} of the many went before the last of the few: {order:?}");
    is_empty(&gateway);
    assert_eq!(gateway.stats.ended(RequestEnd::Answered), 35);
}

#[test]
fn the_class_that_goes_first_goes_first() {
    let mock = Mock::new(Act::Stream(2, Duration::from_millis(30)));
    let gateway = gateway(&[&mock], one_at_a_time);
    let bulk: Vec<_> = (0..10).map(|_| later(gateway.addr, "X-Plimsoll-Class: bulk\r\n")).collect();
    until("they wait", || waiting(&gateway) >= 8);
    let began = Instant::now();
    assert_eq!(ask(&gateway).status, 200);
    let took = began.elapsed();
    let left = waiting(&gateway);
    assert!(left >= 5, "{left} of the bulk still waited after {took:?}");
    bulk.into_iter().for_each(|one| assert_eq!(one.join().expect("a thread").status, 200));
}

#[test]
fn the_wait_is_on_the_answer_and_was_foreseen() {
    let mock = Mock::new(Act::Stream(3, Duration::from_millis(100)));
    let gateway = gateway(&[&mock], one_at_a_time);
    let all: Vec<_> = (0..5).map(|_| later(gateway.addr, "")).collect();
    let mut waits: Vec<u64> = all
        .into_iter()
        .map(|one| {
            one.join().expect("a thread").header("x-plimsoll-queue-ms").expect("said").parse().expect("ms")
        })
        .collect();
    waits.sort_unstable();
    // Each response takes 300 ms, and the last request waits for four of them.
    assert_eq!(waits[0], 0);
    assert!((1_150..5_000).contains(&waits[4]), "{waits:?}");
    let queued = gateway.stats.sum(RequestStage::Queue).as_secs_f64();
    assert!(
        (queued - waits.iter().sum::<u64>() as f64 / 1e3).abs() < 0.02,
        "{queued} s in the metrics, {waits:?}"
    );
}

#[test]
fn where_the_queue_is_full_the_next_hears_when_to_come_back() {
    let mock = Mock::new(Act::Wedge);
    let gateway = gateway(&[&mock], |spec| {
        one_at_a_time(spec);
        spec.admission.requests = 2;
        spec.breaker.silence_s = 0.0;
    });
    let client = || {
        let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
        socket.write_all(&request(ASK)).expect("sent");
        socket
    };
    let served = client();
    until("one is sent on", || mock.count() == 1);
    let waiters = [client(), client()];
    until("two wait", || waiting(&gateway) == 2);
    let answer = ask(&gateway);
    assert_eq!(answer.status, 429);
    assert!(answer.text().contains("\"code\":\"queue_full\""), "{}", answer.text());
    let after: u64 = answer.header("retry-after").expect("said").parse().expect("seconds");
    assert!((1..=60).contains(&after), "{after}");
    assert_eq!(gateway.stats.ended(RequestEnd::Overloaded), 1);
    // A disconnected client leaves the queue, and its load is released. The one in service disconnects last, because
    // otherwise the next one would take its place.
    drop(waiters);
    until("nobody waits", || waiting(&gateway) == 0);
    drop(served);
    is_empty(&gateway);
    assert_eq!(mock.count(), 1, "those that waited were never sent");
    assert_eq!(gateway.stats.ended(RequestEnd::Cancelled), 3);
}

#[test]
fn a_storm_with_short_deadlines_is_refused_early_and_is_over_when_it_is_over() {
    let mock = Mock::new(Act::Stream(2, Duration::from_millis(50)));
    let gateway = gateway(&[&mock], one_at_a_time);
    assert_eq!(ask(&gateway).status, 200);
    let all: Vec<_> = (0..60).map(|_| later(gateway.addr, "X-Slo-Ttft-Ms: 400\r\n")).collect();
    let answers: Vec<Answer> = all.into_iter().map(|one| one.join().expect("a thread")).collect();
    let of = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!(of(200) + of(429) + of(504), 60, "each has one answer");
    assert!(of(200) >= 1, "some are in time");
    assert!(of(429) + of(504) >= 20, "60 of a tenth of a second each are not: {} + {}", of(429), of(504));
    for answer in &answers {
        match answer.status {
            429 => assert!(answer.header("retry-after").is_some(), "{answer:?}"),
            504 => assert!(answer.text().contains("\"code\":\"queue_timeout\""), "{answer:?}"),
            _ => {}
        }
    }
    assert_eq!(mock.count(), 1 + of(200), "what was refused was never sent");
    is_empty(&gateway);
    let began = Instant::now();
    let late = send(gateway.addr, &with("X-Slo-Ttft-Ms: 20000\r\n")).expect("an answer");
    assert_eq!(late.status, 200);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(gateway.stats.ended(RequestEnd::Answered) as usize, 2 + of(200));
    assert_eq!(gateway.stats.ended(RequestEnd::Overloaded) as usize, of(429));
    assert_eq!(gateway.stats.ended(RequestEnd::Expired) as usize, of(504));
}

#[test]
fn headers_that_mean_nothing_are_named() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |_| {});
    for (headers, code) in [
        ("X-Plimsoll-Class: gold\r\n", "unknown_class"),
        ("X-Slo-Ttft-Ms: soon\r\n", "bad_slo"),
        ("X-Slo-Ttft-Ms: NaN\r\n", "bad_slo"),
        ("X-Slo-Ttft-Ms: -5\r\n", "bad_slo"),
    ] {
        let answer = send(gateway.addr, &with(headers)).expect("an answer");
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains(code), "{headers:?}: {}", answer.text());
    }
    assert_eq!(mock.count(), 0);
    assert_eq!(gateway.stats.ended(RequestEnd::Bad), 4);
}

/// The lower class is rejected only while the budget is broken, and each request is recorded with its class.
#[test]
fn a_broken_budget_holds_bulk_back_and_nobody_else() {
    let mock = Mock::new(Act::Answer);
    let (traffic, told) = TrafficRecorder::channel(0.0);
    let spec = GatewaySpec {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        replicas: vec![ReplicaSpec::new(format!("http://{}", mock.addr), None)],
        threads: 1,
        ..GatewaySpec::default()
    };
    let gateway = Gateway::recording(&spec, Clock::start(), Some(&traffic)).expect("a sound spec");
    until("the replica answers", || gateway.pool.is_up(0));
    let bulk = || send(gateway.addr, &with("X-Plimsoll-Class: bulk\r\n")).expect("an answer");
    let mut statuses = Vec::new();
    for state in [BudgetState::Green, BudgetState::Amber, BudgetState::Red, BudgetState::Green] {
        traffic.budget.tell(state, BudgetStatusPages::default());
        let answer = bulk();
        statuses.push((answer.status, ask(&gateway).status));
        if state == BudgetState::Red {
            let after: u64 = answer.header("retry-after").expect("said").parse().expect("seconds");
            assert!((40..=60).contains(&after), "{after}");
            assert!(answer.text().contains("\"code\":\"held_back\""), "{}", answer.text());
        }
    }
    assert_eq!(statuses, [(200, 200), (200, 200), (429, 200), (200, 200)]);
    assert_eq!(
        (gateway.stats.ended(RequestEnd::HeldBack), gateway.stats.ended(RequestEnd::Answered)),
        (1, 7)
    );
    is_empty(&gateway);
    drop(gateway);
    drop(traffic);
    let mut maker = RowMaker::new(1);
    let rows: Vec<_> =
        told.iter().map(|told| (told.held_back, maker.rows(&told, At::ZERO).remove(0))).collect();
    let classes: Vec<u16> = rows.iter().map(|(_, row)| row.class).collect();
    assert_eq!(classes, [1, 0, 1, 0, 1, 0, 1, 0]);
    let held: Vec<_> = rows.iter().filter(|(held_back, _)| *held_back).map(|(_, row)| row).collect();
    assert_eq!((held.len(), held[0].outcome.how, held[0].sent), (1, How::Shed, None));
    assert!(held[0].answer.error.as_ref().is_some_and(|why| why.contains("budget")), "{:?}", held[0].answer);
}

/// The explanation of a queued request has the state at the time of dispatch.
#[test]
fn a_request_that_waited_is_explained_by_what_was_there_at_its_turn() {
    let mock = Mock::new(Act::Stream(2, Duration::from_millis(20)));
    let (traffic, told) = TrafficRecorder::channel(1.0);
    let mut spec = GatewaySpec {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        replicas: vec![ReplicaSpec::new(format!("http://{}", mock.addr), Some("r0".to_owned()))],
        threads: 1,
        ..GatewaySpec::default()
    };
    one_at_a_time(&mut spec);
    let gateway = Gateway::recording(&spec, Clock::start(), Some(&traffic)).expect("a sound spec");
    until("the replica answers", || gateway.pool.is_up(0));
    let asking: Vec<_> = (0..5).map(|_| later(gateway.addr, "")).collect();
    asking.into_iter().for_each(|one| assert_eq!(one.join().expect("answered").status, 200));
    is_empty(&gateway);
    drop((gateway, traffic));
    let all: Vec<_> = told.iter().collect();
    assert!(all.iter().filter(|told| told.held > plimsoll_model::Span::ZERO).count() >= 3);
    for told in &all {
        let (_, choices) = told.explained.as_ref().expect("each is explained");
        let [choice] = &choices[..] else { panic!("one choice: {choices:?}") };
        let winner = choice.winner().expect("it is among the candidates");
        assert_eq!((choice.chosen.as_str(), winner.requests), ("r0", 0), "it was free when their turn came");
        assert!(winner.terms.is_some_and(|terms| terms.cost_s() > 0.0));
    }
}
