//! The OpenTelemetry collector's tail-sampling processor: all errors, all traces over the budget's end-to-end
//! ceiling, some of the rest.
//!
//! The collector's threshold is fixed, whereas `watch` follows the p99. Its wait counts from a trace's first span, so
//! it must exceed the slowest response to keep.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::budget::BudgetMetric;

use super::ExportSpec;

/// Sampled share of the other traces, per cent.
const REST: f64 = 2.0;
/// Wait as a multiple of the ceiling, and minimum wait in s.
const LONGER: f64 = 1.2;
const LEAST_S: f64 = 10.0;

/// Returns the section of the processor.
pub(crate) fn processor(file: &BudgetFile, spec: &ExportSpec) -> String {
    let whole = |metric| matches!(metric, BudgetMetric::E2e | BudgetMetric::E2eAfterSend);
    let ceilings = file.rows().filter(|plan| whole(plan.metric) && plan.row.slice.is_none());
    let past = ceilings.filter_map(|plan| plan.limit).reduce(f64::max);
    let wait = past.map_or(60.0, |ceiling| (LONGER * ceiling).max(LEAST_S)).ceil();
    let mut out = format!(
        "# plimsoll export: budget {}. Merge it into the collector's configuration.\n",
        spec.name(file)
    );
    out += match past {
        Some(_) => {
            "# decision_wait is 1.2 times the ceiling of e2e and counts from a trace's first span: raise it to 1.2 times the p99.9 that is measured.\n"
        }
        None => {
            "# The budget has no ceiling of e2e: no trace is kept for being slow. Give it one, or add a latency policy.\n"
        }
    };
    out += &format!(
        "processors:\n  tail_sampling:\n    decision_wait: {wait}s\n    num_traces: 100000\n    policies:\n      - name: errors\n        type: status_code\n        \
         status_code: {{status_codes: [ERROR]}}\n"
    );
    if let Some(past) = past {
        out += &format!(
            "      - name: past-the-ceiling\n        type: latency\n        latency: {{threshold_ms: {:.0}}}\n",
            1e3 * past
        );
    }
    out += &format!(
        "      - name: some-of-the-rest\n        type: probabilistic\n        probabilistic: {{sampling_percentage: {REST}}}\n"
    );
    out
}
