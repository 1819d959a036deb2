//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/tables.rs"]
mod tables;

#[test]
fn what_fuzzing_learnt_of_tables() {
    replay(include_bytes!("../fuzz/tables.corpus"), tables::check);
}
