//! What engines publish of their caches: ZMTP's frames, whole and in pieces, and the batches in them.

use plimsoll_wire::kv_events;
use plimsoll_wire::zmtp::{SocketKind, ZmtpError, ZmtpReader, ZmtpReceived, greeting, ready};

/// All that is understood of these bytes behind a sound beginning, if it is `greeted`.
fn read(bytes: &[u8], piece: usize, greeted: bool) -> (Vec<ZmtpReceived>, Option<ZmtpError>) {
    let mut reader = ZmtpReader::new(SocketKind::Subscriber, 1 << 20);
    let mut said = Vec::new();
    let beginning = [greeting().to_vec(), ready(SocketKind::Publisher)].concat();
    let all = [if greeted { &beginning[..] } else { &[] }, bytes].concat();
    for piece in all.chunks(piece) {
        reader.push(piece);
        loop {
            match reader.take() {
                Ok(Some(received)) => said.push(received),
                Ok(None) => break,
                Err(error) => return (said, Some(error)),
            }
        }
    }
    (said, None)
}

pub fn check(bytes: &[u8]) {
    let _ = kv_events::read(bytes);
    for greeted in [false, true] {
        let whole = read(bytes, usize::MAX, greeted);
        for piece in [1, 7] {
            assert_eq!(read(bytes, piece, greeted), whole, "in pieces of {piece}");
        }
        for received in whole.0 {
            if let ZmtpReceived::Message(parts) = received {
                parts.iter().for_each(|part| drop(kv_events::read(part)));
            }
        }
    }
}
