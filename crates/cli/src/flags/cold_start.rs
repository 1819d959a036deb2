//! The flags of `plimsoll cold-start`.

use clap::Args;

use super::{CeilingArgs, ClientArgs, OutputArgs, TargetArgs, WorkloadArgs};

/// `plimsoll cold-start`
#[derive(Args, Debug)]
#[command(mut_arg("url", |url| url.value_name("URL|RUN").help(
    "Endpoint: its base URL, as for plimsoll run; or the folder of a cold start measured before, to print it again"
)))]
pub struct ColdStartArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Idle time before the first request; longer than the scale-down delay
    #[arg(long, value_name = "TIME", default_value = "20m", help_heading = "Cold start")]
    pub idle: String,
    /// Number of idle times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Cold start")]
    pub repeat: u32,
    /// Number of sequential warm requests for comparison
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(20..=100_000), help_heading = "Cold start")]
    pub warm: u32,
    /// Number of requests after each first one, which show the return to warm latency
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Cold start")]
    pub then: u32,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
