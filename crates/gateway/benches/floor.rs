//! Cost of the gateway compared with a minimal proxy on the same libraries. It measures CPU time per request and per
//! stream event, added latency, and the memory of a stream with a slow reader. Measurements are interleaved (A B B A)
//! in one run. The result is a ratio, because machines differ.
//!
//! Run `cargo bench -p plimsoll-gateway --bench floor`; append a name for one part: `-- added`, `-- unread`, `--
//! decisions`. Each part is a separate process, so that its CPU time is separate. With `PLIMSOLL_ROUTERS=FOLDER`, a
//! folder with the programs `smg` and `vllm-router` (`pip install smg vllm-router`), these are measured too; so are nginx
//! and HAProxy if they are installed.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a benchmark times and prints")]

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use plimsoll_client::Clock;
use plimsoll_gateway::traffic::rows::RowMaker;
use plimsoll_gateway::{Gateway, GatewaySpec, ReplicaSpec, TrafficRecorder};
use plimsoll_math::rng::Stream;
use plimsoll_model::At;
use plimsoll_policy::{BlockEnds, ReplicaLoad, ReplicaView, RequestFacts, Router};

const CLIENTS: usize = 16;
const WINDOW: Duration = Duration::from_millis(2_500);
const EVENTS: usize = 100;
/// Streams at once of the load with an event per 20 ms.
const STREAMS: usize = 400;
/// Rate and connections of the open loop.
const RATE_PER_S: f64 = 2_000.0;
const CONNECTIONS: usize = 64;
/// Number of streams without a reader, and their duration.
const UNREAD: usize = 64;
const UNREAD_FOR: Duration = Duration::from_secs(4);
/// Arguments of other routers: their defaults, and their cheapest policy.
const ROUTERS: [(&str, &[&str]); 3] = [
    ("smg, cache aware", &["smg", "launch", "--policy", "cache_aware"]),
    ("smg, round robin", &["smg", "launch", "--policy", "round_robin"]),
    ("vllm-router, round robin", &["vllm-router", "--policy", "round_robin"]),
];

/// Proxies that know nothing of inference: name, program, arguments before the file, and the file. `{port}` is the port to
/// listen on; a line with `{replica}` is repeated for each replica. One process with one thread, as the gateway here.
const PROXIES: [(&str, &str, &[&str], &str); 2] = [
    (
        "nginx",
        "nginx",
        &["-c"],
        "daemon off; master_process off; pid /dev/null; error_log /dev/null;
events { worker_connections 4096; }
http {
access_log off; client_body_buffer_size 1m; keepalive_requests 100000000;
upstream replicas { keepalive 512; keepalive_requests 100000000;
server {replica};
}
server { listen 127.0.0.1:{port};
location / { proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; }
}
}
",
    ),
    (
        "HAProxy",
        "haproxy",
        &["-db", "-q", "-f"],
        "global
 nbthread 1
 maxconn 4096
defaults
 mode http
 option http-no-delay
 http-reuse always
 timeout connect 5s
 timeout client 60s
 timeout server 60s
frontend gateway
 bind 127.0.0.1:{port}
 default_backend replicas
backend replicas
 balance roundrobin
 server {replica} {replica}
",
    ),
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("replica") => replica(),
        Some("proxy") => proxy(&args[2..]),
        Some("gateway") => gateway(&args[2..], false),
        Some("recorded") => gateway(&args[2..], true),
        Some("decisions") => decisions(),
        Some("added") => of_parts(added),
        Some("unread") => of_parts(unread),
        _ => compare(),
    }
}

/// Prints the listen address, and runs until the parent's pipe closes.
fn ready(addr: SocketAddr) {
    println!("{addr}");
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

/// Answers with 2 KB immediately, or with one event per ms if the body requests a stream. A stream with the word `paced`
/// has an event per 20 ms, as from an engine with many streams.
fn replica() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("it listens");
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || serve(socket));
        }
    });
    ready(addr);
}

fn serve(mut socket: TcpStream) -> Option<()> {
    socket.set_nodelay(true).ok()?;
    let body = format!("{{\"choices\":[{{\"text\":\"{}\"}}]}}", "word ".repeat(400));
    let whole = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let event = "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    let (mut all, mut part) = (Vec::new(), vec![0; 65_536]);
    loop {
        all.clear();
        let (streams, floods, paced) = loop {
            let count = socket.read(&mut part).ok().filter(|count| *count > 0)?;
            all.extend_from_slice(&part[..count]);
            let Some(end) = all.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if all.len() >= end + 4 + length.unwrap_or(0) {
                let holds = |text: &[u8]| memchr::memmem::find(&all, text).is_some();
                break (holds(b"\"stream\":true"), holds(b"flood"), holds(b"paced"));
            }
        };
        if all.starts_with(b"GET ") {
            // Other routers query the model list before they send requests.
            let models = r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"bench"}]}"#;
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                models.len()
            );
            socket.write_all((head + models).as_bytes()).ok()?;
            continue;
        }
        if !streams {
            socket.write_all(whole.as_bytes()).ok()?;
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        socket.write_all(head.as_bytes()).ok()?;
        if floods {
            loop {
                socket.write_all(chunk.repeat(64).as_bytes()).ok()?;
            }
        }
        for _ in 0..EVENTS {
            socket.write_all(chunk.as_bytes()).ok()?;
            std::thread::sleep(Duration::from_millis(if paced { 20 } else { 1 }));
        }
        socket.write_all(b"0\r\n\r\n").ok()?;
    }
}

type Idle = Rc<Vec<(SocketAddr, RefCell<Vec<SendRequest<Incoming>>>)>>;

/// The minimal proxy: round robin, bodies forwarded as they arrive, pooled connections.
fn proxy(replicas: &[String]) {
    let replicas: Idle = Rc::new(
        replicas.iter().map(|addr| (addr.parse().expect("an address"), RefCell::default())).collect(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("it listens");
        std::thread::spawn(move || ready(addr));
        let turn = Rc::new(std::cell::Cell::new(0usize));
        loop {
            let Ok((socket, _)) = listener.accept().await else { continue };
            let _ = socket.set_nodelay(true);
            let (replicas, turn) = (Rc::clone(&replicas), Rc::clone(&turn));
            tokio::task::spawn_local(async move {
                let service = service_fn(move |mut request: http::Request<Incoming>| {
                    let replicas = Rc::clone(&replicas);
                    turn.set(turn.get() + 1);
                    let place = turn.get() % replicas.len();
                    async move {
                        let (addr, idle) = &replicas[place];
                        let kept = idle.borrow_mut().pop().filter(SendRequest::is_ready);
                        let mut sender = match kept {
                            Some(sender) => sender,
                            None => {
                                let socket = tokio::net::TcpStream::connect(addr).await.expect("a replica");
                                let _ = socket.set_nodelay(true);
                                let io = TokioIo::new(socket);
                                let (sender, connection) =
                                    hyper::client::conn::http1::handshake(io).await.expect("HTTP");
                                tokio::task::spawn_local(connection);
                                sender
                            }
                        };
                        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                        *request.uri_mut() = path.parse::<Uri>().expect("a path");
                        let response = sender.send_request(request).await.expect("an answer");
                        // A non-streamed response is complete here. A stream's connection returns too early, and is
                        // not ready then.
                        idle.borrow_mut().push(sender);
                        Ok::<_, Infallible>(response)
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
            });
        }
    });
}

/// Runs a gateway. With `recorded`, each request becomes a row, as for a run folder, and a writer consumes the rows.
fn gateway(replicas: &[String], recorded: bool) {
    let spec = GatewaySpec {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        replicas: replicas.iter().map(|addr| ReplicaSpec::new(format!("http://{addr}"), None)).collect(),
        threads: 1,
        ..GatewaySpec::default()
    };
    let traffic = recorded.then(|| {
        let (traffic, from) = TrafficRecorder::channel(0.1);
        std::thread::spawn(move || {
            let mut maker = RowMaker::new(7);
            from.iter().map(|told| maker.rows(&told, At::ZERO).len()).sum::<usize>()
        });
        traffic
    });
    let gateway = Gateway::recording(&spec, Clock::start(), traffic.as_ref()).expect("a sound spec");
    while !(0..replicas.len() as u32).all(|replica| gateway.pool.is_up(replica)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    ready(gateway.addr);
}

struct Part {
    child: Child,
    addr: SocketAddr,
}

impl Part {
    /// Starts another router's program in front of the given replicas.
    fn router(folder: &str, args: &[&str], replicas: &[Part]) -> Part {
        let free =
            || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let (port, metrics) = (free(), free().to_string());
        let child = Command::new(format!("{folder}/{}", args[0]))
            .args(&args[1..])
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--log-level", "error"])
            .args(["--prometheus-host", "127.0.0.1", "--prometheus-port", &metrics])
            .arg("--worker-urls")
            .args(replicas.iter().map(|replica| format!("http://{}", replica.addr)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is there");
        let part = Part { child, addr: SocketAddr::from(([127, 0, 0, 1], port)) };
        part.wait(args[0]);
        part
    }

    /// Starts a proxy of [`PROXIES`] with one process and one thread; `None` if it is not installed.
    fn proxy(program: &str, args: &[&str], file: &str, replicas: &[Part]) -> Option<Part> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let each = |line: &str| match line.contains("{replica}") {
            true => replicas.iter().map(|one| line.replace("{replica}", &one.addr.to_string())).collect(),
            false => line.replace("{port}", &free.port().to_string()),
        };
        let path = std::env::temp_dir().join(format!("floor-{}-{program}", std::process::id()));
        std::fs::write(&path, file.split_inclusive('\n').map(each).collect::<String>()).expect("written");
        let child = Command::new(program)
            .args(args)
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let part = Part { child, addr: free };
        part.wait(program);
        let _ = std::fs::remove_file(path);
        Some(part)
    }

    fn wait(&self, name: &str) {
        let answers = || {
            let mut socket = TcpStream::connect(self.addr).ok()?;
            socket.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
            socket.write_all(&request("is anybody there", false)).ok()?;
            let mut head = [0; 12];
            socket.read_exact(&mut head).ok()?;
            head.ends_with(b"200").then_some(())
        };
        let began = Instant::now();
        while answers().is_none() {
            assert!(began.elapsed() < Duration::from_secs(60), "{name} does not answer");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn start(args: &[String]) -> Part {
        let own = std::env::current_exe().expect("this program");
        let mut child = Command::new(own)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        Part { addr: line.trim().parse().expect("an address"), child }
    }

    /// Returns the resident memory of the process in bytes.
    fn resident(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("Linux");
        let kib = text.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
        1024.0 * kib.and_then(|kib| kib.trim().parse::<f64>().ok()).expect("a number")
    }

    /// Returns the CPU time of all its threads so far, in s.
    fn cpu_s(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("Linux");
        let of = |task: std::fs::DirEntry| -> Option<f64> {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        tasks.flatten().filter_map(of).sum::<f64>() / 1e9
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(prompt: &str, streams: bool) -> Vec<u8> {
    let body = format!("{{\"model\":\"m\",\"stream\":{streams},\"max_tokens\":100,\"prompt\":\"{prompt}\"}}");
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\nauthorization: Bearer k\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends requests for one measurement window. Returns the number of answered ones and the time of each in s.
fn load(addr: SocketAddr, clients: usize, streams: bool) -> (u64, Vec<f64>) {
    let word = if clients == STREAMS { "paced " } else { "system " };
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let times: Arc<Mutex<Vec<f64>>> = Arc::default();
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let (stop, count, times) = (Arc::clone(&stop), Arc::clone(&count), Arc::clone(&times));
            std::thread::spawn(move || {
                let mut socket = TcpStream::connect(addr).expect("it listens");
                let _ = socket.set_nodelay(true);
                let mut own = Vec::new();
                let mut part = vec![0; 65_536];
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    let prompt = format!("{}{client} {number} {}", word.repeat(100), "user ".repeat(260));
                    let text = request(&prompt, streams);
                    let began = Instant::now();
                    exchange(&mut socket, &text, &mut part);
                    own.push(began.elapsed().as_secs_f64());
                    count.fetch_add(1, Ordering::Relaxed);
                }
                times.lock().expect("nobody panicked").extend(own);
            })
        })
        .collect();
    std::thread::sleep(WINDOW);
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("a client"));
    let mut times = std::mem::take(&mut *times.lock().expect("nobody panicked"));
    times.sort_by(f64::total_cmp);
    (count.load(Ordering::Relaxed), times)
}

/// Sends a request and reads the complete response.
fn exchange(socket: &mut TcpStream, text: &[u8], part: &mut [u8]) {
    socket.write_all(text).expect("sent");
    let (mut tail, mut got, mut whole) = (Vec::new(), 0usize, None);
    loop {
        let read = socket.read(part).expect("an answer");
        assert!(read > 0, "the connection closed");
        got += read;
        tail.extend_from_slice(&part[..read]);
        if whole.is_none()
            && let Some(end) = memchr::memmem::find(&tail, b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&tail[..end]).to_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            whole = Some(length.map(|length| end + 4 + length));
        }
        let done = match whole {
            Some(Some(length)) => got >= length,
            Some(None) => tail.ends_with(b"0\r\n\r\n"),
            None => false,
        };
        if done {
            return;
        }
        if whole == Some(None) && tail.len() > 4096 {
            tail.drain(..tail.len() - 16);
        }
    }
}

/// Sends requests on schedule for one measurement window. Returns the times from the due times in s, so that the
/// delay of a busy connection counts.
fn paced(addr: SocketAddr) -> Vec<f64> {
    let began = Instant::now() + Duration::from_millis(50);
    let all = (RATE_PER_S * WINDOW.as_secs_f64()) as usize;
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|connection| {
            std::thread::spawn(move || {
                let mut socket = TcpStream::connect(addr).expect("it listens");
                let _ = socket.set_nodelay(true);
                let mut part = vec![0; 65_536];
                let send = |number: usize| {
                    let due = began + Duration::from_secs_f64(number as f64 / RATE_PER_S);
                    let prompt = format!("{}{number} {}", "system ".repeat(100), "user ".repeat(260));
                    let text = request(&prompt, false);
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    exchange(&mut socket, &text, &mut part);
                    due.elapsed().as_secs_f64()
                };
                (connection..all).step_by(CONNECTIONS).map(send).collect::<Vec<f64>>()
            })
        })
        .collect();
    threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
}

/// Measures the added latency at 2 000 requests per s.
fn added(parts: &[(&str, &Part)]) {
    let mut times = vec![Vec::new(); parts.len()];
    let there: Vec<usize> = (0..parts.len()).collect();
    for &place in there.iter().chain(there.iter().rev()).cycle().take(4 * parts.len()) {
        times[place].extend(paced(parts[place].1.addr));
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let quantile = |times: &[f64], share: f64| 1e3 * times[(share * (times.len() - 1) as f64) as usize];
    for ((name, _), own) in parts.iter().zip(&times) {
        let [p50, p99] = [0.5, 0.99].map(|share| (quantile(own, share), quantile(&times[0], share)));
        println!(
            "2 000 a second, {name}: p50 {:.3} ms, p99 {:.3} ms; over direct {:+.3} and {:+.3} ms{}",
            p50.0,
            p99.0,
            p50.0 - p50.1,
            p99.0 - p99.1,
            if *name == "gateway" { " (bar 0.15 and 0.5)" } else { "" }
        );
    }
}

/// Measures the memory of streams without a reader.
fn unread(parts: &[(&str, &Part)]) {
    for (name, part) in &parts[1..] {
        let before = part.resident();
        let sockets: Vec<TcpStream> = (0..UNREAD)
            .map(|_| {
                let mut socket = TcpStream::connect(part.addr).expect("it listens");
                socket.write_all(&request("flood", true)).expect("sent");
                socket
            })
            .collect();
        std::thread::sleep(UNREAD_FOR);
        let each = (part.resident() - before) / UNREAD as f64 / 1024.0;
        drop(sockets);
        println!(
            "a stream that nobody reads, {name}: {each:.0} KiB{}",
            if *name == "gateway" { " (bar 256)" } else { "" }
        );
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Starts a part in front of the given replicas.
fn before(replicas: &[Part], what: &str) -> Part {
    let mut args = vec![what.to_owned()];
    args.extend(replicas.iter().map(|replica| replica.addr.to_string()));
    Part::start(&args)
}

/// Measures without a proxy, with the minimal proxy and with the gateway.
fn of_parts(measure: impl Fn(&[(&str, &Part)])) {
    let replicas: Vec<Part> = (0..2).map(|_| Part::start(&["replica".to_owned()])).collect();
    let [floor, gateway] = ["proxy", "gateway"].map(|what| before(&replicas, what));
    measure(&[("direct", &replicas[0]), ("floor", &floor), ("gateway", &gateway)]);
}

fn compare() {
    let replicas: Vec<Part> = (0..2).map(|_| Part::start(&["replica".to_owned()])).collect();
    let of = |what: &str| before(&replicas, what);
    let mut parts =
        vec![("floor", of("proxy")), ("gateway", of("gateway")), ("gateway, recorded", of("recorded"))];
    for (name, program, args, file) in PROXIES {
        parts.extend(Part::proxy(program, args, file, &replicas).map(|part| (name, part)));
    }
    if let Ok(folder) = std::env::var("PLIMSOLL_ROUTERS") {
        for (name, args) in ROUTERS {
            parts.push((name, Part::router(&folder, args, &replicas)));
        }
    }
    for (what, clients, streams, per, bar) in [
        ("request of 2 KB", CLIENTS, false, 1, 2.0),
        ("streamed event", CLIENTS, true, EVENTS, 1.2),
        ("event of 400 streams", STREAMS, true, EVENTS, 1.2),
    ] {
        for (_, part) in &parts {
            load(part.addr, clients, streams);
        }
        let mut cost = vec![Vec::new(); parts.len()];
        // The order is reversed in the second half, so that a drift of the machine cancels out.
        let there: Vec<usize> = (0..parts.len()).collect();
        let back = there.iter().rev();
        for &place in there.iter().chain(back).cycle().take(5 * parts.len()) {
            let part = &parts[place].1;
            let before = part.cpu_s();
            let (count, _) = load(part.addr, clients, streams);
            cost[place].push((part.cpu_s() - before) / (count as f64 * per as f64));
        }
        for ((name, part), own) in parts.iter().zip(&cost) {
            let ratios = own.iter().zip(&cost[0]).map(|(own, floor)| own / floor).collect();
            println!(
                "CPU per {what}, {name}: {:.1} µs, {:.2} x the floor, {:.0} MiB{}",
                1e6 * median(own.clone()),
                median(ratios),
                part.resident() / 1024.0 / 1024.0,
                if *name == "gateway" { format!(" (bar {bar})") } else { String::new() }
            );
        }
    }
    let quantile = |times: &[f64], share: f64| 1e6 * times[(share * (times.len() - 1) as f64) as usize];
    let direct = [("direct", &replicas[0])];
    let through = parts.iter().map(|(name, part)| (*name, part));
    for (name, part) in direct.into_iter().chain(through).chain(direct) {
        for clients in [1, CLIENTS] {
            let (count, times) = load(part.addr, clients, false);
            println!(
                "{clients} closed-loop clients, {name}: {count} requests, p50 {:.0} µs, p99 {:.0} µs",
                quantile(&times, 0.5),
                quantile(&times, 0.99)
            );
        }
    }
    drop(parts);
    drop(replicas);
    of_parts(added);
    of_parts(unread);
    decisions();
}

/// Measures a decision over 1 000 replicas with a prompt of 64 blocks.
fn decisions() {
    let mut router = Router::new(&GatewaySpec::default().route).reserved();
    let mut views: Vec<ReplicaView> =
        (0..1_000).map(|replica| ReplicaView { replica, ..ReplicaView::default() }).collect();
    let ends: Vec<u32> = (1..=64).map(|block| block * 64).collect();
    let mut times = Vec::new();
    // The first half fills the index, because untouched memory is mapped page by page.
    for id in 0..40_000u64 {
        let blocks: Vec<u64> = (0..64)
            .map(|block| if block < 40 { id % 50 * 1_000 + block } else { id * 100_000 + block })
            .collect();
        let facts = RequestFacts {
            blocks: &blocks,
            ends: BlockEnds::At(&ends),
            prompt_tokens: 4_200,
            ..RequestFacts::default()
        };
        let mut chance = Stream::new(1, "bench", id);
        let began = Instant::now();
        let pick = router.pick(&views, &facts, &mut chance).expect("there are replicas");
        if id >= 20_000 {
            times.push(began.elapsed().as_secs_f64());
        }
        views[pick.place].load.add(ReplicaLoad::of_one(4_300, pick.uncached));
        let old = (id as usize * 7) % 1_000;
        views[old].load = ReplicaLoad::default();
    }
    times.sort_by(f64::total_cmp);
    let quantile = |share: f64| 1e6 * times[(share * (times.len() - 1) as f64) as usize];
    println!(
        "decision over 1 000 replicas, 64 blocks: p50 {:.1} µs, p99 {:.1} µs (bar 20 µs)",
        quantile(0.5),
        quantile(0.99)
    );
}
