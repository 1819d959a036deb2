//! Extracts requests from a trace: GenAI spans with token usage, and the order in which an agent made them.
//!
//! The client, a framework and the server may each have a span of one request, with equal tokens. The innermost span counts,
//! because it is nearest to the server. A span without tokens is not a request here. The file lacks requests that sampling removed;
//! the weights state how many.
//!
//! A trace in which one request followed another belongs to an agent. Each trace is then a session, whose turns wait for
//! each other as the spans show ([`super::order`]). The later turn waits for the time between the two, including tools.

use std::collections::{HashMap, HashSet};

use plimsoll_model::trace::AttributeValue;
use plimsoll_model::{How, LoggedRequest, LoggedTurn, RequestLog, TraceSpan};

use super::order::{Within, order};
use super::{BLOCK_BYTES, UNREAD_PROMPTS, blocks, hashed, messages};

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
/// Keys under which instrumentations record a prompt: as JSON, or (with `.0.`, `.1.`, … in them) message by message.
const MESSAGES: [&str; 3] = ["gen_ai.system_instructions", "gen_ai.input.messages", "llm.prompts"];
const MESSAGE_BY_MESSAGE: [(&str, &str); 2] =
    [("gen_ai.prompt.", ".content"), ("llm.input_messages.", ".message.content")];
const MODEL: [&str; 3] = ["gen_ai.request.model", "llm.model_name", "gen_ai.response.model"];

/// The spans of a trace file, added one by one.
#[derive(Debug, Default)]
pub struct Spans {
    /// Key of the block hashes; `None` if prompts are not hashed.
    key: Option<u64>,
    /// Requests with their trace and their span.
    found: Vec<(u128, u64, LoggedRequest)>,
    /// Every span, for the nesting and the order in time.
    all: Vec<SpanSummary>,
    /// Number of traces that one trace represents, if above one. A sampler may record it on a single span of a trace.
    weights: HashMap<u128, f64>,
    /// Number of model spans without tokens.
    without: u64,
    /// Number of agent spans with the total tokens of all their calls.
    sums: u64,
    /// Number of requests with an unread prompt; then bytes and tokens of hashed prompts.
    unread: u64,
    hashed: (u64, u64),
}

/// The kept facts of a span.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SpanSummary {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    start_ns: i64,
    end_ns: i64,
    is_agent: bool,
}

impl Spans {
    /// Creates an empty collection. With `key`, it hashes prompts under this key.
    pub fn new(key: Option<u64>) -> Spans {
        Spans { key, ..Spans::default() }
    }

    pub fn requests(&self) -> usize {
        self.found.len()
    }

    /// Adds one span of a trace.
    pub fn push(&mut self, span: &TraceSpan) {
        if span.weight > 1.0 {
            let weight = self.weights.entry(span.trace).or_insert(1.0);
            *weight = weight.max(span.weight);
        }
        let is = |key: &str, what: &[&str]| {
            let said = span.attribute(key).and_then(AttributeValue::text);
            said.is_some_and(|said| what.iter().any(|what| said.eq_ignore_ascii_case(what)))
        };
        let is_agent = is("gen_ai.operation.name", &["invoke_agent"])
            || is("openinference.span.kind", &["agent"])
            || is("traceloop.span.kind", &["agent"]);
        let (trace, id, parent) = (span.trace, span.id, span.parent);
        self.all.push(SpanSummary {
            trace,
            id,
            parent,
            start_ns: span.start_ns,
            end_ns: span.end_ns,
            is_agent,
        });
        let count = |keys: &[&str]| {
            let number = keys.iter().find_map(|key| span.attribute(key).and_then(AttributeValue::number));
            number.filter(|n| *n >= 0.0 && *n < 1e9).map(|n| n as u32)
        };
        let (prompt, output) = (count(&PROMPT), count(&OUTPUT));
        // The tokens of an agent are the sum of its calls, which have separate spans.
        if is_agent || is("gen_ai.operation.name", &["execute_tool", "create_agent", "invoke_workflow"]) {
            self.sums += u64::from(prompt.is_some() || output.is_some());
            return;
        }
        if prompt.is_none() && output.is_none() {
            self.without += u64::from(span.attribute("gen_ai.request.model").is_some());
            return;
        }
        let word = |keys: &[&str]| {
            let text = keys.iter().find_map(|key| span.attribute(key).and_then(AttributeValue::text));
            text.filter(|text| !text.is_empty())
        };
        let mut one = LoggedRequest::new(0, span.start_ns);
        (one.prompt, one.output) = (prompt.filter(|n| *n > 0), output.filter(|n| *n > 0));
        one.cached = count(&CACHED);
        one.session = word(&SESSION).map(hashed);
        one.model = word(&MODEL).map(str::to_owned);
        one.how = if span.failed { How::ServerError } else { How::Finished };
        self.prompt(&mut one, span);
        self.found.push((trace, id, one));
    }

    /// Converts a prompt's text into block hashes, or counts it as unread.
    fn prompt(&mut self, one: &mut LoggedRequest, span: &TraceSpan) {
        let Some(key) = self.key else {
            self.unread += u64::from(MESSAGES.iter().any(|key| span.attribute(key).is_some()));
            return;
        };
        let texts = texts(span);
        one.blocks = blocks(&texts.iter().map(String::as_str).collect::<Vec<&str>>(), key);
        if let (Some(tokens), false) = (one.prompt, texts.is_empty()) {
            self.hashed.0 += texts.iter().map(|text| text.len() as u64).sum::<u64>();
            self.hashed.1 += u64::from(tokens);
        }
    }

    /// Returns the requests; `None` if no span has tokens.
    pub fn end(mut self) -> Option<RequestLog> {
        if self.found.is_empty() {
            return None;
        }
        let stands_for = self.found.iter().map(|(trace, ..)| self.weights.get(trace).copied().unwrap_or(1.0));
        let kept_share = self.found.len() as f64 / stands_for.sum::<f64>();
        self.all.sort_unstable();
        let outer = self.above();
        let (all, mut met) = (self.found.len(), HashSet::new());
        self.found.retain(|(trace, id, _)| !outer.contains(&(*trace, *id)) && met.insert((*trace, *id)));
        let is_agents = self.put_in_order();
        let (found, hashed) = (self.found, self.hashed);
        let requests: Vec<LoggedRequest> = found.into_iter().map(|(.., one)| one).collect();
        let mut left_out = Vec::new();
        let counted = |n: u64| format!("{n} span{}", if n == 1 { "" } else { "s" });
        if all > requests.len() {
            left_out.push(format!(
                "{}: the same request seen from further out",
                counted((all - requests.len()) as u64)
            ));
        }
        if self.without > 0 {
            left_out.push(format!("{}: a model call without token counts", counted(self.without)));
        }
        if self.sums > 0 {
            left_out.push(format!("{}: the tokens of an agent's calls together", counted(self.sums)));
        }
        let mut blind = Vec::new();
        if self.unread > 0 {
            blind.push(UNREAD_PROMPTS);
        }
        let block_tokens = match hashed {
            (0, _) => 0,
            // Number of tokens that the server counts in a block.
            (bytes, tokens) => (tokens * BLOCK_BYTES as u64 / bytes).clamp(1, 4096) as u32,
        };
        Some(RequestLog {
            source: if is_agents { "agents' spans" } else { "GenAI spans" },
            stamp: "the span's start",
            tick_ns: 1,
            block_tokens,
            requests,
            left_out,
            blind,
            kept_share,
            is_relative: false,
            counts_only: None,
        })
    }

    /// Returns the spans with a request anywhere below.
    fn above(&self) -> HashSet<(u128, u64)> {
        let parent = |trace: u128, id: u64| {
            let place = self.all.binary_search_by(|seen| (seen.trace, seen.id).cmp(&(trace, id))).ok()?;
            self.all[place].parent
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

    /// Makes each trace with consecutive requests a session; returns whether there are any.
    fn put_in_order(&mut self) -> bool {
        let mut of_trace: HashMap<u128, HashMap<u64, usize>> = HashMap::new();
        for (place, (trace, id, _)) in self.found.iter().enumerate() {
            of_trace.entry(*trace).or_default().insert(*id, place);
        }
        let mut turns: Vec<Option<LoggedTurn>> = vec![None; self.found.len()];
        for spans in self.all.chunk_by(|a, b| a.trace == b.trace) {
            let Some(requests) = spans.first().and_then(|first| of_trace.get(&first.trace)) else { continue };
            for (place, turn) in turns_of(spans, requests) {
                turns[place] = Some(turn);
            }
        }
        let any = turns.iter().flatten().any(|turn| !turn.after.is_empty());
        if !any {
            return false;
        }
        let says_cached: HashSet<u128> =
            self.found.iter().filter(|(.., one)| one.cached.is_some()).map(|(trace, ..)| *trace).collect();
        for ((trace, _, one), turn) in self.found.iter_mut().zip(turns) {
            (one.session, one.turn) = (Some((*trace >> 64) as u64 ^ *trace as u64), turn);
            // A source that reports cached tokens omits them when there are none.
            if one.cached.is_none() && says_cached.contains(trace) {
                one.cached = Some(0);
            }
        }
        true
    }
}

/// Returns the turns of one trace. `spans`: its spans in order of their ids. `requests`: the request spans, and their indices.
fn turns_of(spans: &[SpanSummary], requests: &HashMap<u64, usize>) -> Vec<(usize, LoggedTurn)> {
    let place_of = |id: u64| spans.partition_point(|seen| seen.id < id);
    let known = |id: u64| Some(place_of(id)).filter(|at| spans.get(*at).is_some_and(|seen| seen.id == id));
    let first = |at: usize| at == 0 || spans[at - 1].id != spans[at].id;
    let within = |(at, seen): (usize, &SpanSummary)| Within {
        parent: seen.parent.and_then(known),
        start_ns: seen.start_ns,
        end_ns: seen.end_ns,
        is_request: requests.contains_key(&seen.id) && first(at),
    };
    let tree: Vec<Within> = spans.iter().enumerate().map(within).collect();
    let after = order(&tree);
    let agent = |at: usize| {
        let up = std::iter::successors(tree[at].parent, |up| tree[*up].parent).take(spans.len());
        up.into_iter().find(|up| spans[*up].is_agent).map(|up| spans[up].id)
    };
    let is_request = (0..spans.len()).filter(|at| tree[*at].is_request);
    let turn = |at: usize| {
        let seen = &spans[at];
        let turn = LoggedTurn {
            id: seen.id,
            after: after[at].iter().map(|of| spans[*of].id).collect(),
            agent: agent(at),
            took_ns: seen.end_ns.saturating_sub(seen.start_ns).max(0),
        };
        (requests[&seen.id], turn)
    };
    is_request.map(turn).collect()
}

/// Returns the texts of a prompt, in order.
fn texts(span: &TraceSpan) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for key in MESSAGES {
        let Some(text) = span.attribute(key).and_then(AttributeValue::text) else { continue };
        messages(text, &mut all);
    }
    for (from, to) in MESSAGE_BY_MESSAGE {
        let mut numbered: Vec<(u32, &str)> = Vec::new();
        for (key, value) in &span.attributes {
            let number = key.strip_prefix(from).and_then(|rest| rest.strip_suffix(to)?.parse().ok());
            numbered.extend(number.zip(value.text()));
        }
        numbered.sort_unstable();
        all.extend(numbered.into_iter().map(|(_, text)| text.to_owned()));
    }
    all
}
