//! The causes of the tail: the extra time of each stage in the slowest requests compared with the middle ones.
//!
//! E[stage | slowest] − E[stage | Q40 to Q60] is linear in the stages, so the contributions add up to the gap, exact
//! to floating-point rounding. Correlation of stages with the total was rejected: correlations do not add up, and a
//! stage that is always long explains nothing. Intervals are from a bootstrap of whole blocks of requests, which
//! repeats the cuts.

use plimsoll_math::bootstrap::resample;
use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_math::rng::Stream;

use super::finding::{ChangeFinding, ChangePart, TailFinding, TailPart, TailReason};
use super::sample::LatencySample;
use super::stage::Stage;
use plimsoll_measure::findings::{Estimate, Reading};
use plimsoll_measure::order::LEVEL;

/// Minimum number of requests in a tail.
const IN_TAIL: f64 = 20.0;
/// Possible shares of the tail, narrowest first.
const TAILS: [f64; 3] = [0.01, 0.05, 0.10];
const REDRAWS: usize = 400;

/// The means of the stages over a part of the requests, in s.
#[derive(Clone, PartialEq, Debug, Default)]
struct Means {
    whole: f64,
    stages: Vec<f64>,
    requests: u64,
}

/// The requests of one latency in ascending order, cut into middle and tail.
pub struct TailSplit<'a> {
    sample: &'a LatencySample<'a>,
    stages: Vec<Stage>,
    order: Vec<u32>,
    block: Vec<u16>,
    blocks: usize,
    slowest: f64,
    columns: Vec<Vec<i64>>,
}

/// Returns the narrowest share that has enough requests.
pub fn slowest(sample: &LatencySample<'_>) -> Result<f64, String> {
    sample.blocks.as_ref().map_err(Clone::clone)?;
    let n = sample.kish().min(sample.total.len() as f64);
    let fits = TAILS.into_iter().find(|share| share * n >= IN_TAIL - 1e-9);
    fits.ok_or_else(|| {
        format!(
            "a tail needs {:.0} requests (20 in the slowest tenth), there are {n:.0}",
            IN_TAIL / TAILS[TAILS.len() - 1]
        )
    })
}

impl<'a> TailSplit<'a> {
    /// Cuts at this share; `stages` are the stages to compare.
    pub fn new(sample: &'a LatencySample<'a>, slowest: f64, stages: Vec<Stage>) -> TailSplit<'a> {
        let blocks = sample.blocks.as_ref().copied().unwrap_or(1);
        let mut order: Vec<u32> = (0..sample.total.len() as u32).collect();
        order.sort_by_key(|i| sample.total[*i as usize]);
        let block = (0..order.len()).map(|place| sample.block_of(place, blocks) as u16).collect();
        let columns = stages.iter().map(|stage| sample.column(*stage)).collect();
        TailSplit { sample, stages, order, block, blocks, slowest, columns }
    }

    /// Returns the means of the middle and of the tail, with each block repeated `times`.
    fn means(&self, times: &[u32]) -> [Means; 2] {
        let weight =
            |i: u32| self.sample.weights[i as usize] * f64::from(times[usize::from(self.block[i as usize])]);
        let total: f64 = (0..self.order.len() as u32).map(weight).sum();
        let (low, high) = (0.4 * total, 0.6 * total);
        let from = (1.0 - self.slowest) * total * (1.0 + 1e-12);
        let mut sums: [(f64, f64, Vec<f64>, u64); 2] =
            std::array::from_fn(|_| (0.0, 0.0, vec![0.0; self.columns.len()], 0));
        let mut upto = 0.0;
        for i in &self.order {
            let w = weight(*i);
            if w == 0.0 {
                continue;
            }
            let before = upto;
            upto += w;
            let add = |sum: &mut (f64, f64, Vec<f64>, u64)| {
                sum.0 += w;
                sum.1 += w * self.sample.total[*i as usize] as f64;
                for (sum, column) in sum.2.iter_mut().zip(&self.columns) {
                    *sum += w * column[*i as usize] as f64;
                }
                sum.3 += 1;
            };
            if upto > low && before < high {
                add(&mut sums[0]);
            }
            if upto > from {
                add(&mut sums[1]);
            }
        }
        sums.map(|(w, whole, stages, requests)| Means {
            whole: whole / w / 1e9,
            stages: stages.into_iter().map(|sum| sum / w / 1e9).collect(),
            requests,
        })
    }

    fn once(&self) -> [Means; 2] {
        self.means(&vec![1; self.blocks])
    }

    fn redrawn(&self, stream: &mut Stream) -> [Means; 2] {
        let mut times = vec![0u32; self.blocks];
        resample(stream, self.blocks).into_iter().for_each(|block| times[block] += 1);
        self.means(&times)
    }

    fn n_eff(&self, requests: u64) -> f64 {
        requests as f64 * self.sample.kish() / self.sample.total.len().max(1) as f64
    }
}

/// Returns the causes of this latency's tail, and each stage's share of the tail's time.
pub fn tail(sample: &LatencySample<'_>, seed: u64) -> (TailReason, Vec<(Stage, Reading)>) {
    let share = match slowest(sample) {
        Ok(share) => share,
        Err(why) => return (TailReason::Refused { why }, Vec::new()),
    };
    let cut = TailSplit::new(sample, share, sample.stages.clone());
    let [middle, slow] = cut.once();
    let mut stream = Stream::new(seed, "profile tail", sample.of as u64);
    let redraws: Vec<[Means; 2]> = (0..REDRAWS).map(|_| cut.redrawn(&mut stream)).collect();
    let n_eff = cut.n_eff(slow.requests);
    let estimate = |value: f64, of: &dyn Fn(&[Means; 2]) -> f64| {
        interval(value, redraws.iter().map(of), slow.requests, n_eff)
    };
    let gap = estimate(slow.whole - middle.whole, &|m| m[1].whole - m[0].whole);
    let mut parts: Vec<TailPart> = Vec::new();
    let mut shares = Vec::new();
    for (k, stage) in cut.stages.iter().enumerate() {
        let value = slow.stages[k] - middle.stages[k];
        let own = estimate(value, &|m| m[1].stages[k] - m[0].stages[k]);
        let of_gap = if gap.value > 0.0 { value / gap.value } else { 0.0 };
        parts.push(TailPart { stage: *stage, gap: own, share: of_gap });
        let of_tail = estimate(slow.stages[k] / slow.whole, &|m| m[1].stages[k] / m[1].whole);
        shares.push((*stage, Reading::Estimate(of_tail)));
    }
    parts.sort_by(|a, b| b.gap.value.total_cmp(&a.gap.value));
    let finding = TailFinding {
        slowest: share,
        tail_requests: slow.requests,
        middle_requests: middle.requests,
        tail_mean_s: slow.whole,
        middle_mean_s: middle.whole,
        gap,
        parts,
    };
    (TailReason::Attributed(finding), shares)
}

/// Returns the change of the tail against a baseline.
pub fn change(
    base: &LatencySample<'_>,
    candidate: &LatencySample<'_>,
    seed: u64,
) -> Result<ChangeFinding, String> {
    let side =
        |name: &str, sample: &LatencySample<'_>| slowest(sample).map_err(|why| format!("{name}: {why}"));
    let share = side("the baseline", base)?.max(side("the candidate", candidate)?);
    let used = |stage: &Stage| base.stages.contains(stage) || candidate.stages.contains(stage);
    let stages: Vec<Stage> = Stage::ALL.into_iter().filter(used).collect();
    let (before, after) =
        (TailSplit::new(base, share, stages.clone()), TailSplit::new(candidate, share, stages.clone()));
    let (b, a) = (before.once(), after.once());
    let mut stream = Stream::new(seed, "profile change", base.of as u64);
    let redraws: Vec<([Means; 2], [Means; 2])> =
        (0..REDRAWS).map(|_| (before.redrawn(&mut stream), after.redrawn(&mut stream))).collect();
    let n_eff = before.n_eff(b[1].requests).min(after.n_eff(a[1].requests));
    let estimate = |of: &dyn Fn(&[Means; 2]) -> f64| {
        let differences = redraws.iter().map(|(before, after)| of(after) - of(before));
        interval(of(&a) - of(&b), differences, b[1].requests.min(a[1].requests), n_eff)
    };
    let mut parts: Vec<ChangePart> = (0..stages.len())
        .map(|k| ChangePart {
            stage: stages[k],
            tail: estimate(&|m| m[1].stages[k]),
            middle: estimate(&|m| m[0].stages[k]),
            gap: estimate(&|m| m[1].stages[k] - m[0].stages[k]),
        })
        .collect();
    parts.sort_by(|x, y| y.tail.value.abs().total_cmp(&x.tail.value.abs()));
    Ok(ChangeFinding {
        of: candidate.of,
        base_requests: base.total.len() as u64,
        slowest: share,
        tail: estimate(&|m| m[1].whole),
        middle: estimate(&|m| m[0].whole),
        parts,
    })
}

fn interval(value: f64, found: impl Iterator<Item = f64>, n: u64, n_eff: f64) -> Estimate {
    let mut found: Vec<f64> = found.collect();
    sort(&mut found);
    let at = |p: f64| of_sorted(&found, p).unwrap_or(f64::NAN);
    Estimate { value, lower: at(0.5 - 0.5 * LEVEL), upper: at(0.5 + 0.5 * LEVEL), n, n_eff }
}
