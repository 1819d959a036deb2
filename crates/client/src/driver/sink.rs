//! Defines the receiver of rows and samples. The driver writes no files; its caller supplies a sink.

use std::sync::Mutex;

use plimsoll_model::{Attempt, Sample};

/// The receiver of finished rows from every worker thread. It must not block, because a waiting worker is late for the next
/// arrival.
pub trait Sink: Send + Sync {
    fn attempt(&self, attempt: Attempt);
    /// Receives the start of a closed loop's attempt: the row to record if no other follows. (The starts of an open loop
    /// follow from its schedule.)
    fn begun(&self, _attempt: &Attempt) {}
    /// Receives a point of the generator's own time series.
    fn sample(&self, sample: Sample);
}

/// A sink in memory, in order of arrival, for tests, benches and short probes.
#[derive(Debug, Default)]
pub struct MemorySink {
    attempts: Mutex<Vec<Attempt>>,
    samples: Mutex<Vec<Sample>>,
}

impl MemorySink {
    /// Removes and returns the rows received so far.
    pub fn take_attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }

    pub fn take_samples(&self) -> Vec<Sample> {
        self.samples.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

impl Sink for MemorySink {
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
