//! The external form of an alert: identifying labels, wall-clock times, and an identity that survives a
//! restart.
//!
//! As in Alertmanager, the labels and `startsAt` are the identity. They contain no value or time that
//! changes, because each resend would otherwise be a new alert. As in Prometheus, `startsAt` is the time of
//! firing. It is after the end of the previous alert, so two alerts are never merged.

use std::collections::BTreeMap;

use plimsoll_report::figure::rfc3339;
use plimsoll_watch::{Alert, AlertState};
use serde_json::{Map, Value, json};

/// Labels that Plimsoll sets on every alert.
pub const OWN_LABELS: [&str; 3] = ["alertname", "about", "budget"];

/// An alert in wall-clock time.
#[derive(Clone, PartialEq, Debug)]
pub struct AlertMessage {
    /// The alert; its times are seconds since 1970.
    alert: Alert,
    pub labels: BTreeMap<String, String>,
}

impl AlertMessage {
    /// Creates an alert with additional labels. The times of `alert` are seconds since 1970.
    pub fn new(alert: Alert, budget: Option<&str>, more: &BTreeMap<String, String>) -> AlertMessage {
        let own = [
            ("alertname", Some(alert.kind.alert_name())),
            ("about", Some(alert.about.clone())),
            ("budget", budget.map(str::to_owned)),
        ];
        let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        AlertMessage { labels: more.clone().into_iter().chain(own).collect(), alert }
    }

    /// Returns the id of the alert within a watch.
    pub fn id(&self) -> &str {
        &self.alert.id
    }

    pub fn state(&self) -> AlertState {
        self.alert.state
    }

    /// Returns the time of firing, ms since 1970.
    pub fn starts_ms(&self) -> i64 {
        milliseconds(self.alert.fired_s)
    }

    /// Returns the time of resolution, ms since 1970; it is always after the time of firing.
    pub fn ends_ms(&self) -> Option<i64> {
        self.alert.resolved_s.map(|resolved| milliseconds(resolved).max(self.starts_ms() + 1))
    }

    /// Returns the alert in its firing state.
    pub fn firing(&self) -> AlertMessage {
        let alert = Alert { state: AlertState::Firing, resolved_s: None, ..self.alert.clone() };
        AlertMessage { alert, labels: self.labels.clone() }
    }

    /// Returns the message id: fingerprint, time of firing and state. A resend has an identical id.
    pub fn message_id(&self) -> String {
        format!("{}-{}-{}", self.fingerprint(), self.starts_ms(), self.alert.state.name())
    }

    /// Returns Alertmanager's fingerprint of the labels: FNV-1a over them in order, each name and value
    /// followed by a byte 0xff (prometheus/common: model/signature.go).
    pub fn fingerprint(&self) -> String {
        let eat = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let bytes = self.labels.iter().flat_map(|(name, value)| [name, value]);
        let bytes = bytes.flat_map(|text| text.bytes().chain([0xff]));
        format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, eat))
    }

    /// Returns the alert for Alertmanager (API v2). `until_ms` is the end time of a firing alert that is not
    /// sent again.
    pub fn posted(&self, until_ms: i64) -> Value {
        let mut annotations =
            json!({"summary": self.alert.evidence, "since": rfc3339(milliseconds(self.alert.since_s))});
        for (name, text) in self.steps() {
            if let Some(text) = text {
                annotations[name] = text.into();
            }
        }
        json!({
            "labels": self.labels,
            "annotations": annotations,
            "startsAt": rfc3339(self.starts_ms()),
            "endsAt": rfc3339(self.ends_ms().unwrap_or(until_ms.max(self.starts_ms() + 1))),
        })
    }

    /// Returns cause and recommended actions by name. A value is `None` if there is no text, never an empty
    /// text.
    fn steps(&self) -> [(&'static str, Option<&str>); 5] {
        let Alert { diagnosis, run, .. } = &self.alert;
        let found = diagnosis.as_deref();
        let steps = [
            ("diagnosis", found.map(|found| found.says.as_str())),
            ("do_first", Some(self.alert.first_step())),
            ("do_not", found.map(|found| found.do_not.as_str())),
            ("ask", found.map(|found| found.ask.as_str())),
            ("run", run.as_deref()),
        ];
        steps.map(|(name, text)| (name, text.filter(|text| !text.is_empty())))
    }

    /// Returns all fields of a message by name.
    pub fn fields(&self) -> Map<String, Value> {
        let Alert { kind, about, row, state, evidence, since_s, .. } = &self.alert;
        let mut fields = json!({
            "state": state.name(),
            "kind": kind.name(),
            "alertname": self.labels.get("alertname"),
            "about": about,
            "row": row,
            "budget": self.labels.get("budget"),
            "summary": evidence,
            "since": rfc3339(milliseconds(*since_s)),
            "starts_at": rfc3339(self.starts_ms()),
            "ends_at": self.ends_ms().map(rfc3339),
            "fingerprint": self.fingerprint(),
            "labels": self.labels,
        });
        for (name, text) in self.steps() {
            fields[name] = text.into();
        }
        if let Value::Object(fields) = fields { fields } else { Map::new() }
    }
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1e3).round() as i64
}

/// Checks the labels of a watch file.
///
/// # Errors
/// Fails on an invalid label name or a reserved label.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    let is_name = |name: &str| {
        name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
    };
    match labels.keys().find(|name| !is_name(name) || OWN_LABELS.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) if is_name(name) => {
            Err(format!("sinks.labels: {name} identifies alerts; choose another name"))
        }
        Some(name) => Err(format!(
            "sinks.labels: {name} is no label's name; letters, digits and _ are, not a digit first"
        )),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_diagnose::gauges::LevelGauges;
    use plimsoll_diagnose::pages::diagnose;
    use plimsoll_measure::server_side::ServerSide;
    use plimsoll_model::At;
    use plimsoll_watch::{AlertDiagnosis, AlertKind};

    use super::*;

    fn alert(kind: AlertKind, diagnosis: Option<AlertDiagnosis>) -> Alert {
        Alert {
            id: format!("{}/ttft/1", kind.name()),
            kind,
            about: "ttft".into(),
            row: None,
            state: AlertState::Firing,
            since_s: 1_795_404_964.0,
            fired_s: 1_795_405_024.0,
            resolved_s: None,
            evidence: "p99 is over it".into(),
            do_first: kind.first_step(false).to_owned(),
            diagnosis: diagnosis.map(Box::new),
            run: None,
        }
    }

    /// An alert always has a first step, even without a known cause, and no empty text.
    #[test]
    fn what_is_posted_says_what_to_do_first_and_nothing_empty() {
        let nothing = LevelGauges::between(ServerSide::read(&[]), (At(0), At(60_000_000_000)));
        let unknown = AlertDiagnosis::of(&diagnose(&nothing, None));
        assert_eq!((unknown.cause.as_str(), unknown.do_not.as_str()), ("unknown", ""), "{unknown:?}");
        for kind in AlertKind::ALL {
            let diagnosis = Some(unknown.clone()).filter(|_| kind.is_diagnosed());
            let told = AlertMessage::new(alert(kind, diagnosis), Some("chat"), &BTreeMap::new());
            let (posted, fields) = (told.posted(0), told.fields());
            let annotations = posted["annotations"].as_object().expect("an object");
            assert!(annotations.values().all(|text| text.as_str() != Some("")), "{posted:#}");
            assert!(fields.values().all(|text| text.as_str() != Some("")), "{fields:#?}");
            let first = annotations.get("do_first").and_then(Value::as_str).unwrap_or_default();
            assert_eq!(first.len() > 60, kind != AlertKind::Watchdog, "{posted:#}");
            assert_eq!(fields["do_first"].as_str().unwrap_or_default(), first);
            assert!(!annotations.contains_key("do_not"), "{posted:#}");
            assert_eq!(annotations.contains_key("ask"), kind.is_diagnosed(), "{posted:#}");
        }
    }

    /// Alerts in the journal of an older version have no first step; their messages contain one anyway.
    #[test]
    fn an_alert_of_an_older_version_says_what_to_do_first() {
        let old = |step: &str| -> Alert {
            let diagnosis = json!({
                "says": "the queue grows", "layer": "queue", "cause": "overload", "evidence": [],
                "do_first": step, "do_not": "", "ask": "",
            });
            let alert = json!({
                "id": "ceiling_broken/ttft/1", "kind": "ceiling_broken", "about": "ttft", "row": "ttft",
                "state": "firing", "since_s": 10.0, "fired_s": 70.0, "resolved_s": null,
                "evidence": "p99 is over it", "diagnosis": diagnosis,
            });
            serde_json::from_value(alert).expect("an alert")
        };
        let of_kind = AlertKind::CeilingBroken.first_step(false);
        for (step, first) in [("add a replica", "add a replica"), ("", of_kind)] {
            let told = AlertMessage::new(old(step), Some("chat"), &BTreeMap::new());
            assert_eq!(told.posted(0)["annotations"]["do_first"], first);
            assert_eq!(told.fields()["do_first"], first);
        }
    }

    /// A run is diagnosed by its name and has no replicas to inspect.
    #[test]
    fn the_first_step_of_a_watch_of_requests_names_the_run() {
        for kind in [AlertKind::CeilingBroken, AlertKind::BurnRate] {
            let step = kind.first_step(true);
            assert!(step.contains("plimsoll diagnose RUN") && !step.contains("URL"), "{step}");
        }
    }

    /// The fingerprint is the output of Alertmanager 0.25 for these labels.
    #[test]
    fn the_fingerprint_is_alertmanagers() {
        let labels = [
            ("alertname", "P99OverCeiling"),
            ("service", "chat"),
            ("budget", "ttft-p99"),
            ("severity", "page"),
        ];
        let alert = alert(AlertKind::CeilingBroken, None);
        let mut told = AlertMessage::new(alert, Some("chat"), &BTreeMap::new());
        assert_eq!(told.labels["alertname"], "PlimsollCeilingBroken");
        told.labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(told.fingerprint(), "3664bbd29d187afc");
    }
}
