//! Follows the log of a run while it is being written.
//!
//! The log stays open, so that its end is readable even after the writer has converted it to Parquet and deleted it.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use plimsoll_model::Attempt;

use crate::error::{Result, StoreError};
use crate::folder::{self, Owner};
use crate::frame::{self, LogEnd, LogRecord, MAGIC};

#[derive(Debug)]
pub struct LogFollower {
    path: PathBuf,
    file: File,
    read: u64,
    ended: bool,
}

impl LogFollower {
    /// Starts at the beginning of the log. `None` = there is no running writer.
    ///
    /// # Errors
    /// Fails with [`StoreError::Absent`], [`StoreError::NotARun`] or [`StoreError::Io`].
    pub fn open(dir: &Path) -> Result<Option<LogFollower>> {
        crate::read_manifest(dir)?;
        let path = dir.join(folder::LOG);
        let Ok(file) = File::open(&path) else { return Ok(None) };
        if let Owner::Nobody = folder::lock_log(&file) {
            return Ok(None);
        }
        Ok(Some(LogFollower { path, file, read: MAGIC.len() as u64, ended: false }))
    }

    /// Returns whether no more records will follow.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns the attempts that ended since the last call.
    ///
    /// # Errors
    /// Fails with [`StoreError::Io`], or with [`StoreError::Broken`] if the log is damaged.
    pub fn read(&mut self) -> Result<Vec<Attempt>> {
        let io = |source| StoreError::io(&self.path, "read the log", source);
        // Checked before reading, so that records written in between are read now or by the next call.
        let over = !self.path.exists() || matches!(folder::lock_log(&self.file), Owner::Nobody);
        let len = self.file.metadata().map_err(io)?.len();
        let mut attempts = Vec::new();
        if len > self.read {
            self.file.seek(SeekFrom::Start(self.read)).map_err(io)?;
            let mut source = BufReader::new((&self.file).take(len - self.read));
            let tail = LogEnd { good: 0, dropped: len - self.read, ..LogEnd::default() };
            let tail = frame::frames(&mut source, tail, &mut |record| {
                if let LogRecord::Attempt(attempt) = record {
                    attempts.push(attempt);
                }
                Ok::<(), std::io::Error>(())
            })
            .map_err(io)?;
            self.read += tail.good;
            if tail.damaged {
                let what = format!("the record at byte {} does not read back", self.read);
                return Err(StoreError::broken(&self.path, what));
            }
        }
        self.ended = over;
        Ok(attempts)
    }
}
