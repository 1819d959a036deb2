//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/bodies.rs"]
mod bodies;

#[test]
fn what_fuzzing_learnt_of_bodies() {
    replay(include_bytes!("../fuzz/bodies.corpus"), bodies::check);
}
