//! Comparison with an engine's ground truth: simulated requests as traced by an application and a vLLM.
//!
//! The engine knows its queue, prefill and decode exactly. The traces have them as seconds in a span's attributes, on
//! a clock that is off by some milliseconds, inside a call of the application. Perhaps only one request in a hundred
//! is traced.

use plimsoll_math::rng::Stream;
use plimsoll_model::trace::SpanKind;
use plimsoll_model::{At, Attempt, Load, Span, TraceSpan};
use plimsoll_profile::Stage::{Decode, Network, Prefill, Queue};
use plimsoll_profile::{ProfileSpec, ProfiledLatency, Stage, judge};
use plimsoll_sim::{Events, SimLevelPlan, World, simulate_level};
use plimsoll_workload::Scenario;

use super::{BASE, MS, Said, requests, span};

/// Returns a minute and a half near saturation.
fn simulated(rate: f64, seconds: i64) -> Vec<Attempt> {
    let scenario = Scenario { seed: 11, ..Scenario::default() };
    let engine = plimsoll_sim::catalogue::profile::find("llama-3.1-8b@h100").expect("known").spec;
    let mut world = World::new(&engine, 7).expect("sound");
    let load = Load::Open { rate_per_s: rate };
    let plan = SimLevelPlan {
        gauges: true,
        events: Events::Ends,
        ..SimLevelPlan::new(&scenario, 0, load, At::ZERO, Span::from_secs(seconds))
    };
    simulate_level(&mut world, &scenario, plan).expect("a schedule").attempts
}

/// Returns the engine's time for a stage, s.
fn told(attempt: &Attempt, stage: Stage) -> f64 {
    let found = attempt.answer.stages.iter().find(|one| one.name == stage.name());
    found.map_or(0.0, |one| one.took.as_secs_f64())
}

/// Returns the traces of these requests: a call of the application and half a millisecond of network each way.
/// The span of vLLM is on a clock that is off by up to `skew` ns.
fn traced(attempts: &[Attempt], skew: i64, kept: f64) -> Vec<TraceSpan> {
    let mut stream = Stream::new(9, "tracer", 0);
    let mut spans = Vec::new();
    for (i, attempt) in attempts.iter().enumerate() {
        let (Some(sent), Some(end)) = (attempt.sent, attempt.end) else { continue };
        let off = if skew > 0 { stream.below(2 * skew as u64) as i64 - skew } else { 0 };
        if !stream.chance(kept) {
            continue;
        }
        let way = MS / 2;
        let trace = i as u128 + 1;
        let mut call = span(1, 0, "chat", 0, 0).of("app", SpanKind::Client).in_trace(trace);
        call = call.with("gen_ai.operation.name", "chat");
        (call.start_ns, call.end_ns) = (BASE + sent.0, BASE + end.0 + 2 * way);
        let mut engine = span(2, 1, "llm_request", 0, 0).of("vllm", SpanKind::Server).in_trace(trace);
        (engine.start_ns, engine.end_ns) = (call.start_ns + way + off, call.end_ns - way + off);
        engine = engine
            .with("gen_ai.latency.time_in_queue", told(attempt, Queue))
            .with("gen_ai.latency.time_in_model_prefill", told(attempt, Prefill))
            .with("gen_ai.latency.time_in_model_decode", told(attempt, Decode))
            .with("gen_ai.latency.time_to_first_token", told(attempt, Queue) + told(attempt, Prefill));
        call.weight = 1.0 / kept;
        engine.weight = 1.0 / kept;
        spans.extend([call, engine]);
    }
    spans
}

/// Returns the mean and p99 of a stage over the completed requests, s.
fn truth(attempts: &[Attempt], stage: Stage) -> (f64, f64) {
    let mut values: Vec<f64> =
        attempts.iter().filter(|a| !a.answer.stages.is_empty()).map(|a| told(a, stage)).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean, plimsoll_math::quantile::order_statistic(&mut values, 0.99).expect("values"))
}

/// Returns the largest relative errors of means and p99s.
fn errors(attempts: &[Attempt], spans: &[TraceSpan]) -> (f64, f64) {
    let found = requests(spans);
    assert_eq!((found.count.skewed, found.count.residual_over_5_percent), (0, 0), "{:?}", found.count);
    let finding = judge(&found, &ProfileSpec::default());
    let path = finding.path(ProfiledLatency::E2e).expect("requests");
    let (mut mean, mut p99) = (0.0f64, 0.0f64);
    for stage in [Queue, Prefill, Decode] {
        let own = path.stage(stage).expect("the engine has it");
        let (true_mean, true_p99) = truth(attempts, stage);
        mean = mean.max((own.times.mean_s / true_mean - 1.0).abs());
        // A p99 that is too uncertain for display must be right too: it is computed from the requests, without its
        // interval.
        let mut values: Vec<f64> =
            found.list.iter().map(|request| request.e2e_stages[stage.index()] as f64 * 1e-9).collect();
        let value = plimsoll_math::quantile::order_statistic(&mut values, 0.99).expect("values");
        assert!(own.times.p99.value().is_none_or(|shown| (shown / value - 1.0).abs() < 1e-6));
        p99 = p99.max((value / true_p99 - 1.0).abs());
    }
    (mean, p99)
}

#[test]
fn stages_are_the_engines_own() {
    let attempts = simulated(20.0, 400);
    assert!(attempts.len() > 7000, "{}", attempts.len());
    let (mean, p99) = errors(&attempts, &traced(&attempts, 0, 1.0));
    assert!(mean < 1e-3 && p99 < 1e-3, "mean off by {mean}, p99 by {p99}");
    // 5 ms either way: the call bounds the server, so only the division of the network time is uncertain.
    let skewed = traced(&attempts, 5 * MS, 1.0);
    let (mean, p99) = errors(&attempts, &skewed);
    assert!(mean < 0.03 && p99 < 0.08, "mean off by {mean}, p99 by {p99}");
    let found = requests(&skewed);
    assert!(found.count.shifted > found.count.profiled / 2, "{:?}", found.count);
    let network = found.list.iter().map(|request| request.e2e_stages[Network.index()]).sum::<i64>();
    assert!((network as f64 / found.list.len() as f64 / MS as f64 - 1.0).abs() < 0.02, "1 ms each");
}

#[test]
fn one_trace_in_a_hundred_tells_the_stages_with_intervals_that_hold() {
    let attempts = simulated(40.0, 1500);
    let spans = traced(&attempts, 5 * MS, 0.01);
    let finding = judge(&requests(&spans), &ProfileSpec::default());
    let path = finding.path(ProfiledLatency::E2e).expect("requests");
    assert!((finding.stand_for / attempts.len() as f64 - 1.0).abs() < 0.1, "{}", finding.stand_for);
    for stage in [Prefill, Decode] {
        let own = path.stage(stage).expect("the engine has it");
        let (mean, _) = truth(&attempts, stage);
        let told = own.times.mean.estimate().expect("long enough");
        // A 95 % interval of a mean, checked for two stages: twice the width nearly always contains the true value.
        assert!((told.value - mean).abs() < told.upper - told.lower, "{stage}: {told:?} for {mean}");
        assert!((told.value / mean - 1.0).abs() < 0.1, "{stage}: {told:?} for {mean}");
    }
    // Six hundred correlated requests may be too few for a p99, and then none is shown.
    if let Some(p99) = path.times.p99.estimate() {
        assert!(p99.n_eff >= 1000.0 - 1e-6, "{p99:?}");
    }
}
