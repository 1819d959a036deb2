//! Where the bytes of a read land.
//!
//! One buffer per thread is nearly always enough: a read's bytes are looked at before the next read. Nearly, because what
//! they say may begin other requests, which read in turn while these bytes are still being looked at; so each read takes a
//! buffer out and puts it back. A buffer per connection lost: it would be most of what an open stream costs.

use std::cell::RefCell;

/// Most bytes one read takes. Larger reads would blur more events into one stamp and save nothing.
pub(crate) const READ_MAX: usize = 16 * 1024;

/// Buffers kept by a thread; those of deeper nesting go back to the allocator.
const KEPT: usize = 4;

/// A buffer. It comes zeroed once in its life and is written over by each read.
#[derive(Debug)]
pub struct Landing(Vec<u8>);

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl Landing {
    /// One of this thread's, or a new one while those are taken.
    pub fn take() -> Landing {
        Landing(FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; READ_MAX]))
    }

    pub fn room(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Its first `n` bytes: what a read has left.
    pub fn read(&self, n: usize) -> &[u8] {
        &self.0[..n]
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        FREE.with_borrow_mut(|free| {
            if free.len() < KEPT {
                free.push(buffer);
            }
        });
    }
}
