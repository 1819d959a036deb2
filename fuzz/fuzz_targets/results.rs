#![no_main]

#[path = "../../crates/interop/tests/fuzz/results.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
