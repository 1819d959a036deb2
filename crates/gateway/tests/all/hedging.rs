//! Hedging: a second replica for a request whose first token is late.

use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_gateway::Gateway;
use plimsoll_gateway::traffic::{TrafficRecorder, TrafficRow, TryEnd};
use plimsoll_policy::{HedgeSpec, RouteSpec};

use crate::kit::{Act, Mock, ask, gateway, is_empty, recorded, until};

const FAST: Act = Act::Stream(3, Duration::from_millis(1));

/// Returns the number of hedged requests.
fn hedged(gateway: &Gateway) -> usize {
    gateway.stats.hedges.iter().map(|hedges| hedges.load(Ordering::Relaxed) as usize).sum()
}

/// Returns a gateway whose two replicas have answered 200 requests fast, in rotation.
fn taught(a: &Mock, b: &Mock, hedge: HedgeSpec) -> Gateway {
    let gateway = gateway(&[a, b], |spec| {
        spec.route = RouteSpec::RoundRobin {};
        spec.breaker.silence_s = 0.0;
        spec.hedge = Some(hedge);
    });
    (0..200).for_each(|_| assert_eq!(ask(&gateway).status, 200));
    gateway
}

fn all_may() -> HedgeSpec {
    HedgeSpec { share: 1.0, saturation: 1.0, ..HedgeSpec::default() }
}

fn withheld(gateway: &Gateway, why: &str) -> bool {
    let mut page = plimsoll_wire::prometheus::PrometheusPage::new();
    gateway.stats.write(&mut page);
    let line = format!("plimsoll_gateway_hedges_withheld_total{{why=\"{why}\"}} ");
    page.finish().lines().any(|of| of.starts_with(&line) && !of.ends_with(" 0"))
}

#[test]
fn one_that_is_late_with_its_first_token_is_answered_by_the_other_and_cancelled() {
    // The replica stalls with and without a response head.
    for act in [Act::Head, Act::Silence] {
        let (a, b) = (Mock::new(FAST), Mock::new(FAST));
        let gateway = taught(&a, &b, all_may());
        a.set(act.clone());
        // On a busy machine, a request may have been late before.
        let (before, gone, already) = (a.count(), a.gone.load(Ordering::SeqCst), hedged(&gateway));
        // Each hedge is followed by a penalty on the replica.
        until("two requests were late there", || {
            let answer = ask(&gateway);
            assert_eq!((answer.status, answer.header("x-plimsoll-replica")), (200, Some("r1")), "{act:?}");
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
            assert_eq!(answer.text().matches("word").count(), 3, "{}", answer.text());
            a.count() - before >= 2
        });
        let late = a.count() - before;
        until("the slower attempts are gone", || a.gone.load(Ordering::SeqCst) - gone == late);
        assert_eq!(hedged(&gateway) - already, late);
        is_empty(&gateway);
    }
}

#[test]
fn without_a_share_left_it_is_waited_for() {
    let (a, b) = (Mock::new(FAST), Mock::new(FAST));
    let gateway = taught(&a, &b, HedgeSpec { share: 0.0, ..all_may() });
    let slow = Act::Stream(3, Duration::from_millis(1));
    a.set(Act::Late(Duration::from_millis(600), Box::new(slow)));
    let answers: Vec<_> = (0..4).map(|_| ask(&gateway)).collect();
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.is_whole()));
    assert!(answers.iter().any(|answer| answer.header("x-plimsoll-replica") == Some("r0")));
    // On a busy machine, another reason may come first.
    until("its share keeps one alone", || {
        assert_eq!(ask(&gateway).status, 200);
        withheld(&gateway, "over_share")
    });
    assert_eq!(hedged(&gateway), 0);
    is_empty(&gateway);
}

#[test]
fn when_one_of_two_fails_the_other_goes_on() {
    let (a, b) = (Mock::new(FAST), Mock::new(FAST));
    let gateway = taught(&a, &b, all_may());
    a.set(Act::Late(Duration::from_millis(500), Box::new(FAST)));
    b.set(Act::Late(Duration::from_millis(100), Box::new(Act::Hang)));
    // If the slow replica is first, the hedge breaks. If the broken one is first, a normal retry follows.
    for _ in 0..4 {
        let answer = ask(&gateway);
        assert_eq!((answer.status, answer.header("x-plimsoll-replica")), (200, Some("r0")));
        assert!(answer.is_whole());
    }
    is_empty(&gateway);
}

/// The recording of a hedged request has both attempts, the answering one last, and no failure.
#[test]
fn both_attempts_are_recorded_and_the_one_that_answered_is_last() {
    let (a, b) = (Mock::new(FAST), Mock::new(FAST));
    let (traffic, told) = TrafficRecorder::channel(0.0);
    let gateway = recorded(&[&a, &b], Some(traffic), |spec| {
        spec.route = RouteSpec::RoundRobin {};
        spec.breaker.silence_s = 0.0;
        spec.hedge = Some(all_may());
    });
    (0..200).for_each(|_| assert_eq!(ask(&gateway).status, 200));
    // The first replica is late but still earlier, so the second attempt is cancelled.
    a.set(Act::Late(Duration::from_millis(500), Box::new(FAST)));
    b.set(Act::Head);
    (0..2).for_each(|_| assert_eq!(ask(&gateway).status, 200));
    is_empty(&gateway);
    let hedged: Vec<Box<TrafficRow>> = told.try_iter().filter(|told| told.tries.len() > 1).collect();
    assert_eq!(hedged.len(), 2);
    for told in hedged {
        let [slower, answered] = &told.tries[..] else { panic!("two tries: {:?}", told.tries) };
        assert_eq!((slower.how.clone(), slower.replica.name.as_str()), (TryEnd::Superseded, "r1"));
        assert_eq!((answered.how.clone(), answered.replica.name.as_str()), (TryEnd::Whole, "r0"));
        assert!(slower.first.is_none() && answered.first.is_some());
    }
}
