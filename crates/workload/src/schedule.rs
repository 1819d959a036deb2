//! Builds the schedule: all due times of a level, drawn once and only then assigned to workers.
//!
//! Workers never draw. Load generators with one random stream per worker have repeatedly given all workers equal streams,
//! so that arrivals came in unnoticed volleys. Here equal spec and seed give equal bytes for any number of workers and on
//! every machine. Tests and manifests compare [`Schedule::hash`].

use std::hash::Hasher;
use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Shard, Span};
use siphasher::sip::SipHasher24;

use crate::arrivals::{ArrivalSpec, MAX_ARRIVALS};
use crate::draw::{Arrival, Drawer};
use crate::{Rate, Scenario, SpecError};

/// All arrivals of one level, by number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    /// Arrivals, ascending in `due`, with ids 0, 1, 2, ….
    pub arrivals: Vec<Arrival>,
}

impl Schedule {
    /// Draws the arrivals within `[0, window)` at a mean of `rate_per_s` requests per second.
    ///
    /// With sessions the process draws their *starts*, at the rate divided by the mean number of turns. A level begins
    /// without open sessions, so the request rate grows over the first session's length. Turns that can't be due inside the
    /// window are not in the schedule. The sessions of a trace that begin inside the window are complete.
    ///
    /// # Errors
    /// Fails with a [`SpecError`] for an invalid rate, an inconsistent scenario, or files that are not attached.
    pub fn generate(
        scenario: &Scenario,
        rate_per_s: f64,
        window: Span,
        level: u32,
    ) -> Result<Schedule, SpecError> {
        let (drawer, starts) = starts(scenario, rate_per_s, window, level)?;
        let mut arrivals = Vec::with_capacity(starts.len());
        for (start, due) in starts.into_iter().enumerate() {
            let turns = drawer.start(start as u64, 0, due);
            let whole = drawer.graph().is_some();
            arrivals.extend(turns.into_iter().take_while(|a| whole || a.due.0 < window.0));
        }
        if drawer.has_sessions() {
            arrivals.sort_by_key(|a| (a.due, a.session, a.turn));
        }
        for (id, arrival) in arrivals.iter_mut().enumerate() {
            // Without sessions the number of the start is that of the arrival; with them, text is named by (session, turn).
            arrival.id = id as u64;
        }
        Ok(Schedule { arrivals })
    }

    /// Returns endless arrivals for a closed loop: equal requests in equal order for any number of workers.
    pub fn sequence(scenario: &Scenario, level: u32) -> Result<Sequence, SpecError> {
        let drawer = Drawer::new(Arc::new(scenario.clone()), level)?;
        Ok(Sequence { drawer, next_start: 0, next_id: 0, worker: 0, workers: 1, most: u64::MAX })
    }

    /// Returns SipHash-2-4 (zero key) over every field of every arrival, little-endian, as 16 hex digits.
    pub fn hash(&self) -> String {
        let mut hasher = Hash::begin(self.arrivals.len());
        self.arrivals.iter().for_each(|arrival| hasher.add(arrival));
        hasher.hex()
    }

    /// Assigns the arrivals to workers in rotation; a session stays with one worker. Because this draws no random numbers,
    /// the union is the schedule for any number of workers.
    pub fn deal(self, workers: usize) -> Vec<Vec<Arrival>> {
        self.deal_part(1, workers)
    }

    /// Assigns one of `shards` [parts](Schedule::part) to workers. Every worker gets a share, even if the two numbers have
    /// a common divisor.
    pub fn deal_part(self, shards: u32, workers: usize) -> Vec<Vec<Arrival>> {
        let mut out = vec![Vec::new(); workers.max(1)];
        for arrival in self.arrivals {
            out[dealt_to(&arrival, shards, workers)].push(arrival);
        }
        out
    }

    /// Returns the part of one of several machines. Arrivals keep their numbers and due times, so that the parts add up to
    /// the schedule.
    pub fn part(mut self, shard: Shard) -> Schedule {
        self.arrivals.retain(|arrival| shard.takes(arrival.session, arrival.id));
        self
    }
}

/// Returns the worker of an arrival in one of `shards` parts.
pub fn dealt_to(arrival: &Arrival, shards: u32, workers: usize) -> usize {
    let key = arrival.session.unwrap_or(arrival.id);
    (key / u64::from(shards.max(1)) % workers.max(1) as u64) as usize
}

/// The hash of a schedule in progress.
#[derive(Clone, Debug)]
struct Hash(SipHasher24);

impl Hash {
    fn begin(count: usize) -> Hash {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        hasher.write(&(count as u64).to_le_bytes());
        Hash(hasher)
    }

    fn add(&mut self, a: &Arrival) {
        let hasher = &mut self.0;
        hasher.write(&a.id.to_le_bytes());
        hasher.write(&a.level.to_le_bytes());
        hasher.write(&a.due.0.to_le_bytes());
        hasher.write(&a.class.to_le_bytes());
        hasher.write(&a.session.map_or(u64::MAX, |s| s).to_le_bytes());
        hasher.write(&a.turn.to_le_bytes());
        hasher.write(&a.think.0.to_le_bytes());
        hasher.write(&a.prompt_tokens.to_le_bytes());
        hasher.write(&a.output_tokens.to_le_bytes());
        hasher.write(&(a.blocks.len() as u64).to_le_bytes());
        for block in &a.blocks {
            hasher.write(&block.to_le_bytes());
        }
        // The predecessors of a plain conversation follow from the turn number.
        if a.session.is_some() && a.after != Arrival::after_of(a.turn) {
            hasher.write(&(a.after.len() as u64).to_le_bytes());
            a.after.iter().for_each(|turn| hasher.write(&turn.to_le_bytes()));
        }
    }

    fn hex(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

/// Checks that an open loop of this rate (1/s) and duration fits into memory, before a run is started.
///
/// # Errors
/// Fails if the window is empty or contains more arrivals than a schedule may have.
pub fn fits(rate_per_s: f64, window: Span) -> Result<(), SpecError> {
    if window.0 > 0 && rate_per_s * window.as_secs_f64() <= MAX_ARRIVALS {
        return Ok(());
    }
    Err(SpecError::value(
        "load",
        format!("{rate_per_s}/s for {window}"),
        &format!("a window above 0 with at most {MAX_ARRIVALS} arrivals"),
    ))
}

/// Returns the generator, and the due times of all starts within the window.
fn starts(
    scenario: &Scenario,
    rate_per_s: f64,
    window: Span,
    level: u32,
) -> Result<(Drawer, Vec<At>), SpecError> {
    let rate = Rate::per_s(rate_per_s).map_err(|e| e.at("load.rate"))?.as_per_s();
    let drawer = Drawer::new(Arc::new(scenario.clone()), level)?;
    fits(rate, window)?;
    let starts = match (&scenario.arrivals, drawer.trace()) {
        (ArrivalSpec::Trace { repeat, .. }, Some(trace)) => {
            // Sessions that all begin at time 0 have no times to scale.
            let scale = match &trace.graph {
                Some(graph) if graph.last_begin() == Span::ZERO => 0.0,
                _ => trace.rate_per_s()? / rate,
            };
            let lap = trace.rows.len() as f64 / rate;
            let times = trace.times(scenario.seed);
            let laps = if *repeat { (window.as_secs_f64() / lap).ceil() as u64 } else { 1 };
            (0..laps.max(1))
                .flat_map(|n| times.iter().map(move |t| Span::from_secs_f64(t * scale + n as f64 * lap)))
                .map(|span| At::ZERO + span)
                .take_while(|at| at.0 < window.0)
                .collect()
        }
        (spec, _) => {
            let mut stream = Stream::new(scenario.seed, "arrivals", u64::from(level));
            spec.times(rate / drawer.requests_per_start, window, &mut stream)
        }
    };
    Ok((drawer, starts))
}

/// The arrivals of [`Schedule::generate`] one by one, drawn when they are taken.
///
/// A trace of a million requests then takes eight bytes per request. Scenarios with sessions are drawn completely, because
/// sessions interleave.
#[derive(Clone, Debug)]
pub struct ArrivalFeed {
    drawer: Drawer,
    starts: Vec<At>,
    /// All arrivals of a scenario with sessions, whose due times are in `starts`; otherwise `None`.
    drawn: Option<Vec<Arrival>>,
    next: usize,
    hash: Hash,
}

impl ArrivalFeed {
    /// Returns the feed of [`Schedule::generate`], limited to its first `most` arrivals.
    pub fn new(
        scenario: &Scenario,
        rate_per_s: f64,
        window: Span,
        level: u32,
        most: Option<u64>,
    ) -> Result<ArrivalFeed, SpecError> {
        let most = usize::try_from(most.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let (drawer, mut starts) = starts(scenario, rate_per_s, window, level)?;
        let mut drawn = None;
        if drawer.has_sessions() {
            let mut arrivals = Schedule::generate(scenario, rate_per_s, window, level)?.arrivals;
            arrivals.truncate(most);
            starts = arrivals.iter().map(|arrival| arrival.due).collect();
            drawn = Some(arrivals);
        }
        starts.truncate(most);
        let hash = Hash::begin(starts.len());
        Ok(ArrivalFeed { drawer, starts, drawn, next: 0, hash })
    }

    /// Returns the total number of arrivals.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns whether there are no arrivals.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Removes and returns all arrivals of a scenario with sessions.
    pub(crate) fn take_drawn(&mut self) -> Option<Vec<Arrival>> {
        let drawn = self.drawn.take()?;
        drawn.iter().for_each(|arrival| self.hash.add(arrival));
        self.next = self.starts.len();
        Some(drawn)
    }

    /// Returns the due time of the next arrival.
    pub(crate) fn due(&self) -> Option<At> {
        self.starts.get(self.next).copied()
    }

    /// Returns the number of remaining arrivals that are due by `now`.
    pub(crate) fn held(&self, now: At) -> u64 {
        self.starts[self.next..].partition_point(|due| *due <= now) as u64
    }

    /// Returns the hash of [`Schedule::hash`] once all arrivals have been taken.
    pub fn hash(&self) -> Option<String> {
        (self.next == self.starts.len()).then(|| self.hash.hex())
    }
}

impl Iterator for ArrivalFeed {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let due = self.due()?;
        let id = self.next as u64;
        self.next += 1;
        let arrival = match &self.drawn {
            Some(drawn) => drawn.get(id as usize)?.clone(),
            None => self.drawer.start(id, id, due).into_iter().next()?,
        };
        self.hash.add(&arrival);
        Some(arrival)
    }
}

/// Endless arrivals by number, for a closed loop. Due times are 0, because the player sets them when it sends.
#[derive(Clone, Debug)]
pub struct Sequence {
    drawer: Drawer,
    next_start: u64,
    next_id: u64,
    worker: u64,
    workers: u64,
    most: u64,
}

impl Sequence {
    /// Returns the part of worker `worker` of `workers`, from the beginning. A part can be divided again: a machine's part
    /// among its workers.
    pub fn shard(&self, worker: usize, workers: usize) -> Sequence {
        Sequence {
            drawer: self.drawer.clone(),
            next_start: 0,
            next_id: 0,
            worker: self.worker + self.workers * worker as u64,
            workers: self.workers * workers.max(1) as u64,
            most: self.most,
        }
    }

    /// Limits the number of starts (requests; with sessions, conversations) over all workers.
    pub fn bounded(self, most: Option<u64>) -> Sequence {
        Sequence { most: most.unwrap_or(u64::MAX), ..self }
    }

    /// Returns whether the sequence is limited.
    pub fn is_bounded(&self) -> bool {
        self.most < u64::MAX
    }

    /// Returns the next start: one arrival, or the turns of a session in order; empty after the limit.
    pub fn next_start(&mut self) -> Vec<Arrival> {
        while self.next_start < self.most {
            let (start, mine) = (self.next_start, self.next_start % self.workers == self.worker);
            self.next_start += 1;
            if !mine && !self.drawer.has_sessions() {
                self.next_id += 1;
                continue;
            }
            let turns = self.drawer.start(start, self.next_id, At::ZERO);
            self.next_id += turns.len() as u64;
            if mine {
                return turns;
            }
        }
        Vec::new()
    }
}
