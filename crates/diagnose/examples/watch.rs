//! A sweep of a simulated engine, level by level, in virtual time: where its time goes.
//!
//! `cargo run --release -p plimsoll-diagnose --example watch -- PROFILE SECONDS [PROMPT OUTPUT] [TRAFFIC,…] [HOLD]`
//! PROFILE: a profile of the simulator, or `queue:SERVERS:MEAN_MS`.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

use plimsoll_measure::sweep::{Preview, RequestPrice, Sweep, SweepNext, SweepSpec};
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::{
    EngineSpec, LawSpec, LevelPlan, ModeSpec, QueueSpec, World, catalogue::profile, simulate_level,
};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |i: usize, default: &str| arguments.get(i).cloned().unwrap_or_else(|| default.to_owned());
    let number = |i: usize, default: f64| word(i, "").parse().unwrap_or(default);
    let name = word(0, "queue:16:12");
    let engine = match name.strip_prefix("queue:").and_then(|rest| rest.split_once(':')) {
        Some((servers, mean)) => EngineSpec {
            name: name.clone(),
            mode: ModeSpec::Queue(QueueSpec {
                servers: servers.parse().unwrap_or(8),
                service: LawSpec::Exponential { mean_ms: mean.parse().unwrap_or(10.0) },
                queue_limit: None,
            }),
        },
        None => profile::find(&name).expect("a profile of that name").spec,
    };
    let traffic = word(4, "steady").split(',').map(str::to_owned).collect();
    let hold = Span::from_secs_f64(number(5, 0.0));
    let time = Span::from_secs_f64(number(1, 60.0));
    let spec = SweepSpec { time, hold, traffic, ..SweepSpec::default() };
    println!("{:?}", Preview::new(&spec, &RequestPrice::default(), &[2.0, 1300.0]));
    let mut world = World::new(&engine, 1).expect("a sound engine");
    let mut sweep = Sweep::new(spec).expect("a sound spec");
    let mut now = At::ZERO;
    for id in 0.. {
        let asked = match sweep.next() {
            SweepNext::Run(asked) => asked,
            SweepNext::Done { why } => {
                println!("done: {why}");
                break;
            }
        };
        let mut scenario = Scenario { seed: 7, ..Scenario::default() };
        scenario.arrivals = ArrivalSpec::named(&asked.traffic).expect("a named kind");
        scenario.sizes.prompt = Size::Fixed(number(2, 128.0) as u32);
        scenario.sizes.output = Size::Fixed(number(3, 8.0) as u32);
        let mut plan = LevelPlan::new(&scenario, id, asked.load, now, asked.window);
        (plan.traffic, plan.purpose) = (asked.traffic.clone(), asked.purpose.clone());
        let run = simulate_level(&mut world, &scenario, plan).expect("a sound level");
        let finding = sweep.observe(&run.level, &run.attempts, &run.samples);
        let load = match asked.load {
            Load::Open { rate_per_s } => format!("{rate_per_s:.3}/s"),
            Load::Wave { requests } => format!("wave={requests}"),
            Load::Closed { concurrency } | Load::Saturating { concurrency } => format!("c={concurrency}"),
        };
        let summary = &finding.summary;
        println!(
            "{:7.2}s {:<7}{:<9}{load:>12} for {:6.2}s +{:5.2} n {:6} cut {:5} out {:9.2?}/s p50 {:.4?} p99 {:.4?} {:?} {:?} {}",
            now.as_secs_f64(),
            asked.traffic,
            asked.purpose,
            asked.window.as_secs_f64(),
            (run.level.drained - run.level.stop).as_secs_f64(),
            run.attempts.len(),
            summary.window.warm_up_requests,
            summary.rates.achieved_per_s.value(),
            summary.latency.leading().p50.value(),
            summary.latency.leading().p99.value(),
            summary.stability.verdict,
            summary.budget.as_ref().map(|b| b.verdict),
            finding
                .validity
                .reasons
                .iter()
                .map(|r| format!("{}:{}", r.check, r.figure))
                .collect::<Vec<_>>()
                .join("; "),
        );
        now = run.level.drained;
    }
    let findings = sweep.findings();
    for lines in &findings.lines {
        println!("{:#?}", (&lines.onset, &lines.stability, &lines.budget));
    }
}
