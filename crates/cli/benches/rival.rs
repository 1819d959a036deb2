//! Compares the client's CPU with a client that only reads (streams), and with `oha` (small answers):
//! `cargo bench -p plimsoll --bench rival`.
//!
//! `oha` is looked for in `$PLIMSOLL_OHA` and on the PATH; without it Plimsoll's figure stands alone. Words:
//! `seconds=10` `connections=32` `rounds=2` `server=raw,engine,streams` `streams=2000`.
//!
//! The barest client writes the bytes of one request and reads until the end of its stream, without parsing, stamps or
//! records. It is the floor for any client on the same runtime.
//!
//! Both drive the same server in the same session, in turns A B B A, so that a busy neighbour or a warm cache falls on
//! both. `raw` is the server below: it reads a head and a length and writes fixed bytes, because a server that is
//! slower than the clients makes them wait, and waiting costs them wakes. `engine` is the embedded engine that answers
//! at once, for the figure with a server that reads what it is asked. CPU is the whole process from exec to exit: for
//! Plimsoll that is the look at the target, the calibration, the records on disk and the findings too.

mod kit;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use kit::{Args, Engine, Ran, Result, bar, children_cpu_s, is_program, monotonic_ns, say};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Plimsoll's requests per CPU second over the rival's, at least.
const BAR: f64 = 0.8;

/// An engine that answers at once.
const INSTANT: &str = r#"{"name": "instant", "mode": {"kind": "canned",
  "ttft": {"law": "deterministic", "ms": 0.001}, "gap": {"law": "deterministic", "ms": 0.001}}}"#;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(SERVE) {
        return match serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if std::env::args().nth(1).as_deref() == Some(READ) {
        return match read_streams() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say(error);
                ExitCode::FAILURE
            }
        };
    }
    kit::main(|args: &Args| {
        let oha = find_oha();
        if oha.is_none() {
            say("oha is neither in $PLIMSOLL_OHA nor on the PATH: no comparison");
        }
        for server in args.get("server").unwrap_or("raw,engine,streams").split(',') {
            match server {
                "streams" => streams(args)?,
                server => compare(server, args, oha.as_ref())?,
            }
        }
        Ok(())
    })
}

/// Tokens of a streamed answer.
const OUTPUT_TOKENS: u64 = 128;
/// CPU per token over the barest client's, at most.
const STREAM_BAR: f64 = 1.1;

/// Compares the CPU per million streamed tokens with a client that only reads, in turns A B B A.
fn streams(args: &Args) -> Result<()> {
    let seconds = args.number("seconds", 20.0)?;
    let count = args.number("streams", 2000.0)? as u64;
    say(format!("\n{count} streams of {OUTPUT_TOKENS} tokens, {seconds} s a turn"));
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for turn in ["plimsoll", "barest", "barest", "plimsoll"] {
        let engine = Engine::start("canned")?;
        let before_s = children_cpu_s()?;
        if turn == "plimsoll" {
            let (concurrency, window, output) =
                (count.to_string(), format!("{seconds}s"), OUTPUT_TOKENS.to_string());
            let load = ["--concurrency", &concurrency, "--for", &window, "--osl", &output, "--isl", "16"];
            Ran::run(&engine.url, &load)?;
        } else {
            only_reads(&engine.url, count, seconds)?;
        }
        let cpu_s = children_cpu_s()? - before_s;
        // The engine's own log counts the tokens, so that both clients are counted alike.
        let tokens: usize = engine.stop()?.iter().map(|record| record.writes_ns.len()).sum();
        let per_million = cpu_s / (tokens as f64 / 1e6);
        if turn == "plimsoll" { &mut ours } else { &mut floor }.push(per_million);
        say(format!("{turn:<9} {tokens:>9} tokens  {per_million:>6.2} CPU s per million"));
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let ratio = mean(&ours) / mean(&floor);
    bar("CPU per token / barest client's", format!("{ratio:.2}"), "≤ 1.1", ratio <= STREAM_BAR);
    Ok(())
}

/// Runs the barest client in its own process.
fn only_reads(url: &str, streams: u64, seconds: f64) -> Result<()> {
    let words = [READ, url, &streams.to_string(), &seconds.to_string()];
    let ended = Command::new(std::env::current_exe()?).args(words).output()?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("the barest client: {}", String::from_utf8_lossy(&ended.stdout)).into()),
    }
}

/// The word that makes this program the barest client: URL, streams, seconds.
const READ: &str = "only-read";

/// Keeps the streams open until the time is over.
fn read_streams() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let [url, streams, seconds] = words.as_slice() else { return Err("URL, streams, seconds".into()) };
    let host = url.trim_start_matches("http://").split('/').next().unwrap_or_default().to_owned();
    let until_ns = monotonic_ns() + (1e9 * seconds.parse::<f64>()?) as i64;
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"word"}}],"stream":true,"max_tokens":{OUTPUT_TOKENS},"stream_options":{{"include_usage":true,"continuous_usage_stats":true}}}}"#
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..streams.parse::<u64>()? {
            readers.spawn(read_answers(host.clone(), request.clone(), until_ns));
        }
        while let Some(read) = readers.join_next().await {
            read??;
        }
        Ok(())
    })
}

/// The last chunk of a body, after the end of the chunk before.
const END: &[u8] = b"\r\n0\r\n\r\n";

/// Sends the request again and again until the time is over.
async fn read_answers(host: String, request: String, until_ns: i64) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(host).await?;
    socket.set_nodelay(true)?;
    let mut buffer = vec![0u8; 16384];
    while monotonic_ns() < until_ns {
        socket.write_all(request.as_bytes()).await?;
        // The end of the read before, because the last chunk may be split.
        let (mut kept, mut is_first) = (0, true);
        loop {
            let read = socket.read(&mut buffer[kept..]).await?;
            let end = kept + read;
            if read == 0 || is_first && !buffer.starts_with(b"HTTP/1.1 200") {
                return Err(std::io::Error::other("an answer is not a whole stream of status 200"));
            }
            if buffer[..end].ends_with(END) {
                break;
            }
            is_first = false;
            kept = end.min(END.len());
            buffer.copy_within(end - kept..end, 0);
        }
    }
    Ok(())
}

fn find_oha() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PLIMSOLL_OHA") {
        return Some(PathBuf::from(named)).filter(|path| is_program(path));
    }
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|dir| dir.join("oha")).find(|path| is_program(path))
}

/// What one client did.
struct Done {
    requests: f64,
    wall_s: f64,
    cpu_s: f64,
    note: String,
}

impl Done {
    fn per_cpu_s(&self) -> f64 {
        self.requests / self.cpu_s
    }
}

fn compare(server: &str, args: &Args, oha: Option<&PathBuf>) -> Result<()> {
    let seconds = format!("{}s", args.number("seconds", 10.0)?);
    let connections = args.number("connections", 32.0)?.to_string();
    let (url, _raw, _engine) = match server {
        "raw" => {
            let raw = Raw::start()?;
            (raw.url.clone(), Some(raw), None)
        }
        "engine" => {
            let engine = Engine::start(INSTANT)?;
            (engine.url.clone(), None, Some(engine))
        }
        other => return Err(format!("server={other}: raw or engine").into()),
    };
    say(format!("\nserver {server}, {connections} kept connections, {seconds} a turn"));
    let (mut ours, mut theirs, mut workers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..(args.number("rounds", 2.0)? as usize).div_ceil(2) {
        for turn in ["plimsoll", "oha", "oha", "plimsoll"] {
            let done = match (turn, oha) {
                ("plimsoll", _) => {
                    let (done, in_workers) = plimsoll(&url, &connections, &seconds)?;
                    workers.push(in_workers as i64);
                    ours.push(done.per_cpu_s() as i64);
                    done
                }
                (_, Some(program)) => {
                    let done = rival(program, &url, &connections, &seconds)?;
                    theirs.push(done.per_cpu_s() as i64);
                    done
                }
                _ => continue,
            };
            say(format!(
                "{turn:<9} {:>8.0} requests/s  {:>8.0} per CPU second ({:.2} µs each)  {}",
                done.requests / done.wall_s,
                done.per_cpu_s(),
                1e6 / done.per_cpu_s(),
                done.note
            ));
        }
    }
    if !theirs.is_empty() {
        // The mean of the two middle turns: their number is even.
        let middle = |values: &mut Vec<i64>| {
            values.sort_unstable();
            let half = values.len() / 2;
            (values[half - 1] + values[half]) as f64 / 2.0
        };
        let (ours, theirs, workers) = (middle(&mut ours), middle(&mut theirs), middle(&mut workers));
        say(format!("worker threads alone: {:.2} × oha", workers / theirs));
        let ratio = ours / theirs;
        bar("requests per CPU second / oha's", format!("{ratio:.2}"), "≥ 0.8", ratio >= BAR);
    }
    Ok(())
}

/// One turn of Plimsoll, and its requests per CPU second of the worker threads alone.
fn plimsoll(url: &str, connections: &str, seconds: &str) -> Result<(Done, f64)> {
    let load = ["--no-stream", "--concurrency", connections, "--for", seconds, "--osl", "1", "--isl", "8"];
    let ran = Ran::run(url, &load)?;
    let counts = &ran.summary()?.counts;
    let level = ran.level()?;
    // The records, not the summary: its window leaves the warm-up out.
    let run = plimsoll_store::open_with(&ran.dir(), plimsoll_store::ColumnSelection::Figures)?;
    let requests = run.attempts.iter().filter(|attempt| attempt.outcome.is_finished()).count() as f64;
    let bytes = run.attempts.first().map_or(0, |attempt| attempt.bytes_out);
    let in_workers = requests / ran.workers_cpu_s()?;
    let note = format!(
        "{bytes} bytes asked; {:.2} µs in the workers, busiest {:.0} % of a core; {} failed; {} MiB",
        1e6 / in_workers,
        level.generator.cpu_share_max.unwrap_or(f64::NAN) * 100.0,
        counts.failed,
        ran.peak_kib / 1024
    );
    let wall_s = (level.drained - level.start).as_secs_f64();
    Ok((Done { requests, wall_s, cpu_s: ran.cpu_s, note }, in_workers))
}

/// One turn of oha, with a body of the same kind.
fn rival(program: &PathBuf, url: &str, connections: &str, seconds: &str) -> Result<Done> {
    let body = r#"{"model":"bench","messages":[{"role":"user","content":"word word word word word word word word"}],"max_tokens":1,"temperature":0.0,"ignore_eos":true}"#;
    let before_s = children_cpu_s()?;
    let ended = Command::new(program)
        .args(["--no-tui", "--output-format", "json", "-c", connections, "-z", seconds, "-m", "POST"])
        .args(["-T", "application/json", "-d", body])
        .arg(format!("{url}/chat/completions"))
        .output()?;
    let cpu_s = children_cpu_s()? - before_s;
    let said: serde_json::Value = serde_json::from_slice(&ended.stdout)
        .map_err(|e| format!("oha: {e}: {}", String::from_utf8_lossy(&ended.stderr)))?;
    let requests = said["statusCodeDistribution"]["200"].as_f64().ok_or("oha got no answer of status 200")?;
    let wall_s = said["summary"]["total"].as_f64().ok_or("oha does not say how long it ran")?;
    Ok(Done { requests, wall_s, cpu_s, note: format!("{} bytes of body", body.len()) })
}

// ---------------------------------------------------------------------------------------------- the server

/// The word that makes this program the server.
const SERVE: &str = "serve-fixed-answers";

const ANSWER: &str = r#"{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"word"},"finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9}}"#;
const MODELS: &str =
    r#"{"object":"list","data":[{"id":"bench","object":"model","created":0,"owned_by":"bench"}]}"#;

/// The raw server in a process of its own; it ends with this value.
struct Raw {
    child: Child,
    url: String,
}

impl Raw {
    fn start() -> Result<Raw> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut url = String::new();
        BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut url)?;
        Ok(Raw { child, url: url.trim().to_owned() })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn whole(body: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Serves until its parent ends.
fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        say(format!("http://{}/v1", listener.local_addr()?));
        loop {
            let (socket, _) = listener.accept().await?;
            tokio::spawn(converse(socket));
        }
    })
}

/// Answers one connection's requests for as long as it asks.
async fn converse(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let (answer, models) = (whole(ANSWER), whole(MODELS));
    let (mut buffer, mut filled) = (vec![0u8; 65536], 0);
    loop {
        let Some(length) = request_length(&buffer[..filled]) else {
            let read = socket.read(&mut buffer[filled..]).await?;
            if read == 0 {
                return Ok(());
            }
            filled += read;
            continue;
        };
        let asked = if buffer.starts_with(b"GET") { &models } else { &answer };
        socket.write_all(asked).await?;
        buffer.copy_within(length..filled, 0);
        filled -= length;
    }
}

/// Bytes of the first request in the buffer, once all of it is there.
fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let name = b"content-length:";
    let lines = bytes[..head].split(|byte| *byte == b'\n');
    let mut lengths =
        lines.filter(|line| line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name));
    let body = match lengths.next() {
        Some(line) => std::str::from_utf8(&line[name.len()..]).ok()?.trim().parse().ok()?,
        None => 0,
    };
    (bytes.len() >= head + body).then_some(head + body)
}
