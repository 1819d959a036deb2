//! Replays the corpus of coverage-guided fuzzing (`scripts/fuzz`): every input that reached new code, and damaged copies.

use plimsoll_lab::corpus::replay;

#[path = "../fuzz/parquet.rs"]
mod parquet;
#[path = "../fuzz/records.rs"]
mod records;

#[test]
fn what_fuzzing_learnt_of_parquet() {
    replay(include_bytes!("../fuzz/parquet.corpus"), parquet::check);
}

#[test]
fn what_fuzzing_learnt_of_records() {
    replay(include_bytes!("../fuzz/records.corpus"), records::check);
}
