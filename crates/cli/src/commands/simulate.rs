//! `plimsoll simulate` runs a load on a simulated world in virtual time. The run is written and judged as any
//! other run.

use crate::result;
use plimsoll_measure::findings::{Findings, LoadKeptUp};
use plimsoll_model::{EndedBy, Manifest, Protocol};
use plimsoll_report::figure;
use plimsoll_sim::ModeSpec;
use plimsoll_workload::{LoadSpec, parse_span};

use super::{run, sweep};
use crate::exit::{Exit, Stop};
use crate::flags::SimulateArgs;
use crate::measure::{MeasurementSession, MeasurementStart, Simulate, stop_limits};
use crate::resolve;
use crate::{out, simulation};

/// Simulates a load and prints the result.
pub fn run(args: &SimulateArgs) -> Result<Exit, Stop> {
    refuse_what_has_no_meaning(args)?;
    let asked = simulation::read(args.simulation.as_deref(), &args.world)?;
    let mut draft = match &args.workload.spec {
        Some(path) => resolve::Draft::new(Some(path))?,
        None => asked.draft,
    };
    draft.simulated(&asked.world.engine.name);
    if matches!(asked.world.engine.mode, ModeSpec::Dynamic(_)) && !draft.has("target.protocol") {
        // The simulated server processes batches of rows: sizes are items, and no tokens are generated.
        draft.set("target.protocol", Protocol::Kserve.name().into());
    }
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    draft.load(&args.load, args.workload.trace.is_some())?;
    let window_is_said = draft.has("load.window");
    // The nonce salts prompts. It is not drawn at random here, because one command must always give identical
    // bytes.
    let mut scenario = draft.finish(0)?;
    scenario.target.model.get_or_insert_with(|| asked.world.engine.name.clone());
    let simulate = Simulate { world: asked.world, events: args.events };
    let limits = stop_limits(&args.ceilings)?;
    if args.sweep {
        let time = parse_span(&args.search.time).map_err(|e| Stop::usage(format!("--time: {e}")))?;
        simulation::fits(&simulate.world, &scenario, time)?;
        scenario.load = LoadSpec::default();
        let mut plan = sweep::plan(scenario, &args.search, &args.limits.slo, limits, &args.ceilings.price)?;
        plan.more.insert(0, ("sweep", String::new()));
        plan.more.extend(run::ceiling_flags(&args.client, &args.ceilings));
        plan.reproduce = Some(resolve::repeat(&asked.head, &plan.scenario, &plan.more));
        plan.world = Some(simulate);
        let done = sweep::measure("simulate", plan, &args.client, &args.output)?;
        return sweep::finish(done, args.output.format);
    }
    let rate = run::rate(&scenario)?;
    let window = run::window(&mut scenario, window_is_said)?;
    let end = simulation::end(&scenario.load, window, scenario.client.drain);
    simulation::fits(&simulate.world, &scenario, end)?;
    let cost = resolve::cost(&args.ceilings.price, &scenario)?;
    let budget = resolve::asked_budget(&scenario, &args.limits.slo)?;
    let mut more = run::ceiling_flags(&args.client, &args.ceilings);
    more.extend(args.limits.slo.iter().map(|slo| ("slo", slo.trim().to_owned())));
    let reproduce = resolve::repeat(&asked.head, &scenario, &more);
    let mut measure = MeasurementSession::begin(MeasurementStart {
        reproduce: Some(reproduce),
        more,
        world: Some(simulate),
        budget,
        ..MeasurementStart::new("simulate", scenario, &args.client, limits, &args.output)
    })?;
    run::run_load(&mut measure, rate, window, args.ceilings.max_requests, args.client.max_in_flight)?;
    let stopped = measure.interrupted();
    let mut findings = measure.analyse();
    findings.cost = cost.map(|bill| plimsoll_judge::cost::cost(&findings, &bill));
    let closed = measure.finish(&findings);
    say_unsteady(&closed.manifest, &findings);
    result::close(args.output.format, &closed, &findings, None);
    Ok(closed.exit(&findings, stopped))
}

/// Rejects flags that apply only to a client with sockets.
fn refuse_what_has_no_meaning(args: &SimulateArgs) -> Result<(), Stop> {
    let refused = [
        ("--workers", args.client.workers.is_some()),
        ("--keep-text", args.client.keep_text),
        ("--before-level", args.client.before_level.is_some()),
        ("--wait-ready", args.client.wait_ready.is_some()),
        ("--max-rate", args.ceilings.max_rate.is_some() && !args.sweep),
    ];
    match refused.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Stop::usage(format!("{flag}: has no meaning in a simulation; leave it out"))),
        None => Ok(()),
    }
}

/// Prints a warning for unsustainable load. Such a load has no steady state, and its figures depend on the
/// simulated duration.
fn say_unsteady(manifest: &Manifest, findings: &Findings) {
    for (level, found) in manifest.levels.iter().zip(&findings.levels) {
        let piles_up = found.summary.stability.verdict == LoadKeptUp::Unstable;
        let most = figure::count(level.generator.in_flight_max);
        let why = match level.ended_by {
            EndedBy::Ceiling => format!("given up with {most} in flight"),
            EndedBy::DrainLimit if piles_up => {
                format!("{most} in flight, not answered by the end of the drain")
            }
            _ if piles_up => found.summary.stability.why.clone(),
            _ => continue,
        };
        let stops_short = matches!(level.ended_by, EndedBy::Ceiling | EndedBy::DrainLimit);
        let grows = stops_short || found.summary.stability.grows();
        let then = if grows { ": latencies grow with the window" } else { "" };
        out::note(&format!("plimsoll: no steady state at this load ({why}){then}"));
    }
}
