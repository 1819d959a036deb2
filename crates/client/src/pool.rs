//! One worker's connections under the policy of the experiment: kept and unlimited, one per request, or bounded.
//!
//! Kept connections are used last in, first out: few stay hot and the rest age, as in the clients people run. Connections
//! never move between workers; a bounded pool is split between them, so `workers` never exceeds its limit.
//!
//! **A kept connection that the server has closed.** Each is looked at before it is used again: one system call, because the
//! event loop knows only what it has had the time to be told, and a closed loop takes a connection back before that. When
//! the close is noticed only after the look, the request goes to a new connection once, and only if not one byte of it
//! was written: then no server can have seen it. A request that was written and got no answer is never sent again
//! behind the record's back; its attempt ends as `reset`, and a retry is the retry policy's to make. From the first connection on
//! that ends early, all of them rest before they are used again: see [`crate::keeping`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::stream::{FuturesUnordered, StreamExt};
use plimsoll_model::{At, Span};
use plimsoll_workload::Connections;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::exchange_watch::Connected;
use crate::keeping::{Keeping, SharedByWorkers};
use crate::link::{Link, Route, TakeError};
use crate::stamp::Meter;
use crate::streams::StreamPool;

/// Connections that are opened at the same time while warming.
const WARM_AT_ONCE: usize = 64;

/// Connections that rest at the same time on one worker. They are for nothing but the requests after the next; one that would be more is
/// closed.
const RESTING_MAX: usize = 256;

/// A connection checked out, with its place in a bounded pool.
#[derive(Debug)]
pub struct HeldConnection {
    /// The connection. Boxed: it moves between pool, request and pool, and what a task holds is copied with it.
    pub link: Box<Link>,
    /// Was it taken from the kept ones, warmed or used before?
    pub kept: bool,
    /// Had it to wait for a place in a bounded pool?
    pub waited: bool,
    permit: Option<OwnedSemaphorePermit>,
}

/// See the module's head.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "a link is handed on as the box it is in")]
pub struct ConnectionPool {
    route: RefCell<Route>,
    meter: Rc<Meter>,
    numbers: Arc<AtomicU32>,
    policy: Cell<Connections>,
    places: RefCell<Option<Arc<Semaphore>>>,
    /// From the one that has been idle longest on.
    idle: RefCell<Vec<Box<Link>>>,
    /// What is known of how they end.
    pub keeping: Keeping,
    /// First moment at which a request had to wait for a place.
    waited_since: Cell<Option<At>>,
    /// The same over HTTP/2, where the route asks for it.
    streams: RefCell<Option<Rc<StreamPool>>>,
}

impl HeldConnection {
    /// What is to be known of it.
    pub fn connected(&self) -> Connected<'_> {
        let Link { number, carried, connected, ref stamps, .. } = *self.link;
        let (kept, waited) = (self.kept, self.waited);
        Connected { number, reused: carried > 0, kept, waited, at: connected, stamps }
    }
}

impl ConnectionPool {
    /// An empty pool. `numbers` counts connections over all workers, and `known` is what they know of the server's ways.
    pub fn new(
        route: Route,
        meter: Rc<Meter>,
        numbers: Arc<AtomicU32>,
        known: SharedByWorkers,
    ) -> ConnectionPool {
        ConnectionPool {
            route: RefCell::new(route),
            meter,
            numbers,
            policy: Cell::new(Connections::Prewarmed),
            places: RefCell::new(None),
            idle: RefCell::default(),
            keeping: Keeping::new(known),
            waited_since: Cell::new(None),
            streams: RefCell::default(),
        }
    }

    /// The connections of HTTP/2, where that is what the route asks for.
    pub fn streams(&self) -> Option<Rc<StreamPool>> {
        self.streams.borrow().clone()
    }

    /// Sets the policy for what comes; `share` is this worker's part of a bounded pool's limit.
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

    /// First moment at which a request had to wait for a place since the policy was set.
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

    /// A connection for one request. Waits for a place where the pool is bounded, then for the connection to stand.
    pub async fn take(&self, connect: Span) -> Result<HeldConnection, TakeError> {
        let (permit, waited) = self.place().await;
        if let Some(link) = self.pop_idle() {
            return Ok(HeldConnection { link, kept: true, waited, permit });
        }
        if let Some(places) = &*self.places.borrow() {
            // What rests has no place of its own: with this one it would be more than the limit.
            let mut idle = self.idle.borrow_mut();
            let over = idle.len().saturating_sub(places.available_permits());
            idle.drain(..over);
        }
        Ok(HeldConnection { link: self.open(connect).await?, kept: false, waited, permit })
    }

    /// A new connection in the place of one that turned out to be closed.
    pub async fn replace(&self, held: HeldConnection, connect: Span) -> Result<HeldConnection, TakeError> {
        let HeldConnection { link, waited, permit, .. } = held;
        self.keeping.ended(link.idle_since, self.meter.clock.now());
        drop(link);
        Ok(HeldConnection { link: self.open(connect).await?, kept: false, waited, permit })
    }

    /// Takes a connection back. One that cannot carry another request is dropped.
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

    /// Opens connections until `wanted` are kept. Ends early at the first that cannot be made: the load will tell why.
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
        // Before those that rest, if any: these need none.
        self.idle.borrow_mut().splice(..0, opened);
    }

    /// How many are kept and not in use.
    pub fn idle(&self) -> usize {
        if let Some(streams) = &*self.streams.borrow() {
            return streams.connections();
        }
        self.idle.borrow().len()
    }

    /// A place, and whether it had to be waited for.
    async fn place(&self) -> (Option<OwnedSemaphorePermit>, bool) {
        let Some(places) = self.places.borrow().clone() else { return (None, false) };
        if let Ok(permit) = Arc::clone(&places).try_acquire_owned() {
            return (Some(permit), false);
        }
        if self.waited_since.get().is_none() {
            self.waited_since.set(Some(self.meter.clock.now()));
        }
        // The semaphore is never closed.
        (places.acquire_owned().await.ok(), true)
    }

    fn pop_idle(&self) -> Option<Box<Link>> {
        let mut idle = self.idle.borrow_mut();
        let rest = self.keeping.rest();
        let mut rested = idle.len();
        if rest > Span::ZERO {
            rested -= resting(&idle, self.meter.clock.now() - rest);
        }
        while rested > 0 {
            rested -= 1;
            // Those after it still rest, and are few.
            let mut link = idle.remove(rested);
            if self.stands(&mut link) {
                return Some(link);
            }
        }
        None
    }

    /// Looks whether a connection still stands.
    fn stands(&self, link: &mut Link) -> bool {
        let stands = !link.is_stale();
        if stands {
            self.keeping.stood();
        } else {
            self.keeping.ended(link.idle_since, self.meter.clock.now());
        }
        stands
    }

    async fn open(&self, connect: Span) -> Result<Box<Link>, TakeError> {
        let route = self.route.borrow().clone();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // Boxed: the state of a handshake is large, short-lived, and would be part of every request's task.
        let connecting = Box::pin(Link::connect(&route, &self.meter, number));
        match tokio::time::timeout(connect.as_duration(), connecting).await {
            Ok(link) => Ok(Box::new(link?)),
            Err(_) => Err(TakeError::Timeout(connect)),
        }
    }
}

/// How many of these, from the one that has been idle longest on, have not been idle from `from` on.
fn resting(idle: &[Box<Link>], from: At) -> usize {
    idle.len() - idle.partition_point(|link| link.rested(from))
}
