//! A watch over requests against hand-computed counts, and its overall state.

use plimsoll_lab::records::{answer, failure};
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Attempt, BudgetState, By, How, Outcome, Span};
use plimsoll_watch::course::{ChartData, CoursePercentile, CoursePoint, SHOWN};
use plimsoll_watch::{AlertKind, AlertSpec, BudgetWatch, Light, RowState, WatchFinding, requests};

use crate::watched::watched;

const ROWS: &str = r#"{"id": "first", "metric": "ttft", "p": "95", "max": "500ms"},
    {"id": "errors", "metric": "error_rate", "max": "20%"},
    {"id": "long", "metric": "ttft", "p": "95", "max": "500ms", "slice": {"prompt_tokens": "1000.."}},
    {"id": "tail", "metric": "ttft_tail_ratio", "max": "3"}"#;

fn at(s: i64) -> At {
    At(s * 1_000_000_000)
}

fn begun(budgets: &str) -> BudgetWatch {
    watched(budgets).of_requests(AlertSpec::default(), at(0))
}

/// Returns ten requests per second in sequence; `slow` of ten are over the ceiling, `shed` further ones are shed.
fn second(s: i64, slow: i64, shed: i64) -> Vec<Attempt> {
    let first = 100 * s as u64;
    let answered = (0..10).map(|n| {
        let ttft = if n < slow { 900 } else { 100 };
        answer(first + n as u64, 1000 * s + 100 * n, ttft, ttft + 50, 8)
    });
    let shed = (0..shed).map(|n| failure(first + 50 + n as u64, 1000 * s + 10 * n, How::Shed, 1));
    answered.chain(shed).collect()
}

/// A request is either over the ceiling or not; a shed one is over it, and counted separately.
#[test]
fn requests_are_counted_one_by_one() {
    let mut watched = begun(ROWS);
    for s in 0..60 {
        watched.take(second(s, i64::from(s % 10 == 0), i64::from(s == 30) * 40));
        watched.tick(at(s + 1));
    }
    let found = watched.finding(at(60));
    let [first, errors, long, tail] = &found.rows[..] else { panic!("{found:?}") };
    assert_eq!((first.n, first.over), (640, Some([46.0 / 640.0, 46.0 / 640.0])));
    assert_eq!((errors.n, errors.over), (640, Some([40.0 / 640.0, 40.0 / 640.0])));
    assert_eq!(found.shed, Some(40));
    assert_eq!((long.n, long.state), (0, RowState::NoTraffic));
    assert_eq!(tail.state, RowState::Absent);
    // Requests older than the window are dropped.
    for s in 60..400 {
        watched.take(second(s, 0, 0));
        watched.tick(at(s + 1));
    }
    let found = watched.finding(at(400));
    assert_eq!((found.shed, found.rows[0].over), (Some(0), Some([0.0, 0.0])));
    assert_eq!(found.rows[0].state, RowState::Holds, "{:?}", found.rows[0]);
}

/// Shedding half of the requests improves nothing: the row stays broken.
#[test]
fn turning_requests_away_betters_no_figure() {
    let shares: Vec<f64> = [0, 10]
        .into_iter()
        .map(|shed| {
            let mut watched = begun(ROWS);
            for s in 0..60 {
                watched.take(second(s, if shed == 0 { 3 } else { 0 }, shed));
                watched.tick(at(s + 1));
            }
            let found = watched.finding(at(60));
            assert_eq!(found.rows[0].state, RowState::Broken, "{:?}", found.rows[0]);
            found.rows[0].over.expect("counted")[0]
        })
        .collect();
    assert!(shares[1] > shares[0], "{shares:?}");
}

/// Red applies immediately. Green applies only after a minute in a better state, via the worst state of that minute.
#[test]
fn worse_is_believed_at_once_and_better_after_a_while() {
    let (mut good, mut bad) = (begun(ROWS), begun(ROWS));
    for s in 0..40 {
        good.take(second(s, 0, 0));
        bad.take(second(s, 5, 0));
        good.tick(at(s + 1));
        bad.tick(at(s + 1));
    }
    let [good, bad]: [WatchFinding; 2] = [good.finding(at(40)), bad.finding(at(40))];
    let mut light = Light::default();
    assert_eq!(light.step(&good, at(40)), BudgetState::Green);
    assert_eq!(light.step(&bad, at(41)), BudgetState::Red);
    assert_eq!(light.step(&good, at(42)), BudgetState::Red);
    assert_eq!(light.step(&good, at(90)), BudgetState::Red);
    assert_eq!(light.step(&bad, at(95)), BudgetState::Red);
    assert_eq!(light.step(&good, at(100)), BudgetState::Red);
    assert_eq!(light.step(&good, at(159)), BudgetState::Red);
    assert_eq!(light.step(&good, at(160)), BudgetState::Green);
}

/// Clients that disconnect before the first byte get no response, but they are traffic.
#[test]
fn requests_that_are_cancelled_are_traffic() {
    let mut watched = begun(ROWS);
    for s in 0..700 {
        let mut row = failure(s as u64, 1000 * s, How::Cancelled, 100);
        row.outcome = Outcome::new(How::Cancelled, By::Client, false);
        watched.take([if s == 0 { answer(0, 0, 100, 150, 8) } else { row }]);
        watched.tick(at(s + 1));
    }
    let found = watched.finding(at(700));
    assert!(found.alerts.iter().all(|alert| alert.kind != AlertKind::NoTraffic), "{:?}", found.alerts);
    assert_eq!(found.fleet.requests_per_s, Some(0.0));
}

/// The watch begins 7 s after a full minute.
const WALL_NS: i64 = 1_795_400_007_000_000_000 - 1_795_400_007_000_000_000 % 60_000_000_000 + 7_000_000_000;

/// Returns minutes of 40 requests/s with a time to first token of 5 ms plus an exponential time with a mean of 100
/// ms. From `fails_s` on, five in a thousand fail.
fn log(minutes: i64, fails_s: i64) -> Vec<Attempt> {
    let mut chance = Stream::new(7, "course of requests", 0);
    let each = (0..minutes * 60 * 40).map(|n| {
        let (due, ttft) = (25 * n, 5.0 - 100.0 * chance.uniform().ln());
        let fails = due >= 1000 * fails_s && chance.uniform() < 0.005;
        match fails {
            true => failure(n as u64, due, How::Reset, 1),
            false => answer(n as u64, due, ttft.round() as i64, ttft.round() as i64 + 40, 8),
        }
    });
    each.collect()
}

fn ended(row: &Attempt) -> At {
    row.end.expect("it ended")
}

/// Returns the charts of a watch, tick by tick; it reads earlier requests than `from_s` at its start.
fn course(log: &[Attempt], from_s: i64) -> ChartData {
    let mut watched = watched(ROWS).of_requests(AlertSpec::default(), at(from_s)).keeping(WALL_NS);
    let mut rows: Vec<Attempt> = log.to_vec();
    rows.sort_by_key(ended);
    let mut rows = rows.into_iter().peekable();
    let mut course = ChartData::new(WALL_NS);
    let before = std::iter::from_fn(|| rows.next_if(|row| ended(row) <= at(from_s))).collect();
    course.take(requests::before(watched.file(), before, (WALL_NS, at(from_s))));
    let last = log.iter().map(ended).max().expect("rows");
    let mut now = from_s;
    while at(now) < last {
        now += 5;
        watched.take(std::iter::from_fn(|| rows.next_if(|row| ended(row) <= at(now))));
        watched.tick(at(now));
        course.take(watched.blocks_ended(at(now) >= last));
    }
    course
}

/// Returns the log of a minute: completed, failed, and times to first token in ascending order in s; failed ones come
/// last.
fn truth(log: &[Attempt], point: &CoursePoint) -> (f64, f64, Vec<f64>) {
    let wall_s = |at: At| (at.0 + WALL_NS) as f64 / 1e9;
    let own = log.iter().filter(|row| {
        let at = wall_s(ended(row));
        at > point.from_s && at <= point.to_s
    });
    let mut ttfts: Vec<f64> = own
        .map(|row| match row.outcome.how {
            How::Finished => (row.first_token.expect("a token") - row.due).as_secs_f64(),
            _ => f64::INFINITY,
        })
        .collect();
    ttfts.sort_by(f64::total_cmp);
    let failed = ttfts.iter().filter(|ttft| ttft.is_infinite()).count();
    ((ttfts.len() - failed) as f64, failed as f64, ttfts)
}

/// Each minute's percentile equals the log's, and its interval contains the true quantile about as often as its
/// level.
#[test]
fn charts_of_requests_are_the_logs() {
    let log = log(120, 100 * 60);
    let course = course(&log, 0);
    let points = course.points();
    assert_eq!(points.len(), 121, "the wall clock's minutes are not the watch's");
    let (mut held, mut intervals) = ([0, 0], 0);
    for point in &points {
        let (answered, failed, ttfts) = truth(&log, point);
        let seconds = point.to_s - point.from_s;
        let same = |found: Option<f64>, truth: f64| {
            assert!((found.expect("counted") * seconds - truth).abs() < 1e-4, "{found:?} {truth} {seconds}");
        };
        same(point.requests_per_s, answered);
        same(point.failed_per_s, failed);
        same(point.output_tokens_per_s, 8.0 * answered);
        let drawn = [0.5_f64, 0.99].map(|p| 0.005 - 0.1 * (1.0 - p).ln());
        for (place, p) in [0.5, 0.99].into_iter().enumerate() {
            let found: CoursePercentile = point.latencies["ttft"][place].expect("requests came");
            let own = ttfts[(p * ttfts.len() as f64).ceil() as usize - 1];
            assert_eq!(found.value_s, Some(own).filter(|own| own.is_finite()), "p{p} at {}", point.from_s);
            let (low, high) =
                (found.between.over_s.unwrap_or(0.0), found.between.most_s.unwrap_or(f64::INFINITY));
            assert!(low <= own && own <= high, "{found:?} {own}");
            let whole = seconds > 59.0 && failed == 0.0;
            // Times are whole milliseconds here.
            held[place] += i32::from(whole && low <= drawn[place] + 0.001 && drawn[place] - 0.001 <= high);
            intervals += i32::from(whole && place == 0);
        }
    }
    assert!(
        intervals >= 95 && held.iter().all(|held| *held >= intervals * 9 / 10),
        "{held:?} of {intervals}"
    );
    // With few requests the upper bound of a p99 is far beyond the slowest one.
    let mut few = course_of_few();
    let one = few.pop().expect("a minute").latencies["ttft"];
    assert!(one[0].is_some_and(|p50| p50.between.most_s.is_some()), "{one:?}");
    let far = |p99: CoursePercentile| Some(p99.between.most_s? / p99.value_s?);
    assert!(one[1].and_then(far).is_some_and(|times| times > 2.0), "{one:?}");
}

/// Returns the charts of two requests per second for half a minute.
fn course_of_few() -> Vec<CoursePoint> {
    let rows: Vec<Attempt> =
        (0..60).map(|n| answer(n, 500 * n as i64, 40 + (n * 37 % 60) as i64, 200, 8)).collect();
    course(&rows, 0).points()
}

/// A watch that starts later draws earlier requests as if it had watched them.
#[test]
fn charts_begin_with_what_had_ended_before() {
    let log = log(12, 0);
    let (whole, late) = (course(&log, 0).points(), course(&log, 400).points());
    assert_eq!(whole.len(), late.len());
    for point in &late {
        let (answered, failed, ttfts) = truth(&log, point);
        let seconds = point.to_s - point.from_s;
        let near = |found: Option<f64>, truth: f64| (found.expect("counted") * seconds - truth).abs() < 1e-4;
        assert!(near(point.requests_per_s, answered) && near(point.failed_per_s, failed), "{point:?}");
        let own = ttfts[ttfts.len().div_ceil(2) - 1];
        assert_eq!(point.latencies["ttft"][0].and_then(|p50| p50.value_s), Some(own));
    }
}

/// In a run of five hours with traffic only in the first and the last, a watch reads exactly the range of its charts.
/// That includes the whole oldest minute, and empty minutes as empty.
#[test]
fn charts_begin_no_earlier_than_they_show() {
    let hour = 3600;
    let busy = (0..hour).chain(4 * hour..5 * hour);
    let rows: Vec<Attempt> = busy.map(|s| answer(s as u64, 1000 * s, 100, 150, 8)).collect();
    let now = at(5 * hour);
    let blocks = requests::before(begun(ROWS).file(), rows, (WALL_NS, now));
    assert_eq!(blocks.first().expect("blocks").from, now - SHOWN - Span::from_secs(60));
    let mut course = ChartData::new(WALL_NS);
    course.take(blocks);
    let points = course.points();
    let answered =
        |point: &CoursePoint| point.requests_per_s.expect("it was watched") * (point.to_s - point.from_s);
    assert!(points.len() >= 180 && answered(&points[0]) == 0.0, "{} {:?}", points.len(), points[0]);
    let all: f64 = points.iter().map(answered).sum();
    assert!((all - 3600.0).abs() < 0.01, "{all}");
}
