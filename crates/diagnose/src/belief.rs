//! The probability of each cause given the observed facts: a posterior over every single cause and every pair.
//!
//! The likelihood tables are in `likelihood/`: one for the records of a run, one for experiments on an endpoint, one
//! for metrics endpoints only. `examples/learn.rs` computes them from simulated systems and from recordings of real
//! servers; no number is set manually.
//!
//! The table of causes decides which cells are learnt. A fact that is unrelated to a cause keeps its accidental
//! frequency, even if simulated runs showed it more often. Results from one kind of server therefore apply to others.
//! Facts are correlated (a queue causes late first tokens and long responses), so each fact has its own learnt
//! exponent (a discount, Heckerman and others). Two causes show the facts of either (noisy or, Pearl 1988). Facts
//! that could not be checked have no weight.

use std::sync::OnceLock;

use super::cause::Cause;
use super::causes::{BY_ACCIDENT, CauseRow, FactFrequency, causes, row};
use super::facts::{FactState, Finding, Observed};

/// Prior probabilities of "no problem" and of "a problem outside the table"; the other causes share the rest.
const PRIOR: (f64, f64) = (0.2, 0.03);
/// Prior probability of two simultaneous causes.
const PAIRS: f64 = 0.1;

/// Minimum frequency of an answer. A few thousand cases show nothing rarer, and an unseen answer is not impossible.
const LEAST: f64 = 5e-4;

/// The frequencies of each fact for each cause.
#[derive(Clone, Debug)]
pub struct Likelihood {
    /// Frequencies by cause in the order of the table, then by fact.
    pub of: Vec<Vec<FactFrequency>>,
    /// Frequencies by fact without a cause.
    pub by_accident: Vec<FactFrequency>,
    /// Weight of each fact, 0 to 1.
    pub weight: Vec<f64>,
    /// Probability that no decisive fact of an active cause is seen although the facts could be checked.
    pub missed: f64,
}

/// The source of the facts. Each source has its own frequencies because it uses other detectors.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum EvidenceSource {
    /// Records of a run, usually with the records of an earlier run.
    Records,
    /// Experiments on an endpoint, chosen one by one.
    Experiments,
    /// Metrics endpoints only, usually with an earlier period.
    Pages,
}

impl Likelihood {
    pub fn learnt(from: EvidenceSource) -> &'static Likelihood {
        static OF_RECORDS: OnceLock<Likelihood> = OnceLock::new();
        static OF_EXPERIMENTS: OnceLock<Likelihood> = OnceLock::new();
        static OF_PAGES: OnceLock<Likelihood> = OnceLock::new();
        let (learnt, table) = match from {
            EvidenceSource::Records => (&OF_RECORDS, include_str!("likelihood/records.tsv")),
            EvidenceSource::Experiments => (&OF_EXPERIMENTS, include_str!("likelihood/experiments.tsv")),
            EvidenceSource::Pages => (&OF_PAGES, include_str!("likelihood/pages.tsv")),
        };
        learnt.get_or_init(|| Likelihood::parse(table))
    }

    /// Parses the table with lines `cause, fact, yes, no`, and for each fact a line of cause `*` with its weight.
    /// Missing cells use the presumed frequencies of the table of causes.
    pub fn parse(table: &str) -> Likelihood {
        let facts = Observed::ALL.len();
        let mut by_accident = vec![BY_ACCIDENT; facts];
        let mut weight = vec![1.0; facts];
        let mut missed = 0.1;
        let lines: Vec<Vec<&str>> = table
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split('\t').collect())
            .collect();
        let number = |text: Option<&&str>| text.and_then(|text| text.parse::<f64>().ok());
        let cell = |line: &[&str]| -> Option<(usize, FactFrequency)> {
            let fact = Observed::of_word(line.get(1)?)?;
            let (yes, no) = (number(line.get(2))?, number(line.get(3))?);
            Some((fact as usize, [yes, no, 1.0 - yes - no].map(|often: f64| often.max(LEAST))))
        };
        for line in lines.iter().filter(|line| line[0] == "*") {
            if line.get(1) == Some(&"missed") {
                missed = number(line.get(2)).unwrap_or(missed);
            }
            if let Some((fact, often)) = cell(line) {
                by_accident[fact] = often;
                weight[fact] = number(line.get(4)).unwrap_or(weight[fact]);
            }
        }
        let presumed = |row: &CauseRow| {
            Observed::ALL.iter().map(|fact| row.presumed(*fact, by_accident[*fact as usize])).collect()
        };
        let mut of: Vec<Vec<FactFrequency>> = causes().iter().map(presumed).collect();
        for line in lines.iter().filter(|line| line[0] != "*") {
            let place = causes().iter().position(|row| row.cause.id() == line[0]);
            if let (Some(place), Some((fact, often))) = (place, cell(line)) {
                of[place][fact] = often;
            }
        }
        Likelihood { of, by_accident, weight, missed }
    }

    /// Returns the log-likelihood of the observations if only this cause is active.
    pub fn single(&self, cause: usize, observed: &[(usize, usize)]) -> f64 {
        let facts: f64 =
            observed.iter().map(|(fact, is)| self.weight[*fact] * self.of[cause][*fact][*is].ln()).sum();
        facts + self.unseen(cause, observed)
    }

    /// Returns the log-likelihood penalty of a cause without any observed decisive fact. The discounts of the facts
    /// would understate the penalty.
    pub fn unseen(&self, cause: usize, observed: &[(usize, usize)]) -> f64 {
        let decides = |fact: usize| causes()[cause].decisive.iter().any(|of| *of as usize == fact);
        let mut asked = observed.iter().filter(|(fact, _)| decides(*fact)).peekable();
        // Facts that are not checked yet cause no penalty.
        let lost = asked.peek().is_some() && asked.all(|(_, is)| *is != 0);
        if lost { self.missed.ln() } else { 0.0 }
    }

    /// Returns the frequencies of a fact for a cause.
    pub fn often(&self, cause: Cause, fact: Observed) -> FactFrequency {
        let place = causes().iter().position(|row| row.cause == cause);
        place.map_or(self.by_accident[fact as usize], |cause| self.of[cause][fact as usize])
    }

    /// Returns the log-likelihood of the observations if two causes are active: a fact shows if either cause shows
    /// it.
    fn pair(&self, a: usize, b: usize, observed: &[(usize, usize)]) -> f64 {
        let one = |&(fact, is): &(usize, usize)| {
            let (a, b, base) = (self.of[a][fact], self.of[b][fact], self.by_accident[fact]);
            let yes = 1.0 - (1.0 - a[0]) * (1.0 - b[0]) / (1.0 - base[0]);
            let no = a[1] * b[1] / base[1];
            let often = [yes.clamp(1e-4, 1.0), no.clamp(1e-4, 1.0), (1.0 - yes - no).max(1e-3)];
            self.weight[fact] * often[is].ln()
        };
        observed.iter().map(one).sum::<f64>() + self.unseen(a, observed) + self.unseen(b, observed)
    }

    /// Returns the posterior over the causes with a checked decisive fact, and the causes that `may_be` accepts
    /// because facts are still to be checked. Other causes are left out, because they would be believed only for the
    /// lack of evidence for the rest.
    pub fn posterior(
        &self,
        observed: &[(usize, usize)],
        may_be: impl Fn(&CauseRow) -> bool,
    ) -> CausePosterior {
        let rows = causes();
        let others = (1.0 - PRIOR.0 - PRIOR.1 - PAIRS) / (rows.len() as f64 - 2.0);
        let prior = |cause: Cause| match cause {
            Cause::Nothing => PRIOR.0,
            Cause::Unknown => PRIOR.1,
            _ => others,
        };
        let asked = |row: &CauseRow| {
            row.decisive.is_empty()
                || row.decisive.iter().any(|fact| observed.iter().any(|(of, _)| *of == *fact as usize))
        };
        let candidates: Vec<usize> =
            (0..rows.len()).filter(|a| asked(&rows[*a]) || may_be(&rows[*a])).collect();
        let mut logs: Vec<((usize, usize), f64)> = candidates
            .iter()
            .copied()
            .map(|a| ((a, a), prior(rows[a].cause).ln() + self.single(a, observed)))
            .collect();
        let named: Vec<usize> = candidates
            .into_iter()
            .filter(|a| !matches!(rows[*a].cause, Cause::Nothing | Cause::Unknown))
            .collect();
        let each = PAIRS / (0.5 * (named.len() * (named.len() - 1)) as f64);
        for (n, a) in named.iter().enumerate() {
            logs.extend(named[n + 1..].iter().map(|b| ((*a, *b), each.ln() + self.pair(*a, *b, observed))));
        }
        let most = logs.iter().map(|(_, log)| *log).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logs.iter().map(|(_, log)| (log - most).exp()).sum();
        let mut of = vec![0.0; rows.len()];
        let mut single = vec![0.0; rows.len()];
        for ((a, b), log) in &logs {
            let p = (log - most).exp() / sum;
            of[*a] += p;
            if a == b {
                single[*a] += p;
            } else {
                of[*b] += p;
            }
        }
        let mut all: Vec<(Cause, f64)> = rows.iter().map(|row| row.cause).zip(of).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let pairs = logs.iter().filter(|((a, b), _)| a != b);
        let pairs = pairs.map(|((a, b), log)| (rows[*a].cause, rows[*b].cause, (log - most).exp() / sum));
        CausePosterior { of: all, one: single.iter().sum(), pairs: pairs.collect() }
    }
}

/// The probability of each cause, active as the only cause or as one of two.
#[derive(Clone, PartialEq, Debug)]
pub struct CausePosterior {
    /// Causes with their probabilities, the most likely first.
    pub of: Vec<(Cause, f64)>,
    /// Probability that exactly one cause is active.
    pub one: f64,
    /// Probability of each pair of active causes.
    pairs: Vec<(Cause, Cause, f64)>,
}

impl CausePosterior {
    pub fn after(found: &[Finding], from: EvidenceSource) -> CausePosterior {
        Likelihood::learnt(from).posterior(&states(found), |_| false)
    }

    /// Returns the beliefs without `causes`; the others are scaled up in proportion.
    #[must_use]
    pub fn without(mut self, causes: &[Cause]) -> CausePosterior {
        let lost: f64 = self.of.iter().filter(|(of, _)| causes.contains(of)).map(|(_, p)| p).sum();
        self.of.retain(|(of, _)| !causes.contains(of));
        let scale = |p: &mut f64| *p = (*p / (1.0 - lost).max(1e-9)).min(1.0);
        self.of.iter_mut().for_each(|(_, p)| scale(p));
        self.pairs.retain(|(a, b, _)| !causes.contains(a) && !causes.contains(b));
        self.pairs.iter_mut().for_each(|(_, _, p)| scale(p));
        self
    }

    /// Returns the probability that `cause` is active and none of `named` is. Added to the probability of any named
    /// cause, the sum is at most one.
    pub(crate) fn instead_of(&self, cause: Cause, named: &[Cause]) -> f64 {
        let beside = |a: &Cause, b: &Cause| *a == cause && named.contains(b);
        let shared = self.pairs.iter().filter(|(a, b, _)| beside(a, b) || beside(b, a));
        let most = 1.0 - named.iter().map(|one| self.in_cause(*one)).fold(0.0, f64::max);
        (self.in_cause(cause) - shared.map(|(_, _, p)| p).sum::<f64>()).clamp(0.0, most.max(0.0))
    }

    /// Returns the most likely cause with its probability.
    pub fn first(&self) -> (Cause, f64) {
        self.of.first().copied().unwrap_or((Cause::Unknown, 0.0))
    }

    /// Returns the probability of one cause.
    pub fn in_cause(&self, cause: Cause) -> f64 {
        self.of.iter().find(|(of, _)| *of == cause).map_or(0.0, |(_, p)| *p)
    }

    /// Returns the probability that the active cause is in the same layer as `cause`.
    pub fn in_layer_of(&self, cause: Cause) -> f64 {
        let layer = row(cause).layer;
        self.of.iter().filter(|(of, _)| row(*of).layer == layer).map(|(_, p)| p).sum::<f64>().min(1.0)
    }
}

/// Returns facts and their states as indices into a table.
pub fn states(found: &[Finding]) -> Vec<(usize, usize)> {
    found.iter().map(|finding| (finding.fact as usize, place(finding.is))).collect()
}

/// Returns the index of a state in [`FactFrequency`].
pub fn place(is: FactState) -> usize {
    match is {
        FactState::Yes => 0,
        FactState::No => 1,
        FactState::Unclear => 2,
    }
}
