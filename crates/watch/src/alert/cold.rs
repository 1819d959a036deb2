//! "Replicas start more often than before the deploy": starts are read from metrics endpoints, and each deploy is
//! compared with the time before it.
//!
//! A *start* is a changed process: a later start time, or, without start times, a counter that fell. A new replica
//! whose process began after this watch is a start too. The first requests after a start show whether it was a cold
//! one: their wait for a token is compared with that of warm requests.
//!
//! A *deploy* is a new version (`version`, `revision` or `image` of an `…_info` series). It is also the restart or
//! replacement of more than half of the replicas within a quarter of an hour. Additional replicas belong to an
//! autoscaler. One start per existing replica is the deploy's own. Further starts are compared with the time before
//! it. At an unchanged rate per hour and replica, the expected share of k₂ in k₁ + k₂ starts is t₂/(t₁ + t₂)
//! (Przyborowski and Wilenski 1940). The test runs at each start, the j-th time at 6/(π²j²) of the accepted error, so
//! that all tests together keep to it.
//!
//! A threshold on a rate was rejected. Two starts an hour are many for a fleet that never starts, and none for one
//! that scales every minute.

use std::collections::{HashMap, HashSet, VecDeque};

use plimsoll_math::proportion::binomial_cdf;
use plimsoll_measure::say::{count, length, ms, number};
use plimsoll_model::{At, Span};

/// Maximum duration of the starts of one deploy.
const TOGETHER: Span = Span::from_secs(15 * 60);
/// Time after a deploy in which only a new version is another deploy, because replicas may crash repeatedly.
const AGAIN: Span = Span::from_secs(3600);
/// Time after which starts no longer count as "after the deploy" but as before the next one.
const AFTER: Span = Span::from_secs(86_400);
/// Minimum age of a deploy for a test.
const LEAST: Span = Span::from_secs(60);
/// Time without starts after which the alert resolves; the back-off of an orchestrator ends at five minutes.
const QUIET: Span = Span::from_secs(30 * 60);
/// Error probability of reporting a deploy without more frequent starts.
const ERROR: f64 = 1e-3;
/// Maximum duration of one start, because the counters of a process reset in sequence.
const ONE: Span = Span::from_secs(30);
/// Time after which an unseen replica is forgotten, because pod names never return.
const FORGOTTEN: Span = Span::from_secs(3600);
/// Limit of counter resets; more of them, and in more than every tenth scrape, mean several processes behind one
/// address.
const MOST_FALLS: u64 = 3;
/// Time range of warm requests.
const WARM: Span = Span::from_secs(600);

/// The state of a replica at a tick.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ReplicaPresence {
    pub name: String,
    /// Start time of its process, Unix time in s; `None` if unknown.
    pub began_s: Option<f64>,
    /// Set if a counter fell since the tick before.
    pub fell: bool,
    /// Number of completed requests since its start; `None` if unknown.
    pub answered: Option<f64>,
    /// Times to first token since its start: sum in s, and number; `None` if unknown.
    pub first: Option<(f64, f64)>,
    /// Times to first token since the tick before: sum in s, and number; `None` if unknown.
    pub came: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
struct KnownReplica {
    began_s: Option<f64>,
    seen: At,
    looks: u64,
    falls: u64,
    started: Option<At>,
    /// Set until the first requests after a start were seen.
    is_cold: bool,
}

#[derive(Clone, Debug)]
struct Start {
    at: At,
    name: String,
    is_new: bool,
    /// Watched replica seconds until then.
    watched_s: f64,
}

/// Starts and the time in which they happened.
#[derive(Copy, Clone, Default, Debug)]
struct StartCount {
    starts: u64,
    watched_s: f64,
}

#[derive(Clone, Debug)]
struct Deploy {
    at: At,
    says: String,
    /// Replicas that have had their deploy start, and the maximum number of such starts.
    own: HashSet<String>,
    most: usize,
    since: StartCount,
    tests: u64,
    /// First requests after the starts: sum of their times to first token in s, number of requests, number of starts.
    first: (f64, f64, u64),
}

#[derive(Clone, Default, Debug)]
pub struct ColdStarts {
    replicas: HashMap<String, KnownReplica>,
    /// Number of replicas at the tick before.
    count: usize,
    begun: Option<At>,
    /// Unix time of the start of the watch in s; `None` if unknown.
    wall_s: Option<f64>,
    before: StartCount,
    deploy: Option<Deploy>,
    recent: VecDeque<Start>,
    gone: VecDeque<At>,
    last: Option<At>,
    /// Version of each endpoint, and whether one of them was new.
    versions: HashMap<String, String>,
    is_new_version: Option<String>,
    warm: VecDeque<(At, f64, f64)>,
}

impl ColdStarts {
    /// Sets the start of the watch on the wall clock, which shows whether a new replica began since.
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

    /// Removes an endpoint that no longer exists.
    pub fn left(&mut self, page: &str) {
        self.versions.remove(page);
    }

    /// Returns whether no replica has started for long enough to resolve the alert.
    pub(crate) fn is_quiet(&self, now: At) -> bool {
        self.last.max(self.begun).is_none_or(|last| now - last >= QUIET)
    }

    /// Processes a tick that comes `took` after the one before. Returns the start and the description of more
    /// frequent starts at the tick that proves them.
    pub fn step(&mut self, now: At, took: Span, seen: &[ReplicaPresence]) -> Option<(At, String)> {
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

    /// Returns whether the process of this replica changed.
    fn started(&mut self, replica: &ReplicaPresence, now: At) -> Option<Start> {
        let start = |is_new| {
            let counted = self.deploy.as_ref().map_or(self.before, |deploy| deploy.since);
            Start { at: now, name: replica.name.clone(), is_new, watched_s: counted.watched_s }
        };
        let Some(known) = self.replicas.get(&replica.name) else {
            // Without a start time, a replica that completed requests before it was first seen may be old.
            let is_young = match (replica.began_s, self.wall_s) {
                (Some(began), Some(wall)) => began >= wall,
                _ => replica.answered == Some(0.0),
            };
            let found = (self.begun.is_some() && is_young).then(|| start(true));
            let known = KnownReplica {
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

    /// Detects a deploy. `most` is the number of replicas before.
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
            .map(|first| (first, format!("{replaced} of {most} replicas restarted")));
        let Some((at, says)) = version.or(restarted) else { return };
        let mut deploy = Deploy {
            at,
            says,
            own: HashSet::new(),
            most,
            since: StartCount::default(),
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

    /// Records the times to first token of first requests after a start, and of warm requests.
    fn first_requests(&mut self, now: At, seen: &[ReplicaPresence]) {
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
        let StartCount { starts, watched_s } = deploy.since;
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

    /// Returns `5 starts of replicas in 20 min in addition to those of the deploy (4 of 4 replicas restarted), before 1 in
    /// 6.2 h; …`, if it is proven.
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
            false => "the metrics do not show the wait of first requests".to_owned(),
        };
        Some(format!(
            "since the deploy ({}) {} more in {}, in addition to its own; before {} in {} of as many replicas; {cold}",
            deploy.says,
            count(deploy.since.starts, "start"),
            length((now - deploy.at).as_secs_f64()),
            self.before.starts,
            length(self.before.watched_s / deploy.most.max(1) as f64)
        ))
    }
}

impl StartCount {
    fn with(self, other: StartCount) -> StartCount {
        StartCount { starts: self.starts + other.starts, watched_s: self.watched_s + other.watched_s }
    }
}

impl Deploy {
    /// Counts a start: the deploy's own or an additional one.
    fn count(&mut self, name: &str) {
        let is_own = self.own.len() < self.most && self.own.insert(name.to_owned());
        self.since.starts += u64::from(!is_own);
    }
}
