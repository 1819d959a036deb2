//! Is what Plimsoll reports what happened? N streams of 46 tokens a second each from the canned engine, held against
//! the engine's truth log, with what the measurement cost: `cargo bench -p plimsoll --bench truth`.
//!
//! Words: `streams=1000,2000` `seconds=30` (figures of E2E need eight times its p99).
//!
//! The truth of a latency is the stamp before the server's write call minus the client's `sent` stamp, both on
//! CLOCK_MONOTONIC; of a gap, the distance of two write calls. The same requests are taken that the findings took (due
//! in the window behind the warm-up). The virtual step ends would be a purer truth of the *engine*, but what a client
//! can know begins where bytes leave; how late they left is printed beside it. The log stamps the write of the last
//! token; the end of the stream follows in a write of its own, which a busy server makes milliseconds later, so that
//! E2E (last byte) may exceed its truth by that; the last token's own difference stands below it. Client and server
//! share the machine: a core for each where there are two.

mod kit;

use std::collections::HashMap;
use std::process::ExitCode;

use kit::{Args, Engine, Ran, Result, bar, quantile, say, spread};
use plimsoll_measure::findings::{LevelSummary, Percentiles, Reading};
use plimsoll_model::Attempt;
use plimsoll_server::truth::TruthRecord;
use plimsoll_sim::{ModeSpec, catalogue::profile};

/// Tokens of an answer.
const OUTPUT_TOKENS: u32 = 128;
/// Received / offered, at least.
const RECEIVED_BAR: f64 = 0.98;
/// Client CPU seconds per million tokens, at most.
const CPU_BAR: f64 = 10.0;
/// Reported against true: this share, or [`NEAR_MS`], whichever is more.
const NEAR_SHARE: f64 = 0.01;
const NEAR_MS: f64 = 0.2;
/// Of the level's start, left out of the rates: the streams are still being started.
const RAMP_NS: i64 = 4_000_000_000;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let seconds = args.number("seconds", 30.0)?;
        for streams in args.numbers("streams", &[1000, 2000])? {
            measure(streams, seconds)?;
        }
        Ok(())
    })
}

fn measure(streams: u64, seconds: f64) -> Result<()> {
    say(format!("\n{streams} streams, {OUTPUT_TOKENS} tokens an answer, for {seconds} s"));
    let engine = Engine::start("canned")?;
    let (concurrency, window, tokens) =
        (streams.to_string(), format!("{seconds}s"), OUTPUT_TOKENS.to_string());
    let ran = Ran::run(
        &engine.url,
        &["--concurrency", &concurrency, "--for", &window, "--osl", &tokens, "--isl", "16", "--seed", "1"],
    )?;
    let server_cpu_s = engine.metric("plimsoll_engine_cpu_seconds_total")?;
    let records = engine.stop()?;
    let run = plimsoll_store::open(&ran.dir())?;
    let joined = Joined::new(&run.manifest.id, run.manifest.clock.monotonic_ns, &run.attempts, &records);
    say(format!(
        "{} requests, {} of them in the truth log; {}",
        run.attempts.len(),
        joined.0.len(),
        ran.verdict()
    ));
    let unfinished = run.attempts.iter().filter(|attempt| !attempt.outcome.is_finished()).count();
    bar("requests not finished", unfinished, "0", unfinished == 0);
    rates(&ran, &joined, streams, server_cpu_s)?;
    agreement(ran.summary()?, &joined);
    server(&joined);
    Ok(())
}

/// Attempts beside what the server knows of them.
struct Joined<'a>(Vec<Pair<'a>>);

struct Pair<'a> {
    client: &'a Attempt,
    server: &'a TruthRecord,
    /// The client's `sent`, CLOCK_MONOTONIC ns.
    sent_ns: i64,
}

impl<'a> Joined<'a> {
    fn new(run: &str, zero_ns: i64, attempts: &'a [Attempt], records: &'a [TruthRecord]) -> Joined<'a> {
        let by_id: HashMap<&str, &TruthRecord> =
            records.iter().filter_map(|record| Some((record.id.as_deref()?, record))).collect();
        let pair = |client: &'a Attempt| {
            let id = format!("{run}-{}-{}-{}", client.level, client.request, client.attempt);
            Some(Pair { client, server: by_id.get(id.as_str())?, sent_ns: zero_ns + client.sent?.0 })
        };
        Joined(attempts.iter().filter_map(pair).collect())
    }
}

/// Mean tokens per second of one stream by the laws of the canned engine.
fn tokens_per_s_by_law() -> Result<f64> {
    let ModeSpec::Canned(canned) = profile::find("canned")?.spec.mode else {
        return Err("not canned".into());
    };
    let tokens = f64::from(OUTPUT_TOKENS);
    Ok(tokens * 1e3 / (canned.ttft.mean_ms() + (tokens - 1.0) * canned.gap.mean_ms()))
}

fn rates(ran: &Ran, joined: &Joined<'_>, streams: u64, server_cpu_s: f64) -> Result<()> {
    let level = ran.level()?;
    let zero_ns = ran.manifest.clock.monotonic_ns;
    let (from, to) = (zero_ns + level.start.0 + RAMP_NS, zero_ns + level.stop.0);
    let in_span = |ns: &i64| (from..to).contains(ns);
    let over_s = (to - from) as f64 / 1e9;
    let (mut made, mut written, mut received, mut all) = (0usize, 0usize, 0usize, 0usize);
    for pair in &joined.0 {
        made += pair.server.steps_ns.iter().filter(|ns| in_span(ns)).count();
        written += pair.server.writes_ns.iter().filter(|ns| in_span(ns)).count();
        let tokens = pair.client.events.iter().filter(|event| event.kind.is_token());
        all += tokens.clone().count();
        received += tokens.filter(|event| in_span(&(pair.sent_ns + event.offset.0))).count();
    }
    let rate = |tokens: usize| tokens as f64 / over_s;
    let law = streams as f64 * tokens_per_s_by_law()?;
    say(format!(
        "tokens/s: {law:.0} by law, {:.0} made by the engine, {:.0} written, {:.0} received",
        rate(made),
        rate(written),
        rate(received)
    ));
    let share = rate(received) / law;
    bar("received / offered by law", format!("{:.2} %", share * 100.0), "≥ 98 %", share >= RECEIVED_BAR);
    let share = received as f64 / made as f64;
    bar("received / made by the engine", format!("{:.2} %", share * 100.0), "≥ 98 %", share >= RECEIVED_BAR);
    let per_million = 1e6 / all as f64;
    let cpu = ran.cpu_s * per_million;
    bar("client CPU s per million tokens", format!("{cpu:.2}"), "< 10", cpu < CPU_BAR);
    say(format!(
        "  of them {:.2} in the worker threads (busiest {:.0} % of a core), the rest before and after the level; server {:.2}",
        ran.workers_cpu_s()? * per_million,
        level.generator.cpu_share_max.unwrap_or(f64::NAN) * 100.0,
        server_cpu_s * per_million
    ));
    let peak_mib = ran.peak_kib as f64 / 1024.0;
    say(format!("client memory peak {peak_mib:.0} MiB, of which the records of the run are a part"));
    let generator = &level.generator;
    say(format!(
        "coalesced {:.2} % of {} events, stamps {:?}, delay kernel to user p50 {:.0} µs p99 {:.0} µs",
        generator.events_coalesced as f64 / generator.events.max(1) as f64 * 100.0,
        generator.events,
        generator.stamps,
        generator.user_delay.p50_ns as f64 / 1e3,
        generator.user_delay.p99_ns as f64 / 1e3
    ));
    Ok(())
}

/// True latencies and the differences of each, ns.
#[derive(Default)]
struct Truth {
    values: Vec<i64>,
    differences: Vec<i64>,
}

impl Truth {
    fn add(&mut self, truth: i64, client: Option<i64>) {
        self.values.push(truth);
        self.differences.extend(client.map(|client| client - truth));
    }

    fn compare(mut self, name: &str, reported: Option<&Percentiles>) {
        let Some(reported) = reported else { return say(format!("{name}: not reported")) };
        if reported.n != self.values.len() as u64 {
            say(format!("{name}: {} reported, {} in the truth", reported.n, self.values.len()));
        }
        for (label, p) in [("p50", 0.5), ("p99", 0.99)] {
            let truth_ms = quantile(&mut self.values, p) / 1e6;
            let value_s = match reported.at(p) {
                Some(Reading::Estimate(estimate)) => estimate.value,
                Some(Reading::Refused { why, .. }) => {
                    say(format!("{name:<16} {label}  not reported: {why} (true {truth_ms:.3} ms)"));
                    continue;
                }
                None => continue,
            };
            let off_ms = value_s * 1e3 - truth_ms;
            let near = off_ms.abs() <= NEAR_MS.max(NEAR_SHARE * truth_ms);
            let text = format!("{:.3} / {truth_ms:.3} ms", value_s * 1e3);
            say(format!(
                "{name:<16} {label}  {text:>26}  {off_ms:+8.3} ms {:+7.2} %  {}",
                off_ms / truth_ms * 100.0,
                if near { "met" } else { "MISSED" }
            ));
        }
        say(format!("  each by itself: {}", spread(&mut self.differences, 1e3, "µs")));
    }
}

/// Reported figures against the truth of the same requests.
fn agreement(summary: &LevelSummary, joined: &Joined<'_>) {
    let window = summary.window.start..summary.window.stop;
    let (mut ttft, mut gap, mut e2e) = (Truth::default(), Truth::default(), Truth::default());
    let (mut reached, mut last_tokens) = (Vec::new(), Vec::new());
    for pair in joined.0.iter().filter(|pair| window.contains(&pair.client.due)) {
        let (client, server) = (pair.client, pair.server);
        let since = |at: Option<plimsoll_model::At>| Some((at? - client.sent?).0);
        if let (Some(first), Some(last)) = (server.writes_ns.first(), server.writes_ns.last()) {
            ttft.add(first - pair.sent_ns, since(client.first_token));
            e2e.add(last - pair.sent_ns, since(client.end));
            last_tokens.extend(since(client.last_token).map(|own| own - (last - pair.sent_ns)));
        }
        let tokens: Vec<i64> =
            client.events.iter().filter(|event| event.kind.is_token()).map(|event| event.offset.0).collect();
        let same = tokens.len() == server.writes_ns.len();
        for (i, two) in server.writes_ns.windows(2).enumerate() {
            gap.add(two[1] - two[0], same.then(|| tokens[i + 1] - tokens[i]));
        }
        reached.push(server.arrival_ns - pair.sent_ns);
    }
    say(format!(
        "window: {} requests, {:.1} s cut as warm-up; reported / true, bar 1 % or 0.2 ms",
        summary.counts.requests, summary.window.warm_up_s
    ));
    ttft.compare("ttft_after_send", summary.latency.ttft_after_send.as_ref());
    gap.compare("event_gap", summary.latency.event_gap.as_ref());
    e2e.compare("e2e_after_send", Some(&summary.latency.e2e_after_send));
    say(format!("  last token by itself: {}", spread(&mut last_tokens, 1e3, "µs")));
    say(format!("sent by the client to stamped by the server: {}", spread(&mut reached, 1e3, "µs")));
}

/// How well the server kept its own law.
fn server(joined: &Joined<'_>) {
    let pairs = |pair: &Pair<'_>| -> Vec<i64> {
        pair.server.steps_ns.iter().zip(&pair.server.writes_ns).map(|(step, write)| write - step).collect()
    };
    let mut late: Vec<i64> = joined.0.iter().flat_map(pairs).collect();
    let (mut events, mut exact) = (0usize, 0usize);
    for event in joined.0.iter().flat_map(|pair| &pair.client.events).filter(|event| event.kind.is_token()) {
        events += 1;
        exact += usize::from(!event.coalesced);
    }
    say(format!("server: step end to write {}", spread(&mut late, 1e3, "µs")));
    say(format!("events with a time of their own: {:.2} %", exact as f64 / events.max(1) as f64 * 100.0));
}
