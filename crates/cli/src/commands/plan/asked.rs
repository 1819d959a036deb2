//! The input of a plan from flags, files and a run: load, SLO, replica and rules.
//!
//! A run provides load and engine; a flag replaces exactly the value that it names. If the engine can't be
//! determined, the plan is rejected with the missing flag, because a plan for a wrong engine appears plausible.

use crate::rows;
use std::path::Path;

use plimsoll_judge::cost::Per;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, LevelSummary, Metric};
use plimsoll_model::{Level, Load, Protocol, Span, TimeBase};
use plimsoll_plan::replica::isolated;
use plimsoll_plan::spec::{EffortSpec, PredictionBand, TrafficSpec, check_scales};
use plimsoll_plan::{PlanRuleSpec, PlanSpec};
use plimsoll_policy::AutoscaleSpec;
use plimsoll_sim::{ColdStartSpec, ModeSpec, StepSpec, WorldSpec};
use plimsoll_workload::chain::ExternalClasses;
use plimsoll_workload::units::Rate;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, check, parse_span};
use schemars::schema_for;
use serde_json::json;

use crate::again::RecordedScenario;
use crate::commands::plan::{refused, rules};
use crate::exit::Stop;
use crate::fitted::TargetModel;
use crate::flags::{PlanArgs, WorldArgs};
use crate::resolve::{self, Draft};
use crate::{budget_file, price, simulation, traffic};

/// Default simulated time in seconds: long enough for a p99 at a few requests per second, and bounded by a
/// number of requests.
const WINDOW_S: f64 = 300.0;
const SHORTEST_S: f64 = 60.0;
const REQUESTS: f64 = 30_000.0;
/// Minimum simulated time in lengths of an isolated request, and the number of isolated requests. The
/// start-up of a replica must not affect the result.
const REQUEST_LENGTHS: f64 = 20.0;
const ISOLATED: usize = 200;

/// The input of a plan with its origin.
pub struct PlanRequest {
    pub spec: PlanSpec,
    /// Assumptions for values that were not given.
    pub rests_on: Vec<String>,
    /// Remarks on a fitted engine, or on budget rows that the plan does not cover.
    pub notes: Vec<String>,
}

/// Reads flags and files.
///
/// # Errors
/// Fails on the first invalid or missing value, with a one-line message.
pub fn read(args: &PlanArgs) -> Result<PlanRequest, Stop> {
    let mut notes = Vec::new();
    let mut rules = rules(&args.promise)?;
    let run = args.load.from.as_deref().map(|dir| Source::read(dir, args)).transpose()?;
    let price = args.fleet.price.as_deref().map(price::read).transpose()?;
    price.as_ref().map_or(Ok(()), check_scales).map_err(refused)?;
    let effort = effort(args)?;
    let mut world = world(args, run.as_ref())?;
    let mut band = args.effort.band.as_deref().map(self::band).transpose()?;
    if let Some(run) = &run {
        notes.extend(run.notes.iter().cloned());
        notes.extend(run.target.iter().flat_map(|target| target.notes.iter().cloned()));
        band = band.or_else(|| run.target.as_ref()?.band.clone());
    }
    around(&mut world, args)?;
    let scenario = scenario(args, &world, run.as_ref())?;
    let traffic = traffic(args, scenario, run.as_ref())?;
    let slo = promise(args, &traffic.scenario, run.as_ref(), (&mut rules, &mut notes))?;
    let known = args.fleet.gpus_per_replica.or_else(|| gpus_of(&world));
    if known == Some(0) {
        return Err(Stop::usage("--gpus-per-replica 0: a replica has at least 1"));
    }
    let one_gpu =
        known.is_none() && price.as_ref().is_some_and(|price| matches!(price.price.per, Per::GpuHour(_)));
    let gpus_per_replica = known.or(one_gpu.then_some(1));
    simulation::fits(&world, &traffic.scenario, Span::from_secs_f64(traffic.window_s))?;
    let seed = args.workload.seed.unwrap_or(1);
    let mut spec = PlanSpec { traffic, slo, world, gpus_per_replica, rules, price, effort, band, seed };
    let is_trace = matches!(spec.traffic.scenario.arrivals, ArrivalSpec::Trace { .. });
    if args.load.window.is_none() && !is_trace {
        // An unsupported simulation is rejected here, where the plan starts.
        let isolated = isolated(&spec, ISOLATED).ok().and_then(|isolated| isolated.mean(Metric::E2e));
        spec.traffic.window_s = spec.traffic.window_s.max(REQUEST_LENGTHS * isolated.unwrap_or(0.0));
    }
    let target = run.and_then(|run| run.target);
    let limits = target.and_then(|target| target.rests_on);
    let price_of_one = "the costs assume one GPU per replica; set it with --gpus-per-replica".to_owned();
    let rests_on = limits.into_iter().chain(one_gpu.then_some(price_of_one)).collect();
    Ok(PlanRequest { spec, rests_on, notes })
}

/// The run that a plan is based on.
struct Source {
    name: String,
    recorded: RecordedScenario,
    level: Level,
    summary: LevelSummary,
    /// Model of the run's target; `None` if it is unknown. A flag may replace it.
    target: Option<TargetModel>,
    notes: Vec<String>,
}

impl Source {
    fn read(dir: &Path, args: &PlanArgs) -> Result<Source, Stop> {
        let name = dir.display().to_string();
        let mut rows = rows::whole(dir)?;
        if traffic::is_traffic(&rows.manifest) {
            traffic::as_trace(dir, &mut rows).map_err(|why| Stop::usage(format!("{name}: {why}")))?;
        }
        let recorded =
            RecordedScenario::of(&rows.manifest).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
        let none = format!("{name}: no level was measured well enough to plan from; name one with --level");
        let summary = rows::level(&rows.findings, args.load.level, &none)?.clone();
        let level = rows.manifest.levels.iter().find(|level| level.id == summary.level).cloned();
        let level = level.ok_or_else(|| {
            Stop::usage(format!("{name}: run.json does not list the level of its findings"))
        })?;
        let seed = args.workload.seed.unwrap_or(1);
        let target = match &args.fleet.profile {
            Some(_) => None,
            None => Some(TargetModel::of_run(dir, &rows, recorded.world.clone(), &args.target, seed)?),
        };
        let mut notes = Vec::new();
        if rows.manifest.time == TimeBase::Real && target.is_none() {
            notes.push(format!(
                "{name} was measured; the engine is --profile's, and no fit compares it with that run"
            ));
        }
        Ok(Source { name, recorded, level, summary, target, notes })
    }

    /// Returns the arrivals per second of the level; `None` without a rate.
    fn rate(&self) -> Option<f64> {
        match self.level.load {
            Load::Open { .. } => Some(self.summary.rates.offered_per_s),
            // The rate of a closed loop depends on the endpoint and not on the users.
            _ => None,
        }
    }

    /// Returns the requests of the run as a scenario.
    fn scenario(&self) -> Scenario {
        let mut scenario = self.recorded.scenario.clone();
        if let Some(arrivals) = self.recorded.traffic.get(&self.level.traffic) {
            scenario.arrivals = arrivals.clone();
        }
        scenario
    }
}

/// Returns the model of one replica: from flags, else from the run.
fn world(args: &PlanArgs, run: Option<&Source>) -> Result<WorldSpec, Stop> {
    let fleet = &args.fleet;
    let recorded = run.and_then(|run| Some(run.target.as_ref()?.world.clone()));
    if fleet.profile.is_none() && recorded.is_none() {
        return Err(Stop::usage(
            "no engine: name one with --profile llama-3.1-8b@h100, or plan --from RUN; without either, --latency and --slots make a plan of four figures",
        ));
    }
    let flags = WorldArgs {
        gateway: None,
        profile: fleet.profile.clone(),
        replicas: None,
        route: fleet.route.clone(),
        adapters: fleet.adapters.clone(),
        faults: fleet.faults.clone(),
    };
    simulation::changed(recorded, &flags)
}

/// Applies the flags for the autoscaler and the cold start.
fn around(world: &mut WorldSpec, args: &PlanArgs) -> Result<(), Stop> {
    if let Some(text) = &args.fleet.autoscale {
        let spec = AutoscaleSpec::parse(text).map_err(|e| Stop::usage(format!("--autoscale {text}: {e}")))?;
        world.fleet.autoscale = Some(spec);
    }
    if let Some(text) = &args.fleet.cold_start {
        let all = parse_span(text).map_err(|e| Stop::usage(format!("--cold-start {e}")))?;
        world.fleet.cold_start = ColdStartSpec {
            provision: all,
            image_pull: Span::ZERO,
            weights_gb: Some(0.0),
            compile: Span::ZERO,
            first_request: Span::ZERO,
            ..ColdStartSpec::default()
        };
    }
    if world.fleet.disaggregation.is_some() {
        return Err(Stop::usage(
            "replicas of two kinds (prefill, decode) are not planned for; plan each kind separately, or simulate the fleet",
        ));
    }
    world.validate().map_err(|e| Stop::usage(e.to_string()))
}

fn scenario(args: &PlanArgs, world: &WorldSpec, run: Option<&Source>) -> Result<Scenario, Stop> {
    let base = run.map(Source::scenario).filter(|_| args.workload.spec.is_none());
    let mut draft = match &base {
        Some(scenario) => Draft::of(serde_json::to_value(scenario).unwrap_or_else(|_| json!({}))),
        None => Draft::new(args.workload.spec.as_deref())?,
    };
    draft.simulated(&world.engine.name);
    if matches!(world.engine.mode, ModeSpec::Dynamic(_)) && !draft.has("target.protocol") {
        draft.set("target.protocol", Protocol::Kserve.name().into());
    }
    draft.workload(&args.workload)?;
    if let Some(text) = &args.load.arrivals {
        draft.set("arrivals", resolve::arrivals(text)?);
    }
    if base.is_some() || draft.text("load.mode") != Some("open") {
        draft.set("load", json!({"mode": "open"}));
    }
    let mut scenario = draft.finish(0)?;
    scenario.target.model.get_or_insert_with(|| world.engine.name.clone());
    Ok(scenario)
}

/// Returns the load that the plan must carry.
fn traffic(args: &PlanArgs, mut scenario: Scenario, run: Option<&Source>) -> Result<TrafficSpec, Stop> {
    let usage = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
    let said = args.load.rate.as_deref().map(Rate::parse).transpose();
    let said = said.map_err(|e| Stop::usage(format!("--rate {e}")))?.map(Rate::as_per_s);
    let is_trace = matches!(scenario.arrivals, ArrivalSpec::Trace { .. });
    if said.is_some()
        && let ArrivalSpec::Trace { speed: Some(_), .. } = scenario.arrivals
    {
        return Err(Stop::usage("--rate and --speed both set the load; give one of them"));
    }
    let of_spec = match &scenario.load {
        LoadSpec::Open { rate: Some(rate), .. } => Some(rate.as_per_s()),
        _ => None,
    };
    let of_trace = if is_trace { Some(scenario.rate().map_err(usage)?) } else { None };
    let of_run =
        run.filter(|_| args.workload.spec.is_none() && args.workload.trace.is_none()).and_then(Source::rate);
    let rate_per_s = said.or(of_spec).or(of_run).or(of_trace).ok_or_else(|| {
        Stop::usage(match run {
            Some(run) => format!(
                "no load: {} was not an open loop, so its rate depends on the endpoint; give --rate 50/s",
                run.name
            ),
            None => {
                "no load: give a request rate, --rate 50/s, or recorded requests, --trace FILE".to_owned()
            }
        })
    })?;
    // The plan counts the requests that the engine serves. Other stages of a chain only delay them.
    let served = ExternalClasses::of(&scenario).map_err(usage)?.served();
    if served <= 0.0 {
        return Err(Stop::usage(
            "classes: every class has a simulated latency, so no request needs the engine",
        ));
    }
    let rate_per_s = rate_per_s * served;
    // The rate of a trace is stored separately from its shape from here on.
    if let ArrivalSpec::Trace { speed, .. } = &mut scenario.arrivals {
        *speed = None;
    }
    let window = args.load.window.as_deref().map(parse_span).transpose();
    let window = window.map_err(|e| Stop::usage(format!("--for {e}")))?.map(Span::as_secs_f64);
    if window.is_some_and(|s| s <= 0.0) {
        return Err(Stop::usage("--for 0s: a simulation takes time; give a span above 0"));
    }
    let whole = match &scenario.arrivals {
        ArrivalSpec::Trace { file, .. } => {
            let rows = scenario.material.trace(file).map_err(usage)?.rows.len();
            Some(rows as f64 / rate_per_s)
        }
        _ => None,
    };
    let source = match (run, &scenario.arrivals) {
        (_, ArrivalSpec::Trace { file, .. }) => format!("trace {file}"),
        (Some(run), _) => format!("{}, level {}", run.name, run.level.id),
        (None, _) => "the flags".to_owned(),
    };
    scenario.load = LoadSpec::default();
    let enough = (REQUESTS / rate_per_s).clamp(SHORTEST_S, WINDOW_S);
    Ok(TrafficSpec { scenario, rate_per_s, window_s: window.or(whole).unwrap_or(enough), source })
}

/// Returns the SLO: from flags, from a file, or from the run. A utilisation ceiling in a file becomes a rule.
fn promise(
    args: &PlanArgs,
    scenario: &Scenario,
    run: Option<&Source>,
    (rules, notes): (&mut PlanRuleSpec, &mut Vec<String>),
) -> Result<BudgetSpec, Stop> {
    let is_file = |text: &&String| [".yaml", ".yml", ".json"].iter().any(|end| text.trim().ends_with(end));
    let slo = match args.promise.slo.iter().find(is_file) {
        Some(path) if args.promise.slo.len() > 1 => {
            return Err(Stop::usage(format!(
                "--slo {path}: a budget file excludes other --slo; write further ceilings into it"
            )));
        }
        Some(path) => of_file(Path::new(path.trim()), args, rules, notes)?,
        None if !args.promise.slo.is_empty() => resolve::budget_for(scenario, &args.promise.slo)?,
        None => run.and_then(|run| run.recorded.sweep.as_ref()?.budget.clone()).ok_or_else(|| {
            Stop::usage("no SLO: give one, --slo \"ttft p99 < 500ms, tpot p95 < 30ms\" or --slo budget.yaml")
        })?,
    };
    contradiction(&slo)?;
    Ok(slo)
}

fn of_file(
    path: &Path,
    args: &PlanArgs,
    rules: &mut PlanRuleSpec,
    notes: &mut Vec<String>,
) -> Result<BudgetSpec, Stop> {
    use plimsoll_judge::budget::BudgetMetric;
    let file = budget_file::read(path)?.file;
    let slo = file.per_request();
    if slo.latency.is_empty() {
        let name = path.display();
        return Err(Stop::usage(format!(
            "{name}: no ceiling on ttft, tpot or e2e of all requests; a plan needs at least one"
        )));
    }
    let ceiling = file.budgets.iter().find(|budget| budget.metric == BudgetMetric::Utilisation);
    if let (Some(most), None) = (ceiling.and_then(|budget| budget.max.as_ref()), &args.promise.utilisation) {
        rules.utilisation = most.value;
        rules.check().map_err(|e| Stop::usage(format!("{}: {e}", path.display())))?;
    }
    let planned = slo.latency.len() + usize::from(slo.error_rate.is_some()) + usize::from(ceiling.is_some());
    let left = file.budgets.len().saturating_sub(planned);
    if left > 0 {
        notes.push(format!(
            "{left} of the {} rows of {} are not planned for (only ttft, tpot, e2e, errors of all requests, and utilisation are); check a run against them with plimsoll gate",
            file.budgets.len(),
            path.display()
        ));
    }
    Ok(slo)
}

/// Rejects ceilings of one metric where a lower percentile has the higher limit, because one of them has no
/// effect.
fn contradiction(slo: &BudgetSpec) -> Result<(), Stop> {
    let clash = |a: &Ceiling, b: &Ceiling| {
        a.metric == b.metric && a.percentile < b.percentile && a.limit_s >= b.limit_s
    };
    for a in &slo.latency {
        if let Some(b) = slo.latency.iter().find(|b| clash(a, b)) {
            let name = |c: &Ceiling| {
                format!(
                    "{} p{} < {} ms",
                    c.metric.name(),
                    plimsoll_report::figure::centile(c.percentile),
                    c.limit_s * 1e3
                )
            };
            return Err(Stop::usage(format!(
                "--slo: {} contradicts {}: a higher percentile needs a higher ceiling",
                name(a),
                name(b)
            )));
        }
    }
    Ok(())
}

fn effort(args: &PlanArgs) -> Result<EffortSpec, Stop> {
    let default = EffortSpec::default();
    match args.effort.seeds {
        None => Ok(default),
        Some(seeds @ 5..=1000) => Ok(EffortSpec { seeds, most_seeds: seeds.max(default.most_seeds) }),
        Some(few) => Err(Stop::usage(format!("--seeds {few}: from 5 (fewer give no interval) to 1000"))),
    }
}

/// Reads a band file, as written by `plan verify --band`.
pub fn band(path: &Path) -> Result<PredictionBand, Stop> {
    let name = path.display();
    let value = resolve::mapping(path, "band")?;
    check::against(&value, || schema_for!(PredictionBand).to_value())
        .map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    let band: PredictionBand =
        serde_json::from_value(value).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    let wrong = |row: &&plimsoll_plan::spec::BandRow| {
        !(row.bias_log.is_finite() && row.spread_log.is_finite() && row.spread_log >= 0.0)
    };
    match band.rows.iter().find(wrong) {
        Some(row) => Err(Stop::usage(format!(
            "{name}: {}: bias_log and spread_log are finite, spread_log is not negative",
            row.metric
        ))),
        None => Ok(band),
    }
}

/// Returns the GPUs per replica; `None` if the engine model does not contain them.
fn gpus_of(world: &WorldSpec) -> Option<u32> {
    let ModeSpec::Batching(batching) = &world.engine.mode else { return None };
    let StepSpec::Roofline(roofline) = &batching.step else { return None };
    Some(roofline.tensor_parallel)
}
