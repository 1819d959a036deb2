//! Publishes what changes in the engine's KV cache, as vLLM does: numbered batches on a ZeroMQ PUB socket, under the empty topic.
//!
//! Nothing is sent again: whoever is too slow, or comes late, misses batches and sees it by their numbers, as with vLLM where it has no replay endpoint.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use plimsoll_model::KvEvent;
use plimsoll_wire::kv_events;
use plimsoll_wire::zmtp::{self, SocketKind, ZmtpReader, ZmtpReceived};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::clock;

/// Batches that wait for a slow subscriber; then it misses the oldest.
const WAITING: usize = 4_096;
/// After an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Largest message of a subscriber: it sends topics.
const MOST_MESSAGE: usize = 4 << 10;

/// See the module.
pub(crate) struct KvPublisher {
    next: u64,
    batches: broadcast::Sender<Bytes>,
}

impl KvPublisher {
    /// Binds where subscribers connect.
    ///
    /// # Errors
    /// The address can't be had.
    pub fn bind(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Publishes to whoever connects from now on.
    ///
    /// # Errors
    /// The runtime does not take the listener.
    pub fn start(listener: std::net::TcpListener) -> io::Result<KvPublisher> {
        let listener = TcpListener::from_std(listener)?;
        let (batches, _) = broadcast::channel(WAITING);
        let to = batches.clone();
        tokio::task::spawn_local(async move {
            loop {
                // No descriptors, or a client that has gone: neither lasts.
                let Ok((socket, _)) = listener.accept().await else {
                    let _ = tokio::time::timeout(ACCEPT_PAUSE, std::future::pending::<()>()).await;
                    continue;
                };
                let from = to.subscribe();
                tokio::task::spawn_local(async move {
                    let _ = serve(socket, from).await;
                });
            }
        });
        Ok(KvPublisher { next: 0, batches })
    }

    /// Publishes a batch.
    pub fn publish(&mut self, events: &[KvEvent]) {
        let payload = kv_events::write(clock::realtime_ns() as f64 / 1e9, events);
        let message = zmtp::message(&[b"", &self.next.to_be_bytes(), &payload]);
        self.next += 1;
        // Without subscribers it is nobody's.
        let _ = self.batches.send(message.into());
    }
}

/// A subscriber's connection to its end.
async fn serve(mut socket: TcpStream, mut from: broadcast::Receiver<Bytes>) -> io::Result<()> {
    socket.write_all(&zmtp::greeting()).await?;
    let mut reader = ZmtpReader::new(SocketKind::Publisher, MOST_MESSAGE);
    let (mut piece, mut subscribed) = ([0; 1024], false);
    loop {
        tokio::select! {
            read = socket.read(&mut piece) => match read? {
                0 => return Ok(()),
                read => reader.push(&piece[..read]),
            },
            batch = from.recv() => match batch {
                Ok(batch) if subscribed => socket.write_all(&batch).await?,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            },
        }
        while let Some(received) = reader.take().map_err(io::Error::other)? {
            match received {
                ZmtpReceived::Greeting => socket.write_all(&zmtp::ready(SocketKind::Publisher)).await?,
                // A subscription's topic is a beginning of ours, which is empty.
                ZmtpReceived::Message(parts) if parts[0][..] == [1] => subscribed = true,
                ZmtpReceived::Message(parts) if parts[0][..] == [0] => subscribed = false,
                ZmtpReceived::Ping(context) => socket.write_all(&zmtp::pong(&context)).await?,
                ZmtpReceived::Message(_) | ZmtpReceived::Ready => {}
            }
        }
    }
}
