//! False alarms and delays of a watch, compared with the usual Prometheus rules on equal samples; needs Debian's
//! `prometheus`.
//!
//! `cargo run --release -p plimsoll-watch --example rules -- [WEEKS [FAULTS [SEED]]]`
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example that prints a table")]
#![allow(dead_code, reason = "the tests take more of it")]

#[path = "../tests/all/usual.rs"]
mod usual;

use std::collections::BTreeMap;

use plimsoll_math::rng::Stream;
use plimsoll_math::special::gamma_inv;
use usual::{Fleet, Prometheus, Rule, Stretch, System, usual};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// Length of the longest window: earlier alarms are not counted, and a fault does not come before.
const BEFORE: u64 = 3 * DAY;
/// Requests per second, and number of requests that arrive and are slow together.
const TRAFFIC: [(f64, u64); 5] = [(0.1, 1), (1.0, 1), (10.0, 1), (50.0, 1), (10.0, 10)];
/// Share over the ceiling without a fault: half of the allowed share, and all of it.
const QUIET: [f64; 2] = [0.005, 0.01];
/// Share over the ceiling during a fault, its duration, and the observed time.
const FAULTS: [(f64, u64, u64); 4] =
    [(0.05, DAY, 10 * HOUR), (0.2, DAY, 3 * HOUR), (1.0, DAY, HOUR), (1.0, 20, HOUR)];
/// Time within which a repeated alarm counts as the same one, as Alertmanager's `group_interval`.
const SAME: u64 = 300;

/// Alarms by rule (watch, exported, usual), then by system.
type Called = Vec<BTreeMap<String, Vec<Stretch>>>;
/// Results of one traffic by rule: false alarms by share, and delays by fault.
type Found = (Vec<[u64; 2]>, Vec<[Late; 4]>);

/// The delay of a rule, for faults at which it did not already fire.
#[derive(Copy, Clone, Debug)]
struct Late {
    /// Median in s; for bursts the share that is reported. NaN: no fault is left.
    of: f64,
    left_out: usize,
}

fn main() {
    let number = |place: usize, usually: u64| -> u64 {
        std::env::args().nth(place).map_or(usually, |text| text.parse().expect("a number"))
    };
    let (weeks, faults, seed) = (number(1, 1), number(2, 5), number(3, 1));
    if let Err(why) = Prometheus::new() {
        eprintln!("{why}");
        std::process::exit(3);
    }
    let found: Vec<Found> = std::thread::scope(|scope| {
        let each = TRAFFIC.map(|traffic| {
            scope.spawn(move || {
                let found = (false_alarms(traffic, weeks, seed), delays(traffic, faults, seed));
                eprintln!("{}: {found:?}", words(traffic));
                found
            })
        });
        each.into_iter().map(|one| one.join().expect("no system panics")).collect()
    });
    let names: Vec<&str> =
        ["the watch", "its exported rules"].into_iter().chain(usual().map(|(name, _)| name)).collect();
    println!("| requests | | {} |", names.join(" | "));
    println!("| --- | --- |{}", " --- |".repeat(names.len()));
    for (traffic, (quiet, late)) in TRAFFIC.iter().zip(&found) {
        let rate = |alarms: u64| count(alarms as f64 / weeks as f64);
        let cells: Vec<String> =
            quiet.iter().map(|[half, all]| format!("{} / {}", rate(*half), rate(*all))).collect();
        println!(
            "| {} | false alarms a week, half / all of the allowance | {} |",
            words(*traffic),
            cells.join(" | ")
        );
        let cells: Vec<String> = late
            .iter()
            .map(|all| all[..3].iter().map(Late::minutes).collect::<Vec<_>>().join(" / "))
            .collect();
        println!("| | minutes until 5 / 20 / 100 % over is called | {} |", cells.join(" | "));
        let cells: Vec<String> = late.iter().map(|all| all[3].share()).collect();
        println!("| | bursts of 20 s that are called | {} |", cells.join(" | "));
    }
    println!(
        "\nThe watch beside each of the usual rules (bars: at most 1/20 of its false alarms, by the exact 95 % bounds of both counts; 1.5 times its delay)"
    );
    for (traffic, (quiet, late)) in TRAFFIC.iter().zip(&found) {
        for (place, name) in names.iter().enumerate().skip(2) {
            println!(
                "{}, {name}: {}",
                words(*traffic),
                beside(quiet[0], quiet[place], &late[0], &late[place])
            );
        }
    }
}

fn words((per_s, alike): (f64, u64)) -> String {
    match alike {
        1 => format!("{per_s}/s"),
        _ => format!("{per_s}/s, {alike} alike"),
    }
}

fn count(of: f64) -> String {
    if of == 0.0 || of >= 10.0 { format!("{of:.0}") } else { format!("{of:.1}") }
}

impl Late {
    fn minutes(&self) -> String {
        self.shown(match self.of / 60.0 {
            late if late.is_nan() => "–".to_owned(),
            late if late.is_infinite() => "never".to_owned(),
            late if late >= 10.0 => format!("{late:.0}"),
            late => format!("{late:.1}"),
        })
    }

    fn share(&self) -> String {
        self.shown(if self.of.is_nan() { "–".to_owned() } else { format!("{:.0} %", 100.0 * self.of) })
    }

    fn shown(&self, what: String) -> String {
        match self.left_out {
            0 => what,
            left_out => format!("{what} ({left_out} left out)"),
        }
    }

    /// Returns the delay next to another rule's, and whether it meets the requirement.
    fn beside(&self, theirs: &Late) -> String {
        match self.of / theirs.of {
            _ if self.of.is_nan() || theirs.of.is_nan() => "no fault left".to_owned(),
            ratio if ratio.is_nan() => "neither".to_owned(),
            ratio => format!("{ratio:.2} ({})", if ratio <= 1.5 { "met" } else { "not met" }),
        }
    }
}

/// Returns the ratios, and whether each meets the requirement.
fn beside(ours: [u64; 2], theirs: [u64; 2], late: &[Late; 4], theirs_late: &[Late; 4]) -> String {
    let [half, all] = [0, 1].map(|place| fewer(ours[place], theirs[place]));
    let later: Vec<String> = late.iter().zip(theirs_late).take(3).map(|(own, its)| own.beside(its)).collect();
    format!(
        "of its false alarms at half {half}, at all of the allowance {all}; of its delay at 5, 20, 100 % {}",
        later.join(", ")
    )
}

fn fewer(ours: u64, theirs: u64) -> String {
    let ([least, most], [its_least, its_most]) = (bounds(ours), bounds(theirs));
    let verdict = if most <= its_least / 20.0 {
        "met"
    } else if least > its_most / 20.0 {
        "not met"
    } else {
        "not settled"
    };
    match theirs {
        0 => format!("{ours} beside 0 ({verdict})"),
        _ => format!("{:.4} ({verdict})", ours as f64 / theirs as f64),
    }
}

/// Returns the 95 % interval by Garwood (1936): exact for a count of rare events.
fn bounds(count: u64) -> [f64; 2] {
    let k = count as f64;
    [if count == 0 { 0.0 } else { gamma_inv(k, 0.025) }, gamma_inv(k + 1.0, 0.975)]
}

/// Plays systems, and returns the alarms of all rules.
fn called(systems: Vec<System>, from_s: u64, until_s: u64) -> Called {
    let mut prometheus = Prometheus::new().expect("it is installed");
    let mut fleets: Vec<Fleet> = systems.into_iter().map(Fleet::new).collect();
    prometheus.play(&mut fleets, until_s);
    let ours = fleets.iter().map(|fleet| (fleet.system.name.clone(), fleet.alarms())).collect();
    for fleet in fleets.iter().filter(|fleet| fleet.system.fault.is_none()) {
        fleet.others().iter().for_each(|other| eprintln!("{}/s, besides: {other:?}", fleet.system.per_s));
    }
    let exported: Vec<(String, Vec<Rule>)> =
        fleets.iter().map(|fleet| (fleet.system.name.clone(), fleet.exported())).collect();
    let stretch = (from_s, until_s);
    let usual: Called = usual().iter().map(|(_, rules)| prometheus.alarms(rules, stretch)).collect();
    prometheus.record(&exported, until_s);
    let mut rules: BTreeMap<String, Vec<Stretch>> = BTreeMap::new();
    for (_, own) in &exported {
        let calling: Vec<Rule> = own.iter().filter(|rule| rule.for_s.is_some()).cloned().collect();
        rules.extend(prometheus.alarms(&calling, stretch));
    }
    [ours, rules].into_iter().chain(usual).collect()
}

/// Returns the number of alarms of each rule, new or continuing, at half of the allowed share and at all of it.
fn false_alarms((per_s, alike): (f64, u64), weeks: u64, seed: u64) -> Vec<[u64; 2]> {
    let system = |(place, share): (usize, f64)| System {
        name: format!("quiet{place}"),
        per_s,
        alike,
        share,
        fault: None,
        whole_from_s: 0,
        seed: seed * 1000 + place as u64,
    };
    let systems = QUIET.into_iter().enumerate().map(system).collect();
    let called = called(systems, BEFORE - HOUR, BEFORE + weeks * 7 * DAY);
    let each = called.iter().map(|rule| {
        [0, 1].map(|place| {
            let alarms = rule.get(&format!("quiet{place}")).map_or(Vec::new(), |alarms| merged(alarms));
            alarms.iter().filter(|alarm| alarm.1 > BEFORE).count() as u64
        })
    });
    each.collect()
}

/// Returns the median seconds until each rule reports a fault; for bursts the share that it reports.
fn delays((per_s, alike): (f64, u64), faults: u64, seed: u64) -> Vec<[Late; 4]> {
    let each = FAULTS.iter().enumerate().map(|(place, &(over, lasts_s, looked_s))| {
        // Anywhere between two scrapes and two evaluations.
        let mut at = Stream::new(seed, "faults", place as u64);
        let begins: Vec<f64> = (0..faults).map(|_| BEFORE as f64 + 30.0 * at.uniform()).collect();
        let system = |(number, from): (usize, &f64)| System {
            name: format!("fault{number}"),
            per_s,
            alike,
            share: QUIET[0],
            fault: Some((*from, from + lasts_s as f64, over)),
            whole_from_s: BEFORE - HOUR,
            seed: seed * 1000 + 100 * (place as u64 + 1) + number as u64,
        };
        let systems = begins.iter().enumerate().map(system).collect();
        let called = called(systems, BEFORE - HOUR / 2, BEFORE + looked_s);
        let late = |rule: &BTreeMap<String, Vec<Stretch>>| {
            let mut late: Vec<f64> = begins
                .iter()
                .enumerate()
                .filter_map(|(number, from)| delay(rule.get(&format!("fault{number}")), *from))
                .collect();
            late.sort_by(f64::total_cmp);
            let of = match lasts_s < DAY {
                true => late.iter().filter(|late| late.is_finite()).count() as f64 / late.len() as f64,
                false => late.get(late.len() / 2).copied().unwrap_or(f64::NAN),
            };
            Late { of, left_out: begins.len() - late.len() }
        };
        called.iter().map(late).collect::<Vec<Late>>()
    });
    let each: Vec<Vec<Late>> = each.collect();
    (0..each[0].len()).map(|rule| [0, 1, 2, 3].map(|fault| each[fault][rule])).collect()
}

/// Returns the time from the fault to its alarm; `None` if a false alarm is already firing.
fn delay(alarms: Option<&Vec<Stretch>>, from: f64) -> Option<f64> {
    let late = alarms.into_iter().flatten().filter(|alarm| alarm.1 as f64 > from);
    let first = late.map(|alarm| alarm.0 as f64 - from).fold(f64::INFINITY, f64::min);
    (first > 0.0).then_some(first)
}

/// Merges alarms that overlap or follow each other soon.
fn merged(alarms: &[Stretch]) -> Vec<Stretch> {
    let mut alarms = alarms.to_vec();
    alarms.sort_unstable();
    let mut found: Vec<Stretch> = Vec::new();
    for (from, until) in alarms {
        match found.last_mut() {
            Some(last) if from < last.1.saturating_add(SAME) => last.1 = last.1.max(until),
            _ => found.push((from, until)),
        }
    }
    found
}
