//! Load of other clients on the replicas, estimated from scraped metrics: of other gateways, and of clients that
//! bypass the gateways.
//!
//! The gateway's own count stays the base, because it is exact and current, while metrics are a second old and
//! include all clients. The own count at the time of the scrape is subtracted from the scraped count. The remainder
//! is the load of others and is added to the current own count. A request sent after the scrape counts immediately,
//! and none counts twice. Replacing the own count by the scraped one lost: between two scrapes, all requests went to
//! the replica that seemed idle.
//!
//! **Random deviations are left out.** Counts of independent requests vary like Poisson's, by the root of their mean.
//! Gateways that all follow such a gap fill it simultaneously. Eight gateways that trusted each scrape had a p99
//! `ttft` a fifth above that of eight without metrics. A replica's recent mean is therefore shrunk towards the pool's
//! mean, except for the part of its deviation that is beyond chance. This is the positive part of James and Stein's
//! estimator. The last scrape is shrunk towards that mean in the same way. Of the rest, this gateway applies its own
//! share of all requests, because the other gateways see the deviation too. The deviation fades within the residence
//! time of a request, like the autocorrelation of the count in an M/G/∞ queue.
//!
//! A replica with missing, stale or impossible metrics is neither idle nor dead: it gets the mean load of others on
//! replicas with usable metrics. Without any usable metrics, [`unseen`](crate::load::unseen) applies. Metrics are
//! impossible if they show less than this gateway's own load, or if they show work but never change. Metrics that
//! show too much load are used while they change, because that costs a replica's share and not a response.

use plimsoll_model::{At, Span};
use serde::{Deserialize, Serialize};

use crate::load::{Booking, ReplicaLoad};

/// Age from which a scrape is ignored.
pub const STALE: Span = Span::from_secs(10);
/// Time without a change after which metrics that show work are ignored. Even an engine that computes one long prompt
/// steps within this time.
pub const STILL: Span = Span::from_secs(5);
/// Minimum of own requests for the check that metrics show at least half of them. One or two may just have ended.
const TELLING: u32 = 3;
/// Weight of a new scrape in the mean of a replica, which covers about ten scrapes.
const FRESH: f64 = 0.1;
/// Squared deviation that chance explains, divided by the expected count: of one scrape, and of a mean of ten with
/// similar neighbours. These are twice and half the variance of Poisson's counts.
const CHANCE: f64 = 2.0;
const CHANCE_OF_MEAN: f64 = 0.5;
/// Weight of a request in the mean properties of requests.
const FRESH_REQUEST: f64 = 0.02;
/// Age from which a decision updates the estimates. They fade over at least 1 s, and an update of a thousand replicas
/// takes longer than a decision.
const OFTEN: Span = Span::from_millis(300);
/// Assumed request of others before the first own one: tokens, as responses in [`crate::speed`], and the time in s
/// that it waits and decodes.
const TOKENS: f64 = 1_024.0;
const WAITS_S: f64 = 1.0;
const DECODES_S: f64 = 3.0;
/// Minimum fading time in s, because scrapes arrive once per second and are delayed by as much.
const LEAST_STAY_S: f64 = 1.0;
/// Limit on a scraped count; a larger value is invalid.
const MOST: f64 = 1e6;

/// The scraped load of a replica.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct ReportedLoad {
    /// Requests that the engine computes; `None` if not reported.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    /// Used share of the KV cache; `None` if not reported.
    pub kv_usage: Option<f64>,
    /// Sum of counters that grow with any computation; `None` if not reported.
    pub progress: Option<f64>,
}

/// The use of a replica's metrics.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageStanding {
    /// The metrics are applied.
    Believed,
    /// The metrics are missing, or older than [`STALE`].
    Unknown,
    /// The metrics show less than half of this gateway's load and are ignored.
    Contradicted,
    /// The metrics show work but do not change, and are ignored.
    Still,
}

impl PageStanding {
    /// Returns the use as text for the terminal.
    pub fn words(self) -> &'static str {
        match self {
            PageStanding::Believed => "believed",
            PageStanding::Unknown => "unknown",
            PageStanding::Contradicted => "too little load",
            PageStanding::Still => "unchanged",
        }
    }
}

/// The latest scrape of a replica.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct PageView {
    pub standing: PageStanding,
    /// Scraped load; `None` before the first scrape.
    pub said: Option<ReportedLoad>,
    pub age: Option<Span>,
    /// Estimated requests of other clients on the replica.
    pub others: u32,
}

#[derive(Copy, Clone, PartialEq, Debug, Default)]
struct ExternalLoad {
    waiting: f64,
    decoding: f64,
}

impl ExternalLoad {
    fn all(self) -> f64 {
        self.waiting + self.decoding
    }

    fn add(&mut self, other: ExternalLoad) {
        self.waiting += other.waiting;
        self.decoding += other.decoding;
    }

    /// Returns a point on the way to another value.
    fn towards(self, to: ExternalLoad, share: f64) -> ExternalLoad {
        self.fading(to, (share, share))
    }

    fn fading(self, to: ExternalLoad, (waiting, decoding): (f64, f64)) -> ExternalLoad {
        ExternalLoad {
            waiting: self.waiting + waiting * (to.waiting - self.waiting),
            decoding: self.decoding + decoding * (to.decoding - self.decoding),
        }
    }

    fn load(self, (tokens, uncached): (f64, f64)) -> ReplicaLoad {
        let (requests, waiting) = (self.all().round(), self.waiting.round());
        ReplicaLoad {
            requests: requests as u32,
            tokens: (self.all() * tokens).round() as u64,
            backlog: (self.waiting * uncached).round() as u64,
            decoding: (requests - waiting).max(0.0) as u32,
        }
    }
}

/// Returns the share of a deviation that is beyond chance. `chance` is the squared deviation that chance explains.
fn beyond_chance(deviation: f64, chance: f64) -> f64 {
    let square = deviation * deviation;
    if square > chance { 1.0 - chance / square } else { 0.0 }
}

/// The common properties of all replicas with usable metrics.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Pool {
    /// Load of others on the average replica.
    mean: ExternalLoad,
    /// Share of this gateway in the requests.
    share: f64,
    /// Mean waiting and decoding time of a request in s.
    stays: (f64, f64),
}

/// The scraping state of a replica.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
struct Page {
    /// Own load at the start of the scrape; `None` if no scrape is in progress.
    asked: Option<ReplicaLoad>,
    said: Option<(ReportedLoad, At)>,
    /// Time of the last change of the metrics.
    moved: At,
    found: ExternalLoad,
    /// Recent means of the load of others and of the own requests.
    mean: ExternalLoad,
    own: f64,
    contradicted: bool,
    still: bool,
    /// Latest estimate of the load of others.
    others: Option<ReplicaLoad>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Telemetry {
    pages: Vec<Page>,
    /// Common properties of the replicas with usable metrics, and the load of the average one; `None` without usable
    /// metrics.
    pool: Option<Pool>,
    mean: Option<ReplicaLoad>,
    /// Time of the last update of the estimates; `None` requests an update.
    at: Option<At>,
    is_heard: bool,
    uncached: f64,
    tokens: f64,
    waits_s: f64,
    decodes_s: f64,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            pages: Vec::new(),
            pool: None,
            mean: None,
            at: None,
            is_heard: false,
            uncached: TOKENS,
            tokens: TOKENS,
            waits_s: WAITS_S,
            decodes_s: DECODES_S,
        }
    }
}

impl Telemetry {
    /// Records the start of a scrape. `own` is the load of this gateway on the replica.
    pub fn ask(&mut self, replica: u32, own: ReplicaLoad) {
        self.page(replica).asked = Some(own);
    }

    /// Records a scrape whose data is from `at`. `own` is the load of this gateway at its arrival.
    pub fn told(&mut self, replica: u32, said: ReportedLoad, own: ReplicaLoad, at: At) {
        let sound = |value: Option<f64>| value.is_none_or(|value| (0.0..=MOST).contains(&value));
        if !sound(said.running) || !sound(said.waiting) || said.running.or(said.waiting).is_none() {
            return;
        }
        let page = self.page(replica);
        // The replica's process may have been replaced since the start of the scrape.
        let Some(asked) = page.asked.take() else { return };
        page.check(said, (asked, own), at);
        let found = found(said, (asked, own));
        let first = page.said.is_none();
        let fresh = if first { 1.0 } else { FRESH };
        page.mean = page.mean.towards(found, fresh);
        page.own += fresh * (f64::from(own.requests) - page.own);
        page.found = found;
        page.said = Some((said, at));
        self.is_heard = true;
        match self.pool {
            Some(pool) => self.estimate(replica as usize, &pool, at),
            None => self.at = None,
        }
    }

    /// Discards the metrics of a replica, because its process was replaced or it is no longer scraped.
    pub fn forget(&mut self, replica: u32) {
        *self.page(replica) = Page::default();
        self.at = None;
        self.is_heard = self.pages.iter().any(|page| page.said.is_some());
        if !self.is_heard {
            (self.pool, self.mean) = (None, None);
        }
    }

    /// Records a sent request with this much work.
    pub fn sent(&mut self, own: ReplicaLoad) {
        self.uncached += FRESH_REQUEST * (own.backlog as f64 - self.uncached);
        self.tokens += FRESH_REQUEST * (own.tokens as f64 - self.tokens);
    }

    /// Records the time to first token and the decode time of a completed request.
    pub fn ended(&mut self, booking: &Booking, now: At) {
        let Some((first, _)) = booking.first else { return };
        let (waited, decoded) = ((first - booking.sent).as_secs_f64(), (now - first).as_secs_f64());
        self.waits_s += FRESH_REQUEST * (waited - self.waits_s);
        self.decodes_s += FRESH_REQUEST * (decoded - self.decodes_s);
    }

    /// Updates the estimates if they are too old. Call this before [`others`](Telemetry::others), once for any number
    /// of replicas.
    pub fn bring(&mut self, now: At) {
        if self.is_heard && self.at.is_none_or(|at| now - at >= OFTEN) {
            self.bring_now(now);
        }
    }

    /// Updates the estimates in any case. Call this outside of decisions, which then need no update.
    pub(crate) fn bring_now(&mut self, now: At) {
        (self.at, self.pool) = (Some(now), self.pool(now));
        self.mean = self.pool.map(|pool| pool.mean.load(self.of_each()));
        for place in 0..self.pages.len() {
            match self.pool {
                Some(pool) => self.estimate(place, &pool, now),
                None => self.pages[place].others = None,
            }
        }
    }

    fn estimate(&mut self, place: usize, pool: &Pool, now: At) {
        let of_each = self.of_each();
        let page = &mut self.pages[place];
        page.others = page.estimate(pool, now).map(|others| others.load(of_each));
    }

    /// Returns the mean tokens of a request and of the uncached part of its prompt.
    fn of_each(&self) -> (f64, f64) {
        (self.tokens.max(0.0), self.uncached.max(0.0))
    }

    fn pool(&self, now: At) -> Option<Pool> {
        let (mut sum, mut own, mut count) = (ExternalLoad::default(), 0.0, 0.0);
        for page in self.pages.iter().filter(|page| page.standing(now) == PageStanding::Believed) {
            sum.add(page.mean);
            own += page.own;
            count += 1.0;
        }
        let all = own + sum.all();
        (count > 0.0).then(|| Pool {
            mean: ExternalLoad { waiting: sum.waiting / count, decoding: sum.decoding / count },
            share: if all > 0.0 { own / all } else { 1.0 },
            stays: (self.waits_s.max(LEAST_STAY_S), self.decodes_s.max(LEAST_STAY_S)),
        })
    }

    /// Returns the estimated load of others on a replica, or `None` without any usable metrics.
    pub fn others(&self, replica: u32) -> Option<ReplicaLoad> {
        self.mean.map(|mean| self.pages.get(replica as usize).and_then(|page| page.others).unwrap_or(mean))
    }

    /// Returns the latest scrape of a replica, for display.
    pub fn view(&self, replica: u32, now: At) -> PageView {
        let page = self.pages.get(replica as usize).copied().unwrap_or_default();
        PageView {
            standing: page.standing(now),
            said: page.said.map(|(said, _)| said),
            age: page.said.map(|(_, at)| now - at),
            others: self.others(replica).map_or(0, |others| others.requests),
        }
    }

    fn page(&mut self, replica: u32) -> &mut Page {
        let place = replica as usize;
        if self.pages.len() <= place {
            self.pages.resize(place + 1, Page::default());
        }
        &mut self.pages[place]
    }
}

impl Page {
    /// Checks the metrics for impossible values.
    fn check(&mut self, said: ReportedLoad, (asked, own): (ReplicaLoad, ReplicaLoad), at: At) {
        if self.said.is_none_or(|(before, _)| before != said) {
            self.moved = at;
        }
        let all = said.running.unwrap_or(0.0) + said.waiting.unwrap_or(0.0);
        self.still = all > 0.0 && at - self.moved >= STILL;
        // Streams that decode at the start and at the end of the scrape must appear in the metrics.
        let sure = asked.decoding.min(own.decoding);
        if said.running.is_some() && sure >= TELLING {
            self.contradicted = all < 0.5 * f64::from(sure);
        }
    }

    fn standing(&self, now: At) -> PageStanding {
        match self.said {
            Some((_, at)) if now - at <= STALE => match (self.contradicted, self.still) {
                (true, _) => PageStanding::Contradicted,
                (_, true) => PageStanding::Still,
                _ => PageStanding::Believed,
            },
            _ => PageStanding::Unknown,
        }
    }

    /// Returns the current load of others, or `None` if it is unknown.
    fn estimate(&self, pool: &Pool, now: At) -> Option<ExternalLoad> {
        if self.standing(now) != PageStanding::Believed {
            return None;
        }
        let age = self.said.map(|(_, at)| (now - at).as_secs_f64().max(0.0))?;
        let expected = pool.mean.all().max(1.0);
        let own = beyond_chance(self.mean.all() - pool.mean.all(), CHANCE_OF_MEAN * expected);
        let mean = pool.mean.towards(self.mean, own);
        let news = pool.share * beyond_chance(self.found.all() - mean.all(), CHANCE * expected);
        let left = |stays: f64| news * (-age / stays).exp();
        Some(mean.fading(self.found, (left(pool.stays.0), left(pool.stays.1))))
    }
}

/// Returns the scraped load of others. Of the own loads before and after the scrape, the larger one is subtracted.
/// Own requests that came or went in between must not count as load of others.
fn found(said: ReportedLoad, (asked, own): (ReplicaLoad, ReplicaLoad)) -> ExternalLoad {
    let ahead = |load: ReplicaLoad| load.requests.saturating_sub(load.decoding);
    let waiting = said.waiting.unwrap_or(0.0) - f64::from(ahead(asked).max(ahead(own)));
    let Some(running) = said.running else {
        return ExternalLoad { waiting: waiting.max(0.0), decoding: 0.0 };
    };
    let all = running + said.waiting.unwrap_or(0.0) - f64::from(asked.requests.max(own.requests));
    let all = all.max(0.0);
    let waiting = waiting.clamp(0.0, all);
    ExternalLoad { waiting, decoding: all - waiting }
}
