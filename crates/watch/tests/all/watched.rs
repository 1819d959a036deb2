//! A watch over pages made by hand from a log of requests: verdicts, restarts, lost pages, silence.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_math::rng::Stream;
use plimsoll_measure::server_side::{FAILED, SCRAPE};
use plimsoll_model::{At, PageRead, PageSaid, Sample, SeriesName, Span, split_labels};
use plimsoll_watch::{AlertSpec, RowState, WatchFinding, WatchSpec, Watched};

/// vLLM's edges of the first token, s.
const EDGES: [f64; 9] = [0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5];
const EVERY: i64 = 5;

/// A server's page: what it counted since it began, in vLLM's names.
#[derive(Clone, Default)]
pub struct Page {
    pub ttft: Vec<f64>,
    pub failed: u64,
    pub running: f64,
    pub waiting: f64,
    /// When its process began, s of Unix time, where it says so.
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

    /// The same as it was read.
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

pub fn watched(budgets: &str) -> Watched {
    watched_with(budgets, None)
}

pub fn watched_with(budgets: &str, queue_per_replica: Option<f64>) -> Watched {
    let file: BudgetFile =
        serde_json::from_str(&format!("{{\"version\": 1, \"budgets\": [{budgets}]}}")).expect("a budget");
    let alerts = AlertSpec { queue_per_replica, ..AlertSpec::default() };
    Watched::new(file, WatchSpec { every: Span::from_secs(EVERY), window: Span::from_secs(300) })
        .alerting(alerts)
}

pub const TTFT: &str = r#"{"id": "ttft", "metric": "ttft", "p": "99", "max": "500ms"}"#;
const ERRORS: &str = r#"{"id": "errors", "metric": "error_rate", "max": "1%"}"#;

/// Scrapes until `until_s`; what a second brings is the caller's.
pub fn play(
    watched: &mut Watched,
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

/// Ten requests a second, one in `nth` slow.
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
    assert!(held.rows[0].unseen.contains("as far as the server sees"));
    let broken = play(&mut watched, &mut page, 301, 400, load(5));
    assert_eq!(state(&broken, 0), RowState::Broken, "{:?}", broken.rows[0]);
    assert_eq!(state(&broken, 1), RowState::Holds);
    assert!((broken.fleet.requests_per_s.expect("a rate") - 10.0).abs() < 0.5);
}

/// What is pushed may come several scrapes at a time: those of the first tick count from the first of them.
#[test]
fn scrapes_that_come_together_count_from_the_first() {
    let (mut watched, mut page) = (watched(TTFT), Page::default());
    page.samples("", 1).into_iter().for_each(|sample| watched.push(&sample));
    page.ttft = vec![0.05; 7];
    page.samples("", 2).into_iter().for_each(|sample| watched.push(&sample));
    watched.tick(At(3_000_000_000));
    assert_eq!(watched.finding(At(3_000_000_000)).rows[0].n, 7);
}

/// A restart takes the counters back to zero: what came after it is counted from there, and the sum is the log's but for nothing.
#[test]
fn a_restart_loses_nothing_that_was_scraped() {
    let (mut watched, mut page) = (watched(TTFT), Page::default());
    play(&mut watched, &mut page, 0, 100, load(1000));
    // It dies right after a scrape, and has answered before the next one.
    page = Page::default();
    let after = play(&mut watched, &mut page, 101, 200, load(1000));
    assert_eq!(after.rows[0].n, 2000);
    assert!(after.fleet.restarts >= 1);
    assert_eq!(state(&after, 0), RowState::Holds, "{:?}", after.rows[0]);
}

/// Pages that do not answer are no verdict; when they are back, what came meanwhile counts.
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

/// Of two pages one is lost: what the other shows can still be broken, but it does not hold.
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
    // The other is back, and what came meanwhile counts: all of both logs but what the first scrapes already had.
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

/// Pages are read one after the other: what runs and waits now is the sum of all replicas, whichever was read last.
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

/// Nobody asks: no traffic. Requests run and nothing moves: stalled, whatever the percentiles were. Neither is "holds".
#[test]
fn silence_has_two_names() {
    let (mut watched, mut page) = (watched(TTFT), Page::default());
    let nobody = play(&mut watched, &mut page, 0, 60, |_, _| {});
    assert_eq!(state(&nobody, 0), RowState::NoTraffic, "{:?}", nobody.rows[0]);
    play(&mut watched, &mut page, 61, 160, load(1000));
    let stalled = play(&mut watched, &mut page, 161, 220, |_, page| page.running = 7.0);
    assert_eq!(state(&stalled, 0), RowState::Stalled, "{:?}", stalled.rows[0]);
}

/// Failures are over every ceiling, and a ceiling inside a bucket with many requests a scrape decides nothing.
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

/// Rows that no page can judge say so, and are never "holds".
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

/// SGLang counts requests and none that failed: no error rate can be read off its page, and none of zero.
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

/// A watch that looks every so many seconds at one p95 of 500 ms over a minute.
fn of_a_minute(every_s: i64) -> Watched {
    let budgets =
        r#"{"version": 1, "budgets": [{"id": "ttft", "metric": "ttft", "p": "95", "max": "500ms"}]}"#;
    let spec = WatchSpec { every: Span::from_secs(every_s), window: Span::from_secs(60) };
    Watched::new(serde_json::from_str(budgets).expect("a budget"), spec)
}

/// Requests that one scrape brought are one observation: thirty of them, all over it, in the newest quarter prove nothing.
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

/// All are over it from one second on. Before, the window held the step from good to bad, which looks as if neighbours were alike, and with most of its requests over it
/// a row went from broken to cannot tell.
#[test]
fn what_is_broken_stays_so_while_more_and_more_are_over_it() {
    for seed in 0..20 {
        let mut stream = Stream::new(seed, "step", 0);
        let (mut watched, mut page) = (of_a_minute(2), Page::default());
        for second in 0..320 {
            let is_slow = (120..180).contains(&second);
            // Two a second, as they come.
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

/// SGLang counts an answer's tokens when it ends: one of two minutes is no stall as long as gaps between its tokens are counted.
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
