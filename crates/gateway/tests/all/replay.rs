//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

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
