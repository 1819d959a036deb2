//! "Cold starts up after a deploy", in virtual time against logs of process starts.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_watch::alert::cold::{ColdStarts, ReplicaPresence};
use plimsoll_watch::{Alert, AlertKind, AlertSpec, AlertState, BudgetWatch, BudgetWatchSpec};

use crate::watched::{Page, TTFT};

const EVERY: i64 = 30;
const HOUR: i64 = 3600;
/// Time of the deploy, and distance of the starts of its four replicas.
const DEPLOY: i64 = 6 * HOUR;
const APART: i64 = 60;
/// Unix time of the start of the watch.
const WALL: i64 = 1_795_000_000;
/// Times to first token of a process' first request, and of others, s.
const COLD_S: f64 = 1.5;
const WARM_S: f64 = 0.05;

fn at(seconds: i64) -> At {
    At(seconds * 1_000_000_000)
}

/// Returns the alerts for four replicas that restart at these times (replica, s), watched until then.
fn fleet(starts: &[(usize, i64)], tells: bool, until: i64) -> Vec<Alert> {
    let file = format!("{{\"version\": 1, \"budgets\": [{TTFT}]}}");
    let file = serde_json::from_str(&file).expect("a budget");
    let spec = BudgetWatchSpec { every: Span::from_secs(EVERY), window: Span::from_secs(600) };
    let mut watched = BudgetWatch::new(file, spec).alerting(AlertSpec::default()).begun_at(WALL as f64);
    let began = |at: i64| tells.then_some((WALL + at) as f64);
    let mut pages = vec![Page { began: began(-HOUR), ttft: vec![WARM_S; 3], ..Page::default() }; 4];
    for second in 0..=until {
        for (number, page) in pages.iter_mut().enumerate() {
            if starts.contains(&(number, second)) {
                *page = Page { began: began(second), ..Page::default() };
            } else if second % 10 == 0 {
                page.ttft.push(if page.ttft.is_empty() { COLD_S } else { WARM_S });
            }
        }
        if second % EVERY == 0 {
            for (number, page) in pages.iter().enumerate() {
                let rows = page.samples(&format!("replica-{number}"), second);
                rows.into_iter().for_each(|sample| watched.push(&sample));
            }
            watched.tick(at(second));
        }
    }
    watched.finding(at(until)).alerts.into_iter().filter(|a| a.kind == AlertKind::ColdStarts).collect()
}

/// Returns the deploy itself: each replica restarts once.
fn deploy() -> Vec<(usize, i64)> {
    (0..4).map(|number| (number, DEPLOY + 7 + number as i64 * APART)).collect()
}

/// Returns one replica that restarts every three minutes after the deploy, eight times.
fn loops(from: i64) -> Vec<(usize, i64)> {
    (0..8).map(|n| (2, from + 307 + 180 * n)).collect()
}

#[test]
fn starts_after_a_deploy_are_counted_as_the_log_has_them() {
    for tells in [true, false] {
        let starts: Vec<_> = [(1, HOUR + 11)].into_iter().chain(deploy()).chain(loops(DEPLOY)).collect();
        let last = starts.last().expect("a start").1;
        let [alert] = &fleet(&starts, tells, last + 60)[..] else { panic!("one alert: {tells}") };
        let truth = loops(DEPLOY).iter().filter(|(_, at)| (*at as f64) < alert.fired_s).count();
        assert!(alert.evidence.contains(&format!("{truth} starts more in")), "{truth}: {}", alert.evidence);
        assert!(alert.evidence.contains("before 1 in 6 h 0 min of as many replicas"), "{}", alert.evidence);
        // A scrape has up to three requests, the first of which was cold.
        let cold: f64 = alert
            .evidence
            .split(" waited ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .expect("a time");
        assert!((COLD_S * 1e3 / 3.0..=COLD_S * 1e3).contains(&cold), "{}", alert.evidence);
        assert!(alert.evidence.contains("warm ones 50 ms"), "{}", alert.evidence);
        assert!((alert.since_s - DEPLOY as f64).abs() <= 60.0, "{alert:?}");
        assert_eq!(alert.state, AlertState::Firing);
        let later = fleet(&starts, tells, last + 40 * 60);
        assert_eq!((later.len(), later[0].state), (1, AlertState::Resolved), "{later:?}");
        let resolved = later[0].resolved_s.expect("an instant");
        assert!(resolved >= last as f64 + 30.0 * 60.0, "{resolved} {last}");
    }
}

/// The deploy only, and equal starts without one.
#[test]
fn a_deploys_own_starts_and_starts_without_one_are_no_alert() {
    for tells in [true, false] {
        assert!(fleet(&deploy(), tells, DEPLOY + HOUR).is_empty());
        assert!(fleet(&loops(HOUR), tells, 2 * HOUR).is_empty());
    }
}

fn replica(name: String, began: f64) -> ReplicaPresence {
    ReplicaPresence { name, began_s: Some(began), answered: Some(50.0), ..ReplicaPresence::default() }
}

/// Returns whether there is an alarm for eight replicas: a day, a new version, and another day with `times` as many
/// starts. The base rate is one start per replica in eight hours.
fn alarms(seed: u64, times: f64) -> bool {
    const TICK: i64 = 300;
    let (mut cold, mut stream) = (ColdStarts::default(), Stream::new(seed, "starts", 0));
    cold.began(0.0);
    let mut seen: Vec<_> = (0..8).map(|n| replica(format!("r{n}"), -1.0)).collect();
    (0..2 * 86_400 / TICK).any(|tick| {
        let now = tick * TICK;
        let is_after = now >= 86_400;
        if now == 86_400 {
            cold.version("r0", "version 2".to_owned());
        }
        let chance = TICK as f64 / (8.0 * HOUR as f64) * if is_after { times } else { 1.0 };
        for one in &mut seen {
            if stream.chance(chance) {
                one.began_s = Some(now as f64 + 2.0);
            }
        }
        cold.step(at(now), Span::from_secs(TICK), &seen).is_some()
    })
}

/// At most one deploy in a thousand may alarm without more frequent starts. Of 300, more than three are an accident
/// of less than one in ten thousand.
#[test]
fn deploys_that_change_nothing_are_seldom_blamed() {
    let blamed = (0..300).filter(|seed| alarms(*seed, 1.0)).count();
    assert!(blamed <= 3, "{blamed} of 300");
    let found = (0..50).filter(|seed| alarms(*seed, 8.0)).count();
    assert!(found >= 48, "{found} of 50 that start eight times as often");
}

/// An autoscaler's replicas, a replica that is only new to the watch, and two processes that alternate behind one
/// address.
#[test]
fn what_only_comes_is_no_deploy_and_what_alternates_no_start() {
    let mut cold = ColdStarts::default();
    cold.began(0.0);
    let mut seen: Vec<_> = (0..2).map(|n| replica(format!("r{n}"), -100.0)).collect();
    for tick in 0..200_i64 {
        let now = tick * 60;
        if tick % 10 == 5 {
            seen.push(replica(format!("new{tick}"), now as f64 - 5.0));
            seen.push(replica(format!("old{tick}"), -5000.0));
        }
        seen[0].began_s = Some(if tick % 2 == 0 { -100.0 } else { -50.0 });
        assert_eq!(cold.step(at(now), Span::from_secs(60), &seen), None, "{tick}");
    }
}
