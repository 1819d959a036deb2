//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies of it.

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
