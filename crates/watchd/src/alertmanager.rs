//! Sends alerts to Alertmanager (API v2).
//!
//! Every instance receives all alerts. The instances of a cluster agree among themselves on the one that
//! notifies. A load balancer in front of the cluster would break this agreement.
//!
//! All alerts are posted whenever an alert fires or resolves, and again every `resend`. Each post sets the
//! end time four resends ahead. So a restarted Alertmanager soon has all alerts, and an Alertmanager without
//! posts ends them. A resolved alert is posted for five more minutes, and until the instance has accepted it
//! once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use plimsoll_client::clock::realtime_ns;
use plimsoll_client::{PostClient, TargetError};
use plimsoll_model::{At, Span};
use plimsoll_workload::TargetSpec;
use serde_json::Value;

use crate::file::AlertmanagerSpec;
use crate::outbox::{self, AllAlerts, Outbox};
use crate::told::AlertMessage;

/// Default interval between two posts of an alert. Prometheus waits one minute. Half of that ends an alert
/// sooner after the watch stops.
const RESEND: Span = Span::from_secs(30);
/// Number of missed resends after which an alert ends, as in Prometheus. Three posts may be lost.
const ENDS_AFTER: i64 = 4;
/// Time in ms for which a resolved alert is posted. An alert that no instance has accepted is posted for up
/// to an hour. Alertmanager has ended the alert by then.
const RESOLVED_FOR_MS: i64 = 5 * 60_000;
const RESOLVED_AT_MOST_MS: i64 = 60 * 60_000;
/// Time limit for the response to one post.
const PATIENCE: Span = Span::from_secs(5);

impl AlertmanagerSpec {
    /// Returns one sender per instance. Fails if a URL, header, key or interval is invalid.
    pub fn senders(&self) -> Result<Vec<Instance>, String> {
        if self.urls.is_empty() {
            return Err(
                "sinks.alertmanager: names no instance; write urls: [\"http://host:9093\"]".to_owned()
            );
        }
        let resend = self.resend.as_ref().map(|text| plimsoll_workload::parse_span(text)).transpose();
        let resend = resend.map_err(|e| format!("sinks.alertmanager.resend {e}"))?.unwrap_or(RESEND);
        if resend < Span::from_secs(1) || resend > Span::from_secs(600) {
            return Err("sinks.alertmanager.resend: from 1s to 10m".to_owned());
        }
        let posters = self.urls.iter().map(|url| self.poster(url));
        posters
            .map(|poster| Ok(Instance::new(poster?, resend)))
            .collect::<Result<_, TargetError>>()
            .map_err(|e| format!("sinks.alertmanager: {e}"))
    }

    fn poster(&self, url: &str) -> Result<PostClient, TargetError> {
        let target = TargetSpec {
            url: url.to_owned(),
            stream: false,
            headers: self.headers.clone(),
            key_env: self.key_env.clone(),
            key_file: self.key_file.clone(),
            ca_file: self.ca_file.clone(),
            tls_verify: !self.insecure,
            ..TargetSpec::default()
        };
        PostClient::new(&target, "/api/v2/alerts")
    }
}

/// The sender for one Alertmanager instance.
pub struct Instance {
    name: String,
    poster: PostClient,
    resend: Span,
    /// The last change number that the instance accepted; `None` before the first accepted post.
    took: Option<u64>,
    /// Message ids of the resolved alerts that the instance accepted.
    resolved: HashSet<String>,
    failures: u32,
    due: At,
}

impl Instance {
    fn new(poster: PostClient, resend: Span) -> Instance {
        let name = outbox::name_of("alertmanager", &poster);
        Instance {
            name,
            poster,
            resend,
            took: None,
            resolved: HashSet::new(),
            failures: 0,
            due: outbox::now(),
        }
    }

    /// Posts alerts until the watch ends.
    pub fn work(mut self, outbox: &Arc<Outbox>) {
        // After a failure only the due time wakes the sender, because a change must not shorten the backoff.
        while let Some(all) = outbox.all(self.due, if self.failures == 0 { self.took } else { None }) {
            self.post(outbox, &all);
            if all.ended {
                return;
            }
        }
    }

    fn post(&mut self, outbox: &Outbox, all: &AllAlerts) {
        let now_ms = realtime_ns() / 1_000_000;
        let until_ms = now_ms + ENDS_AFTER * self.resend.0 / 1_000_000;
        let posted = posted(&all.alerts, &self.resolved, now_ms);
        if posted.is_empty() {
            (self.took, self.due) = (Some(all.changes), outbox::now() + self.resend);
            return;
        }
        let body = Value::Array(posted.iter().map(|alert| alert.posted(until_ms)).collect());
        let answer = self.poster.json(body.to_string().into_bytes(), &[], PATIENCE);
        // Status 400 counts as accepted, because Alertmanager rejects one alert and accepts the others. A
        // second post would get an identical response.
        let is_taken =
            answer.as_ref().is_ok_and(|posted| (200..300).contains(&posted.status) || posted.status == 400);
        let refusal = outbox::refusal(&answer);
        let waiting = if is_taken { 0 } else { posted.len() };
        outbox.note(&self.name, refusal.as_deref(), waiting);
        let asked = answer.ok().and_then(|posted| posted.retry_after);
        match is_taken {
            true => {
                let resolved = posted.iter().filter(|alert| alert.ends_ms().is_some());
                self.resolved.extend(resolved.map(|alert| alert.message_id()));
                let known: HashSet<String> = all.alerts.iter().map(AlertMessage::message_id).collect();
                self.resolved.retain(|id| known.contains(id));
                (self.took, self.failures) = (Some(all.changes), 0);
                self.due = outbox::now() + self.resend;
            }
            false => {
                self.failures += 1;
                self.due = outbox::now() + outbox::wait_after(self.failures, self.resend, asked);
            }
        }
    }
}

/// Returns the alerts to post: firing alerts, recently resolved alerts, and resolved alerts that the instance
/// has not accepted. Among alerts with equal labels only the newest is posted. Alertmanager treats them as
/// one alert, and the end of an earlier alert would end the newest.
fn posted<'a>(alerts: &'a [AlertMessage], taken: &HashSet<String>, now_ms: i64) -> Vec<&'a AlertMessage> {
    let is_due = |alert: &&AlertMessage| {
        alert.ends_ms().is_none_or(|ended| {
            let ago = now_ms - ended;
            ago < RESOLVED_FOR_MS || (ago < RESOLVED_AT_MOST_MS && !taken.contains(&alert.message_id()))
        })
    };
    let mut newest: BTreeMap<&BTreeMap<String, String>, &AlertMessage> = BTreeMap::new();
    for alert in alerts.iter().filter(is_due) {
        let held = newest.entry(&alert.labels).or_insert(alert);
        if alert.starts_ms() > held.starts_ms() {
            *held = alert;
        }
    }
    newest.into_values().collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_watch::{Alert, AlertKind, AlertState};

    use super::*;

    fn alert(about: &str, fired_s: f64, resolved_s: Option<f64>) -> AlertMessage {
        let alert = Alert {
            id: format!("source_lost/{about}/{fired_s}"),
            kind: AlertKind::SourceLost,
            about: about.to_owned(),
            row: None,
            state: if resolved_s.is_some() { AlertState::Resolved } else { AlertState::Firing },
            since_s: fired_s,
            fired_s,
            resolved_s,
            evidence: String::new(),
            do_first: String::new(),
            diagnosis: None,
            run: None,
        };
        AlertMessage::new(alert, None, &BTreeMap::new())
    }

    /// A metrics endpoint fails, recovers and fails again. If both alerts were posted, Alertmanager would
    /// apply the end of the first to the second.
    #[test]
    fn of_two_alerts_of_one_name_the_newest_is_posted() {
        let alerts = [alert("b", 100.0, None), alert("b", 20.0, Some(40.0)), alert("c", 30.0, Some(50.0))];
        let starts = |taken: &HashSet<String>, now_ms| -> Vec<i64> {
            posted(&alerts, taken, now_ms).iter().map(|alert| alert.starts_ms()).collect()
        };
        assert_eq!(starts(&HashSet::new(), 110_000), [100_000, 30_000]);
        // After six minutes a resolved alert goes only to instances that have not accepted it. After an hour
        // it goes to no instance.
        assert_eq!(starts(&HashSet::new(), 410_000), [100_000, 30_000]);
        assert_eq!(starts(&HashSet::from([alerts[2].message_id()]), 410_000), [100_000]);
        assert_eq!(starts(&HashSet::new(), 3_700_000), [100_000]);
    }
}
