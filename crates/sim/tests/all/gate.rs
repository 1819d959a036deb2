//! A gateway's decisions in virtual time: what it does to an overload, and that it decides as its route does where it lets all in.

use std::collections::HashMap;

use plimsoll_model::At;
use plimsoll_policy::{AdmissionSpec, FrontSpec, RouteSpec};
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::{
    BatchingSpec, EngineSpec, Failure, FaultSpec, FleetSpec, ModeSpec, StepSpec, What, World, WorldSpec,
};

use crate::util::{Act, batching, engine, play, poisson};

fn replica() -> EngineSpec {
    engine(ModeSpec::Batching(BatchingSpec {
        max_seqs: 32,
        token_budget: 2048,
        kv_blocks: Some(24_000),
        step: StepSpec::Linear(LinearSpec {
            base_us: 8_000.0,
            decode_us: 600.0,
            prefill_us: 83.3,
            context_ns: 0.0,
            overlap: None,
        }),
        ..batching()
    }))
}

fn world(fleet: FleetSpec, faults: &[&str]) -> World {
    let faults = faults.iter().map(|text| FaultSpec::parse(text).expect("sound")).collect();
    let fleet = FleetSpec { replicas: 4, ..fleet };
    World::of(&WorldSpec { fleet, faults, ..WorldSpec::one(replica()) }, 5).expect("sound")
}

fn gateway(admission: AdmissionSpec) -> FleetSpec {
    let route = RouteSpec::parse("least_cost").expect("sound");
    FleetSpec {
        gateway: Some(FrontSpec { route, admission, ..FrontSpec::default() }),
        ..FleetSpec::default()
    }
}

/// Times to the first token, sorted, and how many were answered, shed at the door (not taken), and failed by status.
struct Seen {
    waits: Vec<f64>,
    finished: usize,
    failed: HashMap<u16, usize>,
}

fn seen(world: &mut World, script: &[(At, Act)]) -> Seen {
    let came: HashMap<u64, At> = script
        .iter()
        .filter_map(|(at, act)| match act {
            Act::Submit(request) => Some((request.id, *at)),
            _ => None,
        })
        .collect();
    let log = play(world, script);
    let mut seen = Seen { waits: Vec::new(), finished: 0, failed: HashMap::new() };
    let mut ended: HashMap<u64, u32> = HashMap::new();
    for emission in &log {
        match emission.what {
            What::PrefillDone => seen.waits.push((emission.at - came[&emission.id]).as_secs_f64()),
            What::Finished { .. } => seen.finished += 1,
            What::Failed(Failure::Status { status, .. }) => *seen.failed.entry(status).or_default() += 1,
            _ => {}
        }
        if matches!(emission.what, What::Finished { .. } | What::Failed(_)) {
            *ended.entry(emission.id).or_default() += 1;
        }
    }
    assert!(ended.values().all(|&ends| ends == 1), "each request ends once");
    let totals = world.gauges().totals;
    assert_eq!((totals.submitted + totals.rejected) as usize, script.len());
    assert_eq!(ended.len() as u64, totals.submitted);
    seen.waits.sort_by(f64::total_cmp);
    seen
}

fn p99(waits: &[f64]) -> f64 {
    waits[waits.len() * 99 / 100]
}

#[test]
fn under_a_time_limit_what_is_let_in_is_in_time_and_without_one_nobody_is() {
    // Prompts of 2 000 tokens, 12 000 a second on each of four at most, less what steps and answers take: 24 a second are too many.
    let script = poisson(3, 26.0, 2_000, |_| (2_000, 20));
    let plain = FleetSpec { route: RouteSpec::parse("least_cost").expect("sound"), ..FleetSpec::default() };
    let without = seen(&mut world(plain, &[]), &script);
    assert_eq!(without.finished, script.len());
    let limit = AdmissionSpec { slo_ttft_ms: Some(3_000.0), ..AdmissionSpec::default() };
    let mut world = world(gateway(limit), &[]);
    let with = seen(&mut world, &script);
    let shed = world.gauges().totals.rejected as usize;
    assert!(p99(&without.waits) > 6.0, "it is an overload: {}", p99(&without.waits));
    assert!(p99(&with.waits) < 3.3, "{} s", p99(&with.waits));
    assert!(shed > 0 && with.finished * 10 > script.len() * 7, "{} answered, {shed} shed", with.finished);
    let expired = with.failed.get(&504).copied().unwrap_or(0);
    assert!(expired * 50 <= script.len(), "{expired} ran out of time though they were let in");
}

#[test]
fn where_it_lets_all_in_it_decides_as_its_route_does() {
    let script = poisson(4, 14.0, 2_000, |chance| (500 + chance.below(7) as u32 * 300, 60));
    let plain = FleetSpec { route: RouteSpec::parse("least_cost").expect("sound"), ..FleetSpec::default() };
    let plain = seen(&mut world(plain, &[]), &script);
    let all = AdmissionSpec { ahead_s: 0.0, ..AdmissionSpec::default() };
    let gate = seen(&mut world(gateway(all), &[]), &script);
    assert_eq!((plain.finished, gate.finished), (script.len(), script.len()));
    // Not one draw of chance is the same; what they come to is.
    for p in [0.5, 0.95] {
        let at = |seen: &Seen| seen.waits[(seen.waits.len() as f64 * p) as usize];
        let off = at(&gate) / at(&plain) - 1.0;
        assert!(off.abs() < 0.1, "p{}: {} and {}", p * 100.0, at(&gate), at(&plain));
    }
}

#[test]
fn what_one_replica_refuses_another_takes_within_the_budget() {
    let script = poisson(5, 10.0, 1_000, |_| (500, 20));
    let fault = "error:share=0.5,status=503,replica=1";
    let plain = FleetSpec { route: RouteSpec::parse("least_cost").expect("sound"), ..FleetSpec::default() };
    let mut without = world(plain, &[fault]);
    seen(&mut without, &script);
    let mut with = world(gateway(AdmissionSpec::default()), &[fault]);
    seen(&mut with, &script);
    let lost = |world: &World| world.gauges().totals.rejected + world.gauges().totals.failed;
    assert!(lost(&without) > 30, "{}", lost(&without));
    assert!(lost(&with) * 4 < lost(&without), "{} of {}", lost(&with), lost(&without));
}
