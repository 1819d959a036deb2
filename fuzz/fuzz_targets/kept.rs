#![no_main]

#[path = "../../crates/judge/tests/fuzz/kept.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
