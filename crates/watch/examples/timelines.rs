//! Faults on a simulated fleet under watch, in virtual time, each with its expected alerts and no others. The watch
//! reads only the replicas' metrics; the ground truth is from the requests' records.
//!
//! `cargo run --release -p plimsoll-watch --example timelines -- [SEEDS] [NAME…]`
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example that prints a table, and what it rests on beside it"
)]

use std::collections::BTreeMap;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::{FAILED, SCRAPE};
use plimsoll_model::{At, Attempt, How, Load, Sample, Span};
use plimsoll_sim::catalogue::profile;
use plimsoll_sim::{FaultSpec, ModeSpec, RouteSpec, RowSink, SimLevelPlan, World, WorldSpec, simulate_into};
use plimsoll_watch::replay::of_pages;
use plimsoll_watch::{AlertKind, AlertSpec};
use plimsoll_workload::{BlockNames, Scenario, SharedPrefix, Size};
use serde_json::json;

/// Healthy seconds before the fault, and seconds after it; longer for the healthy hour or a burn rate.
const GOOD: i64 = 600;
const AFTER: i64 = 600;
const EVERY: i64 = 5;
const RATE: f64 = 10.0;
const REPLICAS: usize = 3;
/// Ceilings, ms; both are edges of vLLM's buckets.
const TTFT_MS: i64 = 500;
const E2E_MS: i64 = 10_000;
/// Delay of faults after the healthy time in s, because a changed load begins after the last request of the one
/// before.
const LATER: i64 = 20;
/// Unix time of the start, s.
const WALL: f64 = 1.8e9;

/// The traffic of a period.
#[derive(Copy, Clone)]
struct Stretch {
    seconds: i64,
    /// Factors on the rate, and on prompt lengths.
    rate: f64,
    longer: f64,
    /// Share of requests with very long prompts.
    long: f64,
}

/// A change to the scrapes.
#[derive(Copy, Clone, PartialEq)]
enum Edit {
    Nothing,
    /// All endpoints fail for two minutes.
    Lost,
    /// The hosts' clocks are set forward by half a minute, and back again.
    Stepped,
}

struct Timeline {
    name: &'static str,
    good: i64,
    then: Vec<Stretch>,
    /// Faults, with `AT` for their start.
    faults: Vec<String>,
    edit: Edit,
    expected: Option<AlertKind>,
    /// Alerts that may also fire.
    may: &'static [AlertKind],
    /// Accepted causes; empty if no endpoint has the data.
    right: &'static [&'static str],
    /// Limit of the time from the fault to the alert in s; for ceilings it depends on the share over them.
    bar_s: Option<f64>,
}

const STEADY: Stretch = Stretch { seconds: AFTER, rate: 1.0, longer: 1.0, long: 0.0 };

use AlertKind::{BurnRate, CeilingBroken, ColdStarts, QueueOverTarget, SourceLost, Stalled, TtftDoubled};

/// Alerts that a slow fault may trigger.
const SLOW: &[AlertKind] = &[CeilingBroken, QueueOverTarget, TtftDoubled, BurnRate];
const SLOWER: &[&str] = &["slower_model", "saturation"];
const LOADED: &[&str] = &["higher_rate", "saturation"];
const LONGER: &[&str] = &["longer_prompts", "other_mix", "head_of_line", "saturation"];

/// Returns the delay of the method's own simulation for this share at ten requests/s, independent and ten together,
/// plus a block and a scrape. If the evidence is sufficient sooner, the minimum of a minute decides.
fn bar_s(over: f64, effect: f64) -> Option<f64> {
    let rows = [(0.2, 80.0, 80.0), (0.05, 130.0, 220.0), (0.02, 382.0, 1930.0)];
    let (_, alone, ten) = rows.into_iter().find(|row| over >= row.0)?;
    Some(alone + (ten - alone) * ((effect - 1.0) / 9.0).clamp(0.0, 1.0))
}

fn timelines() -> Vec<Timeline> {
    let base = |name| Timeline {
        name,
        good: GOOD,
        then: vec![STEADY],
        faults: Vec::new(),
        edit: Edit::Nothing,
        expected: None,
        may: &[],
        right: &[],
        bar_s: None,
    };
    let fault = |name, fault: &str, right| Timeline {
        faults: vec![fault.to_owned()],
        expected: Some(CeilingBroken),
        may: SLOW,
        right,
        ..base(name)
    };
    let load = |name, then: Stretch, right| Timeline {
        then: vec![then],
        expected: Some(CeilingBroken),
        may: SLOW,
        right,
        ..base(name)
    };
    let step = |name, long| load(name, Stretch { long, ..STEADY }, LONGER);
    let crashes = |from: i64, every: i64, down: i64, replica: usize, times: i64| {
        (0..times)
            .map(move |n| format!("crash:at=AT+{},for={down}s,notice=0s,replica={replica}", from + every * n))
    };
    let ramp = (0..10).map(|n| format!("slow:factor=1.6,at=AT+{},for={}s", 60 * n, 60 * (10 - n)));
    vec![
        base("healthy"),
        Timeline {
            then: [1.2, 0.6, 1.1].map(|rate| Stretch { rate, seconds: AFTER / 3, ..STEADY }).to_vec(),
            ..base("healthy, load up and down")
        },
        Timeline {
            faults: vec!["slow:factor=12,at=AT,for=9s".into()],
            may: &[QueueOverTarget],
            right: SLOWER,
            ..base("burst of 20 s")
        },
        Timeline { faults: ramp.collect(), ..fault("ramp", "", SLOWER) },
        Timeline {
            then: vec![Stretch { long: 0.0075, seconds: 3 * AFTER, ..STEADY }],
            ..step("step, 2 % over", 0.0)
        },
        step("step, 5 % over", 0.014),
        step("step, 20 % over", 0.06),
        fault("step, all over", "slow:factor=25,at=AT", SLOWER),
        Timeline {
            expected: Some(QueueOverTarget),
            ..fault("queue explosion", "slow:factor=2.5,at=AT", SLOWER)
        },
        fault("KV cache full", "kv_pressure:share=0.93,at=AT", &["kv_exhaustion"]),
        Timeline {
            good: 1800,
            faults: (0..REPLICAS).flat_map(|r| crashes(40 * r as i64, 120, 10, r, 4)).collect(),
            expected: Some(ColdStarts),
            may: &[SourceLost, CeilingBroken, QueueOverTarget, TtftDoubled, BurnRate],
            right: &["engine_crash", "cold_start"],
            ..base("cold-start wave")
        },
        fault("one bad replica", "slow:factor=12,at=AT,replica=1", &["bad_replica"]),
        Timeline {
            faults: crashes(0, 60, 40, 1, 8).collect(),
            expected: Some(SourceLost),
            right: &["engine_crash"],
            bar_s: Some(30.0),
            ..fault("crash loop", "", &[])
        },
        Timeline {
            expected: Some(Stalled),
            bar_s: Some(45.0),
            ..fault(
                "stall",
                "stall:at=AT,for=120s,replica=1",
                &["bad_replica", "host_contention", "periodic_stall"],
            )
        },
        Timeline {
            good: 4000,
            expected: Some(TtftDoubled),
            bar_s: Some(310.0),
            ..load("prompts ×3", Stretch { longer: 3.0, ..STEADY }, &["longer_prompts"])
        },
        Timeline {
            expected: Some(QueueOverTarget),
            ..load("traffic ×2", Stretch { rate: 2.0, ..STEADY }, LOADED)
        },
        Timeline { edit: Edit::Lost, expected: Some(SourceLost), bar_s: Some(30.0), ..base("source lost") },
        Timeline { edit: Edit::Stepped, ..base("clock step") },
    ]
}

/// The results of a simulated run.
#[derive(Default)]
struct Kept {
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
    /// Start of the period after the healthy time, s.
    begins: f64,
}

impl RowSink for Kept {
    fn attempt(&mut self, attempt: Attempt) {
        self.attempts.push(attempt);
    }

    fn sample(&mut self, sample: Sample) {
        self.samples.push(sample);
    }
}

fn at(seconds: i64) -> At {
    At(seconds * 1_000_000_000)
}

fn fleet(timeline: &Timeline, seed: u64) -> WorldSpec {
    let name = if seed.is_multiple_of(2) { "llama-3.1-8b@h100" } else { "llama-3.1-8b@h200" };
    let mut engine = profile::find(name).expect("in the catalogue").spec;
    let ModeSpec::Batching(batching) = &mut engine.mode else { unreachable!("it batches") };
    (batching.max_seqs, batching.kv_blocks) = (7 - (seed % 2) as u32, Some(6000));
    let mut world = WorldSpec::one(engine);
    world.fleet.replicas = REPLICAS as u32;
    if !seed.is_multiple_of(3) {
        world.fleet.route = RouteSpec::LeastRequests {};
    }
    let faults = timeline.faults.iter().filter(|fault| !fault.is_empty()).map(|fault| {
        let (kind, rest) = fault.split_once("at=AT").expect("it begins");
        let (after, rest) = rest.split_once(',').unwrap_or((rest, ""));
        let begins = timeline.good + LATER + after.trim_start_matches('+').parse().unwrap_or(0);
        let text = format!("{kind}at={begins}s,{rest}");
        FaultSpec::parse(text.trim_end_matches(',')).expect("a fault")
    });
    world.faults.extend(faults);
    world
}

fn simulate(timeline: &Timeline, seed: u64) -> Kept {
    let mut world = World::of(&fleet(timeline, seed), seed).expect("a sound world");
    let (mut rows, mut start) = (Kept::default(), At::ZERO);
    let good = Stretch { seconds: timeline.good, ..STEADY };
    for (id, stretch) in [good].iter().chain(&timeline.then).enumerate() {
        let mut scenario = Scenario { seed: 1000 * seed + id as u64, nonce: Some(3), ..Scenario::default() };
        scenario.sizes.prompt = Size::Lognormal(2000.0 * stretch.longer, 0.4);
        scenario.sizes.output = Size::Lognormal(120.0, 0.4);
        scenario.prompts.shared_prefix = Some(SharedPrefix { groups: 4, share: 0.4 });
        if stretch.long > 0.0 {
            scenario.classes = serde_json::from_value(json!([{"name": "chat", "weight": 1.0 - stretch.long},
                {"name": "documents", "weight": stretch.long, "sizes": {"prompt": 30000, "output": 120}, "prompts": {}}]))
            .expect("classes");
        }
        let plan = SimLevelPlan {
            gauges: true,
            scrape_every: Span::from_secs(EVERY),
            ..SimLevelPlan::new(
                &scenario,
                id as u32,
                Load::Open { rate_per_s: RATE * stretch.rate },
                start,
                Span::from_secs(stretch.seconds),
            )
        };
        let mut names = BlockNames::new(&scenario).expect("a sound scenario");
        let level = simulate_into(&mut world, &scenario, plan, Some(&mut names), &mut rows).expect("a plan");
        // A scraper continues between two loads, and never goes back in time.
        start = at(level.drained.0 / 1_000_000_000 + 1);
        if id == 0 {
            rows.begins = start.0 as f64 / 1e9;
        }
    }
    if !timeline.faults.is_empty() || timeline.edit != Edit::Nothing {
        rows.begins = (timeline.good + LATER) as f64;
    }
    rows
}

/// Returns the fleet's samples as metrics of single replicas, with vLLM's names and process start times. A replica
/// that is down does not respond.
fn pages(timeline: &Timeline, samples: Vec<Sample>) -> Vec<Sample> {
    let mut scrapes: BTreeMap<i64, Vec<Sample>> = BTreeMap::new();
    for sample in samples.into_iter().filter(|sample| &*sample.source == "server") {
        scrapes.entry(sample.at.0).or_default().push(sample);
    }
    let (mut up, mut began, mut out) = ([true; REPLICAS], [WALL - 3600.0; REPLICAS], Vec::new());
    for (instant, rows) in scrapes {
        let since_s = instant as f64 / 1e9 - (timeline.good + LATER) as f64;
        let step_s =
            if timeline.edit == Edit::Stepped && (0.0..180.0).contains(&since_s) { 30.0 } else { 0.0 };
        for replica in 0..REPLICAS {
            let label = format!("engine={replica}");
            let is_own = |row: &&Sample| row.labels.split(',').any(|one| one == label);
            let own: Vec<&Sample> = rows.iter().filter(is_own).collect();
            let is_up = own.first().map_or(up[replica], |_| own.iter().any(|row| !row.value.is_nan()));
            let was_up = std::mem::replace(&mut up[replica], is_up);
            if is_up && !was_up {
                began[replica] = WALL + instant as f64 / 1e9 - 4.0;
            }
            let page = |name: &str, labels: String, value: f64| Sample {
                at: At(instant),
                source: "server".into(),
                name: name.into(),
                labels: labels.into(),
                value,
            };
            let source = format!("source=replica-{replica}");
            if !is_up || (timeline.edit == Edit::Lost && (0.0..120.0).contains(&since_s)) {
                out.push(page(FAILED, format!("{source},why=refused"), 1.0));
                continue;
            }
            out.push(page(SCRAPE, source.clone(), 100.0));
            out.push(page("process_start_time_seconds", source.clone(), began[replica] + step_s));
            let seen = own.into_iter().filter(|row| !row.value.is_nan());
            out.extend(seen.map(|row| page(&row.name, format!("{},{source}", row.labels), row.value)));
        }
    }
    out
}

/// The result of one run.
#[derive(Default)]
struct Judged {
    /// Share of times to first token over their ceiling after the start, from the records, and the number that counts
    /// as one.
    over: f64,
    effect: f64,
    delay_s: Option<f64>,
    unexpected: Vec<String>,
    /// Right, inconclusive, wrong.
    causes: [Vec<String>; 3],
}

/// Returns the time at which each request was reported in s, and whether it was over this row's ceiling by its
/// record.
fn told(row: &str, attempts: &[Attempt]) -> Vec<(f64, bool)> {
    let one = |attempt: &Attempt| {
        let (stamp, most_ms) = match row {
            "ttft" => (attempt.first_token, TTFT_MS),
            "e2e" => (attempt.end, E2E_MS),
            _ => (attempt.end, i64::MAX / 1_000_000),
        };
        let is_done = attempt.outcome.how == How::Finished;
        let is_in_time =
            stamp.zip(attempt.sent).is_some_and(|(at, sent)| at - sent <= Span(most_ms * 1_000_000));
        Some((stamp.or(attempt.end)?.0 as f64 / 1e9, !(is_done && is_in_time)))
    };
    attempts.iter().filter_map(one).collect()
}

/// Returns the share of the requests reported in this interval.
fn share(told: &[(f64, bool)], (from, to): (f64, f64)) -> f64 {
    let of = || told.iter().filter(|one| (from..=to).contains(&one.0));
    of().filter(|one| one.1).count() as f64 / of().count().max(1) as f64
}

/// Returns the design effect of blocks of ten seconds after this instant.
fn effect(told: &[(f64, bool)], (begins, share): (f64, f64)) -> f64 {
    let mut blocks: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
    for (at, is_over) in told.iter().filter(|one| one.0 >= begins) {
        let block = blocks.entry((at / 10.0) as i64).or_default();
        *block = (block.0 + 1.0, block.1 + f64::from(u8::from(*is_over)));
    }
    let spread = |(n, k): &(f64, f64)| (k - n * share).powi(2) / (n * share * (1.0 - share)).max(1e-9);
    (blocks.values().map(spread).sum::<f64>() / blocks.len().max(1) as f64).max(1.0)
}

fn judged(timeline: &Timeline, seed: u64) -> Judged {
    let rows = simulate(timeline, seed);
    let budget = json!({"version": 1, "scope": "engine", "budgets": [
        {"id": "ttft", "metric": "ttft", "p": "99", "max": format!("{TTFT_MS}ms")},
        {"id": "e2e", "metric": "e2e", "p": "99", "max": format!("{E2E_MS}ms")},
        {"id": "errors", "metric": "error_rate", "max": "1%"}]});
    let file: BudgetFile = serde_json::from_value(budget).expect("a budget");
    let spec = AlertSpec { queue_per_replica: Some(4.0), ..AlertSpec::default() };
    let found = of_pages(&file, Span::from_secs(EVERY), &spec, &pages(timeline, rows.samples), None);
    let (begins, mut judged) = (rows.begins, Judged::default());
    let first = told("ttft", &rows.attempts);
    judged.over = share(&first, (begins, f64::INFINITY));
    judged.effect = effect(&first, (begins, judged.over));
    let mut diagnosed = Vec::new();
    for alert in found.expect("there are pages").alerts {
        let is_due = Some(alert.kind) == timeline.expected || timeline.may.contains(&alert.kind);
        let told = told(&alert.about, &rows.attempts);
        let is_sound =
            alert.kind != CeilingBroken || share(&told, (alert.since_s - 15.0, alert.fired_s)) > 0.01;
        if alert.fired_s < begins || !is_due || !is_sound {
            judged.unexpected.push(format!(
                "{} {} at {:+.0} s: {}",
                alert.kind.name(),
                alert.about,
                alert.fired_s - begins,
                alert.evidence
            ));
        }
        if Some(alert.kind) == timeline.expected {
            // A ceiling is broken from the first request over it.
            let is_row = alert.kind == CeilingBroken;
            let first = told
                .iter()
                .filter(|one| is_row && one.1 && one.0 >= begins)
                .map(|one| one.0)
                .reduce(f64::min);
            judged.delay_s.get_or_insert(alert.fired_s - first.unwrap_or(begins));
        }
        // Simultaneous alerts share one diagnosis.
        let Some(diagnosis) = alert.diagnosis.filter(|_| !diagnosed.contains(&alert.fired_s.to_bits()))
        else {
            continue;
        };
        diagnosed.push(alert.fired_s.to_bits());
        let place = match diagnosis.cause.as_str() {
            "unknown" => 1,
            cause if timeline.right.contains(&cause) => 0,
            _ => 2,
        };
        let said = format!("{} ({}, {:+.0} s)", diagnosis.cause, alert.kind.name(), alert.fired_s - begins);
        judged.causes[place].push(said);
    }
    judged
}

/// Evaluates all seeds, on every CPU.
fn judged_all(timeline: &Timeline, seeds: u64) -> Vec<Judged> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let some = |first: u64| {
        (first..seeds).step_by(threads).map(|seed| (seed, judged(timeline, seed))).collect::<Vec<_>>()
    };
    let mut all: Vec<(u64, Judged)> = std::thread::scope(|scope| {
        let each: Vec<_> = (0..threads as u64).map(|first| scope.spawn(move || some(first))).collect();
        each.into_iter().flat_map(|one| one.join().expect("no panic")).collect()
    });
    all.sort_unstable_by_key(|one| one.0);
    all.into_iter().map(|one| one.1).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments.next().map_or(10, |text| text.parse().expect("a number of seeds"));
    let names: Vec<String> = arguments.collect();
    let is_asked =
        |one: &Timeline| names.is_empty() || names.iter().any(|name| one.name.contains(name.as_str()));
    println!(
        "| timeline | first tokens over 500 ms | D | alert expected | fired | delay (bar), s | other alerts | cause right | inconclusive | wrong |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let (mut incidents, mut diagnoses, mut notes) = ([0; 3], [0; 3], Vec::new());
    for timeline in timelines().into_iter().filter(is_asked) {
        let all = judged_all(&timeline, seeds);
        println!("{}", row(&timeline, &all));
        for (seed, one) in all.iter().enumerate() {
            let [right, open, wrong] = one.causes.each_ref().map(Vec::len);
            (0..3).for_each(|place| diagnoses[place] += one.causes[place].len());
            // All diagnoses of one fault count: a single wrong cause is wrong.
            match () {
                () if wrong > 0 => incidents[2] += 1,
                () if right > 0 => incidents[0] += 1,
                () if open > 0 => incidents[1] += 1,
                () => {}
            }
            let causes = ["right", "inconclusive", "wrong"].iter().zip(&one.causes);
            let causes = causes.flat_map(|(word, said)| said.iter().map(move |what| (*word, what)));
            let said = one.unexpected.iter().map(|what| ("unexpected", what)).chain(causes);
            notes.extend(said.map(|(word, what)| format!("{} {seed}: {word}: {what}", timeline.name)));
        }
    }
    for (what, [right, open, wrong]) in [("faults with a diagnosis", incidents), ("diagnoses", diagnoses)] {
        let all = right + open + wrong;
        let percent = |n: usize| 100.0 * n as f64 / all.max(1) as f64;
        let [right, wrong] = [percent(right), percent(wrong)];
        println!(
            "\n{all} {what}: cause named in {right:.1} % (bar 90 %), a wrong one in {wrong:.1} % (bar 2 %)"
        );
    }
    notes.iter().for_each(|note| eprintln!("{note}"));
}

fn row(timeline: &Timeline, all: &[Judged]) -> String {
    let mean = |of: fn(&Judged) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let (over, effect) = (mean(|one| one.over), mean(|one| one.effect));
    let mut delays: Vec<f64> = all.iter().filter_map(|one| one.delay_s).collect();
    delays.sort_unstable_by(f64::total_cmp);
    let expected = timeline.expected.map_or("none", AlertKind::words);
    let fired = timeline.expected.map_or("–".to_owned(), |_| format!("{} of {}", delays.len(), all.len()));
    // A missing alert is later than any other.
    let median = delays.get((all.len() - 1) / 2).map_or("–".to_owned(), |delay| format!("{delay:.0}"));
    let bar = if timeline.expected == Some(CeilingBroken) { bar_s(over, effect) } else { timeline.bar_s };
    let bar = bar.map_or(String::new(), |bar| format!(" ({bar:.0})"));
    let [right, open, wrong] =
        [0, 1, 2].map(|place| all.iter().map(|one| one.causes[place].len()).sum::<usize>());
    let other: usize = all.iter().map(|one| one.unexpected.len()).sum();
    let (name, over) = (timeline.name, 100.0 * over);
    format!(
        "| {name} | {over:.1} % | {effect:.1} | {expected} | {fired} | {median}{bar} | {other} | {right} | {open} | {wrong} |"
    )
}
