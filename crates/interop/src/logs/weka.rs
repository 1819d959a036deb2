//! Parses sessions of coding agents, one per line, in the format of kv-cache-tester and of WEKA's traces (`requests`, `hash_ids`,
//! `block_size`; `docs/trace_replay_tester.md` in callanjfox/kv-cache-tester).
//!
//! A request has its start (`t`, s from the session's start), its duration (`api_time`) and the ids of its prompt's blocks. A
//! sub-agent is an entry with its own requests. The order follows from these as from spans ([`super::order`]). A request without a
//! duration took no time: the wait of the next request is then the whole gap.

use plimsoll_model::{LoggedRequest, LoggedTurn};

use super::order::{Within, order};
use super::{Line, hashed, tokens, word};
use crate::results::json::Json;

/// Limit of nested sub-agents: the deepest nesting of a document.
const DEEPEST: usize = 64;

pub(super) fn line(at: u64, root: &Json<'_>, block_tokens: &mut u32) -> Line {
    let Some(name) = word(root.get("id")) else { return Line::Unread("id, of the session") };
    let Some(size) = root.get("block_size").count().filter(|size| *size > 0) else {
        return Line::Unread("block_size above 0");
    };
    if *block_tokens != 0 && *block_tokens != size {
        return Line::Unread("one block_size throughout");
    }
    *block_tokens = size;
    let mut session = Session {
        line: at,
        number: hashed(name),
        scope: match word(root.get("hash_id_scope")) {
            Some("global") => Scope::Everywhere,
            Some(_) => Scope::Session,
            None => Scope::Agent,
        },
        spans: Vec::new(),
        requests: Vec::new(),
    };
    match session.entries(root.get("requests"), None, 0) {
        Ok(()) => Line::Session(session.in_order()),
        Err(expected) => Line::Unread(expected),
    }
}

/// The scope in which equal block ids mean equal blocks.
#[derive(Copy, Clone)]
enum Scope {
    Everywhere,
    Session,
    /// Each agent separately; the default of files that do not set it.
    Agent,
}

struct Session {
    line: u64,
    number: u64,
    scope: Scope,
    /// Requests and sub-agents with their nesting.
    spans: Vec<Within>,
    /// Each request, its span and its agent's span.
    requests: Vec<(LoggedRequest, usize, Option<usize>)>,
}

impl Session {
    fn entries(&mut self, all: &Json<'_>, agent: Option<usize>, depth: usize) -> Result<(), &'static str> {
        if depth > DEEPEST {
            return Err("sub-agents less deep within each other");
        }
        let said = |entry: &Json<'_>| entry.get("t").seconds_ns().ok_or("t, in seconds, of each request");
        // Times of a sub-agent count from its start, but in some files from the session's: then none is before the sub-agent.
        let begin_ns = agent.map_or(0, |agent| self.spans[agent].start_ns);
        let first_ns = all.items().first().map(said).transpose()?.unwrap_or(0);
        let scope = match self.scope {
            Scope::Everywhere => 0,
            Scope::Session => self.number,
            Scope::Agent => mixed(self.number, agent.map_or(0, |agent| agent as u64 + 1)),
        };
        let offset_ns = if first_ns < begin_ns { begin_ns } else { 0 };
        for entry in all.items() {
            let start_ns = said(entry)?.saturating_add(offset_ns);
            let span = Within { parent: agent, start_ns, end_ns: start_ns, is_request: false };
            let place = self.spans.len();
            if word(entry.get("type")) == Some("subagent") {
                let took = entry.get("duration_ms").finite().map_or(0.0, |ms| ms.clamp(0.0, 1e12) * 1e6);
                self.spans.push(Within { end_ns: start_ns.saturating_add(took as i64), ..span });
                self.entries(entry.get("requests"), Some(place), depth + 1)?;
                continue;
            }
            let took = entry.get("api_time").seconds_ns().filter(|ns| *ns >= 0).unwrap_or(0);
            self.spans.push(Within { end_ns: start_ns.saturating_add(took), is_request: true, ..span });
            let mut one = LoggedRequest::new(self.line, start_ns);
            one.prompt = tokens(entry.get("in"));
            one.output = tokens(entry.get("out"));
            one.model = word(entry.get("model")).map(str::to_owned);
            let ids = entry.get("hash_ids").items().iter();
            one.blocks = ids.filter_map(Json::int).map(|id| mixed(scope, id.cast_unsigned())).collect();
            self.requests.push((one, place, agent));
        }
        Ok(())
    }

    fn in_order(self) -> Vec<LoggedRequest> {
        let after = order(&self.spans);
        let of = |(mut one, place, agent): (LoggedRequest, usize, Option<usize>)| {
            one.session = Some(self.number);
            one.turn = Some(LoggedTurn {
                id: place as u64,
                after: after[place].iter().map(|of| *of as u64).collect(),
                agent: Some(agent.map_or(u64::MAX, |agent| agent as u64)),
                took_ns: self.spans[place].end_ns - self.spans[place].start_ns,
            });
            one
        };
        self.requests.into_iter().map(of).collect()
    }
}

/// Returns the hash of a block from its id within the session. The steps are MurmurHash3's finaliser.
fn mixed(scope: u64, id: u64) -> u64 {
    let mut x = id ^ scope;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}
