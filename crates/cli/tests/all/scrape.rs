//! The server's side of a run: scraped off a live engine, written by a simulated one, off, named, and not there.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_client::Clock;
use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_model::{At, Sample};

use super::kit::{Engine, plimsoll, run_folder};

/// Thirty requests, one at a time.
const LOAD: [&str; 6] = ["--concurrency", "1", "--requests", "30", "--osl", "12"];

fn rows(run: &str) -> (At, Vec<Sample>) {
    let run = plimsoll_store::open(std::path::Path::new(run)).expect("a run");
    let level = run.manifest.levels.iter().find(|level| level.purpose != "warmup").expect("a level");
    (level.start, run.samples)
}

/// Totals of one level: what a vLLM of that story would have counted.
fn totals(run: &str) -> Vec<(Signal, f64)> {
    let (from, samples) = rows(run);
    let server = ServerSide::read(&samples);
    let counters = [Signal::Finished, Signal::OutputTokens, Signal::Preempted, Signal::Failed];
    let counted = counters.into_iter().map(|signal| {
        (signal, server.gained(signal, from, At::MAX).unwrap_or_else(|| panic!("no {signal:?}")).value)
    });
    let histograms =
        [Signal::Itl, Signal::Tpot, Signal::QueueTime, Signal::IterationTokens, Signal::OutputLength];
    let taken = histograms.into_iter().map(|signal| {
        let taken = server.histogram(signal, from, At::MAX);
        (signal, taken.and_then(|taken| taken.count).unwrap_or_else(|| panic!("no {signal:?}")))
    });
    counted.chain(taken).collect()
}

#[test]
fn a_live_page_and_a_simulated_one_tell_the_same_story() {
    let engine = Engine::start("demo");
    let (_one, live) = run_folder();
    let args = [&["run", &engine.url][..], &LOAD, &["--scrape-every", "200ms", "-q", "-o", &live]].concat();
    let ended = plimsoll(&args);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let (_two, simulated) = run_folder();
    let args = [&["simulate", "--profile", "demo"][..], &LOAD, &["-q", "-o", &simulated]].concat();
    assert_eq!(plimsoll(&args).code, 0);
    let told = totals(&live);
    assert_eq!(told, totals(&simulated));
    assert!(
        told.contains(&(Signal::Finished, 30.0)) && told.contains(&(Signal::OutputTokens, 360.0)),
        "{told:?}"
    );
    let shown = plimsoll(&["show", &live, "--details"]);
    assert!(shown.stdout.contains("Server, by its own metrics"), "{}", shown.stdout);
    let manifest = plimsoll(&["show", &live, "--format", "json"]).json();
    let page = manifest["scenario"]["scraped"][0]["url"].as_str().expect("a page");
    assert!(page.ends_with("/metrics"), "{page}");
}

#[test]
fn nothing_is_scraped_where_nobody_wants_it_and_a_wrong_page_is_told() {
    let engine = Engine::start("demo");
    let few = ["--concurrency", "1", "--requests", "3", "--osl", "2", "-q"];
    let (_one, run) = run_folder();
    let args = [&["run", &engine.url][..], &few, &["--scrape", "off", "-o", &run]].concat();
    assert!(matches!(plimsoll(&args).code, 0 | 4));
    let (_, samples) = rows(&run);
    assert!(samples.iter().all(|sample| sample.source == "client"));
    let (_two, run) = run_folder();
    let wrong = engine.url.replace("/v1", "/nothing");
    let args = [&["run", &engine.url][..], &few, &["--scrape", &wrong, "-o", &run]].concat();
    let ended = plimsoll(&args);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("HTTP 404"), "{}", ended.stderr);
    // Two names for one endpoint: each row names its source, and the doubled counts are two servers'.
    let page = engine.url.replace("/v1", "/metrics");
    let (one, two) = (format!("a={page}"), format!("b={page}"));
    let args = [&["run", &engine.url][..], &few, &["--scrape", &one, "--scrape", &two, "-o", &run]].concat();
    assert!(matches!(plimsoll(&args).code, 0 | 4));
    let (_, samples) = rows(&run);
    let server = ServerSide::read(&samples);
    let names: Vec<&str> = server.replicas().iter().map(|replica| replica.name.as_str()).collect();
    assert_eq!(names, ["a/0", "b/0"]);
}

/// A DCGM exporter of a GPU that draws 350 W, at a free port, and the number of its scrapes.
fn exporter() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let scrapes: Arc<AtomicU64> = Arc::default();
    let (counted, clock) = (Arc::clone(&scrapes), Clock::start());
    let page = move || {
        let scrape = counted.fetch_add(1, Ordering::SeqCst);
        let body = format!(
            "DCGM_FI_DEV_POWER_USAGE{{UUID=\"GPU-1\",gpu=\"0\"}} 350\n\
             DCGM_FI_DEV_FB_USED{{UUID=\"GPU-1\",gpu=\"0\"}} 1024\n\
             DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{UUID=\"GPU-1\",gpu=\"0\"}} {scrape}\n\
             process_cpu_seconds_total 1\n\
             DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID=\"GPU-1\",gpu=\"0\"}} {}\n",
            350.0 * clock.now().as_secs_f64() * 1e3
        );
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let page = Arc::new(page);
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let page = Arc::clone(&page);
            std::thread::spawn(move || {
                let mut asked = [0; 4096];
                while connection.read(&mut asked).is_ok_and(|read| read > 0)
                    && connection.write_all(page().as_bytes()).is_ok()
                {}
            });
        }
    });
    (port, scrapes)
}

#[test]
fn a_run_finds_the_gpu_exporter_of_its_host_unless_it_is_told_not_to() {
    let engine = Engine::start("demo");
    let (port, scrapes) = exporter();
    let ports = format!("scrape.ports=[{port}]");
    let (_one, run) = run_folder();
    let found = ["--set", &ports, "--scrape-every", "200ms", "-o", &run];
    let args = [&["run", &engine.url][..], &LOAD, &found].concat();
    let ended = plimsoll(&args);
    assert!(ended.stderr.contains(&format!("127.0.0.1:{port}/metrics")), "{}", ended.stderr);
    let (_, samples) = rows(&run);
    let of_gpu: std::collections::BTreeSet<&str> =
        samples.iter().filter(|row| row.source == "gpu").map(|row| row.name.as_str()).collect();
    let used = ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"];
    assert!(of_gpu.iter().eq(used.iter()), "the series that are used: {of_gpu:?}");
    let server = ServerSide::read(&samples);
    let names: Vec<&str> = server.replicas().iter().map(|replica| replica.name.as_str()).collect();
    assert_eq!((names, server.devices().len()), (vec!["0"], 1));
    assert!(server.gained(Signal::GpuEnergy, At::ZERO, At::MAX).is_some_and(|gained| gained.value > 0.0));
    let before = scrapes.load(Ordering::SeqCst);
    let (_two, run) = run_folder();
    for off in ["endpoint", "off"] {
        let ended =
            plimsoll(&[&["run", &engine.url][..], &LOAD, &["--scrape", off, "-q", "-o", &run]].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        std::fs::remove_dir_all(&run).expect("the run");
    }
    assert_eq!(scrapes.load(Ordering::SeqCst), before);
}

/// The GPU draws 350 W, so a token takes 350 W / tokens per second.
#[test]
fn energy_and_memory_stand_in_the_run() {
    let engine = Engine::start("demo");
    let (port, _) = exporter();
    let ports = format!("scrape.ports=[{port}]");
    let (_one, run) = run_folder();
    let load = ["--concurrency", "2", "--for", "5s", "--osl", "12", "--slo", "ttft p90 <= 10s", "-q"];
    let found = ["--set", &ports, "--scrape-every", "100ms", "-o", &run];
    let ended = plimsoll(&[&["run", &engine.url][..], &load, &found].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let shown = plimsoll(&["show", &run, "--format", "json"]).json()["findings"].take();
    let (gpu, rates) = (&shown["server"]["levels"][0]["gpu"], &shown["levels"][0]["summary"]["rates"]);
    let value =
        |reading: &serde_json::Value| reading["value"].as_f64().unwrap_or_else(|| panic!("{reading}"));
    let near = |a: f64, b: f64, by: f64| assert!((a / b - 1.0).abs() < by, "{a} {b}");
    near(value(&gpu["power_w"]), 350.0, 0.15);
    let per_token = value(&gpu["per_token"]);
    // The engine counts a token when it is written and the client when its request ends.
    near(per_token, value(&gpu["power_w"]) / value(&rates["output_tokens_per_s"]), 0.15);
    near(value(&gpu["per_good_token"]), per_token, 0.15);
    assert_eq!(gpu["memory_max"].as_f64(), Some(1_073_741_824.0));
    let text = plimsoll(&["show", &run, "--details"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("J per output token") && text.contains("memory at most 1.00 GiB"), "{text}");
}
