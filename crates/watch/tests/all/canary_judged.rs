//! Canaries: the rate of false alarms, the time to detection, and the output for unfair comparisons. The example
//! `canary` does the first two with a thousand fleets.

use std::collections::HashMap;

use plimsoll_lab::records::{answer, failure};
use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, How, Span};
use plimsoll_watch::canary::outright::Outright;
use plimsoll_watch::canary::{Canary, CanaryFinding, CanarySpec, CanaryVerdict, RequestsTrial};

use crate::canary::{FLEET, Fleet, alarms, spec, watch};
use crate::watched::Page;

const DAY: u64 = 24 * 60;

/// With the accepted 5 %, more than six of 40 fleets are called worse once in 2000 tries.
#[test]
fn a_canary_that_is_no_worse_is_hardly_ever_blamed() {
    let found = alarms(FLEET, DAY, 0..40);
    assert!(found.len() <= 6, "{found:?}");
    let one_of_each = alarms(Fleet { base: 1, canary: 1, ..FLEET }, DAY / 4, 0..40);
    assert!(one_of_each.len() <= 6, "{one_of_each:?}");
}

/// A tail that is a fifth longer has 1.9 % over the edge of 1 %.
#[test]
fn a_longer_tail_is_found_within_an_hour() {
    let found = alarms(Fleet { tail: 1.2, ..FLEET }, 60, 0..20);
    assert!(found.len() >= 19, "{found:?}");
}

/// If replica speeds differ by a tenth, a canary would be rejected for its own speed. A period before the deploy
/// removes that, and a longer tail is still detected.
#[test]
fn what_replicas_are_by_themselves_is_no_fault_of_the_version() {
    let differ = Fleet { differ: 0.1, ..FLEET };
    let blind = alarms(differ, DAY / 2, 0..30).len();
    let known = Fleet { before: 60, ..differ };
    let knows = alarms(known, DAY / 2 + 60, 0..30).len();
    assert!(blind >= 8 && knows <= 5, "without {blind}, with {knows} of 30");
    let worse = alarms(Fleet { tail: 1.5, ..known }, 180, 0..20);
    assert!(worse.len() >= 19, "{worse:?}");
}

#[test]
fn no_worse_is_proven_within_a_day_and_never_of_a_long_tail() {
    let proven = |fleet: Fleet, seed| {
        watch(Fleet { per_s: 30.0, ..fleet }, DAY, seed).known().all(|(_, known)| known.is_within)
    };
    let same = (0..10).filter(|seed| proven(FLEET, *seed)).count();
    assert!(same >= 8, "{same} of 10");
    let worse = (0..10).filter(|seed| proven(Fleet { tail: 1.5, ..FLEET }, *seed)).count();
    assert_eq!(worse, 0);
}

/// Returns the finding for the metrics of three base replicas and two canaries. `share` is the canary's relative
/// load, `slower` its slowdown.
fn pages(minutes: i64, share: f64, slower: f64, gone_from: Option<i64>) -> CanaryFinding {
    let names = ["a", "b", "c", "d", "e"];
    let arm = |place: usize| if place < 3 { Arm::Base } else { Arm::Canary };
    let arms: HashMap<String, Arm> =
        names.iter().enumerate().map(|(place, name)| ((*name).to_owned(), arm(place))).collect();
    let spec = CanarySpec { least: Span::from_secs(1800), ..spec(0) };
    let mut canary = Canary::new(spec, None, arms);
    let mut own: Vec<Page> = vec![Page::default(); names.len()];
    let mut chance = Stream::new(3, "canary pages", 0);
    for tick in 0..=minutes * 6 {
        for (place, name) in names.iter().enumerate() {
            if arm(place) == Arm::Canary && gone_from.is_some_and(|from| tick >= from * 6) {
                continue;
            }
            let of_canary = arm(place) == Arm::Canary;
            let n = if of_canary { (20.0 * share) as usize } else { 20 };
            for _ in 0..n {
                let waited = -0.05 * chance.uniform().ln();
                own[place].ttft.push(0.05 + waited * if of_canary { slower } else { 1.0 });
            }
            canary.read(own[place].read(name, tick * 10));
        }
        let now = At(tick * 10_000_000_000 + 1);
        canary.tick(now);
        let found = canary.finding(now);
        if found.verdict != CanaryVerdict::KeepWatching {
            return found;
        }
    }
    canary.finding(At(minutes * 60_000_000_000 + 1))
}

#[test]
fn pages_decide_and_say_why() {
    let slower = pages(60, 1.0, 1.6, None);
    assert_eq!(slower.verdict, CanaryVerdict::RollBack, "{}", slower.why);
    assert!(slower.why.contains("ttft over") && slower.why.contains("--before"), "{}", slower.why);
    assert_eq!(slower.replicas, [3, 2]);
    // A higher load may be the reason.
    let loaded = pages(60, 1.5, 1.6, None);
    assert_eq!(loaded.verdict, CanaryVerdict::KeepWatching, "{}", loaded.why);
    assert!(loaded.why.contains("1.5 × the requests per replica"), "{}", loaded.why);
    let gone = pages(20, 1.0, 1.0, Some(3));
    assert_eq!(gone.verdict, CanaryVerdict::RollBack);
    assert!(gone.why.contains("has answered for 5 min") && gone.at_s < 600.0, "{} {}", gone.at_s, gone.why);
}

/// An endpoint that returned after an outage reported ten minutes of requests in its first minute, which seemed a
/// higher load.
#[test]
fn a_page_that_is_back_brings_no_minute_of_many() {
    let arms = HashMap::from([("a".to_owned(), Arm::Base), ("b".to_owned(), Arm::Canary)]);
    let mut canary = Canary::new(spec(0), None, arms);
    let mut own = [Page::default(), Page::default()];
    let mut chance = Stream::new(5, "canary page away", 0);
    for tick in 0..=360 {
        for (page, name) in own.iter_mut().zip(["a", "b"]) {
            page.ttft.extend((0..20).map(|_| 0.05 - 0.05 * chance.uniform().ln()));
            // A minute ends with every sixth tick.
            if name == "a" || !(121..180).contains(&tick) {
                canary.read(page.read(name, tick * 10));
            }
        }
        canary.tick(At(tick * 10_000_000_000 + 1));
    }
    let found = canary.finding(At(3_600_000_000_001));
    let load = found.load.expect("load is known");
    assert!((load - 1.0).abs() < 1e-9, "{load}");
    // Only minutes with data of both sides are compared.
    let [of_base, of_canary] = found.rows[0].n;
    assert_eq!(of_base, of_canary);
}

/// Returns the finding for that fleet as seen by its gateway, one row per request. `failing` is the canary's share of
/// failures.
fn requests(minutes: i64, slower: f64, failing: f64, seed: u64) -> CanaryFinding {
    let names = ["a", "b", "c", "d"];
    let arm = |place: usize| if place < 3 { Arm::Base } else { Arm::Canary };
    let arms = names.iter().enumerate().map(|(place, name)| ((*name).to_owned(), arm(place))).collect();
    let mut trial = RequestsTrial::new(CanarySpec { least: Span::from_secs(1800), ..spec(0) }, None, arms);
    let mut chance = Stream::new(seed, "canary requests", 0);
    for second in 0..=minutes * 60 {
        for n in 0..8 {
            let place = chance.below(4) as usize;
            let of_canary = arm(place) == Arm::Canary;
            let waited = -50.0 * chance.uniform().ln() * if of_canary { slower } else { 1.0 };
            let (due, first) = (second * 1_000, 50 + waited as i64);
            let mut row = match of_canary && chance.uniform() < failing {
                true => failure(n, due, How::Reset, 1),
                false => answer(n, due, first, first + 400, 20),
            };
            row.answer.replica = Some(names[place].to_owned());
            trial.take(&row);
        }
        let now = At(second * 1_000_000_000);
        trial.tick(now, names);
        let found = trial.finding(now);
        if found.verdict != CanaryVerdict::KeepWatching {
            return found;
        }
    }
    trial.finding(At(minutes * 60_000_000_000))
}

#[test]
fn requests_decide_as_pages_do() {
    let slower = requests(60, 1.6, 0.0, 3);
    assert_eq!(slower.verdict, CanaryVerdict::RollBack, "{}", slower.why);
    assert!(slower.why.contains(" over ") && slower.at_s < 1800.0, "{} {}", slower.at_s, slower.why);
    let failing = requests(60, 1.0, 0.2, 4);
    assert_eq!(failing.verdict, CanaryVerdict::RollBack, "{}", failing.why);
    // Rows are exact: by the rows themselves both sides have equal shares over each edge.
    let same = requests(120, 1.0, 0.0, 5);
    assert_ne!(same.verdict, CanaryVerdict::RollBack, "{}", same.why);
    assert_eq!(same.replicas, [3, 1]);
    assert!((same.load.expect("load is known") - 1.0).abs() < 0.05, "{:?}", same.load);
    let ttft = same.rows.iter().find(|row| row.what.starts_with("ttft")).expect("a row of ttft");
    let [base, canary] = ttft.over.map(|share| share.expect("requests"));
    // The edge is the one nearest the base's median.
    assert!((base - 0.5).abs() < 0.05 && (canary - base).abs() < 0.05, "{ttft:?}");
}

/// Returns the number of canary requests until it is rejected. Both sides get requests as from a gateway with a share
/// of a fifth, with these shares of failures.
fn outright(shares: [f64; 2], own: u64, seed: u64) -> Option<u64> {
    let mut found = Outright::default();
    let mut chance = Stream::new(seed, "outright", 0);
    (1..=own).find(|_| {
        (0..4).for_each(|_| found.take(Arm::Base, chance.uniform() < shares[0]));
        found.take(Arm::Canary, chance.uniform() < shares[1]);
        found.worse() >= 200.0
    })
}

/// A circuit breaker gives a failing canary five requests, and then single ones.
#[test]
fn a_canary_that_only_fails_is_found_within_five_of_its_requests() {
    assert!(outright([0.0, 1.0], 100, 1).is_some_and(|own| own <= 5));
    let mixed = (0..20).filter_map(|seed| outright([0.1, 1.0], 100, seed)).max();
    assert!(mixed.is_some_and(|own| own <= 20), "{mixed:?}");
    assert!((0..20).all(|seed| outright([0.0, 0.7], 200, seed).is_some()));
    // After a healthy day.
    let mut late = Outright::default();
    let mut takes = |failed| {
        (0..4).for_each(|_| late.take(Arm::Base, false));
        late.take(Arm::Canary, failed);
        late.worse()
    };
    (0..10_000).for_each(|_| assert!(takes(false) < 2.0));
    assert!((0..12).any(|_| takes(true) >= 200.0));
    // All simultaneously, and before a response of the base.
    let mut found = Outright::default();
    (0..30).for_each(|_| found.take(Arm::Canary, true));
    assert_eq!(found.worse(), 1.0, "the base may fail as well");
    (0..30).for_each(|_| found.take(Arm::Base, true));
    assert!(found.worse() < 3.0, "{}", found.worse());
}

/// Its part of the accepted error probability is 0.5 %. Of a thousand canaries that are no worse, more than 14 are
/// rejected once in 1000 tries.
#[test]
fn failures_of_both_sides_blame_no_canary() {
    for share in [0.001, 0.05, 0.3, 0.6, 0.99] {
        let blamed = (0..1_000).filter(|seed| outright([share; 2], 500, *seed).is_some()).count();
        assert!(blamed <= 14, "{share}: {blamed}");
    }
    // Slightly more failures are left to the ranks among replicas.
    assert!((0..200).all(|seed| outright([0.0, 0.02], 500, seed).is_none()));
}

/// A canary that only fails has no other data: two minutes at six requests/s, of which it gets nine requests.
#[test]
fn a_canary_that_only_fails_is_rolled_back_in_the_first_minute() {
    let arms = HashMap::from([("a".to_owned(), Arm::Base), ("b".to_owned(), Arm::Canary)]);
    let mut trial = RequestsTrial::new(spec(0), None, arms);
    trial.tick(At::ZERO, ["a", "b"]);
    for n in 0..300 {
        let (name, mut row) = match n % 60 {
            7 => ("b", failure(n, n as i64 * 200, How::ClientError, 1)),
            _ => ("a", answer(n, n as i64 * 200, 100, 200, 8)),
        };
        row.answer.replica = Some(name.to_owned());
        trial.take(&row);
    }
    let now = At(60_000_000_000);
    trial.tick(now, ["a"]);
    let found = trial.finding(now);
    assert_eq!(found.verdict, CanaryVerdict::RollBack, "{}", found.why);
    assert!(found.why.contains("5 of 5 requests, of the base 0 of"), "{}", found.why);
}

/// A canary without requests is not down; one that does not respond is.
#[test]
fn a_canary_without_requests_is_there_as_long_as_it_answers() {
    let arms = HashMap::from([("a".to_owned(), Arm::Base), ("b".to_owned(), Arm::Canary)]);
    let mut trial = RequestsTrial::new(spec(0), None, arms);
    let mut minutes = |from: i64, to: i64, up: &[&str]| {
        for minute in from..to {
            for n in 0..40 {
                let mut row = answer(n, minute * 60_000, 100, 200, 8);
                row.answer.replica = Some("a".to_owned());
                trial.take(&row);
            }
            trial.tick(At(minute * 60_000_000_000), up.iter().copied());
        }
        trial.finding(At((to - 1) * 60_000_000_000))
    };
    assert_eq!(minutes(0, 30, &["a", "b"]).verdict, CanaryVerdict::KeepWatching);
    let gone = minutes(30, 37, &["a"]);
    assert_eq!(gone.verdict, CanaryVerdict::RollBack);
    assert!(gone.why.contains("no replica of the canary has answered for"), "{}", gone.why);
}
