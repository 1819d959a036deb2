//! Downloads the shards' runs from an object store into a folder next to the merged run.
//!
//! A run that has ended consists of its files. Any other run consists of the uploaded parts of its log, and is recovered
//! from them like a local log.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_store::folder::{LOG, MANIFEST, REQUESTS, SERIES, SPANS};

use super::upload::{EVERY, PARTS, part_name};
use crate::exit::Stop;
use crate::out;
use crate::place::{RunStore, StoredObject, open_bucket};

/// Time within which a running shard uploads something, even if one turn of its upload takes long.
const SILENT: Duration = Duration::from_secs(2 * EVERY.as_secs() + 2);
/// Interval between two checks of a run that may be in progress. The first change ends the wait.
const LOOK: Duration = Duration::from_secs(1);

/// A temporary folder that is removed on drop.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a temporary folder next to a run that will be written.
    pub fn beside(run: &Path) -> Result<TempFolder, Stop> {
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        let path = run.with_file_name(format!(".{name}.shards-{:08x}", crate::measure::random() as u32));
        fs::create_dir_all(&path).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))?;
        Ok(TempFolder(path))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The files of a shard's run by name.
type Files = BTreeMap<String, StoredObject>;

/// Downloads the shards' runs at a place. Returns the name of each run there and its local folder.
///
/// # Errors
/// The place can't be read, or a shard still writes to it.
pub fn fetch(place: &Path, scratch: &TempFolder) -> Result<Vec<(String, PathBuf)>, Stop> {
    let bucket = open_bucket("merge", place)?;
    let mut runs = runs(&*bucket)?;
    let mut waited = Duration::ZERO;
    while let Some(open) = open_of(&runs)
        && waited < SILENT
    {
        if waited.is_zero() {
            out::note(&format!(
                "{open}: not ended; checking for {} s whether it still runs",
                SILENT.as_secs()
            ));
        }
        std::thread::sleep(LOOK);
        waited += LOOK;
        let before = std::mem::replace(&mut runs, self::runs(&*bucket)?);
        for (name, files) in before.iter().filter(|(_, files)| is_open(files)) {
            if runs.get(name) != Some(files) {
                return Err(Stop::usage(format!(
                    "{}: still being written; wait until it has ended",
                    called(&*bucket, name)
                )));
            }
        }
    }
    let mut fetched = Vec::new();
    for (n, (name, files)) in runs.iter().enumerate() {
        let dir = scratch.0.join(n.to_string());
        fetch_run(&*bucket, files, &dir)?;
        fetched.push((called(&*bucket, name), dir));
    }
    Ok(fetched)
}

fn is_open(files: &Files) -> bool {
    !files.contains_key(REQUESTS) && !files.contains_key(LOG)
}

/// Returns the names of the runs that have not ended.
fn open_of(runs: &BTreeMap<String, Files>) -> Option<String> {
    let open = runs.iter().filter(|(_, files)| is_open(files)).map(|(name, _)| name.as_str());
    Some(open.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
}

fn called(bucket: &dyn RunStore, run: &str) -> String {
    let place = bucket.name().trim_end_matches('/');
    if run.is_empty() { place.to_owned() } else { format!("{place}/{run}") }
}

/// Lists the runs at a place: one run itself, or the runs of shards below the place.
fn runs(bucket: &dyn RunStore) -> Result<BTreeMap<String, Files>, Stop> {
    let objects = bucket.list("")?;
    let is_run = objects.iter().any(|object| object.name == MANIFEST);
    let mut runs: BTreeMap<String, Files> = BTreeMap::new();
    for object in objects {
        let (run, file) = match object.name.split_once('/') {
            _ if is_run => (String::new(), object.name.clone()),
            Some((run, file)) if run.starts_with("shard-") => (run.to_owned(), file.to_owned()),
            _ => continue,
        };
        runs.entry(run).or_default().insert(file, object);
    }
    runs.retain(|_, files| files.contains_key(MANIFEST));
    Ok(runs)
}

fn fetch_run(bucket: &dyn RunStore, files: &Files, dir: &Path) -> Result<(), Stop> {
    let wrong = |path: &Path, e: io::Error| Stop::invalid(format!("{}: {e}", path.display()));
    fs::create_dir(dir).map_err(|e| wrong(dir, e))?;
    let into = |file: &str| {
        let path = dir.join(file);
        File::options().create(true).append(true).open(&path).map_err(|e| wrong(&path, e))
    };
    let whole = if files.contains_key(REQUESTS) {
        &[MANIFEST, SERIES, SPANS, REQUESTS][..]
    } else {
        &[MANIFEST, LOG]
    };
    for file in whole {
        if let Some(object) = files.get(*file) {
            bucket.fetch(&object.name, &mut into(file)?)?;
        }
    }
    if files.contains_key(REQUESTS) || files.contains_key(LOG) {
        return Ok(());
    }
    let mut log = into(LOG)?;
    let parts = files.keys().filter(|file| file.starts_with(PARTS)).count() as u64;
    for n in 0..parts {
        let object = files.get(&part_name(n)).ok_or_else(|| {
            Stop::invalid(format!("{}: part {n} of its log is missing, of {parts}", bucket.name()))
        })?;
        bucket.fetch(&object.name, &mut log)?;
    }
    Ok(())
}
