//! Health checks, warm-up and idle requests of replicas, and the check for silent streams.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use plimsoll_model::{At, Span};

use crate::active_config::{ActiveConfig, ConfigHandle};
use crate::models;
use crate::pool::ReplicaPool;
use crate::replica::Replica;
use crate::replica_scrape;
use crate::timer::soon;
use crate::upstream::{InternalRequest, InternalRequestError, Upstreams};

/// Check interval of an unhealthy replica, and of silent streams.
const OFTEN: Span = Span::from_millis(250);
/// Number of consecutive failed checks that mark a replica as down. A refused connection of a request does so
/// immediately.
const FAILED: u32 = 2;
/// Age limit of tokens that prove that a replica is up although its health endpoint is slow.
const PROVES: Span = Span::from_secs(2);
/// Limit on a health response in bytes.
const MOST_PAGE: usize = 64 << 10;
/// Limit on a model list in bytes: a list with a thousand adapters has about 300 KiB.
const MOST_MODELS: usize = 4 << 20;
/// Query interval of the model list, because adapters are loaded at run time.
const MODELS: Span = Span::from_secs(30);

/// Starts the permanent checks of all replicas, including replicas that are added later.
pub async fn look(pool: Arc<ReplicaPool>, upstreams: Rc<Upstreams>, rules: Arc<ConfigHandle>) {
    let (mut changes, mut newest) = (pool.changes(), 0);
    loop {
        let before = newest;
        for replica in pool.replicas().into_iter().filter(|replica| replica.id > before) {
            newest = newest.max(replica.id);
            let with =
                || (Arc::clone(&pool), Rc::clone(&upstreams), Arc::clone(&replica), Arc::clone(&rules));
            let (of_pool, of_upstreams, of_replica, by) = with();
            tokio::task::spawn_local(probe(of_pool, of_upstreams, of_replica, by));
            let (of_pool, of_upstreams, of_replica, by) = with();
            tokio::task::spawn_local(replica_scrape::read_pages(of_pool, of_upstreams, of_replica, by));
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Checks a replica until its removal. A draining replica is not checked, because it gets no requests anyway.
async fn probe(
    pool: Arc<ReplicaPool>,
    upstreams: Rc<Upstreams>,
    replica: Arc<Replica>,
    rules: Arc<ConfigHandle>,
) {
    let mut failed = 0;
    let mut due = pool.clock.now();
    // Number of attempts at the last observed use, and the time of that observation.
    let mut used = (0, due);
    let mut models_due = due;
    while !replica.is_gone() {
        let rules = rules.now();
        let one = ProbedReplica { pool: &pool, upstreams: &upstreams, replica: &replica, rules: &rules };
        let every = Span::from_secs_f64(rules.health.every_s);
        if !replica.is_named() {
            tokio::time::sleep_until(soon(OFTEN)).await;
            continue;
        }
        let now = pool.clock.now();
        if now >= due || !pool.is_up(replica.number) {
            let seen = one.look().await;
            let answers = seen == HealthSeen::Answers;
            let is_busy = seen == HealthSeen::Late && replica.has_moved(PROVES, pool.clock.now());
            failed = if answers || is_busy { 0 } else { failed + 1 };
            let is_new = answers && !pool.is_up(replica.number);
            if is_new {
                one.warm_up().await;
                used.1 = pool.clock.now();
            }
            if answers && (is_new || pool.clock.now() >= models_due) {
                one.look_at_models().await;
                models_due = pool.clock.now() + MODELS;
            }
            match seen {
                HealthSeen::Answers => pool.set_up(&replica, true),
                HealthSeen::Late if failed >= FAILED => pool.set_slow(&replica),
                HealthSeen::Fails if failed >= FAILED => pool.set_up(&replica, false),
                HealthSeen::Late | HealthSeen::Fails => {}
            }
            due = pool.clock.now() + every;
        }
        let attempts = replica.attempted();
        if attempts != used.0 {
            used = (attempts, pool.clock.now());
        }
        one.keep_warm(&mut used.1).await;
        tokio::time::sleep_until(soon(OFTEN.min(every))).await;
    }
}

/// The result of a health check.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum HealthSeen {
    Answers,
    /// The connection was established, but the response is late.
    Late,
    /// The connection failed, or the response is an error.
    Fails,
}

/// A replica with everything that its checks need.
pub(crate) struct ProbedReplica<'a> {
    pub pool: &'a ReplicaPool,
    pub upstreams: &'a Rc<Upstreams>,
    pub replica: &'a Arc<Replica>,
    pub rules: &'a ActiveConfig,
}

impl ProbedReplica<'_> {
    async fn look(&self) -> HealthSeen {
        let spec = &self.rules.health;
        let within = Duration::from_secs_f64(spec.timeout_s);
        let bearer = self.rules.bearer(&self.replica.name);
        let request = InternalRequest { method: Method::GET, path: &spec.path, body: "", bearer };
        match self.upstreams.asked(self.replica, &request, (within, MOST_PAGE)).await {
            Ok((status, _)) if status < 500 => HealthSeen::Answers,
            Err(InternalRequestError::Late) => HealthSeen::Late,
            Ok(_) | Err(InternalRequestError::Failed) => HealthSeen::Fails,
        }
    }

    /// Queries the model list. A replica without one gets requests for any model.
    async fn look_at_models(&self) {
        let spec = &self.rules.health;
        let Some(path) = spec.models.as_ref().filter(|_| self.replica.asks_models()) else { return };
        let within = Duration::from_secs_f64(spec.timeout_s);
        let page = self.send(Method::GET, path, "", (within, MOST_MODELS)).await;
        // A replica that is too busy to answer keeps its list. The configuration may have set the list in the
        // meantime.
        if let Some((status, page)) = page.filter(|_| self.replica.asks_models()) {
            let models = page.filter(|_| status == 200).and_then(|page| models::read(&page));
            self.pool.set_models(self.replica, models);
        }
    }

    /// Sends the warm-up requests before client traffic. A failure does not block the replica, because the circuit
    /// breaker handles failing replicas.
    async fn warm_up(&self) {
        let Some(spec) = &self.rules.warm_up else { return };
        let until = self.pool.clock.now() + Span::from_secs_f64(spec.within_s);
        for _ in 0..spec.requests {
            let left = until - self.pool.clock.now();
            if left <= Span::ZERO {
                return;
            }
            self.send(Method::POST, &spec.path, &spec.body, (left.as_duration(), MOST_PAGE)).await;
        }
    }

    /// Sends a request after a long idle time, because scale-to-zero platforms stop idle replicas.
    async fn keep_warm(&self, used: &mut At) {
        let Some(spec) = self.rules.warm_up.as_ref().filter(|spec| spec.idle_s > 0.0) else { return };
        let idle = Span::from_secs_f64(spec.idle_s);
        if self.pool.is_up(self.replica.number) && self.pool.clock.now() - *used >= idle {
            // Health checks pause in the meantime, so the request may take no longer than one.
            let within = Duration::from_secs_f64(self.rules.health.timeout_s);
            self.send(Method::POST, &spec.path, &spec.body, (within, MOST_PAGE)).await;
            *used = self.pool.clock.now();
        }
    }

    /// Sends a request as [`Upstreams::ask`] does.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: &str,
        (within, most): (Duration, usize),
    ) -> Option<(u16, Option<Bytes>)> {
        let bearer = self.rules.bearer(&self.replica.name);
        let request = InternalRequest { method, path, body, bearer };
        self.upstreams.ask(self.replica, &request, (within, most)).await
    }
}

/// Runs the permanent check for silent replicas.
pub async fn listen(pool: Arc<ReplicaPool>) {
    loop {
        tokio::time::sleep_until(soon(OFTEN)).await;
        pool.look_for_silence();
    }
}
