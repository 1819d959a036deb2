//! The client in virtual time: one level of load against a [`World`], with the records of a measured run.
//!
//! It uses the [`Player`] of the socket driver, so loops, sessions, time-outs, retries and planned cancellations are
//! equal by construction. In contrast to sockets there is no lateness. Requests are sent when due, timestamps are
//! exact (marked as the kernel's, without generator delay), and the network takes no time.
//!
//! Time jumps from event to event. Fixed ticks were rejected because they are either slow or inaccurate.

mod exchange;
mod links;
mod server_page;
pub mod trial;

use plimsoll_model::{
    At, Attempt, EndedBy, GeneratorHealth, Level, Load, Quantiles, RateCourse, Sample, SharedText, SizeUnit,
    Span, StampSource,
};
use plimsoll_workload::chain::ExternalClasses;
use plimsoll_workload::scenario::LONGEST;
use plimsoll_workload::{
    ArrivalFeed, BlockNames, CancelAfter, ClientSpec, Player, Prompts, Scenario, Schedule, Sequence,
    SpecError,
};

use crate::client::exchange::Exchanges;
use crate::client::server_page::ServerPage;
use crate::fleet::adapters::of_classes;
use crate::fleet::world::World;
use crate::traffic::Emission;

#[derive(Clone, Debug)]
pub struct SimLevelPlan<'a> {
    /// Number of the level in the run.
    pub id: u32,
    /// Kind of traffic: `steady`, `burst`, …
    pub traffic: String,
    /// Purpose of the level: `ladder`, `curve`, `hold`, …
    pub purpose: String,
    pub load: Load,
    /// Whether the arrival rate is meant to be constant.
    pub rate_course: RateCourse,
    /// Start on the clock of the run and the world: not before the world's present time.
    pub start: At,
    pub window: Span,
    pub client: &'a ClientSpec,
    /// Whether responses are streamed. Otherwise they arrive as a whole, without a first token.
    pub stream: bool,
    pub unit: SizeUnit,
    /// Source of the prompts' block hashes; `None` leaves them out of the records, which is faster.
    pub prompts: Option<&'a Prompts>,
    /// Hash of the schedule, for the level's description.
    pub schedule_hash: String,
    /// Sample interval of the requests in flight.
    pub sample_every: Span,
    /// Whether the servers' metrics are recorded too, as by a scraper.
    pub gauges: bool,
    /// Scrape interval of the servers' metrics.
    pub scrape_every: Span,
    pub events: Events,
    /// Maximum number of requests in flight. Above it, the load is aborted as unsustainable, because an overload
    /// grows without limit.
    pub most_in_flight: u32,
    /// Maximum number of attempts, because a closed loop against a world without latency would never leave one
    /// instant.
    pub most_attempts: u64,
    /// Number of arrivals to run; `None` for all.
    pub max_requests: Option<u64>,
    /// Whether the level ends with its last request if that is before the end of its window.
    pub ends_with_requests: bool,
    /// Whether started sessions run to their ends, which extends the level.
    pub plays_sessions_out: bool,
    /// Adapter of each request class; classes past the end use none. [`simulate_into`] sets it.
    pub adapters: Vec<Option<u32>>,
    /// Priority and queue time-out of each request class; classes past the end use the server's defaults.
    pub queues: Vec<(u32, Option<Span>)>,
    /// Latencies of the classes that the world does not serve. [`simulate_into`] sets it.
    pub external: ExternalClasses,
    /// Maximum rate of a closed loop in requests/s; `None` for no limit.
    pub max_rate_per_s: Option<f64>,
}

/// Default of [`SimLevelPlan::most_in_flight`]: 100 times the concurrency of an engine.
pub(crate) const MOST_IN_FLIGHT: u32 = 200_000;

/// Default of [`SimLevelPlan::most_attempts`].
pub(crate) const MOST_ATTEMPTS: u64 = 20_000_000;

/// Default of [`SimLevelPlan::scrape_every`].
pub(crate) const SCRAPE_EVERY: Span = Span::from_secs(1);

/// The sink of a level's rows, each written when it is complete.
pub trait RowSink {
    fn attempt(&mut self, attempt: Attempt);
    /// Records a point of a time series.
    fn sample(&mut self, sample: Sample);
    /// Returns the reason if the level must end now. Called at every event.
    fn stopped(&self) -> Option<EndedBy> {
        None
    }
}

#[derive(Default)]
struct MemoryRecords {
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
}

impl RowSink for MemoryRecords {
    fn attempt(&mut self, attempt: Attempt) {
        self.attempts.push(attempt);
    }

    fn sample(&mut self, sample: Sample) {
        self.samples.push(sample);
    }
}

/// The events of a response that its record keeps.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Events {
    /// Every event, as in a measured run.
    #[default]
    All,
    /// Only the times of the first and last token and of the end.
    Ends,
}

#[derive(Clone, PartialEq, Debug)]
pub struct LevelRun {
    /// Description of the level, with the generator's own measurements.
    pub level: Level,
    /// One row per attempt, in order of their end; unsent ones come last.
    pub attempts: Vec<Attempt>,
    /// Requests in flight over time.
    pub samples: Vec<Sample>,
}

impl<'a> SimLevelPlan<'a> {
    /// Returns a steady level of this scenario's client, with 1618 samples over its window.
    pub fn new(scenario: &'a Scenario, id: u32, load: Load, start: At, window: Span) -> SimLevelPlan<'a> {
        SimLevelPlan {
            id,
            traffic: "steady".to_owned(),
            purpose: "run".to_owned(),
            load,
            rate_course: match load {
                Load::Open { .. } => scenario.arrivals.rate_course(),
                Load::Closed { .. } | Load::Wave { .. } | Load::Saturating { .. } => RateCourse::Even,
            },
            start,
            window,
            client: &scenario.client,
            stream: scenario.target.stream,
            unit: scenario.target.protocol.counts(),
            prompts: None,
            schedule_hash: String::new(),
            // A golden section of the window, because even arrivals would meet round sample intervals always at one
            // phase.
            sample_every: Span((window.0 as f64 / 1618.034) as i64).max(Span(100_000)),
            gauges: false,
            scrape_every: SCRAPE_EVERY,
            events: Events::All,
            most_in_flight: MOST_IN_FLIGHT,
            most_attempts: MOST_ATTEMPTS,
            max_requests: None,
            ends_with_requests: false,
            plays_sessions_out: scenario.plays_sessions_out(),
            adapters: Vec::new(),
            external: ExternalClasses::default(),
            queues: scenario
                .classes
                .iter()
                .map(|class| (class.priority.unwrap_or(0), class.queue_timeout))
                .collect(),
            max_rate_per_s: None,
        }
    }
}

/// Draws the level's arrivals from the scenario and runs them.
///
/// # Errors
/// Fails if the scenario can't be drawn from at this load: see [`Schedule::generate`]. Fails also if a class requests
/// a model that the world does not have.
pub fn simulate_level(
    world: &mut World,
    scenario: &Scenario,
    plan: SimLevelPlan<'_>,
) -> Result<LevelRun, SpecError> {
    let mut kept = MemoryRecords::default();
    let level = simulate_into(world, scenario, plan, None, &mut kept)?;
    Ok(LevelRun { level, attempts: kept.attempts, samples: kept.samples })
}

/// Runs a level like [`simulate_level`], with constant memory: arrivals are drawn when due, and rows are passed to
/// `rows` when complete. `names` are the block names for the world's prefix cache; without them a trace's own ids are
/// used.
pub fn simulate_into(
    world: &mut World,
    scenario: &Scenario,
    mut plan: SimLevelPlan<'_>,
    names: Option<&mut BlockNames>,
    rows: &mut dyn RowSink,
) -> Result<Level, SpecError> {
    let until = At(plan.window.0);
    plan.adapters = of_classes(world.adapters(), scenario)?;
    plan.external = ExternalClasses::of(scenario)?;
    let player = match plan.load {
        Load::Open { rate_per_s } => {
            let feed = ArrivalFeed::new(scenario, rate_per_s, plan.window, plan.id, plan.max_requests)?;
            Player::fed(feed, plan.client, scenario.seed).until(until)
        }
        Load::Closed { concurrency }
        | Load::Saturating { concurrency }
        | Load::Wave { requests: concurrency } => {
            let is_wave = matches!(plan.load, Load::Wave { .. });
            plan.ends_with_requests |= is_wave;
            let wave = is_wave.then_some(u64::from(concurrency));
            let sequence = Schedule::sequence(scenario, plan.id)?.bounded(wave.or(plan.max_requests));
            plan.schedule_hash = first_hash(&sequence);
            let pace =
                plan.max_rate_per_s.map_or(Span::ZERO, |rate| Span::from_secs_f64(1.0 / rate.max(1e-9)));
            Player::closed(sequence, concurrency, until, plan.client, scenario.seed).with_pace(pace)
        }
    };
    let player = if plan.plays_sessions_out { player.to_their_ends() } else { player };
    Ok(run_into(world, player, &plan, names, rows))
}

/// Returns the hash of a closed loop's first 256 requests.
fn first_hash(sequence: &Sequence) -> String {
    let mut sequence = sequence.shard(0, 1);
    let mut arrivals = Vec::new();
    while arrivals.len() < 256 {
        let start = sequence.next_start();
        if start.is_empty() {
            break;
        }
        arrivals.extend(start);
    }
    Schedule { arrivals }.hash()
}

/// Runs the player against the world until everything has ended or the drain limit passes.
pub fn run_level(world: &mut World, player: Player, plan: &SimLevelPlan<'_>) -> LevelRun {
    let mut kept = MemoryRecords::default();
    let level = run_into(world, player, plan, None, &mut kept);
    LevelRun { level, attempts: kept.attempts, samples: kept.samples }
}

fn run_into(
    world: &mut World,
    player: Player,
    plan: &SimLevelPlan<'_>,
    names: Option<&mut BlockNames>,
    rows: &mut dyn RowSink,
) -> Level {
    let mut run = SimRun {
        plan,
        world,
        player,
        exchanges: Exchanges::new(plan, names, rows),
        next_sample: plan.start,
        next_scrape: if plan.gauges { plan.start } else { At::MAX },
        page: ServerPage::default(),
        now: plan.start,
        player_next: None,
        in_flight: 0,
        flight_area: 0,
        in_flight_max: 0,
        samples: 0,
        sample_texts: ("client".into(), "in_flight".into()),
        ended_by: EndedBy::Complete,
        watches_tokens: watches_tokens(plan.client),
    };
    run.play();
    run.conclude()
}

struct SimRun<'a, 'p> {
    plan: &'a SimLevelPlan<'p>,
    world: &'a mut World,
    player: Player,
    exchanges: Exchanges<'a, 'p>,
    next_sample: At,
    next_scrape: At,
    page: ServerPage,
    now: At,
    /// Time of the player's next action, and its requests in flight, as of its last change.
    player_next: Option<At>,
    in_flight: u64,
    /// Requests in flight × ns, within the window.
    flight_area: i128,
    /// Maximum sample of the requests in flight, and the number of samples.
    in_flight_max: u64,
    samples: u64,
    /// Source and name of these samples.
    sample_texts: (SharedText, SharedText),
    ended_by: EndedBy,
    watches_tokens: bool,
}

/// Returns whether this client acts on single tokens: on pauses between them, or on their number.
pub fn watches_tokens(client: &ClientSpec) -> bool {
    let leaves = client.cancel.share > 0.0 && matches!(client.cancel.after, CancelAfter::Share(_));
    leaves || client.timeouts.idle.is_some()
}

impl SimRun<'_, '_> {
    fn play(&mut self) {
        let limit = self.limit();
        let mut emissions: Vec<Emission> = Vec::new();
        self.look_at_player();
        while let Some(next) = self.next_at() {
            if next > limit {
                self.pass(limit);
                self.give_up(EndedBy::DrainLimit);
                return;
            }
            self.step_to(next, &mut emissions);
            for emission in emissions.drain(..) {
                self.exchanges.take(self.world, &mut self.player, emission);
            }
            self.turn();
            if self.in_flight > u64::from(self.plan.most_in_flight)
                || self.exchanges.begun > self.plan.most_attempts
            {
                self.give_up(EndedBy::Ceiling);
                return;
            }
            if let Some(by) = self.exchanges.rows.stopped() {
                self.give_up(by);
                return;
            }
        }
    }

    /// Advances time to `to`. If single tokens are not observed and the client is idle, it advances to the next other
    /// event instead.
    fn step_to(&mut self, to: At, emissions: &mut Vec<Emission>) {
        let client = [self.player_next, self.exchanges.next_at()].into_iter().flatten().min();
        let busy = self.watches_tokens || !self.exchanges.any_open() || client.is_some_and(|at| at <= to);
        if busy {
            self.pass(to);
            self.world.step(self.now, emissions);
            return;
        }
        let drained = self.limit();
        let mut limit = client.unwrap_or(drained).min(drained);
        if self.plan.gauges {
            // Counters are read as they were just before their instant, so all earlier events come first.
            self.pass(to);
            limit = limit.min(At(self.next_scrape.0 - 1)).max(to);
        }
        let reached = self.world.advance(limit, emissions);
        self.pass(reached.max(self.now));
    }

    /// Returns the time at which the level stops waiting for requests in flight.
    fn limit(&self) -> At {
        match self.plan.plays_sessions_out {
            true => self.plan.start + self.plan.window.max(LONGEST),
            false => self.plan.start + self.plan.window + self.plan.client.drain,
        }
    }

    /// Returns the next event time of both sides.
    fn next_at(&self) -> Option<At> {
        let world = if self.exchanges.any_open() { self.world.next_event() } else { None };
        [self.player_next, world, self.exchanges.next_at()]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.max(self.now))
    }

    /// Advances time and integrates the requests in flight.
    fn pass(&mut self, to: At) {
        let stop = if self.plan.plays_sessions_out { At::MAX } else { self.plan.start + self.plan.window };
        let counted = to.min(stop) - self.now.min(stop);
        self.flight_area += i128::from(counted.0) * i128::from(self.in_flight);
        while self.next_sample <= to {
            self.sample();
            self.next_sample += self.plan.sample_every.max(Span(1));
        }
        while self.next_scrape <= to {
            self.scrape(self.next_scrape);
            self.next_scrape += self.plan.scrape_every.max(Span(1));
        }
        self.now = to;
    }

    /// Samples the client's own counter.
    fn sample(&mut self) {
        self.samples += 1;
        self.in_flight_max = self.in_flight_max.max(self.in_flight);
        self.exchanges.rows.sample(Sample {
            at: self.next_sample,
            source: self.sample_texts.0.clone(),
            name: self.sample_texts.1.clone(),
            labels: SharedText::default(),
            value: self.in_flight as f64,
        });
    }

    /// Scrapes the servers' metrics with their values just before that instant.
    fn scrape(&mut self, at: At) {
        self.world.settle(at);
        let rows = &mut *self.exchanges.rows;
        self.page.scrape(at, self.world, rows);
        self.world.take_samples().into_iter().for_each(|sample| rows.sample(sample));
    }

    /// Runs all due actions of the client.
    fn turn(&mut self) {
        self.exchanges.turn(self.world, &mut self.player, self.now);
        // Most events are tokens, which do not affect the player. Requests delayed by a limit can change with time
        // only.
        let ceiling = self.plan.client.max_in_flight.is_some();
        if !ceiling && !self.exchanges.told_player && self.player_next.is_none_or(|at| at > self.now) {
            return;
        }
        let elapsed = At((self.now - self.plan.start).0);
        while let Some(action) = self.player.pop(elapsed) {
            self.exchanges.act(self.world, &mut self.player, self.now, action);
        }
        self.look_at_player();
    }

    fn look_at_player(&mut self) {
        self.exchanges.told_player = false;
        self.player_next = self.player.next_at().map(|at| self.plan.start + Span(at.0));
        self.in_flight = self.player.outstanding(At((self.now - self.plan.start).0));
    }

    fn give_up(&mut self, by: EndedBy) {
        self.ended_by = by;
        self.player.stop(At((self.now - self.plan.start).0));
        self.exchanges.abandon(self.world, &mut self.player, self.now);
    }

    fn conclude(mut self) -> Level {
        let (events, links) = (self.exchanges.events, &self.exchanges.links);
        let (sockets_max, connects) = (links.most_busy, links.made);
        let waited_since = links.waited_since;
        if self.plan.gauges {
            // A final scrape, including the fleet's samples at their own times.
            self.scrape(self.now);
        }
        let (arrivals, lag) = self.exchanges.conclude(&mut self.player);
        let plan = self.plan;
        // A load that was aborted within its window ends the level.
        let planned = match plan.plays_sessions_out {
            true => (plan.start + plan.window).max(self.now),
            false => plan.start + plan.window,
        };
        let stop = match self.ended_by {
            EndedBy::Ceiling | EndedBy::UserNow | EndedBy::Errors => planned.min(self.now),
            _ if plan.ends_with_requests => planned.min(self.now),
            _ => planned,
        };
        let generator = GeneratorHealth {
            lag,
            stamps: StampSource::Kernel,
            workers: 1,
            events,
            in_flight_mean: Some(self.flight_area as f64 / (stop - plan.start).0.max(1) as f64),
            in_flight_max: self.in_flight_max,
            in_flight_samples: self.samples,
            closed_since: [self.player.closed_since().map(|at| plan.start + Span(at.0)), waited_since]
                .into_iter()
                .flatten()
                .min(),
            sockets_max,
            connects,
            ..GeneratorHealth::default()
        };
        Level {
            id: plan.id,
            traffic: plan.traffic.clone(),
            purpose: plan.purpose.clone(),
            load: plan.load,
            rate_course: plan.rate_course,
            start: plan.start,
            stop,
            drained: self.now.max(stop),
            ended_by: self.ended_by,
            arrivals,
            schedule_hash: self.player.schedule_hash().unwrap_or_else(|| plan.schedule_hash.clone()),
            unit: plan.unit,
            generator,
        }
    }
}

/// `sent − due` of first attempts without their waits for a connection: zero unless a limit delayed a request.
#[derive(Default)]
pub(crate) struct Lags {
    count: u64,
    late: Vec<i64>,
}

impl Lags {
    pub fn add(&mut self, lag: Span) {
        self.count += 1;
        if lag != Span::ZERO {
            self.late.push(lag.0);
        }
    }

    pub fn quantiles(mut self) -> Quantiles {
        self.late.sort_unstable();
        let zeros = self.count as usize - self.late.len();
        let at = |share: f64| {
            let rank = (share * self.count as f64).ceil() as usize;
            rank.checked_sub(zeros + 1).and_then(|i| self.late.get(i)).copied().unwrap_or(0)
        };
        Quantiles {
            count: self.count,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: at(1.0),
        }
    }
}
