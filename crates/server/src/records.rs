//! Tracks the position of a TLS client within its current record.
//!
//! The TLS library reports no data before a record is complete, so a client that sends one slowly would evade the read
//! limit. Record heads are unencrypted in every version (RFC 8446, 5.1); this tracker follows them, and only their lengths.
//! Treating every read without plaintext as an incomplete record was rejected, because a key update is a complete record
//! without plaintext.

use crate::frames::FrameProgress;

const HEAD_BYTES: usize = 5;

#[derive(Default, Debug)]
pub(crate) struct RecordWatch {
    head: [u8; HEAD_BYTES],
    /// Bytes of the current record head that have arrived.
    known: usize,
    /// Bytes that are missing of the payload after a head.
    left: u32,
}

impl RecordWatch {
    /// Advances over received bytes.
    pub fn follow(&mut self, mut bytes: &[u8]) -> FrameProgress {
        let mut reached = if self.is_whole() { FrameProgress::Begun } else { FrameProgress::Within };
        while !bytes.is_empty() {
            let taken = self.take(bytes);
            bytes = &bytes[taken..];
            if self.is_whole() {
                reached = FrameProgress::Begun;
            }
        }
        if self.is_whole() { FrameProgress::End } else { reached }
    }

    /// Advances to the end of a head or payload; returns the number of bytes used.
    fn take(&mut self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            let taken = bytes.len().min(self.left as usize);
            self.left -= taken as u32;
            return taken;
        }
        let taken = bytes.len().min(HEAD_BYTES - self.known);
        self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
        self.known += taken;
        if self.known == HEAD_BYTES {
            let [_, _, _, high, low] = self.head;
            self.known = 0;
            self.left = u32::from_be_bytes([0, 0, high, low]);
        }
        taken
    }

    /// Returns whether every record is complete.
    fn is_whole(&self) -> bool {
        self.left == 0 && self.known == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_however_the_bytes_are_cut() {
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        for length in [1u16, 300, 0, 20] {
            bytes.extend([23, 3, 3]);
            bytes.extend(length.to_be_bytes());
            bytes.extend(vec![7; usize::from(length)]);
            ends.push(bytes.len());
        }
        for first in 1..bytes.len() {
            let mut watch = RecordWatch::default();
            // If a boundary is within these bytes or just before them, another record began in them.
            let want = |from: usize, to: usize| match ends.contains(&to) {
                true => FrameProgress::End,
                false if ends.iter().any(|end| (from..to).contains(end)) => FrameProgress::Begun,
                false => FrameProgress::Within,
            };
            assert_eq!(watch.follow(&bytes[..first]), want(0, first), "0..{first}");
            for next in first..bytes.len() {
                assert_eq!(watch.follow(&bytes[next..=next]), want(next, next + 1), "{next}, cut at {first}");
            }
        }
    }
}
