//! Failure reports of other tools' users, replayed: the cases of `tests/reports`, each against a small separate server.
//!
//! The cases are Python scripts because their servers must not share code with the product.

use std::path::Path;
use std::process::Command;

use super::kit::PLIMSOLL;

/// Runs part `part` of a suite's cases; what a case saw is in the failure's message.
fn right(suite: &str, part: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports").join(suite);
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(python);
    command
        .arg("-B")
        .arg(folder.join("cases.py"))
        .args(["--part", part, "--jobs", "3"])
        .env("PLIMSOLL", PLIMSOLL);
    let done = command.output().expect("Python starts");
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{printed}{}", String::from_utf8_lossy(&done.stderr));
    assert!(printed.contains(" right\n"), "no case ran: {printed}");
}

macro_rules! parts {
    ($($name:ident: $suite:literal $part:literal,)*) => {$(
        #[test]
        fn $name() {
            right($suite, $part);
        }
    )*};
}

parts! {
    gateway_1: "gateway" "1/4",
    gateway_2: "gateway" "2/4",
    gateway_3: "gateway" "3/4",
    gateway_4: "gateway" "4/4",
    load_1: "load" "1/3",
    load_2: "load" "2/3",
    load_3: "load" "3/3",
}
