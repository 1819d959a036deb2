//! Sees whether replicas answer, warms them up before they get requests, keeps them warm, and sees whether their streams move.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use plimsoll_model::{At, Span};

use crate::models;
use crate::pages;
use crate::pool::ReplicaPool;
use crate::replica::Replica;
use crate::rules::{InForce, Rules};
use crate::timer::soon;
use crate::upstream::{OwnRequest, Unasked, Upstreams};

/// Between two looks at a replica that does not answer, and at the streams.
const OFTEN: Span = Span::from_millis(250);
/// Failed looks one after another that make a replica one that does not answer. A refused connection of a request does so at once.
const FAILED: u32 = 2;
/// Tokens that came within this time prove that a replica is up, however slow its health page is.
const PROVES: Span = Span::from_secs(2);
/// What of a health page is read.
const MOST_PAGE: usize = 64 << 10;
/// What of a list of models is read: one with a thousand adapters has some 300 KiB.
const MOST_MODELS: usize = 4 << 20;
/// Between two looks at what a replica serves: adapters are loaded while it runs.
const MODELS: Span = Span::from_secs(30);

/// Looks at all replicas for ever, also at those that come.
pub async fn look(pool: Arc<ReplicaPool>, upstreams: Rc<Upstreams>, rules: Arc<InForce>) {
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
            tokio::task::spawn_local(pages::read_pages(of_pool, of_upstreams, of_replica, by));
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Looks at one replica until it has gone. One that ends what it has is not looked at: it gets nothing more, whatever its page says.
async fn probe(pool: Arc<ReplicaPool>, upstreams: Rc<Upstreams>, replica: Arc<Replica>, rules: Arc<InForce>) {
    let mut failed = 0;
    let mut due = pool.clock.now();
    // How many attempts there were when it was last seen to be used, and when that was.
    let mut used = (0, due);
    let mut models_due = due;
    while !replica.is_gone() {
        let rules = rules.now();
        let one = One { pool: &pool, upstreams: &upstreams, replica: &replica, rules: &rules };
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

/// What a look at a health page shows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum HealthSeen {
    Answers,
    /// There is a connection, and no answer in time.
    Late,
    /// No connection, or an answer that denies.
    Fails,
}

/// A replica, and the rules by which it is looked at.
pub(crate) struct One<'a> {
    pub pool: &'a ReplicaPool,
    pub upstreams: &'a Rc<Upstreams>,
    pub replica: &'a Arc<Replica>,
    pub rules: &'a Rules,
}

impl One<'_> {
    async fn look(&self) -> HealthSeen {
        let spec = &self.rules.health;
        let within = Duration::from_secs_f64(spec.timeout_s);
        let bearer = self.rules.bearer(&self.replica.name);
        let request = OwnRequest { method: Method::GET, path: &spec.path, body: "", bearer };
        match self.upstreams.asked(self.replica, &request, (within, MOST_PAGE)).await {
            Ok((status, _)) if status < 500 => HealthSeen::Answers,
            Err(Unasked::Late) => HealthSeen::Late,
            Ok(_) | Err(Unasked::Failed) => HealthSeen::Fails,
        }
    }

    /// Asks it what it serves. One that does not say gets requests for any model.
    async fn look_at_models(&self) {
        let spec = &self.rules.health;
        let Some(path) = spec.models.as_ref().filter(|_| self.replica.asks_models()) else { return };
        let within = Duration::from_secs_f64(spec.timeout_s);
        let page = self.send(Method::GET, path, "", (within, MOST_MODELS)).await;
        // One that is too busy to say serves what it served.
        // The file may have said it meanwhile.
        if let Some((status, page)) = page.filter(|_| self.replica.asks_models()) {
            let models = page.filter(|_| status == 200).and_then(|page| models::read(&page));
            self.pool.set_models(self.replica, models);
        }
    }

    /// The first requests of a process, before clients'. One that fails keeps nobody out: what is broken the breaker finds.
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

    /// One more request where nobody sent one for long: platforms that scale to zero stop what is not used.
    async fn keep_warm(&self, used: &mut At) {
        let Some(spec) = self.rules.warm_up.as_ref().filter(|spec| spec.idle_s > 0.0) else { return };
        let idle = Span::from_secs_f64(spec.idle_s);
        if self.pool.is_up(self.replica.number) && self.pool.clock.now() - *used >= idle {
            // Health is not looked at meanwhile, so it may take no longer than a look at it.
            let within = Duration::from_secs_f64(self.rules.health.timeout_s);
            self.send(Method::POST, &spec.path, &spec.body, (within, MOST_PAGE)).await;
            *used = self.pool.clock.now();
        }
    }

    /// See [`Upstreams::ask`].
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: &str,
        (within, most): (Duration, usize),
    ) -> Option<(u16, Option<Bytes>)> {
        let bearer = self.rules.bearer(&self.replica.name);
        let request = OwnRequest { method, path, body, bearer };
        self.upstreams.ask(self.replica, &request, (within, most)).await
    }
}

/// Looks for silent replicas for ever.
pub async fn listen(pool: Arc<ReplicaPool>) {
    loop {
        tokio::time::sleep_until(soon(OFTEN)).await;
        pool.look_for_silence();
    }
}
