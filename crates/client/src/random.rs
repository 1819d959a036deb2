//! Unpredictable numbers for names and keys of a process, such as run ids. Draws of a load come from seeded streams instead.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns an unpredictable number, because the standard library seeds its hashers from the system's random source.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
