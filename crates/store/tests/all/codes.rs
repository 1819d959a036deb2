//! Tests round trips of records: the log's encoding, the log's frames, Parquet.

use plimsoll_model::*;
use plimsoll_store::code::{CodeError, RepeatedTexts, get_attempt, get_sample, put_attempt, put_sample};
use plimsoll_store::frame::{self, FrameKind, LogRecord, MAGIC};
use plimsoll_store::{ColumnSelection, open_with};
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
        prop_assert_eq!(get_sample(&buf, &mut RepeatedTexts::default()).unwrap(), sample);
    }

    /// Changed bytes decode to an error or another attempt, without a panic. Memory is bounded by the number of bytes,
    /// because each event and block takes some of them.
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
        let _ = get_sample(&buf, &mut RepeatedTexts::default());
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
    // A never-sent attempt ends with three counts: blocks, events, stages, each one byte (varint 0 = 0x01).
    let mut attempt = answered(1, 0);
    attempt.answer = Answer::default();
    let whole = bytes(&attempt);
    assert_eq!(whole[whole.len() - 3..], [1, 1, 1]);
    let mut forged = whole[..whole.len() - 2].to_vec();
    forged.push(0);
    forged.extend_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(get_attempt(&forged), Err(CodeError::Short));
}

/// The format in hand-written bytes, because logs of older versions are decoded by it.
#[test]
fn every_field_has_its_place() {
    let number = |value: u64| -> Vec<u8> {
        let len = (64 - (value | 1).leading_zeros() as usize).div_ceil(7);
        ((value << len) | 1 << (len - 1)).to_le_bytes()[..len].to_vec()
    };
    let signed = |value: i64| number(if value < 0 { 2 * value.unsigned_abs() - 1 } else { 2 * value as u64 });
    let text = |text: &str| [number(text.len() as u64), text.as_bytes().to_vec()].concat();
    let mut a = Attempt::new(1_000, 2, 3, At(50_000));
    (a.session, a.turn, a.turns, a.class, a.target, a.resent) = (Some(4), 5, 6, 7, 8, Some(9));
    (a.sent, a.connected, a.first_byte) = (Some(At(50_010)), Some(At(50_011)), Some(At(50_030)));
    (a.first_token, a.first_visible, a.last_token) = (Some(At(50_040)), Some(At(50_050)), Some(At(50_060)));
    (a.end, a.kernel_stamps, a.asked_prompt, a.asked_output) = (Some(At(50_009)), true, 300, 20);
    a.media = MediaCounts { images: 1, pixels: 70_000, audio_ms: 2_000, documents: 11 };
    (a.bytes_out, a.bytes_in, a.connection, a.reused, a.prompt_blocks) = (12, 13, Some(14), true, vec![15]);
    let time = |ns| Some(Span(ns));
    a.tcp = TcpFacts { rtt: time(16), rtt_var: time(17), rtt_min: time(18), ..TcpFacts::default() };
    (a.tcp.retransmits, a.tcp.segments_out) = (Some(19), Some(20));
    (a.tcp.segments_in, a.tcp.out_of_order) = (Some(21), Some(22));
    a.outcome = Outcome::new(How::ServerError, By::User, true);
    let tokens = Tokens { prompt: Some(23), output: Some(24), reasoning: Some(25), ..Tokens::default() };
    a.answer.tokens = Tokens { cached: Some(26), rule: TokensRule::Tokeniser, claimed: Some(32), ..tokens };
    (a.answer.status, a.answer.broken, a.answer.retry_after) =
        (Some(503), Some(Broken::WrongCount), time(-27));
    a.answer.stages = vec![ServerStage { name: "prefill".into(), took: Span(28) }];
    a.answer.finish_reason = Some("stop".into());
    (a.answer.error, a.answer.replica, a.answer.text) = (Some("é".into()), Some("r".into()), Some("".into()));
    let kind = EventKind::from_u8(1).unwrap();
    a.events = vec![Event { offset: Span(29), user_delay_ns: 30, tokens: 31, kind, coalesced: true }];
    let spelt = [
        // All bits; result, cause, token rule and broken case.
        vec![number((1 << 36) - 1), number(6 | 3 << 4 | 3 << 6 | 4 << 8)],
        [1_000, 2, 3, 5, 7, 4, 6, 9, 8].map(number).to_vec(),
        // Due, sent relative to due, the others relative to sent.
        [50_000, 10, 1, 20, 30, 40, 50, -1].map(signed).to_vec(),
        [300, 20, 1, 70_000, 2_000, 11, 12, 13, 14].map(number).to_vec(),
        [16, 17, 18].map(signed).to_vec(),
        [19, 20, 21, 22, 503, 23, 24, 25, 26, 32].map(number).to_vec(),
        vec![signed(-27), number(1), 15u64.to_le_bytes().to_vec()],
        vec![number(1), vec![1 | 1 << 4 | 2 << 5 | 1 << 7], signed(29), number(31), number(30)],
        vec![number(1), text("prefill"), signed(28)],
        vec![text("stop"), text("é"), text("r"), text("")],
    ];
    assert_eq!(bytes(&a), spelt.concat().concat());
    assert_eq!(get_attempt(&bytes(&a)).unwrap(), a);
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
    // After the length, whose change may also mean a truncated frame.
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

    /// Round trip through the whole folder, both ways: finished, and recovered from the log.
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
            let figures = open_with(&dir, ColumnSelection::Figures).unwrap().attempts;
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
