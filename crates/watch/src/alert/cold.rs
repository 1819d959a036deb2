//! "Replicas start more often than before the deploy": starts are read off pages, and each deploy sets a measure of its own.
//!
//! A *start* is a process that is another than before: its start time is later, or, where a page tells none, a counter fell; or a replica that was not there
//! before and began after this watch did. Whether a start is a cold one the first requests after it say: what they waited for a token, beside warm ones.
//!
//! A *deploy* is a version that no page had (`version`, `revision` or `image` of an `…_info` series), or more than half of the replicas that began anew, or were
//! replaced by others, within a quarter of an hour. Replicas that only come are an autoscaler's. Its own starts, one for each replica that there was, are what a deploy is. More are
//! held against the starts of the time before it: if they come as often per hour and replica as they did, k₂ of k₁ + k₂ starts fall into the time since with the
//! share of the time t₂/(t₁ + t₂) (Przyborowski and Wilenski 1940). It is tested at each start, the j-th time at 6/(π²j²) of the accepted error, so that all looks together
//! keep to it. A threshold on a rate lost: of a fleet that never starts two in an hour are many, of one that scales every minute they are none.

use std::collections::{HashMap, HashSet, VecDeque};

use plimsoll_math::proportion::binomial_cdf;
use plimsoll_measure::say::{count, length, ms, number};
use plimsoll_model::{At, Span};

/// Starts within so long are one deploy's.
const TOGETHER: Span = Span::from_secs(15 * 60);
/// So long after a deploy another one is told by its version alone: replicas that crash all over again are none.
const AGAIN: Span = Span::from_secs(3600);
/// What comes later is no longer "after the deploy", and belongs to the time before the next one.
const AFTER: Span = Span::from_secs(86_400);
/// A deploy that is younger is not judged.
const LEAST: Span = Span::from_secs(60);
/// It is over when nothing has started for so long: an orchestrator's back-off ends at five minutes.
const QUIET: Span = Span::from_secs(30 * 60);
/// Chance that a deploy after which starts are no more frequent is called so.
const ERROR: f64 = 1e-3;
/// A process counts from zero for a while, series after series: one start within so long.
const ONE: Span = Span::from_secs(30);
/// A replica that is not seen for so long is forgotten: names of pods never come again.
const FORGOTTEN: Span = Span::from_secs(3600);
/// Counters that fall more often than this and at more than every tenth look are several processes behind one address.
const MOST_FALLS: u64 = 3;
/// Warm first tokens are those of the last so long.
const WARM: Span = Span::from_secs(600);

/// What a page tells of a replica at a tick.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ReplicaSeen {
    pub name: String,
    /// When its process began, Unix time in s; `None` = its page does not say.
    pub began_s: Option<f64>,
    /// Did a counter fall since the tick before?
    pub fell: bool,
    /// Requests that it has answered since it began; `None` = nobody counts them.
    pub answered: Option<f64>,
    /// First tokens since it began: their sum, s, and how many.
    pub first: Option<(f64, f64)>,
    /// The same since the tick before.
    pub came: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
struct Known {
    began_s: Option<f64>,
    seen: At,
    looks: u64,
    falls: u64,
    started: Option<At>,
    /// Its first requests since it started have not been seen.
    is_cold: bool,
}

#[derive(Clone, Debug)]
struct Start {
    at: At,
    name: String,
    is_new: bool,
    /// Replica seconds that were watched until then.
    watched_s: f64,
}

/// Starts and the time in which they came.
#[derive(Copy, Clone, Default, Debug)]
struct Counted {
    starts: u64,
    watched_s: f64,
}

#[derive(Clone, Debug)]
struct Deploy {
    at: At,
    says: String,
    /// Replicas that have had their own start in it, and how many may.
    own: HashSet<String>,
    most: usize,
    since: Counted,
    tests: u64,
    /// First requests after its starts: sum of their first tokens, s, how many, after how many starts.
    first: (f64, f64, u64),
}

#[derive(Clone, Default, Debug)]
pub struct ColdStarts {
    replicas: HashMap<String, Known>,
    /// Replicas at the tick before.
    count: usize,
    begun: Option<At>,
    /// Unix time of the watch's beginning, s.
    wall_s: Option<f64>,
    before: Counted,
    deploy: Option<Deploy>,
    recent: VecDeque<Start>,
    gone: VecDeque<At>,
    last: Option<At>,
    /// What versions say of each page, and whether one of them was new.
    versions: HashMap<String, String>,
    is_new_version: Option<String>,
    warm: VecDeque<(At, f64, f64)>,
}

impl ColdStarts {
    /// Where the watch's beginning lies on the wall clock: of a replica that comes later it says whether it began since.
    pub fn began(&mut self, unix_s: f64) {
        self.wall_s = Some(unix_s);
    }

    pub fn version(&mut self, page: &str, version: String) {
        let is_known = self.versions.values().any(|known| *known == version);
        if !is_known && self.begun.is_some() {
            self.is_new_version = Some(version.clone());
        }
        self.versions.insert(page.to_owned(), version);
    }

    /// A page is nobody's any more.
    pub fn left(&mut self, page: &str) {
        self.versions.remove(page);
    }

    /// Has nothing started for so long that it is over?
    pub(crate) fn is_quiet(&self, now: At) -> bool {
        self.last.max(self.begun).is_none_or(|last| now - last >= QUIET)
    }

    /// What is seen at a tick, and how long it is after the one before. Says since when replicas start more often, and how often, at the tick at which that is proven.
    pub fn step(&mut self, now: At, took: Span, seen: &[ReplicaSeen]) -> Option<(At, String)> {
        if seen.is_empty() {
            return None;
        }
        let most = self.count.max(seen.len());
        self.count = seen.len();
        let watched_s = seen.len() as f64 * took.as_secs_f64();
        let counted = self.deploy.as_mut().map_or(&mut self.before, |deploy| &mut deploy.since);
        counted.watched_s += watched_s;
        let starts: Vec<Start> = seen.iter().filter_map(|replica| self.started(replica, now)).collect();
        self.forget(now);
        self.begun.get_or_insert(now);
        let has_started = !starts.is_empty();
        starts.into_iter().for_each(|start| self.count(start));
        self.deploys(now, most);
        self.first_requests(now, seen);
        if has_started { self.test(now) } else { None }
    }

    /// Is this replica's process another than before?
    fn started(&mut self, replica: &ReplicaSeen, now: At) -> Option<Start> {
        let start = |is_new| {
            let counted = self.deploy.as_ref().map_or(self.before, |deploy| deploy.since);
            Start { at: now, name: replica.name.clone(), is_new, watched_s: counted.watched_s }
        };
        let Some(known) = self.replicas.get(&replica.name) else {
            // Without a start time one that has answered before it was seen may have been there for long.
            let is_young = match (replica.began_s, self.wall_s) {
                (Some(began), Some(wall)) => began >= wall,
                _ => replica.answered == Some(0.0),
            };
            let found = (self.begun.is_some() && is_young).then(|| start(true));
            let known = Known {
                began_s: replica.began_s,
                seen: now,
                looks: 1,
                falls: 0,
                started: found.as_ref().map(|_| now),
                is_cold: found.is_some(),
            };
            self.replicas.insert(replica.name.clone(), known);
            return found;
        };
        let is_other = match (known.began_s, replica.began_s) {
            // A start time that goes back is another process behind the same address.
            (Some(before), Some(began)) => (began - before).abs() > 1.0,
            _ => replica.fell,
        };
        let is_back = known.began_s.zip(replica.began_s).is_some_and(|(before, began)| began < before - 1.0);
        let falls = known.falls + u64::from(is_other);
        let alternates = is_back || (falls > MOST_FALLS && falls * 10 > known.looks);
        let is_one = known.started.is_some_and(|started| now - started < ONE);
        let found = (is_other && !alternates && !is_one).then(|| start(false));
        let known = self.replicas.get_mut(&replica.name)?;
        known.falls = if is_back { known.falls + MOST_FALLS } else { falls };
        known.looks += 1;
        known.seen = now;
        known.began_s = replica.began_s.or(known.began_s);
        if found.is_some() {
            (known.started, known.is_cold) = (Some(now), true);
        }
        found
    }

    /// Lets go of what is long past.
    fn forget(&mut self, now: At) {
        let gone = self.replicas.values().filter(|known| known.seen < now).map(|known| known.seen);
        self.gone = gone.filter(|seen| *seen >= now - TOGETHER).collect();
        self.replicas.retain(|_, known| known.seen >= now - FORGOTTEN);
        while self.recent.front().is_some_and(|start| start.at < now - TOGETHER) {
            self.recent.pop_front();
        }
        if let Some(deploy) = self.deploy.take_if(|deploy| now - deploy.at >= AFTER) {
            self.before = self.before.with(deploy.since);
        }
    }

    fn count(&mut self, start: Start) {
        self.last = Some(start.at);
        match &mut self.deploy {
            Some(deploy) => deploy.count(&start.name),
            None => self.before.starts += 1,
        }
        self.recent.push_back(start);
    }

    /// Is this a deploy? `most`: replicas that there were.
    fn deploys(&mut self, now: At, most: usize) {
        let version = self.is_new_version.take().map(|version| (now, format!("a new version ({version})")));
        let is_late = self.deploy.as_ref().is_none_or(|deploy| now - deploy.at >= AGAIN);
        let again: HashSet<&str> =
            self.recent.iter().filter(|s| !s.is_new).map(|s| s.name.as_str()).collect();
        let new = self.recent.iter().filter(|start| start.is_new).count();
        let replaced = again.len() + new.min(self.gone.len());
        let first = self.recent.front().map(|start| start.at);
        let restarted = first
            .filter(|_| is_late && 2 * replaced > most)
            .map(|first| (first, format!("{replaced} of {most} replicas began anew")));
        let Some((at, says)) = version.or(restarted) else { return };
        let mut deploy = Deploy {
            at,
            says,
            own: HashSet::new(),
            most,
            since: Counted::default(),
            tests: 0,
            first: (0.0, 0.0, 0),
        };
        let own: Vec<Start> = self.recent.drain(..).filter(|start| start.at >= at).collect();
        let counted = self.deploy.as_mut().map_or(&mut self.before, |before| &mut before.since);
        if let Some(first) = own.first() {
            deploy.since.watched_s = counted.watched_s - first.watched_s;
            counted.watched_s = first.watched_s;
            counted.starts -= (own.len() as u64).min(counted.starts);
        }
        own.iter().for_each(|start| deploy.count(&start.name));
        if let Some(before) = self.deploy.replace(deploy) {
            self.before = self.before.with(before.since);
        }
    }

    /// What the first requests after a start waited for a token, and what warm ones did.
    fn first_requests(&mut self, now: At, seen: &[ReplicaSeen]) {
        let (mut warm_s, mut warm) = (0.0, 0.0);
        for replica in seen {
            let Some(known) = self.replicas.get_mut(&replica.name) else { continue };
            match (known.is_cold, replica.first, replica.came) {
                (true, Some((sum, n)), _) if n > 0.0 => {
                    known.is_cold = false;
                    if let Some(deploy) = &mut self.deploy {
                        let (sums, ns, starts) = deploy.first;
                        deploy.first = (sums + sum, ns + n, starts + 1);
                    }
                }
                (false, _, Some((sum, n))) => (warm_s, warm) = (warm_s + sum, warm + n),
                _ => {}
            }
        }
        self.warm.push_back((now, warm_s, warm));
        while self.warm.front().is_some_and(|part| part.0 < now - WARM) {
            self.warm.pop_front();
        }
    }

    fn test(&mut self, now: At) -> Option<(At, String)> {
        let before = self.before;
        let deploy =
            self.deploy.as_mut().filter(|deploy| deploy.since.starts > 0 && now - deploy.at >= LEAST)?;
        let Counted { starts, watched_s } = deploy.since;
        deploy.tests += 1;
        let share = watched_s / (watched_s + before.watched_s);
        let chance = 1.0 - binomial_cdf(starts - 1, starts + before.starts, share.clamp(0.0, 1.0));
        let accepted = ERROR * 6.0 / (std::f64::consts::PI * deploy.tests as f64).powi(2);
        if chance >= accepted {
            return None;
        }
        let said = self.evidence(now);
        let deploy = self.deploy.take()?;
        Some((deploy.at, said?))
    }

    /// `5 starts of replicas in 20 min beside those of the deploy (4 of 4 replicas began anew), before 1 in 6.2 h; …`.
    fn evidence(&self, now: At) -> Option<String> {
        let deploy = self.deploy.as_ref()?;
        let (warm_s, warm) = self.warm.iter().fold((0.0, 0.0), |(s, n), part| (s + part.1, n + part.2));
        let (sum, n, starts) = deploy.first;
        let cold = match n > 0.0 {
            true => {
                let before = (warm > 0.0).then(|| format!(", warm ones {}", ms(warm_s / warm)));
                format!(
                    "the first {} requests after {} waited {} for a token{}",
                    number(n),
                    count(starts, "start"),
                    ms(sum / n),
                    before.unwrap_or_default()
                )
            }
            false => "what first requests waited is on no page".to_owned(),
        };
        Some(format!(
            "since the deploy ({}) {} more in {}, beside its own; before {} in {} of as many replicas; {cold}",
            deploy.says,
            count(deploy.since.starts, "start"),
            length((now - deploy.at).as_secs_f64()),
            self.before.starts,
            length(self.before.watched_s / deploy.most.max(1) as f64)
        ))
    }
}

impl Counted {
    fn with(self, other: Counted) -> Counted {
        Counted { starts: self.starts + other.starts, watched_s: self.watched_s + other.watched_s }
    }
}

impl Deploy {
    /// One more start: its own, or one too many.
    fn count(&mut self, name: &str) {
        let is_own = self.own.len() < self.most && self.own.insert(name.to_owned());
        self.since.starts += u64::from(!is_own);
    }
}
