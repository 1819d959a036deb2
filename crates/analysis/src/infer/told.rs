//! What the server's metrics page says of the mean queue and prefill, over exactly the requests it says it of.
//!
//! Sums and counts of a histogram are exact even where its buckets are far too wide (vLLM's queue begins at 0.3 s). A server
//! books a request when it ends, so the difference between two looks at the page is about the requests that ended between
//! them: those, the client knows by name, and holds its own figures against. Queueing under load moves with the arrivals, and
//! a mean over other requests would be another figure.
//!
//! Where a page has no times but counts those that wait, their mean over the rate is the mean wait (J. D. C. Little, 1961).

use plimsoll_model::{At, Sample};

/// A mean that the server told, over the requests that ended in `(from, to]`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Told {
    /// The mean, ns.
    pub mean_ns: f64,
    /// How far it may be off, ns: nothing for a sum over a count.
    pub half_ns: f64,
    /// Requests it is of, as the server counts.
    pub count: f64,
    /// First look.
    pub from: At,
    /// Last look.
    pub to: At,
}

/// What was told of a level.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct ToldStages {
    /// In the queue.
    pub queue: Option<Told>,
    /// On the prompt.
    pub prefill: Option<Told>,
    /// Requests in the queue over the rate, where no time in it is told.
    pub waiting: Option<Told>,
}

/// Names of histograms of seconds: vLLM's, SGLang's, TGI's, TensorRT-LLM's.
const QUEUE: [&str; 4] = [
    "vllm:request_queue_time_seconds",
    "sglang:queue_time_seconds",
    "tgi_request_queue_duration",
    "trtllm_request_queue_time_seconds",
];
const PREFILL: [&str; 1] = ["vllm:request_prefill_time_seconds"];
const WAITING: [&str; 4] =
    ["vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size", "trtllm_num_requests_waiting"];
/// Fewest looks of a gauge from which a mean is made.
const FEWEST_LOOKS: usize = 8;

impl ToldStages {
    /// Reads the series that were scraped during a level. `ended` says how many requests ended in an interval.
    pub fn read(samples: &[&Sample], (from, to): (At, At), ended: impl Fn(At, At) -> usize) -> ToldStages {
        let within = |name: &str| series(samples, name, from, to);
        let histogram = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| mean(&within(&format!("{name}_sum")), &within(&format!("{name}_count"))))
        };
        let waiting = WAITING.iter().map(|name| within(name)).find(|points| points.len() >= FEWEST_LOOKS);
        ToldStages {
            queue: histogram(&QUEUE),
            prefill: histogram(&PREFILL),
            waiting: waiting.and_then(|points| little(&points, ended)),
        }
    }
}

/// The points of a series in `[from, to]`, the lines of several engines added up.
fn series(samples: &[&Sample], name: &str, from: At, to: At) -> Vec<(At, f64)> {
    let mut points: Vec<(At, f64)> = Vec::new();
    for sample in samples.iter().filter(|s| s.source == "server" && s.name == name) {
        if sample.at < from || sample.at > to || !sample.value.is_finite() {
            continue;
        }
        match points.last_mut() {
            Some(last) if last.0 == sample.at => last.1 += sample.value,
            _ => points.push((sample.at, sample.value)),
        }
    }
    points.sort_by_key(|point| point.0);
    points
}

/// From the first look to the last. A counter that falls was reset, and what it says then is of another process: nothing.
fn mean(sums: &[(At, f64)], counts: &[(At, f64)]) -> Option<Told> {
    let falls = |points: &[(At, f64)]| points.windows(2).any(|pair| pair[1].1 < pair[0].1);
    if falls(sums) || falls(counts) {
        return None;
    }
    let (first, last) = (sums.first()?, sums.last()?);
    let at = |when: At| counts.iter().find(|point| point.0 == when).map(|point| point.1);
    let count = at(last.0)? - at(first.0)?;
    // Seconds to ns.
    let mean_ns = 1e9 * (last.1 - first.1) / count;
    (count >= 20.0).then_some(Told { mean_ns, half_ns: 0.0, count, from: first.0, to: last.0 })
}

fn little(points: &[(At, f64)], ended: impl Fn(At, At) -> usize) -> Option<Told> {
    let (from, to) = (points.first()?.0, points.last()?.0);
    let count = ended(from, to);
    let rate = count as f64 / (to - from).as_secs_f64().max(1e-9);
    let values: Vec<f64> = points.iter().map(|point| point.1).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
    // Looks a few seconds apart hardly depend on each other below saturation; twice the error of their mean.
    let half = 2.0 * (variance / values.len() as f64).sqrt();
    (rate > 0.0).then_some(Told {
        mean_ns: 1e9 * mean / rate,
        half_ns: 1e9 * half / rate,
        count: count as f64,
        from,
        to,
    })
}
