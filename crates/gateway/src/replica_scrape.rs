//! Scraping of replica metrics. [`plimsoll_policy::telemetry`] decides on the use of the results.
//!
//! Each replica has a separate scrape task besides its health checks, so that a hanging metrics endpoint does not
//! delay them. Pages are parsed on a blocking thread, because a serving thread must not stall.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};

use crate::active_config::ConfigHandle;
use crate::pool::ReplicaPool;
use crate::prober::ProbedReplica;
use crate::replica::Replica;
use crate::telemetry::{self, TelemetrySpec};
use crate::timer::soon;
use crate::upstream::Upstreams;

/// Limit on a page in bytes; vLLM's page with a hundred adapters has about 300 KiB.
const MOST_PAGE: usize = 4 << 20;
/// Scrape timeout. A slower page is older than the estimate that it would correct.
const PATIENCE: Span = Span::from_secs(1);
/// Limit on the retry interval of an unreadable page, so that a server without one is rarely scraped.
const SELDOM: Span = Span::from_secs(30);
/// Delay until a changed configuration or a removed replica is noticed.
const OFTEN: Span = Span::from_millis(250);

/// Scrapes a replica until its removal.
pub(crate) async fn read_pages(
    pool: Arc<ReplicaPool>,
    upstreams: Rc<Upstreams>,
    replica: Arc<Replica>,
    rules: Arc<ConfigHandle>,
) {
    // The first scrape is at a random time, because gateways that start together would scrape all replicas
    // simultaneously.
    let mut chance = Stream::new(pool.clock.anchor().realtime_ns as u64 ^ replica.id, "gateway.page", 0);
    let (mut due, mut failed, mut asks) = (None, 0u32, None);
    while !replica.is_gone() {
        let rules = rules.now();
        if rules.telemetry != asks {
            // Results of the previous endpoint do not apply to the new one.
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
            let one = ProbedReplica { pool: &pool, upstreams: &upstreams, replica: &replica, rules: &rules };
            let read = one.read_page(spec).await;
            failed = if read { 0 } else { failed + 1 };
            let pause = Span((every.0 << failed.min(8)).min(SELDOM.0.max(every.0)));
            due = Some(now + pause);
        }
    }
}

impl ProbedReplica<'_> {
    /// Scrapes a page and reports it to the pool. Returns whether the page was readable.
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
        // The page was generated between request and response; the midpoint is assumed.
        let made = At(asked.0 + (came - asked).0 / 2);
        if said.is_some() {
            self.pool.told_page(self.replica, said, made);
        }
        said.is_some()
    }
}
