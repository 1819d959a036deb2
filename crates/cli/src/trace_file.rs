//! Traces from files: any format, compressed or not, one file or a folder of them.
//!
//! What a file is, its bytes say ([`plimsoll_wire::trace::feed`]); its name is looked at only where a folder is gone through,
//! to pass over what is certainly no trace. Files are read a piece at a time, and each span is handed on as soon as it is there: who counts or
//! profiles them holds far less than a file.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use plimsoll_model::TraceSpan;
use plimsoll_report::figure::counted;
use plimsoll_wire::trace::feed::TraceFeed;
use plimsoll_wire::trace::{Notes, TraceError};

use crate::exit::Stop;
use crate::out;

/// Most bytes of a file that are held, inflated: of one that can be read only whole.
const HELD_MAX: usize = 8 << 30;
/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Names that a folder's traces end with.
const ENDINGS: &[&str] = &["json", "jsonl", "ndjson", "pb", "otlp", "binpb", "gz"];

/// Has it been said before what could not be taken as it stood?
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Said {
    /// No: it is said on stderr.
    Never,
    /// Yes: the file is read a second time.
    Before,
}

/// The spans of a run folder, of a file, or of all trace files of a folder, in order of name, each handed on.
///
/// # Errors
/// One line that names the file, what was expected and what was found; exit code 2.
pub fn each(path: &Path, told: Said, take: &mut dyn FnMut(TraceSpan)) -> Result<(), Stop> {
    if !path.is_dir() {
        return of_file(path, told, take);
    }
    if path.join("run.json").exists() {
        return of_run(path, take);
    }
    traces_in(path)?.iter().try_for_each(|file| of_file(file, told, take))
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

/// A file's bytes, inflated where it begins as gzip, and whether it does.
fn opened(path: &Path) -> std::io::Result<(Box<dyn Read>, bool)> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    let is_gzip = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind()?;
    Ok((if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) }, is_gzip))
}

/// Hands on a file's bytes in pieces, inflated where it begins as gzip, to the end or until `take` breaks off. What is returned is why a gzip stream
/// ended before its end: what stands before was handed on.
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

/// Reads a file whose kind its first `head` bytes say: `begin` makes a reader of them, or none where they are of no kind that it knows, and `push` hands it
/// the rest. A damaged gzip stream is read as far as it goes, which is said.
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

/// Says of a file that its gzip stream is not whole, and that it was read as far as it goes.
pub fn note_damage(path: &Path, damage: Option<std::io::Error>) {
    if let Some(e) = damage {
        let name = path.display();
        out::note(&format!(
            "{name}: the gzip stream is cut off or damaged ({e}); what stands before is read"
        ));
    }
}

fn of_file(path: &Path, told: Said, take: &mut dyn FnMut(TraceSpan)) -> Result<(), Stop> {
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
    let fed = feed.end(take).map_err(unread)?;
    if let Some(said) = said(&fed.notes).filter(|_| told == Said::Never) {
        out::note(&format!("{name} ({}): {said}", fed.format.name()));
    }
    if fed.spans == 0 {
        return Err(Stop::usage(format!("{name}: {} without a span in it", fed.format.name())));
    }
    Ok(())
}

/// What a gzip reader says of a file that is not whole.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData)
}

/// What of a file was not taken as it stood; `None` where all was.
pub fn said(notes: &Notes) -> Option<String> {
    let counts = [
        (notes.refused, "span", "left out (no valid trace id, span id or start)"),
        (notes.unended, "span", "without an end (the beginning is taken for it)"),
        (notes.backwards, "span", "with an end before the beginning (which is taken for it)"),
        (notes.unused, "event", "passed over (counters, instants, flows: no spans)"),
    ];
    let known = counts.iter().filter(|(n, _, _)| *n > 0);
    let mut parts: Vec<String> = known.map(|(n, one, what)| format!("{} {what}", counted(*n, one))).collect();
    if notes.unanchored {
        parts.push("no wall clock in it: times count from the start of the session".into());
    }
    if notes.cut_off {
        parts.push("it is cut off in the middle of an event; what stands before it is read".into());
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
