#![no_main]

#[path = "../../crates/wire/tests/fuzz/inferences.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
