//! Runs the engine in real time: sleeps until the world's next virtual time, steps the world, and passes its tokens to the
//! streams.
//!
//! The world has its own time. A late wake-up steps everything that was due, each with its exact virtual end. Lateness
//! therefore affects when bytes leave and never when the next event is due; it is measured, not corrected. The engine is
//! one task on the runtime that also serves the sockets. A separate thread was rejected, because it was no faster and would
//! need locks.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use plimsoll_client::timer::Timer;
use plimsoll_model::{At, Span};
use plimsoll_sim::engine::meter::{BucketHistogram, RequestLifetime};
use plimsoll_sim::{Emission, EngineGauges, EngineRejection, Failure, RequestEvent, Submit, World};

use plimsoll_wire::server::{ReportedTimings, Timing};

use crate::clock::EngineAxis;
use crate::io::Conn;
use crate::metrics::Metrics;
use crate::script::ManualClock;
use crate::stream::{EngineStream, StepTokens};
use crate::truth::{TrueOutcome, Truth, TruthRecord};

/// Triton's message for a request that exceeded its queue timeout.
const EXPIRED: &str = "Request timeout expired";

/// The engine and the state that its streams share.
pub struct EngineDriver {
    pub axis: EngineAxis,
    pub metrics: Rc<RefCell<Metrics>>,
    truth: Option<Rc<Truth>>,
    state: RefCell<State>,
    driver: RefCell<Option<Waker>>,
    armed: Cell<At>,
    spacing: Span,
    stepped: Cell<At>,
}

struct State {
    world: World,
    next_id: u64,
    out: Vec<Emission>,
    live: HashMap<u64, Live, BuildHasherDefault<Spread>>,
}

struct Live {
    stream: Rc<EngineStream>,
    life: RequestLifetime,
    cached: Option<u32>,
}

/// A hasher for the engine's consecutive ids. The standard hasher was rejected, because it pays for defence against chosen
/// keys.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl EngineDriver {
    /// Returns an idle engine on `axis`. Wake-ups for the world's events are at least `spacing` apart.
    pub fn new(
        world: World,
        axis: EngineAxis,
        spacing: Span,
        metrics: Rc<RefCell<Metrics>>,
        truth: Option<Rc<Truth>>,
    ) -> Rc<EngineDriver> {
        Rc::new(EngineDriver {
            axis,
            metrics,
            truth,
            state: RefCell::new(State { world, next_id: 0, out: Vec::new(), live: HashMap::default() }),
            driver: RefCell::new(None),
            armed: Cell::new(At::MAX),
            spacing,
            stepped: Cell::new(At(i64::MIN)),
        })
    }

    /// Submits a request to the world under a new id. `record` contains the facts known so far.
    ///
    /// # Errors
    /// Fails if the world rejects the request; the truth log then has its line.
    pub fn submit(
        &self,
        conn: &Rc<Conn>,
        mut record: TruthRecord,
        submit: Submit,
    ) -> Result<Rc<EngineStream>, EngineRejection> {
        let now = self.axis.now();
        self.pump(now);
        let mut state = self.state.borrow_mut();
        // A rejected request gets an id too, because the truth of faults refers to affected requests by id.
        let id = state.next_id;
        state.next_id += 1;
        record.number = Some(id);
        record.submitted_ns = self.axis.to_monotonic(now);
        if self.axis.script.is_some() {
            // The kernel's stamp is on another clock than the script.
            record.arrival_ns = record.submitted_ns;
        }
        let submit = Submit { id, ..submit };
        let prompt = submit.prompt_tokens;
        if let Err(rejected) = state.world.submit(now, submit) {
            record.ending = TrueOutcome::Rejected;
            record.status = rejected.status().unwrap_or(0);
            self.metrics.borrow_mut().rejected(&rejected);
            self.log(record);
            return Err(rejected);
        }
        record.status = 200;
        let live = Live {
            life: RequestLifetime::new(record.arrival_ns, record.submitted_ns, prompt),
            cached: None,
            stream: EngineStream::new(id, conn.clone(), self.metrics.clone(), self.truth.clone(), record),
        };
        let stream = live.stream.clone();
        state.live.insert(id, live);
        drop(state);
        self.pump(now);
        self.rearm();
        Ok(stream)
    }

    /// Cancels a request whose client has disconnected. Has no effect if the world has finished it.
    pub fn cancel(&self, id: u64) {
        let now = self.axis.now();
        self.pump(now);
        let mut state = self.state.borrow_mut();
        let known = state.world.cancel(now, id);
        let live = state.live.remove(&id);
        drop(state);
        let replica = live.as_ref().map_or(0, |live| live.life.replica);
        if let Some(live) = live {
            live.stream.record(|record| record.end_ns = Some(self.axis.to_monotonic(now)));
        }
        if known {
            self.metrics.borrow_mut().meter(replica).aborted += 1;
            // The freed place may admit another request.
            self.pump(now);
            self.rearm();
        }
    }

    /// Writes a line of the truth log for a request that never became a stream.
    pub fn log(&self, record: TruthRecord) {
        if let Some(truth) = &self.truth {
            truth.push(record);
        }
    }

    /// Passes buffered truth records to their writer.
    pub(crate) fn flush_truth(&self) {
        if let Some(truth) = &self.truth {
            truth.flush();
        }
    }

    /// Returns the gauges of the whole world.
    pub fn gauges(&self) -> EngineGauges {
        self.state.borrow().world.gauges()
    }

    /// Returns the gauges of each replica.
    pub fn replica_gauges(&self) -> Vec<EngineGauges> {
        self.state.borrow().world.replica_gauges()
    }

    /// Returns the histogram of tokens per step of each replica; `None` for an engine without steps.
    pub fn iterations(&self) -> Vec<Option<BucketHistogram>> {
        self.state.borrow().world.iterations()
    }

    /// Returns the effects of the faults so far as JSON; `None` if no fault has occurred.
    pub(crate) fn fault_truth(&self) -> Option<serde_json::Value> {
        let state = self.state.borrow();
        let truths = state.world.fault_truths();
        (!truths.is_empty()).then(|| serde_json::to_value(truths).unwrap_or_default())
    }

    /// Sleeps and steps for the lifetime of the engine. Returns only if the timer fails.
    pub(crate) async fn drive(self: Rc<Self>) -> io::Error {
        let mut alarm = match Alarm::on(&self.axis) {
            Ok(alarm) => alarm,
            Err(e) => return e,
        };
        poll_fn(move |cx| self.turn(&mut alarm, cx)).await
    }

    fn turn(&self, alarm: &mut Alarm, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.driver.borrow_mut().get_or_insert_with(|| cx.waker().clone());
        loop {
            let now = self.axis.now();
            if self.pump(now) {
                // The streams write first. Then this loop re-reads the clock, which under load is cheaper than a kernel wake-up
                // that is already due.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let next = self.state.borrow().world.next_event();
            let next = next.map(|at| at.max(self.stepped.get() + self.spacing));
            self.armed.set(next.unwrap_or(At::MAX));
            if let Some(at) = next
                && let Err(e) = alarm.arm(at, &self.axis)
            {
                return Poll::Ready(e);
            }
            match alarm.poll_fired(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(e)) => return Poll::Ready(e),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Wakes the driver if an event is due before its current wake-up.
    fn rearm(&self) {
        let next = self.state.borrow().world.next_event();
        if next.is_some_and(|at| at < self.armed.get())
            && let Some(driver) = self.driver.borrow().as_ref()
        {
            driver.wake_by_ref();
        }
    }

    /// Steps the world up to `now`; false if no event was due.
    fn pump(&self, now: At) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.world.next_event().is_none_or(|at| at > now) {
            return false;
        }
        state.world.step(now, &mut state.out);
        self.stepped.set(now);
        let metrics = &mut *self.metrics.borrow_mut();
        for emission in state.out.drain(..) {
            let at_ns = self.axis.to_monotonic(emission.at);
            let Some(live) = state.live.get_mut(&emission.id) else { continue };
            live.life.take(metrics.meter(live.life.replica), at_ns, &emission.what);
            match emission.what {
                RequestEvent::Admitted { cached } => {
                    live.cached = Some(cached);
                    live.stream.record(|record| {
                        record.admitted_ns = Some(at_ns);
                        record.cached_tokens = Some(cached);
                    });
                }
                RequestEvent::PrefillDone => live.stream.record(|record| record.prefill_ns = Some(at_ns)),
                RequestEvent::Token { n, .. } => {
                    metrics.wake_late.observe_ns(now.0 - emission.at.0);
                    live.stream.push(StepTokens { step_end_ns: at_ns, tokens: n });
                }
                RequestEvent::Placed { replica } => live.stream.placed(replica),
                RequestEvent::Depends { .. } => {}
                RequestEvent::Preempted => live.stream.record(|record| record.preemptions += 1),
                RequestEvent::Failed(failure) => {
                    metrics.expired += u64::from(matches!(failure, Failure::Status { why: EXPIRED, .. }));
                    live.stream.fail(failure);
                    live.stream.end(at_ns);
                    state.live.remove(&emission.id);
                }
                RequestEvent::Finished { .. } => {
                    live.stream.tell(ReportedTimings { timing: live.timing(at_ns), cached: live.cached });
                    live.stream.end(at_ns);
                    state.live.remove(&emission.id);
                }
            }
        }
        true
    }
}

/// The timer or script that wakes the driver.
struct Alarm {
    source: AlarmSource,
    /// Time of the next wake-up; [`At::MAX`] if there is none.
    armed: At,
}

enum AlarmSource {
    Timer(Timer),
    Script(ManualClock),
}

impl Alarm {
    fn on(axis: &EngineAxis) -> io::Result<Alarm> {
        let source = match &axis.script {
            Some(script) => AlarmSource::Script(script.clone()),
            None => AlarmSource::Timer(Timer::new()?),
        };
        Ok(Alarm { source, armed: At::MAX })
    }

    fn arm(&mut self, at: At, axis: &EngineAxis) -> io::Result<()> {
        if let AlarmSource::Timer(timer) = &self.source
            && self.armed != at
        {
            timer.arm(axis.to_monotonic(at))?;
        }
        self.armed = at;
        Ok(())
    }

    fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.source {
            AlarmSource::Timer(timer) => ready!(timer.poll_fired(cx))?,
            AlarmSource::Script(script) => ready!(script.poll_reached(self.armed, cx)),
        }
        self.armed = At::MAX;
        Poll::Ready(Ok(()))
    }
}

impl Live {
    /// Returns the durations of the request's stages; `None` if the world draws whole latencies and has no prefill.
    fn timing(&self, end_ns: i64) -> Option<Timing> {
        let life = &self.life;
        let prefill_ns = life.prefill_ns?;
        Some(Timing {
            queue: Span(life.admitted_ns - life.submitted_ns),
            prefill: Span(prefill_ns - life.admitted_ns),
            decode: Span(end_ns - prefill_ns),
            tokens: life.tokens,
        })
    }
}
