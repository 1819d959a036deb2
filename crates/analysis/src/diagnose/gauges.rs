//! The server's gauges and counters during a level, one series per meaning.
//!
//! What was never read is an empty series, which every rule treats as unknown. Values of several replicas or processes are
//! summed at each look (the use of a cache is their greatest), because a rule asks of the whole first.

use std::collections::BTreeMap;

use plimsoll_model::{Level, Sample};

use super::Side;

/// One series: seconds since the level began, value.
pub type Series = Vec<(f64, f64)>;

/// The series that rules ask for.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Sequences being computed.
    pub running: Series,
    /// Requests waiting in the engine.
    pub waiting: Series,
    /// Use of the KV cache, 0 to 1, of the fullest replica.
    pub kv: Series,
    /// Preemptions, counted since the level began.
    pub preempted: Option<f64>,
    /// Tokens looked up in the prefix cache and found there, during the level.
    pub prefix: Option<(f64, f64)>,
    /// Requests in flight as the client counts them.
    pub in_flight: Series,
    /// Most sequences that may run, all replicas together, where it is told.
    pub max_seqs: Option<f64>,
}

impl Gauges {
    /// Reads the samples of a level.
    pub fn read(side: &Side<'_>, level: &Level) -> Gauges {
        let own: Vec<&Sample> =
            side.samples.iter().filter(|s| s.at >= level.start && s.at < level.drained).collect();
        let named = |names: &[&str]| -> BTreeMap<i64, Vec<f64>> {
            let mut at: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
            for sample in own.iter().filter(|s| names.contains(&s.name.as_str()) && s.value.is_finite()) {
                at.entry((sample.at - level.start).0).or_default().push(sample.value);
            }
            at
        };
        let seconds = |ns: i64| ns as f64 / 1e9;
        let sum = |names: &[&str]| -> Series {
            named(names).into_iter().map(|(at, of)| (seconds(at), of.iter().sum())).collect()
        };
        let grown = |names: &[&str]| {
            let series = sum(names);
            // A restart sets a counter back; what was counted before it still counts.
            let steps = series.windows(2).map(|pair| (pair[1].1 - pair[0].1).max(0.0));
            (series.len() > 1).then(|| steps.sum::<f64>())
        };
        let kv = named(&["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"]);
        let fact = |name: &str| -> Option<f64> { side.facts.facts.get(name)?.as_ref()?.parse().ok() };
        let queries = grown(&["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"]);
        let hits = grown(&["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"]);
        Gauges {
            running: sum(&["vllm:num_requests_running", "sglang:num_running_reqs"]),
            waiting: sum(&["vllm:num_requests_waiting", "sglang:num_queue_reqs"]),
            kv: kv
                .into_iter()
                .map(|(at, of)| (seconds(at), of.iter().copied().fold(0.0, f64::max)))
                .collect(),
            preempted: grown(&["vllm:num_preemptions_total", "sglang:num_retractions_total"]),
            prefix: queries.zip(hits),
            in_flight: sum(&["in_flight"]),
            max_seqs: fact("max_seqs").map(|seqs| seqs * fact("replicas").unwrap_or(1.0).max(1.0)),
        }
    }

    /// Did anybody read the server's side?
    pub fn any(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }
}

/// The mean of a series; `None` of an empty one.
pub fn mean(series: &[(f64, f64)]) -> Option<f64> {
    (!series.is_empty()).then(|| series.iter().map(|point| point.1).sum::<f64>() / series.len() as f64)
}
