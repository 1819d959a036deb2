//! What does an open stream cost? Memory of the client with N slow streams open, and the slope over N:
//! `cargo bench -p plimsoll --bench streams`. Words: `streams=1000,2000,4000,8000`.
//!
//! The canned engine is slowed to a token every two seconds, so that all streams are open long before the first ends
//! and little of what is measured is events. The client's `VmRSS` is read when the engine counts N running, and again
//! a few tokens later. The slope between the least and the largest N is the bar: the intercept (code, runtime, buffers
//! of the run folder) is no stream's.
//!
//! `part=versions` alone: what an event costs over HTTP/1.1 and over HTTP/2, with as many streams on a connection as the server takes and
//! with one, in the clear and over TLS, in turns (A B C C B A), so that what the machine does meanwhile falls on all.

mod kit;

use std::process::ExitCode;

use kit::{Args, Client, Engine, Ran, Result, bar, monotonic_ns, say, status_kib, wait_until};

/// Per open stream, at most.
const BAR_KIB: f64 = 24.0;
/// Tokens of an answer, two seconds apart.
const TOKENS: u32 = 10;
/// All streams must be open within this time.
const PATIENCE_NS: i64 = 30_000_000_000;
/// From the moment all are open to the second reading: three tokens and a half.
const LATER_NS: i64 = 7_000_000_000;

const SLOW: &str = r#"{"name": "slow", "mode": {"kind": "canned",
  "ttft": {"law": "uniform", "low_ms": 3000, "high_ms": 5000}, "gap": {"law": "deterministic", "ms": 2000}}}"#;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        if args.get("part") == Some("versions") {
            return versions(args.number("seconds", 10.0)?);
        }
        let counts = args.numbers("streams", &[1000, 2000, 4000, 8000])?;
        let readings = counts.iter().map(|n| measure(*n)).collect::<Result<Vec<_>>>()?;
        let (Some(first), Some(last)) = (readings.first(), readings.last()) else { return Ok(()) };
        if last.streams > first.streams {
            let per_stream =
                |to: u64, from: u64| (to as f64 - from as f64) / (last.streams - first.streams) as f64;
            let open = per_stream(last.open_kib, first.open_kib);
            let later = per_stream(last.later_kib, first.later_kib);
            bar("KiB per stream, just open", format!("{open:.1}"), "≤ 24", open <= BAR_KIB);
            bar("KiB per stream, after three tokens", format!("{later:.1}"), "≤ 24", later <= BAR_KIB);
        }
        let held = readings.iter().all(|reading| reading.finished == reading.streams);
        bar("most streams held, all finished", last.streams, "8000", held && last.streams >= 8000);
        Ok(())
    })
}

/// 500 streams of 50 tokens a second each.
const STEADY: &str = r#"{"name": "steady", "mode": {"kind": "canned",
  "ttft": {"law": "uniform", "low_ms": 20, "high_ms": 40}, "gap": {"law": "deterministic", "ms": 20}}}"#;

/// Worker CPU of an event by the version of HTTP.
fn versions(seconds: f64) -> Result<()> {
    let ways: [(&str, bool, &[&str]); 5] = [
        ("HTTP/1.1", false, &[]),
        ("HTTP/2", false, &["--http", "2"]),
        ("HTTP/2, one stream a connection", false, &["--http", "2", "--streams-per-connection", "1"]),
        ("HTTP/1.1 over TLS", true, &[]),
        ("HTTP/2 over TLS", true, &["--http", "2"]),
    ];
    let window = format!("{seconds}s");
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let folder = tempfile::tempdir()?;
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let (serves, trusts) = (["--tls-cert", &cert, "--tls-key", &key], ["--ca-file", cert.as_str()]);
    let mut spent = [(0.0, 0.0); 5];
    for way in (0..ways.len()).chain((0..ways.len()).rev()) {
        let engine = Engine::start_with(STEADY, if ways[way].1 { &serves } else { &[] })?;
        let load = ["--concurrency", "500", "--for", &window, "--osl", "200", "--isl", "16"];
        let trust: &[&str] = if ways[way].1 { &trusts } else { &[] };
        let ran = Ran::run(&engine.url, &[&load[..], trust, ways[way].2].concat())?;
        engine.stop()?;
        let generator = &ran.level()?.generator;
        let (cpu_s, events) = (ran.workers_cpu_s()?, generator.events as f64);
        say(format!(
            "{}: {:.2} µs CPU an event, {events} events, {:.1} % coalesced, {} sockets; user − kernel p50 {} µs, p99 {} µs; {}",
            ways[way].0,
            1e6 * cpu_s / events,
            100.0 * generator.events_coalesced as f64 / events,
            generator.sockets_max,
            generator.user_delay.p50_ns / 1000,
            generator.user_delay.p99_ns / 1000,
            ran.verdict()
        ));
        spent[way].0 += cpu_s;
        spent[way].1 += events;
    }
    let each = |way: usize| spent[way].0 / spent[way].1;
    for (way, (name, ..)) in ways.iter().enumerate().skip(1) {
        say(format!("{name}: {:.2} times HTTP/1.1", each(way) / each(0)));
    }
    Ok(())
}

struct Reading {
    streams: u64,
    open_kib: u64,
    later_kib: u64,
    finished: u64,
}

fn measure(streams: u64) -> Result<Reading> {
    let engine = Engine::start(SLOW)?;
    let (concurrency, tokens) = (streams.to_string(), TOKENS.to_string());
    // Every stream outlives the window, so that each of the N places is taken exactly once.
    let load =
        ["--concurrency", &concurrency, "--for", "1s", "--osl", &tokens, "--isl", "16", "--timeout", "2m"];
    let client = Client::start(&engine.url, &load)?;
    let given_up_ns = monotonic_ns() + PATIENCE_NS;
    // Before the level the engine has seen the calibration alone, and never N at once.
    while engine.metric("vllm:num_requests_running")? < streams as f64 {
        if monotonic_ns() > given_up_ns {
            return Err(format!("{streams} streams were not open in time").into());
        }
        wait_until(monotonic_ns() + 20_000_000);
    }
    let open_ns = monotonic_ns();
    let open_kib = status_kib(client.pid(), "VmRSS").ok_or("the client ended early")?;
    wait_until(open_ns + LATER_NS);
    let later_kib = status_kib(client.pid(), "VmRSS").ok_or("the client ended early")?;
    let server_kib = status_kib(engine.pid(), "VmRSS").unwrap_or(0);
    let ran = client.end()?;
    engine.stop()?;
    let run = plimsoll_store::open(&ran.dir())?;
    let finished = run.attempts.iter().filter(|attempt| attempt.outcome.is_finished()).count() as u64;
    let mib = |kib: u64| kib as f64 / 1024.0;
    say(format!(
        "{streams} streams: client {:.1} MiB just open, {:.1} MiB three tokens later, {:.1} MiB at its peak; server \
         {:.1} MiB; {finished} finished of {}; sockets {}; {}",
        mib(open_kib),
        mib(later_kib),
        mib(ran.peak_kib),
        mib(server_kib),
        run.attempts.len(),
        ran.level()?.generator.sockets_max,
        ran.verdict()
    ));
    Ok(Reading { streams, open_kib, later_kib, finished })
}
