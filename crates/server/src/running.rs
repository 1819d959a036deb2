//! A server that runs, seen from outside: where it listens, and how it is stopped.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;

use tokio::sync::Notify;

use crate::config::ServeError;

/// A server that runs. Dropping it stops it at once.
#[derive(Debug)]
pub struct Running {
    pub(crate) addr: SocketAddr,
    pub(crate) stop: Arc<Stop>,
    pub(crate) thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Asks a server to stop, from anywhere.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Stop>);

/// How far a stop was asked for: 1 = drain, 2 = at once.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    level: AtomicU8,
    notify: Notify,
}

impl Stop {
    pub fn raise(&self, level: u8) {
        self.level.fetch_max(level, Ordering::SeqCst);
        // `notify_one` keeps a permit: a server that does not wait yet still hears it.
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
    /// No new connections or requests; answers in progress may end within the drain limit.
    pub fn drain(&self) {
        self.0.raise(1);
    }

    /// Everything ends now.
    pub fn now(&self) {
        self.0.raise(2);
    }
}

impl Running {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Drains, waits, and says how it ended; the truth log is complete then.
    ///
    /// # Errors
    /// The truth log could not be written, or the system failed underneath.
    pub fn shutdown(self) -> Result<(), ServeError> {
        self.stop.raise(1);
        self.wait()
    }

    /// Waits until it is stopped by a [`Stopper`].
    pub fn wait(mut self) -> Result<(), ServeError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(ServeError::System(io::Error::other("the serving thread died"))),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.raise(2);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
