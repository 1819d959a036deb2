//! Costs compared with values calculated by hand.

use plimsoll_judge::cost::{Bill, EndpointPrice, Price, PriceError, PriceSpec, cost, of_level};
use plimsoll_measure::findings::{
    BudgetSpec, CapacityLine, CapacityLines, Ceiling, Estimate, FINDINGS_SCHEMA, Findings, LevelFinding,
    LoadWords, Metric, Reading,
};
use plimsoll_measure::summarise;
use plimsoll_measure::validity::{judge, judge_run};
use plimsoll_model::{Attempt, How};

use plimsoll_lab::records::{answer, failure, level};

fn spec(text: &str) -> PriceSpec {
    PriceSpec::new(Price::parse(text).expect("a price"))
}

fn bill(text: &str) -> Bill {
    spec(text).bill().expect("a bill")
}

fn value(reading: &Reading) -> f64 {
    reading.value().expect("an estimate")
}

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

/// Returns 100 requests per second for 20 s with 10 prompt and 2 output tokens each; a fifth fail, a fifth are late.
fn records() -> Vec<Attempt> {
    (0..2_000)
        .map(|i| match i % 5 {
            0 => failure(i, 10 * i as i64, How::ServerError, 3),
            1 => answer(i, 10 * i as i64, 150, 200, 2),
            _ => answer(i, 10 * i as i64, 5, 9, 2),
        })
        .collect()
}

fn budget() -> BudgetSpec {
    let latency = vec![Ceiling::new(Metric::Ttft, 0.95, 0.1)];
    BudgetSpec { name: "test".into(), latency, error_rate: None }
}

#[test]
fn an_hour_of_a_gpu_is_paid_by_those_it_served() {
    let summary = summarise(&level(100.0, 20), &records(), &[], Some(&budget()));
    let two = PriceSpec { gpus: Some(2), ..spec("1.8USD/gpu-hour") }.bill().expect("a bill");
    let costs = of_level(&summary, &two);
    // 3.6 USD per hour are 0.001 USD per second; 80/s finish (except for those still running at the end), 60/s are good.
    let achieved = value(&summary.rates.achieved_per_s);
    assert!((achieved - 80.0).abs() < 0.5, "{achieved}");
    assert!(near(value(&costs.per_request), 0.001 / achieved));
    assert!(near(value(&costs.per_good_request), 0.001 / 60.0));
    assert!(near(value(&costs.per_million_input), 1e6 * 0.001 / (10.0 * achieved)));
    assert!(near(value(&costs.per_million_output), 1e6 * 0.001 / (2.0 * achieved)));
    // The interval is the inverse of the throughput's.
    let rate = summary.rates.achieved_per_s.estimate().expect("a rate");
    let each = costs.per_request.estimate().expect("a cost");
    assert!(near(each.lower, 0.001 / rate.upper) && near(each.upper, 0.001 / rate.lower));
}

#[test]
fn tokens_are_paid_by_the_million() {
    let summary = summarise(&level(100.0, 20), &records(), &[], Some(&budget()));
    let costs = of_level(&summary, &bill("0.5,1.5USD/Mtok"));
    // 10 × 0.5 + 2 × 1.5 = 8 USD per million requests that finish; 80 of 60 good ones pay for a third more.
    let achieved = value(&summary.rates.achieved_per_s);
    assert!(near(value(&costs.per_request), 8e-6));
    assert!(near(value(&costs.per_good_request), 8e-6 * achieved / 60.0));
    assert_eq!((value(&costs.per_million_input), value(&costs.per_million_output)), (0.5, 1.5));
}

#[test]
fn nothing_good_has_no_price_that_is_high_enough() {
    let never = BudgetSpec { latency: vec![Ceiling::new(Metric::Ttft, 0.95, 0.001)], ..budget() };
    let summary = summarise(&level(100.0, 20), &records(), &[], Some(&never));
    let costs = of_level(&summary, &bill("3.6USD/h"));
    assert!(value(&costs.per_good_request).is_infinite());
    let summary = summarise(&level(100.0, 20), &records(), &[], None);
    let costs = of_level(&summary, &bill("3.6USD/h"));
    assert!(matches!(costs.per_good_request, Reading::Refused { .. }), "no budget, nothing is good");
}

/// Returns a sweep with its budget limit at `line`.
fn with_line(line: CapacityLine) -> Findings {
    let run = level(100.0, 20);
    let summary = summarise(&run, &records(), &[], Some(&budget()));
    let validity = judge(&run, &summary);
    let levels = vec![LevelFinding { summary, validity }];
    let validity = judge_run(&levels);
    let mut findings = Findings {
        schema: FINDINGS_SCHEMA,
        validity,
        lines: vec![],
        curves: vec![],
        levels,
        cost: None,
        server: None,
        network: None,
        pareto: Vec::new(),
        cold_start: None,
    };
    findings.lines.push(CapacityLines {
        traffic: "steady".into(),
        onset: CapacityLine::CannotTell { why: "not asked".into() },
        onset_percentile: Some(0.99),
        stability: CapacityLine::CannotTell { why: "not asked".into() },
        budget: Some(line),
        budget_spec: Some(budget()),
        mix: Default::default(),
        think_time_s: 0.0,
        hold: None,
    });
    findings
}

#[test]
fn the_budget_line_has_its_own_cost() {
    let rate = Estimate { value: 50.0, lower: 40.0, upper: 60.0, n: 1000, n_eff: 500.0 };
    let load =
        LoadWords { input_tokens_per_s: Some(500.0), output_tokens_per_s: Some(100.0), ..Default::default() };
    let findings = with_line(CapacityLine::Found { rate, load, how: String::new() });
    let found = cost(&findings, &bill("3.6USD/h"));
    let costs = &found.at_budget[0].costs;
    // 0.001 USD a second over 50/s, not over the 80/s that ran.
    let each = costs.per_request.estimate().expect("a cost");
    assert!(near(each.value, 2e-5) && near(each.lower, 1.0 / 60e3) && near(each.upper, 1.0 / 40e3));
    // 100 output tokens a second: a million of them take 10 000 s.
    assert!(near(value(&costs.per_million_output), 10.0));
    assert!(near(value(&costs.per_million_input), 2.0));
    assert!(!near(value(&found.levels[0].costs.per_request), each.value));

    let below = with_line(CapacityLine::Below { rate_per_s: 1.0, why: String::new() });
    let found = cost(&below, &bill("3.6USD/h"));
    assert!(
        matches!(&found.at_budget[0].costs.per_request, Reading::Refused { why, .. } if why.contains("lowest"))
    );
}

#[test]
fn a_price_says_its_currency_and_of_how_many() {
    assert!(matches!(Price::parse("2.49/h"), Err(PriceError::NoCurrency { .. })));
    for wrong in
        ["USD", "USD/h", "2.49USD", "2.49USD/day", "1,2USD/h", "2.49US D9/h", "-1USD/h", "1,2,3USD/Mtok"]
    {
        assert!(matches!(Price::parse(wrong), Err(PriceError::Form { .. })), "{wrong}");
    }
    assert_eq!(spec("2.49USD/gpu-hour").bill(), Err(PriceError::HowMany { what: "gpu" }));
    assert_eq!(spec("2.49USD/replica-hour").bill(), Err(PriceError::HowMany { what: "replica" }));
    let none = PriceSpec { gpus: Some(0), ..spec("2.49USD/gpu-hour") };
    assert_eq!(none.bill(), Err(PriceError::Zero { what: "gpu" }));
    let late = PriceSpec { date: Some("last week".into()), ..spec("2€/h") };
    assert!(matches!(late.bill(), Err(PriceError::Date { .. })));
    let eight = PriceSpec { gpus: Some(8), ..spec("2.5USD/gpu-hour") };
    assert_eq!(eight.bill().expect("a bill").rate, EndpointPrice::PerHour(20.0));
    assert_eq!(bill("0.5,1.5USD/Mtok").of(2e6, 1e6, 0.0), 2.5);
    assert_eq!(bill("3.6EUR/h").of(0.0, 0.0, 1000.0), 1.0);
    // The written form is read back.
    for text in ["2.49USD/gpu-hour", "9.9EUR/replica-hour", "20USD/h", "0.5,1.5USD/Mtok"] {
        assert_eq!(Price::parse(text).expect("a price").to_string(), text);
    }
}
