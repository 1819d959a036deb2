//! The flags of `plimsoll import`.

use std::path::PathBuf;

use clap::Args;

use super::OutputFormat;

/// `plimsoll import`
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Result file or folder of another tool
    pub source: PathBuf,
    /// Run folder to create
    #[arg(long, short = 'o', value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// Name of the run
    #[arg(long, value_name = "TEXT", requires = "out")]
    pub label: Option<String>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
