//! A small language for records. All its times are milliseconds from the due time.

use plimsoll_model::{
    Answer, At, Attempt, Broken, By, EndedBy, Event, EventKind, GeneratorHealth, How, Level, Load, Manifest,
    Outcome, RateCourse, Sample, SizeUnit, Span, StampSource, Tokens, TokensRule,
};
use serde_json::json;

pub const MS: i64 = 1_000_000;

/// Returns a single level of this many seconds at this rate.
pub fn level(rate_per_s: f64, seconds: i64) -> Level {
    Level {
        id: 0,
        traffic: "steady".into(),
        purpose: "run".into(),
        load: Load::Open { rate_per_s },
        rate_course: RateCourse::Even,
        start: At::ZERO,
        stop: At(seconds * 1_000 * MS),
        drained: At((seconds + 1) * 1_000 * MS),
        ended_by: EndedBy::Complete,
        arrivals: 0,
        schedule_hash: String::new(),
        unit: SizeUnit::Tokens,
        generator: GeneratorHealth { stamps: StampSource::Kernel, ..GeneratorHealth::default() },
    }
}

/// Returns a complete attempt of a request that is due at this millisecond.
///
/// The request is sent immediately; first byte and token arrive after `ttft`, and the end after `e2e`. The `tokens` tokens are evenly spaced.
pub fn answer(request: u64, due_ms: i64, ttft: i64, e2e: i64, tokens: u32) -> Attempt {
    let due = At(due_ms * MS);
    let at = |ms: i64| Some(due + Span(ms * MS));
    let step = if tokens > 1 { (e2e - ttft) * MS / i64::from(tokens - 1) } else { 0 };
    let events = (0..i64::from(tokens)).map(|i| event(0, 1).after(Span(ttft * MS + i * step))).collect();
    Attempt {
        request,
        attempt: 0,
        level: 0,
        session: None,
        turn: 0,
        turns: 0,
        class: 0,
        target: 0,
        due,
        sent: Some(due),
        connected: Some(due),
        first_byte: at(ttft),
        first_token: at(ttft),
        first_visible: at(ttft),
        last_token: at(e2e),
        end: at(e2e),
        events,
        kernel_stamps: true,
        asked_prompt: 10,
        resent: None,
        asked_output: tokens,
        prompt_blocks: Vec::new(),
        media: Default::default(),
        bytes_out: 0,
        bytes_in: 0,
        connection: None,
        reused: true,
        tcp: Default::default(),
        outcome: Outcome::FINISHED,
        answer: Answer {
            status: Some(200),
            tokens: Tokens {
                prompt: Some(10),
                output: Some(tokens),
                rule: TokensRule::UsageTotal,
                ..Tokens::default()
            },
            ..Answer::default()
        },
    }
}

/// Returns an attempt that failed this way, this long after its due time.
pub fn failure(request: u64, due_ms: i64, how: How, after: i64) -> Attempt {
    let mut attempt = answer(request, due_ms, after, after, 5);
    (attempt.first_byte, attempt.first_token, attempt.first_visible, attempt.last_token) =
        (None, None, None, None);
    attempt.events.clear();
    attempt.outcome = Outcome::new(how, By::Server, true);
    attempt.answer = Answer::default();
    attempt
}

/// Returns a content event at this millisecond from `sent` with this many tokens.
pub fn event(ms: i64, tokens: u16) -> Event {
    Event { offset: Span(ms * MS), user_delay_ns: 0, tokens, kind: EventKind::Content, coalesced: false }
}

/// Chained changes of a record in time.
pub trait Later: Sized {
    /// Returns the record shifted by `offset`.
    fn after(self, offset: Span) -> Self;
}

impl Later for Event {
    fn after(self, offset: Span) -> Event {
        Event { offset: self.offset + offset, ..self }
    }
}

/// Returns the attempt with a complete but wrong answer.
pub fn broken(mut attempt: Attempt, what: Broken) -> Attempt {
    attempt.answer.broken = Some(what);
    attempt
}

/// Returns the manifest of a simulated run of these levels.
pub fn manifest(levels: Vec<Level>) -> Manifest {
    serde_json::from_value(json!({
        "schema": 1, "tool": "test", "kind": "simulate", "id": "", "progress": {"state": "complete"},
        "time": "virtual", "clock": {"monotonic_ns": 0, "realtime_ns": 0}, "seed": 1, "nonce": 0, "reproduce": "",
        "host": {"os": "", "cpu": "", "cores": 1, "governor": null},
        "target": {"url": "simulated:test", "facts": {}},
        "scenario": {"seed": 1, "nonce": 0, "load": {"rate": "10/s"}, "sizes": {"prompt": "10"}},
        "levels": levels, "findings": null
    }))
    .expect("a manifest")
}

/// Returns scrapes of the DCGM exporter, one a second: a GPU that draws this power and uses this memory.
pub fn gpu(seconds: i64, watts: f64, gib: f64) -> Vec<Sample> {
    let of = |s: i64| {
        let row = |name: &str, value: f64| Sample {
            at: At(s * 1_000 * MS),
            source: "gpu".into(),
            name: name.into(),
            labels: "UUID=GPU-1,gpu=0".into(),
            value,
        };
        [
            row("DCGM_FI_DEV_POWER_USAGE", watts),
            row("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e3 * watts * s as f64),
            row("DCGM_FI_DEV_FB_USED", 1024.0 * gib),
        ]
    };
    (0..=seconds).flat_map(of).collect()
}
