//! The flags of `plimsoll compare`.

use std::path::PathBuf;

use clap::Args;

use super::InterleaveArgs;

/// `plimsoll compare`
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Run folder, or the name of a baseline
    #[arg(conflicts_with = "interleave")]
    pub base: Option<String>,
    /// Run folder of the changed target, under the same load
    #[arg(conflicts_with = "interleave")]
    pub candidate: Option<String>,
    /// How much worse is still no change, repeatable: p99=12%; of p50 (5%), p95 (7%), p99 (10%), throughput (5%), errors (1%), lines (10%)
    #[arg(
        long = "margin",
        value_name = "WHAT=SHARE",
        value_delimiter = ',',
        allow_hyphen_values = true,
        help_heading = "Comparison"
    )]
    pub margins: Vec<String>,
    /// Compare runs that are not the same experiment: unpaired, at the base's mix of classes and prompt lengths
    #[arg(long, help_heading = "Comparison")]
    pub despite_differences: bool,
    /// Results of plimsoll quality for the same two: a speed-up is then shown with what it cost in answers
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    pub quality: Option<PathBuf>,
    /// Write the comparison as one HTML file that opens offline
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    pub html: Option<PathBuf>,
    /// Two live endpoints instead of two runs.
    #[command(flatten)]
    pub live: InterleaveArgs,
}
