//! What can be typed after `plimsoll history`.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `plimsoll history`
#[derive(Args, Debug)]
pub struct HistoryArgs {
    /// Name of the baseline
    pub name: String,
    /// First put this run at the end of the line
    #[arg(long, value_name = "RUN")]
    pub add: Option<PathBuf>,
    /// With --add: the version that was measured [default: the engine's, where it is known]
    #[arg(long, value_name = "LABEL", requires = "add")]
    pub label: Option<String>,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
