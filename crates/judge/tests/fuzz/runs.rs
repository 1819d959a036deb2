//! A run whose manifest another program wrote or changed, over valid rows: it is judged like any other.

use std::sync::OnceLock;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::gate::{MeasuredRun, gate};
use plimsoll_lab::records::{answer, failure};
use plimsoll_measure::lines::LineSpec;
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::{Attempt, How, Manifest};

const BUDGET: &str = "{version: 1, budgets: [{id: first, metric: ttft, p: 90, max: 500ms}, {id: each, metric: tpot, p: 50, max: 30ms}, {id: errors, metric: error_rate, max: 1%}]}";

/// A request every 100 ms for eight seconds; every tenth fails.
fn rows() -> Vec<Attempt> {
    (0..80)
        .map(|n| match n % 10 {
            9 => failure(n, 100 * n as i64, How::ServerError, 50),
            _ => answer(n, 100 * n as i64, 40 + n as i64 % 7, 200 + n as i64 % 13, 8),
        })
        .collect()
}

fn asked() -> &'static (Vec<Attempt>, BudgetFile, LineSpec) {
    static ASKED: OnceLock<(Vec<Attempt>, BudgetFile, LineSpec)> = OnceLock::new();
    ASKED.get_or_init(|| {
        let file = serde_saphyr::from_str(BUDGET).expect("a budget file");
        (rows(), file, SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(20))
    })
}

pub fn check(bytes: &[u8]) {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) else { return };
    let (rows, file, spec) = asked();
    let run = MeasuredRun::read(&manifest, rows, &[], spec, file);
    let _ = gate(file, &run, None);
}
