//! Faulty systems for active diagnosis, and a whole diagnosis in virtual time: the view of a user who has only the
//! endpoint.

use plimsoll_diagnose::active::before::{EarlierComparison, EarlierRun};
use plimsoll_diagnose::active::plan::{ActiveSpec, TrafficTraits};
use plimsoll_diagnose::active::{Active, ActiveNext, tell};
use plimsoll_diagnose::facts::Finding;
use plimsoll_diagnose::{Cause, Diagnosis, RunData};
use plimsoll_measure::findings::Validity;
use plimsoll_model::{At, Attempt, Fingerprint, Level, Sample, Span};
use plimsoll_sim::{
    FaultSpec, FleetSpec, ModeSpec, RowSink, SimLevelPlan, World, WorldSpec, catalogue::profile,
    simulate_into,
};
use plimsoll_workload::{BlockNames, Scenario};
use serde_json::json;

/// An engine with a fault, and the accepted verdicts.
#[derive(Clone)]
pub struct System {
    pub name: String,
    pub world: WorldSpec,
    pub scenario: Scenario,
    pub expect: Vec<Cause>,
}

/// The result of a diagnosis.
pub struct Played {
    pub diagnosis: Diagnosis,
    pub found: Vec<Finding>,
    pub log: Vec<String>,
    pub requests: u64,
    pub seconds: f64,
    pub levels: Vec<Level>,
    pub attempts: Vec<Attempt>,
    pub samples: Vec<Sample>,
}

impl Played {
    /// Returns the run folder as the input of a later diagnosis.
    pub fn before(&self, target: &Fingerprint) -> EarlierRun {
        let side =
            RunData { levels: &self.levels, attempts: &self.attempts, samples: &self.samples, facts: target };
        EarlierRun::of("BEFORE", &side)
    }
}

#[derive(Default)]
struct Run {
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

/// Returns the default limits: five minutes, and the default ceilings.
pub fn spec() -> ActiveSpec {
    ActiveSpec::default()
}

impl System {
    /// Returns this engine of the catalogue under this load with this fault (`none` = healthy).
    pub fn new(engine: &str, (prompt, output): (u32, u32), fault: &str, expect: &[Cause]) -> System {
        let scenario = json!({
            "sizes": {"prompt": prompt.to_string(), "output": output.to_string()}, "seed": 7, "nonce": 1,
        });
        let faults =
            if fault == "none" { Vec::new() } else { vec![FaultSpec::parse(fault).expect("a fault")] };
        System {
            name: format!("{engine} {prompt}/{output} {fault}"),
            world: WorldSpec {
                engine: profile::find(engine).expect("in the catalogue").spec,
                fleet: FleetSpec::default(),
                faults,
            },
            scenario: serde_json::from_value(scenario).expect("a sound scenario"),
            expect: expect.to_vec(),
        }
    }

    pub fn replicas(mut self, replicas: u32) -> System {
        self.world.fleet.replicas = replicas;
        self
    }

    /// Changes the batching engine.
    pub fn engine(mut self, change: impl FnOnce(&mut plimsoll_sim::BatchingSpec)) -> System {
        let ModeSpec::Batching(batching) = &mut self.world.engine.mode else { panic!("it batches") };
        change(batching);
        self
    }

    /// Sets a connection pool of the client.
    pub fn pool(mut self, limit: u32) -> System {
        self.scenario.client.connections = plimsoll_workload::Connections::Pool { limit };
        self
    }

    pub fn play(&self, spec: &ActiveSpec) -> Played {
        self.play_against(spec, None)
    }

    /// Runs a diagnosis against an earlier run.
    pub fn play_against(&self, spec: &ActiveSpec, against: Option<EarlierComparison<'_>>) -> Played {
        let mut world = World::of(&self.world, self.scenario.seed).expect("a sound world");
        let (mut now, mut id, mut log) = (At::ZERO, 0, Vec::new());
        let mean = |size: &plimsoll_workload::Size| match size {
            plimsoll_workload::Size::Fixed(n) => f64::from(*n),
            other => panic!("{other:?}: lengths are fixed here"),
        };
        let lengths = (mean(&self.scenario.sizes.prompt), mean(&self.scenario.sizes.output));
        let mut active = Active::new(spec.clone(), TrafficTraits::of(&self.scenario, lengths))
            .against(against.map(|against| against.before.clone()));
        let mut all = Run::default();
        let mut levels = Vec::new();
        loop {
            let ask = match active.next() {
                ActiveNext::Begin { why, .. } => {
                    log.push(why);
                    continue;
                }
                ActiveNext::Run(ask) => ask,
                ActiveNext::Done { why } => {
                    log.push(why);
                    break;
                }
            };
            now += ask.pause;
            let scenario = ask.change.apply(&self.scenario);
            let mut names = BlockNames::new(&scenario).expect("a sound scenario");
            let plan = SimLevelPlan {
                gauges: true,
                purpose: ask.purpose(),
                traffic: ask.traffic(),
                max_requests: ask.requests,
                ends_with_requests: true,
                max_rate_per_s: Some(ask.pace_per_s),
                client: &scenario.client,
                ..SimLevelPlan::new(&scenario, id, ask.load, now, ask.window)
            };
            let mut run = Run::default();
            let level =
                simulate_into(&mut world, &scenario, plan, Some(&mut names), &mut run).expect("a level");
            active.observe(&level, &run.attempts, &run.samples);
            now = level.drained + Span::from_millis(100);
            levels.push(level);
            all.attempts.extend(run.attempts);
            all.samples.extend(run.samples);
            id += 1;
        }
        let (requests, seconds) = active.spent();
        let diagnosis = tell::diagnosis(active.blocks(), spec, against, &Validity::default());
        let found = active.shown().to_vec();
        Played {
            diagnosis,
            found,
            log,
            requests,
            seconds,
            levels,
            attempts: all.attempts,
            samples: all.samples,
        }
    }
}

/// Returns a system per kind of fault, and healthy engines.
pub fn systems() -> Vec<System> {
    let llama = "llama-3.1-8b@h100";
    let small = (256, 64);
    let one = |fault: &str, expect: &[Cause]| System::new(llama, small, fault, expect);
    vec![
        one("none", &[Cause::Nothing]),
        System::new("llama-3.1-70b@h100x4", (512, 128), "none", &[Cause::Nothing]),
        System::new("qwen2.5-7b@a100", (128, 32), "none", &[Cause::Nothing]),
        one("none", &[Cause::Nothing]).replicas(3),
        one("none", &[Cause::Saturation, Cause::ConnectionLimit]).engine(|b| b.max_seqs = 2),
        System::new("llama-3.1-70b@h100x4", (512, 128), "none", &[Cause::Saturation])
            .engine(|b| b.max_seqs = 4),
        // The engine's own gauge counts requests that wait for admission, so that both causes are acceptable.
        one("connection_limit:limit=3", &[Cause::ConnectionLimit, Cause::Saturation]),
        System::new(
            "qwen2.5-7b@h100",
            (128, 64),
            "connection_limit:limit=2",
            &[Cause::ConnectionLimit, Cause::Saturation],
        ),
        one("rate_limit:rate=4,burst=8", &[Cause::RateLimit]),
        one("error:share=0.08,status=500", &[Cause::ServerErrors]),
        one("reset:share=0.1", &[Cause::ServerErrors]),
        one("crash:at=60s,for=5s", &[Cause::EngineCrash]),
        one("disconnect:share=0.1", &[Cause::StreamDisconnect]),
        one("buffering:tokens=16", &[Cause::ProxyBuffering]),
        one("buffering:every=400ms", &[Cause::ProxyBuffering]),
        one("batch_window:window=150ms", &[Cause::BatchingWindow]),
        System::new("qwen2.5-7b@h100", (128, 32), "batch_window:window=80ms", &[Cause::BatchingWindow]),
        one("dependency:delay=250ms", &[Cause::SlowDependency]),
        one("dependency:delay=200ms,spread=exponential", &[Cause::DependencyTail]),
        one("stall:every=3s,for=400ms", &[Cause::PeriodicStall]),
        System::new("llama-3.1-70b@h100x4", (512, 128), "stall:every=5s,for=600ms", &[Cause::PeriodicStall]),
        one("noisy:factor=2.5", &[Cause::NoisyNeighbour]),
        one("slow:factor=2.2,replica=1", &[Cause::BadReplica]).replicas(3),
        one("none", &[Cause::ClientCap]).pool(2),
    ]
}
