//! Random engines for fits: pairs of the catalogue and random linear ones, each under a low load with separate lengths.
//! Includes the run that a client measures on them, and their true limit.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Attempt, Level, Load, Sample, Span};
use plimsoll_plan::fit::{FitError, FittedEngine, FittedRun, StatedTarget, fit, limit};
use plimsoll_plan::replay::ReplayRequest;
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::{
    EngineSpec, Events, FleetSpec, ModeSpec, RowSink, SimLevelPlan, StepSpec, World, WorldSpec,
    catalogue::profile, simulate_into,
};
use plimsoll_workload::{BlockNames, Scenario, Schedule};
use serde_json::json;

/// An engine with its mix of requests.
pub struct System {
    pub name: String,
    pub engine: EngineSpec,
    pub scenario: Scenario,
    /// Load of the run, as a share of the stability limit.
    pub share: f64,
    pub slots: u32,
}

const PAIRS: [&str; 8] = [
    "demo",
    "llama-3.1-8b@h100",
    "llama-3.1-8b@a100",
    "llama-3.1-70b@h100x4",
    "llama-3.1-70b-fp8@h100x2",
    "qwen2.5-7b@h100",
    "qwen2.5-32b@h100",
    "mixtral-8x7b@h100x2",
];

/// Returns the system of this seed: pairs of the catalogue first (0 to 7), then random linear engines.
pub fn system(seed: u64) -> System {
    let mut chance = Stream::new(seed, "fit systems", 0);
    let mut pick = |n: usize| chance.below(n as u64) as usize;
    let (mut prompt, mut output) = ([128, 256, 512, 1024][pick(4)], [32, 64, 128, 256][pick(4)]);
    let mut slots = [8, 16, 32, 64, 128][pick(5)];
    let share = 0.1 + 0.3 * chance.uniform();
    let mut engine = match PAIRS.get(seed as usize) {
        Some(name) => profile::find(name).expect("in the catalogue").spec,
        None => linear(&mut chance),
    };
    let ModeSpec::Batching(batching) = &mut engine.mode else { panic!("{} batches", engine.name) };
    if seed == 0 {
        (prompt, output, slots) = (64, 16, batching.max_seqs);
    }
    batching.max_seqs = slots;
    let value = json!({
        "sizes": {"prompt": format!("lognormal:{prompt},0.6"), "output": format!("lognormal:{output},0.5")},
        "seed": seed + 1, "nonce": 0,
    });
    let scenario: Scenario = serde_json::from_value(value).expect("a sound scenario");
    let name = format!("{} {prompt}/{output} seqs {slots}", engine.name);
    System { name, engine, scenario, share, slots }
}

fn linear(chance: &mut Stream) -> EngineSpec {
    let mut engine = profile::find("demo").expect("a profile").spec;
    let ModeSpec::Batching(batching) = &mut engine.mode else { panic!("demo batches") };
    let mut between = |low: f64, high: f64| low * (high / low).powf(chance.uniform());
    let base_us = between(1_000.0, 30_000.0);
    batching.front_ms = between(0.5, 20.0);
    batching.step = StepSpec::Linear(LinearSpec {
        base_us,
        decode_us: base_us * between(0.003, 0.1),
        prefill_us: base_us * between(0.0005, 0.005),
        context_ns: base_us * between(0.001, 0.03),
        overlap: None,
    });
    (batching.token_budget, batching.kv_blocks) = (2048, Some(200_000));
    batching.max_context = None;
    engine.name = "linear".to_owned();
    engine
}

/// Rows in memory.
#[derive(Default)]
pub struct Run {
    pub attempts: Vec<Attempt>,
    pub samples: Vec<Sample>,
    pub levels: Vec<Level>,
}

impl RowSink for Run {
    fn attempt(&mut self, attempt: Attempt) {
        self.attempts.push(attempt);
    }

    fn sample(&mut self, sample: Sample) {
        self.samples.push(sample);
    }
}

impl System {
    pub fn world(&self) -> WorldSpec {
        WorldSpec { engine: self.engine.clone(), fleet: FleetSpec::default(), faults: Vec::new() }
    }

    /// Returns requests of the scenario, from another seed than the run's.
    pub fn mix(&self, requests: f64) -> Vec<ReplayRequest> {
        let scenario = Scenario { seed: 9_000 + self.scenario.seed, ..self.scenario.clone() };
        let schedule =
            Schedule::generate(&scenario, 1.0, Span::from_secs_f64(requests), 0).expect("a schedule");
        let asked = schedule.arrivals.iter().map(|a| ReplayRequest {
            due_ns: a.due.0,
            prompt: a.prompt_tokens,
            output: a.output_tokens,
            blocks: Vec::new(),
            session: None,
            turn: None,
            think_ns: None,
        });
        asked.collect()
    }

    /// Returns the true stability limit, 1/s.
    pub fn truth(&self, requests: usize) -> f64 {
        limit(&self.world(), &self.mix(4_000.0), requests, 77).expect("a limit")
    }

    /// Returns a run at this rate.
    pub fn run(&self, rate_per_s: f64, requests: f64) -> Run {
        self.under(Load::Open { rate_per_s }, requests / rate_per_s)
    }

    /// Returns a run under this load, for `seconds`.
    pub fn under(&self, load: Load, seconds: f64) -> Run {
        let mut world = World::of(&self.world(), self.scenario.seed).expect("a sound world");
        let mut names = BlockNames::new(&self.scenario).expect("a sound scenario");
        let window = Span::from_secs_f64(seconds);
        let plan = SimLevelPlan {
            events: Events::Ends,
            ..SimLevelPlan::new(&self.scenario, 0, load, At::ZERO, window)
        };
        let mut run = Run::default();
        let level = simulate_into(&mut world, &self.scenario, plan, Some(&mut names), &mut run);
        run.levels.push(level.expect("a sound plan"));
        run
    }

    /// Returns the fit of that run, with the settings that its user knows.
    pub fn fitted(&self, run: &Run) -> Result<FittedEngine, FitError> {
        let ModeSpec::Batching(batching) = &self.engine.mode else { panic!("batches") };
        let told = StatedTarget {
            slots: Some(self.slots),
            kv_blocks: batching.blocks().ok(),
            token_budget: Some(batching.token_budget),
            ..StatedTarget::default()
        };
        fit(&measured(run), &told)
    }
}

pub fn measured(run: &Run) -> FittedRun<'_> {
    FittedRun { levels: &run.levels, attempts: &run.attempts, samples: &run.samples }
}
