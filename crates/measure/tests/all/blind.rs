//! A queue with hidden parameters: servers and service time are drawn from a seed, in virtual time.
//!
//! The true limits by the formula are computed after the sweep.

use plimsoll_math::queueing::{Mdc, Mmc};
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{CapacityLine, Estimate, Findings};
use plimsoll_measure::sweep::{Sweep, SweepNext, SweepSpec};
use plimsoll_model::{At, Span};
use plimsoll_sim::{
    EngineSpec, FleetSpec, LawSpec, ModeSpec, QueueSpec, SimLevelPlan, World, WorldSpec, simulate_level,
};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

/// The distribution of the service time.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Law {
    /// Exponential service times: M/M/c.
    Exponential,
    /// Constant service times: M/D/c.
    Deterministic,
}

/// A server with hidden parameters.
pub struct Blind {
    law: Law,
    /// Number of servers.
    pub servers: u32,
    mean_ms: f64,
    seed: u64,
}

/// The limits by the formulas, in requests per second.
#[derive(Copy, Clone, Debug)]
pub struct Truth {
    /// Queueing onset in requests per second.
    pub onset: f64,
    /// Stability limit in requests per second.
    pub stability: f64,
}

impl Blind {
    /// Draws a server. `servers` is the number, or `None` to draw 4, 8 or 16.
    pub fn new(law: Law, servers: Option<u32>, seed: u64) -> Blind {
        let mut stream = Stream::new(seed, "secret", 0);
        let drawn = [4, 8, 16][stream.below(3) as usize];
        let mean_ms = 10.0 * 20f64.powf(stream.uniform());
        Blind { law, servers: servers.unwrap_or(drawn), mean_ms, seed }
    }

    /// Returns a server with a known mean service time.
    pub fn known(law: Law, servers: u32, mean_ms: f64, seed: u64) -> Blind {
        Blind { law, servers, mean_ms, seed }
    }

    /// Returns the true limits, for an onset by the p-quantile.
    pub fn truth(&self, p: f64, factor: f64) -> Truth {
        let full = f64::from(self.servers) / (self.mean_ms / 1e3);
        let load = match self.law {
            Law::Exponential => Mmc::onset(self.servers, p, factor),
            Law::Deterministic => Mdc::onset(self.servers, p, factor),
        };
        Truth { onset: load * full, stability: full }
    }

    /// Returns the engine that the sweep measures.
    pub fn engine(&self) -> EngineSpec {
        let service = match self.law {
            Law::Exponential => LawSpec::Exponential { mean_ms: self.mean_ms },
            Law::Deterministic => LawSpec::Deterministic { ms: self.mean_ms },
        };
        EngineSpec {
            name: "secret".into(),
            mode: ModeSpec::Queue(QueueSpec { servers: self.servers, service, queue_limit: None }),
        }
    }

    /// Returns the mean service time in seconds, which a test needs for the time of its sweep.
    pub fn mean_s(&self) -> f64 {
        self.mean_ms / 1e3
    }
}

/// Runs a sweep against the server in virtual time.
pub fn sweep(server: &Blind, spec: SweepSpec, watch: impl FnMut(&Sweep)) -> (Findings, String) {
    sweep_engine(&server.engine(), server.seed, (1, 1), spec, watch)
}

/// Runs a sweep against any engine in virtual time, with requests of this many prompt and output tokens.
pub fn sweep_engine(
    engine: &EngineSpec,
    seed: u64,
    tokens: (u32, u32),
    spec: SweepSpec,
    watch: impl FnMut(&Sweep),
) -> (Findings, String) {
    let world = WorldSpec { engine: engine.clone(), fleet: FleetSpec::default(), faults: Vec::new() };
    sweep_world(&world, seed, tokens, spec, watch)
}

/// Runs a sweep against any world in virtual time.
pub fn sweep_world(
    world: &WorldSpec,
    seed: u64,
    (prompt, answer): (u32, u32),
    spec: SweepSpec,
    mut watch: impl FnMut(&Sweep),
) -> (Findings, String) {
    sweep_sizes(world, seed, &(Size::Fixed(prompt), Size::Fixed(answer)), spec, |sweep| watch(sweep))
}

/// Runs a sweep with sizes that vary.
pub fn sweep_sizes(
    world: &WorldSpec,
    seed: u64,
    (prompt, answer): &(Size, Size),
    spec: SweepSpec,
    mut watch: impl FnMut(&mut Sweep),
) -> (Findings, String) {
    let mut sweep = Sweep::new(spec).expect("a sound spec");
    let mut now = At::ZERO;
    for id in 0..1_000 {
        let asked = match sweep.next() {
            SweepNext::Run(asked) => asked,
            SweepNext::Done { why } => return (sweep.findings(), why),
        };
        // An engine draws by seed and request number, and numbers restart with every level. With one seed all levels would have equal
        // service times, and a repeated level would give no information. The engine is idle between levels.
        let seed = seed.wrapping_mul(1_000) + u64::from(id);
        let mut world = World::of(world, seed).expect("a sound world");
        let mut scenario = Scenario { seed, ..Scenario::default() };
        scenario.arrivals = ArrivalSpec::named(&asked.traffic).expect("a named kind");
        scenario.sizes.prompt = prompt.clone();
        scenario.sizes.output = answer.clone();
        scenario.client.drain = Span::from_secs(100_000);
        scenario.client.timeouts = plimsoll_workload::Timeouts {
            first_token: None,
            total: Span::from_secs(100_000),
            idle: None,
            ..scenario.client.timeouts
        };
        let mut plan = SimLevelPlan::new(&scenario, id, asked.load, now, asked.window);
        plan.traffic = asked.traffic;
        plan.purpose = asked.purpose;
        plan.max_rate_per_s = asked.max_rate_per_s;
        let run = simulate_level(&mut world, &scenario, plan).expect("a sound level");
        sweep.observe(&run.level, &run.attempts, &run.samples);
        now = run.level.drained + Span::from_millis(1);
        watch(&mut sweep);
    }
    panic!("a sweep of a thousand levels");
}

/// Returns the estimate of a found limit.
pub fn found(line: &CapacityLine) -> Option<Estimate> {
    line.rate().copied()
}

/// Returns the relative error of a limit; infinite if the limit was not found.
pub fn error(line: &CapacityLine, truth: f64) -> f64 {
    found(line).map_or(f64::INFINITY, |e| e.value / truth - 1.0)
}

/// Returns the specification of the accuracy test: the time for twenty thousand completions per level, without a budget.
pub fn bar(server: &Blind, completions: u64, seed: u64) -> SweepSpec {
    // Twenty levels near the limit of the smallest server that may be drawn, and the baseline one at a time.
    let time_s = 40.0 * completions as f64 * server.mean_s() / 4.0;
    SweepSpec { time: Span::from_secs_f64(time_s), budget: None, completions, seed, ..SweepSpec::default() }
}
