//! `plimsoll run`: one load (or, saturating, one after another until throughput stops growing), measured.

use plimsoll_model::{EndedBy, Load, Span};
use plimsoll_report::figure;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, Size};

use super::show;
use crate::exit::{Exit, Stop};
use crate::flags::{CeilingArgs, ClientArgs, Format, RunArgs};
use crate::measure::{Begin, Measure, Step, max_rate, random};
use crate::out;
use crate::resolve::{self, Draft};

/// Throughput has stopped growing when doubling the concurrency adds less than this share.
const SATURATED_GROWTH: f64 = 0.03;

/// No saturating search goes beyond this concurrency unless `--max-in-flight` says so.
const MOST_CONCURRENCY: u32 = 4096;

/// Measures and prints.
pub fn run(args: &RunArgs) -> Result<Exit, Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    draft.target(&args.target)?;
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    draft.load(args)?;
    let window_is_said = draft.has("load.window");
    let mut scenario = draft.finish(random())?;
    let rate = rate(&scenario)?;
    let window = window(&mut scenario, window_is_said)?;
    let cost = resolve::cost(&args.ceilings)?;
    match (rate, max_rate(&args.ceilings)?) {
        (Some(rate), Some(most)) if rate > most => {
            let (rate, most) = (figure::per_second(rate), figure::per_second(most));
            return Err(Stop::usage(format!("the rate {rate} is over --max-rate {most}")));
        }
        (None, Some(_)) => {
            return Err(Stop::usage("--max-rate: a closed loop has no rate to hold back; use --rate"));
        }
        _ => {}
    }
    let mut measure = Measure::begin(Begin {
        kind: "run",
        scenario,
        sweep: None,
        client: &args.client,
        ceilings: &args.ceilings,
        output: &args.output,
        reproduce: None,
        more: ceiling_flags(&args.client, &args.ceilings),
    })?;
    let most = args.ceilings.max_requests;
    announce(&mut measure, rate, window, most, cost.as_ref());
    match measure.scenario().load.clone() {
        LoadSpec::Open { .. } => {
            let load = Load::Open { rate_per_s: rate.unwrap_or_default() };
            one(&mut measure, load, window, most)?;
        }
        LoadSpec::Closed { concurrency, .. } => {
            one(&mut measure, Load::Closed { concurrency }, window, most)?;
        }
        LoadSpec::Saturating { .. } => saturate(&mut measure, window, args)?,
    }
    let stopped = measure.stopped();
    let findings = measure.analyse();
    let closed = measure.finish(&findings);
    let (manifest, dir) = (&closed.manifest, &closed.dir);
    show::print(args.output.format, manifest, &findings, Some(dir));
    if args.output.format == Format::Text {
        out::line(&format!("\nRun     {}", dir.display()));
        out::line(&format!("Report  plimsoll report {}", dir.display()));
        out::line(&format!("Repeat  {}", manifest.reproduce));
    }
    Ok(closed.exit(&findings, stopped))
}

/// The rate of an open loop; `None` for the others.
fn rate(scenario: &Scenario) -> Result<Option<f64>, Stop> {
    match &scenario.load {
        LoadSpec::Open { rate: None, .. } if !matches!(scenario.arrivals, ArrivalSpec::Trace { .. }) => {
            Err(Stop::usage("no load given: --rate 12/s, --concurrency 8, --saturate or --trace FILE"))
        }
        LoadSpec::Open { .. } => scenario.rate().map(Some).map_err(|e| Stop::usage(e.to_string())),
        _ => Ok(None),
    }
}

/// How long arrivals fall: as said, else the whole trace, else the default. What holds is written into the scenario.
fn window(scenario: &mut Scenario, is_said: bool) -> Result<Span, Stop> {
    let trace = scenario.trace_window();
    if let LoadSpec::Open { window, .. } = &mut scenario.load
        && !is_said
        && let Some(whole) = trace.map_err(|e| Stop::usage(e.to_string()))?
    {
        *window = whole;
    }
    Ok(scenario.load.window())
}

/// The flags beside the scenario that decide what is sent and kept.
pub fn ceiling_flags(client: &ClientArgs, ceilings: &CeilingArgs) -> Vec<(&'static str, String)> {
    let mut flags = Vec::new();
    flags.extend(client.workers.map(|n| ("workers", n.to_string())));
    flags.extend(client.keep_text.then(|| ("keep-text", String::new())));
    flags.extend(ceilings.max_rate.iter().map(|rate| ("max-rate", rate.clone())));
    flags.extend(ceilings.max_requests.map(|n| ("max-requests", n.to_string())));
    flags.extend(ceilings.max_errors.map(|n| ("max-errors", n.to_string())));
    flags
}

/// Says before it starts how long, how many requests and tokens, and what it may cost.
fn announce(
    measure: &mut Measure,
    rate: Option<f64>,
    window: Span,
    most: Option<u64>,
    cost: Option<&resolve::Cost>,
) {
    let scenario = measure.scenario();
    let seconds = window.as_secs_f64();
    let (prompt, output) = mean_lengths(scenario);
    let is_trace = matches!(scenario.arrivals, ArrivalSpec::Trace { .. });
    let line = match rate {
        Some(rate) => {
            let requests = most.map_or(f64::INFINITY, |most| most as f64).min(rate * seconds);
            let tokens = if is_trace {
                "prompt and output tokens as the trace has them".to_string()
            } else {
                format!(
                    "{} prompt and {} output tokens",
                    figure::number(requests * prompt),
                    figure::number(requests * output)
                )
            };
            let price = cost.map_or(String::new(), |cost| {
                let most = cost.of(requests * prompt, requests * output, seconds);
                format!(", about {} {}", figure::number(most), cost.currency)
            });
            format!(
                "open loop: {} for {}: about {} requests, {tokens}{price}",
                figure::per_second(rate),
                figure::duration_ns(window.0 as f64),
                figure::number(requests)
            )
        }
        None if matches!(scenario.load, LoadSpec::Saturating { .. }) => format!(
            "closed loop, 1 in flight doubled until throughput stops growing, {} each: at most {} steps, and as many \
             requests as the endpoint answers",
            figure::duration_ns(window.0 as f64),
            MOST_CONCURRENCY.ilog2() + 1
        ),
        None => format!(
            "closed loop for {}: how much it sends depends on the endpoint (about {} prompt and {} output tokens a request)",
            figure::duration_ns(window.0 as f64),
            figure::number(prompt),
            figure::number(output)
        ),
    };
    measure.screen.say(&line);
}

fn one(measure: &mut Measure, load: Load, window: Span, max_requests: Option<u64>) -> Result<f64, Stop> {
    let step =
        Step { traffic: "steady".into(), arrivals: None, purpose: "run".into(), load, window, max_requests };
    let title = match load {
        Load::Open { rate_per_s } => format!("open loop, {}", figure::per_second(rate_per_s)),
        Load::Closed { concurrency } => format!("closed loop, {concurrency} in flight"),
        Load::Saturating { concurrency } => format!("saturating, {concurrency} in flight"),
    };
    let (level, attempts, samples) = measure.level(&step, &title)?;
    let finished = attempts.iter().filter(|attempt| attempt.outcome.is_finished()).count();
    let rate = finished as f64 / (level.drained - level.start).as_secs_f64().max(1e-9);
    measure.keep(attempts, samples);
    Ok(if level.ended_by == EndedBy::Complete { rate } else { f64::NAN })
}

/// Doubles the concurrency until throughput stops growing.
fn saturate(measure: &mut Measure, window: Span, args: &RunArgs) -> Result<(), Stop> {
    let most = args.client.max_in_flight.unwrap_or(MOST_CONCURRENCY);
    let (mut concurrency, mut best) = (1u32, 0.0f64);
    while !measure.stopped() {
        let rate = one(measure, Load::Saturating { concurrency }, window, args.ceilings.max_requests)?;
        if rate.is_nan() || rate < best * (1.0 + SATURATED_GROWTH) || concurrency >= most {
            return Ok(());
        }
        best = best.max(rate);
        concurrency = concurrency.saturating_mul(2).min(most);
    }
    Ok(())
}

/// Mean prompt and output tokens of a request, as far as laws and tables tell them beforehand.
pub fn mean_lengths(scenario: &Scenario) -> (f64, f64) {
    let pairs = scenario.sizes.pairs.as_ref().and_then(|file| scenario.material.mean_pair(file).ok());
    let mean = |size: &Size| size.mean(&scenario.material).unwrap_or(0.0);
    pairs.unwrap_or_else(|| (mean(&scenario.sizes.prompt), mean(&scenario.sizes.output)))
}
