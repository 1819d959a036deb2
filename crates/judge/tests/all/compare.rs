//! Comparisons of two runs: simulated queues and hand-written records with known results.

use plimsoll_judge::compare::finding::{
    ChangeVerdict, ComparedFigure, Comparison, ComparisonUnit, Design, Fact,
};
use plimsoll_judge::compare::{CompareRefusal, CompareSpec, DifferencePolicy, RunRead, compare};
use plimsoll_math::queueing::Mmc;
use plimsoll_math::rng::Stream;
use plimsoll_measure::analyse;
use plimsoll_measure::findings::{Findings, Reason, Trust};
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::run::TimeBase;
use plimsoll_model::{At, Attempt, How, Level, Load, Manifest, ServerStage, Span};
use plimsoll_sim::{EngineSpec, LawSpec, ModeSpec, QueueSpec, SimLevelPlan, World, simulate_level};
use plimsoll_workload::{Scenario, Size};
use serde_json::json;

use plimsoll_lab::arms::MixedEffect;
use plimsoll_lab::records::{MS, answer, failure, level, manifest};

/// A run as a reader loads it.
struct Whole {
    manifest: Manifest,
    attempts: Vec<Attempt>,
    findings: Findings,
}

impl Whole {
    fn of(levels: Vec<Level>, attempts: Vec<Attempt>) -> Whole {
        let manifest = manifest(levels);
        let spec = SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(50);
        let findings = analyse(&manifest, &attempts, &[], &spec);
        Whole { manifest, attempts, findings }
    }

    fn read(&self) -> RunRead<'_> {
        RunRead { manifest: &self.manifest, attempts: &self.attempts, findings: &self.findings }
    }
}

/// Returns levels of eight exponential servers (mean 10 ms, times `factor`), in sequence.
///
/// The parameters are the load, the length of the levels, and the seeds of schedule and server.
fn queue(factor: f64, load: f64, window: Span, seeds: &[(u64, u64)]) -> Whole {
    queues(&vec![factor; seeds.len()], load, window, seeds)
}

/// Returns these levels with a factor for each.
fn queues(factors: &[f64], load: f64, window: Span, seeds: &[(u64, u64)]) -> Whole {
    let (mut levels, mut attempts, mut now) = (Vec::new(), Vec::new(), At::ZERO);
    for (id, ((schedule, server), factor)) in seeds.iter().zip(factors).enumerate() {
        let service = LawSpec::Exponential { mean_ms: 10.0 * factor };
        let mode = ModeSpec::Queue(QueueSpec { servers: 8, service, queue_limit: None });
        let engine = EngineSpec { name: "test".into(), mode };
        let mut world = World::new(&engine, *server).expect("a sound engine");
        let mut scenario = Scenario { seed: *schedule, ..Scenario::default() };
        (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(1), Size::Fixed(1));
        let rate_per_s = load * 800.0;
        let mut plan = SimLevelPlan::new(&scenario, id as u32, Load::Open { rate_per_s }, now, window);
        (plan.traffic, plan.purpose) = ("steady".into(), "run".into());
        let run = simulate_level(&mut world, &scenario, plan).expect("a sound level");
        now = run.level.drained + Span::from_millis(1);
        levels.push(run.level);
        attempts.extend(run.attempts);
    }
    Whole::of(levels, attempts)
}

const HALF_A_MINUTE: Span = Span::from_secs(30);

#[track_caller]
fn compared(base: &Whole, candidate: &Whole) -> Comparison {
    compare(&base.read(), &candidate.read(), &CompareSpec::default()).expect("the same experiment")
}

#[track_caller]
fn row<'c>(comparison: &'c Comparison, metric: &str, statistic: &str) -> &'c ComparedFigure {
    let mut rows = comparison.groups[0].rows.iter();
    rows.find(|row| row.metric == metric && row.statistic == statistic)
        .unwrap_or_else(|| panic!("no {metric} {statistic}"))
}

#[test]
fn a_slower_server_is_seen_pair_by_pair() {
    // At load 0.1 there is almost no queueing: each request takes a tenth longer, and so does every percentile.
    let base = queue(1.0, 0.1, HALF_A_MINUTE, &[(7, 3)]);
    let slower = queue(1.1, 0.1, HALF_A_MINUTE, &[(7, 3)]);
    let found = compared(&base, &slower);
    assert_eq!((found.design, found.verdict), (Design::Paired, ChangeVerdict::Regressed), "{:?}", found.says);
    for (metric, statistic) in [("e2e", "per request"), ("e2e", "p50"), ("ttft", "p50")] {
        let row = row(&found, metric, statistic);
        let effect = row.effect.expect("paired");
        assert_eq!(row.verdict, ChangeVerdict::Regressed, "{row:?}");
        assert!((effect.value - 1.1).abs() < 0.004 && effect.lower > 1.05, "{metric} {statistic} {effect:?}");
    }
    // With both runs exchanged it is an improvement.
    let back = compared(&slower, &base);
    assert_eq!(back.verdict, ChangeVerdict::Improved, "{:?}", back.says);
    assert!(back.says[0].ends_with("nothing got worse."), "{:?}", back.says);
}

#[test]
fn more_load_than_it_shows_at_the_median_is_read_by_the_formula() {
    // The same schedule on servers of 10 and 12 ms, at loads of 0.7 and 0.84 then: the ratio of percentiles by Erlang's formula.
    let window = Span::from_secs(80);
    let (base, slower) = (queue(1.0, 0.7, window, &[(5, 8)]), queue(1.2, 0.7, window, &[(5, 8)]));
    let found = compared(&base, &slower);
    let truth = |p: f64| {
        let at = |load: f64, service_mean: f64| Mmc { servers: 8, load, service_mean }.sojourn_quantile(p);
        at(0.84, 0.012) / at(0.7, 0.01)
    };
    for (statistic, p) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
        let row = row(&found, "e2e", statistic);
        let effect = row.effect.expect("paired");
        assert!((effect.value / truth(p) - 1.0).abs() < 0.08, "{statistic}: {effect:?} against {}", truth(p));
        assert_eq!(row.verdict, ChangeVerdict::Regressed);
    }
}

#[test]
fn equal_targets_are_not_called_different() {
    // The schedules are equal and the servers draw independently. The family is tested at 5 %, so one of six may alarm.
    let mut called = 0;
    for seed in 0..6 {
        let base = queue(1.0, 0.8, Span::from_secs(12), &[(100 + seed, 1_000 + seed)]);
        let same = queue(1.0, 0.8, Span::from_secs(12), &[(100 + seed, 2_000 + seed)]);
        let found = compared(&base, &same);
        called += u32::from(matches!(found.verdict, ChangeVerdict::Regressed | ChangeVerdict::Improved));
    }
    assert!(called <= 1, "{called} of 6");
}

#[test]
fn ten_alternations_are_units_and_fewer_are_cut() {
    let seeds = |server: u64, n: u64| (0..n).map(|i| (40 + i, server + i)).collect::<Vec<_>>();
    let short = Span::from_secs(4);
    let (base, other) = (queue(1.0, 0.5, short, &seeds(10, 12)), queue(1.3, 0.5, short, &seeds(90, 12)));
    let found = compared(&base, &other);
    let group = &found.groups[0];
    assert_eq!((found.groups.len(), group.unit, group.units), (1, ComparisonUnit::Alternation, 12));
    assert_eq!(found.verdict, ChangeVerdict::Regressed, "{:?}", found.says);
    assert!(!found.notes.iter().any(|note| note.contains("variation between")), "{:?}", found.notes);
    let (base, other) = (queue(1.0, 0.5, short, &seeds(10, 4)), queue(1.3, 0.5, short, &seeds(90, 4)));
    let found = compared(&base, &other);
    assert_eq!((found.groups[0].unit, found.groups[0].units), (ComparisonUnit::Section, 20));
    assert!(found.notes.iter().any(|note| note.contains("4 alternations")), "{:?}", found.notes);
}

/// Four alternations on a machine whose speed changes by a tenth between them.
///
/// The p50 of each alternation differs significantly, and that is no change of the candidate. A candidate that takes half as
/// long again in each of them is found.
#[test]
fn few_alternations_on_an_unsteady_machine_decide_little() {
    let levels = |speeds: [f64; 4], seed: u64| {
        let seeds = [1, 2, 3, 4].map(|schedule| (schedule, seed + schedule));
        queues(&speeds, 0.5, Span::from_secs(10), &seeds)
    };
    let base = levels([1.0, 1.1, 1.0, 1.1], 10);
    let found = compared(&base, &levels([1.15, 1.2, 1.15, 1.05], 20));
    assert_eq!((found.groups[0].unit, found.groups[0].units), (ComparisonUnit::Section, 20));
    assert_eq!(
        row(&found, "e2e", "p50").verdict,
        ChangeVerdict::Inconclusive,
        "{:?}",
        row(&found, "e2e", "p50")
    );
    assert_ne!(found.verdict, ChangeVerdict::Regressed);
    assert!(found.notes.iter().any(|note| note.starts_with("4 alternations")), "{:?}", found.notes);
    let slower = compared(&base, &levels([1.5, 1.65, 1.5, 1.65], 20));
    assert_eq!(
        row(&slower, "e2e", "p50").verdict,
        ChangeVerdict::Regressed,
        "{:?}",
        row(&slower, "e2e", "p50")
    );
}

fn stretched(base: &Whole, factor: impl Fn(&Attempt, f64) -> f64) -> Whole {
    let change = |attempt: &Attempt| {
        let mut attempt = attempt.clone();
        let e2e_s = attempt.end.map_or(0.0, |end| (end - attempt.due).as_secs_f64());
        let factor = factor(&attempt, e2e_s);
        let due = attempt.due;
        for stamp in [
            &mut attempt.sent,
            &mut attempt.first_byte,
            &mut attempt.first_token,
            &mut attempt.first_visible,
            &mut attempt.last_token,
            &mut attempt.end,
        ] {
            *stamp = stamp.map(|at| due + Span(((at - due).0 as f64 * factor) as i64));
        }
        attempt
    };
    Whole::of(base.manifest.levels.clone(), base.attempts.iter().map(change).collect())
}

#[test]
fn a_better_median_with_a_worse_tail_is_refused_in_those_words() {
    let base = queue(1.0, 0.7, HALF_A_MINUTE, &[(7, 3)]);
    let law = Mmc { servers: 8, load: 0.7, service_mean: 0.01 };
    let bent = MixedEffect::new((law.sojourn_quantile(0.5), 0.9), (law.sojourn_quantile(0.99), 1.3));
    let candidate = stretched(&base, |_, e2e_s| bent.apply(e2e_s) / e2e_s);
    let found = compared(&base, &candidate);
    assert_eq!(found.verdict, ChangeVerdict::Regressed);
    let said = found.says.iter().find(|said| said.starts_with("Refused: ")).expect("said");
    assert!(
        said.starts_with("Refused: the change improves the median of")
            && said.contains("and breaks its p99: "),
        "{said}"
    );
    assert!((row(&found, "e2e", "p99").effect.expect("found").value - 1.3).abs() < 0.03);
    assert!((row(&found, "e2e", "p50").effect.expect("found").value - 0.9).abs() < 0.02);
}

#[test]
fn failures_keep_their_place_and_are_never_equal() {
    let base = queue(1.0, 0.3, HALF_A_MINUTE, &[(7, 3)]);
    let failing = |seed: u64| {
        let mut stream = Stream::new(seed, "failures", 0);
        let fail = |attempt: &Attempt| {
            let fails = stream.chance(0.03);
            let kept = failure(attempt.request, attempt.due.0 / MS, How::ServerError, 1);
            if fails {
                Attempt { due: attempt.due, asked_prompt: 1, asked_output: 1, ..kept }
            } else {
                attempt.clone()
            }
        };
        Whole::of(base.manifest.levels.clone(), base.attempts.iter().map(fail).collect())
    };
    let found = compared(&base, &failing(1));
    let p99 = row(&found, "e2e", "p99");
    assert_eq!(
        (p99.effect.expect("infinite").value, p99.verdict),
        (f64::INFINITY, ChangeVerdict::Regressed),
        "{p99:?}"
    );
    // There is no sentence on a median that hardly moved.
    assert!(!found.says.iter().any(|said| said.starts_with("Refused")), "{:?}", found.says);
    let errors = row(&found, "error_rate", "rate");
    assert_eq!(errors.verdict, ChangeVerdict::Regressed, "{errors:?}");
    assert!((errors.effect.expect("a share").value - 0.03).abs() < 0.006, "{errors:?}");
    // Both fail at different requests: the p99 is infinite twice, which is not "no change".
    let both = compared(&failing(1), &failing(2));
    let p99 = row(&both, "e2e", "p99");
    assert_eq!((p99.effect, p99.verdict), (None, ChangeVerdict::Inconclusive), "{p99:?}");
    assert_eq!(both.verdict, ChangeVerdict::Inconclusive);
    // The comparison survives JSON.
    let text = serde_json::to_string(&found).expect("written");
    let read: Comparison = serde_json::from_str(&text).expect("read");
    let p99 = row(&read, "e2e", "p99");
    assert_eq!((read.verdict, p99.effect.expect("infinite").value), (found.verdict, f64::INFINITY));
    // The row that is broken worst is named first.
    assert!(
        found.says[0].starts_with("Regressed: ttft p99 infinite: failures reach down to it"),
        "{:?}",
        found.says
    );
}

/// Returns requests of two kinds: short prompts of about 50 ms and long ones of about 200 ms; `long` in a hundred are long.
fn mixture(long: u64, seed: u64) -> Whole {
    let mut stream = Stream::new(seed, "mixture", 0);
    let records = (0..4_000u64).map(|i| {
        let is_long = stream.below(100) < long;
        let about = if is_long { 200.0 } else { 50.0 };
        let took = (about * (0.8 + 0.4 * stream.uniform())) as i64;
        let mut record = answer(i, 10 * i as i64, took, took + 20, 5);
        record.asked_prompt = if is_long { 4_000 } else { 100 };
        record
    });
    let mut whole = Whole::of(vec![level(100.0, 40)], records.collect());
    whole.manifest.scenario["seed"] = json!(seed);
    whole
}

#[test]
fn a_changed_mix_is_not_taken_for_a_slower_target() {
    // A fifth long prompts, then three fifths: the median goes from about 52 ms to about 190 and no request got slower.
    let (base, candidate) = (mixture(20, 1), mixture(60, 2));
    let refused = compare(&base.read(), &candidate.read(), &CompareSpec::default());
    let Err(CompareRefusal::Differ(differences)) = refused else { panic!("{refused:?}") };
    assert_eq!(differences[0].about, "prompts");
    let spec = CompareSpec { differing: DifferencePolicy::Standardise, ..CompareSpec::default() };
    let found = compare(&base.read(), &candidate.read(), &spec).expect("told to");
    assert_eq!(found.design, Design::Standardised);
    for statistic in ["p50", "p95"] {
        let row = row(&found, "ttft", statistic);
        assert_ne!(row.verdict, ChangeVerdict::Regressed, "{row:?}");
        assert!(row.effect.expect("weighed").value < 1.05, "{row:?}");
    }
    let raw = row(&found, "ttft", "p50").as_it_came.expect("as it came");
    assert!(raw.value > 3.0 && raw.lower > 2.0, "{raw:?}");
    assert!(
        found.says.iter().any(|said| said.contains("the mix changed, not the target")),
        "{:?}",
        found.says
    );
    for slice in &found.groups[0].slices {
        assert!(slice.effect.is_some_and(|e| e.lower < 1.02 && e.upper > 0.98), "{slice:?}");
    }
    // A kind that the candidate has none of cannot be replaced.
    let only_short = mixture(0, 3);
    let found = compare(&base.read(), &only_short.read(), &spec).expect("told to");
    assert_eq!(found.verdict, ChangeVerdict::Inconclusive);
    assert!(row(&found, "ttft", "p50").why.as_deref().is_some_and(|why| why.contains("have no like")));
}

#[test]
fn failures_of_long_prompts_are_not_laid_to_a_mix_with_more_of_them() {
    // Every tenth long prompt fails on both sides: 2 % of all in the base, 6 % in the candidate, equal at the base's mix.
    let failing = |mut whole: Whole| {
        for (i, attempt) in whole.attempts.iter_mut().filter(|a| a.asked_prompt == 4_000).enumerate() {
            if i % 10 == 0 {
                let kept = failure(attempt.request, attempt.due.0 / MS, How::ServerError, 1);
                *attempt = Attempt { due: attempt.due, asked_prompt: 4_000, asked_output: 5, ..kept };
            }
        }
        whole
    };
    let (base, candidate) = (failing(mixture(20, 1)), failing(mixture(60, 2)));
    let spec = CompareSpec { differing: DifferencePolicy::Standardise, ..CompareSpec::default() };
    let found = compare(&base.read(), &candidate.read(), &spec).expect("told to");
    let errors = row(&found, "error_rate", "rate");
    let share = errors.candidate.value.expect("a share");
    assert!((share - 0.02).abs() < 0.002, "{errors:?}");
    assert_ne!(errors.verdict, ChangeVerdict::Regressed, "{errors:?}");
    assert!(!row(&found, "throughput", "rate").primary);
}

#[test]
fn what_is_not_the_same_experiment_is_refused() {
    let base = queue(1.0, 0.3, HALF_A_MINUTE, &[(7, 3)]);
    let differ = |change: &dyn Fn(&mut Whole)| -> Vec<String> {
        let mut other = queue(1.0, 0.3, HALF_A_MINUTE, &[(7, 4)]);
        change(&mut other);
        match compare(&base.read(), &other.read(), &CompareSpec::default()) {
            Err(CompareRefusal::Differ(differences)) => differences.into_iter().map(|d| d.about).collect(),
            Ok(_) => Vec::new(),
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(differ(&|_| {}).is_empty());
    assert_eq!(differ(&|run| run.manifest.scenario["load"]["rate"] = json!("20/s")), ["load"]);
    assert_eq!(differ(&|run| run.manifest.scenario["sizes"]["prompt"] = json!("20")), ["lengths"]);
    assert_eq!(differ(&|run| run.manifest.scenario["client"] = json!({"retries": {"max": 2}})), ["client"]);
    assert_eq!(differ(&|run| run.manifest.levels[0].schedule_hash = "other".into()), ["schedule"]);
    assert_eq!(differ(&|run| run.manifest.time = TimeBase::Real), ["clock"]);
    assert_eq!(differ(&|run| run.manifest.target.url = "https://far.example/v1".into()), ["network path"]);
    assert_eq!(differ(&|run| run.attempts[9].asked_prompt = 5), ["lengths"]);
    assert_eq!(
        differ(&|run| run.manifest.levels[0].generator.stamps = plimsoll_model::StampSource::User),
        ["clock"]
    );
    // An invalid run is rejected, and so are runs of two kinds.
    let mut bad = queue(1.0, 0.3, HALF_A_MINUTE, &[(7, 4)]);
    bad.findings.validity.verdict = Trust::Invalid;
    bad.findings.validity.reasons = vec![Reason {
        check: "schedule_lag".into(),
        verdict: Trust::Invalid,
        level: None,
        figure: "900 ms".into(),
        means: "late".into(),
        advice: String::new(),
    }];
    let refused = compare(&base.read(), &bad.read(), &CompareSpec::default());
    assert_eq!(refused, Err(CompareRefusal::Invalid { side: "candidate", why: "late: 900 ms".into() }));
    let mut sweep = queue(1.0, 0.3, HALF_A_MINUTE, &[(7, 4)]);
    sweep.manifest.levels[0].purpose = "curve".into();
    assert!(matches!(
        compare(&base.read(), &sweep.read(), &CompareSpec::default()),
        Err(CompareRefusal::Nothing(_))
    ));
}

/// Equal times for half the audio: `e2e` is unchanged, and the real-time factor is twice as large.
#[test]
fn shorter_audio_in_equal_time_is_a_worse_factor() {
    let speech = |audio_ms: u64, seed: u64| {
        let mut stream = Stream::new(seed, "speech", 0);
        let records = (0..4_000u64).map(|i| {
            let mut record = answer(i, 10 * i as i64, 50, 400 + stream.below(5) as i64, 3);
            record.media.audio_ms = audio_ms;
            record
        });
        Whole::of(vec![level(100.0, 40)], records.collect())
    };
    let found = compared(&speech(2_000, 1), &speech(1_000, 2));
    let of = |metric: &str| row(&found, metric, "p50").verdict;
    assert_eq!((of("e2e"), of("rtf")), (ChangeVerdict::NoChange, ChangeVerdict::Regressed));
    let effect = row(&found, "rtf", "p50").effect.as_ref().expect("both have it");
    assert!((effect.value - 2.0).abs() < 0.02, "{effect:?}");
}

#[test]
fn too_short_a_run_decides_nothing() {
    let short = Span::from_millis(400);
    let (base, other) = (queue(1.0, 0.5, short, &[(7, 3)]), queue(1.0, 0.5, short, &[(7, 4)]));
    let found = compared(&base, &other);
    assert_eq!(found.verdict, ChangeVerdict::Inconclusive);
    assert!(
        row(&found, "e2e", "p50").why.as_deref().is_some_and(|why| why.contains("too short")),
        "{found:?}"
    );
}

/// With eight units no p is under 2/256, and there are nine or more figures. The joint test still finds a change of half as long again.
#[test]
fn a_server_half_as_slow_again_is_told_from_chance_in_eight_units() {
    let run = |factor: f64, server: u64| queue(factor, 0.3, Span::from_millis(3_200), &[(7, server)]);
    let found = compared(&run(1.0, 3), &run(1.5, 3));
    assert!((8..=9).contains(&found.groups[0].units), "{} units", found.groups[0].units);
    let row = row(&found, "e2e", "p50");
    let family = found.groups[0].rows.iter().filter(|row| row.primary && row.p.is_some()).count();
    assert!(row.p.expect("judged") * family as f64 > 0.05, "Holm would let nothing pass: {row:?}");
    assert_eq!(row.verdict, ChangeVerdict::Regressed, "{row:?}");
    assert_eq!(found.verdict, ChangeVerdict::Regressed, "{:?}", found.says);
    // Equal servers with other seeds are not called different.
    for server in 20..40 {
        let found = compared(&run(1.0, 3), &run(1.0, server));
        assert!(
            !matches!(found.verdict, ChangeVerdict::Regressed | ChangeVerdict::Improved),
            "{server}: {:?}",
            found.says
        );
    }
}

/// Returns answers with stages: 10 ms of prefill (divided by `faster`) and 90 ms of decode with a scatter of ± 2 ms.
fn staged(faster: i64, seed: u64) -> Whole {
    let mut stream = Stream::new(seed, "stages", 0);
    let records = (0..4_000u64).map(|i| {
        let prefill = 10 / faster;
        let decode = 88 + stream.below(5) as i64;
        let mut record = answer(i, 10 * i as i64, prefill, prefill + decode, 5);
        let stage = |name: &str, ms: i64| ServerStage { name: name.into(), took: Span::from_millis(ms) };
        record.answer.stages = vec![stage("prefill", prefill), stage("decode", decode)];
        record
    });
    Whole::of(vec![level(100.0, 40)], records.collect())
}

#[test]
fn a_stage_that_got_faster_in_vain_is_named_with_its_ceiling() {
    // The stage takes 10 of 100 ms. Without it the whole would be 1.11 times faster; halved, 5 % at most, which is the margin.
    let found = compared(&staged(1, 1), &staged(2, 2));
    let stages = &found.groups[0].stages;
    let prefill = stages.iter().find(|stage| stage.name == "prefill").expect("reported");
    assert!((prefill.share - 0.1).abs() < 1e-3 && (prefill.ceiling - 1.0 / 0.9).abs() < 2e-3, "{prefill:?}");
    assert!((prefill.effect.value - 0.5).abs() < 1e-9, "{prefill:?}");
    // At 5.3 % of room for 5 % the interval decides; a third of a decode is moved for good.
    let e2e = row(&found, "e2e", "p50");
    assert_eq!(prefill.local_only, e2e.verdict != ChangeVerdict::Improved, "{e2e:?}");
    let tenth = compared(&staged(1, 1), &staged(1, 2));
    assert!(tenth.groups[0].stages.iter().all(|stage| !stage.local_only));
    // By a fifth only (10 → 8 would be 2 %): use a faster prefill that is a small share.
    let small = |faster: i64, seed: u64| {
        let base = staged(1, seed);
        let shrink = |attempt: &Attempt| {
            let mut attempt = attempt.clone();
            attempt.answer.stages[0].took = Span(attempt.answer.stages[0].took.0 / (5 * faster));
            attempt
        };
        Whole::of(base.manifest.levels.clone(), base.attempts.iter().map(shrink).collect())
    };
    let found = compared(&small(1, 1), &small(2, 1));
    let said =
        found.says.iter().find(|said| said.starts_with("Local speed-up, no global gain")).expect("said");
    assert!(
        said.contains("prefill") && said.contains("2.0 % of the whole") && said.contains("1.02 times"),
        "{said}"
    );
    assert_eq!(found.verdict, ChangeVerdict::NoChange);
}

#[test]
fn unknown_never_counts_as_unchanged() {
    let (mut base, mut other) =
        (queue(1.0, 0.3, HALF_A_MINUTE, &[(7, 3)]), queue(1.0, 0.3, HALF_A_MINUTE, &[(7, 4)]));
    let facts = |run: &mut Whole, facts: &[(&str, Option<&str>)]| {
        run.manifest.target.facts =
            facts.iter().map(|(name, fact)| ((*name).to_owned(), fact.map(str::to_owned))).collect();
    };
    facts(
        &mut base,
        &[("engine", Some("vllm")), ("gpu", Some("H100")), ("driver", None), ("model", Some("m"))],
    );
    facts(&mut other, &[("engine", Some("vllm")), ("gpu", Some("H200")), ("driver", None)]);
    let found = compared(&base, &other);
    assert_eq!(found.target["engine"], Fact::Same);
    assert_eq!(found.target["gpu"], Fact::Changed { base: "H100".into(), candidate: "H200".into() });
    assert_eq!((&found.target["driver"], &found.target["model"]), (&Fact::Unknown, &Fact::Unknown));
    assert!(
        found.notes.iter().any(|note| note == "not known to be unchanged: driver, model"),
        "{:?}",
        found.notes
    );
}

/// Equal requests on a GPU that draws 10 % more: energy per token and power are 10 % worse, and latency is unchanged.
#[test]
fn energy_is_compared_and_decides_nothing() {
    let run = |watts: f64| {
        let attempts = (0..6_000).map(|i| answer(i, 10 * i as i64, 50, 70, 3)).collect::<Vec<_>>();
        let mut whole = Whole::of(vec![level(100.0, 60)], attempts);
        let spec = SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(50);
        let samples = plimsoll_lab::records::gpu(60, watts, 10.0);
        whole.findings = analyse(&whole.manifest, &whole.attempts, &samples, &spec);
        whole
    };
    let (base, candidate) = (run(300.0), run(330.0));
    let found = compare(&base.read(), &candidate.read(), &CompareSpec::default()).unwrap();
    for (metric, value) in [("energy_per_token", 1.0), ("gpu_power", 300.0)] {
        let row = found.groups[0].rows.iter().find(|row| row.metric == metric).unwrap();
        let effect = row.effect.unwrap();
        assert!((row.base.value.unwrap() / value - 1.0).abs() < 0.03, "{row:?}");
        assert!((effect.value - 1.1).abs() < 0.01 && effect.lower > 1.0 && effect.upper < 1.2, "{effect:?}");
        assert!(!row.primary);
    }
    assert_ne!(found.verdict, ChangeVerdict::Regressed);
    let none = queue(1.0, 0.5, Span::from_secs(30), &[(1, 2)]);
    let found = compare(&none.read(), &none.read(), &CompareSpec::default()).unwrap();
    assert!(found.groups[0].rows.iter().all(|row| !row.metric.starts_with("gpu")));
}
