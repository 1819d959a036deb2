//! The flags of `plimsoll compare`.

use std::path::PathBuf;

use clap::Args;

use super::OutputFormat;

/// `plimsoll compare`
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Run folder or name of a baseline
    #[arg(value_parser = crate::named::run_or_name)]
    pub base: Option<String>,
    /// Run folder of the changed target under the same load
    #[arg(value_parser = crate::named::run_or_name)]
    pub candidate: Option<String>,
    #[command(flatten)]
    pub judged: JudgedArgs,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: OutputFormat,
    /// Old form of `plimsoll interleave`, kept for a helpful error.
    #[arg(long, hide = true, num_args = 0.., allow_hyphen_values = true)]
    pub interleave: Option<Vec<String>>,
}

/// The judgement of a change between two runs or two endpoints.
#[derive(Args, Debug, Clone, Default)]
pub struct JudgedArgs {
    /// Tolerated change, repeatable: p99=12%; keys p50 (5%), p95 (7%), p99 (10%), throughput (5%), errors (1%), lines (10%)
    #[arg(
        long = "margin",
        value_name = "WHAT=SHARE",
        value_delimiter = ',',
        allow_hyphen_values = true,
        help_heading = "Comparison"
    )]
    pub margins: Vec<String>,
    /// Comparison of different experiments: unpaired, weighted to the base's classes and prompt lengths
    #[arg(long, help_heading = "Comparison")]
    pub despite_differences: bool,
    /// Results of plimsoll quality for the same two targets
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    pub quality: Option<PathBuf>,
    /// HTML file of the comparison
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    pub html: Option<PathBuf>,
}
