//! What the user would notice, by simulations of its own and none of the diagnosis's code: is a fault material?
//!
//! Material is a budget that is broken, a median at least 1.10 or a 99th percentile at least 1.15 times what it would have been, one
//! request in a hundred more that fails, or answers whose longest pause is half as long again and a tenth of a second longer: for the
//! users of the run that is judged. What it would have been is that run once more with the same seed and all that is drawn from it, the
//! fault alone taken out. The two differ by the fault and nothing else, so that no test of chance stands between a harm and its being
//! counted. And a storm or bursts must have come to pass in the run that was judged.
//!
//! Three other simulations of each side, with other seeds, decided this until the systems 153 to 191 (`Truth::elsewhere`): they say what
//! a fault does as a rule, and of a few long prompts in two minutes some runs have none that anybody meets. Their verdict is kept beside.

use std::collections::BTreeMap;

use plimsoll_model::{Attempt, Load};
use plimsoll_sim::Events;
use serde::{Deserialize, Serialize};

use super::fault::Class;
use super::run::{Evidence, Setup};

/// Simulations of each side.
const TIMES: u64 = 3;
/// Stretches of each of them that a test takes as one unit.
const STRETCHES: usize = 6;

/// Figures of a run that faults are sized by.
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
    /// Blocks of cache that the requests in flight take.
    pub kv_blocks: f64,
    /// Tokens of the largest request.
    pub largest: u32,
}

impl Facts {
    /// Of a run that was made.
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

/// What a user sees of one request, s; `+∞` where nothing came.
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

/// Of the last level.
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

/// What of an injection came to pass in the run that was judged. What is injected may need chance to become what it is called: a client that
/// tries again makes a storm only where its requests run out of time, and bursts drawn at random may hardly gather.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Happened {
    /// What was injected.
    #[default]
    Injected,
    /// What another class is called for.
    Instead(Class),
    /// Nothing that has a name: it counts like a fault that nobody notices.
    Not,
}

/// Attempts per request over the baseline's from which there is a storm: one request in a hundred, as of failures.
const STORM: f64 = 0.01;
/// Variance over mean of the arrivals in 5 s, the length of a burst, and its ratio to the baseline's, from which they gather.
const GATHER: (f64, f64) = (5.0, 1.5);

/// What came to pass, by the records' counts alone.
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

/// Attempts per request of the load.
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

/// What a fault does to the user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Truth {
    /// Do the users of the run that is judged notice, against the same run without the fault?
    pub material: bool,
    /// Would the users of three other runs with that fault, against three others without it? The definition of before.
    #[serde(default)]
    pub elsewhere: bool,
    /// The largest of the ratios of medians and 99th percentiles, for the curve of detection.
    pub effect: f64,
    /// What is material, in words.
    pub why: String,
    /// What of it came to pass.
    #[serde(default)]
    pub happened: Happened,
}

/// Baselines simulated for the truth, to be used again.
pub struct Reference(Vec<Vec<Request>>);

impl Reference {
    /// The baseline, three times more.
    pub fn of(setup: &Setup, seed: u64, events: Events) -> Reference {
        Reference((0..TIMES).map(|k| requests(&setup.quick(truth_seed(seed, k), events))).collect())
    }
}

fn truth_seed(seed: u64, k: u64) -> u64 {
    seed.wrapping_mul(31) + 7_000_000 + k
}

/// Do pauses within answers matter for this class?
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

/// The truth of a fault in the run that is `judged`, which would have been `without` it.
pub fn own(class: Class, without: &Evidence, judged: &Evidence) -> Truth {
    if by_definition(class) {
        return Truth { material: true, effect: 1.0, why: "by definition".to_owned(), ..Truth::default() };
    }
    compare(&[requests(without)], &[requests(judged)], true, Chance::None)
}

/// Would users notice in other runs of the two sides?
pub fn elsewhere(class: Class, reference: &Reference, candidate: &Setup, seed: u64) -> bool {
    if by_definition(class) {
        return true;
    }
    let pauses = looks_at_pauses(class);
    let events = if pauses { Events::All } else { Events::Ends };
    let after = Reference::of(candidate, seed, events);
    compare(&reference.0, &after.0, pauses, Chance::Stretches).material
}

/// What only the records suffer, and what only the budget says, needs no simulation.
pub fn by_definition(class: Class) -> bool {
    matches!(class, Class::LostRows | Class::OverBudget)
}

/// What stands between a difference and its being counted.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Chance {
    /// Nothing: the runs differ by the fault alone.
    None,
    /// A one-sided test over stretches of time: the runs differ by what was drawn as well.
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

/// Are there more requests over the baseline's percentile `limit` than in the baseline? One-sided, at 5 %, by stretches.
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
