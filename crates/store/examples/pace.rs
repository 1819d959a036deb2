//! What a record costs: left, flushed, finished, read.
//! `cargo run --release -p plimsoll-store --example pace [requests] [events] [folder to keep]`
//!
//! Prints nanoseconds per attempt and bytes per attempt at each stage, for one million answers of 16 events unless
//! told otherwise. The bar it serves: a summary of a million requests of 16 tokens in under two seconds.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a bench on a screen"
)]

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use plimsoll_model::*;
use plimsoll_store::{Columns, RunWriter, open_with};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| args.get(at).map_or(default, |arg| arg.parse().unwrap());
    let (requests, events) = (number(0, 1_000_000), number(1, 16));
    let kept = args.get(2).map(PathBuf::from);
    let own = std::env::temp_dir().join(format!("plimsoll-pace-{}", std::process::id()));
    let dir = kept.clone().unwrap_or(own);
    println!("{requests} answers of {events} events in {}", dir.display());

    let ring: Vec<Attempt> = (0..4096).map(|i| answer(i, events)).collect();
    let mut buf = Vec::new();
    let encode = clock(|| {
        for i in 0..requests as usize {
            buf.clear();
            plimsoll_store::code::put_attempt(&mut buf, &ring[i % ring.len()]);
        }
    });
    say("encode alone", encode, requests, None);

    let writer = RunWriter::create(&dir, manifest()).unwrap();
    let sink = writer.sink();
    let mut attempt = ring[0].clone();
    let put = clock(|| {
        for i in 0..requests {
            remake(&mut attempt, &ring[i as usize % ring.len()], i);
            sink.attempt(&attempt);
        }
    });
    let make = clock(|| {
        for i in 0..requests {
            remake(&mut attempt, &ring[i as usize % ring.len()], i);
            std::hint::black_box(&attempt);
        }
    });
    say("handed to the sink", put - make, requests, None);
    let flush = clock(|| writer.flush().unwrap());
    say("flushed after the last", flush, requests, Some(writer.health().written_bytes));
    println!("{:>38}  {} stalls, {} lost", "", sink.health().stalls, sink.health().lost);

    let mut count = 0;
    let back = clock(|| count = writer.attempts(|_| true).unwrap().len());
    say("read back from the log", back, count as u64, None);
    let finish = clock(|| writer.finish(manifest()).unwrap());
    let size = fs::metadata(dir.join("requests.parquet")).unwrap().len();
    say("finished (log to Parquet)", finish, requests, Some(size));

    for columns in [Columns::All, Columns::Figures, Columns::Figures] {
        let mut run = None;
        let read = clock(|| run = Some(open_with(&dir, columns).unwrap()));
        say(&format!("read {columns:?}"), read, requests, None);
        let run = run.unwrap();
        assert_eq!(run.attempts.len() as u64, requests);
        let free = clock(|| drop(run));
        say("  and freed", free, requests, None);
    }
    if kept.is_none() {
        fs::remove_dir_all(dir).unwrap();
    }
}

/// The ring's attempt as if it were the `i`-th, with an offset of its own at every event: what repeats would
/// compress better than any measurement does.
fn remake(attempt: &mut Attempt, like: &Attempt, i: u64) {
    let shift = Span(i as i64 * 1_000_003);
    attempt.request = i;
    attempt.due = like.due + shift;
    attempt.sent = like.sent.map(|at| at + shift);
    attempt.events.clone_from(&like.events);
    let mut state = i | 1;
    for event in &mut attempt.events {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        event.offset += Span((state >> 44) as i64);
        event.user_delay_ns += (state >> 52) as u32;
    }
    let at = |event: Option<&Event>| event.map(|event| like.due + shift + event.offset);
    attempt.first_byte = at(attempt.events.first());
    attempt.first_token = attempt.first_byte;
    attempt.first_visible = attempt.first_byte;
    attempt.last_token = at(attempt.events.last());
    attempt.end = attempt.last_token;
}

fn clock(act: impl FnOnce()) -> f64 {
    let start = Instant::now();
    act();
    start.elapsed().as_secs_f64()
}

fn say(what: &str, seconds: f64, rows: u64, bytes: Option<u64>) {
    let size = bytes.map_or(String::new(), |bytes| format!("{:8.1} B/attempt", bytes as f64 / rows as f64));
    println!("{what:>38}  {seconds:7.3} s  {:8.1} ns/attempt {size}", seconds * 1e9 / rows as f64);
}

/// An answer whose stamps jitter as on a real machine: a linear congruence is jitter enough.
fn answer(request: u64, events: u64) -> Attempt {
    let mut state = request.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut jitter = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below) as i64
    };
    let due = At(jitter(1_000_000));
    let sent = due + Span(30_000 + jitter(20_000));
    let mut offset = 40_000_000 + jitter(60_000_000);
    let events: Vec<Event> = (0..events)
        .map(|_| {
            offset += 18_000_000 + jitter(4_000_000);
            Event {
                offset: Span(offset),
                user_delay_ns: 8_000 + jitter(9_000) as u32,
                tokens: 1,
                kind: EventKind::Content,
                coalesced: jitter(50) == 0,
            }
        })
        .collect();
    let at = |event: Option<&Event>| event.map(|event| sent + event.offset);
    Attempt {
        request,
        attempt: 0,
        level: 3,
        session: None,
        turn: 0,
        turns: 0,
        class: 0,
        target: 0,
        due,
        sent: Some(sent),
        connected: Some(At(-5_000_000)),
        first_byte: at(events.first()),
        first_token: at(events.first()),
        first_visible: at(events.first()),
        last_token: at(events.last()),
        end: at(events.last()),
        kernel_stamps: true,
        asked_prompt: 100 + jitter(900) as u32,
        resent: None,
        asked_output: events.len() as u32,
        prompt_blocks: vec![],
        media: Default::default(),
        bytes_out: 2_000 + jitter(4_000) as u64,
        bytes_in: 4_000 + jitter(300) as u64,
        connection: Some(jitter(500) as u32),
        reused: true,
        tcp: Default::default(),
        outcome: Outcome::FINISHED,
        answer: Answer {
            status: Some(200),
            finish_reason: Some("length".into()),
            tokens: Tokens {
                prompt: Some(100 + jitter(900) as u32),
                output: Some(events.len() as u32),
                reasoning: None,
                cached: Some(0),
                rule: TokensRule::UsageTotal,
            },
            ..Answer::default()
        },
        events,
    }
}

fn manifest() -> Manifest {
    Manifest {
        schema: run::SCHEMA_VERSION,
        tool: "plimsoll bench".into(),
        kind: "run".into(),
        id: "0".repeat(16),
        label: None,
        progress: RunState::Running,
        time: plimsoll_model::Time::Real,
        clock: ClockAnchor::default(),
        seed: 1,
        nonce: 1,
        reproduce: String::new(),
        repeats: None,
        shard: None,
        shards: Vec::new(),
        host: Host::default(),
        target: Fingerprint::default(),
        flags: Vec::new(),
        scenario: serde_json::Value::Null,
        levels: vec![],
        findings: None,
    }
}
