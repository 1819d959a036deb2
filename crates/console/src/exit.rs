//! Exit codes and the error type that carries them.
//!
//! Scripts depend on the codes (documented in `docs/reference/exit-codes.md`). 0: measured (valid or suspect). 1: the judged
//! object is broken (for example a bar of `validate`). 2: wrong usage. 3: the data is inconclusive. 4: the measurement is
//! invalid or could not be stored. 5: no request reached the target. 130: stopped by Ctrl-C.

use std::fmt;
use std::process::ExitCode;

/// The result of a command as an exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Done; a measurement, if any, is valid or suspect.
    Done,
    /// Judged, and a budget or a bar is broken.
    Broken,
    /// A flag or a file is wrong.
    Usage,
    /// Judged, but the data is inconclusive.
    Inconclusive,
    /// Measured, but the result is invalid or could not be stored completely.
    Invalid,
    Unreachable,
    /// Stopped by the user with Ctrl-C.
    Interrupted,
    /// A verdict with the exit code that the caller chose.
    Mapped(u8),
}

impl Exit {
    /// Returns the exit code of the process.
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

/// An error that ends a command: one line with the object, the problem and the remedy, and the exit code.
#[derive(Debug)]
pub struct Stop {
    pub exit: Exit,
    pub line: String,
}

impl Stop {
    /// Returns the error of a wrong flag or file.
    pub fn usage(line: impl Into<String>) -> Stop {
        Stop { exit: Exit::Usage, line: line.into() }
    }

    /// Returns the error of a question that the measured data does not answer.
    pub fn inconclusive(line: impl Into<String>) -> Stop {
        Stop { exit: Exit::Inconclusive, line: line.into() }
    }

    /// Returns the error of an incomplete measurement.
    pub fn invalid(line: impl Into<String>) -> Stop {
        Stop { exit: Exit::Invalid, line: line.into() }
    }

    /// Returns the error of a target that can't be reached or is of another kind.
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
