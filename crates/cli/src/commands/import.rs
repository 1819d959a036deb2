//! `plimsoll import` reads the result of another tool, checks its consistency, measures it by Plimsoll's
//! definitions, and writes it as a run.
//!
//! Files are recognised by their first bytes. In a folder, every known file is read and the rest is skipped,
//! so that rows and aggregates in separate files are combined. Only numbers are copied: no prompt, answer,
//! header or command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_interop::imported::{self, ImportFinding};
use plimsoll_interop::results::{FileRead, ForeignError, ForeignFeed, UNDERSTOOD, assemble, sniff};
use plimsoll_model::run::SCHEMA_VERSION;
use plimsoll_model::{
    ClockAnchor, Fingerprint, Foreign, ForeignClock, ForeignDue, Host, Manifest, RunState, TimeBase,
};
use plimsoll_report::figure::counted;
use plimsoll_store::RunWriter;
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{ImportArgs, OutputArgs, OutputFormat};
use crate::measure::{self, random};
use crate::out;
use crate::trace_file;

/// Number of leading bytes that format recognition reads.
const HEAD: usize = 64 << 10;
/// Maximum size of a document in bytes, because documents can't be read in pieces.
const HELD_MAX: usize = 8 << 30;
/// Maximum number of files in a folder, and the maximum depth.
const FILES_MAX: usize = 4_000;
const DEEP: usize = 3;

/// Imports a result and prints it.
pub fn run(args: &ImportArgs) -> Result<Exit, Stop> {
    let output =
        OutputArgs { out: args.out.clone(), label: args.label.clone(), format: args.format, quiet: true };
    if args.out.is_some() {
        // An existing folder is rejected before a long file is read.
        measure::folder(&output, "import")?;
    }
    let mut read = read(&args.source)?;
    let imported = imported::import(&mut read);
    match args.format {
        OutputFormat::Text => out::line(&plimsoll_report::import::text(&imported)),
        OutputFormat::Json => out::json(&imported),
    }
    if let Some(dir) = &args.out {
        let requests = write(dir, args, &read, &imported)?;
        out::note(&format!("{}: {} of {}", dir.display(), counted(requests, "request"), imported.tool));
    }
    Ok(Exit::Done)
}

// -------------------------------------------------------------------------------------------- reading

fn read(source: &Path) -> Result<Foreign, Stop> {
    let name = source.display();
    let wrong = |e: ForeignError| Stop::usage(format!("{name}: {e}"));
    if !source.is_dir() {
        let taken = take(source)?.ok_or_else(|| wrong(ForeignError::Unknown))?;
        return assemble(&[taken]).map_err(wrong);
    }
    if source.join("run.json").exists() {
        return Err(Stop::usage(format!("{name}: a run of Plimsoll's own; plimsoll show {name} prints it")));
    }
    let mut files = Vec::new();
    list(source, 0, &mut files)?;
    files.sort();
    let mut taken = Vec::new();
    for file in &files {
        taken.extend(take(file)?);
    }
    if taken.is_empty() {
        let files = counted(files.len() as u64, "file");
        return Err(Stop::usage(format!(
            "{name}: none of its {files} is a result; supported are {UNDERSTOOD}"
        )));
    }
    assemble(&taken).map_err(wrong)
}

fn list(folder: &Path, deep: usize, files: &mut Vec<PathBuf>) -> Result<(), Stop> {
    let wrong = |e: std::io::Error| out::unread(folder.display(), &e);
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() && deep < DEEP && !path.is_symlink() {
            list(&path, deep + 1, files)?;
        } else if path.is_file() && files.len() < FILES_MAX {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads a file to its end; `None` if the file is not a known result.
fn take(path: &Path) -> Result<Option<FileRead>, Stop> {
    let name = path.display();
    // A damaged file is read up to the damage. Its incomplete document reports the cut.
    let feed = trace_file::sniffed(path, HEAD, begin, |feed, read| {
        feed.push(read);
        if feed.held() > HELD_MAX {
            let most = HELD_MAX >> 30;
            return Err(Stop::usage(format!("{name}: more than {most} GiB in one document; split it")));
        }
        Ok(())
    })?;
    Ok(feed.map(ForeignFeed::end))
}

fn begin(head: &[u8]) -> Result<Option<ForeignFeed>, Stop> {
    let Some(kind) = sniff(head.get(..HEAD).unwrap_or(head)) else { return Ok(None) };
    let mut feed = ForeignFeed::new(kind);
    feed.push(head);
    Ok(Some(feed))
}

// -------------------------------------------------------------------------------------------- writing

/// Writes the run. Returns its number of requests.
fn write(dir: &Path, args: &ImportArgs, read: &Foreign, imported: &ImportFinding) -> Result<u64, Stop> {
    let Some((levels, attempts)) = imported::levels(read) else {
        return Err(Stop::usage(format!(
            "-o {}: {} has no start times, so no run is written; only the figures are printed",
            dir.display(),
            read.tool
        )));
    };
    let mut manifest = manifest(args, read, imported);
    let kept = |e: plimsoll_store::StoreError| Stop::invalid(e.to_string());
    let writer = RunWriter::create(dir, manifest.clone()).map_err(kept)?;
    for attempt in &attempts {
        writer.attempt(attempt);
    }
    for level in &levels {
        writer.level(level).map_err(kept)?;
    }
    manifest.levels = levels;
    let findings = measure::findings(&manifest, &attempts, &[]);
    manifest.findings = serde_json::to_value(&findings).ok();
    writer.finish_with(manifest, &attempts, &[]).map_err(kept)?;
    Ok(attempts.len() as u64)
}

fn manifest(args: &ImportArgs, read: &Foreign, imported: &ImportFinding) -> Manifest {
    let wall =
        read.parts.iter().flat_map(|part| part.rows.iter().filter_map(|row| row.due.or(row.sent))).min();
    let clock = match (read.clock, wall) {
        (ForeignClock::Wall, Some(ns)) => ClockAnchor { monotonic_ns: 0, realtime_ns: ns },
        (_, Some(ns)) => ClockAnchor { monotonic_ns: ns, realtime_ns: 0 },
        _ => ClockAnchor::default(),
    };
    let by = match &read.version {
        Some(version) => format!("{} {version}", read.tool),
        None => read.tool.to_owned(),
    };
    let mut facts: BTreeMap<String, Option<String>> = BTreeMap::new();
    facts.insert("measured_by".into(), Some(by));
    facts.insert("model".into(), read.model.clone());
    let url = read.url.as_deref().map(without_user).unwrap_or_else(|| format!("imported:{}", read.tool));
    // Facts that no single load setting represents are listed, so that a comparison detects a difference.
    let due: Vec<ForeignDue> = read.parts.iter().map(|part| part.due).collect();
    let scenario = json!({
        "imported": {
            "tool": read.tool,
            "version": read.version,
            "format": read.format,
            "clock": read.clock,
            "due": due,
            "not_excluded": imported.not_excluded,
        },
        "target": {"url": url, "model": read.model},
    });
    Manifest {
        schema: SCHEMA_VERSION,
        tool: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
        kind: "import".into(),
        id: format!("{:016x}", random()),
        label: args.label.clone(),
        progress: match &read.partial {
            Some(why) => RunState::Partial { why: why.clone() },
            None => RunState::Running,
        },
        time: TimeBase::Real,
        clock,
        seed: read.parts.iter().find_map(|part| part.seed).unwrap_or_default(),
        nonce: 0,
        reproduce: format!("plimsoll import {}", args.source.display()),
        repeats: None,
        shard: None,
        shards: Vec::new(),
        host: Host::default(),
        target: Fingerprint { url, facts },
        flags: Vec::new(),
        scenario,
        levels: Vec::new(),
        findings: None,
    }
}

/// Returns a URL without user info and query, because they may contain a key.
fn without_user(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = host.rsplit('@').next().unwrap_or(host);
            path.map_or(format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
        }
        None => url.to_owned(),
    }
}
