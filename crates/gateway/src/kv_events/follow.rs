//! Follows a replica's KV events: connects, asks again for what was missed, connects again.
//!
//! Nothing that is heard here can stop a request: what can't be followed is one state and a reason, and routing goes by what was sent. What was learnt is
//! dropped as soon as a change of it might have been missed, because a guess that is known to be one costs less than a fact that is none.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use plimsoll_model::Span;
use plimsoll_wire::kv_events::{self, KvBatch};
use plimsoll_wire::zmtp::{self, SocketKind, ZmtpError, ZmtpReader, ZmtpReceived};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{KvEventsSpec, KvSequence, KvStanding, KvTurn, host_port};
use crate::pool::ReplicaPool;
use crate::replica::Replica;
use crate::rules::InForce;
use crate::timer::soon;

/// Largest message; a step of 16 000 prompt tokens makes some 200 KB.
const MOST_MESSAGE: usize = 8 << 20;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// How long a connection and its handshake may take, and how long all of a replay.
const HANDSHAKE: Duration = Duration::from_secs(5);
const REPLAY: Duration = Duration::from_secs(10);
/// Between two tries to connect, first and at most.
const SOON: Span = Span::from_millis(250);
const SELDOM: Span = Span::from_secs(10);
/// A host that is gone without a word is found out after so long.
const SILENT: Duration = Duration::from_secs(15);

/// Why events are not followed.
#[derive(Debug, thiserror::Error)]
enum KvFault {
    #[error("{0} can't be reached: {1}")]
    Unreachable(String, std::io::Error),
    #[error("{0} did not say in time that it is ready")]
    Slow(String),
    #[error("{0}: {1}")]
    Foreign(String, ZmtpError),
    #[error("{0} closed the connection")]
    Closed(String),
    #[error("{0}: {1}: {2}")]
    Unreadable(String, &'static str, String),
}

/// Follows one replica's events until it has gone, whenever the file names where they are.
pub async fn follow(pool: Arc<ReplicaPool>, replica: Arc<Replica>, rules: Arc<InForce>) {
    let (mut failed, mut asks) = (0u32, None);
    let mut follower = Follower { pool, replica: Arc::clone(&replica), sequence: KvSequence::default() };
    let wanted = || rules.now().kv_events(&replica.name).filter(|_| replica.is_named()).cloned();
    while !replica.is_gone() {
        let now = wanted();
        if now != asks {
            asks = now;
            let standing = if asks.is_some() { KvStanding::Connecting } else { KvStanding::Off };
            replica.kv.set(standing);
            (follower.sequence, failed) = (KvSequence::default(), 0);
        }
        let Some(spec) = &asks else {
            tokio::time::sleep_until(soon(SOON)).await;
            continue;
        };
        let before = replica.kv.batches.load(Ordering::Relaxed);
        let ended = follower.listen(spec, || wanted() == asks).await;
        // What is not followed may change unseen.
        follower.pool.kv_lost(&replica);
        if let Err(fault) = ended {
            replica.kv.set(KvStanding::Broken { why: fault.to_string() });
            let heard = replica.kv.batches.load(Ordering::Relaxed) > before;
            failed = if heard { 0 } else { failed + 1 };
            tokio::time::sleep_until(soon(Span(SOON.0 << failed.min(6)).min(SELDOM))).await;
        }
    }
}

struct Follower {
    pool: Arc<ReplicaPool>,
    replica: Arc<Replica>,
    sequence: KvSequence,
}

impl Follower {
    /// Listens until the connection breaks, or the file says otherwise.
    async fn listen(&mut self, spec: &KvEventsSpec, is_same: impl Fn() -> bool) -> Result<(), KvFault> {
        let mut socket = Socket::connect(&spec.endpoint, SocketKind::Subscriber).await?;
        socket.send(&zmtp::subscription(spec.topic.as_bytes())).await?;
        self.replica.kv.set(KvStanding::Followed);
        // What came while nobody heard is not asked for: without what was there before it says nothing of ages, and it would age all that is remembered.
        let mut known = false;
        loop {
            let message = match tokio::time::timeout(SOON.as_duration(), socket.message()).await {
                Ok(message) => message?,
                Err(_) if self.replica.is_gone() || !is_same() => return Ok(()),
                Err(_) => continue,
            };
            let (number, payload) =
                numbered(&message).ok_or_else(|| socket.unreadable("a message", "it has no number"))?;
            match self.sequence.take(number) {
                KvTurn::Gap(from) if known => self.mend(from..number, spec).await,
                KvTurn::Restarted => {
                    self.count(&self.replica.kv.restarts);
                    // A new process, with an empty cache.
                    self.pool.kv_restarted(&self.replica);
                }
                KvTurn::First | KvTurn::Next | KvTurn::Gap(_) => {}
            }
            known = true;
            match kv_events::read(payload) {
                Ok(batch) => self.tell(&batch),
                Err(error) => {
                    self.count(&self.replica.kv.unreadable);
                    return Err(socket.unreadable("a batch", error));
                }
            }
            if !is_same() {
                return Ok(());
            }
        }
    }

    /// Makes good the batches that are missing, or drops what may not be true any more.
    async fn mend(&self, missing: Range<u64>, spec: &KvEventsSpec) {
        self.count(&self.replica.kv.gaps);
        let mut whole = false;
        if let Some(endpoint) = &spec.replay_endpoint {
            let asked = tokio::time::timeout(REPLAY, self.replay(endpoint, missing)).await;
            whole = matches!(asked, Ok(Ok(true)));
            self.count(&self.replica.kv.replays[usize::from(!whole)]);
        }
        if !whole {
            self.pool.kv_lost(&self.replica);
        }
    }

    /// Asks for missing batches, and takes those that come. True if all of them do.
    async fn replay(&self, endpoint: &str, missing: Range<u64>) -> Result<bool, KvFault> {
        let mut socket = Socket::connect(endpoint, SocketKind::Dealer).await?;
        socket.send(&zmtp::message(&[b"", &missing.start.to_be_bytes()])).await?;
        let mut next = missing.start;
        while next < missing.end {
            let message = socket.message().await?;
            let (number, payload) =
                numbered(&message).ok_or_else(|| socket.unreadable("a replay", "it has no number"))?;
            if number < next {
                continue;
            }
            if number > next {
                return Ok(false);
            }
            let batch = kv_events::read(payload).map_err(|error| socket.unreadable("a batch", error))?;
            self.tell(&batch);
            next += 1;
        }
        Ok(true)
    }

    fn tell(&self, batch: &KvBatch) {
        self.replica.kv.came(self.pool.clock.now());
        self.pool.told_kv(&self.replica, &batch.events);
    }

    fn count(&self, count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The number and the batch of a message: its last two parts, behind a topic, an empty part or both.
fn numbered(message: &[Bytes]) -> Option<(u64, &Bytes)> {
    let [.., number, payload] = message else { return None };
    Some((u64::from_be_bytes(number[..].try_into().ok()?), payload))
}

/// A connection to a ZeroMQ socket.
struct Socket {
    endpoint: String,
    stream: TcpStream,
    reader: ZmtpReader,
    piece: Vec<u8>,
}

impl Socket {
    async fn connect(endpoint: &str, kind: SocketKind) -> Result<Socket, KvFault> {
        let shaking = Socket::shake(endpoint, kind);
        tokio::time::timeout(HANDSHAKE, shaking).await.map_err(|_| KvFault::Slow(endpoint.to_owned()))?
    }

    async fn shake(endpoint: &str, kind: SocketKind) -> Result<Socket, KvFault> {
        let unreachable = |e| KvFault::Unreachable(endpoint.to_owned(), e);
        let place = host_port(endpoint, "", "").unwrap_or(endpoint);
        let stream = TcpStream::connect(place).await.map_err(unreachable)?;
        let keep_alive = TcpKeepalive::new().with_time(SILENT).with_interval(SILENT / 3);
        SockRef::from(&stream).set_tcp_keepalive(&keep_alive).map_err(unreachable)?;
        let reader = ZmtpReader::new(kind, MOST_MESSAGE);
        let mut socket = Socket { endpoint: endpoint.to_owned(), stream, reader, piece: vec![0; PIECE] };
        socket.send(&zmtp::greeting()).await?;
        loop {
            match socket.receive().await? {
                ZmtpReceived::Greeting => socket.send(&zmtp::ready(kind)).await?,
                ZmtpReceived::Ready => return Ok(socket),
                ZmtpReceived::Message(_) | ZmtpReceived::Ping(_) => {
                    return Err(KvFault::Foreign(endpoint.to_owned(), ZmtpError::Broken));
                }
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), KvFault> {
        self.stream.write_all(bytes).await.map_err(|e| KvFault::Unreachable(self.endpoint.clone(), e))
    }

    /// The next message. It may be left off at any wait and taken up again.
    async fn message(&mut self) -> Result<Vec<Bytes>, KvFault> {
        loop {
            match self.receive().await? {
                ZmtpReceived::Message(parts) => return Ok(parts),
                ZmtpReceived::Ping(context) => self.send(&zmtp::pong(&context)).await?,
                ZmtpReceived::Greeting | ZmtpReceived::Ready => {}
            }
        }
    }

    async fn receive(&mut self) -> Result<ZmtpReceived, KvFault> {
        loop {
            let foreign = |error| KvFault::Foreign(self.endpoint.clone(), error);
            if let Some(received) = self.reader.take().map_err(foreign)? {
                return Ok(received);
            }
            match self.stream.read(&mut self.piece).await {
                Ok(0) => return Err(KvFault::Closed(self.endpoint.clone())),
                Ok(read) => self.reader.push(&self.piece[..read]),
                Err(e) => return Err(KvFault::Unreachable(self.endpoint.clone(), e)),
            }
        }
    }

    fn unreadable(&self, what: &'static str, why: impl ToString) -> KvFault {
        KvFault::Unreadable(self.endpoint.clone(), what, why.to_string())
    }
}
