//! A folder that all shards can reach (NFS, a shared volume).

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ShardStore;
use crate::exit::Stop;

/// A shared folder as a rendezvous.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    name: String,
    flag: String,
}

impl Folder {
    /// Opens the folder and creates it if it does not exist.
    pub fn open(flag: &str, path: &Path) -> Result<Folder, Stop> {
        let name = path.display().to_string();
        fs::create_dir_all(path).map_err(|e| Stop::usage(format!("{flag} {name}: {e}")))?;
        Ok(Folder { path: path.to_owned(), name, flag: flag.to_owned() })
    }

    fn wrong(&self, error: &io::Error) -> Stop {
        Stop::invalid(format!("{} {}: {error}", self.flag, self.name))
    }
}

impl ShardStore for Folder {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// Writes a draft and names it by a hard link, which fails if the name exists, on local and on network file systems.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, Stop> {
        let path = self.path.join(name);
        let mut draft = path.clone().into_os_string();
        draft.push(format!(".draft-{:016x}", crate::measure::random()));
        let put = || -> io::Result<bool> {
            fs::create_dir_all(path.parent().unwrap_or(&self.path))?;
            let mut file = fs::File::options().write(true).create_new(true).open(&draft)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            match fs::hard_link(&draft, &path) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
                other => other.map(|()| true),
            }
        };
        let done = put();
        let _ = fs::remove_file(&draft);
        done.map_err(|e| self.wrong(&e))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Stop> {
        match fs::read(self.path.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.wrong(&e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_that_put_at_once_one_is_first_and_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = Folder::open("--rendezvous", folder.path()).expect("a folder");
        let first: Vec<u32> = std::thread::scope(|scope| {
            let put = |n: u32| place.put_new("all/start", &vec![n as u8; 100_000]).expect("put").then_some(n);
            let all: Vec<_> = (0..8).map(|n| scope.spawn(move || put(n))).collect();
            all.into_iter().filter_map(|one| one.join().expect("ended")).collect()
        });
        assert_eq!(first.len(), 1);
        assert_eq!(place.get("all/start").expect("read"), Some(vec![first[0] as u8; 100_000]));
        assert_eq!(place.get("other").expect("read"), None);
        let left = fs::read_dir(folder.path().join("all")).expect("a folder").count();
        assert_eq!(left, 1, "drafts are taken away");
    }
}
