#![no_main]

#[path = "../../crates/cli/tests/fuzz/watches.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
