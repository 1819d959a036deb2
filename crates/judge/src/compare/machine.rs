//! Figures of the GPUs on both sides: power, energy per token, activity and memory.
//!
//! They are means over the units of the comparison, so their intervals include the changes from unit to unit. They describe a
//! change and decide nothing, because users feel latency and not watts. A figure that a side lacks has no row.

use plimsoll_math::two_sample::mean_ratio;
use plimsoll_measure::server_side::ServerMoment;

use super::finding::{ArmFigure, ComparedFigure, Scale, WorseWay};
use super::pairs::{FEWEST, LevelArm, LevelPair};
use super::rows::{LoadRows, effect, finished, tokens};
use super::spec::LEVEL;

type OfMoment = fn(&ServerMoment) -> Option<f64>;

/// Gauges that are compared, with the side that is worse.
const GAUGES: [(&str, OfMoment, WorseWay); 5] = [
    ("gpu_power", |moment| moment.power_w, WorseWay::Higher),
    ("gpu_memory", |moment| moment.gpu_memory, WorseWay::Higher),
    ("sm_active", |moment| moment.sm_active, WorseWay::Lower),
    ("dram_active", |moment| moment.dram_active, WorseWay::Higher),
    ("sm_clock", |moment| moment.sm_clock, WorseWay::Lower),
];

impl<'a> LoadRows<'a, '_> {
    /// Returns the rows of the GPUs.
    pub(super) fn machine(&self) -> Vec<ComparedFigure> {
        let gauge = |(name, of, worse): &(&str, OfMoment, WorseWay)| {
            let sides = self.sides(|arm, parts| means(arm, parts, *of))?;
            Some(self.row(name, *worse, sides))
        };
        let energy = self.sides(|arm, parts| {
            let watts = means(arm, parts, |moment| moment.power_w)?;
            let rates = finished(arm, parts, tokens);
            let mut all: Vec<f64> = watts.iter().zip(&rates).map(|(watts, rate)| watts / rate).collect();
            // The mean of the parts is the run's own figure, in which other clients' tokens share the energy.
            let whole = arm.server?.gpu.as_ref()?.per_token.as_ref()?.seen()?.value;
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            all.iter_mut().for_each(|joules| *joules *= whole / mean);
            all.iter().all(|joules| joules.is_finite()).then_some(all)
        });
        let energy = energy.map(|sides| self.row("energy_per_token", WorseWay::Higher, sides));
        energy.into_iter().chain(GAUGES.iter().filter_map(gauge)).collect()
    }

    /// Returns a figure per unit of both sides; `None` if a unit lacks it.
    fn sides(&self, of: impl Fn(&LevelArm, usize) -> Option<Vec<f64>>) -> Option<[Vec<f64>; 2]> {
        let per_level = self.cut.per_level;
        let levels = self.cut.units.len() / per_level.max(1);
        let side = |arm: for<'x> fn(&'x LevelPair<'a>) -> &'x LevelArm<'a>| -> Option<Vec<f64>> {
            let each = self.pairs.iter().take(levels).map(|pair| of(arm(pair), per_level));
            Some(each.collect::<Option<Vec<_>>>()?.concat())
        };
        let sides = [side(|pair| &pair.base)?, side(|pair| &pair.candidate)?];
        sides.iter().all(|side| !side.is_empty()).then_some(sides)
    }

    fn row(&self, name: &str, worse: WorseWay, [base, candidate]: [Vec<f64>; 2]) -> ComparedFigure {
        let margin = self.margins.throughput;
        let mut row = ComparedFigure { primary: false, worse, margin, ..self.blank(name, "mean") };
        row.method = "means of units, sign flips".into();
        let of = |values: &[f64]| ArmFigure {
            value: Some(values.iter().sum::<f64>() / values.len() as f64),
            n: values.len() as u64,
            n_eff: values.len() as f64,
        };
        (row.base, row.candidate) = (of(&base), of(&candidate));
        if base.len() >= FEWEST {
            let ratio = mean_ratio(&base, &candidate, self.flips, LEVEL);
            (row.p, row.effect) = (Some(ratio.p), effect(Scale::Ratio, ratio));
        }
        row
    }
}

/// Returns the mean of a gauge in equal parts of the level's window; `None` if a part has none.
fn means(arm: &LevelArm, parts: usize, of: impl Fn(&ServerMoment) -> Option<f64>) -> Option<Vec<f64>> {
    let course = &arm.server?.course;
    let half = 0.5 * arm.summary.timeline.bucket_s;
    let stop_s = (arm.level.stop - arm.level.start).as_secs_f64();
    let (start_s, width) = (stop_s - arm.length_s(), arm.length_s() / parts as f64);
    let part = |n: usize| {
        let (from, to) = (start_s + width * n as f64, start_s + width * (n + 1) as f64);
        let (mut sum, mut time) = (0.0, 0.0);
        for moment in course {
            let overlap = to.min(moment.at_s + half) - from.max(moment.at_s - half);
            if let Some(value) = of(moment).filter(|_| overlap > 0.0) {
                (sum, time) = (sum + overlap * value, time + overlap);
            }
        }
        (time > 0.0).then(|| sum / time)
    };
    (0..parts).map(part).collect()
}
