//! Fuzzes the log of a run, as a shard sends it or a killed process left it, and its single records, which must round-trip.

use plimsoll_store::{code, frame};

pub fn check(bytes: &[u8]) {
    let mut log = frame::MAGIC.to_vec();
    log.extend_from_slice(bytes);
    for log in [bytes, &log[..]] {
        let tail =
            frame::read(log, log.len() as u64, |_| Ok::<(), std::io::Error>(())).expect("memory reads");
        assert!(tail.good + tail.dropped <= log.len() as u64);
    }
    if let Ok(attempt) = code::get_attempt(bytes) {
        let mut again = Vec::new();
        code::put_attempt(&mut again, &attempt);
        assert_eq!(
            format!("{:?}", code::get_attempt(&again)),
            format!("{:?}", Ok::<_, code::CodeError>(attempt))
        );
    }
    let _ = code::get_sample(bytes, &mut code::RepeatedTexts::default());
    let _ = code::get_span(bytes);
}
