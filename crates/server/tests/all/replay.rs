//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/truths.rs"]
mod truths;

#[test]
fn what_fuzzing_learnt_of_truths() {
    replay(include_bytes!("../fuzz/truths.corpus"), truths::check);
}
