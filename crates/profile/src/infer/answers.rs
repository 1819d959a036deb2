//! Unstreamed responses, as of models that do not generate: the mean stage times from the server's metrics.
//!
//! Without a first token, single requests can't be split. Some servers count the time in each of their stages
//! (Triton: queue, input, compute, output). They export the exact means over the requests that ended between two
//! scrapes. The client knows these requests by name. Their measured time beyond the server's is the network and
//! uncounted server time.

use plimsoll_model::Attempt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::told::{ReportedMean, ReportedStages};
use plimsoll_measure::columns::Fate;

/// Minimum number of requests for a mean.
const FEWEST: usize = 20;
/// Maximum relative difference between the server's and this run's number of requests.
const STRANGERS: f64 = 0.05;

/// One stage of a mean request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AnswerPart")]
pub struct MeanStage {
    /// Name of the stage.
    pub name: String,
    /// Set if the server reports the stage; else the client measured it.
    pub reported: bool,
    /// Mean time in s. The remainder may be negative if the two clocks disagree.
    pub mean_s: f64,
    /// Share of the mean request, 0 to 1.
    pub share: f64,
}

/// The stages of a mean unstreamed request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WholeAnswers {
    /// Number of requests behind the means.
    pub requests: u64,
    /// Mean time from due to the last byte in s.
    pub mean_s: f64,
    /// Stages in order; they add up to the mean.
    pub parts: Vec<MeanStage>,
    pub notes: Vec<String>,
}

/// Returns the stages of a level's mean request. Returns `None` if too few responses were unstreamed, or if the
/// server exports no stage times.
pub(super) fn of(attempts: &[&Attempt], told: &ReportedStages) -> Option<WholeAnswers> {
    let stages: Vec<(&str, ReportedMean)> = [
        ("queue", told.queue),
        ("input (pre-process)", told.input),
        ("compute", told.inference),
        ("output (post-process)", told.output),
    ]
    .into_iter()
    .filter_map(|(name, told)| Some((name, told?)))
    .collect();
    let window = stages.first()?.1;
    let rows: Vec<(i64, i64, i64)> = attempts
        .iter()
        .filter(|attempt| Fate::of(attempt).ended_well())
        .filter_map(|attempt| Some((attempt.due.0, attempt.sent?.0, attempt.end?.0)))
        .filter(|(_, _, end)| *end > window.from.0 && *end <= window.to.0)
        .collect();
    if rows.len() < FEWEST {
        return None;
    }
    let mean = |of: &dyn Fn(&(i64, i64, i64)) -> i64| {
        rows.iter().map(|row| of(row) as f64).sum::<f64>() / rows.len() as f64 / 1e9
    };
    let (whole, before) = (mean(&|row| row.2 - row.0), mean(&|row| row.1 - row.0.min(row.1)));
    let mut parts = vec![("before it was sent", false, before)];
    parts.extend(stages.iter().map(|(name, told)| (*name, true, told.mean_ns / 1e9)));
    let rest = whole - parts.iter().map(|(_, _, s)| s).sum::<f64>();
    parts.push(("network, and time the server does not report", false, rest));
    let part = |(name, reported, mean_s): (&str, bool, f64)| MeanStage {
        name: name.to_owned(),
        reported,
        mean_s,
        share: if whole > 0.0 { mean_s / whole } else { 0.0 },
    };
    let mut notes = Vec::new();
    if (window.count - rows.len() as f64).abs() > STRANGERS * rows.len() as f64 {
        notes.push(format!(
            "the server counts {:.0} requests and this run has {}: the server's means include other clients",
            window.count,
            rows.len()
        ));
    }
    notes.push("answers that come whole have no first token: only means can be separated".to_owned());
    Some(WholeAnswers {
        requests: rows.len() as u64,
        mean_s: whole,
        parts: parts.into_iter().map(part).collect(),
        notes,
    })
}
