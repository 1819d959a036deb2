//! Files of other tools: results of load generators, and logs of servers and gateways.
//!
//! One reader per family takes bytes and gives rows of `model`. [`imported`] computes our metrics from the rows, and
//! compares them with the file's own. It is separate from `wire`, because no request or response needs it.
//!
//! - [`results`]: result files of other load generators, and reports for them
//! - [`logs`]: production logs, without text
//! - [`imported`]: the evaluation of a result file
//! - [`evals`]: scores of lm-evaluation-harness

pub mod evals;
pub mod imported;
mod lines;
pub mod logs;
pub mod results;
