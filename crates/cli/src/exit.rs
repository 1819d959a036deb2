//! Exit codes, and the one error type that carries them.
//!
//! The codes are a contract with scripts (documented in `docs/reference/exit-codes.md`): 0 measured (valid or suspect),
//! 2 usage, 4 the measurement is invalid or could not be kept, 5 nothing reached the target, 130 stopped by Ctrl-C.
//! 1 says that what was judged is broken (a bar of `validate`); 3 that what was measured does not settle it.

use std::fmt;
use std::process::ExitCode;

/// How a command ended, as its exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Done; where something was measured it is valid or suspect.
    Done,
    /// Judged, and a budget or a bar is broken.
    Broken,
    /// A flag or file is wrong.
    Usage,
    /// Judged, and what was measured does not settle it.
    Inconclusive,
    /// Measured, and the result can't be trusted, or it could not be kept whole.
    Invalid,
    Unreachable,
    /// Stopped by the person.
    Interrupted,
    /// A verdict that the caller wants to see as this code.
    Mapped(u8),
}

impl Exit {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Broken => 1,
            Exit::Usage => 2,
            Exit::Inconclusive => 3,
            Exit::Invalid => 4,
            Exit::Unreachable => 5,
            Exit::Interrupted => 130,
            Exit::Mapped(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// What ends a command early: one line that names the thing and what to do, and the exit code.
#[derive(Debug)]
pub struct Stop {
    pub exit: Exit,
    pub line: String,
}

impl Stop {
    /// A wrong flag or file.
    pub fn usage(line: impl Into<String>) -> Stop {
        Stop { exit: Exit::Usage, line: line.into() }
    }

    /// Asked for what was measured does not settle.
    pub fn inconclusive(line: impl Into<String>) -> Stop {
        Stop { exit: Exit::Inconclusive, line: line.into() }
    }

    /// Something that kept the measurement from being whole.
    pub fn invalid(line: impl Into<String>) -> Stop {
        Stop { exit: Exit::Invalid, line: line.into() }
    }

    /// The target can't be reached or is not what it should be.
    pub fn unreachable(line: impl Into<String>) -> Stop {
        Stop { exit: Exit::Unreachable, line: line.into() }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Stop {}
