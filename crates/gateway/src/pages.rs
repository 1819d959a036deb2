//! Asks for replicas' own pages of metrics and tells the pool what they say. What is made of that is [`plimsoll_policy::telemetry`]'s.
//!
//! Each replica has a task of its own, beside the one that looks at its health: a page that hangs keeps nobody from seeing that its replica answers. It is read on a thread that
//! serves nobody.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};

use crate::pool::ReplicaPool;
use crate::prober::One;
use crate::replica::Replica;
use crate::rules::InForce;
use crate::telemetry::{self, TelemetrySpec};
use crate::timer::soon;
use crate::upstream::Upstreams;

/// What of a page is read; vLLM's with a hundred adapters has some 300 KiB.
const MOST_PAGE: usize = 4 << 20;
/// Longest wait for a page. One that takes longer is older than what it is to correct.
const PATIENCE: Span = Span::from_secs(1);
/// Longest time between two questions for a page that can't be read: a server that has none is not asked for it every second.
const SELDOM: Span = Span::from_secs(30);
/// How soon it is seen that the file says otherwise, or that a replica has gone.
const OFTEN: Span = Span::from_millis(250);

/// Reads one replica's pages until it has gone.
pub(crate) async fn read_pages(
    pool: Arc<ReplicaPool>,
    upstreams: Rc<Upstreams>,
    replica: Arc<Replica>,
    rules: Arc<InForce>,
) {
    // All replicas of all gateways that are started at once are asked at instants of their own.
    let mut chance = Stream::new(pool.clock.anchor().realtime_ns as u64 ^ replica.id, "gateway.page", 0);
    let (mut due, mut failed, mut asks) = (None, 0u32, None);
    while !replica.is_gone() {
        let rules = rules.now();
        if rules.telemetry != asks {
            // What another page said, or said while it was asked, is not what this one says.
            asks.clone_from(&rules.telemetry);
            pool.told_page(&replica, None, At::ZERO);
            (due, failed) = (None, 0);
        }
        let now = pool.clock.now();
        let every = asks.as_ref().map_or(OFTEN, |spec| Span::from_secs_f64(spec.every_s));
        let at =
            *due.get_or_insert_with(|| now + Span::from_secs_f64(chance.uniform() * every.as_secs_f64()));
        if now < at {
            tokio::time::sleep_until(soon((at - now).min(OFTEN))).await;
            continue;
        }
        due = Some(now + every);
        if let Some(spec) = asks.as_ref().filter(|_| replica.is_named() && pool.is_up(replica.number)) {
            let one = One { pool: &pool, upstreams: &upstreams, replica: &replica, rules: &rules };
            let read = one.read_page(spec).await;
            failed = if read { 0 } else { failed + 1 };
            let pause = Span((every.0 << failed.min(8)).min(SELDOM.0.max(every.0)));
            due = Some(now + pause);
        }
    }
}

impl One<'_> {
    /// Asks for a page and tells what it says. False where it says nothing.
    async fn read_page(&self, spec: &TelemetrySpec) -> bool {
        let asked = self.pool.clock.now();
        self.pool.asks_page(self.replica);
        let within = Duration::from_secs_f64(PATIENCE.as_secs_f64());
        let answer = self.send(Method::GET, &spec.path, "", (within, MOST_PAGE)).await;
        let came = self.pool.clock.now();
        let (path, silent) = (spec.path.clone(), answer.is_none());
        let said = match answer {
            Some((200, Some(page))) => {
                tokio::task::spawn_blocking(move || telemetry::read(&path, &page)).await.ok().flatten()
            }
            _ => None,
        };
        let place = if said.is_some() { 0 } else { 1 + usize::from(silent) };
        self.replica.pages[place].fetch_add(1, Ordering::Relaxed);
        // A page is made somewhere between the question and the answer.
        let made = At(asked.0 + (came - asked).0 / 2);
        if said.is_some() {
            self.pool.told_page(self.replica, said, made);
        }
        said.is_some()
    }
}
