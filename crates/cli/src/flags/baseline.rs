//! The flags of `plimsoll baseline`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputFormat;

/// `plimsoll baseline`
#[derive(Args, Debug)]
pub struct BaselineArgs {
    /// Action.
    #[command(subcommand)]
    pub action: BaselineAction,
}

/// An action on baselines.
#[derive(Subcommand, Debug)]
pub enum BaselineAction {
    /// Pin a name to a run
    Set {
        /// The name: letters, digits, '-', '_' and '.'
        name: String,
        /// Run folder
        #[arg(value_parser = crate::named::run)]
        run: PathBuf,
        /// Replace the run of an existing name
        #[arg(long)]
        replace: bool,
        /// Measured version [default: the engine's, where it is known]
        #[arg(long, value_name = "LABEL")]
        label: Option<String>,
        /// Output format: text or json
        #[arg(long, value_enum, default_value_t)]
        format: OutputFormat,
    },
    /// List the names with their runs, and report missing runs
    List {
        /// Output format: text or json
        #[arg(long, value_enum, default_value_t)]
        format: OutputFormat,
    },
    /// Forget a name; the run stays
    Rm {
        /// The name
        name: String,
    },
}
