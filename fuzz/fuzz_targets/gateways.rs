#![no_main]

#[path = "../../crates/gateway/tests/fuzz/gateways.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
