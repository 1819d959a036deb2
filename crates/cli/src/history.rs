//! The history file of a baseline: `plimsoll-baselines/NAME.history.jsonl`, one result per line, append-only.
//!
//! A killed writer leaves an incomplete last line. The next writer ends that line first; readers skip invalid lines with a
//! note. Rewriting the whole file was rejected: two gates that end simultaneously would lose one of their results, and git
//! would show every line as changed.

use crate::rows;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use plimsoll_judge::history::{HISTORY_SCHEMA, HistoryEntry, LevelView, figures, load_key, measured};
use plimsoll_measure::findings::Findings;
use plimsoll_model::Manifest;
use plimsoll_report::figure;

use crate::baseline::{self, NamedBaseline};
use crate::exit::Stop;

pub fn file(name: &str) -> PathBuf {
    Path::new(baseline::FOLDER).join(format!("{name}.history.jsonl"))
}

/// Returns the result of a run as an entry of the history.
pub fn entry(
    run: &Path,
    version: Option<&str>,
    verdict: Option<&str>,
    manifest: &Manifest,
    findings: &Findings,
) -> HistoryEntry {
    let views = || measured(findings).map(|level| LevelView::from(&level.summary));
    let engine = manifest.target.facts.get("engine_version").cloned().flatten();
    HistoryEntry {
        schema: HISTORY_SCHEMA,
        measured: figure::date(manifest.clock.realtime_ns),
        id: manifest.id.clone(),
        run: run.display().to_string(),
        version: version.map(str::to_owned).or(engine),
        verdict: verdict.map(str::to_owned),
        trust: findings.validity.verdict,
        load: load_key(views()),
        metrics: figures(views()),
        cut: findings
            .levels
            .iter()
            .filter_map(|level| {
                Some(format!("level {}, {}", level.summary.level, level.summary.window.cut_words()?))
            })
            .collect(),
    }
}

/// Appends a result to a baseline's history, whose first entry is the baseline. Returns `false` if the run is in it already.
///
/// # Errors
/// The file can't be written; for the first result, the baseline's run can't be read.
pub fn record(baseline: &NamedBaseline, entry: &HistoryEntry) -> Result<bool, Stop> {
    let path = file(&baseline.name);
    let (known, _) = read(&baseline.name)?;
    if known.iter().any(|old| old.id == entry.id) {
        return Ok(false);
    }
    if known.is_empty() && baseline.id != entry.id {
        baseline::unchanged(baseline)?;
        let (manifest, findings) = rows::load(&baseline.run)?;
        let first = self::entry(&baseline.run, baseline.version.as_deref(), None, &manifest, &findings);
        append(&path, &first)?;
    }
    append(&path, entry)?;
    Ok(true)
}

fn append(path: &Path, entry: &HistoryEntry) -> Result<(), Stop> {
    let wrong = |e: io::Error| Stop::usage(format!("{}: {e}", path.display()));
    std::fs::create_dir_all(baseline::FOLDER).map_err(wrong)?;
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(wrong)?;
    // A failed lock is ignored, because some network file systems have no locks; one line is one write there.
    let _ = file.lock();
    let mut line = serde_json::to_vec(entry).map_err(|e| wrong(io::Error::other(e)))?;
    line.push(b'\n');
    if !ends_with_a_line(&mut file).map_err(wrong)? {
        line.insert(0, b'\n');
    }
    file.write_all(&line).and_then(|()| file.sync_data()).map_err(wrong)
}

fn ends_with_a_line(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Returns all results of a name in file order, and the errors of unreadable lines.
///
/// # Errors
/// The file can't be read; a missing file is an empty history.
pub fn read(name: &str) -> Result<(Vec<HistoryEntry>, Vec<String>), Stop> {
    let path = file(name);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
        Err(e) => return Err(Stop::usage(format!("{}: {e}", path.display()))),
    };
    let (mut entries, mut notes) = (Vec::new(), Vec::new());
    for (i, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        match serde_json::from_slice::<HistoryEntry>(line) {
            Ok(entry) if entry.schema == HISTORY_SCHEMA => entries.push(entry),
            Ok(entry) => {
                notes.push(format!("line {} has layout {}: another plimsoll reads it", i + 1, entry.schema))
            }
            Err(e) if e.is_eof() => notes.push(format!("line {} was cut off while it was written", i + 1)),
            Err(e) => notes.push(format!("line {} is no result: {e}", i + 1)),
        }
    }
    Ok((entries, notes.into_iter().map(|note| format!("{}: {note}; skipped", path.display())).collect()))
}
