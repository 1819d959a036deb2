//! A run read while it is being written: what its log gets, as it gets it.
//!
//! The log stays open here, so that its end can be read also after the writer has made Parquet of it and removed it.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use plimsoll_model::Attempt;

use crate::error::{Result, StoreError};
use crate::folder::{self, Owner};
use crate::frame::{self, LogEnd, LogRecord, MAGIC};

#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    file: File,
    read: u64,
    ended: bool,
}

impl Follow {
    /// Begins at the beginning of the log. `None`: nobody is writing this run.
    ///
    /// # Errors
    /// [`StoreError::Absent`], [`StoreError::NotARun`], [`StoreError::Io`].
    pub fn open(dir: &Path) -> Result<Option<Follow>> {
        crate::read_manifest(dir)?;
        let path = dir.join(folder::LOG);
        let Ok(file) = File::open(&path) else { return Ok(None) };
        if let Owner::Nobody = folder::lock_log(&file) {
            return Ok(None);
        }
        Ok(Some(Follow { path, file, read: MAGIC.len() as u64, ended: false }))
    }

    /// Is there nothing more to come?
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Attempts that ended since the last call.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Broken`] where the log is damaged.
    pub fn read(&mut self) -> Result<Vec<Attempt>> {
        let io = |source| StoreError::io(&self.path, "read the log", source);
        // Asked before it is read: what is written in between is read the next time, or now.
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
