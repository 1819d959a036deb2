//! A doubled time to first token: simulated servers in virtual time under a ceiling that never breaks.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_model::Span;
use plimsoll_watch::replay::of_pages;
use plimsoll_watch::{Alert, AlertKind, AlertSpec};

use crate::diagnosed::{Then, pages, then};

/// An hour and some minutes.
const GOOD: i64 = 3_720;

fn doubled(then: Then) -> Vec<Alert> {
    let budget = r#"{"version": 1, "budgets": [{"id": "ttft", "metric": "ttft", "p": "95", "max": "60s"}]}"#;
    let file: BudgetFile = serde_json::from_str(budget).expect("a budget");
    let pages = pages(&Then { good: GOOD, ..then });
    let found =
        of_pages(&file, Span::from_secs(15), &AlertSpec::default(), &pages, None).expect("there are pages");
    assert!(found.alerts.iter().all(|alert| alert.kind == AlertKind::TtftDoubled), "{:?}", found.alerts);
    found.alerts
}

#[test]
fn first_tokens_that_take_twice_as_long_are_told_with_what_explains_them() {
    let fault = Some(format!("slow:factor=4,at={GOOD}s"));
    let slower = doubled(Then { fault, ..then() });
    let [alert] = &slower[..] else { panic!("{slower:?}") };
    assert!(alert.fired_s > GOOD as f64 && alert.fired_s < (GOOD + 150) as f64, "{alert:?}");
    assert!(alert.since_s > (GOOD - 30) as f64, "{alert:?}");
    assert!(alert.evidence.contains("first tokens took"), "{}", alert.evidence);
    let times = |text: &str| -> f64 {
        let rest = alert.evidence.split(text).next().expect("it is there").trim_end();
        rest.rsplit("× ").next().and_then(|n| n.trim().parse().ok()).expect("a number")
    };
    // Four times as slow, and no longer prompts.
    assert!(times(" from other causes") > 2.0 && times(" from the prompts") < 1.2, "{}", alert.evidence);
    assert!(alert.diagnosis.is_some(), "it is diagnosed");
}

/// Under unchanged requests, and under a few more, times to first token do not double.
#[test]
fn what_does_not_double_is_not_told() {
    assert_eq!(doubled(then()), []);
    assert_eq!(doubled(Then { rate: 7.0, ..then() }), []);
}

#[test]
fn longer_prompts_are_said_to_be_what_explains_it() {
    let longer = doubled(Then { longer: 12.0, ..then() });
    let [alert] = &longer[..] else { panic!("{longer:?}") };
    assert!(alert.evidence.contains("prompt tokens computed for each, before 9"), "{}", alert.evidence);
    let cause = alert.diagnosis.as_ref().map(|diagnosis| diagnosis.cause.as_str());
    assert_eq!(cause, Some("longer_prompts"), "{:?}", alert.diagnosis);
}
