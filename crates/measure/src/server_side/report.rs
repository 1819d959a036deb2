//! The few figures of the server's side that belong on a run's page, per level.
//!
//! What a server does not say stays `None` and is shown as unknown. Gauges are as often right as somebody looked; beside the mean
//! queue of the gauge stands the one of Little's law, which no scrape can miss.

use plimsoll_model::{Sample, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bracket, ServerSide, Signal};
use crate::findings::LevelFinding;

/// What servers said during a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerReport {
    /// Usual time between two scrapes, s.
    pub cadence_s: Option<f64>,
    /// Scrapes taken, failed ones included.
    #[serde(alias = "looks")]
    pub scrapes: u64,
    /// Scrapes that failed.
    pub failed: u64,
    /// Replicas that can be told apart.
    pub replicas: usize,
    /// What must be known beside the figures.
    pub notes: Vec<String>,
    /// Every level, in order of execution.
    pub levels: Vec<LevelReport>,
}

/// What servers said during the steady window of one level; `None` = they do not say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelReport {
    /// The level.
    pub level: u32,
    /// Scrapes that the gauges rest on.
    #[serde(alias = "looks")]
    pub scrapes: usize,
    /// Requests in the queue, mean over time.
    pub waiting: Option<f64>,
    /// Most that were seen there.
    pub waiting_max: Option<f64>,
    /// Mean requests in the queue by Little's law, from the queue-time histogram.
    pub waiting_by_little: Option<f64>,
    /// Requests computed at once, mean over time.
    pub running: Option<f64>,
    /// Most that were seen.
    pub running_max: Option<f64>,
    /// Most that may be.
    pub running_limit: Option<f64>,
    /// Mean batch of the steps, where the server counts items and steps.
    pub batch: Option<f64>,
    /// KV cache in use, mean over time, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Largest that was seen.
    pub kv_usage_max: Option<f64>,
    /// Prompt tokens found in the prefix cache, of those looked up.
    pub prefix_hits: Option<f64>,
    /// Prompt tokens whose KV came from outside the engine, over all.
    #[serde(default)]
    pub transferred: Option<f64>,
    /// Tokens that each check of a draft brought (speculative decoding), the model's own counted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_length: Option<f64>,
    /// Share of the tokens proposed by drafts that the model accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<f64>,
    /// Times that a running request lost its place.
    pub preempted: Option<f64>,
    /// Mean time in the queue, s.
    pub queue_s: Option<f64>,
    /// Bucket that the p99 of the time in the queue lies in, s; no upper edge = above the last.
    pub queue_p99_s: Option<(f64, Option<f64>)>,
    /// Share of time with any kernel on the GPU: lags, and is no measure of load.
    pub gpu_utilisation: Option<f64>,
    /// Share of time in which multiprocessors are at work.
    pub sm_active: Option<f64>,
    /// Share of time in which GPU memory moves data.
    pub dram_active: Option<f64>,
    /// Lowest clock seen, Hz.
    pub sm_clock_min: Option<f64>,
    /// Mean power, W.
    pub power_w: Option<f64>,
    /// Energy per output token, J.
    pub joules_per_token: Option<f64>,
    /// Its gauges over the course of the level, in the buckets of the level's timeline; none where it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub course: Vec<ServerMoment>,
}

/// Gauges during one bucket of a level's timeline: means over time of what is known of it, `None` where nothing is.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerMoment {
    /// Middle of the bucket, s into the level.
    pub at_s: f64,
    /// Requests computed at once.
    pub running: Option<f64>,
    /// Requests in the queue.
    pub waiting: Option<f64>,
    /// KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
}

/// What servers said of these levels; `None` where nobody looked.
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
            "the server drafts tokens (speculative decoding): how many it accepts depends on the text, so figures of made-up prompts do not \
             hold for real ones"
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
        course: course(server, level),
    }
}

/// The gauges in the buckets of the timeline, so that one axis serves both.
fn course(server: &ServerSide, level: &LevelFinding) -> Vec<ServerMoment> {
    let (window, timeline) = (&level.summary.window, &level.summary.timeline);
    let start = window.start - Span::from_secs_f64(window.warm_up_s);
    let gauges = [Signal::Running, Signal::Waiting, Signal::KvUsage].map(|signal| server.gauge(signal));
    if gauges.iter().all(Option::is_none) {
        return Vec::new();
    }
    let moment = |at_s: f64| {
        let from = start + Span::from_secs_f64(at_s);
        let to = from + Span::from_secs_f64(timeline.bucket_s);
        let [running, waiting, kv_usage] =
            gauges.each_ref().map(|gauge| gauge.as_ref().and_then(|gauge| gauge.mean(from, to)));
        ServerMoment { at_s: at_s + 0.5 * timeline.bucket_s, running, waiting, kv_usage }
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
            "counters go back again and again: several processes answer behind one address, and their counters are not used; name \
             each page with --scrape"
                .to_owned(),
        );
    } else if seen.resets > 0 {
        notes.push(format!(
            "counters began anew {}: a restart",
            crate::say::count(u64::from(seen.resets), "time")
        ));
    }
    if seen.per_process {
        notes.push("gauges are per process: their sum is that of the processes on the page".to_owned());
    }
    notes
}
