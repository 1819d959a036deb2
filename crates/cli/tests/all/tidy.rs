//! The house keeps its own rules: which crate may know which, that files say what they are for, and that nothing
//! that names a machine or holds a secret slips in.
//!
//! The table below is the one in `ARCHITECTURE.md`; a new edge is a commit of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Who may know whom.
const EDGES: &[(&str, &[&str])] = &[
    ("math", &[]),
    ("model", &[]),
    ("workload", &["math", "model"]),
    ("wire", &["model"]),
    ("policy", &["math", "model"]),
    ("store", &["model"]),
    ("sim", &["math", "model", "workload", "policy"]),
    ("client", &["math", "model", "workload", "wire"]),
    ("measure", &["math", "model", "workload"]),
    ("judge", &["math", "model", "workload", "measure"]),
    ("diagnose", &["math", "model", "workload", "measure"]),
    ("profile", &["math", "model", "measure"]),
    ("plan", &["math", "model", "workload", "sim", "measure", "judge", "profile"]),
    ("server", &["model", "wire", "sim"]),
    ("report", &["model", "measure", "judge", "diagnose", "profile", "plan"]),
    (
        "cli",
        &[
            "math", "model", "workload", "wire", "policy", "store", "sim", "client", "measure", "judge",
            "diagnose", "profile", "plan", "server", "report",
        ],
    ),
    ("lab", &["math", "model"]),
];

/// What tests, examples and benches may know besides: a simulated system knows the truth that a figure is held against.
const TESTS_TOO: &[&str] = &["lab", "sim", "math", "model", "workload"];

/// Crates that take values, a seed and a `now`, and give values back.
const PURE: &[&str] = &[
    "math", "model", "workload", "wire", "policy", "sim", "measure", "judge", "diagnose", "profile", "plan",
];

/// What a pure crate must not name in its sources: async, sockets, files, environment, clocks, printing.
const IMPURE: &[&str] = &[
    "std::net",
    "std::fs",
    "std::env",
    "std::thread",
    "tokio",
    "Instant::now",
    "SystemTime::now",
    "println!",
    "eprintln!",
    "async fn",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn crates_know_only_whom_they_may() {
    let allowed: BTreeMap<_, BTreeSet<_>> =
        EDGES.iter().map(|(name, may)| (*name, may.iter().copied().collect())).collect();
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates/ exists").flatten() {
        let name = entry.file_name().into_string().expect("crate folders have plain names");
        let may = allowed.get(name.as_str()).unwrap_or_else(|| panic!("crates/{name} is not in the table"));
        let manifest = read(&entry.path().join("Cargo.toml"));
        let (sources, tests) = manifest.split_once("[dev-dependencies]").unwrap_or((&manifest, ""));
        let named = |text: &str| -> Vec<String> {
            let names = text.lines().filter_map(|line| line.strip_prefix("plimsoll-"));
            names.map(|name| name.chars().take_while(char::is_ascii_lowercase).collect()).collect()
        };
        for known in named(sources) {
            assert!(may.contains(known.as_str()), "crates/{name} may not know crates/{known}");
        }
        for known in named(tests) {
            let fits = may.contains(known.as_str()) || TESTS_TOO.contains(&known.as_str());
            assert!(fits, "the tests of crates/{name} may not know crates/{known}");
        }
        seen.insert(name);
    }
    assert_eq!(seen.len(), EDGES.len(), "the table names a crate that is gone");
}

#[test]
fn pure_crates_touch_no_machine() {
    for name in PURE {
        let mut files = Vec::new();
        sources(&root().join("crates").join(name).join("src"), &mut files);
        assert!(!files.is_empty(), "crates/{name} has no sources");
        for file in files {
            let text = read(&file);
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
                for word in IMPURE {
                    assert!(!line.contains(word), "{}: a pure crate names {word}: {line}", file.display());
                }
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    for file in files {
        let text = read(&file);
        assert!(text.starts_with("//!"), "{} does not open with what it does", file.display());
    }
}

#[test]
fn no_file_grows_past_its_seam() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    for file in files {
        let lines = read(&file).lines().count();
        assert!(lines <= 1000, "{} has {lines} lines: look for the seam", file.display());
    }
}

#[test]
fn no_path_of_a_machine_is_written_down() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    for folder in ["docs", "scripts", ".ci"] {
        for entry in fs::read_dir(root().join(folder)).into_iter().flatten().flatten() {
            files.push(entry.path());
        }
    }
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        files.push(root().join(name));
    }
    let marks = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    for file in files.iter().filter(|file| file.is_file()) {
        let Ok(text) = fs::read_to_string(file) else { continue };
        for mark in marks {
            assert!(!text.contains(mark), "{} names a path of a machine ({mark})", file.display());
        }
    }
}
