//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies of it.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/tables.rs"]
mod tables;

#[test]
fn what_fuzzing_learnt_of_tables() {
    replay(include_bytes!("../fuzz/tables.corpus"), tables::check);
}
