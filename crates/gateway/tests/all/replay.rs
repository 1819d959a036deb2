//! Replay of the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input, and damaged copies of each.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/bodies.rs"]
mod bodies;

#[path = "../fuzz/gateways.rs"]
mod gateways;

#[test]
fn what_fuzzing_learnt_of_bodies() {
    replay(include_bytes!("../fuzz/bodies.corpus"), bodies::check);
}

#[test]
fn what_fuzzing_learnt_of_gateways() {
    replay(include_bytes!("../fuzz/gateways.corpus"), gateways::check);
}
