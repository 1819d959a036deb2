//! Separate endpoints: every scrape counts once, at any time of arrival, and the memory is bounded.

use std::sync::Arc;

use plimsoll_model::{At, PageRead, PageSaid, SeriesName, Span};
use plimsoll_watch::history::rows::HistoryRows;
use plimsoll_watch::{BudgetWatch, RowState};

use crate::watched::{TTFT, watched};

/// One of many replicas with equal series, and its counters.
struct Replica {
    page: String,
    /// Responses within 500 ms and over it, and the sum of times to first token, s.
    fast: u64,
    slow: u64,
    sum: f64,
    running: f64,
}

impl Replica {
    fn new(page: impl Into<String>) -> Replica {
        Replica { page: page.into(), fast: 0, slow: 0, sum: 0.0, running: 1.0 }
    }

    fn answers(&mut self, fast: u64, slow: u64) {
        (self.fast, self.slow) = (self.fast + fast, self.slow + slow);
        self.sum += 0.1 * fast as f64 + 0.9 * slow as f64;
    }

    fn read(&self, names: &Arc<[SeriesName]>, at: At) -> PageRead {
        let (fast, all) = (self.fast as f64, (self.fast + self.slow) as f64);
        let values = vec![self.running, fast, all, self.sum, all, all, 10.0 * all];
        PageRead { page: self.page.clone(), at, said: PageSaid::Values(Arc::clone(names), values) }
    }
}

fn names() -> Arc<[SeriesName]> {
    let name = |name: &str, le: Option<&str>| SeriesName {
        name: name.to_owned(),
        labels: le.into_iter().map(|le| ("le".to_owned(), le.to_owned())).collect(),
    };
    Arc::new([
        name("vllm:num_requests_running", None),
        name("vllm:time_to_first_token_seconds_bucket", Some("0.5")),
        name("vllm:time_to_first_token_seconds_bucket", Some("+Inf")),
        name("vllm:time_to_first_token_seconds_sum", None),
        name("vllm:time_to_first_token_seconds_count", None),
        name("vllm:request_success_total", None),
        name("vllm:generation_tokens_total", None),
    ])
}

fn at(seconds: f64) -> At {
    At::ZERO + Span::from_secs_f64(seconds)
}

fn counted(watched: &BudgetWatch, now: At) -> (u64, f64) {
    let row = &watched.finding(now).rows[0];
    (row.n, row.over.map_or(0.0, |over| over[0] * row.n as f64))
}

/// A scrape is processed whenever it ends. One that comes just after its own tick is in the next one, regardless of
/// other endpoints at that tick.
#[test]
fn a_scrape_after_the_tick_is_counted_in_the_next() {
    let (names, mut watched) = (names(), watched(TTFT));
    let (mut a, mut b) = (Replica::new("a"), Replica::new("b"));
    for page in [&a, &b] {
        watched.read(page.read(&names, at(0.0)));
    }
    watched.tick(at(0.1));
    a.answers(10, 1);
    b.answers(20, 2);
    watched.read(a.read(&names, at(5.0)));
    watched.tick(at(5.05));
    assert_eq!(counted(&watched, at(5.05)).0, 11);
    // Read before the tick and processed after it: older than the newest scrape that the tick has counted.
    watched.read(b.read(&names, at(4.9)));
    watched.tick(at(5.10));
    a.answers(10, 0);
    watched.read(a.read(&names, at(10.0)));
    watched.tick(at(10.05));
    let (n, over) = counted(&watched, at(10.05));
    assert_eq!((n, over.round()), (43, 3.0));
}

/// Fifty endpoints at fifty times, ticks at other times, endpoints that fail, restart and omit a series for a scrape:
/// all counts are counted once.
#[test]
fn over_the_whole_watch_counts_are_the_pages_own() {
    let (names, mut watched) = (names(), watched(TTFT));
    let fewer: Arc<[SeriesName]> = names.iter().take(6).cloned().collect();
    let mut fleet: Vec<Replica> = (0..50).map(|n| Replica::new(format!("p{n:02}"))).collect();
    let (mut all, mut slow, mut failed) = (0, 0, [false; 50]);
    for step in 0..60u64 {
        for (n, replica) in fleet.iter_mut().enumerate() {
            let when = at(5.0 * step as f64 + 0.1 * n as f64);
            let (fast, late) = ((step + n as u64) % 7, u64::from((step + n as u64).is_multiple_of(13)));
            // Late enough that its counters fall, and not after a failed scrape, whose counts would be lost.
            let restarts = step > 10 && !failed[n] && (step * 50 + n as u64).is_multiple_of(211);
            if restarts {
                *replica = Replica::new(replica.page.clone());
            }
            replica.answers(fast, late);
            // The first scrape is the start of counting.
            (all, slow) = if step > 0 { (all + fast + late, slow + late) } else { (all, slow) };
            failed[n] = step > 0 && step < 59 && (step + n as u64).is_multiple_of(17) && !restarts;
            if failed[n] {
                let said = PageSaid::Failed("timeout".to_owned());
                watched.read(PageRead { page: replica.page.clone(), at: when, said });
                continue;
            }
            let mut read = replica.read(&names, when);
            if (step + n as u64).is_multiple_of(5)
                && let PageSaid::Values(series, values) = &mut read.said
            {
                (*series, _) = (Arc::clone(&fewer), values.truncate(6));
            }
            watched.read(read);
            if n == 23 {
                watched.tick(when + Span(1));
            }
        }
    }
    watched.tick(at(300.0));
    // Requests between the last scrape of a process and its end were never seen.
    let (n, over) = counted(&watched, at(300.0));
    assert_eq!((n, over.round() as u64), (all, slow));
}

/// A day in which 5 % of the replicas are replaced per hour: only existing replicas are kept in memory.
#[test]
fn a_day_of_pods_that_come_and_go_leaves_nothing_behind() {
    const FLEET: usize = 12;
    let (names, mut watched) = (names(), watched(TTFT).keeping(0));
    let mut fleet: Vec<Replica> = (0..FLEET).map(|n| Replica::new(format!("pod-{n}"))).collect();
    let (mut next, mut sizes) = (FLEET, Vec::new());
    let (mut history, mut kept, mut rows) = (HistoryRows::default(), Vec::new(), 0);
    for step in 0..24 * 240u64 {
        let now = at(15.0 * step as f64);
        // Two per hour in turn.
        if step % 120 == 60 {
            let place = next % FLEET;
            let gone = std::mem::replace(&mut fleet[place], Replica::new(format!("pod-{next}")));
            watched.read(PageRead { page: gone.page, at: now, said: PageSaid::Left });
            next += 1;
        }
        for replica in &mut fleet {
            replica.answers(3, u64::from(step.is_multiple_of(40)));
            watched.read(replica.read(&names, now));
        }
        watched.tick(now + Span(1));
        rows += watched.blocks_ended(false).iter().map(|block| history.of(block).len()).sum::<usize>();
        if step % 240 == 239 {
            sizes.push(watched.size());
            kept.push(std::mem::take(&mut rows));
        }
    }
    assert_eq!(watched.finding(at(86_400.0)).rows[0].state, RowState::Holds);
    assert_eq!(&sizes[23][..5], [FLEET, FLEET * names.len(), FLEET, 0, 1], "{:?}", sizes[23]);
    for size in &sizes[1..] {
        let grows = size.iter().zip(&sizes[1]).any(|(now, then)| *now > then + (then / 20).max(2));
        assert!(!grows, "{size:?} after {:?}", sizes[1]);
    }
    // The history has at most one row per series of one replica, and six gauges, in each block, for any number of
    // replaced replicas.
    assert!(kept.iter().all(|rows| *rows <= 240 * (names.len() + 8)), "{kept:?}");
    // Twenty minutes of all changes.
    assert!(sizes[23][6] < 82 * FLEET * (8 + names.len()), "{:?}", sizes[23]);
}
