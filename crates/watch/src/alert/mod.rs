//! Alerts for operators, from blocks of counts and the state of the fleet. Each states its start and its reason in
//! one sentence.
//!
//! Reading order: [`detect`] (a ceiling broken for more than a minute), [`burn`] (burn rate), [`row`] (both for one
//! row). Then `doubled` (a doubled time to first token). Then [`cold`] (more starts since a deploy), [`board`] (all
//! alerts), [`diagnosed`] (their causes).

pub mod board;
pub mod burn;
pub mod cold;
pub mod detect;
pub mod diagnosed;
mod doubled;
pub mod row;

use plimsoll_model::At;
use serde::{Deserialize, Serialize};

pub use board::{AlertBoard, BoardState};
pub use burn::{Minute, Pair};
pub use diagnosed::AlertDiagnosis;
pub(crate) use doubled::FirstTokens;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertSpec {
    /// Maximum number of false alarms of ceilings in 30 days, for all rows of the file together.
    pub false_alarms: f64,
    /// Maximum number of waiting requests per replica, as a mean over a minute; `None` for no alert.
    pub queue_per_replica: Option<f64>,
    /// Window pairs of the burn rate; `None` for the workbook's.
    pub burn: Option<Vec<Pair>>,
}

impl Default for AlertSpec {
    fn default() -> AlertSpec {
        AlertSpec { false_alarms: 1.0, queue_per_replica: None, burn: None }
    }
}

impl AlertSpec {
    pub fn pairs(&self) -> &[Pair] {
        self.burn.as_deref().unwrap_or(&burn::PAIRS)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Fails if a value is invalid, with one line of text.
    pub fn check(&self) -> Result<(), String> {
        if !(self.false_alarms > 0.0 && self.false_alarms <= 1000.0) {
            return Err("alerts.false_alarms: how many in 30 days, above 0 and at most 1000".to_owned());
        }
        burn::check(self.pairs())?;
        match self.queue_per_replica {
            Some(queue) if !(queue > 0.0 && queue.is_finite()) => {
                Err("alerts.queue_per_replica: requests that may wait per replica, above 0".to_owned())
            }
            _ => Ok(()),
        }
    }
}

plimsoll_model::named! {
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum AlertKind {
        /// More than the allowed share is over a ceiling for more than a minute.
        CeilingBroken => "ceiling_broken",
        /// A row's error budget is used up too fast.
        BurnRate => "burn_rate",
        /// The time to first token is twice that of an earlier healthy hour.
        TtftDoubled => "ttft_doubled",
        /// More requests wait per replica than allowed.
        QueueOverTarget => "queue_over_target",
        /// Replicas start more often since a deploy.
        ColdStarts => "cold_starts",
        /// A replica has running requests and makes no progress.
        Stalled => "stalled",
        SourceLost => "source_lost",
        /// The signal of a row is missing on every metrics endpoint.
        Absent => "absent",
        NoTraffic => "no_traffic",
        /// Fires always; its absence means that the watch is down.
        Watchdog => "watchdog",
    }
}

impl AlertKind {
    /// Returns whether a recorded window is useful. Alerts on missing data have none.
    pub(crate) fn has_window(self) -> bool {
        self.is_diagnosed() || self == AlertKind::Stalled
    }

    /// Returns the name of the alert for Alertmanager: `ceiling_broken` → `PlimsollCeilingBroken`. The prefix
    /// separates it from another monitor's `Watchdog`.
    pub fn alert_name(self) -> String {
        let words = self.name().split('_').map(|word| {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_ascii_uppercase() + rest
        });
        format!("Plimsoll{}", words.collect::<String>())
    }

    /// Returns whether the alert is about latency or failures, so that it needs a diagnosis. Other alerts name their
    /// cause themselves.
    pub fn is_diagnosed(self) -> bool {
        use AlertKind::*;
        matches!(self, CeilingBroken | BurnRate | TtftDoubled | QueueOverTarget | ColdStarts)
    }

    /// Returns the recommended action for an unknown cause: how to distinguish likely causes, and the command with
    /// more information. It is empty if there is no action. With `of_requests`, the watch has no replica data, and
    /// the run itself can be diagnosed.
    pub fn first_step(self, of_requests: bool) -> &'static str {
        match self {
            AlertKind::CeilingBroken if of_requests => {
                "find on the watch's page since when requests fail or take longer, and whether the rate rose: for failures read the servers' logs; for a \
                 queue compare rate and replicas with an hour ago; otherwise plimsoll diagnose RUN names the layer"
            }
            AlertKind::BurnRate if of_requests => {
                "find on the watch's page when the burn began, and what was deployed or scaled then: if it goes on, treat it as a broken ceiling \
                 (plimsoll diagnose RUN); if it has stopped, it can wait until morning"
            }
            AlertKind::CeilingBroken => {
                "find on the watch's page whether requests fail, wait or only take longer, and at which replica: for failures read that replica's log; for a \
                 queue compare rate and replicas with an hour ago; otherwise plimsoll diagnose URL --model MODEL --time 5m names the layer"
            }
            AlertKind::BurnRate => {
                "find on the watch's page when the burn began, and what was deployed or scaled then: if it goes on, treat it as a broken ceiling \
                 (plimsoll diagnose URL --model MODEL --time 5m); if it has stopped, it can wait until morning"
            }
            AlertKind::TtftDoubled => {
                "find on the watch's page whether requests wait: if they do, the rate rose or fewer replicas answer than an hour ago; if not, prompts are longer, \
                 the prefix cache hits less or the engine is slower, and plimsoll diagnose URL --model MODEL --time 5m distinguishes these"
            }
            AlertKind::QueueOverTarget => {
                "compare the rate and the replicas that answer with an hour ago: add replicas for a higher rate, and restore missing replicas; if neither \
                 changed, answers take longer, and plimsoll diagnose URL --model MODEL --time 5m names the layer"
            }
            AlertKind::ColdStarts => {
                "find why replicas restart: how the previous process ended (kubectl describe pod: out of memory, a failed probe, a lost node) and the last \
                 lines of its log (kubectl logs --previous); if restarts began with a deploy, roll it back"
            }
            AlertKind::Stalled => {
                "send it no more requests, save its log, a stack of the process (py-spy dump --pid PID for a Python engine) and nvidia-smi, then restart it"
            }
            AlertKind::SourceLost => {
                "request the metrics from the watch's host (curl -v URL; for a pushed source check its sender). Refused: the process is down. No answer: it \
                 hangs or the network is down. 401 or 403: the key; 404: the path; a TLS error: the certificate. Until then its state is unknown, not good"
            }
            AlertKind::Absent => {
                "plimsoll watch lint FILE lists what the metrics lack for each row: after an upgrade a metric may have another name, or be switched off"
            }
            AlertKind::NoTraffic => {
                "send one request on the path of the users (plimsoll run URL --smoke): if it is answered, no client sends requests; if not, a component in front of the replicas blocks them"
            }
            AlertKind::Watchdog => "",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            AlertKind::CeilingBroken => "ceiling broken",
            AlertKind::BurnRate => "burn rate",
            AlertKind::TtftDoubled => "ttft doubled",
            AlertKind::QueueOverTarget => "queue over target",
            AlertKind::ColdStarts => "cold starts up",
            AlertKind::Stalled => "stalled",
            AlertKind::SourceLost => "source lost",
            AlertKind::Absent => "no signal",
            AlertKind::NoTraffic => "no traffic",
            AlertKind::Watchdog => "watchdog",
        }
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    Firing,
    Resolved,
}

impl AlertState {
    pub fn name(self) -> &'static str {
        match self {
            AlertState::Firing => "firing",
            AlertState::Resolved => "resolved",
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alert {
    /// Unique id: the kind, the subject, and a number that continues over restarts of the watch.
    pub id: String,
    pub kind: AlertKind,
    /// Subject: a row's id, the name of an endpoint or replica, or `fleet`.
    pub about: String,
    /// Row of the budget; `None` if the alert is not about a row.
    pub row: Option<String>,
    pub state: AlertState,
    /// Start of the condition, in s since the start of the watch.
    pub since_s: f64,
    /// Time of firing, in s since the start of the watch.
    pub fired_s: f64,
    /// Time of resolution, in s since the start of the watch; `None` while the alert fires.
    pub resolved_s: Option<f64>,
    pub evidence: String,
    /// Recommended action: that of the diagnosis, or of the kind if no cause is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub do_first: String,
    /// Diagnosis; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Box<AlertDiagnosis>>,
    /// Run folder with the recorded window; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

impl Alert {
    /// Returns whether the alert fired at this instant and lacks a required diagnosis.
    pub(crate) fn is_new(&self, now: At) -> bool {
        self.kind.is_diagnosed() && self.diagnosis.is_none() && self.fired_s == board::seconds(now)
    }

    /// Returns the recommended action. An alert of an older version has none; then it is that of the diagnosis, or of
    /// the kind.
    pub fn first_step(&self) -> &str {
        let diagnosis = self.diagnosis.as_deref().map_or("", |found| found.do_first.as_str());
        let known = [self.do_first.as_str(), diagnosis].into_iter().find(|step| !step.is_empty());
        // Alerts of an older version are about metrics endpoints, because a watch of requests never resumes alerts.
        known.unwrap_or_else(|| self.kind.first_step(false))
    }

    /// Returns whether the alert fires.
    pub fn stands(&self) -> bool {
        self.state == AlertState::Firing
    }

    /// Returns the alert on the clock of a watch that began `by_s` seconds earlier.
    #[must_use]
    pub fn shifted(&self, by_s: f64) -> Alert {
        Alert {
            since_s: self.since_s + by_s,
            fired_s: self.fired_s + by_s,
            resolved_s: self.resolved_s.map(|resolved| resolved + by_s),
            ..self.clone()
        }
    }
}
