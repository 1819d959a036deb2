//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies of it.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/logs.rs"]
mod logs;
#[path = "../fuzz/results.rs"]
mod results;

#[test]
fn what_fuzzing_learnt_of_logs() {
    replay(include_bytes!("../fuzz/logs.corpus"), logs::check);
}

#[test]
fn what_fuzzing_learnt_of_results() {
    replay(include_bytes!("../fuzz/results.corpus"), results::check);
}
