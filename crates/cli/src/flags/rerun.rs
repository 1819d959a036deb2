//! The flags of `plimsoll rerun`.

use std::path::PathBuf;

use clap::Args;

use super::{OutputArgs, ScrapeArgs, WorldArgs};

/// `plimsoll rerun`
#[derive(Args, Debug)]
pub struct RerunArgs {
    /// Run folder or name of a baseline
    #[arg(value_parser = crate::named::run_or_name)]
    pub run: String,
    /// Target endpoint, repeatable (requests alternate) [default: the simulated world of the run]
    #[arg(long, value_name = "URL", help_heading = "Target")]
    pub target: Vec<String>,
    /// Model name [default: the run's, if the endpoint lists it, else the only model listed]
    #[arg(long, short = 'm', requires = "target", help_heading = "Target")]
    pub model: Option<String>,
    /// Environment variable of the API key [default: the run's, on the same host]
    #[arg(long, value_name = "NAME", requires = "target", help_heading = "Target")]
    pub key_env: Option<String>,
    /// File that holds the API key
    #[arg(
        long,
        value_name = "FILE",
        requires = "target",
        conflicts_with = "key_env",
        help_heading = "Target"
    )]
    pub key_file: Option<PathBuf>,
    /// Extra header; $NAME inserts an environment variable
    #[arg(
        long = "header",
        short = 'H',
        value_name = "NAME: VALUE",
        requires = "target",
        help_heading = "Target"
    )]
    pub headers: Vec<String>,
    /// Skip verification of the TLS certificate
    #[arg(long, requires = "target", help_heading = "Target")]
    pub insecure: bool,
    /// PEM file of additional trusted certificates
    #[arg(long, value_name = "FILE", requires = "target", help_heading = "Target")]
    pub ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub world: WorldArgs,
    #[command(flatten)]
    pub scrape: ScrapeArgs,
    /// Threads that generate load [default: cores − 1]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub workers: Option<usize>,
    /// Number of failed requests that stops the load
    #[arg(long, value_name = "N", help_heading = "Ceilings")]
    pub max_errors: Option<u64>,
    #[command(flatten)]
    pub output: OutputArgs,
}
