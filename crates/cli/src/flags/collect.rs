//! The flags of `plimsoll collect`.

use std::path::PathBuf;

use clap::Args;

use super::OutputFormat;

/// `plimsoll collect`
#[derive(Args, Debug)]
pub struct CollectArgs {
    /// Listen addresses for OTLP over gRPC and HTTP; `:PORT` is loopback only, 0.0.0.0:4317 every interface
    #[arg(long, value_name = "ADDR", value_delimiter = ',', default_value = ":4317,:4318")]
    pub listen: Vec<String>,
    /// Run folder to create [default: a new folder in plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Time limit [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<String>,
    /// Number of spans that ends the command
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_spans: Option<u64>,
    /// Highest volume of unwritten requests in MB; senders get "retry later" beyond it
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub pending: u64,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
    /// Suppress progress messages
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// End when stdin ends (for a parent process that may die)
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}
