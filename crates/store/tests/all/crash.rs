//! Tests `kill -9` at random moments: no acknowledged record is lost, and the folder always opens.
//!
//! The child process is this test binary. It writes run after run into one folder and acknowledges each flush on its
//! standard output. The parent kills it after a random number of acknowledgements, which covers writing, finishing and
//! creating.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use plimsoll_model::RunState;
use plimsoll_store::{Origin, RunWriter, StoreError, open};

use crate::kit::{answered, child, manifest};

const TEST: &str = "crash::kills_at_random_moments_lose_nothing";
const DIR: &str = "PLIMSOLL_TEST_CRASH_DIR";
const KILLS: u64 = 40;

#[test]
fn kills_at_random_moments_lose_nothing() {
    if let Ok(dir) = std::env::var(DIR) {
        write_for_ever(Path::new(&dir));
    }
    let temp = tempfile::tempdir().unwrap();
    // A linear congruential generator suffices (Knuth's MMIX constants); the moment within a step varies anyway.
    let mut state = 20_261_120u64;
    let (mut recovered, mut finished, mut acknowledged) = (0, 0, 0);
    for kill in 0..KILLS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let wanted = (state >> 33) % 70;
        let base = temp.path().join(kill.to_string());
        for (round, flushed) in killed_after(&base, wanted) {
            acknowledged += flushed;
            match open(&base.join(round.to_string())) {
                Ok(run) => {
                    assert!(
                        run.attempts.len() >= flushed,
                        "{} of {flushed} in run {round}",
                        run.attempts.len()
                    );
                    let complete = run.manifest.progress == RunState::Complete;
                    assert!(!complete || run.attempts.len() == ROUND * BATCH as usize);
                    for (i, attempt) in run.attempts.iter().enumerate() {
                        assert_eq!(*attempt, answered(i as u64, i % 5));
                    }
                    match run.origin {
                        Origin::Finished => finished += 1,
                        Origin::Recovered { converted: true } => recovered += 1,
                        other => panic!("{other:?}: {:?}", run.recovered),
                    }
                }
                // Killed while the folder was being created, before the first acknowledgement.
                Err(StoreError::NotARun { .. }) if flushed == 0 => {}
                Err(error) => panic!("run {round} with {flushed} acknowledged: {error}"),
            }
        }
    }
    assert!(recovered >= KILLS / 2 && finished > 0, "{recovered} recovered, {finished} finished");
    println!(
        "{KILLS} kills: {acknowledged} acknowledged records, {recovered} runs recovered, {finished} finished"
    );
}

/// Starts a child, kills it after `wanted` acknowledgements, and returns the acknowledgements of its last two runs.
fn killed_after(base: &Path, wanted: u64) -> BTreeMap<u64, usize> {
    std::fs::create_dir(base).unwrap();
    let mut child = child(TEST, DIR, base.to_str().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut flushed = BTreeMap::new();
    let mut note = |line: String| {
        // libtest prints the test's name without a newline before the first line.
        let Some((_, numbers)) = line.split_once("ack ") else { return 0 };
        let numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
        flushed.insert(numbers[0], numbers[1] as usize);
        1
    };
    let mut seen = 0;
    while seen < wanted {
        seen += note(lines.next().expect("the child writes until it is killed").unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Output from before the kill counts too. A line may be truncated.
    for line in lines.map_while(Result::ok) {
        if line.ends_with(';') || line.split(' ').count() == 3 {
            note(line);
        }
    }
    let last = flushed.keys().next_back().copied().unwrap_or(0);
    // It may have been creating the next one.
    flushed.entry(last + 1).or_insert(0);
    flushed.retain(|round, _| round + 1 >= last && base.join(round.to_string()).exists());
    flushed
}

const ROUND: usize = 20;
const BATCH: u64 = 50;

fn write_for_ever(base: &Path) -> ! {
    for round in 0u64.. {
        let writer = RunWriter::create(&base.join(round.to_string()), manifest()).unwrap();
        for batch in 0..ROUND as u64 {
            for i in batch * BATCH..(batch + 1) * BATCH {
                writer.attempt(&answered(i, i as usize % 5));
            }
            writer.flush().unwrap();
            println!("ack {round} {}", (batch + 1) * BATCH);
            std::io::stdout().flush().unwrap();
        }
        writer.finish(manifest()).unwrap();
    }
    unreachable!("the parent kills this process");
}
