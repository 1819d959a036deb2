//! What can be typed after `plimsoll collect`.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `plimsoll collect`
#[derive(Args, Debug)]
pub struct CollectArgs {
    /// Addresses to listen on; each takes OTLP over gRPC and over HTTP. `:PORT` is this machine alone (127.0.0.1); to let
    /// others in, say so: 0.0.0.0:4317
    #[arg(long, value_name = "ADDR", value_delimiter = ',', default_value = ":4317,:4318")]
    pub listen: Vec<String>,
    /// Run folder to write; must not exist [default: a new one under plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Stop after this time [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<String>,
    /// Stop once so many spans have come
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_spans: Option<u64>,
    /// Megabytes of requests that may be on their way to the disk; past it senders are told to come back
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub pending: u64,
    /// How the result is printed to stdout
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// No progress on stderr
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// Stop when stdin ends (for a parent process that may die)
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}
