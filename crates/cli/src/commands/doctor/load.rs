//! Checks this machine while an endpoint serves a load.
//!
//! An engine on this machine takes no core while it waits, and every core while it works. It can starve a
//! load generator that was punctual a minute before. Therefore timer lateness and run-queue time are measured
//! while the endpoint responds.

use std::sync::Arc;

use plimsoll_client::doctor::{self, CheckSeverity, DoctorFinding};
use plimsoll_client::{Client, ClientConfig, Clock, Control, LevelPlan, LevelTraffic, MemorySink, Sink};
use plimsoll_model::{Load, Span};
use plimsoll_report::figure;
use plimsoll_workload::{Prompts, Scenario, Schedule, parse_span};
use serde_json::json;

use super::triton::{self, TritonModels};
use crate::exit::Stop;
use crate::flags::{DoctorArgs, TargetArgs};
use crate::measure::{look, random};
use crate::resolve::Draft;
use crate::screen::Screen;

/// Interval of the pacer's wake-ups, equal to that of the check without load.
const EVERY: Span = Span::from_millis(2);

/// Sends the load and returns its effect on this machine.
pub fn under_load(args: &DoctorArgs, url: &str) -> Result<Vec<DoctorFinding>, Stop> {
    let window = parse_span(&args.window).map_err(|e| Stop::usage(format!("--for {e}")))?;
    let limits = triton::limits(args)?;
    let mut scenario = scenario(args, url)?;
    look(&mut scenario, None)?.say(&mut Screen::new(false));
    let models = TritonModels::read(&scenario.target);
    let plan = plan(&scenario, args.concurrency, window)?;
    let config = ClientConfig {
        target: scenario.target.clone(),
        classes: scenario.classes.clone(),
        key: None,
        workers: None,
        run_id: format!("{:016x}", random()),
        clock: Clock::start(),
        keep_text: false,
    };
    let client = Client::start(config).map_err(|e| Stop::usage(e.to_string()))?;
    let memory = Arc::new(MemorySink::default());
    let sink: Arc<dyn Sink> = memory.clone();
    let fires = u32::try_from(window.0 / EVERY.0).unwrap_or(u32::MAX).max(1);
    let pacer = std::thread::spawn(move || doctor::pacer_lateness(fires, EVERY));
    let level =
        client.run_level(&plan, &sink, &Control::default()).map_err(|e| Stop::invalid(e.to_string()))?;
    let lateness = pacer.join();
    let rows = memory.take_attempts();
    let finished = rows.iter().filter(|row| row.outcome.is_finished()).count();
    if finished == 0 {
        let why = rows.iter().find_map(|row| row.answer.error.clone()).unwrap_or_else(|| "no answer".into());
        return Err(Stop::unreachable(format!("{url} answers no request of the load: {why}")));
    }
    let mut findings = Vec::new();
    if let Ok(Ok(lateness)) = lateness {
        findings.push(doctor::punctual("pacer under load", &lateness));
    }
    findings.extend(level.generator.run_queue_share_max.map(|share| waited(share, finished)));
    findings.extend(models.findings(&scenario.target, args, (&limits, finished as u64)));
    Ok(findings)
}

fn scenario(args: &DoctorArgs, url: &str) -> Result<Scenario, Stop> {
    let mut draft = Draft::new(None)?;
    draft.target(&TargetArgs {
        url: url.to_owned(),
        model: args.model.clone(),
        protocol: args.protocol.clone(),
        key_env: args.key_env.clone(),
        ..TargetArgs::default()
    })?;
    draft.set("load", json!({"mode": "closed", "concurrency": args.concurrency, "window": args.window}));
    if !draft.carries_tensors() {
        draft.set("sizes", json!({"prompt": "64", "output": "64"}));
    }
    draft.finish(random())
}

fn plan(scenario: &Scenario, concurrency: u32, window: Span) -> Result<LevelPlan, Stop> {
    let wrong = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
    let sequence = Schedule::sequence(scenario, 0).map_err(wrong)?;
    let requests = LevelTraffic::Closed { sequence, concurrency };
    let prompts = Arc::new(Prompts::new(scenario, 0).map_err(wrong)?);
    let plan = LevelPlan::new(scenario, Load::Closed { concurrency }, requests, window, prompts);
    Ok(LevelPlan { purpose: "doctor".into(), ..plan })
}

/// Returns the finding on run-queue time of the load's threads. The limit is that of a run.
fn waited(share: f64, finished: usize) -> DoctorFinding {
    let good = share <= plimsoll_measure::validity::RUN_QUEUE_SUSPECT;
    let answered = figure::counted(finished as u64, "request");
    DoctorFinding {
        check: "run queue under load",
        severity: if good { CheckSeverity::Good } else { CheckSeverity::Limited },
        found: format!("the load's worker waited for a CPU {} of the time ({answered} answered)", figure::percent(share)),
        fix: match good {
            true => String::new(),
            false => "put plimsoll ahead of the engine (`chrt -f 5 plimsoll …` as root, else `nice -n -10`), or run it on another machine"
                .into(),
        },
    }
}
