//! Active diagnosis: whole diagnoses of simulated systems, limits, and properties of the beliefs. All systems and
//! their table: `examples/active.rs`.

use plimsoll_diagnose::active::before::{EarlierComparison, EarlierRun};
use plimsoll_diagnose::active::choose::{Choice, decides};
use plimsoll_diagnose::active::plan::{ActiveSpec, ExperimentKind, KnownTarget, TrafficTraits, of_level};
use plimsoll_diagnose::belief::{EvidenceSource, Likelihood, states};
use plimsoll_diagnose::causes::causes;
use plimsoll_diagnose::fact::{FactState, Observed};
use plimsoll_diagnose::facts::Finding;
use plimsoll_diagnose::{Cause, DiagnosisOutcome, Layer, RunData, YesNo};
use plimsoll_measure::findings::{Ceiling, Metric};
use plimsoll_model::{Fingerprint, Level, Load, Span};

use crate::active_systems::{System, spec};

const LLAMA: &str = "llama-3.1-8b@h100";

fn check(fault: &str, cause: Cause) {
    let system = System::new(LLAMA, (256, 64), fault, &[cause]);
    named(&system);
}

fn named(system: &System) {
    let played = system.play(&spec());
    let found = &played.diagnosis.verdicts[0];
    assert!(
        system.expect.contains(&found.cause),
        "{}: {}\n{:#?}\n{:#?}",
        system.name,
        played.diagnosis.headline,
        played.log,
        found.evidence
    );
    assert!(!found.do_first.is_empty() && !found.do_not.is_empty());
    assert_eq!(played.diagnosis.questions.len(), 5);
}

#[test]
fn a_sound_engine_is_called_sound() {
    check("none", Cause::Nothing);
}

#[test]
fn a_rate_limit_is_named() {
    check("rate_limit:rate=4,burst=8", Cause::RateLimit);
}

/// The crash begins during the experiments and ends after all of them, if ever: the failures then are no error rate.
#[test]
fn an_engine_that_does_not_come_back_is_no_server_with_errors() {
    for fault in ["crash:at=6s,for=900s", "crash:at=12s,for=900s", "crash:at=20s,for=900s"] {
        let system = System::new(LLAMA, (256, 64), fault, &[Cause::EngineCrash]);
        let played = system.play(&spec());
        let found = &played.diagnosis.verdicts[0];
        let told = format!("{fault}: {}\n{:#?}", played.diagnosis.headline, played.log);
        assert!(matches!(found.cause, Cause::EngineCrash | Cause::Unknown), "{told}");
    }
}

#[test]
fn a_share_of_errors_is_no_crash() {
    check("error:share=0.15,status=500", Cause::ServerErrors);
}

#[test]
fn answers_that_end_in_the_middle_are_named() {
    check("disconnect:share=0.1", Cause::StreamDisconnect);
}

#[test]
fn a_proxy_that_collects_tokens_is_named() {
    check("buffering:every=400ms", Cause::ProxyBuffering);
}

#[test]
fn a_window_is_no_slow_dependency() {
    check("batch_window:window=150ms", Cause::BatchingWindow);
}

#[test]
fn a_slow_dependency_is_no_window() {
    check("dependency:delay=250ms", Cause::SlowDependency);
}

/// In a minute, a ten-second idle experiment once took the time of the prompt-length experiment, which alone detects
/// a dependency.
#[test]
fn with_little_time_left_what_tells_goes_before_what_is_cheap() {
    for delay in [150, 200, 250] {
        let system =
            System::new(LLAMA, (256, 32), &format!("dependency:delay={delay}ms"), &[Cause::SlowDependency]);
        let played = system.play(&ActiveSpec { time: Span::from_secs(60), ..spec() });
        let found = &played.diagnosis.verdicts[0];
        assert_eq!(found.cause, Cause::SlowDependency, "{delay} ms: {}\n{:#?}", found.says, played.log);
        assert!(played.seconds < 66.0, "{} s of 60", played.seconds);
    }
}

#[test]
fn a_stall_is_told_by_its_clock() {
    check("stall:every=3s,for=400ms", Cause::PeriodicStall);
}

#[test]
fn one_slow_replica_of_three_is_named() {
    named(&System::new(LLAMA, (256, 64), "slow:factor=2.2,replica=1", &[Cause::BadReplica]).replicas(3));
}

#[test]
fn the_clients_own_pool_is_no_slow_server() {
    named(&System::new(LLAMA, (256, 64), "none", &[Cause::ClientCap]).pool(2));
}

#[test]
fn ceilings_hold_and_too_little_is_unknown() {
    let system = System::new(LLAMA, (256, 64), "stall:every=3s,for=400ms", &[]);
    let tight = ActiveSpec { max_requests: 30, max_concurrency: 2, ..spec() };
    let played = system.play(&tight);
    assert!(played.requests <= 30, "{}", played.requests);
    assert_ne!(played.diagnosis.answer, DiagnosisOutcome::NothingMaterial, "thirty requests prove nothing");
    let none = System::new(LLAMA, (256, 64), "error:share=1", &[]).play(&spec());
    assert!(none.requests <= spec().max_errors + 40, "{} to a target that answers none", none.requests);
}

#[test]
fn no_experiment_asks_for_more_than_its_ceilings() {
    let spec = ActiveSpec { max_concurrency: 6, max_rate: Some(3.0), ..spec() };
    let traffic =
        TrafficTraits { prompt: 256.0, output: 64.0, synthetic: true, streams: true, pool: Some(3) };
    let known =
        KnownTarget { e2e_s: 0.5, least_s: 0.4, ttft_s: 0.1, best_rate: 10.0, step: 4, left_s: 300.0 };
    for kind in ExperimentKind::ALL {
        for ask in kind.asks(&spec, &traffic, &known) {
            match ask.load {
                Load::Closed { concurrency } => assert!(concurrency <= 6 && ask.pace_per_s <= 3.0, "{ask:?}"),
                Load::Open { rate_per_s } => assert!(rate_per_s <= 3.0, "{ask:?}"),
                other => panic!("{other:?}"),
            }
            assert!(ask.window > Span::ZERO && ask.window <= spec.time, "{ask:?}");
        }
    }
}

#[test]
fn a_purpose_says_what_its_level_was() {
    let traffic =
        TrafficTraits { prompt: 256.0, output: 64.0, synthetic: true, streams: true, pool: Some(3) };
    let known =
        KnownTarget { e2e_s: 0.5, least_s: 0.4, ttft_s: 0.1, best_rate: 10.0, step: 4, left_s: 300.0 };
    let spec = ActiveSpec { replicas: 2, ..spec() };
    let mut level = plimsoll_lab::records::level(1.0, 1);
    for ask in ExperimentKind::ALL.iter().flat_map(|kind| kind.asks(&spec, &traffic, &known)) {
        level.purpose = ask.purpose();
        assert_eq!(of_level(&level), Some((ask.kind, ask.arm)), "{}", level.purpose);
    }
    for other in ["run", "hold", "together:many", "alone:"] {
        level.purpose = other.into();
        assert_eq!(of_level(&level), None, "{other}");
    }
}

fn yes(fact: Observed) -> Finding {
    Finding::new(fact, FactState::Yes, String::new())
}

#[test]
fn what_a_cause_must_show_makes_it_likelier_and_its_experiment_worth_something() {
    let after = |found: &[Finding]| {
        Likelihood::learnt(EvidenceSource::Experiments).posterior(&states(found), |row| {
            ExperimentKind::ALL
                .iter()
                .any(|kind| decides(*kind).iter().any(|(fact, _)| row.decisive.contains(fact)))
        })
    };
    let open: Vec<Observed> =
        ExperimentKind::ALL.iter().flat_map(|kind| decides(*kind)).map(|(fact, _)| *fact).collect();
    let before = after(&[]);
    for row in causes() {
        let own: Vec<Observed> = row.decisive.iter().copied().filter(|fact| open.contains(fact)).collect();
        let Some(fact) = own.first() else { continue };
        // An isolated fact need not suffice (any queue may cause a wait), but without it the cause is never first.
        let no: Vec<Finding> = own.iter().map(|fact| Finding { is: FactState::No, ..yes(*fact) }).collect();
        assert_ne!(after(&no).first().0, row.cause);
        assert!(after(&[yes(*fact)]).in_cause(row.cause) > before.in_cause(row.cause), "{:?}", row.cause);
    }
    // Decided facts add no information.
    for kind in ExperimentKind::ALL {
        let all: Vec<Finding> = decides(kind).iter().map(|(fact, _)| yes(*fact)).collect();
        assert!(Choice::new(&before, &[]).information(&[kind]) > 0.0, "{kind:?}");
        assert_eq!(Choice::new(&before, &all).information(&[kind]), 0.0, "{kind:?}");
    }
}

/// Returns the earlier run: an active diagnosis of this engine.
fn against(system: &System, model: &str) -> (EarlierRun, Fingerprint) {
    let facts = [("model".to_owned(), Some(model.to_owned())), ("engine_flags".to_owned(), None)];
    let target = Fingerprint { url: "http://there/v1".into(), facts: facts.into_iter().collect() };
    (system.play(&spec()).before(&target), target)
}

#[test]
fn an_engine_that_has_become_slower_is_named_and_its_twin_cleared() {
    let (before, target) = against(&System::new(LLAMA, (256, 64), "none", &[]), "llama");
    let against = EarlierComparison { before: &before, target: &target };
    // Ground truth: every step takes longer by the factor, isolated and under concurrency.
    for factor in [1.2, 1.5, 3.0] {
        let system = System::new(LLAMA, (256, 64), &format!("slow:factor={factor}"), &[]);
        let played = system.play_against(&spec(), Some(against));
        let found = &played.diagnosis.verdicts[0];
        assert_eq!(
            found.cause,
            Cause::SlowerModel,
            "{factor}: {}\n{:#?}",
            played.diagnosis.headline,
            played.log
        );
        let ratio = found
            .evidence
            .iter()
            .find(|e| e.figure == "alone_tokens_slower")
            .and_then(|e| e.value)
            .expect("a ratio");
        assert!(ratio.lower <= factor * 1.02 && factor <= 1.02 * ratio.upper, "{factor}: {ratio:?}");
        assert!((ratio.value / factor - 1.0).abs() < 0.05, "{factor}: {ratio:?}");
        let moved = &played.diagnosis.questions[2];
        assert_eq!(moved.answer, YesNo::Yes, "{}", moved.says);
        assert!(played.diagnosis.changed.unknown.contains(&"engine_flags".to_owned()));
    }
    let mut twin = System::new(LLAMA, (256, 64), "none", &[]);
    twin.scenario.seed = 99;
    let same = twin.play_against(&spec(), Some(against)).diagnosis;
    assert_eq!(same.answer, DiagnosisOutcome::NothingMaterial, "{}", same.headline);
    assert_eq!(same.questions[2].answer, YesNo::No, "{}", same.questions[2].says);
    assert!(same.cleared.iter().any(|cleared| cleared.layer == Layer::Model), "{:?}", same.cleared);
}

#[test]
fn what_was_there_before_is_said_beside_what_is_new() {
    let delayed = || System::new(LLAMA, (256, 64), "dependency:delay=250ms", &[]);
    let (before, target) = against(&delayed(), "llama");
    let known = delayed().play_against(&spec(), Some(EarlierComparison { before: &before, target: &target }));
    let evidence = &known.diagnosis.verdicts[0].evidence;
    assert_eq!(known.diagnosis.verdicts[0].cause, Cause::SlowDependency, "{}", known.diagnosis.headline);
    assert!(evidence.iter().any(|e| e.says.starts_with("this is unchanged")), "{evidence:#?}");
    let (sound, target) = against(&System::new(LLAMA, (256, 64), "none", &[]), "another");
    let target = Fingerprint { facts: [("model".to_owned(), Some("llama".to_owned()))].into(), ..target };
    let new = delayed().play_against(&spec(), Some(EarlierComparison { before: &sound, target: &target }));
    assert_eq!(new.diagnosis.verdicts[0].cause, Cause::SlowDependency, "{}", new.diagnosis.headline);
    let moved = &new.diagnosis.questions[2];
    assert!(moved.says.contains("the model changed (model: another -> llama)"), "{}", moved.says);
}

#[test]
fn prompts_of_another_length_are_not_held_against_each_other() {
    let (before, target) = against(&System::new(LLAMA, (1024, 64), "none", &[]), "llama");
    let played = System::new(LLAMA, (256, 64), "none", &[])
        .play_against(&spec(), Some(EarlierComparison { before: &before, target: &target }));
    let missing: Vec<&str> = played.diagnosis.missing.iter().map(|missing| missing.what.as_str()).collect();
    assert!(
        missing.iter().any(|what| what.contains("prompts of 1024 tokens in BEFORE, 256 now")),
        "{missing:?}"
    );
    assert_eq!(played.diagnosis.questions[2].answer, YesNo::CantTell);
}

#[test]
fn a_run_with_single_requests_among_others_serves_as_a_baseline() {
    let mut system = System::new(LLAMA, (256, 64), "none", &[]);
    let played = system.play(&spec());
    let alone: Vec<_> = played.levels.iter().filter(|level| level.purpose == "alone").cloned().collect();
    // As in an ordinary run: a level at concurrency 1 that is not marked as an experiment.
    let levels: Vec<_> = alone.into_iter().map(|level| Level { purpose: "run".into(), ..level }).collect();
    let facts = Fingerprint::default();
    let side = RunData { levels: &levels, attempts: &played.attempts, samples: &[], facts: &facts };
    let before = EarlierRun::of("RUN", &side);
    assert!(before.alone.len() >= 20 && before.concurrency.is_empty() && before.shown.is_empty());
    system.scenario.seed = 5;
    let diagnosis =
        system.play_against(&spec(), Some(EarlierComparison { before: &before, target: &facts })).diagnosis;
    assert_eq!(diagnosis.answer, DiagnosisOutcome::NothingMaterial, "{}", diagnosis.headline);
    let missing: Vec<&str> = diagnosis.missing.iter().map(|missing| missing.what.as_str()).collect();
    assert!(
        missing.iter().any(|what| what.contains("no closed loop with as many requests in flight")),
        "{missing:?}"
    );
}

/// Returns the diagnosis of a healthy engine under these ceilings. The ground truth is the engine's own arithmetic:
/// an isolated first token takes tens of milliseconds, and steps at concurrency 16 take longer.
fn promised(ceilings: &[(Metric, f64, f64)]) -> (plimsoll_diagnose::Diagnosis, Vec<Finding>) {
    let system = System::new(LLAMA, (256, 64), "none", &[]);
    let ceilings: Vec<Ceiling> =
        ceilings.iter().map(|(metric, p, limit)| Ceiling::new(*metric, *p, *limit)).collect();
    let spec = ActiveSpec { ceilings, ..spec() };
    let played = system.play(&spec);
    let blocks = plimsoll_diagnose::active::blocks(&played.levels, &played.attempts, &[]);
    let shown = plimsoll_diagnose::active::facts::read(&blocks, &spec, None);
    (played.diagnosis, shown)
}

#[test]
fn a_budget_says_what_is_material_of_an_endpoint() {
    let (kept, shown) = promised(&[(Metric::Ttft, 0.95, 5.0), (Metric::E2e, 0.99, 60.0)]);
    assert_eq!(kept.answer, DiagnosisOutcome::NothingMaterial, "{}", kept.headline);
    assert_eq!(kept.questions[3].answer, YesNo::No, "{}", kept.questions[3].says);
    let state = |shown: &[Finding], fact| shown.iter().find(|shown| shown.fact == fact).map(|shown| shown.is);
    assert_eq!(state(&shown, Observed::BudgetBroken), Some(FactState::No));
    // No isolated request can meet the ceiling. The model is the cause at any percentile, and a ceiling that passes
    // does not hide it.
    for percentile in [0.5, 0.95, 0.99] {
        let (broken, _) = promised(&[(Metric::Ttft, 0.95, 5.0), (Metric::E2e, percentile, 0.05)]);
        assert_eq!(broken.verdicts[0].cause, Cause::SingleRequestOverBudget, "{}", broken.headline);
        assert_eq!(broken.questions[3].answer, YesNo::Yes, "{}", broken.questions[3].says);
        assert!(broken.questions[3].says.contains("over e2e 50 ms"), "{}", broken.questions[3].says);
    }
    let (none, shown) = promised(&[]);
    assert_eq!(none.answer, DiagnosisOutcome::NothingMaterial, "{}", none.headline);
    assert_eq!(none.questions[3].answer, YesNo::CantTell);
    assert_eq!(state(&shown, Observed::BudgetBroken), None);
}

#[test]
fn what_only_concurrency_breaks_is_neither_nothing_nor_a_single_requests_doing() {
    let system = System::new(LLAMA, (256, 64), "none", &[]);
    let played = system.play(&spec());
    // Seconds per token in ascending order.
    let tokens = |of: &dyn Fn(&Level) -> bool| {
        let ids: Vec<u32> = played.levels.iter().filter(|level| of(level)).map(|level| level.id).collect();
        let rows = played.attempts.iter().filter(|a| ids.contains(&a.level));
        let one = |a: &plimsoll_model::Attempt| {
            let tokens = a.answer.tokens.output.filter(|n| *n > 1)?;
            Some((a.end? - a.first_token?).as_secs_f64() / f64::from(tokens - 1))
        };
        let mut all: Vec<f64> = rows.filter_map(one).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let alone = tokens(&|level| level.purpose == "alone");
    let crowd = tokens(&|level| {
        level.purpose.starts_with("together") && level.load == Load::Closed { concurrency: 16 }
    });
    // Between the slowest isolated time and the median under concurrency.
    let (most, middle) = (alone[alone.len() - 1], crowd[crowd.len() / 2]);
    assert!(most < middle, "the truth has room for such a promise: {most} {middle}");
    let (found, shown) = promised(&[(Metric::Tpot, 0.95, 0.5 * (most + middle))]);
    let over = shown.iter().find(|shown| shown.fact == Observed::BudgetBroken).expect("held to it");
    assert_eq!(over.is, FactState::Yes, "{}", over.says);
    assert_eq!(found.questions[3].answer, YesNo::No, "{}", found.questions[3].says);
    assert_eq!(found.answer, DiagnosisOutcome::Unknown, "{}", found.headline);
    assert!(
        found.headline.contains("in flight") && found.headline.contains("only the load"),
        "{}",
        found.headline
    );
}
