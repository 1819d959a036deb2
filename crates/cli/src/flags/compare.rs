//! The flags of `plimsoll compare`.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `plimsoll compare`
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Run folder, or the name of a baseline
    #[arg(value_parser = crate::named::run_or_name)]
    pub base: Option<String>,
    /// Run folder of the changed target, under the same load
    #[arg(value_parser = crate::named::run_or_name)]
    pub candidate: Option<String>,
    /// How the change is judged.
    #[command(flatten)]
    pub judged: JudgedArgs,
    /// How the result is printed to stdout
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// The name that `plimsoll interleave` had; it takes what follows, so that the refusal names the command and not the next flag.
    #[arg(long, hide = true, num_args = 0.., allow_hyphen_values = true)]
    pub interleave: Option<Vec<String>>,
}

/// How a change is judged: of two runs, and of two endpoints measured in turn.
#[derive(Args, Debug, Clone, Default)]
pub struct JudgedArgs {
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
}
