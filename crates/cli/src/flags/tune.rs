//! The flags of `plimsoll tune`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plimsoll_judge::tune::TuneGoal;

use super::{ClientArgs, OutputArgs, SloArgs, TargetArgs, WorkloadArgs};

/// `plimsoll tune`
#[derive(Args, Debug)]
#[command(mut_arg("url", |url| url.long("url").required(false).value_name("URL").default_value(LOCAL).help_heading("Server").help(
    "Base URL of the server; {NAME} and {port} are replaced as in --launch"
)))]
#[command(mut_arg("set", |set| set.value_name("NAME=VALUES").help_heading("Server").help(
    "Values of {NAME} in --launch, repeatable: slots=1,2,4 (\\, is a comma in a value); a name with a dot sets a scenario field"
)))]
#[command(mut_arg("wait_ready", |wait| wait.help_heading("Server").help(
    "Longest wait for a started server [default: 5m]"
)))]
#[command(mut_arg("out", |out| out.help(
    "Folder to create, or an earlier one to continue [default: a new folder in plimsoll-runs/]"
)))]
pub struct TuneArgs {
    /// Command of the server, split like a shell line but run without a shell; {NAME} is a --set, {port} a free port
    #[arg(long, value_name = "COMMAND", required_unless_present = "resume", help_heading = "Server")]
    pub launch: Option<String>,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Figure to optimise: load or cost
    #[arg(long, value_enum, default_value_t, hide_possible_values = true, help_heading = "Search")]
    pub goal: GoalArg,
    /// Time of each setting in the first rung; each further rung doubles it
    #[arg(long, value_name = "TIME", default_value = "60s", help_heading = "Search")]
    pub first: String,
    /// Largest number of rungs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10), help_heading = "Search")]
    pub rungs: u32,
    /// Requests after the start of a server, which no figure counts
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Search")]
    pub warm_up: u32,
    #[command(flatten)]
    pub limits: SloArgs,
    /// Price of the server: 2.49USD/gpu-hour or 20USD/h, or a price file
    #[arg(long, value_name = "PRICE|FILE", help_heading = "Price")]
    pub price: Option<String>,
    /// GPUs of the server: a number or {NAME} (for a price per GPU-hour)
    #[arg(long, value_name = "N|{NAME}", requires = "price", help_heading = "Price")]
    pub gpus: Option<String>,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Folder of an interrupted tuning to continue, with its own flags
    #[arg(long, value_name = "DIR", conflicts_with_all = ["launch", "out"], help_heading = "Output")]
    pub resume: Option<PathBuf>,
    /// Print the settings and the time without starting a server
    #[arg(long)]
    pub dry_run: bool,
}

/// Address of a server that is started on this machine.
pub const LOCAL: &str = "http://127.0.0.1:{port}/v1";

/// A goal on the command line.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GoalArg {
    /// Highest load within --slo, or the saturating throughput without it.
    #[default]
    Load,
    /// Lowest cost per million good output tokens; needs --price.
    Cost,
}

impl From<GoalArg> for TuneGoal {
    fn from(goal: GoalArg) -> TuneGoal {
        match goal {
            GoalArg::Load => TuneGoal::Load,
            GoalArg::Cost => TuneGoal::Cost,
        }
    }
}
