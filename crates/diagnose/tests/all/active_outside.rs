//! Active diagnosis of components around an engine that the simulator lacks: hand-written experiments with their
//! responses.

use plimsoll_diagnose::active::plan::{ExperimentKind, KnownTarget, TrafficTraits};
use plimsoll_diagnose::active::{blocks, is_so, tell};
use plimsoll_diagnose::fact::{FactState, Observed};
use plimsoll_diagnose::{Cause, Diagnosis};
use plimsoll_measure::findings::Validity;
use plimsoll_measure::server_side::FAILED;
use plimsoll_model::{At, Attempt, How, Level, Load, Sample, Span};
use plimsoll_sim::FaultSpec;

use crate::active_systems::{System, spec};
use plimsoll_lab::records::{MS, answer, failure, level};

/// A sequence of experiments.
#[derive(Default)]
struct Lab {
    levels: Vec<Level>,
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
    now_ms: i64,
}

impl Lab {
    /// Adds a closed loop, with the times to the first token and to the end of each request.
    fn level(
        &mut self,
        purpose: &str,
        (concurrency, requests): (u32, u64),
        (ttft, e2e): (i64, i64),
    ) -> &mut Lab {
        let id = self.levels.len() as u32;
        let rounds = requests.div_ceil(u64::from(concurrency)) as i64;
        let mut one = level(1.0, 0);
        (one.id, one.purpose, one.load) = (id, purpose.into(), Load::Closed { concurrency });
        (one.start, one.stop) = (At(self.now_ms * MS), At((self.now_ms + rounds * e2e) * MS));
        (one.drained, one.arrivals) = (one.stop, requests);
        for i in 0..requests {
            // Values differ by a few milliseconds, so that medians have an interval.
            let spread = (i as i64 * 7) % 5;
            let due = self.now_ms + (i / u64::from(concurrency)) as i64 * e2e;
            let mut row = answer(i, due, ttft + spread, e2e + spread, 16);
            row.level = id;
            self.attempts.push(row);
        }
        self.levels.push(one);
        self.now_ms += rounds * e2e + 100;
        self
    }

    /// Adds the server's metrics throughout the last level.
    fn page(&mut self, running: f64) -> &mut Lab {
        let Some(last) = self.levels.last() else { return self };
        for at in (last.start.0..last.drained.0).step_by(250 * MS as usize) {
            for (name, value) in [("running", running), ("waiting", 0.0)] {
                self.samples.push(Sample {
                    at: At(at),
                    source: "server".into(),
                    name: format!("vllm:num_requests_{name}").into(),
                    labels: "engine=0".into(),
                    value,
                });
            }
        }
        self
    }

    /// Adds failed scrapes during the last level.
    fn no_page(&mut self, every_ms: i64) -> &mut Lab {
        let Some(last) = self.levels.last() else { return self };
        let at = (last.start.0..last.drained.0).step_by((every_ms * MS) as usize);
        let failed = |at| Sample {
            at: At(at),
            source: "server".into(),
            name: FAILED.into(),
            labels: "why=timeout".into(),
            value: 1.0,
        };
        self.samples.extend(at.map(failed));
        self
    }

    fn told(&self) -> Diagnosis {
        let blocks = blocks(&self.levels, &self.attempts, &self.samples);
        tell::diagnosis(&blocks, &spec(), None, &Validity::default())
    }

    fn state(&self, fact: Observed) -> FactState {
        let blocks = blocks(&self.levels, &self.attempts, &self.samples);
        let tried = tell::tried(&blocks, &spec(), None);
        is_so(&tried.into_iter().flat_map(|tried| tried.shows).collect::<Vec<_>>(), fact)
    }
}

/// A batcher waits 200 ms for further requests and starts immediately when it is full: sixteen concurrent requests
/// are ten times as fast as one. Later isolated requests must show it too, otherwise the machine was slow at first.
#[test]
fn who_is_answered_sooner_among_others_waits_for_a_batch() {
    let with = |later: i64| {
        let mut lab = Lab::default();
        lab.level("alone", (1, 40), (205, 206)).level("together:4", (4, 24), (205, 206));
        lab.level("together:16", (16, 96), (25, 26)).level("watch", (4, 100), (205, 206));
        lab.level("idle:0", (1, 2), (later, later + 1)).level("idle:1", (1, 2), (later, later + 1));
        lab
    };
    let window = with(205).told();
    assert_eq!(window.verdicts[0].cause, Cause::BatchingWindow, "{}", window.headline);
    assert!(window.headline.contains("window"), "{}", window.headline);
    let other = with(25).told();
    assert_ne!(other.verdicts[0].cause, Cause::BatchingWindow, "{}", other.headline);
}

/// Sixteen responses have tokens at half speed. If the engine reports all of them it is the bottleneck. If it reports
/// two, it has already sent the others, and a slow link is no saturation of the engine.
#[test]
fn what_crowds_outside_the_engine_is_no_saturation() {
    let with = |running: f64| {
        let mut lab = Lab::default();
        lab.level("alone", (1, 40), (39, 280)).page(1.0);
        lab.level("together:8", (8, 48), (100, 1_450)).page(running.min(8.0));
        lab.level("together:16", (16, 96), (190, 2_950)).page(running);
        lab
    };
    let (inside, outside) = (with(16.0), with(2.0));
    assert_eq!(outside.state(Observed::CrowdedTogether), FactState::Yes);
    assert_eq!(
        (inside.state(Observed::InFrontOfEngine), outside.state(Observed::InFrontOfEngine)),
        (FactState::No, FactState::Yes)
    );
    assert_eq!(inside.told().verdicts[0].cause, Cause::Saturation, "{}", inside.told().headline);
    let told = outside.told();
    assert_eq!(told.verdicts[0].cause, Cause::Unknown, "{}", told.headline);
    assert!(
        told.verdicts[0].evidence.iter().any(|of| of.says.contains("the engine reports 2.0")),
        "{told:#?}"
    );
}

/// A link of 60 kB/s that scrapes share, as measured: isolated scrapes succeed, concurrent ones fail. From outside,
/// that is the only difference between a congested link and a saturated engine.
#[test]
fn what_keeps_the_page_from_coming_is_not_taken_for_the_engine() {
    let with = |comes: bool| {
        let mut lab = Lab::default();
        lab.level("alone", (1, 40), (40, 300)).page(1.0);
        for (purpose, sizes, times) in
            [("together:8", (8, 48), (90, 1_500)), ("together:16", (16, 96), (180, 2_950))]
        {
            lab.level(purpose, sizes, times);
            if comes {
                lab.page(sizes.0 as f64)
            } else {
                lab.no_page(2_000)
            };
        }
        lab
    };
    let (comes, lost) = (with(true), with(false));
    assert_eq!(
        (comes.state(Observed::PageLost), lost.state(Observed::PageLost)),
        (FactState::No, FactState::Yes)
    );
    assert_eq!(
        (comes.state(Observed::CrowdedTogether), lost.state(Observed::CrowdedTogether)),
        (FactState::Yes, FactState::Yes)
    );
    assert_eq!(comes.told().verdicts[0].cause, Cause::Saturation, "{}", comes.told().headline);
    let told = lost.told();
    assert_eq!(told.verdicts[0].cause, Cause::Unknown, "{}", told.headline);
    let says = |part: &str| told.verdicts[0].evidence.iter().any(|of| of.says.contains(part));
    assert!(says("scrapes of the server's metrics timed out"), "{told:#?}");
}

/// llama.cpp with two slots, as measured: sixteen requests in flight have more tokens than a small KV cache. However,
/// fourteen of them wait and use none. Its metrics show the waiting requests, and no cache usage.
#[test]
fn who_waits_for_a_slot_fills_no_cache() {
    let mut lab = Lab::default();
    lab.level("alone", (1, 40), (8, 14));
    for (purpose, sizes, times) in
        [("together:8", (8, 160), (112, 128)), ("together:16", (16, 320), (251, 267))]
    {
        lab.level(purpose, sizes, times).page(2.0);
    }
    lab.attempts.iter_mut().for_each(|row| row.asked_prompt = 290);
    lab.attempts.iter_mut().for_each(|row| row.answer.tokens.prompt = Some(290));
    lab.samples.iter_mut().filter(|s| s.name.ends_with("waiting")).for_each(|s| s.value = 11.0);
    assert_eq!(
        (lab.state(Observed::Ceiling), lab.state(Observed::EngineQueue)),
        (FactState::Yes, FactState::Yes)
    );
    assert_eq!(lab.state(Observed::KvFull), FactState::No);
    assert_eq!(lab.told().verdicts[0].cause, Cause::Saturation, "{}", lab.told().headline);
}

/// The case above on a machine with varying speed: whether tokens are slower is unknown, and the engine reports where
/// requests wait.
#[test]
fn who_waits_in_the_engine_does_so_however_fast_its_tokens_are() {
    let with = |waiting: f64| {
        let mut lab = Lab::default();
        lab.level("alone", (1, 40), (8, 14)).level("together:4", (4, 160), (50, 80)).page(2.0);
        lab.level("together:8", (8, 320), (130, 160)).page(2.0);
        for row in lab.attempts.iter_mut().filter(|row| row.level == 2) {
            let (first, slower) = (row.events[0].offset, if row.request % 2 == 0 { 1.3 } else { 1.6 });
            let scale = |at: Span| first + Span(((at - first).0 as f64 * slower) as i64);
            row.events.iter_mut().for_each(|event| event.offset = scale(event.offset));
        }
        lab.samples.iter_mut().filter(|s| s.name.ends_with("waiting")).for_each(|s| s.value = waiting);
        lab
    };
    let inside = with(5.0);
    assert_eq!(
        (inside.state(Observed::Ceiling), inside.state(Observed::CrowdedTogether)),
        (FactState::Unclear, FactState::Unclear)
    );
    assert_eq!(inside.state(Observed::EngineQueue), FactState::Yes);
    assert_eq!(inside.told().verdicts[0].cause, Cause::Saturation, "{}", inside.told().headline);
    // Few waiting requests are no sign of slots if all may just be slow.
    assert_eq!(with(0.0).state(Observed::InFrontOfEngine), FactState::Unclear);
}

#[test]
fn where_the_server_keeps_no_connection_kept_ones_are_not_compared_with_fresh_ones() {
    let with = |kept: bool| {
        let mut lab = Lab::default();
        lab.level("alone", (1, 40), (8, 14));
        for arm in ["kept", "fresh", "fresh", "kept"] {
            lab.level(&format!("connections:{arm}"), (1, 10), (8, 14));
        }
        let keeps = |level: &Level| kept && level.purpose.ends_with("kept");
        let kept: Vec<bool> = lab.levels.iter().map(keeps).collect();
        lab.attempts.iter_mut().for_each(|row| row.reused = kept[row.level as usize]);
        lab.state(Observed::FreshCosts)
    };
    assert_eq!((with(true), with(false)), (FactState::No, FactState::Unclear));
}

/// Two slots of an engine with millisecond responses. Its metrics are scraped at least a few times per level, and a
/// scrape before the level does not count. In any case, two thousand tokens fill no KV cache.
#[test]
fn an_engine_of_milliseconds_is_asked_for_long_enough_to_be_read() {
    let known =
        KnownTarget { e2e_s: 0.013, least_s: 0.01, ttft_s: 0.008, best_rate: 76.0, step: 8, left_s: 60.0 };
    let traffic = TrafficTraits { prompt: 256.0, output: 32.0, synthetic: true, streams: true, pool: None };
    let asked = ExperimentKind::Together.asks(&spec(), &traffic, &known)[0].requests;
    assert_eq!(
        asked,
        Some(200),
        "two seconds at 152/s are 304, of which a tenth of two thousand requests is allowed"
    );
    let slow = KnownTarget { e2e_s: 2.0, best_rate: 4.0, ..known };
    assert_eq!(ExperimentKind::Together.asks(&spec(), &traffic, &slow)[0].requests, Some(48));
    let mut lab = Lab::default();
    lab.level("alone", (1, 40), (8, 40)).level("together:4", (4, 48), (60, 92)).level(
        "together:8",
        (8, 96),
        (124, 156),
    );
    let looks = |lab: &mut Lab, n: usize| {
        lab.samples.clear();
        lab.page(2.0);
        lab.samples.truncate(2 * n);
    };
    looks(&mut lab, 1);
    assert_eq!(
        (lab.state(Observed::Ceiling), lab.state(Observed::InFrontOfEngine)),
        (FactState::Yes, FactState::Unclear)
    );
    looks(&mut lab, 6);
    assert_eq!(lab.state(Observed::InFrontOfEngine), FactState::Yes);
    assert_eq!(lab.state(Observed::KvFull), FactState::No);
}

/// A context window fits the traffic's prompts but rejects the experiment's, which are four times as long. The server
/// is healthy: it neither has errors nor was it down. A wait without a cause in length is then read from the accepted
/// lengths.
#[test]
fn prompts_that_only_the_experiment_made_too_long_are_no_fault() {
    for (fault, cause) in [("none", Cause::Nothing), ("dependency:delay=250ms", Cause::SlowDependency)] {
        let mut played = System::new("llama-3.1-8b@h100", (256, 64), fault, &[]).play(&spec());
        let long: Vec<u32> = played
            .levels
            .iter()
            .filter(|level| level.purpose == "prompts:long")
            .map(|level| level.id)
            .collect();
        assert_eq!(long.len(), 2, "{:#?}", played.log);
        for row in played.attempts.iter_mut().filter(|row| long.contains(&row.level)) {
            let refused = failure(row.request, row.due.0 / MS, How::ClientError, 2);
            *row = Attempt { level: row.level, asked_prompt: 1_024, ..refused };
            row.answer.status = Some(400);
            row.answer.error = Some("exceeds the context".into());
        }
        let told = tell::diagnosis(
            &blocks(&played.levels, &played.attempts, &played.samples),
            &spec(),
            None,
            &Validity::default(),
        );
        assert_eq!(told.verdicts[0].cause, cause, "{}", told.headline);
        assert!(told.missing.iter().any(|of| of.what.contains("exceeds the context")), "{:#?}", told.missing);
    }
}

/// If every request is rejected there is neither load nor speed to evaluate, and the server's error messages are the
/// finding.
#[test]
fn where_nothing_is_answered_the_servers_words_are_the_finding() {
    let mut lab = Lab::default();
    lab.level("alone", (1, 40), (20, 21));
    for row in &mut lab.attempts {
        *row = Attempt { level: row.level, ..failure(row.request, row.due.0 / MS, How::ClientError, 2) };
        row.answer.status = Some(400);
        row.answer.error =
            Some("request (891 tokens) exceeds the available context size (512 tokens)".into());
    }
    let told = lab.told();
    assert_eq!(told.verdicts[0].cause, Cause::Unknown);
    for part in ["nothing was answered", "40 of 40", "with 400", "available context size (512 tokens)"] {
        assert!(told.headline.contains(part), "{part}: {}", told.headline);
    }
}

/// A server closes connections that it announced to keep: requests fail before the first byte, only on reused
/// connections.
#[test]
fn a_server_that_drops_kept_connections_is_told_by_them() {
    let mut lab = Lab::default();
    lab.level("alone", (1, 40), (30, 300)).level("together:4", (4, 100), (30, 300)).level(
        "watch",
        (4, 200),
        (30, 300),
    );
    for (number, row) in lab.attempts.iter_mut().enumerate().filter(|(number, _)| *number >= 40) {
        row.reused = number % 4 == 0;
        if row.reused {
            *row = Attempt {
                level: row.level,
                reused: true,
                ..failure(row.request, row.due.0 / MS, How::Reset, 1)
            };
            row.answer.error = Some("the connection was closed before an answer".into());
        }
    }
    let told = lab.told();
    assert_eq!(told.verdicts[0].cause, Cause::ServerErrors, "{}", told.headline);
    let says = &told.verdicts[0].says;
    assert!(says.contains("closed before an answer; all on kept connections"), "{says}");
}

/// Rejected requests and cut responses at the same time: no single cause explains both.
#[test]
fn two_faults_of_which_neither_makes_the_others_signs_are_both_named() {
    let mut system = System::new("llama-3.1-8b@h100", (256, 64), "disconnect:share=0.1", &[]);
    system.world.faults.push(FaultSpec::parse("rate_limit:rate=4,burst=8").expect("a fault"));
    let played = system.play(&spec());
    let causes: Vec<Cause> = played.diagnosis.verdicts.iter().map(|verdict| verdict.cause).collect();
    assert!(
        causes.len() == 2 && causes.contains(&Cause::RateLimit) && causes.contains(&Cause::StreamDisconnect),
        "{}",
        played.diagnosis.headline
    );
}

/// Prompts from 60 to 1 500 tokens at 0.2 ms per token: waits follow the length, and no request is irregularly slow.
/// If every fourth waits 0.25 s longer, some are, at any length.
#[test]
fn prompts_of_unlike_length_are_no_wait_that_comes_now_and_then() {
    let spread = |reads: bool, every_fourth: i64| {
        let mut lab = Lab::default();
        lab.level("alone", (1, 40), (20, 900));
        for (i, row) in lab.attempts.iter_mut().enumerate() {
            let prompt = 60 + 36 * (i as i64 * 17 % 41);
            let ttft = 20 + if reads { prompt / 5 } else { 0 } + if i % 4 == 1 { every_fourth } else { 0 };
            let (level, due) = (row.level, row.due.0 / MS);
            *row = answer(i as u64, due, ttft + (i as i64 * 7) % 5, 899, 16);
            (row.level, row.answer.tokens.prompt) = (level, Some(prompt as u32));
        }
        lab.state(Observed::AloneSpread)
    };
    assert_eq!(spread(true, 0), FactState::No);
    assert_eq!(spread(false, 250), FactState::Yes);
    assert_eq!(spread(true, 250), FactState::Yes);
}
