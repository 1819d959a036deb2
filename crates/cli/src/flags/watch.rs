//! The flags of `plimsoll watch`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use plimsoll_watchd::history::cut::CutSpec;

use super::{OutputFormat, PriceArgs, ReadersArgs};

/// `plimsoll watch`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct WatchCommand {
    #[command(subcommand)]
    pub action: Option<WatchAction>,
    #[command(flatten)]
    pub settings: WatchArgs,
}

/// A task beside watching.
#[derive(Subcommand, Debug)]
pub enum WatchAction {
    /// Report which budget rows the metrics can decide
    Lint(Box<WatchArgs>),
    /// Report the alerts that a finished run would have raised
    Test(Box<WatchTestArgs>),
    /// Write a time range of a history as a run
    Cut(WatchCutArgs),
}

/// `plimsoll watch test`.
#[derive(Args, Debug)]
pub struct WatchTestArgs {
    /// Finished run
    #[arg(long, value_name = "RUN", value_parser = crate::named::run_or_name)]
    pub replay: String,
    #[command(flatten)]
    pub settings: WatchArgs,
}

/// `plimsoll watch cut`.
#[derive(Args, Debug)]
pub struct WatchCutArgs {
    /// Folder of a history
    #[arg(value_name = "HISTORY")]
    pub history: PathBuf,
    /// Start: 2026-11-25T14:30:00Z or 2h (ago) [default: start of the history]
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// End [default: now]
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Start of the change; earlier data become the baseline
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Run folder to create
    #[arg(long, short = 'o', value_name = "RUN")]
    pub out: PathBuf,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

impl WatchCutArgs {
    /// Returns the time range that the flags request.
    pub fn spec(&self) -> CutSpec {
        CutSpec {
            history: self.history.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            since: self.since.clone(),
            out: self.out.clone(),
            format: self.format,
        }
    }
}

/// The settings of a watch.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// Metrics endpoints, a watch file or a growing run folder
    #[arg(value_name = "URL|FILE|RUN")]
    pub sources: Vec<String>,
    /// Budget file [default: the watch file's]
    #[arg(long, short = 'b', value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// Scrape interval [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub every: Option<String>,
    /// Time window of verdicts [default: the budget's load.window, or 5m]
    #[arg(long, value_name = "TIME")]
    pub window: Option<String>,
    /// Listen address of the page, /metrics and /v1/rows, or none [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDR:PORT|none")]
    pub listen: Option<String>,
    #[command(flatten)]
    pub readers: ReadersArgs,
    /// Folder for a run of each alert's window [default: the watch file's, or none]
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Folder for the history of counters in blocks of 10 s, 1 min and 1 h [default: the watch file's, or none]
    #[arg(long, value_name = "DIR")]
    pub history: Option<PathBuf>,
    #[command(flatten)]
    pub price: PriceArgs,
    /// Time limit; the exit code is the verdict [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<String>,
    /// Environment variable of the bearer token for the metrics endpoints
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// PEM file of additional trusted certificates
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<String>,
    /// Skip verification of the TLS certificates of endpoints
    #[arg(long)]
    pub insecure: bool,
    /// Output format: text, or json with one line per change
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
    /// Suppress progress messages
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
