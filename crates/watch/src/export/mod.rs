//! A budget file in the forms that others' tools read: Prometheus' rules, a Grafana dashboard, OpenSLO, KEDA, a collector's tail sampling.
//!
//! Reading order: [`source`] (what a page exposes), `row` (a budget's row as queries), `evidence` (what counts prove, in PromQL), then a file per form.
//! A row is a count over its ceiling here too, on edges that the source has; what a source can't judge is a comment in the file, never a rule that is
//! silent for ever or a quantile out of interpolation.

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

/// A form.
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

/// What else is asked.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ExportSpec {
    /// Requests that may wait per replica.
    pub queue_per_replica: Option<f64>,
    /// What is scaled: the name of a Deployment.
    pub deployment: Option<String>,
    pub prometheus: Option<String>,
}

impl ExportSpec {
    fn name(&self, file: &BudgetFile) -> String {
        file.name.clone().unwrap_or_else(|| "budget".to_owned())
    }
}

/// A file: its name and what is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportFile {
    pub name: String,
    pub text: String,
}

/// Files, and what became of each row of the budget.
#[derive(Clone, Debug)]
pub struct Exported {
    pub files: Vec<ExportFile>,
    /// The rows, in the budget's order.
    pub rows: Vec<ExportRow>,
}

/// Writes a budget in this form.
///
/// # Errors
/// What is missing for it, in one line.
pub fn export(
    kind: ExportKind,
    file: &BudgetFile,
    source: &ExportSource,
    spec: &ExportSpec,
) -> Result<Exported, String> {
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
    Ok(Exported { files, rows })
}

/// What a reader of the file must know: where it comes from, and of each row whether and how it is judged.
fn comments(file: &BudgetFile, source: &ExportSource, rows: &[ExportRow]) -> String {
    let name = file.name.as_deref().unwrap_or("without a name");
    let mut lines = vec![format!("plimsoll export: budget {name}, on what {} exposes.", source.name)];
    for row in rows {
        let judged = if row.lint.judged { "judged" } else { "NOT JUDGED" };
        lines.push(format!("{} ({}): {judged}: {}.", row.lint.id, row.lint.budget, row.lint.says));
        lines.extend(out_of_reach(&row.lint).filter(|_| row.lint.judged).map(|line| format!("{line}.")));
    }
    lines.iter().map(|line| format!("# {}\n", line.replace(['\n', '\r'], " "))).collect()
}

/// A name that files, groups and Kubernetes take.
fn slug(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(letter).collect();
    let parts: Vec<&str> = text.split('-').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "budget".to_owned() } else { parts.join("-") }
}
