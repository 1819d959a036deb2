//! The run folder of a simulated system: a level of isolated requests, a steady level under load, and the metrics.
//! Faults that no simulated server can have (a late generator, a slow network) are applied to the records.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_measure::server_side::{SCRAPE, ServerSide, Signal};
use plimsoll_model::{At, Attempt, Fingerprint, Level, Load, Sample, Span};
use plimsoll_sim::traffic::Detail;
use plimsoll_sim::{Events, FaultSpec, RowSink, SimLevelPlan, World, WorldSpec, simulate_into};
use plimsoll_workload::{BlockNames, Prompts, Scenario, block_key};

use super::system::System;

/// Isolated requests of a probe.
const PROBE: u64 = 40;

/// The input for one run.
#[derive(Clone)]
pub struct Setup {
    pub world: WorldSpec,
    /// Traffic and client.
    pub scenario: Scenario,
    pub rate_per_s: f64,
    /// Duration of the load.
    pub window: Span,
    /// Faults with their start in s after the start of the load.
    pub timed: Vec<(f64, String)>,
    pub touches: Vec<Touch>,
    /// Share of a step in which the GPU waits for the host.
    pub host_share: f64,
    /// Whether the server reports its stages.
    pub says_stages: bool,
    /// Whether records name the blocks of their prompts.
    pub names_blocks: bool,
}

/// A change between the server and the records.
#[derive(Clone, Debug)]
pub enum Touch {
    /// The dispatcher needs `each_s` per request, and stops for `stop_s` every `every_s` (both 0: never).
    LateDispatcher { each_s: f64, every_s: f64, stop_s: f64 },
    /// A share of the rows is lost.
    LostRows { share: f64 },
    /// A fixed share of the users waits longer for the first token.
    SlowUsers { share: f64, wait_s: f64 },
    /// The network delays all data by up to `wait_s` at times: mean length of such a period, and of the time in
    /// between.
    SlowNetwork { wait_s: f64, on_s: f64, off_s: f64 },
    /// Every response pauses before this token.
    Pause { before: usize, wait_s: f64 },
    /// Responses are longer than requested by this factor.
    AskedForLess { factor: f64 },
    /// The wait for the first token grows per output token.
    PlansAhead { per_token_s: f64 },
}

/// The records of a run.
#[derive(Clone, Default)]
pub struct Evidence {
    pub levels: Vec<Level>,
    pub attempts: Vec<Attempt>,
    pub samples: Vec<Sample>,
    pub facts: Fingerprint,
}

impl RowSink for Evidence {
    fn attempt(&mut self, attempt: Attempt) {
        self.attempts.push(attempt);
    }

    fn sample(&mut self, sample: Sample) {
        self.samples.push(sample);
    }
}

impl Setup {
    /// Returns the setup of an unchanged system.
    pub fn of(system: &System) -> Setup {
        Setup {
            world: system.world.clone(),
            scenario: system.scenario.clone(),
            rate_per_s: system.rate_per_s,
            window: system.window,
            timed: Vec::new(),
            touches: Vec::new(),
            host_share: 0.0,
            says_stages: system.says_stages,
            names_blocks: system.names_blocks || system.scenario.prompts.shared_prefix.is_some(),
        }
    }

    /// Adds a permanent fault.
    pub fn with(mut self, fault: &str) -> Setup {
        let fault = FaultSpec::parse(fault).unwrap_or_else(|e| panic!("{fault}: {e}"));
        self.world.faults.push(fault);
        self
    }

    /// Returns the run with every token: probe, then load.
    pub fn run(&self, seed: u64) -> Evidence {
        let mut scenario = self.scenario.clone();
        (scenario.seed, scenario.nonce) = (seed, Some(seed));
        // The duration of the probe is known only after a run, but faults that start with the load need it before.
        let (mut scratch, mut unused) = (self.world(&[], seed), Evidence::default());
        let names = || BlockNames::new(&scenario).expect("a sound scenario");
        let probed = self.probe(&mut scratch, &scenario, &mut names(), &mut unused).drained;
        let start = At((probed.0 / 1_000_000_000 + 2) * 1_000_000_000);
        let mut world = self.world(&self.faults(start), seed);
        let mut evidence = Evidence { facts: facts(&self.world), ..Evidence::default() };
        let mut names = names();
        let probe = self.probe(&mut world, &scenario, &mut names, &mut evidence);
        let load = self.load(&mut world, &scenario, start, (Events::All, &mut names), &mut evidence);
        evidence.levels = vec![probe, load];
        self.finish(&mut evidence, seed);
        evidence
    }

    /// Returns the load without single tokens, for the ground truth.
    pub fn quick(&self, seed: u64, events: Events) -> Evidence {
        let mut scenario = self.scenario.clone();
        (scenario.seed, scenario.nonce) = (seed, Some(seed));
        let mut world = self.world(&self.faults(At::ZERO), seed);
        if events == Events::Ends {
            world.set_detail(Detail::Ends);
        }
        let mut evidence = Evidence::default();
        let mut names = BlockNames::new(&scenario).expect("a sound scenario");
        let load = self.load(&mut world, &scenario, At::ZERO, (events, &mut names), &mut evidence);
        evidence.levels = vec![load];
        evidence.samples.clear();
        self.finish(&mut evidence, seed);
        evidence
    }

    fn faults(&self, start: At) -> Vec<FaultSpec> {
        let at = |(after, fault): &(f64, String)| {
            let spec = FaultSpec::parse(fault).unwrap_or_else(|e| panic!("{fault}: {e}"));
            FaultSpec { at: Span((start + Span::from_secs_f64(*after)).0), ..spec }
        };
        self.timed.iter().map(at).collect()
    }

    fn world(&self, faults: &[FaultSpec], seed: u64) -> World {
        let mut spec = self.world.clone();
        spec.faults.extend(faults.iter().cloned());
        World::of(&spec, seed).unwrap_or_else(|e| panic!("{e}"))
    }

    fn probe(
        &self,
        world: &mut World,
        scenario: &Scenario,
        names: &mut BlockNames,
        rows: &mut Evidence,
    ) -> Level {
        let load = Load::Closed { concurrency: 1 };
        let plan = SimLevelPlan {
            purpose: "baseline".to_owned(),
            gauges: true,
            sample_every: Span(1_000_000_000),
            max_requests: Some(PROBE),
            ends_with_requests: true,
            ..SimLevelPlan::new(scenario, 0, load, At::ZERO, Span::from_secs(36_000))
        };
        simulate_into(world, scenario, plan, Some(names), rows).expect("a sound plan")
    }

    fn load(
        &self,
        world: &mut World,
        scenario: &Scenario,
        start: At,
        (events, names): (Events, &mut BlockNames),
        rows: &mut Evidence,
    ) -> Level {
        let load = Load::Open { rate_per_s: self.rate_per_s };
        let prompts = (self.names_blocks && events == Events::All)
            .then(|| Prompts::new(scenario, block_key(scenario)).expect("a sound scenario"));
        let plan = SimLevelPlan {
            gauges: events == Events::All,
            events,
            sample_every: Span(1_000_000_000),
            prompts: prompts.as_ref(),
            most_in_flight: 20_000,
            ..SimLevelPlan::new(scenario, 1, load, start, self.window)
        };
        simulate_into(world, scenario, plan, Some(names), rows).expect("a sound plan")
    }

    /// Applies the changes to the records.
    fn finish(&self, evidence: &mut Evidence, seed: u64) {
        let keeps = |name: &str| self.says_stages || !matches!(name, "queue" | "prefill" | "decode");
        for attempt in &mut evidence.attempts {
            attempt.answer.stages.retain(|stage| keeps(&stage.name));
        }
        for touch in &self.touches {
            touch.apply(evidence, seed);
        }
        evidence.attempts.sort_by_key(|a| (a.level, a.end, a.request, a.attempt));
        if !evidence.samples.is_empty() {
            self.add_gpu(evidence, seed);
        }
    }

    /// Adds the GPU exporter's metric: the share of time in which the GPU computes.
    fn add_gpu(&self, evidence: &mut Evidence, seed: u64) {
        let chance = &mut Stream::new(seed, "diagnosed gpu", 0);
        let full = 0.90 + 0.08 * chance.uniform();
        // Rows are written on changes, so running requests are read as the diagnosis reads them.
        let server = ServerSide::read(&evidence.samples);
        let Some(gauge) = server.gauge(Signal::Running) else { return };
        let scrapes: Vec<At> = evidence.samples.iter().filter(|s| s.name == SCRAPE).map(|s| s.at).collect();
        for (at, running) in scrapes.into_iter().filter_map(|at| Some((at, gauge.at(at)?))) {
            let jitter = 0.01 * (chance.uniform() - 0.5);
            let busy = if running > 0.0 { full * (1.0 - self.host_share) + jitter } else { 0.0 };
            evidence.samples.push(Sample {
                at,
                source: "gpu".into(),
                name: "DCGM_FI_PROF_GR_ENGINE_ACTIVE".into(),
                labels: "gpu=0".into(),
                value: busy.clamp(0.0, 1.0),
            });
        }
        evidence.samples.sort_by_key(|sample| sample.at);
    }
}

/// Returns the known properties of the target: common settings, and none that a fault changes.
fn facts(world: &WorldSpec) -> Fingerprint {
    let known = [("model", world.engine.name.as_str()), ("engine", "vllm"), ("model_digest", "sha256:0b1f")];
    let facts = known.into_iter().map(|(name, value)| (name.to_owned(), Some(value.to_owned()))).collect();
    Fingerprint { url: "http://simulated/v1".to_owned(), facts }
}

impl Touch {
    fn apply(&self, evidence: &mut Evidence, seed: u64) {
        let load = evidence.levels.last().map_or(0, |level| level.id);
        match *self {
            Touch::LateDispatcher { each_s, every_s, stop_s } => {
                late(evidence, load, each_s, every_s, stop_s)
            }
            Touch::LostRows { share } => {
                let chance = &mut Stream::new(seed, "lost rows", 0);
                evidence.attempts.retain(|a| a.level != load || !chance.chance(share));
            }
            Touch::SlowUsers { share, wait_s } => {
                let wait = Span::from_secs_f64(wait_s);
                let user = |a: &Attempt| Stream::new(1, "user", a.request % 997).uniform() < share;
                evidence.attempts.iter_mut().filter(|a| user(a)).for_each(|a| hold_first(a, wait));
            }
            Touch::SlowNetwork { wait_s, on_s, off_s } => {
                let chance = &mut Stream::new(seed, "slow network", 0);
                let (mut at, mut times) = (0.0, Vec::new());
                while at < 3_000.0 {
                    at += dist::exponential(chance, off_s);
                    let on = dist::exponential(chance, on_s);
                    times.push((at, at + on));
                    at += on;
                }
                let start = evidence.levels.last().map_or(At::ZERO, |level| level.start);
                let delay = |at: At| {
                    let s = (at - start).as_secs_f64();
                    let slow = times.iter().any(|(from, to)| (*from..*to).contains(&s));
                    if slow { Span::from_secs_f64(wait_s) } else { Span::ZERO }
                };
                evidence.attempts.iter_mut().filter(|a| a.level == load).for_each(|a| delay_bytes(a, delay));
            }
            Touch::Pause { before, wait_s } => {
                let wait = Span::from_secs_f64(wait_s);
                evidence.attempts.iter_mut().for_each(|a| pause(a, before, wait));
            }
            Touch::AskedForLess { factor } => {
                let less = |n: u32| (f64::from(n) / factor).round().max(1.0) as u32;
                evidence.attempts.iter_mut().for_each(|a| a.asked_output = less(a.asked_output));
            }
            Touch::PlansAhead { per_token_s } => {
                for attempt in &mut evidence.attempts {
                    let wait = Span::from_secs_f64(per_token_s * f64::from(attempt.asked_output));
                    hold_first(attempt, wait);
                }
            }
        }
    }
}

/// Delays all events after the sending of each request by its lateness.
fn late(evidence: &mut Evidence, load: u32, each_s: f64, every_s: f64, stop_s: f64) {
    let Some(level) = evidence.levels.last().cloned() else { return };
    let mut order: Vec<usize> = (0..evidence.attempts.len())
        .filter(|&i| evidence.attempts[i].level == load && evidence.attempts[i].attempt == 0)
        .collect();
    order.sort_by_key(|&i| (evidence.attempts[i].due, evidence.attempts[i].request));
    let (mut free, mut lags) = (level.start, Vec::new());
    for i in order {
        let attempt = &mut evidence.attempts[i];
        let mut sent = attempt.due.max(free);
        if every_s > 0.0 {
            let since = (sent - level.start).as_secs_f64();
            let into = since % every_s;
            if since > every_s && into < stop_s {
                sent += Span::from_secs_f64(stop_s - into);
            }
        }
        free = sent + Span::from_secs_f64(each_s);
        let lag = sent - attempt.due;
        lags.push(lag.0);
        shift(attempt, lag);
    }
    lags.sort_unstable();
    let health = &mut evidence.levels.last_mut().expect("there is one").generator;
    let at = |p: f64| {
        lags.get(((lags.len() as f64 * p) as usize).min(lags.len().max(1) - 1)).copied().unwrap_or(0)
    };
    health.lag.count = lags.len() as u64;
    (health.lag.p50_ns, health.lag.p90_ns) = (at(0.5), at(0.9));
    (health.lag.p99_ns, health.lag.p999_ns, health.lag.max_ns) = (at(0.99), at(0.999), at(1.0));
}

fn each_stamp(attempt: &mut Attempt, mut then: impl FnMut(&mut At)) {
    let stamps = [
        &mut attempt.first_byte,
        &mut attempt.first_token,
        &mut attempt.first_visible,
        &mut attempt.last_token,
        &mut attempt.end,
    ];
    stamps.into_iter().flatten().for_each(&mut then);
}

/// Delays everything from the sending on.
fn shift(attempt: &mut Attempt, by: Span) {
    each_stamp(attempt, |at| *at += by);
    for at in [&mut attempt.sent, &mut attempt.connected].into_iter().flatten() {
        *at += by;
    }
}

/// Delays everything after the sending.
fn hold_first(attempt: &mut Attempt, by: Span) {
    if attempt.first_token.is_none() {
        return;
    }
    each_stamp(attempt, |at| *at += by);
    attempt.events.iter_mut().for_each(|event| event.offset += by);
}

/// Delays each byte by the network's delay at its time, without reordering.
fn delay_bytes(attempt: &mut Attempt, delay: impl Fn(At) -> Span) {
    let Some(sent) = attempt.sent else { return };
    let mut last = At(i64::MIN);
    for event in &mut attempt.events {
        let at = sent + event.offset;
        last = last.max(at + delay(at));
        event.offset = last - sent;
    }
    each_stamp(attempt, |at| *at += delay(*at));
}

/// Adds a pause before the token of this number.
fn pause(attempt: &mut Attempt, before: usize, wait: Span) {
    if (attempt.asked_output as usize) <= before || attempt.first_token.is_none() {
        return;
    }
    attempt.events.iter_mut().skip(before).for_each(|event| event.offset += wait);
    for at in [&mut attempt.last_token, &mut attempt.end].into_iter().flatten() {
        *at += wait;
    }
}
