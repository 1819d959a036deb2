#![no_main]

#[path = "../../crates/store/tests/fuzz/records.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
