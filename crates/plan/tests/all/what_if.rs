//! Predictions for a run, compared with runs under the real change.

use plimsoll_measure::findings::{LevelSummary, Metric};
use plimsoll_measure::summarise;
use plimsoll_plan::recorded::requests;
use plimsoll_plan::replay::ReplayRequest;
use plimsoll_plan::what_if::verify::{HeldLevel, unlike, verify};
use plimsoll_plan::what_if::{
    BaseRun, ChangePrediction, ParsedChange, WhatIfFinding, WhatIfSpec, figures, run, what_if,
};
use plimsoll_sim::{WorldSpec, catalogue::profile};
use plimsoll_workload::Size;

use crate::fit_systems::{Run, System, system};

fn summary(run: &Run) -> LevelSummary {
    summarise(&run.levels[0], &run.attempts, &run.samples, None)
}

fn predict(measured: &Run, (system, world): (&System, &WorldSpec), asks: &[&str]) -> WhatIfFinding {
    let level = &measured.levels[0];
    let asks = asks.iter().map(|text| ParsedChange::parse(text).expect("a change")).collect();
    let as_it_is = BaseRun {
        world,
        others: &[],
        band: None,
        asked: &requests(level, measured.attempts.iter()),
        window_s: level.window().as_secs_f64(),
        measured: &run::measured(&summary(measured)),
        redraw: Some(&system.scenario),
    };
    what_if(&as_it_is, &WhatIfSpec { asks, figures: figures(), schedules: 6, seed: 3 }).expect("a prediction")
}

fn against<'a>(measured: &'a LevelSummary, asked: &'a [ReplayRequest]) -> HeldLevel<'a> {
    HeldLevel { measured, asked, replicas: 1, seed: 4 }
}

/// A prediction for twice the load, compared with a run of twice and of 1.8 times, for which it is recomputed. The values
/// are in the bands, the bodies within an eighth, and the band gets the prediction's error.
#[test]
fn a_prediction_is_held_against_what_then_happened() {
    let quiet = system(0);
    let measured = quiet.run(100.0, 1_500.0);
    let found = predict(&measured, (&quiet, &quiet.world()), &["rate 2x"]);
    // 1 500 requests determine the rate to a few percent, and the predicted rate is twice the arrived one.
    for (rate, anew) in [(found.cases[0].rate_per_s, false), (180.0, true)] {
        let later = with(&quiet, |_| ()).run(rate, 3_000.0);
        let (summary, asked) = (summary(&later), requests(&later.levels[0], later.attempts.iter()));
        let against = against(&summary, &asked);
        assert_eq!(unlike(&found.cases[0], &against), None);
        let held = verify(&found.cases[0], &against, None).expect("a comparison");
        assert_eq!(held.notes.iter().any(|note| note.contains("recomputed")), anew, "{:?}", held.notes);
        assert!(held.compared >= 4, "{held:?}");
        // A p99 of 3 000 requests varies randomly, which the band covers.
        let body = held.rows.iter().filter(|row| row.percentile < 0.97);
        let misses: Vec<f64> = body.filter_map(|row| row.figure.miss_log).collect();
        assert!(misses.len() >= 4 && misses.iter().all(|miss| miss.abs() < 0.12), "{misses:?}");
        assert!(held.inside + 1 >= held.compared, "{held:?}");
        let of = |metric| {
            held.rows.iter().filter(move |row| row.metric == metric).filter_map(|row| row.figure.miss_log)
        };
        let ttft: Vec<f64> = of(Metric::Ttft).collect();
        let learnt = held.band.rows.iter().find(|row| row.metric == "ttft").expect("learnt");
        assert!((learnt.bias_log - ttft.iter().sum::<f64>() / ttft.len() as f64).abs() < 1e-12);
    }
    let other = with(&quiet, |other| other.scenario.sizes.prompt = Size::Fixed(300)).run(200.0, 1_000.0);
    let (summary, asked) = (summary(&other), requests(&other.levels[0], other.attempts.iter()));
    let why = unlike(&found.cases[0], &against(&summary, &asked));
    assert!(why.as_ref().is_some_and(|why| why.contains("mean prompt")), "{why:?}");
    let two = HeldLevel { replicas: 2, ..against(&summary, &asked) };
    assert!(unlike(&found.cases[0], &two).is_some_and(|why| why.contains("for 1 replicas, and 2 answered")));
}

/// Checks that the measured value is in the 95 % band, widened by a percent, and the prediction within a tenth of it.
fn holds(case: &ChangePrediction, truth: &LevelSummary) {
    assert_eq!(case.refused, None, "{}", case.ask);
    let mut compared = 0;
    for (metric, percentile, reading) in run::measured(truth) {
        let Some(seconds) = reading.value() else { continue };
        let figure =
            case.figures.iter().find(|f| f.metric == metric && (f.percentile - percentile).abs() < 1e-9);
        let predicted = figure.and_then(|figure| figure.predicted.estimate()).expect("a prediction");
        let what = format!(
            "{} {} p{}: {predicted:?}, measured {seconds}",
            case.ask,
            metric.name(),
            100.0 * percentile
        );
        assert!(predicted.lower <= 1.02 * seconds && seconds <= 1.02 * predicted.upper, "{what}");
        if percentile < 0.97 {
            assert!((predicted.value / seconds - 1.0).abs() < 0.1, "{what}");
        }
        compared += 1;
    }
    assert!(compared >= 4, "{compared} figures");
}

/// Returns one server with this time per request.
fn queue(ms: f64) -> System {
    let engine = serde_json::json!({
        "name": "queue", "mode": {"kind": "queue", "servers": 1, "service": {"law": "deterministic", "ms": ms}},
    });
    System { engine: serde_json::from_value(engine).expect("an engine"), ..system(0) }
}

/// 300 requests determine no p99. The engine that represents the server is faster than it, and its p99 must not come out
/// below the p95.
#[test]
fn what_too_few_requests_tell_is_as_far_off_as_what_they_tell() {
    let (real, believed) = (queue(50.0), queue(40.0));
    let measured = real.run(2.0, 300.0);
    let found = predict(&measured, (&real, &believed.world()), &["replicas 2"]);
    let e2e: Vec<_> = found.cases[0].figures.iter().filter(|one| one.metric == Metric::E2e).collect();
    let p99 = e2e.last().expect("predicted");
    assert!(p99.percentile > 0.98 && p99.measured.as_ref().is_none_or(|it| it.value().is_none()), "{p99:?}");
    let values: Vec<f64> = e2e.iter().map(|one| one.predicted.value().expect("known")).collect();
    assert!(values.len() > 2 && values.is_sorted() && (values[0] / 0.05 - 1.0).abs() < 0.05, "{values:?}");
}

fn with(system: &System, change: impl FnOnce(&mut System)) -> System {
    let mut other = System {
        name: system.name.clone(),
        engine: system.engine.clone(),
        scenario: system.scenario.clone(),
        share: system.share,
        slots: system.slots,
    };
    // Another day: the change meets other arrivals than the prediction's.
    other.scenario.seed += 50;
    change(&mut other);
    other
}

/// Predicts from an engine fitted to a quiet run: twice the traffic and longer prompts, compared with runs of them.
#[test]
fn more_traffic_and_longer_prompts_come_as_predicted() {
    let quiet = system(0);
    let measured = quiet.run(100.0, 1_500.0);
    let fitted = quiet.fitted(&measured).expect("a fit");
    let found = predict(&measured, (&quiet, &fitted.world), &["rate 2x", "prompts +30%", "rate 40x"]);
    holds(&found.cases[0], &summary(&with(&quiet, |_| ()).run(200.0, 3_000.0)));
    let longer = with(&quiet, |other| other.scenario.sizes.prompt = Size::Lognormal(64.0 * 1.3, 0.6));
    holds(&found.cases[1], &summary(&longer.run(100.0, 3_000.0)));
    // 40 times a hundred is above any limit of this engine, so there are no percentiles.
    let over = &found.cases[2];
    assert!(over.refused.as_ref().is_some_and(|why| why.contains("the queue grows")), "{over:?}");
    assert!(over.figures.is_empty());
}

/// Two replicas at a load that one of them just carries: with one down, the prediction equals one replica's measurement.
#[test]
fn a_replica_down_comes_as_predicted() {
    let one = system(0);
    let mut world = one.world();
    world.fleet.replicas = 2;
    let mut two = Run::default();
    let scenario = &one.scenario;
    let window = plimsoll_model::Span::from_secs_f64(1_500.0 / 200.0);
    let load = plimsoll_model::Load::Open { rate_per_s: 200.0 };
    let plan = plimsoll_sim::SimLevelPlan {
        events: plimsoll_sim::Events::Ends,
        ..plimsoll_sim::SimLevelPlan::new(scenario, 0, load, plimsoll_model::At::ZERO, window)
    };
    let mut target = plimsoll_sim::World::of(&world, 1).expect("a world");
    let level = plimsoll_sim::simulate_into(&mut target, scenario, plan, None, &mut two).expect("a level");
    two.levels.push(level);
    let found = predict(&two, (&one, &world), &["replicas -1", "replicas -2", "route least_requests"]);
    holds(&found.cases[0], &summary(&with(&one, |_| ()).run(200.0, 3_000.0)));
    assert!(found.cases[1].refused.as_ref().is_some_and(|why| why.contains("none is left")));
    assert_eq!(found.cases[2].refused, None);
}

#[test]
fn what_an_engine_cannot_express_is_refused_with_the_reason() {
    let quiet = system(0);
    let measured = quiet.run(100.0, 300.0);
    let asks = ["weights fp8", "gpu h200", "cache off", "replicas -1", "route random"];
    let found = predict(&measured, (&quiet, &quiet.world()), &asks);
    let words =
        ["no model and no GPU", "no model and no GPU", "share a prefix", "none is left", "one replica"];
    for (case, word) in found.cases.iter().zip(words) {
        assert!(case.refused.as_ref().is_some_and(|why| why.contains(word)), "{case:?}");
    }
    for text in
        ["faster", "rate", "rate two", "prompts 30", "replicas 0", "slots x", "weights fp3", "route nowhere"]
    {
        let why = ParsedChange::parse(text).expect_err(text);
        assert!(why.len() > 20 && !why.contains('\n'), "{why}");
    }
}

/// A pair of the catalogue can become another: half the bytes of weights is no slower, and the world names its engine.
#[test]
fn a_roofline_can_change_its_weights_and_its_gpu() {
    let mut quiet = system(0);
    quiet.engine = profile::find("llama-3.1-8b@h100").expect("a profile").spec;
    let measured = quiet.run(2.0, 300.0);
    let found = predict(&measured, (&quiet, &quiet.world()), &["weights fp8", "gpu h200", "gpu h2000"]);
    for case in &found.cases[..2] {
        let tpot = case.figures.iter().find(|f| f.metric == Metric::Tpot).expect("tokens");
        assert!(tpot.ratio < 0.95, "{}: {}", case.ask, tpot.ratio);
    }
    assert!(found.cases[2].refused.as_ref().is_some_and(|why| why.contains("nearest")));
    let text = serde_json::to_string(&found).expect("JSON");
    let again: WhatIfFinding = serde_json::from_str(&text).expect("the same words");
    assert_eq!(again.cases[0].figures.len(), found.cases[0].figures.len());
    assert_eq!(again.cases[2], found.cases[2]);
}

/// Eight clients without think time at one server of 40 ms: 25/s, each in 8/25 s (Little). With two servers 50/s in half of
/// that, which a replay at the recorded times would not show.
#[test]
fn faster_answers_bring_a_closed_loop_more_requests() {
    let system = queue(40.0);
    let measured = system.under(plimsoll_model::Load::Closed { concurrency: 8 }, 60.0);
    let found = predict(&measured, (&system, &system.world()), &["slots 2", "slots 100", "rate 2x"]);
    assert!(found.notes.iter().any(|note| note.contains("closed loop")), "{:?}", found.notes);
    for (case, rate, e2e_s) in [(&found.cases[0], 50.0, 0.16), (&found.cases[1], 200.0, 0.04)] {
        assert_eq!(case.refused, None);
        let throughput = case.throughput.as_ref().and_then(|reading| reading.value()).expect("predicted");
        assert!((throughput / rate - 1.0).abs() < 0.02 && throughput == case.rate_per_s, "{throughput}");
        let e2e = case.figures.iter().find(|one| one.metric == Metric::E2e).expect("predicted");
        assert!((e2e.predicted.value().expect("known") / e2e_s - 1.0).abs() < 0.02, "{e2e:?}");
    }
    let why = found.cases[2].refused.as_ref().expect("no rate to ask for");
    assert!(why.contains("closed loop"), "{why}");
}
