//! Random systems for levers: a model on a GPU, a load, lengths, shared prefixes and limits, all drawn from a seed. The
//! true gain of a lever comes from a long simulation on separate arrivals.

use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::LevelSummary;
use plimsoll_measure::summarise;
use plimsoll_model::{At, Attempt, Level, Load, Sample, Span};
use plimsoll_plan::levers::candidate::{LeverCandidate, TrafficChange};
use plimsoll_plan::levers::predict::goal_of;
use plimsoll_plan::levers::{
    Goal, LeverCase, LeverEffortSpec, LeverFinding, LeverOrder, LeverSpec, Redraw, ReplayRequest, catalogue,
    rank,
};
use plimsoll_sim::client::trial::{self, ProtocolSpec, SendPace, Sizes, Start};
use plimsoll_sim::{
    Events, FleetSpec, ModeSpec, RowSink, SimLevelPlan, World, WorldSpec, catalogue::profile, simulate_into,
};
use plimsoll_workload::{BlockNames, Scenario, Schedule, Size};
use serde_json::json;

/// A system with its load.
pub struct System {
    pub name: String,
    pub world: WorldSpec,
    pub scenario: Scenario,
    pub rate_per_s: f64,
    pub requests: f64,
}

const PAIRS: [&str; 8] = [
    "llama-3.1-8b@h100",
    "llama-3.1-8b@a100",
    "llama-3.1-8b@l40s",
    "llama-3.1-8b-fp8@h100",
    "llama-3.1-70b@h100x4",
    "llama-3.1-70b-fp8@h100x2",
    "qwen2.5-7b@h100",
    "qwen2.5-32b@h100",
];

/// Returns the system of this seed.
pub fn system(seed: u64, requests: f64) -> System {
    let mut chance = Stream::new(seed, "lever systems", 0);
    let mut pick = |n: usize| chance.below(n as u64) as usize;
    let pair = PAIRS[pick(PAIRS.len())];
    let prompt = [128, 256, 512, 1024, 2048][pick(5)];
    let output = [32, 64, 128, 256][pick(4)];
    let (max_seqs, token_budget) = ([8, 16, 32, 64, 256][pick(5)], [512, 1024, 2048, 8192][pick(4)]);
    let (prefix_cache, groups, shares) = (pick(3) > 0, [2, 8, 32][pick(3)], pick(2) == 0);
    let replicas = [1, 1, 1, 2, 3][pick(5)];
    let share = 0.3 + 0.55 * chance.uniform();
    let mut engine = profile::find(pair).expect("in the catalogue").spec;
    let ModeSpec::Batching(batching) = &mut engine.mode else { panic!("{pair} batches") };
    (batching.max_seqs, batching.token_budget, batching.prefix_cache) =
        (max_seqs, token_budget, prefix_cache);
    let sizes = |tokens: u32| Size::Lognormal(f64::from(tokens), 0.6);
    let protocol = ProtocolSpec {
        pace: SendPace::Closed { concurrency: max_seqs.min(128), start: Start::AtOnce },
        sizes: Sizes::Drawn { prompt: sizes(prompt), output: sizes(output) },
        requests: 4 * max_seqs.min(128) + 200,
        warm_up: 0,
    };
    let trial = trial::run(&engine, &protocol, seed).expect("a sound engine");
    let capacity = trial.tokens_per_s / (f64::from(output) * (0.18f64).exp());
    let mut value = json!({
        "sizes": {"prompt": format!("lognormal:{prompt},0.6"), "output": format!("lognormal:{output},0.6")},
        "seed": seed, "nonce": 0,
    });
    if shares {
        value["prompts"] = json!({"shared_prefix": {"groups": groups, "share": 0.5}});
    }
    let scenario: Scenario = serde_json::from_value(value).expect("a sound scenario");
    let rate_per_s = share * capacity * f64::from(replicas);
    let name = format!(
        "{pair} ×{replicas} {prompt}/{output} seqs {max_seqs} budget {token_budget} cache {} {} load {share:.2}",
        if prefix_cache { "on" } else { "off" },
        if shares { format!("{groups} groups") } else { "unshared".to_owned() }
    );
    let fleet = FleetSpec { replicas, ..FleetSpec::default() };
    System { name, world: WorldSpec { engine, fleet, faults: Vec::new() }, scenario, rate_per_s, requests }
}

/// The measurement of a system.
#[derive(Default)]
pub struct Run {
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
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
    fn window(&self, requests: f64) -> Span {
        Span::from_secs_f64(requests / self.rate_per_s)
    }

    /// Returns a run of the system, like `plimsoll simulate`.
    pub fn run(&self) -> (Level, LevelSummary, Run) {
        let mut world = World::of(&self.world, self.scenario.seed).expect("a sound world");
        let mut names = BlockNames::new(&self.scenario).expect("a sound scenario");
        let load = Load::Open { rate_per_s: self.rate_per_s };
        let window = self.window(self.requests);
        let plan = SimLevelPlan {
            gauges: true,
            events: Events::Ends,
            ..SimLevelPlan::new(&self.scenario, 0, load, At::ZERO, window)
        };
        let mut run = Run::default();
        let level = simulate_into(&mut world, &self.scenario, plan, Some(&mut names), &mut run);
        let level = level.expect("a sound plan");
        let summary = summarise(&level, &run.attempts, &run.samples, None);
        (level, summary, run)
    }

    /// Returns the ranking of that run.
    pub fn ranking(&self, replications: u32) -> LeverFinding {
        let (level, summary, run) = self.run();
        self.ranking_of(&level, &summary, &run, replications)
    }

    /// Returns the ranking for another goal.
    pub fn ranking_for(&self, goal: Goal, replications: u32) -> LeverFinding {
        let (level, summary, run) = self.run();
        self.ranked(&level, &summary, &run, &spec(replications, goal))
    }

    /// Returns the ranking of a given run.
    pub fn ranking_of(
        &self,
        level: &Level,
        summary: &LevelSummary,
        run: &Run,
        replications: u32,
    ) -> LeverFinding {
        self.ranked(level, summary, run, &spec(replications, Goal::of(None, summary)))
    }

    fn ranked(&self, level: &Level, summary: &LevelSummary, run: &Run, spec: &LeverSpec) -> LeverFinding {
        let attempts: Vec<&Attempt> = run.attempts.iter().collect();
        let samples: Vec<&Sample> = run.samples.iter().collect();
        let redraw = Redraw { scenario: &self.scenario };
        let case = LeverCase {
            level,
            summary,
            attempts: &attempts,
            samples: &samples,
            floor: None,
            world: Some(&self.world),
            redraw: Some(&redraw),
        };
        rank(&case, spec)
    }

    /// Returns unseen arrivals, `times` as many.
    pub fn unseen(&self, seed: u64, times: f64) -> Vec<ReplayRequest> {
        let scenario = Scenario { seed: seed ^ 0x5eed_0fae_1001, ..self.scenario.clone() };
        let window = self.window(times * self.requests);
        let schedule = Schedule::generate(&scenario, self.rate_per_s, window, 0).expect("a schedule");
        let mut names = BlockNames::new(&scenario).expect("a sound scenario");
        let asked = schedule.arrivals.iter().map(|arrival| ReplayRequest {
            due_ns: arrival.due.0,
            prompt: arrival.prompt_tokens.max(1),
            output: arrival.output_tokens.max(1),
            blocks: names.of(arrival),
            session: arrival.session,
            turn: None,
            think_ns: None,
        });
        asked.collect()
    }

    /// Returns the goal's value on unseen arrivals.
    pub fn truth(
        &self,
        goal: &Goal,
        world: &WorldSpec,
        asked: &[ReplayRequest],
        seed: u64,
        traffic: &TrafficChange,
    ) -> f64 {
        let warm_up = self.window(0.05 * self.requests).0;
        goal_of(world, asked, seed, traffic, warm_up, goal).expect("answers")
    }

    /// Returns the share that a candidate really saves.
    pub fn saved(
        &self,
        goal: &Goal,
        candidate: &LeverCandidate,
        asked: &[ReplayRequest],
        base: f64,
        seed: u64,
    ) -> f64 {
        1.0 - self.truth(goal, &candidate.world, asked, seed, &candidate.traffic) / base
    }
}

pub fn spec(replications: u32, goal: Goal) -> LeverSpec {
    LeverSpec {
        goal,
        replications,
        seed: 1,
        efforts: LeverEffortSpec::default(),
        bill: None,
        by: LeverOrder::Latency,
        band: None,
    }
}

/// Returns a realised gain per day of effort, as the ranking counts it.
pub fn per_day(candidate: &LeverCandidate, saved: f64) -> f64 {
    let lever = catalogue::find(candidate.lever).expect("in the catalogue");
    let days = LeverEffortSpec::default().of(lever, candidate.hourly, LeverOrder::Latency);
    if saved > 0.0 { saved / days } else { saved }
}
