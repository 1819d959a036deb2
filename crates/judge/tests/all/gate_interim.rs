//! A gate that measures: the savings of an interim analysis, the remaining load, and the limits of a batch.

use plimsoll_judge::budget::{ALPHA, Batch, BudgetFile, BudgetKind, Count, decide};
use plimsoll_judge::gate::{GateVerdict, RemainingTime, after_interim};
use plimsoll_math::quantile::EffectiveN;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::Held;
use plimsoll_model::{Attempt, Level, Load, Span};

use crate::gate::{Made, file, mixture, of, ttft};
use plimsoll_lab::records::{answer, level};

/// A run of these loads, each with this many finished requests a second for 40 s.
fn in_turn(kind: &str, loads: &[(Load, i64)]) -> Made {
    let (mut attempts, mut levels) = (Vec::<Attempt>::new(), Vec::<Level>::new());
    for (id, (load, per_s)) in loads.iter().enumerate() {
        let from_ms = 60_000 * id as i64;
        let mut own: Vec<Attempt> = (0..40 * per_s)
            .map(|i| answer(1_000_000 * id as u64 + i as u64, from_ms + 1_000 * i / per_s, 5, 8, 2))
            .collect();
        own.iter_mut().for_each(|attempt| attempt.level = id as u32);
        let start = level(1.0, 0).start + Span(from_ms * 1_000_000);
        let stop = start + Span::from_secs(40);
        let arrivals = own.len() as u64;
        levels.push(Level {
            id: id as u32,
            load: *load,
            start,
            stop,
            drained: stop + Span(1_000_000_000),
            arrivals,
            ..level(1.0, 40)
        });
        attempts.extend(own);
    }
    let mut made = of(attempts);
    made.manifest.levels = levels;
    made.manifest.kind = kind.into();
    made
}

#[test]
fn what_is_looked_at_twice_is_judged_at_half_of_alpha() {
    let open = |per_s: i64| (Load::Open { rate_per_s: per_s as f64 }, per_s);
    let budgets = file(vec![ttft(0.9, 350.0)]);
    for (kind, loads, looks) in [
        ("gate", vec![open(100)], 1),
        ("gate", vec![open(100), open(50)], 1),
        ("gate", vec![open(100), open(50), open(100)], 2),
        // Repeats of a run's levels are one analysis of all of them.
        ("rerun", vec![open(100), open(100)], 1),
    ] {
        let finding = in_turn(kind, &loads).gate(&budgets);
        assert_eq!(
            (finding.analyses, finding.alpha),
            (looks, 0.025 / looks as f64),
            "{kind} {}",
            loads.len()
        );
    }
    // The announced number of analyses divides the error probability, even if fewer were needed.
    let mut early = in_turn("gate", &[open(100)]);
    early.manifest.scenario = serde_json::json!({"looks": 4});
    let finding = early.gate(&budgets);
    assert_eq!((finding.analyses, finding.alpha), (4, 0.025 / 4.0));
    // Both levels of the load count: 8000 requests of 40 s at 100/s each.
    let twice = in_turn("gate", &[open(100), open(100)]).gate(&budgets);
    assert!(twice.rows[0].share_over.is_some_and(|share| share.n > 7_000), "{:?}", twice.rows[0].share_over);
    assert_eq!(twice.rows[0].levels, [0, 1]);
}

#[test]
fn an_interim_analysis_leaves_what_is_undecided_or_says_that_it_takes_too_long() {
    let budgets = file(vec![ttft(0.99, 350.0)]);
    // 0.67 % of 2000 are over where 1 % may be, at 100/s.
    let open = mixture(2_000, 150).gate(&budgets);
    assert_eq!(open.rows[0].held, Held::Inconclusive);
    let takes_s = open.rows[0].needed.expect("a number") as f64 / 100.0;
    let more = |left_s: f64| after_interim(&open, &[vec![0]], &[20.0], left_s);
    // A quarter is added for the warm-up, and the measured time is subtracted.
    let want = 1.25 * takes_s - 20.0;
    let RemainingTime::Levels(levels) = more(1_000.0) else { panic!("{:?}", more(1_000.0)) };
    assert!((levels[0] / want - 1.0).abs() < 0.02, "{levels:?} for {want}");
    let RemainingTime::Levels(short) = more(0.7 * want) else { panic!("{:?}", more(0.7 * want)) };
    assert!((short[0] / (0.7 * want) - 1.0).abs() < 1e-9, "all that is left: {short:?}");
    assert!(matches!(more(0.4 * want), RemainingTime::TooMuch(takes) if (takes / want - 1.0).abs() < 0.02));
    let holds = mixture(10_000, 1_000).gate(&budgets);
    assert_eq!(after_interim(&holds, &[vec![0]], &[100.0], 50.0), RemainingTime::Nothing);
    // A load without an undecided row gets no further time.
    let RemainingTime::Levels(two) = after_interim(&open, &[vec![7], vec![0]], &[20.0, 20.0], 1_000.0) else {
        panic!()
    };
    assert_eq!(two[0], 0.0);
}

/// 50/s with one in flight, 100/s with two, 101/s with four: the batch is worked off at 101/s.
#[test]
fn a_batch_is_held_to_the_best_load_of_a_search_for_saturation() {
    let tried = |concurrency: u32, per_s: i64| (Load::Saturating { concurrency }, per_s);
    let loads = vec![tried(1, 50), tried(2, 100), tried(4, 101)];
    let batch = |per_s: u64| {
        let batch = Some(Batch { items: 1_000 * per_s, deadline: Span::from_secs(1_000) });
        BudgetFile { kind: BudgetKind::Batch, batch, ..file(vec![]) }
    };
    let run = in_turn("run", &loads);
    for (per_s, verdict) in [(90, GateVerdict::Pass), (120, GateVerdict::Broken)] {
        let finding = run.gate(&batch(per_s));
        assert_eq!(finding.verdict, verdict, "{per_s}/s: {:?}", finding.rows[0]);
        assert_eq!(finding.rows[0].levels, [2]);
        assert!(finding.rows[0].measured.value().is_some_and(|rate| (rate - 101.0).abs() < 2.0));
    }
    // The confirmation counts and not the search's best level, because it was not chosen for its figure.
    let held = [loads, vec![(Load::Closed { concurrency: 4 }, 80)]].concat();
    let finding = in_turn("gate", &held).gate(&batch(90));
    assert_eq!((finding.verdict, &finding.rows[0].levels[..]), (GateVerdict::Broken, &[3][..]));
    // Other budgets of the file are about that load too; a person's latency is about none of a search.
    let both = BudgetFile { budgets: vec![ttft(0.5, 350.0)], ..batch(90) };
    assert!(run.gate(&both).rows.iter().all(|row| row.levels == [2]));
    let person = run.gate(&file(vec![ttft(0.5, 350.0)]));
    assert!(
        person.rows[0].missing && person.rows[0].why.contains("saturation at 3 loads"),
        "{}",
        person.rows[0].why
    );
}

/// Returns how often, of 4000 services exactly at their budget (1 %), a procedure of two analyses passes and fails.
/// The first has 2000 requests; the second has the number that the first demands, at most 20 000 in total.
fn wrong(alpha: f64) -> [f64; 2] {
    const SERVICES: u64 = 4_000;
    let mut stream = Stream::new(11, "two looks", 0);
    let mut over = |n: u64| (0..n).filter(|_| stream.uniform() < 0.01).count() as u64;
    let look = |n: u64, k: u64| {
        let count = Count::bare(n, [k, k], Some(EffectiveN::known(n as f64)));
        decide(&count, 0.01, alpha)
    };
    let mut ended = [0u64; 2];
    for _ in 0..SERVICES {
        let (mut n, mut k) = (2_000, over(2_000));
        let mut decision = look(n, k);
        if decision.held == Held::Inconclusive {
            let more = decision.needed.unwrap_or(20_000).clamp(2_500, 20_000) - n;
            (n, k) = (n + more, k + over(more));
            decision = look(n, k);
        }
        ended[0] += u64::from(decision.held == Held::Pass);
        ended[1] += u64::from(decision.held == Held::Fail);
    }
    ended.map(|n| n as f64 / SERVICES as f64)
}

/// Four standard errors of 4000 services are a per cent.
#[test]
fn two_looks_err_no_more_often_than_one_would() {
    let ([passed, failed], [passed_naively, failed_naively]) = (wrong(ALPHA / 2.0), wrong(ALPHA));
    assert!(passed < ALPHA + 0.01 && failed < ALPHA + 0.01, "{passed} {failed}");
    // Twice at alpha is what would not do.
    assert!(passed_naively + failed_naively > 2.0 * ALPHA, "{passed_naively} {failed_naively}");
}
