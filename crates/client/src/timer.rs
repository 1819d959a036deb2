//! Implements an absolute one-shot timer that wakes a task: a timerfd inside tokio's `AsyncFd`. The simulated engine uses it too.
//!
//! tokio's own timer was rejected: it rounds to milliseconds and is late by one at the median. A timerfd with a timer slack
//! of one nanosecond is late by about 30 µs. A thread in `clock_nanosleep` is as exact, but the handover to the runtime
//! costs the difference again. Spinning is exact but takes the core from the measured work. On systems other than Linux
//! tokio's timer is used, and [`SOURCE`] states that.

use std::io;
use std::task::{Context, Poll, ready};

use crate::clock::monotonic_ns;

/// Name of the timer that wakes the pacer on this platform.
pub(crate) const SOURCE: &str =
    if cfg!(all(target_os = "linux", not(feature = "portable"))) { "timerfd" } else { "tokio timer (1 ms)" };

/// Sets the calling thread's timer slack to one nanosecond; false if that is not possible.
pub fn sharpen_thread() -> bool {
    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    {
        nix::sys::prctl::set_timerslack(1).is_ok()
    }
    #[cfg(any(not(target_os = "linux"), feature = "portable"))]
    {
        false
    }
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod imp {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd, RawFd};

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    #[derive(Debug)]
    struct Fd(TimerFd);

    impl AsRawFd for Fd {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }

    /// A one-shot timer, bound to the runtime that created it.
    #[derive(Debug)]
    pub struct Timer {
        fd: AsyncFd<Fd>,
    }

    impl Timer {
        /// Returns a timer that is not armed.
        #[expect(deprecated, reason = "its successor is unsafe to call, and the timer owns this descriptor")]
        pub fn new() -> io::Result<Timer> {
            let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
            let fd = Fd(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?);
            Ok(Timer { fd: AsyncFd::with_interest(fd, Interest::READABLE)? })
        }

        /// Arms the timer for a time in ns of CLOCK_MONOTONIC, replacing the previous time. A time in the past fires
        /// immediately.
        pub fn arm(&self, monotonic_ns: i64) -> io::Result<()> {
            // Zero would disarm the timer.
            let ns = monotonic_ns.max(1);
            let spec = TimeSpec::new(ns / 1_000_000_000, ns % 1_000_000_000);
            self.fd.get_ref().0.set(Expiration::OneShot(spec), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            Ok(())
        }

        /// Ready once after each expiry. The caller must check the clock, because the timer may be ready early after it was
        /// re-armed.
        pub fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            // The count is not read, which saves a system call: re-arming resets it, and readiness is edge-triggered.
            ready!(self.fd.poll_read_ready(cx))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }
}

#[cfg(any(not(target_os = "linux"), feature = "portable"))]
mod imp {
    use super::*;
    use std::cell::RefCell;
    use std::future::Future;
    use std::pin::Pin;

    /// A one-shot timer, bound to the runtime that created it.
    #[derive(Debug)]
    pub struct Timer {
        sleep: RefCell<Pin<Box<tokio::time::Sleep>>>,
    }

    const FAR: std::time::Duration = std::time::Duration::from_secs(86_400 * 365);

    impl Timer {
        /// Returns a timer that is not armed.
        pub fn new() -> io::Result<Timer> {
            let far = tokio::time::Instant::now() + FAR;
            Ok(Timer { sleep: RefCell::new(Box::pin(tokio::time::sleep_until(far))) })
        }

        /// Arms the timer for a time in ns of CLOCK_MONOTONIC, replacing the previous time. A time in the past fires
        /// immediately.
        pub fn arm(&self, at: i64) -> io::Result<()> {
            let left = at.saturating_sub(monotonic_ns()).max(0);
            let due = tokio::time::Instant::now() + std::time::Duration::from_nanos(left.unsigned_abs());
            self.sleep.borrow_mut().as_mut().reset(due);
            Ok(())
        }

        /// Ready once after each expiry.
        pub fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            ready!(self.sleep.borrow_mut().as_mut().poll(cx));
            let far = tokio::time::Instant::now() + FAR;
            self.sleep.borrow_mut().as_mut().reset(far);
            Poll::Ready(Ok(()))
        }
    }
}

pub use imp::Timer;

impl Timer {
    /// Waits until the timer fires.
    pub async fn fired(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_fired(cx)).await
    }

    /// Waits until a time in ns of CLOCK_MONOTONIC.
    pub async fn until(&self, at: i64) -> io::Result<()> {
        while monotonic_ns() < at {
            self.arm(at)?;
            self.fired().await?;
        }
        Ok(())
    }
}
