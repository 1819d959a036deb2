//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/traces.rs"]
mod traces;

#[test]
fn what_fuzzing_learnt_of_traces() {
    replay(include_bytes!("../fuzz/traces.corpus"), traces::check);
}
