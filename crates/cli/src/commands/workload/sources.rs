//! The sources of `plimsoll workload`: files that are recognised by their content, runs, and folders of both.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_interop::logs::spans::Spans;
use plimsoll_interop::logs::{LogFeed, LogKind, UNDERSTOOD, sniff};
use plimsoll_model::{Attempt, LoggedRequest, Manifest, MediaCounts, RequestLog};
use plimsoll_report::figure::counted;

use crate::commands::workload::pages;
use crate::exit::Stop;
use crate::flags::FromLogArgs;
use crate::trace_file::{self, NoticeState};
use crate::{measure, out, rows};

/// Number of bytes for recognition, because start-up lines may precede the first request.
const HEAD: usize = 256 << 10;
/// Block size of a run in tokens.
const BLOCK_TOKENS: u32 = 16;

/// Reads and joins all sources.
pub fn read(args: &FromLogArgs) -> Result<RequestLog, Stop> {
    // All files use one random key, so that common prefixes stay common. The key is not stored.
    let key = args.hash_prompts.then(measure::random);
    // The spans of a trace may be in several files.
    let (mut spans, mut with_spans) = (Spans::new(key), None);
    let mut all: Option<(RequestLog, PathBuf)> = None;
    for source in &args.sources {
        let parts = parts(source)?;
        let mut unknown = 0;
        for file in &parts {
            let before = spans.requests();
            match one(file, args, key, &mut spans)? {
                SourceContent::Log(logged) => match &mut all {
                    None => all = Some((*logged, file.clone())),
                    Some((whole, first)) => join(whole, *logged, first, file)?,
                },
                SourceContent::Spans if spans.requests() > before => with_spans = Some(file.clone()),
                SourceContent::Spans | SourceContent::Nothing if file != source => unknown += 1,
                SourceContent::Spans => {
                    return Err(Stop::usage(format!(
                        "{}: a trace without token counts in its spans (gen_ai.usage.input_tokens, …)",
                        file.display()
                    )));
                }
                SourceContent::Nothing => return Err(nothing(source)),
            }
        }
        if unknown == parts.len() {
            return Err(nothing(source));
        }
        if unknown > 0 {
            let files = counted(parts.len() as u64, "file");
            out::note(&format!(
                "{}: {unknown} of {files} contain no known request and are skipped",
                source.display()
            ));
        }
    }
    match (all, spans.end().zip(with_spans)) {
        (Some((mut logged, first)), Some((of_spans, file))) => {
            join(&mut logged, of_spans, &first, &file)?;
            Ok(logged)
        }
        (Some((logged, _)), None) | (None, Some((logged, _))) => Ok(logged),
        (None, None) => Err(nothing(args.sources.first().map_or(Path::new(""), PathBuf::as_path))),
    }
}

enum SourceContent {
    Log(Box<RequestLog>),
    /// A trace; its spans are joined with the spans of the other files.
    Spans,
    Nothing,
}

fn nothing(source: &Path) -> Stop {
    Stop::usage(format!("{}: unknown log format; supported are {UNDERSTOOD}", source.display()))
}

/// Returns the source itself for a run or a file, or the runs and files of a folder.
fn parts(source: &Path) -> Result<Vec<PathBuf>, Stop> {
    if !source.is_dir() || is_run(source) {
        return Ok(vec![source.to_path_buf()]);
    }
    let wrong = |e: std::io::Error| out::unread(source.display(), &e);
    let mut parts = Vec::new();
    for entry in fs::read_dir(source).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_file() || is_run(&path) {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

fn is_run(path: &Path) -> bool {
    ["run.json", "records.log"].iter().any(|file| path.join(file).is_file())
}

/// Reads one file or run.
fn one(path: &Path, args: &FromLogArgs, key: Option<u64>, spans: &mut Spans) -> Result<SourceContent, Stop> {
    if path.is_dir() {
        return of_run(path, args).map(|logged| SourceContent::Log(Box::new(logged)));
    }
    if let Some(logged) = pages::of(path, args)? {
        return Ok(SourceContent::Log(Box::new(logged)));
    }
    match log(path, key)? {
        Some(logged) => Ok(SourceContent::Log(Box::new(logged))),
        None => match trace_file::each(path, NoticeState::Before, &mut |span| spans.push(&span)) {
            Ok(()) => Ok(SourceContent::Spans),
            Err(_) => Ok(SourceContent::Nothing),
        },
    }
}

/// Reads a log; `None` if the file is not a log.
fn log(path: &Path, key: Option<u64>) -> Result<Option<RequestLog>, Stop> {
    let name = path.display();
    let feed = trace_file::sniffed(
        path,
        HEAD,
        |head| begin(path, head, key),
        |feed, read| {
            feed.push(read);
            Ok(())
        },
    )?;
    let Some(feed) = feed else { return Ok(None) };
    let logged = feed.end();
    if logged.requests.is_empty() {
        let why = if logged.left_out.is_empty() {
            String::new()
        } else {
            format!(" ({})", logged.left_out.join("; "))
        };
        return Err(Stop::usage(format!("{name}: {}, and no request in it{why}", logged.source)));
    }
    Ok(Some(logged))
}

fn begin(path: &Path, head: &[u8], key: Option<u64>) -> Result<Option<LogFeed>, Stop> {
    let Some(kind) = sniff(head) else { return Ok(None) };
    if kind == LogKind::Combined {
        return Err(Stop::usage(format!(
            "{}: the combined format logs only the second in which a request ended, so its start is unknown; \
             log JSON with $msec (as ts), $request_time, $status, $uri and $upstream_status",
            path.display()
        )));
    }
    let mut feed = LogFeed::new(kind, key);
    feed.push(head);
    Ok(Some(feed))
}

/// Joins logs of one kind. Two kinds would count a request twice.
fn join(whole: &mut RequestLog, more: RequestLog, first: &Path, file: &Path) -> Result<(), Stop> {
    if whole.source != more.source
        || (whole.block_tokens != more.block_tokens && whole.block_tokens * more.block_tokens > 0)
    {
        return Err(Stop::usage(format!(
            "{} is {} and {} is {}: the same request may be in both; make a workload of one kind",
            first.display(),
            whole.source,
            file.display(),
            more.source
        )));
    }
    let (a, b) = (whole.requests.len() as f64, more.requests.len() as f64);
    whole.kept_share = (a + b) / (a / whole.kept_share + b / more.kept_share);
    whole.requests.extend(more.requests);
    whole.block_tokens = whole.block_tokens.max(more.block_tokens);
    whole.left_out.extend(more.left_out.into_iter().map(|line| format!("{}: {line}", file.display())));
    for line in more.blind {
        if !whole.blind.contains(&line) {
            whole.blind.push(line);
        }
    }
    Ok(())
}

/// Returns a level of a run: of a client, a gateway or an import.
fn of_run(dir: &Path, args: &FromLogArgs) -> Result<RequestLog, Stop> {
    let (run, level) = (rows::whole(dir)?, args.level);
    if run.attempts.is_empty() && !run.samples.is_empty() {
        return pages::logged(dir, &run.samples, run.manifest.clock.realtime_ns, args.seed);
    }
    let none = format!("{}: no level to take; name one with --level", dir.display());
    let level = match run.manifest.levels.as_slice() {
        [only] if level.is_none() => only.id,
        _ => rows::level(&run.findings, level, &none)?.level,
    };
    let of_level: Vec<&Attempt> = run.attempts.iter().filter(|one| one.level == level).collect();
    let requests = requests(&of_level, &run.manifest);
    if requests.is_empty() {
        return Err(Stop::usage(format!("{}: no request in level {level}", dir.display())));
    }
    let block_tokens = if requests.iter().any(|one| !one.blocks.is_empty()) { BLOCK_TOKENS } else { 0 };
    let other = run.attempts.len() - of_level.len();
    let left_out = (other > 0).then(|| format!("{} of other levels", counted(other as u64, "attempt")));
    let has_media = of_level.iter().any(|one| one.media != MediaCounts::default());
    let blind =
        has_media.then_some("pictures and sounds are not kept: their tokens are text in the workload");
    Ok(RequestLog {
        source: "a run",
        stamp: "the instant when it was due",
        tick_ns: 1,
        block_tokens,
        requests,
        left_out: left_out.into_iter().collect(),
        blind: blind.into_iter().collect(),
        kept_share: 1.0,
        is_relative: false,
        counts_only: None,
    })
}

/// Returns one request per group of attempts, in the order of arrival.
fn requests(attempts: &[&Attempt], manifest: &Manifest) -> Vec<LoggedRequest> {
    let mut sorted = attempts.to_vec();
    sorted.sort_by_key(|one| (one.request, one.attempt));
    let asked = |tokens: u32| Some(tokens).filter(|tokens| *tokens > 0);
    let of = |tries: &[&Attempt]| {
        let (first, last) = (tries.first()?, tries.last()?);
        let said = |of: fn(&Attempt) -> Option<u32>| tries.iter().rev().find_map(|one| of(one));
        let mut one =
            LoggedRequest::new(first.request + 1, manifest.clock.realtime_ns.saturating_add(first.due.0));
        one.prompt = said(|one| one.answer.tokens.prompt).or(asked(first.asked_prompt));
        one.cached = said(|one| one.answer.tokens.cached);
        // The length of an answer that was cut off is not its full length.
        let whole = last.outcome.is_finished();
        let output = said(|one| one.answer.tokens.output).filter(|_| whole);
        one.output = output.or(asked(first.asked_output)).or(said(|one| one.answer.tokens.output));
        one.session = first.session;
        one.how = last.outcome.how;
        one.tries = tries.len() as u32;
        one.blocks.clone_from(&first.prompt_blocks);
        Some(one)
    };
    sorted.chunk_by(|a, b| a.request == b.request).filter_map(of).collect()
}
