//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/truths.rs"]
mod truths;

#[test]
fn what_fuzzing_learnt_of_truths() {
    replay(include_bytes!("../fuzz/truths.corpus"), truths::check);
}
