//! The client in virtual time: one level of load against a [`World`], and the same records that a measured run leaves.
//!
//! It turns the same [`Player`] as the driver of sockets does, so that loops, sessions, time-outs, retries and planned
//! cancellations are the same by construction. What differs is that nothing is ever late: requests are sent when they are
//! due, stamps are exact (marked as the kernel's, with no delay of the generator) and the network takes no time.
//!
//! Time jumps from event to event. Fixed ticks were not considered: they would be either slow or wrong.

mod exchange;
mod links;
mod server_page;
pub mod trial;

use plimsoll_model::{
    At, Attempt, EndedBy, GeneratorHealth, Level, Load, Quantiles, RateCourse, Sample, SharedText, SizeUnit,
    Span, StampSource,
};
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

/// What one level is to be.
#[derive(Clone, Debug)]
pub struct LevelPlan<'a> {
    pub id: u32,
    /// Kind of traffic: `steady`, `burst`, …
    pub traffic: String,
    /// What it is run for: `ladder`, `curve`, `hold`, …
    pub purpose: String,
    pub load: Load,
    /// Whether the rate of arrivals is meant to be even.
    pub rate_course: RateCourse,
    /// When it starts, on the run's axis and the world's: not before what the world has lived through.
    pub start: At,
    pub window: Span,
    pub client: &'a ClientSpec,
    /// Are answers streamed? Otherwise they come whole, and have no first token.
    pub stream: bool,
    /// What the sizes of requests count.
    pub unit: SizeUnit,
    /// Makes the prompts' block hashes; without it records have none, which is faster.
    pub prompts: Option<&'a Prompts>,
    /// The schedule's hash, for the level's description.
    pub schedule_hash: String,
    /// How often the requests in flight are counted.
    pub sample_every: Span,
    /// Write what the world's servers say of themselves as well, as a scraper would find it on their pages?
    pub gauges: bool,
    /// How often their pages are looked at.
    pub scrape_every: Span,
    pub events: Events,
    /// Most requests in flight: beyond it the load is given up as one that the world does not carry, because an
    /// overload grows for as long as it is let.
    pub most_in_flight: u32,
    /// Most attempts. A closed loop against a world that takes no time would turn for ever at one instant.
    pub most_attempts: u64,
    /// The first arrivals alone.
    pub max_requests: Option<u64>,
    /// Is the level as long as its requests take, where that is less than its window?
    pub ends_with_requests: bool,
    /// Are sessions that have begun played to their ends, and is the level as long as they take?
    pub plays_sessions_out: bool,
    /// The adapter that each class of requests asks for; a class past the end asks for none. [`simulate_into`] fills it in.
    pub adapters: Vec<Option<u32>>,
    /// Priority and queue time-out of each class of requests; a class past the end leaves both to the server.
    pub queues: Vec<(u32, Option<Span>)>,
    /// The rate that a closed loop may not go over; `None` = as fast as the world answers.
    pub max_rate_per_s: Option<f64>,
}

/// Bound of [`LevelPlan::most_in_flight`] where nothing else is said: two orders over what an engine runs at once.
pub(crate) const MOST_IN_FLIGHT: u32 = 200_000;

/// Bound of [`LevelPlan::most_attempts`] where nothing else is said.
pub(crate) const MOST_ATTEMPTS: u64 = 20_000_000;

/// How often pages are looked at where nothing else is said.
pub(crate) const SCRAPE_EVERY: Span = Span::from_secs(1);

/// Where the rows of a level go, each as soon as it is whole.
pub trait RowSink {
    fn attempt(&mut self, attempt: Attempt);
    /// A point of a time series.
    fn sample(&mut self, sample: Sample);
    /// Is the level to end now, and why? Asked at every event.
    fn stopped(&self) -> Option<EndedBy> {
        None
    }
}

/// Rows in memory.
#[derive(Default)]
struct Kept {
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
}

impl RowSink for Kept {
    fn attempt(&mut self, attempt: Attempt) {
        self.attempts.push(attempt);
    }

    fn sample(&mut self, sample: Sample) {
        self.samples.push(sample);
    }
}

/// Which events of an answer its record holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Events {
    /// Every one, as a measured run has them.
    #[default]
    All,
    /// None: the stamps of the first and last token and of the end remain.
    Ends,
}

#[derive(Clone, PartialEq, Debug)]
pub struct LevelRun {
    /// The level, with what the generator says of itself.
    pub level: Level,
    /// One row per attempt, in order of their end; those never sent come last.
    pub attempts: Vec<Attempt>,
    /// Requests in flight over time.
    pub samples: Vec<Sample>,
}

impl<'a> LevelPlan<'a> {
    /// A steady level of this scenario's client, counted 1618 times over its window.
    pub fn new(scenario: &'a Scenario, id: u32, load: Load, start: At, window: Span) -> LevelPlan<'a> {
        LevelPlan {
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
            // At a golden section of the window: even arrivals would meet every scrape at a round step in the same phase.
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
/// The scenario can't be drawn from at this load: see [`Schedule::generate`]. A class asks for a model that the world has not.
pub fn simulate_level(
    world: &mut World,
    scenario: &Scenario,
    plan: LevelPlan<'_>,
) -> Result<LevelRun, SpecError> {
    let mut kept = Kept::default();
    let level = simulate_into(world, scenario, plan, None, &mut kept)?;
    Ok(LevelRun { level, attempts: kept.attempts, samples: kept.samples })
}

/// The same in memory that does not grow with the level: arrivals are drawn when they are due and rows are handed to
/// `rows` when they are whole. `names` are what the world's prefix cache looks at; without them a trace's own ids are.
pub fn simulate_into(
    world: &mut World,
    scenario: &Scenario,
    mut plan: LevelPlan<'_>,
    names: Option<&mut BlockNames>,
    rows: &mut dyn RowSink,
) -> Result<Level, SpecError> {
    let until = At(plan.window.0);
    plan.adapters = of_classes(world.adapters(), scenario)?;
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

/// The hash of a closed loop's first 256 requests.
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

/// Runs what the player holds against the world, until all has ended or the drain limit passes.
pub fn run_level(world: &mut World, player: Player, plan: &LevelPlan<'_>) -> LevelRun {
    let mut kept = Kept::default();
    let level = run_into(world, player, plan, None, &mut kept);
    LevelRun { level, attempts: kept.attempts, samples: kept.samples }
}

fn run_into(
    world: &mut World,
    player: Player,
    plan: &LevelPlan<'_>,
    names: Option<&mut BlockNames>,
    rows: &mut dyn RowSink,
) -> Level {
    let mut run = Run {
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
        ended_by: EndedBy::Complete,
        watches_tokens: watches_tokens(plan.client),
    };
    run.play();
    run.conclude()
}

struct Run<'a, 'p> {
    plan: &'a LevelPlan<'p>,
    world: &'a mut World,
    player: Player,
    exchanges: Exchanges<'a, 'p>,
    next_sample: At,
    next_scrape: At,
    page: ServerPage,
    now: At,
    /// When the player wants its turn, and what it has in flight: as of its last change.
    player_next: Option<At>,
    in_flight: u64,
    /// Requests in flight × ns, within the window.
    flight_area: i128,
    /// Largest sample of the requests in flight, and how many samples.
    in_flight_max: u64,
    samples: u64,
    ended_by: EndedBy,
    watches_tokens: bool,
}

/// Does this client act on single tokens: on pauses between them, or on their number?
pub fn watches_tokens(client: &ClientSpec) -> bool {
    let leaves = client.cancel.share > 0.0 && matches!(client.cancel.after, CancelAfter::Share(_));
    leaves || client.timeouts.idle.is_some()
}

impl Run<'_, '_> {
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

    /// Lets time pass up to `to`; while tokens come that nobody looks at one by one, up to the next instant with more
    /// than tokens instead, if the client has nothing to do before.
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
            // Counters are read as they are before their instant: all up to here first, the next one after this.
            self.pass(to);
            limit = limit.min(At(self.next_scrape.0 - 1)).max(to);
        }
        let reached = self.world.advance(limit, emissions);
        self.pass(reached.max(self.now));
    }

    /// When the end of the level no longer waits for what is in flight.
    fn limit(&self) -> At {
        match self.plan.plays_sessions_out {
            true => self.plan.start + self.plan.window.max(LONGEST),
            false => self.plan.start + self.plan.window + self.plan.client.drain,
        }
    }

    /// The next instant at which something happens on either side.
    fn next_at(&self) -> Option<At> {
        let world = if self.exchanges.any_open() { self.world.next_event() } else { None };
        [self.player_next, world, self.exchanges.next_at()]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.max(self.now))
    }

    /// Lets time pass, counting what is in flight.
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

    /// Reads the client's own counter.
    fn sample(&mut self) {
        self.samples += 1;
        self.in_flight_max = self.in_flight_max.max(self.in_flight);
        self.exchanges.rows.sample(Sample {
            at: self.next_sample,
            source: "client".into(),
            name: "in_flight".into(),
            labels: SharedText::default(),
            value: self.in_flight as f64,
        });
    }

    /// Looks at the servers' pages, as they are before that instant.
    fn scrape(&mut self, at: At) {
        self.world.settle(at);
        let rows = &mut *self.exchanges.rows;
        self.page.scrape(at, self.world, rows);
        self.world.take_samples().into_iter().for_each(|sample| rows.sample(sample));
    }

    /// Does all that the client is to do now.
    fn turn(&mut self) {
        self.exchanges.turn(self.world, &mut self.player, self.now);
        // Most events are tokens, which change nothing for the player; what a ceiling holds back grows with time alone.
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
            // Once more when all is over, with what the fleet did at its own instants.
            self.scrape(self.now);
        }
        let (arrivals, lag) = self.exchanges.conclude(&mut self.player);
        let plan = self.plan;
        // Where a load was given up within its window, the level ends there.
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

/// `sent − due` of first attempts less their waits for a connection: all zero, unless a ceiling held something back.
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
