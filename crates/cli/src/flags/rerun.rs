//! What can be typed after `plimsoll rerun`.

use std::path::PathBuf;

use clap::Args;

use super::{OutputArgs, ScrapeArgs, WorldArgs};

/// `plimsoll rerun`
#[derive(Args, Debug)]
pub struct RerunArgs {
    /// Run folder, or the name of a baseline
    #[arg(value_parser = crate::named::run_or_name)]
    pub run: String,
    /// Endpoint to send the schedule to, repeatable: to several, in turn [default, of a simulated run: its world, with the flags of World over it]
    #[arg(long, value_name = "URL", help_heading = "Target")]
    pub target: Vec<String>,
    /// Model to ask for [default: the run's where the endpoint lists it, else the only one it lists]
    #[arg(long, short = 'm', requires = "target", help_heading = "Target")]
    pub model: Option<String>,
    /// Environment variable that holds the API key [default: the run's, where the host is the same]
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
    /// Extra header; $NAME in its value is taken from the environment and never written down
    #[arg(
        long = "header",
        short = 'H',
        value_name = "NAME: VALUE",
        requires = "target",
        help_heading = "Target"
    )]
    pub headers: Vec<String>,
    /// Do not verify the TLS certificate
    #[arg(long, requires = "target", help_heading = "Target")]
    pub insecure: bool,
    /// PEM file with further trusted certificates
    #[arg(long, value_name = "FILE", requires = "target", help_heading = "Target")]
    pub ca_file: Option<PathBuf>,
    /// What is simulated instead.
    #[command(flatten)]
    pub world: WorldArgs,
    /// What is looked at on the server's side.
    #[command(flatten)]
    pub scrape: ScrapeArgs,
    /// Load-generating threads [default: cores − 1]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub workers: Option<usize>,
    /// Stop after this many failed requests
    #[arg(long, value_name = "N", help_heading = "Ceilings")]
    pub max_errors: Option<u64>,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}
