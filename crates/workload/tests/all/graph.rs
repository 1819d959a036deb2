//! Tests sessions as graphs: valid and invalid lines, due times of turns, and the beginning of prompts.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_model::{At, By, How, Outcome, Payload, Span};
use plimsoll_workload::trace::detect_and_read;
use plimsoll_workload::{
    Action, Arrival, ArrivalSpec, BlockNames, ClientSpec, Player, Prompts, Scenario, Schedule, SpecError,
    Trace, TraceSizes,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const BAD: Outcome = Outcome::new(How::ClientError, By::Server, false);

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn read(lines: &[Value]) -> Result<Trace, String> {
    detect_and_read(text(lines).as_bytes(), "agents.jsonl").map_err(|e| e.to_string())
}

fn scenario(lines: &[Value]) -> Scenario {
    let arrivals =
        ArrivalSpec::Trace { file: "agents.jsonl".into(), speed: None, sizes: TraceSizes::Own, repeat: true };
    let mut scenario = Scenario { arrivals, nonce: Some(7), ..Scenario::default() };
    scenario.material.insert_trace("agents.jsonl", read(lines).unwrap());
    scenario
}

fn line(session: &str, id: &str, after: &[&str], (input, output): (u32, u32)) -> Value {
    json!({"timestamp": 0, "session_id": session, "id": id, "after": after, "input_length": input, "output_length": output})
}

/// Returns a session with a planner, two concurrent sub-agents (one with two calls), and the answer.
fn agents() -> Vec<Value> {
    let mut lines = vec![
        line("s", "plan", &[], (200, 20)),
        line("s", "look", &["plan"], (40, 10)),
        line("s", "look again", &["look"], (60, 10)),
        line("s", "ask", &["plan"], (30, 10)),
        line("s", "answer", &["look again", "ask"], (260, 50)),
    ];
    lines[0]["timestamp"] = json!(1000);
    lines[2]["wait_ms"] = json!(25.5);
    lines[4]["wait_ms"] = json!(100);
    lines
}

fn drawn(scenario: &Scenario, rate: f64, seconds: i64) -> Vec<Arrival> {
    Schedule::generate(scenario, rate, Span::from_secs(seconds), 0).unwrap().arrivals
}

#[test]
fn a_trace_says_which_turn_waits_for_which() {
    let trace = read(&agents()).unwrap();
    let graph = trace.graph.as_ref().unwrap();
    let [session] = &graph.sessions[..] else { panic!("one session: {graph:?}") };
    let after: Vec<&[u16]> = session.turns.iter().map(|turn| &turn.after[..]).collect();
    assert_eq!(after, [&[][..], &[0], &[1], &[0], &[2, 3]]);
    let extends: Vec<Option<u16>> = session.turns.iter().map(|turn| turn.extends).collect();
    // Sub-agents start with a new text, the second call of one continues its first, and the answer continues the plan.
    assert_eq!(extends, [None, None, Some(1), None, Some(0)]);
    let waits: Vec<i64> = session.turns.iter().map(|turn| turn.wait.0).collect();
    assert_eq!(waits, [0, 0, 25_500_000, 0, 100_000_000]);
    assert_eq!(session.begins, Span::ZERO, "the trace begins with it");
    // Five turns over the 125.5 ms of its waits.
    assert!((trace.rate_per_s().unwrap() - 5.0 / 0.1255).abs() < 1e-9);
}

#[test]
fn lines_in_any_order_are_the_same_session() {
    let mut turned = agents();
    turned.reverse();
    let trace = read(&turned).unwrap();
    let turns = &trace.graph.as_ref().unwrap().sessions[0].turns;
    for (i, turn) in turns.iter().enumerate() {
        assert!(turn.after.iter().all(|of| usize::from(*of) < i), "{turns:?}");
    }
    let lengths: Vec<u32> = turns.iter().map(|turn| trace.rows[turn.row].prompt_tokens).collect();
    assert_eq!((lengths[0], lengths[4]), (200, 260));
}

#[test]
fn what_can_not_be_a_graph_is_refused_with_its_line() {
    let with = |change: fn(&mut Vec<Value>)| {
        let mut lines = agents();
        change(&mut lines);
        read(&lines).unwrap_err()
    };
    assert_eq!(
        with(|lines| lines[4]["after"] = json!(["look agin"])),
        "agents.jsonl, line 5: after names `look agin`, which is no id of its session, did you mean `look again`?; add that \
         turn or take it out"
    );
    // A name in another session is unknown in this one.
    assert!(
        with(|lines| lines[3]["session_id"] = json!("t"))
            .starts_with("agents.jsonl, line 5: after names `ask`")
    );
    assert_eq!(
        with(|lines| lines[3]["id"] = json!("look")),
        "agents.jsonl, line 4: the id `look` is line 2's already; give each turn of a session its own"
    );
    assert_eq!(
        with(|lines| lines[1]["after"] = json!(["plan", "look again"])),
        "agents.jsonl, line 2: its turns wait for each other in a circle: `look` after `look again` after `look`; take one \
         of them out of an after"
    );
    assert!(with(|lines| lines[0]["after"] = json!(["plan"])).contains("`plan` after `plan`"));
    assert!(
        with(|lines| lines[0]["wait_ms"] = json!(3))
            .starts_with("agents.jsonl, line 1: wait_ms without after")
    );
    assert!(with(|lines| lines[4]["wait_ms"] = json!(-1)).starts_with("agents.jsonl, line 5: wait_ms -1"));
    assert!(
        with(|lines| lines[2]["session_id"] = Value::Null).contains("line 3: id and after need session_id")
    );
    assert!(with(|lines| lines[0]["timestamp"] = Value::Null).contains("line 1: missing field `timestamp`"));
}

#[test]
fn a_turn_that_waits_needs_no_timestamp_and_names_alone_make_no_graph() {
    let mut lines = agents();
    lines[1..].iter_mut().for_each(|line| line["timestamp"] = Value::Null);
    assert_eq!(read(&lines).unwrap(), read(&agents()).unwrap());
    let named = json!({"timestamp": 5, "id": "x", "input_length": 3, "output_length": 4});
    assert!(read(&[named]).unwrap().graph.is_none());
}

#[test]
fn sessions_begin_at_the_rate_and_their_waits_stay() {
    let mut lines = agents();
    let second: Vec<Value> = agents()
        .into_iter()
        .map(|mut line| {
            line["session_id"] = json!("t");
            line["timestamp"] = json!(3000);
            line
        })
        .collect();
    lines.extend(second);
    let scenario = scenario(&lines);
    // Two sessions 2 s apart: one every 2 s, of five turns.
    assert!((scenario.material.trace("agents.jsonl").unwrap().rate_per_s().unwrap() - 2.5).abs() < 1e-12);
    let arrivals = drawn(&scenario, 5.0, 4);
    let begins: Vec<i64> =
        arrivals.iter().filter(|a| a.after.is_empty()).map(|a| a.due.0 / 1_000_000).collect();
    assert_eq!(begins, [0, 1000, 2000, 3000], "twice as fast, begun again after both");
    // All sessions that began are complete, and the waits are the durations of tools.
    assert_eq!(arrivals.len(), 20);
    for arrival in &arrivals {
        assert_eq!((arrival.turns, arrival.session.is_some()), (5, true));
        assert_eq!(arrival.think.0, [0, 0, 25_500_000, 0, 100_000_000][usize::from(arrival.turn)]);
    }
}

#[test]
fn what_waits_for_what_is_in_the_hash_of_a_schedule() {
    let hash =
        |lines: &[Value]| Schedule::generate(&scenario(lines), 5.0, Span::from_secs(4), 0).unwrap().hash();
    let mut other = agents();
    other[3]["after"] = json!(["look"]);
    assert_ne!(hash(&agents()), hash(&other));
}

#[test]
fn lengths_of_its_own_are_refused_where_turns_hold_each_other() {
    let mut scenario = scenario(&agents());
    if let ArrivalSpec::Trace { sizes, .. } = &mut scenario.arrivals {
        *sizes = TraceSizes::Drawn;
    }
    match Schedule::generate(&scenario, 5.0, Span::from_secs(1), 0) {
        Err(SpecError::Conflict { path, .. }) => assert_eq!(path, "arrivals.sizes"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_prompt_begins_with_the_prompt_and_the_answer_that_it_goes_on_from() {
    let scenario = scenario(&agents());
    let prompts = Prompts::new(&scenario, 3).unwrap();
    let mut names = BlockNames::new(&scenario).unwrap();
    let arrivals = drawn(&scenario, 5.0, 1);
    let of = |turn: u16| arrivals.iter().find(|a| a.turn == turn && a.session == Some(0)).unwrap();
    let words = |turn: u16| {
        let Payload::Messages(messages) = prompts.payload(of(turn)) else { panic!("chat carries messages") };
        let words: Vec<String> = messages
            .iter()
            .flat_map(|m| m.content.split(' ').map(str::to_owned))
            .filter(|w| !w.is_empty())
            .collect();
        assert_eq!(words.len() as u32, of(turn).prompt_tokens, "turn {turn}");
        words
    };
    let common = |a: &[String], b: &[String]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    assert_eq!(common(&words(0), &words(4)), 200);
    assert_eq!(common(&words(1), &words(2)), 40);
    for (a, b) in [(0, 1), (0, 3), (1, 3), (2, 4)] {
        assert!(common(&words(a), &words(b)) < 3, "turns {a} and {b} share nothing");
    }
    // The simulator's cache has an equal view: 200 tokens are twelve full blocks and a half.
    let names: BTreeMap<u16, Vec<u64>> = (0..5).map(|turn| (turn, names.of(of(turn)))).collect();
    let common = |a: u16, b: u16| names[&a].iter().zip(&names[&b]).take_while(|(a, b)| a == b).count();
    assert_eq!((names[&0].len(), common(0, 4), common(1, 2), common(0, 1)), (12, 12, 2, 0));
}

#[test]
fn block_ids_say_what_prompts_share_where_there_are_some() {
    let mut lines = agents();
    for (line, ids) in lines.iter_mut().zip([vec![1], vec![2], vec![2], vec![3], vec![1, 4]]) {
        line["hash_ids"] = json!(ids);
        line["block_size"] = json!(200);
    }
    lines[1]["input_length"] = json!(200);
    lines[2]["input_length"] = json!(200);
    lines[3]["input_length"] = json!(200);
    let scenario = scenario(&lines);
    let prompts = Prompts::new(&scenario, 3).unwrap();
    let arrivals = drawn(&scenario, 5.0, 1);
    let blocks = |turn: u16| prompts.blocks(arrivals.iter().find(|a| a.turn == turn).unwrap());
    let common = |a: u16, b: u16| blocks(a).iter().zip(&blocks(b)).take_while(|(a, b)| a == b).count();
    assert_eq!((common(1, 2), common(0, 4), common(0, 3)), (12, 12, 0));
}

/// Returns a random session: each turn follows some of the earlier ones.
fn any_session() -> impl Strategy<Value = Vec<(Vec<usize>, i64, i64, bool)>> {
    let turn = (any::<u16>(), 0..40i64, 1..60i64, 0..12u8);
    prop::collection::vec(turn, 1..14).prop_map(|turns| {
        let of = |(i, (mask, wait, took, fails)): (usize, (u16, i64, i64, u8))| {
            let after: Vec<usize> =
                (0..i).filter(|of| mask >> of & 1 == 1 && mask >> ((of + 5) % 16) & 1 == 1).collect();
            let wait = if after.is_empty() { 0 } else { wait };
            (after, wait, took, fails == 0)
        };
        turns.into_iter().enumerate().map(of).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// For any graph and any latencies, due = the latest end of the predecessors + the wait, and successors of a failure
    /// are never sent.
    #[test]
    fn every_turn_is_due_when_all_before_it_have_ended(sessions in prop::collection::vec(any_session(), 1..5), closed in any::<bool>()) {
        let mut lines = Vec::new();
        for (s, turns) in sessions.iter().enumerate() {
            for (i, (after, wait, ..)) in turns.iter().enumerate() {
                let after: Vec<String> = after.iter().map(usize::to_string).collect();
                let mut line = json!({"timestamp": 7 * s, "session_id": s, "id": i.to_string(), "after": after, "input_length": 10, "output_length": 5});
                if *wait > 0 { line["wait_ms"] = json!(wait); }
                lines.push(line);
            }
        }
        prop_assume!(lines.iter().any(|line| line["after"] != json!([])));
        let scenario = scenario(&lines);
        let ms = |n: i64| At(n * 1_000_000);
        let n = sessions.len();
        let mut player = if closed {
            let sequence = Schedule::sequence(&scenario, 0).unwrap().bounded(Some(n as u64));
            Player::closed(sequence, n as u32, At::MAX, &ClientSpec::default(), 0)
        } else {
            let rate = scenario.material.trace("agents.jsonl").unwrap().rate_per_s().unwrap_or(1.0);
            let window = Span::from_secs_f64(lines.len() as f64 / rate);
            Player::open(Schedule::generate(&scenario, rate, window, 0).unwrap().arrivals, &ClientSpec::default(), 0)
        };
        player = player.to_their_ends();
        // Computed separately: turns are numbered like the lines, because each follows earlier ones only.
        let mut truth = BTreeMap::new();
        let mut unsent = BTreeSet::new();
        for (s, turns) in sessions.iter().enumerate() {
            let begin = if closed { 0 } else { 7 * s as i64 };
            for (i, (after, wait, took, _)) in turns.iter().enumerate() {
                if after.iter().any(|of| turns[*of].3 || unsent.contains(&(s, *of))) {
                    unsent.insert((s, i));
                    continue;
                }
                let due = after.iter().map(|of| truth[&(s, *of)]).map(|(_, end)| end + wait).max().unwrap_or(begin);
                truth.insert((s, i), (due, due + took));
            }
        }
        let (mut sent, mut flying) = (BTreeMap::new(), BTreeSet::new());
        let mut now = At::ZERO;
        loop {
            while let Some(action) = player.pop(now) {
                let Action::Send(attempted) = action else { continue };
                let key = (attempted.arrival.session.unwrap() as usize, usize::from(attempted.arrival.turn));
                let (took, fails) = (sessions[key.0][key.1].2, sessions[key.0][key.1].3);
                prop_assert!(sent.insert(key, attempted.due).is_none());
                prop_assert_eq!(attempted.due, now);
                flying.insert((now + (ms(took) - At::ZERO), attempted.arrival.id, fails));
            }
            let ended = flying.first().copied();
            let next = [ended.map(|(end, ..)| end), player.next_at()].into_iter().flatten().min();
            let Some(next) = next else { break };
            now = next.max(now);
            if let Some((end, id, fails)) = ended.filter(|(end, ..)| *end <= now) {
                flying.remove(&(end, id, fails));
                player.ended(now, id, 0, if fails { BAD } else { Outcome::FINISHED }, None);
            }
        }
        let truth: BTreeMap<_, At> = truth.into_iter().map(|(key, (due, _))| (key, ms(due))).collect();
        prop_assert_eq!(sent, truth);
        if !closed {
            let lost: BTreeSet<_> = player.never_sent().map(|a| {
                assert!(a.broke_off);
                (a.arrival.session.unwrap() as usize, usize::from(a.arrival.turn))
            }).collect();
            prop_assert_eq!(lost, unsent);
        }
        prop_assert!(player.is_done());
    }
}

/// Two concurrent sub-agents with a common beginning do not share sent tokens; their common successor has the longer of the
/// two.
#[test]
fn what_is_sent_again_is_what_a_turn_before_it_sent() {
    let blocks = |line: Value, ids: &[u64]| {
        let mut line = line;
        line["hash_ids"] = json!(ids);
        line
    };
    let lines = [
        blocks(line("s", "plan", &[], (32, 4)), &[1, 2]),
        blocks(line("s", "look", &["plan"], (64, 4)), &[1, 7, 8, 9]),
        blocks(line("s", "ask", &["plan"], (48, 4)), &[1, 7, 8]),
        blocks(line("s", "answer", &["look", "ask"], (80, 4)), &[1, 7, 8, 9, 2]),
        blocks(line("s", "again", &["answer"], (80, 4)), &[1, 7, 8, 9, 2]),
    ];
    let resent = |lines: &[Value]| -> Vec<u32> {
        let trace = read(lines).unwrap();
        trace.graph.unwrap().sessions[0].turns.iter().map(|turn| turn.resent).collect()
    };
    assert_eq!(resent(&lines), [0, 16, 16, 64, 80]);
    // Without ids: the prompt that is extended, without its answer.
    assert_eq!(resent(&agents()), [0, 0, 40, 0, 200]);
    let sized: Vec<Value> = lines
        .iter()
        .map(|line| {
            let mut line = line.clone();
            line["block_size"] = json!(18);
            line
        })
        .collect();
    assert_eq!(resent(&sized[..2]), [0, 18]);
    let conversation = Scenario {
        prompts: serde_json::from_value(json!({"sessions": {"turns": 3, "think": "1s"}})).unwrap(),
        sizes: serde_json::from_value(json!({"prompt": 50, "output": 7})).unwrap(),
        ..Scenario::default()
    };
    let turns: Vec<u32> = drawn(&conversation, 1.0, 10)
        .iter()
        .filter(|one| one.session == Some(0))
        .map(|one| one.resent)
        .collect();
    assert_eq!(turns, [0, 50, 107]);
}
