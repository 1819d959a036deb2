//! Computes a short hash over the measured content of a run, to detect changes.
//!
//! The hash covers the rows, the time series, and the manifest without its findings, which a newer version may recompute. A
//! mere random id was rejected: it identifies the run but does not reveal later edits of its rows. The hash (SipHash-2-4,
//! 128 bits, with a public key) detects accidents and edits; it is no signature.

use std::fs::File;
use std::hash::Hasher;
use std::io::Read;
use std::path::Path;

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::error::{Result, StoreError};
use crate::folder;
use crate::reader::read_manifest;

/// Files that the hash covers, if they exist.
const FILES: [&str; 3] = [folder::REQUESTS, folder::SERIES, folder::SPANS];

/// Returns 32 hex digits that depend on the rows, the time series and the manifest of a finished run.
///
/// # Errors
/// Fails with a [`StoreError`] if the folder is no run or can't be read.
pub fn content_hash(dir: &Path) -> Result<String> {
    let mut manifest = read_manifest(dir)?;
    manifest.findings = None;
    let path = dir.join(folder::MANIFEST);
    let text = serde_json::to_vec(&manifest)
        .map_err(|e| StoreError::io(&path, "write the manifest out", std::io::Error::other(e)))?;
    let mut hasher = SipHasher24::new();
    hasher.write(&text);
    for name in FILES {
        let path = dir.join(name);
        if path.exists() {
            hasher.write(name.as_bytes());
            feed(&mut hasher, &path)?;
        }
    }
    let hash = hasher.finish128();
    Ok(format!("{:016x}{:016x}", hash.h1, hash.h2))
}

fn feed(hasher: &mut SipHasher24, path: &Path) -> Result<()> {
    let io = |source| StoreError::io(path, "read", source);
    let mut file = File::open(path).map_err(io)?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => return Ok(()),
            n => hasher.write(&buffer[..n]),
        }
    }
}
