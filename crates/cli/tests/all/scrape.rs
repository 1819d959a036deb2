//! The server's side of a run: scraped off a live engine, written by a simulated one, off, named, and not there.

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
