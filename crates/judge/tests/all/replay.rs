//! What coverage-guided fuzzing learnt (`scripts/fuzz`), once more: every input that reached something new, and each of them damaged.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/settings.rs"]
mod settings;

#[test]
fn what_fuzzing_learnt_of_settings() {
    replay(include_bytes!("../fuzz/settings.corpus"), settings::check);
}
