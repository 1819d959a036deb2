//! The schedule: what is due when, drawn once for the whole level and only then dealt to workers.
//!
//! Every generator that gives each worker its own stream has at some time given them the same one; arrivals then come in
//! volleys of the number of workers and nobody notices. Here a worker never draws. The same spec and seed give the same
//! bytes for any number of workers and on every machine; [`Schedule::hash`] is what a test and a manifest hold against it.

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
    /// Ascending in `due`, with ids 0, 1, 2, ….
    pub arrivals: Vec<Arrival>,
}

impl Schedule {
    /// Draws the arrivals due within `[0, window)` at a mean of `rate_per_s` requests per second.
    ///
    /// With sessions the process draws their *starts*, at the rate divided by the mean number of turns; a level begins
    /// without open sessions, so the request rate grows over the first session's length. Turns that can't be due inside the
    /// window are not in the schedule. The sessions of a trace are all in it that begin inside, to their ends.
    ///
    /// # Errors
    /// [`SpecError`] for a rate that is none, a scenario that is inconsistent, or files that are not attached.
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
            // Without sessions the start's number is the arrival's; with them text is named by (session, turn).
            arrival.id = id as u64;
        }
        Ok(Schedule { arrivals })
    }

    /// Endless arrivals for a closed loop: the same requests in the same order for any number of workers.
    pub fn sequence(scenario: &Scenario, level: u32) -> Result<Sequence, SpecError> {
        let drawer = Drawer::new(Arc::new(scenario.clone()), level)?;
        Ok(Sequence { drawer, next_start: 0, next_id: 0, worker: 0, workers: 1, most: u64::MAX })
    }

    /// SipHash-2-4 (zero key) over every field of every arrival, little-endian: 16 hex digits.
    pub fn hash(&self) -> String {
        let mut hasher = Hash::begin(self.arrivals.len());
        self.arrivals.iter().for_each(|arrival| hasher.add(arrival));
        hasher.hex()
    }

    /// Splits the arrivals over workers in turn; a session stays with one. Nothing is drawn here, so the union is the
    /// schedule whatever the number.
    pub fn deal(self, workers: usize) -> Vec<Vec<Arrival>> {
        self.deal_part(1, workers)
    }

    /// The same of one of so many [parts](Schedule::part): whatever the two numbers have in common, every worker gets its share.
    pub fn deal_part(self, shards: u32, workers: usize) -> Vec<Vec<Arrival>> {
        let mut out = vec![Vec::new(); workers.max(1)];
        for arrival in self.arrivals {
            out[dealt_to(&arrival, shards, workers)].push(arrival);
        }
        out
    }

    /// What one of several machines sends of it. Nothing is drawn here: the arrivals keep their numbers and due times, so that the parts
    /// together are the schedule.
    pub fn part(mut self, shard: Shard) -> Schedule {
        self.arrivals.retain(|arrival| shard.takes(arrival.session, arrival.id));
        self
    }
}

/// The worker that gets an arrival of one of `shards` parts.
pub fn dealt_to(arrival: &Arrival, shards: u32, workers: usize) -> usize {
    let key = arrival.session.unwrap_or(arrival.id);
    (key / u64::from(shards.max(1)) % workers.max(1) as u64) as usize
}

/// The schedule's hash under construction.
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
        // That of a plain conversation follows from its number.
        if a.session.is_some() && a.after != Arrival::after_of(a.turn) {
            hasher.write(&(a.after.len() as u64).to_le_bytes());
            a.after.iter().for_each(|turn| hasher.write(&turn.to_le_bytes()));
        }
    }

    fn hex(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

/// Does an open loop of this rate, 1/s, and length fit into memory? What comes before a run is begun asks it.
///
/// # Errors
/// The window is empty, or more arrivals fall into it than a schedule may hold.
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

/// Who draws, and the due times of all starts within the window.
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
            // Sessions that begin all at once have no times to scale.
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

/// The arrivals of [`Schedule::generate`] one by one, made when they are asked for: a trace of a million requests is
/// replayed with eight bytes for each in memory. Sessions interleave, so that a scenario with them is drawn at once.
#[derive(Clone, Debug)]
pub struct ArrivalFeed {
    drawer: Drawer,
    starts: Vec<At>,
    /// Of a scenario with sessions: all arrivals, and `starts` are their due times.
    drawn: Option<Vec<Arrival>>,
    next: usize,
    hash: Hash,
}

impl ArrivalFeed {
    /// As [`Schedule::generate`]; with `most`, its first arrivals alone.
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

    /// Arrivals in all.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// All of them at once, where sessions need it.
    pub(crate) fn take_drawn(&mut self) -> Option<Vec<Arrival>> {
        let drawn = self.drawn.take()?;
        drawn.iter().for_each(|arrival| self.hash.add(arrival));
        self.next = self.starts.len();
        Some(drawn)
    }

    /// When the next one is due.
    pub(crate) fn due(&self) -> Option<At> {
        self.starts.get(self.next).copied()
    }

    /// How many that are still here are due by `now`.
    pub(crate) fn held(&self, now: At) -> u64 {
        self.starts[self.next..].partition_point(|due| *due <= now) as u64
    }

    /// The schedule's hash, as [`Schedule::hash`]; known once all have been taken.
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
        let arrival = self.drawer.start(id, id, due).into_iter().next()?;
        self.hash.add(&arrival);
        Some(arrival)
    }
}

/// Endless arrivals by number, for a closed loop. Due times are 0: the player sets them when it sends.
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
    /// The part of it that worker `worker` of `workers` takes, from the beginning. A part is divided further the same way: a machine's
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

    /// Ends after so many starts (requests; with sessions, conversations), over all workers together.
    pub fn bounded(self, most: Option<u64>) -> Sequence {
        Sequence { most: most.unwrap_or(u64::MAX), ..self }
    }

    /// Does it end?
    pub fn is_bounded(&self) -> bool {
        self.most < u64::MAX
    }

    /// The next start: one arrival, or the turns of a session in order; nothing once a bound is reached.
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
