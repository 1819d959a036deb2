//! The program `plimsoll-bench` starts `plimsoll` in its folder. It exists because `uvx plimsoll-bench` runs the program that has
//! the name of the wheel.

#![expect(clippy::print_stderr, reason = "the only output of this program")]

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let beside = std::env::current_exe().map(|path| path.with_file_name("plimsoll"));
    let why = match beside {
        Ok(path) => {
            let why = Command::new(&path).args(std::env::args_os().skip(1)).exec();
            format!("{}: {why}", path.display())
        }
        Err(why) => why.to_string(),
    };
    eprintln!("plimsoll-bench: {why}; install plimsoll in the folder of plimsoll-bench");
    ExitCode::from(2)
}
