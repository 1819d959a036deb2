//! Refuses flags without effect: a flag of another mode of the same command is an error that names it.
//!
//! A command with two modes (a run folder or a URL, one load or a sweep) accepts the flags of both. Conflicts per flag were
//! rejected: each new flag would need its own list, and a forgotten flag would be ignored silently. Here each mode lists the
//! groups of flags that it reads, and every other flag is an error.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};

use crate::commands::gate::url::is_url;
use crate::exit::Stop;
use crate::flags::{Cli, Command};

/// Refuses the first flag that the current mode of the command does not read.
pub fn check(cli: &Cli, matches: &ArgMatches) -> Result<(), Stop> {
    let heading = |arg: &Arg| arg.get_help_heading().unwrap_or_default().to_owned();
    match &cli.command {
        Command::Gate(args) if !is_url(&args.run) => {
            let read = |arg: &Arg| !matches!(heading(arg).as_str(), "Measuring a URL" | "Workload");
            refuse(matches, read, "applies to a measurement; name a URL instead of a run")
        }
        Command::Simulate(args) if !args.sweep => {
            let read = |arg: &Arg| heading(arg) != "Search";
            refuse(matches, read, "belongs to --sweep; --for sets the duration of a single load")
        }
        Command::Plan(args) if args.envelope.latency.is_some() => {
            let read = |arg: &Arg| {
                matches!(heading(arg).as_str(), "Envelope" | "Output")
                    || matches!(
                        arg.get_id().as_str(),
                        "rate" | "peak" | "utilisation" | "spare" | "domains" | "price" | "slots"
                    )
                    || arg.get_id() == "gpus_per_replica"
            };
            refuse(
                matches,
                read,
                "contradicts --latency, which fixes the request latency for every engine, load and SLO; drop one of the two",
            )
        }
        Command::Plan(args) if args.load.from.is_none() => refuse(
            matches,
            |arg| heading(arg) != TARGET,
            "describes the target of a run: name the run with --from RUN (a plan of four figures needs --latency)",
        ),
        Command::Plan(args) if args.fleet.profile.is_some() => refuse(
            matches,
            |arg| heading(arg) != TARGET,
            "the engine of --profile already sets this; drop one of the two",
        ),
        Command::Tune(args) if args.resume.is_some() => refuse(
            matches,
            |arg| ["resume", "format", "quiet", "progress", "dry_run"].contains(&arg.get_id().as_str()),
            "an interrupted tuning continues with its own flags; drop this one",
        ),
        Command::WhatIf(args) if args.profile.is_some() => {
            let read = |arg: &Arg| heading(arg) != TARGET || arg.get_id() == "replicas";
            refuse(matches, read, "the engine of --profile already sets this; drop one of the two")
        }
        _ => Ok(()),
    }
}

/// Heading of the flags that describe the target of a run.
const TARGET: &str = "Target";

fn refuse(matches: &ArgMatches, read: impl Fn(&Arg) -> bool, why: &str) -> Result<(), Stop> {
    let Some((name, own)) = matches.subcommand() else { return Ok(()) };
    let cli = Cli::command();
    let Some(command) = cli.find_subcommand(name) else { return Ok(()) };
    let typed = |arg: &&Arg| own.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let flags = command.get_arguments().filter(|arg| !arg.is_positional()).filter(typed);
    match flags.into_iter().find(|arg| !read(arg)).and_then(Arg::get_long) {
        Some(flag) => Err(Stop::usage(format!("--{flag}: {why}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn typed(line: &str) -> Result<(), String> {
        let words = std::iter::once("plimsoll").chain(line.split(' '));
        let matches = Cli::command().try_get_matches_from(words).expect("flags that exist");
        let cli = Cli::from_arg_matches(&matches).expect("flags that exist");
        check(&cli, &matches).map_err(|stop| stop.line)
    }

    /// Each of these flags was once accepted and ignored.
    #[test]
    fn a_flag_of_the_other_mode_is_named() {
        for (line, flag) in [
            ("gate run -b f --time 5m", "--time: "),
            ("gate run -b f --key-env K", "--key-env: "),
            ("gate run -b f --isl 5", "--isl: "),
            ("gate run -b f --max-errors 5", "--max-errors: "),
            ("simulate --rate 5/s --time 10s", "--time: "),
            ("simulate --rate 5/s --hold 10s", "--hold: "),
            ("tune --resume t --rungs 2", "--rungs: "),
            ("tune --resume t --set a=1", "--set: "),
            ("plan --profile demo --rate 5/s --slots 4", "--slots: "),
            ("plan --from run --profile demo --kv-blocks 4", "--kv-blocks: "),
            ("plan --rate 5/s --latency 2s --slots 8 --token-budget 4", "--token-budget: "),
            ("what-if run faster --profile demo --max-batch 4", "--max-batch: "),
        ] {
            assert!(typed(line).is_err_and(|said| said.starts_with(flag)), "{line}");
        }
    }

    #[test]
    fn the_flags_of_a_mode_are_read() {
        for line in [
            "compare a b --margin p99=5% --despite-differences --format json",
            "interleave http://a http://b --rate 5/s --price 2USD/h --alternations 4",
            "gate run -b f --junit x --label v1 --map-exit 3=0",
            "gate http://a -b f --time 5m --isl 5",
            "simulate --rate 5/s --for 10s",
            "tune --resume t --format json -q",
            "simulate --sweep --time 10s --hold 5s",
            "plan --from run --slots 4 --kv-blocks 9 --token-budget 5 --max-batch 2 --replicas 2",
            "plan --rate 5/s --latency 2s --slots 8",
            "what-if run faster --profile demo --replicas 2",
        ] {
            assert_eq!(typed(line), Ok(()), "{line}");
        }
    }
}
