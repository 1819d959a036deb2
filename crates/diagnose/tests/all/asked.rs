//! Comparisons of two runs for tests of diagnoses: levels and rows, hand-written or from a server of a few lines.

use plimsoll_diagnose::{Case, DiagnoseSpec, Diagnosis, RunData, diagnose};
use plimsoll_model::{Attempt, Fingerprint, Level, Sample};

/// The contents of a run.
#[derive(Default)]
pub struct Run {
    pub levels: Vec<Level>,
    pub attempts: Vec<Attempt>,
    pub samples: Vec<Sample>,
    /// Known properties of the target.
    pub facts: Fingerprint,
}

impl Run {
    /// Returns a run of these levels and rows without metrics.
    pub fn of(levels: Vec<Level>, attempts: Vec<Attempt>) -> Run {
        Run { levels, attempts, ..Run::default() }
    }

    /// Returns the run as an input of a diagnosis.
    pub fn side(&self) -> RunData<'_> {
        let Run { levels, attempts, samples, facts } = self;
        RunData { levels, attempts, samples, facts }
    }
}

/// Returns the diagnosis of `candidate` against `base` with the default thresholds.
pub fn ask(base: &Run, candidate: &Run) -> Diagnosis {
    let spec = DiagnoseSpec::default();
    let (candidate, baseline) = (candidate.side(), Some(base.side()));
    diagnose(&Case { candidate, baseline, budget: None, device: None, validity: None, spec: &spec })
}
