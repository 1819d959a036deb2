//! The series of one target, and its scrapes that are not whole yet.
//!
//! A Prometheus sends in several queues, each in order and none at the pace of another, so that of one scrape some series are here and others are not. What is told in halves
//! counts wrongly: a bucket without the one above it is a request over every edge. So a scrape is told when each known series has said something of it: a value, or that it
//! has ended. Two kinds can't be waited for in this way, and of these it is the histogram that is held back, as it was when it was whole:
//!
//! * **one with a new series**, because others of it may be in a queue from which nothing has come: until all queues have had the time to send;
//! * **one of which a series is silent**, because a Prometheus that was restarted ends nothing and a queue may be far behind: until all of it has been heard.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use plimsoll_model::{At, Span};
use plimsoll_wire::exposition::ExposedValue;

/// A queue of Prometheus may hold what it has for so long while another one sends: twice `batch_send_deadline`, which is 5 s unless it is told otherwise.
pub(super) const WAITS: Span = Span::from_secs(10);
/// A scrape waits for its series until so many newer ones have been on their way for so long.
const NEWER: usize = 2;
/// A series that is silent for so long has ended, as Prometheus itself has it.
const ENDED_AFTER: Span = Span::from_secs(300);

/// A name and what is left of its labels.
pub(super) type SeriesKey = (String, Vec<(String, String)>);

/// One target.
pub(super) struct WrittenTarget {
    pub name: String,
    pub job: String,
    /// Which of the servers that scrape it is listened to, and when it was heard last.
    pub sender: Vec<String>,
    pub heard: At,
    pub series: HashMap<Arc<SeriesKey>, HeldSeries>,
    pending: BTreeMap<i64, Pending>,
    /// Values of them.
    pub waiting: usize,
    /// Scrapes up to here have been told.
    told: i64,
    /// Has it been whole? Before, there is nothing that could be counted from: what of a page that is known comes later counts from zero.
    pub has_begun: bool,
    /// Does its sender send `up`? A rule of relabelling may leave it out.
    says_up: bool,
}

/// A series of a target.
pub(super) struct HeldSeries {
    /// As it is told; none before its first, and once it has ended.
    value: Option<f64>,
    next: Next,
    newest: i64,
    /// When it came first, ns since the unix epoch.
    since: i64,
    /// Nothing came of it for the scrape that was told last.
    is_silent: bool,
}

/// What becomes of a series' value.
enum Next {
    Same,
    Value(f64),
    /// It is to end with the others of its histogram.
    Ended,
    /// It has ended.
    Gone,
}

/// A scrape that is not whole yet.
struct Pending {
    /// When its first sample came.
    since: At,
    values: Vec<(Arc<SeriesKey>, Option<f64>)>,
    up: Option<Up>,
}

/// What `up` says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Up {
    Yes,
    No,
    /// The target is none any more.
    Gone,
}

impl WrittenTarget {
    pub fn new(name: String, job: String, sender: Vec<String>, heard: At) -> WrittenTarget {
        WrittenTarget {
            name,
            job,
            sender,
            heard,
            series: HashMap::new(),
            pending: BTreeMap::new(),
            waiting: 0,
            told: i64::MIN,
            has_begun: false,
            says_up: false,
        }
    }

    /// Listens to this one of the servers that scrape it from now on.
    pub fn listen_to(&mut self, sender: Vec<String>) {
        self.sender = sender;
        self.pending.clear();
        self.waiting = 0;
    }

    /// Takes samples of `up`. How many were too late.
    pub fn take_up(&mut self, samples: &[(i64, Option<f64>)], now: At) -> u64 {
        self.says_up = true;
        let mut late = 0;
        for &(at, value) in samples {
            if at <= self.told || self.pending.get(&at).is_some_and(|scrape| scrape.up.is_some()) {
                late += 1;
                continue;
            }
            self.pending.entry(at).or_insert_with(|| Pending::since(now)).up = Some(match value {
                None => Up::Gone,
                Some(value) if value > 0.0 => Up::Yes,
                Some(_) => Up::No,
            });
        }
        late
    }

    /// Takes a series' samples. How many came twice or too late: a later one says what they would have.
    pub fn take(&mut self, key: SeriesKey, samples: &[(i64, Option<f64>)], (now, unix): (At, i64)) -> u64 {
        let known = self.series.get_key_value(&key);
        let is_new = known.is_none() && samples.iter().any(|sample| sample.1.is_some());
        if known.is_none() && !is_new {
            return samples.len() as u64;
        }
        let mut newest = known.map_or(i64::MIN, |(_, held)| held.newest);
        let key = known.map_or_else(|| Arc::new(key), |(key, _)| Arc::clone(key));
        let mut late = 0;
        for &(at, value) in samples {
            if at <= newest || at <= self.told {
                late += 1;
            } else {
                let scrape = self.pending.entry(at).or_insert_with(|| Pending::since(now));
                scrape.values.push((Arc::clone(&key), value));
                self.waiting += 1;
            }
            newest = newest.max(at);
        }
        let new = HeldSeries { value: None, next: Next::Same, newest, since: unix, is_silent: false };
        let held = self.series.entry(key).or_insert(new);
        // Also what comes too late says that more is on its way, for which the next scrape waits.
        held.is_silent &= newest <= held.newest;
        held.newest = newest;
        late
    }

    /// The scrapes that can be told now, the oldest first. `long_ago`: what newer ones have been on their way since then, is waited for no longer.
    pub fn whole(&self, long_ago: At) -> Vec<i64> {
        let newest = || self.series.values().filter(|held| !held.is_silent).map(|held| held.newest);
        let since: Vec<At> = self.pending.values().map(|scrape| scrape.since).collect();
        let mut heard = newest().min().unwrap_or(i64::MAX);
        let is_whole = |(place, (at, scrape)): &(usize, (&i64, &Pending))| {
            let all = match scrape.up {
                Some(Up::No) => true,
                Some(_) => heard >= **at,
                None => heard >= **at && !self.says_up,
            };
            let waited = since.get(place + NEWER).is_some_and(|since| *since <= long_ago);
            if waited && !all {
                // Who has not said anything of this one is not waited for at the next.
                heard = newest().filter(|newest| newest >= *at).min().unwrap_or(i64::MAX);
            }
            waited || all
        };
        self.pending.iter().enumerate().take_while(is_whole).map(|(_, (at, _))| *at).collect()
    }

    /// Its series are from now on as that scrape says.
    pub fn apply(&mut self, at: i64) -> Option<Up> {
        let scrape = self.pending.remove(&at);
        let (values, up) = scrape.map_or_else(Default::default, |scrape| (scrape.values, scrape.up));
        self.waiting -= values.len();
        if up == Some(Up::No) {
            self.failed(at);
        } else {
            self.settle(at, values);
        }
        self.series.retain(|_, held| {
            let has_ended = matches!(held.next, Next::Gone) && held.newest <= at;
            !has_ended && held.newest >= at.saturating_sub(ENDED_AFTER.0)
        });
        self.told = at;
        up
    }

    /// A scrape that failed ends all series, and says nothing of those that will be there at the next: each of them is so again once it is heard.
    fn failed(&mut self, at: i64) {
        for held in self.series.values_mut() {
            held.is_silent = held.newest <= at;
            held.newest = held.newest.max(at);
        }
    }

    fn settle(&mut self, at: i64, values: Vec<(Arc<SeriesKey>, Option<f64>)>) {
        for (key, value) in values {
            if let Some(held) = self.series.get_mut(&key) {
                held.next = value.map_or(Next::Ended, Next::Value);
            }
        }
        self.series.values_mut().for_each(|held| held.is_silent = held.newest < at);
        let is_half = |held: &HeldSeries| held.is_silent || at - WAITS.0 < held.since;
        let halves = self.series.iter().filter(|(_, held)| is_half(held));
        let halves: HashSet<SeriesKey> = halves.map(|(key, _)| family(key)).collect();
        for (key, held) in &mut self.series {
            if halves.is_empty() || !halves.contains(&family(key)) {
                held.settle();
            }
        }
        let first = self.series.values().map(|held| held.since).min().unwrap_or(i64::MAX - 2 * WAITS.0);
        self.has_begun |= halves.is_empty() || at - 2 * WAITS.0 > first;
    }

    /// Everything that it says now.
    pub fn rows(&self) -> Vec<ExposedValue> {
        let row = |(key, held): (&Arc<SeriesKey>, &HeldSeries)| {
            let (name, labels) = &**key;
            Some(ExposedValue { name: name.clone(), labels: labels.clone(), value: held.value? })
        };
        self.series.iter().filter_map(row).collect()
    }
}

impl Pending {
    fn since(since: At) -> Pending {
        Pending { since, values: Vec::new(), up: None }
    }
}

impl HeldSeries {
    fn settle(&mut self) {
        self.next = match std::mem::replace(&mut self.next, Next::Same) {
            Next::Value(value) => {
                self.value = Some(value);
                Next::Same
            }
            Next::Ended | Next::Gone => {
                self.value = None;
                Next::Gone
            }
            Next::Same => Next::Same,
        };
    }
}

/// What series of one histogram have in common; of any other series itself.
fn family((name, labels): &SeriesKey) -> SeriesKey {
    let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let labels = labels.iter().filter(|(label, _)| label != "le").cloned();
    (stem.to_owned(), labels.collect())
}
