//! `plimsoll sweep`: the planner in `analysis` asks for levels, this runs them on a live endpoint.

use std::path::{Path, PathBuf};

use plimsoll_analysis::findings::{BudgetSpec, Findings};
use plimsoll_analysis::sweep::{CAPACITIES, Experiment, Next, Preview, PreviewAt, Price as PlanPrice};
use plimsoll_analysis::{Sweep, SweepSpec};
use plimsoll_model::{Load, Manifest};
use plimsoll_report::{figure, table::Table, text};
use plimsoll_workload::{ArrivalSpec, Scenario, parse_span};
use serde_json::json;

use super::{report, show};
use crate::exit::{Exit, Stop};
use crate::flags::{CeilingArgs, ClientArgs, Format, OutputArgs, SearchArgs, SweepArgs};
use crate::measure::{Begin, Measure, Step, max_rate, random, verdict};
use crate::resolve::{self, Cost, Draft, Price};
use crate::{out, screen::Screen};

/// A sweep that is ready to be measured.
pub struct Plan {
    /// What is measured and how.
    pub scenario: Scenario,
    /// What is searched.
    pub spec: SweepSpec,
    /// The arrival process of each kind of traffic.
    pub traffic: Vec<(String, ArrivalSpec)>,
    /// Flags of the search, for the command to repeat it.
    pub more: Vec<(&'static str, String)>,
    /// The price, if given.
    pub cost: Option<Cost>,
    /// The command that repeats it; `None` = rendered from all of the above.
    pub reproduce: Option<String>,
}

/// Plans, says what it will do, measures and prints.
pub fn run(args: &SweepArgs) -> Result<Exit, Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    draft.target(&args.target)?;
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    let scenario = draft.finish(random())?;
    let plan = plan(scenario, &args.search, &args.ceilings)?;
    if args.dry_run {
        let preview = preview(&plan);
        match args.output.format {
            Format::Json => out::json(&preview),
            Format::Text => out::line(&spell(&plan, &preview)),
        }
        return Ok(Exit::Done);
    }
    let done = measure("sweep", plan, &args.client, &args.ceilings, &args.output)?;
    finish(done, args.output.format)
}

/// What a sweep left behind.
pub struct Done {
    manifest: Manifest,
    findings: Findings,
    folder: PathBuf,
    page: PathBuf,
    stopped: bool,
}

/// Prints the result and where everything is.
pub fn finish(done: Done, format: Format) -> Result<Exit, Stop> {
    show::print(format, &done.manifest, &done.findings, Some(&done.folder));
    if format == Format::Text {
        out::line(&format!("\nRun     {}\nReport  {}", done.folder.display(), done.page.display()));
        out::line(&format!("Repeat  {}", done.manifest.reproduce));
    }
    Ok(if done.stopped { Exit::Interrupted } else { verdict(&done.findings) })
}

/// The search as flags ask for it.
pub fn plan(scenario: Scenario, search: &SearchArgs, ceilings: &CeilingArgs) -> Result<Plan, Stop> {
    let span = |flag: &str, text: &str| parse_span(text).map_err(|e| Stop::usage(format!("--{flag}: {e}")));
    let mut traffic = Vec::new();
    for text in &search.traffic {
        let (name, process) = resolve::traffic(text)?;
        let arrivals: ArrivalSpec =
            serde_json::from_value(process).map_err(|e| Stop::usage(format!("--traffic {text}: {e}")))?;
        traffic.push((name, arrivals));
    }
    let mut more = vec![("time", search.time.clone()), ("traffic", search.traffic.join(","))];
    more.extend(search.hold.iter().map(|hold| ("hold", hold.clone())));
    more.extend(search.slo.iter().map(|slo| ("slo", slo.clone())));
    more.push(("knee-factor", search.knee_factor.to_string()));
    more.extend(ceilings.max_rate.iter().map(|rate| ("max-rate", rate.clone())));
    more.extend(ceilings.max_requests.iter().map(|n| ("max-requests", n.to_string())));
    more.extend(ceilings.max_errors.iter().map(|n| ("max-errors", n.to_string())));
    let spec = SweepSpec {
        traffic: traffic.iter().map(|(name, _)| name.clone()).collect(),
        time: span("time", &search.time)?,
        hold: search.hold.as_deref().map(|text| span("hold", text)).transpose()?.unwrap_or_default(),
        knee_factor: search.knee_factor,
        budget: Some(resolve::budget(&search.slo)?.unwrap_or_else(BudgetSpec::default)),
        max_rate: max_rate(ceilings)?,
        max_requests: ceilings.max_requests,
        max_errors: ceilings.max_errors,
        seed: scenario.seed,
        ..SweepSpec::default()
    };
    spec.check().map_err(|e| Stop::usage(e.to_string()))?;
    Ok(Plan { scenario, spec, traffic, more, cost: resolve::cost(ceilings)?, reproduce: None })
}

/// Runs the planner's experiments until it is done, then writes run and report.
pub fn measure(
    kind: &'static str,
    plan: Plan,
    client: &ClientArgs,
    ceilings: &CeilingArgs,
    output: &OutputArgs,
) -> Result<Done, Stop> {
    let mut sweep = Sweep::new(plan.spec.clone()).map_err(|e| Stop::usage(e.to_string()))?;
    let spelt = spell(&plan, &preview(&plan));
    let Plan { scenario, spec, traffic, more, reproduce, .. } = plan;
    Screen::new(output.quiet).say(&spelt);
    let mut measure = Measure::begin(Begin {
        kind,
        scenario,
        sweep: Some(spec),
        client,
        ceilings,
        output,
        reproduce,
        more,
    })?;
    while let Next::Run(experiment) = sweep.next() {
        if measure.stopped() {
            sweep.stop("stopped by the user");
            break;
        }
        let arrivals = traffic.iter().find(|(name, _)| *name == experiment.traffic).map(|(_, a)| a.clone());
        let title = title(&sweep, &experiment);
        let step = Step {
            traffic: experiment.traffic,
            arrivals,
            purpose: experiment.purpose,
            load: experiment.load,
            window: experiment.window,
            max_requests: experiment.max_requests,
        };
        let (level, attempts, samples) = measure.level(&step, &title)?;
        let finding = sweep.observe(&level, &attempts, &samples);
        measure.screen.say(&text::level_line(&finding));
    }
    let stopped = measure.stopped();
    let findings = sweep.findings();
    let (manifest, folder) = measure.finish(&findings)?;
    let page = report::write(&folder, None, &manifest, &findings)?;
    Ok(Done { manifest, findings, folder, page, stopped })
}

/// What the live view says of a level: how far the sweep is, and what it does now.
fn title(sweep: &Sweep, experiment: &Experiment) -> String {
    let progress = sweep.progress();
    let load = match experiment.load {
        Load::Open { rate_per_s } => figure::per_second(rate_per_s),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => format!("{concurrency} in flight"),
    };
    let left = (progress.time_s - progress.spent_s).max(0.0);
    format!("{}, {load} · at most {} left", progress.phase, figure::duration_ns(left * 1e9))
}

fn preview(plan: &Plan) -> Preview {
    let mean = |size: &plimsoll_workload::Size| size.mean(&plan.scenario.material).unwrap_or(0.0);
    let (per_million_input, per_million_output) = match plan.cost.as_ref().map(|cost| cost.price) {
        Some(Price::PerMtok { input, output }) => (Some(input), Some(output)),
        _ => (None, None),
    };
    let price = PlanPrice {
        input_tokens: mean(&plan.scenario.sizes.prompt),
        output_tokens: mean(&plan.scenario.sizes.output),
        per_million_input,
        per_million_output,
    };
    Preview::new(&plan.spec, &price, &CAPACITIES)
}

/// What a sweep will do, before it does it. How much it sends depends on what the endpoint takes, so it is a table.
fn spell(plan: &Plan, preview: &Preview) -> String {
    let mut lines = vec![format!(
        "sweep of {}: at most {}{}, {} traffic",
        plan.scenario.target.url,
        figure::duration_ns(preview.time_s * 1e9),
        if preview.hold_s > 0.0 {
            format!(" ({} of it holding)", figure::duration_ns(preview.hold_s * 1e9))
        } else {
            String::new()
        },
        plan.spec.traffic.join(" and "),
    )];
    if let Some(Cost { price: Price::PerHour(_), currency }) = &plan.cost {
        let most = plan.cost.as_ref().map_or(0.0, |cost| cost.of(0.0, 0.0, preview.time_s));
        lines.push(format!("it may cost {} {currency}", figure::number(most)));
    }
    lines.push("what it sends at most depends on what the endpoint can take:".into());
    let currency = plan.cost.as_ref().map(|cost| cost.currency.clone()).unwrap_or_default();
    let cost_header = format!("cost, {currency}");
    let mut table = Table::new(&[
        "it takes",
        "requests",
        "prompt tokens",
        "output tokens",
        &cost_header,
        "<a level supports up to",
    ]);
    for at in &preview.at {
        table.row(row(at));
    }
    lines.push(table.render(2).trim_end().to_string());
    let mut stops = Vec::new();
    if let Some(rate) = preview.max_rate {
        stops.push(figure::per_second(rate));
    }
    if let Some(requests) = preview.max_requests {
        stops.push(format!("{} requests", figure::count(requests)));
    }
    if let Some(errors) = plan.spec.max_errors {
        stops.push(format!("{} failed requests", figure::count(errors)));
    }
    if stops.is_empty() {
        lines.push(
            "no ceiling: it goes to the breaking point (--max-rate, --max-requests, --max-errors set one)"
                .into(),
        );
    } else {
        lines.push(format!("it stops at {}", stops.join(", ")));
    }
    lines.join("\n")
}

fn row(at: &PreviewAt) -> Vec<String> {
    let highest = at
        .supports
        .last()
        .map_or_else(|| "no percentile".to_string(), |p| format!("p{}", text::percentile(*p)));
    vec![
        figure::per_second(at.capacity_per_s),
        figure::count(at.requests),
        figure::number(at.input_tokens as f64),
        figure::number(at.output_tokens as f64),
        at.cost.map(figure::number).unwrap_or_default(),
        highest,
    ]
}

/// The scenario of a sweep that is fixed by the program itself.
pub fn fixed_scenario(url: &str, seed: u64, prompt: u32, output: u32) -> Result<Scenario, Stop> {
    let mut draft = Draft::new(None::<&Path>)?;
    for (path, value) in [
        ("target.url", json!(url)),
        ("sizes.prompt", json!(prompt.to_string())),
        ("sizes.output", json!(output.to_string())),
        ("seed", json!(seed)),
    ] {
        draft.set(path, value);
    }
    draft.finish(random())
}
