//! Accuracy of the diagnosis on random systems: every fault of the rules at five severities, clean runs, pairs, and
//! faults outside the rules. The output has the confusion matrix and derived figures.
//!
//! `cargo run --release -p plimsoll-diagnose --example diagnose -- [--half tuning|held-out|both] [--systems N]
//! [--from SEED] [--class NAME] [--severities 0,2,4] [--clean N] [--ablate-at 2 | --without-ablations] [--lack
//! NAME,…] [--depending] [--threads N] [--verbose] [--keep CASES] [--update FILE]`
//!
//! `--depending` puts a traced dependency in front of every engine, so that faults of other layers are evaluated next
//! to one.
//!
//! `--keep` appends every evaluated case to a file of JSON lines. Cases in the file are not evaluated again and count
//! with the rest, so that the work can be done in parts. With `--systems 0 --keep CASES` the file is reported. Start a new
//! file after a change of a rule.
//!
//! `--ablate-at` sets the severities (for clean runs their numbers) at which the diagnosis is repeated with reduced
//! evidence, and `--lack` the kinds of reduction (default: all of `Lack`).
//!
//! Likelihoods are learnt only from the tuning half (systems of even seeds): `--keep CASES` and the example `learn`.
//! `--quick` leaves out the three other runs of each side. `--update` writes the report between the markers of a
//! page. A case needs no file, because its evidence follows from its seed in a fraction of a second.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example that prints a table")]

#[path = "../tests/all/diagnosed/mod.rs"]
mod diagnosed;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use diagnosed::fault::{Class, SEVERITIES};
use diagnosed::kept::Kept;
use diagnosed::lack::Lack;
use diagnosed::{Judged, Plan, judge_system, score};

const CLEAN: usize = 10;

const BEGIN: &str = "<!-- begin: written by the example `diagnose` -->";
const END: &str = "<!-- end -->";

struct Asked {
    half: String,
    systems: u64,
    from: u64,
    threads: usize,
    update: Option<String>,
    keep: Option<String>,
    plan: Plan,
}

fn main() {
    let asked = asked();
    let seeds: Vec<u64> = (asked.from..asked.from + 2 * asked.systems)
        .filter(|seed| match asked.half.as_str() {
            "tuning" => seed % 2 == 0,
            "held-out" => seed % 2 == 1,
            _ => true,
        })
        .collect();
    let cases = judge_all(&seeds, &asked);
    if asked.plan.verbose {
        for case in cases.iter().filter(|case| !case.detail.is_empty()) {
            println!(
                "== system {} {:?} severity {}: said {}",
                case.system,
                case.class,
                case.severity,
                case.said.cause.id()
            );
            println!("{}\n", case.detail);
        }
    }
    let mut text = String::new();
    for (half, parity) in [("held-out", 1), ("tuning", 0)] {
        let of: Vec<Judged> = cases.iter().filter(|case| case.system % 2 == parity).cloned().collect();
        if !of.is_empty() {
            text += &score::report(&of, &format!("The {half} half"));
        }
    }
    println!("{text}");
    if let Some(path) = &asked.update {
        update(path, &text);
    }
}

/// Returns all cases: systems are assigned to free threads, stored cases are added, in order of the systems' seeds.
fn judge_all(seeds: &[u64], asked: &Asked) -> Vec<Judged> {
    let kept = match &asked.keep {
        Some(path) => Kept::open(path).unwrap_or_else(|e| stop(&format!("{path}: {e}"))),
        None => Kept::default(),
    };
    let (next, kept) = (AtomicUsize::new(0), Mutex::new(kept));
    let kept_now = || kept.lock().expect("no thread panicked");
    std::thread::scope(|scope| {
        for _ in 0..asked.threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&seed) = seeds.get(place) else { return };
                    let mut judged = 0;
                    let wanted = |class, severity| {
                        let lacking = asked.plan.lacking_at.contains(&severity);
                        !kept_now().holds((seed, class, severity), lacking)
                    };
                    judge_system(seed, &asked.plan, wanted, |case| {
                        judged += 1;
                        kept_now().add(case).unwrap_or_else(|e| stop(&format!("a case can't be kept: {e}")));
                    });
                    eprintln!("system {seed}: {judged} cases ({} of {})", place + 1, seeds.len());
                }
            });
        }
    });
    kept.into_inner().expect("no thread panicked").into_cases()
}

fn asked() -> Asked {
    let mut asked = Asked {
        half: "both".to_owned(),
        systems: 20,
        from: 0,
        threads: 2,
        update: None,
        keep: None,
        plan: Plan {
            classes: Class::ALL.to_vec(),
            severities: (0..SEVERITIES).collect(),
            clean: CLEAN,
            lacking_at: vec![2],
            lacks: Lack::ALL.to_vec(),
            depending: false,
            elsewhere: true,
            verbose: false,
        },
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| stop(&format!("{word} needs a value")));
        let number = |text: String| text.parse().unwrap_or_else(|_| stop(&format!("{text} is not a number")));
        match word.as_str() {
            "--half" => asked.half = value(),
            "--systems" => asked.systems = number(value()),
            "--from" => asked.from = number(value()),
            "--threads" => asked.threads = number(value()) as usize,
            "--clean" => asked.plan.clean = number(value()) as usize,
            "--update" => asked.update = Some(value()),
            "--keep" => asked.keep = Some(value()),
            "--quick" => asked.plan.elsewhere = false,
            "--depending" => asked.plan.depending = true,
            "--verbose" => asked.plan.verbose = true,
            "--without-ablations" => asked.plan.lacking_at = Vec::new(),
            "--severities" => asked.plan.severities = numbers(&value(), number),
            "--ablate-at" => asked.plan.lacking_at = numbers(&value(), number),
            "--lack" => asked.plan.lacks = lacks(&value()),
            "--class" => asked.plan.classes = named(&value()),
            _ => stop(&format!("unknown argument {word}; see the head of examples/diagnose.rs")),
        }
    }
    asked
}

/// Parses numbers separated by commas.
fn numbers(text: &str, number: impl Fn(String) -> u64) -> Vec<usize> {
    text.split(',').map(|n| number(n.to_owned()) as usize).collect()
}

/// Returns the classes with one of these names, or with such a row in the rule table.
fn named(names: &str) -> Vec<Class> {
    let is = |class: &Class, name: &str| {
        let of_row = class.causes().iter().any(|cause| cause.id().eq_ignore_ascii_case(name));
        format!("{class:?}").eq_ignore_ascii_case(name) || class.name().eq_ignore_ascii_case(name) || of_row
    };
    let found: Vec<Class> =
        Class::ALL.into_iter().filter(|class| names.split(',').any(|name| is(class, name))).collect();
    if found.is_empty() {
        let all: Vec<String> = Class::ALL.iter().map(|class| format!("{class:?}")).collect();
        stop(&format!("no class {names}; there are: {}", all.join(", ")));
    }
    found
}

/// Returns the kinds of reduction with these names.
fn lacks(names: &str) -> Vec<Lack> {
    let known =
        |name: &str| Lack::ALL.into_iter().find(|lack| format!("{lack:?}").eq_ignore_ascii_case(name));
    let unknown = |name: &str| -> Lack { stop(&format!("no lack {name}; there are: {:?}", Lack::ALL)) };
    names.split(',').map(|name| known(name).unwrap_or_else(|| unknown(name))).collect()
}

fn update(path: &str, text: &str) {
    let before = std::fs::read_to_string(path).unwrap_or_else(|e| stop(&format!("{path}: {e}")));
    let (Some(begin), Some(end)) = (before.find(BEGIN), before.find(END)) else {
        stop(&format!("{path}: the markers {BEGIN} and {END} are not there"))
    };
    let after = format!("{}{BEGIN}\n\n{}\n{}", &before[..begin], text.trim_end(), &before[end..]);
    std::fs::write(path, after).unwrap_or_else(|e| stop(&format!("{path}: {e}")));
}

fn stop(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(2)
}
