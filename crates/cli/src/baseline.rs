//! A baseline: a name pinned to one run, in a small file that is committed with the code.
//!
//! `plimsoll-baselines/NAME.json` identifies the run (folder, id, hash of its content) and describes it. A reviewer
//! therefore sees in the diff what the next release will be compared with. Each name has its own file, because two branches
//! that pin two names should not conflict. A name is resolved only if the run behind it is unchanged. A baseline that
//! moved silently would let a slow drift through, one release at a time.

use std::path::{Path, PathBuf};

use plimsoll_client::Clock;
use plimsoll_judge::history::measured;
use plimsoll_measure::findings::{Findings, LevelFinding, Reading, Trust};
use plimsoll_model::{Load, Manifest, RunState};
use plimsoll_report::figure;
use plimsoll_store::{StoreError, content_hash};
use plimsoll_workload::{closest, nearest};
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Stop};

/// Folder of baselines, in the working directory.
pub const FOLDER: &str = "plimsoll-baselines";

const SCHEMA: u32 = 1;

/// A name that is pinned to a run, with a description of the run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedBaseline {
    pub schema: u32,
    pub name: String,
    /// The run folder: relative to the parent of [`FOLDER`] if it is below that folder, else absolute.
    pub run: PathBuf,
    /// Id of the run in its manifest.
    pub id: String,
    /// Hash of the run's content, which must be unchanged.
    pub content: String,
    /// Time in UTC at which the run was pinned.
    pub pinned: String,
    /// Time in UTC at which the run was measured.
    pub measured: String,
    /// URL of the measured target.
    pub target: String,
    /// Model of the target; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Version of the target: as given by the user, else as reported by the engine; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Seed of everything that was drawn.
    pub seed: u64,
    /// Nonce that salts the prompts.
    pub nonce: u64,
    pub trust: Trust,
    /// Load as text, one line per measured level.
    pub load: Vec<String>,
    /// Figures for readers of the file; judges read the run.
    pub figures: Vec<PinnedMetric>,
}

/// A figure of the pinned run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedMetric {
    /// Name of the figure, for example `ttft p99`.
    pub what: String,
    /// Level on which the figure was measured.
    pub level: u32,
    /// Value with its 95 % interval, as text.
    pub value: String,
}

/// The run behind a name or a folder.
#[derive(Clone, Debug)]
pub struct ResolvedRun {
    pub dir: PathBuf,
    /// The baseline; `None` if a folder was given.
    pub baseline: Option<NamedBaseline>,
}

/// Returns the run behind a baseline's name or a folder. Refuses a name whose run is missing or is no longer the pinned run.
///
/// # Errors
/// `text` is neither a name nor a folder ([`Exit::Usage`]); the pinned run is missing or changed ([`Exit::Unreachable`]).
pub fn resolve(text: &str) -> Result<ResolvedRun, Stop> {
    let path = Path::new(text);
    let is_folder = path.is_dir();
    if is_name(text) && file(text).exists() {
        if is_folder {
            return Err(Stop::usage(format!(
                "{text} is a baseline and a folder: write ./{text} for the folder"
            )));
        }
        let baseline = read(text)?;
        unchanged(&baseline)?;
        return Ok(ResolvedRun { dir: baseline.run.clone(), baseline: Some(baseline) });
    }
    if is_folder || text.contains(std::path::MAIN_SEPARATOR) {
        return Ok(ResolvedRun { dir: path.to_path_buf(), baseline: None });
    }
    let names = names()?;
    let hint = match nearest(text, names.iter().map(String::as_str)) {
        Some(name) => format!("; did you mean {name}?"),
        None if names.is_empty() => "; pin one with plimsoll baseline set NAME RUN".into(),
        None => format!("; baselines are {}", closest(text, names.iter().map(String::as_str), 4).join(", ")),
    };
    Err(Stop::usage(format!("{text}: neither a run folder nor a baseline{hint}")))
}

/// Checks that the pinned run still exists and is unchanged.
///
/// # Errors
/// The difference and its remedy.
pub fn unchanged(baseline: &NamedBaseline) -> Result<(), Stop> {
    let NamedBaseline { name, run, id, content, .. } = baseline;
    let place = run.display();
    let again = format!("measure it again and pin it with plimsoll baseline set {name} RUN --replace");
    let gone = |what: String| Stop { exit: Exit::Unreachable, line: format!("baseline {name}: {what}") };
    if !run.is_dir() {
        return Err(gone(format!("its run {place} is not here; fetch it, or {again}")));
    }
    let manifest = plimsoll_store::read_manifest(run).map_err(|e| gone(format!("{e}; {again}")))?;
    if manifest.id != *id {
        return Err(gone(format!(
            "{place} now contains another run ({} instead of {id}); {again}",
            manifest.id
        )));
    }
    match content_hash(run) {
        Ok(now) if now == *content => Ok(()),
        Ok(_) => Err(gone(format!("{place} was changed since it was pinned; {again}"))),
        Err(e) => Err(gone(format!("{e}; {again}"))),
    }
}

/// Returns the baseline of a run that was measured well enough for comparisons.
///
/// # Errors
/// The name is invalid, or the run is partial or invalid.
pub fn of(
    name: &str,
    run: &Path,
    version: Option<&str>,
    (manifest, findings): (&Manifest, &Findings),
) -> Result<NamedBaseline, Stop> {
    if !is_name(name) {
        return Err(Stop::usage(format!(
            "{name}: a baseline's name is letters, digits, '-', '_' and '.', at most 64, and begins with a letter or digit"
        )));
    }
    let place = run.display();
    if let RunState::Partial { why } = &manifest.progress {
        return Err(Stop::usage(format!("{place} is partial ({why}): pin a complete run")));
    }
    if findings.validity.verdict == Trust::Invalid {
        let why =
            findings.validity.reasons.first().map_or(String::new(), |reason| format!(" ({})", reason.figure));
        return Err(Stop::usage(format!(
            "{place}: not a valid measurement{why}; pin a valid run (plimsoll show {place} lists the remedies)"
        )));
    }
    let figures: Vec<PinnedMetric> = measured(findings).flat_map(pinned).collect();
    if figures.is_empty() {
        return Err(Stop::usage(format!(
            "{place}: has no percentile to compare with; pin a longer run, or a sweep with --hold"
        )));
    }
    let fact = |key: &str| manifest.target.facts.get(key).cloned().flatten();
    Ok(NamedBaseline {
        schema: SCHEMA,
        name: name.to_owned(),
        run: portable(run)?,
        id: manifest.id.clone(),
        content: content_hash(run).map_err(unreadable)?,
        pinned: figure::date(Clock::start().anchor().realtime_ns),
        measured: figure::date(manifest.clock.realtime_ns),
        target: manifest.target.url.clone(),
        model: fact("model"),
        version: version.map(str::to_owned).or_else(|| fact("engine_version")),
        seed: manifest.seed,
        nonce: manifest.nonce,
        trust: findings.validity.verdict,
        load: measured(findings).map(load_words).collect(),
        figures,
    })
}

fn unreadable(error: StoreError) -> Stop {
    Stop::usage(error.to_string())
}

/// Returns a level's load as text.
pub fn load_words(level: &LevelFinding) -> String {
    let summary = &level.summary;
    let load = match summary.load {
        Load::Open { rate_per_s } => format!("open loop, {}", figure::per_second(rate_per_s)),
        Load::Closed { concurrency } => format!("closed loop, {concurrency} in flight"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("saturating, {concurrency} in flight"),
    };
    format!("{load} for {}", figure::duration_ns(summary.window.length_s * 1e9))
}

fn pinned(level: &LevelFinding) -> Vec<PinnedMetric> {
    let latency = &level.summary.latency;
    let mut found = Vec::new();
    for metric in [latency.ttft.as_ref(), latency.tpot.as_ref(), Some(&latency.e2e)].into_iter().flatten() {
        for (name, reading) in [("p50", &metric.p50), ("p95", &metric.p95), ("p99", &metric.p99)] {
            let Reading::Estimate(at) = reading else { continue };
            let words = |s: f64| figure::duration_ns(s * 1e9);
            found.push(PinnedMetric {
                what: format!("{} {name}", metric.metric),
                level: level.summary.level,
                value: format!("{} ({} to {})", words(at.value), words(at.lower), words(at.upper)),
            });
        }
    }
    found
}

/// Writes the baseline's file atomically.
///
/// # Errors
/// The name exists and `replace` is false; errors of the file system.
pub fn write(baseline: &NamedBaseline, replace: bool) -> Result<PathBuf, Stop> {
    let path = file(&baseline.name);
    if path.exists() && !replace {
        return Err(Stop::usage(format!("{}: this name is taken; --replace overwrites it", path.display())));
    }
    let io = |e: std::io::Error| Stop::usage(format!("{}: {e}", path.display()));
    std::fs::create_dir_all(FOLDER).map_err(io)?;
    let mut text = serde_json::to_string_pretty(baseline).unwrap_or_default();
    text.push('\n');
    let draft = path.with_extension(format!("json.{}", std::process::id()));
    std::fs::write(&draft, text).map_err(io)?;
    std::fs::rename(&draft, &path).map_err(io)?;
    Ok(path)
}

/// Reads a baseline's file.
///
/// # Errors
/// The file does not exist or can't be read.
pub fn read(name: &str) -> Result<NamedBaseline, Stop> {
    let path = file(name);
    let shown = path.display();
    if !is_name(name) || !path.exists() {
        let names = names()?;
        let hint =
            nearest(name, names.iter().map(String::as_str)).map(|near| format!("; did you mean {near}?"));
        return Err(Stop::usage(format!("{name}: no such baseline{}", hint.unwrap_or_default())));
    }
    let text = std::fs::read_to_string(&path).map_err(|e| crate::out::unread(&shown, &e))?;
    let baseline: NamedBaseline = serde_json::from_str(&text).map_err(|e| {
        Stop::usage(format!("{shown}: {e}; write this file with plimsoll baseline set, not with an editor"))
    })?;
    if baseline.schema != SCHEMA || baseline.name != name {
        return Err(Stop::usage(format!(
            "{shown}: contains layout {} of the name {}, expected layout {SCHEMA} of {name}",
            baseline.schema, baseline.name
        )));
    }
    Ok(baseline)
}

/// Returns the names of all baselines in alphabetical order.
pub fn names() -> Result<Vec<String>, Stop> {
    let entries = match std::fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Stop::usage(format!("{FOLDER}: {e}"))),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
        .filter(|name| is_name(name))
        .collect();
    names.sort();
    Ok(names)
}

pub fn file(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.json"))
}

/// Returns whether `text` is a valid baseline name on any file system.
pub fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= 64 && text.chars().all(fits) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Returns a path that is valid in every checkout: relative to the working directory if the run is below it.
fn portable(run: &Path) -> Result<PathBuf, Stop> {
    let io = |e: std::io::Error| Stop::usage(format!("{}: {e}", run.display()));
    let whole = run.canonicalize().map_err(io)?;
    let here = std::env::current_dir().and_then(|dir| dir.canonicalize()).map_err(io)?;
    Ok(whole.strip_prefix(&here).map(Path::to_path_buf).unwrap_or(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_that_every_file_system_takes() {
        for good in ["main", "v1.2", "2026-11-20_nightly"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "-x", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
