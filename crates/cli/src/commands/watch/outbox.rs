//! What the senders of alerts share: the alerts as they are now, the messages that wait, and how each sender fares. The watch puts in and never waits for
//! anybody; each sender takes when it can.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use plimsoll_client::clock::monotonic_ns;
use plimsoll_client::{Posted, Poster};
use plimsoll_model::{At, Span};
use serde::Serialize;

use super::told::ToldAlert;
use crate::out;

/// The first wait after a failure; each further failure doubles it.
const FIRST_WAIT: Span = Span::from_millis(500);
/// Nobody is left alone for longer, however long they ask.
const MOST_ASKED: Span = Span::from_secs(600);
/// It is looked again so often whether something is due.
const LOOK: Duration = Duration::from_millis(100);
/// A webhook that takes nothing for ever is no reason to run out of memory: the oldest messages go first.
const MOST_WAITING: usize = 10_000;

/// How a sender fares.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SinkHealth {
    /// Its name, without what may be a secret.
    pub name: String,
    pub failing: bool,
    /// Messages that have not arrived.
    pub waiting: u64,
}

#[derive(Default)]
struct Inside {
    alerts: Vec<ToldAlert>,
    /// Grows when an alert fires or is resolved.
    changes: u64,
    messages: VecDeque<ToldAlert>,
    health: BTreeMap<String, SinkHealth>,
    ended: bool,
}

/// See the module's head.
#[derive(Default)]
pub struct Outbox {
    inside: Mutex<Inside>,
    changed: Condvar,
}

pub struct AllAlerts {
    /// Those that stand, and the last that were resolved.
    pub alerts: Vec<ToldAlert>,
    /// Grows when one fires or is resolved.
    pub changes: u64,
    pub ended: bool,
}

impl Outbox {
    /// The alerts as they are now, and messages that are to be sent.
    pub fn put(&self, alerts: Vec<ToldAlert>, messages: Vec<ToldAlert>, has_changed: bool) {
        let Ok(mut inside) = self.inside.lock() else { return };
        inside.alerts = alerts;
        inside.changes += u64::from(has_changed);
        inside.messages.extend(messages);
        let before = inside.messages.len();
        while inside.messages.len() > MOST_WAITING {
            inside.messages.pop_front();
        }
        if inside.messages.len() < before {
            out::note(&format!("sinks.webhook: over {MOST_WAITING} messages wait; the oldest are given up"));
        }
        drop(inside);
        self.changed.notify_all();
    }

    /// Nothing more comes: each sender makes a last attempt.
    pub fn end(&self) {
        if let Ok(mut inside) = self.inside.lock() {
            inside.ended = true;
        }
        self.changed.notify_all();
    }

    /// Waits until then, or until there are other changes than these where that matters, or the end.
    pub fn all(&self, due: At, but: Option<u64>) -> Option<AllAlerts> {
        let mut inside = self.inside.lock().ok()?;
        loop {
            let changed = but.is_some_and(|but| inside.changes != but);
            if inside.ended || changed || now() >= due {
                let Inside { alerts, changes, ended, .. } = &*inside;
                return Some(AllAlerts { alerts: alerts.clone(), changes: *changes, ended: *ended });
            }
            inside = self.changed.wait_timeout(inside, LOOK).ok()?.0;
        }
    }

    /// Waits until then and for a message, which stays where it is; `None` = it is the end and none waits.
    pub fn message(&self, due: At) -> Option<(ToldAlert, bool)> {
        let mut inside = self.inside.lock().ok()?;
        loop {
            let ended = inside.ended;
            match inside.messages.front() {
                Some(first) if ended || now() >= due => return Some((first.clone(), ended)),
                None if ended => return None,
                _ => inside = self.changed.wait_timeout(inside, LOOK).ok()?.0,
            }
        }
    }

    /// The first message has arrived.
    pub fn arrived(&self) {
        if let Ok(mut inside) = self.inside.lock() {
            inside.messages.pop_front();
        }
    }

    /// How each sender fares.
    pub fn health(&self) -> Vec<SinkHealth> {
        self.inside.lock().map(|inside| inside.health.values().cloned().collect()).unwrap_or_default()
    }

    /// Notes how a sender fared, and says it where that is new.
    pub fn note(&self, sender: &str, failure: Option<&str>, waiting: usize) {
        let Ok(mut inside) = self.inside.lock() else { return };
        let now = SinkHealth { name: sender.to_owned(), failing: failure.is_some(), waiting: waiting as u64 };
        let before = inside.health.insert(sender.to_owned(), now);
        let was_failing = before.is_some_and(|before| before.failing);
        drop(inside);
        match failure {
            Some(why) if !was_failing => {
                out::note(&format!("{sender}: {why}; alerts wait and are sent again until it takes them"));
            }
            None if was_failing => out::note(&format!("{sender}: takes alerts again")),
            _ => {}
        }
    }

    pub fn waiting(&self) -> usize {
        self.inside.lock().map(|inside| inside.messages.len()).unwrap_or(0)
    }
}

/// Now, on an axis of the senders' own.
pub fn now() -> At {
    At(monotonic_ns())
}

/// How long to wait after so many failures in a row, at most so long, but as long as a server asks.
pub fn wait_after(failures: u32, most: Span, asked: Option<Span>) -> Span {
    let doubled = Span(FIRST_WAIT.0.saturating_mul(1 << failures.saturating_sub(1).min(20)));
    doubled.min(most).max(asked.unwrap_or(Span::ZERO).min(MOST_ASKED))
}

/// Why an answer is none that was hoped for; `None` = it was taken.
pub fn refusal(posted: &Result<Posted, String>) -> Option<String> {
    match posted {
        Ok(posted) if (200..300).contains(&posted.status) => None,
        Ok(posted) => Some(format!("HTTP {}", posted.status)),
        Err(why) => Some(why.clone()),
    }
}

/// `webhook hooks.example:443`: a path may be a secret.
pub fn name_of(kind: &str, poster: &Poster) -> String {
    format!("{kind} {}", poster.authority())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_a_server_may_ask_for_more() {
        let most = Span::from_secs(60);
        let seconds: Vec<f64> = (1..=9).map(|n| wait_after(n, most, None).as_secs_f64()).collect();
        assert_eq!(seconds, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
        assert_eq!(wait_after(1, most, Some(Span::from_secs(90))), Span::from_secs(90));
        assert_eq!(wait_after(1, most, Some(Span::from_secs(86_400))), MOST_ASKED);
        assert_eq!(wait_after(u32::MAX, most, None), most);
    }
}
