//! `plimsoll rerun` replays the schedule of a run, arrival by arrival, against another target.
//!
//! The levels are repeated with their numbers, so that arrivals, sizes and prompts are byte-identical and
//! requests can be paired. A sweep is repeated with its loads and not with its search. A search on another
//! target would use other loads, and no two levels would be comparable. Client settings (timeouts, retries,
//! connections) stay. Secrets of the first target are not sent to another host.

use std::path::Path;

use crate::result;
use plimsoll_client::StopLimits;
use plimsoll_measure::findings::Findings;
use plimsoll_model::{Carries, Level, Load, Manifest, RerunOrigin, RunState, Span};
use plimsoll_report::figure;
use plimsoll_sim::ModeSpec;
use plimsoll_workload::Scenario;
use serde_json::Value;

use super::report;
use crate::again::RecordedScenario;
use crate::baseline;
use crate::exit::{Exit, Stop};
use crate::flags::{ClientArgs, RerunArgs, TargetArgs, WorldArgs};
use crate::measure::{FinishedMeasurement, MeasurementSession, MeasurementStart, Simulate};
use crate::resolve::{self, Draft};
use crate::{out, rows, simulation, traffic};

/// Repeats a run and prints the result.
pub fn run(args: &RerunArgs) -> Result<Exit, Stop> {
    let baseline::ResolvedRun { dir, baseline } = baseline::resolve(&args.run)?;
    let mut manifest = plimsoll_store::read_manifest(&dir).map_err(|e| Stop::usage(e.to_string()))?;
    let folder = dir.display();
    if traffic::is_traffic(&manifest) {
        manifest = came(&dir).map_err(|why| Stop::usage(format!("{folder}: {why}")))?;
    }
    let whole = repeatable(&manifest).and_then(|()| RecordedScenario::of(&manifest));
    let recorded = whole.map_err(|why| Stop::usage(format!("{folder}: {why}")))?;
    for level in &manifest.levels {
        drawn_again(&recorded, level).map_err(|why| Stop::usage(format!("{folder}: {why}")))?;
    }
    recorded.same_prompts(&dir, &manifest).map_err(|why| Stop::usage(format!("{folder}: {why}")))?;
    let (scenario, world) = target(args, &manifest, &recorded)?;
    let name = baseline.map(|baseline| format!(" (baseline {})", baseline.name)).unwrap_or_default();
    let said = announcement(&manifest, &name);
    let RerunResult { closed, findings, stopped } =
        measure(args, &manifest, &recorded, (scenario, world), &said)?;
    result::close(args.output.format, &closed, &findings, None);
    Ok(closed.exit(&findings, stopped))
}

/// Returns the traffic of a gateway record as a schedule. Recorded requests are sent again even if their end
/// is missing.
fn came(dir: &Path) -> Result<Manifest, String> {
    let mut run = rows::whole(dir).map_err(|stop| stop.line)?;
    if run.manifest.progress == RunState::Running {
        return Err("still being written: stop the gateway, or name an earlier run".into());
    }
    traffic::as_trace(dir, &mut run)?;
    run.manifest.progress = RunState::Complete;
    Ok(run.manifest)
}

/// Fails if the run is incomplete or has no levels.
fn repeatable(manifest: &Manifest) -> Result<(), String> {
    let again = &manifest.reproduce;
    match &manifest.progress {
        RunState::Running => Err("still running, or cut off: plimsoll show reports which".into()),
        RunState::Partial { why } => Err(format!(
            "is partial ({why}), so a repetition would have another length; measure again: {again}"
        )),
        RunState::Complete if manifest.levels.is_empty() => Err("has no levels to repeat".into()),
        RunState::Complete => Ok(()),
    }
}

/// Fails if the manifest no longer reproduces the schedule that was sent.
fn drawn_again(recorded: &RecordedScenario, level: &Level) -> Result<(), String> {
    if !matches!(level.load, Load::Open { .. }) || recorded.schedule(level).is_some() {
        return Ok(());
    }
    Err(format!(
        "level {}: the schedule differs from the recorded one (hash {}): a trace or prompt file of run.json has changed, \
         or another version of plimsoll drew it",
        level.id, level.schedule_hash
    ))
}

/// Returns the scenario for the new target or the new simulated world.
fn target(
    args: &RerunArgs,
    manifest: &Manifest,
    recorded: &RecordedScenario,
) -> Result<(Scenario, Option<Simulate>), Stop> {
    let mut draft = Draft::of(serde_json::to_value(&recorded.scenario).unwrap_or_default());
    let simulated = is_set(&args.world) || (args.target.is_empty() && recorded.world.is_some());
    let Some((url, further)) = args.target.split_first().filter(|_| !simulated) else {
        return match (simulated, !args.target.is_empty()) {
            (true, true) => {
                Err(Stop::usage("--target: a live endpoint has no flags of World; drop one of the two"))
            }
            (true, false) => in_world(args, recorded, draft),
            (false, _) => Err(Stop::usage(format!(
                "--target URL: missing; {} was measured at {}",
                args.run, manifest.target.url
            ))),
        };
    };
    let known: Vec<&str> = recorded.scenario.target.urls().map(|url| host(url)).collect();
    if args.target.iter().any(|url| !known.contains(&host(url))) {
        forget_secrets(&mut draft);
        // The metrics endpoints belong to the first server.
        draft.set("scrape.pages", Value::Array(Vec::new()));
    }
    draft.scrape(&args.scrape)?;
    draft.set("target.model", Value::Null);
    draft.target(&TargetArgs {
        url: url.clone(),
        model: args.model.clone(),
        key_env: args.key_env.clone(),
        key_file: args.key_file.clone(),
        headers: args.headers.clone(),
        insecure: args.insecure,
        ca_file: args.ca_file.clone(),
        ..TargetArgs::default()
    })?;
    draft.set("target.further_urls", further.into());
    Ok((draft.finish(manifest.nonce)?, None))
}

fn is_set(world: &WorldArgs) -> bool {
    world.profile.is_some() || world.replicas.is_some() || world.route.is_some() || !world.faults.is_empty()
}

/// Returns the scenario for a simulated world.
fn in_world(
    args: &RerunArgs,
    recorded: &RecordedScenario,
    mut draft: Draft,
) -> Result<(Scenario, Option<Simulate>), Stop> {
    let world = simulation::changed(recorded.world.clone(), &args.world)?;
    let is_kserve = recorded.scenario.target.protocol.carries() == Carries::Tensors;
    if matches!(world.engine.mode, ModeSpec::Dynamic(_)) != is_kserve {
        return Err(Stop::usage(format!(
            "--profile {}: does not support the protocol of this run ({}); choose a profile of the same kind",
            world.engine.name,
            recorded.scenario.target.protocol.name()
        )));
    }
    draft.simulated(&world.engine.name);
    draft.set("target.model", world.engine.name.clone().into());
    let scenario = draft.finish(0)?;
    Ok((scenario, Some(Simulate { world, events: None })))
}

/// Removes secrets that were configured for the first host.
fn forget_secrets(draft: &mut Draft) {
    let mut left_out = Vec::new();
    for path in
        ["target.key_env", "target.key_file", "target.token", "target.client_cert", "target.client_key"]
    {
        if draft.has(path) {
            left_out.push(path.trim_start_matches("target.").replace('_', "-"));
            draft.set(path, Value::Null);
        }
    }
    let headers = draft.get("target.headers").and_then(Value::as_object).cloned().unwrap_or_default();
    let (secret, plain): (Vec<_>, Vec<_>) =
        headers.into_iter().partition(|(_, value)| value.as_str().is_some_and(|text| text.contains('$')));
    left_out.extend(secret.into_iter().map(|(name, _)| format!("header {name}")));
    draft.set("target.headers", Value::Object(plain.into_iter().collect()));
    draft.set("target.tls_verify", true.into());
    draft.set("target.ca_file", Value::Null);
    if !left_out.is_empty() {
        out::note(&format!(
            "another host: {} of the first target is not sent to it; name its own with --key-env, --key-file or --header",
            left_out.join(", ")
        ));
    }
}

/// Returns scheme, host and port of a URL.
fn host(url: &str) -> &str {
    let after = url.find("://").map_or(0, |at| at + 3);
    let end = url[after..].find(['/', '?']).map_or(url.len(), |at| after + at);
    &url[..end]
}

struct RerunResult {
    closed: FinishedMeasurement,
    findings: Findings,
    stopped: bool,
}

/// Sends every level again, in order.
fn measure(
    args: &RerunArgs,
    manifest: &Manifest,
    recorded: &RecordedScenario,
    (scenario, world): (Scenario, Option<Simulate>),
    announcement: &str,
) -> Result<RerunResult, Stop> {
    let search = recorded.sweep.clone();
    if let Some(simulate) = &world {
        let whole: i64 = manifest.levels.iter().map(|level| level.window().0).sum();
        simulation::fits(&simulate.world, &scenario, Span(whole))?;
    }
    let max_rate_per_s = search.as_ref().and_then(|sweep| sweep.max_rate);
    let limits = StopLimits { max_rate_per_s, max_errors: args.max_errors, max_requests: None };
    let client = ClientArgs { workers: args.workers, ..ClientArgs::default() };
    let model = manifest.target.facts.get("model").cloned().flatten();
    let mut measure = MeasurementSession::begin(MeasurementStart {
        sweep: (!recorded.traffic.is_empty())
            .then(|| (search, recorded.traffic.clone().into_iter().collect())),
        reproduce: Some(command(args)),
        world,
        repeats: Some(RerunOrigin {
            id: manifest.id.clone(),
            url: manifest.target.url.clone(),
            model,
            folder: args.run.clone(),
        }),
        ..MeasurementStart::new("rerun", scenario, &client, limits, &args.output)
    })?;
    measure.screen.say(announcement);
    for level in &manifest.levels {
        if measure.stopped() {
            break;
        }
        let step = recorded.step(level).map_err(Stop::usage)?;
        let title = format!("level {} of {} again", level.id + 1, manifest.levels.len());
        let measured = measure.level(&step, &title)?;
        let sent = measured.level.schedule_hash.clone();
        measure.keep(measured);
        if sent != level.schedule_hash && !sent.is_empty() {
            return Err(Stop::invalid(format!(
                "level {}: sent {sent} where the first run sent {}: not the same schedule",
                level.id, level.schedule_hash
            )));
        }
    }
    let stopped = measure.interrupted();
    let findings = measure.analyse();
    let closed = measure.finish(&findings);
    if recorded.sweep.is_some() {
        let page = report::write(&closed.dir, None, &closed.manifest, &findings);
        page.map(drop).unwrap_or_else(|e| out::note(&format!("plimsoll: no report: {e}")));
    }
    Ok(RerunResult { closed, findings, stopped })
}

/// Describes the amount and the duration of the load.
fn announcement(manifest: &Manifest, name: &str) -> String {
    let windows: f64 = manifest.levels.iter().map(|level| level.window().as_secs_f64()).sum();
    let requests: u64 = manifest.levels.iter().map(|level| level.arrivals).sum();
    let closed = manifest.levels.iter().filter(|level| !matches!(level.load, Load::Open { .. })).count();
    let loads = if manifest.levels.len() > 1 { "; the loads come from that run; no search" } else { "" };
    let loops = match closed {
        0 => "",
        _ => "; closed loops send the same requests in the same order, as many as this target takes",
    };
    format!(
        "the schedule of run {}{name} again: {} in {}, about {} requests{loads}{loops}",
        manifest.id,
        match manifest.levels.len() {
            1 => "1 level".into(),
            n => format!("{n} levels"),
        },
        figure::duration_ns(windows * 1e9),
        figure::count(requests)
    )
}

/// Returns the command that repeats this rerun.
fn command(args: &RerunArgs) -> String {
    let mut words = vec!["plimsoll rerun".to_owned(), resolve::quoted(&args.run)];
    let mut flag = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("--{name} {}", resolve::quoted(&value))));
    };
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    args.target.iter().for_each(|url| flag("target", Some(url.clone())));
    flag("model", args.model.clone());
    flag("key-env", args.key_env.clone());
    flag("key-file", path(&args.key_file));
    args.headers.iter().for_each(|header| flag("header", Some(header.clone())));
    flag("ca-file", path(&args.ca_file));
    flag("profile", args.world.profile.clone());
    flag("replicas", args.world.replicas.map(|n| n.to_string()));
    flag("route", args.world.route.clone());
    args.world.faults.iter().for_each(|fault| flag("fault", Some(fault.clone())));
    args.scrape.scrape.iter().for_each(|page| flag("scrape", Some(page.clone())));
    flag("scrape-every", args.scrape.scrape_every.clone());
    if args.insecure {
        words.push("--insecure".into());
    }
    words.join(" ")
}
