//! Runs a server: listens, accepts, enforces limits on connections, and stops.
//!
//! One thread with one runtime serves everything. Several threads were rejected: the world is one state that every token
//! changes, and one core carries ninety thousand tokens a second. On the small machines of load tests the client needs the
//! second core.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use plimsoll_client::clock;
use plimsoll_client::timer::{self, Timer};
use plimsoll_model::Span;
use plimsoll_sim::{World, WorldSpec};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::Notify;

use crate::body::{self};
use crate::clock::EngineAxis;
use crate::config::{EngineServerConfig, ServeError, ServerLimits};
use crate::engine::EngineDriver;
use crate::front::Front;
use crate::infer;
use crate::io::{Conn, Io, ReadScratch, ask_for_stamps, poll_speaks_http2, wait_for_stamps};
use crate::metrics::Metrics;
use crate::running::{ServerHandle, Stop};
use crate::script::ManualClock;
use crate::shared::Server;
use crate::streams::StreamFront;
use crate::transport::{Handshake, ServerTransport, TlsListener};
use crate::truth::{Header, Truth, TruthWriter};

/// Length of the listen backlog, which the kernel also limits by `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Interval of the limit checks in ns.
const HOUSEKEEPING_NS: i64 = 250_000_000;
/// HTTP/2 stream window in bytes, and most concurrent streams per connection.
const WINDOW: u32 = 1 << 20;
const STREAMS: u32 = 1024;
/// Pause in ns after a failed accept (no descriptors left).
const ACCEPT_PAUSE_NS: i64 = 20_000_000;

/// Starts serving an engine on a separate thread. The server accepts connections on return.
///
/// # Errors
/// Fails with a [`ServeError`] for every problem that is detectable before the first request.
pub fn serve(config: EngineServerConfig) -> Result<ServerHandle, ServeError> {
    serve_on(config, EngineAxis::begin)
}

/// Starts serving a world whose time is the script's: no event is due until the script moves there.
pub fn serve_scripted(config: EngineServerConfig, script: ManualClock) -> Result<ServerHandle, ServeError> {
    serve_on(config, || EngineAxis::scripted(script))
}

fn serve_on(
    config: EngineServerConfig,
    axis: impl FnOnce() -> EngineAxis,
) -> Result<ServerHandle, ServeError> {
    let world = World::of(&config.world(), config.seed)?;
    let listen_error = |source| ServeError::Listen { addr: config.listen, source };
    let listener = listen(config.listen).map_err(listen_error)?;
    let addr = listener.local_addr().map_err(listen_error)?;
    // A runtime can't move to its thread. This one only checks that a runtime can be created, so that the error can be
    // returned.
    drop(Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?);
    let axis = axis();
    let truth = open_truth(&config, &axis)?;
    let stop = Arc::new(Stop::default());
    let seen = stop.clone();
    let thread = std::thread::Builder::new().name("plimsoll-engine".to_owned()).spawn(move || {
        timer::sharpen_thread();
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
        let (truth, writer) = truth.unzip();
        let served = run(&runtime, listener, world, axis, config, truth, &seen);
        // Open connections end with the runtime and write their truth records.
        drop(runtime);
        match writer.map(TruthWriter::join) {
            Some(Err((path, source))) => Err(ServeError::Truth { path, source }),
            _ => served,
        }
    })?;
    Ok(ServerHandle { addr, stop, thread: Some(thread) })
}

fn open_truth(
    config: &EngineServerConfig,
    axis: &EngineAxis,
) -> Result<Option<(Truth, TruthWriter)>, ServeError> {
    let Some(path) = &config.truth_log else { return Ok(None) };
    let failed = |source| ServeError::Truth { path: path.clone(), source };
    let header = Header {
        plimsoll_truth: 1,
        clock: axis.anchor,
        model: config.model.clone(),
        seed: config.seed,
        engine: serde_json::to_value(&config.engine).map_err(|e| failed(e.into()))?,
        world: match config.world() {
            world if world == WorldSpec::one(config.engine.clone()) => serde_json::Value::Null,
            world => serde_json::to_value(&world).map_err(|e| failed(e.into()))?,
        },
    };
    Truth::create(path, &header).map(Some).map_err(failed)
}

/// Returns a listening socket. Accepted sockets inherit its options, which saves two calls per connection.
fn listen(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    // A congestion control with pacing (BBR is the default on some systems) delays small writes, and a token's arrival
    // would not reflect its write. If it can't be set, the default remains.
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_congestion(b"reno");
    ask_for_stamps(&socket);
    socket.bind(&addr.into())?;
    // Every record shows whether the kernel stamps, and a server without stamps still works.
    let _ = wait_for_stamps();
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn run(
    runtime: &LocalRuntime,
    listener: std::net::TcpListener,
    world: World,
    axis: EngineAxis,
    config: EngineServerConfig,
    truth: Option<Truth>,
    stop: &Stop,
) -> Result<(), ServeError> {
    let metrics = Rc::new(RefCell::new(Metrics::default()));
    let faults_path = config.truth_log.as_ref().map(|path| path.with_extension("faults.json"));
    let adapters = world.adapters().to_vec();
    let started_s = axis.anchor.realtime_ns / 1_000_000_000;
    let engine = EngineDriver::new(world, axis, config.wake_spacing, metrics, truth.map(Rc::new));
    let routes = config.world() != WorldSpec::one(config.engine.clone());
    let tls = config.tls.map(|tls| TlsListener::new(tls.0));
    let server = Rc::new(Server {
        engine,
        infers: infer::model(&config.model, &config.engine.mode, &config.inputs),
        model: config.model,
        adapters,
        mode: config.engine.mode,
        limits: config.limits,
        may_fail: !config.faults.is_empty(),
        routes,
        started_s,
        page: body::page(),
        conns: RefCell::default(),
        draining: Cell::new(false),
        emptied: Notify::new(),
    });
    runtime.block_on(async move {
        let listener = TcpListener::from_std(listener)?;
        let driver = tokio::task::spawn_local(server.engine.clone().drive());
        tokio::select! {
            biased;
            () = stop.reaches(1) => {}
            failed = driver => return Err(ServeError::System(failed.unwrap_or_else(io::Error::other))),
            failed = accept(&listener, &server, tls.as_ref()) => return Err(ServeError::System(failed)),
            failed = keep_house(&server) => return Err(ServeError::System(failed)),
        }
        drop(listener);
        drain(&server, stop).await;
        write_faults(&server, faults_path)
    })
}

/// Writes the ground truth of the faults next to the truth log: kind, place, time and affected requests. Times are on the
/// world's axis, whose zero is the log's clock anchor.
fn write_faults(server: &Server, path: Option<PathBuf>) -> Result<(), ServeError> {
    let (Some(path), Some(truth)) = (path, server.engine.fault_truth()) else { return Ok(()) };
    std::fs::write(&path, format!("{truth:#}\n")).map_err(|source| ServeError::Truth { path, source })
}

async fn accept(listener: &TcpListener, server: &Rc<Server>, tls: Option<&TlsListener>) -> io::Error {
    let pause = match Timer::new() {
        Ok(timer) => timer,
        Err(e) => return e,
    };
    let scratch = ReadScratch::new();
    let versions = Rc::new(Versions::of(server));
    for key in 0.. {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(_) => {
                // A connection that died in the backlog, or a lack of descriptors, must not end the server.
                if let Err(e) = pause.until(clock::monotonic_ns() + ACCEPT_PAUSE_NS).await {
                    return e;
                }
                continue;
            }
        };
        server.engine.metrics.borrow_mut().connections += 1;
        let begun = |conn: &Rc<Conn>| match tls {
            None => ProtocolState::Unknown(socket, scratch.clone()),
            Some(tls) => {
                let io = Io::new(socket, conn.clone(), scratch.clone());
                ProtocolState::Handshake(Box::new(tls.shake(io, conn)))
            }
        };
        tokio::task::spawn_local(ConnectionTask::new(&versions, server, key, begun));
    }
    io::Error::other("more connections than numbers")
}

/// Closes connections and streams of slow clients, and flushes buffered truth records.
async fn keep_house(server: &Rc<Server>) -> io::Error {
    let timer = match Timer::new() {
        Ok(timer) => timer,
        Err(e) => return e,
    };
    loop {
        if let Err(e) = timer.until(clock::monotonic_ns() + HOUSEKEEPING_NS).await {
            return e;
        }
        server.engine.flush_truth();
        let now = clock::monotonic_ns();
        let late_there = |conn: &Rc<Conn>| late_on(conn, &server.limits, now);
        let late: Vec<Rc<Conn>> = server.conns.borrow().values().flat_map(late_there).collect();
        server.engine.metrics.borrow_mut().timed_out += late.len() as u64;
        late.iter().for_each(|conn| conn.kill());
    }
}

/// Returns the connection if it is late, or else its late streams.
fn late_on(conn: &Rc<Conn>, limits: &ServerLimits, now: i64) -> Vec<Rc<Conn>> {
    let over = |since: Option<i64>, limit: Span| since.is_some_and(|since| now - since > limit.0);
    let waits = conn.waits();
    let is_late = over(waits.reading_since, limits.request_read)
        || over(waits.blocked_since, limits.blocked_write)
        || over(waits.idle_since, limits.idle);
    if is_late {
        return vec![conn.clone()];
    }
    // One slow stream must not end the other streams of the connection.
    let streams = conn.late_streams(now - limits.request_read.0);
    if streams.iter().any(|stream| stream.is_killed()) {
        // The stream was killed and counted at an earlier check. Its response waits for the client's window, and meanwhile
        // the library does not poll the body, so only closing the connection ends it.
        conn.kill();
        return Vec::new();
    }
    streams
}

/// Lets responses in progress end within the drain limit.
async fn drain(server: &Rc<Server>, stop: &Stop) {
    server.draining.set(true);
    server.conns.borrow().values().for_each(|conn| conn.wake());
    let deadline = clock::monotonic_ns() + server.limits.drain.0;
    let limit = async {
        if let Ok(timer) = Timer::new() {
            let _ = timer.until(deadline).await;
        }
    };
    let empty = async {
        while server.open() > 0 {
            server.emptied.notified().await;
        }
    };
    tokio::select! {
        () = empty => {}
        () = limit => {}
        () = stop.reaches(2) => {}
    }
    server.engine.flush_truth();
}

/// The hyper settings of each HTTP version.
struct Versions {
    one: http1::Builder,
    two: http2::Builder<LocalTasks>,
}

impl Versions {
    fn of(server: &Server) -> Versions {
        let limits = &server.limits;
        let mut one = http1::Builder::new();
        one.writev(false)
            .half_close(false)
            .max_headers(limits.headers)
            .max_buf_size(limits.head_bytes.max(8192));
        let mut two = http2::Builder::new(LocalTasks);
        two.initial_stream_window_size(WINDOW)
            .initial_connection_window_size(16 * WINDOW)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(limits.head_bytes.max(8192)).unwrap_or(u32::MAX));
        Versions { one, two }
    }
}

/// Spawns hyper's tasks on the current thread.
#[derive(Copy, Clone)]
struct LocalTasks;

impl<F: Future + 'static> Executor<F> for LocalTasks {
    fn execute(&self, task: F) {
        drop(tokio::task::spawn_local(task));
    }
}

/// The protocol state of a connection.
enum ProtocolState {
    /// The protocol is unknown before the first bytes.
    Unknown(TcpStream, Rc<RefCell<ReadScratch>>),
    /// The protocol is unknown before the TLS handshake has ended.
    Handshake(Box<Handshake>),
    One(Box<http1::Connection<ServerTransport, Front>>),
    Two(Box<http2::Connection<ServerTransport, StreamFront, LocalTasks>>),
    Nothing,
}

/// The task of one connection. Dropping it removes the connection from the server's list.
struct ConnectionTask {
    spoken: ProtocolState,
    versions: Rc<Versions>,
    conn: Rc<Conn>,
    server: Rc<Server>,
    key: u64,
    closing: bool,
}

impl ConnectionTask {
    fn new(
        versions: &Rc<Versions>,
        server: &Rc<Server>,
        key: u64,
        begun: impl FnOnce(&Rc<Conn>) -> ProtocolState,
    ) -> ConnectionTask {
        let conn = Rc::new(Conn::default());
        server.conns.borrow_mut().insert(key, conn.clone());
        conn.touch(clock::monotonic_ns());
        let spoken = begun(&conn);
        ConnectionTask {
            spoken,
            versions: versions.clone(),
            conn,
            server: server.clone(),
            key,
            closing: false,
        }
    }

    /// Detects the protocol, if it is not yet known.
    fn poll_known(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let known = match &mut self.spoken {
            ProtocolState::Unknown(socket, _) => {
                let many = ready!(poll_speaks_http2(socket, cx));
                match std::mem::replace(&mut self.spoken, ProtocolState::Nothing) {
                    ProtocolState::Unknown(socket, scratch) => {
                        Some((ServerTransport::Plain(Io::new(socket, self.conn.clone(), scratch)), many))
                    }
                    _ => None,
                }
            }
            ProtocolState::Handshake(shaking) => ready!(shaking.poll(cx)),
            _ => return Poll::Ready(()),
        };
        let (server, conn) = (self.server.clone(), self.conn.clone());
        let Versions { one, two } = &*self.versions;
        self.spoken = match known {
            // TLS itself has reported the failed handshake to the client.
            None => ProtocolState::Nothing,
            Some((transport, false)) => {
                ProtocolState::One(Box::new(one.serve_connection(transport, Front::new(server, conn))))
            }
            Some((transport, true)) => {
                conn.carries_streams();
                ProtocolState::Two(Box::new(two.serve_connection(transport, StreamFront::new(server, conn))))
            }
        };
        Poll::Ready(())
    }
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.conn.remember(cx);
        if this.conn.is_killed() {
            return Poll::Ready(());
        }
        let begins = !this.server.draining.get();
        if begins && this.poll_known(cx).is_pending() {
            return Poll::Pending;
        }
        let closes = !begins && !std::mem::replace(&mut this.closing, true);
        // The error of a connection concerns only its client, and its requests have truth records.
        match &mut this.spoken {
            ProtocolState::One(http) => {
                let mut http = Pin::new(&mut **http);
                if closes {
                    http.as_mut().graceful_shutdown();
                }
                http.poll(cx).map(drop)
            }
            ProtocolState::Two(http) => {
                let mut http = Pin::new(&mut **http);
                if closes {
                    http.as_mut().graceful_shutdown();
                }
                http.poll(cx).map(drop)
            }
            ProtocolState::Unknown(..) | ProtocolState::Handshake(_) | ProtocolState::Nothing => {
                Poll::Ready(())
            }
        }
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.conn.let_go();
        self.server.conns.borrow_mut().remove(&self.key);
        if self.server.open() == 0 {
            self.server.emptied.notify_one();
        }
    }
}
