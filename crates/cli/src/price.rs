//! Parses `--price`: text or file → the bill of an endpoint.
//!
//! The number of GPUs and replicas comes from the flag, the file, or the run itself if its target is known. It is never
//! guessed, because a cost that is wrong by the number of GPUs is not recognisable as wrong.

use std::path::Path;

use plimsoll_judge::cost::{Bill, Price, PriceError, PriceSpec, cost};
use plimsoll_measure::findings::Findings;
use plimsoll_model::Fingerprint;
use plimsoll_workload::check;
use schemars::schema_for;

use crate::exit::Stop;
use crate::flags::PriceArgs;
use crate::resolve;

/// Name of the price in errors if a flag sets it.
pub const FLAG: &str = "--price";

/// Returns the bill that the flags request; `None` without `--price`.
///
/// # Errors
/// The price, its file or its numbers are wrong, or there are GPUs without a price.
pub fn bill(args: &PriceArgs, target: Option<&Fingerprint>) -> Result<Option<Bill>, Stop> {
    match (&args.price, args.gpus) {
        (None, Some(_)) => Err(Stop::usage("--gpus: needs a price; add --price 2.49USD/gpu-hour")),
        _ => optional(args, target),
    }
}

/// Returns the bill as [`bill`] does, for callers that use the number of GPUs without a price too.
///
/// # Errors
/// Returns the bill like [`bill`], without a price if none is known.
pub fn optional(args: &PriceArgs, target: Option<&Fingerprint>) -> Result<Option<Bill>, Stop> {
    if args.gpus == Some(0) {
        return Err(Stop::usage("--gpus 0: an endpoint has at least 1"));
    }
    let Some(mut spec) = spec(args, FLAG)? else { return Ok(None) };
    if let Some(target) = target {
        spec.replicas = spec.replicas.or_else(|| known(target, "replicas"));
        spec.gpus = spec.gpus.or_else(|| all_gpus(target));
    }
    spec.bill().map(Some).map_err(|e| unusable(args, FLAG, &e))
}

fn known(target: &Fingerprint, key: &str) -> Option<u32> {
    target.facts.get(key)?.as_deref()?.parse().ok()
}

fn all_gpus(target: &Fingerprint) -> Option<u32> {
    known(target, "replicas")?.checked_mul(known(target, "tensor_parallel")?)
}

/// Returns the price of replicas whose number varies; `None` if no price is set. `origin` is [`FLAG`] or a
/// key of a file, for errors.
///
/// # Errors
/// As for [`bill`], but the number of replicas may be missing.
pub fn of_fleet(args: &PriceArgs, origin: &str) -> Result<Option<PriceSpec>, Stop> {
    let Some(spec) = spec(args, origin)? else {
        return match args.gpus {
            Some(_) => Err(Stop::usage("gpus: needs a price; add price: 2.49USD/gpu-hour")),
            None => Ok(None),
        };
    };
    let some = PriceSpec { replicas: spec.replicas.or(Some(1)), ..spec.clone() };
    some.bill().map(|_| Some(spec)).map_err(|e| unusable(args, origin, &e))
}

fn spec(args: &PriceArgs, origin: &str) -> Result<Option<PriceSpec>, Stop> {
    let spec = args.price.as_deref().map(|text| said_by(text, origin)).transpose()?;
    Ok(spec.map(|spec| PriceSpec { gpus: args.gpus.or(spec.gpus), ..spec }))
}

fn unusable(args: &PriceArgs, origin: &str, why: &PriceError) -> Stop {
    Stop::usage(format!("{origin} {}: {why}", args.price.as_deref().unwrap_or_default()))
}

/// Adds the costs and the throughput per GPU to the findings, as far as the price and the GPUs are known.
pub fn put(findings: &mut Findings, args: &PriceArgs, target: &Fingerprint) -> Result<(), Stop> {
    let bill = optional(args, Some(target))?;
    add(findings, bill, args.gpus, target);
    Ok(())
}

/// Adds the costs of a parsed price, and the throughput per GPU.
pub fn add(findings: &mut Findings, bill: Option<Bill>, gpus: Option<u32>, target: &Fingerprint) {
    let priced = bill.as_ref().and_then(|bill| bill.given.gpus);
    let gpus = gpus.or(priced).or_else(|| all_gpus(target));
    findings.pareto.iter_mut().for_each(|curve| curve.set_gpus(gpus));
    findings.cost = bill.map(|bill| cost(findings, &bill));
}

/// Parses a price or reads its file. A price starts with a number and has a slash after its currency; other text is a file name.
pub fn read(text: &str) -> Result<PriceSpec, Stop> {
    said_by(text, FLAG)
}

fn said_by(text: &str, origin: &str) -> Result<PriceSpec, Stop> {
    let is_file = [".yaml", ".yml", ".json"].iter().any(|end| text.ends_with(end));
    if !is_file {
        let price = Price::parse(text).map_err(|e| Stop::usage(format!("{origin} {e}")))?;
        return Ok(PriceSpec::new(price));
    }
    let value = resolve::mapping(Path::new(text), "price")?;
    check::against(&value, || schema_for!(PriceSpec).to_value())
        .map_err(|e| Stop::usage(format!("{text}: {e}")))?;
    serde_json::from_value(value).map_err(|e| Stop::usage(format!("{text}: {e}")))
}
