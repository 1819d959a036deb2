//! Where rows and samples go. The driver knows no file; whoever runs it hands one of these in.

use std::sync::Mutex;

use plimsoll_model::{Attempt, Sample};

/// Takes rows as they are finished, from every worker thread. Must not block: a worker that waits here is late for the
/// next arrival.
pub trait Sink: Send + Sync {
    fn attempt(&self, attempt: Attempt);
    /// An attempt of a closed loop is begun; the row says what is to be told of it if nothing more comes. (What an open loop
    /// begins follows from its schedule.)
    fn begun(&self, _attempt: &Attempt) {}
    /// A point of the generator's own time series.
    fn sample(&self, sample: Sample);
}

/// Keeps everything in memory, in the order of arrival: for tests, benches and short probes.
#[derive(Debug, Default)]
pub struct Memory {
    attempts: Mutex<Vec<Attempt>>,
    samples: Mutex<Vec<Sample>>,
}

impl Memory {
    /// Takes the rows out.
    pub fn take_attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }

    pub fn take_samples(&self) -> Vec<Sample> {
        self.samples.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

impl Sink for Memory {
    fn attempt(&self, attempt: Attempt) {
        if let Ok(mut all) = self.attempts.lock() {
            all.push(attempt);
        }
    }

    fn sample(&self, sample: Sample) {
        if let Ok(mut all) = self.samples.lock() {
            all.push(sample);
        }
    }
}
