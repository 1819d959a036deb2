//! A proxy's calls to an endpoint picker: gRPC's frames, cut anywhere, and Envoy's messages in them.

use plimsoll_wire::ext_proc::{HttpMessage, ProcessingRequest};
use plimsoll_wire::grpc::{self, CallMessages, FrameError};

/// Bytes that a message may have here.
const MOST: usize = 4_096;

/// The messages of a call that comes in pieces of this size, and why there are no more.
fn cut(bytes: &[u8], size: usize) -> (Vec<Vec<u8>>, Option<FrameError>, bool) {
    let (mut call, mut found) = (CallMessages::new(MOST), Vec::new());
    for piece in bytes.chunks(size) {
        call.push(piece);
        loop {
            match call.take() {
                Ok(Some(message)) => found.push(message.to_vec()),
                Ok(None) => break,
                Err(error) => return (found, Some(error), false),
            }
        }
    }
    (found, None, call.is_empty())
}

pub fn check(bytes: &[u8]) {
    let whole = cut(bytes, bytes.len().max(1));
    for size in [1, 3, 7] {
        assert_eq!(cut(bytes, size), whole, "in pieces of {size}");
    }
    let read = |message: &[u8]| {
        let _ = grpc::health_asked(message);
        let Ok(read) = ProcessingRequest::read(message) else { return };
        let held = match &read.said {
            Some(HttpMessage::RequestHeaders(lines, _) | HttpMessage::ResponseHeaders(lines, _)) => {
                lines.iter().map(|(name, value)| name.len() + value.len()).sum()
            }
            Some(HttpMessage::RequestBody(piece) | HttpMessage::ResponseBody(piece)) => piece.body.len(),
            _ => 0,
        };
        let subset: usize = read.subset.iter().flatten().map(String::len).sum();
        // Bytes that are no text become a longer one.
        assert!(held + subset / 3 <= message.len(), "what is read is in the message, once");
    };
    read(bytes);
    whole.0.iter().for_each(|message| read(message));
    if let Some((message, _)) = grpc::unframed(bytes) {
        assert_eq!(grpc::framed(message).len(), bytes.len());
    }
}
