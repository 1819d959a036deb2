//! How long does it take to say what a run of a million requests of sixteen tokens found?
//! `cargo bench -p plimsoll --bench summary`. Words: `requests=1000000` `tokens=16` `times=3`.
//!
//! A made run is written with the store, opened and analysed as `plimsoll show` does it, and then shown, and held to a budget, by
//! the binary itself. Every stamp has jitter of its own: a run that repeats itself would compress better than a measurement.

mod kit;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use kit::{Args, Result, bar, monotonic_ns, plimsoll, say};
use plimsoll_math::rng::Stream;
use plimsoll_measure::SweepSpec;
use plimsoll_model::{
    Answer, At, Attempt, ClockAnchor, EndedBy, Event, EventKind, Fingerprint, GeneratorHealth, Host, Level,
    Load, Manifest, Outcome, RateCourse, RunState, SizeUnit, Span, StampSource, Tokens, TokensRule,
    run::SCHEMA_VERSION,
};
use plimsoll_store::{Columns, RunWriter};

/// Opened and analysed, at most.
const BAR_S: f64 = 2.0;
/// Held to a budget file of eight budgets, at most.
const GATE_BAR_S: f64 = 3.0;
/// Requests per second of the made run.
const RATE_PER_S: i64 = 10_000;
/// Redraws of the bootstrap, as for final findings.
const REPLICATES: usize = 800;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let requests = args.number("requests", 1e6)? as u64;
        let tokens = args.number("tokens", 16.0)? as u32;
        let folder = tempfile::tempdir()?;
        let dir = folder.path().join("run");
        let (wrote_s, ()) = timed(|| write(&dir, requests, tokens))?;
        say(format!("{requests} requests of {tokens} tokens, written in {wrote_s:.2} s"));
        let times = args.number("times", 3.0)? as u32;
        for columns in [Columns::Figures, Columns::All] {
            let slowest = (0..times).map(|_| analyse(&dir, columns)).collect::<Result<Vec<_>>>()?;
            let slowest_s = slowest.into_iter().fold(0.0, f64::max);
            let name = format!("open and analyse, {columns:?}, slowest");
            bar(&name, format!("{slowest_s:.2} s"), "< 2 s", slowest_s < BAR_S);
        }
        let (show_s, ()) = timed(|| show(&dir))?;
        bar("plimsoll show, exec to exit", format!("{show_s:.2} s"), "< 2 s", show_s < BAR_S);
        let (gate_s, ()) = timed(|| gate(&dir))?;
        bar("plimsoll gate, exec to exit", format!("{gate_s:.2} s"), "< 3 s", gate_s < GATE_BAR_S);
        Ok(())
    })
}

fn timed<T>(act: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let began_ns = monotonic_ns();
    let done = act()?;
    Ok(((monotonic_ns() - began_ns) as f64 / 1e9, done))
}

fn analyse(dir: &Path, columns: Columns) -> Result<f64> {
    let cpu_s = kit::own_cpu_s()?;
    let (opened_s, run) = timed(|| Ok(plimsoll_store::open_with(dir, columns)?))?;
    let spec = SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(REPLICATES);
    let (analysed_s, findings) =
        timed(|| Ok(plimsoll_measure::analyse(&run.manifest, &run.attempts, &run.samples, &spec)))?;
    let cpu_s = kit::own_cpu_s()? - cpu_s;
    let level = findings.levels.first().ok_or("no level found")?;
    let p99 = level.summary.latency.leading().p99.value().ok_or("no p99")?;
    say(format!(
        "columns {columns:?}: opened in {opened_s:.2} s, analysed in {analysed_s:.2} s, CPU {cpu_s:.2} s; {} requests, ttft \
         p99 {:.2} ms",
        level.summary.counts.requests,
        p99 * 1e3
    ));
    Ok(opened_s + analysed_s)
}

fn show(dir: &Path) -> Result<()> {
    let ended = Command::new(plimsoll()).arg("show").arg(dir).stdout(Stdio::null()).status()?;
    // A made run may be judged invalid (it has no sampled counter); what counts is that it was read and judged.
    if ended.code().is_some_and(|code| code == 0 || code == 4) { Ok(()) } else { Err("show failed".into()) }
}

/// Every kind of budget that one level can be held to.
const BUDGETS: &str = "version: 1
budgets:
  - {id: ttft-p50, metric: ttft, p: 50, max: 60ms}
  - {id: ttft-p99, metric: ttft, p: 99, max: 90ms}
  - {id: e2e-p999, metric: e2e, p: 99.9, max: 400ms}
  - {id: tpot-p99, metric: tpot, p: 99, max: 20ms}
  - {id: gaps, metric: event_gap, p: 99, max: 20ms}
  - {id: errors, metric: error_and_retry_rate, max: 1%}
  - {id: tail, metric: ttft_tail_ratio, max: 3}
  - {id: long, metric: ttft, p: 95, max: 80ms, slice: {prompt_tokens: 64..}}
";

fn gate(dir: &Path) -> Result<()> {
    let budget = dir.with_extension("yaml");
    std::fs::write(&budget, BUDGETS)?;
    let ended = Command::new(plimsoll())
        .arg("gate")
        .arg(dir)
        .arg("--budget")
        .arg(&budget)
        .stdout(Stdio::null())
        .status()?;
    // As above: judged, whatever the verdict.
    if ended.code().is_some_and(|code| code != 2 && code != 5) { Ok(()) } else { Err("gate failed".into()) }
}

fn write(dir: &Path, requests: u64, tokens: u32) -> Result<()> {
    let writer = RunWriter::create(dir, manifest())?;
    let sink = writer.sink();
    let mut chance = Stream::new(1, "bench.summary", 0);
    for request in 0..requests {
        sink.attempt(&answer(request, tokens, &mut chance));
    }
    let stop = At(requests as i64 * 1_000_000_000 / RATE_PER_S);
    writer.level(&Level {
        id: 0,
        traffic: "steady".into(),
        purpose: "run".into(),
        load: Load::Open { rate_per_s: RATE_PER_S as f64 },
        rate_course: RateCourse::Even,
        start: At::ZERO,
        stop,
        drained: stop + Span::from_secs(1),
        ended_by: EndedBy::Complete,
        arrivals: requests,
        schedule_hash: "0".repeat(16),
        unit: SizeUnit::Tokens,
        generator: GeneratorHealth { stamps: StampSource::Kernel, ..GeneratorHealth::default() },
    })?;
    let manifest = writer.manifest();
    writer.finish(manifest)?;
    Ok(())
}

/// An answer that took an exponential time to its first token and jitters behind it.
fn answer(request: u64, tokens: u32, chance: &mut Stream) -> Attempt {
    let due = At(request as i64 * 1_000_000_000 / RATE_PER_S);
    let sent = due + Span(20_000 + (20_000.0 * chance.uniform()) as i64);
    let mut offset = 20_000_000 - (10e6 * chance.uniform().ln()) as i64;
    let events: Vec<Event> = (0..tokens)
        .map(|_| {
            offset += 14_000_000 + (2e6 * chance.uniform()) as i64;
            Event {
                offset: Span(offset),
                user_delay_ns: 8_000 + (8_000.0 * chance.uniform()) as u32,
                tokens: 1,
                kind: EventKind::Content,
                coalesced: chance.uniform() < 0.02,
            }
        })
        .collect();
    let at = |event: Option<&Event>| event.map(|event| sent + event.offset);
    let (first, last) = (at(events.first()), at(events.last()));
    Attempt {
        request,
        attempt: 0,
        level: 0,
        session: None,
        turn: 0,
        class: 0,
        due,
        sent: Some(sent),
        connected: Some(At(-1_000_000)),
        first_byte: first,
        first_token: first,
        first_visible: first,
        last_token: last,
        end: last,
        events,
        kernel_stamps: true,
        asked_prompt: 64,
        asked_output: tokens,
        prompt_blocks: vec![],
        bytes_out: 500 + chance.below(100),
        bytes_in: 4_000 + chance.below(100),
        connection: Some(chance.below(500) as u32),
        reused: true,
        tcp: Default::default(),
        outcome: Outcome::FINISHED,
        answer: Answer {
            status: Some(200),
            finish_reason: Some("length".into()),
            tokens: Tokens {
                prompt: Some(64),
                output: Some(tokens),
                reasoning: None,
                cached: Some(0),
                rule: TokensRule::UsageTotal,
            },
            ..Answer::default()
        },
    }
}

fn manifest() -> Manifest {
    Manifest {
        schema: SCHEMA_VERSION,
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
