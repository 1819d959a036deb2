//! Random systems to break: an engine, its limits, its fleet, the traffic and how full it is, all drawn from a seed.

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

/// Engines of the catalogue that a system may be.
const PAIRS: [&str; 6] = [
    "llama-3.1-8b@h100",
    "llama-3.1-8b@a100",
    "llama-3.1-8b@l40s",
    "llama-3.1-70b@h100x4",
    "qwen2.5-7b@h100",
    "qwen2.5-32b@h100",
];

/// A system that nothing is wrong with, and the load it is under.
#[derive(Clone)]
pub struct System {
    /// It is drawn from this.
    pub seed: u64,
    /// In a line.
    pub name: String,
    /// Engine and fleet.
    pub world: WorldSpec,
    /// Traffic and client.
    pub scenario: Scenario,
    /// Requests per second.
    pub rate_per_s: f64,
    /// How long the load lasts.
    pub window: Span,
    /// Load over capacity.
    pub load: f64,
    /// Does the server say how long queue, prefill and decode of each request took?
    pub says_stages: bool,
    /// Do records name the blocks of their prompts, though none are shared? (It takes time to write the prompts.)
    pub names_blocks: bool,
}

impl System {
    /// The system of this seed.
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

    /// The engine's part that batches.
    pub fn batching(&mut self) -> &mut BatchingSpec {
        match &mut self.world.engine.mode {
            ModeSpec::Batching(batching) => batching,
            _ => unreachable!("every system batches"),
        }
    }

    /// Sets KV cache, rate and window to what engine and traffic are.
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

    /// Gives the engine `times` the cache that a full batch of mean requests needs, and never less than the largest takes.
    fn size_cache(&mut self, times: f64) {
        let sizes = self.scenario.sizes.clone();
        let mean = |size: &Size| size.mean(&self.scenario.material).expect("a law without a file");
        let (prompt, output) = (mean(&sizes.prompt), mean(&sizes.output));
        let batching = self.batching();
        let need = f64::from(batching.max_seqs) * (prompt + output) / 16.0 * times;
        batching.kv_blocks = Some((need + 12.0 * (prompt + output) / 16.0).ceil() as u32);
    }

    /// Requests per second that one replica answers at most.
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

    /// The same system with so many replicas, as full as before.
    pub fn fleet_of(mut self, replicas: u32) -> System {
        let scale = f64::from(replicas) / f64::from(self.world.fleet.replicas);
        self.world.fleet.replicas = replicas;
        self.rate_per_s *= scale;
        self
    }

    /// The same system at another load, as a share of its capacity.
    pub fn loaded(mut self, load: f64) -> System {
        self.rate_per_s *= load / self.load;
        self.load = load;
        self
    }

    /// The same with prompts that can be told apart in the records.
    pub fn naming_blocks(mut self) -> System {
        self.names_blocks = true;
        self
    }

    /// The same with prompts that share beginnings.
    pub fn sharing(mut self, groups: u32, share: f64) -> System {
        self.scenario.prompts.shared_prefix = Some(SharedPrefix { groups, share });
        self
    }

    /// The same with something in front of the engine that each request needs.
    pub fn depending(mut self, dependency: &str) -> System {
        self.world.faults.push(FaultSpec::parse(dependency).expect("a sound dependency"));
        self
    }

    /// The same with two kinds of traffic: chat as before, and `share` of documents with `factors` times as long prompts and
    /// answers.
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
            documents: None,
            prompts: None,
            model: None,
            priority: None,
            queue_timeout: None,
        };
        self.scenario.classes = vec![class("chat", 1.0 - share, chat), class("document", share, document)];
        self
    }
}

/// A law with a median times as large.
pub fn scaled(size: &Size, factor: f64) -> Size {
    match size {
        Size::Lognormal(median, sigma) => Size::Lognormal(median * factor, *sigma),
        Size::Fixed(n) => Size::Fixed((f64::from(*n) * factor).round().max(1.0) as u32),
        other => other.clone(),
    }
}

/// Half of the engines are of the catalogue, half have constants of their own.
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
