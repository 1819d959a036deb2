//! Retries and ejections in cases that are computed by hand.

use plimsoll_model::{At, Span};
use plimsoll_policy::{
    BreakerSpec, Breaks, Health, ReplicaAvailability, ReplicaOutcome, RetryBudget, RetryBudgetSpec,
};

fn at(s: f64) -> At {
    At::ZERO + Span::from_secs_f64(s)
}

fn pool(replicas: usize) -> Health {
    let mut health = Health::new(&BreakerSpec::default(), replicas);
    (0..replicas as u32).for_each(|replica| health.set_up(replica, true));
    health
}

fn usable(health: &Health, now: At) -> Vec<u32> {
    let mut usable = Vec::new();
    health.usable(now, &mut usable);
    usable
}

/// Of 1000 rejected requests at 100/s, a tenth is retried, plus three per second.
#[test]
fn a_storm_of_refusals_is_retried_by_its_budget() {
    let mut budget = RetryBudget::new(&RetryBudgetSpec::default(), at(0.0));
    let mut retried = 0;
    for request in 0..1_000 {
        let now = at(f64::from(request) * 0.01);
        budget.request(now);
        retried += u32::from(budget.take(now));
    }
    assert!((125..=136).contains(&retried), "{retried}");
    // Without a reserve, exactly a tenth is retried.
    let spec = RetryBudgetSpec { reserve_per_s: 0.0, ..RetryBudgetSpec::default() };
    let mut budget = RetryBudget::new(&spec, at(0.0));
    let retried: u32 = (0..1_000)
        .map(|request| {
            budget.request(at(f64::from(request) * 0.01));
            u32::from(budget.take(at(f64::from(request) * 0.01)))
        })
        .sum();
    assert!((99..=100).contains(&retried), "{retried}");
}

#[test]
fn savings_last_for_ten_seconds_of_traffic() {
    let spec = RetryBudgetSpec { reserve_per_s: 0.0, ..RetryBudgetSpec::default() };
    let mut budget = RetryBudget::new(&spec, at(0.0));
    (0..100_000).for_each(|request| budget.request(at(f64::from(request) * 0.01)));
    // 100/s × 10 s × 0.1
    assert!((budget.left() - 100.0).abs() < 1.0, "{}", budget.left());
}

#[test]
fn a_replica_that_sheds_is_never_ejected_and_its_penalty_decays() {
    let mut health = pool(2);
    for request in 0..1_000 {
        health.ended(0, ReplicaOutcome::Shed(Some(Span::from_secs(30))), at(f64::from(request) * 0.01), 0.5);
    }
    assert_eq!(health.standing(0, at(10.0)), ReplicaAvailability::Ready);
    assert_eq!(usable(&health, at(10.0)), [0, 1]);
    let penalty = |s: f64| health.penalty(0, at(9.99 + s)).as_secs_f64();
    assert!((penalty(0.0) - 30.0).abs() < 1e-6);
    // The time constant is 15 s.
    assert!((penalty(15.0) - 30.0 / std::f64::consts::E).abs() < 1e-6);
    assert_eq!(health.penalty(1, at(10.0)), Span::ZERO);
}

#[test]
fn five_failures_eject_for_a_time_that_doubles_and_one_request_brings_it_back() {
    let mut health = pool(4);
    (0..5).for_each(|_| health.ended(2, ReplicaOutcome::Failed, at(1.0), 1.0));
    assert_eq!(health.standing(2, at(1.0)), ReplicaAvailability::Ejected);
    assert_eq!(usable(&health, at(1.0)), [0, 1, 3]);
    assert_eq!(health.standing(2, at(6.0)), ReplicaAvailability::Trial);
    // The trial is limited to one request at a time.
    assert_eq!(usable(&health, at(6.0)), [0, 1, 2, 3]);
    health.sent(2, at(6.0));
    assert_eq!(usable(&health, at(6.0)), [0, 1, 3]);
    health.ended(2, ReplicaOutcome::Failed, at(6.1), 1.0);
    assert_eq!(health.standing(2, at(16.0)), ReplicaAvailability::Ejected);
    assert_eq!(health.standing(2, at(16.2)), ReplicaAvailability::Trial);
    health.sent(2, at(16.2));
    // A disconnected client is no evidence, so the next request is a trial again.
    health.untold(2);
    assert_eq!(usable(&health, at(16.3)), [0, 1, 2, 3]);
    health.sent(2, at(16.3));
    health.ended(2, ReplicaOutcome::Worked, at(16.4), 1.0);
    assert_eq!(health.standing(2, at(16.4)), ReplicaAvailability::Ready);
}

#[test]
fn half_of_the_requests_failing_ejects_too_and_a_quarter_does_not() {
    let run = |every: u32| {
        let mut health = pool(4);
        for request in 0..100 {
            let verdict = if request % every == 0 { ReplicaOutcome::Failed } else { ReplicaOutcome::Worked };
            health.ended(1, verdict, at(f64::from(request) * 0.1), 0.5);
            if health.standing(1, at(f64::from(request) * 0.1)) != ReplicaAvailability::Ready {
                return true;
            }
        }
        false
    };
    assert!(!run(4));
    let mut health = pool(4);
    // Two failures and a success alternate, so there are never five failures in a row.
    let turns = [ReplicaOutcome::Failed, ReplicaOutcome::Failed, ReplicaOutcome::Worked];
    let ejected = (0..100usize).find(|&request| {
        let now = at(request as f64 * 0.1);
        health.ended(1, turns[request % 3], now, 0.5);
        health.standing(1, now) == ReplicaAvailability::Ejected
    });
    assert!(ejected.is_some_and(|request| (19..23).contains(&request)), "{ejected:?}");
}

#[test]
fn a_third_at_most_is_ejected() {
    let mut health = pool(10);
    for replica in 0..10 {
        (0..5).for_each(|_| health.ended(replica, ReplicaOutcome::Failed, at(1.0), 1.0));
    }
    assert_eq!(usable(&health, at(1.0)), [3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn with_less_than_half_left_all_are_used_that_answer() {
    let spec = BreakerSpec { most_ejected: 1.0, ..BreakerSpec::default() };
    let mut health = Health::new(&spec, 5);
    (0..4).for_each(|replica| health.set_up(replica, true));
    for replica in 0..3 {
        (0..5).for_each(|_| health.ended(replica, ReplicaOutcome::Failed, at(1.0), 1.0));
    }
    // Three of the four healthy replicas are ejected; the fifth is down.
    assert_eq!(usable(&health, at(1.0)), [0, 1, 2, 3]);
}

#[test]
fn silence_ejects_where_streams_run_and_not_before_its_patience() {
    let mut health = pool(3);
    let (patience, now) = (Span::from_secs(8), at(20.0));
    assert!(!health.silent(0, Span::from_secs(2), Span::ZERO, now, 0.5));
    assert!(!health.silent(0, Span::from_secs(7), patience, now, 0.5));
    assert!(health.silent(0, Span::from_secs(9), patience, now, 0.5));
    assert_eq!(health.standing(0, now), ReplicaAvailability::Silent);
    assert!(!health.silent(0, Span::from_secs(9), patience, now, 0.5), "it is ejected already");
}

#[test]
fn nobody_is_up_until_somebody_says_so() {
    let mut health = Health::new(&BreakerSpec::default(), 2);
    assert!(usable(&health, at(0.0)).is_empty());
    health.set_up(1, true);
    assert_eq!(usable(&health, at(0.0)), [1]);
    health.set_draining(1, true);
    assert!(usable(&health, at(0.0)).is_empty());
}

/// Returns the request after which replica 0 was first ejected. Requests go to the replicas in rotation.
fn ejected(replicas: usize, requests: u32, outcome: impl Fn(u32, u32) -> ReplicaOutcome) -> Option<u32> {
    let mut health = pool(replicas);
    (0..requests).find(|&request| {
        let (replica, now) = (request % replicas as u32, at(f64::from(request) * 0.05));
        health.ended(replica, outcome(replica, request), now, 1.0);
        health.standing(0, now) != ReplicaAvailability::Ready
    })
}

#[test]
fn a_replica_that_refuses_what_its_peers_answer_is_ejected_within_fifty_requests() {
    use ReplicaOutcome::{Refused, Worked};
    let alone = |replica: u32, _| if replica == 0 { Refused } else { Worked };
    assert!(ejected(2, 50, alone).is_some() && ejected(4, 80, alone).is_some());
    // Every third client sends an invalid request, independent of the replica.
    let mixed =
        |replica: u32, request: u32| if replica == 0 || request.is_multiple_of(3) { Refused } else { Worked };
    assert!(ejected(2, 50, mixed).is_some());
}

#[test]
fn clients_mistakes_eject_nobody() {
    use ReplicaOutcome::{Refused, Worked};
    assert_eq!(ejected(2, 1_000, |_, _| Refused), None);
    assert_eq!(ejected(1, 1_000, |_, _| Refused), None);
    for share in [2, 3, 4, 10] {
        let mixed = |_, request: u32| if (request / 2).is_multiple_of(share) { Refused } else { Worked };
        assert_eq!(ejected(2, 1_000, mixed), None, "{share}");
        let most = |_, request: u32| if (request / 2).is_multiple_of(share) { Worked } else { Refused };
        assert_eq!(ejected(2, 1_000, most), None, "{share}");
    }
}

#[test]
fn what_was_compared_decides_before_shares_do() {
    let mut health = pool(3);
    assert!(!health.is_doubted(0), "one refusal is a client's");
    health.ended(0, ReplicaOutcome::Refused, at(1.0), 1.0);
    assert!(health.is_doubted(0));
    health.ended(0, ReplicaOutcome::Refused, at(1.0), 1.0);
    health.compared(0, true, at(1.0), 1.0);
    // The peer refused too, so the next comparison needs twice as many refusals.
    health.ended(0, ReplicaOutcome::Refused, at(1.0), 1.0);
    assert!(!health.is_doubted(0));
    for _ in 0..5 {
        health.ended(0, ReplicaOutcome::Refused, at(2.0), 1.0);
        health.compared(0, false, at(2.0), 1.0);
    }
    assert_eq!(health.standing(0, at(2.0)), ReplicaAvailability::Ejected);
    // On trial, one refusal is sufficient if the peers answer.
    (0..20).for_each(|_| health.ended(1, ReplicaOutcome::Worked, at(7.0), 1.0));
    health.sent(0, at(7.5));
    health.ended(0, ReplicaOutcome::Refused, at(7.5), 1.0);
    assert_eq!(health.standing(0, at(8.0)), ReplicaAvailability::Ejected);
}

/// A replica with fast failures must not appear idle.
#[test]
fn failures_cost_and_pages_prove_nothing() {
    let mut health = pool(2);
    (0..3).for_each(|_| health.ended(0, ReplicaOutcome::Failed, at(1.0), 1.0));
    let first = health.penalty(0, at(1.0));
    assert!(first > Span::ZERO);
    health.ended(0, ReplicaOutcome::Failed, at(1.0), 1.0);
    assert_eq!(health.penalty(0, at(1.0)), Span(2 * first.0), "more for each");
    (0..2).for_each(|_| health.ended(1, ReplicaOutcome::Refused, at(1.0), 1.0));
    assert_eq!(health.penalty(1, at(1.0)), Span::ZERO, "mistakes come in pairs");
    health.ended(1, ReplicaOutcome::Refused, at(1.0), 1.0);
    assert!(health.penalty(1, at(1.0)) > Span::ZERO);
    health.ended(0, ReplicaOutcome::Neutral, at(1.0), 1.0);
    health.ended(0, ReplicaOutcome::Failed, at(1.0), 1.0);
    assert_eq!(
        health.standing(0, at(1.0)),
        ReplicaAvailability::Ejected,
        "a page between failures is no success"
    );
}

#[test]
fn a_slow_page_is_not_death_and_all_are_used_where_none_is_up() {
    let mut health = pool(3);
    health.set_slow(0);
    assert_eq!(usable(&health, at(0.0)), [1, 2]);
    health.set_slow(1);
    health.set_up(2, false);
    assert_eq!(usable(&health, at(0.0)), [0, 1], "the third does not even listen");
    assert!(!health.is_gone(0) && health.is_gone(2));
    health.set_draining(1, true);
    assert_eq!(usable(&health, at(0.0)), [0]);
    health.set_up(0, false);
    assert!(usable(&health, at(0.0)).is_empty());
}

#[test]
fn requests_that_clients_give_up_one_after_another_are_silence_where_peers_answer() {
    let mut health = pool(2);
    (0..9).for_each(|_| assert!(!health.given_up(0, at(9.0), 1.0), "nobody answers: they are all slow"));
    (0..10).for_each(|_| health.ended(1, ReplicaOutcome::Worked, at(9.5), 1.0));
    assert!(health.given_up(0, at(9.6), 1.0));
    assert_eq!(health.standing(0, at(9.6)), ReplicaAvailability::Silent);
}

#[test]
fn a_request_that_breaks_replicas_gets_no_third() {
    let mut breaks = Breaks::default();
    assert!(breaks.broke(7, true, at(0.0)), "one other may show that it was not the request");
    assert!(breaks.may_send(7, at(1.0)));
    assert!(!breaks.broke(7, true, at(1.0)));
    assert!(!breaks.may_send(7, at(300.0)) && breaks.may_send(8, at(1.0)));
    assert!(breaks.may_send(7, at(602.0)));
    // If the processes survive, the cause is uncertain, so the memory is short.
    assert!(breaks.broke(8, false, at(0.0)) && !breaks.broke(8, false, at(0.0)));
    assert!(!breaks.may_send(8, at(2.0)) && breaks.may_send(8, at(3.0)));
    breaks.broke(9, true, at(0.0));
    breaks.answered(9);
    assert!(breaks.broke(9, true, at(1.0)), "it was answered in between");
    (0..10_000).for_each(|request| assert!(breaks.broke(request + 100, true, at(5.0))));
}
