//! The diagnosis of an alert from metrics endpoints: layer, evidence, recommended action, action to avoid.

use plimsoll_diagnose::{Cause, Diagnosis, DiagnosisOutcome, Verdict};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AlertDiagnosis {
    /// One sentence; it starts with `inconclusive` if no endpoint has the data.
    pub says: String,
    /// Name of the layer; `unknown` if the data is inconclusive.
    pub layer: String,
    /// Stable name of the cause.
    pub cause: String,
    pub evidence: Vec<String>,
    /// Recommended action; empty if the cause is unknown, and the alert then has the action of its kind.
    // Written even when empty, because an older version that reads the journal after a roll-back requires the field.
    #[serde(default)]
    pub do_first: String,
    /// Action to avoid; empty if the cause is unknown.
    #[serde(default)]
    pub do_not: String,
    pub ask: String,
}

impl AlertDiagnosis {
    /// Returns the diagnosis for an alert. There *is* a problem, so endpoints that show no change are inconclusive.
    pub fn of(found: &Diagnosis) -> AlertDiagnosis {
        let told = found.verdicts.first().filter(|_| found.answer == DiagnosisOutcome::Found);
        let mut needs = found.missing.iter().map(|missing| missing.needs.words());
        let ask = told.map(|verdict| verdict.overturn.words()).or_else(|| needs.next_back());
        const DIAGNOSE: &str = "plimsoll diagnose URL --model MODEL --time 5m";
        let ask = match ask {
            Some(experiment) => format!("{experiment}; to do this at the endpoint: {DIAGNOSE}"),
            None => format!("for more evidence, run experiments at the endpoint: {DIAGNOSE}"),
        };
        match told {
            Some(verdict) => AlertDiagnosis {
                says: found.headline.clone(),
                layer: verdict.layer.name().to_owned(),
                cause: verdict.cause.id(),
                evidence: evidence(verdict),
                do_first: verdict.do_first.clone(),
                do_not: verdict.do_not.clone(),
                ask,
            },
            None => AlertDiagnosis {
                says: cannot_tell(found),
                layer: "unknown".to_owned(),
                cause: Cause::Unknown.id(),
                evidence: Vec::new(),
                do_first: String::new(),
                do_not: String::new(),
                ask,
            },
        }
    }
}

fn evidence(verdict: &Verdict) -> Vec<String> {
    verdict.evidence.iter().map(|evidence| evidence.says.clone()).collect()
}

fn cannot_tell(found: &Diagnosis) -> String {
    let why = found.verdicts.first().map(|verdict| verdict.says.as_str()).unwrap_or_default();
    let lacks: Vec<&str> = found.missing.iter().map(|missing| missing.what.as_str()).collect();
    let lacks = if lacks.is_empty() {
        String::new()
    } else {
        format!("; the metrics do not show {}", lacks.join(", nor "))
    };
    format!("inconclusive: {why}{lacks}")
}
