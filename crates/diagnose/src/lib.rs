//! Diagnosis: which layer is slow, with evidence, or an honest "cannot tell" (SPEC D1, D2, D4, D5).
//!
//! Facts, causes, belief. A fact is one question to the records and knows of no other; a table says which facts a cause shows; how often it shows
//! them is learnt; the posterior names a cause where a fact that decides for it was seen. Ordered rules lost: the first that was confident won,
//! each knew of the others, and their limits knew the simulator.
//!
//! Reading order: [`frame`] (what is held against what), [`fact`] and [`facts`] (what can be seen), [`causes`] (the table), [`belief`] (the posterior), `conclude` (the
//! verdict), [`experiment`] (what to do next), [`verdict`] (the words), [`spec`] (thresholds), [`seen`] and [`effect`] (one level in rows, two of them side by side),
//! [`concurrency`] (beside as many others), and [`diagnose`] below. [`active`] asks an endpoint by experiments of its own, [`pages`] reads live traffic off metrics pages alone, [`device`] says whether a profiled device was busy.

pub mod active;
pub mod belief;
pub mod cause;
pub mod causes;
mod changed;
mod cleared;
mod conclude;
mod concurrency;
pub mod device;
pub mod effect;
pub mod experiment;
pub mod fact;
pub mod facts;
pub mod frame;
pub mod gauges;
pub mod material;
pub mod pages;
mod questions;
pub mod seen;
pub mod spec;
pub mod verdict;

pub use cause::{Cause, Layer};
pub use experiment::NextExperiment;
pub use spec::DiagnoseSpec;
pub use verdict::{
    Answer, AskedQuestion, Changed, Cleared, Counter, Diagnosis, Evidence, Missing, Question, Reference,
    RunnerUp, Subject, Verdict, YesNo,
};

use plimsoll_model::{Attempt, Fingerprint, Level, Manifest, Sample};

use crate::device::DeviceFinding;
use belief::{Belief, ReadFrom};
use conclude::{Worse, conclude};
use frame::Frames;
use plimsoll_measure::findings::{BudgetSpec, Validity};
use verdict::DIAGNOSIS_SCHEMA;

/// What a run folder holds, as far as a diagnosis asks.
#[derive(Copy, Clone, Debug)]
pub struct RunData<'a> {
    /// Its levels; a closed loop of one request in flight, where there is one, is the probe.
    pub levels: &'a [Level],
    /// Rows of all levels.
    pub attempts: &'a [Attempt],
    /// The series beside them.
    pub samples: &'a [Sample],
    /// What is known of the target.
    pub facts: &'a Fingerprint,
}

impl<'a> RunData<'a> {
    /// The side that a run folder is.
    pub fn of(manifest: &'a Manifest, attempts: &'a [Attempt], samples: &'a [Sample]) -> RunData<'a> {
        RunData { levels: &manifest.levels, attempts, samples, facts: &manifest.target }
    }
}

/// Everything a diagnosis reads.
#[derive(Copy, Clone, Debug)]
pub struct Case<'a> {
    /// The run under judgement.
    pub candidate: RunData<'a>,
    /// The run it is held against. Without one, its own single requests and quiet parts are.
    pub baseline: Option<RunData<'a>>,
    pub budget: Option<&'a BudgetSpec>,
    /// What a profiler saw of the target's steps.
    pub device: Option<&'a DeviceFinding>,
    /// The run's own verdict on its measurement; `None` = nobody judged it.
    pub validity: Option<&'a Validity>,
    pub spec: &'a DiagnoseSpec,
}

pub fn diagnose(case: &Case<'_>) -> Diagnosis {
    let Some(frames) = Frames::new(case) else { return nothing_measured(case) };
    let found = facts::observe(&frames);
    let belief = Belief::after(&found, ReadFrom::Records);
    let verdicts = conclude(&Worse::of(&frames, &found), &found, &belief);
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        answer: answer(&verdicts),
        headline: headline(&verdicts),
        subject: frames.subject(),
        validity: case.validity.cloned(),
        questions: questions::answer(&frames),
        cleared: cleared::cleared(&frames, &verdicts),
        observed: facts::asked(&found),
        changed: changed::facts(case),
        missing: frames.missing(),
        verdicts,
    }
}

/// How a diagnosis with these verdicts ends.
fn answer(verdicts: &[Verdict]) -> Answer {
    match verdicts.first().map(|first| (first.cause, first.layer)) {
        Some((Cause::Nothing, _)) => Answer::NothingMaterial,
        Some((Cause::Unknown, _)) | None => Answer::Unknown,
        Some((_, Layer::Measurement)) => Answer::Invalid,
        Some(_) => Answer::Found,
    }
}

fn headline(verdicts: &[Verdict]) -> String {
    let one = |verdict: &Verdict| match verdict.cause {
        Cause::Nothing => format!("nothing material: {}", verdict.says),
        Cause::Unknown => format!("cannot tell: {}", verdict.says),
        cause if verdict.layer == Layer::Unknown => format!("{} ({})", cause.title(), verdict.says),
        cause => format!("{}: {} ({})", verdict.layer.name(), cause.title(), verdict.says),
    };
    verdicts.iter().map(one).collect::<Vec<_>>().join("; and ")
}

fn nothing_measured(case: &Case<'_>) -> Diagnosis {
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        answer: Answer::Unknown,
        headline: "cannot tell: the run holds no request to judge".to_owned(),
        subject: Subject {
            level: None,
            chosen_of: 0,
            load: "none".to_owned(),
            requests: 0,
            excerpt: None,
            reference: Reference::Quiet,
            baseline_level: None,
            alone: 0,
        },
        validity: case.validity.cloned(),
        verdicts: vec![conclude::without_requests()],
        questions: Vec::new(),
        cleared: Vec::new(),
        observed: Vec::new(),
        changed: changed::facts(case),
        missing: vec![Missing {
            what: "everything".into(),
            needs: NextExperiment::RunLonger { factor: 1.0 },
        }],
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
