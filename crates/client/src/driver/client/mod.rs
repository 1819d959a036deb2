//! Runs the load generator: starts its threads, runs levels and reads counters.
//!
//! The calling thread only watches. Every ten milliseconds it samples the number in flight, ties the clocks, checks for a
//! stop and sleeps. The number in flight therefore comes from a separate counter and clock and not from the rows. Little's
//! law between the two can fail, so it is a real check.

mod watch;

use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{self};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use plimsoll_model::{At, Level, Span};
use plimsoll_workload::{ClassSpec, Connections, Player, TargetSpec};
use tokio::sync::mpsc::UnboundedSender;

use crate::auth::secret::Secret;
use crate::clock::Clock;
use crate::driver::control::{Control, StopLimits};
use crate::driver::level::{LevelContext, LevelPlan, LevelTraffic};
use crate::driver::live::LiveCounters;
use crate::driver::prepare::BodyPrefetcher;
use crate::driver::requests::{RequestError, RequestKinds};
use crate::driver::sink::Sink;
use crate::driver::worker::{WorkerCommand, WorkerSetup, work};
use crate::http1::keeping::KeepaliveShared;
use crate::http1::link::Route;

use watch::LevelWatch;

/// Time between the start of a level and its first possible due time, so that every worker has its plan.
const LEAD: Span = Span::from_millis(20);

#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub target: TargetSpec,
    /// Classes of the requests, with their models and targets.
    pub classes: Vec<ClassSpec>,
    /// API key, if the caller already has it; `None` reads it from the source that the target names.
    pub key: Option<Secret>,
    /// Load-generating threads; `None` = [`default_workers`].
    pub workers: Option<usize>,
    /// Identity of the run; every request id starts with it.
    pub run_id: String,
    pub clock: Clock,
    /// Set to record the text of answers in their rows.
    pub keep_text: bool,
}

/// Returns the number of cores less one, at least one.
///
/// The remaining core takes interrupts, the watching and writing threads, and a local server under test. Two workers on two
/// cores would compete with that server and measure the competition. One worker carries about 100 000 events/s, which
/// suffices for nearly every load.
pub fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).max(1))
}

/// Errors of starting a client or running a level.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Requests(#[from] RequestError),
    /// The system refused to create a worker thread.
    #[error("cannot start a load-generating thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A worker thread panicked. The rows that it had delivered exist; the rest is lost.
    #[error("a load-generating thread died")]
    WorkerDied,
}

/// The load generator. Its connections and threads persist across levels.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    requests: RequestKinds,
    /// Serialises levels, because workers run one level at a time.
    running: Mutex<()>,
    live: LiveCounters,
    workers: Vec<UnboundedSender<WorkerCommand>>,
    threads: Vec<JoinHandle<()>>,
}

impl Client {
    /// Starts the worker threads; sends no request yet.
    ///
    /// # Errors
    /// Fails if the target is invalid or the system refuses a thread.
    pub fn start(config: ClientConfig) -> Result<Client, ClientError> {
        let requests = RequestKinds::new(&config.target, &config.classes, config.key.as_ref())?;
        let count = config.workers.unwrap_or_else(default_workers).max(1);
        let live = LiveCounters::new(count);
        let numbers = Arc::new(AtomicU32::new(0));
        let known: Vec<KeepaliveShared> =
            requests.endpoints.iter().map(|_| KeepaliveShared::default()).collect();
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for index in 0..count {
            let (commands, inbox) = tokio::sync::mpsc::unbounded_channel();
            let (ready, started) = mpsc::channel();
            let setup = WorkerSetup {
                clock: config.clock,
                numbers: Arc::clone(&numbers),
                known: known.clone(),
                shard: live.shard(index),
            };
            let thread = std::thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn(move || work(setup, inbox, &ready))?;
            started.recv().map_err(|_| ClientError::WorkerDied)??;
            workers.push(commands);
            threads.push(thread);
        }
        Ok(Client { config, requests, running: Mutex::new(()), live, workers, threads })
    }

    /// Returns the live counters. They are cheap to clone and readable from any thread while a level runs.
    pub fn live(&self) -> LiveCounters {
        self.live.clone()
    }

    /// Returns the error of the last failed key renewal, if any.
    pub fn key_trouble(&self) -> Option<String> {
        self.requests.endpoints.iter().find_map(|endpoint| endpoint.target.key_trouble())
    }

    pub fn clock(&self) -> Clock {
        self.config.clock
    }

    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Runs one level and blocks until it ends. Every arrival of the plan has its row in `sink` on return (one row per
    /// attempt).
    pub fn run_level(
        &self,
        plan: &LevelPlan,
        sink: &Arc<dyn Sink>,
        control: &Control,
    ) -> Result<Level, ClientError> {
        // Ignores the poison, because a level that panicked leaves no half-written state here.
        let _one_at_a_time = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let active = self.active_workers(plan);
        let routes = self.warm(plan, active)?;
        let start = plan.shard.map_or_else(|| self.config.clock.now() + LEAD, |shard| shard.at);
        let shared = Arc::new(self.share(plan, sink, start, control.limits));
        // Created before the workers start, because this thread may wait for a core. The first requests would then count as
        // earlier ones.
        let watch = LevelWatch::new(self, plan, sink.as_ref(), control, start, active).beside(&routes);
        let (done, reports) = mpsc::channel();
        for (index, (player, ahead)) in deal(plan, active).into_iter().enumerate() {
            self.tell(
                index,
                WorkerCommand::Run {
                    shared: Arc::clone(&shared),
                    player: Box::new(player),
                    ahead: Box::new(ahead),
                    done: done.clone(),
                },
            )?;
        }
        drop(done);
        let watched = watch.until_done(&reports)?;
        Ok(watched.level(plan, start, self.config.target.protocol.counts()))
    }

    /// Returns the number of workers for a level. A bounded pool and a closed loop are split, and no worker gets a share of
    /// zero.
    fn active_workers(&self, plan: &LevelPlan) -> usize {
        let mut most = self.workers.len();
        if let Connections::Pool { limit } = plan.client.connections {
            most = most.min(limit.max(1) as usize);
        }
        if let LevelTraffic::Closed { concurrency, .. } = plan.requests {
            most = most.min(concurrency.max(1) as usize);
        }
        if let Some(ceiling) = plan.client.max_in_flight {
            most = most.min(ceiling.max(1) as usize);
        }
        most
    }

    /// Resolves each endpoint's addresses and opens connections; numbers and limits are per endpoint.
    fn warm(&self, plan: &LevelPlan, active: usize) -> Result<Vec<Route>, ClientError> {
        let routes: Vec<Route> =
            self.requests.endpoints.iter().map(|endpoint| endpoint.target.resolve()).collect();
        let policy = plan.client.connections;
        let expected = plan.connections_expected().div_ceil(routes.len() as u32);
        let wanted = match policy {
            Connections::Prewarmed => expected,
            Connections::Pool { limit } => expected.min(limit),
            Connections::Fresh => 0,
        };
        let limit = if let Connections::Pool { limit } = policy { limit } else { u32::MAX };
        let (done, warmed) = mpsc::channel();
        for index in 0..active {
            let command = WorkerCommand::Warm {
                policy,
                share: part(limit, index, active),
                routes: routes.clone(),
                wanted: part(wanted, index, active),
                connect: plan.client.timeouts.connect,
                done: done.clone(),
            };
            self.tell(index, command)?;
        }
        drop(done);
        for _ in 0..active {
            warmed.recv().map_err(|_| ClientError::WorkerDied)?;
        }
        Ok(routes)
    }

    fn share(&self, plan: &LevelPlan, sink: &Arc<dyn Sink>, start: At, limits: StopLimits) -> LevelContext {
        LevelContext {
            id: plan.id,
            start,
            window: plan.window,
            open: matches!(plan.requests, LevelTraffic::Open(_)),
            run_id: self.config.run_id.clone(),
            sink: Arc::clone(sink),
            requests: self.requests.clone(),
            client: plan.client.clone(),
            prompts: Arc::clone(&plan.prompts),
            keep_text: self.config.keep_text,
            limits: (limits, self.live.clone()),
        }
    }

    fn tell(&self, worker: usize, command: WorkerCommand) -> Result<(), ClientError> {
        self.workers[worker].send(command).map_err(|_| ClientError::WorkerDied)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.workers.clear();
        for thread in self.threads.drain(..) {
            // A worker that panicked has reported it on stderr and in the level's result.
            let _ = thread.join();
        }
    }
}

/// Returns part `index` of `of` parts of `whole`; the parts add up to `whole`.
fn part(whole: u32, index: usize, of: usize) -> u32 {
    let (of, index) = (of.max(1) as u32, index as u32);
    whole / of + u32::from(index < whole % of)
}

fn deal(plan: &LevelPlan, workers: usize) -> Vec<(Player, BodyPrefetcher)> {
    let ceiling = |index| plan.client.max_in_flight.map(|most| part(most, index, workers));
    let until = At(plan.window.0);
    let to_their_ends =
        |player: Player| if plan.plays_sessions_out { player.to_their_ends() } else { player };
    let shards = plan.shard.map_or(1, |start| start.shard.of);
    match &plan.requests {
        LevelTraffic::Open(schedule) => Arc::unwrap_or_clone(Arc::clone(schedule))
            .deal_part(shards, workers)
            .into_iter()
            .enumerate()
            .map(|(index, arrivals)| {
                let player = Player::open(arrivals, &plan.client, plan.seed);
                let ahead = BodyPrefetcher::of(Arc::clone(schedule), shards, index, workers);
                (to_their_ends(player.until(until)).with_ceiling(ceiling(index)), ahead)
            })
            .collect(),
        LevelTraffic::Closed { sequence, concurrency } => (0..workers)
            .map(|index| {
                let sequence = sequence.shard(index, workers);
                let share = part(*concurrency, index, workers);
                let player = Player::closed(sequence, share, until, &plan.client, plan.seed);
                let player = to_their_ends(player).with_ceiling(ceiling(index));
                (player.with_pace(plan.pace(workers)), BodyPrefetcher::default())
            })
            .collect(),
    }
}
