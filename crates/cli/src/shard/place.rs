//! Where shards meet: a folder that all of them see, in which a file that is there is never replaced.
//!
//! That is all a meeting needs, and what an object store's conditional put gives too: no process of its own stands in the middle that
//! could fail, be slow, or be the one that everybody waits for.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::exit::Stop;

/// The place's files, in a folder of their own beside the shards' runs.
const FOLDER: &str = "rendezvous";

/// A folder where shards meet.
#[derive(Debug, Clone)]
pub struct Place {
    folder: PathBuf,
    name: String,
}

impl Place {
    /// Makes it where it is not there yet.
    ///
    /// # Errors
    /// It can't be made.
    pub fn open(path: &Path) -> Result<Place, Stop> {
        let folder = path.join(FOLDER);
        let name = path.display().to_string();
        fs::create_dir_all(&folder).map_err(|e| Stop::usage(format!("--rendezvous {name}: {e}")))?;
        Ok(Place { folder, name })
    }

    /// As the user named it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts a file where none of this name is; false where one is, which stays. A file is there whole or not at all: a hard link gives a
    /// draft its name, and fails where the name is taken, on local and on network file systems alike.
    ///
    /// # Errors
    /// The folder can't be written to.
    pub fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, Stop> {
        let draft = self.folder.join(format!(".{name}.{:016x}", crate::measure::random()));
        let put = || -> io::Result<bool> {
            let mut file = fs::File::options().write(true).create_new(true).open(&draft)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            match fs::hard_link(&draft, self.folder.join(name)) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
                other => other.map(|()| true),
            }
        };
        let done = put();
        let _ = fs::remove_file(&draft);
        done.map_err(|e| self.wrong(&e))
    }

    /// A file's bytes, where it is there.
    ///
    /// # Errors
    /// It can't be read.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Stop> {
        match fs::read(self.folder.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.wrong(&e)),
        }
    }

    fn wrong(&self, error: &io::Error) -> Stop {
        Stop::invalid(format!("--rendezvous {}: {error}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_that_put_at_once_one_is_first_and_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = Place::open(folder.path()).expect("a folder");
        let first: Vec<u32> = std::thread::scope(|scope| {
            let put = |n: u32| place.put_new("start", &vec![n as u8; 100_000]).expect("put").then_some(n);
            let all: Vec<_> = (0..8).map(|n| scope.spawn(move || put(n))).collect();
            all.into_iter().filter_map(|one| one.join().expect("ended")).collect()
        });
        assert_eq!(first.len(), 1);
        assert_eq!(place.get("start").expect("read"), Some(vec![first[0] as u8; 100_000]));
        assert_eq!(place.get("other").expect("read"), None);
        let left = fs::read_dir(folder.path().join(FOLDER)).expect("a folder").count();
        assert_eq!(left, 1, "drafts are taken away");
    }
}
