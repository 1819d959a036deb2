//! Agents' calls in a trace: spans of a schedule that is known come back with the order that it had.

use std::collections::HashMap;

use plimsoll_interop::logs::spans::Spans;
use plimsoll_model::trace::AttributeValue;
use plimsoll_model::{LoggedRequest, RequestLog, TraceSpan};
use proptest::prelude::*;

/// The predecessors and the duration of a call in its schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Call {
    after: Vec<u64>,
    start_ns: i64,
    took_ns: i64,
    agent: u64,
}

/// Agents that work in a trace, span by span.
struct Work {
    dice: Vec<u32>,
    thrown: usize,
    trace: u128,
    spans: Vec<TraceSpan>,
    calls: HashMap<u64, Call>,
}

impl Work {
    fn below(&mut self, n: u32) -> u32 {
        self.thrown += 1;
        self.dice[self.thrown % self.dice.len()].wrapping_mul(self.thrown as u32 * 2 + 1).rotate_left(7) % n
    }

    fn span(&mut self, parent: Option<u64>, operation: &str, (start_ns, end_ns): (i64, i64)) -> u64 {
        // Ids do not depend on the order.
        let id = (self.spans.len() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut span = TraceSpan { trace: self.trace, id, parent, start_ns, end_ns, ..TraceSpan::blank() };
        if !operation.is_empty() {
            let operation = AttributeValue::Text(operation.to_owned());
            span.attributes.push(("gen_ai.operation.name".to_owned(), operation));
        }
        self.spans.push(span);
        id
    }

    fn tokens(&mut self, prompt: i64, output: i64) {
        let span = self.spans.last_mut().expect("a span");
        span.attributes.push(("gen_ai.usage.input_tokens".into(), AttributeValue::Int(prompt)));
        span.attributes.push(("gen_ai.usage.output_tokens".into(), AttributeValue::Int(output)));
    }

    /// An agent's work from `at` on: calls, and between two of them tools that begin together, some of them agents. Its end, and its last call.
    fn agent(&mut self, parent: Option<u64>, at: i64, mut after: Vec<u64>, depth: u32) -> (i64, u64) {
        let place = self.spans.len();
        let agent = self.span(parent, "invoke_agent", (at, at));
        self.tokens(9_999, 999);
        let (mut now, calls) = (at, 1 + self.below(3));
        let mut last = 0;
        for call in 0..calls {
            now += i64::from(self.below(500));
            let took_ns = 1_000 + i64::from(self.below(1_000_000));
            // A step of a framework around every second call changes nothing.
            let step = (call % 2 == 1).then(|| self.span(Some(agent), "", (now, now + took_ns)));
            let chat = self.span(step.or(Some(agent)), "chat", (now, now + took_ns));
            self.tokens(100, 10);
            // The client library's own span of the call, from within.
            let inner = self.span(Some(chat), "", (now + 1, now + took_ns - 1));
            self.tokens(100, 10);
            self.calls.insert(inner, Call { after, start_ns: now + 1, took_ns: took_ns - 2, agent });
            (last, after, now) = (inner, vec![inner], now + took_ns);
            if call + 1 == calls {
                break;
            }
            let (mut lasts, mut end) = (Vec::new(), now);
            for tool in 0..self.below(4) {
                let from = now + 1 + i64::from(tool);
                let place = self.spans.len();
                let id = self.span(Some(agent), "execute_tool", (from, from));
                let until = match depth < 3 && self.below(2) == 0 {
                    false => from + i64::from(self.below(3_000_000)),
                    true => {
                        let (until, of) = self.agent(Some(id), from, after.clone(), depth + 1);
                        lasts.push(of);
                        until
                    }
                };
                self.spans[place].end_ns = until;
                end = end.max(until);
            }
            now = end;
            if !lasts.is_empty() {
                after = lasts;
            }
        }
        self.spans[place].end_ns = now;
        (now, last)
    }
}

fn read(spans: &[TraceSpan], key: Option<u64>) -> RequestLog {
    let mut read = Spans::new(key);
    spans.iter().for_each(|span| read.push(span));
    read.end().expect("requests")
}

fn turn_of(one: &LoggedRequest) -> (u64, Call) {
    let turn = one.turn.clone().expect("a turn");
    let mut after = turn.after;
    after.sort_unstable();
    let agent = turn.agent.expect("an agent");
    (turn.id, Call { after, start_ns: one.at_ns, took_ns: turn.took_ns, agent })
}

proptest! {
    #[test]
    fn a_known_schedule_comes_back(dice in prop::collection::vec(any::<u32>(), 40..80), mixed in any::<u64>()) {
        let (mut spans, mut known) = (Vec::new(), Vec::new());
        for trace in 1..=3u128 {
            let mut work = Work { dice: dice.clone(), thrown: trace as usize * 13, trace, spans: Vec::new(), calls: HashMap::new() };
            let root = work.span(None, "", (0, i64::MAX / 2));
            let (end, last) = work.agent(Some(root), 7_000, Vec::new(), 0);
            // The agent is called again after its answer.
            work.agent(Some(root), end + 5, vec![last], 0);
            spans.append(&mut work.spans);
            known.push(work.calls);
        }
        let edges = known.iter().flat_map(HashMap::values).any(|call| !call.after.is_empty());
        prop_assert!(edges);
        spans.sort_by_key(|span| (span.id ^ mixed).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let logged = read(&spans, None);
        prop_assert_eq!(logged.source, "agents' spans");
        prop_assert_eq!(logged.requests.len(), known.iter().map(HashMap::len).sum::<usize>());
        let mut sessions: Vec<Option<u64>> = logged.requests.iter().map(|one| one.session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        prop_assert_eq!(sessions.len(), 3);
        for calls in known {
            for (id, mut call) in calls {
                call.after.sort_unstable();
                let found = logged.requests.iter().filter(|one| one.at_ns == call.start_ns).map(turn_of);
                prop_assert!(found.into_iter().any(|found| found == (id, call.clone())), "{} {:?}", id, call);
            }
        }
    }

    /// Spans with cyclic parents, an end before the start or stamps of any size are requests anyway.
    #[test]
    fn damaged_spans_are_requests_without_an_order_or_with_some(
        all in prop::collection::vec((0u64..6, prop::option::of(0u64..6), any::<i64>(), any::<i64>(), any::<bool>()), 1..30)
    ) {
        let mut spans = Vec::new();
        for (id, parent, start_ns, end_ns, asks) in all {
            let mut span = TraceSpan { trace: 1, id, parent, start_ns, end_ns, ..TraceSpan::blank() };
            if asks {
                span.attributes.push(("gen_ai.usage.input_tokens".into(), AttributeValue::Int(5)));
            }
            spans.push(span);
        }
        let mut read = Spans::new(None);
        spans.iter().for_each(|span| read.push(span));
        for one in read.end().iter().flat_map(|logged| &logged.requests) {
            let turn = one.turn.iter();
            prop_assert!(turn.into_iter().all(|turn| !turn.after.contains(&turn.id)));
        }
    }
}

/// Side by side though their calls take turns: neither waits for the other.
#[test]
fn sub_agents_whose_calls_take_turns_wait_for_themselves_alone() {
    let mut work = Work { dice: vec![1], thrown: 0, trace: 1, spans: Vec::new(), calls: HashMap::new() };
    let root = work.span(None, "invoke_agent", (0, 1_000));
    let mut call = |parent: u64, at: i64| {
        let id = work.span(Some(parent), "chat", (at, at + 10));
        work.tokens(10, 1);
        id
    };
    let first = call(root, 0);
    let (a, b) = {
        let a = work.span(Some(root), "invoke_agent", (20, 300));
        (a, work.span(Some(root), "invoke_agent", (21, 310)))
    };
    let mut call = |parent: u64, at: i64| {
        let id = work.span(Some(parent), "chat", (at, at + 10));
        work.tokens(10, 1);
        id
    };
    let ids = [first, call(a, 30), call(b, 50), call(a, 70), call(b, 90), call(root, 400)];
    let logged = read(&work.spans, None);
    let after = |id: u64| {
        let turns = logged.requests.iter().filter_map(|one| one.turn.as_ref());
        let mut after = turns.into_iter().find(|turn| turn.id == id).expect("a turn").after.clone();
        after.sort_unstable();
        after
    };
    let mut both = vec![ids[3], ids[4]];
    both.sort_unstable();
    assert_eq!(ids.map(after).to_vec(), [vec![], vec![first], vec![first], vec![ids[1]], vec![ids[2]], both]);
}

#[test]
fn prompts_in_spans_become_names_of_blocks_and_no_text() {
    let mut work = Work { dice: vec![1], thrown: 0, trace: 1, spans: Vec::new(), calls: HashMap::new() };
    let root = work.span(None, "invoke_agent", (0, 1_000));
    let system = "You are a careful clerk of the harbour office. ".repeat(4);
    for (at, said) in [(0, "berth"), (100, "ship")] {
        work.span(Some(root), "chat", (at, at + 10));
        work.tokens(64, 1);
        let span = work.spans.last_mut().expect("a span");
        let messages = format!(
            r#"[{{"role":"system","parts":[{{"type":"text","content":"{system}"}}]}},{{"role":"user","parts":[{{"type":"text","content":"{}"}}]}}]"#,
            said.repeat(20)
        );
        span.attributes.push(("gen_ai.input.messages".into(), AttributeValue::Text(messages)));
        span.attributes.sort_by(|a, b| a.0.cmp(&b.0));
    }
    let named = read(&work.spans, Some(7));
    let blocks: Vec<&Vec<u64>> = named.requests.iter().map(|one| &one.blocks).collect();
    // The first 188 bytes are equal: two blocks of 64 and a part of the third.
    let shared = blocks[0].iter().zip(blocks[1]).take_while(|(a, b)| a == b).count();
    assert_eq!((shared, blocks[0].len(), blocks[1].len()), (2, 4, 4));
    assert!(named.block_tokens > 0 && !format!("{named:?}").contains("harbour"));
    let unread = read(&work.spans, None);
    assert!(unread.requests.iter().all(|one| one.blocks.is_empty()));
    assert!(unread.blind[0].contains("--hash-prompts"), "{:?}", unread.blind);
}
