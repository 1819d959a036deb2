//! Batching servers against theory and against published rows of Triton.

use plimsoll_math::queueing::Bulk;
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::spec::dynamic::{AffineSpec, BatchCostSpec, BatcherSpec, ComputeSpec, FrontSpec, Overlap};
use plimsoll_sim::{
    DynamicSpec, ModeSpec, RequestEvent, SimLevelPlan, Submit, World, catalogue::profile, simulate_level,
};
use plimsoll_workload::{Scenario, Size};

use crate::queue_theory::covers;
use crate::util::{engine, play, poisson, times};

/// Returns a greedy server with one instance and a service of a + b n ms.
fn greedy(max_batch_size: u32, base_ms: f64, item_ms: f64, jitter_cv: f64) -> DynamicSpec {
    DynamicSpec {
        instances: 1,
        max_batch_size,
        dynamic_batching: Some(BatcherSpec::default()),
        front: FrontSpec::default(),
        batch: BatchCostSpec {
            input: AffineSpec::default(),
            compute: ComputeSpec::Affine(AffineSpec { base_ms, item_ms }),
            output: AffineSpec::default(),
            overlap: Overlap::Serial,
            jitter_cv,
        },
        response_ms: 0.0,
    }
}

/// Returns the mean latency in ms for Poisson arrivals, after a warm-up of a tenth, for each of `seeds` seeds.
fn open_loop(spec: &DynamicSpec, rate_per_s: f64, seeds: u64) -> Vec<f64> {
    let one = |seed| {
        let script = poisson(seed, rate_per_s, 10_000, |_| (1, 0));
        let mut world = World::new(&engine(ModeSpec::Dynamic(spec.clone())), seed).expect("sound");
        let ends = times(&play(&mut world, &script), |what| matches!(what, RequestEvent::Finished { .. }));
        assert_eq!(ends.len(), script.len());
        let late = ends.iter().filter(|(id, _)| *id >= 1_000);
        let (mut sum, mut count) = (0.0, 0.0);
        for (id, at) in late {
            sum += (*at - script[*id as usize].0).as_millis_f64();
            count += 1.0;
        }
        sum / count
    };
    (0..seeds).map(one).collect()
}

/// Returns the mean latency of M/D^[1,B]/1 with service a + b n in ms, from the chain embedded at the ends of
/// services.
///
/// Its state is the number of waiting requests when a batch ends. With q of them the next batch has n = min(max(q,
/// 1), B), after an idle time if q = 0; meanwhile Poisson(λ t(n)) arrive. The time-average number in the system is
/// the area of a cycle over its length, and Little's law gives the latency.
fn bulk_latency(max_batch: usize, base_ms: f64, item_ms: f64, rate_per_ms: f64) -> f64 {
    const STATES: usize = 160;
    let time = |n: usize| base_ms + item_ms * n as f64;
    let arrivals: Vec<Vec<f64>> = (0..=max_batch)
        .map(|n| {
            let mean = rate_per_ms * time(n);
            let mut term = (-mean).exp();
            (0..STATES)
                .map(|k| {
                    let now = term;
                    term *= mean / (k + 1) as f64;
                    now
                })
                .collect()
        })
        .collect();
    let mut share = vec![0.0; STATES];
    share[0] = 1.0;
    for _ in 0..3_000 {
        let mut next = vec![0.0; STATES];
        for (q, weight) in share.iter().enumerate().filter(|(_, weight)| **weight > 1e-18) {
            let left = q.saturating_sub(max_batch);
            let likely = arrivals[q.clamp(1, max_batch)].iter().enumerate();
            for (k, chance) in likely.take_while(|(k, chance)| *k < 8 || **chance > 1e-18) {
                next[(left + k).min(STATES - 1)] += weight * chance;
            }
        }
        let moved: f64 = share.iter().zip(&next).map(|(a, b)| (a - b).abs()).sum();
        share = next;
        if moved < 1e-13 {
            break;
        }
    }
    let (mut area, mut length) = (0.0, 0.0);
    for (q, weight) in share.iter().enumerate() {
        let t = time(q.clamp(1, max_batch));
        let idle = if q == 0 { 1.0 / rate_per_ms } else { 0.0 };
        area += weight * (q.max(1) as f64 * t + 0.5 * rate_per_ms * t * t);
        length += weight * (t + idle);
    }
    area / length / rate_per_ms
}

#[test]
fn the_embedded_chain_with_batches_of_one_is_pollaczek_and_khinchine() {
    // M/D/1 at load 0.8: service × (1 + 0.8 / (2 × 0.2)).
    assert!((bulk_latency(1, 3.0, 2.0, 0.16) - 15.0).abs() < 1e-6);
}

#[test]
fn the_greedy_bulk_queue_has_the_mean_of_its_embedded_chain() {
    // Capacity 8 / (2 + 0.5 × 8) = 1.333 per ms.
    for load in [0.2, 0.6, 0.85] {
        let rate_per_ms = load * 8.0 / 6.0;
        let truth = bulk_latency(8, 2.0, 0.5, rate_per_ms);
        let law = Bulk { fixed: 2.0, each: 0.5, most: 8 }.at(rate_per_ms).expect("under capacity");
        assert!((law.mean / truth - 1.0).abs() < 1e-9, "{} against {truth}", law.mean);
        covers(
            &format!("bulk queue at {load}, mean latency"),
            &open_loop(&greedy(8, 2.0, 0.5, 0.0), rate_per_ms * 1e3, 20),
            truth,
        );
    }
}

#[test]
fn with_batches_of_one_it_is_mg1() {
    // Pollaczek and Khinchine with a mean of 5 ms: service + load (1 + cv²) service / (2 (1 − load)).
    for (load, cv) in [(0.6, 0.5), (0.5, 1.5)] {
        let truth = 5.0 + load * (1.0 + cv * cv) * 5.0 / (2.0 * (1.0 - load));
        let (spec, rate_per_s) = (greedy(1, 3.0, 2.0, cv), load * 200.0);
        covers(&format!("M/G/1 at {load}, cv {cv}"), &open_loop(&spec, rate_per_s, 20), truth);
        let alone = DynamicSpec { dynamic_batching: None, max_batch_size: 8, ..spec.clone() };
        assert_eq!(open_loop(&alone, rate_per_s, 1), open_loop(&spec, rate_per_s, 1));
    }
}

#[test]
fn past_its_capacity_it_serves_the_largest_batch_over_its_time() {
    let script = poisson(3, 2.0 * 8.0 / 6.0 * 1e3, 20_000, |_| (1, 0));
    let mut world = World::new(&engine(ModeSpec::Dynamic(greedy(8, 2.0, 0.5, 0.0))), 3).expect("sound");
    let ends = times(&play(&mut world, &script), |what| matches!(what, RequestEvent::Finished { .. }));
    let (first, last) = (ends[1_000].1, ends[19_000].1);
    let per_ms = 18_000.0 / (last - first).as_millis_f64();
    assert!((per_ms / (8.0 / 6.0) - 1.0).abs() < 1e-3, "{per_ms} a ms");
}

/// Returns the latencies in ms of clients that send requests of `items` items in sequence, started 10 µs apart, and
/// the items per second. The first quarter is left out.
fn closed_loop(spec: &DynamicSpec, clients: u64, items: u32, count: u64) -> (Vec<f64>, f64) {
    let mut world = World::new(&engine(ModeSpec::Dynamic(spec.clone())), 1).expect("sound");
    let submit = |world: &mut World, at, id| {
        world.submit(at, Submit { items, ..Submit::new(id, 1, 0) }).expect("no bound");
    };
    let mut sent: Vec<At> = (0..clients).map(|client| At(client as i64 * 10_000)).collect();
    let mut log = Vec::new();
    for id in 0..clients {
        while let Some(next) = world.next_event().filter(|next| *next < sent[id as usize]) {
            world.step(next, &mut log);
        }
        submit(&mut world, sent[id as usize], id);
    }
    let (mut latencies, mut stamps) = (Vec::new(), Vec::new());
    while let Some(now) = world.next_event() {
        world.step(now, &mut log);
        for emission in std::mem::take(&mut log) {
            if !matches!(emission.what, RequestEvent::Finished { .. }) {
                continue;
            }
            latencies.push((emission.at - sent[emission.id as usize]).as_millis_f64());
            stamps.push(emission.at);
            let next = sent.len() as u64;
            if next < count {
                sent.push(emission.at);
                submit(&mut world, emission.at, next);
            }
        }
    }
    let warm = latencies.len() / 4;
    let late = latencies.len() - clients as usize;
    let spanned = (stamps[late] - stamps[warm]).as_secs_f64();
    let rate = (late - warm) as f64 * f64::from(items) / spanned;
    (latencies[warm..late].to_vec(), rate)
}

#[test]
fn a_closed_loop_settles_into_two_groups_that_take_turns() {
    // For any group sizes, a request waits for both batches: 2 (a + b C/2).
    for clients in [4, 16, 40] {
        let (latencies, rate) = closed_loop(&greedy(64, 2.0, 0.25, 0.0), clients, 1, 4_000);
        let truth = 2.0 * (2.0 + 0.25 * clients as f64 / 2.0);
        assert!(latencies.iter().all(|ms| (ms - truth).abs() < 1e-6), "{clients}: {latencies:?}");
        assert!((rate / (clients as f64 / truth * 1e3) - 1.0).abs() < 0.01, "{clients}: {rate}");
    }
    // A single client has no contention.
    let (latencies, _) = closed_loop(&greedy(64, 2.0, 0.25, 0.0), 1, 1, 100);
    assert!(latencies.iter().all(|ms| (ms - 2.25).abs() < 1e-6));
    // With more clients than two batches contain, the largest batch limits the throughput.
    let (_, rate) = closed_loop(&greedy(8, 2.0, 0.25, 0.0), 48, 1, 4_800);
    assert!((rate / (8.0 / 4.0 * 1e3) - 1.0).abs() < 0.01, "{rate}");
}

fn dynamic(name: &str) -> DynamicSpec {
    match profile::find(name).expect("known").spec.mode {
        ModeSpec::Dynamic(spec) => spec,
        other => panic!("{name} is {other:?}"),
    }
}

/// Returns the rows of a fixture for this GPU (first column) as numbers; an empty field is NaN.
fn rows(csv: &str, gpu: &str) -> Vec<Vec<f64>> {
    let of = csv.lines().filter_map(|line| line.strip_prefix(gpu)?.strip_prefix(','));
    let number = |field: &str| field.parse().unwrap_or(f64::NAN);
    of.map(|line| line.split(',').map(number).collect()).collect()
}

/// Returns the mean latency in ms and the requests per second of a closed loop with the virtual client.
fn level(name: &str, concurrency: u32) -> (f64, f64) {
    let mut scenario = Scenario { seed: 5, ..Scenario::default() };
    scenario.sizes.prompt = Size::Fixed(1);
    scenario.sizes.output = Size::Fixed(1);
    let mut world = World::new(&profile::find(name).expect("known").spec, 1).expect("sound");
    let plan = SimLevelPlan::new(&scenario, 0, Load::Closed { concurrency }, At(0), Span::from_secs(5));
    let run = simulate_level(&mut world, &scenario, plan).expect("sound");
    let (from, to) = (At(1_000_000_000), At(5_000_000_000));
    let ends = run.attempts.iter().filter_map(|one| Some((one.due, one.end?)));
    let within: Vec<f64> = ends
        .filter(|(_, end)| (from..to).contains(end))
        .map(|(due, end)| (end - due).as_millis_f64())
        .collect();
    (within.iter().sum::<f64>() / within.len() as f64, within.len() as f64 / 4.0)
}

#[expect(clippy::print_stdout, reason = "the table of figures against truth is read with --nocapture")]
fn near(what: &str, found: f64, expected: f64, tolerance: f64) {
    println!("{what}: {found:.3} against {expected}, {:+.1} %", (found / expected - 1.0) * 100.0);
    assert!((found / expected - 1.0).abs() <= tolerance, "{what}: {found} against {expected}");
}

#[test]
fn resnet_behind_the_dynamic_batcher_is_as_published() {
    let csv = include_str!("../../fixtures/triton_resnet50_dynamic_batching_calib.csv");
    // On the T4 three points make a convex curve, on which groups of unequal size are slower than equal ones.
    for (gpu, name, rows_there, tolerance) in
        [("A100", "resnet50-triton@a100", 4, 0.05), ("T4", "resnet50-triton@t4", 3, 0.125)]
    {
        let rows = rows(csv, gpu);
        assert_eq!(rows.len(), rows_there);
        for row in rows {
            let (clients, per_s, latency_ms) = (row[0], row[1], row[6]);
            let (found_ms, found_per_s) = level(name, clients as u32);
            near(&format!("{name}, {clients} clients, latency"), found_ms, latency_ms, tolerance);
            near(&format!("{name}, {clients} clients, throughput"), found_per_s, per_s, tolerance);
        }
    }
}

#[test]
fn a_synchronous_client_sees_the_transfer_that_a_loaded_server_hides() {
    let csv = include_str!("../../fixtures/triton_resnet50_offline.csv");
    let spec = dynamic("resnet50-triton@a100");
    for row in rows(csv, "A100").into_iter().filter(|row| row[0] <= 32.0) {
        let (latencies, _) = closed_loop(&spec, 1, row[0] as u32, 2_000);
        let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
        near(&format!("requests of {} images, latency", row[0]), mean, row[2], 0.10);
    }
}

#[test]
fn bert_large_is_as_published() {
    let csv = include_str!("../../fixtures/triton_bert_large_seq384.csv");
    for (gpu, name) in [("A100", "bert-large-384-triton@a100"), ("T4", "bert-large-384-triton@t4")] {
        let spec = dynamic(name);
        for (_, items, per_s, latency_ms) in
            rows(csv, gpu).iter().map(|row| (row[0], row[1] as u32, row[2], row[3]))
        {
            let (latencies, rate) = closed_loop(&spec, 1, items, 2_000);
            let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
            near(&format!("{name}, requests of {items}, latency"), mean, latency_ms, 0.06);
            near(&format!("{name}, requests of {items}, throughput"), rate, per_s, 0.06);
        }
    }
}

#[test]
fn derivations_name_their_source_and_the_error_to_expect() {
    for profile in profile::all() {
        if matches!(profile.spec.mode, ModeSpec::Dynamic(_)) {
            let text = profile.derivation();
            assert!(text.contains("expect ") && text.contains("capacity"), "{}: {text}", profile.name);
        }
    }
    // 128 items in 20.882 ms.
    assert!(
        profile::find("resnet50-triton@a100").expect("known").derivation().contains("capacity 6130 items/s")
    );
    assert!(profile::find("bert-base-384-triton@a100").expect("known").derivation().contains("scaled"));
}
