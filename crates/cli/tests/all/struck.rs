//! Faults with a time: the engine reports when each was active and which requests it affected; rows report the clients' view.
//!
//! The binary's engine serves a world with several faults in sequence, under one open loop. Rows are
//! joined to the engine's truth log by their ids, so that "during" refers to the server's arrival time.
//! Requests without a fault must have the times of a world without faults.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_model::outcome::How;
use plimsoll_model::{Attempt, Span};
use plimsoll_server::truth::TruthRecord;
use plimsoll_sim::FaultTruth;

use crate::kit::{Engine, plimsoll, run_folder};

/// A row with the server's record of it; times are the world's, ns.
struct Met {
    row: Attempt,
    truth: TruthRecord,
    came: i64,
    ended: i64,
}

impl Met {
    fn how(&self) -> How {
        self.row.outcome.how
    }

    /// The duration of a stage in ms, as reported in the server's answer.
    fn stage(&self, name: &str) -> Option<f64> {
        let stage = self.row.answer.stages.iter().find(|stage| stage.name == name)?;
        Some(stage.took.as_secs_f64() * 1e3)
    }

    /// From the request's sending to its first token, by the client's stamps, ns.
    fn waited(&self) -> i64 {
        self.row.first_token.map_or(i64::MAX, |at| (at - self.row.sent.expect("it was sent")).0)
    }

    /// Returns whether the request was completely within the fault's interval.
    fn within(&self, truth: &FaultTruth) -> bool {
        self.came >= truth.began.0 && self.ended < ends(truth)
    }

    fn came_during(&self, truth: &FaultTruth) -> bool {
        (truth.began.0..ends(truth)).contains(&self.came)
    }
}

fn ends(truth: &FaultTruth) -> i64 {
    truth.ended.map_or(i64::MAX, |at| at.0)
}

/// A run over a world with faults, and the truth of both.
struct Struck {
    rows: Vec<Met>,
    faults: Vec<FaultTruth>,
}

impl Struck {
    /// Serves a world and puts a load on it, again if the machine stalled meanwhile.
    ///
    /// The tests depend on which requests were present at a time, to about ten milliseconds. `None` if there never was a time
    /// without a stall.
    #[expect(clippy::print_stderr, reason = "what a test leaves out it says")]
    fn run(world: &str, load: &[&str]) -> Option<Struck> {
        let tries = (0..3).map(|_| Struck::once(world, load));
        let found = tries.into_iter().find(|struck| struck.late() < Span::from_millis(40).0);
        if found.is_none() {
            eprintln!("not judged, the machine was busy");
        }
        found
    }

    /// By how much the latest request came after it was due, or the latest answer after it was ready, ns.
    fn late(&self) -> i64 {
        let coming = self.rows.iter().map(|met| met.came - met.row.due.0);
        let going = self
            .rows
            .iter()
            .filter_map(|met| Some(met.row.end?.0 - met.truth.end_ns? - (met.came - met.truth.submitted_ns)));
        coming.chain(going).max().unwrap_or(0)
    }

    fn once(world: &str, load: &[&str]) -> Struck {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (file, log) = (folder.path().join("world.yaml"), folder.path().join("truth.jsonl"));
        std::fs::write(&file, world).expect("written");
        let engine =
            Engine::serve(&[file.to_str().expect("utf-8"), "--truth-log", log.to_str().expect("utf-8")]);
        let (_run_folder, path) = run_folder();
        // A configured factor is not calibrated, so only the load is sent.
        let head = ["run", &engine.url, "--set", "prompts.words_per_token=1.001", "--arrivals", "constant"];
        let ended = plimsoll(&[&head[..], load, &["--seed", "3", "-q", "-o", &path]].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        engine.stop();
        let run = plimsoll_store::open(Path::new(&path)).expect("a run");
        let text = std::fs::read_to_string(&log).expect("a truth log");
        let (header, records) = plimsoll_server::truth::read(&text).expect("a truth log");
        let zero = header.clock.monotonic_ns;
        let mut by_id: HashMap<String, TruthRecord> =
            records.into_iter().filter_map(|record| Some((record.id.clone()?, record))).collect();
        let mut rows = Vec::new();
        for row in run.attempts {
            let id = format!("{}-{}-{}-{}", run.manifest.id, row.level, row.request, row.attempt);
            let truth = by_id.remove(&id).unwrap_or_else(|| panic!("{id} never came to the engine"));
            let came = truth.submitted_ns - zero;
            let ended = truth.end_ns.map_or(came, |end| end - zero);
            rows.push(Met { row, truth, came, ended });
        }
        rows.sort_by_key(|met| met.came);
        let text = std::fs::read_to_string(log.with_extension("faults.json")).expect("a truth of faults");
        Struck { rows, faults: serde_json::from_str(&text).expect("faults") }
    }

    /// Returns the intervals in which a fault of this kind was active.
    fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a FaultTruth> {
        self.faults.iter().filter(move |fault| fault.kind == kind)
    }

    fn one(&self, kind: &str) -> &FaultTruth {
        let place = self.faults.iter().position(|fault| fault.kind == kind);
        let fault = &self.faults[place.unwrap_or_else(|| panic!("no {kind} in {:?}", self.faults))];
        assert_eq!(self.of(kind).count(), 1, "{kind}");
        fault
    }

    fn during<'a>(&'a self, fault: &'a FaultTruth) -> Vec<&'a Met> {
        let rows: Vec<&Met> = self.rows.iter().filter(|met| met.came_during(fault)).collect();
        assert!(rows.len() > 5, "{} rows tell nothing of {}", rows.len(), fault.asked);
        rows
    }

    /// Returns the requests that no fault affected, nor its after-effects for this long.
    fn calm(&self, after: Span) -> Vec<&Met> {
        let near = |met: &Met| {
            self.faults.iter().any(|f| met.ended >= f.began.0 && met.came < ends(f).saturating_add(after.0))
        };
        let rows: Vec<&Met> = self.rows.iter().filter(|met| !near(met)).collect();
        assert!(rows.len() > 30, "{} calm rows", rows.len());
        rows
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    assert!(values.len() > 5, "{} values", values.len());
    values[values.len() / 2]
}

fn decode(rows: &[&Met]) -> f64 {
    median(rows.iter().filter_map(|met| met.stage("decode")))
}

/// From the first to the last token by the client's stamps, ms.
fn streamed(rows: &[&Met]) -> f64 {
    median(
        rows.iter().filter_map(|met| Some((met.row.last_token? - met.row.first_token?).as_secs_f64() * 1e3)),
    )
}

/// Steps of a millisecond: at 25 requests a second of eight tokens, each is isolated and decodes for 7 ms.
const STEPS: &str = "
engine:
  name: steps
  mode: {kind: batching, max_seqs: 8, token_budget: 512, kv_blocks: 4096, prefix_cache: true, step: {kind: linear, base_us: 1000, decode_us: 0, prefill_us: 0, context_ns: 0}}
faults:
  - slow:factor=3,at=1s,for=800ms
  - host_bound:step=2ms,at=2200ms,for=800ms
  - stall:at=3400ms,for=300ms
  - cache_flush:at=4300ms
  - noisy:factor=3,on=150ms,off=150ms,at=4800ms,for=1600ms
  - kv_pressure:share=0.9998,at=6900ms,for=300ms
  - dependency:delay=60ms,at=7800ms,for=600ms
  - batch_window:window=100ms,at=8900ms,for=800ms
  - buffering:tokens=4,at=10200ms,for=700ms
";

#[test]
fn what_slows_an_engine_slows_it_in_its_time_and_at_no_other() {
    let load = ["--rate", "25/s", "--for", "11500ms", "--isl", "64", "--osl", "8", "--prefix", "0.6,1"];
    let Some(struck) = Struck::run(STEPS, &load) else { return };
    assert!(struck.rows.iter().all(|met| met.how() == How::Finished), "nothing here ends a request");
    let calm = struck.calm(Span::from_millis(300));
    let usual = decode(&calm);
    assert!((usual - 7.0).abs() < 0.1, "seven steps took {usual} ms");
    let inside =
        |kind| struck.during(struck.one(kind)).into_iter().filter(|met| met.within(struck.one(kind)));
    // The server's own decode time is exact; the client's time includes delays of the machine.
    for (kind, want) in [("slow", 21.0), ("host_bound", 21.0)] {
        let rows: Vec<&Met> = inside(kind).collect();
        assert!((decode(&rows) - want).abs() < 0.1, "{kind}: {} ms, not {want}", decode(&rows));
        assert!((streamed(&rows) / want - 1.0).abs() < 0.2, "{kind}: the client saw {} ms", streamed(&rows));
    }
    // During a stall or a full cache no request continues.
    for kind in ["stall", "kv_pressure"] {
        let fault = struck.one(kind);
        let until = ends(fault);
        for met in struck.during(fault) {
            assert!(met.waited() > until - met.came, "{kind}: waited {} ns", met.waited());
            assert!(met.ended > until);
        }
    }
    let waits = median(calm.iter().map(|met| met.waited() as f64 / 1e6));
    assert!(waits < 20.0, "a calm request waited {waits} ms");
    // 0.6 of 64 tokens are shared: two whole blocks. The first request ever finds none of them, nor does the first after
    // the flush; all others do.
    let flushed = struck.one("cache_flush").began.0;
    let first = struck.rows.iter().position(|met| met.came >= flushed).expect("some came after it");
    // (A cache whose blocks are taken away forgets, too.)
    let whole = struck.one("kv_pressure").began.0;
    for (i, met) in struck.rows.iter().enumerate().take_while(|(_, met)| met.came < whole) {
        let cached = met.row.answer.tokens.cached.expect("the engine tells");
        let want = if i == 0 || i == first { 0 } else { 32 };
        assert_eq!(cached, want, "request {i}, the first after the flush is {first}");
    }
    let there: Vec<&FaultTruth> = struck.of("noisy").collect();
    let (from, to) = (there[0].began.0, there.last().map_or(0, |last| ends(last)));
    assert!(there.len() > 2, "{there:?}");
    let quiet: Vec<&Met> = struck
        .rows
        .iter()
        .filter(|met| met.came > from && met.ended < to)
        .filter(|met| there.iter().all(|f| met.ended < f.began.0 || met.came > ends(f)))
        .collect();
    let noisy: Vec<&Met> =
        struck.rows.iter().filter(|met| there.iter().any(|fault| met.within(fault))).collect();
    assert!((decode(&quiet) - 7.0).abs() < 0.1 && (decode(&noisy) - 21.0).abs() < 0.1);
    // A dependency in front of the engine delays exactly the requests in the interval.
    let fault = struck.one("dependency");
    let held = struck.during(fault);
    assert_eq!(fault.touched, held.len() as u64);
    assert!(held.iter().all(|met| met.waited() > 60_000_000));
    let fault = struck.one("batch_window");
    let held = struck.during(fault);
    assert_eq!(fault.touched, held.len() as u64);
    for met in held {
        let since = met.came - fault.began.0;
        let opens = since.div_euclid(100_000_000) * 100_000_000 + 100_000_000;
        assert!(met.waited() > opens - since, "let in before its window was over");
    }
    // The proxy batches four tokens per event; without it each token is an event.
    let events = |met: &Met| {
        let tokens = met.row.events.iter().filter(|event| event.kind.is_token());
        tokens.map(|event| event.tokens).collect::<Vec<_>>()
    };
    for met in inside("buffering") {
        assert_eq!(events(met), [4, 4]);
    }
    assert!(calm.iter().all(|met| events(met) == [1; 8]));
}

/// Answers of eight tokens take 90 ms, independent of other requests.
const REPLICAS: &str = "
engine:
  name: even
  mode: {kind: canned, ttft: {law: deterministic, ms: 20}, gap: {law: deterministic, ms: 10}}
fleet: {replicas: 2, route: {policy: round_robin}}
faults:
  - crash:at=1s,for=800ms
  - lost:at=2600ms,for=1s,replica=1,notice=300ms
  - connection_limit:limit=2,backlog=1,at=4400ms,for=1s
";

#[test]
fn what_kills_an_engine_or_its_connections_is_met_by_those_who_were_there() {
    let load = ["--rate", "80/s", "--for", "6s", "--isl", "8", "--osl", "8"];
    let Some(struck) = Struck::run(REPLICAS, &load) else { return };
    let [crash, lost, limit] = ["crash", "lost", "connection_limit"].map(|kind| struck.one(kind));
    let calm = struck.calm(Span::from_millis(100));
    assert!(calm.iter().all(|met| met.how() == How::Finished));
    // A crash: all requests that arrive before the restart ends get a 500; streaming requests are cut, waiting ones get a 500.
    let mut hit = Vec::new();
    for met in &struck.rows {
        let was_there = met.came < crash.began.0 && met.ended >= crash.began.0;
        if !was_there && !met.came_during(crash) {
            continue;
        }
        hit.push(met.truth.number.expect("it came to the engine"));
        let streamed = met.truth.prefill_ns.is_some();
        let want = if was_there && streamed { How::Truncated } else { How::ServerError };
        assert_eq!((met.how(), was_there), (want, was_there));
        let status = if want == How::Truncated { 200 } else { 500 };
        assert_eq!(met.row.answer.status, Some(status));
    }
    hit.sort_unstable();
    let mut touched = crash.requests.clone();
    touched.sort_unstable();
    assert_eq!((&hit, hit.len() as u64), (&touched, crash.touched));
    assert!(hit.len() > 60, "{hit:?}");
    // A lost machine: its requests are reset, during or before their answers. Every second new request is reset too, until
    // the router detects the loss; then none goes there.
    let known = lost.began.0 + Span::from_millis(300).0;
    let mut hit = Vec::new();
    for met in struck.rows.iter().filter(|met| met.ended >= lost.began.0 && met.came < ends(lost)) {
        let was_there = met.truth.replica == Some(1) && met.came < lost.began.0;
        let began = was_there && met.truth.prefill_ns.is_some();
        match met.how() {
            How::Truncated => assert!(began),
            How::Reset => assert!(!began && met.came < known, "the router had been told"),
            how => {
                assert!(how == How::Finished && !was_there, "{how:?}");
                assert_eq!(met.row.answer.replica.as_deref(), Some("0"));
                continue;
            }
        }
        hit.push(met.truth.number.expect("it came to the engine"));
    }
    hit.sort_unstable();
    let mut touched = lost.requests.clone();
    touched.sort_unstable();
    assert_eq!((&hit, hit.len() as u64), (&touched, lost.touched));
    assert!(hit.len() > 8, "{hit:?}");
    let back = struck.rows.iter().filter(|met| met.came > ends(lost));
    assert!(back.filter(|met| met.row.answer.replica.as_deref() == Some("1")).count() > 20);
    // A connection limit: two replicas let two in and keep one waiting each; the others are reset.
    let during = struck.during(limit);
    let refused = during.iter().filter(|met| met.how() == How::Reset).count();
    assert!(during.iter().all(|met| matches!(met.how(), How::Reset | How::Finished)));
    assert!(refused > 10, "{refused} were refused");
    let taken: Vec<&&Met> = during.iter().filter(|met| met.how() == How::Finished).collect();
    let most = |from: &dyn Fn(&Met) -> i64| {
        let at_once = |now: i64| taken.iter().filter(|met| from(met) <= now && now < met.ended).count();
        // Later admissions are left out, because waiting requests are admitted when the fault is over.
        taken.iter().map(|met| from(met)).filter(|at| *at < ends(limit)).map(at_once).max().unwrap_or(0)
    };
    assert_eq!(most(&|met| met.came), 6, "taken at once");
    let let_in = |met: &Met| met.truth.admitted_ns.expect("let in") - met.truth.submitted_ns + met.came;
    assert_eq!(most(&let_in), 4, "in the engines at once");
    // Only requests that found no free slot waited.
    let waited = taken.iter().filter(|met| met.stage("queue").is_some_and(|ms| ms > 0.0)).count();
    assert_eq!((waited + refused) as u64, limit.touched);
}

/// Idle for 700 ms: the replica is removed. The next request and all concurrent ones wait for the cold start of a second.
const ASLEEP: &str = "
engine:
  name: even
  mode: {kind: canned, ttft: {law: deterministic, ms: 20}, gap: {law: deterministic, ms: 10}}
fleet: {cold_start: {provision: 400ms, image_pull: 600ms, compile: 0s}}
faults: ['scale_to_zero:idle=700ms']
scenario: {load: {mode: open, rate: 1/s}}
";

#[test]
fn a_replica_that_slept_wakes_with_a_cold_start() {
    // The calibration is left out, so that the first request is the load's. It may come within 700 ms of the start or later,
    // depending on the machine. Later requests are two and a half seconds apart, which is always longer.
    let load = ["--rate", "0.4/s", "--for", "8s", "--isl", "8", "--osl", "2"];
    let Some(struck) = Struck::run(ASLEEP, &load) else { return };
    assert!(struck.rows.len() >= 3);
    for met in &struck.rows[1..] {
        assert_eq!(met.how(), How::Finished);
        let waited = met.waited();
        assert!((1_020_000_000..1_400_000_000).contains(&waited), "waited {waited} ns");
    }
}
