//! Sequential tests on traffic of known distributions: frequency and delay of alarms over sixty checks of 500 requests.

use plimsoll_judge::sequential::{PairWatch, PercentileGuard, SequentialSpec, SequentialVerdict};
use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_model::Span;

use plimsoll_lab::queues::{Queue, Servers};

pub const LOOKS: usize = 60;
pub const BLOCK: usize = 500;

/// The source of latencies.
#[derive(Copy, Clone, PartialEq)]
pub enum Traffic {
    /// Independent latencies, exponential with mean 1.
    Independent,
    /// Sojourn times of M/M/16 at 80 % load.
    Queue,
}

impl Traffic {
    fn source(self, seed: u64, arm: &str) -> Source {
        let mut source =
            Source { traffic: self, stream: Stream::new(seed, arm, 0), queue: Servers::new(16, 0.8, false) };
        if self == Traffic::Queue {
            source.queue.run(&mut source.stream, 2_000);
        }
        source
    }
}

struct Source {
    traffic: Traffic,
    stream: Stream,
    queue: Servers,
}

impl Source {
    fn take(&mut self, n: usize) -> Vec<f64> {
        match self.traffic {
            Traffic::Independent => (0..n).map(|_| exponential(&mut self.stream, 1.0)).collect(),
            Traffic::Queue => self.queue.run(&mut self.stream, n),
        }
    }
}

/// The check of the alarm per replication; `None` if there was none.
pub type Alarms = Vec<Option<usize>>;

/// Returns the share of replications with an alarm.
pub fn alarmed(alarms: &Alarms) -> f64 {
    alarms.iter().flatten().count() as f64 / alarms.len() as f64
}

const TOOK: Span = Span::from_secs(1);

fn is_harm(verdict: &SequentialVerdict) -> bool {
    matches!(verdict, SequentialVerdict::Harm { .. })
}

/// Tests two targets in alternation without margins: p50, p95 and p99 together. The candidate is `slower` times as slow.
pub fn pairs(traffic: Traffic, slower: f64, replications: u64) -> Alarms {
    let guards = [0.5, 0.95, 0.99].map(|percentile| PercentileGuard { percentile, margin: 0.0 });
    (0..replications)
        .map(|i| {
            let (mut a, mut b) = (traffic.source(i, "a"), traffic.source(i, "b"));
            let mut watch = PairWatch::new(SequentialSpec::default(), &guards);
            (1..=LOOKS).find(|_| {
                let candidate: Vec<f64> = b.take(BLOCK).iter().map(|v| v * slower).collect();
                watch.push(&a.take(BLOCK), &candidate, TOOK);
                is_harm(&watch.verdict())
            })
        })
        .collect()
}

/// Tests two targets with the default margins; returns the check of the promotion.
pub fn promoted(traffic: Traffic, slower: f64, replications: u64) -> Alarms {
    (0..replications)
        .map(|i| {
            let (mut a, mut b) = (traffic.source(i, "a"), traffic.source(i, "b"));
            let mut watch = PairWatch::new(SequentialSpec::default(), &plimsoll_judge::sequential::guards());
            (1..=LOOKS).find(|_| {
                let candidate: Vec<f64> = b.take(BLOCK).iter().map(|v| v * slower).collect();
                watch.push(&a.take(BLOCK), &candidate, TOOK);
                watch.verdict() == SequentialVerdict::Promote
            })
        })
        .collect()
}
