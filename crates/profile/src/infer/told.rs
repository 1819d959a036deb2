//! What the server's metrics page says of the mean queue and prefill, over exactly the requests it says it of.
//!
//! Sums and counts of a histogram are exact even where its buckets are far too wide (vLLM's queue begins at 0.3 s). A server
//! books a request when it ends, so the difference between two looks at the page is about the requests that ended between
//! them: those, the client knows by name, and holds its own figures against. Queueing under load moves with the arrivals, and
//! a mean over other requests would be another figure.
//!
//! Where a page has no times but counts those that wait, their mean over the rate is the mean wait (J. D. C. Little, 1961).

use plimsoll_model::{At, Sample};

use plimsoll_measure::server_side::{ServerSide, Signal};

/// A mean that the server told, over the requests that ended in `(from, to]`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ReportedMean {
    /// The mean, ns.
    pub mean_ns: f64,
    /// How far it may be off, ns: nothing for a sum over a count.
    pub half_ns: f64,
    /// Requests it is of, as the server counts.
    pub count: f64,
    pub from: At,
    pub to: At,
}

/// What was told of a level.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct ToldStages {
    pub queue: Option<ReportedMean>,
    pub prefill: Option<ReportedMean>,
    /// Requests in the queue over the rate, where no time in it is told.
    pub waiting: Option<ReportedMean>,
    /// On the inputs of a model that does not generate.
    pub input: Option<ReportedMean>,
    pub inference: Option<ReportedMean>,
    pub output: Option<ReportedMean>,
}

/// Fewest looks of a gauge from which a mean is made.
const FEWEST_LOOKS: usize = 8;
/// Fewest requests that a told mean is of.
const FEWEST_TOLD: f64 = 20.0;

impl ToldStages {
    /// Reads what servers said from `from` to `to`: the run's samples, and how many requests ended in an interval.
    pub fn read<'a>(
        samples: impl IntoIterator<Item = &'a Sample>,
        (from, to): (At, At),
        ended: impl Fn(At, At) -> usize,
    ) -> ToldStages {
        let side = ServerSide::read(samples);
        // A counter that went back was of a process that is gone; two that take turns are of nobody.
        if side.is_empty() || side.disclosures().alternates {
            return ToldStages::default();
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
        ToldStages {
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
    // Looks a few seconds apart hardly depend on each other below saturation; twice the error of their mean.
    let half = 2.0 * (variance / values.len() as f64).sqrt();
    (rate > 0.0).then_some(ReportedMean {
        mean_ns: 1e9 * mean / rate,
        half_ns: 1e9 * half / rate,
        count: count as f64,
        from,
        to,
    })
}
