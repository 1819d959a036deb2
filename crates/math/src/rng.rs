//! Seeded randomness: one [`Stream`] per (seed, purpose, index), with equal bytes on every machine.
//!
//! The generator is named (PCG XSL-RR 128/64, O'Neill 2014), because a "standard" or "small" generator may change with a
//! library version. A schedule's hash would change with it. A stream is *derived* from its name and never split off another
//! stream. A new consumer, or more numbers for one purpose, therefore leaves the numbers of every other purpose unchanged.

use rand_core::Rng;
use rand_pcg::Pcg64;

/// A seeded sequence of random numbers, independent of every stream of another name.
#[derive(Clone, Debug)]
pub struct Stream {
    pcg: Pcg64,
}

impl Stream {
    /// Returns the stream of this seed, purpose and index. Any change in one of the three gives unrelated numbers.
    pub fn new(seed: u64, purpose: &str, index: u64) -> Stream {
        let mut name = Name(mix(seed ^ 0x9e37_79b9_7f4a_7c15));
        for chunk in purpose.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            name.absorb(u64::from_le_bytes(word));
        }
        // The length distinguishes a purpose from one with trailing zero bytes.
        name.absorb(purpose.len() as u64);
        name.absorb(index);
        let state = name.draw();
        let sequence = name.draw();
        Stream { pcg: Pcg64::new(state, sequence) }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.pcg.next_u64()
    }

    /// Draws uniformly from the open interval (0, 1): the centre of one of 2⁵² equal cells, so that neither `ln(u)` nor
    /// `ln(1 − u)` is infinite. (2⁵³ cells would round the last centre up to 1.)
    pub fn uniform(&mut self) -> f64 {
        const CELL: f64 = 1.0 / (1u64 << 52) as f64;
        ((self.next_u64() >> 12) as f64 + 0.5) * CELL
    }

    /// Draws uniformly from 0..n without bias (Lemire 2019); 0 if n is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        let reject_under = n.wrapping_neg() % n;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(n);
            if wide as u64 >= reject_under {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Returns true with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }
}

/// The running hash of a stream's name.
struct Name(u64);

impl Name {
    fn absorb(&mut self, word: u64) {
        self.0 = mix(self.0.rotate_left(23) ^ mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    }

    fn draw(&mut self) -> u128 {
        let mut half = || {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            u128::from(mix(self.0))
        };
        half() << 64 | half()
    }
}

/// Applies the finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit affects every output bit.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
