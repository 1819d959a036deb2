//! The flags of `plimsoll canary`.

use std::path::PathBuf;

use clap::Args;

use super::{Format, ReadersArgs};

/// `plimsoll canary`
#[derive(Args, Debug)]
pub struct CanaryArgs {
    /// Metrics page of a replica that keeps the old version (NAME=URL names it); once for each
    #[arg(long, required = true, value_name = "URL", num_args = 1..)]
    pub base: Vec<String>,
    /// Metrics page of a replica that gets the new one; once for each
    #[arg(long, required = true, value_name = "URL", num_args = 1..)]
    pub canary: Vec<String>,
    /// Budget file: its ceilings are compared too
    #[arg(long, short = 'b', value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// The canary still runs the old version for so long: what its replicas are by themselves is then no fault of the new one
    #[arg(long, value_name = "TIME")]
    pub before: Option<String>,
    /// No promotion before it was watched for so long
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub least: String,
    /// Accepted chance that a version which is no worse is ever called worse, over all looks
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    pub alpha: f64,
    /// Between two scrapes of a page
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub every: String,
    /// End undecided after so long [default: when it is decided]
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<String>,
    /// Where /v1/verdict and /metrics are served, or none
    #[arg(long, value_name = "ADDR:PORT|none", default_value = "127.0.0.1:9465")]
    pub listen: String,
    #[command(flatten)]
    pub readers: ReadersArgs,
    /// Seed of the groups that replicas are drawn into
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Environment variable with the pages' bearer token
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// PEM file of further trusted roots
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<String>,
    /// Do not check the pages' certificates
    #[arg(long)]
    pub insecure: bool,
    /// How changes and the end are printed to stdout; json: a line each
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// No talk on stderr
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
