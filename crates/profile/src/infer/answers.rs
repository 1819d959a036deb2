//! Requests that were answered whole, as models that do not generate answer: what the server's page says of its stages, as means.
//!
//! Without a first token nothing can be told apart per request. A server that counts the time in each of its stages (Triton: queue, input,
//! compute, output) tells their means exactly, over the requests that ended between two looks at its page; those the client knows by name,
//! and what it measured of them beyond the server's own time is the network and what the server does not tell.

use plimsoll_model::Attempt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::told::{ReportedMean, ToldStages};
use plimsoll_measure::columns::Fate;

/// Fewest requests that a mean is shown of.
const FEWEST: usize = 20;
/// Share by which the server may count more requests, or other ones, than this run has.
const STRANGERS: f64 = 0.05;

/// One stage of a mean request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AnswerPart {
    /// What it is called.
    pub name: String,
    /// Did the server tell it (else the client measured it)?
    pub reported: bool,
    /// Its mean, s. What remains may be under nothing where the two clocks disagree.
    pub mean_s: f64,
    /// Of the mean request, 0 to 1.
    pub share: f64,
}

/// Where a mean request that was answered whole spent its time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WholeAnswers {
    /// Requests whose means these are.
    pub requests: u64,
    /// From due to the last byte: mean, s.
    pub mean_s: f64,
    /// Its parts, in order; they add up to it.
    pub parts: Vec<AnswerPart>,
    /// What to know of them.
    pub notes: Vec<String>,
}

/// The parts of a level's mean request. `None` = too few were answered whole, or the server tells nothing of them.
pub(super) fn of(attempts: &[&Attempt], told: &ToldStages) -> Option<WholeAnswers> {
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
    parts.push(("network, and what the server does not tell", false, rest));
    let part = |(name, reported, mean_s): (&str, bool, f64)| AnswerPart {
        name: name.to_owned(),
        reported,
        mean_s,
        share: if whole > 0.0 { mean_s / whole } else { 0.0 },
    };
    let mut notes = Vec::new();
    if (window.count - rows.len() as f64).abs() > STRANGERS * rows.len() as f64 {
        notes.push(format!(
            "the server counts {:.0} requests where this run has {}: its means are of others too",
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
