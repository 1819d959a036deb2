//! Cold starts taken apart: what the client saw of them against attempts whose truth is written down, and what servers' logs say of them.

use plimsoll_analysis::cold_start::split::ColdPhase;
use plimsoll_analysis::cold_start::startup::{EngineStart, StartStage, read};
use plimsoll_analysis::cold_start::{COLD, ColdTrial, KIND};
use plimsoll_model::{At, Attempt, By, How, Level, Manifest, Outcome};

use crate::records::{MS, answer, level};

/// A run of thirty steady requests of 100 ms, idle until 60 s, and these tries of the first request after it: what each met, and when it
/// ended (ms after it was due). The last one is answered: sent then, with its first token so much later.
fn trial(tries: &[(How, i64)], sent: i64, first_token: i64) -> ColdTrial {
    let steady = Level { id: 0, ..level(1.0, 30) };
    let cold = Level {
        id: 1,
        purpose: COLD.into(),
        start: At(60_000 * MS),
        drained: At(90_000 * MS),
        ..level(1.0, 90)
    };
    let mut rows: Vec<Attempt> = (0..30).map(|n| answer(n, 1_000 * n as i64, 100, 150, 4)).collect();
    let due = 60_000;
    for (n, (how, end)) in tries.iter().enumerate() {
        let stood = !matches!(how, How::Refused);
        let at = |ms: i64| Some(At((due + ms) * MS));
        rows.push(Attempt {
            attempt: n as u16,
            level: 1,
            reused: false,
            // A try takes 10 ms of its own.
            connected: at(end - 9).filter(|_| stood),
            sent: at(end - 8).filter(|_| stood),
            first_byte: None,
            first_token: None,
            end: at(*end),
            outcome: Outcome { how: *how, by: By::Server, ..Outcome::FINISHED },
            ..answer(0, due, 100, 150, 4)
        });
    }
    let at = |ms: i64| Some(At((due + ms) * MS));
    rows.push(Attempt {
        attempt: tries.len() as u16,
        level: 1,
        reused: false,
        connected: at(sent),
        sent: at(sent),
        first_token: at(first_token),
        end: at(first_token + 50),
        ..answer(0, due, 100, 150, 4)
    });
    let manifest = Manifest { kind: KIND.into(), ..crate::compare::manifest(vec![steady, cold]) };
    let found = plimsoll_analysis::cold_start::of(&manifest, &rows).expect("it looked for one");
    found.trials[0].clone()
}

fn part(trial: &ColdTrial, phase: ColdPhase) -> (f64, f64, f64) {
    let found = trial.parts.iter().find(|part| part.phase == phase);
    found.map_or((0.0, 0.0, 0.0), |part| (part.seconds.value, part.seconds.lower, part.seconds.upper))
}

fn check(trial: &ColdTrial) {
    let sum: f64 = trial.parts.iter().map(|part| part.seconds.value).sum();
    assert!((sum - trial.first_s.expect("answered")).abs() < 1e-9, "{trial:?}");
    for part in &trial.parts {
        let seconds = part.seconds;
        assert!(seconds.lower <= seconds.value && seconds.value <= seconds.upper, "{part:?}");
    }
}

/// Refused for three seconds, turned away for two, then taken and two seconds slower than steady: the truth lies in each interval, wherever
/// between two tries the server went on.
#[test]
fn each_part_holds_its_truth_and_they_add_up() {
    for shift in [1, 300, 600, 999] {
        // The server listens at 3 s, is ready at 5 s; the client tries every second from `shift` on.
        let (listens, ready) = (3_000, 5_000);
        let all = (0..).map(|n| shift + 1_000 * n);
        let tries: Vec<(How, i64)> = all
            .clone()
            .take_while(|at| *at < ready)
            .map(|at| (if at < listens { How::Refused } else { How::ServerError }, at + 10))
            .collect();
        let sent = all.clone().find(|at| *at >= ready).expect("endless");
        let trial = trial(&tries, sent, sent + 2_100);
        check(&trial);
        let within = |(_, lower, upper): (f64, f64, f64), truth: f64| {
            assert!(lower <= truth + 0.02 && truth <= upper + 0.02, "shift {shift}: {lower} {truth} {upper}");
            assert!(upper - lower <= 2.1, "no wider than the tries lie apart: {lower} {upper}");
        };
        within(part(&trial, ColdPhase::NoListener), 3.0);
        within(part(&trial, ColdPhase::NotReady), 2.0);
        assert!((part(&trial, ColdPhase::Steady).0 - 0.1).abs() < 1e-9, "{trial:?}");
        assert!((part(&trial, ColdPhase::Slower).0 - 2.0).abs() < 1e-9, "{trial:?}");
    }
}

#[test]
fn a_request_that_was_held_and_one_that_paid_nothing() {
    let held = trial(&[], 0, 4_100);
    check(&held);
    assert!((part(&held, ColdPhase::Slower).0 - 4.0).abs() < 1e-9, "{held:?}");
    assert_eq!(part(&held, ColdPhase::NoListener).0 + part(&held, ColdPhase::NotReady).0, 0.0);
    let warm = trial(&[], 0, 90);
    check(&warm);
    assert_eq!(warm.parts.len(), 1, "{warm:?}");
    // It fell over once more while it started: what came twice is one part.
    let again =
        trial(&[(How::Refused, 1_000), (How::ServerError, 2_000), (How::Refused, 3_000)], 4_000, 4_100);
    check(&again);
    let tries: Vec<(ColdPhase, u64)> = again.parts.iter().map(|part| (part.phase, part.attempts)).collect();
    assert_eq!(tries, [(ColdPhase::NoListener, 2), (ColdPhase::NotReady, 1), (ColdPhase::Steady, 0)]);
}

fn log(name: &str) -> EngineStart {
    let path = format!("{}/tests/fixtures/startup/{name}.log", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("a fixture");
    let mut starts = read(&text);
    assert_eq!(starts.len(), 1, "{name}: {starts:#?}");
    // The same twice is two starts, and each says the same.
    let twice = read(&format!("{text}{text}"));
    assert_eq!(twice.len(), 2, "{name}: {twice:#?}");
    let times =
        |start: &EngineStart| start.parts.iter().map(|part| (part.stage, part.seconds)).collect::<Vec<_>>();
    assert_eq!(times(&twice[0]), times(&twice[1]), "{name}");
    starts.remove(0)
}

fn holds(name: &str, engine: &str, version: Option<&str>, expected: &[(StartStage, f64)]) -> EngineStart {
    let start = log(name);
    assert_eq!((start.engine.as_str(), start.version.as_deref()), (engine, version), "{name}");
    assert!(start.ready, "{name}");
    let found: Vec<(StartStage, f64)> = start.parts.iter().map(|part| (part.stage, part.seconds)).collect();
    assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
    for ((stage, s), (asked, truth)) in found.iter().zip(expected) {
        assert!(stage == asked && (s - truth).abs() < 1e-6, "{name}: {found:?} against {expected:?}");
    }
    for part in &start.parts {
        assert!(part.line > 0 && !part.text.is_empty() && part.within_s >= 0.0, "{part:?}");
    }
    start
}

use StartStage::{
    Adapter, Build, Cache, Compile, Container, Download, Graphs, Image, Process, Warmup, Weights,
};

#[test]
fn what_servers_write_while_they_start_is_read() {
    // v0 says gigabytes and no seconds: the stamps, a second fine, do. What init engine took holds the graphs.
    let old = [(Process, 1.0), (Weights, 15.0), (Cache, 2.92), (Graphs, 18.0)];
    let start = holds("vllm-0.7.2", "vllm", Some("0.7.2"), &old);
    assert_eq!((start.parts[1].told, start.parts[1].within_s), (false, 1.0));
    assert_eq!((start.parts[3].told, start.parts[3].within_s), (true, 0.5));
    assert!(start.unknown.contains(&StartStage::Container) && start.unknown.contains(&Compile));
    let new = [
        (Process, 35.0),
        (Download, 417.087123),
        (Weights, 83.82),
        (Build, 512.925670 - 417.087123 - 83.82),
        (Cache, 38.21 - 20.75 - 11.0),
        (Compile, 20.75),
        (Graphs, 11.0),
    ];
    let start = holds("vllm-0.15", "vllm", Some("0.15.1"), &new);
    assert_eq!(start.unknown, [StartStage::Container, StartStage::Adapter]);
    // Of two ranks the slower one; what uvicorn says of itself is not SGLang's own readiness.
    let tp = [(Process, 19.0), (Weights, 118.0), (Cache, 1.0), (Graphs, 7.23), (Warmup, 2.0)];
    let start = holds("sglang-0.4", "sglang", None, &tp);
    assert_eq!(start.whole_s, Some(149.0));
    assert!((start.rest_s.expect("stamped") - (149.0 - 147.23)).abs() < 1e-6);
    // A model and its draft follow each other: their times add up.
    let draft = [(Process, 9.0), (Weights, 329.53 + 49.46), (Cache, 5.0), (Graphs, 14.3), (Warmup, 21.0)];
    holds("sglang-2026", "sglang", None, &draft);
    let own = [(Process, 0.003550), (Weights, 0.037894), (Cache, 0.007691)];
    holds("llama.cpp-b11549", "llama.cpp", Some("b0-unknown"), &own);
    let warm = [(Process, 0.000051), (Weights, 3.872790), (Cache, 0.060196), (Warmup, 1.451496)];
    holds("llama.cpp-warmup", "llama.cpp", None, &warm);
    let tgi = [(Process, 0.000229), (Download, 83.799773), (Weights, 9.107832275), (Warmup, 2.438737)];
    holds("tgi-2", "tgi", None, &tgi);
    holds("triton-2.51", "triton", None, &[(Process, 0.002246), (Weights, 1.768050)]);
}

/// Adapters, by the lines that their servers write: loaded within another stage they are taken out of it, and an adapter that comes while requests are
/// served is no start.
#[test]
fn adapters_are_a_stage_of_their_own() {
    let of = |start: &EngineStart, stage: StartStage| {
        let part = start.parts.iter().find(|part| part.stage == stage).expect("a part");
        (part.seconds, part.told, part.at_most)
    };
    // vLLM says when one is there and not when it began: at most since the engine stood. The line that says that it is ready has no stamp; the
    // last one before it has.
    let parts = [(Process, 27.0), (Weights, 12.41), (Adapter, 6.0), (Build, 14.1 - 12.41), (Cache, 40.0)];
    let start = holds("vllm-lora", "vllm", Some("0.15.1"), &parts);
    assert_eq!(of(&start, Adapter), (6.0, false, true));
    assert_eq!((start.whole_s, start.whole_at_least), (Some(89.0), true));
    assert!((start.rest_s.expect("a bound") - (89.0 - 27.0 - 14.1 - 40.0 - 6.0)).abs() < 1e-6);
    assert_eq!(start.unknown, [Container, Compile]);
    // SGLang 0.4 says both; one rank loads its own while the other still reads weights, and the cache follows the last of them.
    let parts = [(Process, 13.0), (Weights, 24.0), (Adapter, 3.0), (Cache, 2.0), (Warmup, 5.0)];
    let start = holds("sglang-lora-0.4", "sglang", None, &parts);
    assert_eq!((of(&start, Adapter), start.whole_at_least), ((3.0, false, false), false));
    // Later versions say no end: at most until the cache is thought about.
    let parts = [(Process, 0.53), (Weights, 3.48), (Adapter, 4.0), (Cache, 1.0), (Warmup, 3.0)];
    let start = holds("sglang-lora", "sglang", None, &parts);
    assert_eq!(of(&start, Adapter), (4.0, false, true));
    // llama.cpp loads them with the model.
    let parts =
        [(Process, 0.000051), (Weights, 3.122790), (Adapter, 0.75), (Cache, 0.060196), (Warmup, 1.451496)];
    holds("llama.cpp-lora", "llama.cpp", None, &parts);
    // TGI loads them one after the other before a shard is ready, and says of each when it begins (its documentation, "Lora").
    let parts = [
        (Process, 0.000229),
        (Download, 83.799773),
        (Weights, 9.107832275 - 3.5),
        (Adapter, 3.5),
        (Warmup, 2.438737),
    ];
    holds("tgi-lora", "tgi", None, &parts);
}

#[test]
fn a_log_that_tells_nothing_says_nothing() {
    assert!(read("").is_empty());
    assert!(read("INFO: Application startup complete.\nlistening on http://x\n").is_empty());
    assert!(read("\u{1b}[32mOur own server\u{1b}[0m is up\n{\"msg\":\"ready\"}\n").is_empty());
    // No stamps: what a line tells is kept, what only stamps could is unknown.
    let bare = read(
        "Starting to load model x\nLoading model weights took 2.8 GB\nGraph capturing finished in 18 secs\n",
    );
    assert_eq!(bare.len(), 1);
    assert_eq!(bare[0].parts.iter().map(|part| part.stage).collect::<Vec<_>>(), [Graphs]);
    assert!(bare[0].unknown.contains(&Weights) && !bare[0].ready && bare[0].whole_s.is_none());
    // A start that died and one that came up.
    let died = "INFO 03-18 13:32:01 vLLM API server version 0.15.1\nINFO 03-18 13:32:36 Starting to load model q\nINFO 03-18 13:33:36 Loading weights took 12.00 seconds\n";
    let both = read(&format!("{died}{died}INFO 03-18 13:35:00 Application startup complete.\n"));
    assert_eq!(both.iter().map(|start| start.ready).collect::<Vec<_>>(), [false, true]);
    // Numbers that no clock has.
    read(
        "99-99 99:99:99 Starting to load model\n0.99.999.999 I Loading weights took 9999999999999999999999 seconds\n",
    );
}

fn container(events: &str) -> Vec<(StartStage, f64, f64)> {
    let found = read(events);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].ready, "{found:#?}");
    found[0].parts.iter().map(|part| (part.stage, part.seconds, part.within_s)).collect()
}

/// The same start in each form in which kubectl prints events.
#[test]
fn kubectl_says_what_the_container_took() {
    let with_times = "\
2026-11-22T10:00:01Z  Normal  Scheduled  pod/llm-0  Successfully assigned prod/llm-0 to gpu-7
2026-11-22T10:00:02Z  Normal  Pulling    pod/llm-0  Pulling image \"vllm/vllm-openai:v0.15.1\"
2026-11-22T10:01:42Z  Normal  Pulled     pod/llm-0  Successfully pulled image \"vllm/vllm-openai:v0.15.1\" in 1m39.512s (1m39.512s including waiting)
2026-11-22T10:01:43Z  Normal  Created    pod/llm-0  Created container: vllm
2026-11-22T10:01:44Z  Normal  Started    pod/llm-0  Started container vllm
";
    let truth = [(Container, 103.0, 1.0), (Image, 99.512, 0.0005)];
    assert_eq!(container(with_times), truth);
    // In no order, with ages; the words of Kubernetes 1.35.
    let table = "\
LAST SEEN   TYPE     REASON      OBJECT      MESSAGE
2m27s       Normal   Started     pod/llm-0   Container started
2m27s       Normal   Created     pod/llm-0   Container created
2m29s       Normal   Pulled      pod/llm-0   Successfully pulled image \"vllm/vllm-openai:v0.15.1\" in 1m39.512s (1m39.512s including waiting). Image size: 8123456789 bytes.
4m10s       Normal   Scheduled   pod/llm-0   Successfully assigned prod/llm-0 to gpu-7
4m9s        Normal   Pulling     pod/llm-0   Pulling image \"vllm/vllm-openai:v0.15.1\"
";
    assert_eq!(container(table), truth);
    let described = "\
Status:           Running
Events:
  Type    Reason     Age    From               Message
  ----    ------     ----   ----               -------
  Normal  Scheduled  4m10s  default-scheduler  Successfully assigned prod/llm-0 to gpu-7
  Normal  Pulling    4m9s   kubelet            Pulling image \"vllm/vllm-openai:v0.15.1\"
  Normal  Pulled     2m29s  kubelet            Successfully pulled image \"vllm/vllm-openai:v0.15.1\" in 1m39.512s
  Normal  Created    2m27s  kubelet            Created container vllm
  Normal  Started    2m27s  kubelet            Started container vllm
";
    assert_eq!(container(described), truth);
    // Ages that are told in minutes are as coarse as that.
    let old = described.replace("4m10s", "62m").replace("2m27s", "60m").replace("2m29s", "60m");
    assert_eq!(container(&old), [(Container, 120.0, 60.0), truth[1]]);
    // The scheduler fills in eventTime, the kubelet firstTimestamp; in no order.
    let event = |at: &str, reason: &str, message: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Event", "type": "Normal", {at}, "reason": "{reason}", "message": "{message}",
                "involvedObject": {{"kind": "Pod", "name": "llm-0"}}}}"#
        )
    };
    let events = [
        event(
            r#""eventTime": null, "firstTimestamp": "2026-11-22T10:01:44Z""#,
            "Started",
            "Container started",
        ),
        event(
            r#""eventTime": null, "firstTimestamp": "2026-11-22T10:01:42Z""#,
            "Pulled",
            r#"Successfully pulled image \"vllm\" in 1m39.512s (1m39.512s including waiting). Image size: 5 bytes."#,
        ),
        event(
            r#""eventTime": "2026-11-22T10:00:01.250000Z", "firstTimestamp": null"#,
            "Scheduled",
            "Successfully assigned prod/llm-0 to gpu-7",
        ),
    ];
    let list = format!(r#"{{"apiVersion": "v1", "items": [{}], "kind": "List"}}"#, events.join(","));
    let found = [(Container, 102.75, 1.0), truth[1]];
    assert_eq!(container(&list), found);
    assert_eq!(container(&events.join("\n")), found, "as --watch prints them");
    // An image that was there: a container within one second is none that runs backwards.
    let at_once = list.replace("10:01:44", "10:00:01").replace("10:01:42", "10:00:01");
    assert_eq!(container(&at_once)[0], (Container, 0.0, 1.0));
}

/// What `kubectl logs --timestamps --prefix` puts before each line is its stamp, also where the server writes none of its own.
#[test]
fn stamps_of_who_collected_the_log_are_read() {
    let prefix = "[pod/vllm-deployment-7d9f8b6c5d-abcde/vllm-container-of-a-long-name] ";
    let log = format!(
        "{prefix}2026-03-18T13:41:03.000000001Z INFO 03-18 05:41:03 [api_server.py:1] vLLM API server version 0.15.1\n\
         {prefix}2026-03-18T13:41:10.500000000Z INFO 03-18 05:41:10 [x.py:1] Starting to load model q\n\
         {prefix}2026-03-18T13:42:03.000000001Z INFO:     Application startup complete.\n"
    );
    let start = read(&log).remove(0);
    assert_eq!((start.whole_s, start.whole_at_least), (Some(60.0), false));
    assert!((start.parts[0].seconds - 7.5).abs() < 1e-6, "{start:#?}");
}
