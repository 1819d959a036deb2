//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/tokens.rs"]
mod tokens;

#[test]
fn what_fuzzing_learnt_of_tokens() {
    replay(include_bytes!("../fuzz/tokens.corpus"), tokens::check);
}
