//! Where a client stands within a record of TLS: does one lack its end?
//!
//! The library says nothing before a record is whole, so that who sends one slowly would be nowhere in a request. The heads of records are in the clear in
//! every version (RFC 8446, 5.1); they are followed here, and nothing but their lengths. To take any read without plaintext for the inside of a
//! record lost: a change of keys is a whole record that brings none.

use crate::frames::Reached;

const HEAD_BYTES: usize = 5;

#[derive(Default, Debug)]
pub(crate) struct RecordWatch {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that are there.
    known: usize,
    /// Bytes that are still to come behind a head.
    left: u32,
}

impl RecordWatch {
    /// Follows what came.
    pub fn follow(&mut self, mut bytes: &[u8]) -> Reached {
        let mut reached = if self.is_whole() { Reached::Begun } else { Reached::Within };
        while !bytes.is_empty() {
            let taken = self.take(bytes);
            bytes = &bytes[taken..];
            if self.is_whole() {
                reached = Reached::Begun;
            }
        }
        if self.is_whole() { Reached::End } else { reached }
    }

    /// Follows these bytes up to the end of a head, or of what is behind one: how many they are.
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

    /// Does nothing lack its end?
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
            // Where a record ended within these bytes, or just before them, another has begun in them.
            let want = |from: usize, to: usize| match ends.contains(&to) {
                true => Reached::End,
                false if ends.iter().any(|end| (from..to).contains(end)) => Reached::Begun,
                false => Reached::Within,
            };
            assert_eq!(watch.follow(&bytes[..first]), want(0, first), "0..{first}");
            for next in first..bytes.len() {
                assert_eq!(watch.follow(&bytes[next..=next]), want(next, next + 1), "{next}, cut at {first}");
            }
        }
    }
}
