//! Configuration of admission: queue limits, waiting time, order, and the work sent ahead to each replica.
//!
//! An engine serves in order of arrival and cannot distinguish tenants, so fairness and deadlines are lost for
//! requests queued there. The gateway therefore sends only enough work to keep a replica busy
//! ([`AdmissionSpec::ahead_s`]) and queues the rest. An adaptive limit on requests in flight (Netflix' Gradient2)
//! lost. It counts a prompt of ten tokens like one of a hundred thousand. Its long-run latency drifts up with the
//! overload that it should detect. It also needs regular probing to relearn the normal latency. Work without a first
//! token is observed directly and limits itself, because an engine without a free slot produces no first tokens.

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// Settings of admission and of the request queue.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionSpec {
    /// Limit on queued requests. A further request replaces the last of the longest queue, or gets 429 [default:
    /// 1024].
    pub requests: u32,
    /// Limit on queued prompt tokens, without cached tokens [default: 16000000].
    pub tokens: u64,
    /// Limit on queued request bodies in bytes; bodies are kept in memory [default: 256 MiB].
    pub bytes: u64,
    /// Queue timeout in s, long enough for a rolling restart [default: 30].
    pub wait_s: f64,
    /// TTFT objective in ms for requests without `x-slo-ttft-ms`. Requests that would miss it get 429 [default: none,
    /// no rejection by prediction].
    pub slo_ttft_ms: Option<f64>,
    /// Use of the SLO budget's TTFT ceiling for classes without an objective; requires a budget [default: false].
    pub slo_from_budget: bool,
    /// Limit on prompts sent ahead to a replica, in seconds of its work; two requests are always sent. 0 disables the
    /// limit [default: 1.0].
    pub ahead_s: f64,
    /// Limit on requests per replica, the only bound for responses that do not stream [default: none].
    pub per_replica: Option<u32>,
    /// Request header with the tenant [default: none, one tenant].
    pub tenant_header: Option<String>,
    /// Priority classes, highest first. A request names its class in `x-plimsoll-class`, else gets the first
    /// [default: interactive, bulk].
    pub classes: Vec<AdmissionClassSpec>,
}

/// A priority class of requests in the queue.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ClassSpec")]
pub struct AdmissionClassSpec {
    /// Name of the class in the header `x-plimsoll-class`.
    pub name: String,
    /// Share of tokens that the class gets while a higher class waits [default: 0].
    #[serde(default)]
    pub share: f64,
    /// TTFT objective of the class in ms [default: the general one].
    #[serde(default)]
    pub slo_ttft_ms: Option<f64>,
    /// Shedding of the class while the SLO budget is in danger: half its share when amber, 429 when red [default:
    /// false].
    #[serde(default)]
    pub gives_way: bool,
}

impl Default for AdmissionSpec {
    fn default() -> AdmissionSpec {
        let class = |name: &str, share, gives_way| AdmissionClassSpec {
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
    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// Fails if a number is out of range, or if class names are not unique.
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
            return conflict("the list is empty; leave the key out, or name a class".to_owned());
        }
        for (place, class) in self.classes.iter().enumerate() {
            slo(class.slo_ttft_ms)?;
            range("share", class.share, 0.0, 1.0, "a share from 0 to 1, such as 0.1")?;
            if class.name.is_empty() || self.classes[..place].iter().any(|other| other.name == class.name) {
                return conflict(format!(
                    "{:?} is empty or a duplicate name; give each class a unique name",
                    class.name
                ));
            }
        }
        let shares: f64 = self.classes.iter().map(|class| class.share).sum();
        if shares > 1.0 {
            return conflict(format!("their shares total {shares}; the total may be at most 1"));
        }
        Ok(())
    }

    /// Returns the index of a class.
    pub fn class(&self, name: &str) -> Option<usize> {
        self.classes.iter().position(|class| class.name == name)
    }

    /// Returns the TTFT objective for requests of a class that set none.
    pub fn slo(&self, class: usize) -> Option<Span> {
        let own = self.classes.get(class).and_then(|class| class.slo_ttft_ms);
        own.or(self.slo_ttft_ms).map(|ms| Span::from_secs_f64(ms / 1e3))
    }
}
