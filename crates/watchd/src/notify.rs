//! Notifies the receivers of an alert: first the journal, then Alertmanager and the webhook. The watch passes
//! its alerts at each tick and never waits for a receiver.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use plimsoll_client::Clock;
use plimsoll_client::clock::realtime_ns;
use plimsoll_console::exit::Stop;
use plimsoll_model::{At, Span};
use plimsoll_watch::{Alert, AlertKind, AlertState, BoardState, Minute};

use crate::alertmanager::Instance;
use crate::file::{AlertmanagerSpec, SinkSpec, WebhookSpec};
use crate::journal::{Journal, JournalLine, JournalState};
use crate::outbox::{Outbox, SinkHealth};
use crate::told::{self, AlertMessage};
use crate::webhook::Webhook;

#[derive(Default)]
pub struct Senders {
    labels: BTreeMap<String, String>,
    instances: Vec<Instance>,
    webhook: Option<Webhook>,
}

impl SinkSpec {
    /// # Errors
    /// Fails if a sink is misconfigured, with a one-line message.
    pub fn senders(&self) -> Result<Senders, String> {
        told::check_labels(&self.labels)?;
        let instances = self.alertmanager.as_ref().map(AlertmanagerSpec::senders).transpose()?;
        let webhook = self.webhook.as_ref().map(WebhookSpec::sender).transpose()?;
        Ok(Senders { labels: self.labels.clone(), instances: instances.unwrap_or_default(), webhook })
    }
}

impl Senders {
    /// Returns whether no sender is configured.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.webhook.is_none()
    }
}

pub struct Notifier {
    budget: Option<String>,
    labels: BTreeMap<String, String>,
    journal: Option<Arc<Mutex<Journal>>>,
    outbox: Arc<Outbox>,
    threads: Vec<JoinHandle<()>>,
    has_webhook: bool,
    /// Wall-clock time at the start of the watch, ns since 1970. It is fixed, so that clock changes do not
    /// move the times of an alert.
    began_ns: i64,
    /// Last notified state of each alert.
    told: HashMap<String, AlertState>,
    /// Newest minute of counts in the journal.
    minutes_to: At,
}

impl Notifier {
    /// Opens the journal and starts the senders. The state of an earlier watch is converted to the time axis
    /// of this one.
    pub fn start(
        senders: Senders,
        journal: Option<&PathBuf>,
        (budget, memory): (Option<&str>, Span),
        clock: Clock,
    ) -> Result<(Notifier, Option<BoardState>), Stop> {
        let began_ns = clock.anchor().realtime_ns;
        let webhook_ms = senders.webhook.as_ref().map(|_| began_ns / 1_000_000);
        let opened =
            journal.map(|path| Journal::open(path, budget, webhook_ms, (began_ns, memory.0))).transpose()?;
        let (journal, left) =
            opened.map_or((None, None), |(journal, left)| (Some(Arc::new(Mutex::new(journal))), left));
        let mut notifier = Notifier {
            budget: budget.map(str::to_owned),
            labels: senders.labels.clone(),
            journal,
            outbox: Arc::default(),
            threads: Vec::new(),
            has_webhook: senders.webhook.is_some(),
            began_ns,
            told: HashMap::new(),
            minutes_to: At(i64::MIN),
        };
        let kept = left.map(|left| notifier.resume(left));
        notifier.spawn(senders);
        Ok((notifier, kept))
    }

    fn spawn(&mut self, senders: Senders) {
        for instance in senders.instances {
            let outbox = Arc::clone(&self.outbox);
            self.threads.push(std::thread::spawn(move || instance.work(&outbox)));
        }
        if let (Some(webhook), Some(journal)) = (senders.webhook, &self.journal) {
            let (outbox, journal) = (Arc::clone(&self.outbox), Arc::clone(journal));
            self.threads.push(std::thread::spawn(move || webhook.work(&outbox, &journal)));
        }
    }

    /// Queues undelivered messages again, the oldest first.
    fn resume(&mut self, left: JournalState) -> BoardState {
        let since_s = left.webhook_ms.unwrap_or(0) as f64 / 1e3;
        let mut messages: Vec<(f64, AlertMessage)> = Vec::new();
        for alert in left.alerts.iter().filter(|alert| alert.kind != AlertKind::Watchdog) {
            let is_new = |state| !left.arrived.contains(&(alert.id.clone(), state));
            let told = self.absolute(alert.clone());
            if is_new(AlertState::Firing) && (alert.stands() || alert.fired_s >= since_s) {
                messages.push((alert.fired_s, told.firing()));
            }
            if let Some(resolved) =
                alert.resolved_s.filter(|at| is_new(AlertState::Resolved) && *at >= since_s)
            {
                messages.push((resolved, told));
            }
        }
        messages.sort_by(|a, b| a.0.total_cmp(&b.0));
        let messages =
            messages.into_iter().map(|(_, message)| message).filter(|_| self.has_webhook).collect();
        self.outbox.put(
            left.alerts.iter().map(|alert| self.absolute(alert.clone())).collect(),
            messages,
            true,
        );
        self.told = left.alerts.iter().map(|alert| (alert.id.clone(), alert.state)).collect();
        let shift = |minute: Minute| Minute { begun: At(minute.begun.0 - self.began_ns), ..minute };
        let minutes: Vec<_> = left.minutes.into_iter().map(|(row, minute)| (row, shift(minute))).collect();
        self.minutes_to = minutes.iter().map(|(_, minute)| minute.begun).max().unwrap_or(At(i64::MIN));
        let alerts = left.alerts.iter().map(|alert| alert.shifted(-(self.began_ns as f64) / 1e9)).collect();
        BoardState { alerts, minutes }
    }

    /// Records the current alerts, the newest first, and the counts after [`Notifier::minutes_to`], in the
    /// watch's time.
    pub fn tick(&mut self, alerts: &[Alert], minutes: Vec<(String, Minute)>) {
        let all: Vec<Alert> = alerts.iter().map(|alert| self.on_the_wall(alert)).collect();
        let is_news = |alert: &&Alert| self.told.get(&alert.id) != Some(&alert.state);
        let news: Vec<Alert> = all.iter().rev().filter(is_news).cloned().collect();
        let mut lines: Vec<JournalLine> = news.iter().cloned().map(JournalLine::Alert).collect();
        self.minutes_to = minutes.iter().map(|(_, minute)| minute.begun).fold(self.minutes_to, At::max);
        lines.extend(minutes.into_iter().map(|(row, minute)| {
            let minute = Minute { begun: At(minute.begun.0 + self.began_ns), ..minute };
            JournalLine::Minute { row, minute }
        }));
        // The journal is written before any message is sent.
        if let Some(Ok(mut journal)) = self.journal.as_ref().map(|journal| journal.lock()) {
            journal.append(&lines, realtime_ns());
        }
        let mut messages = Vec::new();
        for alert in news.iter().filter(|alert| self.has_webhook && alert.kind != AlertKind::Watchdog) {
            let told = self.absolute(alert.clone());
            // An alert that fired and resolved within one tick produces both messages.
            if !alert.stands() && !self.told.contains_key(&alert.id) {
                messages.push(told.firing());
            }
            messages.push(told);
        }
        let has_changed = !news.is_empty();
        self.told = all.iter().map(|alert| (alert.id.clone(), alert.state)).collect();
        self.outbox.put(all.into_iter().map(|alert| self.absolute(alert)).collect(), messages, has_changed);
    }

    /// Returns the newest minute of counts in the journal.
    pub fn minutes_to(&self) -> At {
        self.minutes_to
    }

    /// Returns the health of each sender.
    pub fn health(&self) -> Vec<SinkHealth> {
        self.outbox.health()
    }

    /// Stops the senders after a last attempt.
    pub fn end(self) {
        self.outbox.end();
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Converts an alert to wall-clock time in whole milliseconds. Without rounding, a restart would convert
    /// the times back to slightly different values.
    fn on_the_wall(&self, alert: &Alert) -> Alert {
        let round = |seconds: f64| (seconds * 1e3).round() / 1e3;
        let alert = alert.shifted(self.began_ns as f64 / 1e9);
        Alert {
            since_s: round(alert.since_s),
            fired_s: round(alert.fired_s),
            resolved_s: alert.resolved_s.map(round),
            ..alert
        }
    }

    fn absolute(&self, alert: Alert) -> AlertMessage {
        AlertMessage::new(alert, self.budget.as_deref(), &self.labels)
    }
}
