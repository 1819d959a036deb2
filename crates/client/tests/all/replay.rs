//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/tokens.rs"]
mod tokens;

#[test]
fn what_fuzzing_learnt_of_tokens() {
    replay(include_bytes!("../fuzz/tokens.corpus"), tokens::check);
}
