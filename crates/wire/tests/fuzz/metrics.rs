//! Metrics in every format: metrics endpoints, SGLang's loads, llama.cpp's slots, ranges of Prometheus.

use plimsoll_wire::{exposition, prometheus_api};

pub fn check(bytes: &[u8]) {
    let _ = exposition::read(bytes);
    let _ = exposition::sglang_loads(bytes);
    let _ = exposition::llamacpp_props(bytes);
    let _ = exposition::llamacpp_slots(bytes);
    let _ = prometheus_api::range(bytes);
}
