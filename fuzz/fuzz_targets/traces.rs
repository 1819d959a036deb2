#![no_main]

#[path = "../../crates/workload/tests/fuzz/traces.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
