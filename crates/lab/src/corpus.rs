//! Replay of fuzzing inputs without a fuzzer: `scripts/fuzz keep` writes them, and tests of the parser's crate read them.
//!
//! A corpus is one file next to the check; a folder with thousands of files was rejected. Each input follows its length (4 bytes, little-endian),
//! the shortest first. The replay also tries truncated and changed copies of each input. A rule decides the changes, so that a failure repeats.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Number of damaged copies of each input.
const DAMAGED: u64 = 8;

/// Passes each input of `corpus` and its damaged copies to `check`. Prints a failing input as a Rust literal.
///
/// # Panics
/// Panics if `check` panics, or if `corpus` does not have the format of `scripts/fuzz keep`.
pub fn replay(corpus: &[u8], check: impl Fn(&[u8])) {
    let inputs = inputs(corpus);
    assert!(!inputs.is_empty(), "a corpus without an input proves nothing");
    for (number, input) in inputs.iter().enumerate() {
        tried(&check, input);
        for round in 0..DAMAGED {
            let other = inputs[(number * 7 + round as usize) % inputs.len()];
            tried(&check, &damaged(input, other, (number as u64) << 8 | round));
        }
    }
}

fn inputs(corpus: &[u8]) -> Vec<&[u8]> {
    let (mut found, mut rest) = (Vec::new(), corpus);
    while let Some((length, after)) = rest.split_first_chunk() {
        let (input, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        found.push(input);
        rest = after;
    }
    assert!(rest.is_empty(), "a corpus ends within a length");
    found
}

#[expect(clippy::print_stderr, reason = "what fails is the case to keep")]
fn tried(check: impl Fn(&[u8]), input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(input))) {
        eprintln!("the input was b\"{}\"", input.escape_ascii());
        resume_unwind(panic);
    }
}

/// Returns the input truncated, with one byte changed, with a section repeated, or with the end of another input: the usual mutations of a fuzzer.
fn damaged(input: &[u8], other: &[u8], seed: u64) -> Vec<u8> {
    // Splitmix64's mixing (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    let mixed = |salt: u64| {
        let z = (seed.wrapping_mul(4) + salt + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let at = mixed(0) as usize % (input.len() + 1);
    let mut made = input.to_vec();
    match mixed(1) % 4 {
        0 => made.truncate(at),
        1 => {
            if let Some(byte) = made.get_mut(at) {
                *byte ^= (mixed(2) as u8).max(1);
            }
        }
        2 => {
            let stretch = input[at..(at + 1 + mixed(2) as usize % 16).min(input.len())].to_vec();
            made.splice(at..at, stretch);
        }
        _ => {
            made.truncate(at);
            made.extend_from_slice(&other[mixed(2) as usize % (other.len() + 1)..]);
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::{DAMAGED, replay};

    #[test]
    fn every_input_is_tried_as_it_is_and_damaged() {
        let seen = RefCell::new(Vec::new());
        replay(b"\x02\0\0\0ab\x03\0\0\0xyz", |input| seen.borrow_mut().push(input.to_vec()));
        let seen = seen.into_inner();
        assert_eq!(seen.len() as u64, 2 * (1 + DAMAGED));
        assert_eq!((&seen[0][..], &seen[1 + DAMAGED as usize][..]), (&b"ab"[..], &b"xyz"[..]));
        assert!(seen[1..=DAMAGED as usize].iter().any(|input| input != b"ab"));
    }

    #[test]
    #[should_panic(expected = "found")]
    fn what_fails_fails() {
        replay(b"\x01\0\0\0a", |input| assert!(input != b"a", "found"));
    }
}
