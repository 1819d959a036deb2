//! Traces whose turns wait for each other, as a plan plays them: against a recursion stepped manually.

use plimsoll_lab::sessions::{Session, Turn, step};
use plimsoll_math::rng::Stream;
use plimsoll_plan::load::Draw;
use plimsoll_plan::replay::{DRAIN_NS, ReplayWatch, ReplayedRequest, play_each};
use plimsoll_plan::spec::TrafficSpec;
use plimsoll_sim::{EngineSpec, LawSpec, ModeSpec, QueueSpec, World, WorldSpec};
use plimsoll_workload::trace::detect_and_read;
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, TraceSizes};
use serde_json::json;

const SERVERS: usize = 3;
const SERVICE_NS: i64 = 37_000_000;

fn drawn(count: usize) -> Vec<Session> {
    let mut stream = Stream::new(5, "sessions of a plan", 0);
    let (mut begins, mut odd) = (0, 0);
    let mut sessions = Vec::new();
    for _ in 0..count {
        let mut turns: Vec<Turn> = Vec::new();
        for t in 0..1 + stream.below(7) as usize {
            let after: Vec<usize> = (0..t).filter(|of| *of + 3 > t && stream.chance(0.6)).collect();
            odd += 1_009;
            let wait = if after.is_empty() { 0 } else { stream.below(80_000) as i64 * 1_000 + odd };
            turns.push(Turn { after, wait });
        }
        sessions.push(Session { begins, turns });
        begins += stream.below(100_000) as i64 * 1_000 + 1_000;
    }
    sessions
}

fn traffic(sessions: &[Session]) -> TrafficSpec {
    let mut lines = String::new();
    for (s, session) in sessions.iter().enumerate() {
        for (t, turn) in session.turns.iter().enumerate() {
            let after: Vec<String> = turn.after.iter().map(usize::to_string).collect();
            let mut line = json!({
                "session_id": s, "id": t.to_string(), "after": after, "timestamp": session.begins as f64 / 1e6, "input_length": 8, "output_length": 1,
            });
            if !turn.after.is_empty() {
                line["wait_ms"] = json!(turn.wait as f64 / 1e6);
            }
            lines += &format!("{line}\n");
        }
    }
    let file = "agents.jsonl".to_owned();
    let mut scenario = Scenario {
        arrivals: ArrivalSpec::Trace {
            file: file.clone(),
            speed: None,
            sizes: TraceSizes::Own,
            repeat: false,
        },
        ..Scenario::default()
    };
    scenario.load =
        LoadSpec::Open { rate: None, window: plimsoll_model::Span::from_secs(60), warm_up: 0, alone: 0 };
    scenario.material.insert_trace(&file, detect_and_read(lines.as_bytes(), &file).expect("a trace"));
    let rate_per_s = scenario.rate().expect("a rate");
    let window_s = scenario.trace_window().expect("a trace").expect("a window").as_secs_f64();
    TrafficSpec { scenario, rate_per_s, window_s, source: "test".into() }
}

fn world() -> WorldSpec {
    let service = LawSpec::Deterministic { ms: SERVICE_NS as f64 / 1e6 };
    let mode = ModeSpec::Queue(QueueSpec { servers: SERVERS as u32, service, queue_limit: None });
    WorldSpec::one(EngineSpec { name: "queue".into(), mode })
}

#[derive(Default)]
struct Seen {
    over: Vec<ReplayedRequest>,
    asked: usize,
    turns_away: Option<usize>,
}

impl ReplayWatch for Seen {
    fn admits(&mut self, _in_flight: usize) -> bool {
        self.asked += 1;
        self.turns_away != Some(self.asked)
    }

    fn over(&mut self, over: ReplayedRequest) {
        self.over.push(over);
    }
}

fn played(draw: Draw, turns_away: Option<usize>) -> Seen {
    let mut seen = Seen { turns_away, ..Seen::default() };
    let mut world = World::of(&world(), 1).expect("sound");
    assert!(draw.steps);
    play_each(&mut world, draw.stepped(1), DRAIN_NS, &mut seen);
    seen
}

#[test]
fn every_turn_is_due_when_the_recursion_says() {
    let sessions = drawn(120);
    let load = traffic(&sessions);
    let draw = load.draw(&world(), 1.0, 0, 3).expect("drawn");
    let requests = draw.requests as usize;
    let seen = played(draw, None);
    let mut truth: Vec<(i64, i64)> = step(&sessions, SERVERS, SERVICE_NS).into_iter().flatten().collect();
    let mut times: Vec<(i64, i64)> = seen.over.iter().map(|over| (over.due_ns, over.left_ns)).collect();
    truth.sort_unstable();
    times.sort_unstable();
    assert_eq!((times.len(), requests), (truth.len(), truth.len()));
    assert_eq!(times, truth);
    assert!(
        truth.iter().filter(|(due, end)| end - due > SERVICE_NS).count() > 20,
        "nobody waits: tells nothing"
    );
    let mut numbers: Vec<u64> = seen.over.iter().map(|over| over.index).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..requests as u64).collect::<Vec<u64>>());
}

#[test]
fn what_comes_after_one_that_is_turned_away_is_over_without_an_answer() {
    let sessions = [Session {
        begins: 0,
        turns: vec![
            Turn { after: vec![], wait: 0 },
            Turn { after: vec![0], wait: 1_000_000 },
            Turn { after: vec![0], wait: 9_000_000 },
            Turn { after: vec![1], wait: 1_000_000 },
            Turn { after: vec![2, 3], wait: 1_000_000 },
        ],
    }];
    let seen = played(traffic(&sessions).draw(&world(), 1.0, 0, 3).expect("drawn"), Some(2));
    // The second is rejected, the fourth and the fifth are never sent, and the third is answered.
    let answered = seen.over.iter().filter(|over| over.times.end.is_some()).count();
    assert_eq!((seen.over.len(), answered, seen.asked), (5, 2, 3));
}

#[test]
fn other_schedules_have_whole_sessions_and_their_waits() {
    let sessions = drawn(400);
    let load = traffic(&sessions);
    let sizes: Vec<usize> = sessions.iter().map(|session| session.turns.len()).collect();
    let plain = played(load.draw(&world(), 1.0, 0, 3).expect("drawn"), None).over.len();
    assert_eq!(plain, sizes.iter().sum::<usize>());
    for index in 1..4 {
        let draw = load.draw(&world(), 2.0, index, 3).expect("drawn");
        let (requests, window_ns) = (draw.requests, draw.window_ns);
        let seen = played(draw, None);
        assert_eq!(seen.over.len() as u64, requests);
        assert!(seen.over.iter().all(|over| over.times.end.is_some()));
        // Twice as fast: as many turns in half the time, but for the luck of the draw.
        let share = seen.over.len() as f64 / plain as f64;
        assert!((0.6..1.6).contains(&share), "{share}");
        let whole = load.window_s * 1e9 / 2.0;
        assert!((window_ns as f64 / whole - 1.0).abs() < 0.3, "{window_ns} and {whole}");
    }
    let poisson = load.poisson(5).expect("drawn").draw(&world(), 1.0, 0, 3).expect("drawn");
    assert_eq!(played(poisson, None).over.len(), plain);
}
