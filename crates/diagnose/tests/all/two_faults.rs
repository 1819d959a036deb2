//! Two simultaneous faults: both are named if the second has evidence that the first does not affect, and a single
//! fault gets no second name. The engine is hand-written, with steps that grow with the number of responses; other
//! systems are of the tuning half.

use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, RunData, diagnose};
use plimsoll_model::{Attempt, Fingerprint, Level, Span};

use plimsoll_lab::records::{MS, answer, level};

/// Length of a load, s, and tokens of a response.
const SECONDS: i64 = 160;
const TOKENS: u32 = 40;

/// Returns an engine of two replicas with at most 12 responses per step. A step takes 10 ms plus 2 ms per response,
/// times `slower` of the replica. Requests come about every `every` ms, alternating.
fn engine(every: i64, slower: [f64; 2]) -> (Level, Vec<Attempt>) {
    let mut load = level(1_000.0 / every as f64, SECONDS);
    let due: Vec<i64> =
        (0..SECONDS * 1_000 / every).map(|i| every * i + (i * i * 7_919) % (3 * every)).collect();
    load.arrivals = due.len() as u64;
    let mut rows = Vec::new();
    for (replica, slower) in slower.into_iter().enumerate() {
        let own = due.iter().enumerate().filter(|(i, _)| i % 2 == replica);
        let mut waiting: Vec<(usize, i64)> = own.map(|(i, due)| (i, *due)).collect();
        waiting.sort_by_key(|(_, due)| -*due);
        let mut running: Vec<(usize, i64, Vec<f64>)> = Vec::new();
        let mut now = 0.0;
        while !(waiting.is_empty() && running.is_empty()) {
            if running.is_empty() {
                now = f64::max(now, waiting.last().map_or(now, |next| next.1 as f64));
            }
            while running.len() < 12 && waiting.last().is_some_and(|next| next.1 as f64 <= now) {
                running.extend(waiting.pop().map(|(i, due)| (i, due, Vec::new())));
            }
            now += slower * (10.0 + 2.0 * running.len() as f64);
            running.iter_mut().for_each(|(.., tokens)| tokens.push(now));
            let ended = |(.., tokens): &(usize, i64, Vec<f64>)| tokens.len() == TOKENS as usize;
            rows.extend(running.iter().filter(|one| ended(one)).map(|one| row(one, replica)));
            running.retain(|one| !ended(one));
        }
    }
    (load, rows)
}

fn row((request, due, tokens): &(usize, i64, Vec<f64>), replica: usize) -> Attempt {
    let after = |at: f64| at as i64 - due;
    let (first, last) = (after(tokens[0]), after(tokens[tokens.len() - 1]));
    let mut row = answer(*request as u64, *due, first, last, TOKENS);
    for (event, at) in row.events.iter_mut().zip(tokens) {
        event.offset = Span((at * MS as f64) as i64 - due * MS);
    }
    row.answer.replica = Some(format!("r{replica}"));
    row
}

fn ask(base: &(Level, Vec<Attempt>), candidate: &(Level, Vec<Attempt>)) -> Diagnosis {
    fn side<'a>(run: &'a (Level, Vec<Attempt>), facts: &'a Fingerprint) -> RunData<'a> {
        RunData { levels: std::slice::from_ref(&run.0), attempts: &run.1, samples: &[], facts }
    }
    let (facts, spec) = (Fingerprint::default(), DiagnoseSpec::default());
    let (candidate, baseline) = (side(candidate, &facts), Some(side(base, &facts)));
    diagnose(&Case { candidate, baseline, budget: None, device: None, validity: None, spec: &spec })
}

fn causes(diagnosis: &Diagnosis) -> Vec<Cause> {
    diagnosis.verdicts.iter().map(|verdict| verdict.cause).collect()
}

/// More load and a slow replica: the load does not explain the difference between the replicas.
#[test]
fn more_load_and_a_slow_replica_are_both_named() {
    let base = engine(150, [1.0, 1.0]);
    let both = ask(&base, &engine(110, [1.0, 1.4]));
    let mut named = causes(&both);
    named.sort();
    assert_eq!(named, [Cause::HigherRate, Cause::BadReplica], "{}", both.headline);
}
