//! The plan's bar on fitted engines: the error of the predicted limit, from a run at 10 to 40 % of the limit.
//!
//! `cargo run --release -p plimsoll-plan --example fit -- [SEEDS] [REQUESTS]` (SEEDS: `16` or `3-9`) prints one row per
//! engine: pairs of the catalogue first, then random linear ones. The reference is the real engine's limit on unseen
//! requests.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/fit_systems.rs"]
mod fit_systems;

use fit_systems::system;
use plimsoll_plan::fit::{SettingOrigin, limit};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = arguments.first().map_or("16", String::as_str);
    let (first, last) = asked.split_once('-').unwrap_or(("0", asked));
    let (first, last): (u64, u64) = (first.parse().unwrap_or(0), last.parse().unwrap_or(16));
    let requests: f64 = arguments.get(1).and_then(|a| a.parse().ok()).unwrap_or(3_000.0);
    println!("{:<44} {:>5}  {:>22}", "engine, prompt/output", "load", "limit true found");
    let (mut within, mut all) = (0, 0);
    for seed in first..last {
        let system = system(seed);
        let truth = system.truth(20_000);
        let run = system.run(system.share * truth, requests);
        let fitted = match system.fitted(&run) {
            Ok(fitted) => fitted,
            Err(why) => {
                println!("{:<44} {:>4.0} %  {why}", system.name, 100.0 * system.share);
                continue;
            }
        };
        let mix: Vec<_> = system.mix(4_000.0);
        let found = limit(&fitted.world, &mix, 20_000, 1).expect("a limit");
        let off = found / truth - 1.0;
        within += usize::from(off.abs() <= 0.1);
        all += 1;
        println!(
            "{:<44} {:>4.0} %  {truth:>7.2} {found:>7.2} {:>+5.1} %",
            system.name,
            100.0 * system.share,
            100.0 * off
        );
        if arguments.len() > 2 {
            let fitted_ones = fitted.settings.iter().filter(|one| one.from == SettingOrigin::Fitted);
            for one in fitted_ones {
                println!("      {:<20} {:>12.4} ± {:.4}", one.name, one.value, one.error.unwrap_or(0.0));
            }
            for one in &fitted.residuals {
                println!("      {} {:?} {:+.1} %", one.metric, one.percentile, 100.0 * one.off());
            }
            println!("      {:?}", fitted.band.rows);
        }
    }
    println!("within 10 %: {within} of {all}");
}
