//! Levers: evidence from schedules with known repeats, hand-computed replays, and predictions compared with long
//! simulations on unseen arrivals.

use plimsoll_measure::findings::Metric;
use plimsoll_measure::summarise;
use plimsoll_model::{Attempt, Load, ServerStage, Span};
use plimsoll_plan::change::Change;
use plimsoll_plan::levers::candidate::{self, TrafficChange};
use plimsoll_plan::levers::evidence::SharesFrom;
use plimsoll_plan::levers::predict::{LeverPrediction, Simulator};
use plimsoll_plan::levers::{
    FigureOrigin, Goal, LeverCase, LeverEffortSpec, LeverOrder, Term, catalogue, rank,
};
use plimsoll_plan::recorded::requests;
use plimsoll_profile::infer::{self, ComputeFloor, WaitPart};
use plimsoll_sim::{EngineSpec, LawSpec, ModeSpec, QueueSpec, StepSpec, WorldSpec};
use plimsoll_workload::{Pause, SessionSpec, Size};

use crate::fit_systems;
use crate::lever_systems::{per_day, spec, system};
use plimsoll_lab::records::{MS, answer, level};

/// Returns 100 requests per second with these blocks. Each takes `queue` + 10 + 80 ms by the server's report and 10 ms
/// outside it.
fn records(n: u64, queue: impl Fn(u64) -> i64, blocks: impl Fn(u64) -> Vec<u64>) -> Vec<Attempt> {
    let one = |i: u64| {
        let waited = queue(i);
        let mut row = answer(i, 10 * i as i64, waited + 20, waited + 100, 9);
        row.asked_prompt = 32;
        row.answer.tokens.prompt = Some(32);
        row.prompt_blocks = blocks(i);
        let stages = [("queue", waited), ("prefill", 10), ("decode", 80)];
        let stage = |(name, ms): (&str, i64)| ServerStage { name: name.into(), took: Span(ms * MS) };
        row.answer.stages = stages.into_iter().map(stage).collect();
        row
    };
    (0..n).map(one).collect()
}

fn judged(rows: &[Attempt]) -> plimsoll_plan::levers::LeverFinding {
    judged_beside(rows, None)
}

/// Returns the finding with a known latency of isolated requests.
fn judged_beside(rows: &[Attempt], floor: Option<ComputeFloor>) -> plimsoll_plan::levers::LeverFinding {
    let level = level(100.0, rows.len() as i64 / 100);
    let summary = summarise(&level, rows, &[], None);
    let attempts: Vec<&Attempt> = rows.iter().collect();
    let case = LeverCase {
        level: &level,
        summary: &summary,
        attempts: &attempts,
        samples: &[],
        floor,
        world: None,
        redraw: None,
    };
    let goal = Goal { metric: Metric::E2e, percentile: 0.95, limit_s: None };
    rank(&case, &spec(3, goal))
}

#[test]
fn repeats_and_shared_beginnings_are_counted_before_anyone_builds_a_cache() {
    // Two blocks per prompt. Of four prompts one is a whole repeat, one shares its first block, two are new.
    let rows = records(
        4_000,
        |_| 0,
        |i| match i % 4 {
            0 => vec![1, 2],
            1 => vec![1, 1_000 + i],
            _ => vec![10_000 + i, 20_000 + i],
        },
    );
    let evidence = judged(&rows).evidence;
    // The warm-up cut may move the first few: 1/4 of the prompts, and (32 + 16 + 0 + 0) / (4 × 32) of the tokens.
    let repeats = evidence.exact_repeats.expect("prompts with blocks").value;
    let reuse = evidence.prefix_reuse.expect("prompts with blocks").value;
    assert!((repeats - 0.25).abs() < 0.002, "{repeats}");
    assert!((reuse - 0.375).abs() < 0.002, "{reuse}");
    let fresh = judged(&records(2_000, |_| 0, |i| vec![2 * i, 2 * i + 1]));
    let why = |id: &str| fresh.ruled_out.iter().find(|out| out.lever == id).map(|out| out.why.clone());
    assert_eq!(
        why("exact-cache").expect("ruled out"),
        format!("0.0 % of {} prompts came before", fresh.evidence.requests)
    );
    assert!(why("prefix-cache").is_some() && why("streaming").is_some());
}

#[test]
fn shares_of_the_slow_tenth_are_the_servers() {
    // Every tenth request waits 300 ms and belongs to the slow tenth, with 400 ms in all.
    let finding = judged(&records(2_000, |i| if i % 10 == 7 { 300 } else { 0 }, |_| vec![]));
    let evidence = &finding.evidence;
    assert_eq!(evidence.shares_from, SharesFrom::Server);
    for (term, share) in
        [(Term::Queue, 0.75), (Term::Prefill, 0.025), (Term::Decode, 0.2), (Term::Host, 0.025)]
    {
        let found = evidence.share(term).expect("a share").value;
        assert!((found - share).abs() < 1e-9, "{term:?} {found}");
    }
    // A lever only on prefill is under a twentieth; without an engine the others are bounds and never ranked.
    assert!(finding.ranked.is_empty());
    let bound = |id: &str| finding.bounded.iter().find(|b| b.lever == id).map(|b| b.at_most);
    assert!((bound("replicas").expect("bounded") - 0.975).abs() < 1e-9);
}

/// A server without reported stages: the shares are those of `profile`'s split of the rows. They are near the true shares
/// if the latency of isolated requests is known.
#[test]
fn what_a_silent_server_spends_is_what_profile_says() {
    let silent = |queue: fn(u64) -> i64, n: u64| {
        let mut rows = records(n, queue, |_| vec![]);
        rows.iter_mut().for_each(|row| row.answer.stages.clear());
        rows
    };
    let alone = silent(|_| 0, 400);
    let (lone, _) = infer::rows::rows(&alone.iter().collect::<Vec<_>>());
    let floor = ComputeFloor::of(&lone.iter().collect::<Vec<_>>());
    let rows = silent(|i| if i % 10 == 7 { 300 } else { 0 }, 2_000);
    let finding = judged_beside(&rows, floor);
    assert_eq!(finding.evidence.shares_from, SharesFrom::Inferred);
    let share = |term: Term| finding.evidence.share(term).expect("a share").value;
    let attempts: Vec<&Attempt> = rows.iter().collect();
    let split = infer::infer(&infer::SplitCase {
        level: 0,
        attempts: &attempts,
        from: rows[0].due,
        told: infer::ReportedStages::default(),
        floor,
        ignore_reported: false,
        budget: None,
    });
    let slow: Vec<_> = split.splits.iter().filter(|(i, _)| rows[*i].request % 10 == 7).collect();
    for (term, part) in
        [(Term::Queue, WaitPart::Queue), (Term::Prefill, WaitPart::Prefill), (Term::Decode, WaitPart::Decode)]
    {
        let part: f64 = slow.iter().map(|(_, split)| split[part as usize]).sum();
        let whole: f64 = slow.iter().flat_map(|(_, split)| split).sum();
        assert!((share(term) - part / whole).abs() < 0.01, "{term:?} {} {}", share(term), part / whole);
    }
    // 300 of 400 ms.
    assert!((share(Term::Queue) - 0.75).abs() < 0.03, "{}", share(Term::Queue));
}

#[test]
fn a_faster_model_is_taken_out_of_every_row() {
    // p95 is among the waiting requests: 400 ms, 90 of them the model's. Twice as fast saves 45 ms, a model without time 90
    // ms.
    let finding = judged(&records(2_000, |i| if i % 10 == 7 { 300 } else { 0 }, |_| vec![]));
    let faster = finding.faster_model.expect("stages");
    assert_eq!(faster.how, FigureOrigin::Replayed);
    assert!((faster.twice.value - 45.0 / 400.0).abs() < 1e-6, "{faster:?}");
    assert!((faster.ten_times.value - 81.0 / 400.0).abs() < 1e-6);
    assert!((faster.at_most - 90.0 / 400.0).abs() < 1e-6);
}

#[test]
fn the_catalogue_holds_every_lever_that_is_owed() {
    let owed = [
        "batching",
        "continuous-batching",
        "request-routing",
        "model-routing",
        "exact-cache",
        "semantic-cache",
        "prefix-cache",
        "context-trimming",
        "streaming",
        "quantisation",
        "speculative-decoding",
        "runtime",
        "kernels",
        "bigger-gpu",
        "autoscaling",
        "async-split",
        "max-seqs",
        "token-budget",
        "compiled-profile",
        "dedicated-pools",
        "tensor-sharding",
        "pipeline-sharding",
        "admission",
        "hedging",
        "adapter-preload",
    ];
    for id in owed {
        assert!(catalogue::find(id).is_some(), "{id}");
    }
    for lever in catalogue::all() {
        assert!(
            lever.effort_days > 0.0 && !lever.moves.is_empty() && !lever.no_help.is_empty(),
            "{}",
            lever.id
        );
    }
    let touching = ["model-routing", "semantic-cache", "context-trimming", "quantisation"];
    let said: Vec<&str> = catalogue::all().iter().filter(|l| l.touches_model).map(|l| l.id).collect();
    assert_eq!(said, touching);
}

#[test]
fn efforts_are_ones_own() {
    let own = |id: &str, days: f64| LeverEffortSpec {
        days: [(id.to_owned(), days)].into(),
        ..LeverEffortSpec::default()
    };
    assert!(own("prefix-cache", 0.1).check().is_ok());
    assert!(own("prefix-cash", 0.1).check().unwrap_err().contains("prefix-cache"));
    assert!(own("prefix-cache", 0.0).check().is_err());
    let lever = catalogue::find("tensor-sharding").expect("a lever");
    // One day of work and one doubling of the price; by cost, the gain includes the price.
    assert_eq!(LeverEffortSpec::default().of(lever, Some(2.0), LeverOrder::Latency), 11.0);
    assert_eq!(LeverEffortSpec::default().of(lever, Some(2.0), LeverOrder::Cost), 1.0);
    assert_eq!(own("tensor-sharding", 3.0).of(lever, Some(1.0), LeverOrder::Latency), 3.0);
}

#[test]
fn faster_steps_leave_the_host_as_it_is() {
    let system = system(1, 400.0);
    let world = Change::FasterSteps(1e9).made(&system.world).expect("an engine with steps");
    let (ModeSpec::Batching(before), ModeSpec::Batching(after)) =
        (&system.world.engine.mode, &world.engine.mode)
    else {
        panic!("both batch");
    };
    assert_eq!((before.front_ms, before.emit_us), (after.front_ms, after.emit_us));
    let (StepSpec::Roofline(before), StepSpec::Roofline(after)) = (&before.step, &after.step) else {
        panic!("both are of the catalogue");
    };
    assert_eq!(before.host, after.host);
}

#[test]
fn repeats_are_answered_in_front_of_the_engine() {
    let asked = |due_ns: i64, blocks: Vec<u64>| plimsoll_plan::levers::ReplayRequest {
        due_ns,
        prompt: 32,
        output: 8,
        blocks,
        session: None,
        turn: None,
        think_ns: None,
    };
    let traffic = [asked(1, vec![1, 2]), asked(2, vec![1, 3]), asked(3, vec![1, 2]), asked(4, vec![])];
    let (sent, hits) = TrafficChange::WithoutRepeats.apply(&traffic);
    assert_eq!((sent.len(), hits), (3, vec![3]));
    let (cut, _) = TrafficChange::Trimmed(0.5).apply(&traffic);
    assert_eq!((cut[0].prompt, cut[0].blocks.len()), (16, 1));
}

/// The bar in small: four systems whose p95 six hundred requests determine, with the first lever applied on unseen
/// arrivals. `examples/levers.rs` has thirty.
#[test]
fn the_first_lever_returns_what_was_predicted() {
    let (mut ranked, mut held) = (0, 0);
    for seed in [2002, 2004, 2007, 2008] {
        let system = system(seed, 600.0);
        let finding = system.ranking(6);
        let Some(top) = finding.ranked.first().filter(|top| top.score > 0.0) else { continue };
        ranked += 1;
        // The length is the run's, because the prediction is another run like it, with a cache as cold at its start.
        let asked = system.unseen(seed, 1.0);
        let base = system.truth(&finding.goal, &system.world, &asked, seed, &TrafficChange::AsItIs);
        let candidates = candidate::candidates(&system.world);
        let gains: Vec<f64> = candidates
            .iter()
            .map(|candidate| system.saved(&finding.goal, candidate, &asked, base, seed))
            .collect();
        let of_top = candidates.iter().position(|c| c.lever == top.lever && c.setting == top.setting);
        let of_top = of_top.expect("a candidate");
        held += u32::from(top.latency.lower <= gains[of_top] && gains[of_top] <= top.latency.upper);
        let mut scores: Vec<f64> = candidates.iter().zip(&gains).map(|(c, gain)| per_day(c, *gain)).collect();
        let first = scores[of_top];
        scores.sort_by(f64::total_cmp);
        assert!(first > scores[scores.len() / 2], "{}: {first} of {scores:?}", system.name);
    }
    assert!(ranked == 4 && held >= 3, "{held} of {ranked} inside");
}

#[test]
fn an_engine_that_does_not_fit_predicts_nothing() {
    let mut system = system(2001, 700.0);
    let (level, summary, run) = system.run();
    // The same run, compared with an engine ten times as fast.
    system.world = Change::FasterSteps(10.0).made(&system.world).expect("an engine with steps");
    let finding = system.ranking_of(&level, &summary, &run, 3);
    let fit = finding.fit.expect("an engine was given");
    assert!(!fit.fits && fit.why.contains("does not fit"), "{}", fit.why);
    assert!(finding.ranked.is_empty());
}

/// Returns eight clients without think time and one server of 40 ms, measured for a minute.
fn closed_loop(sessions: Option<SessionSpec>) -> (WorldSpec, fit_systems::Run) {
    let service = LawSpec::Deterministic { ms: 40.0 };
    let mode = ModeSpec::Queue(QueueSpec { servers: 1, service, queue_limit: None });
    let engine = EngineSpec { name: "queue".into(), mode };
    let mut system = fit_systems::System { engine, ..fit_systems::system(0) };
    system.scenario.prompts.sessions = sessions;
    (system.world(), system.under(Load::Closed { concurrency: 8 }, 60.0))
}

/// Returns the predicted effect of this lever on e2e p95 of that run.
fn predicted(world: &WorldSpec, run: &fit_systems::Run, lever: &str) -> Result<LeverPrediction, String> {
    let level = &run.levels[0];
    let summary = summarise(level, &run.attempts, &run.samples, None);
    let attempts: Vec<&Attempt> = run.attempts.iter().collect();
    let case = LeverCase {
        level,
        summary: &summary,
        attempts: &attempts,
        samples: &[],
        floor: None,
        world: Some(world),
        redraw: None,
    };
    let own = requests(level, run.attempts.iter());
    let spec = spec(3, Goal { metric: Metric::E2e, percentile: 0.95, limit_s: None });
    let simulator = Simulator::new(world, &own, &case, &spec)?;
    let candidates = candidate::candidates(world);
    simulator.predict(candidates.iter().find(|one| one.lever == lever).expect("a candidate"))
}

/// Regression: turns answered by a cache were removed from the loop. Their successors arrived at the recorded times, with
/// more requests in flight than clients.
#[test]
fn a_cache_before_sessions_in_a_closed_loop_is_refused() {
    let sessions =
        SessionSpec { turns: Size::Uniform(2, 5), think: Pause::Exponential(Span::from_millis(400)) };
    let (world, run) = closed_loop(Some(sessions));
    let why = predicted(&world, &run, "exact-cache").expect_err("refused");
    assert!(why.contains("in a closed loop a session"), "{why}");
    assert!(predicted(&world, &run, "context-trimming").is_ok());
    // Without sessions, every response frees a place.
    let (world, run) = closed_loop(None);
    assert!(predicted(&world, &run, "exact-cache").is_ok());
}

/// Little's law: eight requests in flight at one server of 40 ms take 320 ms each, 25/s; at two servers 160 ms, 50/s. At
/// the recorded times they would not wait at two servers, and stay at 25/s.
#[test]
fn a_second_replica_halves_the_waits_of_a_closed_loop_and_doubles_its_throughput() {
    let (world, run) = closed_loop(None);
    let latency = predicted(&world, &run, "replicas").expect("simulated").latency.estimate;
    for saved in [latency.lower, latency.value, latency.upper] {
        assert!((saved - 0.5).abs() < 0.01, "{latency:?}");
    }
    let own = requests(&run.levels[0], run.attempts.iter());
    let candidates = candidate::candidates(&world);
    let two = candidates.iter().find(|one| one.lever == "replicas").expect("a candidate");
    for (world, per_s) in [(&world, 25.0), (&two.world, 50.0)] {
        let times = two.traffic.play(world, &own, 1).expect("a sound world");
        let ends = times.iter().map(|one| one.due_ns + one.end.expect("answered"));
        let all_s = ends.max().expect("requests") as f64 / 1e9;
        let throughput = own.len() as f64 / all_s;
        assert!((throughput / per_s - 1.0).abs() < 0.02, "{throughput}/s");
    }
}
