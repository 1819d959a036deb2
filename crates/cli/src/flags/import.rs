//! The flags of `plimsoll import`.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `plimsoll import`
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Result file of another tool, or the folder it wrote
    pub source: PathBuf,
    /// Write a run folder that show, gate, compare and report read
    #[arg(long, short = 'o', value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// What the run is called in lists and reports
    #[arg(long, value_name = "TEXT", requires = "out")]
    pub label: Option<String>,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
