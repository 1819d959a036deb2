//! Routing decisions as data: the state of each replica and the cost terms at the time of a decision.
//!
//! The gateway records a share of first attempts and all retries. It does not record every decision, because a record
//! costs an allocation and most decisions are alike.

use plimsoll_policy::cost::{CostTerms, LEVEL, LEVEL_S};
use plimsoll_policy::{PageStanding, ReplicaAvailability};
use serde::{Deserialize, Serialize};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ExplainMode {
    /// Explains none, because no consumer keeps the explanation.
    Never,
    /// Explains a choice that skips a model of higher priority, because operators need the reason for a fallback.
    PassedOver,
    Always,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RouteExplanation {
    pub chosen: String,
    /// Eligible replicas with their state before the request was booked.
    pub candidates: Vec<ExplainedReplica>,
    /// Ineligible replicas with the reason: their standing, or an earlier attempt.
    pub left_out: Vec<ExcludedReplica>,
    /// Prompt length in tokens, estimated from the length of the prompt.
    pub prompt_tokens: u32,
    /// Model that the request is sent to; `None` if the requested name has no fallback list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_of: Option<SelectedModel>,
    /// Retries left in the retry budget.
    pub retries_left: f64,
}

/// The model that a request is sent to, and the skipped models of higher priority.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SelectedModel {
    pub model: String,
    /// Skipped models in order of priority, each with its reason.
    pub passed_over: Vec<SkippedModel>,
}

/// A model of higher priority that the router skipped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SkippedModel {
    pub model: String,
    /// Estimated lateness of the first token in s; `None` if no eligible replica serves the model.
    pub late_s: Option<f64>,
}

/// A replica that was eligible for a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExplainedReplica {
    pub replica: String,
    /// Requests on the replica, including requests of other clients.
    pub requests: u32,
    /// Requests of other clients on the replica, estimated from metrics.
    #[serde(default)]
    pub others: u32,
    /// The replica's scraped metrics; `None` if the gateway has not scraped the replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<PageTerm>,
    pub waiting_tokens: u64,
    pub decoding: u32,
    /// Prompt tokens that the router expects in the replica's prefix cache.
    pub cached: u32,
    /// Cost terms of the replica; `None` if the routing policy does not use seconds.
    pub terms: Option<CostTerms>,
}

/// The age and use of a replica's metrics at the time of a choice.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PageTerm {
    /// Age of the metrics in s.
    pub age_s: f64,
    pub standing: PageStanding,
}

/// A replica that was not eligible for a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExcludedReplica {
    pub replica: String,
    /// Health state of the replica. `None` if the replica is healthy but had no capacity (first attempt) or was
    /// already tried (retry).
    pub standing: Option<ReplicaAvailability>,
}

/// A request and its choices: one line of a run's `explain.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExplainRecord {
    pub request: u64,
    /// Value of the `x-request-id` header.
    pub id: String,
    /// One choice per attempt.
    pub choices: Vec<RouteExplanation>,
}

/// The cost term that favoured the chosen replica over the cheapest alternative.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceReason {
    Alone,
    /// The costs were equal, so the router picked at random.
    Level,
    /// More cached prompt tokens, or faster prefill.
    Prompt,
    /// Fewer waiting prompt tokens.
    Wait,
    /// Fewer decoding streams, or faster decode steps.
    Decoding,
    /// The alternative recently rejected requests.
    Penalty,
    /// Shorter base time to first token, independent of load.
    Base,
    /// The routing policy does not use seconds.
    Rule,
}

impl ChoiceReason {
    /// Returns the reason as text for the terminal.
    pub fn words(self) -> &'static str {
        match self {
            ChoiceReason::Alone => "no other replica was allowed",
            ChoiceReason::Level => "equal cost; chosen at random",
            ChoiceReason::Prompt => "less prompt to compute there, or a faster prefill",
            ChoiceReason::Wait => "less work waited there",
            ChoiceReason::Decoding => "fewer streams decoded there, or it steps faster",
            ChoiceReason::Penalty => "the next one had just rejected requests",
            ChoiceReason::Base => "its first tokens come sooner at any load",
            ChoiceReason::Rule => "the policy of the route, which uses no cost",
        }
    }
}

impl RouteExplanation {
    /// Returns the chosen replica's entry among the candidates.
    pub fn winner(&self) -> Option<&ExplainedReplica> {
        self.candidates.iter().find(|candidate| candidate.replica == self.chosen)
    }

    /// Returns the candidate with the lowest cost among the replicas that were not chosen.
    pub fn next(&self) -> Option<&ExplainedReplica> {
        let cost =
            |candidate: &&ExplainedReplica| candidate.terms.map_or(f64::INFINITY, |terms| terms.cost_s());
        let others = self.candidates.iter().filter(|candidate| candidate.replica != self.chosen);
        others.min_by(|a, b| cost(a).total_cmp(&cost(b)))
    }

    /// Returns the cost term by which the chosen replica beats the cheapest alternative most.
    pub fn because(&self) -> ChoiceReason {
        let (Some(winner), Some(next)) = (self.winner(), self.next()) else { return ChoiceReason::Alone };
        let (Some(own), Some(other)) = (winner.terms, next.terms) else { return ChoiceReason::Rule };
        let least = own.cost_s().min(other.cost_s());
        if own.cost_s().max(other.cost_s()) <= least * (1.0 + LEVEL) + LEVEL_S {
            return ChoiceReason::Level;
        }
        let gains = [
            (other.own_s - own.own_s, ChoiceReason::Prompt),
            (other.wait_s - own.wait_s, ChoiceReason::Wait),
            (other.step_s + other.others_s - own.step_s - own.others_s, ChoiceReason::Decoding),
            (other.penalty_s - own.penalty_s, ChoiceReason::Penalty),
            (other.base_s - own.base_s, ChoiceReason::Base),
        ];
        gains
            .into_iter()
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(ChoiceReason::Level, |(_, because)| because)
    }
}
