//! `plimsoll audit` divides the bill of a run, a gateway record or a watch history among its uses.

use std::path::Path;

use plimsoll_judge::cost::EndpointPrice;
use plimsoll_judge::cost::audit::{AuditFinding, AuditSpec, AuditWindow, of_run};
use plimsoll_model::Level;
use plimsoll_report::audit as text;
use plimsoll_watchd::history::{billed, cut};

use crate::answer::{self, AnswerHead, shell_word};
use crate::exit::{Exit, Stop};
use crate::flags::{AuditArgs, OutputFormat};
use crate::{budget_file, named, out, price, resolve, rows};

/// Prints the audit.
pub fn run(args: &AuditArgs) -> Result<Exit, Stop> {
    let found = if cut::is_history(&args.run) { of_history(args)? } else { of_rows(args)? };
    let name = args.run.display().to_string();
    match args.format {
        OutputFormat::Text => out::line(&text::render(&name, &found)),
        OutputFormat::Json => {
            let next = found.parts.iter().filter_map(|part| part.lever.split_once("plimsoll "));
            let next =
                next.map(|(_, command)| format!("plimsoll {}", command.replace("RUN", &shell_word(&name))));
            let head = AnswerHead {
                headline: Some(text::headline(&found)),
                next: next.collect(),
                run: Some(name.clone()),
                ..AnswerHead::default()
            };
            answer::print(head, &found);
        }
    }
    Ok(Exit::Done)
}

/// Returns the error for a missing price.
fn no_price() -> Stop {
    Stop::usage(
        "--price: an audit needs the price of the endpoint, such as --price 2.49USD/gpu-hour --gpus 8",
    )
}

fn of_rows(args: &AuditArgs) -> Result<AuditFinding, Stop> {
    if args.price.price.is_none() {
        return Err(no_price());
    }
    let budget = match &args.budget {
        None => resolve::budget(&args.slo)?,
        Some(path) => Some(budget_file::per_request(path, "add one for an audit")?),
    };
    only_run(&args.run)?;
    let mut rows = rows::held(&args.run)?;
    let bill = price::bill(&args.price, Some(&rows.manifest.target))?.ok_or_else(no_price)?;
    let window = |level: &Level| {
        let part = rows.excerpts.iter().find(|part| part.level == level.id);
        let (from, to) =
            part.map_or((level.start, level.drained.max(level.stop)), |part| (part.from, part.to));
        AuditWindow { level: level.id, from, to }
    };
    let windows: Vec<AuditWindow> = rows.manifest.levels.iter().map(window).collect();
    rows.attempts.append(&mut rows.in_flight);
    if rows.attempts.is_empty() {
        return Err(Stop::usage(format!(
            "{}: has no requests, so that no bill can be divided",
            args.run.display()
        )));
    }
    let spec = AuditSpec { budget, long_answer: args.long_answer };
    let mut found = of_run(&windows, &rows.attempts, &spec, &bill);
    if !rows.excerpts.is_empty() {
        found.unknown.push("The run is large: only a part of each level is audited.".to_owned());
    }
    Ok(found)
}

/// Refuses a folder of runs, such as a gateway's records, because each run is a bill of its own.
fn only_run(dir: &Path) -> Result<(), Stop> {
    let is_run = ["run.json", "records.log"].iter().any(|file| dir.join(file).is_file());
    if is_run || named::folders(dir).is_empty() {
        return Ok(());
    }
    let runs = named::runs(dir);
    let newest = runs.first().map(|run| shell_word(&run.dir.display().to_string())).unwrap_or_default();
    let (dir, n) = (dir.display(), runs.len());
    Err(Stop::usage(format!("{dir}: a folder of {n} runs; audit one, the newest is {newest}")))
}

fn of_history(args: &AuditArgs) -> Result<AuditFinding, Stop> {
    let bill = price::bill(&args.price, None)?.ok_or_else(no_price)?;
    let EndpointPrice::PerHour(hour) = bill.rate else {
        return Err(Stop::usage("--price: the history of a watch needs a price per hour, such as 20USD/h"));
    };
    for (flag, is_set) in [
        ("--slo", !args.slo.is_empty()),
        ("--budget", args.budget.is_some()),
        ("--long-answer", args.long_answer.is_some()),
    ] {
        if is_set {
            return Err(Stop::usage(format!("{flag}: needs single requests, and a history has counts only")));
        }
    }
    billed::audit(&args.run, &bill, hour / 3600.0)
}
