//! A hasher for numbers that are no one's attack: ids that count up, and names that are hashes already.
//!
//! The standard hasher defends against foreign keys and costs several times as much. Only for maps that are never
//! iterated: their order would not be the standard one.

use std::hash::Hasher;

/// One multiplication by 2⁶⁴/φ per number (Fibonacci hashing, Knuth 6.4).
#[derive(Clone, Default, Debug)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
