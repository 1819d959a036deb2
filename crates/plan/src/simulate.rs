//! Simulates one experiment of a plan: a number of replicas, a load and a schedule give an outcome.
//!
//! The function is pure, so a caller with threads can run several experiments in parallel. A schedule number gives equal
//! requests and an equal engine seed for any number of replicas and any load (common random numbers).

use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_model::At;
use plimsoll_sim::{AutoscaleSpec, World, WorldSpec};

use super::spec::{PlanError, PlanSpec, TrafficSpec};
use super::tally::{ScheduleCounts, Sketch, Tally};
use crate::replay::{DRAIN_NS, ReplayWatch, ReplayedRequest, TimedRequests, play_each};
use plimsoll_measure::findings::{BudgetSpec, Metric};

/// The inputs that all experiments of a plan share.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanCase {
    pub traffic: TrafficSpec,
    pub slo: BudgetSpec,
    /// Description of the simulated replica, router and clients.
    pub world: WorldSpec,
    pub seed: u64,
}

/// The control of the number of replicas.
#[derive(Clone, PartialEq, Debug)]
pub enum Fleet {
    Static,
    /// An autoscaler that begins with the given number.
    Scaled(AutoscaleSpec),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Experiment {
    pub case: Arc<PlanCase>,
    /// Number of replicas; the initial number with an autoscaler.
    pub replicas: u32,
    pub fleet: Fleet,
    /// Load as a multiple of the mean rate.
    pub factor: f64,
    pub draw: u32,
    /// Whether the experiment ends as soon as a ceiling can no longer be met; its figures are then bounds.
    pub gives_up: bool,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct CeilingCount {
    /// Requests that have the ceiling's metric.
    pub n: u64,
    /// Requests over the ceiling or without a response.
    pub over: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ExperimentOutcome {
    /// Counts without the warm-up.
    pub counted: ScheduleCounts,
    pub window_s: f64,
    /// Mean replicas paid for over the window, from provisioning on.
    pub mean_replicas: f64,
    pub most_replicas: u32,
}

impl ExperimentOutcome {
    pub fn values(&self, metric: Metric) -> &Sketch {
        &self.counted.metrics[super::tally::place(metric)]
    }
}

impl PlanCase {
    /// Returns the shared inputs of a plan's experiments.
    pub fn of(plan: &PlanSpec) -> PlanCase {
        let PlanSpec { traffic, slo, world, seed, .. } = plan.clone();
        PlanCase { traffic, slo, world, seed }
    }
}

/// Simulates an experiment.
///
/// # Errors
/// Fails if the world can't be built with this number of replicas, or the load can't be drawn.
pub fn simulate(experiment: &Experiment) -> Result<ExperimentOutcome, PlanError> {
    let Experiment { case, replicas, fleet, factor, draw: index, gives_up } = experiment;
    let mut spec = case.world.clone();
    spec.fleet.replicas = *replicas;
    spec.fleet.autoscale = match fleet {
        Fleet::Static => None,
        Fleet::Scaled(autoscale) => Some(autoscale.clone()),
    };
    let chance = Stream::new(case.seed, "plan worlds", u64::from(*index)).next_u64();
    let mut world = World::of(&spec, chance)?;
    let draw = case.traffic.draw(&spec, *factor, *index, case.seed)?;
    let window_ns = draw.window_ns;
    let scaled = *fleet != Fleet::Static;
    // With an autoscaler, the beginning belongs to the measurement and is no warm-up.
    let tally = Tally::new(&case.slo, draw.requests, window_ns, draw.even && !scaled, *gives_up);
    let mut watched = ExperimentObserver { tally, bill: scaled.then(|| Paid::new(*replicas, window_ns)) };
    match draw.steps {
        true => play_each(&mut world, draw.stepped(chance), DRAIN_NS, &mut watched),
        false => play_each(&mut world, TimedRequests(draw.peekable()), DRAIN_NS, &mut watched),
    }
    let ExperimentObserver { tally, bill } = watched;
    let (mean_replicas, most_replicas) = bill.map_or((f64::from(*replicas), *replicas), |bill| {
        let most = bill.most;
        (bill.mean(), most)
    });
    let window_s = window_ns as f64 / 1e9;
    Ok(ExperimentOutcome { counted: tally.conclude(), window_s, mean_replicas, most_replicas })
}

/// The tally and the paid replicas of an experiment.
struct ExperimentObserver<'a> {
    tally: Tally<'a>,
    bill: Option<Paid>,
}

/// Replicas paid for over time.
struct Paid {
    window_ns: i64,
    since_ns: i64,
    now: u32,
    area: f64,
    most: u32,
}

impl Paid {
    fn new(replicas: u32, window_ns: i64) -> Paid {
        Paid { window_ns, since_ns: 0, now: replicas, area: 0.0, most: replicas }
    }

    fn change(&mut self, at_ns: i64, replicas: u32) {
        let until = at_ns.clamp(self.since_ns, self.window_ns.max(self.since_ns));
        self.area += (until - self.since_ns) as f64 * f64::from(self.now);
        (self.since_ns, self.now) = (until, replicas);
        if at_ns < self.window_ns {
            self.most = self.most.max(replicas);
        }
    }

    fn mean(mut self) -> f64 {
        self.change(self.window_ns, 0);
        self.area / self.window_ns.max(1) as f64
    }
}

impl ReplayWatch for ExperimentObserver<'_> {
    fn due(&mut self, index: u64, due_ns: i64) {
        self.tally.due(index, due_ns);
    }

    fn over(&mut self, over: ReplayedRequest) {
        self.tally.over(over);
    }

    fn passed(&mut self, world: &mut World, _now: At) {
        let Some(bill) = &mut self.bill else { return };
        for sample in world.take_samples() {
            match sample.name.as_str() {
                "replicas_billed" => bill.change(sample.at.0, sample.value as u32),
                "replicas_provisioning" => self.tally.scaling = sample.value > 0.0,
                _ => {}
            }
        }
    }

    fn enough(&self) -> bool {
        self.tally.enough()
    }
}
