//! What a Prometheus sends by remote write → pages: its targets, each scrape at its own instant.
//!
//! A scrape comes in pieces: a request holds some series, the next one the others. What is told in halves counts wrongly (a bucket without the one
//! above it), so a scrape is told once every series of its target has been heard of it: as a value, or as ended (the stale marker, which Prometheus
//! writes for each series that a scrape lacks); `target` puts them together.
//!
//! A target is what `job`, `instance` and `cluster` say. Of two Prometheus servers that scrape the same targets (`prometheus_replica`, `__replica__`) one is
//! listened to, and the other from when that one is silent for half a minute: added they would count twice.

mod target;

use std::collections::{HashMap, HashSet};

use plimsoll_model::{At, Span};
use plimsoll_wire::remote_write::WrittenSeries;

use crate::clock::{self, Clock};
use crate::foreign::{ForeignPages, UNSCRAPED};
use crate::pushed::{PushCounts, Skew};
use crate::told::ToRows;
use target::{Up, WAITS, WrittenTarget};

/// Labels that say whose series it is.
const OF_TARGET: [&str; 3] = ["job", "instance", "cluster"];
/// Labels that tell apart servers that scrape the same.
const OF_SENDER: [&str; 2] = ["prometheus_replica", "__replica__"];
/// The other server is listened to after so long.
const SENDER_LOST: Span = Span::from_secs(30);
/// Bounds of what is held: of all targets, and of series of all of them.
const MOST_TARGETS: usize = 10_000;
const MOST_SERIES: usize = 500_000;
/// Values of scrapes that are not whole. Past it none of them waits longer than for the newer ones.
const MOST_WAITING: usize = 4 * MOST_SERIES;
/// A batch of Prometheus waits for more samples for so long (`batch_send_deadline`).
const BATCH: Span = Span::from_secs(5);
/// How often Prometheus scrapes unless it is told otherwise.
const UNTOLD_CADENCE: Span = Span::from_secs(60);

/// Targets of those that write to one address.
pub struct WrittenPages {
    clock: Clock,
    knows: fn(&str) -> bool,
    rows: ToRows,
    pages: ForeignPages,
    targets: HashMap<Vec<String>, WrittenTarget>,
    names: HashSet<String>,
    /// Jobs that have a target with a known series: their other targets are watched too, also those that never answered.
    jobs: HashSet<String>,
    series: usize,
    waiting: usize,
    skew: Skew,
    counts: PushCounts,
}

impl WrittenPages {
    /// Nothing has come yet.
    pub fn new(clock: Clock, knows: fn(&str) -> bool, rows: ToRows) -> WrittenPages {
        WrittenPages {
            clock,
            knows,
            rows,
            pages: ForeignPages::new(knows),
            targets: HashMap::new(),
            names: HashSet::new(),
            jobs: HashSet::new(),
            series: 0,
            waiting: 0,
            skew: Skew::default(),
            counts: PushCounts::default(),
        }
    }

    /// What came so far.
    pub fn counts(&self) -> PushCounts {
        self.counts.clone()
    }

    /// Takes a request's series, and says what whoever watches has to know, each thing once.
    pub fn take(&mut self, series: Vec<WrittenSeries>) -> Vec<String> {
        self.take_at(series, self.clock.now(), clock::realtime_ns())
    }

    fn take_at(&mut self, series: Vec<WrittenSeries>, now: At, unix: i64) -> Vec<String> {
        self.counts.requests += 1;
        let newest = series.iter().flat_map(|one| one.samples.iter().map(|sample| sample.0)).max();
        let mut touched = HashSet::new();
        for one in series {
            if let Some(key) = self.hold(one, (now, unix)) {
                touched.insert(key);
            }
        }
        let waits = if self.waiting > MOST_WAITING { Span(0) } else { WAITS };
        let mut whole: Vec<(i64, Vec<String>)> = Vec::new();
        for key in touched {
            let Some(target) = self.targets.get(&key) else { continue };
            whole.extend(target.whole(now - waits).into_iter().map(|at| (at, key.clone())));
        }
        // In one order of all targets, so that none of them is late behind another of its request.
        whole.sort();
        for (at, key) in whole {
            self.tell(at, &key, now);
        }
        newest.and_then(|newest| self.skew.of(Span(unix - newest))).into_iter().collect()
    }

    /// Keeps a series' samples until their scrapes are whole. The target that it is of.
    fn hold(&mut self, series: WrittenSeries, (now, unix): (At, i64)) -> Option<Vec<String>> {
        let WrittenSeries { name, mut labels, samples } = series;
        let count = samples.len() as u64;
        let is_up = name == "up";
        if !is_up && !(self.knows)(&name) {
            self.counts.unknown += count;
            return None;
        }
        let mut taken = |names: &[&str]| -> Vec<String> {
            let mut found = vec![String::new(); names.len()];
            labels.retain_mut(|(label, value)| match names.iter().position(|name| name == label) {
                Some(place) => {
                    found[place] = std::mem::take(value);
                    false
                }
                None => true,
            });
            found
        };
        let (key, sender) = (taken(&OF_TARGET), taken(&OF_SENDER));
        labels.sort_unstable();
        if !self.targets.contains_key(&key) {
            if self.targets.len() >= MOST_TARGETS {
                self.counts.over_bound += count;
                return None;
            }
            let target = WrittenTarget::new(self.named(&key), key[0].clone(), sender.clone(), now);
            self.targets.insert(key.clone(), target);
        }
        if !is_up {
            self.jobs.insert(key[0].clone());
        }
        let target = self.targets.get_mut(&key)?;
        if target.sender != sender {
            if now - target.heard < SENDER_LOST {
                self.counts.other_sender += count;
                return None;
            }
            self.waiting -= target.waiting;
            target.listen_to(sender);
        }
        target.heard = now;
        let key_of_series = (name, labels);
        if !is_up && self.series >= MOST_SERIES && !target.series.contains_key(&key_of_series) {
            self.counts.over_bound += count;
            return None;
        }
        let before = (target.series.len(), target.waiting);
        let late = match is_up {
            true => target.take_up(&samples, now),
            false => target.take(key_of_series, &samples, (now, unix)),
        };
        self.series = self.series + target.series.len() - before.0;
        self.waiting = self.waiting + target.waiting - before.1;
        self.counts.out_of_order += late;
        self.counts.taken += count - late;
        Some(key)
    }

    /// A name that no other target has: the instance where that is enough.
    fn named(&mut self, key: &[String]) -> String {
        let [job, instance, cluster] = key else { return String::new() };
        let all = [cluster, job, instance].map(String::as_str);
        let name = (0..3).rev().map(|from| {
            all[from..].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/")
        });
        let name = name.into_iter().find(|name| !name.is_empty() && !self.names.contains(name));
        let name = name.unwrap_or_else(|| format!("target {}", self.names.len() + 1));
        self.names.insert(name.clone());
        name
    }

    fn tell(&mut self, at: i64, key: &[String], now: At) {
        let Some(target) = self.targets.get_mut(key) else { return };
        let before = (target.series.len(), target.waiting);
        let up = target.apply(at);
        self.series = self.series + target.series.len() - before.0;
        self.waiting = self.waiting + target.waiting - before.1;
        // Whatever else a Prometheus scrapes is no server of models; its name may become known. What lies before the watch is where its counters begin, and so is
        // the first that is whole.
        let is_server = self.jobs.contains(&target.job);
        let is_beginning = matches!(up, Some(Up::Yes) | None) && !target.has_begun;
        if !is_server || is_beginning || self.clock.at_unix(at) < At::ZERO {
            return;
        }
        let when = (self.clock, now);
        let name = target.name.clone();
        match up {
            Some(Up::Gone) => {
                self.series -= target.series.len();
                self.waiting -= target.waiting;
                self.targets.remove(key);
                self.names.remove(&name);
                self.pages.keep(|other| other != name, &self.rows);
                return;
            }
            Some(Up::No) => {
                self.pages.scrape(when, &name, at, Err(UNSCRAPED), &self.rows);
            }
            None if target.series.is_empty() => {
                self.pages.scrape(when, &name, at, Err("its series have ended"), &self.rows);
            }
            Some(Up::Yes) | None => {
                let found = target.rows();
                self.pages.scrape(when, &name, at, Ok(found), &self.rows);
            }
        }
        let cadence = self.pages.cadence(&name).unwrap_or(UNTOLD_CADENCE);
        self.counts.cadence = self.counts.cadence.max(self.pages.cadence(&name));
        self.pages.may_be_silent(&name, Span(3 * cadence.0) + BATCH, &self.rows);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use plimsoll_model::Sample;

    use super::*;

    struct Written {
        pages: WrittenPages,
        kept: Arc<Mutex<Vec<Sample>>>,
        /// The instant of second 0.
        zero: i64,
        /// Requests come so many seconds after their newest scrape.
        late_s: i64,
    }

    const ENDED: f64 = f64::MIN;

    impl Written {
        fn new() -> Written {
            let kept: Arc<Mutex<Vec<Sample>>> = Arc::default();
            let into = Arc::clone(&kept);
            let rows = ToRows::changes(move |sample| into.lock().expect("nobody panicked").push(sample));
            let clock = Clock::start();
            let pages = WrittenPages::new(clock, |name| name.starts_with("vllm"), rows);
            Written { pages, kept, zero: clock::realtime_ns(), late_s: 0 }
        }

        /// One that has these series of target `a`, of value 10, told at second 11.
        fn with(names: &[&str]) -> Written {
            let mut written = Written::new();
            for at in [1, 11] {
                let samples: Vec<_> = names.iter().map(|name| (*name, "a", at, 10.0)).collect();
                let told = written.takes(&samples).len();
                assert_eq!(
                    told,
                    if at == 1 { 0 } else { names.iter().filter(|name| **name != "up").count() }
                );
            }
            written
        }

        /// A request: name, target, second and value of each sample. The rows that it led to, in words and sorted, without patience and marks of scrapes.
        fn takes(&mut self, samples: &[(&str, &str, i64, f64)]) -> Vec<String> {
            let series = samples.iter().map(|&(name, target, at_s, value)| {
                let (target, sender) = target.split_once('@').unwrap_or((target, ""));
                let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
                let mut labels =
                    vec![label("instance", target), label("job", "llm"), label("prometheus_replica", sender)];
                let (name, le) = name.split_once(' ').unwrap_or((name, ""));
                if !le.is_empty() {
                    labels.push(label("le", le));
                }
                let at = self.zero + at_s * 1_000_000_000;
                let samples = vec![(at, (value != ENDED).then_some(value))];
                WrittenSeries { name: name.to_owned(), labels, samples }
            });
            let newest = samples.iter().map(|sample| sample.2).max().unwrap_or(0);
            let since = Span::from_secs(newest + self.late_s);
            self.pages.take_at(series.collect(), At::ZERO + since, self.zero + since.0);
            let rows = std::mem::take(&mut *self.kept.lock().expect("nobody panicked"));
            let is_told = |s: &&Sample| s.name != "scrape_patience" && s.name != "scrape_samples";
            let mut words: Vec<String> = rows
                .iter()
                .filter(is_told)
                .map(|s| format!("{}{{{}}} {}", s.name, s.labels, s.value))
                .collect();
            words.sort();
            words
        }
    }

    const FAILED: &str = "scrape_failed{source=a,why=Prometheus could not scrape it} 1";

    #[test]
    fn a_scrape_is_told_when_all_of_it_has_come() {
        let mut written = Written::with(&["up", "vllm:n", "vllm:m"]);
        assert_eq!(written.takes(&[("up", "a", 12, 1.0), ("vllm:n", "a", 12, 11.0)]), [""; 0]);
        assert_eq!(written.takes(&[("up", "a", 13, 1.0), ("vllm:n", "a", 13, 12.0)]), [""; 0]);
        assert_eq!(
            written.takes(&[("vllm:m", "a", 12, 20.0)]),
            ["vllm:m{source=a} 20", "vllm:n{source=a} 11"]
        );
        assert_eq!(written.takes(&[("vllm:m", "a", 13, 20.0)]), ["vllm:n{source=a} 12"]);
        // What comes again is nothing new.
        let again = [("vllm:m", "a", 12, 8.0), ("up", "a", 13, 1.0), ("vllm:n", "a", 1, 5.0)];
        assert_eq!(written.takes(&again), [""; 0]);
        assert_eq!((written.pages.counts().out_of_order, written.pages.counts().taken), (3, 12));
    }

    #[test]
    fn a_target_begins_when_all_queues_have_had_the_time_to_send() {
        let mut written = Written::new();
        let told: Vec<usize> = (1..=15)
            .map(|at| {
                let first = written.takes(&[("vllm:n", "a", at, at as f64)]).len();
                // The other queue begins three scrapes later.
                first + if at < 4 { 0 } else { written.takes(&[("vllm:m", "a", at, at as f64)]).len() }
            })
            .collect();
        assert_eq!(told, [vec![0; 13], vec![2; 2]].concat());
    }

    #[test]
    fn new_series_of_a_histogram_are_told_together() {
        let mut written = Written::with(&["vllm:done"]);
        let told: Vec<usize> = (12..30)
            .map(|at| {
                let (n, of) = (at as f64, "a");
                let first = [("vllm:done", of, at, n), ("vllm:t_bucket +Inf", of, at, n)];
                // The other queue is three scrapes behind with what it never had.
                let second = [("vllm:t_bucket 1", of, at, n)];
                let told = written.takes(&first).len();
                told + if at < 15 { 0 } else { written.takes(&second).len() }
            })
            .collect();
        let alone = vec![1; 13];
        assert_eq!(told, [alone, vec![3; 5]].concat(), "from ten seconds after the fifteenth");
    }

    #[test]
    fn a_stale_marker_ends_a_series_and_one_of_up_the_target() {
        let mut written = Written::with(&["up", "vllm:n", "vllm:m"]);
        let ended = [("up", "a", 12, 1.0), ("vllm:n", "a", 12, ENDED), ("vllm:m", "a", 12, 10.0)];
        assert_eq!(written.takes(&ended), ["vllm:n{source=a} NaN"]);
        assert_eq!(written.takes(&[("up", "a", 13, 0.0), ("vllm:m", "a", 13, ENDED)]), [FAILED]);
        assert_eq!(written.takes(&[("up", "a", 14, 0.0)]).len(), 1);
        let gone = written.takes(&[("up", "a", 15, ENDED)]);
        assert_eq!(gone, ["scrape_left{source=a} 1", "vllm:m{source=a} NaN"]);
        assert_eq!((written.pages.series, written.pages.targets.len()), (0, 0));
    }

    #[test]
    fn a_scrape_that_failed_ends_nothing_that_is_back_at_the_next() {
        let mut written = Written::with(&["up", "vllm:n", "vllm:t_bucket 1", "vllm:t_bucket +Inf"]);
        written.takes(&[("up", "a", 12, 0.0)]);
        let markers = [("vllm:n", "a", 12, ENDED), ("vllm:t_bucket 1", "a", 12, ENDED)];
        assert_eq!(written.takes(&markers), [""; 0]);
        // The first queue is back at once; of the histogram there is a half.
        let back = [("up", "a", 13, 1.0), ("vllm:n", "a", 13, 11.0), ("vllm:t_bucket +Inf", "a", 13, 11.0)];
        assert_eq!(written.takes(&back), ["vllm:n{source=a} 11"]);
        written.takes(&[("vllm:t_bucket 1", "a", 13, 11.0)]);
        let all = ["up", "vllm:n", "vllm:t_bucket 1", "vllm:t_bucket +Inf"].map(|name| (name, "a", 14, 12.0));
        assert_eq!(written.takes(&all).len(), 3);
        assert_eq!((written.pages.series, written.pages.waiting), (3, 0));
    }

    #[test]
    fn a_series_that_ends_without_a_word_holds_nobody_up_for_ever() {
        let mut written = Written::with(&["vllm:n", "vllm:m"]);
        let told = |written: &mut Written, at| written.takes(&[("vllm:m", "a", at, at as f64)]).len();
        assert_eq!([12, 13, 14].map(|at| told(&mut written, at)), [0, 0, 0], "it may be on its way");
        // Of the first two newer ones have been on their way for so long; from then on nobody waits for it.
        assert_eq!([24, 25].map(|at| told(&mut written, at)), [4, 1]);
        assert_eq!(written.pages.waiting, 0);
        // As Prometheus has it, it has ended after five minutes.
        assert_eq!(
            written.takes(&[("vllm:m", "a", 320, 7.0)]),
            ["vllm:m{source=a} 7", "vllm:n{source=a} NaN"]
        );
    }

    #[test]
    fn of_a_histogram_one_queue_of_which_is_behind_nothing_is_told_in_halves() {
        let ahead = |at: i64, n: f64| [("vllm:t_bucket +Inf", "a", at, n), ("vllm:done", "a", at, n)];
        let behind = |at: i64, n: f64| [("vllm:t_bucket 1", "a", at, n)];
        let mut written = Written::with(&["vllm:t_bucket +Inf", "vllm:done", "vllm:t_bucket 1"]);
        (12..=14).for_each(|at| assert_eq!(written.takes(&ahead(at, at as f64 * 10.0)), [""; 0]));
        let told = written.takes(&ahead(24, 240.0));
        assert_eq!(told, [120, 130, 140, 240].map(|n| format!("vllm:done{{source=a}} {n}")));
        // It catches up: what was told without it comes too late, and counters have lost nothing by that.
        written.late_s = 11;
        assert_eq!(written.takes(&[behind(12, 119.0), behind(13, 129.0)].concat()), [""; 0]);
        written.late_s = 0;
        assert_eq!(written.takes(&ahead(25, 250.0)), [""; 0], "so it is waited for again");
        let whole = [("vllm:done", 250), ("vllm:t_bucket{le=+Inf,", 250), ("vllm:t_bucket{le=1,", 248)];
        let told = written.takes(&behind(25, 248.0));
        assert_eq!(told.len(), whole.len());
        for (row, (name, value)) in told.iter().zip(whole) {
            assert!(row.starts_with(name) && row.ends_with(&format!(" {value}")), "{told:?}");
        }
    }

    /// Queues of any pace and any distribution of series over them: a bucket and the count above it are always of one scrape.
    #[test]
    fn whatever_the_pace_of_queues_a_histogram_is_of_one_scrape() {
        let names = ["up", "vllm:done", "vllm:t_bucket 1", "vllm:t_bucket 2", "vllm:t_bucket +Inf"];
        let mut chance = 7_u64;
        let mut below = |n: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % n
        };
        for _ in 0..200 {
            let mut written = Written::new();
            let queue_of: Vec<usize> = names.iter().map(|_| below(3) as usize).collect();
            let (mut sent, mut newest, mut last) = ([0_i64; 3], 0, [0.0; 3]);
            for at in 1..=60 {
                // A queue is up to eight scrapes behind.
                for (queue, sent) in sent.iter_mut().enumerate() {
                    let to = (at - below(9) as i64).max(*sent);
                    for scrape in *sent + 1..=to {
                        let of_it = names.iter().zip(&queue_of).filter(|(_, of)| **of == queue);
                        let samples: Vec<_> =
                            of_it.map(|(name, _)| (*name, "a", scrape, scrape as f64)).collect();
                        written.late_s = at - scrape;
                        for row in written.takes(&samples) {
                            let value: f64 =
                                row.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a value");
                            match ["{le=1,", "{le=2,", "{le=+Inf,"].iter().position(|edge| row.contains(edge))
                            {
                                Some(place) => last[place] = value,
                                None => newest = newest.max(scrape),
                            }
                        }
                        assert!(last[0] == last[1] && last[1] == last[2], "{last:?} {queue_of:?}");
                    }
                    *sent = to;
                }
            }
            assert!(newest > 40 && last[0] > 40.0, "{newest} {last:?} {queue_of:?}");
        }
    }

    #[test]
    fn of_two_servers_that_scrape_the_same_one_is_listened_to() {
        let mut written = Written::new();
        for (sender, at) in [("a@p0", 1), ("a@p1", 2), ("a@p0", 3), ("a@p1", 4)] {
            written.takes(&[("vllm:n", sender, at, at as f64)]);
        }
        assert_eq!((written.pages.counts().taken, written.pages.counts().other_sender), (2, 2));
        // The one has been silent for long.
        written.takes(&[("vllm:n", "a@p1", 34, 6.0)]);
        assert_eq!((written.pages.counts().taken, written.pages.counts().other_sender), (3, 2));
    }

    #[test]
    fn what_lies_before_the_watch_is_where_its_counters_begin() {
        let mut written = Written::new();
        written.late_s = 1000;
        for at in [-1000, -980] {
            assert_eq!(written.takes(&[("vllm:n", "a", at, 100.0)]), [""; 0], "a sender that catches up");
        }
        written.late_s = 0;
        assert_eq!(written.takes(&[("vllm:n", "a", 9, 110.0)]), [""; 0]);
        assert_eq!(written.takes(&[("vllm:n", "a", 31, 120.0)]), ["vllm:n{source=a} 120"]);
    }

    #[test]
    fn only_targets_of_jobs_with_servers_are_watched() {
        let mut written = Written::new();
        // A node's exporter: nobody here reads its names. A server that never answered is of a job that has others.
        let up = |at| [("up", "node", at, 0.0), ("node_load1", "node", at, 1.0)];
        assert_eq!(written.takes(&up(1)), [""; 0]);
        assert_eq!(written.pages.counts().unknown, 1);
        written.takes(&[("vllm:n", "a", 1, 1.0), ("up", "b", 1, 0.0)]);
        let rows = written.takes(&[("up", "b", 2, 0.0)]);
        assert_eq!(rows, ["scrape_failed{source=b,why=Prometheus could not scrape it} 1"]);
    }

    #[test]
    fn a_clock_that_is_ahead_is_said_once() {
        let mut skew = Skew::default();
        assert_eq!(skew.of(Span::from_secs(3)), None);
        let mut skew = Skew::default();
        assert!(skew.of(Span::from_secs(-30)).is_some_and(|says| says.contains("30 s before")));
        assert_eq!(skew.of(Span::from_secs(-30)), None);
        let mut skew = Skew::default();
        let late: Vec<bool> = (0..20).map(|_| skew.of(Span::from_secs(300)).is_some()).collect();
        assert_eq!(late.iter().filter(|said| **said).count(), 1);
        // A queue that catches up is no clock.
        let mut skew = Skew::default();
        assert!((0..20).all(|n| skew.of(Span::from_secs(300 - 15 * n)).is_none()));
    }
}
