//! Engines fitted from runs, compared with the engines behind the runs.

use plimsoll_model::{At, Load, Span};
use plimsoll_plan::fit::{FitError, FittedRun, SettingOrigin, StatedTarget, fit};
use plimsoll_sim::engine::step_time::{StepLoad, StepModel};
use plimsoll_sim::{
    EngineSpec, Events, LawSpec, ModeSpec, QueueSpec, SimLevelPlan, World, catalogue::profile, simulate_into,
};
use plimsoll_workload::Scenario;

use crate::fit_systems::{Run, System, measured, system};

/// Returns the time of a step of `decodes` decodes at this context, or of a prompt, ms.
fn step_ms(engine: &EngineSpec, decodes: u32, context: u64, prompt: u32) -> f64 {
    let ModeSpec::Batching(batching) = &engine.mode else { panic!("{} batches", engine.name) };
    let load = StepLoad {
        tokens: decodes + prompt,
        decodes,
        context: context * u64::from(decodes),
        chunks: u32::from(prompt > 0),
        prefill_pairs: u64::from(prompt) * u64::from(prompt),
        rows: decodes + u32::from(prompt > 0),
    };
    StepModel::new(batching).picoseconds(&load) as f64 / 1e9
}

fn low_load(seed: u64, requests: f64) -> (System, Run, f64) {
    let system = system(seed);
    let limit = system.truth(1_000);
    let run = system.run(system.share * limit, requests);
    (system, run, limit)
}

/// Compares with the true engine's step times at other batches than the run's, within 3 %, and with its limit within 5 %.
#[test]
fn an_engine_seen_at_low_load_is_known_at_full_load() {
    for seed in [0, 8, 11] {
        let (system, run, limit) = low_load(seed, 900.0);
        let fitted = system.fitted(&run).expect("a fit");
        assert!(fitted.most_in_flight < 3 * system.slots, "{}: low load", system.name);
        for (decodes, prompt) in [(1, 0), (system.slots, 0), (system.slots / 2, 256)] {
            let (truth, found) = (
                step_ms(&system.engine, decodes, 400, prompt),
                step_ms(&fitted.engine, decodes, 400, prompt),
            );
            assert!(
                (found / truth - 1.0).abs() < 0.03,
                "{} {decodes}+{prompt}: {found} of {truth}",
                system.name
            );
        }
        let found =
            plimsoll_plan::fit::limit(&fitted.world, &system.mix(1_000.0), 1_000, 1).expect("a limit");
        assert!((found / limit - 1.0).abs() < 0.1, "{}: {found} of {limit}", system.name);
        for metric in ["ttft", "tpot", "e2e"] {
            assert!(
                fitted.band.rows.iter().any(|row| row.metric == metric && row.spread_log < 0.1),
                "{metric}"
            );
        }
        let told = fitted.settings.iter().find(|one| one.name == "max_seqs").expect("max_seqs");
        assert_eq!((told.from, told.value), (SettingOrigin::Told, f64::from(system.slots)));
    }
}

/// A roofline's steps bend: the overlapping form is selected, and is correct if several prompts share a step.
#[test]
fn a_step_that_bends_is_seen_to_bend() {
    let (system, run, _) = low_load(5, 900.0);
    let fitted = system.fitted(&run).expect("a fit");
    assert!(fitted.settings.iter().any(|one| one.name == "overlap.weights_us"), "{:?}", fitted.settings);
    for prompt in [64, 2048] {
        let (truth, found) =
            (step_ms(&system.engine, 20, 300, prompt), step_ms(&fitted.engine, 20, 300, prompt));
        assert!((found / truth - 1.0).abs() < 0.1, "prompt {prompt}: {found} of {truth}");
    }
}

/// Unknown settings are assumed and named, with the flag that states them.
#[test]
fn what_low_load_cannot_show_is_asked_for() {
    let (_, run, _) = low_load(0, 400.0);
    let fitted = fit(&measured(&run), &StatedTarget::default()).expect("a fit");
    for (name, say) in
        [("max_seqs", "--slots"), ("kv_blocks", "--kv-blocks"), ("token_budget", "--token-budget")]
    {
        let setting = fitted.settings.iter().find(|one| one.name == name).expect("a setting");
        assert_eq!(setting.from, SettingOrigin::Assumed, "{name}");
        assert!(fitted.notes.iter().any(|note| note.contains(say)), "{say}: {:?}", fitted.notes);
        assert!(
            fitted.rests_on().is_some_and(|rests_on| rests_on.contains(say)),
            "{say}: {:?}",
            fitted.rests_on()
        );
    }
    let told = StatedTarget {
        slots: Some(6),
        kv_blocks: Some(4096),
        token_budget: Some(512),
        ..StatedTarget::default()
    };
    assert_eq!(fit(&measured(&run), &told).expect("a fit").rests_on(), None);
    assert!(fitted.notes.iter().any(|note| note.contains("extrapolated")));
}

/// At most six sequences, at a load at which some requests waited for a slot: their wait reveals the limit without a
/// setting.
#[test]
fn places_that_requests_waited_for_are_counted() {
    let system = system(0);
    let run = system.run(250.0, 2_500.0);
    let fitted = fit(&measured(&run), &StatedTarget::default()).expect("a fit");
    let slots = fitted.settings.iter().find(|one| one.name == "max_seqs").expect("a setting");
    assert_eq!((slots.from, slots.value), (SettingOrigin::Fitted, 6.0), "{:?}", fitted.residuals);
}

/// The fitted engine survives the round trip through a file.
#[test]
fn a_fitted_engine_is_a_profile() {
    let (system, run, _) = low_load(0, 400.0);
    let fitted = system.fitted(&run).expect("a fit");
    let text = serde_json::to_string_pretty(&fitted.engine).expect("JSON");
    let again: EngineSpec = serde_json::from_str(&text).expect("a profile");
    let (ModeSpec::Batching(again_mode), ModeSpec::Batching(mode)) = (&again.mode, &fitted.engine.mode)
    else {
        panic!("batches")
    };
    assert_eq!((&again_mode.step, again_mode.front_ms), (&mode.step, mode.front_ms));
    assert!(
        again_mode.origin.as_ref().is_some_and(|origin| origin.range.is_some() && origin.held_out.len() == 3)
    );
    again.validate().expect("sound");
    assert!(
        plimsoll_sim::catalogue::origin::flags(
            &again,
            &plimsoll_sim::catalogue::origin::IntendedLoad { in_flight: Some(1e4), ..Default::default() }
        )
        .iter()
        .any(|flag| flag.contains("requests in flight"))
    );
}

#[test]
fn what_cannot_be_told_is_refused() {
    let system = system(0);
    // With one request at a time, base and growth of a step can't be distinguished.
    let alone = system.run(2.0, 300.0);
    assert!(
        matches!(system.fitted(&alone), Err(FitError::OneConcurrency { .. })),
        "{:?}",
        system.fitted(&alone)
    );
    let few = system.run(100.0, 60.0);
    assert!(matches!(system.fitted(&few), Err(FitError::TooFew { .. })));
    let mut failing = system.run(100.0, 400.0);
    for attempt in failing.attempts.iter_mut().step_by(3) {
        attempt.outcome =
            plimsoll_model::Outcome::new(plimsoll_model::How::ServerError, plimsoll_model::By::Server, true);
    }
    assert!(matches!(system.fitted(&failing), Err(FitError::Failing { .. })));
    let good = system.run(100.0, 400.0);
    let two = StatedTarget { replicas: Some(2), ..StatedTarget::default() };
    assert!(matches!(fit(&measured(&good), &two), Err(FitError::Ask(_))));
    let no_level = StatedTarget { level: Some(9), ..StatedTarget::default() };
    assert!(matches!(fit(&measured(&good), &no_level), Err(FitError::Ask(_))));
    // No engine has increasing response times: every second response is three times as slow in its tokens.
    let mut odd = system.run(100.0, 600.0);
    for (place, attempt) in odd.attempts.iter_mut().enumerate() {
        if place * 3 > 600
            && let (Some(sent), Some(first), Some(last)) =
                (attempt.sent, attempt.first_token, attempt.last_token)
        {
            attempt.first_token = Some(first + Span(40 * (first - sent).0));
            attempt.last_token = Some(last + Span(40 * (first - sent).0));
            attempt.end = attempt.last_token;
        }
    }
    assert!(
        matches!(system.fitted(&odd), Err(FitError::Unlike { .. })),
        "{:?}",
        system.fitted(&odd).map(|f| f.residuals)
    );
}

/// Returns a run of an endpoint that does not stream.
fn whole(engine: &EngineSpec, rate_per_s: f64, requests: f64) -> Run {
    let scenario = Scenario { seed: 5, ..Scenario::default() };
    let window = Span::from_secs_f64(requests / rate_per_s);
    let plan = SimLevelPlan {
        events: Events::All,
        stream: false,
        ..SimLevelPlan::new(&scenario, 0, Load::Open { rate_per_s }, At::ZERO, window)
    };
    let mut run = Run::default();
    let mut world = World::new(engine, 5).expect("a sound engine");
    let level = simulate_into(&mut world, &scenario, plan, None, &mut run).expect("a sound plan");
    run.levels.push(level);
    run
}

/// M/G/8 at a third of its limit: the fit recovers the service time distribution, and c / mean.
#[test]
fn a_queue_of_servers_comes_back_when_its_servers_are_told() {
    let service = LawSpec::Lognormal { median_ms: 20.0, sigma: 0.5 };
    let engine = EngineSpec {
        name: "secret".into(),
        mode: ModeSpec::Queue(QueueSpec { servers: 8, service, queue_limit: None }),
    };
    let run = whole(&engine, 120.0, 3_000.0);
    assert!(matches!(fit(&measured(&run), &StatedTarget::default()), Err(FitError::Ask(_))));
    let fitted =
        fit(&measured(&run), &StatedTarget { slots: Some(8), ..StatedTarget::default() }).expect("a fit");
    let ModeSpec::Queue(found) = &fitted.engine.mode else { panic!("a queue") };
    assert!((found.service.mean_ms() / service.mean_ms() - 1.0).abs() < 0.04, "{found:?}");
    assert!((found.service.cv_squared() / service.cv_squared() - 1.0).abs() < 0.2, "{found:?}");
}

/// Triton's batches of ResNet-50 on an A100 (affine here: 1.94 + 0.154 n ms) at a quarter of their limit.
#[test]
fn batches_come_back_when_the_largest_is_told() {
    let mut engine = profile::find("resnet50-triton@a100").expect("a profile").spec;
    let ModeSpec::Dynamic(dynamic) = &mut engine.mode else { panic!("it batches") };
    let affine = plimsoll_sim::spec::dynamic::AffineSpec { base_ms: 1.94, item_ms: 0.154 };
    dynamic.batch.compute = plimsoll_sim::spec::dynamic::ComputeSpec::Affine(affine);
    dynamic.batch.input = plimsoll_sim::spec::dynamic::AffineSpec::default();
    dynamic.front = plimsoll_sim::spec::dynamic::FrontSpec { request_ms: 0.5, item_ms: 0.0 };
    let (most, limit) = (dynamic.max_batch_size, 1e3 * 128.0 / (1.94 + 0.154 * 128.0));
    let run = whole(&engine, 0.25 * limit, 3_000.0);
    let fitted = fit(&measured(&run), &StatedTarget { max_batch: Some(most), ..StatedTarget::default() })
        .expect("a fit");
    let ModeSpec::Dynamic(found) = &fitted.engine.mode else { panic!("batches") };
    let full = found.batch.ms(128);
    assert!((full / (1.94 + 0.154 * 128.0) - 1.0).abs() < 0.1, "{full} ms of a full batch: {found:?}");
}

#[test]
fn an_empty_run_is_refused_in_a_sentence() {
    let none = FittedRun { levels: &[], attempts: &[], samples: &[] };
    assert!(fit(&none, &StatedTarget::default()).is_err());
}
