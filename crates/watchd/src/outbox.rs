//! The shared state of the alert senders: the current alerts, the queued messages and the health of each
//! sender. The watch writes to the outbox and never waits; each sender reads at its own pace.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use plimsoll_client::clock::monotonic_ns;
use plimsoll_client::{PostClient, PostResponse};
use plimsoll_console::out;
use plimsoll_model::{At, Span};
use serde::Serialize;

use crate::told::AlertMessage;

/// Backoff after the first failure; each further failure doubles it.
const FIRST_WAIT: Span = Span::from_millis(500);
/// Upper bound of a `Retry-After` time.
const MOST_ASKED: Span = Span::from_secs(600);
/// Polling interval of the senders.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of queued messages. If a webhook accepts no messages, the oldest are dropped, because
/// memory must stay bounded.
const MOST_WAITING: usize = 10_000;

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SinkHealth {
    /// Display name without secrets.
    pub name: String,
    pub failing: bool,
    /// Number of undelivered messages.
    pub waiting: u64,
}

#[derive(Default)]
struct Inside {
    alerts: Vec<AlertMessage>,
    /// Counter of alerts that fired or resolved.
    changes: u64,
    messages: VecDeque<AlertMessage>,
    health: BTreeMap<String, SinkHealth>,
    ended: bool,
}

/// The outbox that the watch and its senders share.
#[derive(Default)]
pub struct Outbox {
    inside: Mutex<Inside>,
    changed: Condvar,
}

pub struct AllAlerts {
    /// Firing alerts, and the most recently resolved ones.
    pub alerts: Vec<AlertMessage>,
    /// Counter of alerts that fired or resolved.
    pub changes: u64,
    pub ended: bool,
}

impl Outbox {
    /// Sets the current alerts and queues messages.
    pub fn put(&self, alerts: Vec<AlertMessage>, messages: Vec<AlertMessage>, has_changed: bool) {
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

    /// Ends the outbox: each sender makes a last attempt.
    pub fn end(&self) {
        if let Ok(mut inside) = self.inside.lock() {
            inside.ended = true;
        }
        self.changed.notify_all();
    }

    /// Waits until `due`, the end, or, if `but` is set, until the change counter differs from it.
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

    /// Waits until `due` and for a message, and returns the message without removing it. Returns `None` at
    /// the end if no message is queued.
    pub fn message(&self, due: At) -> Option<(AlertMessage, bool)> {
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

    /// Removes the first message after its delivery.
    pub fn arrived(&self) {
        if let Ok(mut inside) = self.inside.lock() {
            inside.messages.pop_front();
        }
    }

    /// Returns the health of each sender.
    pub fn health(&self) -> Vec<SinkHealth> {
        self.inside.lock().map(|inside| inside.health.values().cloned().collect()).unwrap_or_default()
    }

    /// Records the result of a sender, and reports a change of its health.
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

/// Returns the time on the monotonic axis of the senders.
pub fn now() -> At {
    At(monotonic_ns())
}

/// Returns the wait after a number of consecutive failures. It is at most `most`, but at least the time that
/// a server requests.
pub fn wait_after(failures: u32, most: Span, asked: Option<Span>) -> Span {
    let doubled = Span(FIRST_WAIT.0.saturating_mul(1 << failures.saturating_sub(1).min(20)));
    doubled.min(most).max(asked.unwrap_or(Span::ZERO).min(MOST_ASKED))
}

/// Returns the reason of a failed post; `None` if the message was accepted.
pub fn refusal(posted: &Result<PostResponse, String>) -> Option<String> {
    match posted {
        Ok(posted) if (200..300).contains(&posted.status) => None,
        Ok(posted) => Some(format!("HTTP {}", posted.status)),
        Err(why) => Some(why.clone()),
    }
}

/// Returns a display name such as `webhook hooks.example:443`, without the path, because a path may be a
/// secret.
pub fn name_of(kind: &str, poster: &PostClient) -> String {
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
