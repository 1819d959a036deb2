//! A target that takes longer for a request that finds it idle (reduced clocks, a sleeping loop).
//! Its onset is the load at which the tail exceeds that of light traffic, which a closed loop of one never sees.

use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::Findings;
use plimsoll_measure::purpose::IDLE;
use plimsoll_measure::sweep::{Sweep, SweepLevel, SweepNext, SweepSpec};
use plimsoll_model::{At, Attempt, Level, Load, Span};

use plimsoll_lab::records::{answer, level};

/// Milliseconds of a request's service: a fixed part and an exponential one.
const FIXED_MS: f64 = 800.0;
const MEAN_OF_REST_MS: f64 = 100.0;
const SERVERS: usize = 2;
/// The factor that marks the onset.
const FACTOR: f64 = 1.5;

/// First come, first served; a request that finds every server idle takes `idle_ms` more.
struct Queue {
    idle_ms: f64,
    stream: Stream,
    free_ms: [f64; SERVERS],
}

impl Queue {
    fn new(idle_ms: f64, seed: u64) -> Queue {
        Queue { idle_ms, stream: Stream::new(seed, "idle cost", 0), free_ms: [0.0; SERVERS] }
    }

    /// When the answer to a request of this moment is complete.
    fn ends(&mut self, at_ms: f64) -> f64 {
        // A loop of one sends the next within a microsecond or so: that is not idle.
        let idle = self.free_ms.iter().all(|free| *free + 1.0 < at_ms);
        let service =
            FIXED_MS + exponential(&mut self.stream, MEAN_OF_REST_MS) + if idle { self.idle_ms } else { 0.0 };
        let first = if self.free_ms[0] <= self.free_ms[1] { 0 } else { 1 };
        let end = self.free_ms[first].max(at_ms) + service;
        self.free_ms[first] = end;
        end
    }

    /// p99 of the latency under Poisson arrivals, ms.
    fn p99_ms(mut self, rate_per_s: f64, requests: usize) -> f64 {
        let mut at = 1e4;
        let mut all: Vec<f64> = (0..requests)
            .map(|_| {
                at += exponential(&mut self.stream, 1e3 / rate_per_s);
                self.ends(at) - at
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[requests * 99 / 100]
    }
}

/// Returns the load at which p99 reaches the factor times that of isolated requests, from half a million requests at each of twenty rates.
fn truth(idle_ms: f64) -> f64 {
    // ln 100 times the mean: the p99 of an exponential.
    let alone = FIXED_MS + idle_ms + MEAN_OF_REST_MS * 100f64.ln();
    let (mut low, mut high) = (0.05, 2.2);
    for step in 0..20 {
        let middle = 0.5 * (low + high);
        let p99 = Queue::new(idle_ms, 100 + step).p99_ms(middle, 500_000);
        if p99 < FACTOR * alone { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

fn one(asked: &SweepLevel, id: u32, start: At, queue: &mut Queue) -> (Level, Vec<Attempt>) {
    let from = start.0 as f64 / 1e6;
    let length = asked.window.as_secs_f64() * 1e3;
    let mut rows = Vec::new();
    let mut send = |rows: &mut Vec<Attempt>, at: f64| {
        let end = queue.ends(from + at) - from;
        let row = answer(rows.len() as u64, (from + at) as i64, (end - at) as i64, (end - at) as i64, 1);
        rows.push(Attempt { level: id, ..row });
        end
    };
    match asked.load {
        Load::Open { rate_per_s } => {
            let mut arrivals = Stream::new(u64::from(id), "arrivals", 0);
            let mut at = exponential(&mut arrivals, 1e3 / rate_per_s);
            while at < length {
                send(&mut rows, at);
                at += exponential(&mut arrivals, 1e3 / rate_per_s);
            }
        }
        Load::Closed { concurrency } => {
            let pace = asked.max_rate_per_s.map_or(0.0, |rate| 1e3 / rate);
            let (mut users, mut next) = (vec![0.0; concurrency as usize], 0.0f64);
            loop {
                users.sort_by(f64::total_cmp);
                let at = users[0].max(next);
                if at >= length {
                    break;
                }
                users[0] = send(&mut rows, at);
                next = at + pace;
            }
        }
        _ => panic!("a sweep asks for open and closed loops"),
    }
    let mut level = level(1.0, 1);
    (level.id, level.load, level.purpose, level.traffic) =
        (id, asked.load, asked.purpose.clone(), "steady".into());
    (level.start, level.stop, level.arrivals) = (start, start + asked.window, rows.len() as u64);
    level.drained = rows.iter().filter_map(|row| row.end).max().unwrap_or(level.stop).max(level.stop);
    (level, rows)
}

fn swept(idle_ms: f64, seed: u64, hours: i64) -> Findings {
    let time = Span::from_secs(3_600 * hours);
    let mut sweep =
        Sweep::new(SweepSpec { time, budget: None, seed, ..SweepSpec::default() }).expect("sound");
    let mut queue = Queue::new(idle_ms, seed);
    let mut now = At::ZERO;
    for id in 0.. {
        let SweepNext::Run(asked) = sweep.next() else { break };
        let (level, rows) = one(&asked, id, now, &mut queue);
        sweep.observe(&level, &rows, &[]);
        now = level.drained + Span::from_secs(1);
    }
    sweep.findings()
}

#[test]
fn measures_the_onset_against_requests_that_find_the_target_idle() {
    // Figures of an independent server: 7.97 ms back to back, 12.3 ms after a pause.
    let idle_ms = 0.54 * (FIXED_MS + MEAN_OF_REST_MS);
    let truth = truth(idle_ms);
    let findings = swept(idle_ms, 1, 40);
    let curve = &findings.curves[0];
    assert!(curve.zero_contention_from.contains("with pauses (1.5"), "{}", curve.zero_contention_from);
    let onset = findings.lines[0].onset.rate().expect("found");
    assert!((onset.value / truth - 1.0).abs() < 0.1, "{onset:?} against {truth}");
    assert!(onset.lower < truth && truth < onset.upper, "{onset:?} against {truth}");
}

#[test]
fn takes_the_closed_loop_where_idleness_costs_nothing() {
    let findings = swept(0.0, 2, 20);
    let curve = &findings.curves[0];
    assert!(curve.zero_contention_from.starts_with("concurrency 1, "), "{}", curve.zero_contention_from);
    assert_eq!(findings.levels.iter().filter(|level| level.summary.purpose == IDLE).count(), 1);
    // The pauses are not a concurrency step and do not measure the capacity.
    assert_eq!(curve.ladder.iter().filter(|rung| rung.concurrency == 1).count(), 2);
}
