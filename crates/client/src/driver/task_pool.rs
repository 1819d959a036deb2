//! Reuses tasks for attempts.
//!
//! An attempt is a future that some task must poll. A new task per attempt was rejected. The runtime aligns a task to two
//! cache lines, which the allocator serves slowly, and needs an additional poll to learn its waker. A hand is a task that
//! carries one attempt after another. Its waker is known, so an attempt is polled where it is launched. That poll writes
//! its request, and later wakes work as for any task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// The future of an attempt, boxed for a hand.
pub type AttemptJob = Pin<Box<dyn Future<Output = ()>>>;

/// The reusable tasks of one thread; a job runs in a free task or in a new one.
#[derive(Debug, Default)]
pub struct TaskPool {
    free: RefCell<Vec<Rc<PooledTask>>>,
}

/// A reusable task and its current attempt.
pub struct PooledTask {
    hands: Weak<TaskPool>,
    job: RefCell<Option<AttemptJob>>,
    /// Waker of the task; `None` before its first turn.
    waker: RefCell<Option<Waker>>,
    /// Set if the job was cancelled during its poll; it is dropped after the poll.
    left: Cell<bool>,
}

impl std::fmt::Debug for PooledTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hand")
    }
}

impl TaskPool {
    /// Starts `job` in a free hand or a new one and polls it now. Returns `None` if the job has already ended. Must be
    /// called within a local runtime.
    pub fn begin(self: &Rc<TaskPool>, job: AttemptJob) -> Option<Rc<PooledTask>> {
        let hand = self.free.borrow_mut().pop().unwrap_or_else(|| self.hire());
        *hand.job.borrow_mut() = Some(job);
        match hand.first() {
            Poll::Ready(()) => None,
            Poll::Pending => Some(hand),
        }
    }

    fn hire(self: &Rc<TaskPool>) -> Rc<PooledTask> {
        let hand = Rc::new(PooledTask {
            hands: Rc::downgrade(self),
            job: RefCell::new(None),
            waker: RefCell::new(None),
            left: Cell::new(false),
        });
        tokio::task::spawn_local(Turns(Rc::clone(&hand)));
        hand
    }

    /// Returns the number of free hands.
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }
}

impl PooledTask {
    /// Polls a new job for the first time.
    fn first(self: &Rc<PooledTask>) -> Poll<()> {
        let waker = self.waker.borrow();
        // The first turn of a new hand is still to come; it polls again with a real waker.
        let mut cx = Context::from_waker(waker.as_ref().unwrap_or(Waker::noop()));
        // Outside of tokio's budget, because hundreds of starts in one turn would exhaust it. The later requests would then
        // be written some hundred milliseconds after they were counted as begun.
        let mut first = pin!(tokio::task::unconstrained(poll_fn(|cx| Poll::Ready(self.poll(cx)))));
        match first.as_mut().poll(&mut cx) {
            Poll::Ready(polled) => polled,
            Poll::Pending => Poll::Pending,
        }
    }

    /// Polls the job; ready once there is none, which frees the hand.
    fn poll(self: &Rc<PooledTask>, cx: &mut Context<'_>) -> Poll<()> {
        let ended = match &mut *self.job.borrow_mut() {
            Some(job) => job.as_mut().poll(cx).is_ready() || self.left.get(),
            None => return Poll::Ready(()),
        };
        if ended {
            self.let_go();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Drops the job; during a poll of the job the drop is delayed until its end.
    pub fn leave(self: &Rc<PooledTask>) {
        match self.job.try_borrow_mut() {
            Ok(job) => {
                let carries = job.is_some();
                drop(job);
                if carries {
                    self.let_go();
                }
            }
            Err(_) => self.left.set(true),
        }
    }

    fn let_go(self: &Rc<PooledTask>) {
        // Dropped outside of the borrow, because the job's destructor may access this cell.
        let job = self.job.take();
        drop(job);
        self.left.set(false);
        if let Some(hands) = self.hands.upgrade() {
            hands.free.borrow_mut().push(Rc::clone(self));
        }
    }
}

/// The future of a hand. It never ends; the runtime drops it.
struct Turns(Rc<PooledTask>);

impl Future for Turns {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut waker = self.0.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        let _ = self.0.poll(cx);
        Poll::Pending
    }
}

/// Drops the job after the runtime ended or the job panicked, which closes its row.
impl Drop for Turns {
    fn drop(&mut self) {
        let job = self.0.job.try_borrow_mut().ok().and_then(|mut job| job.take());
        drop(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    /// Runs `inside` on a local runtime, with the hands of one thread.
    fn on_a_thread<F: Future<Output = ()>>(inside: impl FnOnce(Rc<TaskPool>) -> F) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.build_local(tokio::runtime::LocalOptions::default()).expect("a runtime");
        runtime.block_on(inside(Rc::default()));
    }

    /// Returns a job that waits for `news` `times` times and counts the ends of its polls in `steps`.
    fn waits(news: &Rc<Notify>, times: u32, steps: &Rc<Cell<u32>>) -> AttemptJob {
        let (news, steps) = (Rc::clone(news), Rc::clone(steps));
        Box::pin(async move {
            for _ in 0..times {
                news.notified().await;
                steps.set(steps.get() + 1);
            }
        })
    }

    async fn turns() {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    /// The first job is polled in the task's first turn; later ones start with the known waker.
    #[test]
    fn a_hand_goes_from_job_to_job_and_every_wake_reaches_it() {
        on_a_thread(|hands| async move {
            let (news, steps) = (Rc::new(Notify::new()), Rc::new(Cell::new(0)));
            for round in 1..=3 {
                assert!(hands.begin(waits(&news, 2, &steps)).is_some());
                assert_eq!(hands.free(), 0);
                for step in 1..=2 {
                    turns().await;
                    news.notify_one();
                    turns().await;
                    assert_eq!(steps.get(), (round - 1) * 2 + step);
                }
                assert_eq!(hands.free(), 1, "the same one");
            }
        });
    }

    #[test]
    fn a_job_that_ends_at_once_needs_no_turn() {
        on_a_thread(|hands| async move {
            for _ in 0..3 {
                assert!(hands.begin(Box::pin(async {})).is_none());
            }
            assert_eq!(hands.free(), 1);
        });
    }

    /// tokio limits the work of a task per turn and then makes every operation pending. Started requests are written
    /// anyway.
    #[test]
    fn a_spent_budget_keeps_nothing_from_being_begun() {
        on_a_thread(|hands| async move {
            let (send, mut spent) = tokio::sync::mpsc::unbounded_channel();
            let (only, mut ready) = tokio::sync::mpsc::unbounded_channel();
            let mut job: Option<AttemptJob> =
                Some(Box::pin(async move { assert_eq!(ready.recv().await, Some(7)) }));
            (0..1000).for_each(|n| send.send(n).expect("open"));
            only.send(7).expect("open");
            let begun = poll_fn(|cx| {
                let mut taken = 0;
                while spent.poll_recv(cx).is_ready() {
                    taken += 1;
                }
                assert!(taken < 1000, "the budget ended it");
                Poll::Ready(job.take().is_some_and(|job| hands.begin(job).is_none()))
            });
            assert!(begun.await, "one turn was enough for what was ready");
        });
    }

    struct Tells(Rc<Cell<u32>>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn a_job_that_is_left_is_dropped_from_outside_and_from_within() {
        on_a_thread(|hands| async move {
            let (news, dropped) = (Rc::new(Notify::new()), Rc::new(Cell::new(0)));
            let own: Rc<RefCell<Option<Rc<PooledTask>>>> = Rc::default();
            for within in [false, true] {
                let (tells, news_of, own_of) =
                    (Tells(Rc::clone(&dropped)), Rc::clone(&news), Rc::clone(&own));
                let hand = hands.begin(Box::pin(async move {
                    let _tells = tells;
                    news_of.notified().await;
                    let hand = own_of.borrow_mut().take();
                    hand.expect("told").leave();
                    std::future::pending().await
                }));
                let hand = hand.expect("it waits");
                turns().await;
                match within {
                    false => hand.leave(),
                    true => {
                        *own.borrow_mut() = Some(hand);
                        news.notify_one();
                        turns().await;
                    }
                }
                assert_eq!((dropped.get(), hands.free()), (1 + u32::from(within), 1));
            }
        });
    }

    #[test]
    fn what_is_still_carried_at_the_end_of_the_runtime_is_dropped() {
        let dropped = Rc::new(Cell::new(0));
        let tells = Tells(Rc::clone(&dropped));
        on_a_thread(|hands| async move {
            let job: AttemptJob = Box::pin(async move {
                let _tells = tells;
                std::future::pending().await
            });
            assert!(hands.begin(job).is_some());
        });
        assert_eq!(dropped.get(), 1);
    }
}
