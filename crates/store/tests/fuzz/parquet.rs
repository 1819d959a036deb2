//! A run folder whose Parquet somebody else wrote or damaged.

use std::sync::OnceLock;

use tempfile::TempDir;

/// A folder in memory where there is one, with a manifest that reads.
fn folder() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = std::path::Path::new("/dev/shm");
        let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        let made = made.expect("a folder");
        std::fs::write(made.path().join("run.json"), include_bytes!("run.json")).expect("written");
        made
    })
}

pub fn check(bytes: &[u8]) {
    let dir = folder().path();
    std::fs::write(dir.join("requests.parquet"), bytes).expect("written");
    let _ = plimsoll_store::open(dir);
}
