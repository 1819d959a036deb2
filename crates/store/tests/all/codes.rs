//! Records survive bytes: the log's encoding, the log's frames, Parquet.

use plimsoll_model::*;
use plimsoll_store::code::{CodeError, get_attempt, get_sample, put_attempt, put_sample};
use plimsoll_store::frame::{self, FrameKind, LogRecord, MAGIC};
use plimsoll_store::{Columns, open_with};
use proptest::prelude::*;

use crate::kit::{self, abandoned, answered, opened, written};

fn bytes(attempt: &Attempt) -> Vec<u8> {
    let mut buf = vec![];
    put_attempt(&mut buf, attempt);
    buf
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn an_attempt_reads_back(attempt in kit::attempts()) {
        prop_assert_eq!(get_attempt(&bytes(&attempt)).unwrap(), attempt);
    }

    #[test]
    fn a_sample_reads_back(sample in kit::samples()) {
        let mut buf = vec![];
        put_sample(&mut buf, &sample);
        prop_assert_eq!(get_sample(&buf).unwrap(), sample);
    }

    /// Whatever is done to its bytes: an error or another attempt, no panic, and never more memory than the bytes
    /// can account for (each event and block takes its share of them).
    #[test]
    fn changed_bytes_never_panic(
        attempt in kit::attempts(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut buf = bytes(&attempt);
        for (at, to) in changes {
            let at = at.index(buf.len());
            buf[at] = to;
        }
        if let Ok(other) = get_attempt(&buf) {
            prop_assert!(other.events.len() * 2 + other.prompt_blocks.len() * 8 <= buf.len());
        }
        buf.truncate(cut.index(buf.len()));
        let _ = get_attempt(&buf);
        let _ = get_sample(&buf);
    }
}

#[test]
fn every_shorter_record_is_refused() {
    let whole = bytes(&answered(3, 5));
    for cut in 0..whole.len() {
        assert!(get_attempt(&whole[..cut]).is_err(), "{cut} of {}", whole.len());
    }
    let longer = [whole.as_slice(), &[0]].concat();
    assert_eq!(get_attempt(&longer), Err(CodeError::Long));
}

#[test]
fn a_count_of_billions_is_refused_before_memory_is_taken() {
    // A never-sent attempt ends in three counts: blocks, events, stages, each one byte (varint 0 = 0x01).
    let mut attempt = answered(1, 0);
    attempt.answer = Answer::default();
    let whole = bytes(&attempt);
    assert_eq!(whole[whole.len() - 3..], [1, 1, 1]);
    let mut forged = whole[..whole.len() - 2].to_vec();
    forged.push(0);
    forged.extend_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(get_attempt(&forged), Err(CodeError::Short));
}

#[test]
fn an_answer_of_sixteen_tokens_takes_under_200_bytes() {
    let len = bytes(&answered(123_456, 16)).len();
    assert!(len < 200, "{len}");
}

fn log(attempts: &[Attempt]) -> Vec<u8> {
    let mut log = MAGIC.to_vec();
    for attempt in attempts {
        frame::append(&mut log, FrameKind::Attempt, |buf| put_attempt(buf, attempt));
    }
    log
}

fn read(log: &[u8]) -> (Vec<Attempt>, frame::LogEnd) {
    let mut attempts = vec![];
    let tail = frame::read(log, log.len() as u64, |record| {
        if let LogRecord::Attempt(attempt) = record {
            attempts.push(attempt);
        }
        Ok::<(), std::io::Error>(())
    });
    (attempts, tail.unwrap())
}

#[test]
fn a_log_cut_anywhere_keeps_every_whole_frame() {
    let attempts: Vec<Attempt> = (0..4).map(|i| answered(i, 2)).collect();
    let whole = log(&attempts);
    let ends: Vec<usize> = (0..=4).map(|n| log(&attempts[..n]).len()).collect();
    for cut in MAGIC.len()..=whole.len() {
        let (got, tail) = read(&whole[..cut]);
        let frames = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert_eq!(got, attempts[..frames], "cut at {cut}");
        assert_eq!(
            (tail.good, tail.dropped, tail.damaged),
            (ends[frames] as u64, (cut - ends[frames]) as u64, false)
        );
    }
}

#[test]
fn a_flipped_bit_ends_the_log_there_and_is_called_damage() {
    let attempts: Vec<Attempt> = (0..3).map(|i| answered(i, 1)).collect();
    let whole = log(&attempts);
    let (one, two) = (log(&attempts[..1]).len(), log(&attempts[..2]).len());
    // Past the length, which may as well say that the frame is cut short.
    for at in one + 4..two {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let (got, tail) = read(&flipped);
        assert_eq!(got, attempts[..1]);
        assert_eq!((tail.good, tail.damaged), (one as u64, true), "byte {at}");
    }
}

#[test]
fn zeros_after_a_power_cut_are_a_torn_tail() {
    let mut zeros = log(&[answered(0, 1)]);
    let good = zeros.len() as u64;
    zeros.resize(zeros.len() + 5000, 0);
    let (got, tail) = read(&zeros);
    assert_eq!((got.len(), tail), (1, frame::LogEnd { good, dropped: 5000, ..Default::default() }));
    assert_eq!(read(&[0; 64]).1, frame::LogEnd { dropped: 64, ..Default::default() });
    assert!(read(b"not a log at all").1.damaged);
}

#[test]
fn a_frame_of_a_later_version_is_passed_over() {
    let mut whole = log(&[answered(0, 1)]);
    frame::append(&mut whole, FrameKind::Level, |buf| buf.extend_from_slice(b"{\"id\": 1, \"new\": true}"));
    whole.extend_from_slice(&log(&[answered(1, 1)])[MAGIC.len()..]);
    let (got, tail) = read(&whole);
    assert_eq!(got, [answered(0, 1), answered(1, 1)]);
    assert_eq!((tail.unread, tail.dropped), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) })]

    /// Through the whole folder, both ways: finished, and recovered from the log.
    #[test]
    fn a_run_reads_back(
        attempts in proptest::collection::vec(kit::attempts(), 0..40),
        samples in proptest::collection::vec(kit::samples(), 0..10),
    ) {
        let temp = tempfile::tempdir().unwrap();
        for (name, write) in [("done", written as fn(&_, &_, &_)), ("dead", abandoned)] {
            let dir = temp.path().join(name);
            write(&dir, &attempts, &samples);
            for _ in 0..2 {
                let run = opened(&dir);
                prop_assert_eq!(&run.attempts, &attempts);
                prop_assert_eq!(&run.samples, &samples);
            }
            let figures = open_with(&dir, Columns::Figures).unwrap().attempts;
            for (mut full, figures) in attempts.iter().cloned().zip(figures) {
                full.events.iter_mut().for_each(|event| event.user_delay_ns = 0);
                full.prompt_blocks.clear();
                full.answer.stages.clear();
                full.answer.text = None;
                prop_assert_eq!(full, figures);
            }
        }
    }
}

#[test]
fn samples_that_are_not_numbers_keep_their_bits() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
    let samples = values.map(|value| Sample {
        at: At(1),
        source: "server".into(),
        name: "x".into(),
        labels: "a=b,c=d".into(),
        value,
    });
    written(&dir, &[], &samples);
    let got: Vec<u64> = opened(&dir).samples.iter().map(|sample| sample.value.to_bits()).collect();
    assert_eq!(got, values.map(f64::to_bits));
}

#[test]
fn row_groups_keep_the_order() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let attempts: Vec<Attempt> = (0..140_000).map(|i| answered(i, 0)).collect();
    written(&dir, &attempts, &[]);
    assert!(opened(&dir).attempts == attempts);
}
