//! Requests in a trace: GenAI spans with the tokens that were used.
//!
//! One request may be seen by its client, by a framework and by the server, each in a span with the same tokens: the innermost counts,
//! which is nearest to the server. A span without tokens is no request here. What was sampled away is not in the file; the weights say
//! how much that is.

use std::collections::{HashMap, HashSet};

use plimsoll_model::trace::AttributeValue;
use plimsoll_model::{How, Logged, LoggedRequest, TraceSpan};

use super::hashed;

const PROMPT: [&str; 4] = [
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
];
const OUTPUT: [&str; 4] = [
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
];
const CACHED: [&str; 4] = [
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cached_tokens",
    "llm.token_count.prompt_details.cache_read",
];
const SESSION: [&str; 2] = ["gen_ai.conversation.id", "session.id"];
const MODEL: [&str; 3] = ["gen_ai.request.model", "llm.model_name", "gen_ai.response.model"];

/// Spans, as they come.
#[derive(Debug, Default)]
pub struct Spans {
    /// Requests with their trace, their span, and the span above.
    found: Vec<(u128, u64, LoggedRequest)>,
    /// Every span and what caused it, to know what lies within what.
    parents: Vec<(u128, u64, u64)>,
    /// How many traces one stands for, where that is more than itself. A sampler may say so on one span of a trace alone.
    weights: HashMap<u128, f64>,
    /// Spans that ask a model and say no tokens.
    without: u64,
}

impl Spans {
    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.found.len()
    }

    /// One more span.
    pub fn push(&mut self, span: &TraceSpan) {
        if span.weight > 1.0 {
            let weight = self.weights.entry(span.trace).or_insert(1.0);
            *weight = weight.max(span.weight);
        }
        if let Some(parent) = span.parent {
            self.parents.push((span.trace, span.id, parent));
        }
        let count = |keys: &[&str]| {
            let number = keys.iter().find_map(|key| span.attribute(key).and_then(AttributeValue::number));
            number.filter(|n| *n >= 0.0 && *n < 1e9).map(|n| n as u32)
        };
        let word = |keys: &[&str]| {
            let text = keys.iter().find_map(|key| span.attribute(key).and_then(AttributeValue::text));
            text.filter(|text| !text.is_empty())
        };
        let (prompt, output) = (count(&PROMPT), count(&OUTPUT));
        if prompt.is_none() && output.is_none() {
            self.without += u64::from(span.attribute("gen_ai.request.model").is_some());
            return;
        }
        let mut one = LoggedRequest::new(0, span.start_ns);
        (one.prompt, one.output) = (prompt.filter(|n| *n > 0), output.filter(|n| *n > 0));
        one.cached = count(&CACHED);
        one.session = word(&SESSION).map(hashed);
        one.model = word(&MODEL).map(str::to_owned);
        one.how = if span.failed { How::ServerError } else { How::Finished };
        self.found.push((span.trace, span.id, one));
    }

    /// The requests; `None` = no span says tokens.
    pub fn end(self) -> Option<Logged> {
        if self.found.is_empty() {
            return None;
        }
        let stands_for = self.found.iter().map(|(trace, ..)| self.weights.get(trace).copied().unwrap_or(1.0));
        let kept_share = self.found.len() as f64 / stands_for.sum::<f64>();
        let outer = self.above();
        let (all, mut requests) = (self.found.len(), Vec::new());
        for (trace, id, one) in self.found {
            if !outer.contains(&(trace, id)) {
                requests.push(one);
            }
        }
        let mut left_out = Vec::new();
        let counted = |n: u64| format!("{n} span{}", if n == 1 { "" } else { "s" });
        if all > requests.len() {
            left_out.push(format!(
                "{}: the same request seen from further out",
                counted((all - requests.len()) as u64)
            ));
        }
        if self.without > 0 {
            left_out.push(format!("{}: a model was asked and no tokens are said", counted(self.without)));
        }
        Some(Logged {
            source: "GenAI spans",
            stamp: "the span's start",
            tick_ns: 1,
            block_tokens: 0,
            requests,
            left_out,
            blind: Vec::new(),
            kept_share,
        })
    }

    /// Spans that have a request somewhere below.
    fn above(&self) -> HashSet<(u128, u64)> {
        let mut parents: Vec<&(u128, u64, u64)> = self.parents.iter().collect();
        parents.sort_unstable();
        let parent = |trace: u128, id: u64| {
            let place = parents.binary_search_by(|(t, i, _)| (*t, *i).cmp(&(trace, id))).ok()?;
            Some(parents[place].2)
        };
        let mut outer = HashSet::new();
        for (trace, id, _) in &self.found {
            let mut at = *id;
            while let Some(up) = parent(*trace, at).filter(|up| outer.insert((*trace, *up))) {
                at = up;
            }
        }
        outer
    }
}
