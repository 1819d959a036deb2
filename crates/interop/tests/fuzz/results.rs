//! Result files of other load generators, of every kind, also if the first bytes belong to another kind.

use plimsoll_interop::results::{ForeignFeed, assemble, sniff};

pub fn check(bytes: &[u8]) {
    let Some(kind) = sniff(bytes) else { return };
    let mut feed = ForeignFeed::new(kind);
    bytes.chunks(64).for_each(|piece| feed.push(piece));
    let _ = assemble(&[feed.end()]);
}
