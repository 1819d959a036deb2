//! Represents a running server from outside: its address, and its shutdown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;

use tokio::sync::Notify;

use crate::config::ServeError;

/// A running server. Dropping it stops it immediately.
#[derive(Debug)]
pub struct ServerHandle {
    pub(crate) addr: SocketAddr,
    pub(crate) stop: Arc<Stop>,
    pub(crate) thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// A handle that stops a server from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Stop>);

/// The requested level of shutdown: 1 = drain, 2 = immediate.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    level: AtomicU8,
    notify: Notify,
}

impl Stop {
    pub fn raise(&self, level: u8) {
        self.level.fetch_max(level, Ordering::SeqCst);
        // `notify_one` stores a permit, so a server that does not wait yet is notified too.
        self.notify.notify_one();
    }

    pub fn level(&self) -> u8 {
        self.level.load(Ordering::SeqCst)
    }

    pub async fn reaches(&self, level: u8) {
        while self.level() < level {
            self.notify.notified().await;
        }
    }
}

impl Stopper {
    /// Stops new connections and requests; responses in progress may end within the drain limit.
    pub fn drain(&self) {
        self.0.raise(1);
    }

    /// Ends everything immediately.
    pub fn now(&self) {
        self.0.raise(2);
    }
}

impl ServerHandle {
    /// Returns the address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Drains, waits, and returns the result; the truth log is complete then.
    ///
    /// # Errors
    /// Fails if the truth log could not be written or the system failed.
    pub fn shutdown(self) -> Result<(), ServeError> {
        self.stop.raise(1);
        self.wait()
    }

    /// Waits until a [`Stopper`] has stopped the server.
    pub fn wait(mut self) -> Result<(), ServeError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(ServeError::System(io::Error::other("the serving thread died"))),
            None => Ok(()),
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop.raise(2);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
