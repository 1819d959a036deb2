//! Reads the input of `plimsoll simulate`: one file of four parts (engine, fleet, faults, scenario) and flags that override it.
//! The result is a world and a scenario that fit together.
//!
//! The file is validated against its schema before it is read, by the code that checks scenarios. An error about a misspelt
//! key therefore suggests the nearest key. An engine is a name, the name of a file, or the specification itself.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_measure::findings::{LevelFinding, LoadKeptUp};
use plimsoll_model::Span;
use plimsoll_policy::RouteSpec;
use plimsoll_sim::catalogue::engine_file::EngineInFull;
use plimsoll_sim::catalogue::origin::{self, IntendedLoad};
use plimsoll_sim::fleet::adapters;
use plimsoll_sim::{
    AdapterSpec, EngineSpec, FaultSpec, FleetSpec, ModeSpec, PairSpec, StepSpec, WorldSpec,
    spec::fault as fault_spec,
};
use plimsoll_workload::chain::ExternalClasses;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, SpecError, TraceSizes, check};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::commands::engine;
use crate::commands::gateway;
use crate::commands::run::MOST_CONCURRENCY;
use crate::exit::Stop;
use crate::flags::WorldArgs;
use crate::resolve::{self, Draft};

/// The file of a simulation; every part is optional.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimulationSpec {
    /// Engine of a replica: the name of a profile, the name of a profile's file, or the profile itself.
    pub engine: Option<EngineChoice>,
    /// Number of replicas, with their routing, gateway, scaling and adapters.
    pub fleet: Option<FleetSpec>,
    /// Faults to inject during the simulation [default: none].
    pub faults: Vec<FaultSpec>,
    /// Load, in the format of `plimsoll run --spec`; the target is ignored.
    pub scenario: Option<Scenario>,
}

/// An engine, by name or in full.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EngineChoice {
    /// Name of a profile or of a file.
    Named(String),
    /// Specification of the engine.
    Spec(Box<EngineSpec>),
}

/// The input of a simulation before the flags of the load.
pub struct SimulationRequest {
    pub world: WorldSpec,
    pub draft: Draft,
    /// Start of the command that repeats the simulation.
    pub head: String,
}

/// Reads the file and the flags of the world.
pub fn read(path: Option<&Path>, args: &WorldArgs) -> Result<SimulationRequest, Stop> {
    let mut value = path.map_or_else(|| Ok(json!({})), |path| resolve::mapping(path, "simulation"))?;
    let name = path.map_or_else(String::new, |path| format!("{}: ", path.display()));
    check(&value).map_err(|e| Stop::usage(format!("{name}{e}")))?;
    let mut part = |key: &str| value.as_object_mut().and_then(|map| map.remove(key));
    let (scenario, choice) = (part("scenario"), part("engine"));
    let spec: SimulationSpec =
        serde_json::from_value(value).map_err(|e| Stop::usage(format!("{name}{e}")))?;
    let choice = choice.map_or(Ok(None), chosen).map_err(|e| Stop::usage(format!("{name}engine: {e}")))?;
    let spec = SimulationSpec { engine: choice, ..spec };
    let world = world(spec, args)?;
    let draft = Draft::of(scenario.filter(|value| !value.is_null()).unwrap_or_else(|| json!({})));
    Ok(SimulationRequest { world, draft, head: head(path, args) })
}

/// Detects here whether the value is a name or an engine, because an untagged enum reports "matches no variant" for any error.
fn chosen(engine: Value) -> Result<Option<EngineChoice>, String> {
    match engine {
        Value::Null => Ok(None),
        Value::String(name) => Ok(Some(EngineChoice::Named(name))),
        full @ Value::Object(_) => {
            let spec: EngineSpec = serde_json::from_value(full).map_err(|e| e.to_string())?;
            Ok(Some(EngineChoice::Spec(Box::new(spec))))
        }
        other => Err(format!("{other} is no profile's name, no file's name and no engine")),
    }
}

/// Returns the world that only flags describe.
pub fn of_flags(args: &WorldArgs) -> Result<WorldSpec, Stop> {
    let world = world(SimulationSpec::default(), args)?;
    world.validate().map_err(|e| Stop::usage(e.to_string()))?;
    Ok(world)
}

/// Returns the world without its load, for `plimsoll engine`, and whether the file has a scenario, which is ignored.
pub fn served(path: Option<&Path>, args: &WorldArgs) -> Result<(WorldSpec, bool), Stop> {
    let asked = read(path, args)?;
    asked.world.validate().map_err(|e| Stop::usage(e.to_string()))?;
    Ok((asked.world, !asked.draft.is_empty()))
}

/// Returns a recorded world with flags that override it, or the world of the flags if none is recorded.
pub fn changed(recorded: Option<WorldSpec>, args: &WorldArgs) -> Result<WorldSpec, Stop> {
    let Some(WorldSpec { engine, fleet, faults }) = recorded else { return of_flags(args) };
    let engine = Some(EngineChoice::Spec(Box::new(engine)));
    let spec = SimulationSpec { engine, fleet: Some(fleet), faults, scenario: None };
    let world = world(spec, args)?;
    world.validate().map_err(|e| Stop::usage(e.to_string()))?;
    Ok(world)
}

fn world(spec: SimulationSpec, args: &WorldArgs) -> Result<WorldSpec, Stop> {
    let engine = match (&args.profile, spec.engine) {
        (Some(name), _) => engine::find(name)?,
        (None, Some(EngineChoice::Named(name))) => engine::find(&name)?,
        (None, Some(EngineChoice::Spec(engine))) => *engine,
        (None, None) => engine::find("demo")?,
    };
    let mut world = WorldSpec { engine, fleet: spec.fleet.unwrap_or_default(), faults: spec.faults };
    if let Some(path) = &args.gateway {
        let gateway = gateway::deadlines::with_deadlines(gateway::read(path)?)?;
        world.fleet.gateway = Some(gateway.front());
        world.fleet.replicas = (gateway.replicas.len() as u32).max(1);
    }
    if let Some(replicas) = args.replicas {
        world.fleet.replicas = replicas;
    }
    if let Some(route) = &args.route {
        let route = RouteSpec::parse(route).map_err(|e| Stop::usage(format!("--route {route}: {e}")))?;
        match &mut world.fleet.gateway {
            Some(gateway) => gateway.route = route,
            None => world.fleet.route = route,
        }
    }
    if let Some(text) = &args.adapters {
        let adapters = AdapterSpec::parse(text);
        world.fleet.adapters = Some(adapters.map_err(|e| Stop::usage(format!("--adapters {text}: {e}")))?);
    }
    for text in &args.faults {
        let fault = FaultSpec::parse(text).map_err(|e| Stop::usage(format!("--fault {text}: {e}")))?;
        world.faults.push(fault);
    }
    Ok(world)
}

/// Checks keys, names and texts against the schema.
fn check(value: &Value) -> Result<(), SpecError> {
    let mut rest = value.clone();
    let mut engine = None;
    if let Some(map) = rest.as_object_mut() {
        engine = map.remove("engine");
    }
    check::against(&rest, || schemars::schema_for!(SimulationSpec).to_value())?;
    match engine {
        Some(engine) => check_engine(&engine).map_err(|e| e.at("engine")),
        None => Ok(()),
    }
}

/// Checks an engine's keys and names against the half of its schema that applies: the full form or the pair.
pub fn check_engine(engine: &Value) -> Result<(), SpecError> {
    let Value::Object(keys) = engine else { return Ok(()) };
    if keys.contains_key("mode") {
        return check::against(engine, || schemars::schema_for!(EngineInFull).to_value());
    }
    let mut schema = schemars::schema_for!(PairSpec).to_value();
    if !keys.contains_key("model")
        && !keys.contains_key("gpu")
        && let Some(allowed) = schema.pointer_mut("/properties").and_then(Value::as_object_mut)
    {
        // `mode` is allowed in both forms, so that a misspelt `mode` gets a suggestion.
        allowed.insert("mode".to_owned(), true.into());
    }
    check::against(engine, || schema)
}

fn head(path: Option<&Path>, args: &WorldArgs) -> String {
    let mut words = vec!["plimsoll simulate".to_string()];
    words.extend(path.map(|path| resolve::quoted(&path.display().to_string())));
    let mut flag = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.push(format!("--{name} {}", resolve::quoted(&value)));
        }
    };
    flag("profile", args.profile.clone());
    flag("replicas", args.replicas.map(|n| n.to_string()));
    flag("route", args.route.clone());
    flag("gateway", args.gateway.as_ref().map(|path| path.display().to_string()));
    flag("adapters", args.adapters.clone());
    args.faults.iter().for_each(|fault| flag("fault", Some(fault.clone())));
    words.join(" ")
}

/// Returns the end of the load since the start of the world: exact if it is known, else an upper bound.
pub fn end(load: &LoadSpec, window: Span, drain: Span) -> Span {
    match load {
        LoadSpec::Open { warm_up: 0, alone: 0, .. } | LoadSpec::Closed { warm_up: 0, .. } => window,
        LoadSpec::Saturating { .. } => {
            let steps = i64::from(MOST_CONCURRENCY.ilog2()) + 1;
            Span((window + drain).0.saturating_mul(steps))
        }
        // The warm-up or the whole load lasts as long as the engine takes; the drain is a guess of that time.
        LoadSpec::Open { .. } | LoadSpec::Closed { .. } | LoadSpec::Wave { .. } => window + drain,
    }
}

/// Checks that the world and the load fit together.
/// Refuses faults that start after the end and prompts that no engine of this world accepts.
pub fn fits(world: &WorldSpec, scenario: &Scenario, end: Span) -> Result<(), Stop> {
    fault_spec::check(&world.faults, end).map_err(|e| Stop::usage(e.to_string()))?;
    let shows = |class| {
        let prompts = scenario.prompts_of(class);
        prompts.images.is_some() || prompts.audio.is_some()
    };
    if (0..scenario.class_count() as u16).any(shows) {
        return Err(Stop::usage(
            "prompts.images, prompts.audio: a simulated engine reads text only; add their tokens to --isl",
        ));
    }
    world.validate().map_err(|e| Stop::usage(e.to_string()))?;
    adapters::of_classes(world.adapter_names(), scenario).map_err(|e| Stop::usage(e.to_string()))?;
    ExternalClasses::of(scenario).map_err(|e| Stop::usage(e.to_string()))?;
    let (ArrivalSpec::Trace { file, sizes: TraceSizes::Own, .. }, Some(limit)) =
        (&scenario.arrivals, longest(&world.engine))
    else {
        return Ok(());
    };
    let trace = scenario.material.trace(file).map_err(|e| Stop::usage(e.to_string()))?;
    let too_long = |row: &&plimsoll_workload::trace::TraceRow| {
        u64::from(row.prompt_tokens) + u64::from(row.output_tokens) > limit
    };
    let count = trace.rows.iter().filter(too_long).count();
    match trace.rows.iter().filter(too_long).min_by_key(|row| row.line) {
        None => Ok(()),
        Some(row) => Err(Stop::usage(format!(
            "{file}, line {}: a prompt of {} and an answer of {} tokens, and {} takes {limit} in all ({count} of {} \
             lines are too long); take an engine with more room, or lengths of your own with --isl and --osl",
            row.line,
            row.prompt_tokens,
            row.output_tokens,
            world.engine.name,
            trace.rows.len(),
        ))),
    }
}

/// Returns the maximum tokens of one request (prompt and answer); `None` if there is no limit.
fn longest(engine: &EngineSpec) -> Option<u64> {
    let ModeSpec::Batching(batching) = &engine.mode else { return None };
    // The last token of an answer needs no KV cache, because it is never computed.
    let held = batching.blocks().ok().map(|blocks| u64::from(blocks) * 16 + 1);
    let limit = batching.max_context.map(u64::from);
    [held, limit].into_iter().flatten().min()
}

/// Returns the caveats of this world's engine under the load of these levels.
///
/// The heaviest stable level is used, because a level that overloads an engine exceeds every range of requests in flight.
pub fn flags(world: &WorldSpec, levels: &[LevelFinding]) -> Vec<String> {
    let in_flight = |level: &&LevelFinding| level.summary.concurrency.mean;
    let heaviest = |carried: bool| {
        let levels =
            levels.iter().filter(|level| !carried || level.summary.stability.verdict != LoadKeptUp::Unstable);
        levels.max_by(|a, b| in_flight(a).total_cmp(&in_flight(b)))
    };
    let used = heaviest(true).or_else(|| heaviest(false)).map_or_else(IntendedLoad::default, |level| {
        let lengths = &level.summary.lengths;
        IntendedLoad {
            prompt_tokens: Some(lengths.prompt.asked_mean),
            output_tokens: Some(lengths.output.asked_mean),
            // Caveats apply to one replica, so the load is divided by their number.
            in_flight: Some(in_flight(&level) / f64::from(world.fleet.replicas.max(1))),
        }
    });
    origin::flags(&world.engine, &used)
}

/// Returns the known facts of the target for the manifest.
pub fn facts(world: &WorldSpec) -> BTreeMap<String, Option<String>> {
    let name = &world.engine.name;
    let (model, gpu) = name.split_once('@').map_or((name.as_str(), None), |(m, g)| (m, Some(g.to_string())));
    let mut facts = BTreeMap::from([
        ("engine".to_string(), Some("plimsoll-sim".to_string())),
        ("engine_version".to_string(), Some("simulated".to_string())),
        ("model".to_string(), Some(model.to_string())),
        ("gpu".to_string(), gpu),
        ("driver".to_string(), None),
        ("replicas".to_string(), Some(world.fleet.replicas.to_string())),
        ("engine_flags".to_string(), serde_json::to_string(&world.engine.mode).ok()),
    ]);
    if let ModeSpec::Batching(batching) = &world.engine.mode {
        let mut fact = |key: &str, value: Option<String>| facts.insert(key.to_string(), value);
        fact("kv_blocks", batching.blocks().ok().map(|n| n.to_string()));
        fact("max_seqs", Some(batching.max_seqs.to_string()));
        fact("max_context", batching.max_context.map(|n| n.to_string()));
        if let StepSpec::Roofline(roofline) = &batching.step {
            let bytes = roofline.model.weight_bytes;
            fact("dtype", Some(format!("weights of {bytes} bytes, KV of {} bytes", roofline.model.kv_bytes)));
            fact("tensor_parallel", Some(roofline.tensor_parallel.to_string()));
        }
        if let Some(origin) = &batching.origin {
            // The recorded facts replace those from the name, because a name only suggests a model and a GPU.
            let parts = [
                ("model", &origin.model),
                ("gpu", &origin.gpu),
                ("dtype", &origin.dtype),
                ("kv_dtype", &origin.kv_dtype),
                ("server", &origin.server),
                ("server_version", &origin.version),
            ];
            for (key, said) in parts.into_iter().filter(|(_, said)| !said.is_empty()) {
                fact(key, Some(said.clone()));
            }
            fact("basis", Some(origin.basis.word().to_owned()));
        }
    }
    facts
}
