//! Why a request went where it went: what was known of each replica at that instant, in the terms of its cost.
//!
//! Taken for a share of the requests and for every second try: it costs an allocation, and a decision that is like a thousand others explains nothing more.

use plimsoll_policy::cost::{CostTerms, LEVEL, LEVEL_S};
use plimsoll_policy::{PageStanding, Standing};
use serde::{Deserialize, Serialize};

/// Which choices are told.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Explains {
    /// None: nobody would keep it.
    Never,
    /// One that passes over a model that was meant to come first: that is what is asked about.
    PassedOver,
    Always,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// The replica that got it.
    pub chosen: String,
    /// Those that might have, as they were before it was booked.
    pub candidates: Vec<ExplainedReplica>,
    /// Those that might not, and why: how they stood, or that it had been there.
    pub left_out: Vec<LeftOut>,
    /// Prompt tokens, by the prompt's length.
    pub prompt_tokens: u32,
    /// Of which model it is asked, where its own stands for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_of: Option<AskedOf>,
    /// Retries that the budget held.
    pub retries_left: f64,
}

/// The model that a request is asked of, and those that would have come before it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AskedOf {
    pub model: String,
    /// Those before it, and why they were passed over.
    pub passed_over: Vec<PassedOver>,
}

/// A model that was passed over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PassedOver {
    pub model: String,
    /// By how much its first token would have been late, s; none: no replica that serves it might get the request.
    pub late_s: Option<f64>,
}

/// A replica that might have got it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExplainedReplica {
    pub replica: String,
    /// Requests on it, those of others too.
    pub requests: u32,
    /// Requests that others were taken to have there, as far as pages said it.
    #[serde(default)]
    pub others: u32,
    /// Its own page; none = it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<PageTerm>,
    pub waiting_tokens: u64,
    pub decoding: u32,
    /// Prompt tokens that it was taken to have cached.
    pub cached: u32,
    /// What it would have cost; none where the route weighs no seconds.
    pub terms: Option<CostTerms>,
}

/// A replica's page, when a choice was made.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PageTerm {
    /// How old it was, s.
    pub age_s: f64,
    pub standing: PageStanding,
}

/// A replica that might not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub replica: String,
    /// How it stood; none: it answers, and had no room (at a request's first choice) or had been tried (at a further one).
    pub standing: Option<Standing>,
}

/// A request and its choices: a line of a run's `explain.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Explained {
    pub request: u64,
    /// Its `x-request-id`.
    pub id: String,
    /// One for each time it was sent.
    pub choices: Vec<Choice>,
}

/// What decided for the chosen replica, against the cheapest of the others.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    Alone,
    /// Others cost as much: chance.
    Level,
    /// It had more of the prompt cached, or computes prompts faster.
    Prompt,
    /// Fewer prompts waited there.
    Wait,
    /// Fewer streams decoded there, or it steps faster.
    Decoding,
    /// The other had refused requests a moment ago.
    Penalty,
    /// Its answers begin sooner whatever is there.
    Base,
    /// The route weighs no seconds.
    Rule,
}

impl Because {
    /// On the screen.
    pub fn words(self) -> &'static str {
        match self {
            Because::Alone => "nobody else might get it",
            Because::Level => "others cost as much; chance decided",
            Because::Prompt => "less of the prompt was to be computed there, or faster",
            Because::Wait => "less waited there",
            Because::Decoding => "fewer streams decoded there, or it steps faster",
            Because::Penalty => "the next one had refused requests a moment ago",
            Because::Base => "its first tokens come sooner whatever is there",
            Because::Rule => "the route's rule; it weighs no seconds",
        }
    }
}

impl Choice {
    /// The chosen one.
    pub fn winner(&self) -> Option<&ExplainedReplica> {
        self.candidates.iter().find(|candidate| candidate.replica == self.chosen)
    }

    /// The cheapest of the others.
    pub fn next(&self) -> Option<&ExplainedReplica> {
        let cost =
            |candidate: &&ExplainedReplica| candidate.terms.map_or(f64::INFINITY, |terms| terms.cost_s());
        let others = self.candidates.iter().filter(|candidate| candidate.replica != self.chosen);
        others.min_by(|a, b| cost(a).total_cmp(&cost(b)))
    }

    /// What decided: the term by which the chosen one was cheapest against the next.
    pub fn because(&self) -> Because {
        let (Some(winner), Some(next)) = (self.winner(), self.next()) else { return Because::Alone };
        let (Some(own), Some(other)) = (winner.terms, next.terms) else { return Because::Rule };
        let least = own.cost_s().min(other.cost_s());
        if own.cost_s().max(other.cost_s()) <= least * (1.0 + LEVEL) + LEVEL_S {
            return Because::Level;
        }
        let gains = [
            (other.own_s - own.own_s, Because::Prompt),
            (other.wait_s - own.wait_s, Because::Wait),
            (other.step_s + other.others_s - own.step_s - own.others_s, Because::Decoding),
            (other.penalty_s - own.penalty_s, Because::Penalty),
            (other.base_s - own.base_s, Because::Base),
        ];
        gains.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(Because::Level, |(_, because)| because)
    }
}
