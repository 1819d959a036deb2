//! What one token costs the server: N streams of about 46 tokens a second each from the canned engine, a minimal client on
//! a thread of its own, and the truth log for the lateness.
//!
//! `cargo run --release -p plimsoll-server --example streams -- [STREAMS=1000] [SECONDS=10] [GAP_MS=20]`

#![expect(clippy::print_stdout, reason = "it is here to print")]

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use memchr::memmem;
use plimsoll_server::{EngineServerConfig, clock, serve, truth};
use plimsoll_sim::{LawSpec, ModeSpec, catalogue::profile};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const OUTPUT_TOKENS: u32 = 128;

#[derive(Default)]
struct Counts {
    tokens: AtomicU64,
    answers: AtomicU64,
    open: AtomicU64,
    failures: AtomicU64,
    stop: AtomicBool,
}

async fn stream(addr: SocketAddr, number: u64, counts: Arc<Counts>) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(addr).await?;
    socket.set_nodelay(true)?;
    counts.open.fetch_add(1, Relaxed);
    let token = memmem::Finder::new(b"\"content\":\"");
    let empty = memmem::Finder::new(b"\"content\":\"\"");
    let mut buffer = vec![0; 4096];
    let mut turn = 0;
    while !counts.stop.load(Relaxed) {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"one two three"}}],"max_tokens":{OUTPUT_TOKENS},"stream":true}}"#
        );
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
             x-request-id: b-0-{number}-{turn}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        turn += 1;
        socket.write_all(head.as_bytes()).await?;
        loop {
            let n = socket.read(&mut buffer).await?;
            if n == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let got = &buffer[..n];
            let tokens = token.find_iter(got).count() - empty.find_iter(got).count();
            counts.tokens.fetch_add(tokens as u64, Relaxed);
            if got.ends_with(b"0\r\n\r\n") {
                counts.answers.fetch_add(1, Relaxed);
                break;
            }
        }
    }
    Ok(())
}

async fn metric(addr: SocketAddr, name: &str) -> Result<f64, Box<dyn Error>> {
    let mut socket = TcpStream::connect(addr).await?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    socket.read_to_string(&mut text).await?;
    let line = text.lines().find(|line| line.starts_with(name)).ok_or("no such metric")?;
    Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
}

fn quantile(sorted: &[i64], p: f64) -> f64 {
    let i = (sorted.len() as f64 * p).ceil() as usize;
    sorted.get(i.clamp(1, sorted.len().max(1)) - 1).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let streams: u64 = args.next().map_or(Ok(1000), |a| a.parse())?;
    let seconds: u64 = args.next().map_or(Ok(10), |a| a.parse())?;
    let log: PathBuf = std::env::temp_dir().join(format!("plimsoll-truth-{}.jsonl", std::process::id()));
    let mut engine = profile::find("canned")?.spec;
    if let (Some(gap), ModeSpec::Canned(canned)) = (args.next(), &mut engine.mode) {
        canned.gap = LawSpec::Lognormal { median_ms: gap.parse()?, sigma: 0.4 };
    }
    let mut config = EngineServerConfig::new(([127, 0, 0, 1], 0).into(), engine);
    config.truth_log = Some(log.clone());
    let running = serve(config)?;
    let addr = running.addr();
    let counts = Arc::new(Counts::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (from, to, cpu, wall, received, client) = runtime.block_on(async {
        for number in 0..streams {
            let counts = counts.clone();
            tokio::spawn(async move {
                if stream(addr, number, counts.clone()).await.is_err() {
                    counts.failures.fetch_add(1, Relaxed);
                }
            });
            if number % 100 == 99 {
                tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await.ok();
            }
        }
        let wait = |s| tokio::time::timeout(Duration::from_secs(s), std::future::pending::<()>());
        wait(4).await.ok();
        let cpu0 = metric(addr, "plimsoll_engine_cpu_seconds_total").await?;
        let (from, tokens0, client0) =
            (clock::monotonic_ns(), counts.tokens.load(Relaxed), clock::thread_cpu_ns());
        wait(seconds).await.ok();
        let cpu1 = metric(addr, "plimsoll_engine_cpu_seconds_total").await?;
        let to = clock::monotonic_ns();
        let received = counts.tokens.load(Relaxed) - tokens0;
        let client = (clock::thread_cpu_ns() - client0) as f64 / 1e9;
        counts.stop.store(true, Relaxed);
        wait(5).await.ok();
        Ok::<_, Box<dyn Error>>((from, to, cpu1 - cpu0, (to - from) as f64 / 1e9, received as f64, client))
    })?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("server and client together, {peak}");
    running.shutdown()?;
    let (_, records) =
        truth::read(&std::fs::read_to_string(&log)?).map_err(|(line, e)| format!("{line}: {e}"))?;
    std::fs::remove_file(&log)?;
    let mut late = Vec::new();
    let mut due = 0u64;
    let stamped = records.iter().filter(|record| record.arrival_kernel).count();
    let mut taken: Vec<i64> = records.iter().map(|record| record.submitted_ns - record.arrival_ns).collect();
    taken.sort_unstable();
    for record in &records {
        due += record.steps_ns.iter().filter(|at| (from..to).contains(*at)).count() as u64;
        let pairs = record.steps_ns.iter().zip(&record.writes_ns);
        late.extend(pairs.filter(|(at, _)| (from..to).contains(*at)).map(|(at, write)| write - at));
    }
    late.sort_unstable();
    println!(
        "streams {} (failed {})  answers {}  tokens/s {:.0} received, {:.0} due",
        counts.open.load(Relaxed),
        counts.failures.load(Relaxed),
        counts.answers.load(Relaxed),
        received / wall,
        due as f64 / wall
    );
    println!(
        "server CPU {:.2} µs/token ({:.0} % of a core)  client CPU {:.2} µs/token",
        cpu * 1e6 / received,
        cpu / wall * 100.0,
        client * 1e6 / received
    );
    println!(
        "arrivals stamped by the kernel {stamped} of {}; arrival to engine: p50 {:.0} µs  p99 {:.0}",
        records.len(),
        quantile(&taken, 0.5),
        quantile(&taken, 0.99)
    );
    println!(
        "step end to write: p50 {:.0} µs  p90 {:.0}  p99 {:.0}  p99.9 {:.0}  max {:.0}",
        quantile(&late, 0.5),
        quantile(&late, 0.9),
        quantile(&late, 0.99),
        quantile(&late, 0.999),
        quantile(&late, 1.0)
    );
    Ok(())
}
