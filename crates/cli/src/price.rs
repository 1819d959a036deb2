//! `--price`: text or file → a bill for the endpoint at hand.
//!
//! How many GPUs and replicas there are is said by the flag, by the file, or by the run itself where its target is known; never
//! guessed, because a figure that is wrong by the number of GPUs looks like any other.

use std::path::Path;

use plimsoll_judge::cost::{Bill, Price, PriceError, PriceSpec, cost};
use plimsoll_measure::findings::Findings;
use plimsoll_model::Fingerprint;
use plimsoll_workload::check;
use schemars::schema_for;

use crate::exit::Stop;
use crate::flags::PriceArgs;
use crate::resolve;

/// What errors call a price that a flag says.
pub const FLAG: &str = "--price";

/// The bill that the flags ask for; `None` without `--price`.
///
/// # Errors
/// The price, its file or its numbers are wrong.
pub fn bill(args: &PriceArgs, target: Option<&Fingerprint>) -> Result<Option<Bill>, Stop> {
    let Some(mut spec) = spec(args, FLAG)? else { return Ok(None) };
    if let Some(target) = target {
        let known = |key: &str| target.facts.get(key)?.as_deref()?.parse::<u32>().ok();
        spec.replicas = spec.replicas.or_else(|| known("replicas"));
        let all = || known("replicas")?.checked_mul(known("tensor_parallel")?);
        spec.gpus = spec.gpus.or_else(all);
    }
    spec.bill().map(Some).map_err(|e| unusable(args, FLAG, &e))
}

/// What is paid for replicas that come and go; `None` where nobody says. `said`: where the price stands, [`FLAG`] or a key of a file.
///
/// # Errors
/// As [`bill`], but how many replicas there are need not be said.
pub fn of_fleet(args: &PriceArgs, said: &str) -> Result<Option<PriceSpec>, Stop> {
    let Some(spec) = spec(args, said)? else {
        return match args.gpus {
            Some(_) => Err(Stop::usage("gpus: of what price? write price: 2.49USD/gpu-hour beside it")),
            None => Ok(None),
        };
    };
    let some = PriceSpec { replicas: spec.replicas.or(Some(1)), ..spec.clone() };
    some.bill().map(|_| Some(spec)).map_err(|e| unusable(args, said, &e))
}

fn spec(args: &PriceArgs, said: &str) -> Result<Option<PriceSpec>, Stop> {
    let spec = args.price.as_deref().map(|text| said_by(text, said)).transpose()?;
    Ok(spec.map(|spec| PriceSpec { gpus: args.gpus.or(spec.gpus), ..spec }))
}

fn unusable(args: &PriceArgs, said: &str, why: &PriceError) -> Stop {
    Stop::usage(format!("{said} {}: {why}", args.price.as_deref().unwrap_or_default()))
}

/// Puts the costs into the findings, where a price was given.
pub fn put(findings: &mut Findings, args: &PriceArgs, target: &Fingerprint) -> Result<(), Stop> {
    findings.cost = bill(args, Some(target))?.map(|bill| cost(findings, &bill));
    Ok(())
}

/// What looks like a file is one: a price begins with a figure and holds a slash behind its currency.
pub fn read(text: &str) -> Result<PriceSpec, Stop> {
    said_by(text, FLAG)
}

fn said_by(text: &str, said: &str) -> Result<PriceSpec, Stop> {
    let is_file = [".yaml", ".yml", ".json"].iter().any(|end| text.ends_with(end));
    if !is_file {
        let price = Price::parse(text).map_err(|e| Stop::usage(format!("{said} {e}")))?;
        return Ok(PriceSpec::new(price));
    }
    let value = resolve::mapping(Path::new(text), "price")?;
    check::against(&value, || schema_for!(PriceSpec).to_value())
        .map_err(|e| Stop::usage(format!("{text}: {e}")))?;
    serde_json::from_value(value).map_err(|e| Stop::usage(format!("{text}: {e}")))
}
