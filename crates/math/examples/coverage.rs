//! The coverage of the 95 % interval of a percentile, queue by queue: the table behind `quantile.rs`.
//! The number of replications is an argument; a thousand take a minute.
//!
//! `held` counts a refused percentile and an infinite bound as misses; `of shown` leaves the refused out.
//! `unrefused` includes the refused, with an infinite bound as a miss.
#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use plimsoll_lab::queues::{Batching, Queue, Servers};
use plimsoll_math::proportion::Interval;
use plimsoll_math::quantile::{BATCHES, order_statistic, percentile, sort, undecided};
use plimsoll_math::queueing::Mmc;
use plimsoll_math::rng::Stream;

const PERCENTILES: [f64; 3] = [0.5, 0.95, 0.99];

fn main() {
    let replications = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1000);
    println!(
        "{replications} replications; p50, p95, p99 each: held / of shown / unrefused / refused / width"
    );
    for load in [0.7, 0.85] {
        for servers in [1, 4, 16] {
            let law = Mmc { servers, load, service_mean: 1.0 };
            let truth = PERCENTILES.map(|p| law.sojourn_quantile(p));
            table(&format!("M/M/{servers}"), load, truth, replications, || {
                Box::new(Servers::new(servers as usize, load, false))
            });
        }
        let truth = long_run(&mut Batching::new(8, 0.125, load));
        table("batches of 8", load, truth, replications, || Box::new(Batching::new(8, 0.125, load)));
    }
}

/// The percentiles of 40 million customers, where no formula is at hand.
fn long_run(queue: &mut dyn Queue) -> [f64; 3] {
    let mut stream = Stream::new(5, "long run", 0);
    queue.run(&mut stream, 100_000);
    let mut sojourns = queue.run(&mut stream, 40_000_000);
    PERCENTILES.map(|p| order_statistic(&mut sojourns, p).unwrap_or(f64::NAN))
}

#[derive(Default)]
struct Tally {
    held: f64,
    unrefused: f64,
    refused: f64,
    width: f64,
}

fn table(name: &str, load: f64, truth: [f64; 3], replications: u64, make: impl Fn() -> Box<dyn Queue>) {
    for n in [2_000, 10_000, 50_000] {
        let mut tallies: [Tally; 3] = Default::default();
        for i in 0..replications {
            let mut stream = Stream::new(2, name, i);
            let mut queue = make();
            queue.run(&mut stream, 5_000);
            let sojourns = queue.run(&mut stream, n);
            for ((tally, p), truth) in tallies.iter_mut().zip(PERCENTILES).zip(truth) {
                count(tally, &sojourns, p, truth);
            }
        }
        print!("{name:12} load {load:4} n {n:6}");
        for tally in &tallies {
            let all = replications as f64;
            let shown = all - tally.refused;
            let of_shown = if shown > 0.0 { tally.held / shown } else { f64::NAN };
            let width = if shown > 0.0 { tally.width / shown } else { f64::NAN };
            print!(
                "  | {:.3} {of_shown:.3} {:.3} {:.3} {width:.3}",
                tally.held / all,
                tally.unrefused / all,
                tally.refused / all
            );
        }
        println!();
    }
}

fn count(tally: &mut Tally, sojourns: &[f64], p: f64, truth: f64) {
    let Some(found) = percentile(sojourns, p, 0.95, BATCHES) else { return };
    let holds = |interval: &Interval| interval.contains(truth) && interval.upper.is_finite();
    let mut sorted = sojourns.to_vec();
    sort(&mut sorted);
    tally.unrefused += f64::from(u8::from(holds(&undecided(&sorted, found.worth, p, 0.95))));
    match found.interval {
        Ok(interval) => {
            tally.held += f64::from(u8::from(holds(&interval)));
            tally.width += (interval.upper - interval.lower) / truth;
        }
        Err(_) => tally.refused += 1.0,
    }
}
