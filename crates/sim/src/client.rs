//! The client in virtual time: one level of load against a [`World`], and the same records that a measured run leaves.
//!
//! It turns the same [`Player`] as the driver of sockets does, so that loops, sessions, time-outs, retries and planned
//! cancellations are the same by construction. What differs is that nothing is ever late: requests are sent when they are
//! due, stamps are exact (marked as the kernel's, with no delay of the generator) and the network takes no time.
//!
//! Time jumps from event to event. Fixed ticks were not considered: they would be either slow or wrong.

use plimsoll_model::{
    At, Attempt, EndedBy, GeneratorHealth, Level, Load, Quantiles, Sample, Span, StampSource,
};
use plimsoll_workload::{ClientSpec, Player, Prompts, Scenario, Schedule, SpecError};

use crate::exchange::Exchanges;
use crate::world::{Emission, World};

/// What one level is to be.
#[derive(Clone, Debug)]
pub struct LevelPlan<'a> {
    /// Its number in the run.
    pub id: u32,
    /// Kind of traffic: `steady`, `burst`, …
    pub traffic: String,
    /// What it is run for: `ladder`, `curve`, `hold`, …
    pub purpose: String,
    /// The load.
    pub load: Load,
    /// When it starts, on the run's axis and the world's: not before what the world has lived through.
    pub start: At,
    /// How long arrivals are due.
    pub window: Span,
    /// How the client behaves.
    pub client: &'a ClientSpec,
    /// Are answers streamed? Otherwise they come whole, and have no first token.
    pub stream: bool,
    /// Makes the prompts' block hashes; without it records have none, which is faster.
    pub prompts: Option<&'a Prompts>,
    /// The schedule's hash, for the level's description.
    pub schedule_hash: String,
    /// How often the requests in flight are counted.
    pub sample_every: Span,
}

/// What one level was.
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
    /// A steady level of this scenario's client, counted a thousand times over its window.
    pub fn new(scenario: &'a Scenario, id: u32, load: Load, start: At, window: Span) -> LevelPlan<'a> {
        LevelPlan {
            id,
            traffic: "steady".to_owned(),
            purpose: "run".to_owned(),
            load,
            start,
            window,
            client: &scenario.client,
            stream: scenario.target.stream,
            prompts: None,
            schedule_hash: String::new(),
            sample_every: Span((window.0 / 1000).max(100_000)),
        }
    }
}

/// Draws the level's arrivals from the scenario and runs them.
///
/// # Errors
/// The scenario can't be drawn from at this load: see [`Schedule::generate`].
pub fn simulate_level(
    world: &mut World,
    scenario: &Scenario,
    mut plan: LevelPlan<'_>,
) -> Result<LevelRun, SpecError> {
    let player = match plan.load {
        Load::Open { rate_per_s } => {
            let schedule = Schedule::generate(scenario, rate_per_s, plan.window, plan.id)?;
            plan.schedule_hash = schedule.hash();
            Player::open(schedule.arrivals, plan.client, scenario.seed).until(At(plan.window.0))
        }
        Load::Closed { concurrency } | Load::Saturating { concurrency } => {
            let sequence = Schedule::sequence(scenario, plan.id)?;
            Player::closed(sequence, concurrency, At(plan.window.0), plan.client, scenario.seed)
        }
    };
    Ok(run_level(world, player, &plan))
}

/// Runs what the player holds against the world, until all has ended or the drain limit passes.
pub fn run_level(world: &mut World, player: Player, plan: &LevelPlan<'_>) -> LevelRun {
    let mut run = Run {
        plan,
        world,
        player,
        exchanges: Exchanges::new(plan),
        samples: Vec::new(),
        next_sample: plan.start,
        now: plan.start,
        player_next: None,
        in_flight: 0,
        flight_area: 0,
        ended_by: EndedBy::Complete,
    };
    run.play();
    run.conclude()
}

struct Run<'a, 'p> {
    plan: &'a LevelPlan<'p>,
    world: &'a mut World,
    player: Player,
    exchanges: Exchanges<'a, 'p>,
    samples: Vec<Sample>,
    next_sample: At,
    now: At,
    /// When the player wants its turn, and what it has in flight: as of its last change.
    player_next: Option<At>,
    in_flight: u64,
    /// Requests in flight × ns, within the window.
    flight_area: i128,
    ended_by: EndedBy,
}

impl Run<'_, '_> {
    fn play(&mut self) {
        let limit = self.plan.start + self.plan.window + self.plan.client.drain;
        let mut emissions: Vec<Emission> = Vec::new();
        self.look_at_player();
        while let Some(next) = self.next_at() {
            if next > limit {
                self.pass(limit);
                self.give_up();
                return;
            }
            self.pass(next);
            self.world.step(self.now, &mut emissions);
            for emission in emissions.drain(..) {
                self.exchanges.take(self.world, &mut self.player, emission);
            }
            self.turn();
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
        let stop = self.plan.start + self.plan.window;
        let counted = to.min(stop) - self.now.min(stop);
        self.flight_area += i128::from(counted.0) * i128::from(self.in_flight);
        while self.next_sample <= to {
            self.samples.push(Sample {
                at: self.next_sample,
                source: "client".to_owned(),
                name: "in_flight".to_owned(),
                labels: String::new(),
                value: self.in_flight as f64,
            });
            self.next_sample += self.plan.sample_every.max(Span(1));
        }
        self.now = to;
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

    fn give_up(&mut self) {
        self.ended_by = EndedBy::DrainLimit;
        self.player.stop(At((self.now - self.plan.start).0));
        self.exchanges.abandon(self.world, &mut self.player, self.now);
    }

    fn conclude(mut self) -> LevelRun {
        let (events, sockets_max) = (self.exchanges.events, self.exchanges.most_open);
        let attempts = self.exchanges.conclude(&mut self.player);
        let plan = self.plan;
        let stop = plan.start + plan.window;
        let elapsed = plan.window.0.max(1) as f64;
        let generator = GeneratorHealth {
            lag: lags(&attempts),
            stamps: StampSource::Kernel,
            workers: 1,
            events,
            in_flight_mean: Some(self.flight_area as f64 / elapsed),
            in_flight_max: self.samples.iter().map(|sample| sample.value as u64).max().unwrap_or(0),
            in_flight_samples: self.samples.len() as u64,
            closed_since: self.player.closed_since().map(|at| plan.start + Span(at.0)),
            sockets_max,
            ..GeneratorHealth::default()
        };
        let level = Level {
            id: plan.id,
            traffic: plan.traffic.clone(),
            purpose: plan.purpose.clone(),
            load: plan.load,
            start: plan.start,
            stop,
            drained: self.now.max(stop),
            ended_by: self.ended_by,
            arrivals: attempts.iter().filter(|attempt| attempt.attempt == 0).count() as u64,
            schedule_hash: plan.schedule_hash.clone(),
            generator,
        };
        LevelRun { level, attempts, samples: self.samples }
    }
}

/// Order statistics of `sent − due` over first attempts: all zero, unless a ceiling or a pool held something back.
fn lags(attempts: &[Attempt]) -> Quantiles {
    let first = attempts.iter().filter(|attempt| attempt.attempt == 0);
    let mut lags: Vec<i64> = first.filter_map(|attempt| Some((attempt.sent? - attempt.due).0)).collect();
    lags.sort_unstable();
    let at = |share: f64| {
        let rank = (share * lags.len() as f64).ceil() as usize;
        lags.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    };
    Quantiles {
        count: lags.len() as u64,
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: at(1.0),
    }
}
