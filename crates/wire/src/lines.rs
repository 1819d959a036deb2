//! Lines of a file whose bytes come in pieces.

/// Longest line that is read, bytes: a prompt or an answer of a million tokens as text fits.
const LINE_MAX: usize = 64 << 20;

/// What stands of a line that has not ended yet.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    held: Vec<u8>,
}

impl LineSplitter {
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes the next bytes, and hands on each line that ends in them.
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
        // What is longer is no line of such a file: what follows of it is dropped, and it is counted as one that can't be read.
        if self.held.len() < LINE_MAX {
            self.held.extend_from_slice(rest);
        }
    }

    /// The file has ended, its last line perhaps without a newline.
    pub(crate) fn end(self, line: impl FnOnce(&[u8])) {
        if !self.held.is_empty() {
            line(&self.held);
        }
    }
}
