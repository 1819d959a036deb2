//! The requests of a run one by one, with the latencies that every figure is made of: for spreadsheets and data frames.

use plimsoll_model::{Attempt, How, Level};

use crate::columns::{ABSENT, Columns, INFINITE, UNKNOWN};

/// One request. Times in seconds of the run's axis; latencies are `+∞` of a request that did not finish, `None` where the metric does not
/// exist for it.
#[derive(Clone, PartialEq, Debug)]
pub struct RequestRow {
    pub level: u32,
    /// Its number in the level's schedule.
    pub request: u64,
    pub attempts: u16,
    pub due_s: f64,
    /// From due to the first generated token.
    pub ttft_s: Option<f64>,
    /// From due to the last byte.
    pub e2e_s: Option<f64>,
    /// Per output token after the first.
    pub tpot_s: Option<f64>,
    /// Prompt tokens (or items) that the server counted; `None` = it did not say.
    pub prompt: Option<u32>,
    /// Output tokens, likewise.
    pub output: Option<u32>,
    pub how: How,
}

/// The requests of these levels, by level and in the order in which they were due. Requests cut as warm-up are among them.
pub fn requests(levels: &[Level], attempts: &[Attempt]) -> Vec<RequestRow> {
    let mut rows = Vec::new();
    for level in levels {
        let own: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.level == level.id).collect();
        let columns = Columns::read(&own);
        let latency = |ns: i64| match ns {
            ABSENT => None,
            INFINITE => Some(f64::INFINITY),
            ns => Some(ns as f64 / 1e9),
        };
        let tokens = |count: u32| (count != UNKNOWN).then_some(count);
        rows.extend((0..columns.len()).map(|i| RequestRow {
            level: level.id,
            request: own[columns.last[i] as usize].request,
            attempts: columns.attempts(i),
            due_s: columns.due[i] as f64 / 1e9,
            ttft_s: latency(columns.ttft[i]),
            e2e_s: latency(columns.e2e[i]),
            tpot_s: latency(columns.tpot[i]),
            prompt: tokens(columns.prompt[i]),
            output: tokens(columns.output[i]),
            how: columns.how[i],
        }));
    }
    rows
}
