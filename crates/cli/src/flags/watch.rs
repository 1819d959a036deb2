//! The flags of `plimsoll watch`.

use std::path::PathBuf;

use clap::Args;

use super::{Format, PriceArgs, ReadersArgs};

/// `plimsoll watch`
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// Metrics pages (NAME=URL names one), one watch file (which may name addresses that are pushed to), or a run that is being written (a gateway's record: its folder); before them the word lint: say which rows they can judge, and end; or the word test with
    /// --replay RUN and perhaps a watch file: say what would have alerted during a finished run, and end; or the word cut with a history's folder: write a stretch of it as a run
    #[arg(required = true, value_name = "URL|FILE|RUN")]
    pub sources: Vec<String>,
    /// For watch test: the finished run
    #[arg(long, value_name = "RUN", value_parser = crate::named::run_or_name)]
    pub replay: Option<String>,
    /// Budget file [default: the watch file's]
    #[arg(long, short = 'b', value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// Between two scrapes of a page [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub every: Option<String>,
    /// How far verdicts look back [default: the budget's load.window, or 5m]
    #[arg(long, value_name = "TIME")]
    pub window: Option<String>,
    /// Where the page, /metrics and /v1/rows are served, or none [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDR:PORT|none")]
    pub listen: Option<String>,
    #[command(flatten)]
    pub readers: ReadersArgs,
    /// Keep the window of each alert as a run folder here [default: the watch file's record, else none]
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Keep what pages counted as a history here, in blocks of 10 s, 1 min and 1 h [default: the watch file's history, else none]
    #[arg(long, value_name = "DIR")]
    pub history: Option<PathBuf>,
    /// For watch cut: where the stretch begins, as 2026-11-25T14:30:00Z or how long ago (2h) [default: with the history]
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// For watch cut: where it ends [default: now]
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// For watch cut: since when something is so that is to be diagnosed beside what came before it
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// For watch cut: the run folder to write
    #[arg(long, short = 'o', value_name = "RUN")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub price: PriceArgs,
    /// End after so long, with an exit code that judges [default: runs until Ctrl-C]
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<String>,
    /// Environment variable with the pages' bearer token
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// PEM file of further trusted roots
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<String>,
    /// Do not check the pages' certificates
    #[arg(long)]
    pub insecure: bool,
    /// How changes and the end are printed to stdout; json: a line each
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// No talk on stderr
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
