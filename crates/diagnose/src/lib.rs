//! Diagnosis: names the slow layer with evidence, or reports that the data is inconclusive (SPEC D1, D2, D4, D5).
//!
//! The crate works with facts, causes and beliefs. A fact is one check of the records, independent of other facts. A
//! table lists the facts that each cause shows, and their frequencies are learnt. The posterior names a cause if a
//! decisive fact was seen. An ordered list of rules was rejected. The first confident rule won, each rule depended on
//! the others, and their limits were fitted to the simulator.
//!
//! Reading order: [`frame`] (the two levels that are compared), [`fact`] and [`facts`] (observable facts), [`causes`]
//! (the table), [`belief`] (the posterior), `conclude` (the verdict). Then [`experiment`] (the next step),
//! [`verdict`] (the output types), [`spec`] (thresholds), [`seen`] and [`effect`] (one level in rows, comparison of
//! two levels). Last, [`concurrency`] (comparison at equal concurrency) and [`diagnose`] below. [`active`] runs
//! experiments on an endpoint, [`pages`] reads live traffic from metrics endpoints only, [`device`] reports whether a
//! profiled device was busy.

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
    AskedQuestion, ClearedSuspect, Counter, Diagnosis, DiagnosisOutcome, Evidence, MissingEvidence, Question,
    Reference, RunnerUp, Subject, TargetChange, Verdict, YesNo,
};

use plimsoll_model::{Attempt, Fingerprint, Level, Manifest, Sample};

use crate::device::DeviceFinding;
use belief::{CausePosterior, EvidenceSource};
use conclude::{Worse, conclude};
use facts::Finding;
use frame::Frames;
use plimsoll_measure::findings::{BudgetSpec, Validity};
use verdict::DIAGNOSIS_SCHEMA;

/// The parts of a run folder that a diagnosis uses.
#[derive(Copy, Clone, Debug)]
pub struct RunData<'a> {
    /// Levels of the run; a closed-loop level with one request in flight, if there is one, is the probe.
    pub levels: &'a [Level],
    pub attempts: &'a [Attempt],
    /// Metric samples recorded during the run.
    pub samples: &'a [Sample],
    pub facts: &'a Fingerprint,
}

impl<'a> RunData<'a> {
    /// Returns the input of a diagnosis for one run folder.
    pub fn of(manifest: &'a Manifest, attempts: &'a [Attempt], samples: &'a [Sample]) -> RunData<'a> {
        RunData { levels: &manifest.levels, attempts, samples, facts: &manifest.target }
    }
}

/// The inputs of a diagnosis.
#[derive(Copy, Clone, Debug)]
pub struct Case<'a> {
    pub candidate: RunData<'a>,
    /// The run to compare with. `None`: the run is compared with its own single requests and quiet parts.
    pub baseline: Option<RunData<'a>>,
    /// SLO budget; `None` if there is none.
    pub budget: Option<&'a BudgetSpec>,
    /// Evaluated profiler timeline of the target's steps; `None` if there is none.
    pub device: Option<&'a DeviceFinding>,
    /// The run's verdict on its own measurement; `None` if it was not evaluated.
    pub validity: Option<&'a Validity>,
    pub spec: &'a DiagnoseSpec,
}

pub fn diagnose(case: &Case<'_>) -> Diagnosis {
    let Some(frames) = Frames::new(case) else { return nothing_measured(case) };
    let found = facts::observe(&frames);
    let belief = CausePosterior::after(&found, EvidenceSource::Records);
    let verdicts = conclude(&Worse::of(&frames, &found), &found, &belief);
    Diagnosis {
        validity: case.validity.cloned(),
        questions: questions::answer(&frames),
        cleared: cleared::cleared(&frames, &verdicts),
        changed: changed::facts(case),
        missing: frames.missing(),
        ..Diagnosis::of(frames.subject(), verdicts, &found)
    }
}

impl Diagnosis {
    /// Returns a diagnosis without questions, cleared layers and missing facts.
    pub(crate) fn of(subject: Subject, verdicts: Vec<Verdict>, found: &[Finding]) -> Diagnosis {
        Diagnosis {
            schema: DIAGNOSIS_SCHEMA,
            answer: answer(&verdicts),
            headline: headline(&verdicts),
            subject,
            validity: None,
            verdicts,
            questions: Vec::new(),
            cleared: Vec::new(),
            observed: facts::asked(found),
            changed: TargetChange::default(),
            missing: Vec::new(),
        }
    }
}

/// Returns the overall answer for these verdicts.
fn answer(verdicts: &[Verdict]) -> DiagnosisOutcome {
    match verdicts.first().map(|first| (first.cause, first.layer)) {
        Some((Cause::Nothing, _)) => DiagnosisOutcome::NothingMaterial,
        Some((Cause::Unknown, _)) | None => DiagnosisOutcome::Unknown,
        Some((_, Layer::Measurement)) => DiagnosisOutcome::Invalid,
        Some(_) => DiagnosisOutcome::Found,
    }
}

fn headline(verdicts: &[Verdict]) -> String {
    let one = |verdict: &Verdict| match verdict.cause {
        Cause::Nothing => format!("no significant problem: {}", verdict.says),
        Cause::Unknown => format!("inconclusive: {}", verdict.says),
        cause if verdict.layer == Layer::Unknown => format!("{} ({})", cause.title(), verdict.says),
        cause => format!("{}: {} ({})", verdict.layer.name(), cause.title(), verdict.says),
    };
    verdicts.iter().map(one).collect::<Vec<_>>().join("; and ")
}

fn nothing_measured(case: &Case<'_>) -> Diagnosis {
    let says = "the run contains no request to evaluate".to_owned();
    let verdict = Verdict { says, ..Verdict::of(Cause::Unknown) };
    let subject = Subject::of("none".to_owned(), 0, Reference::Quiet);
    let needs = NextExperiment::RunLonger { factor: 1.0 };
    Diagnosis {
        validity: case.validity.cloned(),
        observed: Vec::new(),
        changed: changed::facts(case),
        missing: vec![MissingEvidence { what: "everything".into(), needs }],
        ..Diagnosis::of(subject, vec![verdict], &[])
    }
}

/// Returns a short description of a load.
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
