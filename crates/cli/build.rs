//! Embeds the manual, every page under `docs/`, so that `plimsoll docs` needs no network and no checkout.
//!
//! A list in the source was rejected, because a page that moves would break the build.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Left out, because only contributors to Plimsoll need it.
const LEFT_OUT: [&str; 3] = ["adr", "SUMMARY.md", "release-checklist.md"];

fn main() -> io::Result<()> {
    let variable = |name| env::var_os(name).map(PathBuf::from).ok_or(io::ErrorKind::NotFound);
    let docs = variable("CARGO_MANIFEST_DIR")?.join("../../docs").canonicalize()?;
    println!("cargo::rerun-if-changed={}", docs.display());
    let mut pages = Vec::new();
    find(&docs, &mut pages)?;
    pages.sort();
    let mut list = String::from("&[\n");
    for page in &pages {
        let name = page.strip_prefix(&docs).unwrap_or(page).with_extension("");
        let _ = writeln!(list, "    ({:?}, include_str!({page:?})),", name.to_string_lossy());
    }
    fs::write(variable("OUT_DIR")?.join("pages.rs"), list + "]\n")
}

fn find(dir: &Path, pages: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if LEFT_OUT.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            find(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}
