//! Tests published traces: counts computed separately from the files, malformed lines, rounded timestamps, scaling.

use plimsoll_model::Span;
use plimsoll_workload::trace::{detect_and_read, read_azure, read_lengths, read_mooncake};
use plimsoll_workload::{
    ArrivalSpec, LoadSpec, Rate, Scenario, Schedule, SharedPrefix, SpecError, Trace, TraceSizes,
};

const CONV: &[u8] = include_bytes!("../../fixtures/azure_conv_200.csv");
const CODE: &[u8] = include_bytes!("../../fixtures/azure_code_200.csv.gz");
const MOONCAKE: &[u8] = include_bytes!("../../fixtures/mooncake_200.jsonl");
const SHAREGPT: &[u8] = include_bytes!("../../fixtures/sharegpt_blk16_30.jsonl");

fn totals(trace: &Trace) -> (usize, u64, u64) {
    let sum =
        |f: fn(&plimsoll_workload::trace::TraceRow) -> u32| trace.rows.iter().map(|r| u64::from(f(r))).sum();
    (trace.rows.len(), sum(|r| r.prompt_tokens), sum(|r| r.output_tokens))
}

pub fn replay(bytes: &[u8], speed: Option<f64>, rate: Option<f64>) -> Scenario {
    let mut scenario = Scenario {
        arrivals: ArrivalSpec::Trace { file: "t".into(), speed, sizes: TraceSizes::Own, repeat: true },
        load: LoadSpec::Open {
            rate: rate.map(|r| Rate::per_s(r).unwrap()),
            window: Span::from_secs(60),
            warm_up: 0,
            alone: 0,
        },
        seed: 5,
        ..Scenario::default()
    };
    scenario.attach(|_| Ok(bytes.to_vec())).unwrap();
    scenario
}

#[test]
fn counts_are_those_of_the_files() {
    let conv = read_azure(CONV, "conv").unwrap();
    assert_eq!(totals(&conv), (200, 180_695, 47_050));
    // 18:16:47.9441270 − 18:15:46.6805900
    assert_eq!(conv.rows[199].at, Span(61_263_537_000));
    assert_eq!((conv.tick, conv.block_tokens, conv.untimed), (None, 0, false));

    let code = detect_and_read(CODE, "code").unwrap();
    assert_eq!(totals(&code), (200, 414_215, 4_907));
    assert_eq!(code.rows[199].at, Span(199_089_585_000));

    let mooncake = detect_and_read(MOONCAKE, "mooncake").unwrap();
    assert_eq!(totals(&mooncake), (200, 2_782_179, 71_379));
    assert_eq!(mooncake.block_tokens, 512);
    assert_eq!(mooncake.rows[199].at, Span::from_secs(72));
    assert_eq!(mooncake.tick, Some(Span::from_secs(3)));

    let sharegpt = read_mooncake(SHAREGPT, "sharegpt").unwrap();
    assert_eq!((sharegpt.rows.len(), sharegpt.block_tokens, sharegpt.tick), (30, 16, None));
}

#[test]
fn other_tables_are_read_too() {
    let burst = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
        5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,10,0,10,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n";
    let trace = detect_and_read(burst, "BurstGPT_1.csv").unwrap();
    assert_eq!((totals(&trace), trace.failed), ((2, 1_559, 248), 1));
    assert_eq!(trace.rows[1].at, Span::from_millis(40_500));

    let bailian = br#"{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [7, 8]}
{"chat_id": 2, "parent_chat_id": -1, "timestamp": 2.0, "input_length": 33, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [7, 8, 9]}"#;
    let trace = detect_and_read(bailian, "qwen").unwrap();
    assert_eq!((trace.rows[1].at, trace.block_tokens), (Span::from_millis(1_500), 16));

    let week = b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n\
        2024-05-12 00:00:00.001163+00:00,2162,5\r\n2024-05-12 02:00:00.5+02:00,30,2\r\n";
    let trace = detect_and_read(week, "week").unwrap();
    assert_eq!(trace.rows[1].at, Span(498_837_000));
    assert_eq!(read_lengths(b"5\n6.0\r\n\n7", "l").unwrap(), [5, 6, 7]);
}

#[test]
fn a_broken_line_is_named() {
    let at = |text: &str| {
        let e = detect_and_read(text.as_bytes(), "my.csv").unwrap_err();
        (e.line, e.to_string())
    };
    let head = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n";
    assert_eq!(at(&format!("{head}\n2023-11-16 18:15:50.99,x,109\n")).0, 4);
    assert_eq!(at(&format!("{head}2023-13-16 18:15:50,3,109\n")).0, 3);
    assert_eq!(at(&format!("{head}yesterday,3,109\n")).0, 3);
    assert_eq!(at(&format!("{head}2023-11-16 18:15:50.99,109\n")).0, 3);
    assert_eq!(at(&format!("{head}2023-11-16 18:15:50.99,-3,109\n")).0, 3);
    assert!(at(&format!("{head}2023-11-16 18:15:50.99,3,nan\n")).1.starts_with("my.csv, line 3: `nan`"));
    assert_eq!(at("a,b\n1,2\n").0, 1);
    assert_eq!(at("").0, 0);
    assert_eq!(at(head.lines().next().unwrap()).0, 0);
    let row = r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": []}"#;
    assert_eq!(at(&format!("{row}\n{}", &row[..30])).0, 2);
    assert_eq!(at(&format!("{row}\n\n\n{}", row.replace("5,", "-5,"))).0, 4);
    assert_eq!(at(&row.replace("[]", "[1,2,3,4,5,6,7]")).0, 0);
    assert_eq!(detect_and_read(b"\x1f\x8b\x08junk", "t.gz").unwrap_err().line, 0);
    let e = detect_and_read(b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff,1,1\n", "t").unwrap_err();
    assert_eq!(e.line, 2);
    assert_eq!(read_lengths(b"5\n6.5\n", "l").unwrap_err().line, 2);
}

#[test]
fn speed_scales_time_and_nothing_else() {
    let scenario = replay(CONV, Some(4.0), None);
    let rate = scenario.rate().unwrap();
    assert!((rate - 4.0 * 199.0 / 61.263537).abs() < 1e-9);
    let window = scenario.trace_window().unwrap().unwrap();
    let schedule = Schedule::generate(&scenario, rate, window, 0).unwrap();
    let trace = read_azure(CONV, "conv").unwrap();
    assert_eq!(schedule.arrivals.len(), 200);
    for (a, row) in schedule.arrivals.iter().zip(&trace.rows) {
        assert!((a.due.as_secs_f64() - row.at.as_secs_f64() / 4.0).abs() < 2e-9);
        assert_eq!((a.prompt_tokens, a.output_tokens), (row.prompt_tokens, row.output_tokens));
    }
}

#[test]
fn a_rate_override_keeps_burstiness_and_repeats_in_laps() {
    let cv = |scenario: &Scenario, rate: f64, n: usize| {
        let s = Schedule::generate(scenario, rate, Span::from_secs_f64(n as f64 / rate), 0).unwrap();
        assert_eq!(s.arrivals.len(), n);
        let gaps: Vec<f64> =
            s.arrivals.windows(2).map(|w| (w[1].due - w[0].due).as_secs_f64()).take(199).collect();
        let mean = gaps.iter().sum::<f64>() / 199.0;
        (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / 199.0).sqrt() / mean
    };
    let slow = cv(&replay(CODE, None, Some(0.5)), 0.5, 200);
    let fast = cv(&replay(CODE, None, Some(50.0)), 50.0, 400);
    assert!(slow > 1.5 && (slow / fast - 1.0).abs() < 1e-4, "{slow} {fast}");
    let both = replay(CODE, Some(2.0), Some(3.0)).rate();
    assert!(matches!(both, Err(SpecError::Conflict { .. })), "{both:?}");
}

#[test]
fn laps_share_nothing_with_each_other() {
    let scenario = replay(MOONCAKE, None, Some(10.0));
    let s = Schedule::generate(&scenario, 10.0, Span::from_secs(40), 0).unwrap();
    assert_eq!(s.arrivals.len(), 400);
    let ids = |r: std::ops::Range<usize>| {
        s.arrivals[r].iter().flat_map(|a| a.blocks.clone()).collect::<std::collections::BTreeSet<u64>>()
    };
    let (first, second) = (ids(0..200), ids(200..400));
    assert_eq!((first.len(), second.len()), (5_215, 5_215));
    assert!(first.is_disjoint(&second));
}

#[test]
fn what_a_trace_says_itself_is_not_said_again() {
    let mut scenario = replay(MOONCAKE, None, Some(10.0));
    scenario.prompts.shared_prefix = Some(SharedPrefix { groups: 2, share: 0.5 });
    let refused = |s: &Scenario| Schedule::generate(s, 10.0, Span::from_secs(1), 0).unwrap_err();
    assert!(matches!(refused(&scenario), SpecError::Conflict { .. }));
    let mut scenario = replay(CONV, None, Some(10.0));
    scenario.prompts.shared_prefix = Some(SharedPrefix { groups: 2, share: 0.5 });
    assert!(Schedule::generate(&scenario, 10.0, Span::from_secs(1), 0).is_ok());
    // Lengths without times can't be replayed; the error of a missing file names it.
    let csv = include_bytes!("../../fixtures/arxiv_lengths_100.csv");
    assert!(matches!(scenario.attach(|_| Ok(csv.to_vec())), Err(SpecError::File { .. })));
    let gone = scenario.attach(|_| Err("no such file".into())).unwrap_err().to_string();
    assert_eq!(gone, "t: no such file");
}

#[test]
fn rounded_stamps_are_spread_inside_their_tick() {
    let trace = read_mooncake(MOONCAKE, "m").unwrap();
    let times = trace.times(1);
    assert_eq!(times, trace.times(1));
    assert_ne!(times, trace.times(2));
    for (t, row) in times.iter().zip(&trace.rows) {
        let into = t - row.at.as_secs_f64();
        assert!((0.0..=3.0).contains(&into), "{into}");
    }
    assert!(times.windows(2).all(|w| w[0] <= w[1]));
    let cv = |times: &[f64]| {
        let gaps: Vec<f64> = times.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt() / mean
    };
    let raw: Vec<f64> = trace.rows.iter().map(|r| r.at.as_secs_f64()).collect();
    assert!(cv(&raw) > 2.5, "{}", cv(&raw));
    assert!((0.8..1.25).contains(&cv(&times)), "{}", cv(&times));
}

const SERVEGEN: &[u8] = include_bytes!("../../fixtures/servegen_3_clients.jsonl");

/// Returns a client's windows in the file: start (s), requests, coefficient of variation of the gaps.
fn windows(line: usize) -> Vec<(f64, usize, f64)> {
    let text = std::str::from_utf8(SERVEGEN).unwrap().lines().nth(line - 1).unwrap();
    let client: serde_json::Value = serde_json::from_str(text).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let of = |w: &serde_json::Value| (number(&w[0]), (number(&w[1]) * 600.0).round() as usize, number(&w[2]));
    client["windows"].as_array().unwrap().iter().map(of).collect()
}

/// Every client has the counted number of requests in each of its windows, and none outside.
#[test]
fn clients_of_servegen_send_what_was_counted() {
    let trace = detect_and_read(SERVEGEN, "servegen").unwrap();
    let first = trace.rows.iter().map(|row| row.line).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(first, [2, 3, 4].into());
    let begin = (2..=4).flat_map(windows).map(|(at, ..)| at).fold(f64::INFINITY, f64::min);
    let mut all = 0;
    for line in 2..=4 {
        for (at, count, _) in windows(line) {
            // The trace begins with its first request, some time into the first window.
            let late = trace.rows.iter().filter(|row| row.line == line as u32);
            let slack = 600.0;
            let from = at - begin;
            let own = late.filter(|row| {
                let t = row.at.as_secs_f64();
                t >= from - slack && t < from + 600.0
            });
            assert!(own.count() >= count, "client of line {line} at {at} s");
            all += count;
        }
    }
    assert_eq!(trace.rows.len(), all);
    assert_eq!((trace.tick, trace.block_tokens, trace.untimed), (None, 0, false));
    assert_eq!(trace, detect_and_read(SERVEGEN, "servegen").unwrap(), "the same file is the same trace");
}

/// The gaps of a single client vary as published where their distribution can show it (a Weibull's tail is longer than a
/// window). Its lengths have the published median.
#[test]
fn a_client_of_servegen_is_as_bursty_and_as_long_as_published() {
    let windows: Vec<String> =
        (0..40).map(|i| format!(r#"[{},20.0,1.25,"Gamma",0.64,0.0781]"#, i * 600)).collect();
    let lengths = r#"{"0":{"input_tokens":[10,100,900],"output_tokens":[1,50,60]},"12000":{"input_tokens":[1,2,3],"output_tokens":[5,6,7]}}"#;
    let text = format!(
        "{{\"quantile_levels\":[0,0.5,1],\"window_s\":600,\"length_window_s\":12000}}\n{{\"client\":1,\"mean_rate\":20.0,\"windows\":[{}],\"lengths\":{lengths}}}\n",
        windows.join(",")
    );
    let trace = detect_and_read(text.as_bytes(), "one").unwrap();
    assert_eq!(trace.rows.len(), 40 * 12_000);
    let gaps: Vec<f64> = trace.rows.windows(2).map(|w| (w[1].at + -w[0].at).as_secs_f64()).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let square = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / gaps.len() as f64;
    let cv = square.sqrt() / mean;
    assert!((cv - 1.25).abs() < 0.02, "{cv}");
    let mut prompts: Vec<u32> = trace.rows[..200_000].iter().map(|row| row.prompt_tokens).collect();
    prompts.sort_unstable();
    assert!((95..=105).contains(&prompts[100_000]), "{}", prompts[100_000]);
    assert!(prompts[50_000] > 50 && prompts[50_000] < 60, "linear between quantiles: {}", prompts[50_000]);
    // From 12 000 s on other lengths apply.
    assert!(trace.rows[250_000..].iter().all(|row| row.prompt_tokens <= 3 && row.output_tokens >= 5));
}

#[test]
fn clients_that_cannot_be_read_are_named_by_their_line() {
    let header = r#"{"quantile_levels":[0,1],"window_s":600,"length_window_s":21600}"#;
    let lengths = r#""lengths":{"0":{"input_tokens":[1,2],"output_tokens":[1,2]}}"#;
    let client = |windows: &str, lengths: &str| {
        format!(r#"{{"client":1,"mean_rate":1,"windows":[{windows}],{lengths}}}"#)
    };
    let gamma = r#"[0,1.0,1.0,"Gamma",1.0,1.0]"#;
    for (second, word) in [
        (client(gamma, r#""lengths":{}"#), "line 2: a client without lengths"),
        (client(gamma, r#""lengths":{"0":{"text_tokens":[1,2]}}"#), "line 2: lengths without input_tokens"),
        (
            client(gamma, r#""lengths":{"0":{"input_tokens":[1],"output_tokens":[1,2]}}"#),
            "has 1 quantiles, the header 2",
        ),
        (client(r#"[0,1.0,1.0,"Pareto",1.0,1.0]"#, lengths), "a law `Pareto`"),
        (client(r#"[0,-1.0,1.0,"Gamma",1.0,1.0]"#, lengths), "the window at 0 s"),
        (client(r#"[0,90000.0,1.0,"Gamma",1.0,1.0]"#, lengths), "represents 54000000 requests"),
        (client(r#"[0,0.0,1.0,"Gamma",1.0,1.0]"#, lengths), "contains no request"),
        ("{".to_owned(), "line 2"),
    ] {
        let text = format!("{header}\n{second}\n");
        let error = detect_and_read(text.as_bytes(), "clients").expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
    let bad = r#"{"quantile_levels":[0,0.5],"window_s":600,"length_window_s":21600}"#;
    let error = detect_and_read(bad.as_bytes(), "clients").expect_err("levels").to_string();
    assert!(error.contains("line 1: quantile_levels ascend from 0 to 1"), "{error}");
}
