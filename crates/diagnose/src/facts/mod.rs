//! Facts: about seventy checks of the records, each answered yes, no or unclear. A fact without data is left out.
//!
//! A fact reads the run (and the baseline) and no other fact. It provides the decisive figure and a phrase with that
//! figure. The combination of facts belongs to [`crate::belief`], where the frequency of each fact per cause is
//! learnt. A limit in these files therefore states when a change is large and certain enough, and nothing about
//! causes.

pub(crate) mod alone;
pub(crate) mod ceiling;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod engine;
pub(crate) mod failures;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod network;
pub(crate) mod noticed;
pub(crate) mod page;
pub(crate) mod pauses;
pub(crate) mod replica_pages;
pub(crate) mod replicas;
pub(crate) mod stages;
pub(crate) mod tokens;
pub(crate) mod window;

pub use crate::fact::{FactState, Observed};
use crate::frame::Frames;
use crate::verdict::AskedQuestion;
use plimsoll_measure::findings::Estimate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of checking one fact.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Name of the fact that was checked.
    pub fact: Observed,
    /// Whether the fact applies, or is unknown.
    #[serde(alias = "state")]
    pub is: FactState,
    /// The figure as a phrase for reports.
    pub says: String,
    /// The figure with its interval; null without a figure.
    pub value: Option<Estimate>,
    /// Limit that the figure had to reach.
    pub limit: Option<f64>,
    /// Share of the streaming time, or of the requests, that is affected; `None` for all of them or if unknown.
    #[serde(skip)]
    pub touches: Option<f64>,
}

impl Finding {
    /// Returns a fact with its phrase.
    pub fn new(fact: Observed, is: FactState, says: String) -> Finding {
        Finding { fact, is, says, value: None, limit: None, touches: None }
    }

    /// Adds the figure and its limit.
    pub fn figure(mut self, value: Estimate, limit: f64) -> Finding {
        (self.value, self.limit) = (Some(value), Some(limit));
        self
    }

    /// Adds the affected share of the streaming time, or of the requests.
    pub fn touching(mut self, share: f64) -> Finding {
        self.touches = Some(share);
        self
    }
}

pub(crate) fn yes_if(is: bool) -> FactState {
    if is { FactState::Yes } else { FactState::No }
}

/// Returns whether a ratio exceeds its limit. `sure` states that the ratio exceeds one with confidence. The answer is
/// no if the ratio is nearer to one than to the limit, or below the limit with confidence.
pub(crate) fn over(ratio: &Estimate, sure: bool, limit: f64) -> FactState {
    FactState::of(
        ratio.value >= limit && sure,
        ratio.value < 1.0 + 0.5 * (limit - 1.0) || ratio.upper < limit,
    )
}

/// The detectors; each evaluates one fact, or a few that use one figure.
const DETECTORS: [fn(&Frames<'_>, &mut Vec<Finding>); 14] = [
    noticed::find,
    load::find,
    alone::find,
    window::find,
    tokens::find,
    pauses::find,
    clock::find,
    failures::find,
    client::find,
    engine::find,
    replicas::find,
    stages::find,
    network::find,
    // The last, because a counter of the machine replaces what the client infers.
    machine::find,
];

/// Returns all facts of the records; a fact that is not in the list could not be checked.
pub fn observe(frames: &Frames<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    DETECTORS.iter().for_each(|detect| detect(frames, &mut found));
    found.sort_by_key(|finding| finding.fact);
    found
}

/// Returns the states of all facts as one letter each, in the order of [`Observed::ALL`]. The letters are `y`, `n`,
/// `u`, and `-` for a fact that could not be checked.
pub fn letters(found: &[Finding]) -> String {
    let letter = |fact: &Observed| match found
        .iter()
        .find(|finding| finding.fact == *fact)
        .map(|finding| finding.is)
    {
        Some(FactState::Yes) => 'y',
        Some(FactState::No) => 'n',
        Some(FactState::Unclear) => 'u',
        None => '-',
    };
    Observed::ALL.iter().map(letter).collect()
}

/// Returns every fact with its result, for the record.
pub fn asked(found: &[Finding]) -> Vec<AskedQuestion> {
    let of = |fact: &Observed| match found.iter().find(|finding| finding.fact == *fact) {
        Some(finding) => AskedQuestion {
            fact: *fact,
            is: Some(finding.is),
            says: finding.says.clone(),
            value: finding.value,
        },
        None => AskedQuestion { fact: *fact, is: None, says: String::new(), value: None },
    };
    Observed::ALL.iter().map(of).collect()
}
