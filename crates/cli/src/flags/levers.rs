//! The flags of `plimsoll levers`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{OutputFormat, PriceArgs};

/// Order of the levers.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankBy {
    /// Saved latency per day of effort.
    Latency,
    /// Saved cost per request and day of effort; needs a price.
    Cost,
}

/// `plimsoll levers`
#[derive(Args, Debug)]
pub struct LeversArgs {
    /// Run folder
    #[arg(required_unless_present = "list", value_parser = crate::named::run)]
    pub run: Option<PathBuf>,
    /// List of all levers
    #[arg(long)]
    pub list: bool,
    /// Level of the run [default: the only one; in a sweep nearest to the budget limit or onset]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Latency limit, repeatable: "ttft p99 < 500ms" [default: the sweep's, else e2e p95]
    #[arg(long = "slo", value_name = "CEILING", value_delimiter = ',')]
    pub slo: Vec<String>,
    /// Budget file in place of --slo
    #[arg(long, value_name = "FILE", conflicts_with = "slo")]
    pub budget: Option<PathBuf>,
    /// Engine that models the target: a profile or a calibrated file [default: the simulated run's, else a fit to the run]
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Number of replicas of that engine
    #[arg(long, value_name = "N", requires = "profile")]
    pub replicas: Option<u32>,
    #[command(flatten)]
    pub price: PriceArgs,
    /// Order: latency or cost [default: latency; with a price and a passing budget: cost]
    #[arg(long, value_enum)]
    pub by: Option<RankBy>,
    /// File of efforts: days: {prefix-cache: 0.1}, price_doubling_days: 10
    #[arg(long, value_name = "FILE")]
    pub efforts: Option<PathBuf>,
    /// Simulated schedules per lever
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(3..=100))]
    pub schedules: u32,
    /// Random seed of the additional schedules
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
