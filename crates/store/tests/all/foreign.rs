//! Tests foreign and damaged files: an error or a run, no panic, bounded memory.

use std::fs;

use plimsoll_model::*;
use plimsoll_store::folder::{LOG, MANIFEST, REQUESTS, SERIES};
use plimsoll_store::{StoreError, open};

use crate::kit::{abandoned, answered, written};

/// Returns a row with a value in every column.
fn rich(i: u64) -> Attempt {
    let mut attempt = answered(i, (i % 4) as usize);
    attempt.session = Some(i / 3);
    attempt.prompt_blocks = vec![i, i + 1];
    attempt.answer.tokens.cached = Some(5);
    attempt.answer.broken = (i.is_multiple_of(7)).then_some(Broken::Empty);
    attempt.answer.error = (i.is_multiple_of(5)).then(|| "upstream".into());
    attempt.answer.retry_after = (i.is_multiple_of(9)).then_some(Span(1_000_000_000));
    attempt.answer.stages = vec![ServerStage { name: "queue".into(), took: Span(i as i64) }];
    attempt.answer.text = Some(format!("text {i}"));
    attempt
}

fn sample(i: i64) -> Sample {
    Sample { at: At(i), source: "server".into(), name: "x".into(), labels: "a=b".into(), value: i as f64 }
}

/// A small random generator (xorshift64*) that selects the changes of bytes.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }

    fn spoil(&mut self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        for _ in 0..1 + self.below(3) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = [0, 0xff, 0x7f, 0x80][self.below(4)],
                2 => bytes[at] = self.below(256) as u8,
                3 => bytes.truncate(at.max(1)),
                4 => drop(bytes.drain(at..(at + 1 + self.below(8)).min(bytes.len()))),
                _ => {
                    // The footer, with the counts and offsets.
                    let tail = bytes.len().min(3000);
                    let at = bytes.len() - 1 - self.below(tail);
                    bytes[at] = self.below(256) as u8;
                }
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        bytes
    }
}

#[test]
fn spoiled_parquet_is_an_error_or_a_run() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let attempts: Vec<Attempt> = (0..120).map(rich).collect();
    let samples: Vec<Sample> = (0..50).map(sample).collect();
    written(&dir, &attempts, &samples);
    let mut chance = Chance(0x9E37_79B9_7F4A_7C15);
    let (mut read, mut refused, mut shielded) = (0, 0, 0);
    for (name, times) in [(REQUESTS, 900), (SERIES, 300)] {
        let whole = fs::read(dir.join(name)).unwrap();
        for _ in 0..times {
            fs::write(dir.join(name), chance.spoil(&whole)).unwrap();
            match open(&dir) {
                Ok(run) => {
                    // Parquet has no checksums here: a changed value may pass, an additional row may not.
                    assert!(run.attempts.len() <= 120 && run.samples.len() <= 50);
                    read += 1;
                }
                Err(StoreError::Broken { what, .. }) if what.starts_with("not readable as Parquet") => {
                    shielded += 1
                }
                Err(StoreError::Broken { .. } | StoreError::Io { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        fs::write(dir.join(name), whole).unwrap();
    }
    println!("{read} read, {refused} refused, {shielded} panics of the decoder turned into errors");
    assert!(refused > 300);
    assert_eq!(open(&dir).unwrap().attempts, attempts);
}

#[test]
fn spoiled_logs_are_read_to_the_spoiled_record() {
    let temp = tempfile::tempdir().unwrap();
    let whole = temp.path().join("whole");
    let attempts: Vec<Attempt> = (0..60).map(rich).collect();
    abandoned(&whole, &attempts, &[sample(1)]);
    let log = fs::read(whole.join(LOG)).unwrap();
    let mut chance = Chance(77);
    for i in 0..300 {
        let dir = temp.path().join(i.to_string());
        fs::create_dir(&dir).unwrap();
        fs::copy(whole.join(MANIFEST), dir.join(MANIFEST)).unwrap();
        fs::write(dir.join(LOG), chance.spoil(&log)).unwrap();
        let run = open(&dir).unwrap();
        assert!(attempts.starts_with(&run.attempts));
        assert_eq!(open(&dir).unwrap().attempts, run.attempts);
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_file_that_is_not_parquet_says_which() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    written(&dir, &[answered(1, 1)], &[sample(1)]);
    fs::copy(dir.join(SERIES), dir.join(REQUESTS)).unwrap();
    let error = open(&dir).unwrap_err().to_string();
    assert!(error.ends_with("requests.parquet: column request is missing"), "{error}");
}

/// Each of these lists of booleans occupies the decoder for seconds, and a short file has room for some thousand; a fuzzer
/// found this.
#[test]
fn a_footer_that_would_be_read_for_hours_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    written(&dir, &[answered(1, 1)], &[sample(1)]);
    let lists = [0x09, 0x40, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07].repeat(2_000);
    let mut file = b"PAR1".to_vec();
    file.extend(&lists);
    file.push(0);
    file.extend((lists.len() as u32 + 1).to_le_bytes());
    file.extend(b"PAR1");
    fs::write(dir.join(REQUESTS), file).unwrap();
    let error = open(&dir).unwrap_err().to_string();
    assert!(error.contains("more booleans than it has bytes for"), "{error}");
}

/// These twelve rows were written by pyarrow with its default codec, snappy, and with two others of pandas, DuckDB and
/// Polars. See `fixtures/pyarrow/README.md`. The test needs no Python.
#[test]
fn every_common_codec_opens() {
    let temp = tempfile::tempdir().unwrap();
    let attempts: Vec<Attempt> = (0..12).map(|i| answered(i, (i % 6) as usize)).collect();
    for codec in ["snappy", "gzip", "lz4"] {
        let dir = temp.path().join(codec);
        written(&dir, &attempts, &[]);
        let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pyarrow");
        fs::copy(format!("{from}/{codec}.parquet"), dir.join(REQUESTS)).unwrap();
        assert_eq!(open(&dir).unwrap().attempts, attempts, "{codec}");
    }
}
