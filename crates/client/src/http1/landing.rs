//! Provides the buffers that socket reads write to.
//!
//! One buffer per thread is nearly always enough, because a read's bytes are processed before the next read. The exception
//! is a response that starts other requests: these read while its bytes are still in use. Each read therefore takes a
//! buffer and returns it. A buffer per connection was rejected, because it would be most of the cost of an open stream.

use std::cell::RefCell;

/// Most bytes of one read. Larger reads would merge more events into one stamp and save no time.
pub(crate) const READ_MAX: usize = 16 * 1024;

/// Buffers kept per thread; the buffers of deeper nesting are freed.
const KEPT: usize = 4;

/// A read buffer. It is zeroed once, and each read overwrites it.
#[derive(Debug)]
pub struct ReadBuffer(Vec<u8>);

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl ReadBuffer {
    /// Returns a buffer of this thread, or a new one if all are in use.
    pub fn take() -> ReadBuffer {
        ReadBuffer(FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; READ_MAX]))
    }

    pub fn room(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Returns the first `n` bytes, the result of a read.
    pub fn read(&self, n: usize) -> &[u8] {
        &self.0[..n]
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        FREE.with_borrow_mut(|free| {
            if free.len() < KEPT {
                free.push(buffer);
            }
        });
    }
}
