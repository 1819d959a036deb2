//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/watches.rs"]
mod watches;

#[test]
fn what_fuzzing_learnt_of_watches() {
    replay(include_bytes!("../fuzz/watches.corpus"), watches::check);
}
