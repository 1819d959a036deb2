//! The flags of `plimsoll history`.

use std::path::PathBuf;

use clap::Args;

use super::OutputFormat;

/// `plimsoll history`
#[derive(Args, Debug)]
pub struct HistoryArgs {
    /// Name of the baseline
    pub name: String,
    /// Run to append first
    #[arg(long, value_name = "RUN")]
    pub add: Option<PathBuf>,
    /// Version of the appended run [default: the engine's version, if known]
    #[arg(long, value_name = "LABEL", requires = "add")]
    pub label: Option<String>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
