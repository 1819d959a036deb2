//! Facts: some seventy questions to the records, each answered yes, no, unclear, or not at all where the evidence is not there.
//!
//! A fact looks at the run (and the baseline) and at no other fact. It brings the figure that decides it and a sentence with that
//! figure. What facts mean together is for [`crate::belief`]: how often each cause shows each fact is learnt, not argued here. So a
//! limit in these files says when a change is large enough to speak of and what chance is left of it, and nothing about causes.

pub(crate) mod alone;
pub(crate) mod ceiling;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod engine;
pub(crate) mod failures;
pub(crate) mod load;
pub(crate) mod network;
pub(crate) mod noticed;
pub(crate) mod page;
pub(crate) mod pauses;
pub(crate) mod replica_pages;
pub(crate) mod replicas;
pub(crate) mod stages;
pub(crate) mod tokens;
pub(crate) mod window;

pub use crate::fact::{Is, Observed};
use crate::frame::Frames;
use crate::verdict::AskedQuestion;
use plimsoll_measure::findings::Estimate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A fact as it was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Which.
    pub fact: Observed,
    /// Whether it is so.
    #[serde(alias = "state")]
    pub is: Is,
    /// The figure in a sentence part.
    pub says: String,
    /// The figure.
    pub value: Option<Estimate>,
    /// What it had to reach.
    pub limit: Option<f64>,
    /// Share of the streaming, or of the requests, that it touches; `None` = all of them, or nobody knows.
    #[serde(skip)]
    pub touches: Option<f64>,
}

impl Finding {
    /// A fact with its sentence.
    pub fn new(fact: Observed, is: Is, says: String) -> Finding {
        Finding { fact, is, says, value: None, limit: None, touches: None }
    }

    /// With its figure, and what that had to reach.
    pub fn figure(mut self, value: Estimate, limit: f64) -> Finding {
        (self.value, self.limit) = (Some(value), Some(limit));
        self
    }

    /// With the share of the streaming, or of the requests, that it touches.
    pub fn touching(mut self, share: f64) -> Finding {
        self.touches = Some(share);
        self
    }
}

pub(crate) fn yes_if(is: bool) -> Is {
    if is { Is::Yes } else { Is::No }
}

/// Is a ratio that is `sure` to be more than one over its limit? No where it is nearer to one than to the limit, or for sure under it.
pub(crate) fn over(ratio: &Estimate, sure: bool, limit: f64) -> Is {
    match () {
        () if ratio.value >= limit && sure => Is::Yes,
        () if ratio.value < 1.0 + 0.5 * (limit - 1.0) || ratio.upper < limit => Is::No,
        () => Is::Unclear,
    }
}

/// Detectors: each answers one fact or a few that come of one figure.
const DETECTORS: [fn(&Frames<'_>, &mut Vec<Finding>); 13] = [
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
];

/// Everything that the records show; a fact that is not in the list could not be asked.
pub fn observe(frames: &Frames<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    DETECTORS.iter().for_each(|detect| detect(frames, &mut found));
    found.sort_by_key(|finding| finding.fact);
    found
}

/// The states of all facts as one letter each, in the order of [`Observed::ALL`]: `y`, `n`, `u`, and `-` where it could not be asked.
pub fn letters(found: &[Finding]) -> String {
    let letter = |fact: &Observed| match found
        .iter()
        .find(|finding| finding.fact == *fact)
        .map(|finding| finding.is)
    {
        Some(Is::Yes) => 'y',
        Some(Is::No) => 'n',
        Some(Is::Unclear) => 'u',
        None => '-',
    };
    Observed::ALL.iter().map(letter).collect()
}

/// Every fact with what came of it, for the record.
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
