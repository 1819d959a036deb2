//! The flags of `plimsoll levers`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Format, PriceArgs};

/// What the order is by.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankBy {
    /// The latency saved per day of effort.
    Latency,
    /// The cost per request saved per day of effort; needs a price.
    Cost,
}

/// `plimsoll levers`
#[derive(Args, Debug)]
pub struct LeversArgs {
    /// Run folder
    #[arg(required_unless_present = "list", value_parser = crate::named::run)]
    pub run: Option<PathBuf>,
    /// List the catalogue and stop
    #[arg(long)]
    pub list: bool,
    /// Level to rank for [default: a run's level; a sweep's nearest to its budget line or onset]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// A ceiling that the levers are to serve, repeatable: "ttft p99 < 500ms" [default: the sweep's, else e2e p95 without one]
    #[arg(long = "slo", value_name = "CEILING", value_delimiter = ',')]
    pub slo: Vec<String>,
    /// The same from a budget file
    #[arg(long, value_name = "FILE", conflicts_with = "slo")]
    pub budget: Option<PathBuf>,
    /// Engine that stands for the target, such as llama-3.1-8b@h100 or a calibrated file [default: a simulated run's own, else one fitted to the run]
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// Replicas of that engine
    #[arg(long, value_name = "N", requires = "profile")]
    pub replicas: Option<u32>,
    /// What the endpoint costs.
    #[command(flatten)]
    pub price: PriceArgs,
    /// What comes first [default: latency; with a price and a budget that holds: cost]
    #[arg(long, value_enum)]
    pub by: Option<RankBy>,
    /// File of efforts of your own: days: {prefix-cache: 0.1}, price_doubling_days: 10
    #[arg(long, value_name = "FILE")]
    pub efforts: Option<PathBuf>,
    /// Schedules that each lever is simulated on, the run's own among them
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(3..=100))]
    pub schedules: u32,
    /// Seed of the other schedules
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
