//! `plimsoll calc` evaluates a queueing or scaling formula and prints its assumptions and limits.
//!
//! This module parses text into numbers (units, percentiles, samples from files). `plan::calc` evaluates them
//! and checks their ranges.

use crate::rows;
use std::path::Path;

use plimsoll_judge::budget::PercentileLevel;
use plimsoll_plan::calc::{self, CallLatency, Demand, LawError, LawFinding, ServiceModel, StationSpec};
use plimsoll_report::{calc as page, figure};
use plimsoll_sim::ModeSpec;
use plimsoll_workload::units::{Rate, parse_span};

use super::engine;
use crate::exit::{Exit, Stop};
use crate::flags::calc::{
    AmdahlArgs, CalcArgs, CalcLaw, DemandArgs, FanoutArgs, LatencyArgs, LittleArgs, Mm1Args, ServedBy,
    ShownArgs, StationArgs, UtilisationArgs,
};
use crate::out;

/// Evaluates a formula, or lists all formulas.
pub fn run(args: &CalcArgs) -> Result<Exit, Stop> {
    let Some(law) = &args.law else {
        out::line(&page::list(&calc::CATALOGUE));
        return Ok(Exit::Done);
    };
    let (found, shown) = answer(law)?;
    if shown.as_json() {
        out::json(&found);
    } else {
        out::line(&page::render(&found));
    }
    Ok(Exit::Done)
}

fn answer(law: &CalcLaw) -> Result<(LawFinding, &ShownArgs), Stop> {
    let of = |e: LawError| Stop::usage(e.to_string());
    Ok(match law {
        CalcLaw::Little(args) => (calc::little(&little(args)?).map_err(of)?, &args.shown),
        CalcLaw::Utilisation(args) => (calc::utilisation(&utilisation(args)?).map_err(of)?, &args.shown),
        CalcLaw::Mm1(args) => (calc::mm1(&mm1(args)?).map_err(of)?, &args.station.shown),
        CalcLaw::Mmc(args) => {
            let spec = station(&args.demand, &args.station, args.servers, 1.0)?;
            (calc::mmc(&spec).map_err(of)?, &args.station.shown)
        }
        CalcLaw::Mg1(args) => {
            let spec = station(&args.demand, &args.station, 1, args.cv)?;
            (calc::mg1(&spec).map_err(of)?, &args.station.shown)
        }
        CalcLaw::Amdahl(args) => (calc::amdahl(&amdahl(args)?).map_err(of)?, &args.shown),
        CalcLaw::Fanout(args) => (calc::fanout(&fanout(args)?).map_err(of)?, &args.shown),
    })
}

fn rate(flag: &str, text: &str) -> Result<f64, Stop> {
    Rate::parse(text).map(Rate::as_per_s).map_err(|e| Stop::usage(format!("--{flag}: {e}")))
}

fn time(flag: &str, text: &str) -> Result<f64, Stop> {
    parse_span(text).map(|span| span.as_secs_f64()).map_err(|e| Stop::usage(format!("--{flag}: {e}")))
}

/// Parses a share such as `80%` or `0.8`.
fn share(flag: &str, text: &str) -> Result<f64, Stop> {
    let (figure, of) = match text.trim().strip_suffix('%') {
        Some(figure) => (figure.trim(), 100.0),
        None => (text.trim(), 1.0),
    };
    let share = figure.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0).map(|x| x / of);
    share.ok_or_else(|| Stop::usage(format!("--{flag}: `{text}` is not a share such as 80% or 0.8")))
}

fn percentiles(texts: &[String]) -> Result<Vec<f64>, Stop> {
    let one = |text: &String| {
        PercentileLevel::parse(text).map(|p| p.0).map_err(|e| Stop::usage(format!("--p: {e}")))
    };
    texts.iter().map(one).collect()
}

fn little(args: &LittleArgs) -> Result<calc::LittleSpec, Stop> {
    Ok(calc::LittleSpec {
        rate: args.rate.as_deref().map(|text| rate("rate", text)).transpose()?,
        time: args.time.as_deref().map(|text| time("time", text)).transpose()?,
        in_flight: args.in_flight,
    })
}

fn utilisation(args: &UtilisationArgs) -> Result<calc::UtilisationSpec, Stop> {
    Ok(calc::UtilisationSpec {
        rate: rate("rate", &args.rate)?,
        service: time("service", &args.service)?,
        servers: args.servers,
        slots: args.slots,
        ceiling: args.ceiling.as_deref().map(|text| share("ceiling", text)).transpose()?,
    })
}

fn mm1(args: &Mm1Args) -> Result<StationSpec, Stop> {
    station(&args.demand, &args.station, 1, 1.0)
}

fn station(
    demand: &DemandArgs,
    args: &StationArgs,
    servers: u32,
    service_cv: f64,
) -> Result<StationSpec, Stop> {
    let demand = match (&demand.rate, &demand.utilisation, demand.waiting) {
        (Some(text), _, _) => Demand::Rate(rate("rate", text)?),
        (None, Some(text), _) => Demand::Utilisation(share("utilisation", text)?),
        (None, None, Some(waiting)) if servers == 1 => Demand::Waiting(waiting),
        (None, None, Some(_)) => return Err(Stop::usage("--waiting: of one server only (calc mm1)")),
        (None, None, None) => return Err(Stop::usage("give --rate or --utilisation")),
    };
    Ok(StationSpec {
        demand,
        service: time("service", &args.service)?,
        servers,
        service_cv,
        percentiles: percentiles(&args.p)?,
        served: served(args)?,
    })
}

/// Returns the service model from the flags or from the named engine.
fn served(args: &StationArgs) -> Result<ServiceModel, Stop> {
    if let Some(name) = &args.profile {
        let spec = engine::find(name)?;
        return match spec.mode {
            ModeSpec::Queue(_) => Ok(ServiceModel::OneByOne),
            ModeSpec::Batching(_) => Ok(ServiceModel::Batching { name: name.clone(), whole: false }),
            ModeSpec::Dynamic(_) => Ok(ServiceModel::Batching { name: name.clone(), whole: true }),
            ModeSpec::Canned(_) => Err(Stop::usage(format!(
                "--profile {name}: response times of this engine do not depend on the load, so it has no queue; choose another profile"
            ))),
        };
    }
    Ok(match args.served {
        None | Some(ServedBy::Queue) => ServiceModel::OneByOne,
        Some(ServedBy::Llm) => ServiceModel::Batching { name: "an LLM engine".into(), whole: false },
        Some(ServedBy::Batcher) => ServiceModel::Batching { name: "a dynamic batcher".into(), whole: true },
    })
}

fn amdahl(args: &AmdahlArgs) -> Result<calc::AmdahlSpec, Stop> {
    let share = args.share.as_deref().map(|text| share("share", text)).transpose()?;
    Ok(calc::AmdahlSpec { share, factor: args.factor, speed_up: args.speed_up })
}

fn fanout(args: &FanoutArgs) -> Result<calc::FanoutSpec, Stop> {
    Ok(calc::FanoutSpec {
        calls: args.calls,
        percentiles: percentiles(&args.p)?,
        latencies: latencies(&args.latency)?,
    })
}

fn latencies(args: &LatencyArgs) -> Result<Option<CallLatency>, Stop> {
    if let Some(mean) = &args.mean {
        return Ok(Some(CallLatency::Exponential(time("mean", mean)?)));
    }
    let Some(path) = &args.sample else { return Ok(None) };
    let mut sample = if path.is_dir() { of_run(path)? } else { of_file(path)? };
    sample.sort_unstable_by(f64::total_cmp);
    Ok(Some(CallLatency::Sample(sample)))
}

/// Returns the end-to-end latencies of finished requests in seconds.
fn of_run(dir: &Path) -> Result<Vec<f64>, Stop> {
    let rows = rows::whole(dir)?;
    let finished = rows.attempts.iter().filter(|attempt| attempt.outcome.is_finished());
    let sample: Vec<f64> =
        finished.filter_map(|attempt| Some((attempt.end? - attempt.due).as_secs_f64())).collect();
    let left_out = rows.attempts.len() - sample.len();
    if left_out > 0 {
        out::note(&format!(
            "{}: {} left out that did not finish",
            dir.display(),
            figure::counted(left_out as u64, "attempt")
        ));
    }
    Ok(sample)
}

fn of_file(path: &Path) -> Result<Vec<f64>, Stop> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|e| crate::out::unread(format!("--sample {name}"), &e))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let one = |(i, line): (usize, &str)| {
        parse_span(line)
            .map(|span| span.as_secs_f64())
            .map_err(|e| Stop::usage(format!("{name}:{}: {e}", i + 1)))
    };
    lines.map(one).collect()
}
