//! Rates at which an incident is hidden, a start-up transient cut, and a steady level cut: the table behind the rule of the window.
//!
//! `cargo run --release -p plimsoll-measure --example incidents -- [INCIDENTS]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/incidents.rs"]
#[allow(dead_code, unused_imports, reason = "the tests beside the table")]
mod incidents;

use incidents::{Incident, QUEUES, REQUESTS, budget, is_material, is_told, read, records as play};
use plimsoll_math::rng::Stream;

fn main() {
    let n: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(200);
    println!("{REQUESTS} requests a level");
    println!(
        "{:<48} {:>9} {:>7} {:>5} {:>12} {:>10} {:>10}",
        "queue", "material", "hidden", "cut", "transients", "steady", "steady"
    );
    println!("{:<48} {:>9} {:>7} {:>5} {:>12} {:>10} {:>10}", "", "", "", "", "cut", "cut", "not steady");
    let (mut hidden_all, mut material_all) = (0, 0);
    for (which, queue) in QUEUES.into_iter().enumerate() {
        let budget = budget(queue);
        let (mut material, mut hidden, mut cut) = (0, 0, 0);
        let (mut transients, mut steady_cut, mut unsteady) = (0, 0, 0);
        let each = n.div_ceil(QUEUES.len() as u64);
        for i in 0..each {
            let seed = 10_000 * which as u64 + i;
            let chance = &mut Stream::new(seed, "which", 1);
            let incident = Incident::any(chance);
            let rows = play(queue, incident, seed);
            let found = read(&rows, &budget);
            cut += u64::from(found.window.warm_up_requests > 0);
            if is_material(&rows, &budget) {
                material += 1;
                if !is_told(&found) {
                    hidden += 1;
                    println!("  hidden: {incident:?} {:?}", found.budget.map(|b| b.verdict));
                }
            }
            let cold = Incident::Cold {
                requests: 40 + chance.below(160),
                times: 3.0 + 10.0 * chance.uniform(),
                fades: i % 2 == 0,
            };
            transients +=
                u64::from(read(&play(queue, cold, seed + 5_000), &budget).window.warm_up_requests > 0);
            let calm = read(&play(queue, Incident::Nothing, seed + 7_000), &budget);
            steady_cut += u64::from(calm.window.warm_up_requests > 0);
            unsteady += u64::from(calm.slow_stretch.is_some());
        }
        (hidden_all, material_all) = (hidden_all + hidden, material_all + material);
        let of = |k: u64| format!("{k}/{each}");
        let (transients, steady_cut, unsteady) = (of(transients), of(steady_cut), of(unsteady));
        println!(
            "{:<48} {material:>9} {hidden:>7} {cut:>5} {transients:>12} {steady_cut:>10} {unsteady:>10}",
            format!("{queue:?}")
        );
    }
    println!("{hidden_all} of {material_all} material incidents hidden");
}
