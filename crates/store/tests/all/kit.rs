//! Provides the helpers of these tests: arbitrary and plain records, a manifest, a child process.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use plimsoll_model::*;
use plimsoll_store::{RunWriter, StoredRun, open};
use proptest::prelude::*;

pub fn manifest() -> Manifest {
    Manifest {
        schema: run::SCHEMA_VERSION,
        tool: "plimsoll test".into(),
        kind: "run".into(),
        id: "00000000deadbeef".into(),
        label: None,
        progress: RunState::Running,
        time: plimsoll_model::TimeBase::Real,
        clock: ClockAnchor { monotonic_ns: 1, realtime_ns: 2 },
        seed: u64::MAX,
        nonce: 7,
        reproduce: "plimsoll run URL --rate 12/s".into(),
        repeats: None,
        shard: None,
        shards: Vec::new(),
        host: Host::default(),
        target: Fingerprint { url: "http://h/v1".into(), facts: [("model".to_string(), None)].into() },
        flags: Vec::new(),
        scenario: serde_json::json!({"seed": 7, "rate": "12/s"}),
        levels: vec![],
        findings: None,
    }
}

pub fn level(id: u32) -> Level {
    Level {
        id,
        traffic: "steady".into(),
        purpose: "run".into(),
        load: Load::Open { rate_per_s: 12.5 },
        rate_course: RateCourse::Even,
        start: At(0),
        stop: At(60_000_000_000),
        drained: At(61_000_000_000),
        ended_by: EndedBy::Complete,
        arrivals: 750,
        schedule_hash: "0123456789abcdef".into(),
        unit: SizeUnit::Tokens,
        generator: GeneratorHealth::default(),
    }
}

/// Returns a response of `events` tokens, 20 ms apart, whose numbers differ from request to request.
pub fn answered(request: u64, events: usize) -> Attempt {
    let due = At(request as i64 * 1_000_003);
    let sent = due + Span(31_000 + (request as i64 * 7_919) % 20_000);
    let events: Vec<Event> = (0..events)
        .map(|i| Event {
            offset: Span(
                50_000_000 + i as i64 * 20_000_000 + (request as i64 * 31 + i as i64 * 17) % 100_000,
            ),
            user_delay_ns: 9_000 + ((request as u32).wrapping_mul(17) + i as u32 * 29) % 8_000,
            tokens: 1,
            kind: EventKind::Content,
            coalesced: i % 11 == 10,
        })
        .collect();
    let last = events.last().map(|e| sent + e.offset);
    Attempt {
        request,
        attempt: 0,
        level: 1,
        session: None,
        turn: 0,
        turns: 0,
        class: 0,
        target: 0,
        due,
        sent: Some(sent),
        connected: Some(At(-5_000_000)),
        first_byte: events.first().map(|e| sent + e.offset),
        first_token: events.first().map(|e| sent + e.offset),
        first_visible: events.first().map(|e| sent + e.offset),
        last_token: last,
        end: Some(last.unwrap_or(sent) + Span(40_000)),
        kernel_stamps: true,
        asked_prompt: 512,
        resent: None,
        asked_output: events.len() as u32,
        prompt_blocks: vec![],
        media: Default::default(),
        bytes_out: 900 + request % 64,
        bytes_in: 4_000 + request % 256,
        connection: Some((request % 500) as u32),
        reused: true,
        tcp: TcpFacts {
            rtt: Some(Span(41_000)),
            retransmits: Some(0),
            segments_in: Some(12),
            ..TcpFacts::default()
        },
        outcome: Outcome::FINISHED,
        answer: Answer {
            status: Some(200),
            finish_reason: Some("length".into()),
            tokens: Tokens {
                prompt: Some(512),
                output: Some(events.len() as u32),
                reasoning: None,
                cached: None,
                rule: TokensRule::UsageTotal,
                claimed: None,
            },
            ..Answer::default()
        },
        events,
    }
}

/// Generates arbitrary attempts, with every field anywhere in its range.
pub fn attempts() -> impl Strategy<Value = Attempt> {
    let at = || prop_oneof![any::<i64>(), 0..10_000_000_000i64].prop_map(At);
    let text = || proptest::option::of("\\PC{0,12}");
    let event = (any::<i64>(), any::<u32>(), any::<u16>(), 0..10u8, any::<bool>(), 0..4u8).prop_map(
        |(offset, delay, tokens, kind, coalesced, small)| Event {
            offset: Span(offset),
            user_delay_ns: if small & 1 == 0 { delay } else { 0 },
            tokens: if small & 2 == 0 { tokens } else { tokens % 3 },
            kind: EventKind::from_u8(kind).unwrap(),
            coalesced,
        },
    );
    let ids = (any::<u64>(), any::<u16>(), any::<u32>(), any::<Option<u64>>(), any::<u16>(), any::<u16>());
    let stamps = (at(), proptest::collection::vec(proptest::option::of(at()), 7));
    let lists = (
        proptest::collection::vec(event, 0..8),
        proptest::collection::vec(any::<u64>(), 0..4),
        proptest::collection::vec(("\\PC{0,8}", any::<i64>()), 0..3),
    );
    let tcp = (any::<[Option<i64>; 3]>(), any::<[Option<u32>; 4]>()).prop_map(|(times, counts)| TcpFacts {
        rtt: times[0].map(Span),
        rtt_var: times[1].map(Span),
        rtt_min: times[2].map(Span),
        retransmits: counts[0],
        segments_out: counts[1],
        segments_in: counts[2],
        out_of_order: counts[3],
    });
    let sizes = (any::<[u32; 2]>(), any::<[u64; 2]>(), any::<Option<u32>>(), any::<[bool; 3]>(), tcp);
    let outcome = (0..14usize, 0..4usize);
    let answer = (
        any::<Option<u16>>(),
        proptest::collection::vec(any::<Option<u32>>(), 4),
        0..4usize,
        0..6usize,
        any::<Option<i64>>(),
        (text(), text(), text(), text()),
    );
    (ids, stamps, lists, sizes, outcome, answer).prop_map(
        |(ids, (due, stamps), (events, blocks, stages), sizes, outcome, answer)| {
            let (finish_reason, error, replica, text) = answer.5;
            Attempt {
                request: ids.0,
                attempt: ids.1,
                level: ids.2,
                session: ids.3,
                turn: ids.4,
                turns: ids.4 % 3,
                class: ids.5,
                target: ids.5 % 3,
                due,
                sent: stamps[0],
                connected: stamps[1],
                first_byte: stamps[2],
                first_token: stamps[3],
                first_visible: stamps[4],
                last_token: stamps[5],
                end: stamps[6],
                events,
                kernel_stamps: sizes.3[0],
                asked_prompt: sizes.0[0],
                resent: ids.3.is_some().then_some(sizes.0[0] / 2),
                asked_output: sizes.0[1],
                prompt_blocks: blocks,
                media: MediaCounts {
                    images: u32::from(ids.5 % 3),
                    pixels: sizes.1[0] / 2 * u64::from(ids.5 % 2),
                    audio_ms: sizes.1[1] / 2 * u64::from(ids.5 % 2),
                    documents: u32::from(ids.5 % 4),
                },
                bytes_out: sizes.1[0],
                bytes_in: sizes.1[1],
                connection: sizes.2,
                reused: sizes.3[1],
                tcp: sizes.4,
                outcome: Outcome::new(How::ALL[outcome.0], By::ALL[outcome.1], sizes.3[2]),
                answer: Answer {
                    status: answer.0,
                    finish_reason,
                    tokens: Tokens {
                        prompt: answer.1[0],
                        output: answer.1[1],
                        reasoning: answer.1[2],
                        cached: answer.1[3],
                        rule: TokensRule::ALL[answer.2],
                        claimed: answer.1[2],
                    },
                    broken: Broken::ALL.get(answer.3).copied(),
                    retry_after: answer.4.map(Span),
                    error,
                    replica,
                    stages: stages
                        .into_iter()
                        .map(|(name, took)| ServerStage { name, took: Span(took) })
                        .collect(),
                    text,
                },
            }
        },
    )
}

/// Generates arbitrary samples. (Without NaN, which equals no value and has a separate test.)
pub fn samples() -> impl Strategy<Value = Sample> {
    (
        any::<i64>(),
        "[a-z]{0,8}",
        "\\PC{0,12}",
        "\\PC{0,20}",
        proptest::num::f64::NORMAL | proptest::num::f64::ZERO,
    )
        .prop_map(|(at, source, name, labels, value)| Sample {
            at: At(at),
            source: source.into(),
            name: name.into(),
            labels: labels.into(),
            value,
        })
}

/// Writes a finished run of these records.
pub fn written(dir: &Path, attempts: &[Attempt], samples: &[Sample]) {
    let writer = RunWriter::create(dir, manifest()).unwrap();
    attempts.iter().for_each(|attempt| writer.attempt(attempt));
    samples.iter().for_each(|sample| writer.sample(sample));
    let manifest = writer.manifest();
    writer.finish(manifest).unwrap();
}

/// Writes records and drops the writer like a crash: the log remains, unlocked.
pub fn abandoned(dir: &Path, attempts: &[Attempt], samples: &[Sample]) {
    let writer = RunWriter::create(dir, manifest()).unwrap();
    attempts.iter().for_each(|attempt| writer.attempt(attempt));
    samples.iter().for_each(|sample| writer.sample(sample));
    writer.flush().unwrap();
}

/// Opens a run, or panics with the error.
pub fn opened(dir: &Path) -> StoredRun {
    open(dir).unwrap_or_else(|error| panic!("{error}"))
}

/// Starts this test binary with only `test` and with `var` set, so that the test runs its child part.
pub fn child(test: &str, var: &str, value: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(var, value)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
