//! Gives up a load whose requests were all refused with the same message, because the next one will be refused too.
//!
//! A few requests are enough to detect an invalid request. Refusals that a server may recover from (shed, 5xx, no connection)
//! get a grace period. A single answer of any other kind ends the count permanently: from then on failures are measured.
//! An error budget was rejected, because it would cut loads that are meant to break a target.

use std::sync::Mutex;

use plimsoll_model::{At, Attempt, How, Span};

/// Equal refusals after which a load is given up.
const FEW: u64 = 8;
/// Grace period for refusals that a server may recover from.
const PATIENCE: Span = Span::from_secs(5);

/// The refusals since the start of a measurement.
#[derive(Debug)]
pub(super) struct Refusals {
    /// Maximum retries per request; an attempt before the last one is not final.
    retries: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    None,
    Same {
        words: String,
        sample: String,
        count: u64,
        since: At,
    },
    /// Counting has ended: the load is forced, or another answer was received.
    Off,
}

impl Refusals {
    /// Returns an empty count; with `force`, refusals are not counted.
    pub fn new(force: bool, retries: u32) -> Refusals {
        Refusals { retries, state: Mutex::new(if force { State::Off } else { State::None }) }
    }

    /// Records an attempt; returns whether the load is hopeless.
    pub fn see(&self, row: &Attempt) -> bool {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if matches!(*state, State::Off) || is_no_end(row, self.retries) {
            return false;
        }
        let Some((sample, words)) = refusal(row) else {
            *state = State::Off;
            return false;
        };
        let now = row.end.unwrap_or(row.due);
        match &mut *state {
            State::Same { words: before, count, since, .. } if *before == words => {
                *count += 1;
                let passes = matches!(row.outcome.how, How::ServerError | How::Shed | How::Refused);
                *count >= FEW && (!passes || now - *since >= PATIENCE)
            }
            State::None => {
                *state = State::Same { words, sample, count: 1, since: now };
                false
            }
            _ => {
                *state = State::Off;
                false
            }
        }
    }

    /// Returns the message that all requests were refused with.
    pub fn message(&self) -> Option<String> {
        match &*self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner) {
            State::Same { sample, .. } => Some(sample.clone()),
            _ => None,
        }
    }

    /// Returns the number of refusals and their message.
    pub fn line(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let State::Same { sample, count, .. } = &*state else { return None };
        Some(format!(
            "stopped: all {count} requests were refused with the same message: {sample}; --force sends the whole load anyway"
        ))
    }
}

/// Returns whether an attempt is not final: it will be retried, or the client ended it.
fn is_no_end(row: &Attempt, retries: u32) -> bool {
    (row.outcome.retryable && u32::from(row.attempt) < retries)
        || matches!(row.outcome.how, How::Cancelled | How::Unfinished | How::NeverSent)
}

/// Returns the message of a refusal, and the message without words with digits, such as ids and waits, which vary by request.
fn refusal(row: &Attempt) -> Option<(String, String)> {
    let refused = matches!(
        row.outcome.how,
        How::ClientError
            | How::ServerError
            | How::Shed
            | How::Refused
            | How::StreamError
            | How::Malformed
            | How::Redirected
    );
    if !refused || row.first_token.is_some() {
        return None;
    }
    let said = row.answer.error.as_deref().unwrap_or(row.outcome.how.name());
    let status = row.answer.status.map_or(String::new(), |status| format!("HTTP {status}: "));
    let same: Vec<&str> =
        said.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit())).collect();
    Some((format!("{status}{}", said.trim_end_matches('.')), format!("{status}{}", same.join(" "))))
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{By, Outcome};

    use super::*;

    fn row(how: How, ms: i64, words: &str) -> Attempt {
        let mut row = Attempt::new(0, 0, 0, At(ms * 1_000_000));
        row.outcome = Outcome::new(how, By::Server, false);
        (row.answer.status, row.answer.error) = (Some(400), Some(words.into()));
        row
    }

    /// Returns the number of rows after which a load is given up.
    fn given_up(seen: &Refusals, rows: impl Iterator<Item = Attempt>) -> Option<usize> {
        rows.enumerate().find_map(|(n, row)| seen.see(&row).then_some(n + 1))
    }

    #[test]
    fn a_few_equal_refusals_are_enough() {
        let seen = Refusals::new(false, 0);
        let rows = (0..99).map(|n| row(How::ClientError, n, &format!("request r{n}: no such field")));
        assert_eq!(given_up(&seen, rows), Some(8), "ids differ");
        assert!(seen.line().is_some_and(|line| line.contains("all 8") && line.contains("no such field")));
        assert_eq!(given_up(&Refusals::new(true, 0), (0..99).map(|n| row(How::ClientError, n, "no"))), None);
    }

    #[test]
    fn one_other_end_makes_it_a_measurement() {
        for other in
            [row(How::Finished, 0, ""), row(How::ClientError, 0, "other words"), row(How::Timeout, 0, "")]
        {
            for at in [0, 3, 7] {
                let seen = Refusals::new(false, 0);
                let rows =
                    (0..99).map(|n| if n == at { other.clone() } else { row(How::ClientError, n, "no") });
                assert_eq!(given_up(&seen, rows), None, "{at} {other:?}");
            }
        }
    }

    /// A server that sheds gets five seconds; a retried attempt is not final.
    #[test]
    fn what_may_pass_is_given_time() {
        let every_10_ms = |how| (0..9999).map(move |n| row(how, 10 * n, "busy"));
        assert_eq!(given_up(&Refusals::new(false, 0), every_10_ms(How::Shed)), Some(501));
        let retried = every_10_ms(How::Shed).map(|mut row| {
            row.outcome.retryable = true;
            row
        });
        assert_eq!(given_up(&Refusals::new(false, 3), retried), None);
    }
}
