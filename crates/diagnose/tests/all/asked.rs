//! A run held against another one, as tests of diagnoses ask it: levels and rows, worked by hand or by a server of a few lines.

use plimsoll_diagnose::{Case, DiagnoseSpec, Diagnosis, RunData, diagnose};
use plimsoll_model::{Attempt, Fingerprint, Level, Sample};

/// What a run holds.
#[derive(Default)]
pub struct Run {
    pub levels: Vec<Level>,
    pub attempts: Vec<Attempt>,
    pub samples: Vec<Sample>,
    /// What is known of the target.
    pub facts: Fingerprint,
}

impl Run {
    /// Of these levels, with nothing beside its rows.
    pub fn of(levels: Vec<Level>, attempts: Vec<Attempt>) -> Run {
        Run { levels, attempts, ..Run::default() }
    }

    /// As a diagnosis takes it.
    pub fn side(&self) -> RunData<'_> {
        let Run { levels, attempts, samples, facts } = self;
        RunData { levels, attempts, samples, facts }
    }
}

/// The diagnosis of `candidate` against `base`, with the thresholds as they are.
pub fn ask(base: &Run, candidate: &Run) -> Diagnosis {
    let spec = DiagnoseSpec::default();
    let (candidate, baseline) = (candidate.side(), Some(base.side()));
    diagnose(&Case { candidate, baseline, budget: None, device: None, validity: None, spec: &spec })
}
