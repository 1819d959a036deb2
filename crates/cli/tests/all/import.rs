//! Result files of other tools as written (`crates/wire/fixtures/results`), compared with sources independent of our readers.
//! These are the tools' own aggregates and the truth log of the engine that answered.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use plimsoll_interop::imported;
use plimsoll_interop::results::{ForeignError, ForeignFeed, assemble, sniff};
use plimsoll_model::{Foreign, ForeignClock, ForeignDue, ForeignRow};
use serde_json::Value;

use crate::kit::{plimsoll, run_folder};

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures/results")
}

fn path(name: &str) -> String {
    results().join(name).display().to_string()
}

fn inflated(file: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packed = fs::File::open(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    MultiGzDecoder::new(packed).read_to_end(&mut bytes).expect("a gzip file");
    bytes
}

/// The files of a folder, or one.
fn files(name: &str) -> Vec<Vec<u8>> {
    let path = results().join(name);
    if path.is_file() {
        return vec![inflated(&path)];
    }
    let (mut all, mut folders) = (Vec::new(), vec![path]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).expect("a folder").flatten().map(|e| e.path());
        let (inner, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
        all.extend(files);
        folders.extend(inner);
    }
    all.sort();
    all.iter().map(|file| inflated(file)).collect()
}

fn assembled(files: &[Vec<u8>]) -> Result<Foreign, ForeignError> {
    let taken = files.iter().filter_map(|bytes| {
        let mut feed = ForeignFeed::new(sniff(&bytes[..bytes.len().min(64 << 10)])?);
        bytes.chunks(4099).for_each(|piece| feed.push(piece));
        Some(feed.end())
    });
    assemble(&taken.collect::<Vec<_>>())
}

/// Every result with rows: parts, requests, and aggregates that come out of how many.
const IMPORTED: [(&str, u64, u64, u64); 11] = [
    ("vllm-bench/rate40-detailed.json.gz", 1, 120, 32),
    ("vllm-bench/inf-c8.json.gz", 1, 64, 0),
    ("vllm-bench/ramp-append.jsonl.gz", 2, 120, 32),
    ("vllm-bench/embeddings.json.gz", 1, 30, 6),
    ("sglang-bench/rate30-details.jsonl.gz", 1, 60, 14),
    ("guidellm/poisson20.json.gz", 1, 60, 162),
    ("guidellm/concurrent-1-4.json.gz", 2, 50, 252),
    ("aiperf/rate30", 1, 90, 511),
    ("aiperf/c4", 1, 60, 481),
    ("mlperf-loadgen", 1, 100, 19),
    ("mlperf-endpoints", 1, 60, 37),
];

#[test]
fn import_recomputes_every_aggregate_by_the_tools_own_definition() {
    for (name, parts, requests, aggregates) in
        IMPORTED.into_iter().chain([("k6", 1, 161, 57), ("k6-csv", 1, 161, 0)])
    {
        let ended = plimsoll(&["import", &path(name), "--format", "json"]);
        assert_eq!(ended.code, 0, "{name}: {}", ended.stderr);
        let all = ended.json();
        let each = all["parts"].as_array().expect("parts");
        let sum = |of: &dyn Fn(&Value) -> u64| each.iter().map(of).sum::<u64>();
        assert_eq!(each.len() as u64, parts, "{name}");
        assert_eq!(sum(&|part| part["requests"].as_u64().unwrap_or(0)), requests, "{name}");
        let differ: Vec<&Value> = each.iter().map(|part| &part["recomputed"]["differ"]).collect();
        let equal = sum(&|part| part["recomputed"]["equal"].as_u64().unwrap_or(0));
        assert_eq!(equal, aggregates, "{name}: {differ:?}");
        assert_eq!(
            sum(&|part| part["recomputed"]["of"].as_u64().unwrap_or(0)),
            aggregates,
            "{name}: {differ:?}"
        );
        assert!(all["partial"].is_null(), "{name}: {}", all["partial"]);
    }
}

#[test]
fn import_refuses_what_has_no_rows_in_one_line_with_the_reason() {
    for (name, reason) in [
        ("guidellm-csv", "GuideLLM: aggregates only; import the JSON report"),
        ("aiperf-csv", "aggregates only"),
        ("benchmark-report", "benchmark report: aggregates only"),
        ("locust", "Locust: counts in buckets of two digits"),
        ("k6/summary.json.gz", "k6: aggregates only; import what `k6 run --out json=FILE` wrote"),
        ("aiperf/rate30/profile_export_aiperf.json.gz", "AIPerf: aggregates only"),
        (
            "genai-perf/profile_export_genai_perf.json.gz",
            "GenAI-Perf: results of this tool are not read; measure",
        ),
        (
            "inference-perf/stage_0_lifecycle_metrics.json.gz",
            "inference-perf: results of this tool are not read",
        ),
        (
            "genai-bench/D48_10_c2.json.gz",
            "genai-bench: results of this tool are not read; measure with AIPerf",
        ),
        (
            "mlperf-loadgen/server-tokens/mlperf_log_detail.txt.gz",
            "MLPerf LoadGen: settings and aggregates only",
        ),
        (
            "mlperf-endpoints/poisson20/performance/result_summary.json.gz",
            "MLPerf Endpoints: no requests in it",
        ),
        ("mlperf-endpoints/poisson20/config.yaml.gz", "MLPerf Endpoints: no requests in it"),
        ("truth", "supported are results of vLLM bench, SGLang bench"),
        ("truth/vllm-rate40.jsonl.gz", "unknown result format; supported are"),
    ] {
        let ended = plimsoll(&["import", &path(name)]);
        assert_eq!(ended.code, 2, "{name}: {}", ended.stdout);
        assert!(ended.stderr.contains(reason) && ended.stderr.contains(name), "{name}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{name}: {}", ended.stderr);
    }
}

#[test]
fn import_names_what_a_file_proves() {
    let proven = |name: &str| {
        let all = plimsoll(&["import", &path(name), "--format", "json"]).json();
        let parts = all["parts"].as_array().expect("parts").clone();
        parts.iter().map(|part| part["proven"].to_string()).collect::<String>()
    };
    let guidellm = proven("guidellm/poisson20.json.gz");
    assert!(guidellm.contains(
        "7 of 59 gaps between arrivals are distinct, every one among the first 7 draws of seed 42"
    ));
    assert!(guidellm.contains("late_sends"), "{guidellm}");
    assert!(proven("vllm-bench/rate40-detailed.json.gz").contains("the chunk that names the role"));
    assert!(proven("mlperf-loadgen").contains("result_token_throughput is off by 10⁹"));
    assert!(proven("aiperf/rate30").contains("90 of 90 answers: the tool's tokeniser count differs"));
    // A closed loop of one is no error of anybody's.
    assert_eq!(proven("guidellm/concurrent-1-4.json.gz"), "[][]");
}

// ------------------------------------------------------------------------------------------- truth

/// The real times of a request, in ns of the engine machine's monotonic clock.
struct Truth {
    arrival: i64,
    first: i64,
    last: i64,
    end: i64,
    tokens: f64,
}

fn truths(name: &str) -> (Vec<Truth>, i64) {
    let bytes = inflated(&results().join("truth").join(name));
    let mut lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let json = |line: &[u8]| serde_json::from_slice::<Value>(line).expect("a line of the truth log");
    let head = json(lines.next().expect("a head"));
    let clock = |name: &str| head["clock"][name].as_i64().expect("a clock");
    let wall = clock("realtime_ns") - clock("monotonic_ns");
    let each = lines.map(json).filter_map(|row| {
        let writes: Vec<i64> = row["writes_ns"].as_array()?.iter().filter_map(Value::as_i64).collect();
        let (first, last) = (*writes.first()?, *writes.last()?);
        let arrival = row["arrival_ns"].as_i64()?;
        Some(Truth {
            arrival,
            first,
            last,
            end: last.max(row["end_ns"].as_i64()?),
            tokens: writes.len() as f64,
        })
    });
    (each.collect(), wall)
}

/// Each row with its truth: the request that arrived first after it was sent, in order.
fn joined(name: &str, log: &str) -> Vec<(ForeignRow, Truth)> {
    let mut read = assembled(&files(name)).expect(name);
    let _ = imported::import(&mut read);
    let (mut truths, wall) = truths(log);
    let shift = if read.clock == ForeignClock::Wall { wall } else { 0 };
    truths.sort_by_key(|truth| std::cmp::Reverse(truth.arrival));
    let mut rows: Vec<ForeignRow> = read.parts.into_iter().flat_map(|part| part.rows).collect();
    rows.sort_by_key(|row| row.sent);
    let mut pairs = Vec::new();
    for mut row in rows {
        let own = |at: &mut Option<i64>| *at = at.map(|at| at - shift);
        for at in [&mut row.sent, &mut row.due, &mut row.first_token, &mut row.last_token, &mut row.end] {
            own(at);
        }
        let sent = row.sent.expect("a start");
        while truths.last().is_some_and(|truth| truth.arrival < sent - 1_000_000) {
            truths.pop();
        }
        pairs.push((row, truths.pop().expect("a truth for each row")));
    }
    pairs
}

fn quantile(mut values: Vec<f64>, p: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() as f64 * p).ceil() as usize).max(1) - 1]
}

/// Checks quantiles of the rows against the truth, in ms: within 2 % or 0.2 ms, or the lateness of the tool's own timestamps.
fn holds((name, metric): (&str, &str), late_ms: f64, pairs: &[(f64, f64)], wrong: &mut Vec<String>) {
    for p in [0.5, 0.99] {
        let said = quantile(pairs.iter().map(|pair| pair.0).collect(), p);
        let truth = quantile(pairs.iter().map(|pair| pair.1).collect(), p);
        let off = (said - truth).abs();
        let line = format!("{name} {metric} p{}: {said:.3} ms, truth {truth:.3} ms", 100.0 * p);
        if off > (0.02 * truth).max(0.2).max(late_ms) {
            wrong.push(line);
        }
    }
}

fn ms(from: i64, to: i64) -> f64 {
    (to - from) as f64 / 1e6
}

/// Latency counts from the tool's own time of sending.
///
/// Late timestamps of events are in the file and can't be removed. The event loops of these Python clients are late by up to
/// 0.4 ms. The p99 lateness of MLPerf Endpoints' worker is up to 2.3 ms.
#[test]
fn import_agrees_with_what_the_engine_did() {
    let mut wrong = Vec::new();
    for (name, log, has_last, late) in [
        ("vllm-bench/rate40-detailed.json.gz", "vllm-rate40.jsonl.gz", true, [0.4, 0.25]),
        ("aiperf/rate30", "aiperf-rate30.jsonl.gz", true, [0.3, 0.2]),
        ("mlperf-endpoints", "mlperf-endpoints-poisson20.jsonl.gz", false, [2.3, 0.4]),
    ] {
        let pairs = joined(name, log);
        let ok = pairs.iter().filter_map(|(row, truth)| Some((row.sent?, row, truth)));
        let ok: Vec<_> = ok.collect();
        let of =
            |said: &dyn Fn(&ForeignRow) -> Option<i64>, real: &dyn Fn(&Truth) -> i64| -> Vec<(f64, f64)> {
                let each = ok
                    .iter()
                    .filter_map(|(sent, row, truth)| Some((ms(*sent, said(row)?), ms(*sent, real(truth)))));
                each.collect()
            };
        holds((name, "ttft"), late[0], &of(&|row| row.first_token, &|truth| truth.first), &mut wrong);
        holds((name, "e2e"), late[1], &of(&|row| row.end, &|truth| truth.end), &mut wrong);
        if has_last {
            let tpot = ok.iter().filter_map(|(_, row, truth)| {
                let gaps = f64::from(row.output_tokens?) - 1.0;
                Some((
                    ms(row.first_token?, row.last_token?) / gaps,
                    ms(truth.first, truth.last) / (truth.tokens - 1.0),
                ))
            });
            holds((name, "tpot"), 0.0, &tpot.collect::<Vec<_>>(), &mut wrong);
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// The seed's draws reproduce every arrival of MLPerf Endpoints; the difference is its own lateness.
#[test]
fn import_draws_the_schedule_again() {
    let mut read = assembled(&files("mlperf-endpoints")).expect("a result");
    let _ = imported::import(&mut read);
    let part = &read.parts[0];
    assert_eq!(part.due, ForeignDue::Regenerated);
    let late: Vec<i64> = part.rows.iter().filter_map(|row| Some(row.sent? - row.due?)).collect();
    let most = late.iter().max().copied().unwrap_or_default();
    assert_eq!((late.len(), late.iter().min().copied()), (60, Some(0)));
    assert!((6_000_000..8_000_000).contains(&most), "{most} ns");
}

// ------------------------------------------------------------------------------------------- runs

#[test]
fn import_writes_a_run_that_others_read() {
    let (_keep, run) = run_folder();
    let ended = plimsoll(&["import", &path("guidellm/poisson20.json.gz"), "-o", &run]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let shown = plimsoll(&["show", &run]);
    assert_eq!(shown.code, 4, "sent late by 237 ms: {}", shown.stdout);
    assert!(
        shown
            .words()
            .contains("Plimsoll import of http://127.0.0.1:18431, model demo, measured by GuideLLM 0.8.1")
    );
    let manifest = plimsoll(&["show", &run, "--format", "json"]).json();
    assert_eq!(manifest["kind"], "import");
    assert_eq!(manifest["levels"][0]["arrivals"], 60);
    assert_eq!(manifest["scenario"]["imported"]["due"][0], "scheduled");
    let (_keep, other) = run_folder();
    assert_eq!(plimsoll(&["import", &path("vllm-bench/rate40-detailed.json.gz"), "-o", &other]).code, 0);
    let budget = Path::new(&other).with_file_name("budget.yaml");
    fs::write(&budget, "version: 1\nbudgets:\n  - id: first\n    metric: ttft\n    p: 50\n    max: 500ms\n")
        .expect("writes");
    let budget = budget.display().to_string();
    let gate = plimsoll(&["gate", &other, "--budget", &budget]);
    assert!([0, 3].contains(&gate.code), "{} {}", gate.stdout, gate.stderr);
    assert_eq!(plimsoll(&["show", &other, "--html"]).code, 0);
    let (_keep, again) = run_folder();
    assert_eq!(plimsoll(&["import", &path("vllm-bench/rate40-detailed.json.gz"), "-o", &again]).code, 0);
    let compared = plimsoll(&["compare", &other, &again]);
    assert!([0, 3].contains(&compared.code), "{} {}", compared.stdout, compared.stderr);
    assert!(compared.words().contains("same requests on both sides"), "{}", compared.stdout);
    // No text of a prompt or an answer, and no key, is in the folder.
    let words = fs::read_to_string(Path::new(&other).join("run.json")).expect("a manifest");
    assert!(!words.contains("keel") && !words.contains("ballast"), "{words}");
}

#[test]
fn import_without_stamps_makes_no_run() {
    let (_keep, run) = run_folder();
    let ended = plimsoll(&["import", &path("sglang-bench/rate30-details.jsonl.gz"), "-o", &run]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("has no start times"), "{}", ended.stderr);
    assert!(ended.stdout.contains("ttft_after_send"), "the figures are printed all the same");
    assert!(!Path::new(&run).exists());
}

// ------------------------------------------------------------------------------------------- bad files

/// A half file imports as partial, or is refused: it never passes for a whole one, and nothing panics.
#[test]
fn import_of_a_half_file_is_partial_or_refused() {
    for (name, _, requests, _) in IMPORTED.into_iter().chain([("k6", 1, 161, 57)]) {
        let whole = files(name);
        let long = whole.iter().enumerate().max_by_key(|(_, bytes)| bytes.len()).map_or(0, |(i, _)| i);
        let mut some = 0;
        for part in 1..24 {
            let mut cut = whole.clone();
            let end = whole[long].len() * part / 24;
            cut[long].truncate(end);
            let Ok(mut read) = assembled(&cut) else { continue };
            let imported = imported::import(&mut read);
            let _ = imported::levels(&read);
            let seen: u64 = imported.parts.iter().map(|part| part.requests).sum();
            assert!(seen <= requests, "{name}: {seen} requests of {requests}");
            // A file of lines that is cut between two lines can't be distinguished from a complete one.
            assert!(
                imported.partial.is_some()
                    || cut[long].ends_with(b"\n")
                    || seen == requests
                    || whole.len() > 1,
                "{name} cut at {end}"
            );
            some += 1;
        }
        assert!(some > 0, "{name}: no half of it is read");
    }
}

/// Bytes that are not what they were: refused or read, never a panic.
#[test]
fn import_survives_any_flipped_byte() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    for (name, ..) in IMPORTED.into_iter().chain([("k6", 0, 0, 0), ("k6-csv", 0, 0, 0)]) {
        let whole = files(name);
        for _ in 0..24 {
            let mut broken = whole.clone();
            for bytes in &mut broken {
                for _ in 0..1 + next(8) {
                    let at = next(bytes.len());
                    bytes[at] = [b'"', b'{', b'9', b'-', b',', 0xff, b'e', next(256) as u8][next(8)];
                }
            }
            if let Ok(mut read) = assembled(&broken) {
                let _ = imported::import(&mut read);
                let _ = imported::levels(&read);
            }
        }
    }
}
