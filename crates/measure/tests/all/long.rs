//! Onsets of systems without a formula, from simulations a thousand times as long as a sweep's level.
//!
//! Bursts at a c-server queue use the recursion of Kiefer and Wolfowitz, which is independent of the engine in the sweep. A
//! batching engine has no second implementation, so the reference is the simulator with other seeds, in levels of an hour.

use plimsoll_math::dist::{exponential, gamma, gamma_from_mean_cv};
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::{EngineSpec, SimLevelPlan, World, simulate_level};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

/// Returns the load, as a share of the capacity, at which the p-quantile of the sojourn reaches `factor` times a service's.
///
/// The queue has c exponential servers and gamma gaps of this CV. Equal random numbers at every load make bisection converge.
pub fn burst_onset(servers: usize, cv: f64, (p, factor): (f64, f64), customers: usize) -> f64 {
    let target = factor * -(1.0 - p).ln();
    bisect((0.05, 0.99), |load| {
        let mut stream = Stream::new(99, "long bursts", servers as u64);
        let (shape, scale) = gamma_from_mean_cv(1.0 / (load * servers as f64), cv);
        let mut free_in = vec![0.0f64; servers];
        let mut sojourns: Vec<f64> = (0..customers)
            .map(|_| {
                let first = (0..servers).min_by(|a, b| free_in[*a].total_cmp(&free_in[*b])).unwrap_or(0);
                free_in[first] += exponential(&mut stream, 1.0);
                let sojourn = free_in[first];
                let gap = gamma(&mut stream, shape, scale);
                free_in.iter_mut().for_each(|left| *left = (*left - gap).max(0.0));
                sojourn
            })
            .collect();
        let at = (p * customers as f64) as usize;
        *sojourns.select_nth_unstable_by(at, f64::total_cmp).1 < target
    })
}

/// Returns the load in requests/s at which the p-quantile of an engine's first token reaches `factor` times that of isolated
/// requests.
pub fn engine_onset(
    engine: &EngineSpec,
    arrivals: &ArrivalSpec,
    (prompt, answer): (u32, u32),
    (p, factor): (f64, f64),
    (low, high): (f64, f64),
    requests: f64,
) -> f64 {
    let tail = |load: Load, window: Span| {
        let mut scenario = Scenario { seed: 4_242, arrivals: arrivals.clone(), ..Scenario::default() };
        scenario.sizes.prompt = Size::Fixed(prompt);
        scenario.sizes.output = Size::Fixed(answer);
        let mut world = World::new(engine, 4_242).expect("a sound engine");
        let plan = SimLevelPlan::new(&scenario, 0, load, At::ZERO, window);
        let run = simulate_level(&mut world, &scenario, plan).expect("a sound level");
        let first = run.attempts.iter().map(|a| a.first_token.map_or(i64::MAX, |at| (at - a.due).0));
        let mut values: Vec<i64> = first.collect();
        let at = (p * values.len() as f64) as usize;
        *values.select_nth_unstable(at).1 as f64
    };
    let alone = tail(Load::Closed { concurrency: 1 }, Span::from_secs(60));
    bisect((low, high), |rate_per_s| {
        tail(Load::Open { rate_per_s }, Span::from_secs_f64(requests / rate_per_s)) < factor * alone
    })
}

/// Returns the point at which `below` becomes false, to a thousandth.
fn bisect((mut low, mut high): (f64, f64), below: impl Fn(f64) -> bool) -> f64 {
    while high / low > 1.001 {
        let middle = (low * high).sqrt();
        if below(middle) { low = middle } else { high = middle }
    }
    (low * high).sqrt()
}
