//! One load from several processes: the same arrivals as from one, begun together, and nothing lost in silence.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use plimsoll_client::clock::realtime_ns;
use plimsoll_client::clock_error::wall_clock_error_ns;
use plimsoll_model::{Attempt, How, Manifest, RunState};
use plimsoll_store::StoredRun;
use serde_json::Value;
use tempfile::TempDir;

use crate::kit::{Ended, Engine, PLIMSOLL, begun, ended, plimsoll, until};

/// Flags of all shards in these tests, without their number.
pub const LOAD: [&str; 9] = ["--rate", "120/s", "--osl", "4", "--isl", "32", "--scrape", "off", "-q"];

struct Field {
    engine: Engine,
    folder: TempDir,
}

impl Field {
    fn new() -> Field {
        Field { engine: Engine::start("canned"), folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("utf-8").to_owned()
    }

    fn shard(&self, shard: &str, more: &[&str]) -> Child {
        let args = ["run", &self.engine.url, "--shard", shard];
        begun(Command::new(PLIMSOLL).args(args).args(LOAD).args(more))
    }

    /// Runs `of` shards at one place to their end.
    fn meet(&self, of: u32, more: impl Fn(u32) -> Vec<String>) -> (String, Vec<Ended>) {
        let place = self.path("place");
        let start = |index: u32| {
            let own = more(index);
            let more: Vec<&str> =
                ["--rendezvous", &place].into_iter().chain(own.iter().map(String::as_str)).collect();
            self.shard(&format!("{index}/{of}"), &more)
        };
        let all: Vec<Child> = (0..of).map(start).collect();
        (place, all.into_iter().map(ended).collect())
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Returns the text of `show` for a run of `of` shards, with the clock error that the kernel of this machine reports.
pub fn sent_by(of: u32) -> String {
    match wall_clock_error_ns() {
        Some(_) => format!("Sent by {of} shards, no two of their clocks more than"),
        None => format!("Sent by {of} shards, the errors of their clocks are unknown"),
    }
}

pub fn open(run: impl AsRef<Path>) -> StoredRun {
    plimsoll_store::open(run.as_ref()).expect("a run")
}

fn shard_folder(place: &str, index: u32, of: u32) -> PathBuf {
    Path::new(place).join(format!("shard-{index}-of-{of}"))
}

/// An arrival, in every field that the schedule decides: number, session and turn, class, lengths, prompt, and when it was due.
pub type Arrived = (u64, Option<u64>, u16, u16, u32, u32, Vec<u64>, i64);

pub fn arrivals(run: &StoredRun) -> BTreeSet<Arrived> {
    let start = run.manifest.levels[0].start;
    let arrived = |row: &Attempt| {
        // A later turn is due when the answer before it has come, and has a prompt where that was inside the window.
        let first = row.turn == 0;
        let due = if first { (row.due - start).0 } else { 0 };
        let blocks = if first { row.prompt_blocks.clone() } else { Vec::new() };
        (row.request, row.session, row.turn, row.class, row.asked_prompt, row.asked_output, blocks, due)
    };
    run.attempts.iter().map(arrived).collect()
}

/// Returns the start of the load by this machine's CLOCK_MONOTONIC: all shards here share it, independent of their wall clocks.
fn began_ns(manifest: &Manifest) -> i64 {
    manifest.clock.monotonic_ns + manifest.levels[0].start.0
}

fn reasons(json: &Value) -> String {
    json["findings"]["validity"]["reasons"].to_string()
}

#[test]
fn four_shards_send_what_one_machine_sends() {
    let field = Field::new();
    let same = "--for 2s --seed 5 --nonce 9 --sessions 2,20ms --workers 2";
    let (place, all) = field.meet(4, |_| words(same));
    all.iter().for_each(|one| assert!(matches!(one.code, 0 | 4), "{}", one.stderr));
    let merged = field.path("merged");
    let merge = plimsoll(&["merge", &place, "-o", &merged, "--format", "json"]);
    assert!(matches!(merge.code, 0 | 4), "{}", merge.stderr);
    let one = field.path("one");
    let args =
        [&["run", &field.engine.url, "-o", &one][..], &LOAD, &same.split(' ').collect::<Vec<_>>()].concat();
    let alone = plimsoll(&args);
    assert!(matches!(alone.code, 0 | 4), "{}", alone.stderr);
    let (merged, one) = (open(&merged), open(&one));
    assert!(one.attempts.len() > 100, "{}", one.attempts.len());
    let (all, alone) = (arrivals(&merged), arrivals(&one));
    let differ: Vec<_> = all.symmetric_difference(&alone).take(4).collect();
    assert!(differ.is_empty(), "{differ:?}");
    assert_eq!(merged.attempts.len(), one.attempts.len());
    let (of_all, of_one) = (&merged.manifest.levels[0], &one.manifest.levels[0]);
    assert_eq!((of_all.arrivals, &of_all.schedule_hash), (of_one.arrivals, &of_one.schedule_hash));
    assert_eq!((of_all.load, of_all.window()), (of_one.load, of_one.window()));
    // No value is averaged: the rows and the counters are the shards', each once.
    let parts: Vec<StoredRun> = (0..4).map(|index| open(shard_folder(&place, index, 4))).collect();
    assert_eq!(parts.iter().map(|part| part.attempts.len()).sum::<usize>(), merged.attempts.len());
    let events: u64 = parts.iter().map(|part| part.manifest.levels[0].generator.events).sum();
    assert_eq!(of_all.generator.events, events);
    let latency = |run: &StoredRun| {
        let of =
            run.attempts.iter().filter_map(|row| Some((row.request, row.attempt, (row.end? - row.due).0)));
        of.collect::<BTreeSet<_>>()
    };
    assert_eq!(latency(&merged), parts.iter().flat_map(latency).collect());
    // Each worker had its share: two workers of each of four shards, whose numbers have a divisor in common.
    assert!(parts.iter().all(|part| part.manifest.levels[0].generator.workers == 2));
    // Little's law holds between the added counters and the rows, or the machine was busy; records are never missing.
    assert!(!reasons(&merge.json()).contains("\"rows\""), "{}", reasons(&merge.json()));
    assert_eq!(merged.manifest.progress, RunState::Complete);
    let shown = plimsoll(&["show", &field.path("merged")]).words();
    assert!(shown.contains(&sent_by(4)), "{shown}");
    let unknown = parts.iter().any(|part| {
        let shard = part.manifest.shard.as_ref().expect("a shard");
        shard.clock_error_ns.is_none()
    });
    assert_eq!(unknown, wall_clock_error_ns().is_none(), "the parts say what the kernel says");
    // A single shard is a part and is reported as one.
    let part = plimsoll(&["show", shard_folder(&place, 2, 4).to_str().expect("utf-8")]).words();
    assert!(part.contains("This run is partial: shard 2/4, a part of a load"), "{part}");
}

#[test]
fn a_shard_that_is_killed_leaves_its_requests_as_never_sent() {
    let field = Field::new();
    let place = field.path("place");
    let more = ["--rendezvous", &place, "--for", "4s"];
    let mut all: Vec<Child> = (0..3).map(|index| field.shard(&format!("{index}/3"), &more)).collect();
    let log = shard_folder(&place, 1, 3).join("records.log");
    until("shard 1 sends", || std::fs::metadata(&log).is_ok_and(|meta| meta.len() > 5_000));
    all[1].kill().expect("killed");
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    assert!(matches!((all[0].code, all[2].code), (0 | 4, 0 | 4)), "{}{}", all[0].stderr, all[2].stderr);
    let merged = field.path("merged");
    let merge = plimsoll(&["merge", &place, "-o", &merged, "--format", "json"]);
    assert_eq!(merge.code, 4, "{}", merge.stderr);
    let run = open(&merged);
    let known: BTreeSet<u64> = run.attempts.iter().map(|row| row.request).collect();
    let due = run.manifest.levels[0].arrivals;
    assert_eq!(known, (0..due).collect(), "each arrival has its row");
    let never: Vec<&Attempt> = run.attempts.iter().filter(|row| row.outcome.how == How::NeverSent).collect();
    assert!(!never.is_empty() && never.iter().all(|row| row.request % 3 == 1 && row.sent.is_none()));
    let lost: Vec<u64> = run.manifest.shards.iter().map(|part| part.lost).collect();
    assert_eq!(lost, [0, never.len() as u64, 0]);
    assert!(run.attempts.iter().any(|row| row.request % 3 == 1 && row.outcome.how == How::Finished));
    let RunState::Partial { why } = &run.manifest.progress else { panic!("partial") };
    assert!(why.contains(&format!("shard 1/3 was cut off, {} requests never sent", never.len())), "{why}");
    assert!(reasons(&merge.json()).contains("1 of 3 shards were lost"), "{}", reasons(&merge.json()));

    // The result is equal if a shard left nothing at all, and no budget passes on the remaining parts.
    std::fs::remove_dir_all(shard_folder(&place, 1, 3)).expect("removed");
    let without = field.path("without");
    let merge = plimsoll(&["merge", &place, "-o", &without, "--format", "json"]);
    assert_eq!(merge.code, 4, "{}", merge.stderr);
    let part = (0..due).filter(|request| request % 3 == 1).count();
    let json = merge.json();
    assert_eq!(json["shards"][1]["lost"], part as u64);
    assert_eq!(json["findings"]["levels"][0]["summary"]["counts"]["by_outcome"]["never_sent"], part as u64);
    let budget = field.path("budget.yaml");
    let held = "version: 1\nname: test\nbudgets:\n  - {id: a, metric: ttft, p: 50, max: 60s}\n";
    std::fs::write(&budget, held).expect("written");
    let gate = plimsoll(&["gate", &without, "--budget", &budget]);
    assert_eq!(gate.code, 4, "{}{}", gate.stdout, gate.stderr);
}

#[test]
fn what_is_not_one_load_is_refused() {
    let field = Field::new();
    // Another seed: none of them sends.
    let (place, all) = field.meet(2, |index| words(&format!("--for 1s --seed {index}")));
    for one in &all {
        assert_eq!(one.code, 2, "{}", one.stderr);
        assert!(
            one.stderr.contains("shard 1 was started with another seed: 1, where shard 0 has 0"),
            "{}",
            one.stderr
        );
    }
    assert!(!shard_folder(&place, 0, 2).exists());
    // A second process with a used number is refused.
    let again = ended(field.shard("1/2", &["--rendezvous", &place, "--for", "1s"]));
    assert_eq!(again.code, 2, "{}", again.stderr);
    assert!(again.stderr.contains("--shard 1/2: has already used"), "{}", again.stderr);
    // A shard without others gives up after --shard-wait.
    let lonely = field.path("lonely");
    let one = ended(field.shard("0/2", &["--rendezvous", &lonely, "--for", "1s", "--shard-wait", "300ms"]));
    assert_eq!(one.code, 4, "{}", one.stderr);
    assert!(one.stderr.contains("shard 1/2 did not connect to"), "{}", one.stderr);

    // Differing shards without a rendezvous are detected by the merge.
    let place = field.path("told");
    let at = (realtime_ns() / 1_000_000_000 + 5).to_string();
    let told = |index: u32, seed: &str, out: &str| {
        let more = ["--start-at", &at, "--nonce", "3", "--for", "1s", "--seed", seed, "-o", out];
        field.shard(&format!("{index}/2"), &more)
    };
    let twin = field.path("twin");
    let all = [told(0, "1", &place), told(1, "1", &place), told(1, "2", &twin), told(0, "1", &twin)];
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    all.iter().for_each(|one| assert!(matches!(one.code, 0 | 4), "{}", one.stderr));
    let out = field.path("out");
    let name = |place: &str, index| shard_folder(place, index, 2).to_str().expect("utf-8").to_owned();
    for (shards, why) in [
        (
            vec![name(&place, 0), name(&twin, 1)],
            "shards of different runs: seed is 1 in the first and 2 in the second",
        ),
        (vec![name(&place, 0), name(&twin, 0)], "both are shard 0/2, so its part was sent twice"),
        (vec![field.path("lonely")], "no run of a shard"),
        (vec![field.path("nothing")], "there is no such file or folder"),
    ] {
        let args = [vec!["merge"], shards.iter().map(String::as_str).collect(), vec!["-o", &out]].concat();
        let merge = plimsoll(&args);
        assert_eq!(merge.code, 2, "{}", merge.stderr);
        assert!(merge.stderr.contains(why) && merge.stderr.lines().count() == 1, "{}", merge.stderr);
        assert!(!Path::new(&out).exists());
    }
    let good = plimsoll(&["merge", &place, "-o", &out, "--format", "json"]);
    assert!(matches!(good.code, 0 | 4), "{}", good.stderr);
    assert!(
        reasons(&good.json()).contains("the clock errors of the shards are unknown")
            == wall_clock_error_ns().is_none(),
        "{}",
        reasons(&good.json())
    );
    let starts: Vec<i64> = (0..2).map(|index| began_ns(&open(name(&place, index)).manifest)).collect();
    assert!((starts[0] - starts[1]).abs() < 1_000_000, "{starts:?}");
    // A run that is whole is no shard, and a merged one neither.
    let whole = plimsoll(&["merge", &out, "-o", &field.path("more")]);
    assert_eq!(whole.code, 2);
    assert!(whole.stderr.contains("not a shard (--shard) of a run"), "{}", whole.stderr);
}

#[test]
fn flags_that_make_no_shard_are_refused_in_one_line() {
    for (more, why) in [
        ("--shard 4/4 --rendezvous p --rate 1/s", "--shard 4/4: write its number, from 0"),
        ("--shard 0/2 --rate 1/s", "--shard: needs a common start"),
        ("--shard 0/2 --rate 1/s --start-at 12 --nonce 1", "s in the past; choose a time"),
        ("--shard 0/2 --rate 1/s --start-at soon --nonce 1", "--start-at soon: write a time"),
        ("--shard 0/2 --rate 1/s --start-at 2100-01-01T00:00:00Z", "--start-at 2100"),
        ("--shard 0/2 --concurrency 4 --rendezvous p", "--shard: only an open loop"),
        (
            "--shard 0/2 --rate 1/s --warm-up 5 --rendezvous p",
            "--shard: every shard would send the requests before the load",
        ),
        ("--rendezvous p --rate 1/s", "--shard"),
        ("--shard 0/2 --rate 1/s --rendezvous s3://", "--rendezvous s3://…: a bucket's name is letters"),
        #[cfg(not(feature = "object-store"))]
        ("--shard 0/2 --rate 1/s --rendezvous s3://load/x", "this build has no object store support"),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let args = [&["run", "http://127.0.0.1:9/v1"][..], &more.split(' ').collect::<Vec<_>>()].concat();
        let ended = crate::kit::plimsoll_in(folder.path(), &args);
        assert_eq!(ended.code, 2, "{more}: {}", ended.stderr);
        assert!(ended.stderr.contains(why) && ended.stderr.lines().count() == 1, "{more}: {}", ended.stderr);
    }
}
