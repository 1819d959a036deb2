//! A gateway's decisions in virtual time: its effect on an overload, and agreement with its route if it admits all
//! requests.

use std::collections::HashMap;

use plimsoll_model::At;
use plimsoll_policy::{AdmissionControlSpec, AdmissionSpec, HedgeSpec, RouteSpec};
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::{
    BatchingSpec, EngineSpec, Failure, FaultSpec, FleetSpec, ModeSpec, RequestEvent, StepSpec, World,
    WorldSpec,
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
        gateway: Some(AdmissionControlSpec { route, admission, ..AdmissionControlSpec::default() }),
        ..FleetSpec::default()
    }
}

/// Times to the first token in ascending order, and the numbers of answered, shed (not accepted) and failed requests
/// by status.
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
            RequestEvent::PrefillDone => seen.waits.push((emission.at - came[&emission.id]).as_secs_f64()),
            RequestEvent::Finished { .. } => seen.finished += 1,
            RequestEvent::Failed(Failure::Status { status, .. }) => {
                *seen.failed.entry(status).or_default() += 1
            }
            _ => {}
        }
        if matches!(emission.what, RequestEvent::Finished { .. } | RequestEvent::Failed(_)) {
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
    // Prompts of 2 000 tokens, at most 12 000 tokens/s on each of four replicas without steps and decodes: 24
    // requests/s are too many.
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
    // All random draws differ, but the results agree.
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

/// A replica stalls for two seconds at times: its requests without a first token are answered by another one.
#[test]
fn who_waits_on_a_replica_that_stands_still_is_answered_by_another() {
    let script = poisson(6, 10.0, 4_000, |chance| (200 + chance.below(7) as u32 * 100, 40));
    let stalls = ["stall:at=20s,every=15s,times=24,for=2s,replica=1"];
    let hedged = |hedge: Option<HedgeSpec>, faults: &[&str]| {
        let FleetSpec { gateway: Some(front), .. } = gateway(AdmissionSpec::default()) else {
            unreachable!()
        };
        let mut world = world(
            FleetSpec { gateway: Some(AdmissionControlSpec { hedge, ..front }), ..FleetSpec::default() },
            faults,
        );
        let seen = seen(&mut world, &script);
        assert_eq!(seen.finished, script.len());
        (seen, world.gauges().totals)
    };
    let late = |seen: &Seen| seen.waits.iter().filter(|wait| **wait > 1.0).count();
    let (without, _) = hedged(None, &stalls);
    let (with, totals) = hedged(Some(HedgeSpec::default()), &stalls);
    assert!(late(&without) >= 20, "{} waited for more than a second", late(&without));
    assert!(late(&with) * 4 < late(&without), "{} of {} still did", late(&with), late(&without));
    assert!(p99(&with.waits) < 1.3 * p99(&without.waits), "{} and {}", p99(&with.waits), p99(&without.waits));
    assert!(totals.hedged >= 20, "{}", totals.hedged);
    let prompts: u64 = script
        .iter()
        .map(|(_, act)| match act {
            Act::Submit(request) => u64::from(request.prompt_tokens),
            _ => 0,
        })
        .sum();
    let twice = totals.prompt_tokens as f64 / prompts as f64 - 1.0;
    assert!(twice <= 0.022, "{:.1} % of the prompts were computed twice", 100.0 * twice);
    // Without a fault, hedging costs nothing.
    let (calm, _) = hedged(None, &[]);
    let (same, totals) = hedged(Some(HedgeSpec::default()), &[]);
    assert!(p99(&same.waits) < 1.1 * p99(&calm.waits), "{} and {}", p99(&same.waits), p99(&calm.waits));
    assert!(totals.hedged < script.len() as u64 / 50, "{}", totals.hedged);
}

/// A replica is lost while another has the same request, and a client disconnects: each request ends once.
#[test]
fn a_request_at_two_replicas_ends_once_whatever_befalls_it() {
    let mut script = poisson(7, 12.0, 3_000, |_| (400, 40));
    let ids = (0..3_000u64).filter(|id| id % 7 == 3);
    let goes: Vec<(At, Act)> = ids
        .filter_map(|id| {
            let (at, _) =
                script.iter().find(|(_, act)| matches!(act, Act::Submit(request) if request.id == id))?;
            Some((*at + plimsoll_model::Span::from_millis(400), Act::Cancel(id)))
        })
        .collect();
    script.extend(goes);
    script.sort_by_key(|(at, _)| *at);
    let faults = [
        "stall:at=20s,every=5s,times=44,for=2s,replica=1",
        "crash:at=47s,for=3s,replica=1",
        "crash:at=101s,for=3s,replica=1",
    ];
    let FleetSpec { gateway: Some(front), .. } = gateway(AdmissionSpec::default()) else { unreachable!() };
    let hedge = Some(HedgeSpec { share: 1.0, saturation: 1.0, ..HedgeSpec::default() });
    let fleet = FleetSpec { gateway: Some(AdmissionControlSpec { hedge, ..front }), ..FleetSpec::default() };
    let mut world = world(fleet, &faults);
    let log = play(&mut world, &script);
    let mut ended: HashMap<u64, u32> = HashMap::new();
    for emission in &log {
        assert!(emission.id < 3_000, "a number of the simulator's own was told: {}", emission.id);
        if matches!(emission.what, RequestEvent::Finished { .. } | RequestEvent::Failed(_)) {
            *ended.entry(emission.id).or_default() += 1;
        }
    }
    assert!(ended.values().all(|&ends| ends == 1), "{ended:?}");
    let totals = world.gauges().totals;
    assert!(totals.hedged > 20, "{}", totals.hedged);
    assert!(totals.cancelled > 20, "{}", totals.cancelled);
    assert_eq!(totals.submitted, totals.finished + totals.failed + totals.cancelled);
    assert_eq!(world.gauges().running + world.gauges().waiting, 0, "nothing is left behind");
}
