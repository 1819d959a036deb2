//! How many spans a second does the collector take without loss? `cargo bench -p plimsoll --bench collect`.
//! Words: `spans=1000000`, `batch=512`, `connections=4`.
//!
//! The collector runs in a process of its own; this one sends batches over HTTP on some kept connections, each waiting for the
//! answer to its batch before it sends the next. Counted is what was acknowledged, from the first byte sent to the last
//! answer, and at the end the folder must hold just as many. Sender and collector share the machine: the figure is what both
//! reach together.

mod kit;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use kit::{Args, Result, bar, children_cpu_s, monotonic_ns, own_cpu_s, say};
use plimsoll_model::{AttributeValue, SpanKind, TraceSpan};
use plimsoll_wire::trace::otlp;

/// Spans per second, at least.
const BAR: f64 = 50_000.0;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let spans = args.number("spans", 1_000_000.0)? as u64;
        let batch = args.number("batch", 512.0)? as u64;
        let connections = args.number("connections", 4.0)? as u64;
        let home = tempfile::tempdir()?;
        let run = home.path().join("run");
        let (mut child, addr) = start(&run.display().to_string())?;
        let batches: Vec<Vec<u8>> = (0..32).map(|n| request(n, batch)).collect();
        let each = spans / batch / connections;
        let sent = each * connections * batch;
        let own = own_cpu_s()?;
        let began = monotonic_ns();
        std::thread::scope(|scope| -> Result<()> {
            let senders: Vec<_> =
                (0..connections).map(|_| scope.spawn(|| send(addr, &batches, each))).collect();
            for sender in senders {
                sender.join().map_err(|_| "a sender panicked")??;
            }
            Ok(())
        })?;
        let seconds = (monotonic_ns() - began) as f64 / 1e9;
        let own = own_cpu_s()? - own;
        drop(child.stdin.take());
        child.wait()?;
        let kept = plimsoll_store::read_spans(&run)?.len() as u64;
        let rate = sent as f64 / seconds;
        say(format!("{sent} spans in {seconds:.2} s, batches of {batch} on {connections} connections"));
        say(format!("CPU: sender {own:.2} s, collector {:.2} s with its Parquet", children_cpu_s()?));
        bar("spans per second, acknowledged", format!("{rate:.0}"), "≥ 50 000", rate >= BAR);
        bar("spans in the folder", kept, &sent.to_string(), kept == sent);
        Ok(())
    })
}

fn start(run: &str) -> Result<(Child, SocketAddr)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["collect", "--listen", "127.0.0.1:0", "--until-stdin-ends", "-q", "-o", run])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stderr.take().ok_or("piped")?).read_line(&mut line)?;
    let addr = line.split(' ').nth(2).ok_or("it says where it listens")?.parse()?;
    Ok((child, addr))
}

/// A whole request of `count` spans.
fn request(n: u64, count: u64) -> Vec<u8> {
    let spans: Vec<TraceSpan> = (0..count).map(|k| span(n * count + k)).collect();
    let body = otlp::encode(&spans);
    let mut bytes = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(&body);
    bytes
}

fn span(n: u64) -> TraceSpan {
    let start_ns = 1_800_000_000_000_000_000 + n as i64 * 1_000_000;
    TraceSpan {
        trace: 1 << 100 | u128::from(n / 10),
        id: n + 1,
        parent: (!n.is_multiple_of(10)).then_some(n / 10 * 10 + 1),
        name: ["request", "auth", "retrieve", "rerank", "chat tiny"][n as usize % 5].into(),
        service: Some("front".into()),
        kind: SpanKind::Server,
        start_ns,
        end_ns: start_ns + 5_000_000,
        failed: false,
        attributes: vec![
            ("gen_ai.request.model".into(), AttributeValue::Text("tiny-1b-instruct".into())),
            ("gen_ai.server.time_to_first_token".into(), AttributeValue::Real(n as f64 / 7e3)),
            ("gen_ai.usage.output_tokens".into(), AttributeValue::Int(n as i64 % 512)),
            ("http.route".into(), AttributeValue::Text("/v1/chat/completions".into())),
            ("stream".into(), AttributeValue::Flag(n.is_multiple_of(2))),
        ],
        events: Vec::new(),
        weight: 1.0,
    }
}

/// Sends on one connection, one batch after the other; every answer must be 200.
fn send(addr: SocketAddr, batches: &[Vec<u8>], count: u64) -> std::result::Result<(), String> {
    let wrong = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect(addr).map_err(wrong)?;
    stream.set_nodelay(true).map_err(wrong)?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(wrong)?;
    let mut answer = [0; 4096];
    for n in 0..count {
        stream.write_all(&batches[n as usize % batches.len()]).map_err(wrong)?;
        let read = stream.read(&mut answer).map_err(wrong)?;
        if !answer[..read].starts_with(b"HTTP/1.1 200") {
            return Err(format!("refused: {}", String::from_utf8_lossy(&answer[..read])));
        }
    }
    Ok(())
}
