//! The requests of a run one by one, with the latencies that all figures use: for spreadsheets and data frames.

use plimsoll_model::{Attempt, How, Level};

use crate::columns::{ABSENT, Columns, INFINITE, UNKNOWN};

/// A request as a row, with times in seconds on the run's axis.
///
/// A latency is `+∞` if the request did not finish, and `None` if the metric does not exist for the request.
#[derive(Clone, PartialEq, Debug)]
pub struct RequestRow {
    pub level: u32,
    /// Number in the level's schedule.
    pub request: u64,
    pub attempts: u16,
    pub due_s: f64,
    /// Time from due to the first generated token.
    pub ttft_s: Option<f64>,
    /// Time from due to the last byte.
    pub e2e_s: Option<f64>,
    /// Time per output token after the first.
    pub tpot_s: Option<f64>,
    /// Prompt tokens (or items) counted by the server; `None` if not reported.
    pub prompt: Option<u32>,
    /// Output tokens counted by the server; `None` if not reported.
    pub output: Option<u32>,
    pub how: How,
}

/// Returns the requests of these levels, by level and in the order of due times, including requests of the warm-up.
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
