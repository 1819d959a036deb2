//! Load of other clients from metrics: cases computed by hand, and wrong metrics.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::telemetry::{STALE, STILL};
use plimsoll_policy::{
    AdmissionControlSpec, AdmissionController, AdmissionDecision, AdmissionParams, PageStanding,
    QueuedRequestFacts, ReplicaLoad, ReplicaOutcome, ReportedLoad, RequestFacts, RouteSpec, SentRequest,
    Telemetry,
};
use proptest::prelude::*;

fn at(ms: i64) -> At {
    At(ms * 1_000_000)
}

fn page(running: f64, waiting: f64) -> ReportedLoad {
    ReportedLoad { running: Some(running), waiting: Some(waiting), ..ReportedLoad::default() }
}

/// Returns a load of which `decoding` requests decode.
fn load(requests: u32, decoding: u32) -> ReplicaLoad {
    ReplicaLoad { requests, decoding, ..ReplicaLoad::default() }
}

/// Applies a scrape with a constant own load.
fn tell(telemetry: &mut Telemetry, replica: u32, said: ReportedLoad, own: ReplicaLoad, now: At) {
    telemetry.ask(replica, own);
    telemetry.told(replica, said, own, now);
}

fn others(telemetry: &mut Telemetry, replica: u32, now: At) -> Option<ReplicaLoad> {
    telemetry.bring(now);
    telemetry.others(replica)
}

#[test]
fn what_is_left_of_a_page_without_the_own_is_others() {
    let mut telemetry = Telemetry::default();
    assert_eq!(others(&mut telemetry, 0, at(0)), None, "nobody has said anything");
    // The engine computes 40 requests and queues 10. Of 12 own requests, four have no first token yet.
    tell(&mut telemetry, 0, page(40.0, 10.0), load(12, 8), at(1_000));
    let found = others(&mut telemetry, 0, at(1_000)).expect("a page");
    assert_eq!(
        (found.requests, found.decoding),
        (38, 32),
        "10 less the own 4 wait, 40 less the own 8 decode"
    );
    // Other clients' prompts are assumed to be as long as the own ones, none of which was observed.
    assert_eq!(found.backlog, 6 * 1_024);
}

#[test]
fn a_request_that_came_or_went_while_the_page_was_read_is_not_anothers() {
    for (asked, came) in [(load(3, 3), load(5, 3)), (load(5, 5), load(3, 3))] {
        let mut telemetry = Telemetry::default();
        telemetry.ask(0, asked);
        telemetry.told(0, page(5.0, 0.0), came, at(0));
        assert_eq!(others(&mut telemetry, 0, at(0)).map(|load| load.requests), Some(0));
    }
}

#[test]
fn a_replica_that_says_nothing_is_neither_idle_nor_dead() {
    let mut telemetry = Telemetry::default();
    tell(&mut telemetry, 0, page(20.0, 0.0), ReplicaLoad::default(), at(0));
    tell(&mut telemetry, 1, page(22.0, 0.0), ReplicaLoad::default(), at(0));
    let requests =
        |telemetry: &mut Telemetry, replica, now| others(telemetry, replica, now).map(|l| l.requests);
    assert_eq!(requests(&mut telemetry, 2, at(0)), Some(21), "the mean of those that speak");
    // A replica with stale metrics gets the mean too.
    tell(&mut telemetry, 0, page(40.0, 0.0), ReplicaLoad::default(), at(9_900));
    let now = At(0) + STALE + Span::from_millis(1);
    assert_eq!(telemetry.view(1, now).standing, PageStanding::Unknown);
    assert_eq!(requests(&mut telemetry, 1, now), requests(&mut telemetry, 2, now));
    // If all metrics are stale, the load is unknown.
    let late = now + STALE;
    assert_eq!(others(&mut telemetry, 0, late), None);
}

#[test]
fn a_page_that_shows_less_than_the_own_is_not_believed_until_it_shows_them() {
    let mut telemetry = Telemetry::default();
    for (second, own) in [(0, load(0, 0)), (1, load(30, 30))] {
        tell(&mut telemetry, 0, page(0.0, 0.0), own, at(second * 1_000));
        tell(&mut telemetry, 1, page(10.0 + second as f64, 0.0), ReplicaLoad::default(), at(second * 1_000));
    }
    assert_eq!(telemetry.view(0, at(1_000)).standing, PageStanding::Contradicted);
    let mean = others(&mut telemetry, 1, at(1_000));
    assert_eq!(others(&mut telemetry, 0, at(1_000)), mean, "as much as on those that are believed");
    // Without own load, a wrong value cannot be detected, so the earlier verdict stays.
    tell(&mut telemetry, 0, page(0.0, 0.0), load(0, 0), at(2_000));
    assert_eq!(telemetry.view(0, at(2_000)).standing, PageStanding::Contradicted);
    tell(&mut telemetry, 0, page(31.0, 0.0), load(30, 30), at(3_000));
    assert_eq!(telemetry.view(0, at(3_000)).standing, PageStanding::Believed);
}

#[test]
fn a_page_that_stands_still_is_not_believed_and_one_that_shows_nothing_may() {
    let mut telemetry = Telemetry::default();
    let seconds = STILL.0 / 1_000_000_000;
    for second in 0..=seconds {
        tell(&mut telemetry, 0, page(50.0, 20.0), ReplicaLoad::default(), at(second * 1_000));
        tell(&mut telemetry, 1, page(0.0, 0.0), ReplicaLoad::default(), at(second * 1_000));
        let moving = ReportedLoad { progress: Some(second as f64), ..page(8.0, 0.0) };
        tell(&mut telemetry, 2, moving, ReplicaLoad::default(), at(second * 1_000));
    }
    let now = at(seconds * 1_000);
    let standings = [0, 1, 2].map(|replica| telemetry.view(replica, now).standing);
    assert_eq!(standings, [PageStanding::Still, PageStanding::Believed, PageStanding::Believed]);
    assert_eq!(others(&mut telemetry, 0, now).map(|load| load.requests), Some(4), "the mean of 0 and 8");
}

#[test]
fn what_was_found_fades_into_the_mean_of_late() {
    let mut telemetry = Telemetry::default();
    for second in 0..20 {
        tell(&mut telemetry, 0, page(10.0, 0.0), ReplicaLoad::default(), at(second * 1_000));
    }
    // Without own requests the share of this router is 0, so a sudden deviation counts only through the mean.
    tell(&mut telemetry, 0, page(100.0, 0.0), ReplicaLoad::default(), at(20_000));
    let at_once = others(&mut telemetry, 0, at(20_000)).expect("a page").requests;
    let later = others(&mut telemetry, 0, at(28_000)).expect("a page").requests;
    assert!(at_once <= 100 && later <= at_once && later >= 10, "{at_once} {later}");
}

#[test]
fn what_is_forgotten_is_nobodys() {
    let mut telemetry = Telemetry::default();
    tell(&mut telemetry, 0, page(20.0, 0.0), ReplicaLoad::default(), at(0));
    tell(&mut telemetry, 1, page(10.0, 0.0), ReplicaLoad::default(), at(0));
    assert!(others(&mut telemetry, 0, at(0)).is_some());
    telemetry.forget(0);
    assert_eq!(
        others(&mut telemetry, 0, at(1)).map(|load| load.requests),
        Some(10),
        "as much as on the other"
    );
    telemetry.forget(1);
    assert_eq!(others(&mut telemetry, 0, at(1)), None);
    // A scrape that started before the reset belongs to another process.
    telemetry.ask(0, ReplicaLoad::default());
    telemetry.forget(0);
    telemetry.told(0, page(20.0, 0.0), ReplicaLoad::default(), at(2));
    assert_eq!(others(&mut telemetry, 0, at(2)), None);
}

#[test]
fn figures_that_are_none_change_nothing() {
    let mut telemetry = Telemetry::default();
    for value in [f64::NAN, f64::INFINITY, -1.0, 1e18] {
        tell(&mut telemetry, 0, page(value, 0.0), ReplicaLoad::default(), at(0));
        tell(&mut telemetry, 0, page(0.0, value), ReplicaLoad::default(), at(0));
    }
    tell(
        &mut telemetry,
        0,
        ReportedLoad { kv_usage: Some(0.5), ..ReportedLoad::default() },
        ReplicaLoad::default(),
        at(0),
    );
    assert_eq!(others(&mut telemetry, 0, at(0)), None);
    assert_eq!(telemetry.view(0, at(0)).standing, PageStanding::Unknown);
}

struct Plain;

impl QueuedRequestFacts for Plain {
    fn facts(&self) -> RequestFacts<'_> {
        FACTS
    }
}

const FACTS: RequestFacts<'static> = RequestFacts {
    session: None,
    blocks: &[],
    ends: plimsoll_policy::BlockEnds::Every(1),
    prompt_tokens: 500,
    most_tokens: None,
    streams: true,
    arm: plimsoll_model::Arm::Base,
    model: None,
    tier: 0,
    among: None,
};

fn front(replicas: u32) -> AdmissionController<Plain> {
    let route = RouteSpec::parse("least_cost").expect("sound");
    let mut front = AdmissionController::new(
        &AdmissionControlSpec { route, ..AdmissionControlSpec::default() },
        replicas as usize,
        At::ZERO,
    );
    (0..replicas).for_each(|replica| front.set_up(replica, true));
    front
}

fn send(front: &mut AdmissionController<Plain>, now: At, chance: &mut Stream) -> SentRequest {
    let terms = AdmissionParams { class: 0, tenant: 0, came: now, slo: None, bytes: 0 };
    match front.offer(&FACTS, &terms, now, chance, || Plain) {
        AdmissionDecision::Sent(sent) => sent,
        other => panic!("{other:?}"),
    }
}

/// Others have 60 streams on each of three replicas, and the third reports none. The third appears idle until its next
/// scrape contradicts this router's own load; then it gets a third of the requests.
#[test]
fn a_replica_that_lies_gets_no_herd() {
    const OTHERS: f64 = 60.0;
    let (mut front, mut chance) = (front(3), Stream::new(1, "test", 0));
    let mut runs: Vec<(At, SentRequest)> = Vec::new();
    let mut placed = [0u32; 3];
    for step in 0..3_000i64 {
        let now = at(step * 10);
        while let Some(place) = runs.iter().position(|(ends, _)| *ends <= now) {
            let (_, sent) = runs.remove(place);
            front.ended(sent, Some(ReplicaOutcome::Worked), 50, now, &mut chance);
        }
        for replica in (0..3).filter(|_| step % 100 == 0) {
            front.asks_page(replica);
            let honest = OTHERS + f64::from(front.load(replica).requests);
            let said = if replica == 2 { page(0.0, 0.0) } else { page(honest, 0.0) };
            front.told_page(replica, Some(ReportedLoad { progress: Some(step as f64), ..said }), now);
        }
        let mut sent = send(&mut front, now, &mut chance);
        let replica = sent.booking.replica;
        placed[replica as usize] += 1;
        // A step takes 8 ms, plus 0.3 ms for each actual stream.
        let step = 8.0 + 0.3 * (OTHERS + f64::from(front.load(replica).requests));
        let first = now + Span::from_secs_f64(step / 1e3);
        front.first(&mut sent, first);
        runs.push((first + Span::from_secs_f64(49.0 * step / 1e3), sent));
    }
    let all: u32 = placed.iter().sum();
    assert!(placed.iter().all(|&count| count > all / 5), "{placed:?}");
    assert!(placed[2] < all / 2, "{placed:?}");
    assert_eq!(front.page(2, at(29_990)).standing, PageStanding::Contradicted);
}

/// A replica that restarts is a new process, so its earlier metrics are discarded.
#[test]
fn a_restart_forgets_the_page() {
    let mut front = front(2);
    front.asks_page(0);
    front.told_page(0, Some(page(30.0, 5.0)), at(0));
    assert_eq!(front.page(0, at(0)).standing, PageStanding::Believed);
    front.set_up(0, false);
    assert_eq!(front.page(0, at(0)).standing, PageStanding::Unknown);
}

proptest! {
    /// For any metrics in any order: an estimate is a valid count and never reduces the own load. Metrics equal to
    /// the own load give no load of others.
    #[test]
    fn estimates_are_bounded_by_what_pages_said(
        events in prop::collection::vec((0u32..4, 0.0f64..500.0, 0.0f64..500.0, 0u32..600, 0i64..3_000), 1..60),
    ) {
        let mut telemetry = Telemetry::default();
        let (mut now, mut most) = (0, 0.0f64);
        for (replica, running, waiting, own, passes) in events {
            now += passes;
            let own = load(own, own / 2);
            tell(&mut telemetry, replica, page(running, waiting), own, at(now));
            most = most.max(running + waiting - f64::from(own.requests));
            telemetry.bring(at(now + 60));
            for replica in 0..5 {
                if let Some(others) = telemetry.others(replica) {
                    // Waiting and decoding requests fade independently.
                    let waiting = others.requests.checked_sub(others.decoding);
                    prop_assert!(waiting.is_some_and(|waiting| f64::from(waiting) <= most + 1.0), "{others:?} {most}");
                    prop_assert!(f64::from(others.decoding) <= most + 1.0, "{others:?} {most}");
                }
            }
        }
    }
}
