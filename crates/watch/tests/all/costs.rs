//! The cost of a fleet, computed from the log of its requests and the number of replicas.

use plimsoll_judge::cost::{Price, PriceSpec};
use plimsoll_lab::records::answer;
use plimsoll_model::{At, Attempt, By, How, Outcome, TokensRule};
use plimsoll_watch::{AlertSpec, BudgetWatch, CostNow, WatchFinding};

use crate::watched::{Page, TTFT, load, watched};

const EVERY: i64 = 5;
/// Tokens per response in these metrics.
const TOKENS: f64 = 10.0;

fn at(s: i64) -> At {
    At(s * 1_000_000_000)
}

fn price(text: &str) -> PriceSpec {
    PriceSpec::new(Price::parse(text).expect("a price"))
}

/// Returns the cost of three replicas with ten requests/s; the last one does not respond after `gone_s`.
fn fleet(price: &PriceSpec, until_s: i64, gone_s: i64) -> CostNow {
    let mut watched = watched(TTFT).priced(Some(price.clone()));
    let mut pages = [Page::default(), Page::default(), Page::default()];
    for s in 0..=until_s {
        pages.iter_mut().for_each(|page| load(1000)(s, page));
        if s % EVERY == 0 {
            for (page, name) in pages.iter().zip(["a", "b", "c"]) {
                match name == "c" && s > gone_s {
                    true => watched.push(&Page::lost(name, s)),
                    false => page.samples(name, s).iter().for_each(|sample| watched.push(sample)),
                }
            }
            watched.tick(at(s));
        }
    }
    watched.finding(at(until_s)).cost.expect("a price was given")
}

fn near(found: Option<f64>, truth: f64) {
    let found = found.expect("it is known");
    assert!((found / truth - 1.0).abs() < 1e-9, "{found} {truth}");
}

#[test]
fn replicas_that_answer_are_paid_for() {
    let all = fleet(&price("2.5USD/replica-hour"), 200, 1000);
    near(all.per_hour, 3.0 * 2.5);
    // Ten requests per second and replica, at any time.
    near(all.per_request, 2.5 / 3600.0 / 10.0);
    near(all.per_million_output, 1e6 * 2.5 / 3600.0 / (10.0 * TOKENS));
    assert_eq!((&*all.currency, &*all.basis), ("USD", "3 replicas, all that there are"));

    // The last scrape of c is at 200 s, and it is lost once three of them have failed: 220 s.
    let fewer = fleet(&price("2.5USD/replica-hour"), 280, 200);
    near(fewer.per_hour, 2.0 * 2.5);
    let (paid, requests) = (2.5 / 3600.0 * (3.0 * 215.0 + 2.0 * 65.0), 10.0 * (2.0 * 280.0 + 200.0));
    near(fewer.per_request, paid / requests);
    near(fewer.per_million_output, 1e6 * paid / (TOKENS * requests));
    assert!(fewer.basis.starts_with("2 replicas of 3"), "{}", fewer.basis);
}

#[test]
fn what_is_said_of_the_price_goes_before_what_answers() {
    let five = PriceSpec { replicas: Some(5), ..price("2.5USD/replica-hour") };
    near(fleet(&five, 200, 100).per_hour, 5.0 * 2.5);
    let gpus = PriceSpec { gpus: Some(8), ..price("2USD/gpu-hour") };
    near(fleet(&gpus, 200, 100).per_hour, 16.0);
    let whole = fleet(&price("36EUR/h"), 200, 1000);
    near(whole.per_hour, 36.0);
    near(whole.per_request, 36.0 / 3600.0 / 30.0);
    // 30 requests per second of 10 tokens.
    let tokens = fleet(&price("1.5USD/Mtok"), 200, 1000);
    near(tokens.per_hour, 300.0 * 3600.0 * 1.5 / 1e6);
    near(tokens.per_request, TOKENS * 1.5 / 1e6);
    near(tokens.per_million_output, 1.5);
}

#[test]
fn what_nobody_knows_is_unknown() {
    let unknown = |found: &CostNow, why: &str| {
        assert_eq!((found.per_hour, found.per_request), (None, None), "{found:?}");
        assert!(found.basis.contains(why), "{}", found.basis);
    };
    // These metrics count no prompt tokens.
    unknown(&fleet(&price("0.5,1.5USD/Mtok"), 200, 1000), "unknown");
    let mut lost = watched(TTFT).priced(Some(price("2.5USD/replica-hour")));
    for s in (0..300).step_by(5) {
        match s < 100 {
            true => Page::default().samples("a", s).iter().for_each(|sample| lost.push(sample)),
            false => lost.push(&Page::lost("a", s)),
        }
        lost.tick(at(s));
    }
    let found = lost.finding(at(300)).cost.expect("a price was given");
    assert_eq!(found.per_hour, None);
    assert!(found.basis.contains("no replica answers"), "{}", found.basis);
    let nothing = watched(TTFT).priced(Some(price("2.5USD/replica-hour"))).finding(at(0)).cost;
    unknown(&nothing.expect("a price was given"), "the metrics do not distinguish replicas");
    assert_eq!(watched(TTFT).finding(at(0)).cost, None);
}

/// Returns the state for ten requests per second for a minute, changed by `change` per second, at this price.
fn requests(text: &str, change: impl Fn(i64, &mut Attempt)) -> WatchFinding {
    let mut watched: BudgetWatch =
        watched(TTFT).priced(Some(price(text))).of_requests(AlertSpec::default(), at(0));
    for s in 0..60 {
        let mut rows: Vec<Attempt> =
            (0..10).map(|n| answer(10 * s as u64 + n, 1000 * s, 100, 150, 8)).collect();
        rows.iter_mut().for_each(|row| change(s, row));
        watched.take(rows);
        watched.tick(at(s + 1));
    }
    watched.finding(at(60))
}

/// Requests do not show the number of replicas.
#[test]
fn requests_are_paid_by_the_endpoint() {
    let of = |text: &str| requests(text, |_, _| {}).cost.expect("a price was given");
    near(of("7.2USD/h").per_request, 7.2 / 3600.0 / 10.0);
    near(of("7.2USD/h").per_million_output, 1e6 * 7.2 / 3600.0 / 80.0);
    let unknown = of("2.5USD/replica-hour");
    assert_eq!(unknown.per_hour, None);
    assert!(unknown.basis.contains("requests do not show the number of replicas"), "{}", unknown.basis);
}

/// Prompts without reported usage were priced as if they had no tokens.
#[test]
fn tokens_that_nobody_counted_are_not_free() {
    let of = |text: &str, lacks: fn(&mut Attempt)| {
        requests(text, |s, row| {
            if s == 7 {
                lacks(row);
            }
        })
    };
    // Ten prompt tokens and eight generated ones per request.
    let known = requests("0.5,1.5USD/Mtok", |_, _| {}).cost.expect("a price was given");
    near(known.per_request, (10.0 * 0.5 + 8.0 * 1.5) / 1e6);
    let no_prompt: fn(&mut Attempt) = |row| row.answer.tokens.prompt = None;
    let unknown = of("0.5,1.5USD/Mtok", no_prompt).cost.expect("a price was given");
    assert_eq!((unknown.per_hour, unknown.per_request), (None, None), "{unknown:?}");
    assert!(unknown.basis.contains("unknown until tokens are counted"), "{}", unknown.basis);
    // Free prompts need no count.
    near(of("1.5USD/Mtok", no_prompt).cost.expect("a price was given").per_request, 8.0 * 1.5 / 1e6);
    let no_output: fn(&mut Attempt) = |row| {
        (row.answer.tokens.output, row.answer.tokens.rule) = (None, TokensRule::Unknown);
    };
    let found = of("1.5USD/Mtok", no_output);
    assert_eq!(found.cost.expect("a price was given").per_request, None);
    near(found.fleet.output_tokens_per_s, 80.0);
}

/// Cancelled requests were included in the divisor of the cost, and made the others cheaper.
#[test]
fn what_was_cancelled_was_not_answered() {
    let found = requests("7.2USD/h", |_, row| {
        if row.request.is_multiple_of(2) {
            row.outcome = Outcome::new(How::Cancelled, By::Client, false);
        }
    });
    near(found.cost.expect("a price was given").per_request, 7.2 / 3600.0 / 5.0);
    near(found.fleet.requests_per_s, 5.0);
}

/// The cost of seconds without counted tokens was charged to the tokens of other seconds.
#[test]
fn what_is_paid_is_over_what_was_counted_meanwhile() {
    let found = requests("7.2USD/h", |s, row| {
        if s < 40 {
            (row.answer.tokens.output, row.answer.tokens.rule) = (None, TokensRule::Unknown);
        }
    });
    let cost = found.cost.expect("a price was given");
    near(cost.per_million_output, 1e6 * 7.2 / 3600.0 / 80.0);
    near(cost.per_request, 7.2 / 3600.0 / 10.0);
    let never = requests("7.2USD/h", |_, row| {
        (row.answer.tokens.output, row.answer.tokens.rule) = (None, TokensRule::Unknown);
    });
    assert_eq!(never.cost.expect("a price was given").per_million_output, None);
}

/// One endpoint counts no tokens; the other one does, from the hundredth second on, and fails for a while.
#[test]
fn pages_are_paid_for_while_they_are_away() {
    let mut watched = watched(TTFT).priced(Some(price("36USD/h")));
    let mut counts = Page::default();
    for s in (0..=200).step_by(EVERY as usize) {
        let silent = Page::default().samples("a", s).into_iter();
        silent.filter(|row| !row.name.contains("generation_tokens")).for_each(|row| watched.push(&row));
        if s >= 100 {
            (0..EVERY).for_each(|s| load(1000)(s, &mut counts));
        }
        match s {
            ..100 => {}
            120..=140 => watched.push(&Page::lost("b", s)),
            _ => counts.samples("b", s).iter().for_each(|row| watched.push(row)),
        }
        watched.tick(at(s));
    }
    let cost = watched.finding(at(200)).cost.expect("a price was given");
    // A cent per second, and a hundred tokens.
    near(cost.per_million_output, 1e6 * 0.01 / 100.0);
}
