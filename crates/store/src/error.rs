//! What can go wrong with a run folder, as cases a caller can act on.
//!
//! A full disk has a case of its own because it has an exit code of its own, and because what was written until
//! then is still good. A torn log is no error: reading stops there and says so.

use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// Shorthand for this crate's results.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What went wrong with a run folder.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder (or file) of a new run is already there.
    #[error("{}: already exists, and a run is never overwritten; name another folder", path.display())]
    Exists {
        /// The path asked for.
        path: PathBuf,
    },
    /// There is nothing at this path.
    #[error("{}: there is no such file or folder", path.display())]
    Absent {
        /// The path.
        path: PathBuf,
    },
    /// The folder holds neither a finished run nor a log.
    #[error("{}: not a run folder: {missing} is missing", path.display())]
    NotARun {
        /// The folder.
        path: PathBuf,
        /// The file that would have made it one.
        missing: &'static str,
    },
    /// No room: the disk, the quota or the file size limit is used up. What was written until then is readable.
    #[error("{}: no room left to {doing}: {source}", path.display())]
    DiskFull {
        /// The file being written.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's word.
        source: io::Error,
    },
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's word.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {what}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        what: String,
    },
    /// Written by a version whose layout this one does not know.
    #[error("{}: layout version {found}; this version of plimsoll reads {known}", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// The version it names.
        found: u32,
        /// The version known here.
        known: u32,
    },
}

impl StoreError {
    /// Is it for want of room?
    pub fn is_disk_full(&self) -> bool {
        matches!(self, StoreError::DiskFull { .. })
    }

    /// An error of the system, sorted into [`StoreError::DiskFull`] and the rest.
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

    /// The Parquet library's error: its cause is the system's, or the file is broken.
    pub(crate) fn parquet(path: &Path, doing: &'static str, error: ParquetError) -> StoreError {
        match error {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(source) => StoreError::io(path, doing, *source),
                Err(other) => StoreError::broken(path, other.to_string()),
            },
            // Without the library's own "Parquet error: " before it.
            ParquetError::General(what) => StoreError::broken(path, what),
            other => StoreError::broken(path, other.to_string()),
        }
    }
}

/// Disk, quota and file size limit: for the run they are one case.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
