//! Checks that the decoder can skip through a Thrift structure in a file in bounded time.
//!
//! A Parquet file's footer and page headers use Thrift's compact protocol, and the decoder skips unknown fields. A boolean
//! in a list takes no byte there. Five bytes can therefore announce two thousand million booleans, and a short file can
//! occupy the decoder for hours. (A fuzzer found this with the crate `parquet` 60.1.0.) Every other type takes a byte or
//! more and ends with the file. This module skips through the structure first and limits such lists to the bytes that they
//! could have. (Apache Thrift: doc/specs/thrift-compact-protocol.md)

use parquet::file::reader::Length;

use super::guard::GuardedFile;

/// Deepest nesting of structures. The decoder skips 64 levels, within a structure that it knows.
const DEEPEST: u32 = 96;

/// Type codes of Thrift's compact protocol; `STOP` ends a structure.
const STOP: u8 = 0;
const BOOLEANS: [u8; 2] = [1, 2];
const BYTE: u8 = 3;
const NUMBERS: [u8; 3] = [4, 5, 6];
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LISTS: [u8; 2] = [9, 10];
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Returns whether the structure at `start` has at most `most` booleans in lists. A truncated or malformed structure
/// passes, because the decoder rejects it.
pub(super) fn is_passable(file: &GuardedFile, start: u64, most: u64) -> bool {
    let mut walk =
        Walk { file, at: start, held: [0; HELD], from: 0, until: 0, booleans: most, is_too_many: false };
    let _ = walk.pass(STRUCT, 0);
    !walk.is_too_many
}

/// Buffer size of a read in bytes.
const HELD: usize = 256;

struct Walk<'f> {
    file: &'f GuardedFile,
    /// Position in the file after the buffered bytes.
    at: u64,
    held: [u8; HELD],
    from: usize,
    until: usize,
    /// Number of booleans that may still follow before the file is rejected.
    booleans: u64,
    is_too_many: bool,
}

impl Walk<'_> {
    /// Skips a value; `None` = truncated, malformed, or too many booleans.
    fn pass(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            _ if depth > DEEPEST => None,
            _ if BOOLEANS.contains(&kind) => Some(()),
            _ if NUMBERS.contains(&kind) => self.number().map(|_| ()),
            _ if LISTS.contains(&kind) => {
                let head = self.byte()?;
                let size = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
                self.pass_all([head & 15].as_slice(), size, depth)
            }
            BYTE => self.byte().map(|_| ()),
            DOUBLE => self.skip(8),
            UUID => self.skip(16),
            BINARY => {
                let length = self.number()?;
                self.skip(length)
            }
            MAP => match self.number()? {
                0 => Some(()),
                size => {
                    let kinds = self.byte()?;
                    self.pass_all([kinds >> 4, kinds & 15].as_slice(), size, depth)
                }
            },
            STRUCT => loop {
                let head = self.byte()?;
                if head & 15 == STOP {
                    return Some(());
                }
                if head >> 4 == 0 {
                    self.number()?;
                }
                self.pass(head & 15, depth + 1)?;
            },
            _ => None,
        }
    }

    /// Skips `size` elements of these kinds in sequence.
    fn pass_all(&mut self, kinds: &[u8], size: u64, depth: u32) -> Option<()> {
        if kinds.iter().all(|kind| BOOLEANS.contains(kind)) {
            let left = self.booleans.checked_sub(size);
            self.is_too_many |= left.is_none();
            self.booleans = left?;
            return Some(());
        }
        for _ in 0..size {
            kinds.iter().try_for_each(|kind| self.pass(*kind, depth + 1))?;
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        if self.from == self.until {
            (self.from, self.until) = (0, self.file.read_some(&mut self.held, self.at)?);
            self.at += self.until as u64;
        }
        let byte = *self.held[..self.until].get(self.from)?;
        self.from += 1;
        Some(byte)
    }

    /// Reads a varint: seven bits per byte, the least significant first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for place in 0..10 {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << (7 * place);
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        let held = (self.until - self.from) as u64;
        if bytes <= held {
            self.from += bytes as usize;
            return Some(());
        }
        self.at = self.at.checked_add(bytes - held).filter(|at| *at <= self.file.len())?;
        (self.from, self.until) = (0, 0);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn passes(bytes: &[u8], most: u64) -> bool {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        is_passable(&GuardedFile::new(file).expect("its length"), 0, most)
    }

    /// Field 1 is a list of 2³¹ − 1 booleans, in five bytes.
    const ENDLESS: [u8; 8] = [0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07, 0x00];

    #[test]
    fn a_list_of_booleans_has_no_more_than_it_may() {
        assert!(!passes(&ENDLESS, 1_000_000));
        assert!(passes(&ENDLESS, 1 << 31));
        let three = [0x19, 0x31, 0x00];
        assert!(passes(&three, 3) && !passes(&three, 2));
        // A map of booleans to booleans.
        assert!(!passes(&[0x1b, 0xff, 0xff, 0x03, 0x11, 0x00], 1_000));
    }

    /// Fields before it are skipped: numbers, text longer than a read, lists of structures, maps.
    #[test]
    fn it_is_found_behind_all_else() {
        let text = [&[0x18, 0xac, 0x02][..], &[7; 300]].concat();
        let all: [&[u8]; 10] = [
            &[0x15, 0x80, 0x01],
            &[0x06, 0x02, 0x7f],
            &[0x17, 0, 1, 2, 3, 4, 5, 6, 7],
            &[0x13, 9],
            &text,
            &[0x11],
            &[0x1d, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            &[0x19, 0x2c, 0x15, 0x02, 0x00, 0x00],
            &[0x1b, 0x01, 0x58, 0x02, 0x01, b'x'],
            &[0x1c, 0x18, 0x01, b'y', 0x00],
        ];
        let mut bytes = all.concat();
        bytes.extend(ENDLESS);
        assert!(!passes(&bytes, 1_000));
        bytes.truncate(bytes.len() - ENDLESS.len());
        bytes.push(0);
        assert!(passes(&bytes, 0));
        // Numbers of fixed length end with the file too.
        assert!(passes(&[0x19, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x07, 0x00], 0));
        // Truncated input and excessive nesting are left to the decoder.
        (0..bytes.len()).for_each(|length| assert!(passes(&bytes[..length], 0)));
        assert!(passes(&[0x1c; 5_000], 0));
    }
}
