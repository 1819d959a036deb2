//! A watch over hand-written metrics from a log of requests: verdicts, restarts, lost endpoints, missing traffic.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_math::rng::Stream;
use plimsoll_measure::server_side::{FAILED, SCRAPE};
use plimsoll_model::{At, PageRead, PageSaid, Sample, SeriesName, Span, split_labels};
use plimsoll_watch::{AlertSpec, BudgetWatch, BudgetWatchSpec, RowState, WatchFinding};

/// vLLM's edges of the time to first token, s.
const EDGES: [f64; 9] = [0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5];
const EVERY: i64 = 5;

/// A server's metrics: its counters since the start, with vLLM's names.
#[derive(Clone, Default)]
pub struct Page {
    pub ttft: Vec<f64>,
    pub failed: u64,
    pub running: f64,
    pub waiting: f64,
    /// Start time of the process, s of Unix time; `None` if not exported.
    pub began: Option<f64>,
}

impl Page {
    pub fn samples(&self, page: &str, at_s: i64) -> Vec<Sample> {
        let at = At(at_s * 1_000_000_000);
        let own = if page.is_empty() { String::new() } else { format!("source={page}") };
        let with = |labels: &str| {
            [labels, &own].iter().filter(|l| !l.is_empty()).copied().collect::<Vec<_>>().join(",")
        };
        let row = |name: &str, labels: &str, value: f64| Sample {
            at,
            source: "server".into(),
            name: name.into(),
            labels: with(labels).into(),
            value,
        };
        let mut rows = vec![row(SCRAPE, "", 20.0), row("vllm:num_requests_running", "", self.running)];
        rows.push(row("vllm:num_requests_waiting", "", self.waiting));
        rows.extend(self.began.map(|began| row("process_start_time_seconds", "", began)));
        for edge in EDGES {
            let below = self.ttft.iter().filter(|s| **s <= edge).count();
            rows.push(row("vllm:time_to_first_token_seconds_bucket", &format!("le={edge}"), below as f64));
        }
        let all = self.ttft.len() as f64;
        rows.push(row("vllm:time_to_first_token_seconds_bucket", "le=+Inf", all));
        rows.push(row("vllm:generation_tokens_total", "", 10.0 * all));
        rows.push(row("vllm:time_to_first_token_seconds_sum", "", self.ttft.iter().sum()));
        rows.push(row("vllm:time_to_first_token_seconds_count", "", all));
        rows.push(row("vllm:request_success_total", "finished_reason=stop", all));
        rows.push(row("vllm:request_success_total", "finished_reason=error", self.failed as f64));
        rows
    }

    /// Returns the metrics as a scrape.
    pub fn read(&self, page: &str, at_s: i64) -> PageRead {
        let rows: Vec<Sample> = self.samples("", at_s).into_iter().filter(|row| row.name != SCRAPE).collect();
        let series = rows
            .iter()
            .map(|row| SeriesName { name: row.name.to_string(), labels: split_labels(&row.labels) });
        let said = PageSaid::Values(series.collect(), rows.iter().map(|row| row.value).collect());
        PageRead { page: page.to_owned(), at: At(at_s * 1_000_000_000), said }
    }

    pub fn lost(page: &str, at_s: i64) -> Sample {
        let labels =
            if page.is_empty() { "why=refused".to_owned() } else { format!("source={page},why=refused") };
        Sample {
            at: At(at_s * 1_000_000_000),
            source: "server".into(),
            name: FAILED.into(),
            labels: labels.into(),
            value: 1.0,
        }
    }
}

pub fn watched(budgets: &str) -> BudgetWatch {
    watched_with(budgets, None)
}

pub fn watched_with(budgets: &str, queue_per_replica: Option<f64>) -> BudgetWatch {
    let file: BudgetFile =
        serde_json::from_str(&format!("{{\"version\": 1, \"budgets\": [{budgets}]}}")).expect("a budget");
    let alerts = AlertSpec { queue_per_replica, ..AlertSpec::default() };
    BudgetWatch::new(file, BudgetWatchSpec { every: Span::from_secs(EVERY), window: Span::from_secs(300) })
        .alerting(alerts)
}

pub const TTFT: &str = r#"{"id": "ttft", "metric": "ttft", "p": "99", "max": "500ms"}"#;
const ERRORS: &str = r#"{"id": "errors", "metric": "error_rate", "max": "1%"}"#;

/// Scrapes until `until_s`; the caller adds the requests of each second.
pub fn play(
    watched: &mut BudgetWatch,
    page: &mut Page,
    from_s: i64,
    until_s: i64,
    second: impl Fn(i64, &mut Page),
) -> WatchFinding {
    for at in from_s..=until_s {
        second(at, page);
        if at % EVERY == 0 {
            page.samples("", at).into_iter().for_each(|sample| watched.push(&sample));
            watched.tick(At(at * 1_000_000_000));
        }
    }
    watched.finding(At(until_s * 1_000_000_000))
}

fn state(finding: &WatchFinding, place: usize) -> RowState {
    finding.rows[place].state
}

/// Adds ten requests per second, one in `nth` slow.
pub fn load(nth: usize) -> impl Fn(i64, &mut Page) {
    move |at, page| {
        for k in 0..10 {
            let slow = (at as usize * 10 + k).is_multiple_of(nth);
            page.ttft.push(if slow { 0.9 } else { 0.045 + 0.001 * k as f64 });
        }
        page.running = 3.0;
    }
}

#[test]
fn a_budget_holds_then_breaks_and_the_counts_are_the_logs() {
    let (mut watched, mut page) = (watched(&format!("{TTFT},{ERRORS}")), Page::default());
    let held = play(&mut watched, &mut page, 0, 300, load(1000));
    assert_eq!((state(&held, 0), state(&held, 1)), (RowState::Holds, RowState::Holds), "{:?}", held.rows);
    assert_eq!(held.rows[0].n, 3000);
    assert_eq!(held.rows[0].over, Some([3.0 / 3000.0, 3.0 / 3000.0]), "500 ms is an edge");
    assert!(held.rows[0].unseen.contains("can prove the budget broken, but never met"));
    let broken = play(&mut watched, &mut page, 301, 400, load(5));
    assert_eq!(state(&broken, 0), RowState::Broken, "{:?}", broken.rows[0]);
    assert_eq!(state(&broken, 1), RowState::Holds);
    assert!((broken.fleet.requests_per_s.expect("a rate") - 10.0).abs() < 0.5);
}

/// Pushed data may contain several scrapes: those of the first tick count from the first scrape.
#[test]
fn scrapes_that_come_together_count_from_the_first() {
    let (mut watched, mut page) = (watched(TTFT), Page::default());
    page.samples("", 1).into_iter().for_each(|sample| watched.push(&sample));
    page.ttft = vec![0.05; 7];
    page.samples("", 2).into_iter().for_each(|sample| watched.push(&sample));
    watched.tick(At(3_000_000_000));
    assert_eq!(watched.finding(At(3_000_000_000)).rows[0].n, 7);
}

/// A restart resets the counters: later requests are counted from there, and the sum equals the log.
#[test]
fn a_restart_loses_nothing_that_was_scraped() {
    let (mut watched, mut page) = (watched(TTFT), Page::default());
    play(&mut watched, &mut page, 0, 100, load(1000));
    // The process dies right after a scrape, and has completed requests before the next one.
    page = Page::default();
    let after = play(&mut watched, &mut page, 101, 200, load(1000));
    assert_eq!(after.rows[0].n, 2000);
    assert!(after.fleet.restarts >= 1);
    assert_eq!(state(&after, 0), RowState::Holds, "{:?}", after.rows[0]);
}

/// Failing endpoints give no verdict; when they return, the requests in between count.
#[test]
fn a_lost_page_is_a_state_of_its_own() {
    let (mut watched, mut page) = (watched(TTFT), Page::default());
    play(&mut watched, &mut page, 0, 200, load(1000));
    for at in (205..=230).step_by(5) {
        watched.push(&Page::lost("", at));
        watched.tick(At(at * 1_000_000_000));
    }
    let lost = watched.finding(At(230 * 1_000_000_000));
    assert_eq!(state(&lost, 0), RowState::SourceLost, "{:?}", lost.rows[0]);
    assert_eq!(lost.fleet.pages, [0, 1]);
    let back = play(&mut watched, &mut page, 231, 280, load(1000));
    assert_eq!(state(&back, 0), RowState::Holds, "{:?}", back.rows[0]);
}

/// One of two endpoints is lost: the other can still prove "broken", but not "holds".
#[test]
fn half_a_fleet_does_not_hold() {
    let mut watched = watched(TTFT);
    let (mut a, mut b) = (Page::default(), Page::default());
    for at in 0..=200 {
        load(1000)(at, &mut a);
        load(1000)(at, &mut b);
        if at % EVERY == 0 {
            a.samples("a", at).into_iter().for_each(|sample| watched.push(&sample));
            match at < 100 {
                true => b.samples("b", at).into_iter().for_each(|sample| watched.push(&sample)),
                false => watched.push(&Page::lost("b", at)),
            }
            watched.tick(At(at * 1_000_000_000));
        }
    }
    let found = watched.finding(At(200 * 1_000_000_000));
    assert_eq!(state(&found, 0), RowState::CannotTell, "{:?}", found.rows[0]);
    assert!(found.rows[0].why.contains("1 of 2 pages do not answer"), "{}", found.rows[0].why);
    // The lost endpoint is back, and the requests in between count: both logs, without the counts of the first
    // scrapes.
    for at in 201..=260 {
        load(1000)(at, &mut a);
        load(1000)(at, &mut b);
        if at % EVERY == 0 {
            for (page, name) in [(&a, "a"), (&b, "b")] {
                page.samples(name, at).into_iter().for_each(|sample| watched.push(&sample));
            }
            watched.tick(At(at * 1_000_000_000));
        }
    }
    let found = watched.finding(At(260 * 1_000_000_000));
    assert_eq!(
        (state(&found, 0), found.rows[0].n),
        (RowState::Holds, (a.ttft.len() + b.ttft.len()) as u64 - 20)
    );
}

/// Endpoints are scraped in sequence: running and waiting requests are summed over all replicas, in any order of
/// scrapes.
#[test]
fn what_runs_is_the_sum_of_replicas_read_in_turn() {
    let mut watched = watched(TTFT);
    let (mut a, mut b) = (Page::default(), Page::default());
    for at in 0..=60 {
        load(1000)(at, &mut a);
        load(1000)(at, &mut b);
        (a.running, a.waiting, b.running, b.waiting) = (3.0, 6.0, 4.0, 1.0);
        let (page, name) = if at % EVERY == 0 { (&a, "a") } else { (&b, "b") };
        if at % EVERY == 0 || at % EVERY == 2 {
            page.samples(name, at).into_iter().for_each(|sample| watched.push(&sample));
            watched.tick(At(at * 1_000_000_000));
        }
    }
    let fleet = watched.finding(At(60 * 1_000_000_000)).fleet;
    assert_eq!((fleet.running, fleet.waiting), (Some(7.0), Some(7.0)), "{fleet:?}");
}

/// Without requests the state is "no traffic"; running requests without progress are "stalled", at any percentiles.
/// Neither is "holds".
#[test]
fn silence_has_two_names() {
    let (mut watched, mut page) = (watched(TTFT), Page::default());
    let nobody = play(&mut watched, &mut page, 0, 60, |_, _| {});
    assert_eq!(state(&nobody, 0), RowState::NoTraffic, "{:?}", nobody.rows[0]);
    play(&mut watched, &mut page, 61, 160, load(1000));
    let stalled = play(&mut watched, &mut page, 161, 220, |_, page| page.running = 7.0);
    assert_eq!(state(&stalled, 0), RowState::Stalled, "{:?}", stalled.rows[0]);
}

/// Failures are over every ceiling, and a ceiling inside a bucket with many requests per scrape decides nothing.
#[test]
fn failures_count_and_brackets_do_not_decide() {
    let inside = r#"{"id": "inside", "metric": "ttft", "p": "90", "max": "300ms"}"#;
    let (mut watched, mut page) = (watched(&format!("{TTFT},{ERRORS},{inside}")), Page::default());
    let found = play(&mut watched, &mut page, 0, 300, |at, page| {
        (0..10).for_each(|k| {
            page.ttft.push(if (at + k) % 3 == 0 { 0.3 + 0.02 * (k % 5 - 2) as f64 } else { 0.05 })
        });
        page.failed += u64::from(at % 2 == 0);
    });
    assert_eq!(
        (state(&found, 0), state(&found, 1)),
        (RowState::Broken, RowState::Broken),
        "{:?}",
        found.rows
    );
    assert_eq!(state(&found, 2), RowState::CannotTell, "{:?}", found.rows[2]);
    let [least, most] = found.rows[2].over.expect("a bracket");
    let truth = page.ttft.iter().filter(|s| **s > 0.3).count() as u64 + page.failed;
    assert!(least < most && least * found.rows[2].n as f64 <= truth as f64, "{least} {most} {truth}");
}

/// Rows without a signal are reported as invisible, and never as "holds".
#[test]
fn what_no_page_says_is_said() {
    let rows = r#"{"id": "a", "metric": "ttfb", "p": "99", "max": "1s"}, {"id": "b", "metric": "goodput", "min": "1/s"},
        {"id": "c", "metric": "ttft", "p": "99", "max": "1s", "slice": {"class": "chat"}}, {"id": "d", "metric": "tpot", "p": "95", "max": "50ms"}"#;
    let (mut watched, mut page) = (watched(rows), Page::default());
    let found = play(&mut watched, &mut page, 0, 200, load(1000));
    assert!(
        found.rows.iter().all(|row| row.state == RowState::Absent && !row.why.is_empty()),
        "{:?}",
        found.rows
    );
}

/// SGLang counts requests but no failures: its metrics give no error rate, not even zero.
#[test]
fn errors_are_not_judged_where_no_failure_is_counted() {
    let mut watched = watched(ERRORS);
    for at_s in (0..=100).step_by(5) {
        let row = |name: &str, value: f64| Sample {
            at: At(at_s * 1_000_000_000),
            source: "server".into(),
            name: name.into(),
            labels: "".into(),
            value,
        };
        watched.push(&row(SCRAPE, 2.0));
        watched.push(&row("sglang:num_requests_total", 50.0 * at_s as f64));
        watched.push(&row("sglang:num_running_reqs", 1.0));
        watched.tick(At(at_s * 1_000_000_000));
    }
    let found = watched.finding(At(100_000_000_000));
    assert_eq!(found.rows[0].state, RowState::Absent, "{:?}", found.rows[0]);
}

/// Returns a watch that scrapes every `every_s` seconds, with one p95 of 500 ms over a minute.
fn of_a_minute(every_s: i64) -> BudgetWatch {
    let budgets =
        r#"{"version": 1, "budgets": [{"id": "ttft", "metric": "ttft", "p": "95", "max": "500ms"}]}"#;
    let spec = BudgetWatchSpec { every: Span::from_secs(every_s), window: Span::from_secs(60) };
    BudgetWatch::new(serde_json::from_str(budgets).expect("a budget"), spec)
}

/// The requests of one scrape count as one observation: thirty of them, all over the ceiling, in the newest quarter
/// prove nothing.
#[test]
fn one_burst_breaks_no_row() {
    let (mut watched, mut page) = (of_a_minute(1), Page::default());
    for second in 0..=60 {
        match second {
            5 | 15 | 25 | 35 => page.ttft.extend([0.1; 30]),
            50 => page.ttft.extend([0.9; 30]),
            _ => {}
        }
        page.samples("", second).into_iter().for_each(|sample| watched.push(&sample));
        watched.tick(At(second * 1_000_000_000));
    }
    let found = watched.finding(At(60_000_000_000));
    assert_eq!(found.rows[0].state, RowState::CannotTell, "{:?}", found.rows[0]);
    assert_eq!(found.rows[0].over, Some([0.2, 0.2]));
}

/// All requests exceed the ceiling from one second on. The window then has a level shift, which inflates
/// autocorrelation, and the row once went from broken to inconclusive.
#[test]
fn what_is_broken_stays_so_while_more_and_more_are_over_it() {
    for seed in 0..20 {
        let mut stream = Stream::new(seed, "step", 0);
        let (mut watched, mut page) = (of_a_minute(2), Page::default());
        for second in 0..320 {
            let is_slow = (120..180).contains(&second);
            // Two requests per second.
            (0..20)
                .filter(|_| stream.chance(0.1))
                .for_each(|_| page.ttft.push(if is_slow { 0.9 } else { 0.1 }));
            page.running = 1.0;
            if second % 2 > 0 {
                continue;
            }
            page.samples("", second).into_iter().for_each(|sample| watched.push(&sample));
            watched.tick(At(second * 1_000_000_000));
            let found = watched.finding(At(second * 1_000_000_000));
            let row = &found.rows[0];
            match second {
                ..120 | 244.. => assert_ne!(row.state, RowState::Broken, "{seed}: {second} s: {row:?}"),
                170..=180 => assert_eq!(row.state, RowState::Broken, "{seed}: {second} s: {row:?}"),
                _ => {}
            }
        }
    }
}

/// SGLang counts output tokens at the end: a response of two minutes is no stall while its token gaps are counted.
#[test]
fn a_long_answer_is_no_stall_where_its_tokens_are_counted_at_the_end() {
    let stalls = |gaps_until: i64| {
        let mut watched = of_a_minute(5);
        for second in (0..=120).step_by(5) {
            let row = |name: &str, labels: &str, value: f64| Sample {
                at: At(second * 1_000_000_000),
                source: "server".into(),
                name: name.into(),
                labels: labels.into(),
                value,
            };
            let gaps = second.min(gaps_until) as f64;
            let rows = [
                row(SCRAPE, "", 5.0),
                row("sglang:num_running_reqs", "", 1.0),
                row("sglang:generation_tokens_total", "", 500.0),
                row("sglang:inter_token_latency_seconds_bucket", "le=+Inf", gaps),
                row("sglang:inter_token_latency_seconds_sum", "", gaps),
                row("sglang:inter_token_latency_seconds_count", "", gaps),
            ];
            rows.iter().for_each(|row| watched.push(row));
            watched.tick(At(second * 1_000_000_000));
        }
        watched.finding(At(120_000_000_000)).fleet.replicas[0].stalled_s
    };
    assert_eq!(stalls(120), None);
    assert_eq!(stalls(60), Some(60.0));
}
