//! OTLP metrics that are pushed into a watch, as protobuf and as JSON.

use plimsoll_wire::otlp_json::to_protobuf;
use plimsoll_wire::otlp_metrics;

pub fn check(bytes: &[u8]) {
    let _ = otlp_metrics::read(bytes);
    if let Ok(message) = to_protobuf(bytes) {
        let _ = otlp_metrics::read(&message);
    }
}
