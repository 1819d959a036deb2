#![no_main]

#[path = "../../crates/server/tests/fuzz/truths.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
