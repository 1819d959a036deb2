//! The load at which so many replicas break by formula, and what that load hangs on.
//!
//! Each input is moved alone, five percent up and down, and the load at which the plan breaks is looked for again; the slope of its
//! logarithm is the elasticity. Each is also moved by twenty percent to its worse side, and replicas are counted again.

use plimsoll_sim::{BatchingSpec, EngineSpec, LawSpec, ModeSpec, StepSpec};

use super::finding::Elasticity;
use super::formula;
use super::mix::Mix;
use super::replica::{Load, Replica};
use super::spec::{PlanError, PlanSpec};
use plimsoll_measure::findings::{Ceiling, Metric};

/// The load at which so many replicas break by formula.
#[derive(Clone, PartialEq, Debug)]
pub struct Break {
    /// Requests per second over all of them: the most that still holds.
    pub rate_per_s: f64,
    /// What breaks first: a ceiling, or the queue that grows.
    pub by: String,
}

/// An input that is moved.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Input {
    Rate,
    Prompt,
    Output,
    Cached,
    StepTime,
    Cache,
    Bunching,
}

/// How far an input is moved for a slope, and for a count.
const SMALL: f64 = 0.05;
const WORSE: f64 = 0.2;
/// The load at which it breaks is found to this share of itself.
const CLOSE: f64 = 1e-4;

/// The load at which `replicas` break.
///
/// # Errors
/// There is no formula for the engine, or it has no limit.
pub fn breaks(spec: &PlanSpec, mix: &Mix, replicas: u32) -> Result<Break, PlanError> {
    let replica = formula::replica(spec, mix)?;
    of(spec, mix, &replica, replicas)
}

fn of(spec: &PlanSpec, mix: &Mix, replica: &Replica, replicas: u32) -> Result<Break, PlanError> {
    let ceilings = &spec.slo.latency;
    let load = |rate_per_s| Load { rate_per_s, ..formula::load(spec, replicas) };
    let limit = replica.limit_per_s() * f64::from(replicas.max(1));
    if !limit.is_finite() {
        return Err(PlanError::NoFormula(
            "an engine of drawn times never breaks: it has no queue".to_owned(),
        ));
    }
    let (mut holds, mut not) = (0.0, limit);
    while not - holds > CLOSE * not {
        let middle = 0.5 * (holds + not);
        match formula::held(replica, mix, ceilings, &load(middle)) {
            Some((true, _)) => holds = middle,
            _ => not = middle,
        }
    }
    let first = replica.at(&load(not), mix).and_then(|steady| {
        let over = |ceiling: &&Ceiling| {
            formula::expected(ceiling, &steady).map_or(0.0, |value| value / ceiling.limit_s)
        };
        ceilings.iter().filter(|ceiling| over(ceiling) > 1.0).max_by(|a, b| over(a).total_cmp(&over(b)))
    });
    let by = first.map_or_else(|| "the queue grows without end".to_owned(), named);
    Ok(Break { rate_per_s: holds, by })
}

/// `ttft p99 over 500 ms`.
fn named(ceiling: &Ceiling) -> String {
    let percent = libm::round(ceiling.percentile * 1e8) / 1e6;
    format!("{} p{percent} over {} ms", ceiling.metric.name(), libm::round(ceiling.limit_s * 1e6) / 1e3)
}

/// What the load at which `replicas` break hangs on, most first.
///
/// # Errors
/// There is no formula for the engine, or it has no limit.
pub fn elasticities(spec: &PlanSpec, mix: &Mix, replicas: u32) -> Result<Vec<Elasticity>, PlanError> {
    let mut out = Vec::new();
    for input in inputs(spec, mix) {
        let broken = |factor: f64| -> Result<f64, PlanError> {
            let (spec, mix) = moved(spec, mix, input, factor);
            Ok(breaks(&spec, &mix, replicas)?.rate_per_s)
        };
        let (down, up) = (broken(1.0 - SMALL)?, broken(1.0 + SMALL)?);
        let between = libm::log((1.0 + SMALL) / (1.0 - SMALL));
        let of_break = if down > 0.0 && up > 0.0 { libm::log(up / down) / between } else { 0.0 };
        let worse = if input.more_is_better() { 1.0 - WORSE } else { 1.0 + WORSE };
        let (worse_spec, worse_mix) = moved(spec, mix, input, worse);
        let replicas_if_worse = formula::answer(&worse_spec, &worse_mix).ok().map(|answer| answer.replicas);
        out.push(Elasticity {
            input: input.name().to_owned(),
            of_break,
            replicas_if_worse,
            how: "formula".to_owned(),
        });
    }
    out.sort_by(|a, b| b.of_break.abs().total_cmp(&a.of_break.abs()));
    Ok(out)
}

/// The inputs that there are.
fn inputs(spec: &PlanSpec, mix: &Mix) -> Vec<Input> {
    let answers =
        spec.slo.latency.iter().any(|ceiling| ceiling.metric != Metric::Ttft) || mix.means.more > 0.0;
    let batching = matches!(spec.world.engine.mode, ModeSpec::Batching(_));
    let mut out = vec![Input::Rate];
    if batching || matches!(spec.world.engine.mode, ModeSpec::Dynamic(_)) {
        out.push(Input::Prompt);
    }
    if batching && answers {
        out.push(Input::Output);
    }
    if mix.hit_share() > 0.0 {
        out.push(Input::Cached);
    }
    out.push(Input::StepTime);
    if batching {
        out.push(Input::Cache);
    }
    out.push(Input::Bunching);
    out
}

impl Input {
    fn name(self) -> &'static str {
        match self {
            Input::Rate => "request rate",
            Input::Prompt => "prompt length",
            Input::Output => "answer length",
            Input::Cached => "prefix cache hit share",
            Input::StepTime => "step time",
            Input::Cache => "KV cache size",
            Input::Bunching => "bunching of arrivals",
        }
    }

    fn more_is_better(self) -> bool {
        matches!(self, Input::Cached | Input::Cache)
    }
}

/// The plan with one input moved by a factor.
fn moved(spec: &PlanSpec, mix: &Mix, input: Input, factor: f64) -> (PlanSpec, Mix) {
    let (mut spec, mut mix) = (spec.clone(), mix.clone());
    match input {
        Input::Rate => spec.traffic.rate_per_s *= factor,
        Input::Prompt => mix = mix.scaled(factor, 1.0, 1.0),
        Input::Output => mix = mix.scaled(1.0, factor, 1.0),
        Input::Cached => mix = mix.scaled(1.0, 1.0, factor),
        Input::StepTime => slow(&mut spec.world.engine, factor),
        Input::Cache => {
            if let ModeSpec::Batching(batching) = &mut spec.world.engine.mode {
                enlarge(batching, factor);
            }
        }
        Input::Bunching => mix = mix.bunched(factor),
    }
    (spec, mix)
}

/// An engine whose steps take so many times as long.
fn slow(engine: &mut EngineSpec, factor: f64) {
    match &mut engine.mode {
        ModeSpec::Batching(batching) => match &mut batching.step {
            StepSpec::Linear(linear) => {
                linear.base_us *= factor;
                linear.decode_us *= factor;
                linear.prefill_us *= factor;
                linear.context_ns *= factor;
                if let Some(overlap) = &mut linear.overlap {
                    overlap.weights_us *= factor;
                    overlap.token_us *= factor;
                }
            }
            StepSpec::Roofline(roofline) => **roofline = roofline.slowed(factor),
        },
        ModeSpec::Queue(queue) => slow_law(&mut queue.service, factor),
        ModeSpec::Dynamic(dynamic) => dynamic.batch = dynamic.batch.slowed(factor),
        ModeSpec::Canned(canned) => {
            slow_law(&mut canned.ttft, factor);
            slow_law(&mut canned.gap, factor);
        }
    }
}

fn slow_law(law: &mut LawSpec, factor: f64) {
    match law {
        LawSpec::Deterministic { ms } => *ms *= factor,
        LawSpec::Exponential { mean_ms }
        | LawSpec::Gamma { mean_ms, .. }
        | LawSpec::Hyperexponential { mean_ms, .. } => *mean_ms *= factor,
        LawSpec::Uniform { low_ms, high_ms } => {
            *low_ms *= factor;
            *high_ms *= factor;
        }
        LawSpec::Lognormal { median_ms, .. } => *median_ms *= factor,
    }
}

/// A KV cache so many times as large.
fn enlarge(batching: &mut BatchingSpec, factor: f64) {
    if let Ok(blocks) = batching.blocks() {
        batching.kv_blocks = Some((f64::from(blocks) * factor).round().max(1.0) as u32);
    }
}
