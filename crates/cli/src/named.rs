//! Resolves the name of a run on the command line: its folder, `last`, or its label.
//!
//! An existing path has priority, so that a folder called `last` is not misread.

use std::path::{Path, PathBuf};

use plimsoll_model::Manifest;
use plimsoll_store::read_manifest;

use crate::place::BucketUrl;

/// Default folder of runs, relative to the working directory.
pub const HOME: &str = "plimsoll-runs";

/// Name of the newest run under [`HOME`].
const LAST: &str = "last";

/// A run folder and its manifest.
pub struct NamedRun {
    pub dir: PathBuf,
    /// Manifest; `None` if the writer was killed before it wrote one, or if it has another version.
    pub manifest: Option<Manifest>,
}

/// Returns the folder of a named run, for a flag that takes a run.
///
/// # Errors
/// `last` without any run, a label that several runs have, or the URL of an object store.
pub fn run(name: &str) -> Result<PathBuf, String> {
    if Path::new(name).exists() {
        return Ok(PathBuf::from(name));
    }
    let mut runs = runs(Path::new(HOME));
    if name == LAST {
        return match runs.is_empty() {
            true => Err(format!("there is no run under {HOME}/ yet")),
            false => Ok(runs.remove(0).dir),
        };
    }
    let labelled = |run: &NamedRun| run.manifest.as_ref().is_some_and(|m| m.label.as_deref() == Some(name));
    runs.retain(labelled);
    match runs.as_slice() {
        [] if BucketUrl::parse(name).is_ok() => Err(format!(
            "runs are read from folders; shards there become one with plimsoll merge {name} -o RUN"
        )),
        [] => Ok(PathBuf::from(name)),
        [only] => Ok(only.dir.clone()),
        several => {
            let dirs: Vec<String> = several.iter().map(|run| run.dir.display().to_string()).collect();
            Err(format!("{} runs have this label: name one of {}", dirs.len(), dirs.join(", ")))
        }
    }
}

/// Resolves a name that may also be something else, such as a baseline or a URL.
pub fn run_or_name(name: &str) -> Result<String, String> {
    run(name).map(|path| path.display().to_string())
}

/// Returns the run folders of a folder, unordered.
pub fn folders(home: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(home) else { return Vec::new() };
    let is_run = |dir: &Path| ["run.json", "records.log"].iter().any(|file| dir.join(file).is_file());
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|dir| is_run(dir)).collect()
}

/// Returns the runs of a folder, newest first.
pub fn runs(home: &Path) -> Vec<NamedRun> {
    let mut runs: Vec<(i64, NamedRun)> = folders(home)
        .into_iter()
        .map(|dir| {
            let manifest = read_manifest(&dir).ok();
            let began = manifest.as_ref().map_or_else(|| changed(&dir), |m| m.clock.realtime_ns);
            (began, NamedRun { dir, manifest })
        })
        .collect();
    runs.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| b.1.dir.cmp(&a.1.dir)));
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Returns the modification time of a folder in ns since the Unix epoch; 0 if it is unknown.
fn changed(dir: &Path) -> i64 {
    let time = std::fs::metadata(dir).and_then(|data| data.modified()).ok();
    let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_nanos() as i64)
}
