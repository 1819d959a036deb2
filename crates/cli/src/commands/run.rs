//! `plimsoll run`: one load (or, saturating, one after another until throughput stops growing), measured.

use plimsoll_model::{EndedBy, Load, Span};
use plimsoll_report::figure;
use plimsoll_workload::{LoadSpec, Scenario};

use super::show;
use crate::exit::{Exit, Stop};
use crate::flags::RunArgs;
use crate::measure::{Begin, Measure, Step, max_rate, random, verdict};
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
    draft.load(args)?;
    draft.client(&args.client)?;
    let scenario = draft.finish(random())?;
    let cost = resolve::cost(&args.ceilings)?;
    let window = window(&scenario, args)?;
    let rate = match scenario.load {
        LoadSpec::Open { .. } => Some(scenario.rate().map_err(|e| Stop::usage(e.to_string()))?),
        _ => None,
    };
    if let (Some(rate), Some(most)) = (rate, max_rate(&args.ceilings)?)
        && rate > most
    {
        return Err(Stop::usage(format!(
            "--rate {} is over --max-rate {}",
            figure::per_second(rate),
            figure::per_second(most)
        )));
    }
    let mut more = Vec::new();
    if let Some(workers) = args.client.workers {
        more.push(("workers", workers.to_string()));
    }
    if let Some(most) = args.ceilings.max_requests {
        more.push(("max-requests", most.to_string()));
    }
    let mut measure = Measure::begin(Begin {
        kind: "run",
        scenario,
        sweep: None,
        client: &args.client,
        ceilings: &args.ceilings,
        output: &args.output,
        reproduce: None,
        more,
    })?;
    announce(&mut measure, rate, window, cost.as_ref());
    match measure.scenario().load.clone() {
        LoadSpec::Open { .. } => {
            let load = Load::Open { rate_per_s: rate.unwrap_or_default() };
            one(&mut measure, load, window)?;
        }
        LoadSpec::Closed { concurrency, .. } => {
            one(&mut measure, Load::Closed { concurrency }, window)?;
        }
        LoadSpec::Saturating { .. } => saturate(&mut measure, window, args.client.max_in_flight)?,
    }
    let stopped = measure.stopped();
    let findings = measure.analyse();
    let (manifest, dir) = measure.finish(&findings)?;
    show::print(args.output.format, &manifest, &findings, Some(&dir));
    Ok(if stopped { Exit::Interrupted } else { verdict(&findings) })
}

/// How long arrivals fall: as asked, or the whole trace.
fn window(scenario: &Scenario, args: &RunArgs) -> Result<Span, Stop> {
    let asked = args.duration.is_some();
    let trace = scenario.trace_window().map_err(|e| Stop::usage(e.to_string()));
    match (asked, matches!(scenario.load, LoadSpec::Open { .. })) {
        (false, true) => Ok(trace?.unwrap_or_else(|| scenario.load.window())),
        _ => Ok(scenario.load.window()),
    }
}

/// Says before it starts how long, how many requests and tokens, and what it may cost.
fn announce(measure: &mut Measure, rate: Option<f64>, window: Span, cost: Option<&resolve::Cost>) {
    let scenario = measure.scenario();
    let seconds = window.as_secs_f64();
    let mean = |size: &plimsoll_workload::Size| size.mean(&scenario.material).unwrap_or(0.0);
    let (prompt, output) = (mean(&scenario.sizes.prompt), mean(&scenario.sizes.output));
    let is_trace = matches!(scenario.arrivals, plimsoll_workload::ArrivalSpec::Trace { .. });
    let line = match rate {
        Some(rate) => {
            let requests = rate * seconds;
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
        None => format!(
            "closed loop for {}: how much it sends depends on the endpoint (about {} prompt and {} output tokens a request)",
            figure::duration_ns(window.0 as f64),
            figure::number(prompt),
            figure::number(output)
        ),
    };
    measure.screen.say(&line);
}

fn one(measure: &mut Measure, load: Load, window: Span) -> Result<f64, Stop> {
    let step = Step {
        traffic: "steady".into(),
        arrivals: None,
        purpose: "run".into(),
        load,
        window,
        max_requests: None,
    };
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
fn saturate(measure: &mut Measure, window: Span, most: Option<u32>) -> Result<(), Stop> {
    let most = most.unwrap_or(MOST_CONCURRENCY);
    let (mut concurrency, mut best) = (1u32, 0.0f64);
    while !measure.stopped() {
        let rate = one(measure, Load::Saturating { concurrency }, window)?;
        if rate.is_nan() || rate < best * (1.0 + SATURATED_GROWTH) || concurrency >= most {
            return Ok(());
        }
        best = best.max(rate);
        concurrency = concurrency.saturating_mul(2).min(most);
    }
    Ok(())
}
