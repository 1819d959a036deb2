//! The inputs of a rule, computed once: the two levels, their isolated requests, the gauges, and the significant
//! changes.

use plimsoll_model::{Attempt, Level, Load};

use super::effect::ALONE_NEEDED;
use super::effect::{StatisticChange, of_percentile};
use super::experiment::NextExperiment;
use super::gauges::LevelGauges;
use super::material::MaterialChanges;
use super::seen::{DiagnosedLevel, RequestView};
use super::verdict::{MissingEvidence, Reference, Subject};
use super::{Case, Cause, RunData};

/// One side of a comparison: a level, its isolated requests and its gauges.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    pub seen: DiagnosedLevel<'a>,
    /// Isolated requests: from the probe, else from any level that had no concurrent requests.
    pub alone: Vec<RequestView>,
    /// Probe level with one request in flight; `None` if the run has none.
    pub probe: Option<DiagnosedLevel<'a>>,
    /// Set if the run has enough isolated requests.
    pub probed: bool,
    /// Gauges of the server during the level.
    pub gauges: LevelGauges,
}

/// The inputs of a rule.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    pub case: &'a Case<'a>,
    pub candidate: Frame<'a>,
    /// The reference level; `None` without a baseline.
    pub base: Option<Frame<'a>>,
    pub material: MaterialChanges,
}

impl<'a> Frames<'a> {
    /// Reads both sides. Returns `None` if the candidate has no requests.
    pub fn new(case: &'a Case<'a>) -> Option<Frames<'a>> {
        let (candidate, base) = levels(case)?;
        let arm = |side: &RunData<'a>, level: &'a Level| Frame::read(side, level);
        let candidate = arm(&case.candidate, candidate);
        let base = case.baseline.as_ref().zip(base).map(|(side, level)| arm(side, level));
        let base = base.filter(|arm| !arm.seen.rows.is_empty());
        if candidate.seen.rows.is_empty() {
            return None;
        }
        let mut frames = Frames { case, candidate, base, material: MaterialChanges::default() };
        frames.material = MaterialChanges::judge(&frames);
        Some(frames)
    }

    /// Returns the level that is diagnosed.
    pub fn now(&self) -> &DiagnosedLevel<'a> {
        &self.candidate.seen
    }

    pub fn before(&self) -> Option<&DiagnosedLevel<'a>> {
        self.base.as_ref().map(|arm| &arm.seen)
    }

    /// Returns the ratio of a percentile, candidate over baseline.
    pub fn ratio(&self, of: impl Fn(&RequestView) -> f64, p: f64) -> Option<StatisticChange> {
        of_percentile(self.before()?, self.now(), of, p, self.case.spec.confidence)
    }

    /// Returns a description of the analysed data.
    pub fn subject(&self) -> Subject {
        let reference = match (&self.base, self.candidate.probed) {
            (Some(_), _) => Reference::Baseline,
            (None, true) => Reference::Probe,
            (None, false) => Reference::Quiet,
        };
        let level = self.now().level;
        let all = judged(&self.case.candidate).len() as u64;
        let chosen = self.case.spec.level.is_none() && all > 1;
        Subject {
            level: Some(level.id),
            chosen_of: if chosen { all } else { 0 },
            baseline_level: self.before().map(|seen| seen.level.id),
            alone: self.candidate.alone.len() as u64,
            ..Subject::of(crate::load_words(&level.load), self.now().rows.len() as u64, reference)
        }
    }

    /// Returns the facts that could not be evaluated.
    pub fn missing(&self) -> Vec<MissingEvidence> {
        let mut missing = Vec::new();
        let mut lacks = |what: &str, needs: NextExperiment| {
            missing.push(MissingEvidence { what: what.to_owned(), needs })
        };
        if self.base.is_none() {
            lacks("whether anything changed: there is no baseline", NextExperiment::Baseline);
        }
        let short = |arm: &Frame<'_>| arm.alone.len() < ALONE_NEEDED;
        if short(&self.candidate) || self.base.as_ref().is_some_and(short) {
            let requests = Cause::SlowerModel.overturned_by();
            lacks("the unloaded latency: too few isolated requests", requests);
        }
        if !self.candidate.gauges.any() {
            lacks(
                "the server's own queue, batch and cache: its metrics were not read",
                NextExperiment::Scrape,
            );
        }
        if self.now().replicas.is_empty() {
            lacks(
                "replica against replica: answers do not name the replica that sent them",
                NextExperiment::OneReplica,
            );
        }
        if self.case.device.is_some() && self.base.is_some() {
            lacks(
                "whether the device's steps changed since the baseline: a timeline is evaluated without a baseline",
                NextExperiment::Profile,
            );
        }
        missing
    }
}

impl<'a> Frame<'a> {
    fn read(side: &RunData<'a>, level: &'a Level) -> Frame<'a> {
        let attempts: &'a [Attempt] = side.attempts;
        let seen = DiagnosedLevel::read(level, attempts);
        let probe = side.levels.iter().find(|l| is_probe(l) && l.id != level.id);
        let probe = probe.map(|probe| DiagnosedLevel::read(probe, attempts));
        let from_probe: Vec<RequestView> = probe
            .iter()
            .flat_map(|probe| probe.rows.iter().filter(|row| row.ok && row.attempts == 1).cloned())
            .collect();
        let probed = from_probe.len() >= ALONE_NEEDED;
        let alone = if probed { from_probe } else { seen.alone().cloned().collect() };
        let gauges = LevelGauges::read(side, level);
        Frame { seen, alone, probe, probed, gauges }
    }
}

/// Returns whether the level is a closed loop with one request in flight.
pub(crate) fn is_probe(level: &Level) -> bool {
    matches!(level.load, Load::Closed { concurrency: 1 }) && level.purpose != "warmup"
}

/// Returns the levels that can be diagnosed: loads, without warm-up and probe.
pub fn judged<'a>(side: &RunData<'a>) -> Vec<&'a Level> {
    let counts = |level: &&Level| level.purpose != "warmup" && !is_probe(level) && level.arrivals > 0;
    side.levels.iter().filter(counts).collect()
}

/// Returns the level to diagnose and its reference level.
fn levels<'a>(case: &Case<'a>) -> Option<(&'a Level, Option<&'a Level>)> {
    let own = judged(&case.candidate);
    let candidate = match case.spec.level {
        Some(id) => case.candidate.levels.iter().find(|level| level.id == id),
        None => None,
    };
    let others = case.baseline.as_ref().map(judged).unwrap_or_default();
    let near = |level: &Level| -> Option<(&'a Level, f64)> {
        let size = size(level);
        others
            .iter()
            .filter(|other| level.load.is_open() == other.load.is_open() || others.len() == 1)
            .map(|other| (*other, (size / crate::frame::size(other)).ln().abs()))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    };
    let candidate = candidate.or_else(|| {
        let heaviest = own.iter().copied().max_by(|a, b| size(a).total_cmp(&size(b)).then(a.id.cmp(&b.id)));
        let matched = own
            .iter()
            .copied()
            .filter_map(|level| Some((level, near(level)?.1)))
            .min_by(|a, b| a.1.total_cmp(&b.1).then(size(b.0).total_cmp(&size(a.0))));
        // The heaviest loads of a sweep are meant to overload; with a baseline, the best match is diagnosed.
        matched.map(|(level, _)| level).or(heaviest)
    });
    let candidate =
        candidate.or_else(|| case.candidate.levels.iter().rev().find(|l| l.purpose != "warmup"))?;
    Some((candidate, near(candidate).map(|(level, _)| level)))
}

/// Returns the size of a load as one number.
fn size(level: &Level) -> f64 {
    match level.load {
        Load::Open { rate_per_s } => rate_per_s.max(1e-9),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => f64::from(concurrency.max(1)),
        Load::Wave { requests } => f64::from(requests.max(1)),
    }
}

trait IsOpen {
    fn is_open(&self) -> bool;
}

impl IsOpen for Load {
    fn is_open(&self) -> bool {
        matches!(self, Load::Open { .. })
    }
}
