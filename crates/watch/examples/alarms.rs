//! The false-alarm rate of a watch with at most the allowed share over its ceilings.
//! The traffic is weeks of the day of a real service, in virtual time.
//!
//! `cargo run --release -p plimsoll-watch --example alarms -- [WEEKS]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/weeks.rs"]
mod weeks;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_math::special::gamma_inv;
use weeks::{Alarms, Weeks, alarms};

fn main() {
    let weeks: i64 = std::env::args().nth(1).map_or(200, |text| text.parse().expect("a number of weeks"));
    let cases = cases();
    let rows = Mutex::new(vec![String::new(); cases.len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((what, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let place = cases.iter().position(|(of, _)| of == what).expect("it is one of them");
            let row = row(what, *case, &alarms(*case, weeks, place as u64), weeks);
            rows.lock().expect("no panic before")[place] = row;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    println!(
        "{weeks} weeks each; bar: at most one in 30 days and file at the allowance, none in 50 weeks at half of it\n"
    );
    println!(
        "| over, of what may be | alike | rows | requests/s | ceilings broken | in 30 days | burn rates | in 30 days |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    rows.into_inner().expect("no panic before").iter().for_each(|row| println!("{row}"));
}

fn cases() -> Vec<(String, Weeks)> {
    let case = |of_allowed: f64, alike: u64, rows: usize, per_s: f64, in_bursts: bool| {
        let more = if in_bursts { ", a little more often in busier blocks" } else { "" };
        let what = format!("{:.0} %{more} | {alike} | {rows} | {per_s}", 100.0 * of_allowed);
        (what, Weeks { per_s, of_allowed, alike, rows, in_bursts })
    };
    let mut cases = Vec::new();
    for of_allowed in [0.5, 0.9, 1.0] {
        for alike in [1, 10, 30] {
            cases.extend([1, 3].map(|rows| case(of_allowed, alike, rows, 16.0, false)));
        }
    }
    cases.extend([1, 10].map(|alike| case(1.0, alike, 1, 1.0, false)));
    cases.extend([1, 10].map(|alike| case(1.0, alike, 1, 16.0, true)));
    cases
}

fn row(what: &str, case: Weeks, found: &Alarms, weeks: i64) -> String {
    let months = weeks as f64 * 7.0 / 30.0;
    let cell = |at: &[i64]| {
        let k = at.len() as f64;
        // Garwood (1936): exact for a count of rare events.
        let [least, most] = [
            if at.is_empty() { 0.0 } else { gamma_inv(k, 0.025) / months },
            gamma_inv(k + 1.0, 0.975) / months,
        ];
        let fifties = (0..(weeks + 49) / 50).map(|n| at.iter().filter(|week| *week / 50 == n).count());
        let is_met = match case.of_allowed <= 0.5 {
            true => fifties.into_iter().all(|count| count == 0),
            false => least <= 1.0,
        };
        let met = if is_met { "" } else { " **missed**" };
        format!("{k} | {:.2} [{least:.2}, {most:.2}]{met}", k / months)
    };
    format!("| {what} | {} | {} |", cell(&found.broken), cell(&found.burning))
}
