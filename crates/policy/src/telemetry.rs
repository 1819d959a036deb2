//! What replicas say of themselves, and how much of that is work of others: of routers beside this one, and of clients that go past it.
//!
//! The own count stays what it is, because it is exact and of this instant; a page is a second old and counts everybody's work. So the own count as it was while
//! the page was made is taken off what the page says. What is left is others' work, and goes on top of the own count of now: a request that is sent after the page
//! is seen at once, and none is counted twice. Taking the page in the own count's place lost: between two pages all requests go to the replica that looked empty.
//!
//! **What chance explains is left out.** Counts of requests that come independently vary like Poisson's, by the root of their mean, and routers that all follow such a gap
//! fill it all at once: eight routers that took each page at its word had a p99 `ttft` a fifth over that of eight that read none. So a replica's mean of late is taken to
//! be the pool's but for the part of its deviation that is beyond chance (the positive part of James and Stein's estimator), what the last page showed to be that mean in the
//! same way, and of the rest so much as is this router's share of all requests, because the others see it too. It fades within the time that a request stays, as the count of an
//! M/G/∞ queue is correlated with itself.
//!
//! A replica that says nothing, whose page is old or says what can't be, is neither idle nor dead: others are taken to have as much there as on the mean of those
//! that speak. Where none speaks it is what [`unseen`](crate::load::unseen) says. What can't be is a page with less on it than what this router itself has there, and
//! one on which nothing moves while it says that work is under way. A page that shows too much is believed while it moves: it costs a replica's share, not an answer.

use plimsoll_model::{At, Span};
use serde::{Deserialize, Serialize};

use crate::load::{Booking, Load};

/// A page older than this says nothing any more.
pub const STALE: Span = Span::from_secs(10);
/// A page that shows work on which nothing has moved for so long is one that stands still: even an engine that computes one long prompt steps within it.
pub const STILL: Span = Span::from_secs(5);
/// Own requests that a page must show at least half of. One or two may just have ended there.
const TELLING: u32 = 3;
/// What a new page weighs in the mean of a replica: the last ten or so.
const FRESH: f64 = 0.1;
/// Squares of deviations that chance explains, over the count that is expected: of one page, and of a mean of ten whose neighbours are alike. Twice the variance
/// of Poisson's counts, and a quarter of that.
const CHANCE: f64 = 2.0;
const CHANCE_OF_MEAN: f64 = 0.5;
/// What a request weighs in what requests are like.
const FRESH_REQUEST: f64 = 0.02;
/// A decision brings the estimates up to date that are older than this: they fade over a second and more, and looking at each of a thousand replicas takes longer than
/// the decision.
const OFTEN: Span = Span::from_millis(300);
/// A request of others before one of the own was seen, tokens, as [`crate::speed`] takes answers; how long it waits and decodes, seconds.
const TOKENS: f64 = 1_024.0;
const WAITS_S: f64 = 1.0;
const DECODES_S: f64 = 3.0;
/// Work fades no faster than this, seconds: pages come once in that time, and are as much older as they took.
const LEAST_STAY_S: f64 = 1.0;
/// Beyond this a page's count is no count.
const MOST: f64 = 1e6;

/// What a page says of its replica.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Said {
    /// Requests that are computed.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    /// Share of the KV cache that is in use.
    pub kv_usage: Option<f64>,
    /// A sum of counters that grow while anything is computed.
    pub progress: Option<f64>,
}

/// How a replica's page is taken.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageStanding {
    /// It says how much is there.
    Believed,
    /// None has been read, or not for [`STALE`].
    Unknown,
    /// It shows less than half of what this router has there.
    Contradicted,
    /// It shows work, and nothing on it moves.
    Still,
}

impl PageStanding {
    /// On the screen.
    pub fn words(self) -> &'static str {
        match self {
            PageStanding::Believed => "believed",
            PageStanding::Unknown => "unknown",
            PageStanding::Contradicted => "hides what is there",
            PageStanding::Still => "stands still",
        }
    }
}

/// A replica's page as it was read last.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct PageView {
    pub standing: PageStanding,
    /// What it said; `None` = none has been read.
    pub said: Option<Said>,
    pub age: Option<Span>,
    /// Requests that others are taken to have there.
    pub others: u32,
}

#[derive(Copy, Clone, PartialEq, Debug, Default)]
struct Others {
    waiting: f64,
    decoding: f64,
}

impl Others {
    fn all(self) -> f64 {
        self.waiting + self.decoding
    }

    fn add(&mut self, other: Others) {
        self.waiting += other.waiting;
        self.decoding += other.decoding;
    }

    /// A share of the way to another.
    fn towards(self, to: Others, share: f64) -> Others {
        self.fading(to, (share, share))
    }

    fn fading(self, to: Others, (waiting, decoding): (f64, f64)) -> Others {
        Others {
            waiting: self.waiting + waiting * (to.waiting - self.waiting),
            decoding: self.decoding + decoding * (to.decoding - self.decoding),
        }
    }

    fn load(self, (tokens, uncached): (f64, f64)) -> Load {
        let (requests, waiting) = (self.all().round(), self.waiting.round());
        Load {
            requests: requests as u32,
            tokens: (self.all() * tokens).round() as u64,
            backlog: (self.waiting * uncached).round() as u64,
            decoding: (requests - waiting).max(0.0) as u32,
        }
    }
}

/// How much of a deviation is beyond chance, where the squares that chance explains are so large.
fn beyond_chance(deviation: f64, chance: f64) -> f64 {
    let square = deviation * deviation;
    if square > chance { 1.0 - chance / square } else { 0.0 }
}

/// What all replicas whose pages are believed have in common.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Pool {
    /// What others have on the mean one.
    mean: Others,
    /// This router's share of the requests there.
    share: f64,
    /// How long a request waits and decodes, s.
    stays: (f64, f64),
}

/// What is known of a replica's page.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
struct Page {
    /// What this router had there when it was asked for.
    asked: Option<Load>,
    said: Option<(Said, At)>,
    /// When it said something else than before.
    moved: At,
    found: Others,
    /// Means of late: what was found, and requests of the own beside it.
    mean: Others,
    own: f64,
    contradicted: bool,
    still: bool,
    /// Others' load as it was estimated last.
    others: Option<Load>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Telemetry {
    pages: Vec<Page>,
    /// What the replicas that speak have in common, and the load of their mean; `None` = none does.
    pool: Option<Pool>,
    mean: Option<Load>,
    /// When the estimates were brought up to date; `None` = it is time.
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
    /// A replica's page is asked for; `own`: what this router has there.
    pub fn ask(&mut self, replica: u32, own: Load) {
        self.page(replica).asked = Some(own);
    }

    /// It was read: made at `at`, with `own` there when it came.
    pub fn told(&mut self, replica: u32, said: Said, own: Load, at: At) {
        let sound = |value: Option<f64>| value.is_none_or(|value| (0.0..=MOST).contains(&value));
        if !sound(said.running) || !sound(said.waiting) || said.running.or(said.waiting).is_none() {
            return;
        }
        let page = self.page(replica);
        // Another process may have come to be there since it was asked for.
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

    /// Nothing that was said of a replica holds: it is another process now, or nobody asks it any more.
    pub fn forget(&mut self, replica: u32) {
        *self.page(replica) = Page::default();
        self.at = None;
        self.is_heard = self.pages.iter().any(|page| page.said.is_some());
        if !self.is_heard {
            (self.pool, self.mean) = (None, None);
        }
    }

    /// A request was sent, with so much to do.
    pub fn sent(&mut self, own: Load) {
        self.uncached += FRESH_REQUEST * (own.backlog as f64 - self.uncached);
        self.tokens += FRESH_REQUEST * (own.tokens as f64 - self.tokens);
    }

    /// A request was answered whole.
    pub fn ended(&mut self, booking: &Booking, now: At) {
        let Some((first, _)) = booking.first else { return };
        let (waited, decoded) = ((first - booking.sent).as_secs_f64(), (now - first).as_secs_f64());
        self.waits_s += FRESH_REQUEST * (waited - self.waits_s);
        self.decodes_s += FRESH_REQUEST * (decoded - self.decodes_s);
    }

    /// Brings the estimates up to date, if it is time. To be called before [`others`](Telemetry::others), once for any number of replicas.
    pub fn bring(&mut self, now: At) {
        if self.is_heard && self.at.is_none_or(|at| now - at >= OFTEN) {
            self.bring_now(now);
        }
    }

    /// The same in any case, for whoever has time: then no decision need do it.
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

    /// Tokens of a request, and those of its prompt that are to be computed.
    fn of_each(&self) -> (f64, f64) {
        (self.tokens.max(0.0), self.uncached.max(0.0))
    }

    fn pool(&self, now: At) -> Option<Pool> {
        let (mut sum, mut own, mut count) = (Others::default(), 0.0, 0.0);
        for page in self.pages.iter().filter(|page| page.standing(now) == PageStanding::Believed) {
            sum.add(page.mean);
            own += page.own;
            count += 1.0;
        }
        let all = own + sum.all();
        (count > 0.0).then(|| Pool {
            mean: Others { waiting: sum.waiting / count, decoding: sum.decoding / count },
            share: if all > 0.0 { own / all } else { 1.0 },
            stays: (self.waits_s.max(LEAST_STAY_S), self.decodes_s.max(LEAST_STAY_S)),
        })
    }

    /// What others have on a replica, as far as pages say it; `None` = no replica's does.
    pub fn others(&self, replica: u32) -> Option<Load> {
        self.mean.map(|mean| self.pages.get(replica as usize).and_then(|page| page.others).unwrap_or(mean))
    }

    /// A replica's page, as people see it.
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
    /// Can it be so?
    fn check(&mut self, said: Said, (asked, own): (Load, Load), at: At) {
        if self.said.is_none_or(|(before, _)| before != said) {
            self.moved = at;
        }
        let all = said.running.unwrap_or(0.0) + said.waiting.unwrap_or(0.0);
        self.still = all > 0.0 && at - self.moved >= STILL;
        // Streams that had their first token before it was asked for and had not ended when it came are there, whatever it says.
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

    /// What others have there now; `None` = nobody knows.
    fn estimate(&self, pool: &Pool, now: At) -> Option<Others> {
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

/// What of a page is others', where this router had so much there when it was asked for and when it came: the larger counts, because a
/// request of its own that came or went meanwhile must not look like another's.
fn found(said: Said, (asked, own): (Load, Load)) -> Others {
    let ahead = |load: Load| load.requests.saturating_sub(load.decoding);
    let waiting = said.waiting.unwrap_or(0.0) - f64::from(ahead(asked).max(ahead(own)));
    let Some(running) = said.running else {
        return Others { waiting: waiting.max(0.0), decoding: 0.0 };
    };
    let all = running + said.waiting.unwrap_or(0.0) - f64::from(asked.requests.max(own.requests));
    let all = all.max(0.0);
    let waiting = waiting.clamp(0.0, all);
    Others { waiting, decoding: all - waiting }
}
