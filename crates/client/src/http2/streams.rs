//! Manages one worker's HTTP/2 connections and the places for requests on them.
//!
//! A connection carries as many concurrent requests as the server (`MAX_CONCURRENT_STREAMS`) and the scenario allow. The
//! first connection with room gets the next request, so that few connections are used. If none has room, another is opened;
//! if the policy forbids that, the request waits in line. A request that arrives while a connection opens waits for it and
//! opens no other one. Otherwise a load that begins with a hundred requests would open a hundred connections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_model::{At, Span};
use plimsoll_workload::Connections;
use tokio::sync::oneshot;

use crate::driver::exchange_watch::ConnectionInfo;
use crate::http1::link::{Route, TakeError};
use crate::http1::stamp::{SocketMeter, Stamps};
use crate::http2::{CloseCallback, Http2Connection};

/// Streams that a connection is assumed to carry until its server announces a limit.
const STREAMS_EXPECTED: u32 = 100;

/// A place on a connection, which is released on drop.
#[derive(Debug)]
pub struct HeldStream {
    pub link: Rc<Http2Connection>,
    /// Stamps of this request on the connection.
    pub stamps: Rc<Stamps>,
    reused: bool,
    kept: bool,
    waited: bool,
    pool: Weak<StreamPool>,
}

impl HeldStream {
    /// Returns the facts of the connection for the exchange's watch.
    pub fn connected(&self) -> ConnectionInfo<'_> {
        ConnectionInfo {
            number: self.link.number,
            reused: self.reused,
            kept: self.kept,
            waited: self.waited,
            at: self.link.connected,
            stamps: &self.stamps,
        }
    }
}

impl Drop for HeldStream {
    fn drop(&mut self) {
        self.link.in_use.set(self.link.in_use.get() - 1);
        if let Some(pool) = self.pool.upgrade() {
            pool.freed(&self.link);
        }
    }
}

/// The message to a request in line.
enum WaiterMessage {
    Place(HeldStream),
    /// The state changed; the request must check again.
    Again,
    /// The connection that the request waited for could not be opened.
    Failed(Arc<TakeError>),
}

/// One worker's HTTP/2 connections to one endpoint.
pub struct StreamPool {
    own: Weak<StreamPool>,
    route: RefCell<Route>,
    meter: Rc<SocketMeter>,
    numbers: Arc<AtomicU32>,
    policy: Cell<Connections>,
    share: Cell<u32>,
    links: RefCell<Vec<Rc<Http2Connection>>>,
    /// Number of connections that are being opened.
    opening: Cell<u32>,
    line: RefCell<VecDeque<oneshot::Sender<WaiterMessage>>>,
    /// Streams per connection, as last announced by the server.
    streams: Cell<u32>,
    waited_since: Cell<Option<At>>,
}

impl std::fmt::Debug for StreamPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamPool({} connections)", self.links.borrow().len())
    }
}

impl StreamPool {
    /// Returns an empty pool; `share` is this worker's part of a bounded pool's limit.
    pub fn new(
        policy: Connections,
        share: u32,
        route: Route,
        meter: Rc<SocketMeter>,
        numbers: Arc<AtomicU32>,
    ) -> Rc<StreamPool> {
        Rc::new_cyclic(|own| StreamPool {
            own: own.clone(),
            route: RefCell::new(route),
            meter,
            numbers,
            policy: Cell::new(policy),
            share: Cell::new(share),
            links: RefCell::default(),
            opening: Cell::new(0),
            line: RefCell::default(),
            streams: Cell::new(STREAMS_EXPECTED),
            waited_since: Cell::new(None),
        })
    }

    /// Sets the policy for the next requests.
    pub(crate) fn set_policy(&self, policy: Connections, share: u32, route: Route) {
        *self.route.borrow_mut() = route;
        self.policy.set(policy);
        self.share.set(share);
        self.waited_since.set(None);
        let kept = if matches!(policy, Connections::Fresh) { 0 } else { self.most() as usize };
        let over: Vec<_> = {
            let mut links = self.links.borrow_mut();
            let kept = kept.min(links.len());
            links.split_off(kept)
        };
        over.iter().for_each(|link| link.close());
    }

    /// Returns the first time at which a request waited in line because the policy forbids another connection.
    pub fn waited_since(&self) -> Option<At> {
        self.waited_since.get()
    }

    /// Returns the number of established connections.
    pub fn connections(&self) -> usize {
        self.links.borrow().len()
    }

    /// Opens the connections that `wanted` concurrent requests need. Stops at the first failure, because the load will
    /// report its reason.
    pub async fn warm(&self, wanted: usize, connect: Span) {
        let room = || self.links.borrow().iter().map(|link| self.room(link) as usize).sum::<usize>();
        let mut had = room();
        while had < wanted && self.links.borrow().len() < self.most() as usize {
            match self.open(connect).await {
                Ok(link) => self.links.borrow_mut().push(link),
                Err(_) => return,
            }
            // A server that closes each accepted connection would otherwise be dialled indefinitely.
            if room() <= had {
                return;
            }
            had = room();
        }
    }

    /// Takes a place for one request.
    pub async fn take(&self, connect: Span) -> Result<HeldStream, TakeError> {
        let mut waited = false;
        loop {
            let fresh = matches!(self.policy.get(), Connections::Fresh);
            let found = if fresh || !self.line.borrow().is_empty() { None } else { self.free() };
            if let Some(link) = found {
                return Ok(self.held(link, true, waited));
            }
            if fresh || self.may_open() {
                return self.opened(connect, fresh, waited).await;
            }
            let full = self.opening.get() == 0;
            if full && self.waited_since.get().is_none() {
                self.waited_since.set(Some(self.meter.clock.now()));
            }
            waited = true;
            let (sender, told) = oneshot::channel();
            self.line.borrow_mut().push_back(sender);
            match told.await {
                Ok(WaiterMessage::Place(held)) => return Ok(held),
                Ok(WaiterMessage::Failed(error)) => return Err(TakeError::Gone(error)),
                Ok(WaiterMessage::Again) | Err(_) => {}
            }
        }
    }

    /// Opens a connection for this request and those in line.
    async fn opened(&self, connect: Span, fresh: bool, waited: bool) -> Result<HeldStream, TakeError> {
        let mut opening = OpeningGuard::begin(self);
        let link = self.open(connect).await;
        opening.is_over = true;
        drop(opening);
        match link {
            Ok(link) => {
                let held = self.held(Rc::clone(&link), false, waited);
                if !fresh {
                    self.links.borrow_mut().push(Rc::clone(&link));
                    self.serve(&link);
                    self.open_another();
                }
                Ok(held)
            }
            Err(error) => {
                let error = Arc::new(error);
                self.failed(&error);
                Err(TakeError::Gone(error))
            }
        }
    }

    /// Wakes the next waiting request if the new connection has fewer places than requests waited; it may open another.
    fn open_another(&self) {
        let mut line = std::mem::take(&mut *self.line.borrow_mut());
        line.retain(|sender| !sender.is_closed());
        let next = if self.may_open() { line.pop_front() } else { None };
        *self.line.borrow_mut() = line;
        next.into_iter().for_each(|sender| _ = sender.send(WaiterMessage::Again));
    }

    /// Fails the requests in line that have no other connection to wait for.
    fn failed(&self, error: &Arc<TakeError>) {
        if self.opening.get() > 0 || !self.links.borrow().is_empty() {
            return;
        }
        let line = std::mem::take(&mut *self.line.borrow_mut());
        for sender in line {
            let _ = sender.send(WaiterMessage::Failed(Arc::clone(error)));
        }
    }

    /// Returns whether another connection is needed and allowed.
    fn may_open(&self) -> bool {
        let opening = self.opening.get();
        let standing = u32::try_from(self.links.borrow().len()).unwrap_or(u32::MAX);
        let beside = u64::from(opening) * u64::from(self.streams.get().saturating_sub(1));
        standing + opening < self.most() && beside <= self.line.borrow().len() as u64
    }

    fn most(&self) -> u32 {
        if matches!(self.policy.get(), Connections::Pool { .. }) { self.share.get().max(1) } else { u32::MAX }
    }

    fn room(&self, link: &Http2Connection) -> u32 {
        link.room(self.route.borrow().http2.unwrap_or(u32::MAX))
    }

    /// Returns the first connection with room. Removes idle connections that accept no more requests.
    fn free(&self) -> Option<Rc<Http2Connection>> {
        let mut links = self.links.borrow_mut();
        links.retain(|link| link.in_use.get() > 0 || self.room(link) > 0);
        links.iter().find(|link| self.room(link) > 0).cloned()
    }

    fn held(&self, link: Rc<Http2Connection>, kept: bool, waited: bool) -> HeldStream {
        link.in_use.set(link.in_use.get() + 1);
        let carried = link.carried.replace(link.carried.get() + 1);
        let stamps = Stamps::of_stream(&link.stamps);
        HeldStream { link, stamps, reused: carried > 0, kept, waited, pool: self.own.clone() }
    }

    /// Assigns the free places of a connection to the requests in line.
    fn serve(&self, link: &Rc<Http2Connection>) {
        while self.room(link) > 0 {
            let Some(sender) = self.line.borrow_mut().pop_front() else { return };
            // A cancelled request would drop its place, which calls this function again; thousands of such calls would
            // nest.
            if sender.is_closed() {
                continue;
            }
            let _ = sender.send(WaiterMessage::Place(self.held(Rc::clone(link), true, true)));
        }
    }

    /// Handles a place that became free.
    fn freed(&self, link: &Rc<Http2Connection>) {
        let is_known = self.links.borrow().iter().any(|known| Rc::ptr_eq(known, link));
        match is_known {
            true if self.room(link) > 0 => self.serve(link),
            true => {}
            false if link.in_use.get() == 0 => link.close(),
            false => {}
        }
    }

    fn ended(&self, link: &Rc<Http2Connection>) {
        self.links.borrow_mut().retain(|known| !Rc::ptr_eq(known, link));
        self.ask_again();
    }

    /// Makes every request in line check for a place again.
    fn ask_again(&self) {
        let line = std::mem::take(&mut *self.line.borrow_mut());
        for sender in line {
            let _ = sender.send(WaiterMessage::Again);
        }
    }

    async fn open(&self, connect: Span) -> Result<Rc<Http2Connection>, TakeError> {
        let route = self.route.borrow().clone();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let pool = self.own.clone();
        let ended: CloseCallback =
            Box::new(move |link| pool.upgrade().into_iter().for_each(|pool| pool.ended(link)));
        // Boxed, because a handshake's state is large and short-lived and would enlarge every request's task.
        let connecting = Box::pin(Http2Connection::connect(&route, &self.meter, number, ended));
        let link = match tokio::time::timeout(connect.as_duration(), connecting).await {
            Ok(link) => link?,
            Err(_) => return Err(TakeError::Timeout(connect)),
        };
        self.streams.set(link.limit(route.http2.unwrap_or(u32::MAX)).max(1));
        Ok(link)
    }
}

/// The count of a connection that is being opened. If its request is dropped first, the requests that waited for the
/// connection check again.
struct OpeningGuard<'a> {
    pool: &'a StreamPool,
    is_over: bool,
}

impl OpeningGuard<'_> {
    fn begin(pool: &StreamPool) -> OpeningGuard<'_> {
        pool.opening.set(pool.opening.get() + 1);
        OpeningGuard { pool, is_over: false }
    }
}

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        self.pool.opening.set(self.pool.opening.get() - 1);
        if !self.is_over {
            self.pool.ask_again();
        }
    }
}
