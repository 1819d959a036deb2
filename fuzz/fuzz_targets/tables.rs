#![no_main]

#[path = "../../crates/plan/tests/fuzz/tables.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
