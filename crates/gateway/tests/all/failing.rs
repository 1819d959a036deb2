//! Replicas that shed, fail, hang, restart or disappear.

use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_gateway::Gateway;
use plimsoll_gateway::stats::RequestEnd;
use plimsoll_policy::ReplicaAvailability;

use crate::kit::{ASK, Act, Mock, ask, gateway, is_empty, request, send, until};

const SHED: Act = Act::Status(429, "retry-after: 30\r\n");

#[test]
fn a_storm_of_429_is_not_multiplied_and_keeps_its_retry_after() {
    let (a, b) = (Mock::new(SHED), Mock::new(SHED));
    let gateway = gateway(&[&a, &b], |_| {});
    let began = Instant::now();
    for _ in 0..300 {
        let answer = ask(&gateway);
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("30")));
    }
    let attempts = a.count() + b.count();
    // The retries are a tenth of the requests, plus the reserve of three per s.
    let most = 300.0 * 1.1 + 3.0 * (2.0 + began.elapsed().as_secs_f64());
    assert!((300..=most as usize).contains(&attempts), "{attempts} attempts for 300 requests");
    assert_eq!(gateway.stats.ended(RequestEnd::Shed), 300);
    is_empty(&gateway);
}

#[test]
fn after_sheds_there_is_no_blackout() {
    let shed = Act::Status(503, "retry-after: 30\r\n");
    let (a, b) = (Mock::new(shed.clone()), Mock::new(shed));
    let gateway = gateway(&[&a, &b], |_| {});
    (0..8).for_each(|_| assert_eq!(ask(&gateway).status, 503));
    a.set(Act::Answer);
    b.set(Act::Answer);
    let refused = (0..50).filter(|_| ask(&gateway).status != 200).count();
    assert_eq!(refused, 0, "both replicas worked again");
    is_empty(&gateway);
}

#[test]
fn one_that_sheds_is_left_alone_while_the_other_has_room() {
    let (a, b) = (Mock::new(SHED), Mock::new(Act::Answer));
    for route in ["least_cost", "least_requests"] {
        let gateway = gateway(&[&a, &b], |spec| {
            spec.route = plimsoll_policy::RouteSpec::parse(route).expect("sound");
        });
        let before = a.count();
        let answers: Vec<u16> = (0..100).map(|_| ask(&gateway).status).collect();
        assert!(answers.iter().all(|&status| status == 200), "{route}: {answers:?}");
        assert!(a.count() - before <= 3, "{route}: {} went to the one that sheds", a.count() - before);
        is_empty(&gateway);
    }
}

#[test]
fn a_burst_of_503_heals() {
    let (a, b) = (Mock::new(Act::Status(503, "")), Mock::new(Act::Status(503, "")));
    let gateway = gateway(&[&a, &b], |_| {});
    for _ in 0..40 {
        assert_eq!(ask(&gateway).status, 503);
    }
    a.set(Act::Answer);
    b.set(Act::Answer);
    let began = Instant::now();
    until("ten answers in a row", || (0..10).all(|_| ask(&gateway).status == 200));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    is_empty(&gateway);
}

#[test]
fn a_replica_that_hangs_up_is_replaced_before_the_client_hears_of_it_and_ejected() {
    let (a, b) = (Mock::new(Act::Hang), Mock::new(Act::Answer));
    let gateway = gateway(&[&a, &b], |_| {});
    let statuses: Vec<u16> = (0..100).map(|_| ask(&gateway).status).collect();
    assert!(statuses.iter().all(|&status| status == 200), "{statuses:?}");
    // Five consecutive failures eject it; the first attempt on a pooled connection may count twice.
    assert!(a.count() <= 12, "{}", a.count());
    until("it is ejected", || {
        gateway.pool.shown().0[0].standing != ReplicaAvailability::Ready || a.count() < 5
    });
    is_empty(&gateway);
}

#[test]
fn all_gone_and_back_loses_no_request() {
    let a = Mock::new(Act::Answer);
    let addr = a.addr;
    let gateway = gateway(&[&a], |spec| spec.admission.wait_s = 20.0);
    assert_eq!(ask(&gateway).status, 200);
    a.leave();
    until("it is seen to be gone", || {
        // Either the health check or a request with a refused connection marks it as down.
        !gateway.pool.is_up(0)
    });
    let at = gateway.addr;
    let waiting: Vec<_> = (0..10)
        .map(|_| std::thread::spawn(move || crate::kit::send(at, &crate::kit::request(crate::kit::ASK))))
        .collect();
    sleep(Duration::from_millis(700));
    let back = Mock::at(addr, Act::Answer);
    for waited in waiting {
        let answer = waited.join().expect("a thread").expect("an answer");
        assert_eq!(answer.status, 200);
        let queue: u64 = answer.header("x-plimsoll-queue-ms").expect("said").parse().expect("a number");
        assert!(queue >= 300, "{queue}");
    }
    assert_eq!(back.count(), 10);
    is_empty(&gateway);
}

#[test]
fn nobody_there_is_503_in_time_with_a_word_on_when_to_come_back() {
    let a = Mock::new(Act::Answer);
    let gateway = gateway(&[&a], |spec| spec.admission.wait_s = 0.5);
    a.leave();
    until("it is seen to be gone", || !gateway.pool.is_up(0));
    let began = Instant::now();
    let answer = ask(&gateway);
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert!(answer.text().contains("\"code\":\"no_replica\""), "{}", answer.text());
    assert!(began.elapsed() >= Duration::from_millis(400));
    assert_eq!(gateway.stats.ended(RequestEnd::NoReplica), 1);
}

#[test]
fn a_wedged_replica_gets_no_new_streams_while_the_old_ones_stand_still() {
    // The replica stalls after the first token, or after the response head.
    for act in [Act::Wedge, Act::Head] {
        let (a, b) = (Mock::new(act), Mock::new(Act::Stream(3, Duration::from_millis(1))));
        let gateway = gateway(&[&a, &b], |spec| {
            spec.breaker.silence_s = 0.5;
            spec.limits.keep_alive_s = 0.0;
        });
        let at = gateway.addr;
        let mut stuck = Vec::new();
        until("a stream on the wedged one", || {
            stuck.push(std::thread::spawn(move || {
                crate::kit::send(at, &crate::kit::request(crate::kit::ASK))
            }));
            sleep(Duration::from_millis(20));
            a.count() > 0
        });
        until("it is seen", || gateway.pool.shown().0[0].standing == ReplicaAvailability::Silent);
        let before = a.count();
        (0..30).for_each(|_| assert_eq!(ask(&gateway).status, 200));
        assert_eq!(a.count(), before, "no new stream went there");
        drop(gateway);
    }
}

/// Runs eight clients in a closed loop. Returns the statuses with their times.
pub fn keep_asking(gateway: &Gateway, lasts: Duration) -> Vec<(Instant, u16)> {
    let (at, ends) = (gateway.addr, Instant::now() + lasts);
    let client = move || {
        let mut all = Vec::new();
        while Instant::now() < ends {
            let answer = send(at, &request(ASK)).expect("an answer");
            all.push((Instant::now(), answer.status));
            if answer.status != 200 {
                sleep(Duration::from_millis(10));
            }
        }
        all
    };
    let clients: Vec<_> = (0..8).map(|_| std::thread::spawn(client)).collect();
    clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
}

#[test]
fn a_replica_ten_times_slower_gets_little_and_is_not_ejected() {
    let slow = Mock::new(Act::Stream(10, Duration::from_millis(30)));
    let fast = Mock::new(Act::Stream(10, Duration::from_millis(3)));
    let gateway = gateway(&[&slow, &fast], |_| {});
    let answers = keep_asking(&gateway, Duration::from_secs(3));
    assert!(answers.iter().all(|(_, status)| *status == 200));
    assert_eq!(slow.count() + fast.count(), answers.len(), "each was sent once");
    let share = slow.count() as f64 / answers.len() as f64;
    assert!(share > 0.0 && share < 0.25, "{share} of {} went to the slow one", answers.len());
    assert_eq!(gateway.pool.shown().0[0].standing, ReplicaAvailability::Ready);
    is_empty(&gateway);
}

/// A metastable failure persists after its cause. Here, all requests succeed soon after a storm of rejections.
#[test]
fn once_a_storm_is_over_requests_are_answered_again() {
    for trigger in [SHED, Act::Status(500, ""), Act::Hang] {
        let (a, b) = (Mock::new(trigger.clone()), Mock::new(trigger.clone()));
        let gateway = gateway(&[&a, &b], |_| {});
        let (heal, back) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| keep_asking(&gateway, Duration::from_secs(8)));
            sleep(Duration::from_secs(1));
            [&a, &b].iter().for_each(|mock| mock.set(Act::Answer));
            let heal = Instant::now();
            (heal, asking.join().expect("clients"))
        });
        let after: Vec<u16> = back
            .iter()
            .filter(|(at, _)| *at >= heal + Duration::from_secs(5))
            .map(|(_, status)| *status)
            .collect();
        let good = after.iter().filter(|status| **status == 200).count();
        assert!(good * 100 >= after.len() * 95 && good > 20, "{trigger:?}: {good} of {}", after.len());
        is_empty(&gateway);
    }
}

/// The other replica answers the retried requests, which shows that the first one is at fault.
#[test]
fn a_replica_that_refuses_what_the_other_answers_is_ejected_and_costs_its_clients_little() {
    for act in
        [Act::Status(401, ""), Act::Status(404, ""), Act::Text("{\"error\":{\"code\":500}}".to_owned())]
    {
        let (a, b) = (Mock::new(act.clone()), Mock::new(Act::Answer));
        let gateway = gateway(&[&a, &b], |_| {});
        let mut statuses: Vec<u16> = (0..50).map(|_| ask(&gateway).status).collect();
        // On a busy machine the router may avoid the replica before it has the failures of an ejection.
        while gateway.pool.shown().0[0].standing == ReplicaAvailability::Ready && statuses.len() < 400 {
            statuses.push(ask(&gateway).status);
        }
        assert!(a.count() <= 12, "{act:?}: {}", a.count());
        assert_eq!(gateway.pool.shown().0[0].standing, ReplicaAvailability::Ejected, "{act:?}");
        let refused = statuses.iter().filter(|status| **status != 200).count();
        assert!(refused <= 3, "{act:?}: {statuses:?}");
        is_empty(&gateway);
    }
}

#[test]
fn a_clients_own_mistake_ejects_nobody_and_is_not_asked_twice_of_one_replica() {
    let a = Mock::new(Act::Status(400, ""));
    let gateway = gateway(&[&a], |_| {});
    (0..60).for_each(|_| assert_eq!(ask(&gateway).status, 400));
    assert_eq!((a.count(), gateway.stats.ended(RequestEnd::Refused)), (60, 60));
    assert_eq!(gateway.pool.shown().0[0].standing, ReplicaAvailability::Ready);
    is_empty(&gateway);
    let (a, b) = (Mock::new(Act::Status(422, "")), Mock::new(Act::Status(422, "")));
    let gateway = crate::kit::gateway(&[&a, &b], |_| {});
    (0..60).for_each(|_| assert_eq!(ask(&gateway).status, 422));
    assert!(gateway.pool.shown().0.iter().all(|shown| shown.standing == ReplicaAvailability::Ready));
    assert!(a.count().min(b.count()) >= 10 && a.count() + b.count() <= 75, "{} {}", a.count(), b.count());
    is_empty(&gateway);
}
