//! The flags of `plimsoll quality`.

use std::path::PathBuf;

use clap::Args;

use super::{Format, TargetArgs};

/// `plimsoll quality`
#[derive(Args, Debug)]
// Changing an argument puts it last: places are named, or A would be B.
#[command(mut_arg("url", |url| url.value_name("URL_A").index(1).help("The endpoint as it is: its base URL (http://host:8000/v1)").long_help(None)))]
pub struct QualityArgs {
    /// How both are spoken to, and the first of them.
    #[command(flatten)]
    pub target: TargetArgs,
    /// The endpoint that is held against it, in the same form
    #[arg(value_name = "URL_B", index = 2)]
    pub url_b: String,
    /// Evaluation file: JSON lines of {"prompt": …} or {"messages": […]}, optional id, max_tokens and score (see: plimsoll schema eval)
    #[arg(long, value_name = "FILE", help_heading = "Evaluation")]
    pub eval: PathBuf,
    /// Times each endpoint is asked; from 2 on its disagreement with itself is known
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Evaluation")]
    pub repeat: u32,
    /// Longest answer asked for, where the item does not say
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Evaluation")]
    pub max_tokens: u32,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Evaluation")]
    pub concurrency: u32,
    /// How much less of the items B may get right: 0.02 = 2 points
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, help_heading = "Evaluation")]
    pub margin: f64,
    /// Keep the answers in the results file
    #[arg(long, help_heading = "Evaluation")]
    pub keep_answers: bool,
    /// Model to ask B for [default: as for A]
    #[arg(long, value_name = "MODEL", help_heading = "Evaluation")]
    pub model_b: Option<String>,
    /// Environment variable that holds B's key [default: as for A]
    #[arg(long, value_name = "NAME", help_heading = "Evaluation")]
    pub key_env_b: Option<String>,
    /// Results file to write (JSON); must not exist [default: a new one under plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "FILE", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// How the result is printed to stdout
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// No progress on stderr
    #[arg(long, short = 'q', help_heading = "Output")]
    pub quiet: bool,
}
