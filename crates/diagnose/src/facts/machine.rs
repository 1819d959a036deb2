//! Facts from the counters of the machine: CPU quotas of containers, stolen and contended CPUs, clocks of GPUs.
//!
//! A counter is evidence only if it rises in the seconds in which this run's own tokens are slow. A counter that is high all the time, or while
//! the tokens are fast, explains nothing, so a slower model stays one. Comparing means with the baseline was rejected, because any two runs differ
//! in some counter of the machine.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};
use plimsoll_measure::say::{number, percent};
use plimsoll_measure::server_side::Signal;

use super::{FactState, Finding, Observed};
use crate::concurrency::StepLaw;
use crate::frame::Frames;
use crate::gauges::CounterStep;
use crate::seen::DiagnosedLevel;

// These limits are chosen by judgement and checked on generated runs only: no real host with such counters was measured.

/// Ratios to the usual gap between tokens from which an interval is slow, and below which it is fast.
const SLOW: (f64, f64) = (1.4, 1.2);
/// Minimum number of intervals, of gaps in an interval, and of slow intervals.
const FEWEST: (usize, usize, usize) = (15, 3, 3);
/// Minimum share of the slow intervals with a raised counter, and maximum share of the fast ones: over several separate periods, and over one.
const MATCHED: [(f64, f64); 2] = [(0.7, 0.2), (0.8, 0.1)];
/// Minimum number of slow intervals if they are one period.
const ONE_PERIOD: usize = 5;
/// Least raised values: share of stopped periods, stolen CPUs, share of waiting time, relative loss of clock.
const LEAST_STOPPED: f64 = 0.1;
const LEAST_STOLEN: f64 = 0.1;
const LEAST_WAITING: f64 = 0.1;
const LEAST_CLOCK: f64 = 0.08;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    let quota = quota(frames);
    let clock = clock(frames);
    let is_seen = |finding: &Option<Finding>| finding.as_ref().is_some_and(|one| one.is == FactState::Yes);
    // Where a counter shows the cause, the client need not infer it from the tokens: slow seconds without a counter suggest a neighbour. A
    // quota that stops some periods of some seconds leaves no regular pattern in the tokens.
    let (by_quota, by_clock) = (is_seen(&quota), is_seen(&clock));
    found.retain(|finding| match finding.fact {
        Observed::SlowSeconds => !by_quota && !by_clock,
        Observed::ClockedHalts | Observed::Coalesced => !by_quota || finding.is == FactState::Yes,
        _ => true,
    });
    found.extend(quota.into_iter().chain(host(frames)).chain(clock));
}

fn quota(frames: &Frames<'_>) -> Option<Finding> {
    let gauges = &frames.candidate.gauges;
    let each =
        gauges.containers().into_iter().filter_map(|(name, steps)| {
            let matched = CounterMatch::of(frames, &steps, LEAST_STOPPED)?;
            let says = matched.says("a CPU quota", || format!(
            "in the slow seconds its CPU quota stops {name} in {} of its periods, in the others in {}",
            percent(matched.slow),
            percent(matched.fast)
        ));
            Some((matched, says))
        });
    best(Observed::QuotaStops, each)
}

fn host(frames: &Frames<'_>) -> Option<Finding> {
    let gauges = &frames.candidate.gauges;
    let waits = |signal, what: &'static str| (signal, LEAST_WAITING, what);
    let kinds = [
        (Signal::CpuStolen, LEAST_STOLEN, ""),
        waits(Signal::CpuPressure, "a CPU"),
        waits(Signal::MemoryPressure, "memory"),
        waits(Signal::IoPressure, "a disk"),
    ];
    let each = kinds.into_iter().filter_map(|(signal, least, what)| {
        let matched = CounterMatch::of(frames, &gauges.counter_steps(signal), least)?;
        let says = matched.says("the host", || match signal {
            Signal::CpuStolen => format!(
                "in the slow seconds the hypervisor gives {} CPUs to other machines, in the others {}",
                number(matched.slow),
                number(matched.fast)
            ),
            _ => format!(
                "in the slow seconds the host's processes wait for {what} in {} of the time, in the others in {}",
                percent(matched.slow),
                percent(matched.fast)
            ),
        });
        Some((matched, says))
    });
    best(Observed::HostWaits, each)
}

fn clock(frames: &Frames<'_>) -> Option<Finding> {
    let matched = CounterMatch::of(frames, &frames.candidate.gauges.clock_loss(), LEAST_CLOCK)?;
    let says = matched.says("the GPU's clock", || {
        format!(
            "in the slow seconds the GPU's clock is {} lower than at its highest, in the others {}",
            percent(matched.slow),
            percent(matched.fast)
        )
    });
    best(Observed::GpuClockFalls, [(matched, says)].into_iter())
}

/// Returns the finding of the counter that fits the slow seconds best.
fn best(fact: Observed, each: impl Iterator<Item = (CounterMatch, String)>) -> Option<Finding> {
    let (matched, says) = each.max_by(|a, b| a.0.fits().total_cmp(&b.0.fits()))?;
    Some(Finding::new(fact, matched.is(), says))
}

/// A counter in the slow and in the fast intervals of this run's tokens.
struct CounterMatch {
    /// Means of the counter in the slow and in the fast intervals.
    slow: f64,
    fast: f64,
    /// Shares of the slow and of the fast intervals in which it is raised.
    hit_slow: f64,
    hit_fast: f64,
    /// Numbers of slow intervals, and of separate slow periods.
    intervals: usize,
    periods: usize,
}

impl CounterMatch {
    /// Compares a counter with the gaps between tokens in its own intervals. Returns `None` with too few intervals.
    fn of(frames: &Frames<'_>, steps: &[CounterStep], least: f64) -> Option<CounterMatch> {
        let paces = paces(frames, steps)?;
        let usual = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<f64> = paces.iter().flatten().map(of).collect();
            sort(&mut all);
            of_sorted(&all, 0.35)
        };
        let (raw, alike) = (usual(|pace| pace.0)?, usual(|pace| pace.1)?);
        let is_slow = |pace: &(f64, f64)| pace.0 >= SLOW.0 * raw && pace.1 >= SLOW.0 * alike;
        let is_fast = |pace: &(f64, f64)| pace.1 < SLOW.1 * alike;
        let values = |is: &dyn Fn(&(f64, f64)) -> bool| -> Vec<f64> {
            let known = steps.iter().zip(&paces).filter(|(_, pace)| pace.as_ref().is_some_and(is));
            known.map(|(step, _)| step.value).collect()
        };
        let (slow, fast) = (values(&is_slow), values(&is_fast));
        let mean = |of: &[f64]| of.iter().fold(0.0, |sum, value| sum + value) / of.len().max(1) as f64;
        let raised = least.max(2.0 * order_statistic(&mut fast.clone(), 0.5)?);
        let hit =
            |of: &[f64]| of.iter().filter(|value| **value >= raised).count() as f64 / of.len().max(1) as f64;
        let flags: Vec<bool> = paces.iter().flatten().map(is_slow).collect();
        let periods = (0..flags.len()).filter(|n| flags[*n] && (*n == 0 || !flags[n - 1])).count();
        Some(CounterMatch {
            slow: mean(&slow),
            fast: mean(&fast),
            hit_slow: hit(&slow),
            hit_fast: hit(&fast),
            intervals: slow.len(),
            periods,
        })
    }

    /// Returns the figure as a phrase.
    fn says(&self, counter: &str, figure: impl Fn() -> String) -> String {
        match self.intervals {
            0 => format!("the tokens have no slow seconds that {counter} could explain"),
            _ => figure(),
        }
    }

    fn is(&self) -> FactState {
        let meets = |(slow, fast): (f64, f64)| self.hit_slow >= slow && self.hit_fast <= fast;
        let several = self.periods >= 2 && self.intervals >= FEWEST.2 && meets(MATCHED[0]);
        let one = self.intervals >= ONE_PERIOD && meets(MATCHED[1]);
        FactState::of(
            several || one,
            self.intervals < FEWEST.2 || self.hit_slow <= 0.3 || self.hit_fast >= 0.5,
        )
    }

    fn fits(&self) -> f64 {
        let proven = if self.is() == FactState::Yes { 1.0 } else { 0.0 };
        proven + self.hit_slow - self.hit_fast
    }
}

/// Returns the median gap between tokens in each step, raw and relative to the gap at equal concurrency; `None` for a step with few gaps.
fn paces(frames: &Frames<'_>, steps: &[CounterStep]) -> Option<Vec<Option<(f64, f64)>>> {
    let seen = frames.now();
    let law = frames.before().and_then(StepLaw::of).or_else(|| StepLaw::of(seen));
    let middle = |step: &CounterStep| {
        let (mut raw, mut alike) = gaps(seen, step, law.as_ref());
        let known = raw.len() >= FEWEST.1;
        known.then(|| Some((order_statistic(&mut raw, 0.5)?, order_statistic(&mut alike, 0.5)?))).flatten()
    };
    let paces: Vec<Option<(f64, f64)>> = steps.iter().map(middle).collect();
    (paces.iter().flatten().count() >= FEWEST.0).then_some(paces)
}

fn gaps(seen: &DiagnosedLevel<'_>, step: &CounterStep, law: Option<&StepLaw>) -> (Vec<f64>, Vec<f64>) {
    let own = seen.paces.iter().filter(|pace| (step.from_s..step.to_s).contains(&(pace.at + 0.5)));
    own.map(|pace| (pace.gap, pace.gap / law.map_or(1.0, |law| law.at(pace.concurrency)))).unzip()
}
