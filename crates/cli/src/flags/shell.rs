//! Flags of the commands about the commands: completions, man pages, the manual and its generated reference.

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

/// `plimsoll docs`
#[derive(Args, Debug)]
pub struct DocsArgs {
    /// Page, such as gate or how-to/ci [default: the list of pages]
    pub page: Option<String>,
}

/// `plimsoll dev reference`
#[derive(Args, Debug)]
pub struct ReferenceArgs {
    /// Folder for the pages, created if missing
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
}
