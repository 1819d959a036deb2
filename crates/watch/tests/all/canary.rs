//! A canary among replicas with known ground truth: single requests are drawn, and only counts over edges are used.

use plimsoll_math::rng::Stream;
use plimsoll_math::special::normal_inv;
use plimsoll_model::{Arm, At, Span};
use plimsoll_watch::canary::{CanaryMeasure, CanarySpec, Judge, ReplicaMinute};

/// Standard deviation of the logarithm of a latency with median 1.
const SIGMA: f64 = 0.5;
/// Shares over the edges of the base.
const SHARES: [f64; 3] = [0.5, 0.05, 0.01];

/// A fleet and the change of its canary.
#[derive(Copy, Clone)]
pub struct Fleet {
    pub base: usize,
    pub canary: usize,
    /// Requests per second of the whole fleet.
    pub per_s: f64,
    /// Factor on the canary's latencies above the median.
    pub tail: f64,
    /// Standard deviation of the logarithm of each replica's permanent speed.
    pub differ: f64,
    /// Minutes with one version everywhere at the start.
    pub before: u64,
}

pub const FLEET: Fleet = Fleet { base: 8, canary: 2, per_s: 10.0, tail: 1.0, differ: 0.0, before: 0 };

pub fn spec(before: u64) -> CanarySpec {
    CanarySpec {
        alpha: 0.05,
        before: Span::from_secs(60 * before as i64),
        least: Span::from_secs(24 * 3600),
        seed: 1,
    }
}

/// Watches the fleet for `minutes`, or until the canary is called worse. The speed of all replicas varies together
/// with the load.
pub fn watch(fleet: Fleet, minutes: u64, seed: u64) -> Judge {
    let mut chance = Stream::new(seed, "canary fleet", 0);
    let edges = SHARES.map(|share| (SIGMA * normal_inv(1.0 - share)).exp());
    let what = |share: f64| CanaryMeasure { what: format!("{share}"), margin: (0.5 * share).min(0.05) };
    let mut judge = Judge::new(spec(fleet.before), SHARES.map(what).to_vec());
    let replicas = fleet.base + fleet.canary;
    let normal = |chance: &mut Stream| normal_inv(chance.uniform());
    let speeds: Vec<f64> = (0..replicas).map(|_| (fleet.differ * normal(&mut chance)).exp()).collect();
    let mut load = 0.0;
    for minute in 1..=minutes {
        load = 0.9 * load + 0.05 * normal(&mut chance);
        let is_out = minute > fleet.before;
        let each: Vec<ReplicaMinute> = (0..replicas)
            .map(|number| {
                let arm = if number < fleet.base { Arm::Base } else { Arm::Canary };
                let mean = fleet.per_s * 60.0 / replicas as f64;
                let n = (mean + mean.sqrt() * normal(&mut chance)).round().max(0.0) as u64;
                let mut over = [0; SHARES.len()];
                for _ in 0..n {
                    let drawn = (SIGMA * normal(&mut chance)).exp();
                    let tail = if arm == Arm::Canary && is_out { fleet.tail } else { 1.0 };
                    let drawn = if drawn > 1.0 { 1.0 + (drawn - 1.0) * tail } else { drawn };
                    let latency = drawn * speeds[number] * f64::exp(load);
                    for (over, edge) in over.iter_mut().zip(edges) {
                        *over += u64::from(latency > edge);
                    }
                }
                let counts = over.map(|over| Some((n, over))).to_vec();
                ReplicaMinute { name: number.to_string(), arm, counts }
            })
            .collect();
        judge.push(At::ZERO + Span::from_secs(60 * minute as i64), &each);
        if judge.worse() >= judge.decides() {
            break;
        }
    }
    judge
}

/// Returns the canaries of these seeds that were called worse, as minutes with the new version.
pub fn alarms(fleet: Fleet, minutes: u64, seeds: std::ops::Range<u64>) -> Vec<u64> {
    let each = seeds.map(|seed| watch(fleet, minutes, seed));
    each.filter(|judge| judge.worse() >= judge.decides()).map(|judge| judge.minutes()[1]).collect()
}
