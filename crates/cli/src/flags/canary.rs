//! The flags of `plimsoll canary`.

use std::path::PathBuf;

use clap::Args;

use super::{OutputFormat, ReadersArgs};

/// `plimsoll canary`
#[derive(Args, Debug)]
pub struct CanaryArgs {
    /// Metrics endpoint of a stable replica, repeatable (NAME=URL names it)
    #[arg(long, required = true, value_name = "URL", num_args = 1..)]
    pub base: Vec<String>,
    /// Metrics endpoint of a canary replica, repeatable
    #[arg(long, required = true, value_name = "URL", num_args = 1..)]
    pub canary: Vec<String>,
    /// Budget file whose limits the canary compares too
    #[arg(long, short = 'b', value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// Time at the start in which both sides run the old version (removes differences between replicas)
    #[arg(long, value_name = "TIME")]
    pub before: Option<String>,
    /// Shortest time before a promotion
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub least: String,
    /// Highest probability of a false alarm over all checks
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    pub alpha: f64,
    /// Scrape interval
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub every: String,
    /// Longest time without a decision [default: unlimited]
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<String>,
    /// Listen address of /v1/verdict and /metrics, or none
    #[arg(long, value_name = "ADDR:PORT|none", default_value = "127.0.0.1:9465")]
    pub listen: String,
    #[command(flatten)]
    pub readers: ReadersArgs,
    /// Random seed of the groups of replicas
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Environment variable of the bearer token for the metrics endpoints
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// PEM file of additional trusted certificates
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<String>,
    /// Skip verification of the TLS certificates of endpoints
    #[arg(long)]
    pub insecure: bool,
    /// Output format: text, or json with one line per change
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
    /// Suppress progress messages
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
