//! `plimsoll run` measures one load. With `--saturate` it measures increasing loads until throughput stops
//! growing.

use std::collections::HashSet;

use crate::result;
use plimsoll_judge::cost::Bill;
use plimsoll_measure::findings::Findings;
use plimsoll_measure::precision::Precision;
use plimsoll_measure::purpose::ISOLATED;
use plimsoll_measure::sweep::SATURATED_GROWTH;
use plimsoll_model::{Carries, EndedBy, Load, SizeUnit, Span};
use plimsoll_report::figure;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, Schedule, Size, Trace, TraceSizes};

use super::{merge, smoke};
use crate::exit::{Exit, Stop};
use crate::flags::{CeilingArgs, ClientArgs, RunArgs};
use crate::measure::{LevelStep, MeasurementSession, MeasurementStart, Until, random, stop_limits};
use crate::out;
use crate::resolve::{self, Draft};
use crate::shard::{ShardRequest, Upload, of_shard};

/// Maximum concurrency of a saturating search without `--max-in-flight`.
pub const MOST_CONCURRENCY: u32 = 4096;

/// Default maximum duration of a load with `--until`.
const LONGEST_UNTIL: &str = "30m";

/// Measures a load and prints the result.
pub fn run(args: &RunArgs) -> Result<Exit, Stop> {
    match load(args) {
        Err(stop) if args.smoke && stop.exit == Exit::Unreachable => Ok(smoke::unreachable(args, &stop)),
        ended => ended,
    }
}

fn load(args: &RunArgs) -> Result<Exit, Stop> {
    let (mut draft, nonce_is_said) = draft(args)?;
    let until = args.load.until.as_deref().map(Precision::parse).transpose();
    let until = until.map_err(|why| Stop::usage(format!("--until {why}")))?;
    let window_is_said = draft.has("load.window");
    if until.is_some() && !window_is_said {
        draft.set("load.window", LONGEST_UNTIL.into());
    }
    let shard = ShardRequest::of(&args.shard, nonce_is_said, "run")?;
    let mut scenario = draft.finish(random())?;
    let rate = rate(&scenario)?;
    let window = window(&mut scenario, window_is_said)?;
    let (output, put) = match &shard {
        Some(asked) => {
            only_open(args, &scenario)?;
            let name = merge::folder(asked.shard);
            of_shard(&args.output, args.shard.rendezvous.as_deref(), name)?
        }
        None => (args.output.clone(), None),
    };
    let cost = resolve::cost(&args.ceilings.price, &scenario)?;
    let budget = resolve::asked_budget(&scenario, &args.limits.slo)?;
    let limits = stop_limits(&args.ceilings)?;
    match (rate, limits.max_rate_per_s) {
        (Some(rate), Some(most)) if rate > most => {
            let (rate, most) = (figure::per_second(rate), figure::per_second(most));
            return Err(Stop::usage(format!("the rate {rate} is over --max-rate {most}")));
        }
        (None, Some(_)) => {
            return Err(Stop::usage("--max-rate: a closed loop has no rate to limit; use --rate"));
        }
        _ => {}
    }
    let mut measure = MeasurementSession::begin(MeasurementStart {
        more: ceiling_flags(&args.client, &args.ceilings)
            .into_iter()
            .chain(until.iter().map(|until| ("until", until.to_string())))
            .chain(args.limits.slo.iter().map(|slo| ("slo", slo.trim().to_owned())))
            .collect(),
        budget,
        shard,
        ..MeasurementStart::new("run", scenario, &args.client, limits, &output)
    })?;
    let upload = put.map(|put| put.start(&measure.folder())).transpose()?;
    let most = limits.max_requests;
    until.iter().for_each(|until| measure.until(Until::Known(until.clone())));
    announce(&mut measure, rate, window, most, cost.as_ref());
    run_load(&mut measure, rate, window, most, args.client.max_in_flight)?;
    let stopped = measure.interrupted();
    let mut findings = measure.analyse();
    findings.cost = cost.map(|bill| plimsoll_judge::cost::cost(&findings, &bill));
    let closed = measure.finish(&findings);
    if args.smoke && !stopped {
        return Ok(smoke::answer(args.output.format, &findings, &closed.dir));
    }
    let uploaded = upload.map(Upload::finish).transpose();
    result::close(args.output.format, &closed, &findings, None);
    let exit = match &until {
        Some(until) if !stopped => {
            let ended = closed.manifest.levels.iter().any(|level| level.ended_by == EndedBy::Known);
            known(until, &findings, ended, closed.exit(&findings, stopped))
        }
        _ => closed.exit(&findings, stopped),
    };
    if let Some(place) = uploaded? {
        out::note(&format!("also put at {place}; when all shards have ended: plimsoll merge {place} -o RUN"));
    }
    Ok(exit)
}

/// Reports the precision that the load reached. Returns inconclusive (3) if the time ended before the
/// precision of `--until`.
fn known(until: &Precision, findings: &Findings, ended: bool, exit: Exit) -> Exit {
    let reached = findings.levels.iter().find_map(|level| until.reached(&level.summary));
    let met = findings.levels.iter().any(|level| until.is_met(&level.summary));
    let so_far = reached
        .map_or("not known at all".to_owned(), |share| format!("known to ±{}", figure::percent(share)));
    // Requests after the last check may have widened the interval slightly.
    if met || ended {
        out::note(&format!("--until {until}: {so_far}"));
        return exit;
    }
    out::note(&format!("--until {until}: {so_far} when the time was over; a longer --for, or a wider share"));
    if exit == Exit::Done { Exit::Inconclusive } else { exit }
}

/// Returns the scenario from flags and file, and whether they set a nonce.
pub fn draft(args: &RunArgs) -> Result<(Draft, bool), Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    draft.target(&args.target)?;
    draft.further(&args.further);
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    draft.load(&args.load, args.workload.trace.is_some())?;
    if args.smoke {
        smoke::load(&mut draft);
    }
    let nonce_is_said = draft.has("nonce");
    Ok((draft, nonce_is_said))
}

/// Fails if a shard would send anything but a part of an open loop.
pub fn only_open(args: &RunArgs, scenario: &Scenario) -> Result<(), Stop> {
    if args.smoke || !matches!(scenario.load, LoadSpec::Open { .. }) {
        return Err(Stop::usage(
            "--shard: only an open loop (--rate, --trace) can be sent in parts; of a closed one the next request waits for an answer \
             that another machine gets",
        ));
    }
    if scenario.load.warm_up() + scenario.load.alone() > 0 {
        return Err(Stop::usage(
            "--shard: every shard would send the requests before the load (--warm-up, --alone); send them with a separate run",
        ));
    }
    Ok(())
}

/// Sends the load of the scenario: one level, or for a saturating load a sequence of levels.
pub fn run_load(
    measure: &mut MeasurementSession,
    rate: Option<f64>,
    window: Span,
    most: Option<u64>,
    max_in_flight: Option<u32>,
) -> Result<(), Stop> {
    let spec = measure.scenario().load.clone();
    let isolated_first = spec.warm_up() + spec.alone() > 0;
    measure.screen.after_s = isolated_first.then(|| window.as_secs_f64()).or(Some(0.0));
    warm_up(measure, &spec)?;
    alone(measure, &spec)?;
    measure.screen.after_s = Some(0.0);
    // After a stop during the warm-up the measured part is not sent.
    if measure.stopped() {
        return Ok(());
    }
    match spec {
        LoadSpec::Open { .. } => {
            let load = Load::Open { rate_per_s: rate.unwrap_or_default() };
            one(measure, load, window, most, None)?;
        }
        LoadSpec::Closed { concurrency, requests, .. } => {
            one(measure, Load::Closed { concurrency }, window, most, requests)?;
        }
        LoadSpec::Wave { requests, .. } => {
            one(measure, Load::Wave { requests }, window, most, None)?;
        }
        LoadSpec::Saturating { .. } => {
            saturate(
                measure,
                &SaturationSearch {
                    traffic: "steady",
                    window,
                    max_requests: most,
                    max_in_flight,
                    time: None,
                },
            )?;
        }
    }
    Ok(())
}

/// Returns the rate of an open loop; `None` for other loads.
pub fn rate(scenario: &Scenario) -> Result<Option<f64>, Stop> {
    match &scenario.load {
        LoadSpec::Open { rate: None, .. } if !matches!(scenario.arrivals, ArrivalSpec::Trace { .. }) => {
            Err(Stop::usage("no load given: --rate 12/s, --concurrency 8, --saturate or --trace FILE"))
        }
        LoadSpec::Open { .. } => scenario.rate().map(Some).map_err(|e| Stop::usage(e.to_string())),
        _ => Ok(None),
    }
}

/// Returns the duration of arrivals: the configured one, else the whole trace, else the default. The value is
/// written into the scenario.
pub fn window(scenario: &mut Scenario, is_said: bool) -> Result<Span, Stop> {
    if let Ok(Some(trace)) = scenario.trace() {
        say_of_trace(trace);
    }
    let trace = scenario.trace_window();
    if let LoadSpec::Open { window, .. } = &mut scenario.load
        && !is_said
        && let Some(whole) = trace.map_err(|e| Stop::usage(e.to_string()))?
    {
        *window = whole;
    }
    let window = scenario.load.window();
    // An impossible load is rejected here, before a file is written or the endpoint is contacted.
    if let Ok(rate) = scenario.rate() {
        plimsoll_workload::schedule::fits(rate, window).map_err(|e| Stop::usage(e.to_string()))?;
    }
    Ok(window)
}

/// Reports the rows of a trace that are not replayed unchanged.
fn say_of_trace(trace: &Trace) {
    let rows = |n: usize| figure::counted(n as u64, "row");
    if trace.failed > 0 {
        let failed = rows(trace.failed);
        out::note(&format!(
            "trace: {failed} left out, of requests that had failed when it was recorded (no output tokens)"
        ));
    }
    if trace.unordered > 0 {
        out::note(&format!(
            "trace: {} before the one above in time; replayed in the order of their times",
            rows(trace.unordered)
        ));
    }
}

/// Returns the flags outside the scenario that affect the sent requests or the kept data.
pub fn ceiling_flags(client: &ClientArgs, ceilings: &CeilingArgs) -> Vec<(&'static str, String)> {
    let mut flags = Vec::new();
    flags.extend(client.workers.map(|n| ("workers", n.to_string())));
    flags.extend(client.force.then(|| ("force", String::new())));
    flags.extend(client.keep_text.then(|| ("keep-text", String::new())));
    flags.extend(ceilings.max_rate.iter().map(|rate| ("max-rate", rate.clone())));
    flags.extend(ceilings.max_requests.map(|n| ("max-requests", n.to_string())));
    flags.extend(ceilings.max_errors.map(|n| ("max-errors", n.to_string())));
    flags
}

/// Returns the rate of the chains, as text after the rate of the requests; empty without a chain.
fn chains(scenario: &Scenario, rate: f64) -> String {
    scenario.stages().map_or(String::new(), |stages| {
        format!(" ({} chains/s of {stages} stages)", figure::number(rate / stages as f64))
    })
}

/// Prints duration, requests, tokens and cost before the start.
fn announce(
    measure: &mut MeasurementSession,
    rate: Option<f64>,
    window: Span,
    most: Option<u64>,
    cost: Option<&Bill>,
) {
    let scenario = measure.scenario();
    let seconds = window.as_secs_f64();
    let (prompt, output) = mean_lengths(scenario);
    let line = match rate {
        Some(rate) if scenario.plays_sessions_out() => of_sessions(scenario, rate, window),
        Some(rate) => {
            let requests = most.map_or(f64::INFINITY, |most| most as f64).min(rate * seconds);
            let sizes = sizes_of(scenario, requests);
            let price = cost.map_or(String::new(), |cost| {
                let most = cost.of(requests * prompt, requests * output, seconds);
                format!(", about {} {}", figure::number(most), cost.currency)
            });
            format!(
                "open loop: {}{} for {}: about {} requests, {sizes}{price}",
                figure::per_second(rate),
                chains(scenario, rate),
                figure::duration_ns(window.0 as f64),
                figure::count(requests.round() as u64)
            )
        }
        None if matches!(scenario.load, LoadSpec::Saturating { .. }) => format!(
            "closed loop, 1 in flight doubled until throughput stops growing, {} each: at most {} steps, and as many \
             requests as the endpoint answers",
            figure::duration_ns(window.0 as f64),
            MOST_CONCURRENCY.ilog2() + 1
        ),
        None => format!(
            "closed loop for {}: how much it sends depends on the endpoint (about {} a request)",
            figure::duration_ns(window.0 as f64),
            sizes_of(scenario, 1.0)
        ),
    };
    measure.screen.say(&line);
}

/// Describes a trace of sessions. Its turns are due even after the window, which contains only the starts of
/// the sessions.
fn of_sessions(scenario: &Scenario, rate: f64, window: Span) -> String {
    let arrivals =
        Schedule::generate(scenario, rate, window, 0).map(|drawn| drawn.arrivals).unwrap_or_default();
    let sessions: HashSet<Option<u64>> = arrivals.iter().map(|arrival| arrival.session).collect();
    let last = arrivals.iter().map(|arrival| arrival.due.0).max().unwrap_or(0);
    format!(
        "open loop: {} in {}, due over {} if no answer took time; a turn waits for those before it",
        figure::counted(arrivals.len() as u64, "request"),
        figure::counted(sessions.len() as u64, "session"),
        figure::duration_ns(last as f64)
    )
}

/// Describes the total size of a number of requests.
fn sizes_of(scenario: &Scenario, requests: f64) -> String {
    let (prompt, output) = mean_lengths(scenario);
    let of = |mean: f64| figure::number(requests * mean);
    if scenario.target.protocol.carries() == Carries::Sound {
        return "an audio clip each".into();
    }
    if scenario.target.protocol.counts() == SizeUnit::Items {
        return format!("{} items", of(prompt));
    }
    match &scenario.arrivals {
        ArrivalSpec::Trace { sizes: TraceSizes::Own, .. } => {
            "prompt and output tokens as the trace has them".into()
        }
        _ if !scenario.target.protocol.takes_output_length() => format!("{} prompt tokens", of(prompt)),
        _ => format!("{} prompt and {} output tokens", of(prompt), of(output)),
    }
}

/// Sends the warm-up requests as a separate level, whose rows are kept and not counted.
fn warm_up(measure: &mut MeasurementSession, spec: &LoadSpec) -> Result<(), Stop> {
    let requests = spec.warm_up();
    if requests == 0 {
        return Ok(());
    }
    let concurrency = match spec {
        LoadSpec::Closed { concurrency, .. } => (*concurrency).min(requests),
        _ => 1,
    };
    let step = LevelStep::of_requests("warmup", concurrency, requests.into());
    let measured =
        measure.level(&step, &format!("warm-up, {}", figure::counted(requests.into(), "request")))?;
    measure.keep(measured);
    Ok(())
}

/// Sends isolated requests before an open loop as a separate level.
fn alone(measure: &mut MeasurementSession, spec: &LoadSpec) -> Result<(), Stop> {
    let requests = spec.alone();
    if requests == 0 {
        return Ok(());
    }
    let step = LevelStep::of_requests(ISOLATED, 1, requests.into());
    let measured =
        measure.level(&step, &format!("{}, each isolated", figure::counted(requests.into(), "request")))?;
    measure.keep(measured);
    Ok(())
}

fn one(
    measure: &mut MeasurementSession,
    load: Load,
    window: Span,
    max_requests: Option<u64>,
    requests: Option<u64>,
) -> Result<(), Stop> {
    level(measure, "steady", load, window, (max_requests, requests)).map(|_| ())
}

/// The result of one level of a search.
struct SearchedLevel {
    /// Finished requests per second until the last one ended; `None` if the level was cut short.
    per_s: Option<f64>,
    took: Span,
}

fn level(
    measure: &mut MeasurementSession,
    traffic: &str,
    load: Load,
    window: Span,
    (max_requests, requests): (Option<u64>, Option<u64>),
) -> Result<SearchedLevel, Stop> {
    let step = LevelStep {
        traffic: traffic.to_owned(),
        max_requests,
        requests,
        ..LevelStep::new("run", load, window)
    };
    let title = match load {
        Load::Open { .. } if measure.scenario().plays_sessions_out() => {
            "open loop, sessions of a trace".into()
        }
        Load::Open { rate_per_s } => format!("open loop, {}", figure::per_second(rate_per_s)),
        Load::Closed { concurrency } => format!("closed loop, {concurrency} in flight"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("saturating, {concurrency} in flight"),
    };
    let measured = measure.level(&step, &title)?;
    let (ended_by, took) = (measured.level.ended_by, measured.level.drained - measured.level.start);
    let per_s = measured.finished() as f64 / took.as_secs_f64().max(1e-9);
    measure.keep(measured);
    Ok(SearchedLevel { per_s: (ended_by == EndedBy::Complete).then_some(per_s), took })
}

/// A search for the concurrency at which throughput stops growing.
pub struct SaturationSearch<'a> {
    /// Kind of traffic, in the names of the levels.
    pub traffic: &'a str,
    /// Duration of arrivals per level.
    pub window: Span,
    /// Maximum number of requests per level; `None` for no limit.
    pub max_requests: Option<u64>,
    /// Maximum concurrency; `None` for [`MOST_CONCURRENCY`].
    pub max_in_flight: Option<u32>,
    /// Time limit after which no further level starts; `None` for no limit.
    pub time: Option<Span>,
}

/// The result of a saturating search.
pub struct SaturationFinding {
    /// Concurrency with the most finished requests per second.
    pub concurrency: u32,
    /// Duration of all levels together.
    pub took: Span,
    /// Set if throughput stopped growing before the time limit.
    pub stopped_growing: bool,
}

/// Doubles the concurrency until throughput stops growing.
pub fn saturate(
    measure: &mut MeasurementSession,
    search: &SaturationSearch<'_>,
) -> Result<SaturationFinding, Stop> {
    let most = search.max_in_flight.unwrap_or(MOST_CONCURRENCY);
    let mut found = SaturationFinding { concurrency: 1, took: Span(0), stopped_growing: false };
    let (mut concurrency, mut best) = (1u32, 0.0f64);
    // The number of levels is unknown, and with it the end.
    measure.screen.after_s = None;
    while !measure.stopped() && search.time.is_none_or(|time| found.took < time) {
        let load = Load::Saturating { concurrency };
        let tried = level(measure, search.traffic, load, search.window, (search.max_requests, None))?;
        found.took = Span(found.took.0 + tried.took.0);
        let Some(per_s) = tried.per_s else { return Ok(found) };
        let grows = per_s >= best * (1.0 + SATURATED_GROWTH);
        if per_s > best {
            (best, found.concurrency) = (per_s, concurrency);
        }
        if !grows || concurrency >= most {
            found.stopped_growing = !grows;
            return Ok(found);
        }
        concurrency = concurrency.saturating_mul(2).min(most);
    }
    Ok(found)
}

/// Returns mean prompt and output tokens of a request, from size distributions and tables.
pub fn mean_lengths(scenario: &Scenario) -> (f64, f64) {
    let weight = |class: u16| scenario.classes.get(usize::from(class)).map_or(1.0, |class| class.weight);
    let (mut sums, mut all) = ((0.0, 0.0), 0.0);
    for class in 0..scenario.class_count() as u16 {
        let (prompt, output) = class_lengths(scenario, class);
        sums = (sums.0 + weight(class) * prompt, sums.1 + weight(class) * output);
        all += weight(class);
    }
    (sums.0 / all, sums.1 / all)
}

fn class_lengths(scenario: &Scenario, class: u16) -> (f64, f64) {
    let (sizes, carries) = (scenario.sizes_of(class), scenario.requests_of(class).protocol.carries());
    if carries == Carries::Sound {
        return (0.0, 0.0);
    }
    let pairs = sizes.pairs.as_ref().and_then(|file| scenario.material.mean_pair(file).ok());
    let mean = |size: &Size| size.mean(&scenario.material).unwrap_or(0.0);
    let (prompt, output) = pairs.unwrap_or_else(|| (mean(&sizes.prompt), mean(&sizes.output)));
    let documents = scenario.documents_of(class);
    let query = carries == Carries::Documents;
    let read = documents.and_then(|law| law.mean_tokens(prompt, query, &scenario.material).ok());
    (read.unwrap_or(prompt), if scenario.asks_output(class) { output } else { 0.0 })
}
