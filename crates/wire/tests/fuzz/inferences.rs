//! Answers of a KServe v2 server over gRPC: a call's bytes, cut anywhere, and the messages about the server and its models.
//! The first byte selects whether the call streams, and how it ends.

use plimsoll_model::Protocol;
use plimsoll_wire::kserve::grpc;
use plimsoll_wire::{DecodedAnswer, DecodedEvent, Decoder, Head};

fn head(status: &str) -> Head {
    let fields = [("content-type", &b"application/grpc"[..]), ("grpc-status", status.as_bytes())];
    Head::read(200, fields.into_iter().take(if status.is_empty() { 1 } else { 2 }), 0)
}

/// Returns the result of a call whose bytes come in pieces of this size.
fn read(how: u8, bytes: &[u8], size: usize) -> (Vec<DecodedEvent>, DecodedAnswer) {
    let mut decoder = Decoder::with_head(Protocol::KserveGrpc, how & 1 == 1, head(""), how & 2 == 2);
    let mut events = Vec::new();
    for piece in bytes.chunks(size) {
        decoder.feed(piece, &mut events);
    }
    if how & 4 == 4 {
        decoder.trailers(head(if how & 8 == 8 { "0" } else { "14" }));
    }
    let verdict = decoder.finish(how & 16 == 0);
    events.extend(verdict.tail);
    (events, verdict)
}

pub fn check(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let whole = read(*how, bytes, bytes.len().max(1));
    for size in [1, 3, 7] {
        assert_eq!(read(*how, bytes, size), whole, "in pieces of {size}");
    }
    assert!(whole.0.len() <= bytes.len() / 5 + 1, "each event has a frame");
    // Bytes that are no text become a longer one.
    assert!(whole.1.answer.text.map_or(0, |text| text.len()) <= 3 * bytes.len());
    let _ = (
        grpc::read_ready(bytes),
        grpc::read_server(bytes),
        grpc::read_index(bytes),
        grpc::read_config(bytes),
    );
    if let Ok(model) = grpc::read_model(bytes) {
        assert!(model.inputs.len() <= 256 && model.inputs.iter().all(|input| input.shape.len() <= 32));
    }
}
