//! `plimsoll merge` joins the shards of one load to one run, which every command reads like any other run.
//!
//! Shards are checked for agreement, and against the schedule, which is drawn again. A difference is rejected
//! with its name. A shard that was cut off or never started still has rows with the outcome *never sent*,
//! because its arrivals are known. The run is then partial.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_measure::shards::{MergedRun, ShardRun, join};
use plimsoll_model::{EndedBy, Level, Load, Manifest, RunState, ShardPart};
use plimsoll_report::figure::counted;
use plimsoll_store::{Origin, RunWriter, StoredRun};
use plimsoll_workload::{ArrivalSpec, Scenario};

use crate::again::RecordedScenario;
use crate::exit::{Exit, Stop};
use crate::flags::MergeArgs;
use crate::measure::{self, FinishedMeasurement, verdict};
use crate::place::is_url;
use crate::shard::{TempFolder, difference, fetch};
use crate::{out, result, rows};

/// Returns the folder name of a shard in the shared place.
pub fn folder(shard: plimsoll_model::Shard) -> String {
    format!("shard-{}-of-{}", shard.index, shard.of)
}

struct MergeInput {
    name: String,
    run: StoredRun,
    part: ShardPart,
}

/// Joins, judges, writes and prints the run.
pub fn run(args: &MergeArgs) -> Result<Exit, Stop> {
    let target = measure::folder(&args.output, "run")?;
    let scratch = match args.places.iter().any(|place| is_url(place)) {
        true => Some(TempFolder::beside(&target)?),
        false => None,
    };
    let mut shards = Vec::new();
    for place in &args.places {
        let runs = match scratch.as_ref().filter(|_| is_url(place)) {
            Some(scratch) => fetch(place, scratch)?,
            None => folders(place)?.into_iter().map(|dir| (dir.display().to_string(), dir)).collect(),
        };
        for (name, dir) in runs {
            shards.push(read(name, &dir)?);
        }
    }
    shards.sort_by_key(|one| one.part.shard);
    let first = shards.first().ok_or_else(|| nothing(&args.places))?;
    for (one, next) in shards.iter().zip(&shards[1..]) {
        alike(one, next)?;
    }
    // A shard that never started has no schedule.
    let base = shards.iter().find(|one| !one.run.manifest.levels.is_empty()).unwrap_or(first);
    let (base_manifest, part) = (base.run.manifest.clone(), base.part.clone());
    let recorded = RecordedScenario::of(&base_manifest);
    let schedule = recorded.as_ref().ok().and_then(|recorded| recorded.whole(&part));
    let parts: Vec<ShardPart> = shards.iter().map(|one| one.part.clone()).collect();
    let runs = shards.into_iter().map(shard_run).collect();
    let mut joined = join(runs, part.shard.of, part.arrivals, schedule.as_ref()).map_err(|misfit| {
        let why = recorded.as_ref().err().map(|why| format!(": {why}")).unwrap_or_default();
        Stop::usage(format!("{misfit}{why}"))
    })?;
    let dir = target;
    let label = args.output.label.clone().or(base_manifest.label.clone());
    let scenario = recorded.ok().map(|recorded| recorded.scenario);
    if let Some(scenario) = &scenario {
        let rows = std::mem::take(&mut joined.attempts);
        joined.attempts = rows.into_iter().map(|row| scenario.placed(row)).collect();
    }
    let manifest = Manifest { label, ..merged(base_manifest, scenario.as_ref(), (&part, parts), &joined) };
    let findings = measure::findings(&manifest, &joined.attempts, &joined.samples);
    let manifest = Manifest { findings: serde_json::to_value(&findings).ok(), ..manifest };
    write(&dir, &manifest, &joined)?;
    let closed = FinishedMeasurement { manifest, dir, unkept: None };
    result::close(args.output.format, &closed, &findings, None);
    Ok(verdict(&findings))
}

fn nothing(places: &[PathBuf]) -> Stop {
    let names: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Stop::usage(format!("{}: no run of a shard (plimsoll run … --shard 0/4 -o PLACE)", names.join(", ")))
}

/// Returns the run folders of a place: the place itself, or the folders in it.
fn folders(place: &Path) -> Result<Vec<PathBuf>, Stop> {
    if plimsoll_store::read_manifest(place).is_ok() {
        return Ok(vec![place.to_path_buf()]);
    }
    let entries = std::fs::read_dir(place).map_err(|e| out::unread(place.display(), &e))?;
    let is_shard = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        path.is_dir() && name.is_some_and(|name| name.starts_with("shard-"))
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_shard).collect())
}

/// Reads the run of a shard. A killed run is recovered, and its requests in flight count as unfinished.
fn read(name: String, dir: &Path) -> Result<MergeInput, Stop> {
    let run = rows::read(dir)?;
    if run.origin == Origin::Live {
        return Err(Stop::usage(format!("{name}: still being written; wait until it has ended")));
    }
    let part = run.manifest.shard.clone().ok_or_else(|| {
        Stop::usage(format!("{name}: not a shard (--shard) of a run; only shards of one load can be merged"))
    })?;
    if run.manifest.kind != "run" {
        let kind = &run.manifest.kind;
        return Err(Stop::usage(format!(
            "{name}: a shard of a {kind}, whose parts shard 0 has put together already: its run is the whole one"
        )));
    }
    Ok(MergeInput { name, run, part })
}

/// Checks that two parts belong to one load.
fn alike(a: &MergeInput, b: &MergeInput) -> Result<(), Stop> {
    let (first, second) = (&a.name, &b.name);
    if a.part.shard == b.part.shard {
        return Err(Stop::usage(format!(
            "{first} and {second}: both are shard {}, so its part was sent twice; discard both, and run all shards again",
            a.part.shard
        )));
    }
    let differ = |what: &str, one: String, other: String| {
        Stop::usage(format!(
            "{first} and {second}: shards of different runs: {what} is {one} in the first and {other} in the second"
        ))
    };
    if a.part.shard.of != b.part.shard.of {
        return Err(differ("the number of shards", a.part.shard.of.to_string(), b.part.shard.of.to_string()));
    }
    let scenario = |read: &MergeInput| {
        let mut scenario = read.run.manifest.scenario.clone();
        // Only shard 0 scrapes the server's metrics.
        scenario.as_object_mut().map(|object| object.remove("scraped"));
        scenario
    };
    if let Some((path, one, other)) = difference(&scenario(a), &scenario(b), "") {
        return Err(differ(&path, one, other));
    }
    let (one, other) = (&a.run.manifest.tool, &b.run.manifest.tool);
    if one != other {
        return Err(differ("the version", one.clone(), other.clone()));
    }
    if a.part.start_unix_ns != b.part.start_unix_ns {
        return Err(differ("the start", a.part.start_unix_ns.to_string(), b.part.start_unix_ns.to_string()));
    }
    let began = a.part.arrivals > 0 && b.part.arrivals > 0;
    if began && a.part.schedule_hash != b.part.schedule_hash {
        let hashes = (a.part.schedule_hash.clone(), b.part.schedule_hash.clone());
        return Err(differ("the schedule (of a trace or prompt file that differs)", hashes.0, hashes.1));
    }
    Ok(())
}

fn shard_run(read: MergeInput) -> ShardRun {
    ShardRun {
        shard: read.part.shard,
        level: read.run.manifest.levels.into_iter().next(),
        attempts: read.run.attempts,
        samples: read.run.samples,
        clock_error_ns: read.part.clock_error_ns,
    }
}

/// Returns the manifest of the joined run.
fn merged(
    base: Manifest,
    scenario: Option<&Scenario>,
    (part, parts): (&ShardPart, Vec<ShardPart>),
    joined: &MergedRun,
) -> Manifest {
    let arrivals = scenario.map(|scenario| &scenario.arrivals);
    let asked = scenario.filter(|scenario| !matches!(scenario.arrivals, ArrivalSpec::Trace { .. }));
    let rate = asked.and_then(|scenario| scenario.rate().ok());
    // The level of a trace has the rate of its time range.
    let counted = || part.arrivals as f64 / joined.level.window().as_secs_f64().max(1e-9);
    let mut generator = joined.level.generator.clone();
    if let Some(shards) = &mut generator.shards {
        shards.constant = matches!(arrivals, Some(ArrivalSpec::Constant));
    }
    let level = Level {
        load: Load::Open { rate_per_s: rate.unwrap_or_else(counted) },
        arrivals: part.arrivals,
        schedule_hash: part.schedule_hash.clone(),
        generator,
        ..joined.level.clone()
    };
    let host = base.host.clone();
    let shards = all_parts(part, parts, joined, &host);
    let whys: Vec<String> = shards.iter().filter_map(why_partial).collect();
    let progress = match (whys.is_empty(), level.ended_by) {
        (false, _) => RunState::Partial { why: whys.join("; ") },
        (true, EndedBy::Complete | EndedBy::Known | EndedBy::DrainLimit) => RunState::Complete,
        (true, by) => RunState::Partial { why: format!("a shard ended early ({by:?})").to_lowercase() },
    };
    Manifest { progress, shard: None, shards, levels: vec![level], ..base }
}

/// Returns the parts of all shards by number, including missing shards.
fn all_parts(
    part: &ShardPart,
    parts: Vec<ShardPart>,
    joined: &MergedRun,
    host: &plimsoll_model::Host,
) -> Vec<ShardPart> {
    let mut known: BTreeMap<u32, ShardPart> =
        parts.into_iter().map(|part| (part.shard.index, part)).collect();
    (0..part.shard.of)
        .map(|index| {
            let lost = joined.lost.get(index as usize).copied().unwrap_or(0);
            let absent = ShardPart {
                shard: plimsoll_model::Shard { index, ..part.shard },
                progress: RunState::Partial { why: "it did not come".into() },
                clock_error_ns: None,
                host: None,
                ..part.clone()
            };
            let of_all = (part.arrivals, part.schedule_hash.clone());
            let found = known.remove(&index).unwrap_or(absent);
            let host = found.host.clone().or_else(|| (index == part.shard.index).then(|| host.clone()));
            ShardPart { lost, arrivals: of_all.0, schedule_hash: of_all.1, host, ..found }
        })
        .collect()
}

/// Describes the missing data of a shard; `None` if it is complete.
fn why_partial(part: &ShardPart) -> Option<String> {
    let lost = counted(part.lost, "request");
    match &part.progress {
        RunState::Complete if part.lost == 0 => None,
        RunState::Complete => Some(format!("shard {} lacks {lost}", part.shard)),
        RunState::Running => Some(format!("shard {} was cut off, {lost} never sent", part.shard)),
        RunState::Partial { why } if part.lost == 0 => Some(format!("shard {}: {why}", part.shard)),
        RunState::Partial { why } => Some(format!("shard {}: {why}, {lost} never sent", part.shard)),
    }
}

fn write(dir: &Path, manifest: &Manifest, joined: &MergedRun) -> Result<(), Stop> {
    let kept = |e: plimsoll_store::StoreError| Stop::invalid(e.to_string());
    let writer = RunWriter::create(dir, manifest.clone()).map_err(kept)?;
    joined.attempts.iter().for_each(|row| writer.attempt(row));
    joined.samples.iter().for_each(|sample| writer.sample(sample));
    writer.finish_with(manifest.clone(), &joined.attempts, &joined.samples).map_err(kept)
}
