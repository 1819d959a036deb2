//! Manages one worker's connections under the policy of the experiment: kept and unlimited, one per request, or bounded.
//!
//! Kept connections are reused last in, first out: few stay active and the rest age, as in common clients. Connections
//! never move between workers. A bounded pool is split between workers, so `workers` never exceeds its limit.
//!
//! **A kept connection that the server has closed.** Each connection is checked before reuse with one system call. The
//! event loop may not have seen the close yet, because a closed loop reuses a connection before the next poll. If the close
//! is noticed after the check, the request goes to a new connection once, and only if no byte was written. No server can
//! have seen the request then. A written request without a response is never resent silently. Its attempt ends as `reset`,
//! and the retry policy decides on a retry. After the first early close all connections rest before reuse: see
//! [`crate::http1::keeping`].
//!
//! The kernel starts to stamp some time after the first socket enables it, because it patches its receive path in the
//! background. It stops with the last such socket. Measuring code keeps one from before the first connection to after the
//! last. Otherwise the first packets have no stamp.
//!
//! No safe crate of the workspace supports it. The option is missing in nix, and nix's extension mechanism panics if the
//! kernel's result is shorter than expected. A query by sock_diag over netlink needs no unsafe code but was rejected. It
//! searches all connections of the machine (two calls instead of one), and gVisor lacks it. The one call is therefore here,
//! and the result is parsed as bytes. Its layout only ever grew at the end (`include/uapi/linux/tcp.h`), and a field that
//! an older kernel omits is unknown.
//!
//! `openssl req -x509` marks its certificates as authorities, which webpki rejects for servers. OpenSSL and curl trust a
//! certificate that is itself the anchor, and so does this verifier. Dates and names are still checked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::stream::{FuturesUnordered, StreamExt};
use plimsoll_model::{At, Span};
use plimsoll_workload::Connections;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::driver::exchange_watch::ConnectionInfo;
use crate::http1::keeping::{KeepaliveShared, KeepaliveStats};
use crate::http1::link::{Http1Connection, Route, TakeError};
use crate::http1::stamp::SocketMeter;
use crate::http2::streams::StreamPool;

/// Most connections that open concurrently during warm-up.
const WARM_AT_ONCE: usize = 64;

/// Most resting connections per worker. Only the requests after the next can use them, so surplus ones are closed.
const RESTING_MAX: usize = 256;

/// A connection in use, with its place in a bounded pool.
#[derive(Debug)]
pub struct HeldConnection {
    /// The connection. Boxed, because it moves between pool and request, and a task copies the values that it owns.
    pub link: Box<Http1Connection>,
    /// Set if the connection was kept in the pool, after warm-up or an earlier request.
    pub kept: bool,
    /// Set if the request waited for a place in a bounded pool.
    pub waited: bool,
    permit: Option<OwnedSemaphorePermit>,
}

/// One worker's connections to one endpoint.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "a link moves together with its box")]
pub struct ConnectionPool {
    route: RefCell<Route>,
    meter: Rc<SocketMeter>,
    numbers: Arc<AtomicU32>,
    policy: Cell<Connections>,
    places: RefCell<Option<Arc<Semaphore>>>,
    /// Idle connections, the longest idle first.
    idle: RefCell<Vec<Box<Http1Connection>>>,
    /// Record of early closes by the server.
    pub keeping: KeepaliveStats,
    /// First time at which a request waited for a place.
    waited_since: Cell<Option<At>>,
    /// HTTP/2 connections; `None` if the route uses HTTP/1.1.
    streams: RefCell<Option<Rc<StreamPool>>>,
}

impl HeldConnection {
    /// Returns the facts of the connection for the exchange's watch.
    pub fn connected(&self) -> ConnectionInfo<'_> {
        let Http1Connection { number, carried, connected, ref stamps, .. } = *self.link;
        let (kept, waited) = (self.kept, self.waited);
        ConnectionInfo { number, reused: carried > 0, kept, waited, at: connected, stamps }
    }
}

impl ConnectionPool {
    /// Returns an empty pool. `numbers` numbers connections over all workers, and `known` is their shared record of early
    /// closes.
    pub fn new(
        route: Route,
        meter: Rc<SocketMeter>,
        numbers: Arc<AtomicU32>,
        known: KeepaliveShared,
    ) -> ConnectionPool {
        ConnectionPool {
            route: RefCell::new(route),
            meter,
            numbers,
            policy: Cell::new(Connections::Prewarmed),
            places: RefCell::new(None),
            idle: RefCell::default(),
            keeping: KeepaliveStats::new(known),
            waited_since: Cell::new(None),
            streams: RefCell::default(),
        }
    }

    /// Returns the HTTP/2 pool; `None` if the route uses HTTP/1.1.
    pub fn streams(&self) -> Option<Rc<StreamPool>> {
        self.streams.borrow().clone()
    }

    /// Sets the policy for the next requests; `share` is this worker's part of a bounded pool's limit.
    pub(crate) fn set_policy(&self, policy: Connections, share: u32, route: Route) {
        self.set_streams(policy, share, &route);
        *self.route.borrow_mut() = route;
        self.policy.set(policy);
        self.waited_since.set(None);
        self.keeping.clear();
        let bounded = matches!(policy, Connections::Pool { .. });
        *self.places.borrow_mut() = bounded.then(|| Arc::new(Semaphore::new(share.max(1) as usize)));
        match policy {
            Connections::Fresh => self.idle.borrow_mut().clear(),
            Connections::Pool { .. } => self.idle.borrow_mut().truncate(share.max(1) as usize),
            Connections::Prewarmed => {}
        }
    }

    /// Returns the first time at which a request waited for a place under this policy.
    pub fn waited_since(&self) -> Option<At> {
        self.waited_since.get().or_else(|| self.streams.borrow().as_ref()?.waited_since())
    }

    fn set_streams(&self, policy: Connections, share: u32, route: &Route) {
        let mut streams = self.streams.borrow_mut();
        match (&*streams, route.http2) {
            (Some(pool), Some(_)) => pool.set_policy(policy, share, route.clone()),
            (None, Some(_)) => {
                let (meter, numbers) = (Rc::clone(&self.meter), Arc::clone(&self.numbers));
                *streams = Some(StreamPool::new(policy, share, route.clone(), meter, numbers));
            }
            (_, None) => *streams = None,
        }
    }

    /// Takes a connection for one request. Waits for a place in a bounded pool, then for the connection.
    pub async fn take(&self, connect: Span) -> Result<HeldConnection, TakeError> {
        let (permit, waited) = self.place().await;
        if let Some(link) = self.pop_idle() {
            return Ok(HeldConnection { link, kept: true, waited, permit });
        }
        if let Some(places) = &*self.places.borrow() {
            // A resting connection has no place, so together with this one it could exceed the limit.
            let mut idle = self.idle.borrow_mut();
            let over = idle.len().saturating_sub(places.available_permits());
            idle.drain(..over);
        }
        Ok(HeldConnection { link: self.open(connect).await?, kept: false, waited, permit })
    }

    /// Opens a new connection in place of one that turned out to be closed.
    pub async fn replace(&self, held: HeldConnection, connect: Span) -> Result<HeldConnection, TakeError> {
        let HeldConnection { link, waited, permit, .. } = held;
        self.keeping.ended(link.idle_since, self.meter.clock.now());
        drop(link);
        Ok(HeldConnection { link: self.open(connect).await?, kept: false, waited, permit })
    }

    /// Returns a connection to the pool. A connection that can't be reused is closed.
    pub fn give(&self, held: HeldConnection) {
        let HeldConnection { mut link, permit, .. } = held;
        if link.is_reusable() && !matches!(self.policy.get(), Connections::Fresh) {
            let mut idle = self.idle.borrow_mut();
            let (rest, now) = (self.keeping.rest(), link.stamps.user());
            link.idle_since = Some(now);
            if rest == Span::ZERO || resting(&idle, now - rest) < RESTING_MAX {
                idle.push(link);
            }
        }
        drop(permit);
    }

    /// Opens connections until `wanted` are idle. Stops at the first failure, because the load will report its reason.
    pub async fn warm(&self, wanted: usize, connect: Span) {
        if matches!(self.policy.get(), Connections::Fresh) {
            return;
        }
        if let Some(streams) = self.streams() {
            return streams.warm(wanted, connect).await;
        }
        self.idle.borrow_mut().retain_mut(|link| self.stands(link));
        let mut missing = wanted.saturating_sub(self.idle.borrow().len());
        let (mut opening, mut opened) = (FuturesUnordered::new(), Vec::new());
        while missing > 0 || !opening.is_empty() {
            while missing > 0 && opening.len() < WARM_AT_ONCE {
                opening.push(self.open(connect));
                missing -= 1;
            }
            match opening.next().await {
                Some(Ok(link)) => opened.push(link),
                Some(Err(_)) => break,
                None => {}
            }
        }
        // In front of resting connections, because new ones need no rest.
        self.idle.borrow_mut().splice(..0, opened);
    }

    /// Returns the number of idle connections.
    pub fn idle(&self) -> usize {
        if let Some(streams) = &*self.streams.borrow() {
            return streams.connections();
        }
        self.idle.borrow().len()
    }

    /// Takes a place, and returns whether the request waited for it.
    async fn place(&self) -> (Option<OwnedSemaphorePermit>, bool) {
        let Some(places) = self.places.borrow().clone() else { return (None, false) };
        if let Ok(permit) = Arc::clone(&places).try_acquire_owned() {
            return (Some(permit), false);
        }
        if self.waited_since.get().is_none() {
            self.waited_since.set(Some(self.meter.clock.now()));
        }
        // The semaphore is never closed, so this is always `Some`.
        (places.acquire_owned().await.ok(), true)
    }

    fn pop_idle(&self) -> Option<Box<Http1Connection>> {
        let mut idle = self.idle.borrow_mut();
        let rest = self.keeping.rest();
        let mut rested = idle.len();
        if rest > Span::ZERO {
            rested -= resting(&idle, self.meter.clock.now() - rest);
        }
        while rested > 0 {
            rested -= 1;
            // The connections behind it still rest and are few.
            let mut link = idle.remove(rested);
            if self.stands(&mut link) {
                return Some(link);
            }
        }
        None
    }

    /// Returns whether a kept connection is still open, and records the check.
    fn stands(&self, link: &mut Http1Connection) -> bool {
        let stands = !link.is_stale();
        if stands {
            self.keeping.stood();
        } else {
            self.keeping.ended(link.idle_since, self.meter.clock.now());
        }
        stands
    }

    async fn open(&self, connect: Span) -> Result<Box<Http1Connection>, TakeError> {
        let route = self.route.borrow().clone();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // Boxed, because a handshake's state is large and short-lived and would enlarge every request's task.
        let connecting = Box::pin(Http1Connection::connect(&route, &self.meter, number));
        match tokio::time::timeout(connect.as_duration(), connecting).await {
            Ok(link) => Ok(Box::new(link?)),
            Err(_) => Err(TakeError::Timeout(connect)),
        }
    }
}

/// Returns the number of connections that have not been idle since `from`; `idle` has the longest idle first.
fn resting(idle: &[Box<Http1Connection>], from: At) -> usize {
    idle.len() - idle.partition_point(|link| link.rested(from))
}
