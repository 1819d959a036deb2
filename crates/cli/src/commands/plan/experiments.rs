//! Runs a plan's experiments on two threads within a strict time limit.
//!
//! Experiments are pure and can't be stopped half-way. At the time limit or on a user stop the threads are
//! abandoned; the results so far are final, and the process ends soon after. Waiting for the last experiment
//! was rejected because a day's trace takes seconds, which would exceed the limit of a minute.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_model::Span;
use plimsoll_plan::planner::Planner;
use plimsoll_plan::{Experiment, ExperimentOutcome, PlanError, simulate};
use plimsoll_report::figure;

use crate::screen::{KeyWatch, Screen};

const THREADS: usize = 2;

/// Polling interval of the clock and the keyboard.
const POLL: Duration = Duration::from_millis(50);

/// The time limit of planning, and the stop key.
pub struct TimeLimit {
    clock: Clock,
    time: Span,
    stopped: Arc<AtomicBool>,
    screen: Screen,
    quiet: bool,
    watch: Option<KeyWatch>,
}

/// The reason for the end of simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlanEnd {
    /// All required results are known.
    Known,
    Time,
    Stopped,
}

impl TimeLimit {
    /// Starts the time limit. Until [`TimeLimit::watch`] a Ctrl-C ends the process, because no result exists yet.
    pub fn start(time: Span, quiet: bool) -> TimeLimit {
        let stopped = Arc::new(AtomicBool::new(false));
        TimeLimit { clock: Clock::start(), time, stopped, screen: Screen::new(quiet), quiet, watch: None }
    }

    /// Changes Ctrl-C: from now on it ends planning with the current result.
    pub fn watch(&mut self) {
        let on_stop = Arc::clone(&self.stopped);
        self.watch = Some(KeyWatch::start(!self.quiet, move || on_stop.store(true, Ordering::Relaxed)));
    }

    /// Returns the reason if the limit is reached.
    pub fn over(&self) -> Option<PlanEnd> {
        if self.stopped.load(Ordering::Relaxed) {
            return Some(PlanEnd::Stopped);
        }
        (self.clock.now().0 >= self.time.0).then_some(PlanEnd::Time)
    }

    pub fn show(&mut self, line: &str) {
        let elapsed_s = self.clock.now().0 as f64 / 1e9;
        self.screen.show(elapsed_s, &[line.to_owned()], line);
    }

    pub fn clear(&mut self) {
        self.screen.clear();
    }
}

/// Runs the planner's experiments until the planner is done or the limit is reached.
pub fn run(planner: &mut Planner, limit: &mut TimeLimit) -> Result<PlanEnd, PlanError> {
    let pool = Pool::start();
    let mut done = 0u32;
    loop {
        let batch = planner.next();
        if batch.is_empty() {
            return Ok(PlanEnd::Known);
        }
        let mut left = batch.len();
        let line = progress(&batch[0], done, left);
        batch.into_iter().for_each(|experiment| pool.push(experiment));
        while left > 0 {
            if let Some(ended) = limit.over() {
                pool.forget();
                return Ok(ended);
            }
            limit.show(&line);
            match pool.results.recv_timeout(POLL) {
                Ok((experiment, outcome)) => {
                    planner.take(&experiment, outcome?);
                    left -= 1;
                    done += 1;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // A thread that panicked lost its experiment.
                Err(RecvTimeoutError::Disconnected) => return Ok(PlanEnd::Stopped),
            }
        }
    }
}

/// Runs these experiments, or as many as the limit allows. The results are in input order.
pub fn play(
    experiments: Vec<Experiment>,
    limit: &mut TimeLimit,
) -> Result<Vec<ExperimentOutcome>, PlanError> {
    let pool = Pool::start();
    let mut left = experiments.len();
    experiments.iter().cloned().for_each(|experiment| pool.push(experiment));
    let mut outcomes: Vec<(u32, ExperimentOutcome)> = Vec::new();
    while left > 0 && limit.over().is_none() {
        if let Ok((experiment, outcome)) = pool.results.recv_timeout(POLL) {
            outcomes.push((experiment.draw, outcome?));
            left -= 1;
        }
    }
    pool.forget();
    outcomes.sort_by_key(|(draw, _)| *draw);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

fn progress(first: &Experiment, done: u32, batch: usize) -> String {
    let rate = first.case.traffic.rate_per_s * first.factor;
    let replicas = match first.replicas {
        1 => "1 replica".to_owned(),
        n => format!("{n} replicas"),
    };
    format!(
        "planning: {replicas} at {}, {batch} simulations ({done} done); Ctrl-C ends with the results so far",
        figure::per_second(rate)
    )
}

type ExperimentResult = (Experiment, Result<ExperimentOutcome, PlanError>);

/// A pool of threads that run experiments.
struct Pool {
    waiting: Arc<Mutex<VecDeque<Experiment>>>,
    wake: Vec<Sender<()>>,
    results: Receiver<ExperimentResult>,
}

impl Pool {
    fn start() -> Pool {
        let waiting = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, results) = mpsc::channel();
        let wake = (0..THREADS)
            .map(|_| {
                let (wake, woken) = mpsc::channel();
                let (waiting, sender) = (Arc::clone(&waiting), sender.clone());
                thread::spawn(move || work(&waiting, &woken, &sender));
                wake
            })
            .collect();
        Pool { waiting, wake, results }
    }

    fn push(&self, experiment: Experiment) {
        if let Ok(mut waiting) = self.waiting.lock() {
            waiting.push_back(experiment);
        }
        for wake in &self.wake {
            let _ = wake.send(());
        }
    }

    /// Drops the queued experiments.
    fn forget(&self) {
        if let Ok(mut waiting) = self.waiting.lock() {
            waiting.clear();
        }
    }
}

fn work(waiting: &Mutex<VecDeque<Experiment>>, woken: &Receiver<()>, results: &Sender<ExperimentResult>) {
    while woken.recv().is_ok() {
        let next = || waiting.lock().ok().and_then(|mut waiting| waiting.pop_front());
        while let Some(experiment) = next() {
            let outcome = simulate(&experiment);
            if results.send((experiment, outcome)).is_err() {
                return;
            }
        }
    }
}
