//! The flags of `plimsoll tradeoff`.

use std::path::PathBuf;

use clap::Args;

use super::{OutputFormat, PriceArgs};

/// `plimsoll tradeoff`
#[derive(Args, Debug)]
pub struct TradeoffArgs {
    /// Run folder or name of a baseline
    #[arg(value_parser = crate::named::run_or_name)]
    pub base: String,
    /// Run folder of the changed target under the same load
    #[arg(value_parser = crate::named::run_or_name)]
    pub candidate: String,
    #[command(flatten)]
    pub price: PriceArgs,
    /// Price of the candidate [default: as the base]
    #[arg(long, value_name = "PRICE|FILE", help_heading = "Price")]
    pub candidate_price: Option<String>,
    /// GPUs of the candidate [default: as the base]
    #[arg(long, value_name = "N", help_heading = "Price")]
    pub candidate_gpus: Option<u32>,
    /// Results of plimsoll quality: A is the base, B the candidate
    #[arg(long, value_name = "FILE", help_heading = "Accuracy", conflicts_with_all = ["base_eval", "candidate_eval"])]
    pub quality: Option<PathBuf>,
    /// Results of lm-evaluation-harness for the base: results_*.json or its folder
    #[arg(long, value_name = "FILE|FOLDER", help_heading = "Accuracy", requires = "candidate_eval")]
    pub base_eval: Option<PathBuf>,
    /// Results of lm-evaluation-harness for the candidate
    #[arg(long, value_name = "FILE|FOLDER", help_heading = "Accuracy", requires = "base_eval")]
    pub candidate_eval: Option<PathBuf>,
    /// Metric of lm-evaluation-harness: METRIC or METRIC,FILTER [default: acc, exact_match or the next usual one]
    #[arg(long, value_name = "METRIC", help_heading = "Accuracy", requires = "base_eval")]
    pub metric: Option<String>,
    /// Tolerated loss of accuracy in points
    #[arg(
        long,
        value_name = "POINTS",
        default_value_t = 1.0,
        allow_hyphen_values = true,
        help_heading = "Accuracy"
    )]
    pub max_loss: f64,
    /// Comparison of different experiments: unpaired, weighted to the base's classes and prompt lengths
    #[arg(long, help_heading = "Comparison")]
    pub despite_differences: bool,
    /// HTML file of the trade-off
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: OutputFormat,
}
