//! Whole active diagnoses in virtual time: the table of `docs/diagnosis-validation.md`, section "Active, in virtual time".
//!
//! usage: cargo run --release -p plimsoll-analysis --example active [-- WORDS]   those whose name holds WORDS, with every line

#![expect(clippy::print_stdout, reason = "a table for people")]

#[path = "../tests/all/active_systems.rs"]
mod active_systems;

use active_systems::{spec, systems};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let only = words.join(" ");
    println!("| system | verdict | sure | requests | time | right |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let (mut right, mut all) = (0, 0);
    for system in systems().iter().filter(|system| system.name.contains(&only)) {
        let played = system.play(&spec());
        let verdict = &played.diagnosis.verdicts[0];
        let is_right = system.expect.contains(&verdict.cause);
        (right, all) = (right + usize::from(is_right), all + 1);
        println!(
            "| {} | {} | {:.2} | {} | {:.0} s | {} |",
            system.name,
            verdict.cause.id(),
            verdict.confidence,
            played.requests,
            played.seconds,
            if is_right { "yes" } else { "NO" }
        );
        if !only.is_empty() || !is_right {
            played.log.iter().for_each(|line| println!("    {line}"));
            verdict
                .evidence
                .iter()
                .for_each(|evidence| println!("    {}: {}", evidence.figure, evidence.says));
            println!("    {:?}", verdict.runner_up.as_ref().map(|other| (other.cause, other.confidence)));
            played
                .diagnosis
                .questions
                .iter()
                .for_each(|q| println!("    {} {:?}: {}", q.asks, q.answer, q.says));
        }
    }
    println!("\n{right} of {all}");
}
