//! OpenSLO v1: a document per row that is a share of requests.
//!
//! OpenSLO has one ratio and no bracket. If the ceiling is inside a bucket, only requests certainly over it count as
//! bad. The SLO therefore never charges a request that may have been good.

use std::fmt::Write as _;

use plimsoll_judge::budget::BudgetFile;

use super::row::ExportRow;
use super::source::{ExportSource, decimal, quoted};
use super::{ExportSpec, comments, slug};

pub(crate) fn documents(
    file: &BudgetFile,
    source: &ExportSource,
    rows: &[ExportRow],
    spec: &ExportSpec,
) -> String {
    let budget = spec.name(file);
    let mut out = comments(file, source, rows);
    for row in rows {
        let Some(counted) = &row.counted else { continue };
        let charged =
            if counted.is_exact() { "" } else { " Only requests that are certainly over it are charged." };
        let description = format!("{}; judged {}.{charged}", row.lint.budget, row.lint.says);
        let _ = write!(
            out,
            "---\napiVersion: openslo/v1\nkind: SLO\nmetadata:\n  name: {name}\n  displayName: {display}\nspec:\n  description: {description}\n  \
             service: {service}\n  budgetingMethod: Occurrences\n  timeWindow:\n    - duration: 30d\n      isRolling: true\n  \
             indicator:\n    metadata:\n      name: {name}\n    spec:\n      ratioMetric:\n        counter: false\n",
            name = format!("{}-{}", slug(&budget), slug(&row.lint.id)),
            display = quoted(&row.lint.budget),
            description = quoted(&description),
            service = slug(&budget),
        );
        metric(&mut out, "bad", &counted.over_least("5m"));
        metric(&mut out, "total", &counted.requests("5m"));
        let _ = writeln!(
            out,
            "  objectives:\n    - displayName: {}\n      target: {}",
            quoted(&row.lint.id),
            decimal(1.0 - row.allowed)
        );
    }
    out
}

fn metric(out: &mut String, which: &str, query: &str) {
    let _ = writeln!(
        out,
        "        {which}:\n          metricSource:\n            type: Prometheus\n            spec:\n              query: |"
    );
    query.lines().for_each(|line| _ = writeln!(out, "                {line}"));
}
