//! `plimsoll collect` receives OTLP spans and writes them to a run folder.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_client::clock::Clock;
use plimsoll_model::{Fingerprint, Manifest, RunState, TimeBase, TraceSpan};
use plimsoll_profile::traces::{Overview, SpanCounter};
use plimsoll_report::figure;
use plimsoll_server::ServeError;
use plimsoll_server::collector::{self, CollectStopper, CollectorConfig, IntakeCounts, SpanSink};
use plimsoll_store::{RunWriter, StoreError};
use plimsoll_workload::units::parse_span;
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{CollectArgs, OutputArgs, OutputFormat};
use crate::measure;
use crate::out;
use crate::screen::{KeyWatch, Screen};

/// The run kind of collected spans.
pub const KIND: &str = "collect";
/// Polling interval of the end condition.
const POLL: Duration = Duration::from_millis(50);

/// Collects spans until it is stopped, and prints a summary.
pub fn run(args: &CollectArgs) -> Result<Exit, Stop> {
    let config = config(args)?;
    let most_ns = args.time.as_deref().map(parse_span).transpose();
    let most_ns = most_ns.map_err(|e| Stop::usage(format!("--for: {e}")))?.map(|span| span.0);
    if most_ns.is_some_and(|ns| ns <= 0) {
        return Err(Stop::usage("--for: a time above 0, such as 10m"));
    }
    let output = OutputArgs { out: args.out.clone(), label: None, format: args.format, quiet: args.quiet };
    let dir = measure::folder(&output, "collect")?;
    let clock = Clock::start();
    let writer = RunWriter::create(&dir, manifest(args, &clock)).map_err(kept)?;
    let writer = std::sync::Arc::new(writer);
    let collecting =
        collector::collect(config, Keep(std::sync::Arc::clone(&writer))).map_err(|e| give_up(&dir, &e))?;
    let stopper = collecting.stopper();
    let _watch = watch(args, &stopper);
    let mut screen = Screen::new(args.quiet);
    for addr in collecting.addrs() {
        // Parent processes wait for these lines, so they are printed even with `--quiet`.
        out::note(&format!("listening on {addr} (OTLP over gRPC and HTTP)"));
    }
    screen.say(&format!("writing {}; Ctrl-C ends it", dir.display()));
    wait(&stopper, &clock, most_ns, &mut screen);
    stopper.stop();
    let ended = collecting.wait();
    let counts = stopper.counts();
    let writer = std::sync::Arc::into_inner(writer)
        .ok_or_else(|| Stop::invalid(format!("{}: still in use", dir.display())))?;
    let mut manifest = writer.manifest();
    manifest.findings = Some(json!({ "collected": said(&counts) }));
    if let Err(why) = &ended {
        manifest.progress = RunState::Partial { why: why.clone() };
    }
    writer.finish(manifest).map_err(kept)?;
    ended.map_err(|why| Stop::invalid(format!("{}: {why}; acknowledged spans are kept", dir.display())))?;
    show(args, &dir, &counts)
}

/// Prints the summary. Returns the exit code for a missing source if there are no spans.
fn show(args: &CollectArgs, dir: &std::path::Path, counts: &IntakeCounts) -> Result<Exit, Stop> {
    let overview = overview(dir).map_err(|e| Stop::invalid(e.to_string()))?;
    match args.format {
        OutputFormat::Json => {
            let folder = dir.display().to_string();
            out::json(&json!({"folder": folder, "collected": said(counts), "overview": overview}));
        }
        OutputFormat::Text => {
            out::line(&plimsoll_report::traces::text(&overview));
            out::line(&sentence(counts));
            out::line(&format!("Folder: {}", dir.display()));
        }
    }
    Ok(if overview.spans == 0 { Exit::Unreachable } else { Exit::Done })
}

/// Returns a summary of a folder. Spans are counted while they are read, because they may exceed the memory.
pub fn overview(dir: &std::path::Path) -> Result<Overview, StoreError> {
    let mut counting = SpanCounter::default();
    plimsoll_store::each_span(dir, |span| counting.add(&span))?;
    Ok(counting.end())
}

fn said(counts: &IntakeCounts) -> serde_json::Value {
    json!({
        "requests": counts.requests,
        "spans": counts.spans,
        "rejected_spans": counts.rejected,
        "mended_spans": counts.mended,
        "refused_requests": counts.refused,
        "malformed_requests": counts.malformed,
        "other_requests": counts.elsewhere,
        "tls_connections": counts.tls,
    })
}

fn sentence(counts: &IntakeCounts) -> String {
    let mut text = format!(
        "{} in {}",
        figure::counted(counts.spans, "span"),
        figure::counted(counts.requests, "request")
    );
    let rest = [
        (counts.rejected, "span", "rejected because of invalid ids (reported to the sender)"),
        (counts.mended, "span", "without an end, or with an end before the start (the start is used)"),
        (counts.refused, "request", "rejected with a retry hint"),
        (counts.malformed, "request", "unreadable or too large"),
        (counts.elsewhere, "request", "for something other than traces"),
        (
            counts.tls,
            "connection",
            "in TLS, which is not supported: set an http:// address in the exporter (gRPC: insecure)",
        ),
    ];
    for (n, one, what) in rest.iter().filter(|(n, _, _)| *n > 0) {
        text.push_str(&format!("; {} {what}", figure::counted(*n, one)));
    }
    text
}

fn config(args: &CollectArgs) -> Result<CollectorConfig, Stop> {
    let listen = args.listen.iter().map(|text| address(text)).collect::<Result<Vec<_>, Stop>>()?;
    let mut config = CollectorConfig::new(listen);
    config.pending_bytes = (args.pending << 20) as usize;
    config.body_bytes = config.body_bytes.min(config.pending_bytes);
    config.max_spans = args.max_spans;
    Ok(config)
}

/// Parses a listen address; `:4317` and `4317` listen on loopback only.
fn address(text: &str) -> Result<SocketAddr, Stop> {
    let text = text.trim();
    let port = text.strip_prefix(':').unwrap_or(text);
    let whole = if port.bytes().all(|b| b.is_ascii_digit()) && !port.is_empty() {
        format!("127.0.0.1:{port}")
    } else {
        text.replace("localhost:", "127.0.0.1:")
    };
    whole.parse().map_err(|_| {
        Stop::usage(format!(
            "--listen {text}: write :PORT (this machine only) or ADDRESS:PORT such as 0.0.0.0:4317"
        ))
    })
}

fn manifest(args: &CollectArgs, clock: &Clock) -> Manifest {
    let axis = (TimeBase::Real, clock.anchor());
    let reproduce = format!("plimsoll collect --listen {}", args.listen.join(","));
    let begun = plimsoll_watchd::observed::manifest(
        KIND,
        axis,
        Fingerprint::default(),
        json!({"listen": args.listen}),
    );
    Manifest { reproduce, ..begun }
}

/// Stops the receiver on Ctrl-C, or at the end of the parent process with `--until-stdin-ends`.
fn watch(args: &CollectArgs, stopper: &CollectStopper) -> KeyWatch {
    if args.until_stdin_ends {
        let stopper = stopper.clone();
        std::thread::spawn(move || {
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            stopper.stop();
        });
    }
    let on_signal = stopper.clone();
    KeyWatch::start(!args.quiet && !args.until_stdin_ends, move || on_signal.stop())
}

/// Waits until a stop or the time limit.
fn wait(stopper: &CollectStopper, clock: &Clock, most_ns: Option<i64>, screen: &mut Screen) {
    while !stopper.is_stopping() {
        let elapsed = clock.now().0;
        if most_ns.is_some_and(|most| elapsed >= most) {
            return;
        }
        let line = sentence(&stopper.counts());
        screen.show(elapsed as f64 / 1e9, std::slice::from_ref(&line), &line);
        std::thread::sleep(POLL);
    }
}

/// A span sink that writes to the run folder. The kept spans survive a kill of this process.
struct Keep(std::sync::Arc<RunWriter>);

impl SpanSink for Keep {
    fn keep(&mut self, spans: &[TraceSpan]) -> Result<(), String> {
        let sink = self.0.sink();
        spans.iter().for_each(|span| sink.span(span));
        self.0.flush().map_err(|e| e.to_string())
    }
}

/// Removes the new folder, because no spans were collected.
fn give_up(dir: &std::path::Path, error: &ServeError) -> Stop {
    let _ = std::fs::remove_dir_all(dir);
    let in_use = matches!(error, ServeError::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse);
    let hint = if in_use { "; name another port with --listen, or 0 for a free one" } else { "" };
    Stop::usage(format!("{error}{hint}"))
}

fn kept(error: StoreError) -> Stop {
    match error {
        StoreError::Exists { .. } => Stop::usage(error.to_string()),
        other => Stop::invalid(other.to_string()),
    }
}
