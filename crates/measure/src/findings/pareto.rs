//! Throughput against speed per user: the curve by which MLPerf Endpoints compares systems.
//!
//! The source is its rules 1.0, section 4.1, with `docs.mlcommons.org/endpoints-submission-docs/reference/metrics-and-regions`.
//! `system_tps` is output tokens per second. `tps_per_user` is 1000 / `tpot_p90_ms`. `ttft_p90_ms` counts from sending.
//! Throughput per concurrency, the definition of its rules 0.7, was rejected, because a mean hides slow responses.

use plimsoll_model::Load;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Estimate, LevelFinding, Reading, Trust};

/// The loads of one kind of traffic as throughput against speed per user.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ParetoCurve {
    /// Kind of traffic, such as `steady` or `burst`.
    pub traffic: String,
    /// GPUs of the endpoint, over all replicas; `null` if unknown.
    pub gpus: Option<u32>,
    /// Levels in ascending order of throughput.
    pub points: Vec<ParetoPoint>,
}

/// One load on the curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ParetoPoint {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Load that the scenario requested.
    pub load: Load,
    /// Generated tokens per second of the endpoint.
    pub tokens_per_s: Reading,
    /// Generated tokens per second and GPU; `null` if the number of GPUs is unknown.
    pub tokens_per_s_per_gpu: Option<Reading>,
    /// Generated tokens per second that nine of ten users receive at least: 1 / p90 of `tpot`.
    pub tokens_per_s_per_user: Reading,
    /// 90th percentile of the time to first token from sending, in seconds.
    pub ttft_p90: Reading,
    /// Set if no other load has both more throughput and more speed per user. It compares values, also those of few requests,
    /// and leaves out invalid levels.
    pub is_pareto: bool,
    /// Trust in the level: valid, short, suspect or invalid.
    pub trust: Trust,
}

impl ParetoCurve {
    /// Returns the curve of each kind of traffic with two loads or more.
    pub fn all(levels: &[LevelFinding]) -> Vec<ParetoCurve> {
        let mut curves: Vec<ParetoCurve> = Vec::new();
        for level in levels {
            let Some(point) = ParetoPoint::of(level) else { continue };
            let traffic = &level.summary.traffic;
            match curves.iter_mut().find(|curve| curve.traffic == *traffic) {
                Some(curve) => curve.points.push(point),
                None => {
                    curves.push(ParetoCurve { traffic: traffic.clone(), gpus: None, points: vec![point] });
                }
            }
        }
        curves.retain(|curve| curve.points.iter().any(|point| point.load != curve.points[0].load));
        curves.iter_mut().for_each(ParetoCurve::rank);
        curves
    }

    /// Sets the number of GPUs, which adds the throughput per GPU.
    pub fn set_gpus(&mut self, gpus: Option<u32>) {
        self.gpus = gpus.filter(|gpus| *gpus > 0);
        for point in &mut self.points {
            point.tokens_per_s_per_gpu =
                self.gpus.map(|gpus| point.tokens_per_s.map(|e| scaled(e, f64::from(gpus).recip())));
        }
    }

    fn rank(&mut self) {
        let seen = |point: &ParetoPoint| point.tokens_per_s.seen().map_or(0.0, |e| e.value);
        self.points.sort_by(|a, b| seen(a).total_cmp(&seen(b)));
        let places: Vec<Option<(f64, f64)>> = self.points.iter().map(ParetoPoint::place).collect();
        for (point, own) in self.points.iter_mut().zip(&places) {
            let beats = |other: &(f64, f64), own: &(f64, f64)| {
                other.0 >= own.0 && other.1 >= own.1 && (other.0 > own.0 || other.1 > own.1)
            };
            point.is_pareto = own.is_some_and(|own| !places.iter().flatten().any(|other| beats(other, &own)));
        }
    }
}

impl ParetoPoint {
    fn of(level: &LevelFinding) -> Option<ParetoPoint> {
        let summary = &level.summary;
        let tpot = &summary.latency.tpot.as_ref()?.p90;
        Some(ParetoPoint {
            level: summary.level,
            load: summary.load,
            tokens_per_s: summary.rates.output_tokens_per_s.clone()?,
            tokens_per_s_per_gpu: None,
            tokens_per_s_per_user: tpot.map(inverse),
            ttft_p90: summary.latency.ttft_after_send.as_ref()?.p90.clone(),
            is_pareto: false,
            trust: level.validity.verdict,
        })
    }

    /// Returns throughput and speed per user; `None` if one is missing or the level is invalid.
    fn place(&self) -> Option<(f64, f64)> {
        let figure = |reading: &Reading| reading.seen().map(|e| e.value).filter(|value| value.is_finite());
        let place = (figure(&self.tokens_per_s)?, figure(&self.tokens_per_s_per_user)?);
        (self.trust != Trust::Invalid).then_some(place)
    }
}

fn scaled(e: &Estimate, by: f64) -> Estimate {
    Estimate { value: e.value * by, lower: e.lower * by, upper: e.upper * by, ..*e }
}

/// Returns the reciprocal, whose interval ends swap.
fn inverse(e: &Estimate) -> Estimate {
    Estimate { value: e.value.recip(), lower: e.upper.recip(), upper: e.lower.recip(), ..*e }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(value: f64) -> Reading {
        let e = Estimate { value, lower: 0.9 * value, upper: 1.25 * value, n: 100, n_eff: 100.0 };
        Reading::Estimate(e)
    }

    fn point(concurrency: u32, tokens: f64, tpot_s: f64, trust: Trust) -> ParetoPoint {
        ParetoPoint {
            level: concurrency,
            load: Load::Closed { concurrency },
            tokens_per_s: reading(tokens),
            tokens_per_s_per_gpu: None,
            tokens_per_s_per_user: reading(tpot_s).map(inverse),
            ttft_p90: reading(0.1),
            is_pareto: false,
            trust,
        }
    }

    /// By hand: 8 in flight is beaten by 4 in flight, 16 is slower but has more; the fastest of all is invalid.
    #[test]
    fn a_load_is_on_the_frontier_unless_another_is_better_in_both() {
        let points = vec![
            point(16, 900.0, 0.040, Trust::Valid),
            point(4, 500.0, 0.010, Trust::Valid),
            point(8, 480.0, 0.012, Trust::Short),
            point(1, 100.0, 0.008, Trust::Valid),
            point(2, 2000.0, 0.001, Trust::Invalid),
        ];
        let mut curve = ParetoCurve { traffic: "steady".into(), gpus: None, points };
        curve.rank();
        let on: Vec<(u32, bool)> = curve.points.iter().map(|p| (p.level, p.is_pareto)).collect();
        assert_eq!(on, [(1, true), (8, false), (4, true), (16, true), (2, false)]);
    }

    /// 1 / 20 ms is 50 tokens/s; its interval is [1 / 25 ms, 1 / 18 ms].
    #[test]
    fn speed_per_user_is_the_reciprocal_of_the_p90_tpot() {
        let mut curve = ParetoCurve {
            traffic: "steady".into(),
            gpus: None,
            points: vec![point(1, 800.0, 0.020, Trust::Valid)],
        };
        curve.set_gpus(Some(8));
        let of = |reading: &Reading| reading.estimate().map(|e| [e.lower, e.value, e.upper]);
        let user = of(&curve.points[0].tokens_per_s_per_user).expect("an estimate");
        assert!((user[0] - 40.0).abs() < 1e-9 && (user[1] - 50.0).abs() < 1e-9);
        assert!((user[2] - 1.0 / 0.018).abs() < 1e-9);
        let gpu = curve.points[0].tokens_per_s_per_gpu.as_ref().and_then(of).expect("an estimate");
        assert!(gpu.iter().zip([90.0, 100.0, 125.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{gpu:?}");
        curve.set_gpus(Some(0));
        assert_eq!((curve.gpus, &curve.points[0].tokens_per_s_per_gpu), (None, &None));
    }
}
