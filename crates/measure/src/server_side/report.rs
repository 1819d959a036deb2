//! The server-side results per level for the report of a run.
//!
//! A signal that a server does not report is `None` and shown as unknown. Gauges are only as accurate as the scrape interval.
//! The report therefore also has the mean queue by Little's law, which includes queues between two scrapes.

use plimsoll_model::{Sample, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::machine::{self, GpuReport, HostReport};
use super::{Bracket, ServerSide, Signal};
use crate::findings::LevelFinding;

/// Metrics that servers reported during a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerReport {
    /// Usual scrape interval in seconds; `null` if unknown.
    pub cadence_s: Option<f64>,
    /// Number of scrapes, including failed ones.
    #[serde(alias = "looks")]
    pub scrapes: u64,
    /// Number of failed scrapes.
    pub failed: u64,
    /// Number of replicas that can be distinguished.
    pub replicas: usize,
    /// Remarks on the figures, one sentence each.
    pub notes: Vec<String>,
    /// Results of the levels in order of execution.
    pub levels: Vec<LevelReport>,
}

/// Metrics of the servers during the steady window of one level; `null` if a server does not report the metric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelReport {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Number of scrapes that the gauges are based on.
    #[serde(alias = "looks")]
    pub scrapes: usize,
    /// Requests in the queue, time-weighted mean.
    pub waiting: Option<f64>,
    /// Largest observed number of requests in the queue.
    pub waiting_max: Option<f64>,
    /// Mean requests in the queue by Little's law, from the queue-time histogram.
    pub waiting_by_little: Option<f64>,
    /// Requests in the batch, time-weighted mean.
    pub running: Option<f64>,
    /// Largest observed number of requests in the batch.
    pub running_max: Option<f64>,
    /// Maximum number of requests in the batch that the server allows.
    pub running_limit: Option<f64>,
    /// Mean batch size per step, if the server counts items and steps.
    pub batch: Option<f64>,
    /// KV cache usage, time-weighted mean, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Largest observed KV cache usage, 0 to 1.
    pub kv_usage_max: Option<f64>,
    /// Share of the looked-up prompt tokens that were in the prefix cache, 0 to 1.
    pub prefix_hits: Option<f64>,
    /// Share of the prompt tokens whose KV came from outside the engine, 0 to 1.
    #[serde(default)]
    pub transferred: Option<f64>,
    /// Mean tokens per check of a draft (speculative decoding), including the model's own token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_length: Option<f64>,
    /// Share of the tokens proposed by drafts that the model accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<f64>,
    /// Number of preemptions of running requests.
    pub preempted: Option<f64>,
    /// Mean queue time in seconds.
    pub queue_s: Option<f64>,
    /// Lower and upper edge of the bucket that contains the p99 of the queue time, in seconds; no upper edge above the last bucket.
    pub queue_p99_s: Option<(f64, Option<f64>)>,
    /// Share of time with any kernel on the GPU, 0 to 1. The value lags and is no measure of load.
    pub gpu_utilisation: Option<f64>,
    /// Share of time in which multiprocessors are active, 0 to 1.
    pub sm_active: Option<f64>,
    /// Share of time in which GPU memory transfers data, 0 to 1.
    pub dram_active: Option<f64>,
    /// Lowest observed clock of the multiprocessors in Hz.
    pub sm_clock_min: Option<f64>,
    /// Mean power in W.
    pub power_w: Option<f64>,
    /// Energy per output token in J, of the counters of both.
    pub joules_per_token: Option<f64>,
    /// Energy, memory and limits of the GPUs; absent if no GPU reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuReport>,
    /// CPUs and containers of the machine; absent if no exporter reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostReport>,
    /// Gauges during the level, in the buckets of the level's timeline; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub course: Vec<ServerMoment>,
}

/// Time-weighted means of gauges during one bucket of a level's timeline; `null` if unknown.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerMoment {
    /// Middle of the bucket, in seconds from the start of the level.
    pub at_s: f64,
    /// Number of requests in the running batch.
    pub running: Option<f64>,
    /// Number of requests in the server's queue.
    pub waiting: Option<f64>,
    /// KV cache usage, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Power of all GPUs in W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Share of time in which multiprocessors are active, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_active: Option<f64>,
    /// Share of time in which GPU memory transfers data, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dram_active: Option<f64>,
    /// Used memory of all GPUs in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<f64>,
    /// Clock of the slowest GPU in Hz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock: Option<f64>,
}

/// Returns the metrics that servers reported during these levels; `None` if there was no scrape.
pub fn report(levels: &[LevelFinding], samples: &[Sample]) -> Option<ServerReport> {
    let server = ServerSide::read(samples);
    let seen = server.disclosures();
    if seen.scrapes == 0 {
        return None;
    }
    let levels: Vec<LevelReport> = levels.iter().map(|level| level_report(&server, level)).collect();
    let mut notes = notes(&server);
    if levels.iter().any(|level| level.accepted_length.is_some()) {
        notes.push(
            "the server drafts tokens (speculative decoding): the accepted number depends on the text, so figures of synthetic prompts do not \
             apply to real prompts"
                .to_owned(),
        );
    }
    Some(ServerReport {
        cadence_s: server.cadence().map(|cadence| cadence.as_secs_f64()),
        scrapes: seen.scrapes,
        failed: seen.failed,
        replicas: server.replicas().len(),
        notes,
        levels,
    })
}

fn level_report(server: &ServerSide, level: &LevelFinding) -> LevelReport {
    let window = &level.summary.window;
    let (from, to) = (window.start, window.stop);
    let mean = |signal| server.gauge(signal)?.mean(from, to);
    let max = |signal| server.gauge(signal)?.max(from, to);
    let min = |signal| server.gauge(signal)?.min(from, to);
    let gained = |signal| Some(server.gained(signal, from, to)?.value);
    let ratio = |over, under| {
        let under = gained(under).filter(|under| *under > 0.0)?;
        Some(gained(over)? / under)
    };
    let queue = server.histogram(Signal::QueueTime, from, to);
    let bracket = |p: Bracket| (p.lower, p.upper);
    let waiting = server.gauge(Signal::Waiting);
    LevelReport {
        level: level.summary.level,
        scrapes: server.gauge(Signal::Running).or(waiting).map_or(0, |gauge| gauge.scrapes(from, to)),
        waiting: mean(Signal::Waiting),
        waiting_max: max(Signal::Waiting),
        waiting_by_little: server.waiting_by_little(from, to),
        running: mean(Signal::Running),
        running_max: max(Signal::Running),
        running_limit: max(Signal::MaxRunning),
        batch: ratio(Signal::Items, Signal::Steps),
        kv_usage: mean(Signal::KvUsage),
        kv_usage_max: max(Signal::KvUsage),
        prefix_hits: ratio(Signal::PrefixHit, Signal::PrefixQueried),
        transferred: ratio(Signal::TransferredTokens, Signal::PromptTokens),
        accepted_length: server.accepted_length(from, to),
        accepted: ratio(Signal::AcceptedTokens, Signal::DraftTokens),
        preempted: gained(Signal::Preempted),
        queue_s: queue.as_ref().and_then(|queue| queue.mean()),
        queue_p99_s: queue.as_ref().and_then(|queue| queue.quantile(0.99)).map(bracket),
        gpu_utilisation: mean(Signal::GpuUtilisation),
        sm_active: mean(Signal::SmActive),
        dram_active: mean(Signal::DramActive),
        sm_clock_min: min(Signal::SmClock),
        power_w: mean(Signal::GpuPower),
        joules_per_token: ratio(Signal::GpuEnergy, Signal::OutputTokens),
        gpu: machine::gpus(server, level),
        host: machine::host(server, level),
        course: course(server, level),
    }
}

/// Returns the gauges in the buckets of the timeline, so that both charts have one time axis.
fn course(server: &ServerSide, level: &LevelFinding) -> Vec<ServerMoment> {
    let (window, timeline) = (&level.summary.window, &level.summary.timeline);
    let start = window.start - Span::from_secs_f64(window.warm_up_s);
    let gauges = [
        Signal::Running,
        Signal::Waiting,
        Signal::KvUsage,
        Signal::GpuPower,
        Signal::SmActive,
        Signal::DramActive,
        Signal::GpuMemoryUsed,
        Signal::SmClock,
    ];
    let gauges = gauges.map(|signal| server.gauge(signal));
    if gauges.iter().all(Option::is_none) {
        return Vec::new();
    }
    let moment = |at_s: f64| {
        let from = start + Span::from_secs_f64(at_s);
        let to = from + Span::from_secs_f64(timeline.bucket_s);
        let [running, waiting, kv_usage, power_w, sm_active, dram_active, gpu_memory, sm_clock] =
            gauges.each_ref().map(|gauge| gauge.as_ref().and_then(|gauge| gauge.mean(from, to)));
        let at_s = at_s + 0.5 * timeline.bucket_s;
        ServerMoment {
            at_s,
            running,
            waiting,
            kv_usage,
            power_w,
            sm_active,
            dram_active,
            gpu_memory,
            sm_clock,
        }
    };
    timeline.buckets.iter().map(|bucket| moment(bucket.at_s)).collect()
}

fn notes(server: &ServerSide) -> Vec<String> {
    let seen = server.disclosures();
    let mut notes = Vec::new();
    if seen.failed > 0 {
        let why: Vec<String> = seen.failures.iter().map(|(why, n)| format!("{why} × {n}")).collect();
        notes.push(format!(
            "{} of {} scrapes failed ({}): gaps there",
            seen.failed,
            seen.scrapes,
            why.join(", ")
        ));
    }
    if seen.alternates {
        notes.push(
            "counters decrease repeatedly: several processes answer behind one address, and their counters are not used; name \
             each page with --scrape"
                .to_owned(),
        );
    } else if seen.resets > 0 {
        notes.push(format!(
            "counters restarted {}: the server restarted",
            crate::say::count(u64::from(seen.resets), "time")
        ));
    }
    if seen.per_process {
        notes.push("gauges are per process: their sum is that of the processes on the page".to_owned());
    }
    notes
}
