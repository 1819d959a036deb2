//! Traces in files and over OTLP: protobuf, JSON, Jaeger, a profiler's output; whole and in pieces.

use plimsoll_wire::trace::{self, export, feed::TraceFeed, otlp};

pub fn check(bytes: &[u8]) {
    let _ = trace::read(bytes);
    let _ = trace::read_otlp_json(bytes);
    let _ = otlp::decode(bytes, &mut Vec::new());
    let _ = export::details(bytes);
    let _ = plimsoll_wire::grpc::unframed(bytes);
    let mut feed = TraceFeed::default();
    let mut all_read = true;
    for piece in bytes.chunks(7) {
        if feed.push(piece, &mut |_| ()).is_err() {
            all_read = false;
            break;
        }
    }
    if all_read {
        let _ = feed.end(&mut |_| ());
    }
}
