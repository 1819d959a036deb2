//! The flags of `plimsoll cold-start`.

use clap::Args;

use super::{CeilingArgs, ClientArgs, OutputArgs, TargetArgs, WorkloadArgs};

/// `plimsoll cold-start`
#[derive(Args, Debug)]
#[command(mut_arg("url", |url| url.value_name("URL|RUN").help(
    "Endpoint: its base URL, as for plimsoll run; or the folder of a cold start measured before, to print it again"
)))]
pub struct ColdStartArgs {
    /// What is measured.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long nothing is sent: longer than the endpoint waits before it scales down
    #[arg(long, value_name = "TIME", default_value = "20m", help_heading = "Cold start")]
    pub idle: String,
    /// Idle stretches, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Cold start")]
    pub repeat: u32,
    /// Steady requests, one after the other, that the first one is held against
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(20..=100_000), help_heading = "Cold start")]
    pub warm: u32,
    /// Requests after the first of each stretch, one after the other: how soon it is warm again
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Cold start")]
    pub then: u32,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How the client behaves.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where it stops by itself.
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}
