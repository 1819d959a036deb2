//! Gateway life cycle: listen, accept, stop. Each thread has its own runtime and accepts from the shared listener.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use http::header::CONNECTION;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use plimsoll_client::Clock;
use plimsoll_model::Span;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

use crate::active_config::{ActiveConfig, ConfigHandle};
use crate::admin;
use crate::error::GatewayError;
use crate::picker;
use crate::pool::ReplicaPool;
use crate::prober;
use crate::proxy::{self, ShadowTraffic, Worker};
use crate::reload::Reloader;
use crate::socket::LateReader;
use crate::spec::GatewaySpec;
use crate::stats::Stats;
use crate::timer::soon;
use crate::traffic::TrafficRecorder;
use crate::upstream::Upstreams;

/// Size of the kernel's accept queue.
const BACKLOG: i32 = 4096;
/// Pause after a failed accept, because without file descriptors an immediate retry would burn a core.
const ACCEPT_PAUSE: Span = Span::from_millis(20);
/// Time after a stop during which a connection may still deliver a request.
const LINGER: Span = Span::from_millis(300);
/// Limit on concurrent streams of a proxy's connection, each a request in flight. A proxy with more opens another
/// connection.
const CALLS: u32 = 1024;
/// Limit on the head of a gRPC call in bytes: gRPC's own headers, and the headers of a service mesh.
const CALL_HEAD: u32 = 16 << 10;
/// Flow-control window of a call in bytes, and 1/16 of a connection's window, so that a prompt arrives in one burst.
const WINDOW: u32 = 1 << 20;
/// Interval and timeout of HTTP/2 keep-alive pings to a proxy. A dead proxy releases its bookings on replicas.
const PING: Duration = Duration::from_secs(20);
const PONG: Duration = Duration::from_secs(10);
/// Timeout of the TLS handshake and of each request head on the admin listener.
const OPERATORS_WAIT: Duration = Duration::from_secs(10);

/// A running gateway. A drop stops it immediately.
pub struct Gateway {
    pub addr: SocketAddr,
    pub admin: Option<SocketAddr>,
    /// Listen address of the endpoint picker; `None` without one.
    pub picker: Option<SocketAddr>,
    pub stats: Arc<Stats>,
    pub pool: Arc<ReplicaPool>,
    /// Shadow replicas; `None` without shadows.
    pub shadows: Option<Arc<ReplicaPool>>,
    reloader: Reloader,
    stop: Arc<watch::Sender<u8>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// A handle that stops a gateway from any thread.
#[derive(Clone, Debug)]
pub struct GatewayStopper(Arc<watch::Sender<u8>>);

impl GatewayStopper {
    /// Stops accepting connections; responses in flight may finish. A second call ends everything immediately.
    pub fn stop(&self) {
        self.0.send_modify(|level| *level = level.saturating_add(1));
    }
}

impl Gateway {
    /// Starts a gateway. It accepts connections on return; health checks of the replicas start then.
    ///
    /// # Errors
    /// Fails as described in [`GatewayError`].
    pub fn start(spec: &GatewaySpec) -> Result<Gateway, GatewayError> {
        Gateway::recording(spec, Clock::start(), None)
    }

    /// Starts a gateway that also records each finished request. `clock` is the time axis of the recording.
    ///
    /// # Errors
    /// Fails as described in [`GatewayError`].
    pub fn recording(
        spec: &GatewaySpec,
        clock: Clock,
        traffic: Option<&Arc<TrafficRecorder>>,
    ) -> Result<Gateway, GatewayError> {
        spec.validate()?;
        let pool = Arc::new(ReplicaPool::new(spec, clock)?);
        let shadows =
            spec.shadow_share().map(|share| Shadows::new(spec, share, clock, traffic)).transpose()?;
        let rules = Arc::new(ConfigHandle::new(ActiveConfig::new(spec, None, clock)?));
        let bind = |addr: SocketAddr, key| {
            let listener = listen(addr).map_err(|source| GatewayError::Listen { addr, key, source })?;
            let addr = listener.local_addr()?;
            Ok::<_, GatewayError>((listener, addr))
        };
        let (listener, addr) = bind(spec.listen, "listen")?;
        let operators = spec.admin.map(|admin| bind(admin, "admin")).transpose()?;
        let admin = operators.as_ref().map(|(_, addr)| *addr);
        let picking = spec.picker.as_ref().map(|picker| bind(picker.listen, "picker.listen")).transpose()?;
        let picker = picking.as_ref().map(|(_, addr)| *addr);
        let (stop, stats) = (Arc::new(watch::Sender::new(0)), Arc::new(Stats::default()));
        let numbers = Arc::new(AtomicU64::new(0));
        let mut operators = operators.map(|(listener, _)| listener);
        let count = match spec.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            some => some,
        };
        let mut threads = Vec::new();
        for number in 0..count {
            let start = Start {
                listener: listener.try_clone()?,
                operators: operators.take(),
                picker: picking.as_ref().map(|(listener, _)| listener.try_clone()).transpose()?,
                probes: number == 0,
                pool: Arc::clone(&pool),
                stats: Arc::clone(&stats),
                rules: Arc::clone(&rules),
                spec: spec.clone(),
                stop: stop.subscribe(),
                numbers: Arc::clone(&numbers),
                traffic: traffic.cloned(),
                shadows: shadows.clone(),
                threads: count,
            };
            let named = std::thread::Builder::new().name(format!("plimsoll-gateway-{number}"));
            threads.push(named.spawn(move || run(start))?);
        }
        let reloader = Reloader {
            rules,
            pool: Arc::clone(&pool),
            stats: Arc::clone(&stats),
            started: Arc::new(spec.clone()),
            turn: Arc::default(),
        };
        let shadows = shadows.map(|shadows| shadows.pool);
        Ok(Gateway { addr, admin, picker, stats, pool, shadows, reloader, stop, threads })
    }

    /// Returns a handle that applies configuration reloads.
    pub fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    pub fn stopper(&self) -> GatewayStopper {
        GatewayStopper(Arc::clone(&self.stop))
    }

    /// Waits until the gateway has stopped. Fails if a serving thread fails or panics.
    pub fn wait(mut self) -> Result<(), GatewayError> {
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(ended) => ended?,
                Err(_) => return Err(io::Error::other("a serving thread died").into()),
            }
        }
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.send_modify(|level| *level = 2);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The data that a thread starts with.
struct Start {
    listener: std::net::TcpListener,
    operators: Option<std::net::TcpListener>,
    picker: Option<std::net::TcpListener>,
    probes: bool,
    pool: Arc<ReplicaPool>,
    stats: Arc<Stats>,
    rules: Arc<ConfigHandle>,
    spec: GatewaySpec,
    stop: watch::Receiver<u8>,
    numbers: Arc<AtomicU64>,
    traffic: Option<Arc<TrafficRecorder>>,
    shadows: Option<Shadows>,
    threads: usize,
}

/// The state that the shadow workers of all threads share.
#[derive(Clone)]
struct Shadows {
    share: f64,
    spec: Arc<GatewaySpec>,
    pool: Arc<ReplicaPool>,
    stats: Arc<Stats>,
    traffic: Option<Arc<TrafficRecorder>>,
}

impl Shadows {
    fn new(
        spec: &GatewaySpec,
        share: f64,
        clock: Clock,
        traffic: Option<&Arc<TrafficRecorder>>,
    ) -> Result<Shadows, GatewayError> {
        let spec = Arc::new(spec.shadows());
        Ok(Shadows {
            share,
            pool: Arc::new(ReplicaPool::new(&spec, clock)?),
            spec,
            stats: Arc::default(),
            traffic: traffic.map(|traffic| traffic.of_shadows()),
        })
    }

    /// Returns the shadow worker of a thread.
    fn worker(
        self,
        rules: &Arc<ConfigHandle>,
        numbers: &Arc<AtomicU64>,
        stop: &watch::Receiver<u8>,
    ) -> ShadowTraffic {
        let head_bytes = self.spec.limits.head_bytes;
        let upstreams = Upstreams::new(self.pool.clock, Arc::clone(rules), head_bytes);
        let worker = Worker {
            pool: self.pool,
            upstreams: Rc::new(upstreams),
            stats: self.stats,
            rules: Arc::clone(rules),
            admission: self.spec.admission.clone(),
            hedge: None,
            numbers: Arc::clone(numbers),
            traffic: self.traffic,
            shadow: None,
            traces: false,
            stop: stop.clone(),
            fallbacks: 0,
        };
        ShadowTraffic { worker: Rc::new(worker), share: self.share }
    }
}

/// Starts the permanent health check tasks of a worker.
fn look_at_replicas(worker: &Worker) {
    let (upstreams, rules) = (Rc::clone(&worker.upstreams), Arc::clone(&worker.rules));
    tokio::task::spawn_local(prober::look(Arc::clone(&worker.pool), upstreams, rules));
    tokio::task::spawn_local(prober::listen(Arc::clone(&worker.pool)));
}

/// The open connections of a thread.
#[derive(Default)]
struct OpenConnections {
    count: Cell<usize>,
    emptied: Notify,
}

fn run(start: Start) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async move {
        let Start { spec, pool, mut stop, .. } = start;
        let upstreams = Upstreams::new(pool.clock, Arc::clone(&start.rules), spec.limits.head_bytes);
        let shadow = start.shadows.map(|shadows| shadows.worker(&start.rules, &start.numbers, &stop));
        let worker = Rc::new(Worker {
            pool,
            upstreams: Rc::new(upstreams),
            stats: start.stats,
            rules: start.rules,
            admission: spec.admission.clone(),
            hedge: spec.hedge.clone(),
            numbers: start.numbers,
            traffic: start.traffic,
            shadow,
            traces: spec.traces.is_some(),
            stop: stop.clone(),
            fallbacks: spec.picker.as_ref().map_or(0, |picker| picker.fallbacks),
        });
        let clients = ListenSocket::new(start.listener, ListenerProtocol::Http)?;
        let picker = start
            .picker
            .map(|listener| ListenSocket::new(listener, ListenerProtocol::ExtProc))
            .transpose()?;
        if start.probes {
            look_at_replicas(&worker);
            worker.shadow.iter().for_each(|shadow| look_at_replicas(&shadow.worker));
        }
        if let Some(operators) = start.operators {
            let operators = TcpListener::from_std(operators)?;
            tokio::task::spawn_local(serve_operators(operators, Rc::clone(&worker)));
        }
        let stopped = stop.clone();
        let mut leaving = stop.clone();
        tokio::select! {
            biased;
            () = lingered(&mut leaving, &worker, Span::ZERO) => {}
            never = clients.accept(&worker, start.threads, &stopped) => match never {},
            never = async {
                match &picker {
                    Some(picker) => picker.accept(&worker, start.threads, &stopped).await,
                    None => std::future::pending().await,
                }
            } => match never {},
        }
        let doors = [Some(clients), picker].into_iter().flatten();
        let open = doors.map(|door| door.close(&worker, &stopped)).collect::<io::Result<Vec<_>>>()?;
        let limit = Span::from_secs_f64(worker.rules.now().limits.drain_s);
        let empty = async {
            for open in open {
                while open.count.get() > 0 {
                    open.emptied.notified().await;
                }
            }
        };
        tokio::select! {
            () = empty => {}
            () = tokio::time::sleep_until(soon(limit)) => {}
            _ = stop.wait_for(|level| *level > 1) => {}
        }
        Ok(())
    })
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ListenerProtocol {
    /// HTTP/1 for clients.
    Http,
    /// gRPC for proxies that use the picker.
    ExtProc,
}

/// A listener and its open connections.
struct ListenSocket {
    listener: TcpListener,
    speech: ListenerProtocol,
    open: Rc<OpenConnections>,
}

impl ListenSocket {
    fn new(listener: std::net::TcpListener, speech: ListenerProtocol) -> io::Result<ListenSocket> {
        Ok(ListenSocket { listener: TcpListener::from_std(listener)?, speech, open: Rc::default() })
    }

    async fn accept(&self, worker: &Rc<Worker>, threads: usize, stop: &watch::Receiver<u8>) -> Infallible {
        loop {
            let Ok((socket, _)) = self.listener.accept().await else {
                tokio::time::sleep_until(soon(ACCEPT_PAUSE)).await;
                continue;
            };
            let most = worker.rules.now().limits.connections.div_ceil(threads);
            if self.open.count.get() < most {
                take(socket, worker, (&self.open, self.speech), stop);
            }
        }
    }

    /// Accepts the listen backlog, whose clients connected before the stop, and closes the listener.
    fn close(self, worker: &Rc<Worker>, stop: &watch::Receiver<u8>) -> io::Result<Rc<OpenConnections>> {
        let listener = self.listener.into_std()?;
        while let Ok((socket, _)) = listener.accept() {
            socket.set_nonblocking(true)?;
            take(TcpStream::from_std(socket)?, worker, (&self.open, self.speech), stop);
        }
        Ok(self.open)
    }
}

fn take(
    socket: TcpStream,
    worker: &Rc<Worker>,
    (open, speech): (&Rc<OpenConnections>, ListenerProtocol),
    stop: &watch::Receiver<u8>,
) {
    open.count.set(open.count.get() + 1);
    let (worker, open, stop) = (Rc::clone(worker), Rc::clone(open), stop.clone());
    tokio::task::spawn_local(async move {
        connection(socket, worker, speech, stop).await;
        open.count.set(open.count.get() - 1);
        if open.count.get() == 0 {
            open.emptied.notify_one();
        }
    });
}

/// Serves a connection to its end. Errors are ignored, because they concern the peer only.
async fn connection(
    socket: TcpStream,
    worker: Rc<Worker>,
    speech: ListenerProtocol,
    stop: watch::Receiver<u8>,
) {
    let _ = socket.set_nodelay(true);
    let rules = worker.rules.now();
    let limit = soon(Span::from_secs_f64(rules.limits.handshake_s));
    let tls = match speech {
        ListenerProtocol::Http => rules.tls.clients.clone(),
        ListenerProtocol::ExtProc => rules.tls.picker.clone(),
    };
    match tls {
        None => speak(socket, worker, speech, stop).await,
        Some(config) => {
            let shaking = TlsAcceptor::from(config).accept(socket);
            // A failed TLS handshake leaves no channel for an error response.
            if let Ok(Ok(socket)) = tokio::time::timeout_at(limit, shaking).await {
                speak(socket, worker, speech, stop).await;
            }
        }
    }
}

async fn speak(
    socket: impl AsyncRead + AsyncWrite + Unpin + 'static,
    worker: Rc<Worker>,
    speech: ListenerProtocol,
    stop: watch::Receiver<u8>,
) {
    match speech {
        ListenerProtocol::Http => http_on(socket, worker, stop).await,
        ListenerProtocol::ExtProc => calls_on(socket, worker, stop).await,
    }
}

async fn http_on(
    socket: impl AsyncRead + AsyncWrite + Unpin + 'static,
    worker: Rc<Worker>,
    mut stop: watch::Receiver<u8>,
) {
    let rules = worker.rules.now();
    let mut http = http1::Builder::new();
    http.max_headers(rules.limits.headers)
        .max_buf_size(rules.limits.head_bytes)
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs_f64(rules.limits.head_s))
        .half_close(false);
    let refused = Rc::new(Cell::new(false));
    let socket = LateReader::new(socket, Rc::clone(&refused));
    let lingers = Rc::clone(&worker);
    let service = service_fn(move |request| {
        let (worker, refused) = (Rc::clone(&worker), Rc::clone(&refused));
        async move {
            let response = proxy::serve_request(worker, request).await;
            // The `Connection` header marks a rejection before the end of the request.
            refused.set(response.headers().contains_key(CONNECTION));
            Ok::<_, Infallible>(response)
        }
    });
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    // A request that was sent before the stop arrives within this time.
    let mut stopping = pin!(lingered(&mut stop, &lingers, LINGER));
    let mut is_stopping = false;
    std::future::poll_fn(|cx| {
        if !is_stopping && stopping.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(cx).map(drop)
    })
    .await;
}

/// Waits for a stop, then for `limits.linger_s` plus `more`. A second stop ends the wait.
async fn lingered(stop: &mut watch::Receiver<u8>, worker: &Worker, more: Span) {
    if stop.wait_for(|level| *level > 0).await.is_err() {
        return;
    }
    let limit = soon(Span::from_secs_f64(worker.rules.now().limits.linger_s) + more);
    let _ = tokio::time::timeout_at(limit, stop.wait_for(|level| *level > 1)).await;
}

async fn calls_on(
    socket: impl AsyncRead + AsyncWrite + Unpin + 'static,
    worker: Rc<Worker>,
    mut stop: watch::Receiver<u8>,
) {
    let mut http = http2::Builder::new(LocalTasks);
    http.timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(16 * WINDOW)
        .max_concurrent_streams(CALLS)
        .max_header_list_size(CALL_HEAD);
    let lingers = Rc::clone(&worker);
    let service = service_fn(move |request| picker::answer(Rc::clone(&worker), request));
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    tokio::select! {
        _ = serving.as_mut() => return,
        () = lingered(&mut stop, &lingers, Span::ZERO) => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}

/// An executor that runs hyper's tasks on the current thread.
#[derive(Copy, Clone)]
struct LocalTasks;

impl<F: Future + 'static> Executor<F> for LocalTasks {
    fn execute(&self, task: F) {
        drop(tokio::task::spawn_local(task));
    }
}

async fn serve_operators(listener: TcpListener, worker: Rc<Worker>) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep_until(soon(ACCEPT_PAUSE)).await;
            continue;
        };
        let worker = Rc::clone(&worker);
        let config = worker.rules.now().tls.operators.clone();
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request| {
                let worker = Rc::clone(&worker);
                async move { Ok::<_, Infallible>(admin::answer(&worker, request).await) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(OPERATORS_WAIT);
            match config {
                None => drop(http.serve_connection(TokioIo::new(socket), service).await),
                Some(config) => {
                    let shaking = TlsAcceptor::from(config).accept(socket);
                    if let Ok(Ok(socket)) = tokio::time::timeout(OPERATORS_WAIT, shaking).await {
                        drop(http.serve_connection(TokioIo::new(socket), service).await);
                    }
                }
            }
        });
    }
}
