//! Defines the errors of a run folder, as cases that a caller can handle.
//!
//! A full disk is a separate case, because it has a separate exit code and the records written before it are valid. A
//! truncated log is no error: reading stops there and reports it.

use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, StoreError>;

/// The error of an operation on a run folder.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder (or file) of a new run already exists.
    #[error("{}: already exists, and a run is never overwritten; name another folder", path.display())]
    Exists {
        /// Path of the new run, as requested.
        path: PathBuf,
    },
    #[error("{}: there is no such file or folder", path.display())]
    Absent {
        /// Path of the run, as requested.
        path: PathBuf,
    },
    /// The folder contains neither a finished run nor a log.
    #[error("{}: not a run folder: {missing} is missing", path.display())]
    NotARun {
        path: PathBuf,
        /// Missing file that identifies a run.
        missing: &'static str,
    },
    /// The disk, the quota or the file size limit is exhausted. The records written before are readable.
    #[error("{}: no room left to {doing}: {source}", path.display())]
    DiskFull {
        path: PathBuf,
        /// Operation that failed, as a verb phrase.
        doing: &'static str,
        source: io::Error,
    },
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// File or folder of the operation.
        path: PathBuf,
        /// Operation that failed, as a verb phrase.
        doing: &'static str,
        source: io::Error,
    },
    #[error("{}: {what}", path.display())]
    Broken {
        path: PathBuf,
        /// Description and position of the error.
        what: String,
    },
    /// A file has a format version that this program does not support.
    #[error("{}: layout version {found}; this version of plimsoll reads {known}", path.display())]
    Schema {
        path: PathBuf,
        found: u32,
        /// Newest version that this program supports.
        known: u32,
    },
}

impl StoreError {
    /// Returns whether the disk, quota or file size limit is exhausted.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, StoreError::DiskFull { .. })
    }

    /// Classifies an I/O error as [`StoreError::DiskFull`] or [`StoreError::Io`].
    pub(crate) fn io(path: &Path, doing: &'static str, source: io::Error) -> StoreError {
        let path = path.to_path_buf();
        if is_full(&source) {
            StoreError::DiskFull { path, doing, source }
        } else {
            StoreError::Io { path, doing, source }
        }
    }

    pub(crate) fn broken(path: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Broken { path: path.to_path_buf(), what: what.into() }
    }

    /// Classifies an error of the Parquet library as an I/O error or a malformed file.
    pub(crate) fn parquet(path: &Path, doing: &'static str, error: ParquetError) -> StoreError {
        match error {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(source) => StoreError::io(path, doing, *source),
                Err(other) => StoreError::broken(path, other.to_string()),
            },
            // Omits the library's prefix "Parquet error: ".
            ParquetError::General(what) => StoreError::broken(path, what),
            other => StoreError::broken(path, other.to_string()),
        }
    }
}

/// Disk, quota and file size limit are one case, because the effect on the run is equal.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
