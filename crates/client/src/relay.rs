//! A waker that swallows the wakes which a task's own polling causes.
//!
//! hyper's connection and body talk through a one-slot channel and wake each other. Polled from one task, every frame
//! would wake the task that is running and cost a second, empty turn through the scheduler. Under a [`Relay`] such a
//! wake only asks for another pass of the same turn; wakes from outside go to the task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Passes without progress after which a wake is taken for a real one (tokio's budget ends that way).
const PASSES: u32 = 3;

#[derive(Debug, Default)]
struct Inner {
    task: AtomicWaker,
    polling: AtomicBool,
    again: AtomicBool,
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.polling.load(Ordering::Acquire) {
            self.again.store(true, Ordering::Release);
        } else {
            self.task.wake();
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Relay {
    inner: Arc<Inner>,
    waker: Waker,
}

impl Default for Relay {
    fn default() -> Relay {
        let inner = Arc::new(Inner::default());
        Relay { waker: Waker::from(Arc::clone(&inner)), inner }
    }
}

impl Relay {
    /// Polls `inside` under the relay until it is ready, or a pass went by that woke nothing.
    pub fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        mut inside: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.inner.task.register(cx.waker());
        let mut inner_cx = Context::from_waker(&self.waker);
        for _ in 0..PASSES {
            self.inner.again.store(false, Ordering::Release);
            self.inner.polling.store(true, Ordering::Release);
            let polled = inside(&mut inner_cx);
            self.inner.polling.store(false, Ordering::Release);
            if polled.is_ready() {
                return polled;
            }
            if !self.inner.again.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[derive(Default)]
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn run(mut inside: impl FnMut(u32, &mut Context<'_>) -> Poll<()>) -> (Poll<()>, u32, u32) {
        let outer = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&outer));
        let relay = Relay::default();
        let mut passes = 0;
        let polled = relay.poll(&mut Context::from_waker(&waker), |cx| {
            passes += 1;
            inside(passes, cx)
        });
        (polled, passes, outer.0.load(Ordering::SeqCst))
    }

    #[test]
    fn a_wake_from_inside_is_another_pass_and_no_wake() {
        let got = run(|pass, cx| {
            if pass == 1 {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        });
        assert_eq!(got, (Poll::Pending, 2, 0));
    }

    #[test]
    fn one_that_wakes_itself_for_ever_is_scheduled_again_like_any_other() {
        let got = run(|_, cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!(got, (Poll::Pending, PASSES, 1));
    }

    #[test]
    fn a_wake_from_outside_reaches_the_task() {
        let outer = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&outer));
        let relay = Relay::default();
        let mut kept = None;
        let _ = relay.poll(&mut Context::from_waker(&waker), |cx| -> Poll<()> {
            kept = Some(cx.waker().clone());
            Poll::Pending
        });
        kept.expect("registered").wake();
        assert_eq!(outer.0.load(Ordering::SeqCst), 1);
    }
}
