//! Budgets on speech: a limit on the time per second of audio.

use plimsoll_judge::budget::{Amount, Budget, BudgetMetric};
use plimsoll_judge::gate::GateVerdict;
use plimsoll_lab::records::answer;

use crate::gate::{file, of};

/// Speech of 1 s that takes 400 ms, and one in 150 that takes 900 ms.
#[test]
fn a_budget_limits_the_real_time_factor() {
    let speech = |i: i64| {
        let mut record = answer(i as u64, 10 * i, 50, if i * 7919 % 150 == 1 { 900 } else { 400 }, 3);
        record.media.audio_ms = 1_000;
        record
    };
    let run = of((0..9_000).map(speech).collect());
    for (max_ms, verdict) in [(600.0, GateVerdict::Pass), (300.0, GateVerdict::Broken)] {
        let max = Amount::seconds(max_ms / 1e3);
        let finding = run.gate(&file(vec![Budget::ceiling("rtf", BudgetMetric::Rtf, Some(0.95), max)]));
        assert_eq!(finding.verdict, verdict, "{max_ms}: {:?}", finding.rows[0].why);
    }
}
