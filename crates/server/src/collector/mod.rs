//! What others push: OTLP's spans or metrics over gRPC and HTTP, on any of its addresses, into a sink that is handed in.
//!
//! Both protocols are told apart by what a connection says first, so no port can be the wrong one. One thread reads; a
//! second one inflates, decodes and keeps, several requests at a time, and only then is a request answered: what was
//! acknowledged is in the sink. What is on its way between the two is bounded in bytes; past that a sender is told to
//! come back, and nothing is dropped that was not refused.
//!
//! Written on hyper; tonic was the alternative: six more crates for one unary method whose frame is five bytes long.

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
use intake::{Intake, Job};
use socket::Speaks;

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// Requests in progress may go on for this long after a stop.
const DRAIN: Duration = Duration::from_secs(3);
/// After a failed accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// HTTP/2's windows: several batches on their way on each connection.
const WINDOW: u32 = 1 << 20;

/// What to take, and how much of it.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectorConfig {
    /// Addresses to listen on; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Bytes of requests that may be on their way to the sink at a time. Past it senders are told to come back.
    pub pending_bytes: usize,
    /// Largest request, bytes. Larger ones are refused for good.
    pub body_bytes: usize,
    /// Largest request after inflating, bytes.
    pub inflated_bytes: usize,
    /// Stop by itself once so many spans were kept.
    pub max_spans: Option<u64>,
    /// Who does not say this is refused.
    pub bearer: Option<Bearer>,
    /// A connection's first bytes, and over HTTP/2 the answer to a ping, have to come within this.
    pub first_bytes: Duration,
    /// A connection that sends no whole head of a request within this is closed; over HTTP/2 it is asked then whether it is still there.
    pub idle: Duration,
}

impl CollectorConfig {
    /// These addresses, everything else by default.
    pub fn new(listen: Vec<SocketAddr>) -> CollectorConfig {
        CollectorConfig {
            listen,
            pending_bytes: 64 << 20,
            // What the OpenTelemetry collector takes over gRPC is 4 MiB, over HTTP 20 MiB.
            body_bytes: 20 << 20,
            inflated_bytes: 128 << 20,
            max_spans: None,
            bearer: None,
            first_bytes: Duration::from_secs(20),
            // Peers that are gone, or that send a byte now and then, would hold all connections there may be. Exporters send every few
            // seconds.
            idle: Duration::from_secs(75),
        }
    }
}

/// A token that senders have to know.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(Box<[u8]>);

impl Bearer {
    /// Of these bytes, which are not empty.
    pub fn new(token: &[u8]) -> Bearer {
        Bearer(token.into())
    }

    /// Is it this header's? Compared in a time that tells nothing of where they differ.
    pub fn is(&self, header: &[u8]) -> bool {
        let said = header.strip_prefix(b"Bearer ").or_else(|| header.strip_prefix(b"bearer "));
        said.is_some_and(|said| self.is_token(said.trim_ascii()))
    }

    /// Is it these bytes?
    pub fn is_token(&self, said: &[u8]) -> bool {
        said.ct_eq(&self.0).into()
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer(***)")
    }
}

/// Where what is pushed goes.
pub enum PushSink {
    Spans(Box<dyn SpanSink>),
    /// OTLP's metrics, with how many points could not be taken.
    Measured(Box<dyn FnMut(Vec<MeasuredResource>) -> u64 + Send>),
}

impl PushSink {
    /// What is taken for it.
    fn takes(&self) -> Export {
        match self {
            PushSink::Spans(_) => Export::Traces,
            PushSink::Measured(_) => Export::Metrics,
        }
    }
}

/// Where spans go.
pub trait SpanSink: Send + 'static {
    /// Keeps these spans; when it returns they are safe, and their senders are told so.
    ///
    /// # Errors
    /// Why they can't be kept, in one line; the collector then stops.
    fn keep(&mut self, spans: &[TraceSpan]) -> Result<(), String>;
}

/// What came so far.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct IntakeCounts {
    /// Requests whose spans were kept.
    pub requests: u64,
    pub spans: u64,
    /// Spans without valid ids: their senders were told (partial success).
    pub rejected: u64,
    /// Requests that were told to come back later.
    pub refused: u64,
    /// Requests that could not be read, or were too large.
    pub malformed: u64,
    /// Requests for something else: metrics, logs, other paths.
    pub elsewhere: u64,
    /// Connections that spoke TLS, which is not spoken here.
    pub tls: u64,
    /// Spans that had no end or ended before they began: kept, as ending where they began.
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

/// What all connections share.
struct Shared {
    config: CollectorConfig,
    takes: Export,
    tally: Tally,
    /// Bytes on their way to the sink.
    pending: AtomicUsize,
    stopping: AtomicBool,
    stop: Notify,
}

impl Shared {
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.stop.notify_waiters();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Until somebody asks to stop.
    async fn stopped(&self) {
        loop {
            let notified = self.stop.notified();
            tokio::pin!(notified);
            // Registered first and looked after: a stop in between is not missed.
            notified.as_mut().enable();
            if self.is_stopping() {
                return;
            }
            notified.await;
        }
    }
}

/// A collector that runs. Dropping it stops it.
pub struct Collecting {
    addrs: Vec<SocketAddr>,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<io::Result<()>>>,
    keeper: Option<JoinHandle<Result<(), String>>>,
}

/// Asks a collector to stop, from anywhere.
#[derive(Clone)]
pub struct CollectStopper(Arc<Shared>);

impl CollectStopper {
    /// No new requests; those on their way are kept and answered.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// What came so far.
    pub fn counts(&self) -> IntakeCounts {
        self.0.tally.counts()
    }

    /// Has it been asked to stop, or stopped by itself?
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }
}

/// Listens on every address and collects into `sink` until it is stopped.
///
/// # Errors
/// [`ServeError::Listen`] for the first address that can't be had; [`ServeError::System`].
pub fn collect(config: CollectorConfig, sink: impl SpanSink) -> Result<Collecting, ServeError> {
    receive(config, PushSink::Spans(Box::new(sink)))
}

/// The same of whatever the sink takes.
pub fn receive(config: CollectorConfig, sink: PushSink) -> Result<Collecting, ServeError> {
    let mut listeners = Vec::new();
    for addr in &config.listen {
        let listen = |source| ServeError::Listen { addr: *addr, source };
        let listener = std::net::TcpListener::bind(addr).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        listeners.push(listener);
    }
    let addrs = listeners.iter().map(std::net::TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
    let shared = Arc::new(Shared {
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
    Ok(Collecting { addrs, shared, reader: Some(reader), keeper: Some(keeper) })
}

impl Collecting {
    /// The addresses it listens on, in the order asked for.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// A handle to stop it with.
    pub fn stopper(&self) -> CollectStopper {
        CollectStopper(Arc::clone(&self.shared))
    }

    /// Waits until it has been stopped and everything on its way is kept.
    ///
    /// # Errors
    /// Why the sink or the system gave up; what was acknowledged until then is kept.
    pub fn wait(mut self) -> Result<IntakeCounts, String> {
        self.join()?;
        Ok(self.shared.tally.counts())
    }

    fn join(&mut self) -> Result<(), String> {
        let read = self.reader.take().map_or(Ok(Ok(())), JoinHandle::join);
        // The reader is gone and with it the last sender: the keeper ends when the queue is empty.
        let kept = self.keeper.take().map_or(Ok(Ok(())), JoinHandle::join);
        kept.map_err(|_| "the collector's keeper panicked".to_owned())??;
        read.map_err(|_| "the collector's reader panicked".to_owned())?.map_err(|e| e.to_string())
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.shared.stop();
        let _ = self.join();
    }
}

type Give = std::sync::mpsc::Sender<Job>;

fn read(listeners: Vec<std::net::TcpListener>, shared: &Arc<Shared>, give: &Give) -> io::Result<()> {
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
        // Every connection holds a slot: all of them back means that all have ended.
        let all = slots.acquire_many(CONNECTIONS as u32);
        let _ = tokio::time::timeout(DRAIN, all).await;
        Ok(())
    });
    // Tasks that still live hold senders; they go with the runtime.
    drop(runtime);
    ended
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, give: Give, slots: Arc<tokio::sync::Semaphore>) {
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
                    // However a connection ends is its peer's affair: what it acknowledged is kept.
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

/// One connection, whichever version of HTTP it speaks.
async fn serve(stream: TcpStream, shared: Arc<Shared>, give: Give) -> Result<(), hyper::Error> {
    let _ = stream.set_nodelay(true);
    let CollectorConfig { first_bytes, idle, .. } = shared.config;
    let Ok(Ok((socket, speaks))) = tokio::time::timeout(first_bytes, socket::begin(stream)).await else {
        return Ok(());
    };
    if speaks == Speaks::Tls {
        // An answer in the clear would say nothing to it: who runs the collector is told.
        shared.tally.tls.fetch_add(1, Ordering::SeqCst);
        return Ok(());
    }
    let theirs = Arc::clone(&shared);
    let service = service_fn(move |request| http::answer(request, Arc::clone(&theirs), give.clone()));
    if speaks == Speaks::Http2 {
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
