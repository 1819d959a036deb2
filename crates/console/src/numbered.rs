//! Finds numbered run folders, which a recorder writes in sequence.

use std::path::{Path, PathBuf};

/// Returns the run folders in `dir` with this prefix, by number in ascending order.
pub fn folders(dir: &Path, prefix: &str) -> Vec<(u64, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let of = |path: PathBuf| {
        let number = path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok()?;
        path.is_dir().then_some((number, path))
    };
    let mut found: Vec<_> = entries.flatten().filter_map(|entry| of(entry.path())).collect();
    found.sort_unstable();
    found
}

/// Returns the size of a run folder on disk in bytes.
pub fn size(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    // The reserve of an open run is left out, because it is removed at the end.
    let own = entries.flatten().filter(|entry| entry.file_name() != plimsoll_store::folder::RESERVE);
    own.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
}
