//! Fuzzes a run folder with foreign or damaged Parquet: requests, series and spans.

use std::path::Path;
use std::sync::OnceLock;

use plimsoll_model::At;
use tempfile::TempDir;

/// Returns two folders in memory with valid manifests. The fuzzed file is the requests file of the first one. In the second
/// one, whose requests file is valid and empty, it is one of the other files.
fn folders() -> &'static [TempDir; 2] {
    static FOLDERS: OnceLock<[TempDir; 2]> = OnceLock::new();
    FOLDERS.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let made =
            || if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.expect("a folder");
        let (alone, beside) = (made(), made());
        std::fs::write(alone.path().join("run.json"), include_bytes!("run.json")).expect("written");
        let manifest = plimsoll_store::read_manifest(alone.path()).expect("a manifest");
        let run = beside.path().join("run");
        let writer = plimsoll_store::RunWriter::create(&run, manifest.clone()).expect("a folder");
        writer.finish(manifest).expect("written");
        [alone, beside]
    })
}

pub fn check(bytes: &[u8]) {
    let [alone, beside] = folders();
    std::fs::write(alone.path().join("requests.parquet"), bytes).expect("written");
    let _ = plimsoll_store::open(alone.path());
    let _ = plimsoll_store::extent(alone.path());
    let _ = plimsoll_store::each_due(alone.path(), &[(At::ZERO, At(1_000_000_000))], |_| ());
    let run = beside.path().join("run");
    for file in ["server.parquet", "spans.parquet"] {
        std::fs::write(run.join(file), bytes).expect("written");
    }
    let _ = plimsoll_store::open(&run);
    let _ = plimsoll_store::each_span(&run, |_| ());
}
