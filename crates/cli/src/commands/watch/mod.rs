//! `plimsoll watch` reads flags and files and starts the daemon, or one of its subcommands.

pub mod asked;
pub mod kept;
mod replay;

use plimsoll_watchd::daemon;
use plimsoll_watchd::history::cut;

use crate::exit::{Exit, Stop};
use crate::flags::{WatchAction, WatchArgs, WatchCommand};
use asked::WatchMode;

/// Watches until it is stopped, or runs the selected subcommand.
pub fn run(command: &WatchCommand) -> Result<Exit, Stop> {
    match &command.action {
        None => start(&command.settings),
        Some(WatchAction::Cut(args)) => cut::run(&args.spec()),
        Some(WatchAction::Lint(args)) => daemon::lint_once(asked::read(args, WatchMode::Lint)?),
        Some(WatchAction::Test(args)) => {
            let asked = asked::read(&args.settings, WatchMode::Test)?;
            replay::run(&args.settings, &asked, &args.replay)
        }
    }
}

/// Watches with these settings, until the end of the run or of the watch.
pub fn start(args: &WatchArgs) -> Result<Exit, Stop> {
    daemon::start(asked::read(args, WatchMode::Watch)?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use plimsoll_watch::AlertKind;

    use crate::flags::Cli;

    /// The commands and flags in first steps exist, because users type them.
    #[test]
    fn the_commands_of_first_steps_exist() {
        let cli = Cli::command();
        let steps =
            AlertKind::ALL.into_iter().flat_map(|kind| [kind.first_step(false), kind.first_step(true)]);
        let commands: Vec<&str> = steps.flat_map(|step| step.split("plimsoll ").skip(1)).collect();
        assert!(commands.len() > AlertKind::ALL.len(), "{commands:?}");
        for said in commands {
            let mut words = said.split([',', ';', ':', ')']).next().unwrap_or_default().split_whitespace();
            let command = words.next().and_then(|name| cli.find_subcommand(name));
            let command = command.unwrap_or_else(|| panic!("plimsoll {said}"));
            for flag in words.filter_map(|word| word.strip_prefix("--")) {
                assert!(command.get_arguments().any(|arg| arg.get_long() == Some(flag)), "plimsoll {said}");
            }
        }
    }
}
