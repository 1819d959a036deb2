//! Alerts: what a person is called for, from blocks of counts and the state of the fleet. Each says since when, and why in a sentence.
//!
//! Reading order: [`detect`] (a ceiling broken for more than a minute), [`burn`] (how fast the allowance is used up), [`row`] (both, of one row),
//! `doubled` (first tokens twice as late as in a good hour), [`cold`] (more starts since a deploy), [`board`] (which alerts stand), [`diagnosed`] (what is to blame).

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

/// What is alerted on, and when.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertSpec {
    /// False alarms of the ceilings that may come in 30 days, of all rows of the file together.
    pub false_alarms: f64,
    /// Requests that may wait per replica, as a mean over a minute. None = not alerted on.
    pub queue_per_replica: Option<f64>,
    /// Pairs of windows of the burn rate. None = the workbook's.
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

    /// # Errors
    /// A figure that can't be, in one line.
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
    /// What an alert is about.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum AlertKind {
        /// More are over a ceiling than allowed, for more than a minute.
        CeilingBroken => "ceiling_broken",
        /// What a row allows is used up too fast.
        BurnRate => "burn_rate",
        /// First tokens take twice as long as in a good hour before.
        TtftDoubled => "ttft_doubled",
        /// More requests wait per replica than may.
        QueueOverTarget => "queue_over_target",
        /// Replicas start more often since a deploy.
        ColdStarts => "cold_starts",
        /// A replica computes requests and nothing of it moves.
        Stalled => "stalled",
        /// A page does not answer.
        SourceLost => "source_lost",
        /// No page has what a row needs.
        Absent => "absent",
        NoTraffic => "no_traffic",
        /// Always fires: where it is missing, nobody watches.
        Watchdog => "watchdog",
    }
}

impl AlertKind {
    /// Is there something to see in what came before it fired? Of what is silent there is not.
    pub(crate) fn has_window(self) -> bool {
        self.is_diagnosed() || self == AlertKind::Stalled
    }

    /// The name of the alert for Alertmanager: `ceiling_broken` → `PlimsollCeilingBroken`. A route that waits for another monitor's `Watchdog`
    /// must not take ours for it.
    pub fn alert_name(self) -> String {
        let words = self.name().split('_').map(|word| {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_ascii_uppercase() + rest
        });
        format!("Plimsoll{}", words.collect::<String>())
    }

    /// Is something slow or failing, so that it can be asked what is to blame? The others say themselves what is so.
    pub fn is_diagnosed(self) -> bool {
        use AlertKind::*;
        matches!(self, CeilingBroken | BurnRate | TtftDoubled | QueueOverTarget | ColdStarts)
    }

    /// What to do first while no cause is known: what tells the likely ones apart, and the command that tells more. Empty where there is nothing to do.
    /// `of_requests`: the watch reads a run's requests and no pages, so its page has no replicas, and the run itself can be diagnosed.
    pub fn first_step(self, of_requests: bool) -> &'static str {
        match self {
            AlertKind::CeilingBroken if of_requests => {
                "see on the watch's page since which minute requests fail or take longer, and whether more come than before: failures are in the servers' \
                 logs, a queue comes of more requests or fewer replicas than an hour ago; of the rest plimsoll diagnose RUN names the layer"
            }
            AlertKind::BurnRate if of_requests => {
                "see on the watch's page at which minute it began and what was deployed or scaled then: a burn that goes on is looked into like a broken \
                 ceiling (plimsoll diagnose RUN), one that has stopped needs nobody at night"
            }
            AlertKind::CeilingBroken => {
                "see on the watch's page whether requests fail, wait or only take longer, and at which replica: failures are in that replica's log, a \
                 queue comes of more requests or fewer replicas than an hour ago; of the rest plimsoll diagnose URL --model MODEL --time 5m names the layer"
            }
            AlertKind::BurnRate => {
                "see on the watch's page at which minute it began and what was deployed or scaled then: a burn that goes on is looked into like a broken \
                 ceiling (plimsoll diagnose URL --model MODEL --time 5m), one that has stopped needs nobody at night"
            }
            AlertKind::TtftDoubled => {
                "see on the watch's page whether requests wait: if they do, more came or fewer replicas answer than an hour ago; if not, prompts are longer, \
                 their prefixes are cached less or the engine is slower, which plimsoll diagnose URL --model MODEL --time 5m tells apart"
            }
            AlertKind::QueueOverTarget => {
                "hold requests per second and the replicas that answer against an hour ago: more requests take more replicas, missing replicas are to be \
                 brought back; if neither moved answers take longer, and plimsoll diagnose URL --model MODEL --time 5m names the layer"
            }
            AlertKind::ColdStarts => {
                "read why replicas start anew: how the process before ended (kubectl describe pod: out of memory, a failed probe, a lost node) and the last \
                 lines of its log (kubectl logs --previous); if they began with a deploy, roll it back"
            }
            AlertKind::Stalled => {
                "send it no more requests, keep its log and a stack of the process (py-spy dump --pid PID for a Python engine, nvidia-smi beside it), then restart it"
            }
            AlertKind::SourceLost => {
                "ask the page from where the watch runs (curl -v URL; of a pushed source: does its sender run?): refused, and the process is gone; \
                 no answer, and it hangs or the network is down; 401 or 403 is the key, 404 the path, a TLS error the certificate. Until it answers nothing is known of it, which is not that it is well"
            }
            AlertKind::Absent => {
                "plimsoll watch lint FILE says row by row what the pages lack: after an upgrade a metric may have another name, or be switched off"
            }
            AlertKind::NoTraffic => {
                "send one request by the way that users take (plimsoll run URL --smoke): if it is answered nobody asks, else what lies before the replicas lets nobody through"
            }
            AlertKind::Watchdog => "",
        }
    }

    /// On the screen.
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

/// Does it stand?
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    Firing,
    Resolved,
}

impl AlertState {
    /// In a message.
    pub fn name(self) -> &'static str {
        match self {
            AlertState::Firing => "firing",
            AlertState::Resolved => "resolved",
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alert {
    /// Its own: the kind, what it is about, and its number, which goes on where an earlier watch ended.
    pub id: String,
    pub kind: AlertKind,
    /// A row's id, a page's or a replica's name, `fleet`.
    pub about: String,
    /// The row of the budget, where it is about one.
    pub row: Option<String>,
    pub state: AlertState,
    /// Since when what it says is so, s since the watch began.
    pub since_s: f64,
    pub fired_s: f64,
    pub resolved_s: Option<f64>,
    /// Why, in a sentence.
    pub evidence: String,
    /// What to do first: its diagnosis', or its kind's where that names no cause.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub do_first: String,
    /// What is to blame, where pages were asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Box<AlertDiagnosis>>,
    /// The run folder with its window, where one is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

impl Alert {
    /// Did it fire at this instant, without a diagnosis that it should have?
    pub(crate) fn is_new(&self, now: At) -> bool {
        self.kind.is_diagnosed() && self.diagnosis.is_none() && self.fired_s == board::seconds(now)
    }

    /// What to do first: its own step; where it has none, because an older version wrote it, its diagnosis' or its kind's.
    pub fn first_step(&self) -> &str {
        let diagnosis = self.diagnosis.as_deref().map_or("", |found| found.do_first.as_str());
        let known = [self.do_first.as_str(), diagnosis].into_iter().find(|step| !step.is_empty());
        // Those that an older version wrote are of pages, because a watch of requests takes none over.
        known.unwrap_or_else(|| self.kind.first_step(false))
    }

    /// Is it so now?
    pub fn stands(&self) -> bool {
        self.state == AlertState::Firing
    }

    /// The same in the time of a watch that began so much earlier, s.
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
