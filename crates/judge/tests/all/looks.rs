//! Watches over traffic with a known distribution, to their end: how often they alarm, and after how many checks.
//! Each has sixty checks of 500 requests.

use plimsoll_judge::sequential::{
    Baseline, CeilingWatch, PairWatch, PercentileGuard, SequentialVerdict, WatchSpec,
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
/// Requests of a baseline that was measured before.
pub const BASELINE: usize = 12_000;

/// The source of the latencies.
#[derive(Copy, Clone, PartialEq)]
pub enum Traffic {
    /// Independent, exponential with mean 1.
    Independent,
    /// Sojourns of M/M/16 at 80 % load.
    Queue,
}

impl Traffic {
    /// The latency that one in a hundred exceeds.
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

/// Check at which the watch alarmed, by replication; `None` if it never alarmed.
pub type Alarms = Vec<Option<usize>>;

/// Returns the share of replications that alarmed.
pub fn alarmed(alarms: &Alarms) -> f64 {
    alarms.iter().flatten().count() as f64 / alarms.len() as f64
}

/// Returns the median check of the alarm, if more than half alarmed.
pub fn median_delay(alarms: &Alarms) -> Option<usize> {
    let mut looks: Vec<usize> = alarms.iter().map(|look| look.unwrap_or(usize::MAX)).collect();
    looks.sort_unstable();
    Some(looks[looks.len() / 2]).filter(|look| *look < usize::MAX)
}

const TOOK: Span = Span::from_secs(1);

fn is_harm(verdict: &SequentialVerdict) -> bool {
    matches!(verdict, SequentialVerdict::Harm { .. })
}

/// Against a fixed p99 that a share `times` as large as allowed exceeds (independent traffic), or exactly the allowed (queue).
pub fn fixed(traffic: Traffic, times: f64, replications: u64) -> Alarms {
    let ceiling = match traffic {
        Traffic::Independent => -(0.01 * times).ln(),
        Traffic::Queue => traffic.p99(),
    };
    (0..replications)
        .map(|i| {
            let mut source = traffic.source(i, "fixed");
            let mut watch = CeilingWatch::new(WatchSpec::default(), 0.99, ceiling);
            (1..=LOOKS).find(|_| {
                watch.push(&source.take(BLOCK), TOOK);
                is_harm(&watch.verdict())
            })
        })
        .collect()
}

/// The fixed-sample test at 5 %, repeated at every check on the counts so far, as if each check were the only one.
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

/// The value of a baseline that is used as the ceiling.
#[derive(Copy, Clone, PartialEq)]
pub enum Against {
    /// The measured quantile, as if it were the true one.
    Point,
    /// The upper end of its interval.
    Bound,
}

/// An equal candidate against the p99 of a baseline of 12 000 requests.
pub fn measured(traffic: Traffic, against: Against, replications: u64) -> Alarms {
    let spec = WatchSpec::default();
    (0..replications)
        .filter_map(|i| {
            let before = traffic.source(i, "baseline").take(BASELINE);
            let mut watch = match against {
                Against::Point => {
                    let mut sorted = before.clone();
                    sort(&mut sorted);
                    CeilingWatch::new(spec, 0.99, of_sorted(&sorted, 0.99)?)
                }
                Against::Bound => {
                    CeilingWatch::against(spec, 0.99, Baseline::new(&before, 0.99, spec.alpha).ok()?)
                }
            };
            let mut source = traffic.source(i, "candidate");
            Some((1..=LOOKS).find(|_| {
                watch.push(&source.take(BLOCK), TOOK);
                is_harm(&watch.verdict())
            }))
        })
        .collect()
}

/// Two arms in turn, the candidate `slower` times as slow, nothing allowed: p50, p95 and p99 together.
pub fn pairs(traffic: Traffic, slower: f64, replications: u64) -> Alarms {
    let guards = [0.5, 0.95, 0.99].map(|percentile| PercentileGuard { percentile, margin: 0.0 });
    (0..replications)
        .map(|i| {
            let (mut a, mut b) = (traffic.source(i, "a"), traffic.source(i, "b"));
            let mut watch = PairWatch::new(WatchSpec::default(), &guards);
            (1..=LOOKS).find(|_| {
                let candidate: Vec<f64> = b.take(BLOCK).iter().map(|v| v * slower).collect();
                watch.push(&a.take(BLOCK), &candidate, TOOK);
                is_harm(&watch.verdict())
            })
        })
        .collect()
}

/// Two equal arms with the usual allowances: returns the check of the promotion.
pub fn promoted(traffic: Traffic, slower: f64, replications: u64) -> Alarms {
    (0..replications)
        .map(|i| {
            let (mut a, mut b) = (traffic.source(i, "a"), traffic.source(i, "b"));
            let mut watch = PairWatch::new(WatchSpec::default(), &plimsoll_judge::sequential::guards());
            (1..=LOOKS).find(|_| {
                let candidate: Vec<f64> = b.take(BLOCK).iter().map(|v| v * slower).collect();
                watch.push(&a.take(BLOCK), &candidate, TOOK);
                watch.verdict() == SequentialVerdict::Promote
            })
        })
        .collect()
}
