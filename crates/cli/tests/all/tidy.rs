//! The project's own rules: allowed dependencies between crates, a header in every file, no machine name and no secret.
//!
//! The table below is the one in `ARCHITECTURE.md`; a new edge needs its own commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Allowed dependencies of each crate.
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
    ("watch", &["math", "model", "measure", "judge", "diagnose"]),
    ("server", &["model", "wire", "sim", "client"]),
    ("gateway", &["math", "model", "policy", "wire", "client", "measure"]),
    ("interop", &["math", "model", "wire", "measure"]),
    ("report", &["model", "interop", "measure", "judge", "diagnose", "profile", "plan", "watch"]),
    ("console", &["store", "client", "measure", "report"]),
    (
        "watchd",
        &[
            "model", "workload", "wire", "store", "client", "measure", "judge", "diagnose", "profile",
            "watch", "server", "report", "console",
        ],
    ),
    (
        "cli",
        &[
            "math", "model", "workload", "wire", "policy", "store", "sim", "client", "measure", "judge",
            "diagnose", "profile", "plan", "watch", "server", "gateway", "interop", "report", "console",
            "watchd",
        ],
    ),
    ("lab", &["math", "model"]),
];

/// Additional dependencies of tests, examples and benches, because a simulated system is the reference for a figure.
const TESTS_TOO: &[&str] = &["lab", "sim", "math", "model", "workload"];

/// Crates that take values, a seed and a `now`, and give values back.
const PURE: &[&str] = &[
    "math", "model", "workload", "wire", "policy", "sim", "measure", "judge", "diagnose", "profile", "plan",
    "watch", "interop",
];

/// Words that the sources of a pure crate must not contain: async, sockets, files, environment, clocks, printing.
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

/// Files of a crate that import each other in a circle are one file in several pieces: none of more than three. A module that names its
/// own parts is their map and counts for nothing.
#[test]
fn no_circle_of_imports_is_longer_than_three_files() {
    for entry in fs::read_dir(root().join("crates")).expect("crates/ exists").flatten() {
        let src = entry.path().join("src");
        let mut files = Vec::new();
        sources(&src, &mut files);
        let modules: Vec<Vec<String>> = files.iter().map(|file| module(&src, file)).collect();
        let place: BTreeMap<&[String], usize> =
            modules.iter().enumerate().map(|(i, module)| (module.as_slice(), i)).collect();
        let edges: Vec<BTreeSet<usize>> =
            (0..files.len()).map(|i| imports(&read(&files[i]), &modules[i], &place)).collect();
        let reach: Vec<BTreeSet<usize>> = (0..files.len()).map(|i| reached(&edges, i)).collect();
        for i in 0..files.len() {
            let circle: Vec<String> =
                reach[i].iter().filter(|j| reach[**j].contains(&i)).map(|j| modules[*j].join("::")).collect();
            assert!(circle.len() <= 3, "{}: {circle:?} import each other", src.display());
        }
    }
}

/// `src/a/b.rs` and `src/a/b/mod.rs` are `a::b`.
fn module(src: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(src).expect("a file of the crate").with_extension("");
    let mut names: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

/// The modules of the crate that a file's `use` lines and `crate::` paths name, its own parts left out.
fn imports(text: &str, own: &[String], place: &BTreeMap<&[String], usize>) -> BTreeSet<usize> {
    let code: String = text
        .split("#[cfg(test)]")
        .next()
        .unwrap_or_default()
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut paths = Vec::new();
    for statement in code.split("use ").skip(1) {
        leaves("", statement.split(';').next().unwrap_or_default(), &mut paths);
    }
    for path in code.split("crate::").skip(1) {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(path.len());
        paths.push(format!("crate::{}", &path[..end]));
    }
    paths
        .iter()
        .filter_map(|path| resolve(path, own, place))
        .filter(|at| place.get(own) != Some(at))
        .collect()
}

/// `a::{b, c::d}` → `a::b`, `a::c::d`.
fn leaves(before: &str, tree: &str, out: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        out.push(format!("{before}{tree}"));
        return;
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut from) = (0, 0);
    for (i, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[from..i].trim().is_empty() {
                    leaves(&format!("{before}{head}"), &inner[from..i], out);
                }
                from = i + 1;
            }
            _ => {}
        }
    }
}

/// Returns the longest module that a path names, unless it is a part of the module that contains the path.
fn resolve(path: &str, own: &[String], place: &BTreeMap<&[String], usize>) -> Option<usize> {
    let mut names = path.split("::").map(str::trim).peekable();
    let mut at = match names.next()? {
        "crate" => Vec::new(),
        "super" => {
            let mut at = own[..own.len().checked_sub(1)?].to_vec();
            while names.next_if_eq(&"super").is_some() {
                at.pop();
            }
            at
        }
        _ => return None,
    };
    for name in names {
        at.push(name.to_owned());
        if !place.contains_key(at.as_slice()) {
            at.pop();
            break;
        }
    }
    if at.starts_with(own) { None } else { place.get(at.as_slice()).copied() }
}

/// Everything that is reached from one file, itself included.
fn reached(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut seen, mut todo) = (BTreeSet::from([from]), vec![from]);
    while let Some(at) = todo.pop() {
        todo.extend(edges[at].iter().copied().filter(|next| seen.insert(*next)));
    }
    seen
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
