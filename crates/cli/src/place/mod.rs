//! The rendezvous and run storage of shards: a shared folder or an object store.
//!
//! A rendezvous only needs files that are never replaced. A file system's link and a store's conditional put both provide
//! them. A coordinating process was rejected, because it could fail, be slow, or block all shards.

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

/// A rendezvous. Names are relative to it, with `/` between their parts.
pub trait ShardStore: Debug + Send + Sync {
    fn name(&self) -> &str;

    /// Returns the interval at which a missing file may be polled.
    fn poll(&self) -> Duration;

    /// Writes a file atomically if its name is free; returns false and keeps the existing file otherwise.
    /// All writers must write different bytes, because after a lost response a writer recognises its file by its bytes.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, Stop>;

    /// Returns a file's bytes; `None` if it does not exist.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Stop>;
}

/// A rendezvous that also stores runs, like the file system does for a folder.
pub trait RunStore: ShardStore {
    /// Writes bytes and replaces an existing object.
    fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Stop>;

    /// Uploads a local file of any size.
    fn put_file(&self, name: &str, file: &Path) -> Result<(), Stop>;

    /// Lists the objects below a name, in order.
    fn list(&self, below: &str) -> Result<Vec<StoredObject>, Stop>;

    /// Appends an object's bytes to a local file.
    fn fetch(&self, name: &str, into: &mut File) -> Result<(), Stop>;

    /// Removes the objects with these names.
    fn remove(&self, names: Vec<String>) -> Result<(), Stop>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    pub name: String,
    pub bytes: u64,
    pub tag: Option<String>,
}

/// Opens the rendezvous that a flag names; creates a folder if it does not exist.
///
/// # Errors
/// The value is not a place, or the place can't be created or reached.
pub fn open(flag: &str, path: &Path) -> Result<Arc<dyn ShardStore>, Stop> {
    match is_url(path) {
        true => Ok(open_bucket(flag, path)?),
        false => Ok(Arc::new(Folder::open(flag, path)?)),
    }
}

/// Opens the object store that a flag names. Sends one request, so that a wrong name or key is reported before the load starts.
///
/// # Errors
/// The URL is invalid, or the store can't be reached or refuses access.
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
