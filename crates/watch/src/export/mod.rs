//! A budget file in the formats of other tools: Prometheus rules, a Grafana dashboard, OpenSLO, KEDA, a collector's
//! tail sampling.
//!
//! Reading order: [`source`] (the series of an endpoint), `row` (a budget row as queries), `evidence` (bounds in
//! PromQL), then a file per format. A row is a count over its ceiling here too, on edges that the source has. A row
//! that the source can't evaluate is a comment in the file, never a silent rule or an interpolated quantile.

mod dashboard;
mod evidence;
mod keda;
mod openslo;
mod row;
mod rules;
mod sampling;
mod silence;
pub mod source;

use plimsoll_judge::budget::BudgetFile;

pub use row::ExportRow;
pub use source::{ExportSource, PAGES};

use crate::alert::burn::PAIRS;
use crate::lint::out_of_reach;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ExportKind {
    /// Recording, alerting and burn-rate rules of Prometheus, with unit tests.
    Rules,
    Dashboard,
    /// An OpenSLO document per row.
    OpenSlo,
    Keda,
    /// A tail-sampling processor of the OpenTelemetry collector.
    TailSampling,
}

/// The additional settings of an export.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ExportSpec {
    /// Maximum number of waiting requests per replica; `None` for no limit.
    pub queue_per_replica: Option<f64>,
    /// Name of the scaled Deployment; `None` if not given.
    pub deployment: Option<String>,
    /// Address of Prometheus; `None` if not given.
    pub prometheus: Option<String>,
}

impl ExportSpec {
    fn name(&self, file: &BudgetFile) -> String {
        file.name.clone().unwrap_or_else(|| "budget".to_owned())
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportFile {
    pub name: String,
    pub text: String,
}

/// The exported files, and the result for each row of the budget.
#[derive(Clone, Debug)]
pub struct ExportResult {
    pub files: Vec<ExportFile>,
    /// Rows in the order of the budget.
    pub rows: Vec<ExportRow>,
}

/// Exports a budget in this format.
///
/// # Errors
/// Fails if a required setting is missing, with one line of text.
pub fn export(
    kind: ExportKind,
    file: &BudgetFile,
    source: &ExportSource,
    spec: &ExportSpec,
) -> Result<ExportResult, String> {
    let rows = row::rows(file, source, &PAIRS);
    let name = slug(&spec.name(file));
    let one = |name: String, text: String| ExportFile { name, text };
    let files = match kind {
        ExportKind::Rules => vec![
            one(format!("{name}-rules.yml"), rules::rules(file, source, &rows, spec)),
            one(format!("{name}-rules-test.yml"), silence::tests(&name, file, &rows, (source, spec))),
        ],
        ExportKind::Dashboard => {
            vec![one(format!("{name}-dashboard.json"), dashboard::dashboard(file, source, &rows, spec))]
        }
        ExportKind::OpenSlo => {
            vec![one(format!("{name}-openslo.yaml"), openslo::documents(file, source, &rows, spec))]
        }
        ExportKind::Keda => vec![one(format!("{name}-keda.yaml"), keda::scaled_object(file, source, spec)?)],
        ExportKind::TailSampling => {
            vec![one(format!("{name}-tail-sampling.yaml"), sampling::processor(file, spec))]
        }
    };
    Ok(ExportResult { files, rows })
}

/// Returns the header comment of a file: its origin, and the method or limitation of each row.
fn comments(file: &BudgetFile, source: &ExportSource, rows: &[ExportRow]) -> String {
    let name = file.name.as_deref().unwrap_or("without a name");
    let mut lines = vec![format!("plimsoll export: budget {name}, on what {} exposes.", source.name)];
    for row in rows {
        let judged = if row.lint.judged { "evaluated" } else { "NOT EVALUATED" };
        lines.push(format!("{} ({}): {judged}: {}.", row.lint.id, row.lint.budget, row.lint.says));
        lines.extend(out_of_reach(&row.lint).filter(|_| row.lint.judged).map(|line| format!("{line}.")));
    }
    lines.iter().map(|line| format!("# {}\n", line.replace(['\n', '\r'], " "))).collect()
}

/// Returns a name that is valid in files, groups and Kubernetes.
fn slug(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(letter).collect();
    let parts: Vec<&str> = text.split('-').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "budget".to_owned() } else { parts.join("-") }
}
