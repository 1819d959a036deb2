//! `plimsoll budget split`: splits a total over stages into slices with a margin, as a part of a budget file.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_judge::budget::{
    Amount, PercentileLevel, SplitFile, SplitSpec, StagePart, WholeAndStages, read_split, split,
};
use plimsoll_profile::{DurationFigures, ProfileFinding, ProfiledLatency};
use plimsoll_report::split as page;

use super::write;
use crate::answer;
use crate::exit::{Exit, Stop};
use crate::flags::{BudgetSplitArgs, OutputFormat};
use crate::{out, resolve};

pub fn run(args: &BudgetSplitArgs) -> Result<Exit, Stop> {
    let (name, mut file, whole) = match (&args.stages, &args.from) {
        (_, Some(path)) => {
            let (file, whole) = of_profile(path)?;
            (path.display().to_string(), file, Some(whole))
        }
        (Some(path), None) => (path.display().to_string(), of_file(path)?, None),
        (None, None) => return Err(Stop::usage("name a file of stages, or a profile with --from")),
    };
    let amount =
        |flag: &str, text: &str| Amount::parse(text).map_err(|e| Stop::usage(format!("--{flag}: {e}")));
    if let Some(text) = &args.total {
        file.total = Some(amount("total", text)?);
    }
    if let Some(text) = &args.margin {
        file.margin = Some(amount("margin", text)?);
    }
    if let Some(text) = &args.p {
        file.p = Some(PercentileLevel::parse(text).map_err(|e| Stop::usage(format!("--p: {e}")))?);
    }
    let found = split(&SplitSpec { file: &file, whole: whole.as_ref(), joint: args.joint })
        .map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    match (args.format, &args.out) {
        (OutputFormat::Json, Some(_)) => {
            return Err(Stop::usage("--out writes a budget file: drop --format json"));
        }
        (OutputFormat::Json, None) => out::json(&found),
        (OutputFormat::Text, None) => out::line(&page::budget_file(&name, &found)),
        (OutputFormat::Text, Some(path)) => write(path, &page::budget_file(&name, &found))?,
    }
    Ok(Exit::Done)
}

fn of_file(path: &Path) -> Result<SplitFile, Stop> {
    let value = resolve::mapping(path, "split")?;
    read_split(&value).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))
}

fn of_profile(path: &Path) -> Result<(SplitFile, WholeAndStages), Stop> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(format!("--from {name}"), &e))?;
    let profile: ProfileFinding = answer::data(&text).map_err(|e| {
        Stop::usage(format!(
            "--from {name}: is not what `plimsoll profile TRACES --format json` prints ({e})"
        ))
    })?;
    split_of_profile(&profile).map_err(|e| Stop::usage(format!("--from {name}: {e}")))
}

/// Returns the stages of a profile with their measured percentiles, and the whole response.
///
/// # Errors
/// Fails if the profile has no whole response or no stages.
fn split_of_profile(profile: &ProfileFinding) -> Result<(SplitFile, WholeAndStages), &'static str> {
    let path =
        profile.path(ProfiledLatency::E2e).ok_or("paths: the profile has no end to end (e2e) to split")?;
    let of = |times: &DurationFigures| [&times.p50, &times.p90, &times.p95, &times.p99].map(|r| r.value());
    let amount = |value: Option<f64>| value.filter(|s| *s > 0.0).map(Amount::seconds);
    let part = |times: &DurationFigures| {
        let [p50, p90, p95, p99] = of(times).map(amount);
        StagePart { p50, p90, p95, p99, ..StagePart::default() }
    };
    let stages: BTreeMap<String, StagePart> =
        path.stages.iter().map(|stage| (stage.stage.name().to_owned(), part(&stage.times))).collect();
    if stages.is_empty() {
        return Err("paths: the profile's end to end has no stages to split over");
    }
    Ok((SplitFile { total: None, margin: None, p: None, stages }, WholeAndStages { at: of(&path.times) }))
}
