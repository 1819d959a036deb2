//! The server's side of one level: its signals over the level's own window, whatever server told them.
//!
//! What was never read is `None`, which every rule treats as unknown. Signals that only a simulated fleet tells (how many
//! replicas are ready or paid for) are not asked for: a rule that lives on them would be blind on every real server.

use std::collections::BTreeSet;

use plimsoll_model::{At, Level, Span, split_labels};

use super::RunData;
use plimsoll_measure::server_side::{Buckets, Replica, Series, ServerSide, Signal};

/// The server's side of one level.
#[derive(Clone, Debug)]
pub struct LevelGauges {
    side: ServerSide,
    from: At,
    to: At,
    /// Restarts and scrapes are counted in so much.
    told: (At, At),
    /// From when a replica is looked for that stands still.
    stands_from: At,
    /// Most sequences that may run, all replicas together, where it is told.
    pub max_seqs: Option<f64>,
}

/// Parts of a stretch in which a replica is held against the others: of a minute that is scraped every 15 s each has a scrape.
const REPLICA_PARTS: usize = 4;

/// An engine as its page shows it during the level.
#[derive(Clone, PartialEq, Debug)]
pub struct OnPage {
    pub name: String,
    pub ended: Option<f64>,
    /// Requests that run in it, mean.
    pub running: Option<f64>,
    /// Requests that wait in it, mean.
    pub waiting: Option<f64>,
    /// Its mean gap between tokens, s.
    pub gap: Option<f64>,
    /// The same in each part of the stretch, where it is known.
    pub gaps: Vec<Option<f64>>,
    /// In each piece of some fifteen seconds, did it write a token? `None` = nobody knows, or it had no request. Of an alert they begin before the stretch.
    pub writes: Vec<Option<bool>>,
}

/// A replica is stalled that has had requests for so long and has written nothing: what a watch calls so, chosen beforehand and on no system.
pub const STALLED: Span = Span::from_secs(30);
/// So long after a replica moves again it is still blamed, because what waited for it is late and is told only when it ends: a broken ceiling is called from then on.
const AFTER_STALL: Span = Span::from_secs(60);
/// A stretch is cut into pieces of this length or more, s: two of them tell a stall.
const PIECE_S: f64 = 15.0;
/// KV cache in use from which it counts as full.
const FULL: f64 = 0.85;
/// Labels by which a page tells the data-parallel engines of one server apart.
const RANKS: [&str; 3] = ["engine", "engine_index", "dp_rank"];

impl LevelGauges {
    /// Reads the samples of a run for one of its levels.
    pub fn read(side: &RunData<'_>, level: &Level) -> LevelGauges {
        let fact = |name: &str| -> Option<f64> { side.facts.facts.get(name)?.as_ref()?.parse().ok() };
        let max_seqs = fact("max_seqs").map(|seqs| seqs * fact("replicas").unwrap_or(1.0).max(1.0));
        let told = (level.start - Span(20_000_000_000), level.drained);
        let own = side.samples.iter().filter(|s| s.at >= told.0 && s.at <= told.1);
        let gauges = LevelGauges::between(ServerSide::read(own), (level.start, level.stop));
        LevelGauges { told, max_seqs, ..gauges }
    }

    /// What pages told of one stretch of time.
    pub fn between(side: ServerSide, (from, to): (At, At)) -> LevelGauges {
        LevelGauges { side, from, to, told: (from, to), stands_from: from, max_seqs: None }
    }

    /// The same of an incident, on pages that are read so often and of which nothing is known before an instant.
    pub fn of_incident(side: ServerSide, (from, to): (At, At), (every, oldest): (Span, At)) -> LevelGauges {
        LevelGauges {
            told: (from - Span(2 * every.0), to),
            stands_from: (from - looked_back(to - from)).max(oldest),
            ..LevelGauges::between(side, (from, to))
        }
    }

    /// From when pages are to be known for that: counters are counted from the scrape before.
    pub fn incident_needs((from, to): (At, At), every: Span) -> At {
        from - looked_back(to - from) - Span(2 * every.0)
    }

    /// How long the stretch is, s.
    pub fn seconds(&self) -> f64 {
        (self.to - self.from).as_secs_f64()
    }

    /// So many parts of the stretch, of equal length.
    fn parts(&self, parts: usize) -> impl Iterator<Item = (At, At)> {
        let (from, each) = (self.from, self.seconds() / parts as f64);
        let at = move |n: usize| from + Span::from_secs_f64(each * n as f64);
        (0..parts).map(move |n| (at(n), at(n + 1)))
    }

    /// Sums and counts that a histogram took in, by parts of the stretch; `None` where it does not tell both.
    pub fn sums(&self, signal: Signal, parts: usize) -> Option<(Vec<f64>, Vec<f64>)> {
        let part = |(from, to)| {
            self.side.histogram(signal, from, to).and_then(|taken| Some((taken.sum?, taken.count?)))
        };
        let told: Vec<(f64, f64)> = self.parts(parts).filter_map(part).collect();
        (!told.is_empty()).then(|| told.into_iter().unzip())
    }

    /// What a histogram took in over the stretch.
    pub fn histogram(&self, signal: Signal) -> Option<Buckets> {
        self.side.histogram(signal, self.from, self.to)
    }

    /// What a counter gained, by parts of the stretch.
    pub fn gains(&self, signal: Signal, parts: usize) -> Option<Vec<f64>> {
        let gained = |(from, to)| self.side.gained(signal, from, to).map(|gained| gained.value);
        let told: Vec<f64> = self.parts(parts).filter_map(gained).collect();
        (!told.is_empty()).then_some(told)
    }

    /// The mean of a gauge in each part of the stretch, where it is known.
    pub fn means(&self, signal: Signal, parts: usize) -> Vec<Option<f64>> {
        let gauge = self.side.gauge(signal);
        self.parts(parts).map(|(from, to)| gauge.as_ref()?.mean(from, to)).collect()
    }

    /// Scrapes of the servers' pages that brought one, and scrapes that brought none in time.
    pub fn pages(&self) -> (u64, u64) {
        self.side.scraped(self.told.0, self.told.1)
    }

    /// Did anybody read the server's side?
    pub fn any(&self) -> bool {
        self.side.has(Signal::Running) || self.side.has(Signal::Waiting)
    }

    /// Replicas on the servers' pages that were there for most of the level, whether or not they had anything to do; counted in the
    /// unit in which answers name theirs (`told`).
    pub fn replicas(&self, told: &[String]) -> usize {
        self.count(told, |running| running.known(self.from, self.to) >= 0.8)
    }

    /// The same so many seconds into the level.
    pub(crate) fn replicas_at(&self, told: &[String], seconds: f64) -> usize {
        let at = self.from + Span::from_secs_f64(seconds);
        self.count(told, |running| running.at(at).is_some())
    }

    /// A server's data-parallel engines share a page and are one replica to whoever asks it: they count apart only where answers
    /// call them by those labels. Counting engines against answers' pods lost: two pods of two engines were four replicas of
    /// which two got nothing.
    fn count(&self, told: &[String], there: impl Fn(&Series) -> bool) -> usize {
        let on_pages: Vec<(&Replica, Vec<(String, String)>)> =
            self.side.replicas().iter().map(|replica| (replica, split_labels(&replica.labels))).collect();
        let labelled =
            |name: &String| on_pages.iter().any(|(_, labels)| labels.iter().any(|(_, value)| value == name));
        let by_labels = !told.is_empty() && told.iter().all(labelled);
        let is_there = |engine: usize| {
            self.side.gauge_of(engine, Signal::Running).is_some_and(|running| there(&running))
        };
        let units = on_pages.iter().enumerate().filter(|(engine, _)| is_there(*engine)).map(
            |(_, (replica, labels))| {
                let telling = labels.iter().filter(|(name, _)| by_labels || !RANKS.contains(&name.as_str()));
                (&replica.page, telling.collect::<Vec<_>>())
            },
        );
        units.collect::<BTreeSet<_>>().len()
    }

    /// The engines that were there for most of the level, each by itself.
    pub fn on_pages(&self) -> Vec<OnPage> {
        let (from, to) = (self.from, self.to);
        let engine = |(engine, replica): (usize, &Replica)| {
            let gauge = |signal| self.side.gauge_of(engine, signal);
            let running = gauge(Signal::Running).filter(|running| running.known(from, to) >= 0.8)?;
            let gap = |from: At, to: At| {
                let gaps = self.side.histogram_of(engine, Signal::Itl, from, to);
                gaps.or_else(|| self.side.histogram_of(engine, Signal::Tpot, from, to))?.mean()
            };
            Some(OnPage {
                name: replica.name.clone(),
                ended: self.side.gained_of(engine, Signal::Finished, from, to).map(|gained| gained.value),
                running: running.mean(from, to),
                waiting: gauge(Signal::Waiting).and_then(|waiting| waiting.mean(from, to)),
                gap: gap(from, to),
                gaps: self.parts(REPLICA_PARTS).map(|(from, to)| gap(from, to)).collect(),
                writes: (self.pieces().into_iter())
                    .map(|(from, to)| {
                        let runs = running.mean(from, to).is_some_and(|running| running >= 0.5);
                        let gained = |signal| Some(self.side.gained_of(engine, signal, from, to)?.value);
                        let gaps = || self.side.histogram_of(engine, Signal::Itl, from, to)?.count;
                        // Some count an answer's tokens when it ends, and its steps or gaps as they come.
                        let tokens = gained(Signal::OutputTokens)?;
                        let comes = [gained(Signal::Steps), gaps()].into_iter().flatten().sum::<f64>();
                        (runs || tokens > 0.0).then_some(tokens + comes > 0.0)
                    })
                    .collect(),
            })
        };
        self.side.replicas().iter().enumerate().filter_map(engine).collect()
    }

    /// In each of these it is asked whether an engine writes at all: two scrapes in each as they usually are. Those before the stretch are as long as those of it.
    fn pieces(&self) -> Vec<(At, At)> {
        let each = Span::from_secs_f64(self.piece_s());
        // Rounded to a nanosecond, so many of them may come to a little more than the stretch.
        let before = ((self.from - self.stands_from).0 + 1_000) / each.0.max(1);
        let at = |n: i64| self.from - Span(n * each.0);
        let before = (1..=before).rev().map(|n| (at(n), at(n - 1)));
        before.chain(self.parts(pieces_of(self.seconds()))).collect()
    }

    /// How long a piece is, s.
    pub(crate) fn piece_s(&self) -> f64 {
        self.seconds() / pieces_of(self.seconds()) as f64
    }

    /// What the engine's own histogram says is the mean first token, s.
    pub(crate) fn ttft_mean(&self) -> Option<f64> {
        self.side.histogram(Signal::Ttft, self.from, self.to)?.mean()
    }

    pub fn mean(&self, signal: Signal) -> Option<f64> {
        self.side.gauge(signal)?.mean(self.from, self.to)
    }

    /// Largest value seen of a gauge.
    pub fn max(&self, signal: Signal) -> Option<f64> {
        self.side.gauge(signal)?.max(self.from, self.to)
    }

    /// Share of time in which requests wait.
    pub fn waits(&self) -> Option<f64> {
        self.side.gauge(Signal::Waiting)?.share(self.from, self.to, |n| n > 0.5)
    }

    /// Share of the time with requests waiting in which the cache is full; scrapes that this rests on.
    pub(crate) fn full_while_waiting(&self) -> Option<(f64, usize)> {
        let (kv, waiting) = (self.side.gauge(Signal::KvUsage)?, self.side.gauge(Signal::Waiting)?);
        let given = kv.given(&waiting, |n| n > 0.5);
        let share = given.share(self.from, self.to, |kv| kv >= FULL)?;
        Some((share, given.scrapes(self.from, self.to)))
    }

    /// Mean KV cache in use while requests wait: of a fleet, whose replicas fill at different times, the share of full time says less.
    pub(crate) fn kv_while_waiting(&self) -> Option<f64> {
        let (kv, waiting) = (self.side.gauge(Signal::KvUsage)?, self.side.gauge(Signal::Waiting)?);
        kv.mean_given(self.from, self.to, &waiting, |n| n > 0.5)
    }

    /// Share of all time in which the cache is full.
    pub fn full(&self) -> Option<f64> {
        self.side.gauge(Signal::KvUsage)?.share(self.from, self.to, |kv| kv >= FULL)
    }

    /// Mean sequences running while requests wait, with the most seen.
    pub(crate) fn running_while_waiting(&self) -> Option<(f64, f64)> {
        let (running, waiting) = (self.side.gauge(Signal::Running)?, self.side.gauge(Signal::Waiting)?);
        let mean = running.mean_given(self.from, self.to, &waiting, |n| n > 0.5)?;
        Some((mean, running.max(self.from, self.to)?))
    }

    /// Share of time in which sequences running and requests waiting together are at their most, and that most.
    pub fn at_most(&self) -> Option<(f64, f64)> {
        let running = self.side.gauge(Signal::Running)?;
        let most = running.max(self.from, self.to)?;
        Some((running.share(self.from, self.to, |n| n >= most - 0.5)?, most))
    }

    /// Requests that run or wait in the engine, at each scrape within the level: s since it began, how many, and for how long it holds, s.
    pub(crate) fn inside_at_scrapes(&self) -> Option<Vec<(f64, f64, f64)>> {
        let (running, waiting) = (self.side.gauge(Signal::Running)?, self.side.gauge(Signal::Waiting)?);
        let within = running.steps.iter().filter(|step| step.from >= self.from && step.from < self.to);
        let scrapes: Vec<_> = within
            .filter_map(|step| {
                let inside = step.value + waiting.at(step.from)?;
                Some(((step.from - self.from).as_secs_f64(), inside, (step.to - step.from).as_secs_f64()))
            })
            .collect();
        (!scrapes.is_empty()).then_some(scrapes)
    }

    /// Share of scrapes at which requests wait for cache of another engine while requests wait.
    pub fn deferred(&self) -> Option<f64> {
        let (deferred, waiting) =
            (self.side.gauge(Signal::DeferredKvTransfer)?, self.side.gauge(Signal::Waiting)?);
        deferred.share_given(self.from, self.to, |n| n > 0.5, &waiting, |n| n > 0.5)
    }

    /// What a counter gained.
    pub fn gained(&self, signal: Signal) -> Option<f64> {
        self.side.gained(signal, self.from, self.to).map(|gained| gained.value)
    }

    /// Counters that went back: a process began anew.
    pub fn restarts(&self) -> u32 {
        self.side.restarts(self.told.0, self.told.1)
    }

    /// Share of the prompt tokens looked up that the prefix cache held.
    pub fn hit_rate(&self) -> Option<f64> {
        let rate = |hit: Signal, of: Signal| {
            let (hit, of) = (self.gained(hit)?, self.gained(of)?);
            (of > 100.0).then(|| hit / of)
        };
        rate(Signal::PrefixHit, Signal::PrefixQueried)
            .or_else(|| rate(Signal::CachedTokens, Signal::PromptTokens))
    }

    /// Tokens that a check of a draft brings (speculative decoding).
    pub fn accepted_length(&self) -> Option<f64> {
        self.side.accepted_length(self.from, self.to)
    }

    /// Share of the time in which the GPU computes while requests run.
    pub(crate) fn gpu_busy(&self) -> Option<f64> {
        let busy = self.side.gauge(Signal::GpuEngineActive).or_else(|| self.side.gauge(Signal::SmActive))?;
        let running = self.side.gauge(Signal::Running)?;
        busy.mean_given(self.from, self.to, &running, |n| n > 0.5)
    }

    /// Share of the cycles in which the GPU's memory moves data, while requests run.
    pub fn dram_active(&self) -> Option<f64> {
        let active = self.side.gauge(Signal::DramActive)?;
        let running = self.side.gauge(Signal::Running)?;
        active.mean_given(self.from, self.to, &running, |n| n > 0.5)
    }

    /// What the queue-time histogram says is the mean wait, s.
    pub(crate) fn queue_mean(&self) -> Option<f64> {
        self.side.histogram(Signal::QueueTime, self.from, self.to)?.mean()
    }

    /// Garbage collections, or their pauses, per second.
    pub fn collections(&self) -> Option<f64> {
        self.gained(Signal::GcCollections)
    }

    /// Usual time between two scrapes, s.
    pub fn cadence_s(&self) -> Option<f64> {
        self.side.cadence().map(|span| span.as_secs_f64())
    }
}

/// In how many pieces a stretch of so many seconds is looked at.
fn pieces_of(seconds: f64) -> usize {
    ((seconds / PIECE_S) as usize).clamp(1, 40)
}

/// How long before an incident a stall may have begun that is to blame for it: whole pieces, as long as those of the incident.
fn looked_back(incident: Span) -> Span {
    let seconds = incident.as_secs_f64();
    let each = seconds / pieces_of(seconds) as f64;
    let pieces = |span: Span| (span.as_secs_f64() / each.max(1.0)).ceil();
    Span::from_secs_f64((pieces(AFTER_STALL) + pieces(STALLED)) * each)
}
