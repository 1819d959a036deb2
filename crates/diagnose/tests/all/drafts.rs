//! Lower acceptance of drafts in speculative decoding. It must be named from records and from metrics only, and not
//! if a step is slower or nothing changed. No likelihoods were learnt: only its row in the table of causes exists.

use plimsoll_diagnose::{Cause, Diagnosis};
use plimsoll_measure::server_side::Signal;
use plimsoll_sim::engine::speculation::{DraftSpec, SpeculativeSpec};

use crate::diagnosed::ask;
use crate::diagnosed::lack::{Lack, pages_of};
use crate::diagnosed::run::{Evidence, Setup};
use crate::diagnosed::system::System;

/// Seeds of the systems: the first with engines of the catalogue, and with random constants.
const SYSTEMS: [u64; 4] = [901, 902, 903, 904];

/// Returns a run of a system whose drafts of four tokens yield `length` tokens per step, with a fault.
fn run(seed: u64, length: f64, fault: Option<&str>, drawn: u64) -> Evidence {
    let mut system = System::draw(seed);
    system.batching().speculative =
        Some(SpeculativeSpec { draft_tokens: 4, accepted_length: length, draft: DraftSpec::Lookup });
    let setup = Setup::of(&system);
    fault.map_or(setup.clone(), |fault| setup.with(fault)).run(drawn)
}

/// Returns the diagnoses from records and from metrics only.
fn both(base: &Evidence, now: &Evidence) -> [Diagnosis; 2] {
    [ask(Some(base), now, None).0, Lack::Requests.ask(base, now, None).0]
}

#[test]
fn drafts_that_are_accepted_less_are_named_and_nothing_else_is_called_that() {
    let mut named = [0, 0];
    for seed in SYSTEMS {
        let base = run(seed, 3.2, None, 1);
        // The metrics show the configured acceptance.
        let length = pages_of(&base).accepted_length().expect("counted");
        assert!((length - 3.2).abs() < 0.05, "{length}");
        let is = |diagnosis: &Diagnosis| diagnosis.verdicts[0].cause == Cause::DraftRejection;
        for (named, diagnosis) in named.iter_mut().zip(both(&base, &run(seed, 1.6, None, 2))) {
            *named += usize::from(is(&diagnosis));
        }
        for (what, length, fault) in [("nothing", 3.2, None), ("slower steps", 3.2, Some("slow:factor=1.5"))]
        {
            for diagnosis in both(&base, &run(seed, length, fault, 3)) {
                assert!(!is(&diagnosis), "{what}: {}", diagnosis.headline);
            }
        }
    }
    assert!(named.iter().all(|named| *named >= 3), "of {}: {named:?}", SYSTEMS.len());
}

#[test]
fn a_server_that_stops_drafting_is_told_from_one_that_never_did() {
    let (drafts, none) = (run(901, 3.2, None, 1), System::draw(901));
    let plain = Setup::of(&none).run(2);
    assert_eq!(pages_of(&plain).accepted_length(), None);
    assert!(pages_of(&plain).gained(Signal::OutputTokens).is_some_and(|tokens| tokens > 0.0));
    let [records, pages] = both(&drafts, &plain);
    assert_eq!(records.verdicts[0].cause, Cause::DraftRejection, "{}", records.headline);
    assert_eq!(pages.verdicts[0].cause, Cause::DraftRejection, "{}", pages.headline);
    // In the other direction no draft is rejected.
    for diagnosis in both(&plain, &drafts) {
        assert_ne!(diagnosis.verdicts[0].cause, Cause::DraftRejection, "{}", diagnosis.headline);
    }
}
