//! The binary `plimsoll`: flags, files, wiring and exit codes. Other crates do the arithmetic.
//!
//! Reading order:
//!
//! - [`flags`], the command line; [`help`]: its help texts;
//! - [`typed`], flags without effect; [`foreign_flags`]: flags of other tools;
//! - [`resolve`], flags and file to scenario; [`simulation`]: the simulated system;
//! - [`measure`], one measurement, from the first probe of the target to the closed run folder;
//! - [`recover`], lost requests of a run that was cut off; [`again`]: a recorded schedule;
//! - [`traffic`], a schedule from a gateway's traffic;
//! - [`baseline`], names for runs; [`history`]: their results; [`trace_file`]: trace files;
//! - [`commands`], one file or folder per command;
//! - [`screen`] and [`out`]: the output; [`exit`]: exit codes.

mod again;
mod baseline;
mod budget_file;
mod commands;
mod eval_file;
mod fitted;
mod flags;
mod foreign_flags;
mod help;
mod history;
mod measure;
mod named;
mod place;
mod price;
mod recover;
mod resolve;
mod result;
mod rows;
mod run_heads;
mod shard;
mod simulation;
mod span_sender;
mod tensors;
mod trace_file;
mod traffic;
mod typed;
mod yaml;

use plimsoll_console::{answer, exit, numbered, out, page_server, progress, screen};

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use exit::{Exit, Stop};
use flags::{Cli, Command, DevAction, DevArgs};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(page) = help::page(&words) {
        out::line(page.trim_end());
        return Exit::Done.into();
    }
    let wants_json = answer::is_asked(&words);
    progress::begin(&words);
    let parsed = help::command(help::asked(words.iter().cloned()))
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches).map(|cli| (cli, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => {
            answer::begin_unparsed(&words);
            return refuse(&e, wants_json);
        }
    };
    answer::begin(&matches);
    let exit = typed::check(&cli, &matches).and_then(|()| run(&cli.command)).unwrap_or_else(|stop| {
        out::note(&format!("plimsoll: {}", stop.line));
        if wants_json {
            answer::print_error(&stop);
        }
        stop.exit
    });
    match out::lost() {
        None => exit.into(),
        Some(why) => {
            out::note(&format!(
                "plimsoll: stdout can't be written: {why}; a run's folder is whole, `plimsoll show FOLDER` prints it again"
            ));
            (if exit == Exit::Done { Exit::Invalid } else { exit }).into()
        }
    }
}

fn run(command: &Command) -> Result<Exit, Stop> {
    match command {
        Command::Demo(args) => commands::demo::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Sweep(args) => commands::sweep::run(args),
        Command::Compare(args) => commands::compare::run(args),
        Command::Tradeoff(args) => commands::tradeoff::run(args),
        Command::Interleave(args) => commands::interleave::run(args),
        Command::Gate(args) => commands::gate::run(args),
        Command::Quality(args) => commands::quality::run(args),
        Command::Engine(args) => commands::engine::run(args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Dev(DevArgs { action: DevAction::Calibrate(args) }) | Command::Calibrate(args) => {
            commands::calibrate::run(args)
        }
        Command::Dev(DevArgs { action: DevAction::Validate(args) }) | Command::Validate(args) => {
            commands::validate::run(args)
        }
        Command::Dev(DevArgs { action: DevAction::Reference(args) }) => commands::reference::run(args),
        Command::Baseline(args) => commands::baseline::run(args),
        Command::History(args) => commands::history::run(args),
        Command::Budget(args) => commands::budget::run(args),
        Command::Calc(args) => commands::calc::run(args),
        Command::Rerun(args) => commands::rerun::run(args),
        Command::Diagnose(args) => commands::diagnose::run(args),
        Command::Levers(args) => commands::levers::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::WhatIf(args) => commands::what_if::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Workload(args) => commands::workload::run(args),
        Command::Collect(args) => commands::collect::run(args),
        Command::Profile(args) => commands::profile::run(args),
        Command::Tune(args) => commands::tune::run(args),
        Command::Audit(args) => commands::audit::run(args),
        Command::ColdStart(args) => commands::cold_start::run(args),
        Command::K8s(args) => commands::k8s::run(args),
        Command::Merge(args) => commands::merge::run(args),
        Command::Show(args) => commands::show::run(args),
        Command::Browse(args) => commands::browse::run(args),
        Command::Ls(args) => commands::ls::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Selftest(args) => commands::selftest::run(args),
        Command::Gateway(args) => commands::gateway::run(args),
        Command::Watch(args) => commands::watch::run(args),
        Command::Canary(args) => commands::canary::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Docs(args) => commands::docs::run(args),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => commands::mcp::run(args),
        #[cfg(not(feature = "mcp"))]
        Command::Mcp(_) => Err(Stop::usage(
            "mcp: this build has no tools for agents; take a packaged one, or build with --features mcp",
        )),
        Command::Schema(args) => commands::schema::run(args),
        Command::Completions(args) => commands::shell::completions(args),
        Command::Man(args) => commands::shell::man(args),
    }
}

/// Prints help and version to stdout with code 0. Every other error is one line, with the nearest valid word if there is one.
fn refuse(error: &clap::Error, wants_json: bool) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                Exit::Usage.into()
            } else {
                Exit::Done.into()
            }
        }
        _ => {
            let text = error.to_string();
            let values = text.lines().map(str::trim).find(|line| line.starts_with("[possible values"));
            let values = values.map(|values| format!(" {values}")).unwrap_or_default();
            let mut lines =
                text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("For more"));
            let first = lines.next().unwrap_or("wrong usage").trim_start_matches("error: ").to_string();
            let tip = lines
                .find(|line| line.starts_with("tip:"))
                .map(|tip| format!("; {}", &tip[5..]))
                .unwrap_or_default();
            let tip = translated(error).map_or(tip, |advice| format!("; {advice}"));
            let first = misplaced(error).unwrap_or(first);
            let missing = if error.kind() == ErrorKind::MissingRequiredArgument {
                text.lines().nth(1).map(str::trim)
            } else {
                None
            };
            let is_gate = std::env::args().nth(1).is_some_and(|command| command == "gate");
            let missing = missing.map(|name| match name {
                "--budget <FILE>" if is_gate => r#" --budget <FILE>, or --slo "ttft p99 < 500ms""#.to_owned(),
                name => format!(" {name}"),
            });
            let missing = missing.unwrap_or_default();
            let stop = Stop::usage(format!("{first}{missing}{values}{tip}"));
            out::note(&format!("plimsoll: {}", stop.line));
            if wants_json {
                answer::print_error(&stop);
            }
            stop.exit.into()
        }
    }
}

/// Returns the advice for another tool's flag, or for a flag of one of the command's own subcommands.
fn translated(error: &clap::Error) -> Option<String> {
    let ContextValue::String(typed) = error.get(ContextKind::InvalidArg)? else { return None };
    let cli = help::command(help::HelpDetail::Full);
    let command = cli.find_subcommand(std::env::args().nth(1)?)?;
    let of = |command: &clap::Command, flag: &str| {
        command.get_arguments().any(|arg| arg.get_long() == flag.strip_prefix("--"))
    };
    let below = command.get_subcommands().find(|below| of(below, typed));
    let belongs = |below: &clap::Command| {
        format!("it belongs to 'plimsoll {} {}'", command.get_name(), below.get_name())
    };
    foreign_flags::advice(typed, |flag| of(command, flag)).or(below.map(belongs))
}

/// Returns the problem of a word after a file or flag that can only be a subcommand.
fn misplaced(error: &clap::Error) -> Option<String> {
    let ContextValue::String(word) = error.get(ContextKind::InvalidSubcommand)? else { return None };
    (error.kind() == ErrorKind::ArgumentConflict).then(|| {
        format!("{word}: unexpected argument; name one file, and put a subcommand before files and flags")
    })
}
