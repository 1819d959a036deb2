//! The split of the wait where nothing is traced, against simulated engines that know better. The bars are SPEC P2's; the bigger
//! table is the example `infer`.

use plimsoll_analysis::infer::{Basis, Case, Part, Source, ToldStages, infer};
use plimsoll_model::{At, Attempt, Event, EventKind, Outcome, Span};

use crate::infer_systems::{Page, drawn, figures, held, said};

/// Systems that nothing was tuned on: nine in ten figures must lie within their bounds, and every mean within a tenth of the truth
/// where the page tells it.
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
                for (part, truth) in [Part::Queue, Part::Prefill].iter().zip(&truths) {
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

/// Whatever is inferred, a request's parts add up to its time, and none is negative.
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

/// One stage at a time is slower than all of them together are: the whole and its parts agree, and a slower tail is blamed on
/// the parts that sum to it.
#[test]
fn tails_add_up() {
    let (inferred, _) =
        drawn("llama-3.1-8b@l4", 0.8, 6, 200.0).run().infer(Page::Histograms, 5.0, true, None);
    let finding = &inferred.finding;
    let whole = finding.whole.as_ref().and_then(|whole| whole.slowest_over_middle_s).expect("a tail");
    let parts: f64 = finding.parts.iter().filter_map(|part| part.slowest_over_middle_s).sum();
    assert!((whole - parts).abs() < 1e-6 * whole.abs().max(1e-3), "{whole} and {parts}");
    // The ends, by sorting the requests' own times.
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
    let gone =
        finding.ceilings.iter().find(|c| c.part == Part::Decode && c.factor.is_none()).expect("a ceiling");
    let share = finding.parts.iter().find(|part| part.part == Part::Decode).and_then(|part| part.share);
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

/// Requests that always meet others, no events, no page, no floor: there is nothing to tell queue from prefill, and it is said.
#[test]
fn what_cannot_be_known_is_not_guessed() {
    let attempts: Vec<Attempt> = (0..200).map(|i| lone(i, 10 * i as i64, 95)).collect();
    let attempts: Vec<&Attempt> = attempts.iter().collect();
    let case = Case {
        level: 0,
        attempts: &attempts,
        from: At::ZERO,
        told: ToldStages::default(),
        floor: None,
        ignore_reported: false,
        budget: None,
    };
    let finding = infer(&case).finding;
    assert_eq!(finding.source, None);
    for part in &finding.parts {
        let unknown = matches!(part.part, Part::Front | Part::Queue | Part::Prefill);
        assert_eq!(part.basis == Basis::Unknown, unknown, "{part:?}");
        assert_eq!(part.mean.is_none(), unknown, "{part:?}");
    }
    assert!(finding.notes.iter().any(|note| note.contains("unknown")), "{:?}", finding.notes);
    // What the three are together was measured all the same.
    let wait = finding.wait.and_then(|wait| Some((wait.basis, wait.mean?.value, wait.share?)));
    let (basis, mean_s, share) = wait.expect("a wait");
    assert!(basis == Basis::Measured && (mean_s - 0.095).abs() < 1e-9 && (share - 0.95).abs() < 1e-9);
}

/// Streams of two engines behind one name have no steps in common: they are not read as one engine's.
#[test]
fn two_engines_are_not_taken_for_one() {
    let mut attempts = Vec::new();
    for i in 0..400u64 {
        // Two lattices of steps, of 10 and of 10.9 ms.
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
    let case = Case {
        level: 0,
        attempts: &attempts,
        from: At::ZERO,
        told: ToldStages::default(),
        floor: None,
        ignore_reported: false,
        budget: None,
    };
    let finding = infer(&case).finding;
    assert_ne!(finding.source, Some(Source::Steps), "{:?}", finding.notes);
}
