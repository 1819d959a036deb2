//! Trust in a level: checks of the generator, the window and the responses, with a reason for each limit.
//!
//! *Invalid* means that the figures do not describe the target, so nothing may pass on them. *Suspect* means that they do,
//! but only together with a remark. A slow, failing or overloaded target is a result and never makes a level invalid. Only a
//! measurement that did not happen does. *Short* is a level whose only problem is its few requests.

mod answers;
mod generator;
mod records;

pub use generator::RUN_QUEUE_SUSPECT;

use plimsoll_model::{How, Level};

use crate::findings::{LevelFinding, LevelSummary, LoadKeptUp, PassedCheck, Reason, Trust, Validity};
use answers::{answers, ended, window};
use generator::generator;
pub use records::lets_nothing_pass;
use records::records;

/// The values above which a figure makes a level suspect or invalid.
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

/// Returns the verdict on one level.
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

/// Returns the verdict on a run from the verdicts on its levels. A single level is the run.
///
/// Invalid levels of many are left out of the limits, so the run is suspect; if half of them are invalid, so is the run. A
/// level that is *meant* to overload the target may overload it. A level without arrivals does not count among others, because
/// it sent the target nothing.
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
        // A failure with one request in flight is not caused by load.
        let alone = ["baseline", crate::purpose::IDLE].contains(&level.summary.purpose.as_str());
        let overloaded = level.summary.stability.verdict == LoadKeptUp::Unstable;
        let meant = |reason: &Reason| match reason.check.as_str() {
            "steady_state" | "samples" => placed,
            "errors" => placed && !alone,
            // Requests that an overloaded target still processes at the end of the drain are part of the overload.
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
            run.passed.push(PassedCheck {
                check: passed.check.clone(),
                figure: "on every level that it applies to".into(),
                note: passed.note.clone(),
            });
        }
    }
    run
}

/// The collector of a level's check results.
struct Bench {
    level: u32,
    validity: Validity,
}

impl Bench {
    fn say(&mut self, check: &str, verdict: Trust, figure: String, means: &str, advice: &str) {
        if verdict == Trust::Valid {
            self.validity.passed.push(PassedCheck { check: check.into(), figure, note: None });
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

    /// Adds a remark to the last check, if it passed.
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

/// Returns whether no arrival was in the level. Missing rows are not enough, because rows may be lost.
fn empty(summary: &LevelSummary) -> bool {
    summary.counts.requests == 0 && summary.records.arrivals.unwrap_or(0) == 0
}

/// Returns whether any response arrived during the level.
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
        bench.say("arrivals", Trust::Invalid, figure.into(), "no request was sent to the target", advice);
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
            "check the errors: a wrong key, path or model fails every request",
        )
    };
    bench.say("reached", Trust::Invalid, format!("0 of {} finished", counts.requests), means, advice);
    false
}
