//! Hedging: sends a request to a second replica if the first token is late (Dean and Barroso, "The tail at scale",
//! 2013).
//!
//! Lateness is the ratio of measured to expected TTFT, because a long prompt is not late just because it takes long.
//! A histogram of these ratios is kept. A hedge is considered past the percentile that half of the permitted hedges
//! reach anyway. The other half is reserved for a stalled replica, which makes many requests late simultaneously. The
//! second replica must be expected to be faster. The remaining time of the late request comes from the histogram: the
//! mean of the ratios beyond its own. The time of the second replica is its prediction.
//!
//! A request that was cancelled before its first token only shows that the token would have been later. Its weight
//! goes to the ratios beyond (Efron's redistribution to the right: the Kaplan-Meier estimate). Otherwise, hedges
//! would cut off the tail that caused them.
//!
//! A hedge computes a prompt twice, so second prompts are limited to a share of all prompt tokens. A busy pool does
//! not hedge, because a hedge would delay the other requests.

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::retry::BudgetReserve;
use crate::setting::SettingError;

/// Settings of hedging: a second attempt for slow requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HedgeSpec {
    /// Limit on hedged prompt tokens as a share of all uncached prompt tokens [default: 0.02]. A request is late
    /// beyond the percentile that half this share reaches in normal operation.
    pub share: f64,
    /// Maximum utilisation of the pool's prefill capacity for hedging, from 0 to 1 [default: 0.7].
    pub saturation: f64,
    /// Paths of hedged streams; their requests must have no side effects [default: /v1/chat/completions,
    /// /v1/completions, /v1/messages].
    pub paths: Vec<String>,
}

impl Default for HedgeSpec {
    fn default() -> HedgeSpec {
        HedgeSpec {
            share: 0.02,
            saturation: 0.7,
            paths: ["/v1/chat/completions", "/v1/completions", "/v1/messages"].map(str::to_owned).to_vec(),
        }
    }
}

impl HedgeSpec {
    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// Fails if a number is out of range.
    pub fn validate(&self) -> Result<(), SettingError> {
        let range = |key, value: f64, want| match (0.0..=1.0).contains(&value) {
            true => Ok(()),
            false => {
                Err(SettingError::Value { name: "hedge".to_owned(), key, value: value.to_string(), want })
            }
        };
        let paths = "a list of paths that begin with /, such as /v1/chat/completions";
        let wrong = self.paths.iter().find(|path| !path.starts_with('/'));
        if let Some(value) = wrong.or(self.paths.is_empty().then_some(&String::new())) {
            let (name, value) = ("hedge".to_owned(), value.clone());
            return Err(SettingError::Value { name, key: "paths", value, want: paths });
        }
        range("share", self.share, "a share from 0 to 1, such as 0.02")?;
        range("saturation", self.saturation, "a share from 0 to 1, such as 0.7")
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum HedgeSkipReason {
    /// The pool is busy, requests were rejected recently, or the SLO budget is in danger.
    Busy,
    /// All other replicas are ineligible or have no capacity.
    NoReplica,
    /// The first replica is expected to answer sooner.
    NoGain,
    /// The limit on hedged prompt tokens is reached.
    OverShare,
    /// Recently, almost no second replica was faster.
    Useless,
}

/// Minimum number of first tokens before a request can be late.
const LEAST_SEEN: f64 = 100.0;
/// Approximate memory of the histogram, in first tokens.
const KEPT: f64 = 2_000.0;
/// Resolution of the histogram: buckets per doubling.
const PER_DOUBLING: f64 = 16.0;
/// Number of buckets and the lowest ratio: from 1/64 to 1024.
const BUCKETS: usize = 256;
const LEAST_RATIO: f64 = 1.0 / 64.0;
/// Minimum time before a hedge, because timers are no finer.
const LEAST_AFTER: Span = Span::from_millis(10);
/// Saving period of the hedge budget, in s and in requests.
const SAVED: (f64, f64) = (60.0, 1_000.0);
/// Time after a rejection during which the pool counts as busy.
const CALM: Span = Span::from_secs(10);
/// Minimum share of faster hedges, and the pause of hedging if the share is lower.
const LEAST_WON: f64 = 0.2;
const REST: Span = Span::from_secs(60);
/// Weight of one hedge in the share of faster hedges.
const FRESH: f64 = 0.05;

/// A histogram of TTFT ratios: measured over expected time.
#[derive(Clone, PartialEq, Debug)]
struct Lateness {
    weights: [f64; BUCKETS],
    all: f64,
}

impl Lateness {
    fn place(ratio: f64) -> usize {
        ((ratio / LEAST_RATIO).log2() * PER_DOUBLING).clamp(0.0, (BUCKETS - 1) as f64) as usize
    }

    /// Returns the middle of a bucket on its logarithmic scale.
    fn middle(place: usize) -> f64 {
        LEAST_RATIO * ((place as f64 + 0.5) / PER_DOUBLING).exp2()
    }

    fn saw(&mut self, ratio: f64, came: bool) {
        let keep = 1.0 - 1.0 / KEPT;
        self.weights.iter_mut().for_each(|weight| *weight *= keep);
        self.all = self.all * keep + 1.0;
        let place = Lateness::place(ratio);
        let beyond: f64 = self.weights[place + 1..].iter().sum();
        match came || beyond < f64::EPSILON {
            true => self.weights[place] += 1.0,
            false => self.weights[place + 1..].iter_mut().for_each(|weight| *weight *= 1.0 + 1.0 / beyond),
        }
    }

    /// Returns the ratio that this share of requests does not exceed.
    fn quantile(&self, share: f64) -> f64 {
        let mut below = 0.0;
        let place = self.weights.iter().position(|weight| {
            below += weight;
            below >= share * self.all
        });
        LEAST_RATIO * ((place.unwrap_or(BUCKETS - 1) as f64 + 1.0) / PER_DOUBLING).exp2()
    }

    fn mean(&self) -> f64 {
        let sum: f64 =
            self.weights.iter().enumerate().map(|(place, weight)| weight * Lateness::middle(place)).sum();
        sum / self.all.max(1.0)
    }

    /// Returns the mean remaining ratio of a request that has reached `ratio`. Beyond all observed ratios it returns
    /// `ratio`, as for a scale-free tail.
    fn left(&self, ratio: f64) -> f64 {
        let beyond = Lateness::place(ratio) + 1;
        let weights = self.weights.iter().enumerate().skip(beyond);
        let (sum, all) = weights.fold((0.0, 0.0), |(sum, all), (place, weight)| {
            (sum + weight * (Lateness::middle(place) - ratio), all + weight)
        });
        if all < 1.0 { ratio } else { sum / all }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Hedger {
    spec: HedgeSpec,
    lateness: Lateness,
    savings: BudgetReserve,
    /// Recent share of hedges that were faster.
    won: f64,
    rests_until: At,
    refused: Option<At>,
}

/// A late request and the prediction for a second replica.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct LateRequest {
    /// Time since the request was sent.
    pub taken: Span,
    /// Expected TTFT on the first and on the second replica.
    pub expected: (Span, Span),
    /// Prompt tokens that the second replica would compute.
    pub uncached: u32,
    /// Load of the pool divided by its capacity.
    pub saturation: f64,
}

impl Hedger {
    pub fn new(spec: &HedgeSpec, now: At) -> Hedger {
        Hedger {
            spec: spec.clone(),
            lateness: Lateness { weights: [0.0; BUCKETS], all: 0.0 },
            savings: BudgetReserve::new(spec.share, SAVED, now),
            won: 0.5,
            rests_until: now,
            refused: None,
        }
    }

    /// Records a sent request with this many uncached tokens.
    pub fn sent(&mut self, uncached: u64, now: At) {
        self.savings.earn(uncached as f64, now);
    }

    /// Records a rejection for lack of capacity.
    pub fn refused(&mut self, now: At) {
        self.refused = Some(now);
    }

    /// Records a TTFT, or the time of a cancellation before the first token (`came` is false).
    pub fn saw(&mut self, taken: Span, expected: Span, came: bool) {
        if taken > Span::ZERO && expected > Span::ZERO {
            self.lateness.saw(taken.as_secs_f64() / expected.as_secs_f64(), came);
        }
    }

    /// Returns the time after sending at which a request is late, or `None` with too few observations.
    pub fn after(&self, expected: Span) -> Option<Span> {
        let known = self.lateness.all >= LEAST_SEEN && expected > Span::ZERO;
        let late = || {
            Span::from_secs_f64(expected.as_secs_f64() * self.lateness.quantile(1.0 - 0.5 * self.spec.share))
        };
        known.then(late).map(|late| late.max(LEAST_AFTER))
    }

    /// Decides on a hedge, and charges its prompt to the hedge budget.
    ///
    /// # Errors
    /// Fails with the reason against a hedge.
    pub fn take(&mut self, late: &LateRequest, now: At) -> Result<(), HedgeSkipReason> {
        let (first, other) = (late.expected.0.as_secs_f64(), late.expected.1.as_secs_f64());
        let left = first * self.lateness.left(late.taken.as_secs_f64() / first.max(1e-9));
        let busy = late.saturation > self.spec.saturation || self.refused.is_some_and(|at| now - at < CALM);
        if busy {
            return Err(HedgeSkipReason::Busy);
        }
        if now < self.rests_until {
            return Err(HedgeSkipReason::Useless);
        }
        if left <= other * self.lateness.mean() {
            return Err(HedgeSkipReason::NoGain);
        }
        match self.savings.take(f64::from(late.uncached)) {
            true => Ok(()),
            false => Err(HedgeSkipReason::OverShare),
        }
    }

    /// Records the end of a hedge. `won` is set if the second replica had the first token.
    pub fn ended(&mut self, won: bool, now: At) {
        self.won += (f64::from(u8::from(won)) - self.won) * FRESH;
        if self.won < LEAST_WON {
            (self.won, self.rests_until) = (0.5, now + REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_math::rng::Stream;

    use super::*;

    /// The ratios are exponentially distributed, P(R > r) = e^(−r), which is memoryless.
    fn exponential(censored: impl Fn(f64, &mut Stream) -> Option<f64>) -> Lateness {
        let mut lateness = Lateness { weights: [0.0; BUCKETS], all: 0.0 };
        let mut chance = Stream::new(11, "lateness", 0);
        for _ in 0..40_000 {
            let ratio = -chance.uniform().max(1e-12).ln();
            match censored(ratio, &mut chance) {
                Some(at) => lateness.saw(at, false),
                None => lateness.saw(ratio, true),
            }
        }
        lateness
    }

    fn is_exponential(lateness: &Lateness) {
        for (share, truth) in [(0.5, 0.693), (0.9, 2.303), (0.95, 2.996)] {
            let told = lateness.quantile(share);
            assert!((told / truth - 1.0).abs() < 0.1, "p{share}: {told} for {truth}");
        }
        assert!((lateness.mean() - 1.0).abs() < 0.07, "{}", lateness.mean());
        for ratio in [0.1, 0.5, 1.0, 2.0] {
            let left = lateness.left(ratio);
            assert!((left - 1.0).abs() < 0.15, "after {ratio}: {left}");
        }
    }

    #[test]
    fn lateness_is_that_of_the_law() {
        is_exponential(&exponential(|_, _| None));
    }

    /// Half of the requests are censored at an independent time.
    #[test]
    fn cancelled_requests_do_not_cut_the_tail_off() {
        is_exponential(&exponential(|ratio, chance| {
            let until = if chance.uniform() < 0.5 { 3.0 * chance.uniform() } else { f64::INFINITY };
            (ratio > until).then_some(until)
        }));
    }

    #[test]
    fn past_all_that_was_seen_it_takes_as_long_again() {
        let mut lateness = Lateness { weights: [0.0; BUCKETS], all: 0.0 };
        (0..1_000).for_each(|_| lateness.saw(1.0, true));
        assert_eq!(lateness.left(8.0), 8.0);
        assert!((lateness.quantile(0.95) - 1.0).abs() < 0.05);
    }

    fn at(s: f64) -> At {
        At::ZERO + Span::from_secs_f64(s)
    }

    fn seen(spec: &HedgeSpec, ratios: impl IntoIterator<Item = f64>) -> Hedger {
        let mut hedger = Hedger::new(spec, at(0.0));
        for ratio in ratios {
            hedger.saw(Span::from_secs_f64(ratio), Span::from_secs(1), true);
        }
        hedger
    }

    const LATE: LateRequest = LateRequest {
        taken: Span::from_secs(4),
        expected: (Span::from_secs(1), Span::from_secs(1)),
        uncached: 1_000,
        saturation: 0.1,
    };

    #[test]
    fn a_second_prompt_is_a_share_of_all_prompts() {
        let mut hedger = seen(&HedgeSpec::default(), [1.0; 200]);
        assert_eq!(hedger.after(Span::from_secs(2)).map(|after| after.as_secs_f64().round()), Some(2.0));
        let mut hedged = 0;
        for request in 0..10_000 {
            let now = at(f64::from(request) * 0.01);
            hedger.sent(1_000, now);
            if hedger.take(&LATE, now).is_ok() {
                hedger.ended(true, now);
                hedged += 1;
            }
        }
        assert!((195..=200).contains(&hedged), "{hedged} of 10 000");
        assert_eq!(hedger.take(&LATE, at(100.0)), Err(HedgeSkipReason::OverShare));
    }

    #[test]
    fn what_would_not_help_is_left_alone() {
        let spec = HedgeSpec { share: 1.0, ..HedgeSpec::default() };
        let mut hedger = seen(&spec, [1.0; 50]);
        assert_eq!(hedger.after(Span::from_secs(1)), None, "fifty are too few to know what is late");
        hedger = seen(&spec, [1.0; 200]);
        (0..2_000).for_each(|_| hedger.sent(1_000, at(0.0)));
        let why = |hedger: &mut Hedger, late: LateRequest, now| hedger.take(&late, at(now)).err();
        // The expected remaining time (4 s) is less than the second replica needs.
        let elsewhere = LateRequest { expected: (Span::from_secs(1), Span::from_secs(5)), ..LATE };
        assert_eq!(why(&mut hedger, elsewhere, 0.0), Some(HedgeSkipReason::NoGain));
        assert_eq!(
            why(&mut hedger, LateRequest { saturation: 0.71, ..LATE }, 0.0),
            Some(HedgeSkipReason::Busy)
        );
        hedger.refused(at(1.0));
        assert_eq!(why(&mut hedger, LATE, 10.9), Some(HedgeSkipReason::Busy));
        assert_eq!(why(&mut hedger, LATE, 11.0), None);
        // After 18 lost hedges, 0.5 · 0.95^n is below 0.2.
        (0..18).for_each(|_| hedger.ended(false, at(20.0)));
        assert_eq!(why(&mut hedger, LATE, 79.9), Some(HedgeSkipReason::Useless));
        assert_eq!(why(&mut hedger, LATE, 80.1), None);
    }
}
