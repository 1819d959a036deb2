//! Checks whether the lever that is ranked first is the right one, on thirty random systems.
//! Each is ranked from a run; then every lever is applied on unseen arrivals, four times as many.
//!
//! `cargo run --release -p plimsoll-plan --example levers -- [SYSTEMS] [FIRST SEED] [REQUESTS] [REPLICATIONS]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/lever_systems.rs"]
#[expect(dead_code, reason = "goals of one's own are for the tests")]
mod lever_systems;

use plimsoll_plan::levers::candidate;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: f64| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (systems, first) = (number(0, 30.0) as u64, number(1, 1000.0) as u64);
    let (requests, replications) = (number(2, 2000.0), number(3, 8.0) as u32);
    let (mut ranked, mut held, mut better, mut better_plain, mut all_held, mut all) = (0, 0, 0, 0, 0, 0);
    for seed in first..first + systems {
        let system = lever_systems::system(seed, requests);
        let finding = system.ranking(replications);
        println!("{seed} {}", system.name);
        if let Some(fit) = finding.fit.as_ref().filter(|fit| !fit.fits) {
            println!("    no simulation: {}", fit.why);
        }
        let Some(top) = finding.ranked.first().filter(|top| top.score > 0.0) else {
            println!("    nothing is predicted to help; ruled out: {}", finding.ruled_out.len());
            continue;
        };
        ranked += 1;
        let asked = system.unseen(seed, 4.0);
        let base =
            system.truth(&finding.goal, &system.world, &asked, seed, &candidate::TrafficChange::AsItIs);
        let mut gains: Vec<f64> = Vec::new();
        let mut scores: Vec<f64> = Vec::new();
        let (mut gain, mut score) = (f64::NAN, f64::NAN);
        for candidate in candidate::candidates(&system.world) {
            let saved = system.saved(&finding.goal, &candidate, &asked, base, seed);
            let each = lever_systems::per_day(&candidate, saved);
            let said =
                finding.ranked.iter().find(|r| r.lever == candidate.lever && r.setting == candidate.setting);
            if let Some(said) = said {
                all += 1;
                all_held += u32::from(said.latency.lower <= saved && saved <= said.latency.upper);
                if (said.lever.as_str(), said.setting.as_str()) == (top.lever.as_str(), top.setting.as_str())
                {
                    (gain, score) = (saved, each);
                }
            }
            gains.push(saved);
            scores.push(each);
        }
        gains.sort_by(f64::total_cmp);
        scores.sort_by(f64::total_cmp);
        let (median, median_score) = (gains[gains.len() / 2], scores[scores.len() / 2]);
        let inside = top.latency.lower <= gain && gain <= top.latency.upper;
        held += u32::from(inside);
        better += u32::from(score > median_score);
        better_plain += u32::from(gain > median);
        println!(
            "    p{:.0} {} ({}): predicted {:.1} % [{:.1}, {:.1}], realised {:.1} % {}; median lever {:.1} %; best chance {:.2}",
            100.0 * finding.goal.percentile,
            top.name,
            top.setting,
            100.0 * top.latency.value,
            100.0 * top.latency.lower,
            100.0 * top.latency.upper,
            100.0 * gain,
            if inside { "inside" } else { "OUTSIDE" },
            100.0 * median,
            top.probability_of_best,
        );
    }
    println!("systems with a lever that helps: {ranked} of {systems}");
    println!("realised inside the interval: {held} of {ranked} (bar: 80 %)");
    println!(
        "beats the median lever per day of effort: {better} of {ranked} (bar: 90 %); in plain gain: {better_plain}"
    );
    println!("all ranked levers: {all_held} of {all} inside their intervals");
}
