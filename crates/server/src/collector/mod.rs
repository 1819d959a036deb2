//! Receives pushed OTLP spans or metrics over gRPC and HTTP on any of its addresses, and passes them to a sink.
//!
//! The first bytes of a connection distinguish the two protocols, so one port serves both. One thread reads. A second
//! thread decompresses, decodes and stores several requests at a time, and only then acknowledges them, so every
//! acknowledged span is in the sink. The bytes between the two threads are bounded. Over the bound a sender must retry, and
//! only rejected requests are dropped.
//!
//! The collector uses hyper. tonic was rejected, because it adds six crates for one unary method with a frame of five
//! bytes.

mod answer;
mod export;
mod http;
mod intake;
mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use plimsoll_model::TraceSpan;
use plimsoll_wire::otlp_metrics::MeasuredResource;
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::config::ServeError;
use export::Export;
use intake::{Intake, IntakeJob};
use socket::DetectedProtocol;

/// Most concurrent connections; more wait in the kernel's listen backlog.
const CONNECTIONS: usize = 1024;
/// Longest time that requests in progress may take after a stop.
const DRAIN: Duration = Duration::from_secs(3);
/// Pause after a failed accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// HTTP/2 window in bytes, which fits several batches in transit per connection.
const WINDOW: u32 = 1 << 20;

#[derive(Clone, PartialEq, Debug)]
pub struct CollectorConfig {
    /// Addresses to listen on; port 0 selects a free port.
    pub listen: Vec<SocketAddr>,
    /// Most bytes of pending requests. Over the limit senders must retry.
    pub pending_bytes: usize,
    /// Largest request in bytes. Larger ones are rejected permanently.
    pub body_bytes: usize,
    /// Largest request in bytes after decompression.
    pub inflated_bytes: usize,
    /// Number of stored spans after which the collector stops; `None` = no limit.
    pub max_spans: Option<u64>,
    /// Token that senders must present; `None` = no authentication.
    pub bearer: Option<Bearer>,
    /// Longest time until a connection's first bytes, and over HTTP/2 until the response to a ping.
    pub first_bytes: Duration,
    /// Longest time until a complete request head, after which the connection is closed. Over HTTP/2 the collector then
    /// sends a ping.
    pub idle: Duration,
}

impl CollectorConfig {
    /// Returns the default configuration with these addresses.
    pub fn new(listen: Vec<SocketAddr>) -> CollectorConfig {
        CollectorConfig {
            listen,
            pending_bytes: 64 << 20,
            // The OpenTelemetry collector accepts 4 MiB over gRPC and 20 MiB over HTTP.
            body_bytes: 20 << 20,
            inflated_bytes: 128 << 20,
            max_spans: None,
            bearer: None,
            first_bytes: Duration::from_secs(20),
            // Dead peers, or peers that send single bytes, could otherwise use up all connections. Exporters send every few
            // seconds.
            idle: Duration::from_secs(75),
        }
    }
}

/// The bearer token that senders must present.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(Box<[u8]>);

impl Bearer {
    /// Returns a token of these bytes, which must not be empty.
    pub fn new(token: &[u8]) -> Bearer {
        Bearer(token.into())
    }

    /// Returns whether an `Authorization` header has this token. The comparison takes constant time.
    pub fn is(&self, header: &[u8]) -> bool {
        let said = header.strip_prefix(b"Bearer ").or_else(|| header.strip_prefix(b"bearer "));
        said.is_some_and(|said| self.is_token(said.trim_ascii()))
    }

    /// Returns whether the bytes are this token.
    pub fn is_token(&self, said: &[u8]) -> bool {
        said.ct_eq(&self.0).into()
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer(***)")
    }
}

pub enum PushSink {
    Spans(Box<dyn SpanSink>),
    /// Receiver of OTLP metrics; returns the number of rejected points.
    Measured(Box<dyn FnMut(Vec<MeasuredResource>) -> u64 + Send>),
}

impl PushSink {
    /// Returns the kind of export that the sink accepts.
    fn takes(&self) -> Export {
        match self {
            PushSink::Spans(_) => Export::Traces,
            PushSink::Measured(_) => Export::Metrics,
        }
    }
}

pub trait SpanSink: Send + 'static {
    /// Stores these spans durably; the senders get their acknowledgement after the return.
    ///
    /// # Errors
    /// Fails with a one-line reason; the collector then stops.
    fn keep(&mut self, spans: &[TraceSpan]) -> Result<(), String>;
}

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct IntakeCounts {
    /// Requests whose spans were stored.
    pub requests: u64,
    pub spans: u64,
    /// Spans without valid ids; their senders got a partial success.
    pub rejected: u64,
    /// Requests whose sender must retry later.
    pub refused: u64,
    /// Requests that were malformed or too large.
    pub malformed: u64,
    /// Requests to other paths, such as metrics or logs.
    pub elsewhere: u64,
    /// Connections that started TLS, which the collector does not support.
    pub tls: u64,
    /// Spans without an end, or with an end before their start; stored with their start as the end.
    pub mended: u64,
}

#[derive(Default)]
struct Tally {
    requests: AtomicU64,
    spans: AtomicU64,
    rejected: AtomicU64,
    refused: AtomicU64,
    malformed: AtomicU64,
    elsewhere: AtomicU64,
    tls: AtomicU64,
    mended: AtomicU64,
}

impl Tally {
    fn counts(&self) -> IntakeCounts {
        let get = |count: &AtomicU64| count.load(Ordering::SeqCst);
        IntakeCounts {
            requests: get(&self.requests),
            spans: get(&self.spans),
            rejected: get(&self.rejected),
            refused: get(&self.refused),
            malformed: get(&self.malformed),
            elsewhere: get(&self.elsewhere),
            tls: get(&self.tls),
            mended: get(&self.mended),
        }
    }
}

/// The state that all connections share.
struct CollectorState {
    config: CollectorConfig,
    takes: Export,
    tally: Tally,
    /// Bytes between reading and the sink.
    pending: AtomicUsize,
    stopping: AtomicBool,
    stop: Notify,
}

impl CollectorState {
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.stop.notify_waiters();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Waits until a stop is requested.
    async fn stopped(&self) {
        loop {
            let notified = self.stop.notified();
            tokio::pin!(notified);
            // Registered before the check, so that a stop in between is not missed.
            notified.as_mut().enable();
            if self.is_stopping() {
                return;
            }
            notified.await;
        }
    }
}

/// A running collector. Dropping it stops it.
pub struct CollectorHandle {
    addrs: Vec<SocketAddr>,
    shared: Arc<CollectorState>,
    reader: Option<JoinHandle<io::Result<()>>>,
    keeper: Option<JoinHandle<Result<(), String>>>,
}

/// A handle that stops a collector from any thread.
#[derive(Clone)]
pub struct CollectStopper(Arc<CollectorState>);

impl CollectStopper {
    /// Stops new requests; pending ones are stored and answered.
    pub fn stop(&self) {
        self.0.stop();
    }

    pub fn counts(&self) -> IntakeCounts {
        self.0.tally.counts()
    }

    /// Returns whether a stop was requested or the span limit was reached.
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }
}

/// Listens on every address and passes spans to `sink` until it is stopped.
///
/// # Errors
/// Fails with [`ServeError::Listen`] for the first address that can't be bound, or with [`ServeError::System`].
pub fn collect(config: CollectorConfig, sink: impl SpanSink) -> Result<CollectorHandle, ServeError> {
    receive(config, PushSink::Spans(Box::new(sink)))
}

/// Listens on every address and passes the exports of the sink's kind to it until it is stopped.
pub fn receive(config: CollectorConfig, sink: PushSink) -> Result<CollectorHandle, ServeError> {
    let mut listeners = Vec::new();
    for addr in &config.listen {
        let listen = |source| ServeError::Listen { addr: *addr, source };
        let listener = std::net::TcpListener::bind(addr).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        listeners.push(listener);
    }
    let addrs = listeners.iter().map(std::net::TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
    let shared = Arc::new(CollectorState {
        config,
        takes: sink.takes(),
        tally: Tally::default(),
        pending: AtomicUsize::new(0),
        stopping: AtomicBool::new(false),
        stop: Notify::new(),
    });
    let (give, take) = std::sync::mpsc::channel();
    let intake = Intake { shared: Arc::clone(&shared), sink };
    let keeper = std::thread::Builder::new().name("collect-keep".into()).spawn(move || intake.run(&take))?;
    let theirs = Arc::clone(&shared);
    let reader = std::thread::Builder::new()
        .name("collect-read".into())
        .spawn(move || read(listeners, &theirs, &give))?;
    Ok(CollectorHandle { addrs, shared, reader: Some(reader), keeper: Some(keeper) })
}

impl CollectorHandle {
    /// Returns the bound addresses, in the configured order.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns a handle that stops the collector.
    pub fn stopper(&self) -> CollectStopper {
        CollectStopper(Arc::clone(&self.shared))
    }

    /// Waits until the collector has stopped and all pending data is stored.
    ///
    /// # Errors
    /// Fails with the reason that the sink or the system failed; everything acknowledged before that is stored.
    pub fn wait(mut self) -> Result<IntakeCounts, String> {
        self.join()?;
        Ok(self.shared.tally.counts())
    }

    fn join(&mut self) -> Result<(), String> {
        let read = self.reader.take().map_or(Ok(Ok(())), JoinHandle::join);
        // The reader has ended and with it the last sender, so the intake thread ends with an empty queue.
        let kept = self.keeper.take().map_or(Ok(Ok(())), JoinHandle::join);
        kept.map_err(|_| "the collector's keeper panicked".to_owned())??;
        read.map_err(|_| "the collector's reader panicked".to_owned())?.map_err(|e| e.to_string())
    }
}

impl Drop for CollectorHandle {
    fn drop(&mut self) {
        self.shared.stop();
        let _ = self.join();
    }
}

type Give = std::sync::mpsc::Sender<IntakeJob>;

fn read(listeners: Vec<std::net::TcpListener>, shared: &Arc<CollectorState>, give: &Give) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
        let mut accepting = Vec::new();
        for listener in listeners {
            let listener = TcpListener::from_std(listener)?;
            accepting.push(tokio::spawn(accept(
                listener,
                Arc::clone(shared),
                give.clone(),
                Arc::clone(&slots),
            )));
        }
        shared.stopped().await;
        for task in accepting {
            let _ = task.await;
        }
        // Every connection has a slot, so all slots are free when all connections have ended.
        let all = slots.acquire_many(CONNECTIONS as u32);
        let _ = tokio::time::timeout(DRAIN, all).await;
        Ok(())
    });
    // Remaining tasks own senders, which are dropped with the runtime.
    drop(runtime);
    ended
}

async fn accept(
    listener: TcpListener,
    shared: Arc<CollectorState>,
    give: Give,
    slots: Arc<tokio::sync::Semaphore>,
) {
    loop {
        let slot = tokio::select! {
            slot = Arc::clone(&slots).acquire_owned() => slot,
            () = shared.stopped() => return,
        };
        let Ok(slot) = slot else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stopped() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (shared, give) = (Arc::clone(&shared), give.clone());
                tokio::spawn(async move {
                    // The error of a connection concerns only its peer, because every acknowledged request is stored.
                    let _ = serve(stream, shared, give).await;
                    drop(slot);
                });
            }
            Err(_) => {
                let _ = tokio::time::timeout(ACCEPT_PAUSE, shared.stopped()).await;
            }
        }
    }
}

/// Serves one connection over either version of HTTP.
async fn serve(stream: TcpStream, shared: Arc<CollectorState>, give: Give) -> Result<(), hyper::Error> {
    let _ = stream.set_nodelay(true);
    let CollectorConfig { first_bytes, idle, .. } = shared.config;
    let Ok(Ok((socket, speaks))) = tokio::time::timeout(first_bytes, socket::begin(stream)).await else {
        return Ok(());
    };
    if speaks == DetectedProtocol::Tls {
        // A plaintext response would be useless to a TLS client, so the count informs the operator.
        shared.tally.tls.fetch_add(1, Ordering::SeqCst);
        return Ok(());
    }
    let theirs = Arc::clone(&shared);
    let service = service_fn(move |request| http::answer(request, Arc::clone(&theirs), give.clone()));
    if speaks == DetectedProtocol::Http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(idle).keep_alive_timeout(first_bytes);
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(4 * WINDOW);
        builder.max_concurrent_streams(128).max_header_list_size(16 << 10);
        let mut connection = std::pin::pin!(builder.serve_connection(socket, service));
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = shared.stopped() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    } else {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(64 << 10).timer(TokioTimer::new()).header_read_timeout(idle);
        let mut connection = std::pin::pin!(builder.serve_connection(socket, service));
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = shared.stopped() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    }
}
