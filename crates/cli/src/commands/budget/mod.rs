//! `plimsoll budget`: lints a budget file, creates one, or splits a total over stages ([`split`]).

pub mod init;
mod split;

use crate::rows;
use std::path::Path;

use plimsoll_judge::budget::lint::{LintEvidence, LintSeverity, Remark, lint};
use plimsoll_measure::findings::Findings;
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{BudgetAction, BudgetArgs, BudgetInitArgs, BudgetLintArgs, OutputFormat, Preset};
use crate::{baseline, budget_file, out};

pub fn run(args: &BudgetArgs) -> Result<Exit, Stop> {
    match &args.action {
        BudgetAction::Lint(args) => check(args),
        BudgetAction::Init(args) => init(args),
        BudgetAction::Split(args) => split::run(args),
    }
}

fn check(args: &BudgetLintArgs) -> Result<Exit, Stop> {
    let text = budget_file::read(&args.budget)?;
    if args.output_tokens.is_some_and(|n| !(n.is_finite() && n >= 1.0)) {
        return Err(Stop::usage("--output-tokens: the mean length of an answer, 1 or more"));
    }
    let run = args.run.as_deref().map(of_run).transpose()?;
    let remarks = lint(&text.file, &LintEvidence { run: run.as_ref(), output_tokens: args.output_tokens });
    match args.format {
        OutputFormat::Json => out::json(&as_json(&text, &remarks)),
        OutputFormat::Text => out::line(&spelt(&text, &remarks)),
    }
    let is_wrong = remarks.iter().any(|remark| remark.severity == LintSeverity::Error);
    Ok(if is_wrong { Exit::Usage } else { Exit::Done })
}

fn of_run(run: &str) -> Result<Findings, Stop> {
    let dir = baseline::resolve(run)?.dir;
    Ok(rows::load(&dir)?.1)
}

fn word(severity: LintSeverity) -> &'static str {
    match severity {
        LintSeverity::Error => "error",
        LintSeverity::Warning => "warning",
        LintSeverity::Note => "note",
    }
}

fn spelt(text: &budget_file::BudgetText, remarks: &[Remark]) -> String {
    let file = text.path.display();
    let mut lines = Vec::new();
    for (i, remark) in remarks.iter().enumerate() {
        let like = |other: &&Remark| other.kind == remark.kind && other.severity == remark.severity;
        let said_at_length =
            !matches!(remark.kind, "burn_alert" | "histogram_edge") || !remarks[..i].iter().any(|r| like(&r));
        if !said_at_length {
            continue;
        }
        let more: Vec<&str> = match remark.kind {
            "burn_alert" | "histogram_edge" => {
                remarks[i + 1..].iter().filter(like).filter_map(|r| id(text, r)).collect()
            }
            _ => Vec::new(),
        };
        let more = if more.is_empty() { String::new() } else { format!(" (likewise {})", more.join(", ")) };
        let at = text.place(&remark.path);
        lines.push(format!(
            "{file}:{}:{}: {}: {}{more}",
            at.line,
            at.column,
            word(remark.severity),
            remark.what
        ));
    }
    let counted = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let count = |severity: LintSeverity| {
        counted(remarks.iter().filter(|remark| remark.severity == severity).count(), word(severity))
    };
    lines.push(format!(
        "{file}: {}, {}, {}, {}",
        counted(text.file.budgets.len(), "budget"),
        count(LintSeverity::Error),
        count(LintSeverity::Warning),
        count(LintSeverity::Note)
    ));
    lines.join("\n")
}

/// Returns the id of the row that a remark is about.
fn id<'a>(text: &'a budget_file::BudgetText, remark: &Remark) -> Option<&'a str> {
    let index: usize = remark.path.split('.').nth(1)?.parse().ok()?;
    Some(text.file.budgets.get(index)?.id.as_str())
}

fn as_json(text: &budget_file::BudgetText, remarks: &[Remark]) -> serde_json::Value {
    let remarks: Vec<_> = remarks
        .iter()
        .map(|remark| {
            let at = text.place(&remark.path);
            json!({
                "path": remark.path, "line": at.line, "column": at.column,
                "kind": remark.kind, "severity": remark.severity, "what": remark.what,
            })
        })
        .collect();
    json!({"file": text.path, "remarks": remarks})
}

fn init(args: &BudgetInitArgs) -> Result<Exit, Stop> {
    let text = match (&args.preset, &args.from) {
        (Some(preset), None) => init::preset(*preset).to_owned(),
        (None, Some(run)) => {
            let dir = baseline::resolve(run)?.dir;
            let (manifest, findings) = rows::load(&dir)?;
            init::proposal(&manifest, &findings, args.margin)?
        }
        _ => {
            let names = Preset::NAMES.join(", ");
            return Err(Stop::usage(format!("name one of --preset ({names}) and --from RUN")));
        }
    };
    match &args.out {
        None => out::line(&text),
        Some(path) => write(path, &text)?,
    }
    Ok(Exit::Done)
}

/// Writes a new budget file.
pub fn write(path: &Path, text: &str) -> Result<(), Stop> {
    let shown = path.display();
    if path.exists() {
        return Err(Stop::usage(format!("--out {shown}: it exists; name a new file")));
    }
    out::file(path, text)?;
    out::note(&format!("written to {shown}; check it with plimsoll budget lint {shown}"));
    Ok(())
}
