//! Where shards meet and leave their runs: a folder that all of them see, or an object store.
//!
//! A meeting needs no more than a file that is never replaced once it is there, which a file system's link and a store's conditional put both give:
//! no process of its own stands in the middle that could fail, be slow, or be the one that everybody waits for.

#[cfg(feature = "object-store")]
mod bucket;
#[cfg(feature = "object-store")]
mod connector;
mod folder;
mod url;

use std::fmt::Debug;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::exit::Stop;

use folder::Folder;
pub use url::{BucketUrl, Cloud, is_url};

/// A place; names are relative to it, with `/` between their parts.
pub trait Place: Debug + Send + Sync {
    fn name(&self) -> &str;

    /// How often it may be asked for what is not there yet.
    fn poll(&self) -> Duration;

    /// Puts a file where none of this name is; false where one is, which stays. It is there whole or not at all. No two may put the same bytes,
    /// because after an answer that was lost it is by these that a writer knows its own.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, Stop>;

    /// A file's bytes, where it is there.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Stop>;
}

/// A place that holds runs too: what a file system does for a folder's.
pub trait RunStore: Place {
    /// Puts bytes in the place of whatever is there.
    fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Stop>;

    /// Puts a file of this machine, of any size.
    fn put_file(&self, name: &str, file: &Path) -> Result<(), Stop>;

    /// What is below a name, in order.
    fn list(&self, below: &str) -> Result<Vec<Object>, Stop>;

    /// Appends an object to a file of this machine.
    fn fetch(&self, name: &str, into: &mut File) -> Result<(), Stop>;

    /// Takes objects away.
    fn remove(&self, names: Vec<String>) -> Result<(), Stop>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub name: String,
    pub bytes: u64,
    pub tag: Option<String>,
}

/// The place that a flag names; a folder is made where it is not there yet.
///
/// # Errors
/// It is no place, can't be made or can't be reached.
pub fn open(flag: &str, path: &Path) -> Result<Arc<dyn Place>, Stop> {
    match is_url(path) {
        true => Ok(open_bucket(flag, path)?),
        false => Ok(Arc::new(Folder::open(flag, path)?)),
    }
}

/// The object store that a flag names; asked once, so that a wrong name or key is known before anything is sent.
///
/// # Errors
/// It is no such name, it can't be reached, or it refuses.
pub fn open_bucket(flag: &str, path: &Path) -> Result<Arc<dyn RunStore>, Stop> {
    let url =
        BucketUrl::parse(&path.to_string_lossy()).map_err(|why| Stop::usage(format!("{flag} {why}")))?;
    bucket_at(flag, url)
}

#[cfg(feature = "object-store")]
fn bucket_at(flag: &str, url: BucketUrl) -> Result<Arc<dyn RunStore>, Stop> {
    Ok(Arc::new(bucket::ObjectBucket::open(flag, url)?))
}

#[cfg(not(feature = "object-store"))]
fn bucket_at(flag: &str, url: BucketUrl) -> Result<Arc<dyn RunStore>, Stop> {
    Err(Stop::usage(format!(
        "{flag} {}: this build has no object store support: take a packaged one, build with --features object-store, or name a folder",
        url.text
    )))
}
