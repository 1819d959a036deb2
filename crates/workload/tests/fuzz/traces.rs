//! Fuzzes the readers of published traces, lengths and prompts.

use plimsoll_workload::{prompt_file, servegen, trace};

pub fn check(bytes: &[u8]) {
    let _ = trace::detect_and_read(bytes, "trace");
    let _ = trace::read_lengths(bytes, "lengths");
    let _ = servegen::read_servegen(bytes, "servegen");
    let _ = prompt_file::read_prompts(bytes, "prompts");
}
