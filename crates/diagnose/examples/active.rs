//! Whole active diagnoses in virtual time: the table of `docs/diagnosis-validation.md`, section "Active, in virtual time".
//!
//! usage: cargo run --release -p plimsoll-diagnose --example active [-- WORDS]   those whose name holds WORDS, with every line

#![expect(clippy::print_stdout, reason = "a table for people")]

#[path = "../tests/all/active_systems.rs"]
mod active_systems;

use active_systems::{Played, System, spec, systems};
use plimsoll_diagnose::Cause;
use plimsoll_diagnose::active::before::Against;
use plimsoll_model::Fingerprint;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let only = words.join(" ");
    println!("| system | verdict | sure | requests | time | right |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let (mut right, mut all) = (0, 0);
    let mut count = |is_right: bool| (right, all) = (right + usize::from(is_right), all + 1);
    for system in systems().iter().filter(|system| system.name.contains(&only)) {
        let played = system.play(&spec());
        count(row(&system.name, &system.expect, &played, !only.is_empty()));
    }
    for (before, now) in compared() {
        let name = format!("{}, against a sound run of before", now.name);
        if name.contains(&only) {
            let target = Fingerprint::default();
            let before = before.play(&spec()).before(&target);
            let played = now.play_against(&spec(), Some(Against { before: &before, target: &target }));
            count(row(&name, &now.expect, &played, !only.is_empty()));
        }
    }
    println!("\n{right} of {all}");
}

/// Prints a row; was the verdict right?
fn row(name: &str, expect: &[Cause], played: &Played, every_line: bool) -> bool {
    let verdict = &played.diagnosis.verdicts[0];
    let is_right = expect.contains(&verdict.cause);
    println!(
        "| {name} | {} | {:.2} | {} | {:.0} s | {} |",
        verdict.cause.id(),
        verdict.confidence,
        played.requests,
        played.seconds,
        if is_right { "yes" } else { "NO" }
    );
    if every_line || !is_right {
        played.log.iter().for_each(|line| println!("    {line}"));
        verdict.evidence.iter().for_each(|evidence| println!("    {}: {}", evidence.figure, evidence.says));
        println!("    {:?}", verdict.runner_up.as_ref().map(|other| (other.cause, other.confidence)));
        played.diagnosis.questions.iter().for_each(|q| println!("    {} {:?}: {}", q.asks, q.answer, q.says));
    }
    is_right
}

/// A sound engine and what became of it.
fn compared() -> Vec<(System, System)> {
    let engines = [
        ("llama-3.1-8b@h100", (256, 64)),
        ("qwen2.5-7b@a100", (128, 32)),
        ("llama-3.1-70b@h100x4", (512, 128)),
    ];
    let became = [
        ("none", Cause::Nothing),
        ("slow:factor=1.2", Cause::SlowerModel),
        ("slow:factor=2", Cause::SlowerModel),
        ("dependency:delay=250ms", Cause::SlowDependency),
    ];
    let pair = |(engine, sizes): (&str, (u32, u32)), (fault, cause): (&str, Cause)| {
        let mut now = System::new(engine, sizes, fault, &[cause]);
        now.scenario.seed = 11;
        (System::new(engine, sizes, "none", &[Cause::Nothing]), now)
    };
    engines.iter().flat_map(|engine| became.iter().map(move |became| pair(*engine, *became))).collect()
}
