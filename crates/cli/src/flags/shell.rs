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
    /// Folder for the man pages, created if missing
    pub dir: PathBuf,
}
