//! Splits a file into lines when its bytes arrive in pieces.

/// Longest line in bytes: a prompt or an answer of a million tokens as text fits.
const LINE_MAX: usize = 64 << 20;

/// The unfinished line of a file.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    held: Vec<u8>,
}

impl LineSplitter {
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Appends bytes and passes on each line that ends in them.
    pub(crate) fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        let mut rest = bytes;
        while let Some(n) = memchr::memchr(b'\n', rest) {
            let (ended, after) = rest.split_at(n);
            if self.held.is_empty() {
                line(ended);
            } else {
                self.held.extend_from_slice(ended);
                line(&std::mem::take(&mut self.held));
            }
            rest = after.get(1..).unwrap_or_default();
        }
        // A longer line does not belong in such a file: its rest is dropped, and it counts as an unreadable line.
        if self.held.len() < LINE_MAX {
            self.held.extend_from_slice(rest);
        }
    }

    /// Ends the file; its last line may have no newline.
    pub(crate) fn end(self, line: impl FnOnce(&[u8])) {
        if !self.held.is_empty() {
            line(&self.held);
        }
    }
}
