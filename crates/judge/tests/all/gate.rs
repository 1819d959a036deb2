//! A budget file checked against runs with a known truth: verdicts, families, slices, and the text of a broken row.

use plimsoll_judge::budget::{
    Amount, AmountUnit, Batch, Budget, BudgetFile, BudgetKind, BudgetLoad, BudgetMetric, OnInconclusive,
    OnMissing, Relative, RequestSlice,
};
use plimsoll_judge::gate::{GateFinding, GateVerdict, MeasuredRun, RowRole, gate};
use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_measure::SweepSpec;
use plimsoll_measure::findings::{CapacityLine, CapacityLines, Estimate, Held, LoadWords};
use plimsoll_model::{Attempt, Fingerprint, How, Manifest, RunState, Sample, ServerStage, Span};
use plimsoll_workload::Rate;

use plimsoll_lab::records::{answer, failure, level};

/// A run of one level.
pub struct Made {
    pub manifest: Manifest,
    pub attempts: Vec<Attempt>,
    pub samples: Vec<Sample>,
}

/// Answers due every 10 ms (100/s) with these first-token times, ms; 20 ms of decode behind each.
pub fn made(ttft_ms: impl Iterator<Item = i64>) -> Made {
    let attempts: Vec<Attempt> =
        ttft_ms.enumerate().map(|(i, ms)| answer(i as u64, 10 * i as i64, ms, ms + 20, 3)).collect();
    of(attempts)
}

pub fn of(attempts: Vec<Attempt>) -> Made {
    let mut level = level(100.0, attempts.len() as i64 / 100);
    // The driver's counter agrees with the rows, so that the run is valid.
    level.arrivals = attempts.iter().filter(|attempt| attempt.attempt == 0).count() as u64;
    let manifest = Manifest {
        id: "a".repeat(16),
        kind: "run".into(),
        label: None,
        progress: RunState::Complete,
        target: Fingerprint { url: "http://host/v1".into(), ..Fingerprint::default() },
        scenario: serde_json::json!({"classes": [{"name": "chat"}, {"name": "search"}]}),
        levels: vec![level],
        ..serde_json::from_value(serde_json::json!({
            "schema": 1, "tool": "test", "kind": "run", "id": "", "progress": {"state": "running"},
            "clock": {"monotonic_ns": 0, "realtime_ns": 0}, "seed": 1, "nonce": 1, "reproduce": "",
            "host": {"os": "", "cpu": "", "cores": 1, "governor": null}, "target": {"url": "", "facts": {}},
            "scenario": null, "levels": [], "findings": null
        }))
        .expect("a manifest")
    };
    Made { manifest, attempts, samples: Vec::new() }
}

impl Made {
    pub fn measured(&self, file: &BudgetFile) -> MeasuredRun<'_> {
        let spec = SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(50);
        MeasuredRun::read(&self.manifest, &self.attempts, &self.samples, &spec, file)
    }

    pub fn gate(&self, file: &BudgetFile) -> GateFinding {
        assert_eq!(file.check(), Ok(()));
        gate(file, &self.measured(file), None)
    }

    fn against(&self, baseline: &Made, file: &BudgetFile) -> GateFinding {
        gate(file, &self.measured(file), Some(&baseline.measured(file)))
    }
}

/// First-token times of 50 ms; one in `slow` takes 400 ms, scattered.
pub fn mixture(n: i64, slow: i64) -> Made {
    made((0..n).map(move |i| if i * 7919 % slow == 1 { 400 } else { 50 }))
}

pub fn ttft(p: f64, ms: f64) -> Budget {
    Budget::ceiling(format!("ttft-{p}-{ms}"), BudgetMetric::Ttft, Some(p), Amount::seconds(ms / 1e3))
}

pub fn file(budgets: Vec<Budget>) -> BudgetFile {
    BudgetFile::of(budgets)
}

#[test]
fn a_run_passes_breaks_or_says_what_would_settle_it() {
    // Half a per cent, 3 % and 1 % of 10 000 are over 350 ms.
    for (slow, verdict) in
        [(200, GateVerdict::Pass), (33, GateVerdict::Broken), (100, GateVerdict::Inconclusive)]
    {
        let finding = mixture(10_000, slow).gate(&file(vec![ttft(0.99, 350.0)]));
        assert_eq!(finding.verdict, verdict, "{slow}: {:?} {:?}", finding.refusals, finding.rows[0].why);
    }
    // 0.67 % of 2000 are over, and the bounds contain 1 %. Twice the 4500 that would pass at 0.67 % are named, because half of the
    // later samples are worse.
    let finding = mixture(2_000, 150).gate(&file(vec![ttft(0.99, 350.0)]));
    let row = &finding.rows[0];
    assert_eq!(row.held, Held::Inconclusive);
    let needed = row.needed.expect("a number");
    assert!((8_000..20_000).contains(&needed), "{needed}");
    assert!(row.why.contains("a verdict needs about ") && row.why.contains(" more requests"), "{}", row.why);
    // And so it is: the same share of that many passes.
    let enough = mixture((needed as i64 / 100 + 1) * 100, 150).gate(&file(vec![ttft(0.99, 350.0)]));
    assert_eq!(enough.verdict, GateVerdict::Pass);
}

#[test]
fn the_statistic_shown_is_the_one_judged() {
    let finding = mixture(10_000, 33).gate(&file(vec![ttft(0.99, 350.0), ttft(0.9, 350.0)]));
    let [p99, p90] = &finding.rows[..] else { panic!("two rows") };
    let shown = p99.measured.estimate().expect("enough");
    // Over the limit with its whole interval where it fails, under it where it passes.
    assert_eq!((shown.value, p99.held), (0.4, Held::Fail));
    assert!(shown.lower > 0.35 && p90.measured.estimate().expect("enough").upper < 0.35);
    assert_eq!(p90.held, Held::Pass);
    assert!((p99.share_over.expect("a share").value - 303.0 / 10_000.0).abs() < 1e-9);
}

#[test]
fn missing_data_never_pass() {
    let run = mixture(2_000, 1_000_000);
    let stray = Budget {
        slice: Some(RequestSlice { class: Some("none".into()), ..RequestSlice::default() }),
        ..ttft(0.9, 350.0)
    };
    let rate = |per_s: f64| Some(BudgetLoad { rate: Rate::per_s(per_s).ok(), ..BudgetLoad::default() });
    for (file, says) in [
        (file(vec![stray.clone()]), "has no class none"),
        (
            BudgetFile { load: rate(200.0), ..file(vec![ttft(0.9, 350.0)]) },
            "applies at 200/s; the run reached only 100/s",
        ),
        (
            file(vec![Budget::ceiling("rho", BudgetMetric::Utilisation, None, Amount::share(0.8))]),
            "no sweep measured the limit",
        ),
        (file(vec![Budget { relative: Some(Relative(0.1)), max: None, ..ttft(0.9, 350.0) }]), "no baseline"),
    ] {
        let finding = run.gate(&file);
        assert_eq!(finding.verdict, GateVerdict::Inconclusive);
        assert!(finding.rows[0].missing && finding.rows[0].why.contains(says), "{}", finding.rows[0].why);
    }
    let strict = run.gate(&file(vec![Budget { on_missing: OnMissing::Fail, ..stray }]));
    assert_eq!(strict.verdict, GateVerdict::Broken);
    assert_eq!(
        run.gate(&BudgetFile { load: rate(100.0), ..file(vec![ttft(0.9, 350.0)]) }).verdict,
        GateVerdict::Pass
    );
}

#[test]
fn an_inconclusive_budget_amounts_to_what_the_file_says() {
    let run = mixture(10_000, 100);
    for (on_inconclusive, verdict) in [
        (OnInconclusive::Inconclusive, GateVerdict::Inconclusive),
        (OnInconclusive::Fail, GateVerdict::Broken),
        (OnInconclusive::Warn, GateVerdict::Pass),
    ] {
        let budget = Budget { on_inconclusive, ..ttft(0.99, 350.0) };
        assert_eq!(run.gate(&file(vec![budget])).verdict, verdict);
    }
    let few = Budget { min_n_eff: Some(50_000.0), ..ttft(0.9, 350.0) };
    let finding = run.gate(&file(vec![few]));
    assert_eq!(finding.verdict, GateVerdict::Inconclusive);
    assert!(finding.rows[0].why.contains("a verdict needs at least 50000"), "{}", finding.rows[0].why);
}

#[test]
fn an_invalid_run_is_its_own_verdict() {
    // A generator that was seconds late is no evidence about the target, however good its figures are.
    let mut run = mixture(2_000, 1_000_000);
    run.manifest.levels[0].generator.lag = plimsoll_model::Quantiles {
        count: 2_000,
        p50_ns: 4_000_000_000,
        p90_ns: 5_000_000_000,
        p99_ns: 6_000_000_000,
        p999_ns: 6_000_000_000,
        max_ns: 6_000_000_000,
    };
    let finding = run.gate(&file(vec![ttft(0.9, 350.0)]));
    assert_eq!(finding.verdict, GateVerdict::Invalid, "{:?}", finding.validity);
    assert!(!finding.refusals.is_empty());
    assert_eq!(finding.rows[0].held, Held::Inconclusive, "no row holds by it");
    // A generator that was slightly late may be judged, with a note first.
    let late = &mut run.manifest.levels[0].generator.lag;
    (late.p50_ns, late.p90_ns, late.p99_ns) = (100_000, 200_000, 5_000_000);
    let finding = run.gate(&file(vec![ttft(0.9, 350.0)]));
    assert_eq!(finding.verdict, GateVerdict::Pass, "{:?}", finding.validity);
    assert!(
        finding.refusals.iter().any(|said| said.starts_with("the measurement is suspect: schedule_lag")),
        "{:?}",
        finding.refusals
    );
}

/// A failure must be significant among all tested budgets; a pass needs no more with many budgets than with one.
#[test]
fn failures_are_judged_as_a_family_and_passes_one_by_one() {
    // 1.22 % of 10 000 over the limit: p = 0.018 (binomial tail 122 of 10 000 at 1 %), significant for one budget but not among three.
    let run = made((0..10_000).map(|i| if i * 7919 % 10_000 < 122 { 400 } else { 50 }));
    let alone = run.gate(&file(vec![ttft(0.99, 350.0)]));
    assert_eq!(alone.verdict, GateVerdict::Broken);
    assert!((0.015..0.022).contains(&alone.rows[0].p_fail), "{}", alone.rows[0].p_fail);
    let three = file(vec![ttft(0.99, 350.0), ttft(0.99, 600.0), ttft(0.9, 300.0)]);
    let among = run.gate(&three);
    assert_eq!(among.verdict, GateVerdict::Inconclusive);
    assert!(among.rows[0].why.contains("broken on its own"), "{}", among.rows[0].why);
    assert!((among.rows[0].p_fail_family - 3.0 * alone.rows[0].p_fail).abs() < 1e-9, "Holm");
    assert_eq!([among.rows[1].held, among.rows[2].held], [Held::Pass; 2]);
    // Watched budgets are no part of the family and decide nothing.
    let mut watched = three;
    watched.policy.primary = vec!["ttft-0.99-600".into(), "ttft-0.9-300".into()];
    let finding = run.gate(&watched);
    assert_eq!(finding.verdict, GateVerdict::Pass);
    assert_eq!((finding.rows[0].role, finding.family), (RowRole::Watched, 2));
}

#[test]
fn slices_are_judged_on_their_own_requests() {
    // Class 1 and prompts of 1000 tokens are slow; the others are not.
    let mut attempts: Vec<Attempt> =
        (0..4_000).map(|i| answer(i, 10 * i as i64, if i % 4 == 3 { 400 } else { 50 }, 600, 3)).collect();
    for attempt in attempts.iter_mut().filter(|a| a.request % 4 == 3) {
        attempt.class = 1;
        attempt.answer.tokens.prompt = Some(1000);
    }
    let run = of(attempts);
    let of_class = |class: &str| Some(RequestSlice { class: Some(class.into()), ..RequestSlice::default() });
    let of_prompts = |text: &str| {
        let bucket = plimsoll_judge::budget::PromptBucket::parse(text).expect("a bucket");
        Some(RequestSlice { prompt_tokens: Some(bucket), ..RequestSlice::default() })
    };
    for (slice, n, held) in [
        (of_class("chat"), 3_000, Held::Pass),
        (of_class("search"), 1_000, Held::Fail),
        (of_class("1"), 1_000, Held::Fail),
        (of_prompts("0..512"), 3_000, Held::Pass),
        (of_prompts("512.."), 1_000, Held::Fail),
    ] {
        let finding = run.gate(&file(vec![Budget { slice, ..ttft(0.9, 100.0) }]));
        let row = &finding.rows[0];
        assert_eq!((row.held, row.share_over.expect("a share").n), (held, n), "{}", row.slice);
    }
}

#[test]
fn errors_retries_and_both() {
    // 1 % fail, another 2 % were tried twice.
    let attempts: Vec<Attempt> = (0..10_000)
        .flat_map(|i| match i * 7919 % 100 {
            0 => vec![failure(i, 10 * i as i64, How::ServerError, 3)],
            1 | 2 => {
                let first = failure(i, 10 * i as i64, How::Shed, 3);
                vec![first, Attempt { attempt: 1, ..answer(i, 10 * i as i64, 80, 100, 3) }]
            }
            _ => vec![answer(i, 10 * i as i64, 50, 70, 3)],
        })
        .collect();
    let run = of(attempts);
    for (metric, share) in [
        (BudgetMetric::ErrorRate, 0.01),
        (BudgetMetric::RetryRate, 0.02),
        (BudgetMetric::ErrorAndRetryRate, 0.03),
    ] {
        let finding = run.gate(&file(vec![
            Budget::ceiling("half", metric, None, Amount::share(0.5 * share)),
            Budget::ceiling("twice", metric, None, Amount::share(2.0 * share)),
        ]));
        assert!((finding.rows[0].share_over.expect("a share").value - share).abs() < 1e-12);
        assert_eq!(
            [finding.rows[0].held, finding.rows[1].held],
            [Held::Fail, Held::Pass],
            "{}",
            metric.name()
        );
    }
}

/// Exponential times have p99 / p50 = ln 100 / ln 2 = 6.64.
#[test]
fn the_tail_ratio_is_that_of_the_law() {
    let mut stream = Stream::new(3, "ratio", 0);
    let run = made((0..20_000).map(|_| 1 + (1e2 * exponential(&mut stream, 1.0)) as i64));
    let ratio = |most: f64| {
        let max = Amount { value: most, unit: plimsoll_judge::budget::AmountUnit::Plain };
        Budget::ceiling(format!("{most}"), BudgetMetric::TtftTailRatio, None, max)
    };
    let finding = run.gate(&file(vec![ratio(5.5), ratio(6.64), ratio(8.0)]));
    let held: Vec<Held> = finding.rows.iter().map(|row| row.held).collect();
    assert_eq!(held, [Held::Fail, Held::Inconclusive, Held::Pass]);
    let shown = finding.rows[1].measured.estimate().expect("enough");
    assert!(shown.lower < 6.64 && 6.64 < shown.upper, "{shown:?}");
}

/// A run of 300 output tokens per second on a GPU of this power, of which 10 GiB are used, scraped each second.
fn on_gpu(watts: f64) -> Made {
    let run = mixture(6_000, 1_000_000);
    let samples = plimsoll_lab::records::gpu(60, watts, 10.0);
    Made { samples, ..run }
}

/// 360 W / 300 tokens/s = 1.2 J per token.
#[test]
fn energy_and_memory_have_ceilings_and_changes() {
    let amount = |text: &str| Amount::parse(text).unwrap();
    let ceiling = |metric: BudgetMetric, max: &str| Budget::ceiling(max, metric, None, amount(max));
    let energy = |max: &str| ceiling(BudgetMetric::EnergyPerToken, max);
    let memory = |max: &str| ceiling(BudgetMetric::GpuMemory, max);
    let held = |run: &Made, budgets: Vec<Budget>| -> Vec<Held> {
        let finding = run.gate(&file(budgets));
        let missing: Vec<&str> = finding.rows.iter().filter(|row| row.missing).map(|row| &*row.why).collect();
        assert!(missing.is_empty(), "{missing:?}");
        finding.rows.iter().map(|row| row.held).collect()
    };
    let rows = vec![energy("1.3J"), energy("1100mJ"), memory("10.5GiB"), memory("10 GiB"), memory("9GiB")];
    let expected = [Held::Pass, Held::Fail, Held::Pass, Held::Pass, Held::Fail];
    assert_eq!(held(&on_gpu(360.0), rows), expected);
    let finding = on_gpu(360.0).gate(&file(vec![energy("1.3J")]));
    let measured = finding.rows[0].measured.estimate().unwrap();
    assert!((measured.value - 1.2).abs() < 0.03, "{measured:?}");
    // Without an exporter the row is missing, and missing data never pass.
    let row = &mixture(6_000, 1_000_000).gate(&file(vec![energy("1.3J")])).rows[0];
    assert!(row.missing && row.held == Held::Inconclusive && row.why.contains("no GPU exporter"), "{row:?}");
    let change = |by: &str| {
        let relative = Some(Relative::parse(by).unwrap());
        file(vec![Budget { relative, max: None, ..energy("1J") }])
    };
    for (by, verdict) in [("+10%", Held::Fail), ("+30%", Held::Pass)] {
        assert_eq!(on_gpu(360.0).against(&on_gpu(300.0), &change(by)).rows[0].held, verdict, "{by}");
    }
}

#[test]
fn a_batch_has_a_deadline() {
    // 100/s finish: 300 000 take 3000 s.
    let run = mixture(6_000, 1_000_000);
    for (deadline_s, verdict) in [(2_900, GateVerdict::Broken), (3_100, GateVerdict::Pass)] {
        let batch = Some(Batch { items: 300_000, deadline: Span::from_secs(deadline_s) });
        let finding = run.gate(&BudgetFile { kind: BudgetKind::Batch, batch, ..file(vec![]) });
        assert_eq!(finding.verdict, verdict, "{:?}", finding.rows[0]);
    }
}

/// Every third request uses another model than the run's own, and that model is slow.
#[test]
fn a_model_of_a_mix_is_judged_on_the_classes_that_asked_for_it() {
    let mut run = made((0..6_000).map(|i| if i % 3 == 2 { 400 } else { 50 }));
    for (i, attempt) in run.attempts.iter_mut().enumerate() {
        attempt.class = (i % 3) as u16;
    }
    run.manifest.target.facts.insert("model".into(), Some("base".into()));
    run.manifest.scenario = serde_json::json!({"classes": [{"name": "a", "model": "base"}, {"name": "b"}, {"name": "c", "model": "sql"}]});
    let of = |model: &str| Budget {
        slice: Some(RequestSlice { model: Some(model.into()), ..RequestSlice::default() }),
        ..ttft(0.9, 100.0)
    };
    for (model, n, held) in [("base", 4_000, Held::Pass), ("sql", 2_000, Held::Fail)] {
        let row = &run.gate(&file(vec![of(model)])).rows[0];
        assert_eq!(row.held, held, "{model}: {row:?}");
        let judged = row.share_over.expect("counted").n;
        assert!(judged.abs_diff(n) < n / 20, "{model}: {judged} of {n}");
    }
    let none = &run.gate(&file(vec![of("gpt")])).rows[0];
    assert!(none.missing && none.why.contains("used model base, sql, not gpt"), "{}", none.why);
    // A rate is of all of them together.
    let rate = Budget {
        min: Some(Amount::parse("1/s").expect("a rate")),
        max: None,
        p: None,
        metric: BudgetMetric::Throughput,
        ..of("sql")
    };
    let row = &run.gate(&file(vec![rate])).rows[0];
    assert!(row.missing && row.why.contains("not for a slice"), "{}", row.why);
}

/// Two runs of equal distributions against each other: the baseline has an uncertainty, too.
#[test]
fn a_change_is_judged_against_the_baselines_own_uncertainty() {
    let run = |seed: u64, times: f64| {
        let mut stream = Stream::new(seed, "relative", 0);
        made(
            (0..20_000)
                .map(|_| 10 + (1e2 * times * exponential(&mut stream, 1.0)) as i64)
                .collect::<Vec<_>>()
                .into_iter(),
        )
    };
    let relative = Budget { relative: Some(Relative(0.10)), max: None, ..ttft(0.99, 1.0) };
    let file_of = |budget| file(vec![budget]);
    let file = BudgetFile { baseline: Some("x".into()), ..file_of(relative) };
    let base = run(1, 1.0);
    let [same, worse, edge] = [run(2, 1.0), run(3, 1.35), run(4, 1.10)].map(|run| run.against(&base, &file));
    assert_eq!(worse.verdict, GateVerdict::Broken, "{:?}", worse.rows[0]);
    assert_eq!(same.verdict, GateVerdict::Pass, "{:?}", same.rows[0]);
    assert_ne!(edge.verdict, GateVerdict::Broken);
    // A limit that both latencies meet shows nothing about the time before sending.
    let met = Budget { relative: Some(Relative(0.10)), ..ttft(0.99, 1e6) };
    let found = run(3, 1.35).against(&base, &BudgetFile { baseline: Some("x".into()), ..file_of(met) });
    assert_eq!(found.verdict, GateVerdict::Broken, "{:?}", found.rows);
    assert!(found.rows.iter().all(|row| !row.why.contains("lost earlier")), "{:?}", found.rows);
    let ratio = worse.rows[0].measured.estimate().expect("a ratio");
    assert!(ratio.lower < 1.35 && 1.35 < ratio.upper, "{ratio:?}");
}

#[test]
fn a_better_mean_with_a_worse_tail_is_refused_in_those_words() {
    let base = made((0..10_000).map(|i| 100 + i * 7919 % 13));
    let change = made((0..10_000).map(|i| if i * 7919 % 50 == 0 { 600 } else { 80 + i * 7919 % 13 }));
    let finding = change.against(&base, &file(vec![ttft(0.99, 350.0)]));
    assert_eq!(finding.verdict, GateVerdict::Broken);
    let said = finding.refusals.first().expect("said so");
    assert!(said.starts_with("Refused: the change improves the mean of ttft by "), "{said}");
    assert!(said.contains("and breaks p99: 600 ms against ≤ 350 ms"), "{said}");
    // A change whose mean is no better is broken, and nothing is praised.
    let worse = made((0..10_000).map(|i| if i * 7919 % 50 == 0 { 600 } else { 110 + i * 7919 % 13 }));
    assert!(worse.against(&base, &file(vec![ttft(0.99, 350.0)])).refusals.is_empty());
}

fn found(value: f64) -> CapacityLine {
    let rate = Estimate { value, lower: 0.95 * value, upper: 1.05 * value, n: 0, n_eff: 0.0 };
    CapacityLine::Found { rate, load: LoadWords::default(), how: String::new() }
}

fn lines(onset: f64, stability: f64) -> CapacityLines {
    CapacityLines {
        traffic: "steady".into(),
        onset: found(onset),
        onset_percentile: Some(0.99),
        stability: found(stability),
        budget: None,
        budget_spec: None,
        mix: Default::default(),
        think_time_s: 10.0,
        hold: None,
    }
}

#[test]
fn a_broken_row_names_where_it_breaks() {
    let budget = file(vec![ttft(0.99, 350.0)]);
    let slow = mixture(10_000, 33);
    let with_lines = |onset: f64| {
        let mut base = slow.measured(&budget);
        base.findings.lines.push(lines(onset, 150.0));
        gate(&budget, &slow.measured(&budget), Some(&base)).rows[0].why.clone()
    };
    assert_eq!(
        with_lines(80.0),
        "ttft p99 400 ms > 350 ms at 100 req/s: queueing past the onset at 80 req/s (of the baseline)"
    );
    assert!(with_lines(120.0).contains("not queueing, the onset is at 120 req/s"), "{}", with_lines(120.0));
    let nothing = slow.gate(&budget).rows[0].why.clone();
    assert!(nothing.contains("not located") && nothing.contains("plimsoll sweep"), "{nothing}");
    // The failures alone use up the 1 %.
    let failing: Vec<Attempt> = (0..10_000)
        .map(|i| match i * 7919 % 33 {
            1 => failure(i, 10 * i as i64, How::Shed, 3),
            _ => answer(i, 10 * i as i64, 50, 70, 3),
        })
        .collect();
    let why = of(failing).gate(&budget).rows[0].why.clone();
    assert!(why.contains("3.0 % of the requests failed, mostly shed"), "{why}");
    // Counted from the sent time it passes.
    let late: Vec<Attempt> = (0..10_000)
        .map(|i| {
            let mut own = answer(i, 10 * i as i64, if i * 7919 % 33 == 1 { 400 } else { 50 }, 600, 3);
            own.sent = own.first_token.map(|first| first - Span::from_millis(40));
            own
        })
        .collect();
    let why = of(late).gate(&budget).rows[0].why.clone();
    assert!(why.contains("latency from sending passes"), "{why}");
    // The server reports the stage.
    let staged: Vec<Attempt> = (0..10_000)
        .map(|i| {
            let slow = i * 7919 % 33 == 1;
            let mut own = answer(i, 10 * i as i64, if slow { 400 } else { 50 }, 600, 3);
            let stage = |name: &str, ms: i64| ServerStage { name: name.into(), took: Span::from_millis(ms) };
            own.answer.stages = vec![
                stage("queue", if slow { 300 } else { 5 }),
                stage("prefill", if slow { 100 } else { 45 }),
            ];
            own
        })
        .collect();
    let why = of(staged).gate(&budget).rows[0].why.clone();
    assert!(
        why.contains("queue takes 75.0 % of the time that the server reports (300 ms on average)"),
        "{why}"
    );
}

#[test]
fn utilisation_is_offered_load_over_the_measured_limit() {
    let run = mixture(2_000, 1_000_000);
    let rho = |max: f64| {
        let file = file(vec![Budget::ceiling("rho", BudgetMetric::Utilisation, None, Amount::share(max))]);
        let mut base = run.measured(&file);
        base.findings.lines.push(lines(80.0, 125.0));
        let finding = gate(&file, &run.measured(&file), Some(&base));
        (finding.rows[0].held, finding.rows[0].measured.value().expect("found"))
    };
    // 100/s of 125/s, known to 5 %.
    assert_eq!(rho(0.9).0, Held::Pass);
    assert_eq!(rho(0.8).0, Held::Inconclusive);
    assert_eq!(rho(0.7).0, Held::Fail);
    assert!((rho(0.9).1 - 0.8).abs() < 1e-9);
}

/// A stage that starts with the first token contains no part of the time to it, however long it is.
#[test]
fn the_stage_that_is_named_is_a_part_of_the_latency() {
    let staged: Vec<Attempt> = (0..10_000)
        .map(|i| {
            let mut own = answer(i, 10 * i as i64, 400, 9_000, 3);
            let stage = |name: &str, ms: i64| ServerStage { name: name.into(), took: Span::from_millis(ms) };
            own.answer.stages = vec![stage("queue", 300), stage("prefill", 100), stage("decode", 8_000)];
            own
        })
        .collect();
    let run = of(staged);
    let why = |metric: BudgetMetric| {
        let budget = Budget::ceiling("b", metric, Some(0.5), Amount::seconds(0.3));
        run.gate(&file(vec![budget])).rows[0].why.clone()
    };
    assert!(why(BudgetMetric::Ttft).contains("queue takes 75.0 %"), "{}", why(BudgetMetric::Ttft));
    assert!(why(BudgetMetric::Tpot).contains("decode takes 100"), "{}", why(BudgetMetric::Tpot));
    assert!(why(BudgetMetric::E2e).contains("decode takes 95.2 %"), "{}", why(BudgetMetric::E2e));
}

/// Failed requests have no gaps, and three in a hundred of them break a p99 of gaps like every other p99.
#[test]
fn what_fails_breaks_a_budget_of_gaps_too() {
    let answers = |every: u64| -> Vec<Attempt> {
        (0..5_000u64)
            .map(|i| match i * 7919 % every == 1 {
                true => failure(i, 10 * i as i64, How::Shed, 3),
                false => answer(i, 10 * i as i64, 50, 70, 3),
            })
            .collect()
    };
    let held = |every: u64| {
        let budget = Budget::ceiling("gap", BudgetMetric::EventGap, Some(0.99), Amount::seconds(1.0));
        of(answers(every)).gate(&file(vec![budget])).rows[0].held
    };
    assert_eq!((held(33), held(1_000_003)), (Held::Fail, Held::Pass));
}

/// A file without any limit passes nothing.
/// The total of the stages decides, although its slices are only reported.
#[test]
fn a_total_of_stages_decides_and_an_empty_family_never_passes() {
    use plimsoll_judge::budget::{PercentileLevel, StageBudget};
    let run = mixture(2_000, 1_000_000);
    let stages = |total_s: f64| {
        let slices = [("rerank".to_owned(), Amount::seconds(total_s / 2.0))].into();
        let stages =
            StageBudget { total: Amount::seconds(total_s), p: PercentileLevel(0.95), margin: None, slices };
        run.gate(&BudgetFile { stages: Some(stages), ..file(Vec::new()) })
    };
    // Answers take 70 ms, and none of them reports its stages.
    let (holds, broken) = (stages(0.1), stages(0.05));
    assert_eq!((holds.verdict, broken.verdict), (GateVerdict::Pass, GateVerdict::Broken));
    let told = |finding: &GateFinding| {
        finding.rows.iter().map(|row| (row.id.clone(), row.role, row.held, row.missing)).collect::<Vec<_>>()
    };
    assert_eq!(
        told(&broken),
        [
            ("stages total".to_owned(), RowRole::Decides, Held::Fail, false),
            ("stage rerank".to_owned(), RowRole::Watched, Held::Inconclusive, true),
        ]
    );
    assert_eq!((broken.family, broken.rows[0].place.as_str()), (1, "stages.total"));
    let tracked = Budget {
        max: None,
        ..Budget::ceiling("cost", BudgetMetric::CostPerRequest, None, Amount::share(1.0))
    };
    let finding = run.gate(&file(vec![tracked]));
    assert_eq!((finding.verdict, finding.family), (GateVerdict::Inconclusive, 0));
}

/// An onset of 1494/s whose interval is as given, against a floor.
fn floor_under_onset(lower: f64, upper: f64, floor: f64) -> Held {
    let run = mixture(2_000, 1_000_000);
    let metric = BudgetMetric::ThroughputBeforeOnset;
    let floor = Amount { value: floor, unit: AmountUnit::Rate };
    let ceiling = Budget::ceiling("floor", metric, None, floor.clone());
    let floor = Budget { max: None, min: Some(floor), ..ceiling };
    let file = file(vec![floor]);
    assert_eq!(file.check(), Ok(()));
    let mut measured = run.measured(&file);
    let rate = Estimate { value: 1494.0, lower, upper, n: 0, n_eff: 0.0 };
    let onset = CapacityLine::Found { rate, load: LoadWords::default(), how: String::new() };
    measured.findings.lines = vec![CapacityLines { onset, ..lines(1494.0, 2000.0) }];
    gate(&file, &measured, None).rows[0].held
}

/// An onset whose lower end is outside the levels (zero) proves no floor, however low, and its upper end still proves one
/// broken. For a closed interval, the printed ends are the ends that judge.
#[test]
fn an_onset_bounded_on_one_side_proves_nothing_on_the_other() {
    assert_eq!(floor_under_onset(0.0, 1741.0, 2.0), Held::Inconclusive);
    assert_eq!(floor_under_onset(0.0, 1741.0, 1e-9), Held::Inconclusive);
    assert_eq!(floor_under_onset(0.0, 1741.0, 1600.0), Held::Inconclusive);
    assert_eq!(floor_under_onset(0.0, 1741.0, 1742.0), Held::Fail);
    assert_eq!(floor_under_onset(1000.0, f64::INFINITY, 900.0), Held::Pass);
    assert_eq!(floor_under_onset(1000.0, f64::INFINITY, 1e6), Held::Inconclusive);
    for (floor, held) in [(2.0, Held::Pass), (990.0, Held::Pass), (1010.0, Held::Inconclusive)] {
        assert_eq!(floor_under_onset(1000.0, 2000.0, floor), held, "{floor}");
    }
    for (floor, held) in [(1990.0, Held::Inconclusive), (2010.0, Held::Fail)] {
        assert_eq!(floor_under_onset(1000.0, 2000.0, floor), held, "{floor}");
    }
}

/// An inline budget is the same thing with fewer words: the same rows, the same verdicts.
#[test]
fn an_inline_budget_is_judged_as_its_file_is() {
    use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
    let spec = BudgetSpec {
        name: "inline".into(),
        latency: vec![Ceiling::new(Metric::Ttft, 0.99, 0.35), Ceiling::new(Metric::E2e, 0.9, 0.1)],
        error_rate: Some(0.01),
    };
    for slow in [33, 100, 200] {
        let run = mixture(10_000, slow);
        let own = plimsoll_measure::summarise(&run.manifest.levels[0], &run.attempts, &[], Some(&spec));
        let inline = own.budget.expect("a budget was set");
        let budgets = [
            ttft(0.99, 350.0),
            Budget::ceiling("e2e", BudgetMetric::E2e, Some(0.9), Amount::seconds(0.1)),
            Budget::ceiling("errors", BudgetMetric::ErrorRate, None, Amount::share(0.01)),
        ];
        // One row at a time, for an inline budget has no family.
        for (row, budget) in inline.rows.iter().zip(budgets) {
            let finding = run.gate(&file(vec![budget]));
            let gated = &finding.rows[0];
            assert_eq!((gated.held, gated.needed), (row.verdict, row.needed), "{} {slow}", row.metric);
            assert_eq!(gated.share_over, Some(row.share_over));
        }
    }
}

/// Requests come every 10 ms and each takes 3 ms longer than the one before: of 13 that come 10 are answered, so 23.1 % wait.
///
/// The effective number of requests of such a run is unknown, but it breaks its budget anyway. A class of requests may be the served
/// one.
#[test]
fn a_run_that_piles_up_breaks_what_most_of_its_requests_are_over() {
    let run = made((0..6_000).map(|i| 50 + 3 * i));
    let all = ttft(0.95, 500.0);
    let class = Budget {
        id: "class".into(),
        slice: Some(RequestSlice { class: Some("chat".into()), ..RequestSlice::default() }),
        ..all.clone()
    };
    let rarely = Budget { id: "rarely".into(), ..ttft(0.95, 17_000.0) };
    let finding = run.gate(&file(vec![all, class, rarely]));
    let held: Vec<Held> = finding.rows.iter().map(|row| row.held).collect();
    assert_eq!(held, [Held::Fail, Held::Inconclusive, Held::Inconclusive], "{finding:#?}");
    assert_eq!(finding.verdict, GateVerdict::Broken);
    assert!(finding.rows[0].why.contains("the backlog grows by 23.1 %"), "{}", finding.rows[0].why);
}

/// Slices decide if the policy selects them; a failed request is over each.
/// Answers without the stage are reported, or are too many.
#[test]
fn a_slice_of_a_stage_decides_where_it_is_named() {
    use plimsoll_judge::budget::{PercentileLevel, StageBudget};
    let slices = [("prefill".to_owned(), Amount::seconds(0.03))].into();
    let stages = StageBudget { total: Amount::seconds(0.2), p: PercentileLevel(0.95), margin: None, slices };
    let mut file = BudgetFile { stages: Some(stages), ..file(Vec::new()) };
    // Prefill takes 40 ms of 70; every `lacking`th answer does not report it, every `failing`th request fails.
    let run = |lacking: u64, failing: u64| {
        let answers = (0..2_000).map(|i| {
            if i % failing == failing - 1 {
                return failure(i, 10 * i as i64, How::ServerError, 3);
            }
            let mut answer = answer(i, 10 * i as i64, 50, 70, 3);
            if i % lacking != 0 {
                answer.answer.stages =
                    vec![ServerStage { name: "prefill".into(), took: Span::from_millis(40) }];
            }
            answer
        });
        of(answers.collect())
    };
    let watched = run(100, 10_000).gate(&file);
    assert_eq!(
        (watched.verdict, watched.rows[1].held),
        (GateVerdict::Pass, Held::Fail),
        "{:?}",
        watched.rows
    );
    file.policy.primary = vec!["stages total".into(), "stage prefill".into()];
    assert_eq!(run(100, 10_000).gate(&file).verdict, GateVerdict::Broken);
    let half = run(2, 10_000).gate(&file);
    assert!(half.rows[1].missing && half.rows[1].why.contains("report no `prefill`"), "{}", half.rows[1].why);
    // A slice that every answer keeps, and a tenth of the requests fails.
    file.stages.as_mut().expect("stages").slices = [("prefill".to_owned(), Amount::seconds(0.05))].into();
    assert_eq!(run(100, 10_000).gate(&file).rows[1].held, Held::Pass);
    assert_eq!(run(100, 10).gate(&file).rows[1].held, Held::Fail);
    file.policy.primary = vec!["stage decode".into()];
    assert!(file.check().is_err_and(|e| e.to_string().contains("stage prefill")));
}

/// Metrics that are not percentiles against the baseline: throughput, tokens, errors; each side's uncertainty counts.
#[test]
fn rates_and_shares_are_held_to_the_baseline_too() {
    let run = |ends: fn(u64) -> bool| {
        let one = |i: u64| match ends(i * 7919 % 1000) {
            true => answer(i, 10 * i as i64, 50, 70, 3),
            false => failure(i, 10 * i as i64, How::ServerError, 3),
        };
        of((0..10_000).map(one).collect())
    };
    let (base, same, fewer) = (run(|x| x >= 10), run(|x| x >= 11), run(|x| x >= 100));
    let of_metric = |metric: BudgetMetric, relative: f64| {
        let budget = Budget {
            max: None,
            relative: Some(Relative(relative)),
            ..Budget::ceiling("x", metric, None, Amount::share(0.5))
        };
        let file = BudgetFile { baseline: Some("x".into()), ..file(vec![budget]) };
        assert_eq!(file.check(), Ok(()), "{}", metric.name());
        file
    };
    for (metric, relative) in [
        (BudgetMetric::Throughput, -0.05),
        (BudgetMetric::OutputTokensPerS, -0.05),
        (BudgetMetric::ErrorRate, 0.9),
    ] {
        let file = of_metric(metric, relative);
        let (kept, broken) = (same.against(&base, &file), fewer.against(&base, &file));
        let said = |finding: &GateFinding| format!("{}: {:?}", metric.name(), finding.rows[0]);
        assert_eq!(kept.rows[0].held, Held::Pass, "{}", said(&kept));
        assert_eq!(broken.rows[0].held, Held::Fail, "{}", said(&broken));
        assert!(kept.rows[0].limit_shown.contains("baseline"), "{}", said(&kept));
    }
    // Ten against eleven of a thousand: a tenth more is not distinguishable from no change.
    let tight = same.against(&base, &of_metric(BudgetMetric::ErrorRate, 0.1));
    assert_eq!(tight.rows[0].held, Held::Inconclusive, "{:?}", tight.rows[0]);
    // A floor may fall, and a ceiling rise: the other sign demands a gain.
    for (metric, relative) in [(BudgetMetric::Throughput, 0.05), (BudgetMetric::ErrorRate, -0.05)] {
        let budget = Budget {
            max: None,
            relative: Some(Relative(relative)),
            ..Budget::ceiling("x", metric, None, Amount::share(0.5))
        };
        assert!(file(vec![budget]).check().is_err_and(|e| e.to_string().contains("requires an improvement")));
    }
}

/// A hundred a second arrive and all are answered, so a floor of two hundred is not tested and not broken.
///
/// A floor of ninety passes. It is broken if the target misses it while it loses a tenth of the arrivals.
#[test]
fn a_floor_over_what_was_offered_is_not_decided() {
    let floor = |metric: BudgetMetric, per_s: &str| Budget {
        min: Some(Amount::parse(per_s).expect("a rate")),
        max: None,
        ..Budget::ceiling("x", metric, None, Amount::share(0.5))
    };
    let held = |run: &Made, metric, per_s: &str| {
        let found = run.gate(&file(vec![floor(metric, per_s)]));
        (found.rows[0].held, found.rows[0].why.clone())
    };
    let sound = made((0..6_000).map(|_| 50));
    let (verdict, why) = held(&sound, BudgetMetric::Throughput, "200/s");
    assert_eq!(verdict, Held::Inconclusive, "{why}");
    assert!(why.contains("the offered load is below the floor: 100/s arrived"), "{why}");
    assert_eq!(held(&sound, BudgetMetric::Throughput, "90/s").0, Held::Pass);
    let losing = of((0..6_000)
        .map(|i| match i % 10 {
            0 => failure(i, 10 * i as i64, How::ServerError, 3),
            _ => answer(i, 10 * i as i64, 50, 100, 5),
        })
        .collect());
    let (verdict, why) = held(&losing, BudgetMetric::Throughput, "95/s");
    assert_eq!(verdict, Held::Fail, "{why}");
    let (verdict, why) = held(&losing, BudgetMetric::Throughput, "200/s");
    assert_eq!(verdict, Held::Fail, "{why}");
}

/// At an error rate of 1 % it takes ln 0.025 / ln 0.99 = 368 requests without an error; twice as many are named.
#[test]
fn what_would_settle_a_tiny_run_is_what_a_verdict_takes() {
    let mut run = made(std::iter::once(50));
    run.manifest.levels[0].stop = run.manifest.levels[0].start + Span::from_secs(1);
    let row = &run
        .gate(&file(vec![Budget::ceiling("e", BudgetMetric::ErrorRate, None, Amount::share(0.01))]))
        .rows[0];
    assert!(
        row.why.starts_with("0 of 1 failed: would pass; a verdict needs about 735 more requests"),
        "{}",
        row.why
    );
}
