//! Where requests are recorded, and for how long: what the writer of [`crate::traffic`] is asked.

use std::path::PathBuf;

use plimsoll_policy::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where requests are recorded, and for how long.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordSpec {
    /// The folder in which run folders are made.
    pub dir: PathBuf,
    /// A new run folder is begun after so long, seconds.
    #[serde(default = "every_s")]
    pub every_s: f64,
    /// And once the log of this one is so large, bytes: whoever reads a run holds all of it.
    #[serde(default = "bytes")]
    pub bytes: u64,
    /// The oldest run folders go once all of them are larger than this, bytes.
    #[serde(default = "keep_bytes")]
    pub keep_bytes: u64,
    /// Share of the requests of which it is kept why they went where they went; of every second try it always is.
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
    /// As by default, in this folder.
    pub fn new(dir: PathBuf) -> RecordSpec {
        RecordSpec { dir, every_s: every_s(), bytes: bytes(), keep_bytes: keep_bytes(), explain: explain() }
    }

    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        let conflict = |name: &str, why: String| Err(SettingError::Conflict { name: name.to_owned(), why });
        if self.dir.as_os_str().is_empty() {
            return conflict("record.dir", "names no folder".to_owned());
        }
        if !(1.0..=604_800.0).contains(&self.every_s) {
            return conflict("record.every_s", format!("{} is not from 1 to 604800 s", self.every_s));
        }
        if !(0.0..=1.0).contains(&self.explain) {
            return conflict("record.explain", format!("{} is no share from 0 to 1", self.explain));
        }
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
