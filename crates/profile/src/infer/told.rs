//! The mean queue and prefill times from the server's metrics, over exactly known requests.
//!
//! Sums and counts of a histogram are exact even if its buckets are too wide (vLLM's queue histogram starts at 0.3
//! s). A server counts a request when it ends, so the difference of two scrapes covers the requests that ended in
//! between. The client knows these requests by name, and compares its own figures with the means. Queueing varies
//! with the arrivals, so a mean over other requests would differ.
//!
//! If the metrics have no times but a gauge of waiting requests, its mean over the rate is the mean wait (J. D. C.
//! Little, 1961).

use plimsoll_model::{At, Sample};

use plimsoll_measure::server_side::{ServerSide, Signal};

/// A server-reported mean over the requests that ended in `(from, to]`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ReportedMean {
    pub mean_ns: f64,
    /// Uncertainty in ns: 0 for a sum over a count.
    pub half_ns: f64,
    /// Number of requests in the server's count.
    pub count: f64,
    pub from: At,
    pub to: At,
}

/// The reported stage means of a level; `None` if not exported.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct ReportedStages {
    pub queue: Option<ReportedMean>,
    pub prefill: Option<ReportedMean>,
    /// Waiting requests over the rate, if no queue time is exported.
    pub waiting: Option<ReportedMean>,
    /// Mean input time of a model that does not generate.
    pub input: Option<ReportedMean>,
    pub inference: Option<ReportedMean>,
    pub output: Option<ReportedMean>,
}

/// Minimum number of scrapes for the mean of a gauge.
const FEWEST_LOOKS: usize = 8;
/// Minimum number of requests for a reported mean.
const FEWEST_TOLD: f64 = 20.0;

impl ReportedStages {
    /// Reads the metrics between `from` and `to` from the run's samples and the number of requests that ended in an
    /// interval.
    pub fn read<'a>(
        samples: impl IntoIterator<Item = &'a Sample, IntoIter: Clone>,
        (from, to): (At, At),
        ended: impl Fn(At, At) -> usize,
    ) -> ReportedStages {
        let side = ServerSide::read(samples);
        // A counter reset means a restarted process; alternating counters belong to several processes.
        if side.is_empty() || side.disclosures().alternates {
            return ReportedStages::default();
        }
        let histogram = |signal: Signal| -> Option<ReportedMean> {
            let taken = side.histogram(signal, from, to).filter(|taken| taken.resets == 0)?;
            let count = taken.count.filter(|count| *count >= FEWEST_TOLD)?;
            Some(ReportedMean {
                mean_ns: 1e9 * taken.mean()?,
                half_ns: 0.0,
                count,
                from: taken.from,
                to: taken.to,
            })
        };
        ReportedStages {
            queue: histogram(Signal::QueueTime),
            prefill: histogram(Signal::PrefillTime),
            waiting: waiting(&side, (from, to), ended),
            input: histogram(Signal::InputTime),
            inference: histogram(Signal::InferenceTime),
            output: histogram(Signal::OutputTime),
        }
    }
}

fn waiting(side: &ServerSide, (from, to): (At, At), ended: impl Fn(At, At) -> usize) -> Option<ReportedMean> {
    let series = side.gauge(Signal::Waiting)?;
    let values: Vec<f64> = series.clipped(from, to).map(|step| step.value).collect();
    if values.len() < FEWEST_LOOKS {
        return None;
    }
    let count = ended(from, to);
    let rate = count as f64 / (to - from).as_secs_f64().max(1e-9);
    let mean = series.mean(from, to)?;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
    // Scrapes a few seconds apart are nearly independent below saturation; uses twice the standard error of their
    // mean.
    let half = 2.0 * (variance / values.len() as f64).sqrt();
    (rate > 0.0).then_some(ReportedMean {
        mean_ns: 1e9 * mean / rate,
        half_ns: 1e9 * half / rate,
        count: count as f64,
        from,
        to,
    })
}
