//! Sequential tests on traffic of known distributions: frequency and delay of alarms over sixty checks of 500 requests.

use plimsoll_judge::sequential::{
    BaselinePercentile, CeilingWatch, PairWatch, PercentileGuard, SequentialSpec, SequentialVerdict,
};
use plimsoll_math::dist::exponential;
use plimsoll_math::proportion::proves_over;
use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_math::queueing::Mmc;
use plimsoll_math::rng::Stream;
use plimsoll_model::Span;

use plimsoll_lab::queues::{Queue, Servers};

pub const LOOKS: usize = 60;
pub const BLOCK: usize = 500;
/// Number of requests of an earlier baseline.
pub const BASELINE: usize = 12_000;

/// The source of latencies.
#[derive(Copy, Clone, PartialEq)]
pub enum Traffic {
    /// Independent latencies, exponential with mean 1.
    Independent,
    /// Sojourn times of M/M/16 at 80 % load.
    Queue,
}

impl Traffic {
    /// Returns the p99 of the latency.
    pub fn p99(self) -> f64 {
        match self {
            Traffic::Independent => 100f64.ln(),
            Traffic::Queue => Mmc { servers: 16, load: 0.8, service_mean: 1.0 }.sojourn_quantile(0.99),
        }
    }

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

/// Returns the median check of the alarm, if more than half of the replications have one.
pub fn median_delay(alarms: &Alarms) -> Option<usize> {
    let mut looks: Vec<usize> = alarms.iter().map(|look| look.unwrap_or(usize::MAX)).collect();
    looks.sort_unstable();
    Some(looks[looks.len() / 2]).filter(|look| *look < usize::MAX)
}

const TOOK: Span = Span::from_secs(1);

fn is_harm(verdict: &SequentialVerdict) -> bool {
    matches!(verdict, SequentialVerdict::Harm { .. })
}

/// Tests a fixed p99. Independent traffic exceeds it `times` as often as allowed; the queue exceeds it exactly as often.
pub fn fixed(traffic: Traffic, times: f64, replications: u64) -> Alarms {
    let ceiling = match traffic {
        Traffic::Independent => -(0.01 * times).ln(),
        Traffic::Queue => traffic.p99(),
    };
    (0..replications)
        .map(|i| {
            let mut source = traffic.source(i, "fixed");
            let mut watch = CeilingWatch::new(SequentialSpec::default(), 0.99, ceiling);
            (1..=LOOKS).find(|_| {
                watch.push(&source.take(BLOCK), TOOK);
                is_harm(&watch.verdict())
            })
        })
        .collect()
}

/// Applies the fixed-sample test at 5 % to the counts so far at every check, as if each check were the only one.
pub fn fixed_sample(traffic: Traffic, times: f64, replications: u64) -> Alarms {
    let ceiling = match traffic {
        Traffic::Independent => -(0.01 * times).ln(),
        Traffic::Queue => traffic.p99(),
    };
    (0..replications)
        .map(|i| {
            let mut source = traffic.source(i, "fixed");
            let mut over = 0.0;
            (1..=LOOKS).find(|look| {
                over += source.take(BLOCK).iter().filter(|v| **v > ceiling).count() as f64;
                proves_over(over, (look * BLOCK) as f64, 0.01, 0.05)
            })
        })
        .collect()
}

/// The source of a baseline's ceiling.
#[derive(Copy, Clone, PartialEq)]
pub enum Against {
    /// Measured quantile, treated as the true one.
    Point,
    /// Upper end of the quantile's interval.
    Bound,
}

/// Tests an equal candidate against the p99 of a baseline of 12 000 requests.
pub fn measured(traffic: Traffic, against: Against, replications: u64) -> Alarms {
    let spec = SequentialSpec::default();
    (0..replications)
        .filter_map(|i| {
            let before = traffic.source(i, "baseline").take(BASELINE);
            let mut watch = match against {
                Against::Point => {
                    let mut sorted = before.clone();
                    sort(&mut sorted);
                    CeilingWatch::new(spec, 0.99, of_sorted(&sorted, 0.99)?)
                }
                Against::Bound => CeilingWatch::against(
                    spec,
                    0.99,
                    BaselinePercentile::new(&before, 0.99, spec.alpha).ok()?,
                ),
            };
            let mut source = traffic.source(i, "candidate");
            Some((1..=LOOKS).find(|_| {
                watch.push(&source.take(BLOCK), TOOK);
                is_harm(&watch.verdict())
            }))
        })
        .collect()
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
