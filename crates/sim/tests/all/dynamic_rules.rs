//! Triton's dynamic batcher in hand-written cases from its rules, with the rule in the name. Every batch takes 10 ms
//! unless a case sets another time; times are in ms.

use plimsoll_model::{At, Span};
use plimsoll_sim::spec::dynamic::{
    AffineSpec, BatchCostSpec, BatchPoint, BatcherSpec, ComputeSpec, FrontSpec, LevelPolicySpec, Overlap,
    QueuePolicySpec, TableSpec, TimeoutAction,
};
use plimsoll_sim::{
    DynamicSpec, Emission, Engine, EngineRejection, EngineSpec, Failure, ModeSpec, RequestEvent, Submit,
    World,
};

use crate::util::{Act, engine, play, times, world};

pub fn at(ms: f64) -> At {
    At((ms * 1e6).round() as i64)
}

/// Returns one instance with batches of at most `max_batch_size`, 10 ms each.
fn server(max_batch_size: u32, dynamic_batching: Option<BatcherSpec>) -> DynamicSpec {
    let compute = ComputeSpec::Affine(AffineSpec { base_ms: 10.0, item_ms: 0.0 });
    DynamicSpec {
        instances: 1,
        max_batch_size,
        dynamic_batching,
        front: FrontSpec::default(),
        batch: BatchCostSpec {
            input: AffineSpec::default(),
            compute,
            output: AffineSpec::default(),
            overlap: Overlap::Serial,
            jitter_cv: 0.0,
        },
        response_ms: 0.0,
    }
}

fn greedy() -> BatcherSpec {
    BatcherSpec::default()
}

fn preferring(sizes: &[u32], delay_ms: f64) -> BatcherSpec {
    BatcherSpec {
        preferred_batch_size: sizes.to_vec(),
        max_queue_delay_us: (delay_ms * 1e3) as u64,
        ..BatcherSpec::default()
    }
}

/// Adds a queue limit, which keeps batches from being formed ahead of time.
fn not_ahead(batcher: BatcherSpec) -> BatcherSpec {
    BatcherSpec {
        default_queue_policy: QueuePolicySpec { max_queue_size: 1000, ..QueuePolicySpec::default() },
        ..batcher
    }
}

fn timing_out(after_ms: f64, timeout_action: TimeoutAction) -> BatcherSpec {
    BatcherSpec {
        default_queue_policy: QueuePolicySpec {
            timeout_action,
            default_timeout_us: (after_ms * 1e3) as u64,
            ..QueuePolicySpec::default()
        },
        ..BatcherSpec::default()
    }
}

fn spec_of(dynamic: &DynamicSpec) -> EngineSpec {
    engine(ModeSpec::Dynamic(dynamic.clone()))
}

fn sized(id: u64, items: u32) -> Submit {
    Submit { items, ..Submit::new(id, 1, 0) }
}

fn run(dynamic: &DynamicSpec, script: &[(f64, Submit)]) -> Vec<Emission> {
    let script: Vec<(At, Act)> =
        script.iter().map(|(ms, request)| (at(*ms), Act::Submit(request.clone()))).collect();
    play(&mut world(&spec_of(dynamic)), &script)
}

/// Returns requests of one item each, with ids 0, 1, … at these times.
fn singles(times: &[f64]) -> Vec<(f64, Submit)> {
    times.iter().enumerate().map(|(id, ms)| (*ms, sized(id as u64, 1))).collect()
}

/// Returns the start times of batches with their requests.
fn started(log: &[Emission]) -> Vec<(f64, Vec<u64>)> {
    let mut batches: Vec<(f64, Vec<u64>)> = Vec::new();
    for (id, at) in times(log, |what| matches!(what, RequestEvent::Admitted { .. })) {
        let ms = at.0 as f64 / 1e6;
        match batches.last_mut().filter(|batch| batch.0 == ms) {
            Some(batch) => batch.1.push(id),
            None => batches.push((ms, vec![id])),
        }
    }
    batches
}

fn finished(log: &[Emission]) -> Vec<(u64, f64)> {
    let ends = times(log, |what| matches!(what, RequestEvent::Finished { .. }));
    ends.into_iter().map(|(id, at)| (id, at.0 as f64 / 1e6)).collect()
}

/// Returns the failed requests with times and messages; the status is always Triton's 503.
fn failed(log: &[Emission]) -> Vec<(u64, f64, &'static str)> {
    let failure = |emission: &Emission| match emission.what {
        RequestEvent::Failed(Failure::Status { status, why }) => {
            assert_eq!(status, 503);
            Some((emission.id, emission.at.0 as f64 / 1e6, why))
        }
        _ => None,
    };
    log.iter().filter_map(failure).collect()
}

#[track_caller]
fn check(dynamic: &DynamicSpec, script: &[(f64, Submit)], expected: &[(f64, &[u64])]) {
    let found = started(&run(dynamic, script));
    let expected: Vec<(f64, Vec<u64>)> = expected.iter().map(|(ms, ids)| (*ms, ids.to_vec())).collect();
    assert_eq!(found, expected);
}

#[test]
fn an_idle_instance_takes_all_that_waits_up_to_the_largest_batch() {
    let script = singles(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    check(&server(4, Some(greedy())), &script, &[(0.0, &[0]), (10.0, &[1, 2, 3, 4]), (20.0, &[5, 6])]);
}

#[test]
fn requests_of_one_instant_are_seen_together() {
    check(&server(4, Some(greedy())), &singles(&[0.0; 3]), &[(0.0, &[0, 1, 2])]);
}

#[test]
fn without_dynamic_batching_every_request_is_executed_alone() {
    check(&server(8, None), &singles(&[0.0; 3]), &[(0.0, &[0]), (10.0, &[1]), (20.0, &[2])]);
}

#[test]
fn where_the_sum_is_a_preferred_size_the_batch_ends_there() {
    let script = singles(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let expected: [(f64, &[u64]); 3] = [(0.0, &[0]), (10.0, &[1, 2, 3, 4]), (20.0, &[5, 6])];
    check(&server(8, Some(preferring(&[4], 0.0))), &script, &expected);
    check(&server(8, Some(not_ahead(preferring(&[4], 0.0)))), &script, &expected);
}

#[test]
fn of_several_preferred_sizes_the_largest_reached_counts() {
    let script = singles(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let batcher = not_ahead(preferring(&[2, 4], 0.0));
    check(&server(8, Some(batcher)), &script, &[(0.0, &[0]), (10.0, &[1, 2, 3, 4]), (20.0, &[5, 6])]);
}

#[test]
fn a_sum_that_jumps_over_a_preferred_size_does_not_count() {
    // 3, then 6, then 7: never 4. The first request that would exceed 4 marks the position before it.
    let script = [(0.0, sized(0, 1)), (1.0, sized(1, 3)), (2.0, sized(2, 3)), (3.0, sized(3, 1))];
    let batcher = not_ahead(preferring(&[4], 0.0));
    // Of 2 (three items) and 3 (one item) the sum is 4.
    check(&server(8, Some(batcher)), &script, &[(0.0, &[0]), (10.0, &[1]), (20.0, &[2, 3])]);
}

#[test]
fn an_idle_instance_waits_for_the_delay_of_the_oldest() {
    check(&server(8, Some(preferring(&[4], 3.0))), &singles(&[0.0, 1.0]), &[(3.0, &[0, 1])]);
}

#[test]
fn a_preferred_size_ends_the_waiting_at_once() {
    let script = singles(&[0.0, 1.0, 1.5, 2.0]);
    check(&server(8, Some(preferring(&[4], 3.0))), &script, &[(2.0, &[0, 1, 2, 3])]);
}

#[test]
fn without_preferred_sizes_the_delay_waits_for_the_largest_batch() {
    let batcher = preferring(&[], 3.0);
    check(&server(2, Some(batcher)), &singles(&[0.0, 1.0, 1.5]), &[(1.0, &[0, 1]), (11.0, &[2])]);
}

#[test]
fn a_preferred_size_is_kept_to_only_until_the_delay_is_over() {
    // The first waits only for its delay, 3 ms or 20 ms; then six arrive while it is computed.
    let overdue = singles(&[0.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    let batcher = not_ahead(preferring(&[4], 3.0));
    check(&server(8, Some(batcher)), &overdue, &[(3.0, &[0]), (13.0, &[1, 2, 3, 4, 5, 6])]);
    let in_time = singles(&[0.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0]);
    let batcher = not_ahead(preferring(&[4], 20.0));
    let expected: [(f64, &[u64]); 3] = [(20.0, &[0]), (30.0, &[1, 2, 3, 4]), (48.0, &[5, 6])];
    check(&server(8, Some(batcher)), &in_time, &expected);
}

#[test]
fn past_the_largest_preferred_size_with_none_remembered_the_batch_ends_before() {
    let script = [(0.0, sized(0, 3)), (1.0, sized(1, 3))];
    let batcher = not_ahead(preferring(&[4], 20.0));
    // At 11 the second has waited 10 of its 20 ms.
    check(&server(8, Some(batcher)), &script, &[(1.0, &[0]), (21.0, &[1])]);
}

#[test]
fn past_the_largest_preferred_size_all_go_when_the_delay_is_over() {
    let script = [(0.0, sized(0, 4)), (1.0, sized(1, 3)), (2.0, sized(2, 3))];
    let batcher = not_ahead(preferring(&[4], 5.0));
    check(&server(8, Some(batcher)), &script, &[(0.0, &[0]), (10.0, &[1, 2])]);
}

#[test]
fn a_request_that_would_pass_the_largest_batch_stops_the_walk_and_nobody_overtakes() {
    let script = [(0.0, sized(0, 1)), (1.0, sized(1, 5)), (2.0, sized(2, 5)), (3.0, sized(3, 1))];
    let expected: [(f64, &[u64]); 3] = [(0.0, &[0]), (10.0, &[1]), (20.0, &[2, 3])];
    check(&server(8, Some(greedy())), &script, &expected);
    check(&server(8, Some(not_ahead(greedy()))), &script, &expected);
}

#[test]
fn a_formed_batch_grows_until_an_instance_takes_it() {
    // Formed at 3, when the delay of 1 is over; then all later requests join immediately.
    let script = [(0.0, sized(0, 4)), (1.0, sized(1, 1)), (5.0, sized(2, 1)), (9.9, sized(3, 1))];
    check(&server(8, Some(preferring(&[4], 2.0))), &script, &[(0.0, &[0]), (10.0, &[1, 2, 3])]);
}

#[test]
fn a_formed_batch_of_preferred_size_does_not_grow_before_the_delay_is_over() {
    let script =
        [(0.0, sized(0, 2)), (1.0, sized(1, 1)), (1.5, sized(2, 1)), (9.0, sized(3, 1)), (30.0, sized(4, 2))];
    // 1 and 2 are formed at 1.5; 3 waits until 11, when the instance is busy with them.
    let expected: [(f64, &[u64]); 4] = [(0.0, &[0]), (10.0, &[1, 2]), (20.0, &[3]), (30.0, &[4])];
    check(&server(8, Some(preferring(&[2, 4], 2.0))), &script, &expected);
}

#[test]
fn a_preferred_size_of_one_without_delay_makes_every_request_a_batch() {
    let script = singles(&[0.0, 1.0, 2.0, 3.0, 4.0]);
    let expected: [(f64, &[u64]); 5] = [(0.0, &[0]), (10.0, &[1]), (20.0, &[2]), (30.0, &[3]), (40.0, &[4])];
    check(&server(4, Some(preferring(&[1], 0.0))), &script, &expected);
}

#[test]
fn an_instance_merges_formed_batches_that_have_outlived_the_delay() {
    // 1, 2 and 3 are one batch (3 exceeds the preferred 2 and saturates it), 4 is a separate one from 2.4 on.
    let script =
        [(0.0, sized(0, 2)), (1.0, sized(1, 1)), (1.1, sized(2, 1)), (1.2, sized(3, 1)), (1.4, sized(4, 1))];
    check(&server(4, Some(preferring(&[2], 1.0))), &script, &[(0.0, &[0]), (10.0, &[1, 2, 3, 4])]);
    // With two items it would be five.
    let script =
        [(0.0, sized(0, 2)), (1.0, sized(1, 1)), (1.1, sized(2, 1)), (1.2, sized(3, 1)), (1.4, sized(4, 2))];
    let expected: [(f64, &[u64]); 3] = [(0.0, &[0]), (10.0, &[1, 2, 3]), (20.0, &[4])];
    check(&server(4, Some(preferring(&[2], 1.0))), &script, &expected);
}

#[test]
fn instances_share_one_queue() {
    let two = DynamicSpec { instances: 2, ..server(1, Some(greedy())) };
    check(&two, &singles(&[0.0, 1.0, 2.0, 3.0]), &[(0.0, &[0]), (1.0, &[1]), (10.0, &[2]), (11.0, &[3])]);
}

#[test]
fn a_full_queue_refuses_at_once_with_503() {
    let mut batcher = greedy();
    batcher.default_queue_policy.max_queue_size = 2;
    let mut world = world(&spec_of(&server(8, Some(batcher))));
    let mut log = Vec::new();
    assert_eq!(world.submit(at(0.0), sized(0, 1)), Ok(()));
    world.step(at(0.0), &mut log);
    // Requests on an instance do not count.
    assert_eq!(world.submit(at(1.0), sized(1, 1)), Ok(()));
    assert_eq!(world.submit(at(2.0), sized(2, 1)), Ok(()));
    let refused = world.submit(at(3.0), sized(3, 1)).expect_err("two wait");
    assert_eq!((refused.status(), refused.to_string().as_str()), (Some(503), "Exceeds maximum queue size"));
    assert_eq!(world.gauges().totals.rejected, 1);
    // A limit of 0 means no limit.
    assert_eq!(started(&run(&server(8, Some(greedy())), &singles(&[0.0; 9]))).len(), 2);
}

#[test]
fn a_request_of_more_items_than_the_largest_batch_is_refused_with_400() {
    let refused = world(&spec_of(&server(8, Some(greedy())))).submit(at(0.0), sized(0, 9));
    let refused = refused.expect_err("nine items");
    assert_eq!(
        (refused.status(), &refused),
        (Some(400), &EngineRejection::TooManyItems { items: 9, limit: 8 })
    );
    assert!(refused.to_string().contains("must be <= 8"));
}

#[test]
fn a_request_whose_time_is_up_fails_with_503_when_the_walk_comes_to_it() {
    let log = run(&server(8, Some(timing_out(4.0, TimeoutAction::Reject))), &singles(&[0.0, 1.0, 8.0]));
    assert_eq!(started(&log), [(0.0, vec![0]), (10.0, vec![2])]);
    assert_eq!(failed(&log), [(1, 10.0, "Request timeout expired")]);
}

#[test]
fn with_delay_a_request_whose_time_is_up_goes_behind_the_others() {
    let batcher = timing_out(4.0, TimeoutAction::Delay);
    let script = singles(&[0.0, 1.0, 8.0]);
    check(&server(8, Some(batcher.clone())), &script, &[(0.0, &[0]), (10.0, &[2, 1])]);
    // A request without others in its batch must wait for a newcomer too.
    let script = singles(&[0.0, 1.0, 8.0, 19.0]);
    check(&server(1, Some(batcher)), &script, &[(0.0, &[0]), (10.0, &[2]), (20.0, &[3]), (30.0, &[1])]);
}

#[test]
fn only_a_shorter_time_out_of_its_own_counts() {
    let mut batcher = timing_out(8.0, TimeoutAction::Reject);
    batcher.default_queue_policy.allow_timeout_override = true;
    let with = |id, ms: i64| Submit { queue_timeout: Some(Span(ms * 1_000_000)), ..sized(id, 1) };
    let script = [(0.0, sized(0, 1)), (1.0, with(1, 3)), (1.0, with(2, 20)), (3.0, sized(3, 1))];
    let log = run(&server(8, Some(batcher.clone())), &script);
    assert_eq!(failed(&log).iter().map(|one| one.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(started(&log)[1], (10.0, vec![3]));
    // Time-outs need both a default time-out and the permission.
    batcher.default_queue_policy.default_timeout_us = 0;
    check(&server(8, Some(batcher.clone())), &script, &[(0.0, &[0]), (10.0, &[1, 2, 3])]);
    batcher.default_queue_policy =
        QueuePolicySpec { default_timeout_us: 100_000, ..QueuePolicySpec::default() };
    check(&server(8, Some(batcher)), &script, &[(0.0, &[0]), (10.0, &[1, 2, 3])]);
}

#[test]
fn a_batcher_that_waits_for_the_delay_wakes_for_a_time_out() {
    let batcher = BatcherSpec {
        preferred_batch_size: vec![4],
        max_queue_delay_us: 20_000,
        ..timing_out(5.0, TimeoutAction::Reject)
    };
    let log = run(&server(8, Some(batcher)), &singles(&[0.0, 1.0]));
    assert_eq!(started(&log), []);
    let up = "Request timeout expired";
    assert_eq!(failed(&log), [(0, 5.000_001, up), (1, 6.000_001, up)]);
}

#[test]
fn while_all_instances_are_busy_time_outs_are_looked_for_every_half_second() {
    let mut slow = server(8, Some(timing_out(100.0, TimeoutAction::Reject)));
    slow.batch.compute = ComputeSpec::Affine(AffineSpec { base_ms: 2_000.0, item_ms: 0.0 });
    let log = run(&slow, &singles(&[0.0, 50.0, 500.0]));
    let up = "Request timeout expired";
    assert_eq!(failed(&log), [(1, 550.0, up), (2, 1050.0, up)]);
}

#[test]
fn priority_1_goes_first_and_unknown_levels_are_the_default() {
    let batcher = BatcherSpec { priority_levels: 3, default_priority_level: 2, ..BatcherSpec::default() };
    let of = |id, priority| Submit { priority, ..sized(id, 1) };
    let script = [(0.0, of(0, 0)), (1.0, of(1, 3)), (2.0, of(2, 0)), (3.0, of(3, 1)), (4.0, of(4, 9))];
    let expected: [(f64, &[u64]); 5] = [(0.0, &[0]), (10.0, &[3]), (20.0, &[2]), (30.0, &[4]), (40.0, &[1])];
    check(&server(1, Some(batcher.clone())), &script, &expected);
    check(&server(8, Some(batcher)), &script, &[(0.0, &[0]), (10.0, &[3, 2, 4, 1])]);
}

#[test]
fn a_level_keeps_to_its_own_policy() {
    let own = QueuePolicySpec { max_queue_size: 1, ..QueuePolicySpec::default() };
    let batcher = BatcherSpec {
        priority_levels: 2,
        default_priority_level: 2,
        priority_queue_policy: vec![LevelPolicySpec { level: 1, policy: own }],
        ..BatcherSpec::default()
    };
    let mut world = world(&spec_of(&server(8, Some(batcher))));
    let of = |id, priority| Submit { priority, ..sized(id, 1) };
    world.submit(at(0.0), of(0, 1)).expect("empty");
    world.step(at(0.0), &mut Vec::new());
    assert!(world.submit(at(1.0), of(1, 1)).is_ok());
    assert_eq!(world.submit(at(1.0), of(2, 1)).map_err(|refused| refused.status()), Err(Some(503)));
    assert!(world.submit(at(1.0), of(3, 2)).is_ok());
    assert!(world.submit(at(1.0), of(4, 2)).is_ok());
}

#[test]
fn a_delayed_request_goes_before_those_of_the_next_level() {
    let batcher = BatcherSpec {
        priority_levels: 2,
        default_priority_level: 1,
        ..timing_out(4.0, TimeoutAction::Delay)
    };
    let of = |id, priority| Submit { priority, ..sized(id, 1) };
    // At 10 the time-out of 1 has passed, that of 2 (level 2) and 3 has not.
    let script = [(0.0, of(0, 1)), (1.0, of(1, 1)), (8.0, of(2, 2)), (9.0, of(3, 1))];
    check(&server(8, Some(batcher)), &script, &[(0.0, &[0]), (10.0, &[3, 1, 2])]);
}

#[test]
fn preserved_ordering_holds_responses_back() {
    let mut two = DynamicSpec { instances: 2, ..server(8, Some(greedy())) };
    two.batch.compute = ComputeSpec::Affine(AffineSpec { base_ms: 0.0, item_ms: 1.0 });
    let script = [(0.0, sized(0, 8)), (1.0, sized(1, 1)), (3.0, sized(2, 8))];
    assert_eq!(finished(&run(&two, &script)), [(1, 2.0), (0, 8.0), (2, 11.0)]);
    two.dynamic_batching = Some(BatcherSpec { preserve_ordering: true, ..greedy() });
    assert_eq!(finished(&run(&two, &script)), [(0, 8.0), (1, 8.0), (2, 11.0)]);
}

#[test]
fn the_front_is_a_pipe_and_overlaps_with_the_instance() {
    let mut spec = server(8, Some(greedy()));
    spec.front = FrontSpec { request_ms: 1.0, item_ms: 2.0 };
    spec.response_ms = 0.5;
    // Two items, then one: through the pipe at 4 and 6, in the queue at 5 and 7.
    let log = run(&spec, &[(0.0, sized(0, 2)), (0.0, sized(1, 1))]);
    assert_eq!(started(&log), [(5.0, vec![0]), (15.0, vec![1])]);
    assert_eq!(finished(&log), [(0, 15.5), (1, 25.5)]);
}

#[test]
fn a_queue_that_is_full_behind_the_front_answers_503_later() {
    let mut batcher = greedy();
    batcher.default_queue_policy.max_queue_size = 1;
    let mut spec = server(8, Some(batcher));
    spec.front.request_ms = 1.0;
    let log = run(&spec, &singles(&[0.0, 2.0, 2.5]));
    assert_eq!(failed(&log), [(2, 3.5, "Exceeds maximum queue size")]);
}

fn staged(overlap: Overlap) -> DynamicSpec {
    let mut spec = server(8, None);
    spec.batch = BatchCostSpec {
        input: AffineSpec { base_ms: 3.0, item_ms: 1.0 },
        compute: ComputeSpec::Affine(AffineSpec { base_ms: 5.0, item_ms: 1.0 }),
        output: AffineSpec { base_ms: 1.0, item_ms: 0.0 },
        overlap,
        jitter_cv: 0.0,
    };
    spec
}

#[test]
fn serial_stages_hold_the_instance_and_pipelined_input_overlaps_with_compute() {
    let script = singles(&[0.0; 3]);
    let serial = run(&staged(Overlap::Serial), &script);
    assert_eq!(started(&serial), [(0.0, vec![0]), (11.0, vec![1]), (22.0, vec![2])]);
    assert_eq!(finished(&serial), [(0, 11.0), (1, 22.0), (2, 33.0)]);
    // Input 0–4, compute 4–10; input 4–8, compute 10–16; input 10–14, compute 16–22.
    let pipelined = run(&staged(Overlap::Pipelined), &script);
    assert_eq!(started(&pipelined), [(0.0, vec![0]), (4.0, vec![1]), (10.0, vec![2])]);
    assert_eq!(finished(&pipelined), [(0, 11.0), (1, 17.0), (2, 23.0)]);
}

#[test]
fn totals_are_what_tritons_counters_are() {
    let mut spec = staged(Overlap::Serial);
    spec.dynamic_batching = Some(greedy());
    let mut world = world(&spec_of(&spec));
    let script = [(0.0, sized(0, 1)), (1.0, sized(1, 2)), (2.0, sized(2, 1))];
    let script: Vec<(At, Act)> =
        script.iter().map(|(ms, request)| (at(*ms), Act::Submit(request.clone()))).collect();
    play(&mut world, &script);
    let totals = world.gauges().totals;
    assert_eq!((totals.finished, totals.items, totals.steps), (3, 4, 2));
    // 0 starts at 0; 1 and 2 (three items together) at 11: they waited 10 and 9 ms.
    assert_eq!(totals.queue_ns, 19_000_000);
    // Per request, not per batch: 4 + 2 × 6, 6 + 2 × 8, 3 × 1.
    assert_eq!(totals.input_ns, 16_000_000);
    assert_eq!(totals.compute_ns, 22_000_000);
    assert_eq!(totals.output_ns, 3_000_000);
}

#[test]
fn a_cancelled_request_leaves_the_queue_but_not_its_batch() {
    let spec = spec_of(&server(8, Some(not_ahead(greedy()))));
    let submit = |ms: f64, id| (at(ms), Act::Submit(sized(id, 1)));
    let script = [
        submit(0.0, 0),
        submit(1.0, 1),
        submit(2.0, 2),
        (at(3.0), Act::Cancel(1)),
        (at(4.0), Act::Cancel(0)),
    ];
    let mut world = world(&spec);
    let log = play(&mut world, &script);
    assert_eq!(started(&log), [(0.0, vec![0]), (10.0, vec![2])]);
    assert_eq!(finished(&log), [(2, 20.0)]);
    let gauges = world.gauges();
    assert_eq!((gauges.running, gauges.waiting, gauges.totals.cancelled), (0, 0, 2));
    assert!(!world.cancel(at(30.0), 0));
}

#[test]
fn faults_slow_stall_and_crash_a_server_of_batches() {
    let mut engine = Engine::new(&spec_of(&server(8, Some(greedy()))), 1).expect("sound");
    let mut log = Vec::new();
    engine.submit(at(0.0), sized(0, 1)).expect("idle");
    engine.step(at(0.0), &mut log);
    engine.submit(at(1.0), sized(1, 1)).expect("waits");
    // The present batch would end at 10; no batch ends or starts before 15. From now on batches take 2 × 10 + 5 ms.
    engine.stall(at(15.0));
    engine.set_speed(2.0);
    engine.extra_step_us(5_000.0);
    engine.step(at(50.0), &mut log);
    assert_eq!(
        (started(&log), finished(&log)),
        (vec![(0.0, vec![0]), (15.0, vec![1])], vec![(0, 15.0), (1, 40.0)])
    );
    engine.submit(at(50.0), sized(2, 1)).expect("idle");
    engine.step(at(50.0), &mut log);
    engine.submit(at(51.0), sized(3, 1)).expect("waits");
    assert_eq!(engine.reset(at(52.0)), [2, 3]);
    assert_eq!(engine.next_event(), None);
    engine.submit(at(53.0), sized(4, 1)).expect("idle again");
    log.clear();
    engine.step(at(100.0), &mut log);
    assert_eq!(finished(&log), [(4, 78.0)]);
}

#[test]
fn a_table_is_straight_between_its_points_and_beyond() {
    let points = [(8, 3.0), (32, 7.0), (64, 11.0)];
    let points = points.iter().map(|&(items, ms)| BatchPoint { items, ms }).collect();
    let table = ComputeSpec::Table(TableSpec { points });
    for (items, ms) in [(8, 3.0), (14, 4.0), (32, 7.0), (48, 9.0), (64, 11.0), (128, 19.0), (2, 2.0)] {
        assert!((table.ms(items) - ms).abs() < 1e-12, "{items}: {}", table.ms(items));
    }
}

#[test]
fn what_triton_refuses_to_load_is_refused() {
    let refused = |change: &dyn Fn(&mut DynamicSpec)| {
        let mut spec = server(8, Some(greedy()));
        change(&mut spec);
        World::new(&spec_of(&spec), 1).map(|_| ()).expect_err("must be refused").to_string()
    };
    let batcher = |change: fn(&mut BatcherSpec)| {
        refused(&|spec| change(spec.dynamic_batching.as_mut().expect("there is one")))
    };
    assert!(batcher(|b| b.preferred_batch_size = vec![9]).contains("preferred_batch_size: 9 is not"));
    assert!(batcher(|b| b.preferred_batch_size = vec![0]).contains("preferred_batch_size: 0 is not"));
    assert!(batcher(|b| b.priority_levels = 2).contains("default_priority_level: 0 is not"));
    assert!(batcher(|b| b.default_priority_level = 1).contains("default_priority_level: 1 is not"));
    assert!(batcher(|b| b.max_queue_delay_us = u64::MAX).contains("an hour"));
    let ordered = |b: &mut BatcherSpec| {
        (b.preserve_ordering, b.priority_levels, b.default_priority_level) = (true, 2, 1);
    };
    assert!(batcher(ordered).contains("preserve_ordering"));
    let delayed = |b: &mut BatcherSpec| {
        *b = BatcherSpec { preserve_ordering: true, ..timing_out(1.0, TimeoutAction::Delay) };
    };
    assert!(batcher(delayed).contains("preserve_ordering"));
    let own = |level| LevelPolicySpec { level, policy: QueuePolicySpec::default() };
    assert!(
        refused(&|spec| {
            spec.dynamic_batching = Some(BatcherSpec { priority_queue_policy: vec![own(1)], ..greedy() });
        })
        .contains("priority_queue_policy.level: 1 is not")
    );
    assert!(refused(&|spec| spec.instances = 0).contains("mode.instances"));
    assert!(refused(&|spec| spec.max_batch_size = 0).contains("mode.max_batch_size"));
    assert!(refused(&|spec| spec.batch.jitter_cv = -1.0).contains("mode.batch.jitter_cv"));
    assert!(refused(&|spec| spec.front.item_ms = f64::NAN).contains("mode.front.item_ms"));
    let nothing = ComputeSpec::Affine(AffineSpec::default());
    assert!(refused(&|spec| spec.batch.compute = nothing.clone()).contains("mode.batch.compute"));
    let table = |points: &[(u32, f64)]| {
        let points = points.iter().map(|&(items, ms)| BatchPoint { items, ms }).collect();
        let table = ComputeSpec::Table(TableSpec { points });
        refused(&move |spec| spec.batch.compute = table.clone())
    };
    assert!(table(&[(1, 1.0)]).contains("at least two points"));
    assert!(table(&[(2, 1.0), (2, 2.0)]).contains("ascending"));
    assert!(table(&[(1, 2.0), (2, 1.0)]).contains("at least the time of the smaller"));
    assert!(table(&[(8, 1.0), (10, 3.0)]).contains("a batch of one"));
}

#[test]
fn a_file_with_every_field_is_read_and_unknown_ones_are_refused() {
    let text = r#"{ "kind": "dynamic", "instances": 2, "max_batch_size": 8,
        "dynamic_batching": { "preferred_batch_size": [4, 8], "max_queue_delay_us": 2000,
            "priority_levels": 2, "default_priority_level": 2,
            "default_queue_policy": { "timeout_action": "reject", "default_timeout_us": 2000000,
                "allow_timeout_override": false, "max_queue_size": 64 },
            "priority_queue_policy": [ { "level": 1, "policy": { "timeout_action": "delay" } } ] },
        "front": { "request_ms": 0.5, "item_ms": 0.1 },
        "batch": { "input": { "item_ms": 0.07 }, "compute": { "kind": "affine", "base_ms": 2.0, "item_ms": 0.08 },
            "overlap": "pipelined", "jitter_cv": 0.05 } }"#;
    let mode: ModeSpec = serde_json::from_str(text).expect("every field is known");
    let again: ModeSpec =
        serde_json::from_str(&serde_json::to_string(&mode).expect("plain")).expect("its own");
    assert_eq!(mode, again);
    World::new(&engine(mode), 1).expect("sound");
    let wrong = text.replace("max_queue_size", "max_queue_sise");
    let error = serde_json::from_str::<ModeSpec>(&wrong).expect_err("no such field").to_string();
    assert!(error.contains("max_queue_sise") && error.contains("max_queue_size"), "{error}");
}
