//! Run folders that a recorder writes one after the other, by the numbers in their names.

use std::path::{Path, PathBuf};

/// The run folders in `dir` whose names begin so, by their numbers, ascending.
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

/// What a run folder takes on the disk, bytes.
pub fn size(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    // What an open run keeps free for its last words is no part of it.
    let own = entries.flatten().filter(|entry| entry.file_name() != plimsoll_store::folder::RESERVE);
    own.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
}
