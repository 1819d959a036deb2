//! What tail sampling costs, and what it lets through when twenty times as much comes. `cargo bench -p plimsoll --bench tail`.
//! Words: `rate=2500` (spans a second), `storm=20` (times as many), `seconds=20` (each of the two), `batch=500`, `memory=64` (MB that may be held).
//!
//! `plimsoll watch` takes traces of ten spans over HTTP on two kept connections, decides them and passes on what it keeps to a collector in this process, which counts bytes. One trace in a hundred
//! fails; durations are exponential. Each trace is another, because a known id would share an earlier fate: ids are written into batches that were encoded before, so that sending costs little beside taking.

mod kit;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kit::{Args, Result, bar, monotonic_ns, plimsoll, say, status_kib, wait_until};
use plimsoll_math::rng::Stream;
use plimsoll_model::{AttributeValue, SpanKind, TraceSpan};
use plimsoll_wire::trace::otlp;

/// Spans per CPU second of the watch, at least.
const BAR: f64 = 50_000.0;
/// Traces that may go on in a second, of those that failed, those that were slow and the rest together: what `keep` says where nothing is written.
const KEPT_PER_S: f64 = 50.0 + 25.0 + 10.0;
/// Bytes of a span that goes on over those of one that came: its weight, and a resource that fewer spans share.
const HEAVIER: f64 = 1.3;
/// Spans of a trace.
const SPANS: u64 = 10;
/// A trace is decided so long after its root, and it takes as long again until the last has gone on, ns.
const SETTLES_NS: i64 = 4_000_000_000;
const CONNECTIONS: u64 = 2;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let (rate, storm) = (args.number("rate", 2_500.0)?, args.number("storm", 20.0)?);
        let (seconds, batch) = (args.number("seconds", 20.0)?, args.number("batch", 500.0)? as u64);
        let memory_mb = args.number("memory", 64.0)? as u64;
        let (sink, passed) = sink()?;
        let mut watch = Watch::start(sink, memory_mb)?;
        let before = watch.seen(&passed)?;
        let calm_s = send(watch.traces, (rate, seconds, batch), 1)?;
        let steady = watch.seen(&passed)?;
        let loud_s = send(watch.traces, (storm * rate, seconds, batch), 2)?;
        let stormy = watch.seen(&passed)?;
        watch.end();
        let [calm, loud] = [steady.since(&before), stormy.since(&steady)];
        for (what, part, wall_s) in [("steady", &calm, calm_s), ("storm", &loud, loud_s)] {
            let each = [part.taken, part.came_bytes / 1e3, part.sent, part.passed_bytes / 1e3];
            let [taken, came, sent, passed] = each.map(|all| all / wall_s);
            say(format!(
                "{what}: {taken:.0} spans/s taken in {:.2} CPU s, {came:.0} KB/s; {sent:.0} spans/s passed on, {passed:.0} KB/s",
                part.cpu_s
            ));
        }
        let per_cpu = loud.taken / loud.cpu_s;
        bar("spans per CPU second, in the storm", format!("{per_cpu:.0}"), "≥ 50 000", per_cpu >= BAR);
        // Those of a second that had begun, and of one that went on.
        let most = KEPT_PER_S * SPANS as f64 * (loud_s + 2.0);
        bar("spans passed on in it", format!("{:.0}", loud.sent), &format!("≤ {most:.0}"), loud.sent <= most);
        let most_kb = most * loud.came_bytes / loud.came * HEAVIER / 1e3;
        let passed_kb = loud.passed_bytes / 1e3;
        bar(
            "KB passed on in it",
            format!("{passed_kb:.0}"),
            &format!("≤ {most_kb:.0}"),
            passed_kb <= most_kb,
        );
        let most_kib = (2 * memory_mb + 100) * 1024;
        let peak = stormy.peak_kib;
        bar(
            "memory at its peak",
            format!("{} MiB", peak / 1024),
            &format!("≤ {} MiB", most_kib / 1024),
            peak <= most_kib,
        );
        let lost = stormy.came - stormy.taken;
        bar("spans acknowledged and not counted", format!("{lost:.0}"), "0", lost == 0.0);
        Ok(())
    })
}

// ---------------------------------------------------------------------------------------------- watch

struct Watch {
    child: Child,
    /// Where it takes traces, and where its page is.
    traces: SocketAddr,
    page: SocketAddr,
    _folder: tempfile::TempDir,
}

/// What was seen by an instant, or between two.
#[derive(Clone, Default)]
struct Seen {
    cpu_s: f64,
    peak_kib: u64,
    /// Spans that it counted as taken, and those that went on.
    taken: f64,
    sent: f64,
    /// Spans that were acknowledged to us, their bytes, and bytes at the collector.
    came: f64,
    came_bytes: f64,
    passed_bytes: f64,
}

/// What was acknowledged.
static SPANS_CAME: AtomicU64 = AtomicU64::new(0);
static BYTES_CAME: AtomicU64 = AtomicU64::new(0);

impl Seen {
    fn since(&self, before: &Seen) -> Seen {
        Seen {
            cpu_s: self.cpu_s - before.cpu_s,
            peak_kib: self.peak_kib,
            taken: self.taken - before.taken,
            sent: self.sent - before.sent,
            came: self.came - before.came,
            came_bytes: self.came_bytes - before.came_bytes,
            passed_bytes: self.passed_bytes - before.passed_bytes,
        }
    }
}

impl Watch {
    fn start(sink: SocketAddr, memory_mb: u64) -> Result<Watch> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("watch.yaml");
        let text = format!(
            "listen: 127.0.0.1:0\ntraces:\n  listen: 127.0.0.1:0\n  to: {{url: \"http://{sink}\"}}\n  wait: 2s\n  memory_mb: {memory_mb}\n"
        );
        std::fs::write(&file, text)?;
        let mut command = Command::new(plimsoll());
        command
            .arg("watch")
            .arg(&file)
            .arg("-q")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut said = BufReader::new(child.stderr.take().ok_or("piped")?);
        let mut address = || -> Result<SocketAddr> {
            let mut line = String::new();
            said.read_line(&mut line)?;
            let at = line.rsplit("http://").next().unwrap_or_default().trim();
            at.split('/').next().unwrap_or_default().parse().map_err(|_| line.into())
        };
        let (page, traces) = (address()?, address()?);
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(Watch { child, traces, page, _folder: folder })
    }

    /// Once all that came has been decided and has gone on.
    fn seen(&self, passed: &AtomicU64) -> Result<Seen> {
        wait_until(monotonic_ns() + SETTLES_NS);
        let peak_kib = status_kib(self.child.id(), "VmHWM").unwrap_or(0);
        let page = get(self.page)?;
        let value = |start: &str| -> f64 {
            let lines = page.lines().filter(|line| line.starts_with(start));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Ok(Seen {
            cpu_s: cpu_s(self.child.id())?,
            peak_kib,
            taken: value("plimsoll_watch_spans_received_total"),
            sent: value("plimsoll_watch_spans_total{outcome=\"sent\"}"),
            came: SPANS_CAME.load(Ordering::Relaxed) as f64,
            came_bytes: BYTES_CAME.load(Ordering::Relaxed) as f64,
            passed_bytes: passed.load(Ordering::Relaxed) as f64,
        })
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

/// CPU time of a process that goes on, s.
fn cpu_s(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = text.rsplit(") ").next().unwrap_or_default();
    let ticks = rest.split(' ').skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum::<f64>();
    // USER_HZ is 100 on every Linux that this runs on.
    Ok(ticks / 100.0)
}

fn get(page: SocketAddr) -> Result<String> {
    let mut socket = TcpStream::connect(page)?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    Ok(text)
}

// ---------------------------------------------------------------------------------------------- spans

/// A batch of whole traces as a request, and where the ids of its traces stand.
struct Batch {
    request: Vec<u8>,
    ids: Vec<(usize, usize)>,
}

impl Batch {
    fn new(number: u64, count: u64, random: &mut Stream) -> Batch {
        let traces = count / SPANS;
        let id = |trace: u64| {
            0xfeed_0000_0000_0000_0000_0000_0000_0000_u128 | u128::from(number * traces + trace + 1)
        };
        let spans: Vec<TraceSpan> = (0..traces)
            .flat_map(|trace| {
                let (failed, ms) = (random.uniform() < 0.01, -80.0 * (1.0 - random.uniform()).ln());
                (0..SPANS).map(move |n| span((id(trace), n), failed && n == 3, ms))
            })
            .collect();
        let body = otlp::encode(&spans);
        let head = format!(
            "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let request = [head.as_bytes(), &body].concat();
        let first = id(0).to_be_bytes();
        let place = |at: &usize| request[*at..].starts_with(&first[..4]);
        let ids = (0..request.len() - 16).filter(place).map(|at| {
            let number: [u8; 16] = request[at..at + 16].try_into().unwrap_or_default();
            (at, (u128::from_be_bytes(number) - id(0)) as usize)
        });
        Batch { ids: ids.collect(), request }
    }

    /// The same with traces that nobody has seen.
    fn renew(&mut self, random: &mut Stream, fresh: &mut Vec<[u8; 16]>) {
        fresh.clear();
        fresh.extend(
            (0..self.ids.len()).map(|_| {
                ((u128::from(random.next_u64()) << 64) | u128::from(random.next_u64())).to_be_bytes()
            }),
        );
        for (at, trace) in &self.ids {
            self.request[*at..at + 16].copy_from_slice(&fresh[*trace]);
        }
    }
}

fn span((trace, n): (u128, u64), failed: bool, ms: f64) -> TraceSpan {
    let start_ns = 1_800_000_000_000_000_000;
    TraceSpan {
        trace,
        id: n + 1,
        parent: (n > 0).then_some(1),
        name: ["request", "auth", "retrieve", "rerank", "chat tiny"][n as usize % 5].into(),
        service: Some("front".into()),
        kind: SpanKind::Server,
        start_ns,
        end_ns: start_ns + (ms * 1e6) as i64,
        failed,
        attributes: vec![
            ("gen_ai.request.model".into(), AttributeValue::Text("tiny-1b-instruct".into())),
            ("gen_ai.server.time_to_first_token".into(), AttributeValue::Real(ms / 4e3)),
            ("gen_ai.usage.output_tokens".into(), AttributeValue::Int(n as i64)),
            ("http.route".into(), AttributeValue::Text("/v1/chat/completions".into())),
            ("stream".into(), AttributeValue::Flag(n.is_multiple_of(2))),
        ],
        events: Vec::new(),
        weight: 1.0,
    }
}

/// Sends at this rate for so long, or as fast as it is taken where that is slower: how long it took, s.
fn send(to: SocketAddr, (rate, seconds, batch): (f64, f64, u64), seed: u64) -> Result<f64> {
    let (begun, every_ns) = (monotonic_ns(), batch as f64 / rate * 1e9 * CONNECTIONS as f64);
    let each = (seconds * 1e9 / every_ns).round().max(1.0) as u64;
    let one = |connection: u64| -> std::result::Result<(), String> {
        let wrong = |e: std::io::Error| e.to_string();
        let mut random = Stream::new(seed, "tail", connection);
        let mut batches: Vec<Batch> = (0..16).map(|n| Batch::new(n, batch, &mut random)).collect();
        let mut fresh = Vec::new();
        let mut stream = TcpStream::connect(to).map_err(wrong)?;
        stream.set_nodelay(true).map_err(wrong)?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(wrong)?;
        let mut answer = [0; 4096];
        for n in 0..each {
            let now = &mut batches[n as usize % 16];
            now.renew(&mut random, &mut fresh);
            wait_until(begun + (every_ns * (n as f64 + connection as f64 / CONNECTIONS as f64)) as i64);
            stream.write_all(&now.request).map_err(wrong)?;
            let read = stream.read(&mut answer).map_err(wrong)?;
            if !answer[..read].starts_with(b"HTTP/1.1 200") {
                return Err(format!("refused: {}", String::from_utf8_lossy(&answer[..read])));
            }
            SPANS_CAME.fetch_add(batch / SPANS * SPANS, Ordering::Relaxed);
            BYTES_CAME.fetch_add(now.request.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<f64> {
        let senders: Vec<_> = (0..CONNECTIONS).map(|n| scope.spawn(move || one(n))).collect();
        for sender in senders {
            sender.join().map_err(|_| "a sender panicked")??;
        }
        Ok((monotonic_ns() - begun) as f64 / 1e9)
    })
}

// ---------------------------------------------------------------------------------------------- collector

/// A collector that takes everything, and the bytes of bodies that it took.
fn sink() -> Result<(SocketAddr, Arc<AtomicU64>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (addr, bytes) = (listener.local_addr()?, Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&bytes);
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || take(socket, &counted));
        }
    });
    Ok((addr, bytes))
}

fn take(socket: TcpStream, counted: &AtomicU64) {
    let Ok(mut writer) = socket.try_clone() else { return };
    let mut reader = BufReader::new(socket);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        counted.fetch_add(length as u64, Ordering::Relaxed);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        if writer.write_all(answer).is_err() {
            return;
        }
    }
}
