//! "The time to first token has doubled": by counts over bucket edges, never by an interpolated percentile.
//!
//! The reference is a healthy hour. Let x be the smallest edge that certainly at most half (a twentieth) of its times
//! to first token exceed. The smallest edge y ≥ 2 x is then a ceiling like a row's. If more than half (a twentieth)
//! exceed it, the median (the p95) has doubled. The detector of ceilings decides when that is proven. Buckets are
//! coarse, but their sum is exact. Therefore a mean that has doubled in every block for a minute is reported too, if
//! its interval proves it. The hour's line of times to first token by computed tokens shows the part that longer
//! prompts explain.

use std::collections::VecDeque;

use plimsoll_math::series;
use plimsoll_measure::findings::Held;
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_measure::server_side::Buckets;
use plimsoll_model::{At, Span};

use super::detect::threshold;
use super::row::{BLOCK, RowWatch};
use crate::over::{OverCount, decide_blocks, over};

/// Length of the stored parts of the healthy hour.
const PART: Span = Span::from_secs(60);
const HOUR: usize = 60;
/// Number of minutes before an alert that do not count as healthy.
const SUSPECT: usize = 3;
/// Number of blocks for the reported means.
const RECENT: usize = 120;
/// Shares over an edge: of the median, and of the 95th percentile.
const SHARES: [f64; 2] = [0.5, 0.05];
/// Minimum ratio to the healthy hour.
const TIMES: f64 = 2.0;
/// Minimum number of blocks for a mean, error probability of one test, and number of blocks that prove the end. There
/// are 260 000 tests in a month.
const FEWEST: usize = 5;
const ERROR: f64 = 1e-5;
const BACK: usize = 10;
/// Maximum relative half-width of the interval at which the hour's line predicts a value.
const SURE: f64 = 0.5;

/// Times to first token of a fleet over an interval, and the computed tokens.
#[derive(Clone, Debug)]
pub(crate) struct FirstTokens {
    /// Histogram of the times to first token, s.
    pub buckets: Buckets,
    /// Computed prompt tokens, and queue times in the engine in s; `None` if unknown.
    pub computed: Option<f64>,
    pub waited_s: Option<f64>,
}

impl FirstTokens {
    fn n(&self) -> f64 {
        self.buckets.counts.iter().sum()
    }

    fn add(&mut self, other: &FirstTokens) -> bool {
        if self.buckets.edges != other.buckets.edges {
            return false;
        }
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        self.buckets.counts.iter_mut().zip(&other.buckets.counts).for_each(|(a, b)| *a += b);
        self.buckets.sum = sum(self.buckets.sum, other.buckets.sum);
        self.computed = sum(self.computed, other.computed);
        self.waited_s = sum(self.waited_s, other.waited_s);
        true
    }

    /// Returns the mean time to first token, and per request the computed tokens and the queue time in s.
    fn means(&self) -> Option<(f64, Option<(f64, f64)>)> {
        let n = self.n();
        let mean = self.buckets.sum.filter(|_| n > 0.0)? / n;
        Some((mean, self.computed.zip(self.waited_s).map(|(computed, waited)| (computed / n, waited / n))))
    }
}

/// A ceiling derived from the healthy hour.
#[derive(Clone, Debug)]
struct Ceiling {
    share: f64,
    was_s: f64,
    is_s: f64,
    watch: RowWatch,
}

/// The detector of a doubled time to first token.
#[derive(Clone, Default, Debug)]
pub(crate) struct TtftRegression {
    /// Healthy minutes, oldest first, and the open one.
    good: VecDeque<FirstTokens>,
    open: Option<(At, FirstTokens)>,
    ceilings: Vec<Ceiling>,
    /// Healthy hour that the ceilings are derived from.
    hour: Vec<FirstTokens>,
    /// Last blocks with their start times.
    recent: VecDeque<(At, FirstTokens)>,
    fired: Option<At>,
}

impl TtftRegression {
    /// Processes an interval. `good` is set if no latency or failure alert fires. Returns the start and the
    /// description of a doubling.
    pub fn step(
        &mut self,
        (from, to): (At, At),
        came: &FirstTokens,
        (good, alpha, false_alarms): (bool, f64, f64),
    ) -> Option<(At, String)> {
        for ceiling in &mut self.ceilings {
            if let Some(counted) = over(&came.buckets, ceiling.is_s) {
                ceiling.watch.push(from, to, counted);
            }
        }
        self.recent.push_back((from, came.clone()));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.remember((from, to), came, (good, alpha));
        if let Some(fired) = self.fired {
            let holds = self.ceilings.iter().all(|ceiling| ceiling.watch.holds_since(fired, alpha));
            if holds && self.mean_is_back(fired) {
                self.fired = None;
                self.ceilings.iter_mut().for_each(|ceiling| ceiling.watch.begin_again());
                return None;
            }
            return Some((fired, String::new()));
        }
        let most = threshold(BLOCK.max(to - from).as_secs_f64(), SHARES.len(), false_alarms);
        let broken = self.ceilings.iter().find_map(|one| Some((one, one.watch.broken(to, most)?)));
        let (since, said) = match broken {
            Some((ceiling, (since, counted))) => (since, counted_over(ceiling, counted)),
            None => (self.mean_doubled(to)?, "first tokens took twice as long in every block".to_owned()),
        };
        let recent = self.recent.iter().filter(|(from, _)| *from >= since).map(|(_, came)| came);
        let said = said + &sum(recent).and_then(|now| self.split(&now)).unwrap_or_default();
        self.fired = Some(to);
        Some((since, said))
    }

    /// Returns twice the upper bound of the healthy hour's mean in s.
    fn twice_s(&self) -> Option<f64> {
        let means: Vec<f64> = self.hour.iter().filter_map(|minute| Some(minute.means()?.0)).collect();
        Some(TIMES * series::mean(&means, series::BATCHES, 0.95)?.interval.upper)
    }

    /// Returns the start of a period in which every block's mean is over twice the healthy hour's. The period has at
    /// least a minute and a statistical proof.
    fn mean_doubled(&self, now: At) -> Option<At> {
        let twice = self.twice_s()?;
        let means = self.recent.iter().rev().filter_map(|(from, came)| Some((*from, came.means()?.0)));
        let over: Vec<(At, f64)> = means.take_while(|(_, mean)| *mean > twice).collect();
        let since = over.last()?.0;
        let values: Vec<f64> = over.iter().map(|(_, mean)| *mean).collect();
        let is_long = now - since >= PART && values.len() >= FEWEST;
        let lower = series::mean(&values, series::BATCHES, 1.0 - 2.0 * ERROR)?.interval.lower;
        (is_long && lower > twice).then_some(since)
    }

    /// Returns whether the mean of the last blocks since then is certainly under twice the healthy hour's.
    fn mean_is_back(&self, fired: At) -> bool {
        let since = self.recent.iter().rev().take_while(|(from, _)| *from >= fired).take(BACK);
        let means: Vec<f64> = since.filter_map(|(_, came)| Some(came.means()?.0)).collect();
        let twice = self.twice_s().unwrap_or(f64::INFINITY);
        means.len() >= BACK
            && series::mean(&means, series::BATCHES, 0.95).is_some_and(|mean| mean.interval.upper < twice)
    }

    /// Stores healthy minutes, and sets the ceilings after each healthy hour.
    fn remember(&mut self, (from, to): (At, At), came: &FirstTokens, (good, alpha): (bool, f64)) {
        if !good {
            // An alert's problem starts before the alert fires.
            if self.open.take().is_some() {
                self.good.truncate(self.good.len().saturating_sub(SUSPECT));
            }
            return;
        }
        let same = self.open.as_mut().is_some_and(|(_, open)| open.add(came));
        if !same {
            self.open = Some((from, came.clone()));
        }
        let Some((_, minute)) = self.open.take_if(|(begun, _)| to - *begun >= PART) else { return };
        if self.good.front().is_some_and(|first| first.buckets.edges != minute.buckets.edges) {
            self.good.clear();
        }
        self.good.push_back(minute);
        if self.good.len() < HOUR {
            return;
        }
        self.hour = self.good.drain(..).collect();
        self.ceilings =
            SHARES.iter().filter_map(|share| ceiling(&self.hour, *share, to - from, alpha)).collect();
    }

    /// Returns the part that longer prompts explain, from the healthy hour's line at the present number of computed
    /// tokens. The rest is displayed next to the queue time.
    fn split(&self, now: &FirstTokens) -> Option<String> {
        let ((is, by), (was, before)) = (now.means()?, sum(self.hour.iter())?.means()?);
        let change = format!(". On average {}, before {}: × {}", ms(is), ms(was), number(is / was));
        let Some(((computed, waited), (computed_then, waited_then))) = by.zip(before) else {
            return Some(change);
        };
        let means = self.hour.iter().filter_map(FirstTokens::means);
        let points: Vec<(f64, f64)> = means.filter_map(|(mean, by)| Some((by?.0, mean))).collect();
        let (tokens, tokens_then) = (number(computed.round()), number(computed_then.round()));
        let tokens = format!("{tokens} prompt tokens computed for each, before {tokens_then}");
        let waits = format!("the engine's queue {}, before {}", ms(waited), ms(waited_then));
        let foretold = series::line_at(&points, computed, 0.95).filter(|at| at.value > 0.0);
        Some(match foretold.filter(|at| at.interval.upper - at.value <= SURE * at.value) {
            Some(at) => {
                let (prompts, rest) = (number(at.value / was), number(is / at.value));
                format!(
                    "{change}; × {prompts} from the prompts ({tokens}), × {rest} from other causes ({waits})"
                )
            }
            None => format!("{change}; {tokens}, but the hour before cannot show their share; {waits}"),
        })
    }
}

/// Returns the sum of the entries with the bucket edges of the first.
fn sum<'a>(mut of: impl Iterator<Item = &'a FirstTokens>) -> Option<FirstTokens> {
    let mut all = of.next()?.clone();
    for one in of {
        let _ = all.add(one);
    }
    Some(all)
}

fn counted_over(ceiling: &Ceiling, counted: OverCount) -> String {
    format!(
        "{} of {} first tokens took over {}; of a good hour before at most {} took over {}",
        percent(counted.least as f64 / counted.n.max(1) as f64),
        counted.n,
        ms(ceiling.is_s),
        percent(ceiling.share),
        ms(ceiling.was_s)
    )
}

/// Returns the ceiling that a healthy hour sets for this share.
fn ceiling(hour: &[FirstTokens], share: f64, every: Span, alpha: f64) -> Option<Ceiling> {
    let edges = &hour.first()?.buckets.edges;
    let holds = |edge: &f64| {
        let parts: Vec<OverCount> = hour.iter().filter_map(|minute| over(&minute.buckets, *edge)).collect();
        let (all, decision) = decide_blocks(&parts, share, alpha);
        all.n > 0 && decision.held == Held::Pass
    };
    let was_s = edges.iter().copied().find(holds)?;
    let is_s = edges.iter().copied().find(|edge| *edge >= TIMES * was_s * (1.0 - 1e-9))?;
    Some(Ceiling { share, was_s, is_s, watch: RowWatch::new(share, "first tokens", every, &[]) })
}
