//! Replay of inputs from coverage-guided fuzzing (`scripts/fuzz`): every input with new coverage, and damaged copies of each.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/kept.rs"]
mod kept;
#[path = "../fuzz/runs.rs"]
mod runs;
#[path = "../fuzz/settings.rs"]
mod settings;

#[test]
fn what_fuzzing_learnt_of_kept() {
    replay(include_bytes!("../fuzz/kept.corpus"), kept::check);
}

#[test]
fn what_fuzzing_learnt_of_runs() {
    replay(include_bytes!("../fuzz/runs.corpus"), runs::check);
}

#[test]
fn what_fuzzing_learnt_of_settings() {
    replay(include_bytes!("../fuzz/settings.corpus"), settings::check);
}
