//! How long does it take to say what a run of a million requests of sixteen tokens found?
//! `cargo bench -p plimsoll --bench summary`. Words: `requests=1000000` `tokens=16` `times=3` `events=lists` (or `ends`: without the
//! times between the first token and the last) `keep=FOLDER` (leaves the run there, and finds it there the next time).
//!
//! A made run is written with the store, opened and analysed with all its rows in memory (a million at most), and then shown, held
//! to a budget, diagnosed and ranked levers for by the binary itself. Every stamp has jitter of its own, one request in a hundred is shed, and rows come as their answers end: a
//! run that repeats itself, or lies in order, would be read faster than a measurement.

mod kit;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use kit::{Args, Result, bar, monotonic_ns, plimsoll, say};
use plimsoll_math::rng::Stream;
use plimsoll_measure::SweepSpec;
use plimsoll_model::{
    Answer, At, Attempt, By, ClockAnchor, EndedBy, Event, EventKind, Fingerprint, GeneratorHealth, Host, How,
    Level, Load, Manifest, Outcome, RateCourse, RunState, SizeUnit, Span, StampSource, TcpFacts, Tokens,
    TokensRule, run::SCHEMA_VERSION,
};
use plimsoll_store::{ColumnSelection, RunWriter};

/// Opened and analysed, at most.
const BAR_S: f64 = 2.0;
/// Held to a budget file of eight budgets, at most.
const GATE_BAR_S: f64 = 3.0;
/// Memory of a command that looks at single requests, at most.
const MOST_MIB: f64 = 1024.0;
/// Requests per second of the made run.
const RATE_PER_S: i64 = 10_000;
/// Redraws of the bootstrap, as for final findings.
const REPLICATES: usize = 800;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let requests = args.number("requests", 1e6)? as u64;
        let tokens = args.number("tokens", 16.0)? as u32;
        let lists = args.get("events").is_none_or(|events| events != "ends");
        let folder = tempfile::tempdir()?;
        let kept = args.get("keep").map(PathBuf::from);
        let dir = kept.unwrap_or_else(|| folder.path().join("run"));
        if !dir.exists() {
            let (wrote_s, ()) = timed(|| write(&dir, requests, (tokens, lists)))?;
            say(format!("{requests} requests of {tokens} tokens, written in {wrote_s:.2} s"));
        }
        let times = if requests > MOST_HELD { 0 } else { args.number("times", 3.0)? as u32 };
        for columns in [ColumnSelection::Figures, ColumnSelection::All].into_iter().filter(|_| times > 0) {
            let slowest = (0..times).map(|_| analyse(&dir, columns)).collect::<Result<Vec<_>>>()?;
            let slowest_s = slowest.into_iter().fold(0.0, f64::max);
            let name = format!("open and analyse, {columns:?}, slowest");
            bar(&name, format!("{slowest_s:.2} s"), "< 2 s", slowest_s < BAR_S);
        }
        let budget = dir.with_extension("yaml");
        std::fs::write(&budget, BUDGETS)?;
        let run = dir.display().to_string();
        let gate = ["gate", &run, "--budget", &budget.display().to_string()];
        for (words, most_s) in [(&["show", &run][..], BAR_S), (&gate, GATE_BAR_S)] {
            let Whole { took_s, cpu_s, peak_kib } = whole(words)?;
            let millions = requests as f64 / 1e6;
            let figure = format!(
                "{took_s:.2} s, {cpu_s:.2} CPU s ({:.1} per ten million), peak {:.0} MiB ({:.0} B a request)",
                10.0 * cpu_s / millions,
                peak_kib as f64 / 1024.0,
                1024.0 * peak_kib as f64 / requests as f64
            );
            let most_s = most_s * millions.max(1.0);
            let name = format!("plimsoll {}, exec to exit", words[0]);
            bar(&name, figure, &format!("< {most_s} s"), took_s < most_s);
        }
        // What looks at single requests takes a stretch of a long run: no more of ten million than of one.
        for words in [&["diagnose", &run][..], &["levers", &run, "--level", "0"]] {
            let Whole { took_s, cpu_s, peak_kib } = whole(words)?;
            let peak_mib = peak_kib as f64 / 1024.0;
            let figure = format!("{peak_mib:.0} MiB, {took_s:.2} s, {cpu_s:.2} CPU s");
            bar(&format!("plimsoll {}, peak", words[0]), figure, "< 1024 MiB", peak_mib < MOST_MIB);
        }
        Ok(())
    })
}

/// Most requests whose rows are held by the bench itself.
const MOST_HELD: u64 = 1_000_000;

/// What a command took, from exec to exit.
struct Whole {
    took_s: f64,
    cpu_s: f64,
    peak_kib: u64,
}

fn whole(words: &[&str]) -> Result<Whole> {
    let (began_ns, before_s) = (monotonic_ns(), kit::children_cpu_s()?);
    let mut child = Command::new(plimsoll()).args(words).stdout(Stdio::null()).spawn()?;
    let mut peak_kib = 0;
    let ended = loop {
        peak_kib = kit::status_kib(child.id(), "VmHWM").unwrap_or(0).max(peak_kib);
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let took_s = (monotonic_ns() - began_ns) as f64 / 1e9;
    // A made run may be judged invalid (it has no sampled counter), and any verdict will do; what counts is that it was read and judged.
    match ended.code().is_some_and(|code| code != 2 && code != 5) {
        true => Ok(Whole { took_s, cpu_s: kit::children_cpu_s()? - before_s, peak_kib }),
        false => Err(format!("{} failed", words[0]).into()),
    }
}

fn timed<T>(act: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let began_ns = monotonic_ns();
    let done = act()?;
    Ok(((monotonic_ns() - began_ns) as f64 / 1e9, done))
}

fn analyse(dir: &Path, columns: ColumnSelection) -> Result<f64> {
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

fn write(dir: &Path, requests: u64, (tokens, lists): (u32, bool)) -> Result<()> {
    let writer = RunWriter::create(dir, manifest())?;
    let sink = writer.sink();
    let mut chance = Stream::new(1, "bench.summary", 0);
    let (mut ends, mut open) = (BinaryHeap::new(), std::collections::BTreeMap::new());
    for request in 0..requests {
        let mut answer = answer(request, tokens, &mut chance);
        if !lists {
            answer.events.clear();
        }
        while let Some(Reverse((_, first))) = ends.peek().filter(|Reverse((end, _))| *end < Some(answer.due))
        {
            sink.attempt(&open.remove(first).ok_or("ended twice")?);
            ends.pop();
        }
        ends.push(Reverse((answer.end, request)));
        open.insert(request, answer);
    }
    while let Some(Reverse((_, first))) = ends.pop() {
        sink.attempt(&open.remove(&first).ok_or("ended twice")?);
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
    let prompt = 32 + chance.below(1_000) as u32;
    if chance.uniform() < SHED {
        return shed(request, due, sent);
    }
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
        sent: Some(sent),
        connected: Some(At(-1_000_000)),
        first_byte: first,
        first_token: first,
        first_visible: first,
        last_token: last,
        end: last,
        events,
        kernel_stamps: true,
        asked_prompt: prompt,
        resent: None,
        asked_output: tokens,
        prompt_blocks: vec![],
        media: Default::default(),
        bytes_out: 500 + chance.below(100),
        bytes_in: 4_000 + chance.below(100),
        connection: Some(chance.below(500) as u32),
        reused: true,
        tcp: TcpFacts {
            rtt: Some(Span(1_000 * (200 + chance.below(300) as i64))),
            rtt_var: Some(Span(1_000 * (20 + chance.below(30) as i64))),
            rtt_min: Some(Span(1_000 * (150 + chance.below(50) as i64))),
            retransmits: Some(0),
            segments_out: Some(1),
            segments_in: Some(1 + tokens),
            out_of_order: Some(0),
        },
        outcome: Outcome::FINISHED,
        answer: Answer {
            status: Some(200),
            finish_reason: Some("length".into()),
            tokens: Tokens {
                prompt: Some(prompt),
                output: Some(tokens),
                reasoning: None,
                cached: Some(prompt / 2),
                rule: TokensRule::UsageTotal,
                claimed: None,
            },
            ..Answer::default()
        },
    }
}

/// Share of the requests that are shed.
const SHED: f64 = 0.01;

fn shed(request: u64, due: At, sent: At) -> Attempt {
    let end = Some(sent + Span(900_000));
    let error = Some("too many requests".to_owned());
    Attempt {
        sent: Some(sent),
        connected: Some(At(-1_000_000)),
        first_byte: end,
        end,
        kernel_stamps: true,
        asked_prompt: 64,
        asked_output: 16,
        bytes_out: 500,
        bytes_in: 200,
        connection: Some(request as u32 % 500),
        reused: true,
        outcome: Outcome::new(How::Shed, By::Server, true),
        answer: Answer { status: Some(429), error, ..Answer::default() },
        ..Attempt::new(request, 0, 0, due)
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
        time: plimsoll_model::TimeBase::Real,
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
