//! What may wait in front of the replicas, for how long, in what order, and how much is sent ahead to each.
//!
//! An engine answers first come, first served, and can't tell tenants apart: what is queued *there* is lost to fairness and deadlines. So no more is sent
//! ahead than keeps a replica busy ([`AdmissionSpec::ahead_s`]), and the rest waits here. A limit on requests in flight, found by probing as
//! concurrency limiters do (Netflix' Gradient2), was the alternative: it counts a prompt of ten tokens like one of a hundred thousand, its long-run
//! latency drifts up with the overload that it should see, and it must be pinned down now and then to learn what is normal. Work that has no first
//! token yet is seen directly, and it stops by itself: an engine without a free slot shows no first tokens.

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// Who is let in, and in what order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionSpec {
    /// Most requests that wait. One more takes the place of the longest queue's last, or gets 429.
    pub requests: u32,
    /// Most prompt tokens that wait, less what replicas have cached.
    pub tokens: u64,
    /// Most bytes of bodies that wait: each is kept whole.
    pub bytes: u64,
    /// Longest wait, seconds: a rolling restart is over by then, or somebody should know.
    pub wait_s: f64,
    /// Most time to the first token, ms, where a request does not say its own (`x-slo-ttft-ms`): what can't be answered in time is refused at
    /// once. None = nothing is refused by prediction.
    pub slo_ttft_ms: Option<f64>,
    /// Where no time is set for a class, it is the budget's ceiling on the time to the first token: who would come later is over it already. Takes a budget.
    pub slo_from_budget: bool,
    /// Prompts that are sent ahead to a replica, in seconds of its work; two requests always. 0 = all of them: its own queue decides.
    pub ahead_s: f64,
    /// Most requests on one replica, whatever they are; none = no limit. Answers that come whole show no first token, so only this bounds them.
    pub per_replica: Option<u32>,
    /// The header that names a request's tenant; none = all are one.
    pub tenant_header: Option<String>,
    /// Classes, the first goes first. A request names its own in `x-plimsoll-class`; otherwise it is of the first.
    pub classes: Vec<ClassSpec>,
}

/// A class of requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassSpec {
    /// What requests call it.
    pub name: String,
    /// What it gets of all tokens though a class before it waits, as a share.
    #[serde(default)]
    pub share: f64,
    /// Most time to the first token, ms, instead of the pool's.
    #[serde(default)]
    pub slo_ttft_ms: Option<f64>,
    /// Does it give way while the budget in force is in danger? Amber: half its share; red: 429.
    #[serde(default)]
    pub gives_way: bool,
}

impl Default for AdmissionSpec {
    fn default() -> AdmissionSpec {
        let class = |name: &str, share, gives_way| ClassSpec {
            name: name.to_owned(),
            share,
            slo_ttft_ms: None,
            gives_way,
        };
        AdmissionSpec {
            requests: 1_024,
            tokens: 16_000_000,
            bytes: 256 << 20,
            wait_s: 30.0,
            slo_ttft_ms: None,
            slo_from_budget: false,
            ahead_s: 1.0,
            per_replica: None,
            tenant_header: None,
            classes: vec![class("interactive", 0.0, false), class("bulk", 0.1, true)],
        }
    }
}

impl AdmissionSpec {
    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// A number is outside what its field means, or classes can't be told apart.
    pub fn validate(&self) -> Result<(), SettingError> {
        let range = |key, value: f64, from: f64, to: f64, want| match (from..=to).contains(&value) {
            true => Ok(()),
            false => {
                let name = "admission".to_owned();
                Err(SettingError::Value { name, key, value: value.to_string(), want })
            }
        };
        let conflict =
            |why: String| Err(SettingError::Conflict { name: "admission.classes".to_owned(), why });
        range("wait_s", self.wait_s, 0.0, 86_400.0, "seconds from 0 to 86400")?;
        range("ahead_s", self.ahead_s, 0.0, 3_600.0, "seconds from 0 to 3600, such as 1")?;
        range(
            "per_replica",
            self.per_replica.map_or(1.0, f64::from),
            1.0,
            f64::MAX,
            "a whole number from 1",
        )?;
        let slo = |slo: Option<f64>| {
            range("slo_ttft_ms", slo.unwrap_or(1.0), 1.0, 86_400_000.0, "milliseconds from 1")
        };
        slo(self.slo_ttft_ms)?;
        if self.classes.is_empty() {
            return conflict("there is none; leave the key out, or name one".to_owned());
        }
        for (place, class) in self.classes.iter().enumerate() {
            slo(class.slo_ttft_ms)?;
            range("share", class.share, 0.0, 1.0, "a share from 0 to 1, such as 0.1")?;
            if class.name.is_empty() || self.classes[..place].iter().any(|other| other.name == class.name) {
                return conflict(format!("{:?} is no name of its own; give each class one", class.name));
            }
        }
        let shares: f64 = self.classes.iter().map(|class| class.share).sum();
        if shares > 1.0 {
            return conflict(format!("their shares are {shares} together; at most 1 can be given away"));
        }
        Ok(())
    }

    /// A class' number, by its name.
    pub fn class(&self, name: &str) -> Option<usize> {
        self.classes.iter().position(|class| class.name == name)
    }

    /// Most time to the first token of a class' requests that say none of their own.
    pub fn slo(&self, class: usize) -> Option<Span> {
        let own = self.classes.get(class).and_then(|class| class.slo_ttft_ms);
        own.or(self.slo_ttft_ms).map(|ms| Span::from_secs_f64(ms / 1e3))
    }
}
