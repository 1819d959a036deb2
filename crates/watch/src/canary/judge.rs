//! Counts of each replica by minute → evidence that a canary is worse, and that it is not.
//!
//! **Worse.** In each minute the canary is ranked by its share over the edge among groups of unchanged base replicas
//! (placebo groups). The groups are drawn again each minute and reduced to equal numbers of requests, and the rank is
//! bet on ([`Ranks`]). If the version has no effect, all ranks are equally likely under any traffic. The evidence of
//! all edges is their mean, which needs no independence.
//!
//! **No worse.** The difference of the shares is bet against the margin ([`Wealth`]); every edge must be proven.
//!
//! Permanent differences between replicas would be attributed to the version. With a period before the deploy
//! (`before`), in which all run one version, each replica's own share is subtracted. The canary gets the uncertainty
//! of that share at half of alpha.

use plimsoll_math::anytime::{Bets, Claim, Ranks, Wealth, ln_mean};
use plimsoll_math::rng::Stream;
use plimsoll_math::series::{self, BATCHES};
use plimsoll_model::{Arm, At, Span};

/// Number of placebo groups, if the base has enough replicas for groups of the canary's size.
const GROUPS: usize = 4;
/// Maximum number of placebo groups, because more add little information.
const MOST_GROUPS: usize = 20;
/// Minimum number of minutes before the deploy for a replica's own share.
pub(crate) const LEAST_BEFORE: usize = 10;

/// The settings of a canary analysis.
#[derive(Clone, PartialEq, Debug)]
pub struct CanarySpec {
    /// Probability that a canary is ever called worse although it is not, over all evaluations; the same value
    /// applies to "no worse".
    pub alpha: f64,
    /// Duration at the start in which all replicas run one version.
    pub before: Span,
    /// Minimum duration with the new version before a promotion.
    pub least: Span,
    /// Seed of the group and tie draws.
    pub seed: u64,
}

/// The counts of one replica in a minute.
#[derive(Clone, Debug)]
pub struct ReplicaMinute {
    /// Name of the replica, equal in every minute.
    pub name: String,
    pub arm: Arm,
    /// Requests and those over the edge, per measure; `None` if unknown.
    pub counts: Vec<Option<(u64, u64)>>,
}

/// A latency with an edge, or failures.
#[derive(Clone, PartialEq, Debug)]
pub struct CanaryMeasure {
    /// Name of the measure, for example `ttft over 0.25 s`.
    pub what: String,
    /// Maximum accepted increase of the share.
    pub margin: f64,
}

#[derive(Clone, Debug)]
struct Evidence {
    of: CanaryMeasure,
    ranks: Ranks,
    within: Wealth,
    /// Requests and those over the edge with the new version: base, canary.
    seen: [(u64, u64); 2],
    /// Requests and those over the edge before the deploy, by replica.
    own: Vec<(String, Arm, (u64, u64))>,
    /// Difference of the shares before the deploy, canary minus base, by minute.
    differences: Vec<f64>,
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct MeasureEvidence {
    /// Requests and those over the edge with the new version: base, canary.
    pub seen: [(u64, u64); 2],
    /// Evidence that the canary's share is larger, as odds.
    pub worse: f64,
    /// Set if the increase is proven to be within the margin.
    pub is_within: bool,
}

#[derive(Clone, Debug)]
pub struct Judge {
    spec: CanarySpec,
    measures: Vec<Evidence>,
    chance: Stream,
    ln_peak: f64,
    minutes: [u64; 2],
}

impl Judge {
    pub fn new(spec: CanarySpec, measures: Vec<CanaryMeasure>) -> Judge {
        let evidence = |of: CanaryMeasure| Evidence {
            within: Wealth::against(Claim::AtLeast, 0.5 * (1.0 + of.margin), Bets::wide()),
            of,
            ranks: Ranks::default(),
            seen: [(0, 0); 2],
            own: Vec::new(),
            differences: Vec::new(),
        };
        Judge {
            chance: Stream::new(spec.seed, "canary", 0),
            measures: measures.into_iter().map(evidence).collect(),
            spec,
            ln_peak: 0.0,
            minutes: [0; 2],
        }
    }

    /// Adds a minute that ended at this instant. A minute without data of a side is ignored.
    pub fn push(&mut self, at: At, replicas: &[ReplicaMinute]) {
        let of = |arm| -> Vec<&ReplicaMinute> { replicas.iter().filter(|r| r.arm == arm).collect() };
        let (base, canary) = (of(Arm::Base), of(Arm::Canary));
        if base.is_empty() || canary.is_empty() {
            return;
        }
        let is_out = at > At::ZERO + self.spec.before;
        self.minutes[usize::from(is_out)] += 1;
        for place in 0..self.measures.len() {
            match is_out {
                false => self.measures[place].before(place, &base, &canary),
                true => self.compare(place, &base, &canary),
            }
        }
        if is_out && !self.measures.is_empty() {
            self.ln_peak = self.ln_peak.max(ln_mean(self.measures.iter().map(|one| one.ranks.ln_now())));
        }
    }

    fn compare(&mut self, place: usize, base: &[&ReplicaMinute], canary: &[&ReplicaMinute]) {
        let (alpha, had_before) = (self.spec.alpha, self.spec.before > Span::ZERO);
        let evidence = &mut self.measures[place];
        let shift = if had_before { evidence.uncertain(alpha) } else { Some(0.0) };
        let sums = [base, canary].map(|side| evidence.sum(place, side));
        let (Some(shift), [Some(b), Some(c)]) = (shift, sums) else { return };
        for (seen, now) in evidence.seen.iter_mut().zip([b, c]) {
            *seen = (seen.0 + now.n, seen.1 + now.over);
        }
        let difference = c.share() - c.own - (b.share() - b.own);
        evidence.within.push((0.5 * (1.0 + difference + shift)).clamp(0.0, 1.0));
        if let Some((rank, of)) = evidence.rank(place, (base, canary), shift, &mut self.chance) {
            evidence.ranks.push(rank, of);
        }
    }

    /// Returns the maximum evidence that the canary is worse, as odds.
    pub fn worse(&self) -> f64 {
        odds(self.ln_peak)
    }

    /// Returns the odds at which the evidence decides. The uncertainty of the period before takes half of alpha.
    pub fn decides(&self) -> f64 {
        let alpha = if self.spec.before > Span::ZERO { 0.5 * self.spec.alpha } else { self.spec.alpha };
        1.0 / alpha
    }

    pub fn spec(&self) -> &CanarySpec {
        &self.spec
    }

    /// Returns the number of counted minutes: before, and with the new version.
    pub fn minutes(&self) -> [u64; 2] {
        self.minutes
    }

    /// Returns each measure with its result.
    pub fn known(&self) -> impl ExactSizeIterator<Item = (&CanaryMeasure, MeasureEvidence)> {
        self.measures.iter().map(|one| {
            let known = MeasureEvidence {
                seen: one.seen,
                worse: odds(one.ranks.ln_now()),
                is_within: one.within.proves(self.spec.alpha),
            };
            (&one.of, known)
        })
    }
}

#[derive(Copy, Clone, Debug)]
struct Sum {
    n: u64,
    over: u64,
    /// Mean of the replicas' shares before the deploy.
    own: f64,
}

impl Sum {
    fn share(self) -> f64 {
        self.over as f64 / self.n as f64
    }
}

impl Evidence {
    fn before(&mut self, place: usize, base: &[&ReplicaMinute], canary: &[&ReplicaMinute]) {
        for replica in base.iter().chain(canary) {
            let Some((n, over)) = replica.counts.get(place).copied().flatten() else { continue };
            match self.own.iter_mut().find(|(name, ..)| *name == replica.name) {
                Some((.., own)) => *own = (own.0 + n, own.1 + over),
                None => self.own.push((replica.name.clone(), replica.arm, (n, over))),
            }
        }
        if let [Some(base), Some(canary)] = [base, canary].map(|side| self.sum(place, side)) {
            self.differences.push(canary.share() - base.share());
        }
    }

    /// Returns the uncertainty of the canary's difference before the deploy at half of alpha; `None` with too few
    /// minutes.
    fn uncertain(&self, alpha: f64) -> Option<f64> {
        if self.differences.len() < LEAST_BEFORE {
            return None;
        }
        let mean = series::mean(&self.differences, BATCHES, 1.0 - alpha)?;
        Some(mean.interval.upper - mean.value)
    }

    /// Returns the sum of the replicas; `None` without requests.
    fn sum(&self, place: usize, replicas: &[&ReplicaMinute]) -> Option<Sum> {
        let mut sum = Sum { n: 0, over: 0, own: 0.0 };
        for replica in replicas {
            let (n, over) = replica.counts.get(place).copied().flatten()?;
            sum = Sum { n: sum.n + n, over: sum.over + over, own: sum.own + self.own_of(replica) * n as f64 };
        }
        (sum.n > 0).then(|| Sum { own: sum.own / sum.n as f64, ..sum })
    }

    /// Returns a replica's share before the deploy; for a later replica, that of its side.
    fn own_of(&self, replica: &ReplicaMinute) -> f64 {
        let named = self.own.iter().any(|(name, ..)| *name == replica.name);
        let of = self.own.iter().filter(|(name, arm, _)| match named {
            true => *name == replica.name,
            false => *arm == replica.arm,
        });
        let (n, over) = of.fold((0, 0), |(n, over), (.., own)| (n + own.0, over + own.1));
        if n > 0 { over as f64 / n as f64 } else { 0.0 }
    }

    /// Returns the canary's rank among the groups by the share over the edge, 0 for the largest, and the number of
    /// ranks.
    fn rank(
        &self,
        place: usize,
        (base, canary): (&[&ReplicaMinute], &[&ReplicaMinute]),
        shift: f64,
        chance: &mut Stream,
    ) -> Option<(usize, usize)> {
        // Several small groups have more information than few large ones: with two, a rank is only a sign.
        let each = (base.len() / GROUPS).clamp(1, canary.len());
        let groups = (base.len() / each).min(MOST_GROUPS);
        let base = shuffled(base, chance);
        let canary = shuffled(canary, chance);
        let sums = std::iter::once(&canary[..each]).chain(base.chunks_exact(each).take(groups));
        let sums: Vec<Sum> = sums.map(|group| self.sum(place, group)).collect::<Option<_>>()?;
        // The side with fewer requests would have more extreme shares.
        let n = sums.iter().map(|sum| sum.n).min()?;
        let share = |sum: &Sum| thinned((sum.n, sum.over), n, chance) as f64 / n as f64 - sum.own;
        let shares: Vec<f64> = sums.iter().map(share).collect();
        let own = shares[0] - shift;
        let above = shares[1..].iter().filter(|share| **share > own + SAME).count() as u64;
        let alike = shares[1..].iter().filter(|share| (**share - own).abs() <= SAME).count() as u64;
        Some(((above + chance.below(alike + 1)) as usize, shares.len()))
    }
}

/// Returns odds for display, limited to a large maximum.
fn odds(ln: f64) -> f64 {
    ln.min(27.0).exp()
}

/// Tolerance for rounding between equal shares.
const SAME: f64 = 1e-12;

fn shuffled<'a>(of: &[&'a ReplicaMinute], chance: &mut Stream) -> Vec<&'a ReplicaMinute> {
    let mut of = of.to_vec();
    for i in (1..of.len()).rev() {
        of.swap(i, chance.below(i as u64 + 1) as usize);
    }
    of
}

/// Returns the number over the edge among `keep` requests, drawn without replacement.
fn thinned((n, over): (u64, u64), keep: u64, chance: &mut Stream) -> u64 {
    // Draws the smaller of the kept and the dropped part.
    let draws = keep.min(n - keep);
    let (mut left, mut marked) = (n, over);
    for _ in 0..draws {
        marked -= u64::from(chance.below(left) < marked);
        left -= 1;
    }
    if draws == keep { over - marked } else { marked }
}
