//! The effect of a fault on users, from separate simulations without code of the diagnosis: is the fault significant.
//!
//! A fault is significant if it breaks a budget, or makes a median at least 1.10 or a 99th percentile at least 1.15
//! times as long. It is also significant if one request in a hundred more fails, or if the longest pauses are 1.5
//! times as long and 0.1 s longer. The users are those of the evaluated run. The reference is that run again with an
//! equal seed and equal random draws, without the fault. The two differ by the fault only, so no significance test is
//! needed. In addition, a retry storm or bursts must have happened in the evaluated run.
//!
//! Until the systems 153 to 191, three other simulations of each side with other seeds decided this
//! (`Truth::elsewhere`). They show the usual effect of a fault; with a few long prompts in two minutes, some runs
//! have no affected request. Their verdict is stored as well.

use std::collections::BTreeMap;

use plimsoll_model::{Attempt, Load};
use plimsoll_sim::Events;
use serde::{Deserialize, Serialize};

use super::fault::Class;
use super::run::{Evidence, Setup};

/// Simulations of each side.
const TIMES: u64 = 3;
/// Number of time intervals of each simulation that are units of a test.
const STRETCHES: usize = 6;

/// Figures of a run that determine the size of faults.
#[derive(Clone, Debug)]
pub struct Facts {
    pub in_flight: f64,
    pub ttft: f64,
    pub tpot: f64,
    pub e2e: f64,
    pub e2e_p99: f64,
    pub output: f64,
    pub alone_ttft: f64,
    pub alone_tpot: f64,
    /// KV blocks of the requests in flight.
    pub kv_blocks: f64,
    /// Tokens of the largest request.
    pub largest: u32,
}

impl Facts {
    /// Returns the figures of a finished run.
    pub fn of(evidence: &Evidence) -> Facts {
        let requests = requests(evidence);
        let of = |metric: Metric, p| quantile(requests.iter().map(metric).collect(), p);
        let alone: Vec<Request> = evidence
            .levels
            .iter()
            .filter(|level| matches!(level.load, Load::Closed { concurrency: 1 }))
            .flat_map(|level| requests_of(evidence, level.id))
            .collect();
        let alone = |metric: Metric| quantile(alone.iter().map(metric).collect(), 0.5);
        let in_flight =
            evidence.levels.last().and_then(|level| level.generator.in_flight_mean).unwrap_or(1.0);
        let attempts = || evidence.attempts.iter();
        let count = attempts().count().max(1) as f64;
        let tokens = attempts().map(|a| f64::from(a.asked_prompt + a.asked_output)).sum::<f64>() / count;
        Facts {
            in_flight,
            ttft: of(|r| r.ttft, 0.5),
            tpot: of(|r| r.tpot, 0.5),
            e2e: of(|r| r.e2e, 0.5),
            e2e_p99: of(|r| r.e2e, 0.99),
            output: attempts().map(|a| f64::from(a.asked_output)).sum::<f64>() / count,
            alone_ttft: alone(|r| r.ttft),
            alone_tpot: alone(|r| r.tpot),
            kv_blocks: in_flight * tokens / 16.0,
            largest: attempts().map(|a| a.asked_prompt + a.asked_output).max().unwrap_or(1),
        }
    }
}

/// The times of one request as its user sees them in s; `+∞` without a response.
#[derive(Copy, Clone, Debug)]
pub struct Request {
    at: f64,
    ttft: f64,
    tpot: f64,
    e2e: f64,
    pause: f64,
    failed: bool,
}

/// A figure of a request.
type Metric = fn(&Request) -> f64;

/// Returns the requests of the last level.
fn requests(evidence: &Evidence) -> Vec<Request> {
    evidence.levels.last().map(|level| requests_of(evidence, level.id)).unwrap_or_default()
}

fn requests_of(evidence: &Evidence, level: u32) -> Vec<Request> {
    let start = evidence.levels.iter().find(|l| l.id == level).map(|l| l.start).unwrap_or_default();
    let mut by_request: BTreeMap<u64, Vec<&Attempt>> = BTreeMap::new();
    for attempt in evidence.attempts.iter().filter(|a| a.level == level) {
        by_request.entry(attempt.request).or_default().push(attempt);
    }
    let one = |mut attempts: Vec<&Attempt>| {
        attempts.sort_by_key(|a| a.attempt);
        let due = attempts[0].due;
        let last = attempts[attempts.len() - 1];
        let failed = !last.outcome.is_finished();
        let since = |at: Option<plimsoll_model::At>| match at {
            Some(at) if !failed => (at - due).as_secs_f64(),
            _ => f64::INFINITY,
        };
        let (first, end) = (since(last.first_token), since(last.last_token));
        let tokens = f64::from(last.answer.tokens.output.unwrap_or(last.asked_output).max(2)) - 1.0;
        let gaps = last.events.windows(2).map(|pair| (pair[1].offset - pair[0].offset).as_secs_f64());
        Request {
            at: (due - start).as_secs_f64(),
            ttft: first,
            tpot: if failed { f64::INFINITY } else { (end - first) / tokens },
            e2e: since(last.end),
            pause: if failed { f64::INFINITY } else { gaps.fold(0.0, f64::max) },
            failed,
        }
    };
    by_request.into_values().map(one).collect()
}

fn quantile(mut values: Vec<f64>, p: f64) -> f64 {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => values[((n as f64 * p).ceil() as usize).clamp(1, n) - 1],
    }
}

/// The outcome of an injection in the evaluated run. Some faults depend on random events: a retrying client causes a
/// storm only if its requests time out, and random bursts may barely gather.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Happened {
    /// The injected fault happened.
    #[default]
    Injected,
    /// The effects match another class.
    Instead(Class),
    /// The effects match no class: it counts as a fault without significance.
    Not,
}

/// Growth of the attempts per request over the baseline's for a retry storm: one request in a hundred, as for
/// failures.
const STORM: f64 = 0.01;
/// Length of a burst in s, and minimum ratio to the baseline of the variance over the mean of arrivals in that time.
const GATHER: (f64, f64) = (5.0, 1.5);

/// Returns the outcome from the records' counts only.
pub fn happened(class: Class, base: &Evidence, candidate: &Evidence) -> Happened {
    match class {
        Class::RetryStorm if attempts(candidate) - attempts(base) < STORM => Happened::Instead(Class::Noisy),
        Class::Bursts => {
            let (before, now) = (dispersion(base), dispersion(candidate));
            let gathers = now >= GATHER.1 && now >= GATHER.1 * before;
            if gathers { Happened::Injected } else { Happened::Not }
        }
        _ => Happened::Injected,
    }
}

/// Returns the attempts per request of the load.
fn attempts(evidence: &Evidence) -> f64 {
    let load = evidence.levels.last().map_or(0, |level| level.id);
    let of = || evidence.attempts.iter().filter(|a| a.level == load);
    of().count() as f64 / of().filter(|a| a.attempt == 0).count().max(1) as f64
}

fn dispersion(evidence: &Evidence) -> f64 {
    let Some(level) = evidence.levels.last() else { return f64::NAN };
    let windows = ((level.stop - level.start).as_secs_f64() / GATHER.0) as usize;
    let mut counts = vec![0.0; windows];
    for attempt in evidence.attempts.iter().filter(|a| a.level == level.id && a.attempt == 0) {
        let window = ((attempt.due - level.start).as_secs_f64() / GATHER.0) as usize;
        if let Some(count) = counts.get_mut(window) {
            *count += 1.0;
        }
    }
    let mean = counts.iter().sum::<f64>() / windows as f64;
    counts.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>() / (windows as f64 - 1.0) / mean
}

/// The effect of a fault on users.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Truth {
    /// Set if users of the evaluated run notice the fault, compared with the run without it.
    pub material: bool,
    /// Set if users of three other runs notice the fault, compared with three others without it: the earlier
    /// definition.
    #[serde(default)]
    pub elsewhere: bool,
    /// Maximum of the ratios of medians and 99th percentiles, for the detection curve.
    pub effect: f64,
    /// Description of the significant changes.
    pub why: String,
    /// Outcome of the injection.
    #[serde(default)]
    pub happened: Happened,
}

/// Simulated baselines of the ground truth, for reuse.
pub struct Reference(Vec<Vec<Request>>);

impl Reference {
    /// Returns three simulations of the baseline.
    pub fn of(setup: &Setup, seed: u64, events: Events) -> Reference {
        Reference((0..TIMES).map(|k| requests(&setup.quick(truth_seed(seed, k), events))).collect())
    }
}

fn truth_seed(seed: u64, k: u64) -> u64 {
    seed.wrapping_mul(31) + 7_000_000 + k
}

/// Returns whether pauses within responses matter for this class.
pub fn looks_at_pauses(class: Class) -> bool {
    matches!(
        class,
        Class::Buffering
            | Class::LongPrompts
            | Class::PeriodicStall
            | Class::Stalls
            | Class::Noisy
            | Class::UnlistedPause
            | Class::UnlistedNetwork
            | Class::PairBufferingModel
            | Class::PairPromptsStall
    )
}

/// Returns the ground truth of a fault in the run `judged`, compared with `without`.
pub fn own(class: Class, without: &Evidence, judged: &Evidence) -> Truth {
    if by_definition(class) {
        return Truth { material: true, effect: 1.0, why: "by definition".to_owned(), ..Truth::default() };
    }
    compare(&[requests(without)], &[requests(judged)], true, Chance::None)
}

/// Returns whether users notice the fault in other runs of the two sides.
pub fn elsewhere(class: Class, reference: &Reference, candidate: &Setup, seed: u64) -> bool {
    if by_definition(class) {
        return true;
    }
    let pauses = looks_at_pauses(class);
    let events = if pauses { Events::All } else { Events::Ends };
    let after = Reference::of(candidate, seed, events);
    compare(&reference.0, &after.0, pauses, Chance::Stretches).material
}

/// Returns whether the class affects only the records or the budget, so that it needs no simulation.
pub fn by_definition(class: Class) -> bool {
    matches!(class, Class::LostRows | Class::OverBudget)
}

/// The treatment of random variation between two sides.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Chance {
    /// Variation is excluded: the runs differ by the fault only.
    None,
    /// A one-sided test over time intervals: the runs differ by their random draws too.
    Stretches,
}

fn compare(before: &[Vec<Request>], after: &[Vec<Request>], pauses: bool, chance: Chance) -> Truth {
    let mut truth = Truth { effect: 1.0, ..Truth::default() };
    let metrics: [(&str, Metric); 3] = [("ttft", |r| r.ttft), ("tpot", |r| r.tpot), ("e2e", |r| r.e2e)];
    for (name, metric) in metrics {
        truth.look(name, (before, after), metric, (1.10, 1.15, 0.0), chance);
    }
    if pauses {
        truth.look("pause", (before, after), |r| r.pause, (1.5, 1.5, 0.1), chance);
    }
    let failed = |runs: &[Vec<Request>]| {
        let all: usize = runs.iter().map(Vec::len).sum();
        runs.iter().flatten().filter(|r| r.failed).count() as f64 / all.max(1) as f64
    };
    let more = failed(after) - failed(before);
    if more >= 0.01 {
        truth.material = true;
        truth.why += &format!("failed +{:.1} pp; ", 100.0 * more);
    }
    truth
}

impl Truth {
    fn look(
        &mut self,
        name: &str,
        (before, after): (&[Vec<Request>], &[Vec<Request>]),
        metric: Metric,
        (median, tail, more_s): (f64, f64, f64),
        chance: Chance,
    ) {
        let all = |runs: &[Vec<Request>]| -> Vec<f64> { runs.iter().flatten().map(metric).collect() };
        for (p, limit) in [(0.5, median), (0.99, tail)] {
            let (a, b) = (quantile(all(before), p), quantile(all(after), p));
            let ratio = b / a.max(1e-9);
            if ratio.is_nan() {
                continue;
            }
            let weight = if name == "pause" { ratio.min(3.0) } else { ratio };
            self.effect = self.effect.max(weight.min(20.0));
            let sure = || chance == Chance::None || significant(before, after, metric, a);
            if ratio >= limit && b - a >= more_s && sure() {
                self.material = true;
                self.why += &format!("{name} p{:.0} x{ratio:.2}; ", 100.0 * p);
            }
        }
    }
}

/// Returns whether more requests exceed the baseline's percentile `limit` than in the baseline. One-sided at 5 %, by
/// time intervals.
fn significant(before: &[Vec<Request>], after: &[Vec<Request>], metric: Metric, limit: f64) -> bool {
    let shares = |runs: &[Vec<Request>]| -> Vec<f64> {
        let mut shares = Vec::new();
        for run in runs {
            let longest = run.iter().map(|r| r.at).fold(0.0, f64::max) + 1e-9;
            for k in 0..STRETCHES {
                let within = |r: &&Request| (r.at / longest * STRETCHES as f64) as usize == k;
                let here: Vec<f64> = run.iter().filter(within).map(metric).collect();
                if !here.is_empty() {
                    let over = here.iter().filter(|value| **value > limit).count();
                    shares.push(over as f64 / here.len() as f64);
                }
            }
        }
        shares
    };
    let (a, b) = (shares(before), shares(after));
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len().max(1) as f64;
    let spread = |x: &[f64]| {
        let m = mean(x);
        x.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / (x.len().max(2) - 1) as f64 / x.len().max(1) as f64
    };
    mean(&b) - mean(&a) > 1.70 * (spread(&a) + spread(&b)).sqrt()
}
