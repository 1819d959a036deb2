//! `plimsoll sweep` runs the levels that the planner in `measure` requests on a live endpoint.

use crate::result;
use std::path::{Path, PathBuf};

use plimsoll_client::StopLimits;
use plimsoll_judge::cost::{Bill, EndpointPrice};
use plimsoll_measure::findings::Findings;
use plimsoll_measure::sweep::{
    CAPACITIES, Preview, PreviewAt, RequestPrice, SweepLevel, SweepNext, least_time_s,
};
use plimsoll_measure::{Sweep, SweepSpec};
use plimsoll_model::{Load, SizeUnit};
use plimsoll_report::{figure, table::TextTable, text};
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, parse_span};
use serde_json::json;

use super::follow::{self, Follower, WHOLE};
use super::report;
use super::run::{ceiling_flags, mean_lengths};
use crate::exit::{Exit, Stop};
use crate::flags::{ClientArgs, OutputArgs, OutputFormat, PriceArgs, SearchArgs, SweepArgs};
use crate::measure::{
    FinishedMeasurement, LevelRecords, LevelStep, MeasuredLevel, MeasurementSession, MeasurementStart,
    Simulate, random, stop_limits,
};
use crate::resolve::{self, Draft};
use crate::shard::{ShardRequest, Upload, UploadTarget, of_shard};
use crate::{out, price, screen::Screen};

pub struct PreparedSweep {
    pub scenario: Scenario,
    pub spec: SweepSpec,
    /// Arrival process of each kind of traffic.
    pub traffic: Vec<(String, ArrivalSpec)>,
    /// Flags of the search for the repeat command.
    pub more: Vec<(&'static str, String)>,
    /// Price of the endpoint; `None` if unknown.
    pub cost: Option<Bill>,
    /// GPUs of the endpoint; `None` if the price or the target states them, or if they are unknown.
    pub gpus: Option<u32>,
    /// Command that repeats the sweep; `None` to derive it from the settings.
    pub reproduce: Option<String>,
    /// Simulated target; `None` for a live endpoint.
    pub world: Option<Simulate>,
    /// Shard of this machine; `None` without shards.
    pub shard: Option<ShardRequest>,
    /// Upload target of the run folder; `None` without upload.
    pub put: Option<UploadTarget>,
}

/// Plans a sweep, announces it, measures and prints the result.
pub fn run(args: &SweepArgs) -> Result<Exit, Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    draft.target(&args.target)?;
    draft.further(&args.further);
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    let shard = ShardRequest::of(&args.shard, draft.has("nonce"), "sweep")?;
    let mut scenario = draft.finish(random())?;
    own_arrivals_only(&mut scenario, args.output.quiet)?;
    let limits = stop_limits(&args.ceilings)?;
    let rendezvous = args.shard.rendezvous.as_deref();
    let (shard, output, put) = match shard {
        Some(asked) if asked.shard.index > 0 && !args.dry_run => {
            let (kind, client, output) = ("sweep", &args.client, &args.output);
            return follow::run(Follower { kind, scenario, asked, rendezvous, client, limits, output });
        }
        Some(asked) if !args.dry_run => {
            let (output, put) = of_shard(&args.output, rendezvous, WHOLE.into())?;
            (Some(asked), output, put)
        }
        _ => (None, args.output.clone(), None),
    };
    let mut plan = PreparedSweep {
        shard,
        put,
        ..plan(scenario, &args.search, &args.limits.slo, limits, &args.ceilings.price)?
    };
    plan.more.extend(ceiling_flags(&args.client, &args.ceilings));
    if args.dry_run {
        let preview = preview(&plan);
        match args.output.format {
            OutputFormat::Json => out::json(&preview),
            OutputFormat::Text => out::line(&spell(&plan, &preview)),
        }
        return Ok(Exit::Done);
    }
    let done = measure("sweep", plan, &args.client, &output)?;
    finish(done, args.output.format)
}

/// Rejects a trace and reports other arrivals in the scenario, because a sweep makes its own arrivals.
pub fn own_arrivals_only(scenario: &mut Scenario, quiet: bool) -> Result<(), Stop> {
    if matches!(scenario.arrivals, ArrivalSpec::Trace { .. }) {
        return Err(Stop::usage(
            "a sweep varies the rate and makes its own arrivals: take a trace's lengths with --set sizes.pairs=FILE, \
             or replay it with plimsoll run --trace",
        ));
    }
    if scenario.arrivals != ArrivalSpec::default() {
        return Err(Stop::usage(
            "a sweep takes the shape of its arrivals from --traffic: write --traffic NAME=PROCESS, such as evening=gamma:3",
        ));
    }
    if scenario.load != LoadSpec::default() {
        Screen::new(quiet).say("the scenario's load is ignored: a sweep chooses its loads");
        scenario.load = LoadSpec::default();
    }
    Ok(())
}

pub struct SweepDone {
    closed: FinishedMeasurement,
    findings: Findings,
    page: Option<PathBuf>,
    stopped: bool,
    /// Address of the uploaded run; `None` without upload.
    uploaded: Option<Result<String, Stop>>,
}

/// Prints the result and the paths of its files.
pub fn finish(done: SweepDone, format: OutputFormat) -> Result<Exit, Stop> {
    let SweepDone { closed, findings, page, stopped, uploaded } = done;
    result::close(format, &closed, &findings, page.as_deref());
    if let Some(place) = uploaded.transpose()? {
        out::note(&format!("also put at {place}/{WHOLE}"));
    }
    Ok(closed.exit(&findings, stopped))
}

/// Returns the settings of a sweep from the flags.
pub fn plan(
    scenario: Scenario,
    search: &SearchArgs,
    slo: &[String],
    limits: StopLimits,
    price: &PriceArgs,
) -> Result<PreparedSweep, Stop> {
    let span = |flag: &str, text: &str| parse_span(text).map_err(|e| Stop::usage(format!("--{flag}: {e}")));
    let mut traffic = Vec::new();
    for text in &search.traffic {
        let (name, process) = resolve::traffic(text)?;
        let arrivals: ArrivalSpec =
            serde_json::from_value(process).map_err(|e| Stop::usage(format!("--traffic {text}: {e}")))?;
        traffic.push((name, arrivals));
    }
    let more = search_flags(search, slo);
    let cost = match price.price {
        Some(_) => resolve::cost(price, &scenario)?,
        None => price::optional(price, None)?,
    };
    let spec = SweepSpec {
        traffic: traffic.iter().map(|(name, _)| name.clone()).collect(),
        time: span("time", &search.time)?,
        hold: search.hold.as_deref().map(|text| span("hold", text)).transpose()?.unwrap_or_default(),
        knee_factor: search.knee_factor,
        budget: Some(resolve::budget_for(&scenario, slo)?),
        proves_budget: !slo.is_empty(),
        max_rate: limits.max_rate_per_s,
        max_requests: limits.max_requests,
        max_errors: limits.max_errors,
        seed: scenario.seed,
        ..SweepSpec::default()
    };
    spec.check().map_err(|e| Stop::usage(e.to_string()))?;
    Ok(PreparedSweep {
        scenario,
        spec,
        traffic,
        more,
        cost,
        gpus: price.gpus,
        reproduce: None,
        world: None,
        shard: None,
        put: None,
    })
}

/// Returns the flags of the search.
pub fn search_flags(search: &SearchArgs, slo: &[String]) -> Vec<(&'static str, String)> {
    let mut flags = vec![("time", search.time.clone()), ("traffic", search.traffic.join(","))];
    flags.extend(search.hold.iter().map(|hold| ("hold", hold.clone())));
    flags.extend(slo.iter().map(|slo| ("slo", slo.trim().to_owned())));
    flags.push(("knee-factor", search.knee_factor.to_string()));
    flags
}

/// Runs the planner's experiments until it is done, then writes run and report.
pub fn measure(
    kind: &'static str,
    plan: PreparedSweep,
    client: &ClientArgs,
    output: &OutputArgs,
) -> Result<SweepDone, Stop> {
    let mut sweep = Sweep::new(plan.spec.clone()).map_err(|e| Stop::usage(e.to_string()))?;
    let spelt = spell(&plan, &preview(&plan));
    let PreparedSweep { scenario, spec, traffic, more, cost, gpus, reproduce, world, shard, put } = plan;
    let SweepSpec { max_rate: max_rate_per_s, max_requests, max_errors, .. } = spec;
    let limits = StopLimits { max_rate_per_s, max_requests, max_errors };
    Screen::new(output.quiet).say(&spelt);
    let mut measure = MeasurementSession::begin(MeasurementStart {
        sweep: Some((Some(spec), traffic.clone())),
        reproduce,
        more,
        world,
        shard,
        ..MeasurementStart::new(kind, scenario, client, limits, output)
    })?;
    let upload = put.map(|put| put.start(&measure.folder())).transpose()?;
    while let SweepNext::Run(experiment) = sweep.next() {
        if measure.stopped() {
            sweep.stop(measure.stop_reason());
            break;
        }
        let title = title(&sweep, &experiment);
        measure.screen.after_s = Some(after_s(&sweep, &experiment));
        let step = LevelStep::of_sweep(experiment, &traffic);
        let MeasuredLevel { level, rows, samples } = measure.level(&step, &title)?;
        let finding = match rows {
            LevelRecords::Records(attempts) => sweep.observe(&level, &attempts, &samples),
            LevelRecords::Gathered(gathered) => sweep.observe_gathered(&level, *gathered, &samples),
        };
        measure.keep_server(samples);
        measure.screen.say(&text::level_line(&finding));
        if let Some(notice) = sweep.notice() {
            measure.screen.say(&notice);
        }
    }
    let stopped = measure.interrupted();
    let mut findings = sweep.findings();
    measure.tell(&mut findings);
    price::add(&mut findings, cost, gpus, &measure.target());
    let closed = measure.finish(&findings);
    let page = report::write(&closed.dir, None, &closed.manifest, &findings);
    let page = page.map_err(|e| out::note(&format!("plimsoll: no report: {e}"))).ok();
    Ok(SweepDone { closed, findings, page, stopped, uploaded: upload.map(Upload::finish) })
}

/// Returns the title of a level in the live view: progress of the sweep and current load.
pub fn title(sweep: &Sweep, experiment: &SweepLevel) -> String {
    let progress = sweep.progress();
    let load = match experiment.load {
        Load::Open { rate_per_s } => figure::per_second(rate_per_s),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => format!("{concurrency} in flight"),
    };
    let left = (progress.time_s - progress.spent_s).max(0.0);
    format!("{}, {load} · at most {} left", progress.phase, figure::duration_ns(left * 1e9))
}

/// Returns the longest time of a sweep after this level, s.
pub fn after_s(sweep: &Sweep, experiment: &SweepLevel) -> f64 {
    let progress = sweep.progress();
    (progress.time_s - progress.spent_s - experiment.window.as_secs_f64()).max(0.0)
}

fn preview(plan: &PreparedSweep) -> Preview {
    let (input_tokens, output_tokens) = mean_lengths(&plan.scenario);
    let (per_million_input, per_million_output) = match plan.cost.as_ref().map(|bill| bill.rate) {
        Some(EndpointPrice::PerMtok { input, output }) => (Some(input), Some(output)),
        _ => (None, None),
    };
    let unit = plan.scenario.target.protocol.counts();
    let price = RequestPrice { unit, input_tokens, output_tokens, per_million_input, per_million_output };
    Preview::new(&plan.spec, &price, &CAPACITIES)
}

/// Describes a sweep before its start. The table lists the amount of load by the capacity of the endpoint,
/// which is unknown beforehand.
fn spell(plan: &PreparedSweep, preview: &Preview) -> String {
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
    if let Some(bill) = plan.cost.as_ref().filter(|bill| matches!(bill.rate, EndpointPrice::PerHour(_))) {
        let most = bill.of(0.0, 0.0, preview.time_s);
        lines.push(format!("it may cost {} {}", figure::number(most), bill.currency));
    }
    lines.push("the load depends on the capacity of the endpoint; at most:".into());
    let currency = plan.cost.as_ref().map(|cost| cost.currency.clone()).unwrap_or_default();
    let cost_header = format!("cost, {currency}");
    let sizes = match plan.scenario.target.protocol.counts() {
        SizeUnit::Items => vec!["items"],
        SizeUnit::Tokens => vec!["prompt tokens", "output tokens"],
    };
    let header = [&["it takes", "requests"][..], &sizes, &[&cost_header, "<a level supports up to"]].concat();
    let mut table = TextTable::new(&header);
    for at in &preview.at {
        table.row(row(at));
    }
    lines.push(table.render(2).trim_end().to_string());
    lines.extend(takes(&plan.spec));
    let mut stops = Vec::new();
    if let Some(rate) = preview.max_rate {
        stops.push(figure::per_second(rate));
    }
    if let Some(requests) = preview.max_requests {
        stops.push(figure::counted(requests, "request"));
    }
    if let Some(errors) = plan.spec.max_errors {
        stops.push(figure::counted(errors, "failed request"));
    }
    if stops.is_empty() && plan.reproduce.is_some() {
        // The demo's engine needs no limit.
    } else if stops.is_empty() {
        lines.push(
            "no limit on the load: the sweep goes to the breaking point (--max-rate, --max-requests, --max-errors set one)"
                .into(),
        );
    } else {
        lines.push(format!("it stops at {}", stops.join(", ")));
    }
    lines.join("\n")
}

/// Returns a line with the load from which the time suffices to prove the budget.
fn takes(spec: &SweepSpec) -> Option<String> {
    let budget = spec.budget.as_ref().filter(|_| spec.proves_budget)?;
    let latency = budget.latency.iter().map(|ceiling| 1.0 - ceiling.percentile);
    let allowed = latency.chain(budget.error_rate).filter(|share| *share > 0.0).reduce(f64::min)?;
    let kinds = spec.traffic.len().max(1) as f64;
    let time_s = (spec.time.as_secs_f64() - kinds * spec.hold.as_secs_f64()) / kinds;
    let enough = figure::number(least_time_s(allowed, 1.0) / time_s);
    if let Some(most) = spec.max_rate.filter(|most| least_time_s(allowed, *most) > time_s) {
        let takes = (kinds * least_time_s(allowed, most) / 60.0).ceil();
        return Some(format!(
            "the time is too short to prove the budget at up to {}: it takes about --time {takes}m",
            figure::per_second(most)
        ));
    }
    let at = [1.0, 10.0].map(|rate| figure::duration_ns((least_time_s(allowed, rate) / 60.0).ceil() * 60e9));
    Some(format!(
        "the time is enough to prove the budget from about {enough} requests/s on; a proof at 1/s takes {}, at 10/s {}; more where \
         requests are correlated",
        at[0], at[1]
    ))
}

fn row(at: &PreviewAt) -> Vec<String> {
    let highest = at.supports.last().map_or_else(
        || "no percentile".to_string(),
        |p| format!("p{}", plimsoll_report::figure::centile(*p)),
    );
    let sizes = match at.items {
        Some(items) => vec![items],
        None => vec![at.input_tokens, at.output_tokens],
    };
    let mut cells = vec![figure::per_second(at.capacity_per_s), figure::count(at.requests)];
    cells.extend(sizes.into_iter().map(|n| figure::number(n as f64)));
    cells.extend([at.cost.map(figure::number).unwrap_or_default(), highest]);
    cells
}

/// Returns the fixed scenario of a built-in sweep.
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
