//! The server's signals over the window of one level, for any server.
//!
//! Signals that were never read are `None`, which every rule treats as unknown. Signals that only a simulated fleet
//! exports (the number of ready or paid replicas) are not used. Rules that depend on them would have no data on real
//! servers.

use std::collections::BTreeSet;

use plimsoll_model::{At, Level, Span, split_labels};

use super::RunData;
use plimsoll_measure::server_side::{Buckets, GaugeSeries, ObservedReplica, ServerSide, Signal, machine};

/// The server's signals over one level.
#[derive(Clone, Debug)]
pub struct LevelGauges {
    side: ServerSide,
    from: At,
    to: At,
    /// Interval in which restarts and scrapes are counted.
    told: (At, At),
    /// Start of the search for stalled replicas.
    stands_from: At,
    /// Maximum number of running sequences over all replicas; `None` if not reported.
    pub max_seqs: Option<f64>,
}

/// A figure of the machine between two scrapes.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct CounterStep {
    /// Start in s since the start of the level.
    pub from_s: f64,
    pub to_s: f64,
    pub value: f64,
}

/// Number of parts of an interval in which replicas are compared. A minute with a scrape every 15 s has one scrape in
/// each part.
const REPLICA_PARTS: usize = 4;

/// An engine as its metrics show it during the level.
#[derive(Clone, PartialEq, Debug)]
pub struct EngineGaugesView {
    pub name: String,
    /// Number of requests that ended; `None` if unknown.
    pub ended: Option<f64>,
    /// Mean number of running requests; `None` if unknown.
    pub running: Option<f64>,
    /// Mean number of waiting requests; `None` if unknown.
    pub waiting: Option<f64>,
    /// Mean gap between tokens in s; `None` if unknown.
    pub gap: Option<f64>,
    /// Mean gap in s in each part of the interval; `None` if unknown.
    pub gaps: Vec<Option<f64>>,
    /// Whether the engine wrote a token in each piece of about 15 s; `None` if unknown or if it had no request. The
    /// pieces of an alert start before the interval.
    pub writes: Vec<Option<bool>>,
}

/// Time without output after which a replica with requests counts as stalled. It equals the limit of `watch` and was
/// chosen in advance, not fitted to a system.
pub const STALLED: Span = Span::from_secs(30);
/// Time after a stall in which the replica still counts as the cause. Requests that waited are late and are reported
/// only when they end, and only then a ceiling is broken.
const AFTER_STALL: Span = Span::from_secs(60);
/// Minimum length of a piece in s; a stall needs two pieces.
const PIECE_S: f64 = 15.0;
/// KV cache usage from which it counts as full.
const FULL: f64 = 0.85;
/// Labels that distinguish the data-parallel engines of one server.
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

    /// Returns the signals of one time interval.
    pub fn between(side: ServerSide, (from, to): (At, At)) -> LevelGauges {
        LevelGauges { side, from, to, told: (from, to), stands_from: from, max_seqs: None }
    }

    /// Returns the signals of an incident. `every` is the scrape interval and `oldest` the time before which no data
    /// exists.
    pub fn of_incident(side: ServerSide, (from, to): (At, At), (every, oldest): (Span, At)) -> LevelGauges {
        LevelGauges {
            told: (from - Span(2 * every.0), to),
            stands_from: (from - looked_back(to - from)).max(oldest),
            ..LevelGauges::between(side, (from, to))
        }
    }

    /// Returns the start of the data that [`of_incident`](Self::of_incident) needs, because counters are counted from
    /// the scrape before.
    pub fn incident_needs((from, to): (At, At), every: Span) -> At {
        from - looked_back(to - from) - Span(2 * every.0)
    }

    /// Returns the length of the interval in s.
    pub fn seconds(&self) -> f64 {
        (self.to - self.from).as_secs_f64()
    }

    /// Returns the interval cut into `parts` of equal length.
    fn parts(&self, parts: usize) -> impl Iterator<Item = (At, At)> {
        let (from, each) = (self.from, self.seconds() / parts as f64);
        let at = move |n: usize| from + Span::from_secs_f64(each * n as f64);
        (0..parts).map(move |n| (at(n), at(n + 1)))
    }

    /// Returns the sums and counts that a histogram gained in each part of the interval. Returns `None` if the
    /// histogram lacks either.
    pub fn sums(&self, signal: Signal, parts: usize) -> Option<(Vec<f64>, Vec<f64>)> {
        let part = |(from, to)| {
            self.side.histogram(signal, from, to).and_then(|taken| Some((taken.sum?, taken.count?)))
        };
        let told: Vec<(f64, f64)> = self.parts(parts).filter_map(part).collect();
        (!told.is_empty()).then(|| told.into_iter().unzip())
    }

    /// Returns the gain of a histogram over the interval.
    pub fn histogram(&self, signal: Signal) -> Option<Buckets> {
        self.side.histogram(signal, self.from, self.to)
    }

    /// Returns the gain of a counter in each part of the interval.
    pub fn gains(&self, signal: Signal, parts: usize) -> Option<Vec<f64>> {
        let gained = |(from, to)| self.side.gained(signal, from, to).map(|gained| gained.value);
        let told: Vec<f64> = self.parts(parts).filter_map(gained).collect();
        (!told.is_empty()).then_some(told)
    }

    /// Returns the mean of a gauge in each part of the interval; `None` if unknown.
    pub fn means(&self, signal: Signal, parts: usize) -> Vec<Option<f64>> {
        let gauge = self.side.gauge(signal);
        self.parts(parts).map(|(from, to)| gauge.as_ref()?.mean(from, to)).collect()
    }

    /// Returns the numbers of successful and of failed scrapes.
    pub fn pages(&self) -> (u64, u64) {
        self.side.scraped(self.told.0, self.told.1)
    }

    /// Returns whether the server reports running or waiting requests.
    pub fn any(&self) -> bool {
        self.side.has(Signal::Running) || self.side.has(Signal::Waiting)
    }

    /// Returns the number of replicas on the metrics endpoints that existed for most of the level, idle or not.
    /// Replicas are counted in the unit of the names in responses (`told`).
    pub fn replicas(&self, told: &[String]) -> usize {
        self.count(told, |running| running.known(self.from, self.to) >= 0.8)
    }

    /// Returns the number of replicas that existed `seconds` after the start of the level.
    pub(crate) fn replicas_at(&self, told: &[String], seconds: f64) -> usize {
        let at = self.from + Span::from_secs_f64(seconds);
        self.count(told, |running| running.at(at).is_some())
    }

    /// Counts replicas. The data-parallel engines of a server share a metrics endpoint and count as one replica. They
    /// count separately only if responses name them by those labels. Counting engines while responses name pods was
    /// rejected: two pods with two engines each were four replicas, and two seemed idle.
    fn count(&self, told: &[String], there: impl Fn(&GaugeSeries) -> bool) -> usize {
        let on_pages: Vec<(&ObservedReplica, Vec<(String, String)>)> =
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

    /// Returns each engine that existed for most of the level.
    pub fn on_pages(&self) -> Vec<EngineGaugesView> {
        let (from, to) = (self.from, self.to);
        let engine = |(engine, replica): (usize, &ObservedReplica)| {
            let gauge = |signal| self.side.gauge_of(engine, signal);
            let running = gauge(Signal::Running).filter(|running| running.known(from, to) >= 0.8)?;
            let gap = |from: At, to: At| {
                let gaps = self.side.histogram_of(engine, Signal::Itl, from, to);
                gaps.or_else(|| self.side.histogram_of(engine, Signal::Tpot, from, to))?.mean()
            };
            Some(EngineGaugesView {
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
                        // Some servers count output tokens at the end of a response, but steps or gaps continuously.
                        let tokens = gained(Signal::OutputTokens)?;
                        let comes = [gained(Signal::Steps), gaps()].into_iter().flatten().sum::<f64>();
                        (runs || tokens > 0.0).then_some(tokens + comes > 0.0)
                    })
                    .collect(),
            })
        };
        self.side.replicas().iter().enumerate().filter_map(engine).collect()
    }

    /// Returns the pieces in which the output of an engine is checked; a piece usually has two scrapes. Pieces before
    /// the interval have the length of those inside it.
    fn pieces(&self) -> Vec<(At, At)> {
        let each = Span::from_secs_f64(self.piece_s());
        // Rounding to a nanosecond can make the sum of the pieces slightly longer than the interval.
        let before = ((self.from - self.stands_from).0 + 1_000) / each.0.max(1);
        let at = |n: i64| self.from - Span(n * each.0);
        let before = (1..=before).rev().map(|n| (at(n), at(n - 1)));
        before.chain(self.parts(pieces_of(self.seconds()))).collect()
    }

    /// Returns the length of a piece in s.
    pub(crate) fn piece_s(&self) -> f64 {
        self.seconds() / pieces_of(self.seconds()) as f64
    }

    /// Returns the mean time to first token in s from the engine's histogram.
    pub(crate) fn ttft_mean(&self) -> Option<f64> {
        self.side.histogram(Signal::Ttft, self.from, self.to)?.mean()
    }

    pub fn mean(&self, signal: Signal) -> Option<f64> {
        self.side.gauge(signal)?.mean(self.from, self.to)
    }

    /// Returns the maximum of a gauge.
    pub fn max(&self, signal: Signal) -> Option<f64> {
        self.side.gauge(signal)?.max(self.from, self.to)
    }

    /// Returns the share of time in which requests wait.
    pub fn waits(&self) -> Option<f64> {
        self.side.gauge(Signal::Waiting)?.share(self.from, self.to, |n| n > 0.5)
    }

    /// Returns the share of waiting time in which the cache is full, and the number of scrapes behind it.
    pub(crate) fn full_while_waiting(&self) -> Option<(f64, usize)> {
        let (kv, waiting) = (self.side.gauge(Signal::KvUsage)?, self.side.gauge(Signal::Waiting)?);
        let given = kv.given(&waiting, |n| n > 0.5);
        let share = given.share(self.from, self.to, |kv| kv >= FULL)?;
        Some((share, given.scrapes(self.from, self.to)))
    }

    /// Returns the mean KV cache usage while requests wait. Replicas of a fleet fill at different times, so the share
    /// of full time is less informative there.
    pub(crate) fn kv_while_waiting(&self) -> Option<f64> {
        let (kv, waiting) = (self.side.gauge(Signal::KvUsage)?, self.side.gauge(Signal::Waiting)?);
        kv.mean_given(self.from, self.to, &waiting, |n| n > 0.5)
    }

    /// Returns the share of all time in which the cache is full.
    pub fn full(&self) -> Option<f64> {
        self.side.gauge(Signal::KvUsage)?.share(self.from, self.to, |kv| kv >= FULL)
    }

    /// Returns the mean number of running sequences while requests wait, and the maximum.
    pub(crate) fn running_while_waiting(&self) -> Option<(f64, f64)> {
        let (running, waiting) = (self.side.gauge(Signal::Running)?, self.side.gauge(Signal::Waiting)?);
        let mean = running.mean_given(self.from, self.to, &waiting, |n| n > 0.5)?;
        Some((mean, running.max(self.from, self.to)?))
    }

    /// Returns the share of time in which running and waiting requests together are at their maximum, and that
    /// maximum.
    pub fn at_most(&self) -> Option<(f64, f64)> {
        let running = self.side.gauge(Signal::Running)?;
        let most = running.max(self.from, self.to)?;
        Some((running.share(self.from, self.to, |n| n >= most - 0.5)?, most))
    }

    /// Returns the requests in the engine, running or waiting, at each scrape of the level. Each entry has the time
    /// since the start of the level in s, the number, and its duration in s.
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

    /// Returns the share of the scrapes with waiting requests at which requests wait for the cache of another engine.
    pub fn deferred(&self) -> Option<f64> {
        let (deferred, waiting) =
            (self.side.gauge(Signal::DeferredKvTransfer)?, self.side.gauge(Signal::Waiting)?);
        deferred.share_given(self.from, self.to, |n| n > 0.5, &waiting, |n| n > 0.5)
    }

    /// Returns the gain of a counter.
    pub fn gained(&self, signal: Signal) -> Option<f64> {
        self.side.gained(signal, self.from, self.to).map(|gained| gained.value)
    }

    /// Returns the number of counter resets, which mean that a process restarted.
    pub fn restarts(&self) -> u32 {
        self.side.restarts(self.told.0, self.told.1)
    }

    /// Returns the share of the looked-up prompt tokens that the prefix cache contained.
    pub fn hit_rate(&self) -> Option<f64> {
        let rate = |hit: Signal, of: Signal| {
            let (hit, of) = (self.gained(hit)?, self.gained(of)?);
            (of > 100.0).then(|| hit / of)
        };
        rate(Signal::PrefixHit, Signal::PrefixQueried)
            .or_else(|| rate(Signal::CachedTokens, Signal::PromptTokens))
    }

    /// Returns the tokens per draft verification (speculative decoding).
    pub fn accepted_length(&self) -> Option<f64> {
        self.side.accepted_length(self.from, self.to)
    }

    /// Returns the share of time in which the GPU computes while requests run.
    pub(crate) fn gpu_busy(&self) -> Option<f64> {
        let busy = self.side.gauge(Signal::GpuEngineActive).or_else(|| self.side.gauge(Signal::SmActive))?;
        let running = self.side.gauge(Signal::Running)?;
        busy.mean_given(self.from, self.to, &running, |n| n > 0.5)
    }

    /// Returns the share of cycles in which the GPU's memory moves data while requests run.
    pub fn dram_active(&self) -> Option<f64> {
        let active = self.side.gauge(Signal::DramActive)?;
        let running = self.side.gauge(Signal::Running)?;
        active.mean_given(self.from, self.to, &running, |n| n > 0.5)
    }

    /// Returns the increase per second of a counter of the machine, between scrapes.
    pub(crate) fn counter_steps(&self, signal: Signal) -> Vec<CounterStep> {
        self.steps(|from, to| {
            let gained = self.side.gained(signal, from, to)?;
            let value = gained.value / (gained.to - gained.from).as_secs_f64();
            Some((gained.from, gained.to, value))
        })
    }

    /// Returns the share of its periods in which a CPU quota stopped each container. An exporter may refresh these counters rarely, so
    /// an interval ends when the number of periods has changed.
    pub(crate) fn containers(&self) -> Vec<(String, Vec<CounterStep>)> {
        let of = |(number, host): (usize, &ObservedReplica)| {
            let gained = |signal, from, to| self.side.gained_of_host(number, signal, from, to);
            let mut begun: Option<At> = None;
            let mut stopped = 0.0;
            let steps = self.steps(|from, to| {
                let periods = gained(Signal::QuotaPeriods, from, to)?;
                stopped += gained(Signal::QuotaThrottled, from, to).map_or(0.0, |gained| gained.value);
                let from = *begun.get_or_insert(periods.from);
                (periods.value > 0.0).then(|| {
                    begun = None;
                    (from, periods.to, std::mem::take(&mut stopped) / periods.value)
                })
            });
            (!steps.is_empty()).then(|| (machine::container(&host.labels), steps))
        };
        self.side.hosts().iter().enumerate().filter_map(of).collect()
    }

    /// Returns the loss of the slowest GPU's clock against its highest, between scrapes.
    pub(crate) fn clock_loss(&self) -> Vec<CounterStep> {
        let Some(clock) = self.side.gauge(Signal::SmClock) else { return Vec::new() };
        let Some(most) = clock.max(self.from, self.to).filter(|most| *most > 0.0) else { return Vec::new() };
        self.steps(|from, to| Some((from, to, 1.0 - clock.mean(from, to)? / most)))
    }

    /// Returns the steps of a figure over the level, one per scrape interval and at least a second long.
    fn steps(&self, mut of: impl FnMut(At, At) -> Option<(At, At, f64)>) -> Vec<CounterStep> {
        let width = self.cadence_s().unwrap_or(1.0).max(1.0);
        let parts = (self.seconds() / width) as usize;
        let at = |n: usize| self.from + Span::from_secs_f64(width * n as f64);
        let since = |at: At| (at - self.from).as_secs_f64();
        let step = |n| of(at(n), at(n + 1));
        (0..parts)
            .filter_map(step)
            .map(|(from, to, value)| CounterStep { from_s: since(from), to_s: since(to), value })
            .collect()
    }

    /// Returns the mean wait in s from the queue-time histogram.
    pub(crate) fn queue_mean(&self) -> Option<f64> {
        self.side.histogram(Signal::QueueTime, self.from, self.to)?.mean()
    }

    /// Returns the garbage collections, or their pauses, per second.
    pub fn collections(&self) -> Option<f64> {
        self.gained(Signal::GcCollections)
    }

    /// Returns the usual time between two scrapes in s.
    pub fn cadence_s(&self) -> Option<f64> {
        self.side.cadence().map(|span| span.as_secs_f64())
    }
}

/// Returns the number of pieces for an interval of `seconds`.
fn pieces_of(seconds: f64) -> usize {
    ((seconds / PIECE_S) as usize).clamp(1, 40)
}

/// Returns the time before an incident in which a responsible stall may have started. It is a multiple of the piece
/// length of the incident.
fn looked_back(incident: Span) -> Span {
    let seconds = incident.as_secs_f64();
    let each = seconds / pieces_of(seconds) as f64;
    let pieces = |span: Span| (span.as_secs_f64() / each.max(1.0)).ceil();
    Span::from_secs_f64((pieces(AFTER_STALL) + pieces(STALLED)) * each)
}
