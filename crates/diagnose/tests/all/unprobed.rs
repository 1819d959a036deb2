//! Runs without single requests and without a baseline, as a first look at a server is: sound engines must not be blamed for what long prompts
//! do on any engine.

use plimsoll_diagnose::Cause;
use plimsoll_model::{Attempt, Span};
use plimsoll_sim::{WorldSpec, catalogue};
use plimsoll_workload::{Scenario, Size};

use crate::diagnosed::ask;
use crate::diagnosed::run::{Evidence, Setup};

const LARGE: &str = "llama-3.1-70b@h100x4";
const SMALL: &str = "llama-3.1-8b@h100";

/// A model whose prompts are mostly short and now and then much longer.
fn setup(model: &str, rate_per_s: f64, prompts: &str) -> Setup {
    let engine = catalogue::by_name(model).expect("a pair").expect("it fits");
    let mut scenario = Scenario::default();
    scenario.sizes.prompt = Size::parse(prompts).expect("sizes");
    scenario.sizes.output = Size::parse("lognormal:100,0.8").expect("sizes");
    Setup {
        world: WorldSpec::one(engine),
        scenario,
        rate_per_s,
        window: Span::from_secs(180),
        timed: Vec::new(),
        touches: Vec::new(),
        host_share: 0.0,
        says_stages: false,
        names_blocks: false,
    }
}

/// The load alone: what nobody sent is not there.
fn unprobed(setup: &Setup, seed: u64) -> Evidence {
    let mut run = setup.run(seed);
    let last = run.levels.pop().expect("a load");
    run.attempts.retain(|attempt| attempt.level == last.id);
    run.levels = vec![last];
    run
}

/// On the large model reading the longest of these prompts takes seconds.
#[test]
fn seconds_in_which_long_prompts_are_read_are_no_neighbour_s() {
    let setup = setup(LARGE, 6.0, "lognormal:700,1.0");
    let base = unprobed(&setup, 1);
    for seed in 4..=6 {
        let run = unprobed(&setup, seed);
        for base in [None, Some(&base)] {
            let verdict = ask(base, &run, None).verdicts.remove(0);
            assert_ne!(verdict.cause, Cause::NoisyNeighbour, "seed {seed}: {}", verdict.says);
        }
    }
}

/// Share of the answers in which any two tokens are so far apart, ms.
fn paused(run: &Evidence, ms: i64) -> f64 {
    let pauses = |answer: &Attempt| {
        let at: Vec<Span> = answer.events.iter().map(|event| event.offset).collect();
        at.windows(2).any(|two| two[1] - two[0] >= Span::from_millis(ms))
    };
    run.attempts.iter().filter(|answer| pauses(answer)).count() as f64 / run.attempts.len() as f64
}

/// Some pauses beside a long prompt are on any engine; that an answer in ten pauses is worth a word, baseline or not.
#[test]
fn a_few_pauses_beside_long_prompts_are_no_verdict_without_a_baseline() {
    let cause = |run: &Evidence| ask(None, run, None).verdicts.remove(0).cause;
    for seed in 5..=8 {
        let run = unprobed(&setup(SMALL, 12.0, "lognormal:512,0.8"), seed);
        let share = paused(&run, 120);
        assert!((0.001..0.04).contains(&share), "{share} of the answers pause");
        assert_eq!(cause(&run), Cause::Nothing, "seed {seed}");
    }
    let run = unprobed(&setup(SMALL, 15.0, "lognormal:700,1.0"), 1);
    let share = paused(&run, 120);
    assert!(share > 0.1, "{share} of the answers pause");
    assert_eq!(cause(&run), Cause::HeadOfLine);
}

/// Half the replicas hold twice as much in each cache: what is full follows.
#[test]
fn a_replica_less_is_the_cause_and_the_full_cache_is_not() {
    let with = |replicas: u32, seed: u64| {
        let mut setup = setup(SMALL, 40.0, "lognormal:700,0.6");
        setup.world.fleet.replicas = replicas;
        let mut run = unprobed(&setup, seed);
        run.facts.facts.insert("replicas".into(), Some(replicas.to_string()));
        run.attempts.iter_mut().for_each(|attempt| attempt.answer.replica = None);
        run
    };
    let verdict = ask(Some(&with(2, 1)), &with(1, 2), None).verdicts.remove(0);
    assert_eq!(verdict.cause, Cause::Saturation, "{}", verdict.says);
    assert!(verdict.says.starts_with("one replica answers where 2 did"), "{}", verdict.says);
}
