//! Tracks the position of an HTTP/2 client within its current frame or field block.
//!
//! A frame, and a field block over several frames (RFC 9113, 4.1 and 4.3), blocks every stream of the connection until it
//! is complete. The library reads frames internally, so this tracker follows the frame heads, and only their lengths.

const PREFACE_BYTES: u32 = 24;
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

#[derive(Debug)]
pub struct FrameWatch {
    head: [u8; HEAD_BYTES],
    /// Bytes of the current frame head that have arrived.
    known: usize,
    /// Bytes that are missing of the preface or of the payload after a head.
    left: u32,
    in_block: bool,
}

/// The position after the last bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FrameProgress {
    End,
    /// Inside a frame or block that began within these bytes.
    Begun,
    /// Inside a frame or block that began before these bytes.
    Within,
}

impl Default for FrameWatch {
    fn default() -> FrameWatch {
        FrameWatch { head: [0; HEAD_BYTES], known: 0, left: PREFACE_BYTES, in_block: false }
    }
}

impl FrameWatch {
    /// Advances over received bytes.
    pub fn follow(&mut self, mut bytes: &[u8]) -> FrameProgress {
        let mut reached = if self.is_whole() { FrameProgress::Begun } else { FrameProgress::Within };
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = bytes.len().min(self.left as usize);
                self.left -= taken as u32;
                bytes = &bytes[taken..];
            } else {
                let taken = bytes.len().min(HEAD_BYTES - self.known);
                self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
                self.known += taken;
                bytes = &bytes[taken..];
                if self.known == HEAD_BYTES {
                    self.begin();
                }
            }
            if self.is_whole() {
                reached = FrameProgress::Begun;
            }
        }
        if self.is_whole() { FrameProgress::End } else { reached }
    }

    /// Returns whether every frame and block is complete.
    fn is_whole(&self) -> bool {
        self.left == 0 && self.known == 0 && !self.in_block
    }

    /// Reads the completed head of a frame.
    fn begin(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        self.known = 0;
        self.left = u32::from_be_bytes([0, a, b, c]);
        if matches!(kind, HEADERS | CONTINUATION) {
            self.in_block = flags & END_HEADERS == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    /// Returns a connection's bytes, and the offsets at which every frame and block is complete.
    fn connection() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut ends = vec![bytes.len()];
        // Settings, a request's fields in three frames, its body, an empty body frame, a ping.
        let frames = [
            (frame(4, 0, &[0; 6]), true),
            (frame(1, 0, &[0x82]), false),
            (frame(9, 0, &[]), false),
            (frame(9, 4, &[0x84, 0x86]), true),
            (frame(0, 0, &[7; 300]), true),
            (frame(0, 1, &[]), true),
            (frame(6, 0, &[0; 8]), true),
        ];
        for (frame, ends_here) in frames {
            bytes.extend(frame);
            if ends_here {
                ends.push(bytes.len());
            }
        }
        (bytes, ends)
    }

    #[test]
    fn ends_are_found_however_the_bytes_are_cut() {
        let (bytes, ends) = connection();
        for first in 1..bytes.len() {
            for second in [first + 1, first + 5, bytes.len()] {
                let second = second.min(bytes.len());
                if second == first {
                    continue;
                }
                let mut watch = FrameWatch::default();
                let want = |from: usize, to: usize| match ends.contains(&to) {
                    true => FrameProgress::End,
                    // If a boundary is within these bytes or just before them, another frame began in them.
                    false if ends.iter().any(|end| (from..to).contains(end)) => FrameProgress::Begun,
                    false => FrameProgress::Within,
                };
                let at_once = watch.follow(&bytes[..first]);
                assert_eq!(at_once, want(0, first), "0..{first}");
                let then = watch.follow(&bytes[first..second]);
                assert_eq!(then, want(first, second), "{first}..{second}");
            }
        }
    }
}
