//! What the driver costs. `cargo build --release --examples -p plimsoll-client && target/release/examples/bench [part…]`
//!
//! Parts: `pacer`, `paced` (CPU per separately arriving event), `many` (2000 streams), `flood` (events per CPU-second when reads carry many),
//! `memory` (KiB per open stream), `whole` (non-streaming closed loop). The server is `canned`, a process of its own;
//! only this process's CPU is counted.
#![allow(clippy::print_stdout)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_client::clock::process_cpu_ns;
use plimsoll_client::{Client, ClientConfig, Clock, Control, LevelPlan, LevelTraffic, Sink, doctor};
use plimsoll_model::{At, Attempt, Level, Load, Sample, Span};
use plimsoll_workload::{Arrival, Prompts, Scenario, Schedule, Size, TargetSpec};

struct Canned(Child, String);

impl Canned {
    fn start(args: &[&str]) -> Canned {
        let path = std::env::current_exe().expect("own path").with_file_name("canned");
        let mut child = Command::new(path)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("`canned` beside this program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its address");
        Canned(child, format!("http://{}/v1", line.trim()))
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counts and lets go.
#[derive(Default)]
struct Count {
    finished: AtomicU64,
    events: AtomicU64,
    failed: AtomicU64,
}

impl Sink for Count {
    fn attempt(&self, a: Attempt) {
        let counter = if a.outcome.is_finished() { &self.finished } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(a.events.len() as u64, Ordering::Relaxed);
    }
    fn sample(&self, _: Sample) {}
}

fn client(url: &str, stream: bool) -> Client {
    let target = TargetSpec { url: url.into(), model: Some("m".into()), stream, ..TargetSpec::default() };
    let config = ClientConfig {
        target,
        key: None,
        workers: Some(1),
        run_id: "bench".into(),
        clock: Clock::start(),
        keep_text: false,
    };
    Client::start(config).expect("a client")
}

fn scenario(tokens: u32) -> Scenario {
    let mut scenario = Scenario::default();
    scenario.sizes.prompt = Size::Fixed(8);
    scenario.sizes.output = Size::Fixed(tokens);
    scenario
}

fn plan(scenario: &Scenario, requests: LevelTraffic, load: Load, window: Span, warm: u32) -> LevelPlan {
    let prompts = Arc::new(Prompts::new(scenario, 1).expect("prompts"));
    LevelPlan {
        purpose: "bench".into(),
        seed: 1,
        warm: Some(warm),
        ..LevelPlan::new(scenario, load, requests, window, prompts)
    }
}

/// `streams` arrivals spread evenly over `window`.
fn spread(streams: u32, tokens: u32, window: Span) -> LevelTraffic {
    let arrivals = (0..u64::from(streams))
        .map(|id| Arrival {
            id,
            due: At(window.0 / i64::from(streams) * id as i64),
            prompt_tokens: 8,
            output_tokens: tokens,
            ..Arrival::default()
        })
        .collect();
    LevelTraffic::Open(Arc::new(Schedule { arrivals }))
}

fn run(client: &Client, plan: &LevelPlan) -> (Level, Arc<Count>, f64) {
    let count = Arc::new(Count::default());
    let sink: Arc<dyn Sink> = Arc::clone(&count) as Arc<dyn Sink>;
    let before = process_cpu_ns();
    let level = client.run_level(plan, &sink, &Control::default()).expect("a level");
    (level, count, (process_cpu_ns() - before) as f64)
}

fn rss_kib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

fn pacer() {
    let q = doctor::pacer_lateness(1000, Span::from_millis(3)).expect("a timer");
    println!(
        "pacer    timer alone, 1000 fires: late p50 {} µs, p90 {} µs, p99 {} µs",
        q.p50_ns / 1000,
        q.p90_ns / 1000,
        q.p99_ns / 1000
    );
    let server = Canned::start(&["whole"]);
    let client = client(&server.1, false);
    let scenario = scenario(4);
    let schedule = Schedule::generate(&scenario, 200.0, Span::from_secs(10), 0).expect("a schedule");
    let load = Load::Open { rate_per_s: 200.0 };
    let (level, count, cpu) =
        run(&client, &plan(&scenario, LevelTraffic::Open(Arc::new(schedule)), load, Span::from_secs(10), 8));
    let lag = level.generator.lag;
    println!(
        "pacer    Poisson 200/s for 10 s, to the write: lag p50 {} µs, p90 {} µs, p99 {} µs, max {} µs; {:.1} µs CPU a request, {} failed",
        lag.p50_ns / 1000,
        lag.p90_ns / 1000,
        lag.p99_ns / 1000,
        lag.max_ns / 1000,
        cpu / 1e3 / lag.count as f64,
        count.failed.load(Ordering::Relaxed)
    );
}

fn paced() {
    let (streams, tokens) = (1000, 100);
    let server = Canned::start(&["paced", "100", "100"]);
    let client = client(&server.1, true);
    let scenario = scenario(tokens);
    let traffic = spread(streams, tokens, Span::from_millis(500));
    let load = Load::Open { rate_per_s: 2000.0 };
    let (level, count, cpu) = run(&client, &plan(&scenario, traffic, load, Span::from_millis(500), streams));
    let events = count.events.load(Ordering::Relaxed);
    let g = &level.generator;
    println!(
        "paced    {streams} streams, {events} events at 10 k/s: {:.2} µs CPU an event (whole process, connects included); {:.2} % coalesced; user − kernel p50 {} µs, p99 {} µs; stamps {:?}; {} failed",
        cpu / 1e3 / events as f64,
        100.0 * g.events_coalesced as f64 / g.events as f64,
        g.user_delay.p50_ns / 1000,
        g.user_delay.p99_ns / 1000,
        g.stamps,
        count.failed.load(Ordering::Relaxed)
    );
}

/// The peers' test: 2000 streams at once, 128 tokens each, one every 22 ms: 91 000 tokens/s.
fn many() {
    let (streams, tokens) = (2000, 128);
    let server = Canned::start(&["paced", "128", "22"]);
    let client = client(&server.1, true);
    let scenario = scenario(tokens);
    let sequence = Schedule::sequence(&scenario, 0).expect("a sequence");
    let traffic = LevelTraffic::Closed { sequence, concurrency: streams };
    let load = Load::Closed { concurrency: streams };
    let (level, count, cpu) = run(&client, &plan(&scenario, traffic, load, Span::from_secs(9), streams));
    let g = &level.generator;
    let seconds = (level.drained - level.start).as_secs_f64();
    println!(
        "many     {streams} streams: {:.0} tokens/s received, {:.2} CPU s per million, share {:.2}, run queue {:.2}, {:.1} % coalesced, user − kernel p50 {} µs p99 {} µs, {} MiB, {} failed",
        g.events as f64 / seconds,
        cpu / 1e3 / g.events as f64,
        g.cpu_share_max.unwrap_or(f64::NAN),
        g.run_queue_share_max.unwrap_or(f64::NAN),
        100.0 * g.events_coalesced as f64 / g.events as f64,
        g.user_delay.p50_ns / 1000,
        g.user_delay.p99_ns / 1000,
        rss_kib() as u64 / 1024,
        count.failed.load(Ordering::Relaxed)
    );
}

fn flood() {
    let tokens = 2000;
    let server = Canned::start(&["flood", "2000"]);
    let client = client(&server.1, true);
    let scenario = scenario(tokens);
    let sequence = Schedule::sequence(&scenario, 0).expect("a sequence");
    let traffic = LevelTraffic::Closed { sequence, concurrency: 16 };
    let load = Load::Closed { concurrency: 16 };
    let (level, count, cpu) = run(&client, &plan(&scenario, traffic, load, Span::from_secs(4), 16));
    let events = count.events.load(Ordering::Relaxed) as f64;
    println!(
        "flood    {:.2} M events per CPU-second ({:.2} µs each), {:.1} % coalesced, {} streams, {} failed",
        events / cpu * 1e3,
        cpu / 1e3 / events,
        100.0 * level.generator.events_coalesced as f64 / level.generator.events as f64,
        count.finished.load(Ordering::Relaxed),
        count.failed.load(Ordering::Relaxed)
    );
}

/// Peak resident memory while `streams` are open at once, each in a process of its own so that nothing is left over.
fn memory_at(streams: u32) {
    let server = Canned::start(&["paced", "16", "500"]);
    let client = client(&server.1, true);
    let scenario = scenario(16);
    let base = rss_kib();
    let live = client.live();
    let peak = Arc::new(AtomicU64::new(0));
    let most = Arc::clone(&peak);
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let watch = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            if live.in_flight() >= u64::from(streams) {
                most.fetch_max(rss_kib() as u64, Ordering::Relaxed);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let traffic = spread(streams, 16, Span::from_secs(3));
    let load = Load::Open { rate_per_s: f64::from(streams) / 3.0 };
    let (level, count, cpu) = run(&client, &plan(&scenario, traffic, load, Span::from_secs(3), 0));
    over.store(true, Ordering::Relaxed);
    let _ = watch.join();
    println!(
        "memory   {streams} streams: {} KiB, base {base} KiB; {} finished, {} failed, {:.1} µs CPU an event; in flight max {}",
        peak.load(Ordering::Relaxed),
        count.finished.load(Ordering::Relaxed),
        count.failed.load(Ordering::Relaxed),
        cpu / 1e3 / count.events.load(Ordering::Relaxed) as f64,
        level.generator.in_flight_max
    );
}

fn memory() {
    let me = std::env::current_exe().expect("own path");
    let mut peaks = Vec::new();
    for streams in [1000u32, 8000] {
        let out = Command::new(&me).args(["memory-at", &streams.to_string()]).output().expect("itself");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        print!("{text}");
        let kib = text
            .split("streams: ")
            .nth(1)
            .and_then(|t| t.split(' ').next())
            .and_then(|n| n.parse::<f64>().ok());
        peaks.push(kib.unwrap_or(f64::NAN));
    }
    println!("memory   {:.1} KiB per open stream (slope from 1000 to 8000)", (peaks[1] - peaks[0]) / 7000.0);
}

fn whole() {
    let server = Canned::start(&["whole"]);
    let client = client(&server.1, false);
    let scenario = scenario(4);
    let sequence = Schedule::sequence(&scenario, 0).expect("a sequence");
    let traffic = LevelTraffic::Closed { sequence, concurrency: 32 };
    let load = Load::Closed { concurrency: 32 };
    let (level, count, cpu) = run(&client, &plan(&scenario, traffic, load, Span::from_secs(5), 32));
    let n = count.finished.load(Ordering::Relaxed) as f64;
    println!(
        "whole    32 kept connections: {:.0} requests/s, {:.0} per CPU-second ({:.2} µs each), CPU share {:.2}, {} failed",
        n / 5.0,
        n / cpu * 1e9,
        cpu / 1e3 / n,
        level.generator.cpu_share_max.unwrap_or(f64::NAN),
        count.failed.load(Ordering::Relaxed)
    );
}

fn main() {
    doctor::raise_descriptor_limit();
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [what, n] = &args[..]
        && what == "memory-at"
    {
        return memory_at(n.parse().expect("a number"));
    }
    let parts: [(&str, fn()); 6] = [
        ("pacer", pacer),
        ("paced", paced),
        ("many", many),
        ("flood", flood),
        ("memory", memory),
        ("whole", whole),
    ];
    for (name, part) in parts {
        if args.is_empty() || args.iter().any(|a| a == name) {
            part();
        }
    }
}
