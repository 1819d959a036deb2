//! One worker's connections under the policy of the experiment: kept and unlimited, one per request, or bounded.
//!
//! Kept connections are used last in, first out: few stay hot and the rest age, as in the clients people run. Connections
//! never move between workers; a bounded pool is split between them, so `workers` never exceeds its limit.
//!
//! **A kept connection that the server has closed.** It is dropped at check-out when the event loop already knows. When
//! the close is noticed only after check-out, the request goes to a new connection once, and only if not one byte of it
//! was written: then no server can have seen it. A request that was written and got no answer is never sent again
//! behind the record's back; its attempt ends as `reset`, and a retry is the retry policy's to make.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::stream::{FuturesUnordered, StreamExt};
use plimsoll_model::{At, Span};
use plimsoll_workload::Connections;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::link::{ConnectError, Link, Route};
use crate::stamp::Meter;

/// Connections that are opened at the same time while warming.
const WARM_AT_ONCE: usize = 64;

/// A connection checked out, with its place in a bounded pool.
#[derive(Debug)]
pub struct Held {
    /// The connection. Boxed: it moves between pool, request and pool, and what a task holds is copied with it.
    pub link: Box<Link>,
    /// Was it taken from the kept ones, warmed or used before?
    pub kept: bool,
    /// Had it to wait for a place in a bounded pool?
    pub waited: bool,
    permit: Option<OwnedSemaphorePermit>,
}

/// Why none could be had.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// It could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It did not stand in time.
    #[error("no connection within {0}")]
    Timeout(Span),
}

/// See the module's head.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "a link is handed on as the box it is in")]
pub struct Pool {
    route: RefCell<Route>,
    meter: Rc<Meter>,
    numbers: Arc<AtomicU32>,
    policy: Cell<Connections>,
    places: RefCell<Option<Arc<Semaphore>>>,
    idle: RefCell<Vec<Box<Link>>>,
    /// First moment at which a request had to wait for a place.
    waited_since: Cell<Option<At>>,
}

impl Pool {
    /// An empty pool. `numbers` counts connections over all workers.
    pub fn new(route: Route, meter: Rc<Meter>, numbers: Arc<AtomicU32>) -> Pool {
        Pool {
            route: RefCell::new(route),
            meter,
            numbers,
            policy: Cell::new(Connections::Prewarmed),
            places: RefCell::new(None),
            idle: RefCell::default(),
            waited_since: Cell::new(None),
        }
    }

    /// Sets the policy for what comes; `share` is this worker's part of a bounded pool's limit.
    pub fn set_policy(&self, policy: Connections, share: u32, route: Route) {
        *self.route.borrow_mut() = route;
        self.policy.set(policy);
        self.waited_since.set(None);
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
        self.waited_since.get()
    }

    /// A connection for one request. Waits for a place where the pool is bounded, then for the connection to stand.
    pub async fn take(&self, connect: Span) -> Result<Held, TakeError> {
        let (permit, waited) = self.place().await;
        if let Some(link) = self.pop_idle() {
            return Ok(Held { link, kept: true, waited, permit });
        }
        Ok(Held { link: self.open(connect).await?, kept: false, waited, permit })
    }

    /// A new connection in the place of one that turned out to be closed.
    pub async fn replace(&self, held: Held, connect: Span) -> Result<Held, TakeError> {
        let Held { link, waited, permit, .. } = held;
        drop(link);
        Ok(Held { link: self.open(connect).await?, kept: false, waited, permit })
    }

    /// Takes a connection back. One that cannot carry another request is dropped.
    pub fn give(&self, held: Held) {
        let Held { link, permit, .. } = held;
        if link.is_reusable() && !matches!(self.policy.get(), Connections::Fresh) {
            self.idle.borrow_mut().push(link);
        }
        drop(permit);
    }

    /// Opens connections until `wanted` are kept. Ends early at the first that cannot be made: the load will tell why.
    pub async fn warm(&self, wanted: usize, connect: Span) {
        if matches!(self.policy.get(), Connections::Fresh) {
            return;
        }
        self.idle.borrow_mut().retain_mut(|link| !link.is_stale());
        let mut missing = wanted.saturating_sub(self.idle.borrow().len());
        let mut opening = FuturesUnordered::new();
        while missing > 0 || !opening.is_empty() {
            while missing > 0 && opening.len() < WARM_AT_ONCE {
                opening.push(self.open(connect));
                missing -= 1;
            }
            match opening.next().await {
                Some(Ok(link)) => self.idle.borrow_mut().push(link),
                Some(Err(_)) => return,
                None => {}
            }
        }
    }

    /// How many are kept and not in use.
    pub fn idle(&self) -> usize {
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
        while let Some(mut link) = idle.pop() {
            if !link.is_stale() {
                return Some(link);
            }
        }
        None
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
