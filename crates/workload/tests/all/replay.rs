//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/traces.rs"]
mod traces;

#[test]
fn what_fuzzing_learnt_of_traces() {
    replay(include_bytes!("../fuzz/traces.corpus"), traces::check);
}
