//! A future that was polled once before it became a task.
//!
//! An attempt is polled where it is launched, because that writes its request; the runtime polls each new task once more,
//! only to hand it its waker. Here that second poll puts the waker where the first poll's wakes go, and goes inside only
//! when there was one. (Polling first with a waker that does nothing, and again for the true one, costs a turn through
//! connection and answer for every request.)

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Where wakes go until the task has its own waker registered within.
#[derive(Debug, Default)]
struct Early {
    task: AtomicWaker,
    woken: AtomicBool,
}

impl Wake for Early {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// What an attempt is, to the runtime.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// See the module's head.
pub struct Begun {
    future: Task,
    early: Option<Arc<Early>>,
}

impl Begun {
    /// Polls `future` now; `None` when that ended it.
    pub fn begin(mut future: Task) -> Option<Begun> {
        let early = Arc::new(Early::default());
        let waker = Waker::from(Arc::clone(&early));
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => None,
            Poll::Pending => Some(Begun { future, early: Some(early) }),
        }
    }
}

impl Future for Begun {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(early) = self.early.take() {
            early.task.register(cx.waker());
            if !early.woken.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        self.future.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::atomic::AtomicU32;

    #[derive(Default)]
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    type Newest = Rc<RefCell<Option<Waker>>>;

    /// Pending until its third poll; tells its polls and keeps the newest waker.
    fn third() -> (Rc<Cell<u32>>, Newest, Task) {
        let (polls, waker) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
        let (counted, kept) = (Rc::clone(&polls), Rc::clone(&waker));
        let future = std::future::poll_fn(move |cx| {
            counted.set(counted.get() + 1);
            *kept.borrow_mut() = Some(cx.waker().clone());
            if counted.get() < 3 { Poll::Pending } else { Poll::Ready(()) }
        });
        (polls, waker, Box::pin(future))
    }

    #[test]
    fn the_first_turn_as_a_task_goes_inside_only_when_something_woke_it() {
        let task = Arc::new(Count::default());
        let outer = Waker::from(Arc::clone(&task));
        let mut cx = Context::from_waker(&outer);
        for woken_between in [false, true] {
            let (polls, waker, future) = third();
            let mut begun = Begun::begin(future).expect("pending");
            let early = waker.borrow().clone().expect("polled");
            if woken_between {
                early.wake_by_ref();
            }
            assert!(Pin::new(&mut begun).poll(&mut cx).is_pending());
            assert_eq!(polls.get(), 1 + u32::from(woken_between));
            let before = task.0.load(Ordering::SeqCst);
            early.wake();
            assert_eq!(task.0.load(Ordering::SeqCst), before + 1, "an early wake reaches the task");
            let again = Pin::new(&mut begun).poll(&mut cx);
            assert_eq!(again.is_ready(), woken_between);
        }
    }
}
