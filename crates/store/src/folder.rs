//! The folder itself: what its files are called, how one is replaced whole, and who may touch it.
//!
//! A writer holds an advisory lock on the log for as long as it lives; the kernel lets go of it when the process
//! dies, however it dies. So a reader that gets the lock knows that nobody is writing any more. A file with a
//! process id in it was the alternative: it survives its process and lies after a reboot.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Result, StoreError};

pub const MANIFEST: &str = "run.json";
/// One row per attempt. Where this exists, the run is in Parquet; where it does not, the log speaks.
pub const REQUESTS: &str = "requests.parquet";
/// Time series; missing where there are none.
pub const SERIES: &str = "server.parquet";
/// Spans of traces; missing where there are none.
pub const SPANS: &str = "spans.parquet";
/// The log of a run that goes on, or whose writer died.
pub const LOG: &str = "records.log";
/// A log that could not be read in full: kept, though what could be read of it is in Parquet.
pub const DAMAGED: &str = "records.log.damaged";
/// Room that is given back when the disk is full, so that the last word still fits.
pub const RESERVE: &str = ".reserve";

/// Size of [`RESERVE`]: several times the manifest of a long sweep.
const RESERVE_BYTES: usize = 1 << 20;

/// Makes a new, empty run folder and the folders above it.
pub(crate) fn make(dir: &Path) -> Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(|source| StoreError::io(parent, "make the folder", source))?;
    }
    fs::create_dir(dir).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => StoreError::Exists { path: dir.to_path_buf() },
        _ => StoreError::io(dir, "make the folder", source),
    })
}

/// Takes up room that [`release_reserve`] can give back.
pub(crate) fn make_reserve(dir: &Path) -> Result<()> {
    let path = dir.join(RESERVE);
    fs::write(&path, vec![0; RESERVE_BYTES]).map_err(|source| StoreError::io(&path, "reserve room", source))
}

/// Gives the reserved room back. That it is gone already is no error.
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
        // Some network file systems know no locks; readers there never convert (see `lock_log`).
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::broken(path, "locked by another process right after it was created"))
        }
    }
}

/// Whether a log that was found is still somebody's.
pub(crate) enum Owner {
    /// Nobody's: its writer is gone, and it is ours while the file is held.
    Nobody,
    /// A live process holds it.
    Alive,
    /// The system can't say.
    Unknown,
}

/// Asks whose a log is, and takes it if it is nobody's.
pub(crate) fn lock_log(file: &File) -> Owner {
    match file.try_lock() {
        Ok(()) => Owner::Nobody,
        Err(TryLockError::WouldBlock) => Owner::Alive,
        Err(TryLockError::Error(_)) => Owner::Unknown,
    }
}

/// Where a file is written before it takes its name.
pub(crate) fn draft(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".draft");
    path.with_file_name(name)
}

/// Replaces a file whole: draft, sync, rename, sync of the folder. Readers see the old one or the new one.
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

/// Gives a synced draft its name.
pub(crate) fn publish(path: &Path) -> Result<()> {
    fs::rename(draft(path), path).map_err(|source| StoreError::io(path, "put in place", source))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Makes names in the folder survive a power cut.
pub(crate) fn sync_folder(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| StoreError::io(dir, "sync the folder", source))
}
