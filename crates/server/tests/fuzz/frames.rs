//! Fuzzes the frames of an HTTP/2 client: for any split the final position is equal, and every boundary is detected.

#[path = "../../src/frames.rs"]
mod frames;

use frames::{FrameProgress, FrameWatch};

pub fn check(bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let whole = FrameWatch::default().follow(bytes) == FrameProgress::End;
    for piece in [1, 2, 7, 9, 24] {
        let mut watch = FrameWatch::default();
        let mut before = FrameProgress::Within;
        for piece in bytes.chunks(piece) {
            let reached = watch.follow(piece);
            assert!(
                before != FrameProgress::End || reached != FrameProgress::Within,
                "what begins behind an end has begun"
            );
            before = reached;
        }
        assert_eq!(before == FrameProgress::End, whole, "in pieces of {piece}");
    }
}
