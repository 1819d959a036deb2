//! What is pushed into a watch: Prometheus' remote write, OTLP's metrics as protobuf and as JSON.

use plimsoll_wire::otlp_json::{OtlpKind, to_protobuf};
use plimsoll_wire::{otlp_metrics, remote_write};

pub fn check(bytes: &[u8]) {
    let _ = remote_write::read(bytes, 1 << 24);
    // Compressed by ourselves, so that what lies under the compression is reached.
    if let Ok(packed) = snap::raw::Encoder::new().compress_vec(bytes) {
        let _ = remote_write::read(&packed, 1 << 24);
    }
    let _ = otlp_metrics::read(bytes);
    for kind in [OtlpKind::Traces, OtlpKind::Metrics] {
        if let Ok(message) = to_protobuf(kind, bytes) {
            let _ = otlp_metrics::read(&message);
        }
    }
}
