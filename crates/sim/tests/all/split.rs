//! Separate prefill and decode, and adapters, in hand-computed cases.
//!
//! The engine's steps take 1 ms + 0.1 ms per response in flight + 10 µs per prompt token.

use plimsoll_model::{At, Span};
use plimsoll_policy::RouteSpec;
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::{
    AdapterSpec, BatchingSpec, Detail, DisaggregationSpec, Emission, FaultSpec, ModeSpec, RequestEvent,
    StepSpec, Submit, World, WorldSpec,
};

use crate::fleet::{kept, of, script, tight};
use crate::util::{Act, ask, batching, engine, jump, play};

fn us(us: i64) -> At {
    At(us * 1_000)
}

/// Returns replicas of each kind with 1 MB of KV cache per token and a transfer at 1 GB/s.
fn split(prefill_replicas: u32, decode_replicas: u32) -> WorldSpec {
    let mut spec = of(engine(ModeSpec::Batching(batching())), 1, "round_robin");
    spec.fleet.disaggregation = Some(DisaggregationSpec {
        prefill_replicas,
        decode_replicas,
        transfer_gb_per_s: 1.0,
        kv_bytes_per_token: Some(1e6),
    });
    spec
}

fn log_of(spec: &WorldSpec, requests: &[(i64, Submit)]) -> Vec<Emission> {
    let script: Vec<(At, Act)> =
        requests.iter().map(|(at, request)| (us(*at), Act::Submit(request.clone()))).collect();
    play(&mut World::of(spec, 1).expect("sound"), &script)
}

fn token_times(log: &[Emission], id: u64) -> Vec<i64> {
    let token = |one: &&Emission| one.id == id && matches!(one.what, RequestEvent::Token { .. });
    log.iter().filter(token).map(|one| one.at.0 / 1_000).collect()
}

fn placed(log: &[Emission], id: u64) -> Vec<u32> {
    let replica = |one: &Emission| match one.what {
        RequestEvent::Placed { replica } if one.id == id => Some(replica),
        _ => None,
    };
    log.iter().filter_map(replica).collect()
}

/// A prompt of 10 takes one step of 1.1 ms; 10 tokens × 1 MB at 1 GB/s take 10 ms. The first token is emitted at 11.1
/// ms, and the decode replica takes steps of 1.1 ms from then on.
#[test]
fn ttft_is_the_prompt_and_the_transfer_and_decoding_goes_on_from_there() {
    let log = log_of(&split(1, 1), &[(0, ask(1, 10, 4))]);
    assert_eq!(token_times(&log, 1), [11_100, 12_200, 13_300, 14_400]);
    assert_eq!(placed(&log, 1), [0, 1]);
    let prompt: Vec<i64> =
        log.iter().filter(|one| one.what == RequestEvent::PrefillDone).map(|one| one.at.0 / 1_000).collect();
    assert_eq!(prompt, [1_100]);
    let others = log
        .iter()
        .filter(|one| matches!(one.what, RequestEvent::Admitted { .. } | RequestEvent::Finished { .. }))
        .count();
    assert_eq!(others, 2);
}

/// With 1 µs per context token and response in flight, step k of the decode replica costs as much as on the prefill
/// replica. The transferred cache counts as context, and no prompt is computed again.
#[test]
fn what_came_counts_as_context_and_is_not_computed_again() {
    let linear =
        LinearSpec { base_us: 1_000.0, decode_us: 0.0, prefill_us: 10.0, context_ns: 1_000.0, overlap: None };
    let mode = ModeSpec::Batching(BatchingSpec { step: StepSpec::Linear(linear), ..batching() });
    let mut spec = WorldSpec { engine: engine(mode), ..split(1, 1) };
    let apart = token_times(&log_of(&spec, &[(0, ask(1, 100, 4))]), 1);
    spec.fleet.disaggregation = None;
    let together = token_times(&log_of(&spec, &[(0, ask(1, 100, 4))]), 1);
    // Contexts of 101, 102, 103 tokens: steps of 1.101, 1.102, 1.103 ms in both.
    assert_eq!(together, [2_000, 3_101, 4_203, 5_306]);
    let later: Vec<i64> = together.iter().map(|at| at + 100_000).collect();
    assert_eq!(apart, later);
}

/// A long prompt delays the responses on its replica, and none on another.
#[test]
fn prompts_do_not_hold_up_answers_on_other_replicas() {
    let requests = [(0, ask(1, 10, 40)), (20_000, ask(2, 2_000, 2))];
    let gaps = |log: &[Emission]| {
        let times = token_times(log, 1);
        times.windows(2).map(|pair| pair[1] - pair[0]).max()
    };
    assert_eq!(gaps(&log_of(&split(1, 1), &requests)), Some(1_100));
    let together = WorldSpec { fleet: Default::default(), ..split(1, 1) };
    // One step of 1 ms + 2000 · 10 µs + 0.1 ms.
    assert_eq!(gaps(&log_of(&together, &requests)), Some(21_100));
}

/// A decode replica with blocks for one of two requests loses the cache of the second, and computes its prompt again.
#[test]
fn a_preempted_answer_computes_its_prompt_again() {
    let mode = ModeSpec::Batching(BatchingSpec { kv_blocks: Some(4), prefix_cache: false, ..batching() });
    let spec = WorldSpec { engine: engine(mode), ..split(2, 1) };
    let log = log_of(&spec, &[(0, ask(1, 30, 30)), (0, ask(2, 30, 30))]);
    assert!(log.iter().any(|one| one.what == RequestEvent::Preempted));
    for id in [1, 2] {
        assert_eq!(token_times(&log, id).len(), 30, "{id}");
    }
    assert_eq!(log.iter().filter(|one| one.what == RequestEvent::PrefillDone).count(), 2);
}

#[test]
fn apart_nobody_is_lost_and_jumping_equals_stopping() {
    for faults in [
        vec![],
        vec!["crash:at=300ms,for=200ms,replica=1"],
        vec!["lost:at=200ms,for=1s,notice=10ms,replica=3"],
    ] {
        for route in ["round_robin", "least_requests", "prefix"] {
            let mut spec = WorldSpec { engine: tight(), ..split(2, 2) };
            spec.fleet.route = RouteSpec::parse(route).expect("sound");
            spec.faults = faults.iter().map(|fault| FaultSpec::parse(fault).expect("sound")).collect();
            let script = script(5, 150.0);
            let mut world = World::of(&spec, 7).expect("sound");
            let stopped = play(&mut world, &script);
            let totals = world.gauges().totals;
            let ends = stopped
                .iter()
                .filter(|one| matches!(one.what, RequestEvent::Finished { .. } | RequestEvent::Failed(_)))
                .count();
            assert_eq!(
                totals.submitted,
                totals.finished + totals.failed + totals.cancelled,
                "{route} {faults:?}"
            );
            assert_eq!(ends as u64, totals.finished + totals.failed, "{route} {faults:?}");
            assert_eq!((world.gauges().running, world.gauges().waiting), (0, 0), "{route} {faults:?}");
            let jumped = jump(&mut World::of(&spec, 7).expect("sound"), &script);
            assert_eq!(kept(&stopped, &script), kept(&jumped, &script), "{route} {faults:?}");
        }
    }
}

#[test]
fn answers_told_by_their_ends_have_the_same_first_and_last() {
    let requests: Vec<(At, Act)> =
        (0..50).map(|id| (us(id as i64 * 3_000), Act::Submit(ask(id, 20, 30)))).collect();
    let marks = |detail: Detail| {
        let mut world = World::of(&split(2, 2), 7).expect("sound");
        world.set_detail(detail);
        let log = play(&mut world, &requests);
        let marks = |id| {
            let times = token_times(&log, id);
            let count: u32 =
                log.iter()
                    .map(|one| {
                        if let (RequestEvent::Token { n, .. }, true) = (one.what, one.id == id) {
                            n
                        } else {
                            0
                        }
                    })
                    .sum();
            (times.first().copied(), times.last().copied(), count)
        };
        (0..50).map(marks).collect::<Vec<_>>()
    };
    assert_eq!(marks(Detail::Tokens), marks(Detail::Ends));
}

fn with_adapter(id: u64, adapter: u32, output: u32) -> Submit {
    Submit { adapter: Some(adapter), ..ask(id, 10, output) }
}

/// One slot, 100 ms per load. 1 loads its adapter and has its tokens from 101.1 to 105.5 ms. 2 needs another adapter,
/// which loads from 105.5 ms. 3 needs none. At 300 ms the first adapter is loaded again, and is present for a request
/// at 500 ms.
#[test]
fn an_adapter_is_loaded_when_a_slot_is_free_and_stays_until_another_needs_it() {
    let mut spec = of(engine(ModeSpec::Batching(batching())), 1, "round_robin");
    spec.fleet.adapters =
        Some(AdapterSpec { slots: 1, load: Span::from_millis(100), ..AdapterSpec::default() });
    let requests = [
        (0, with_adapter(1, 10, 5)),
        (0, with_adapter(2, 20, 1)),
        (0, ask(3, 10, 1)),
        (300_000, with_adapter(4, 10, 1)),
        (500_000, with_adapter(5, 10, 1)),
    ];
    let log = log_of(&spec, &requests);
    assert_eq!(token_times(&log, 1), [101_100, 102_200, 103_300, 104_400, 105_500]);
    assert_eq!(token_times(&log, 2), [206_600]);
    assert_eq!(token_times(&log, 3), [1_100]);
    assert_eq!((token_times(&log, 4), token_times(&log, 5)), (vec![401_100], vec![501_100]));
}

/// Two slots: the least recently used of 10 and 20, which is 10, is evicted for 30.
#[test]
fn the_least_recently_used_adapter_makes_room() {
    let mut spec = of(engine(ModeSpec::Batching(batching())), 1, "round_robin");
    spec.fleet.adapters =
        Some(AdapterSpec { slots: 2, load: Span::from_millis(100), ..AdapterSpec::default() });
    let adapters = [(1, 10), (2, 20), (3, 30), (4, 20), (5, 10)];
    let requests: Vec<(i64, Submit)> =
        adapters.iter().map(|&(id, adapter)| (id as i64 * 1_000_000, with_adapter(id, adapter, 1))).collect();
    let log = log_of(&spec, &requests);
    let waits: Vec<i64> = (1..=5).map(|id| token_times(&log, id)[0] - id as i64 * 1_000_000).collect();
    assert_eq!(waits, [101_100, 101_100, 101_100, 1_100, 101_100]);
}

#[test]
fn what_can_not_be_apart_is_refused() {
    let refused = |spec: &WorldSpec| World::of(spec, 1).expect_err("refused").to_string();
    let mut unknown = split(1, 1);
    unknown.fleet.disaggregation.as_mut().expect("it is there").kv_bytes_per_token = None;
    assert_eq!(
        refused(&unknown),
        "fleet.disaggregation.kv_bytes_per_token: nothing is not enough: a linear step model has no default; give a number"
    );
    let mut both = split(1, 1);
    both.fleet.adapters = Some(AdapterSpec { slots: 1, load: Span::ZERO, ..AdapterSpec::default() });
    assert!(refused(&both).starts_with("fleet: adapters and disaggregation are not simulated together"));
}
