//! The binary `plimsoll`: flags, files, wiring and exit codes. Arithmetic lives elsewhere.
//!
//! Reading order: [`flags`] (what can be typed), [`resolve`] (flags + file → scenario), [`measure`] (one measurement from
//! the first
//! look at the target to the closed run folder), [`recover`] (what a cut-off run lost), [`commands`] (one file each), [`screen`] and [`out`] (what is
//! seen), [`exit`].

mod commands;
mod exit;
mod flags;
mod measure;
mod out;
mod recover;
mod resolve;
mod screen;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use exit::{Exit, Stop};
use flags::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return refuse(&e),
    };
    let ended = match &cli.command {
        Command::Demo(args) => commands::demo::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Sweep(args) => commands::sweep::run(args),
        Command::Engine(args) => commands::engine::run(args),
        Command::Show(args) => commands::show::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Schema(args) => commands::schema::run(args),
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(Stop { exit, line }) => {
            out::note(&format!("plimsoll: {line}"));
            exit.into()
        }
    }
}

/// Help and version go to stdout with code 0; anything else is one line, with the nearest valid word where there is one.
fn refuse(error: &clap::Error) -> ExitCode {
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
            let missing = if error.kind() == ErrorKind::MissingRequiredArgument {
                text.lines().nth(1).map(str::trim)
            } else {
                None
            };
            let missing = missing.map(|name| format!(" {name}")).unwrap_or_default();
            out::note(&format!("plimsoll: {first}{missing}{values}{tip}"));
            Exit::Usage.into()
        }
    }
}
