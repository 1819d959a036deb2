//! Implements a timerfd inside the runtime, armed for absolute times of CLOCK_MONOTONIC.
//!
//! The runtime's own timer was rejected: it rounds up to the next millisecond, which is most of a token gap. A sleeping
//! thread was rejected too, because its handover costs more than the timer. The expiry count is never read: the descriptor
//! is edge-triggered and every arming resets it, which saves a system call per wake-up. On systems other than Linux tokio's
//! timer is used: a step ends up to a millisecond late, and the lateness metrics show it.

use std::io;
use std::task::{Context, Poll, ready};

/// Sets the calling thread's timer slack to the minimum. If that fails, the lateness metrics show it.
pub fn sharpen_thread() {
    // Otherwise the runtime wakes with a timer slack of 50 µs.
    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    let _ = nix::sys::prctl::set_timerslack(1);
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod imp {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd, RawFd};

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    struct Descriptor(TimerFd);

    impl AsRawFd for Descriptor {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }

    /// A timer that wakes its task at an absolute time.
    pub struct EngineTimer {
        fd: AsyncFd<Descriptor>,
        armed_ns: Option<i64>,
    }

    impl EngineTimer {
        /// Returns a timer on the current runtime that is not armed.
        pub fn new() -> io::Result<EngineTimer> {
            let fd =
                TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
            #[expect(
                deprecated,
                reason = "its successor is an unsafe function, for types that may give away their descriptor; this one \
                          owns it, never swaps it, and is private"
            )]
            let fd = AsyncFd::with_interest(Descriptor(fd), Interest::READABLE)?;
            Ok(EngineTimer { fd, armed_ns: None })
        }

        /// Returns the armed time in ns of CLOCK_MONOTONIC; `None` = not armed.
        pub(crate) fn armed_ns(&self) -> Option<i64> {
            self.armed_ns
        }

        /// Arms the timer for a time in ns of CLOCK_MONOTONIC. A time in the past fires immediately.
        pub fn arm(&mut self, monotonic_ns: i64) -> io::Result<()> {
            // Zero would disarm the timer.
            let ns = monotonic_ns.max(1);
            let when = Expiration::OneShot(TimeSpec::new(ns / 1_000_000_000, ns % 1_000_000_000));
            self.fd.get_ref().0.set(when, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            self.armed_ns = Some(monotonic_ns);
            Ok(())
        }

        /// Ready if the timer fired since the last ready result; it is then no longer armed.
        pub fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            guard.clear_ready();
            self.armed_ns = None;
            Poll::Ready(Ok(()))
        }
    }
}

#[cfg(any(not(target_os = "linux"), feature = "portable"))]
mod imp {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::time::Duration;

    use tokio::time::{Instant, Sleep, sleep_until};

    /// A timer that wakes its task at an absolute time.
    pub struct EngineTimer {
        sleep: Pin<Box<Sleep>>,
        armed_ns: Option<i64>,
    }

    impl EngineTimer {
        /// Returns a timer on the current runtime that is not armed.
        pub fn new() -> io::Result<EngineTimer> {
            Ok(EngineTimer { sleep: Box::pin(sleep_until(Instant::now())), armed_ns: None })
        }

        /// Returns the armed time in ns of CLOCK_MONOTONIC; `None` = not armed.
        pub(crate) fn armed_ns(&self) -> Option<i64> {
            self.armed_ns
        }

        /// Arms the timer for a time in ns of CLOCK_MONOTONIC. A time in the past fires immediately.
        pub fn arm(&mut self, monotonic_ns: i64) -> io::Result<()> {
            let left = monotonic_ns.saturating_sub(crate::clock::monotonic_ns()).max(0);
            self.sleep.as_mut().reset(Instant::now() + Duration::from_nanos(left.unsigned_abs()));
            self.armed_ns = Some(monotonic_ns);
            Ok(())
        }

        /// Ready if the timer fired since the last ready result; it is then no longer armed.
        pub fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.armed_ns.is_none() {
                return Poll::Pending;
            }
            ready!(self.sleep.as_mut().poll(cx));
            self.armed_ns = None;
            Poll::Ready(Ok(()))
        }
    }
}

pub use imp::EngineTimer;

impl EngineTimer {
    /// Waits until a time in ns of CLOCK_MONOTONIC.
    pub async fn until(&mut self, monotonic_ns: i64) -> io::Result<()> {
        while crate::clock::monotonic_ns() < monotonic_ns {
            self.arm(monotonic_ns)?;
            std::future::poll_fn(|cx| self.poll_fired(cx)).await?;
        }
        Ok(())
    }
}
