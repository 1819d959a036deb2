//! Reads traces from files of any format, compressed or not, from one file or a folder.
//!
//! The bytes of a file determine its format ([`plimsoll_wire::trace::feed`]). Its name matters only in a folder,
//! where other files are skipped. Files are read in pieces and each span is passed on when it is complete.
//! A command that counts or profiles spans therefore uses far less memory than the file.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use plimsoll_model::TraceSpan;
use plimsoll_report::figure::counted;
use plimsoll_store::ExportedTables;
use plimsoll_wire::trace::feed::{FeedResult, TraceFeed};
use plimsoll_wire::trace::{Notes, TraceError, TraceFormat, nsys};

use crate::exit::Stop;
use crate::out;

/// Maximum bytes in memory, after decompression, of a file that can only be read whole.
const HELD_MAX: usize = 8 << 30;
/// Bytes per read of a trace file: 1 MiB.
const PIECE: usize = 1 << 20;

/// Extensions of trace files in a folder.
const ENDINGS: &[&str] = &["json", "jsonl", "ndjson", "pb", "otlp", "binpb", "gz", "sqlite"];

/// Whether an earlier pass over the file reported the spans that were changed or left out.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum NoticeState {
    /// The first pass: the changes are reported on stderr.
    Never,
    /// An earlier pass reported them; the file is read a second time.
    Before,
}

/// Passes each span of a run folder, a file or all trace files of a folder (in order of name) to `take`.
///
/// # Errors
/// One line that names the file, what was expected and what was found; exit code 2.
pub fn each(path: &Path, told: NoticeState, take: &mut dyn FnMut(TraceSpan)) -> Result<(), Stop> {
    if ExportedTables::is_at(path, nsys::MARK) {
        return of_tables(path, told, take);
    }
    if !path.is_dir() {
        return of_file(path, told, take);
    }
    if path.join("run.json").exists() {
        return of_run(path, take);
    }
    traces_in(path)?.iter().try_for_each(|file| each(file, told, take))
}

/// Passes the spans of an export of Nsight Systems: an SQLite database, or a folder of Parquet files.
fn of_tables(path: &Path, told: NoticeState, take: &mut dyn FnMut(TraceSpan)) -> Result<(), Stop> {
    let stop = |e: plimsoll_store::StoreError| Stop::usage(e.to_string());
    let tables = ExportedTables::open(path).map_err(stop)?;
    let read = nsys::read(&mut |table, columns, each| tables.each_row(table, columns, each)).map_err(stop)?;
    let Some((spans, notes)) = read else {
        let name = path.display();
        return Err(Stop::usage(format!(
            "{name}: a database without tables of Nsight Systems; create it with `nsys export --type sqlite`"
        )));
    };
    let fed = FeedResult { format: TraceFormat::Nsys, spans: spans.len() as u64, notes };
    spans.into_iter().for_each(take);
    conclude(path, told, &fed)
}

fn of_run(folder: &Path, take: &mut dyn FnMut(TraceSpan)) -> Result<(), Stop> {
    let mut any = false;
    let read = plimsoll_store::each_span(folder, |span| {
        any = true;
        take(span);
    });
    read.map_err(|e| Stop::usage(e.to_string()))?;
    match any {
        true => Ok(()),
        false => Err(Stop::usage(format!("{}: a run without spans (no spans.parquet)", folder.display()))),
    }
}

fn traces_in(folder: &Path) -> Result<Vec<PathBuf>, Stop> {
    let wrong = |e: std::io::Error| crate::out::unread(folder.display(), &e);
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

/// Opens a file. Returns its bytes, decompressed if it starts as gzip, and whether it does.
fn opened(path: &Path) -> std::io::Result<(Box<dyn Read>, bool)> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    let is_gzip = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind()?;
    Ok((if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) }, is_gzip))
}

/// Passes a file's bytes to `take` in pieces, decompressed if it starts as gzip, until the end or until `take` breaks off.
/// Returns the error of a gzip stream that ended early; the bytes before the error were passed on.
pub fn pieces(
    path: &Path,
    mut take: impl FnMut(&[u8]) -> Result<ControlFlow<()>, Stop>,
) -> Result<Option<std::io::Error>, Stop> {
    let wrong = |e: std::io::Error| out::unread(path.display(), &e);
    let (mut bytes, is_gzip) = opened(path).map_err(wrong)?;
    let mut piece = vec![0; PIECE];
    loop {
        let n = match bytes.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if is_gzip && is_damage(e.kind()) => return Ok(Some(e)),
            Err(e) => return Err(wrong(e)),
        };
        if take(piece.get(..n).unwrap_or_default())?.is_break() {
            return Ok(None);
        }
    }
}

/// Reads a file whose format is detected from its first `head` bytes.
///
/// `begin` makes a reader from these bytes, or returns `None` for an unknown format; `push` gets the rest. A damaged gzip
/// stream is read up to the damage, with a note.
pub fn sniffed<F>(
    path: &Path,
    head: usize,
    mut begin: impl FnMut(&[u8]) -> Result<Option<F>, Stop>,
    mut push: impl FnMut(&mut F, &[u8]) -> Result<(), Stop>,
) -> Result<Option<F>, Stop> {
    let (mut held, mut feed, mut is_begun) = (Vec::new(), None, false);
    let damage = pieces(path, |read| {
        if let Some(feed) = &mut feed {
            push(feed, read)?;
            return Ok(ControlFlow::Continue(()));
        }
        held.extend_from_slice(read);
        if held.len() >= head {
            (feed, is_begun) = (begin(&std::mem::take(&mut held))?, true);
        }
        Ok(if is_begun && feed.is_none() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    note_damage(path, damage);
    if is_begun { Ok(feed) } else { begin(&held) }
}

/// Notes on stderr that the gzip stream of a file is damaged and was read up to the damage.
pub fn note_damage(path: &Path, damage: Option<std::io::Error>) {
    if let Some(e) = damage {
        let name = path.display();
        out::note(&format!("{name}: the gzip stream is cut off or damaged ({e}); the part before is read"));
    }
}

fn of_file(path: &Path, told: NoticeState, take: &mut dyn FnMut(TraceSpan)) -> Result<(), Stop> {
    let name = path.display();
    let mut feed = TraceFeed::default();
    let unread = |e: TraceError| Stop::usage(format!("{name}: {e}"));
    let damage = pieces(path, |bytes| {
        feed.push(bytes, take).map_err(unread)?;
        if feed.held() > HELD_MAX {
            let most = HELD_MAX >> 30;
            return Err(Stop::usage(format!("{name}: more than {most} GiB in one piece; split it by time")));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(e) = damage {
        return Err(Stop::usage(format!(
            "{name}: begins as gzip and is cut off or damaged ({e}); copy it again, whole"
        )));
    }
    conclude(path, told, &feed.end(take).map_err(unread)?)
}

/// Notes the changes of a file that was read. Fails if it has no span.
fn conclude(path: &Path, told: NoticeState, fed: &FeedResult) -> Result<(), Stop> {
    let name = path.display();
    if let Some(notices) = said(&fed.notes).filter(|_| told == NoticeState::Never) {
        out::note(&format!("{name} ({}): {notices}", fed.format.name()));
    }
    if fed.spans == 0 {
        return Err(Stop::usage(format!("{name}: {} without a span in it", fed.format.name())));
    }
    Ok(())
}

/// Returns whether a gzip reader's error means that the file is incomplete or damaged.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData)
}

/// Returns a summary of the spans that were changed or left out; `None` if there are none.
pub fn said(notes: &Notes) -> Option<String> {
    let counts = [
        (notes.refused, "span", "left out (no valid trace id, span id or start)"),
        (notes.unended, "span", "without an end (the start is used)"),
        (notes.backwards, "span", "with an end before the start (the start is used)"),
        (notes.unused, "event", "skipped (counters, instants, flows: no spans)"),
    ];
    let known = counts.iter().filter(|(n, _, _)| *n > 0);
    let mut parts: Vec<String> = known.map(|(n, one, what)| format!("{} {what}", counted(*n, one))).collect();
    if notes.unanchored {
        parts.push("no wall clock in it: times count from the start of the session".into());
    }
    if notes.cut_off {
        parts.push("the file is cut off inside an event; the events before are read".into());
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
