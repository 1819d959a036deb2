//! `plimsoll completions` and `plimsoll man` print shell completions and man pages.
//!
//! Both are generated from the parser, so that they always match the flags of the binary.

use std::fs;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use crate::exit::{Exit, Stop};
use crate::flags::{CompletionsArgs, ManArgs};
use crate::{help, out};

pub fn completions(args: &CompletionsArgs) -> Result<Exit, Stop> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut help::command(help::HelpDetail::Full), "plimsoll", &mut text);
    out::line(String::from_utf8_lossy(&text).trim_end());
    Ok(Exit::Done)
}

/// Writes a man page per command.
pub fn man(args: &ManArgs) -> Result<Exit, Stop> {
    let wrong = |e: std::io::Error| {
        Stop::usage(format!("{}: {e}; name a folder that can be written", args.dir.display()))
    };
    fs::create_dir_all(&args.dir).map_err(wrong)?;
    let mut command = help::command(help::HelpDetail::Full);
    command.build();
    let pages = pages(&command, "plimsoll", &args.dir).map_err(wrong)?;
    out::note(&format!("wrote {pages} pages to {}", args.dir.display()));
    Ok(Exit::Done)
}

/// Writes the man pages of a command and its subcommands. Returns their number.
fn pages(command: &Command, name: &str, dir: &Path) -> std::io::Result<usize> {
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    let mut count = 1;
    for under in command.get_subcommands().filter(shown) {
        count += pages(under, &format!("{name}-{}", under.get_name()), dir)?;
    }
    let mut page = Vec::new();
    Man::new(command.clone()).title(name).render(&mut page)?;
    fs::write(dir.join(format!("{name}.1")), page)?;
    Ok(count)
}
