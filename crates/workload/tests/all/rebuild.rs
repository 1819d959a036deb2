//! Tests traces from agent logs: predecessors, waits and extended turns, parsed from the written file.

use plimsoll_model::{How, LoggedRequest, LoggedTurn, RequestLog, Span};
use plimsoll_workload::trace::detect_and_read;
use plimsoll_workload::{Rate, RebuildSpec, Reuse, Trace, rebuild};
use proptest::prelude::*;

fn call(
    session: u64,
    (id, after): (u64, &[u64]),
    agent: u64,
    (at_ns, took_ns): (i64, i64),
    lengths: (u32, u32),
) -> LoggedRequest {
    LoggedRequest {
        prompt: Some(lengths.0),
        output: Some(lengths.1),
        session: Some(session),
        turn: Some(LoggedTurn { id, after: after.to_vec(), agent: Some(agent), took_ns }),
        ..LoggedRequest::new(0, at_ns)
    }
}

fn logged(requests: Vec<LoggedRequest>) -> RequestLog {
    RequestLog {
        source: "agents' spans",
        stamp: "the span's start",
        tick_ns: 1,
        block_tokens: 0,
        requests,
        left_out: Vec::new(),
        blind: Vec::new(),
        kept_share: 1.0,
        is_relative: false,
        counts_only: None,
    }
}

/// Returns a planner that calls two sub-agents (one of them twice) and answers; ids and order of the log carry no
/// information.
fn agents() -> Vec<LoggedRequest> {
    let base = 1_795_777_788_944_519_048;
    vec![
        call(9, (70, &[5, 1]), 100, (base + 900_000_001, 50_000_000), (400, 30)),
        call(9, (30, &[]), 100, (base, 100_000_007), (200, 20)),
        call(9, (1, &[30]), 300, (base + 100_500_000, 300_000_000), (500, 10)),
        call(9, (44, &[30]), 200, (base + 100_400_000, 99_999_999), (300, 10)),
        call(9, (5, &[44]), 200, (base + 250_000_000, 200_000_000), (320, 10)),
        call(4, (6, &[]), 100, (base + 2_000_000_000, 200_000_000), (40, 10)),
    ]
}

fn read(logged: &RequestLog, spec: &RebuildSpec) -> (Trace, Vec<serde_json::Value>, usize) {
    let rebuilt = rebuild(logged, spec).unwrap();
    let text = rebuilt.text();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (detect_and_read(text.as_bytes(), "w.jsonl").unwrap(), lines, rebuilt.waits_cut)
}

#[test]
fn turns_wait_as_they_did_and_go_on_from_their_own_agents_call() {
    let (trace, lines, cut) = read(&logged(agents()), &RebuildSpec::default());
    let graph = trace.graph.as_ref().unwrap();
    let [first, second] = &graph.sessions[..] else { panic!("two sessions: {graph:?}") };
    let turns: Vec<(Vec<u16>, i64, Option<u16>)> =
        first.turns.iter().map(|turn| (turn.after.clone(), turn.wait.0, turn.extends)).collect();
    // In order of time: the plan, a look, the other sub-agent, the second look, the answer.
    let known = [
        (vec![], 0, None),
        (vec![0], 399_993, None),
        (vec![0], 499_993, None),
        (vec![1], 49_600_001, Some(1)),
        // The last of the two ended at 450 ms.
        (vec![2, 3], 450_000_001, Some(0)),
    ];
    assert_eq!((turns, cut), (known.to_vec(), 0));
    assert_eq!((second.begins, second.turns.len()), (Span(2_000_000_000), 1));
    // By length, the first look would have extended the plan, and the answer the second look.
    assert!(lines[1]["extends"].is_null() && lines[1].as_object().unwrap().contains_key("extends"));
    let shared = detect_and_read(
        rebuild(&logged(agents()), &RebuildSpec::default())
            .unwrap()
            .text()
            .replace("\"extends\":null,", "")
            .as_bytes(),
        "w.jsonl",
    );
    assert_eq!(shared.unwrap().graph.unwrap().sessions[0].turns[1].extends, Some(0));
}

#[test]
fn what_came_after_one_that_is_left_out_comes_after_those_before_it() {
    let mut all = agents();
    // The second look was rejected as invalid: it is no load, and the answer remains.
    all[4].how = How::ClientError;
    let (trace, ..) = read(&logged(all.clone()), &RebuildSpec::default());
    let turns = &trace.graph.as_ref().unwrap().sessions[0].turns;
    assert_eq!((turns[3].after.clone(), turns[3].wait), (vec![1, 2], Span(499_500_001)));
    // With one model only, the sub-agents' calls are removed, and the answer waits for the plan.
    let mut of_one = logged(agents());
    of_one.retain(|one| one.turn.as_ref().is_some_and(|turn| turn.agent == Some(100)));
    let (trace, ..) = read(&of_one, &RebuildSpec::default());
    let turns = &trace.graph.as_ref().unwrap().sessions[0].turns;
    assert_eq!((turns.len(), turns[1].after.clone(), turns[1].wait), (2, vec![0], Span(799_999_994)));
}

#[test]
fn waits_are_cut_and_sessions_without_a_beginning_get_one() {
    let short = RebuildSpec { max_wait: Some(Span(1_000_000)), ..RebuildSpec::default() };
    let (trace, _, cut) = read(&logged(agents()), &short);
    let waits: Vec<i64> =
        trace.graph.as_ref().unwrap().sessions[0].turns.iter().map(|turn| turn.wait.0).collect();
    assert_eq!((waits, cut), (vec![0, 399_993, 499_993, 1_000_000, 1_000_000], 2));
    let relative = RequestLog { is_relative: true, ..logged(agents()) };
    let why = rebuild(&relative, &RebuildSpec::default()).unwrap_err().to_string();
    assert!(why.contains("--session-rate"), "{why}");
    // Poisson: the mean gap of 400 sessions follows from the rate, and the coefficient of variation is 1.
    let many =
        (0..400).flat_map(|n| agents().into_iter().map(move |one| LoggedRequest { session: Some(n), ..one }));
    let many = RequestLog { is_relative: true, ..logged(many.collect()) };
    let spec = RebuildSpec { session_rate: Some(Rate::per_s(0.5).unwrap()), ..RebuildSpec::default() };
    let begins: Vec<f64> =
        read(&many, &spec).0.graph.unwrap().sessions.iter().map(|one| one.begins.as_secs_f64()).collect();
    let gaps: Vec<f64> = begins.windows(2).map(|two| two[1] - two[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    // Standard errors of 5 % and 7 %.
    assert!(
        (mean / 2.0 - 1.0).abs() < 0.2 && (variance.sqrt() / mean - 1.0).abs() < 0.28,
        "{mean} {variance}"
    );
}

#[test]
fn cached_tokens_are_those_of_the_agents_own_text() {
    let mut all = agents();
    for (one, cached) in all.iter_mut().zip([192, 0, 0, 0, 288, 0]) {
        one.cached = Some(cached);
    }
    let rebuilt = rebuild(&logged(all), &RebuildSpec::default()).unwrap();
    assert_eq!((rebuilt.reuse, rebuilt.block_tokens), (Reuse::Cached, 16));
    let shared = |a: usize, b: usize| {
        let (a, b) = (&rebuilt.rows[a].blocks, &rebuilt.rows[b].blocks);
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    };
    // Each extends its own agent's previous call: 288 tokens are 18 blocks, 192 are 12. The longest text so far belongs to
    // another.
    assert_eq!((shared(3, 1), shared(4, 0), shared(4, 3), shared(1, 0)), (18, 12, 0, 0));
}

#[test]
fn a_context_that_is_named_wrongly_is_refused_with_its_line() {
    let lines = |extends: &str, prompt: u32| {
        format!(
            "{{\"timestamp\":0,\"session_id\":1,\"id\":\"a\",\"input_length\":50,\"output_length\":5}}\n\
             {{\"timestamp\":0,\"session_id\":1,\"id\":\"b\",\"input_length\":9,\"output_length\":5}}\n\
             {{\"session_id\":1,\"id\":\"c\",\"after\":[\"a\"],\"extends\":\"{extends}\",\"input_length\":{prompt},\"output_length\":5}}\n"
        )
    };
    for (extends, prompt, why) in [
        ("z", 90, "line 3: extends names `z`, which is no id of its session"),
        ("b", 90, "line 3: extends names a turn that it does not come after"),
        ("c", 90, "line 3: extends names a turn that it does not come after"),
        ("a", 54, "line 3: 54 prompt tokens are fewer than the prompt and answer that it extends (55)"),
    ] {
        let said = detect_and_read(lines(extends, prompt).as_bytes(), "w.jsonl").unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    let good = detect_and_read(lines("a", 55).as_bytes(), "w.jsonl").unwrap();
    assert_eq!(good.graph.unwrap().sessions[0].turns[2].extends, Some(0));
}

proptest! {
    /// Waits of any length are exact to the nanosecond after a round trip.
    #[test]
    fn waits_are_exact(gaps in prop::collection::vec((0i64..86_400_000_000_000, 0i64..1_000_000_000), 1..30)) {
        let (mut at, mut all) = (1_700_000_000_000_000_000i64, Vec::new());
        for (n, (gap, took)) in gaps.iter().enumerate() {
            let after: Vec<u64> = n.checked_sub(1).map(|before| before as u64).into_iter().collect();
            at += if n == 0 { 0 } else { *gap };
            all.push(call(1, (n as u64, &after), 1, (at, *took), (10 + 20 * n as u32, 5)));
            at += took;
        }
        prop_assume!(all.len() > 1);
        let (trace, ..) = read(&logged(all), &RebuildSpec::default());
        let turns = &trace.graph.as_ref().unwrap().sessions[0].turns;
        for (turn, (gap, _)) in turns.iter().zip(&gaps).skip(1) {
            prop_assert_eq!(turn.wait.0, *gap);
        }
    }
}
