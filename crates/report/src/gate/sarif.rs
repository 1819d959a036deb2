//! Renders SARIF 2.1.0 for code scanners: a rule per budget, and a result per row that points at the budget's line in its file.
//!
//! A result points into the budget file, because a reviewer can change it, and the run has no lines. The fingerprint uses
//! parts that survive edits of the file (id and slice), so that a scanner recognises a finding.

use plimsoll_judge::gate::{GateFinding, GateRow, GateVerdict, RowRole};
use plimsoll_measure::findings::Held;
use serde_json::{Value, json};

use super::{name, word};

/// URL of the schema at OASIS.
const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// Returns the finding as SARIF. `file` is the budget file as a relative URI; `place` returns line and column of a dotted path in it.
pub fn render(finding: &GateFinding, file: &str, place: impl Fn(&str) -> (u32, u32)) -> Value {
    let mut rules: Vec<Value> = Vec::new();
    let mut ids: Vec<&str> = Vec::new();
    for row in &finding.rows {
        if !ids.contains(&row.id.as_str()) {
            ids.push(&row.id);
            rules.push(json!({
                "id": row.id,
                "shortDescription": {"text": format!("{} {}", row.what, row.limit_shown)},
                "properties": {"owner": row.owner},
            }));
        }
    }
    let result = |row: &GateRow| {
        let (line, column) = place(&row.place);
        let (kind, level) = kind_and_level(finding.verdict, row);
        let figures = format!("{} {} (limit {})", row.what, row.measured_shown, row.limit_shown);
        let message = if row.why.is_empty() { figures } else { row.why.clone() };
        json!({
            "ruleId": row.id,
            "ruleIndex": ids.iter().position(|id| *id == row.id),
            "kind": kind,
            "level": level,
            "message": {"text": format!("{}: {}: {message}", name(row), word(finding.verdict, row))},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": file},
                "region": {"startLine": line, "startColumn": column},
            }}],
            "partialFingerprints": {"plimsollBudget/v1": fingerprint(&name(row))},
        })
    };
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "plimsoll",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "invocations": [{
                "executionSuccessful": finding.verdict != GateVerdict::Invalid,
                "toolExecutionNotifications": finding.refusals.iter().map(|text| json!({
                    "level": "error", "message": {"text": text},
                })).collect::<Vec<_>>(),
            }],
            "results": finding.rows.iter().map(result).collect::<Vec<_>>(),
            "properties": {"verdict": finding.verdict.name(), "headline": finding.headline, "run": finding.run},
        }],
    })
}

/// Returns the kind and the level of a result. By the standard, a level other than `none` requires kind `fail`.
fn kind_and_level(verdict: GateVerdict, row: &GateRow) -> (&'static str, &'static str) {
    match (verdict, row.role, row.held) {
        (GateVerdict::Invalid, ..) => ("review", "none"),
        (_, RowRole::Tracked, _) => ("informational", "none"),
        (_, RowRole::Decides, Held::Fail) => ("fail", "error"),
        (_, RowRole::Watched, Held::Fail) => ("fail", "warning"),
        (_, _, Held::Pass) => ("pass", "none"),
        // An inconclusive row needs attention. Scanners show only failures, so it is one, at the lowest level.
        (_, RowRole::Decides, Held::Inconclusive) => ("fail", "warning"),
        (_, _, Held::Inconclusive) => ("open", "none"),
    }
}

/// Returns the FNV-1a hash of the name: equal on every machine, and short.
fn fingerprint(name: &str) -> String {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}
