//! How far a level may be trusted: every check on the generator, the window and the answers, with its limits argued.
//!
//! *Invalid* means that the figures are not the target's, so nothing may pass on them. *Suspect* means that they are,
//! but something beside them must be read. That a target is slow, failing or overloaded is a result and never makes a
//! level invalid; only a measurement that did not happen does. *Short* is a level that nothing speaks against but its few requests.

mod answers;
mod generator;
mod records;

pub use generator::RUN_QUEUE_SUSPECT;

use plimsoll_model::{How, Level};

use crate::findings::{KeptUp, LevelFinding, LevelSummary, Passed, Reason, Trust, Validity};
use answers::{answers, ended, window};
use generator::generator;
pub use records::lets_nothing_pass;
use records::records;

/// From where on a figure makes a level suspect, and from where on invalid.
#[derive(Copy, Clone)]
struct Limits {
    suspect: f64,
    invalid: f64,
}

impl Limits {
    fn judge(&self, figure: f64) -> Trust {
        match figure {
            f if f > self.invalid => Trust::Invalid,
            f if f > self.suspect => Trust::Suspect,
            _ => Trust::Valid,
        }
    }
}

/// The verdict on one level.
pub fn judge(level: &Level, summary: &LevelSummary) -> Validity {
    let mut bench = Bench { level: level.id, validity: Validity::default() };
    if reached(&mut bench, summary) {
        records(&mut bench, summary);
        generator(&mut bench, level, summary);
        window(&mut bench, level, summary);
        answers(&mut bench, summary);
    }
    ended(&mut bench, level, summary);
    bench.done()
}

/// The verdict on a run from those on its levels. A single level is the run. Of many, those that are invalid are left
/// out of the lines, so the run is suspect; where half of them are, nothing is left to stand on. That a level *meant*
/// to overload the target overloads it does not count against a sweep, and one into which no arrival fell counts for nothing
/// beside others: it asked the target nothing.
pub fn judge_run(levels: &[LevelFinding]) -> Validity {
    if let [only] = levels {
        return only.validity.clone();
    }
    let mut run = Validity::default();
    if levels.is_empty() {
        run.verdict = Trust::Invalid;
        run.reasons.push(Reason {
            check: "levels".into(),
            verdict: Trust::Invalid,
            level: None,
            figure: "no level was run".into(),
            means: "nothing was measured".into(),
            advice: "run it again".into(),
        });
        return run;
    }
    let asked: Vec<&LevelFinding> = levels.iter().filter(|l| !empty(&l.summary)).collect();
    let levels = if asked.is_empty() { levels.iter().collect() } else { asked };
    let invalid = levels.iter().filter(|l| l.validity.verdict == Trust::Invalid).count();
    for level in &levels {
        let placed = !matches!(level.summary.purpose.as_str(), "run" | "hold");
        // What fails with one request in flight doesn't fail of load.
        let alone = ["baseline", crate::purpose::IDLE].contains(&level.summary.purpose.as_str());
        let overloaded = level.summary.stability.verdict == KeptUp::Unstable;
        let meant = |reason: &Reason| match reason.check.as_str() {
            "steady_state" | "samples" => placed,
            "errors" => placed && !alone,
            // What an overloaded target still holds when the drain ends is part of the overload.
            "ended" => placed && overloaded,
            _ => false,
        };
        run.reasons.extend(level.validity.reasons.iter().filter(|reason| !meant(reason)).cloned());
    }
    run.reasons.sort_by(|a, b| b.verdict.cmp(&a.verdict).then(a.level.cmp(&b.level)));
    let worst = run.reasons.first().map_or(Trust::Valid, |reason| reason.verdict);
    run.verdict = if 2 * invalid >= levels.len() { Trust::Invalid } else { worst.min(Trust::Suspect) };
    let mut seen = std::collections::BTreeSet::new();
    for passed in levels.iter().flat_map(|l| &l.validity.passed) {
        let failed = run.reasons.iter().any(|reason| reason.check == passed.check);
        if !failed && seen.insert(passed.check.clone()) {
            run.passed.push(Passed {
                check: passed.check.clone(),
                figure: "on every level that it applies to".into(),
                note: passed.note.clone(),
            });
        }
    }
    run
}

/// Where the findings of a level are collected.
struct Bench {
    level: u32,
    validity: Validity,
}

impl Bench {
    fn say(&mut self, check: &str, verdict: Trust, figure: String, means: &str, advice: &str) {
        if verdict == Trust::Valid {
            self.validity.passed.push(Passed { check: check.into(), figure, note: None });
            return;
        }
        self.validity.reasons.push(Reason {
            check: check.into(),
            verdict,
            level: Some(self.level),
            figure,
            means: means.into(),
            advice: advice.into(),
        });
    }

    /// Something about the check that was made last, where it passed.
    fn note(&mut self, note: &str) {
        if let Some(passed) = self.validity.passed.last_mut() {
            passed.note = Some(note.into());
        }
    }

    fn done(mut self) -> Validity {
        self.validity.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.verdict));
        self.validity.verdict = self.validity.reasons.first().map_or(Trust::Valid, |reason| reason.verdict);
        self.validity
    }
}

/// Did no arrival fall into the level? That there are no rows is not enough: they may have been lost.
fn empty(summary: &LevelSummary) -> bool {
    summary.counts.requests == 0 && summary.records.arrivals.unwrap_or(0) == 0
}

/// Did anything come back at all?
fn reached(bench: &mut Bench, summary: &LevelSummary) -> bool {
    let counts = &summary.counts;
    if counts.requests > 0 && counts.finished + counts.cancelled > 0 {
        bench.say(
            "reached",
            Trust::Valid,
            format!("{} of {} finished", counts.finished, counts.requests),
            "",
            "",
        );
        return true;
    }
    let unreached = [How::Refused, How::Redirected, How::NeverSent].iter();
    let silent: u64 = unreached.filter_map(|how| counts.by_outcome.get(how)).sum();
    let no_socket = summary.generator.room.as_ref().map_or(0, |room| room.no_socket);
    if empty(summary) {
        let (figure, advice) = ("no arrival fell into this level", "give it more time or a higher rate");
        bench.say("arrivals", Trust::Invalid, figure.into(), "nothing was asked of the target", advice);
        return false;
    }
    if counts.requests == 0 {
        records(bench, summary);
        return false;
    }
    let (means, advice) = if no_socket > 0 && no_socket >= counts.attempts {
        ("this machine had no socket for any request", "run `plimsoll doctor` and raise what it names")
    } else if silent == counts.requests {
        ("nothing reached the target", "check the address, the name and the network")
    } else {
        (
            "the target fails: no request got a whole answer",
            "look at the errors, for a wrong key, path or model fails every request",
        )
    };
    bench.say("reached", Trust::Invalid, format!("0 of {} finished", counts.requests), means, advice);
    false
}
