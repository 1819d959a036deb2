//! The flags of `plimsoll quality`.

use std::path::PathBuf;

use clap::Args;

use super::{OutputFormat, TargetArgs};

/// `plimsoll quality`
#[derive(Args, Debug)]
// Changing an argument puts it last: places are named, or A would be B.
#[command(mut_arg("url", |url| url.value_name("URL_A").index(1).help("Base URL of endpoint A (http://host:8000/v1)").long_help(None)))]
pub struct QualityArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Base URL of endpoint B
    #[arg(value_name = "URL_B", index = 2)]
    pub url_b: String,
    /// Evaluation file: JSON lines with prompt or messages, optional id, max_tokens and score (fields: plimsoll schema eval)
    #[arg(long, value_name = "FILE", help_heading = "Evaluation")]
    pub eval: PathBuf,
    /// Number of requests per item and endpoint; 2 or more show an endpoint's own variation
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Evaluation")]
    pub repeat: u32,
    /// Highest number of output tokens, unless the item sets it
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Evaluation")]
    pub max_tokens: u32,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Evaluation")]
    pub concurrency: u32,
    /// Tolerated loss of B: 0.02 = 2 points
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, help_heading = "Evaluation")]
    pub margin: f64,
    /// Texts of responses in the results file
    #[arg(long, help_heading = "Evaluation")]
    pub keep_answers: bool,
    /// Model of B [default: as A]
    #[arg(long, value_name = "MODEL", help_heading = "Evaluation")]
    pub model_b: Option<String>,
    /// Environment variable of B's API key [default: as A]
    #[arg(long, value_name = "NAME", help_heading = "Evaluation")]
    pub key_env_b: Option<String>,
    /// Results file to create (JSON) [default: a new file in plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "FILE", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: OutputFormat,
    /// Suppress progress messages
    #[arg(long, short = 'q', help_heading = "Output")]
    pub quiet: bool,
}
