//! Production logs of every kind.

use plimsoll_interop::logs::{LogFeed, LogKind, sniff};

const ALL: [LogKind; 8] = [
    LogKind::LiteLlm,
    LogKind::Dynamo,
    LogKind::Envoy,
    LogKind::Nginx,
    LogKind::Combined,
    LogKind::Vllm,
    LogKind::LlamaCpp,
    LogKind::Weka,
];

pub fn check(input: &[u8]) {
    let [kind, bytes @ ..] = input else { return };
    let _ = sniff(bytes);
    let mut feed = LogFeed::new(ALL[usize::from(*kind) % ALL.len()], (kind & 128 != 0).then_some(7));
    bytes.chunks(64).for_each(|piece| feed.push(piece));
    let _ = feed.end();
}
