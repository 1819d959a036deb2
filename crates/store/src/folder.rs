//! Defines the files of a run folder, atomic replacement, and locking.
//!
//! A writer keeps an advisory lock on the log for its lifetime, and the kernel releases the lock when the process ends for
//! any reason. A reader that obtains the lock therefore knows that there is no writer. A file with a process id was
//! rejected, because it survives its process and remains after a reboot.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Result, StoreError};

pub const MANIFEST: &str = "run.json";
/// File with one row per attempt. If it exists, the run is in Parquet; otherwise the log applies.
pub const REQUESTS: &str = "requests.parquet";
/// File with time series; missing if there are none.
pub const SERIES: &str = "server.parquet";
/// File with trace spans; missing if there are none.
pub const SPANS: &str = "spans.parquet";
/// Log of a run in progress, or of one whose writer died.
pub const LOG: &str = "records.log";
/// Log that could not be read completely. It is kept although its readable part is in Parquet.
pub const DAMAGED: &str = "records.log.damaged";
/// Placeholder file that is deleted on a full disk, so that the last manifest still fits.
pub const RESERVE: &str = ".reserve";

/// Size of [`RESERVE`] in bytes: several times the manifest of a long sweep.
const RESERVE_BYTES: usize = 1 << 20;

/// Creates a new, empty run folder and its parents.
pub(crate) fn make(dir: &Path) -> Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(|source| StoreError::io(parent, "make the folder", source))?;
    }
    fs::create_dir(dir).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => StoreError::Exists { path: dir.to_path_buf() },
        _ => StoreError::io(dir, "make the folder", source),
    })
}

/// Creates the placeholder file that [`release_reserve`] deletes.
pub(crate) fn make_reserve(dir: &Path) -> Result<()> {
    let path = dir.join(RESERVE);
    fs::write(&path, vec![0; RESERVE_BYTES]).map_err(|source| StoreError::io(&path, "reserve room", source))
}

/// Deletes the placeholder file. A missing file is no error.
pub(crate) fn release_reserve(dir: &Path) {
    let _ = fs::remove_file(dir.join(RESERVE));
}

/// Creates the log and locks it for this process.
pub(crate) fn create_log(path: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(path)
        .map_err(|source| StoreError::io(path, "create the log", source))?;
    match file.try_lock() {
        // Some network file systems have no locks; readers there never convert a log (see `lock_log`).
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::broken(path, "locked by another process right after it was created"))
        }
    }
}

/// The owner of an existing log.
pub(crate) enum Owner {
    /// There is no owner: the writer has ended, and this process has the lock while the file is open.
    Nobody,
    /// A live process owns the log.
    Alive,
    /// The file system does not support locks.
    Unknown,
}

/// Tries to lock a log, and returns its owner.
pub(crate) fn lock_log(file: &File) -> Owner {
    match file.try_lock() {
        Ok(()) => Owner::Nobody,
        Err(TryLockError::WouldBlock) => Owner::Alive,
        Err(TryLockError::Error(_)) => Owner::Unknown,
    }
}

/// Returns the temporary path of a file before its rename.
pub(crate) fn draft(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".draft");
    path.with_file_name(name)
}

/// Replaces a file atomically: draft, sync, rename, sync of the folder. Readers see the old file or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let draft = draft(path);
    let written = File::create(&draft).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(source) = written {
        let _ = fs::remove_file(&draft);
        return Err(StoreError::io(path, "write", source));
    }
    publish(path)
}

/// Renames a synced draft to its final name.
pub(crate) fn publish(path: &Path) -> Result<()> {
    fs::rename(draft(path), path).map_err(|source| StoreError::io(path, "put in place", source))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Syncs the folder, so that its names survive a power failure.
pub(crate) fn sync_folder(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| StoreError::io(dir, "sync the folder", source))
}
