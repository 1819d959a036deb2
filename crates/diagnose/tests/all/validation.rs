//! A small validation of the diagnosis: its arithmetic, its ground truth, and a few cases. The full validation is the
//! example `diagnose`.

use plimsoll_diagnose::Cause;
use plimsoll_model::How;
use plimsoll_workload::Connections;

use crate::diagnosed::fault::Class;
use crate::diagnosed::kept::Kept;
use crate::diagnosed::lack::Lack;
use crate::diagnosed::run::{Evidence, Setup};
use crate::diagnosed::score::{Share, report, score};
use crate::diagnosed::system::System;
use crate::diagnosed::truth::{self, Happened, Truth, happened};
use crate::diagnosed::{Judged, Plan, Said, ask, judge_system};

fn judged(class: Class, said: Cause, material: bool) -> Judged {
    let said = Said {
        cause: said,
        layer: said.layer(),
        confidence: 0.8,
        runner_up: None,
        second: None,
        facts: String::new(),
    };
    let truth = Truth {
        material,
        elsewhere: material,
        effect: 1.3,
        why: String::new(),
        happened: Happened::Injected,
    };
    Judged { system: 1, class, severity: 2, truth, said, lacking: Vec::new(), detail: String::new() }
}

/// Returns 10 clean cases (one alarm), 10 slow (8 right, 1 attributed to a replica, 1 unknown), 10 with more load
/// (all right).
fn small() -> Vec<Judged> {
    let many = |n: usize, class, said| (0..n).map(move |_| judged(class, said, true));
    many(9, Class::Clean, Cause::Nothing)
        .chain(many(1, Class::Clean, Cause::HigherRate))
        .chain(many(8, Class::Slower, Cause::SlowerModel))
        .chain(many(1, Class::Slower, Cause::BadReplica))
        .chain(many(1, Class::Slower, Cause::Unknown))
        .chain(many(10, Class::Rate, Cause::HigherRate))
        .collect()
}

#[test]
fn scores_are_what_they_are_by_hand() {
    let cases = small();
    let scored = score(&cases.iter().collect::<Vec<_>>());
    let share = |of, are| Share { of, are };
    assert_eq!(scored.false_alarm, share(10, 1));
    assert_eq!(scored.false_blame, share(30, 2), "the alarm, and the replica that was the model");
    assert_eq!(scored.layer, share(20, 18));
    assert_eq!(scored.layer_named, share(19, 18));
    assert_eq!(scored.abstained, share(20, 1));
    // Nothing: recall 0.9, precision 1. Slower: recall 0.8, precision 1. Rate: recall 1, precision 10 of 11.
    let f1 = |r: f64, p: f64| 2.0 * r * p / (r + p);
    let by_hand = (f1(0.9, 1.0) + f1(0.8, 1.0) + f1(1.0, 10.0 / 11.0)) / 3.0;
    assert!((scored.macro_f1 - by_hand).abs() < 1e-12, "{} and {by_hand}", scored.macro_f1);
    assert_eq!(scored.worst.0, "slower_model");
}

#[test]
fn a_fault_that_nobody_notices_is_not_counted_among_the_material() {
    let mut cases = small();
    cases.extend((0..5).map(|_| judged(Class::Bursts, Cause::Nothing, false)));
    let text = report(&cases, "By hand");
    assert!(text.contains("1 systems, 35 cases, 30 of them material or clean"), "{text}");
}

/// Four of twenty retry storms did not happen: they count as slowdowns, and are right if reported as such. Bursts
/// that do not gather count as not significant. The injected fault is listed too.
#[test]
fn what_came_to_pass_is_the_truth() {
    let mut cases: Vec<Judged> =
        (0..16).map(|_| judged(Class::RetryStorm, Cause::RetryStorm, true)).collect();
    let mut none = judged(Class::RetryStorm, Cause::NoisyNeighbour, true);
    none.truth.happened = Happened::Instead(Class::Noisy);
    cases.extend((0..4).map(|_| none.clone()));
    let mut calm = judged(Class::Bursts, Cause::Nothing, true);
    calm.truth.happened = Happened::Not;
    cases.push(calm);
    let text = report(&cases, "By hand");
    assert!(text.contains("1 systems, 21 cases, 20 of them material or clean"), "{text}");
    assert!(text.contains("| retry_storm | 16 | 1.00"), "{text}");
    assert!(text.contains("| noisy_neighbour | 4 | 1.00"), "{text}");
    assert!(text.contains("4 retry storms in which hardly a request was tried again"), "{text}");
    assert!(text.contains("storms and bursts as injected | 21 |"), "{text}");
    assert!(text.contains("| 0.80 of 20 | 0.00 of 1 |"), "the storms that were none, as injected: {text}");
}

/// Twelve retries per thousand requests are a storm, eight are not. Arrivals in clumps of twelve seconds gather,
/// evenly spread ones do not.
#[test]
fn what_came_to_pass_is_counted_in_the_records() {
    let evidence = |again: u64, clump: u64| {
        let mut level = plimsoll_lab::records::level(8.0, 120);
        level.id = 1;
        let row = |request: u64| {
            // 8 requests per second; each `clump` of them arrives at one instant.
            let due = 125 * (request - request % clump) as i64;
            let mut row = plimsoll_lab::records::answer(request, due, 80, 1_000, 40);
            row.level = 1;
            row
        };
        let mut attempts: Vec<_> = (0..960).map(row).collect();
        let retries: Vec<_> = attempts.iter().take(again as usize).cloned().collect();
        attempts.extend(retries.into_iter().map(|mut row| {
            row.attempt = 1;
            row
        }));
        Evidence { levels: vec![level], attempts, ..Evidence::default() }
    };
    let storm = |again| happened(Class::RetryStorm, &evidence(0, 1), &evidence(again, 1));
    assert_eq!(storm(8), Happened::Instead(Class::Noisy));
    assert_eq!(storm(12), Happened::Injected);
    let bursts = |clump| happened(Class::Bursts, &evidence(0, 1), &evidence(0, clump));
    assert_eq!(bursts(1), Happened::Not);
    assert_eq!(bursts(96), Happened::Injected);
}

/// The ground truth is the effect on the users of the run itself. If twenty of a thousand requests waited a second
/// longer, the 99th percentile shows it; with five it does not. A run compared with itself is unchanged.
#[test]
fn material_is_what_a_run_would_have_been_without_the_fault() {
    let run = |late: u64| {
        let mut level = plimsoll_lab::records::level(8.0, 125);
        level.id = 1;
        let row = |request: u64| {
            let first = if request % 50 == 7 && request / 50 < late { 1_080 } else { 80 };
            let mut row =
                plimsoll_lab::records::answer(request, 125 * request as i64, first, 3_000 + first, 40);
            row.level = 1;
            row
        };
        Evidence { levels: vec![level], attempts: (0..1_000).map(row).collect(), ..Evidence::default() }
    };
    let harmed = |late| truth::own(Class::LongPrompts, &run(0), &run(late));
    assert!(harmed(20).material && harmed(20).why.contains("ttft p99 x13.50"), "{}", harmed(20).why);
    assert!(!harmed(5).material, "{}", harmed(5).why);
    assert!(!harmed(0).material && harmed(0).effect == 1.0, "{}", harmed(0).effect);
    let mut failing = run(0);
    failing.attempts.iter_mut().take(10).for_each(|row| {
        *row = plimsoll_lab::records::failure(
            row.request,
            row.due.0 / plimsoll_lab::records::MS,
            How::ServerError,
            50,
        );
        row.level = 1;
    });
    let truth = truth::own(Class::Errors, &run(0), &failing);
    assert!(truth.material && truth.why.contains("failed +1.0 pp"), "{}", truth.why);
}

/// The seed and all random draws are equal: a fault without effect changes nothing.
#[test]
fn a_fault_that_does_nothing_leaves_the_run_as_it_would_have_been() {
    let system = System::draw(2);
    let mut setup = Setup::of(&system);
    setup.timed.push((10_000.0, "stall:for=2s".to_owned()));
    let own = truth::own(Class::Stalls, &Setup::of(&system).run(7), &setup.run(7));
    assert!(!own.material && own.effect == 1.0, "{} {}", own.effect, own.why);
}

/// A second cause that was not injected is a wrong verdict if its layer differs. For a single fault it is a wrong second
/// cause in any case.
#[test]
fn second_causes_of_single_faults_are_counted() {
    let mut cases = small();
    cases[12].said.second = Some(Cause::HigherRate);
    let mut pair = judged(Class::PairModelRate, Cause::SlowerModel, true);
    pair.said.second = Some(Cause::HigherRate);
    cases.push(pair);
    let scored = score(&cases.iter().collect::<Vec<_>>());
    assert_eq!(scored.false_second, Share { of: 30, are: 1 });
    assert_eq!(scored.false_blame, Share { of: 30, are: 2 });
    assert_eq!(scored.false_blame_by_any, Share { of: 30, are: 3 });
}

#[test]
fn an_interval_of_shares_is_wilsons() {
    // Wilson's interval of 8 of 10 at 95 %: Newcombe (1998) has 0.4902 to 0.9433.
    let (low, high) = Share { of: 10, are: 8 }.interval();
    assert!((low - 0.4902).abs() < 5e-4 && (high - 0.9433).abs() < 5e-4, "{low} to {high}");
}

#[test]
fn the_same_seed_is_the_same_case() {
    let system = System::draw(2);
    let (a, b) = (Setup::of(&system).run(7), Setup::of(&system).run(7));
    assert_eq!(a.attempts, b.attempts);
    assert!(a.attempts != Setup::of(&system).run(8).attempts, "another seed is another case");
}

#[test]
fn the_truth_tells_what_hurts_from_what_does_not_and_the_diagnosis_agrees() {
    let plan = Plan {
        classes: vec![Class::Clean, Class::Slower, Class::Rate],
        severities: vec![2],
        clean: 1,
        lacking_at: vec![0],
        lacks: Lack::ALL.to_vec(),
        depending: false,
        elsewhere: true,
        verbose: true,
    };
    let mut cases = Vec::new();
    judge_system(2, &plan, |_, _| true, |case| cases.push(case));
    assert_eq!(cases.len(), 3);
    for case in cases {
        let hurts = case.class != Class::Clean;
        let name = format!("{} at severity {}", case.class.name(), case.severity);
        assert_eq!(case.truth.material, hurts, "{name}: {}", case.truth.why);
        assert!(case.class.causes().contains(&case.said.cause), "{name}: {:?}\n{}", case.said, case.detail);
        // With less evidence the cause may be unknown, but a clean run must not get a fault.
        let lacking: Vec<Lack> = case.lacking.iter().map(|(lack, _)| *lack).collect();
        assert_eq!(lacking, if hurts { Vec::new() } else { Lack::ALL.to_vec() });
        let alarms: Vec<_> = case.lacking.iter().filter(|(_, said)| said.names()).collect();
        assert!(alarms.is_empty(), "{alarms:?}");
    }
}

#[test]
fn what_was_kept_is_read_again_and_a_line_cut_off_is_not() {
    let path = format!("{}/kept-cases.jsonl", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_file(&path);
    let mut kept = Kept::open(&path).unwrap();
    kept.add(judged(Class::Slower, Cause::Unknown, true)).unwrap();
    let mut again = judged(Class::Slower, Cause::SlowerModel, true);
    again.lacking = vec![(Lack::Gauges, again.said.clone())];
    kept.add(again).unwrap();
    kept.add(judged(Class::Rate, Cause::HigherRate, false)).unwrap();
    let whole = std::fs::read_to_string(&path).unwrap();
    assert_eq!(whole.lines().count(), 3);
    // The process ended in its last line.
    std::fs::write(&path, &whole[..whole.len() - 7]).unwrap();
    let mut kept = Kept::open(&path).unwrap();
    assert!(
        kept.holds((1, Class::Slower, 2), true),
        "the later line of the case has what was said with less"
    );
    assert!(!kept.holds((1, Class::Rate, 2), false), "its line was cut off");
    kept.add(judged(Class::Rate, Cause::HigherRate, false)).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
    let cases = kept.into_cases();
    let said: Vec<Cause> = cases.iter().map(|case| case.said.cause).collect();
    assert_eq!(said, [Cause::HigherRate, Cause::SlowerModel], "the later of two lines of one case counts");
    std::fs::write(&path, "{}\n").unwrap();
    let why = Kept::open(&path).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(why.starts_with("line 1: missing field"), "{why}");
}

/// With the records of the virtual client, a full pool is no lag of the generator, and a limit on requests in flight
/// is.
#[test]
fn a_pool_of_connections_is_told_from_a_cap_by_the_records_alone() {
    let system = System::draw(2);
    let base = Setup::of(&system).run(7);
    let in_flight = base.levels.last().and_then(|level| level.generator.in_flight_mean).expect("counted");
    let limit = (0.95 * in_flight).round() as u32;
    let said = |connections, max_in_flight| {
        let mut setup = Setup::of(&system);
        setup.scenario.client.connections = connections;
        setup.scenario.client.max_in_flight = max_in_flight;
        ask(Some(&base), &setup.run(8), None).0.verdicts[0].cause
    };
    assert_eq!(said(Connections::Pool { limit }, None), Cause::ConnectionLimit);
    assert_eq!(said(Connections::default(), Some(limit)), Cause::ClientCap);
    assert_eq!(said(Connections::Fresh, None), Cause::Nothing, "connections take no time in virtual time");
}

/// The documentation page lists every fact and every cause that a verdict may name.
#[test]
fn the_page_names_every_fact_and_every_cause() {
    let page = include_str!("../../../../docs/diagnosis.md");
    for fact in plimsoll_diagnose::facts::Observed::ALL {
        assert!(page.contains(&format!("`{}`", fact.word())), "docs/diagnosis.md lacks {}", fact.word());
    }
    for cause in Cause::ALL {
        assert!(page.contains(&format!("`{}`", cause.id())), "docs/diagnosis.md lacks {}", cause.id());
    }
}

/// The likelihoods match the present table of causes: a change of the table requires new learning.
#[test]
fn what_was_learnt_is_a_law_for_every_cause_and_fact() {
    use plimsoll_diagnose::belief::{EvidenceSource, Likelihood};
    let tables = [EvidenceSource::Records, EvidenceSource::Experiments].map(Likelihood::learnt);
    for learnt in tables {
        each_is_a_law(learnt);
    }
}

fn each_is_a_law(learnt: &plimsoll_diagnose::belief::Likelihood) {
    for (row, of) in plimsoll_diagnose::causes::causes().iter().zip(&learnt.of) {
        for (fact, often) in plimsoll_diagnose::facts::Observed::ALL.iter().zip(of) {
            let sum: f64 = often.iter().sum();
            assert!(
                (sum - 1.0).abs() < 2e-3 && often.iter().all(|p| *p > 0.0),
                "{:?} {fact:?} {often:?}",
                row.cause
            );
        }
    }
}
