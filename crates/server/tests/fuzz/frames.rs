//! What a client of HTTP/2 sends: however it is cut, the same is whole in the end, and a piece that ends is seen to.

#[path = "../../src/frames.rs"]
mod frames;

use frames::{FrameWatch, Reached};

pub fn check(bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let whole = FrameWatch::default().follow(bytes) == Reached::End;
    for piece in [1, 2, 7, 9, 24] {
        let mut watch = FrameWatch::default();
        let mut before = Reached::Within;
        for piece in bytes.chunks(piece) {
            let reached = watch.follow(piece);
            assert!(
                before != Reached::End || reached != Reached::Within,
                "what begins behind an end has begun"
            );
            before = reached;
        }
        assert_eq!(before == Reached::End, whole, "in pieces of {piece}");
    }
}
