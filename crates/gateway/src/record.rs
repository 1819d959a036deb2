//! Configuration of request recording, which [`crate::traffic`] performs.

use std::path::PathBuf;

use plimsoll_policy::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{conflict, share, within};

/// Settings of the recording of requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordSpec {
    /// Parent folder of the run folders.
    pub dir: PathBuf,
    /// Period of a run folder in s; a new one starts afterwards [default: 3600].
    #[serde(default = "every_s")]
    pub every_s: f64,
    /// Size limit in bytes of a run folder's log; a new folder starts afterwards, because readers load a whole run
    /// [default: 64 MiB].
    #[serde(default = "bytes")]
    pub bytes: u64,
    /// Total size limit of the run folders in bytes; the oldest are deleted first [default: 4 GiB].
    #[serde(default = "keep_bytes")]
    pub keep_bytes: u64,
    /// Share of requests whose routing decision is recorded; retries always are [default: 0.1].
    #[serde(default = "explain")]
    pub explain: f64,
}

fn every_s() -> f64 {
    3_600.0
}

fn bytes() -> u64 {
    64 << 20
}

fn keep_bytes() -> u64 {
    4 << 30
}

fn explain() -> f64 {
    0.1
}

impl RecordSpec {
    /// Returns the default settings for this folder.
    pub fn new(dir: PathBuf) -> RecordSpec {
        RecordSpec { dir, every_s: every_s(), bytes: bytes(), keep_bytes: keep_bytes(), explain: explain() }
    }

    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        if self.dir.as_os_str().is_empty() {
            return conflict("record.dir", "names no folder");
        }
        within("record.every_s", self.every_s, 1.0..=604_800.0, " s")?;
        share("record.explain", self.explain)?;
        if self.bytes < 64 << 10 {
            return conflict("record.bytes", format!("{} is less than 65536", self.bytes));
        }
        if self.keep_bytes < self.bytes {
            let (keep, one) = (self.keep_bytes, self.bytes);
            return conflict("record.keep_bytes", format!("{keep} is less than one run's {one} bytes"));
        }
        Ok(())
    }
}
