//! Answers of servers under every protocol: whole, split anywhere into two, and byte by byte, with equal results.

use plimsoll_model::Protocol;
use plimsoll_wire::{Decoder, Head};

const TYPES: [&str; 5] =
    ["text/event-stream", "application/json", "application/x-ndjson", "application/octet-stream", ""];
const STATUSES: [u16; 6] = [200, 204, 302, 404, 429, 500];

fn read<'a>(protocol: Protocol, head: &Head, pieces: impl Iterator<Item = &'a [u8]>, clean: bool) -> String {
    let mut decoder = Decoder::with_head(protocol, true, head.clone(), true).expecting(Some(4), true);
    let mut out = Vec::new();
    pieces.for_each(|piece| decoder.feed(piece, &mut out));
    let stopped = decoder.is_stopped();
    format!("{stopped} {:?}", decoder.finish(clean))
}

pub fn check(input: &[u8]) {
    let [protocol, kind, cut, body @ ..] = input else { return };
    let protocol = Protocol::ALL[usize::from(*protocol) % Protocol::ALL.len()];
    let head = Head {
        status: STATUSES[usize::from(kind / 5) % STATUSES.len()],
        content_type: Some(TYPES[usize::from(*kind) % TYPES.len()].into()),
        ..Head::default()
    };
    let clean = kind & 128 == 0;
    let cut = usize::from(*cut) % (body.len() + 1);
    let whole = read(protocol, &head, [body].into_iter(), clean);
    assert_eq!(read(protocol, &head, [&body[..cut], &body[cut..]].into_iter(), clean), whole);
    if body.len() < 4096 {
        assert_eq!(read(protocol, &head, body.chunks(1), clean), whole);
    }
}
