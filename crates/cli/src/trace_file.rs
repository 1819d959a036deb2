//! Traces from files: any format, compressed or not, one file or a folder of them.
//!
//! What a file is, its bytes say ([`plimsoll_wire::trace::read`]); its name is looked at only where a folder is gone through,
//! to pass over what is certainly no trace.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use plimsoll_model::TraceSpan;
use plimsoll_wire::trace::{self, Notes};

use crate::exit::Stop;
use crate::out;

/// Largest file that is read, inflated, bytes: it is held in memory with its spans.
const FILE_MAX: u64 = 8 << 30;

/// Names that a folder's traces end with.
const ENDINGS: &[&str] = &["json", "jsonl", "ndjson", "pb", "otlp", "binpb", "sqlite", "gz"];

/// The spans of a run folder, of a file, or of all trace files of a folder, in order of name. What could not be taken as it stood is said on
/// stderr.
///
/// # Errors
/// One line that names the file, what was expected and what was found; exit code 2.
pub fn read(path: &Path) -> Result<Vec<TraceSpan>, Stop> {
    if !path.is_dir() {
        return read_file(path);
    }
    if path.join("run.json").exists() {
        return of_run(path);
    }
    let mut spans = Vec::new();
    for file in traces_in(path)? {
        spans.append(&mut read_file(&file)?);
    }
    Ok(spans)
}

/// The spans of a run folder.
fn of_run(folder: &Path) -> Result<Vec<TraceSpan>, Stop> {
    let spans = plimsoll_store::read_spans(folder).map_err(|e| Stop::usage(e.to_string()))?;
    if spans.is_empty() {
        return Err(Stop::usage(format!("{}: a run without spans (no spans.parquet)", folder.display())));
    }
    Ok(spans)
}

fn traces_in(folder: &Path) -> Result<Vec<PathBuf>, Stop> {
    let wrong = |e: std::io::Error| Stop::usage(format!("{}: {e}", folder.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_file() && ENDINGS.contains(&ending) {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        let endings = ENDINGS.join(", .");
        return Err(Stop::usage(format!("{}: no trace files in it (.{endings})", folder.display())));
    }
    Ok(files)
}

fn read_file(path: &Path) -> Result<Vec<TraceSpan>, Stop> {
    let bytes = contents(path)?;
    let parsed = trace::read(&bytes).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))?;
    if let Some(said) = said(&parsed.notes) {
        out::note(&format!("{} ({}): {said}", path.display(), parsed.format.name()));
    }
    if parsed.spans.is_empty() {
        return Err(Stop::usage(format!(
            "{}: {} without a span in it",
            path.display(),
            parsed.format.name()
        )));
    }
    Ok(parsed.spans)
}

/// The bytes of a file, inflated.
fn contents(path: &Path) -> Result<Vec<u8>, Stop> {
    let wrong = |e: std::io::Error| Stop::usage(format!("{}: {e}", path.display()));
    let mut file = File::open(path).map_err(wrong)?;
    let mut magic = [0; 2];
    let is_gzip = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind().map_err(wrong)?;
    let mut bytes = Vec::new();
    if is_gzip {
        let read = MultiGzDecoder::new(file).take(FILE_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|e| {
            let name = path.display();
            match e.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData => Stop::usage(
                    format!("{name}: begins as gzip and is cut off or damaged ({e}); copy it again, whole"),
                ),
                _ => wrong(e),
            }
        })?;
    } else {
        file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(wrong)?;
    }
    if bytes.len() as u64 > FILE_MAX {
        let most = FILE_MAX >> 30;
        return Err(Stop::usage(format!("{}: more than {most} GiB; split it by time", path.display())));
    }
    Ok(bytes)
}

/// What of a file was not taken as it stood; `None` where all was.
pub fn said(notes: &Notes) -> Option<String> {
    let counts = [
        (notes.refused, "spans left out (no valid trace id, span id or start)"),
        (notes.unended, "spans have no end: taken as ending where they began"),
        (notes.backwards, "spans end before they begin: taken as ending where they began"),
        (notes.unused, "events are no spans (counters, instants, flows) and were passed over"),
    ];
    let mut parts: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if notes.unanchored {
        parts.push("no wall clock in it: times count from the start of the session".into());
    }
    if notes.cut_off {
        parts.push("it is cut off in the middle of an event; what stands before it is read".into());
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
