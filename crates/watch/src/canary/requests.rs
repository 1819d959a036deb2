//! Requests → counts of each replica of both sides by minute, from a gateway's own traffic.
//!
//! A replica is evaluated on each attempt sent to it, from the send time. Time in the gateway's queue is common to
//! all replicas, and a failed attempt counts for the replica where it failed.

use std::collections::HashMap;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::{Buckets, Signal};
use plimsoll_model::{Arm, At, Attempt, How, Span};

use super::finding::CanaryFinding;
use super::judge::CanarySpec;
use super::trial::{CanaryTrial, MinuteSource, ReplicaMinuteCounts};

/// Lowest edge in s, ratio between neighbouring edges, and number of edges; the highest is 2 h.
const FIRST_EDGE_S: f64 = 1e-4;
const RATIO: f64 = 1.02;
const EDGES: i32 = 914;

/// The two sides of a fleet, by their requests.
#[derive(Clone, Debug)]
pub struct RequestsTrial {
    arms: HashMap<String, Arm>,
    edges: Vec<f64>,
    minute: HashMap<String, ReplicaMinuteCounts>,
    trial: CanaryTrial,
}

impl RequestsTrial {
    /// Returns an analysis without data. `arms` is the side of each replica by name.
    pub fn new(spec: CanarySpec, budget: Option<BudgetFile>, arms: HashMap<String, Arm>) -> RequestsTrial {
        RequestsTrial {
            arms,
            edges: (0..EDGES).map(|n| FIRST_EDGE_S * RATIO.powi(n)).collect(),
            minute: HashMap::new(),
            trial: CanaryTrial::new(spec, budget, MinuteSource::Requests),
        }
    }

    pub fn take(&mut self, row: &Attempt) {
        let Some(name) = row.answer.replica.as_ref().filter(|name| self.arms.contains_key(*name)) else {
            return;
        };
        let arm = self.arms[name];
        if row.outcome.how != How::Cancelled {
            self.trial.request(arm, row.outcome.how != How::Finished);
        }
        let one = seen(&mut self.minute, name, arm);
        match row.outcome.how {
            How::Finished => {}
            // The client disconnected, so the outcome is unknown.
            How::Cancelled => return,
            _ => {
                *one.failed.get_or_insert(0) += 1;
                return;
            }
        }
        *one.finished.get_or_insert(0) += 1;
        one.prompt_tokens += f64::from(row.answer.tokens.prompt.unwrap_or(row.asked_prompt));
        let Some(sent) = row.sent else { return };
        let since = |at: Option<At>| at.map(|at| at - sent);
        let tokens = row.answer.tokens.streamed(&row.events).filter(|tokens| *tokens > 1);
        let decode = row.last_token.zip(row.first_token).map(|(last, first)| last - first);
        let tpot = decode.zip(tokens).map(|(took, tokens)| Span(took.0 / i64::from(tokens - 1)));
        for (signal, took) in
            [(Signal::Ttft, since(row.first_token)), (Signal::Tpot, tpot), (Signal::E2e, since(row.end))]
        {
            let Some(took) = took.map(Span::as_secs_f64) else { continue };
            let buckets = one.latencies.entry(signal).or_insert_with(|| empty(&self.edges));
            let place = buckets.edges.partition_point(|edge| *edge < took);
            buckets.counts[place] += 1.0;
        }
    }

    /// Evaluates the minute if it is complete, and returns whether it was. `up` lists the replicas that respond, with
    /// or without requests.
    pub fn tick<'a>(&mut self, now: At, up: impl IntoIterator<Item = &'a str>) -> bool {
        let Some(span) = self.trial.due(now) else { return false };
        for name in up {
            if let Some(arm) = self.arms.get(name) {
                let one = seen(&mut self.minute, name, *arm);
                one.finished.get_or_insert(0);
                one.failed.get_or_insert(0);
            }
        }
        self.trial.minute(self.minute.drain().map(|(_, one)| one).collect(), span);
        true
    }

    pub fn share_changed(&mut self) {
        self.trial.share_changed();
    }

    pub fn finding(&self, now: At) -> CanaryFinding {
        self.trial.finding(now)
    }
}

fn seen<'a>(
    minute: &'a mut HashMap<String, ReplicaMinuteCounts>,
    name: &str,
    arm: Arm,
) -> &'a mut ReplicaMinuteCounts {
    let fresh = || ReplicaMinuteCounts { name: name.to_owned(), arm, ..ReplicaMinuteCounts::default() };
    minute.entry(name.to_owned()).or_insert_with(fresh)
}

fn empty(edges: &[f64]) -> Buckets {
    Buckets {
        counts: vec![0.0; edges.len() + 1],
        edges: edges.to_vec(),
        sum: None,
        count: None,
        bounds: [None, None],
        resets: 0,
        from: At::ZERO,
        to: At::ZERO,
    }
}
