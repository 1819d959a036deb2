//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies of it.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/answers.rs"]
mod answers;
#[path = "../fuzz/calls.rs"]
mod calls;
#[path = "../fuzz/connections.rs"]
mod connections;
#[path = "../fuzz/inferences.rs"]
mod inferences;
#[path = "../fuzz/metrics.rs"]
mod metrics;
#[path = "../fuzz/pushed.rs"]
mod pushed;
#[path = "../fuzz/requests.rs"]
mod requests;
#[path = "../fuzz/spans.rs"]
mod spans;

#[test]
fn what_fuzzing_learnt_of_answers() {
    replay(include_bytes!("../fuzz/answers.corpus"), answers::check);
}

#[test]
fn what_fuzzing_learnt_of_calls() {
    replay(include_bytes!("../fuzz/calls.corpus"), calls::check);
}

#[test]
fn what_fuzzing_learnt_of_connections() {
    replay(include_bytes!("../fuzz/connections.corpus"), connections::check);
}

#[test]
fn what_fuzzing_learnt_of_inferences() {
    replay(include_bytes!("../fuzz/inferences.corpus"), inferences::check);
}

#[test]
fn what_fuzzing_learnt_of_metrics() {
    replay(include_bytes!("../fuzz/metrics.corpus"), metrics::check);
}

#[test]
fn what_fuzzing_learnt_of_pushed() {
    replay(include_bytes!("../fuzz/pushed.corpus"), pushed::check);
}

#[test]
fn what_fuzzing_learnt_of_requests() {
    replay(include_bytes!("../fuzz/requests.corpus"), requests::check);
}

#[test]
fn what_fuzzing_learnt_of_spans() {
    replay(include_bytes!("../fuzz/spans.corpus"), spans::check);
}
