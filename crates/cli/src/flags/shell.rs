//! What a shell and `man` want to know of the commands.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// `plimsoll completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `plimsoll man`
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Folder for the pages: plimsoll.1, plimsoll-run.1, … (made if it is missing)
    pub dir: PathBuf,
}
