//! Reads a history: shows its contents, and writes a time range of it as one run. Every command that reads an
//! alert window can read that run.

use std::path::{Path, PathBuf};

use plimsoll_client::clock::realtime_ns;
use plimsoll_console::exit::{Exit, Stop};
use plimsoll_console::numbered::size;
use plimsoll_console::out;
use plimsoll_console::out::OutputFormat;
use plimsoll_model::{At, ClockAnchor, Span};
use plimsoll_profile::names::instant_ns;
use plimsoll_report::kept as words;
use plimsoll_store::StoreError;
use plimsoll_watch::history::{Grain, HistoryBlock, KeptStretch, fold};
use plimsoll_workload::parse_span;

use super::Head;
use super::folders::{self, BlocksFolder, BlocksRead, in_order};
use crate::record::{WatchedSource, WindowNote};

/// Returns whether the folder contains a history.
pub fn is_history(dir: &Path) -> bool {
    !dir.join(plimsoll_store::folder::MANIFEST).exists() && !folders::list(dir).is_empty()
}

/// A time range of a history, and the run to write it to. Times are as [`instant`] parses them.
pub struct CutSpec {
    pub history: PathBuf,
    /// Start; `None` for the start of the history.
    pub from: Option<String>,
    /// End; `None` for now.
    pub to: Option<String>,
    /// Start of the change; earlier blocks become the baseline.
    pub since: Option<String>,
    /// Run folder to create.
    pub out: PathBuf,
    pub format: OutputFormat,
}

/// Writes a time range of a history as a run.
///
/// # Errors
/// Fails if a time is wrong, the history has no data of it, or the run can't be written.
pub fn run(args: &CutSpec) -> Result<Exit, Stop> {
    let (dir, run) = (args.history.as_path(), &args.out);
    let now_ns = realtime_ns();
    let from = instant("--from", args.from.as_ref(), now_ns)?.unwrap_or(i64::MIN);
    let to = instant("--to", args.to.as_ref(), now_ns)?.unwrap_or(i64::MAX);
    let since = instant("--since", args.since.as_ref(), now_ns)?;
    let is_in = |block: &HistoryBlock| (from..to).contains(&block.from.0);
    let Stretch { blocks, grain, note, of } = stretch(dir, is_in)?;
    let Some(first) = blocks.first() else {
        return Err(Stop::usage(format!(
            "watch cut: the history has no data of that time; list its range: plimsoll show {}",
            dir.display()
        )));
    };
    // The time axis of the run starts with its first block.
    let clock = ClockAnchor { realtime_ns: first.from.0, ..of.clock };
    let mut head = Head::of(note, WatchedSource { clock, ..of });
    head.since = since.map(|since| At(since) - Span(first.from.0));
    folders::write(run, &head, (grain, Vec::new()), &blocks).map_err(unwritten)?;
    let told = KeptStretch::of(grain, &blocks, size(run));
    match args.format {
        OutputFormat::Text => out::line(&words::cut(&run.display().to_string(), &told)),
        OutputFormat::Json => out::json(&told),
    }
    Ok(Exit::Done)
}

/// Prints the contents of a history: one row per block length.
pub fn show(dir: &Path, format: OutputFormat) -> Result<Exit, Stop> {
    let mut told: Vec<KeptStretch> = Vec::new();
    for grain in Grain::ALL.into_iter().rev() {
        let own: Vec<BlocksFolder> =
            folders::parted(dir).0.into_iter().filter(|folder| folder.grain == grain).collect();
        let bytes = own.iter().map(|folder| size(&folder.dir)).sum();
        let blocks = own.iter().map(BlocksFolder::read).collect::<Result<Vec<BlocksRead>, _>>();
        let blocks = blocks.map_err(unread)?.into_iter().flat_map(|read| read.blocks).collect();
        let blocks = in_order(blocks);
        told.extend((!blocks.is_empty()).then(|| KeptStretch::of(grain, &blocks, bytes)));
    }
    match format {
        OutputFormat::Text => out::line(&words::kept(&told)),
        OutputFormat::Json => out::json(&told),
    }
    Ok(Exit::Done)
}

/// Returns all blocks of a history, folded to one length. Their times are ns since 1970.
///
/// # Errors
/// Fails if the folder is no history or can't be read.
pub fn blocks(dir: &Path) -> Result<Vec<HistoryBlock>, Stop> {
    stretch(dir, |_| true).map(|all| all.blocks)
}

/// Blocks of one length with their source. Their times are ns since 1970.
struct Stretch {
    blocks: Vec<HistoryBlock>,
    grain: Grain,
    note: WindowNote,
    of: WatchedSource,
}

/// Returns the selected blocks, folded to the longest block length among them, because readers of a run
/// expect an even interval.
fn stretch(dir: &Path, is_in: impl Fn(&HistoryBlock) -> bool) -> Result<Stretch, Stop> {
    if !is_history(dir) {
        return Err(Stop::usage(format!(
            "{}: is no history; a watch writes one with --history DIR",
            dir.display()
        )));
    }
    let (mut blocks, mut grain, mut head) = (Vec::new(), Grain::Seconds, None);
    for folder in folders::parted(dir).0 {
        let read = folder.read().map_err(unread)?;
        let own: Vec<HistoryBlock> = read.blocks.into_iter().filter(&is_in).collect();
        if !own.is_empty() || head.is_none() {
            grain = if own.is_empty() { grain } else { grain.max(folder.grain) };
            head = Some((read.note, read.of));
        }
        blocks.extend(own);
    }
    let (note, of) = head.ok_or_else(|| Stop::usage(format!("{}: is empty", dir.display())))?;
    Ok(Stretch { blocks: fold(in_order(blocks), grain, 0), grain, note, of })
}

/// Parses a time in ns since 1970. The text is an RFC 3339 time, seconds since 1970, or a duration before
/// now.
fn instant(flag: &str, text: Option<&String>, now_ns: i64) -> Result<Option<i64>, Stop> {
    let ago = |text: &str| parse_span(text).ok().map(|ago| now_ns - ago.0);
    let seconds = |text: &str| text.parse::<i64>().ok().and_then(|s| s.checked_mul(1_000_000_000));
    let read = |text: &String| instant_ns(text).or_else(|| seconds(text)).or_else(|| ago(text));
    let wrong = |text: &String| {
        Stop::usage(format!(
            "{flag} {text}: write a time such as 2026-11-25T14:30:00Z, seconds since 1970, or how long ago it was: 2h"
        ))
    };
    text.map(|text| read(text).ok_or_else(|| wrong(text))).transpose()
}

fn unread(error: StoreError) -> Stop {
    Stop::usage(error.to_string())
}

fn unwritten(error: StoreError) -> Stop {
    match error {
        StoreError::Exists { .. } => Stop::usage(error.to_string()),
        other => Stop::invalid(other.to_string()),
    }
}
