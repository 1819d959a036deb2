//! Diagnosis: which layer is slow, with evidence, or an honest "cannot tell" (SPEC D1, D2, D4, D5).
//!
//! An ordered drill-down: is the measurement valid, is anything material, did the load profile change, where is the time,
//! which mechanism, and what would overturn it. Rules are asked in that order and the first confident one wins: a late
//! generator makes every later figure wrong, and more load makes every queue longer. A classifier learnt from simulated
//! faults lost: it can't say which figure decided, and it knows only the systems it has seen. No rule reads anything that
//! only our own engine tells.
//!
//! Reading order: [`cause`] (what can be wrong, and the advice), [`experiment`] (what to do next), [`verdict`] (the words),
//! [`spec`] (thresholds), [`seen`] (one level as the rules see it), [`ratio`] (two levels side by side), [`concurrency`] (beside as many others), [`mod@bench`] (all that a
//! rule may ask), [`rules`] (the table), and [`diagnose`] below. [`active`] asks an endpoint by experiments of its own, [`device`] says
//! whether a profiled device was busy.

pub mod active;
mod apart;
pub mod bench;
pub mod cause;
mod changed;
mod concurrency;
pub mod device;
pub mod experiment;
mod fired;
pub mod gauges;
pub mod material;
mod questions;
pub mod ratio;
pub mod remove;
mod rules;
pub mod seen;
pub mod spec;
pub mod verdict;

pub use cause::{Cause, Layer};
pub use experiment::Experiment;
pub use spec::DiagnoseSpec;
pub use verdict::{
    Answer, Changed, Cleared, Counter, Diagnosis, Evidence, Missing, Question, Reference, RunnerUp, Subject,
    Verdict, YesNo,
};

use plimsoll_model::{Attempt, Fingerprint, Level, Manifest, Sample};

use crate::device::DeviceFinding;
use bench::Bench;
use fired::Fired;
use plimsoll_measure::findings::{BudgetSpec, Validity};
use verdict::DIAGNOSIS_SCHEMA;

/// What a run folder holds, as far as a diagnosis asks.
#[derive(Copy, Clone, Debug)]
pub struct Side<'a> {
    /// Its levels; a closed loop of one request in flight, where there is one, is the probe.
    pub levels: &'a [Level],
    /// Rows of all levels.
    pub attempts: &'a [Attempt],
    /// The series beside them.
    pub samples: &'a [Sample],
    /// What is known of the target.
    pub facts: &'a Fingerprint,
}

impl<'a> Side<'a> {
    /// The side that a run folder is.
    pub fn of(manifest: &'a Manifest, attempts: &'a [Attempt], samples: &'a [Sample]) -> Side<'a> {
        Side { levels: &manifest.levels, attempts, samples, facts: &manifest.target }
    }
}

/// Everything a diagnosis reads.
#[derive(Copy, Clone, Debug)]
pub struct Case<'a> {
    /// The run under judgement.
    pub candidate: Side<'a>,
    /// The run it is held against. Without one, its own single requests and quiet parts are.
    pub baseline: Option<Side<'a>>,
    /// What the product promises.
    pub budget: Option<&'a BudgetSpec>,
    /// What a profiler saw of the target's steps.
    pub device: Option<&'a DeviceFinding>,
    /// The run's own verdict on its measurement; `None` = nobody judged it.
    pub validity: Option<&'a Validity>,
    /// Thresholds.
    pub spec: &'a DiagnoseSpec,
}

/// Diagnoses a run.
pub fn diagnose(case: &Case<'_>) -> Diagnosis {
    let Some(bench) = Bench::new(case) else { return nothing_measured(case) };
    let judged = rules::judge(&bench, &[]);
    let mut verdicts = vec![judged.verdict(&bench)];
    let answer = match (judged.fired.cause, verdicts[0].layer) {
        (Cause::Nothing, _) => Answer::NothingMaterial,
        (Cause::Unknown, _) => Answer::Unknown,
        (_, Layer::Measurement) => Answer::Invalid,
        _ => Answer::Found,
    };
    if answer == Answer::Found {
        verdicts.extend(second(&bench, &judged.fired));
    }
    let headline = headline(&verdicts);
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        answer,
        headline,
        subject: bench.subject(),
        validity: case.validity.cloned(),
        questions: questions::answer(&bench),
        cleared: rules::cleared(&bench, &verdicts),
        changed: changed::facts(case),
        missing: bench.missing(),
        verdicts,
    }
}

/// What is left once the first cause's effect is taken out, where it can be and is still material; else what the first can't have made.
fn second(bench: &Bench<'_>, first: &Fired) -> Option<Verdict> {
    let (rest, judged) = match bench.without(first) {
        Some(rest) => {
            let judged = rules::judge(&rest, &[first.cause]);
            (rest, judged)
        }
        None => {
            let rest = Bench { found: vec![first.cause], ..bench.clone() };
            let judged = rules::beside(&rest, first.cause)?;
            (rest, judged)
        }
    };
    let named = !matches!(judged.fired.cause, Cause::Nothing | Cause::Unknown);
    named.then(|| judged.verdict(&rest))
}

fn headline(verdicts: &[Verdict]) -> String {
    let one = |verdict: &Verdict| match verdict.cause {
        Cause::Nothing => format!("nothing material: {}", verdict.says),
        Cause::Unknown => format!("cannot tell: {}", verdict.says),
        cause => format!("{}: {} ({})", verdict.layer.name(), cause.title(), verdict.says),
    };
    verdicts.iter().map(one).collect::<Vec<_>>().join("; and ")
}

fn nothing_measured(case: &Case<'_>) -> Diagnosis {
    let fired = Fired::new(Cause::Unknown, 0.0, "the run holds no request to judge".to_owned());
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        answer: Answer::Unknown,
        headline: "cannot tell: the run holds no request to judge".to_owned(),
        subject: Subject {
            level: None,
            chosen_of: 0,
            load: "none".to_owned(),
            requests: 0,
            reference: Reference::Quiet,
            baseline_level: None,
            alone: 0,
        },
        validity: case.validity.cloned(),
        verdicts: vec![fired.verdict(None)],
        questions: Vec::new(),
        cleared: Vec::new(),
        changed: changed::facts(case),
        missing: vec![Missing { what: "everything".into(), needs: Experiment::RunLonger { factor: 1.0 } }],
    }
}

/// A load in a few words.
fn load_words(load: &plimsoll_model::Load) -> String {
    use plimsoll_measure::say::number;
    use plimsoll_model::Load;
    match load {
        Load::Open { rate_per_s } => format!("{} requests/s", number(*rate_per_s)),
        Load::Closed { concurrency } => format!("{concurrency} in flight (closed loop)"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("{concurrency} in flight (saturating)"),
    }
}
