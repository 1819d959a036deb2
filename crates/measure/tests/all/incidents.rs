//! Incidents in levels of queues: a cut never hides one, a start-up transient is cut, and a steady level stays uncut and steady.
//!
//! The queues are implemented here (first come, first served, any number of servers), so that no rule is fitted to our simulator.
//! `examples/incidents.rs` prints the full table.

use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Held, LevelSummary, Metric};
use plimsoll_measure::summarise;
use plimsoll_model::{Attempt, How};

use plimsoll_lab::records::{answer, failure, level};

/// Requests of a level, one every 100 ms in the mean: 5 min.
pub const REQUESTS: u64 = 3_000;
const SECONDS: i64 = 300;

/// A queue: servers, load, and whether service times are drawn (else nearly constant).
#[derive(Copy, Clone, Debug)]
pub struct Queue {
    pub servers: usize,
    pub load: f64,
    pub drawn: bool,
}

pub const QUEUES: [Queue; 6] = [
    Queue { servers: 1, load: 0.5, drawn: false },
    Queue { servers: 1, load: 0.5, drawn: true },
    Queue { servers: 4, load: 0.3, drawn: true },
    Queue { servers: 4, load: 0.7, drawn: false },
    Queue { servers: 16, load: 0.7, drawn: true },
    Queue { servers: 8, load: 0.2, drawn: false },
];

/// The incident and its interval in seconds since the start of the level.
#[derive(Copy, Clone, Debug)]
pub enum Incident {
    Nothing,
    /// Service takes this many times as long.
    Slow(f64, f64, f64),
    /// An interval in which no service starts.
    Stall(f64, f64),
    /// This share of the requests fails.
    Errors(f64, f64, f64),
    /// The first `requests` requests take this many times as long (and no server longer); the factor may fade.
    Cold {
        requests: u64,
        times: f64,
        fades: bool,
    },
}

impl Incident {
    /// One of the first three kinds, begun and ended anywhere behind the first second.
    pub fn any(chance: &mut Stream) -> Incident {
        let length = 3.0 + 117.0 * chance.uniform() * chance.uniform();
        let from = 1.0 + (SECONDS as f64 - 1.0 - length) * chance.uniform();
        match chance.below(3) {
            0 => Incident::Slow(1.5 + 5.0 * chance.uniform(), from, from + length),
            1 => Incident::Stall(from, from + 0.3 * length),
            _ => Incident::Errors(0.1 + 0.9 * chance.uniform(), from, from + length),
        }
    }
}

pub fn records(queue: Queue, incident: Incident, seed: u64) -> Vec<Attempt> {
    let chance = &mut Stream::new(seed, "incidents", queue.servers as u64);
    let mean_ms = 100.0 * queue.load * queue.servers as f64;
    let (mut due, mut free, mut all) = (0.0, vec![0.0f64; queue.servers], Vec::new());
    // A hundred requests before the level, so that the queue is neither empty nor full at its beginning.
    for i in 0..REQUESTS + 100 {
        due += exponential(chance, 100.0);
        let (fate, noise) = (chance.uniform(), exponential(chance, 1.0));
        let at_s = (due - 10_000.0) / 1e3;
        let request = i.wrapping_sub(100);
        let mut service = mean_ms * if queue.drawn { noise } else { 0.95 + 0.1 * noise.min(1.0) };
        free.sort_by(f64::total_cmp);
        let mut begins = free[0].max(due);
        let mut fails = false;
        match incident {
            Incident::Slow(times, from, to) if i >= 100 && (from..to).contains(&at_s) => service *= times,
            Incident::Stall(from, to) if (from..to).contains(&((begins - 10_000.0) / 1e3)) => {
                begins = 1e3 * to + 10_000.0
            }
            Incident::Errors(share, from, to) if (from..to).contains(&at_s) => fails = fate < share,
            _ => {}
        }
        free[0] = begins + service;
        let mut cold = 1.0;
        if let Incident::Cold { requests, times, fades } = incident
            && i >= 100
            && request < requests
        {
            cold += (times - 1.0) * if fades { 1.0 - request as f64 / requests as f64 } else { 1.0 };
        }
        let (ttft, e2e) = (cold * (begins - due + 0.5 * service), cold * (begins - due + service));
        if i >= 100 && at_s >= 0.0 && at_s < SECONDS as f64 {
            let (id, at) = (all.len() as u64, (1e3 * at_s) as i64);
            all.push(if fails {
                failure(id, at, How::ServerError, 5)
            } else {
                answer(id, at, 1 + ttft as i64, 2 + e2e as i64, 2)
            });
        }
    }
    all
}

/// A budget a tenth over what the queue does undisturbed.
pub fn budget(queue: Queue) -> BudgetSpec {
    let mut e2e: Vec<i64> =
        (900..910).flat_map(|seed| ends(&records(queue, Incident::Nothing, seed))).collect();
    e2e.sort_unstable();
    let limit_s = 1.1 * e2e[e2e.len() * 99 / 100] as f64 / 1e9;
    BudgetSpec {
        name: "clean".into(),
        latency: vec![Ceiling::new(Metric::E2e, 0.99, limit_s)],
        error_rate: Some(0.005),
    }
}

fn ends(records: &[Attempt]) -> Vec<i64> {
    let done = records.iter().filter(|record| record.outcome.how == How::Finished);
    done.filter_map(|record| record.end.map(|end| end.0 - record.due.0)).collect()
}

/// Returns whether all records together break the budget.
pub fn is_material(records: &[Attempt], budget: &BudgetSpec) -> bool {
    let failed = records.iter().filter(|record| record.outcome.how != How::Finished).count() as f64;
    let over = ends(records).iter().filter(|ns| **ns as f64 / 1e9 > budget.latency[0].limit_s).count() as f64;
    let n = records.len() as f64;
    failed > 0.005 * n || failed + over > 0.01 * n
}

pub fn read(records: &[Attempt], budget: &BudgetSpec) -> LevelSummary {
    summarise(&level(10.0, SECONDS), records, &[], Some(budget))
}

/// Returns whether the incident is reported: by a broken budget, or by a level that is not steady.
/// (Errors beyond one in a hundred have a separate check.)
pub fn is_told(found: &LevelSummary) -> bool {
    let broken = found.budget.as_ref().is_some_and(|budget| budget.verdict == Held::Fail);
    let errors = found.counts.error_rate.as_ref().is_some_and(|share| share.value > 0.01);
    broken || found.slow_stretch.is_some() || found.drift.drifts || errors
}

/// An incident is never cut and never passes its budget.
/// Nearly all incidents that break the budget are reported. A short one may leave the budget undecided, which is not a pass.
#[test]
fn no_incident_is_hidden() {
    let (mut told, mut material) = (0, 0);
    for queue in QUEUES {
        let budget = budget(queue);
        for seed in 0..12 {
            let incident = Incident::any(&mut Stream::new(seed, "which", 0));
            let records = records(queue, incident, seed);
            let found = read(&records, &budget);
            assert_eq!(found.window.warm_up_requests, 0, "{queue:?} {incident:?} {}", found.window.rule);
            if is_material(&records, &budget) {
                let passes = found.budget.as_ref().is_some_and(|budget| budget.verdict == Held::Pass);
                assert!(!passes, "{queue:?} {incident:?} {:?}", found.budget);
                material += 1;
                told += usize::from(is_told(&found));
            }
        }
    }
    assert!(10 * told >= 9 * material && material > 50, "{told} of {material} told");
}

/// The first such case: three times the service time from 20 s to 50 s, and 50 s of two minutes cut as warm-up.
#[test]
fn half_a_minute_of_slowness_is_in_the_figures() {
    let queue = QUEUES[0];
    let records = records(queue, Incident::Slow(3.0, 40.0, 100.0), 1);
    let found = read(&records, &budget(queue));
    assert_eq!(found.window.warm_up_requests, 0, "{}", found.window.rule);
    let slow = found.slow_stretch.expect("not steady");
    assert!((slow.from_s - 40.0).abs() < 10.0 && slow.to_s > 95.0, "{slow:?}");
}

#[test]
fn a_start_up_transient_is_cut_and_shown() {
    let (mut cut, mut all) = (0, 0);
    for queue in QUEUES {
        let budget = budget(queue);
        for seed in 0..4 {
            for (requests, times, fades) in [(60, 8.0, false), (150, 10.0, true)] {
                let found = read(&records(queue, Incident::Cold { requests, times, fades }, seed), &budget);
                all += 1;
                cut += usize::from(found.window.warm_up_requests > 0);
                assert_eq!(found.window.cut_words().is_some(), found.window.warm_up_requests > 0);
                assert!(found.window.warm_up_s <= 30.0, "{}", found.window.warm_up_s);
            }
        }
    }
    assert!(10 * cut >= 8 * all, "{cut} of {all} cut");
}

#[test]
fn a_steady_level_is_neither_cut_nor_unsteady() {
    let (mut cut, mut unsteady) = (0, 0);
    for queue in QUEUES {
        let budget = budget(queue);
        for seed in 100..120 {
            let found = read(&records(queue, Incident::Nothing, seed), &budget);
            cut += usize::from(found.window.warm_up_requests > 0);
            unsteady += usize::from(found.slow_stretch.is_some());
        }
    }
    assert!(cut <= 3 && unsteady <= 4, "of 120: {cut} cut, {unsteady} called unsteady");
}
