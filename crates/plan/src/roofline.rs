//! Memory-bound or compute-bound: the shares of a GPU's peaks that prefill and decode of a measured level reach.
//!
//! The step time is measured. Bytes and operations come from the simulator's roofline with ideal kernels
//! ([`plimsoll_sim::engine::peaks`]). The batch has two bounds. Little's law on the client's tokens gives the least
//! batch, and the server's running requests give the largest one. A verdict is valid at both bounds, or there is none.
//!
//! A measured interval between two tokens may contain prompts of other requests. Its upper end of a share subtracts
//! their modelled time; the lower end subtracts nothing, because prompts overlap with the reading of weights.

use plimsoll_measure::findings::{Estimate, LevelSummary};
use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_sim::engine::peaks::{PeakTimes, modelled_s, peak_times, turning_batch};
use plimsoll_sim::engine::roofline::RooflineSpec;
use plimsoll_sim::engine::step_time::StepLoad;
use plimsoll_sim::{EngineSpec, ModeSpec, StepSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Least share of a peak that counts as its bound. Good kernels reach 0.6 to 0.9 of a peak.
const BOUND: f64 = 0.5;
/// Largest share of a decode interval of prompts of other requests that permits a verdict on decode.
const PROMPTS: f64 = 1.0 / 3.0;
/// Mean requests in flight up to which a first token waits for no other request.
const ALONE: f64 = 1.2;

plimsoll_model::named! {
    /// The limit of a phase.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum RooflineBound {
        /// Memory bandwidth.
        Memory => "memory-bound",
        /// Arithmetic.
        Compute => "compute-bound",
        /// Less than half of both peaks.
        Neither => "neither: host or queue",
        /// The measurements allow several bounds.
        Unknown => "bound not known",
    }
}

/// A share of a peak, 0 to 1.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PeakShare {
    pub at_least: f64,
    /// `null` if the measurements set no upper bound.
    pub at_most: Option<f64>,
}

/// Prefill or decode of a level against the peaks of its GPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PhaseRoofline {
    pub bound: RooflineBound,
    /// Reason for an unknown bound; null otherwise.
    pub why: Option<String>,
    /// Measured time of a step in seconds: `tpot` p50 for decode, `ttft` p50 without queue time for prefill.
    pub step_s: f64,
    /// Smallest batch: sequences for decode, computed prompt tokens for prefill.
    pub batch_at_least: u32,
    /// Largest batch; `null` if the server does not report its running requests.
    pub batch_at_most: Option<u32>,
    pub memory: PeakShare,
    pub compute: PeakShare,
    /// Batch from which the phase is compute-bound; `null` if no batch is.
    pub turns_at: Option<u32>,
}

/// Prefill and decode of one level against the peaks of its GPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelRoofline {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Name of the engine: model, dtype, GPU.
    pub engine: String,
    /// Number of replicas that share the load.
    pub replicas: u32,
    /// `null` without streamed tokens.
    pub prefill: Option<PhaseRoofline>,
    /// `null` without streamed tokens, or if a draft proposes tokens.
    pub decode: Option<PhaseRoofline>,
    /// Reasons for missing phases, as sentences.
    pub notes: Vec<String>,
}

/// Measured figures of a level, per replica.
#[derive(Clone, PartialEq, Debug)]
pub struct StepFigures {
    /// Time per output token, s.
    pub tpot: Option<Estimate>,
    /// Time to the first token without queue time, s.
    pub first: Option<Estimate>,
    /// Requests between first and last token, by Little's law on the client's rows.
    pub decoding: f64,
    /// Running requests that the server reports; `None` if not reported.
    pub running: Option<f64>,
    /// Requests in flight of this client.
    pub in_flight: f64,
    /// Mean prompt tokens.
    pub prompt: f64,
    /// Share of the prompt tokens from the cache.
    pub cached: f64,
    /// Mean output tokens.
    pub output: f64,
}

/// Returns the roofline of an engine; `None` if the engine has no known model and GPU.
pub fn spec_of(engine: &EngineSpec) -> Option<&RooflineSpec> {
    let ModeSpec::Batching(batching) = &engine.mode else { return None };
    match &batching.step {
        StepSpec::Roofline(roofline) => Some(roofline),
        StepSpec::Linear(_) => None,
    }
}

/// Returns the bounds of a level; `None` if the engine has no known model and GPU.
pub fn of_level(
    engine: &EngineSpec,
    replicas: u32,
    summary: &LevelSummary,
    server: &ServerSide,
) -> Option<LevelRoofline> {
    let spec = spec_of(engine)?;
    let replicas = replicas.max(1);
    let figures = figures(f64::from(replicas), summary, server);
    let (from, to) = (summary.window.start, summary.window.stop);
    let is_drafting = server.accepted_length(from, to).is_some()
        || matches!(&engine.mode, ModeSpec::Batching(batching) if batching.speculative.is_some());
    let mut notes = Vec::new();
    let decode = match is_drafting {
        true => {
            notes.push(
                "Decode: a draft proposes tokens, so the time per token is not the time of a step.".into(),
            );
            None
        }
        false => decode(spec, &figures),
    };
    if figures.tpot.is_none() {
        notes.push("Decode: no time per token was measured; send streaming requests.".into());
    }
    if figures.first.is_none() {
        notes.push("Prefill: no time to the first token was measured; send streaming requests.".into());
    }
    let prefill = prefill(spec, &figures);
    Some(LevelRoofline {
        level: summary.level,
        engine: engine.name.clone(),
        replicas,
        prefill,
        decode,
        notes,
    })
}

fn figures(replicas: f64, summary: &LevelSummary, server: &ServerSide) -> StepFigures {
    let (from, to) = (summary.window.start, summary.window.stop);
    let (latency, lengths) = (&summary.latency, &summary.lengths);
    let tpot = latency.tpot.as_ref().and_then(|tpot| tpot.p50.seen().copied());
    let queue_s = server.histogram(Signal::QueueTime, from, to).and_then(|queue| queue.mean()).unwrap_or(0.0);
    let shorter = |e: &Estimate| {
        let less = |s: f64| (s - queue_s).max(0.0);
        // A mean queue time over the first token's time is no figure of these requests.
        (e.lower > queue_s).then(|| Estimate {
            value: less(e.value),
            lower: less(e.lower),
            upper: less(e.upper),
            ..*e
        })
    };
    let ttft = latency.ttft_after_send.as_ref().and_then(|ttft| ttft.p50.seen().copied());
    let gained = |signal| server.gained(signal, from, to).map(|gained| gained.value);
    let reported = || {
        let asked = gained(Signal::PrefixQueried).filter(|asked| *asked > 0.0)?;
        Some(gained(Signal::PrefixHit)? / asked)
    };
    let output = lengths.output.reported_mean.unwrap_or(lengths.output.asked_mean).max(1.0);
    let per_s = summary.rates.achieved_per_s.seen().map_or(0.0, |rate| rate.value);
    let token_s = latency.tpot.as_ref().and_then(|tpot| tpot.mean_finite_s).unwrap_or(0.0);
    StepFigures {
        tpot: tpot.filter(usable),
        first: ttft.map(|ttft| shorter(&ttft).unwrap_or(ttft)).filter(usable),
        decoding: per_s * token_s * (output - 1.0) / replicas,
        running: server
            .gauge(Signal::Running)
            .and_then(|gauge| gauge.mean(from, to))
            .map(|running| running / replicas),
        in_flight: summary.concurrency.mean / replicas,
        prompt: lengths.prompt.reported_mean.unwrap_or(lengths.prompt.asked_mean).max(1.0),
        cached: lengths.cached_share.or_else(reported).unwrap_or(0.0).clamp(0.0, 1.0),
        output,
    }
}

fn usable(e: &Estimate) -> bool {
    e.value.is_finite() && e.value > 0.0 && e.lower > 0.0
}

/// Returns the bound of decode; `None` without a measured step.
pub fn decode(spec: &RooflineSpec, figures: &StepFigures) -> Option<PhaseRoofline> {
    let step = figures.tpot?;
    let fewest = (figures.decoding.floor() as u32).max(1);
    let most = figures.running.map(|running| (running.max(figures.decoding).ceil() as u32).max(fewest));
    let context = figures.prompt + figures.output / 2.0;
    let load = |batch: u32| decodes(batch, context);
    let least = peak_times(spec, &load(fewest));
    let prompts_s = |batch: u32| {
        let with = modelled_s(spec, &with_prompts(load(batch), figures));
        (with - modelled_s(spec, &load(batch))).max(0.0)
    };
    let taken = most.unwrap_or(fewest);
    let prompts = prompts_s(taken) / step.value;
    let left_s = (step.lower - prompts_s(taken)).max(0.0);
    let top = most.map(|batch| (peak_times(spec, &load(batch)), left_s));
    let (bound, why) = match top {
        _ if prompts > PROMPTS => {
            let why = format!(
                "prompts of other requests take about {} of the time between two tokens",
                percent(prompts)
            );
            (RooflineBound::Unknown, Some(why))
        }
        top => judged(least, step.upper, top),
    };
    Some(PhaseRoofline {
        bound,
        why,
        step_s: step.value,
        batch_at_least: fewest,
        batch_at_most: most,
        memory: share(least.memory_s, step.upper, top.map(|(times, s)| (times.memory_s, s))),
        compute: share(least.compute_s, step.upper, top.map(|(times, s)| (times.compute_s, s))),
        turns_at: turning_batch(spec, load),
    })
}

/// Returns the bound of prefill; `None` without a measured first token.
///
/// The time to the first token contains more than the prompt. The shares are therefore lower bounds unless requests
/// are isolated.
pub fn prefill(spec: &RooflineSpec, figures: &StepFigures) -> Option<PhaseRoofline> {
    let step = figures.first?;
    let tokens = (figures.prompt * (1.0 - figures.cached)).round().max(1.0);
    let load = |batch: u32| prompts(StepLoad::default(), f64::from(batch), figures.prompt - tokens, 1.0);
    let times = peak_times(spec, &load(tokens as u32));
    let is_alone = figures.running.unwrap_or(figures.in_flight).max(figures.in_flight) <= ALONE;
    let top = is_alone.then_some((times, step.lower));
    let (bound, why) = match judged(times, step.upper, top) {
        (RooflineBound::Unknown, Some(_))
            if !is_alone && step.upper.is_finite() && times.compute_s <= step.upper =>
        {
            let why = "the time to the first token also contains queue and other requests' steps; measure with --alone";
            (RooflineBound::Unknown, Some(why.to_owned()))
        }
        found => found,
    };
    Some(PhaseRoofline {
        bound,
        why,
        step_s: step.value,
        batch_at_least: tokens as u32,
        batch_at_most: Some(tokens as u32),
        memory: share(times.memory_s, step.upper, top.map(|(times, s)| (times.memory_s, s))),
        compute: share(times.compute_s, step.upper, top.map(|(times, s)| (times.compute_s, s))),
        turns_at: turning_batch(spec, load),
    })
}

/// Returns the bound that is valid at both ends, or the reason why there is none.
fn judged(least: PeakTimes, step_s: f64, top: Option<(PeakTimes, f64)>) -> (RooflineBound, Option<String>) {
    if !step_s.is_finite() {
        let why = "too few requests for an interval of the step time; measure longer";
        return (RooflineBound::Unknown, Some(why.into()));
    }
    if least.memory_s.max(least.compute_s) > step_s {
        let why = "the step is faster than the peaks of this GPU allow; check model, dtype and GPU";
        return (RooflineBound::Unknown, Some(why.into()));
    }
    let at = |times: PeakTimes, s: f64| match () {
        () if times.memory_s.max(times.compute_s) < BOUND * s => RooflineBound::Neither,
        () if times.memory_s > times.compute_s => RooflineBound::Memory,
        () => RooflineBound::Compute,
    };
    let low = at(least, step_s);
    match top {
        // A larger batch raises the share of arithmetic, so this verdict needs no upper bound of the batch.
        None if low == RooflineBound::Compute => (low, None),
        None => {
            let why =
                "the server does not report its batch, and other clients may share it; expose its metrics";
            (RooflineBound::Unknown, Some(why.into()))
        }
        Some((times, s)) if at(times, s) == low => (low, None),
        Some((times, s)) => {
            let why = format!("the interval allows both {} and {}", low.short(), at(times, s).short());
            (RooflineBound::Unknown, Some(why))
        }
    }
}

/// Returns a share of a peak, at most 1.
fn share(least_s: f64, step_s: f64, top: Option<(f64, f64)>) -> PeakShare {
    let at_least = (least_s / step_s).min(1.0);
    let at_most = top.map(|(most_s, s)| (most_s / s).clamp(at_least, 1.0));
    PeakShare { at_least, at_most }
}

fn decodes(batch: u32, context: f64) -> StepLoad {
    let context = (f64::from(batch) * context).round() as u64;
    StepLoad { tokens: batch, decodes: batch, context, rows: batch, ..StepLoad::default() }
}

/// Returns the step with the prompt tokens that a steady load computes per output token.
fn with_prompts(load: StepLoad, figures: &StepFigures) -> StepLoad {
    let requests = f64::from(load.decodes) / figures.output;
    let cached = figures.prompt * figures.cached;
    prompts(load, figures.prompt - cached, cached, requests)
}

fn prompts(load: StepLoad, tokens: f64, before: f64, requests: f64) -> StepLoad {
    let new = (requests * tokens).round() as u32;
    if new == 0 {
        return load;
    }
    let prefill_pairs = (requests * tokens * (2.0 * before + tokens)).round() as u64;
    StepLoad { tokens: load.tokens + new, chunks: 1, prefill_pairs, ..load }
}

impl LevelRoofline {
    /// Returns the bounds as sentences.
    pub fn words(&self) -> Vec<String> {
        let phases = [("Prefill", "prompt tokens", &self.prefill), ("Decode", "sequences", &self.decode)];
        let known = phases.iter().filter_map(|(name, unit, phase)| Some(phase.as_ref()?.words(name, unit)));
        let replicas =
            if self.replicas == 1 { String::new() } else { format!(", {} replicas", self.replicas) };
        let notes = self.notes.iter().cloned();
        known.chain(notes).map(|line| format!("{line} ({}{replicas})", self.engine)).collect()
    }

    /// Returns the reason why the bound rules a lever of the catalogue out; `None` if it does not.
    pub fn rules_out(&self, lever: &str) -> Option<&'static str> {
        let decode = self.decode.as_ref()?;
        match lever {
            "speculative-decoding" if decode.bound == RooflineBound::Compute => {
                Some("decode is compute-bound: a draft adds arithmetic")
            }
            "quantisation" if decode.is_small() && self.prefill.as_ref()?.is_small() => {
                Some("neither memory nor arithmetic takes a tenth of prefill or decode: host or queue")
            }
            _ => None,
        }
    }

    /// Returns the changes that help and that do not help, as sentences.
    pub fn advice(&self) -> Vec<String> {
        let decode = self.decode.as_ref().map(|phase| match phase.bound {
            RooflineBound::Memory => "Decode: fewer bits per weight, a smaller KV cache or a larger batch help; more arithmetic does not.",
            RooflineBound::Compute => "Decode: a larger batch and speculative decoding do not help.",
            RooflineBound::Neither => "Decode: examine the host and the queue before quantisation or another GPU.",
            RooflineBound::Unknown => "",
        });
        let prefill = self.prefill.as_ref().map(|phase| match phase.bound {
            RooflineBound::Compute => {
                "Prefill: a larger batch does not help; cached or shorter prompts and more arithmetic do."
            }
            RooflineBound::Memory => "Prefill: a larger batch helps.",
            RooflineBound::Neither => "Prefill: examine the host and the network before the model.",
            RooflineBound::Unknown => "",
        });
        prefill.into_iter().chain(decode).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

impl PhaseRoofline {
    /// Returns whether neither peak takes a tenth of the step, so that half of the bytes or of the arithmetic takes less
    /// than a twentieth.
    fn is_small(&self) -> bool {
        [self.memory, self.compute].iter().all(|share| share.at_most.is_some_and(|most| most < 0.1))
    }

    fn words(&self, name: &str, unit: &str) -> String {
        let why = self.why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let batch = match self.batch_at_most {
            Some(1) if self.batch_at_least == 1 => format!("1 {}", unit.trim_end_matches('s')),
            Some(most) if most == self.batch_at_least => format!("{most} {unit}"),
            Some(most) => format!("{} to {most} {unit}", self.batch_at_least),
            None => format!("at least {} {unit}", self.batch_at_least),
        };
        let turns = match self.turns_at {
            Some(at) => format!("compute-bound from {at} {unit}"),
            None => "not compute-bound at any batch, because each sequence reads its own KV cache".to_owned(),
        };
        let (memory, compute) = (self.memory.words(), self.compute.words());
        format!(
            "{name}: {}{why}; {memory} of the peak bandwidth, {compute} of the peak arithmetic, {batch}; {turns}",
            self.bound.name()
        )
    }
}

impl RooflineBound {
    fn short(self) -> &'static str {
        if self == RooflineBound::Neither { "neither" } else { self.name() }
    }
}

impl PeakShare {
    fn words(&self) -> String {
        let low = percent(self.at_least);
        match self.at_most.map(percent) {
            Some(high) if high == low => low,
            Some(high) => format!("{low} to {high}"),
            None => format!("at least {low}"),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}
