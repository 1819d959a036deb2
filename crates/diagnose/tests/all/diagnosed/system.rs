//! Random healthy systems: engine, limits, fleet, traffic and load, all drawn from a seed.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::Span;
use plimsoll_sim::client::trial::{self, ProtocolSpec, SendPace, Sizes, Start};
use plimsoll_sim::{
    BatchingSpec, EngineSpec, FaultSpec, FleetSpec, ModeSpec, RouteSpec, StepSpec, WorldSpec,
    catalogue::profile,
};
use plimsoll_workload::{ClassSpec, Scenario, SharedPrefix, Size, SizeSpec};
use serde_json::json;

/// Engines of the catalogue for systems.
const PAIRS: [&str; 6] = [
    "llama-3.1-8b@h100",
    "llama-3.1-8b@a100",
    "llama-3.1-8b@l40s",
    "llama-3.1-70b@h100x4",
    "qwen2.5-7b@h100",
    "qwen2.5-32b@h100",
];

/// A healthy system and its load.
#[derive(Clone)]
pub struct System {
    pub seed: u64,
    /// Name in one line.
    pub name: String,
    /// Engine and fleet.
    pub world: WorldSpec,
    /// Traffic and client.
    pub scenario: Scenario,
    pub rate_per_s: f64,
    /// Duration of the load.
    pub window: Span,
    /// Load over capacity.
    pub load: f64,
    /// Whether the server reports queue, prefill and decode times per request.
    pub says_stages: bool,
    /// Whether records name the blocks of prompts, although none are shared; writing the prompts takes time.
    pub names_blocks: bool,
}

impl System {
    /// Returns the system of this seed.
    pub fn draw(seed: u64) -> System {
        let chance = &mut Stream::new(seed, "diagnosed system", 0);
        let (engine, name) = engine(chance);
        let replicas = [1, 1, 2, 3, 4][chance.below(5) as usize];
        let prompt = dist::uniform(chance, 120f64.ln(), 1_200f64.ln()).exp().round();
        let output = dist::uniform(chance, 50f64.ln(), 220f64.ln()).exp().round();
        let sigmas = (0.3 + 0.5 * chance.uniform(), 0.3 + 0.3 * chance.uniform());
        let load = 0.40 + 0.35 * chance.uniform();
        let mut value = json!({
            "sizes": {
                "prompt": format!("lognormal:{prompt},{:.3}", sigmas.0),
                "output": format!("lognormal:{output},{:.3}", sigmas.1),
            },
            "seed": seed, "nonce": seed,
        });
        if chance.chance(0.4) {
            let (groups, share) = (4 + chance.below(12), 0.3 + 0.4 * chance.uniform());
            value["prompts"] = json!({"shared_prefix": {"groups": groups, "share": share}});
        }
        let scenario: Scenario = serde_json::from_value(value).expect("a sound scenario");
        let route = match chance.below(4) {
            0 => RouteSpec::RoundRobin {},
            1 => RouteSpec::PowerOfTwo { load: Default::default() },
            _ => RouteSpec::LeastRequests {},
        };
        let fleet = FleetSpec { replicas, route, ..FleetSpec::default() };
        let world = WorldSpec { engine, fleet, faults: Vec::new() };
        let mut system = System {
            seed,
            name,
            world,
            scenario,
            rate_per_s: 1.0,
            window: Span::from_secs(120),
            load,
            says_stages: chance.chance(0.3),
            names_blocks: false,
        };
        system.pace();
        let fleet = &system.world.fleet;
        system.name = format!(
            "{} x{} {prompt:.0}/{output:.0} tokens, load {load:.2} = {:.1}/s",
            system.name, fleet.replicas, system.rate_per_s
        );
        system
    }

    /// Returns the batching part of the engine.
    pub fn batching(&mut self) -> &mut BatchingSpec {
        match &mut self.world.engine.mode {
            ModeSpec::Batching(batching) => batching,
            _ => unreachable!("every system batches"),
        }
    }

    /// Sets KV cache, rate and window to match engine and traffic.
    fn pace(&mut self) {
        loop {
            self.size_cache(2.5);
            let capacity = self.capacity();
            let replicas = f64::from(self.world.fleet.replicas);
            self.rate_per_s = self.load * capacity * replicas;
            let seqs = self.batching().max_seqs;
            if self.rate_per_s <= 16.0 || seqs <= 6 {
                break;
            }
            self.batching().max_seqs = seqs / 2;
        }
        let seconds = (900.0 / self.rate_per_s).clamp(100.0, 220.0);
        self.window = Span::from_secs_f64(seconds.round());
    }

    /// Sets the cache to `times` the size for a full batch of mean requests, at least the size of the largest
    /// request.
    fn size_cache(&mut self, times: f64) {
        let sizes = self.scenario.sizes.clone();
        let mean = |size: &Size| size.mean(&self.scenario.material).expect("a law without a file");
        let (prompt, output) = (mean(&sizes.prompt), mean(&sizes.output));
        let batching = self.batching();
        let need = f64::from(batching.max_seqs) * (prompt + output) / 16.0 * times;
        batching.kv_blocks = Some((need + 12.0 * (prompt + output) / 16.0).ceil() as u32);
    }

    /// Returns the maximum requests per second of one replica.
    fn capacity(&mut self) -> f64 {
        let seqs = self.batching().max_seqs;
        let sizes = self.scenario.sizes.clone();
        let mean_output = sizes.output.mean(&self.scenario.material).expect("a law without a file");
        let protocol = ProtocolSpec {
            pace: SendPace::Closed { concurrency: seqs, start: Start::AtOnce },
            sizes: Sizes::Drawn { prompt: sizes.prompt, output: sizes.output },
            requests: 6 * seqs + 100,
            warm_up: 0,
        };
        let trial = trial::run(&self.world.engine, &protocol, self.seed).expect("a sound engine");
        trial.tokens_per_s / mean_output
    }

    /// Returns the system with this number of replicas at an equal load per replica.
    pub fn fleet_of(mut self, replicas: u32) -> System {
        let scale = f64::from(replicas) / f64::from(self.world.fleet.replicas);
        self.world.fleet.replicas = replicas;
        self.rate_per_s *= scale;
        self
    }

    /// Returns the system at another share of its capacity.
    pub fn loaded(mut self, load: f64) -> System {
        self.rate_per_s *= load / self.load;
        self.load = load;
        self
    }

    /// Returns the system with prompts that are identified in the records.
    pub fn naming_blocks(mut self) -> System {
        self.names_blocks = true;
        self
    }

    /// Returns the system with shared prompt prefixes.
    pub fn sharing(mut self, groups: u32, share: f64) -> System {
        self.scenario.prompts.shared_prefix = Some(SharedPrefix { groups, share });
        self
    }

    /// Returns the system with a dependency in front of the engine for each request.
    pub fn depending(mut self, dependency: &str) -> System {
        self.world.faults.push(FaultSpec::parse(dependency).expect("a sound dependency"));
        self
    }

    /// Returns the system with two kinds of traffic: chat as before, and `share` of documents with `factors` times as
    /// long prompts and responses.
    pub fn mixed(mut self, share: f64, factors: (f64, f64)) -> System {
        let chat = self.scenario.sizes.clone();
        let document = SizeSpec {
            prompt: scaled(&chat.prompt, factors.0),
            output: scaled(&chat.output, factors.1),
            pairs: None,
        };
        let class = |name: &str, weight: f64, sizes: SizeSpec| ClassSpec {
            name: name.to_owned(),
            weight,
            sizes: Some(sizes),
            ..ClassSpec::default()
        };
        self.scenario.classes = vec![class("chat", 1.0 - share, chat), class("document", share, document)];
        self
    }
}

/// Returns a distribution whose median is scaled by `factor`.
pub fn scaled(size: &Size, factor: f64) -> Size {
    match size {
        Size::Lognormal(median, sigma) => Size::Lognormal(median * factor, *sigma),
        Size::Fixed(n) => Size::Fixed((f64::from(*n) * factor).round().max(1.0) as u32),
        other => other.clone(),
    }
}

/// Returns an engine: half are from the catalogue, half have random constants.
fn engine(chance: &mut Stream) -> (EngineSpec, String) {
    let max_seqs = [8, 12, 16, 24, 32, 48][chance.below(6) as usize];
    let token_budget = [512, 1024, 2048, 4096][chance.below(4) as usize];
    let policy = ["vllm", "vllm", "vllm", "sglang", "no_evict"][chance.below(5) as usize];
    let policy_spec = serde_json::from_value(json!({"kind": policy})).expect("a policy");
    let front_ms = 1.0 + 5.0 * chance.uniform();
    let (mut spec, name) = if chance.chance(0.5) {
        let pair = PAIRS[chance.below(PAIRS.len() as u64) as usize];
        (profile::find(pair).expect("in the catalogue").spec, pair.to_owned())
    } else {
        let (base, decode) = (6_000.0 + 18_000.0 * chance.uniform(), 50.0 + 250.0 * chance.uniform());
        let (prefill, context) = (25.0 + 90.0 * chance.uniform(), 2.0 * chance.uniform());
        let step: StepSpec = serde_json::from_value(json!({
            "kind": "linear", "base_us": base, "decode_us": decode, "prefill_us": prefill, "context_ns": context,
        }))
        .expect("a step");
        let mode = json!({"kind": "batching", "kv_blocks": 1000, "step": step});
        let spec: EngineSpec =
            serde_json::from_value(json!({"name": "own", "mode": mode})).expect("an engine");
        (spec, format!("own {:.0}ms+{prefill:.0}us", base / 1e3))
    };
    let ModeSpec::Batching(batching) = &mut spec.mode else { unreachable!("every system batches") };
    batching.policy = policy_spec;
    batching.max_seqs = max_seqs;
    batching.token_budget = token_budget;
    batching.front_ms = front_ms;
    batching.chunked_prefill = true;
    batching.max_context = None;
    batching.queue_limit = None;
    (spec, format!("{name} {policy} seqs {max_seqs} budget {token_budget}"))
}
