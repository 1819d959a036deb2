//! Result files of other load generators, parsed as every kind, with or without matching first bytes.

use plimsoll_wire::foreign::{ForeignFeed, assemble, sniff};

pub fn check(bytes: &[u8]) {
    let Some(kind) = sniff(bytes) else { return };
    let mut feed = ForeignFeed::new(kind);
    bytes.chunks(64).for_each(|piece| feed.push(piece));
    let _ = assemble(&[feed.end()]);
}
