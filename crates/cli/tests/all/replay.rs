//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies of it.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/watches.rs"]
mod watches;

#[test]
fn what_fuzzing_learnt_of_watches() {
    replay(include_bytes!("../fuzz/watches.corpus"), watches::check);
}
