#![no_main]

#[path = "../../crates/client/tests/fuzz/tokens.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
