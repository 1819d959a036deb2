//! Records gathered as they end, compared with the records in memory: the findings must be identical to the byte.
//!
//! This must be true for any order of arrival, any number of attempts, and any content of the events.

use plimsoll_math::rng::Stream;
use plimsoll_measure::{Findings, LevelAccumulator, LineLevel, SweepSpec, analyse, analyse_observed};
use plimsoll_model::{Attempt, EndedBy, How, Level, Span, TokensRule};
use serde_json::Value;

use plimsoll_lab::records::{MS, answer, failure, level};

/// Returns the findings of all records together, and of the records gathered in this order.
fn both(level: &Level, records: &[Attempt], came: &[Attempt]) -> (Value, Value) {
    let spec = SweepSpec::default().line_spec(50);
    let manifest = plimsoll_lab::records::manifest(vec![level.clone()]);
    let read = analyse(&manifest, records, &[], &spec);
    let mut gathered = LevelAccumulator::default();
    came.iter().for_each(|record| gathered.push(record));
    assert_eq!(gathered.attempts(), records.len() as u64);
    let finished = records.iter().filter(|record| record.outcome.is_finished()).count();
    assert_eq!(gathered.finished(), finished as u64);
    let observed = LineLevel::gathered(level, gathered, &[], spec.budget.as_ref());
    let gathered = analyse_observed(&[observed], &spec);
    let json = |findings| serde_json::to_value::<Findings>(findings).expect("JSON");
    (json(read), json(gathered))
}

/// Returns two thousand requests with many properties.
///
/// Some have up to three attempts, and some fail with distinct errors. Events have no, one or several tokens, and several
/// requests are due at one instant.
fn records(lumps: bool) -> Vec<Attempt> {
    let mut chance = Stream::new(7, "gathered", u64::from(lumps));
    let mut records = Vec::new();
    for request in 0..2000u64 {
        let due = (request / 3) as i64 * 30;
        let tries = if chance.uniform() < 0.1 { 1 + chance.below(3) as u16 } else { 1 };
        for attempt in 0..tries {
            let lost = attempt + 1 < tries || chance.uniform() < 0.03;
            let after = 40 * i64::from(attempt) + 5 + chance.below(200) as i64;
            let mut record = if lost {
                let how = [How::Shed, How::Timeout, How::ServerError][chance.below(3) as usize];
                let mut record = failure(request, due, how, after);
                record.answer.error = Some(format!("lost {}", chance.below(4)));
                record
            } else {
                answer(request, due, after, after + 300, 1 + chance.below(20) as u32)
            };
            record.attempt = attempt;
            for event in record.events.iter_mut().filter(|_| lumps) {
                event.tokens = chance.below(4) as u16;
                event.coalesced = chance.uniform() < 0.2;
            }
            if lumps && chance.uniform() < 0.1 {
                record.answer.tokens.rule = TokensRule::UsageRunning;
            }
            records.push(record);
        }
    }
    records.sort_by_key(|record| record.end);
    records
}

#[test]
fn gathered_records_are_found_the_same() {
    for lumps in [false, true] {
        let records = records(lumps);
        let mut shuffled = records.clone();
        let mut chance = Stream::new(8, "order", 0);
        (1..shuffled.len()).for_each(|i| shuffled.swap(i, chance.below(i as u64 + 1) as usize));
        for came in [&records, &shuffled] {
            let (read, gathered) = both(&level(100.0, 20), &records, came);
            assert!(read == gathered, "lumps {lumps}");
        }
        let (found, _) = both(&level(100.0, 20), &records, &records);
        let summary = &found["levels"][0]["summary"];
        // The value is counted by hand from the records, so that the comparison is not one of empty findings.
        let from = summary["window"]["warm_up_requests"].as_u64().unwrap();
        assert_eq!(summary["counts"]["requests"].as_u64(), Some(2000 - from));
        assert!(summary["counts"]["attempts"].as_u64() > summary["counts"]["requests"].as_u64());
        assert_eq!(summary["counts"]["errors"].as_array().map(Vec::len), Some(5));
        assert!(!summary["latency"]["itl"].is_null());
    }
}

#[test]
fn requests_numbered_out_of_their_due_order_are_found_the_same() {
    let mut records = records(true);
    for record in &mut records {
        let before = record.request;
        record.request = 1999 - before;
    }
    let (read, gathered) = both(&level(100.0, 20), &records, &records);
    assert!(read == gathered);
}

#[test]
fn a_level_that_was_cut_off_ends_where_its_rows_do() {
    let cut = Level { ended_by: EndedBy::Cut, ..level(100.0, 40) };
    let records = records(false);
    let (read, gathered) = both(&cut, &records, &records);
    assert!(read == gathered);
    let last = records.iter().filter_map(|record| record.end).max().unwrap();
    let stop = gathered["levels"][0]["summary"]["window"]["stop"].as_i64().unwrap();
    assert_eq!(Span(stop), last - plimsoll_model::At::ZERO);
    assert!(stop < 40_000 * MS);
}

#[test]
fn nothing_gathered_is_found_as_nothing() {
    let (read, gathered) = both(&level(100.0, 20), &[], &[]);
    assert!(read == gathered);
}
