#![no_main]

#[path = "../../crates/server/tests/fuzz/frames.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
