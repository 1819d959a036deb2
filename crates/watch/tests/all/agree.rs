//! One log of requests through the gate and through the watch: both evaluate one budget on equal data, so they must
//! not contradict each other.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::gate::{MeasuredRun, gate};
use plimsoll_lab::records::{answer, broken, failure, level, manifest};
use plimsoll_math::rng::Stream;
use plimsoll_measure::SweepSpec;
use plimsoll_measure::findings::Held;
use plimsoll_model::{At, Attempt, Broken, How, Span};
use plimsoll_watch::{AlertSpec, BudgetWatch, BudgetWatchSpec, RowState};

const BUDGET: &str = r#"{"version": 1, "name": "t", "budgets": [
    {"id": "ttft", "metric": "ttft", "p": "95", "max": "500ms"},
    {"id": "tight", "metric": "ttft", "p": "99", "max": "120ms"},
    {"id": "e2e", "metric": "e2e", "p": "90", "max": "1s"},
    {"id": "tpot", "metric": "tpot", "p": "95", "max": "30ms"},
    {"id": "errors", "metric": "error_rate", "max": "5%"},
    {"id": "retries", "metric": "retry_rate", "max": "5%"},
    {"id": "both", "metric": "error_and_retry_rate", "max": "5%"},
    {"id": "long", "metric": "ttft", "p": "95", "max": "500ms", "slice": {"prompt_tokens": "1000.."}}]}"#;
/// Length of the log in s, at ten requests/s.
const LENGTH_S: i64 = 240;

/// A generator of a log: the attempts of a request at this millisecond.
type Make = fn(u64, i64, f64) -> Vec<Attempt>;

fn log(make: Make) -> Vec<Attempt> {
    let mut chance = Stream::new(11, "agree", 0);
    (0..10 * LENGTH_S).flat_map(|n| make(n as u64, 100 * n, chance.uniform())).collect()
}

fn good(n: u64, due: i64) -> Attempt {
    answer(n, due, 80 + n as i64 % 30, 400, 12)
}

/// Returns an unstreamed response.
fn whole(n: u64, due: i64) -> Attempt {
    let mut row = good(n, due);
    row.events.clear();
    (row.first_token, row.first_visible, row.last_token) = (None, None, None);
    row
}

/// Returns a request that failed at first, and whose second attempt ended seconds later.
fn again(n: u64, due: i64, second: Attempt) -> Vec<Attempt> {
    let first = failure(n, due, How::Reset, 300);
    let later = |at: Option<At>| at.map(|at| at + Span::from_secs(4));
    let second = Attempt {
        attempt: 1,
        sent: later(second.sent),
        connected: later(second.connected),
        first_byte: later(second.first_byte),
        first_token: later(second.first_token),
        first_visible: later(second.first_visible),
        last_token: later(second.last_token),
        end: later(second.end),
        ..second
    };
    vec![first, second]
}

/// Returns both verdicts on each row; `None` if there is none.
fn verdicts(rows: &[Attempt]) -> Vec<(String, Option<Held>, Option<Held>)> {
    let file: BudgetFile = serde_json::from_str(BUDGET).expect("a budget");
    let mut level = level(10.0, LENGTH_S);
    level.arrivals = rows.iter().filter(|row| row.attempt == 0).count() as u64;
    let manifest = manifest(vec![level]);
    let spec = SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(50);
    let gated = gate(&file, &MeasuredRun::read(&manifest, rows, &[], &spec, &file), None);
    let spec = BudgetWatchSpec { every: Span::from_secs(1), window: Span::from_secs(2 * LENGTH_S) };
    let mut watched = BudgetWatch::new(file, spec).of_requests(AlertSpec::default(), At::ZERO);
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| row.end.expect("it ended"));
    let mut coming = rows.into_iter().peekable();
    for s in 1..=LENGTH_S + 10 {
        let now = At(s * 1_000_000_000);
        watched.take(std::iter::from_fn(|| coming.next_if(|row| row.end.expect("it ended") <= now)));
        watched.tick(now);
    }
    let found = watched.finding(At((LENGTH_S + 10) * 1_000_000_000));
    let of = |state: RowState| match state {
        RowState::Holds => Some(Held::Pass),
        RowState::Broken => Some(Held::Fail),
        RowState::CannotTell => Some(Held::Inconclusive),
        _ => None,
    };
    let gate_of = |id: &str| {
        let row = gated.rows.iter().find(|row| row.id == id).expect("a row");
        (!row.missing).then_some(row.held)
    };
    found.rows.iter().map(|row| (row.id.clone(), gate_of(&row.id), of(row.state))).collect()
}

/// Neither passes a row that the other calls broken, and neither evaluates a row that lacks data for the other.
#[test]
fn gate_and_watch_answer_alike_for_one_log() {
    let logs: [(&str, Make); 9] = [
        ("good", |n, due, _| vec![good(n, due)]),
        ("slow", |n, due, x| vec![if x < 0.2 { answer(n, due, 900, 1_500, 12) } else { good(n, due) }]),
        ("slow tokens", |n, due, _| vec![answer(n, due, 90, 900, 12)]),
        ("failing", |n, due, x| vec![if x < 0.15 { failure(n, due, How::Reset, 40) } else { good(n, due) }]),
        ("shed", |n, due, x| vec![if x < 0.15 { failure(n, due, How::Shed, 1) } else { good(n, due) }]),
        ("broken", |n, due, x| {
            vec![if x < 0.15 { broken(good(n, due), Broken::Empty) } else { good(n, due) }]
        }),
        ("tried again", |n, due, x| if x < 0.15 { again(n, due, good(n, due)) } else { vec![good(n, due)] }),
        ("failed twice", |n, due, x| match x < 0.15 {
            true => again(n, due, failure(n, due, How::Reset, 200)),
            false => vec![good(n, due)],
        }),
        ("whole", |n, due, x| vec![if x < 0.03 { failure(n, due, How::Reset, 40) } else { whole(n, due) }]),
    ];
    let mut decided = [0, 0];
    for (name, make) in logs {
        for (id, by_gate, by_watch) in verdicts(&log(make)) {
            let both = (by_gate, by_watch);
            let against = matches!(
                both,
                (Some(Held::Pass), Some(Held::Fail))
                    | (Some(Held::Fail), Some(Held::Pass))
                    | (Some(_), None)
                    | (None, Some(_))
            );
            assert!(!against, "{name}: {id}: the gate and the watch: {both:?}");
            decided[0] += usize::from(both == (Some(Held::Pass), Some(Held::Pass)));
            decided[1] += usize::from(both == (Some(Held::Fail), Some(Held::Fail)));
        }
    }
    assert!(decided[0] >= 20 && decided[1] >= 15, "{decided:?}");
}
