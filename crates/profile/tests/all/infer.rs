//! The split of the wait without traces, compared with simulated engines. SPEC P2 has the limits; the larger
//! table is the example `infer`.

use plimsoll_model::{At, Attempt, Event, EventKind, Outcome, Sample, ServerStage, Span};
use plimsoll_profile::infer::{
    Basis, ComputeFloor, ReportedStages, SplitCase, WaitFinding, WaitPart, WaitSource, infer,
};

use crate::infer_systems::{Page, drawn, figures, held, said};

/// Systems that were not used for tuning. Nine in ten figures must be within their bounds, and every mean within a
/// tenth of the true one if the metrics report it.
#[test]
fn queue_and_prefill_are_found_without_traces() {
    let (mut inside, mut figures_seen) = (0, 0);
    for (i, name) in ["llama-3.1-8b@l4", "mixtral-8x7b@h100x2"].iter().enumerate() {
        for load in [0.55, 0.85] {
            let system = drawn(name, load, 900 + i as u64, 400.0);
            let run = system.run();
            for (page, period) in [(Page::Histograms, 1.0), (Page::Histograms, 15.0), (Page::Nothing, 0.0)] {
                let (inferred, truth) = run.infer(page, period, true, None);
                let context = format!("{} {page:?} {period}: {:?}", system.name, inferred.finding.notes);
                let truths = [figures(&truth.queue), figures(&truth.prefill)];
                for (part, truth) in [WaitPart::Queue, WaitPart::Prefill].iter().zip(&truths) {
                    let said = said(&inferred, *part).unwrap_or_else(|| panic!("{context}"));
                    let (errors, within) = held(&said, truth);
                    if page == Page::Histograms {
                        assert!(errors[0].abs() <= 0.1, "{part:?} mean off by {:.3}: {context}", errors[0]);
                    }
                    inside += within.iter().filter(|within| **within).count();
                    figures_seen += within.len();
                }
            }
        }
    }
    assert!(inside * 10 >= figures_seen * 9, "{inside} of {figures_seen} figures within their bounds");
}

/// In any inference, the parts of a request add up to its time, and none is negative.
#[test]
fn parts_are_the_whole_time() {
    let run = drawn("llama-3.1-8b@l4", 0.7, 5, 200.0).run();
    for (page, events) in [(Page::Histograms, true), (Page::Nothing, true), (Page::Histograms, false)] {
        let (inferred, _) = run.infer(page, 5.0, events, None);
        assert!(inferred.splits.len() > 100);
        for (i, split) in &inferred.splits {
            let attempt = run.attempt(*i);
            let whole = (attempt.end.expect("an end") - attempt.due).0 as f64;
            assert!((split.iter().sum::<f64>() - whole).abs() < 2.0, "{split:?} is not {whole}");
            assert!(split.iter().all(|part| *part >= -1.0), "{split:?}");
        }
    }
}

/// One stage at a time is slower than all stages together. The whole and its parts agree, and a slower tail is
/// attributed to the parts that add up to it.
#[test]
fn tails_add_up() {
    let (inferred, _) =
        drawn("llama-3.1-8b@l4", 0.8, 6, 200.0).run().infer(Page::Histograms, 5.0, true, None);
    let finding = &inferred.finding;
    let whole = finding.whole.as_ref().and_then(|whole| whole.slowest_over_middle_s).expect("a tail");
    let parts: f64 = finding.parts.iter().filter_map(|part| part.slowest_over_middle_s).sum();
    assert!((whole - parts).abs() < 1e-6 * whole.abs().max(1e-3), "{whole} and {parts}");
    // The ends, from the sorted times of the requests.
    let mut times: Vec<f64> =
        inferred.splits.iter().map(|(_, split)| split.iter().sum::<f64>() / 1e9).collect();
    times.sort_by(f64::total_cmp);
    let n = times.len();
    let mean = |some: &[f64]| some.iter().sum::<f64>() / some.len() as f64;
    let bands = finding.bands.expect("ends");
    let slowest = n.div_ceil(100).max(5);
    assert_eq!(bands.slowest_requests, slowest as u64);
    assert!((bands.slowest_s - mean(&times[n - slowest..])).abs() < 1e-9, "{bands:?}");
    assert!((bands.middle_s - mean(&times[n * 2 / 5..n * 3 / 5])).abs() < 1e-9, "{bands:?}");
    let gone = finding
        .ceilings
        .iter()
        .find(|c| c.part == WaitPart::Decode && c.factor.is_none())
        .expect("a ceiling");
    let share = finding.parts.iter().find(|part| part.part == WaitPart::Decode).and_then(|part| part.share);
    assert!((gone.saved - share.expect("a share")).abs() < 1e-6);
}

fn lone(request: u64, sent_ms: i64, wait_ms: i64) -> Attempt {
    let at = |ms: i64| Some(At(ms * 1_000_000));
    Attempt {
        sent: at(sent_ms),
        first_token: at(sent_ms + wait_ms),
        last_token: at(sent_ms + wait_ms + 5),
        end: at(sent_ms + wait_ms + 5),
        asked_prompt: 100,
        outcome: Outcome::FINISHED,
        ..Attempt::new(request, 0, 0, At(sent_ms * 1_000_000))
    }
}

/// Requests that are never isolated, without events, metrics or floor: queue and prefill can't be separated, and the
/// output reports it.
#[test]
fn what_cannot_be_known_is_not_guessed() {
    let attempts: Vec<Attempt> = (0..200).map(|i| lone(i, 10 * i as i64, 95)).collect();
    let attempts: Vec<&Attempt> = attempts.iter().collect();
    let case = SplitCase {
        level: 0,
        attempts: &attempts,
        from: At::ZERO,
        told: ReportedStages::default(),
        floor: None,
        ignore_reported: false,
        budget: None,
    };
    let finding = infer(&case).finding;
    assert_eq!(finding.source, None);
    for part in &finding.parts {
        let unknown = matches!(part.part, WaitPart::Front | WaitPart::Queue | WaitPart::Prefill);
        assert_eq!(part.basis == Basis::Unknown, unknown, "{part:?}");
        assert_eq!(part.mean.is_none(), unknown, "{part:?}");
    }
    assert!(finding.notes.iter().any(|note| note.contains("unknown")), "{:?}", finding.notes);
    // The sum of the three parts is measured in any case.
    let wait = finding.wait.and_then(|wait| Some((wait.basis, wait.mean?.value, wait.share?)));
    let (basis, mean_s, share) = wait.expect("a wait");
    assert!(basis == Basis::Measured && (mean_s - 0.095).abs() < 1e-9 && (share - 0.95).abs() < 1e-9);
}

/// llama.cpp reports prefill times and no queue time: its value is used, and the time before is one sum, or split by
/// a floor.
#[test]
fn a_told_prompt_is_taken_as_it_is_told() {
    let told = |request: u64, sent_ms: i64, wait_ms: i64, prompt_ms: i64| {
        let mut attempt = lone(request, sent_ms, wait_ms);
        let took = Span(prompt_ms * 1_000_000);
        attempt.answer.stages = vec![ServerStage { name: "prompt".into(), took }];
        attempt
    };
    // Requests that are never isolated: prefill times of 20 to 39 ms in a total of 95 ms.
    let mut attempts: Vec<Attempt> =
        (0..200).map(|i| told(i, 10 * i as i64, 95, 20 + (i % 20) as i64)).collect();
    // A clock that reports more than the client's wait, and a few requests without a report.
    attempts[7].answer.stages[0].took = Span(500_000_000);
    attempts[8].answer.stages.clear();
    let of = |attempts: &[Attempt], floor: Option<ComputeFloor>, ignore_reported: bool| {
        let attempts: Vec<&Attempt> = attempts.iter().collect();
        let told = ReportedStages::default();
        let case = SplitCase {
            level: 0,
            attempts: &attempts,
            from: At::ZERO,
            told,
            floor,
            ignore_reported,
            budget: None,
        };
        infer(&case).finding
    };
    let basis = |finding: &WaitFinding, part: WaitPart| {
        let found = finding.parts.iter().find(|found| found.part == part).expect("every part");
        (found.basis, found.mean.map(|mean| mean.value))
    };
    let finding = of(&attempts, None, false);
    assert_eq!((finding.source, finding.requests), (Some(WaitSource::Prompts), 199));
    let sum: i64 = (0..200).filter(|i| *i != 8).map(|i| if i == 7 { 95 } else { 20 + i % 20 }).sum();
    let prompt_s = sum as f64 / 199.0 / 1e3;
    let (known, mean) = basis(&finding, WaitPart::Prefill);
    assert!(
        known == Basis::Reported && (mean.expect("a mean") - prompt_s).abs() < 1e-9,
        "{mean:?} {prompt_s}"
    );
    assert_eq!(basis(&finding, WaitPart::Queue), (Basis::Unknown, None));
    assert_eq!(basis(&finding, WaitPart::Front), (Basis::Unknown, None));
    let untold = finding.untold.as_ref().and_then(|untold| untold.mean).expect("the rest");
    assert!((untold.value - (0.095 - prompt_s)).abs() < 1e-9, "{untold:?}");
    assert!(finding.notes.iter().any(|note| note.contains("prefill of 199 of 200")), "{:?}", finding.notes);
    // With a floor the rest is split, and no part is longer than its wait.
    let floor = ComputeFloor {
        base_ns: 8e6,
        per_token_ns: 1e5,
        gap_ns: 5e6,
        spread_ns: 1e6,
        lengths_differ: true,
        n: 30,
    };
    let finding = of(&attempts, Some(floor), false);
    assert_eq!(finding.source, Some(WaitSource::Floor));
    assert_eq!(basis(&finding, WaitPart::Prefill).0, Basis::Reported);
    assert!((basis(&finding, WaitPart::Prefill).1.expect("a mean") - prompt_s).abs() < 1e-9);
    assert_eq!(basis(&finding, WaitPart::Queue).0, Basis::Inferred);
    let (wait, parts) = (finding.wait.as_ref().and_then(|wait| wait.mean).expect("a wait"), &finding.parts);
    for part in parts.iter().filter(|part| part.basis == Basis::Inferred) {
        assert!(part.mean.expect("a mean").upper <= wait.value + 1e-12, "{part:?} of {wait:?}");
    }
    // On request, the server's value is ignored.
    assert_eq!(of(&attempts, None, true).source, None);
}

/// Unstreamed responses have only means: Triton's, for the requests between two scrapes, and the rest.
#[test]
fn whole_answers_are_told_apart_by_the_server_s_means() {
    // A hundred requests of 10 ms, the first of 30, all sent 1 ms after they were due.
    let attempts: Vec<Attempt> = (0..100)
        .map(|i| {
            let mut attempt = lone(i, 20 * i as i64, 9);
            attempt.due = At(attempt.due.0 - 1_000_000);
            (attempt.first_token, attempt.last_token, attempt.events) = (None, None, Vec::new());
            attempt.end = Some(At(attempt.due.0 + if i == 0 { 30_000_000 } else { 10_000_000 }));
            attempt
        })
        .collect();
    let sample = |at_ms: i64, name: &str, value: f64| Sample {
        at: At(at_ms * 1_000_000),
        source: "server".into(),
        name: name.into(),
        labels: "model=\"m\"".into(),
        value,
    };
    // Scraped after the first two and at the end: 2 ms of queue, 5 of computing for each but the first.
    let mut samples = Vec::new();
    for (at_ms, count, queue_us, infer_us) in
        [(35, 2.0, 11e3, 25e3), (3_000, 100.0, 9e3 + 99.0 * 2e3, 20e3 + 99.0 * 5e3)]
    {
        samples.push(sample(at_ms, "nv_inference_request_success", count));
        samples.push(sample(at_ms, "nv_inference_queue_duration_us", queue_us));
        samples.push(sample(at_ms, "nv_inference_compute_infer_duration_us", infer_us));
    }
    let attempts: Vec<&Attempt> = attempts.iter().collect();
    let told = ReportedStages::read(&samples, (At::ZERO, At(3_000_000_000)), |_, _| 98);
    let case = SplitCase {
        level: 0,
        attempts: &attempts,
        from: At::ZERO,
        told,
        floor: None,
        ignore_reported: false,
        budget: None,
    };
    let finding = infer(&case).finding;
    let answers = finding.answers.expect("means");
    assert_eq!((finding.requests, answers.requests), (0, 98));
    let found: Vec<(bool, f64)> = answers.parts.iter().map(|part| (part.reported, part.mean_s)).collect();
    let truth = [(false, 0.001), (true, 0.002), (true, 0.005), (false, 0.002)];
    assert_eq!(found.len(), truth.len(), "{found:?}");
    for ((reported, mean), (told, truth)) in found.iter().zip(truth) {
        assert!(*reported == told && (mean - truth).abs() < 1e-9, "{found:?}");
    }
    assert!((answers.mean_s - 0.010).abs() < 1e-9 && answers.notes.len() == 1, "{answers:?}");
}

/// Streams of two engines behind one name have no common steps, so they are not treated as one engine.
#[test]
fn two_engines_are_not_taken_for_one() {
    let mut attempts = Vec::new();
    for i in 0..400u64 {
        // Two grids of steps, of 10 and of 10.9 ms.
        let step: i64 = if i % 2 == 0 { 10_000_000 } else { 10_900_000 };
        let first = (i as i64 * 7_300_000 / step + 3) * step;
        let mut attempt = lone(i, first / 1_000_000 - 15, 15);
        let sent = attempt.sent.expect("sent").0;
        attempt.events = (0..20)
            .map(|k| Event {
                offset: Span(first + k * step - sent),
                user_delay_ns: 0,
                tokens: 1,
                kind: EventKind::Content,
                coalesced: false,
            })
            .collect();
        attempt.last_token = Some(At(first + 19 * step));
        attempt.end = attempt.last_token;
        attempts.push(attempt);
    }
    let attempts: Vec<&Attempt> = attempts.iter().collect();
    let case = SplitCase {
        level: 0,
        attempts: &attempts,
        from: At::ZERO,
        told: ReportedStages::default(),
        floor: None,
        ignore_reported: false,
        budget: None,
    };
    let finding = infer(&case).finding;
    assert_ne!(finding.source, Some(WaitSource::Steps), "{:?}", finding.notes);
}
