//! Random systems with a known split of the wait. They run in virtual time, without the engine's report per request,
//! and with its metrics scraped as usual.

use plimsoll_math::quantile;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Attempt, Load, Sample, Span};
use plimsoll_profile::infer::{
    Basis, BoundedValue, ComputeFloor, LevelSplit, ReportedStages, SplitCase, WaitPart, infer, rows,
};
use plimsoll_sim::client::trial::{self, ProtocolSpec, SendPace, Sizes, Start};
use plimsoll_sim::{
    EngineSpec, Events, ModeSpec, RowSink, SimLevelPlan, World, catalogue::profile, simulate_into,
};
use plimsoll_workload::{BlockNames, Scenario, Size};
use serde_json::json;

pub const PROFILES: [&str; 7] = [
    "demo",
    "llama-3.1-8b@h100",
    "llama-3.1-8b@a100",
    "llama-3.1-8b@l4",
    "qwen2.5-7b@h100",
    "llama-3.1-70b@h100x4",
    "mixtral-8x7b@h100x2",
];

pub struct System {
    pub name: String,
    engine: EngineSpec,
    scenario: Scenario,
    rate_per_s: f64,
    requests: f64,
    front_ns: f64,
}

/// The scraped metrics.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Page {
    /// Histograms of queue and prefill.
    Histograms,
    /// A server without metrics: only the client's timestamps exist.
    Nothing,
}

/// True queue and prefill times of the split requests, ns.
pub struct Truth {
    pub queue: Vec<f64>,
    pub prefill: Vec<f64>,
}

/// A run with its ground truth.
pub struct Run {
    attempts: Vec<Attempt>,
    stages: Vec<Option<(f64, f64)>>,
    from: At,
    stop: At,
    front_ns: f64,
}

#[derive(Default)]
struct Kept {
    attempts: Vec<Attempt>,
}

impl RowSink for Kept {
    fn attempt(&mut self, attempt: Attempt) {
        self.attempts.push(attempt);
    }

    fn sample(&mut self, _: Sample) {}
}

/// Returns the system of this seed.
pub fn system(seed: u64, requests: f64) -> System {
    let mut chance = Stream::new(seed, "infer systems", 0);
    let name = PROFILES[chance.below(PROFILES.len() as u64) as usize];
    let load = 0.5 + 0.4 * chance.uniform();
    drawn(name, load, seed, requests)
}

/// Returns a named profile at a load, with all else drawn at random.
pub fn drawn(name: &str, load: f64, seed: u64, requests: f64) -> System {
    let mut chance = Stream::new(seed, "infer systems, the rest", 0);
    let mut pick = |n: usize| chance.below(n as u64) as usize;
    let prompt = [128, 256, 512, 1024, 2048][pick(5)];
    let output = [32, 64, 128, 256][pick(4)];
    let (max_seqs, token_budget) = ([32, 64, 256][pick(3)], [1024, 2048, 8192][pick(3)]);
    let (prefix_cache, groups) = (pick(2) > 0, [2, 8, 32][pick(3)]);
    let mut engine = profile::find(name).expect("in the catalogue").spec;
    let ModeSpec::Batching(batching) = &mut engine.mode else { panic!("{name} batches") };
    (batching.max_seqs, batching.token_budget, batching.prefix_cache) =
        (max_seqs, token_budget, prefix_cache);
    let front_ns = 1e6 * batching.front_ms;
    let sizes = |tokens: u32| Size::Lognormal(f64::from(tokens), 0.6);
    let protocol = ProtocolSpec {
        pace: SendPace::Closed { concurrency: max_seqs.min(128), start: Start::Staggered },
        sizes: Sizes::Drawn { prompt: sizes(prompt), output: sizes(output) },
        requests: 4 * max_seqs.min(128) + 200,
        warm_up: 0,
    };
    let trial = trial::run(&engine, &protocol, seed).expect("a sound engine");
    let rate_per_s = load * trial.tokens_per_s / (f64::from(output) * (0.18f64).exp());
    let mut value = json!({
        "sizes": {"prompt": format!("lognormal:{prompt},0.6"), "output": format!("lognormal:{output},0.6")},
        "seed": seed, "nonce": 0,
    });
    if prefix_cache {
        value["prompts"] = json!({"shared_prefix": {"groups": groups, "share": 0.5}});
    }
    let scenario: Scenario = serde_json::from_value(value).expect("a sound scenario");
    let name = format!(
        "{name} {prompt}/{output} seqs {max_seqs} budget {token_budget} cache {} load {load:.2}",
        if prefix_cache { "on" } else { "off" },
    );
    // With scrapes every 15 s, the run must be long enough for several.
    let requests = requests.max(60.0 * rate_per_s);
    System { name, engine, scenario, rate_per_s, requests, front_ns }
}

impl System {
    /// Runs the system and removes the engine's report on each request.
    pub fn run(&self) -> Run {
        self.run_at(Load::Open { rate_per_s: self.rate_per_s }, self.requests / self.rate_per_s)
    }

    /// Returns the floor of thirty requests in sequence, as in a sweep's first level.
    pub fn floor(&self) -> Option<ComputeFloor> {
        let run = self.run_at(Load::Closed { concurrency: 1 }, 30.0 * 10.0);
        let attempts: Vec<&Attempt> = run.attempts.iter().collect();
        let (rows, _) = rows::rows(&attempts);
        ComputeFloor::of(&rows.iter().take(40).collect::<Vec<_>>())
    }

    fn run_at(&self, load: Load, window_s: f64) -> Run {
        let spec = plimsoll_sim::WorldSpec {
            engine: self.engine.clone(),
            fleet: plimsoll_sim::FleetSpec::default(),
            faults: Vec::new(),
        };
        let mut world = World::of(&spec, self.scenario.seed).expect("a sound world");
        let mut names = BlockNames::new(&self.scenario).expect("a sound scenario");
        let window = Span::from_secs_f64(window_s);
        let plan = SimLevelPlan {
            gauges: true,
            events: Events::All,
            sample_every: window,
            max_requests: matches!(load, Load::Closed { .. }).then_some(40),
            ..SimLevelPlan::new(&self.scenario, 0, load, At::ZERO, window)
        };
        let mut kept = Kept::default();
        let level = simulate_into(&mut world, &self.scenario, plan, Some(&mut names), &mut kept);
        let level = level.expect("a sound plan");
        let stages = kept.attempts.iter().map(word_of).collect();
        for attempt in &mut kept.attempts {
            attempt.answer.stages.clear();
        }
        Run {
            attempts: kept.attempts,
            stages,
            from: At(level.start.0 + window.0 / 20),
            stop: level.stop,
            front_ns: self.front_ns,
        }
    }
}

fn word_of(attempt: &Attempt) -> Option<(f64, f64)> {
    let of = |name: &str| {
        let stage = attempt.answer.stages.iter().find(|stage| stage.name == name)?;
        Some(stage.took.0 as f64)
    };
    Some((of("queue")?, of("prefill")?))
}

impl Run {
    /// Returns the record at this index.
    pub fn attempt(&self, i: usize) -> &Attempt {
        &self.attempts[i]
    }

    /// Returns the metrics, scraped every `period_s` from the start of the counted part.
    fn samples(&self, period_s: f64) -> Vec<Sample> {
        let mut ended: Vec<(At, f64, f64)> = self
            .attempts
            .iter()
            .zip(&self.stages)
            .filter_map(|(attempt, stages)| Some((attempt.end?, stages.as_ref()?.0, stages.as_ref()?.1)))
            .collect();
        ended.sort_by_key(|row| row.0);
        let mut samples = Vec::new();
        let (mut next, mut queue, mut prefill) = (0usize, 0.0, 0.0);
        // At an irregular phase, because scrapes are not aligned with the start of a level.
        let mut at = At((0.37 * period_s * 1e9) as i64);
        while at <= self.stop {
            while next < ended.len() && ended[next].0 <= at {
                queue += ended[next].1 / 1e9;
                prefill += ended[next].2 / 1e9;
                next += 1;
            }
            for (name, value) in [
                ("vllm:request_queue_time_seconds_sum", queue),
                ("vllm:request_queue_time_seconds_count", next as f64),
                ("vllm:request_prefill_time_seconds_sum", prefill),
                ("vllm:request_prefill_time_seconds_count", next as f64),
            ] {
                samples.push(Sample {
                    at,
                    source: "server".into(),
                    name: name.into(),
                    labels: "".into(),
                    value,
                });
            }
            at += Span::from_secs_f64(period_s);
        }
        samples
    }

    /// Returns the inference and the ground truth.
    pub fn infer(
        &self,
        page: Page,
        period_s: f64,
        events: bool,
        floor: Option<ComputeFloor>,
    ) -> (LevelSplit, Truth) {
        let samples = if page == Page::Histograms { self.samples(period_s) } else { Vec::new() };
        let mut attempts = self.attempts.clone();
        if !events {
            attempts.iter_mut().for_each(|attempt| attempt.events.clear());
        }
        let attempts: Vec<&Attempt> = attempts.iter().collect();
        let ended = |from: At, to: At| {
            attempts.iter().filter(|a| a.end.is_some_and(|end| end > from && end <= to)).count()
        };
        let told = ReportedStages::read(&samples, (At::ZERO, self.stop), ended);
        let case = SplitCase {
            level: 0,
            attempts: &attempts,
            from: self.from,
            told,
            floor,
            ignore_reported: false,
            budget: None,
        };
        let inferred = infer(&case);
        // A server-reported queue includes the time in front of it; a client separates them.
        let pinned = inferred.finding.parts.iter().any(|part| part.part == WaitPart::Queue && part.mean_told);
        let front = if pinned { 0.0 } else { self.front_ns };
        let of = |i: usize| self.stages[i].expect("a whole answer has its stages");
        let queue = inferred.splits.iter().map(|(i, _)| (of(*i).0 - front).max(0.0)).collect();
        let prefill = inferred.splits.iter().map(|(i, _)| of(*i).1).collect();
        (inferred, Truth { queue, prefill })
    }
}

/// Returns the mean, p50, p95 and p99 of the true values, s.
pub fn figures(values: &[f64]) -> [f64; 4] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |p: f64| sorted[quantile::rank(sorted.len(), p) - 1] / 1e9;
    [sorted.iter().sum::<f64>() / sorted.len() as f64 / 1e9, at(0.5), at(0.95), at(0.99)]
}

/// Returns the inferred mean, p50, p95, p99 of a part; `None` if it is unknown.
pub fn said(inferred: &LevelSplit, part: WaitPart) -> Option<[BoundedValue; 4]> {
    let found = inferred.finding.parts.iter().find(|found| found.part == part)?;
    if found.basis == Basis::Unknown {
        return None;
    }
    Some([found.mean?, found.p50?, found.p95?, found.p99?])
}

/// Returns the relative errors of a part, and whether the true figures were inside their bounds.
pub fn held(said: &[BoundedValue; 4], truth: &[f64; 4]) -> ([f64; 4], [bool; 4]) {
    let error = std::array::from_fn(|i| (said[i].value - truth[i]) / truth[i].max(1e-4));
    // A tenth of a millisecond is below any relevant precision.
    let inside =
        std::array::from_fn(|i| truth[i] >= said[i].lower - 1e-4 && truth[i] <= said[i].upper + 1e-4);
    (error, inside)
}
