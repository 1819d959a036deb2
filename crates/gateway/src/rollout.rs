//! Canary rollout: the traffic share of a new version, its verdict and its promotion or rollback. A shadow replica
//! gets copies of requests, and its responses are discarded.
//!
//! The judge uses the code of `plimsoll canary` on the gateway's own recording and sets its verdict here. An operator
//! decides through the admin API. The verdict itself decides only for a rollback, because nothing may be promoted
//! without a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_model::BudgetState;
use plimsoll_policy::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{self, conflict, within};

/// Role of a replica [default: serve].
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaRole {
    /// Serves the requests that clients send.
    #[default]
    Serve,
    /// Serves a share of the requests as a canary.
    Canary,
    /// Receives copies of requests; its responses are discarded.
    Shadow,
}

impl ReplicaRole {
    /// Returns the role as a phrase for messages.
    pub fn words(self) -> &'static str {
        match self {
            ReplicaRole::Serve => "one that serves",
            ReplicaRole::Canary => "a canary",
            ReplicaRole::Shadow => "a shadow",
        }
    }
}

/// Settings of canary traffic and of its evaluation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSpec {
    /// Canary share of sessions, and of requests without a session, from 0 to 1 [default: the canaries' share of the
    /// replicas]. With the default, all replicas get equal load, so the comparison is fair.
    pub share: Option<f64>,
    /// Baseline period in s after the start with one version on all replicas, to measure differences between replicas
    /// [default: 0].
    pub before_s: f64,
    /// Minimum observation in s before a canary can be promoted; one day contains all kinds of traffic [default:
    /// 86400].
    pub least_s: f64,
    /// Probability limit of ever rejecting a canary that is not worse [default: 0.05].
    pub alpha: f64,
    /// Automatic rollback of a canary that is proven worse [default: true].
    pub roll_back: bool,
}

/// Settings of the shadow traffic to other replicas.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShadowSpec {
    /// Share of sessions that is copied, from 0 to 1 [default: for each shadow, the share of one serving replica].
    pub share: Option<f64>,
    /// Limit on copies in flight per shadow; further copies are skipped and counted [default: 64].
    pub requests: u32,
}

impl Default for RolloutSpec {
    fn default() -> RolloutSpec {
        RolloutSpec { share: None, before_s: 0.0, least_s: 86_400.0, alpha: 0.05, roll_back: true }
    }
}

impl Default for ShadowSpec {
    fn default() -> ShadowSpec {
        ShadowSpec { share: None, requests: 64 }
    }
}

impl RolloutSpec {
    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.share.map_or(Ok(()), |share| error::share("canary.share", share))?;
        if self.before_s != 0.0 && !(600.0..=604_800.0).contains(&self.before_s) {
            let why = "in less than 600 s a replica's own share is not known; write 0 or 600 to 604800";
            return conflict("canary.before_s", format!("{}: {why}", self.before_s));
        }
        within("canary.least_s", self.least_s, 0.0..=31_536_000.0, " s")?;
        if !(self.alpha > 0.0 && self.alpha < 0.5) {
            let why = format!("{} is no share above 0 and under 0.5, such as 0.05", self.alpha);
            return conflict("canary.alpha", why);
        }
        Ok(())
    }
}

impl ShadowSpec {
    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.share.map_or(Ok(()), |share| error::share("shadow.share", share))?;
        match self.requests {
            0 => conflict("shadow.requests", "0 would send no copy; write 1 or more"),
            _ => Ok(()),
        }
    }
}

#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage")]
pub enum RolloutState {
    /// The canary serves a share of the traffic.
    Trial {
        /// Share of sessions, from 0 to 1.
        share: f64,
    },
    /// The canary replicas serve like all others.
    Promoted,
    RolledBack,
}

/// A command of an operator, as JSON.
#[derive(Copy, Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum RolloutCommand {
    /// Sets the share. A finished trial restarts.
    Share {
        /// Share of sessions, from 0 to 1.
        share: f64,
    },
    /// Promotes the canary replicas to serve like all others.
    Promote {
        /// Set to promote regardless of the verdict.
        #[serde(default)]
        anyway: bool,
    },
    /// Stops requests to the canary replicas.
    RollBack,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct SplitVerdict {
    /// Set if the canary is proven not worse over the minimum observation.
    pub may_promote: bool,
    pub why: String,
    pub json: String,
    pub metrics: String,
}

#[derive(Debug)]
pub struct Rollout {
    /// The share as the bits of an `f64`. It is atomic because each request reads it.
    share: AtomicU64,
    stand: Mutex<RolloutState>,
    judged: Mutex<SplitVerdict>,
}

impl Rollout {
    /// Returns a rollout in its trial stage.
    pub fn new(share: f64) -> Rollout {
        Rollout {
            share: AtomicU64::new(share.to_bits()),
            stand: Mutex::new(RolloutState::Trial { share }),
            judged: Mutex::default(),
        }
    }

    /// Returns the current share of the canary.
    pub fn share(&self) -> f64 {
        f64::from_bits(self.share.load(Ordering::Relaxed))
    }

    pub fn stand(&self) -> RolloutState {
        *lock(&self.stand)
    }

    /// Sets the stage. The pool applies it to the replicas.
    pub(crate) fn set(&self, stand: RolloutState) {
        let share = match stand {
            RolloutState::Trial { share } => share,
            RolloutState::Promoted | RolloutState::RolledBack => 0.0,
        };
        *lock(&self.stand) = stand;
        self.share.store(share.to_bits(), Ordering::Relaxed);
    }

    pub fn judged(&self) -> SplitVerdict {
        lock(&self.judged).clone()
    }

    pub fn judge(&self, judged: SplitVerdict) {
        *lock(&self.judged) = judged;
    }

    /// Returns the stage that an operator's command leads to. `budget` is the state of the active SLO budget. Fails
    /// with a one-sentence reason against the command.
    pub fn asked(&self, ask: RolloutCommand, budget: Option<BudgetState>) -> Result<RolloutState, String> {
        match ask {
            RolloutCommand::RollBack => Ok(RolloutState::RolledBack),
            RolloutCommand::Share { share } if !(0.0..=1.0).contains(&share) => {
                Err(format!("{share} is no share from 0 to 1"))
            }
            RolloutCommand::Share { share } => match budget.filter(|state| *state != BudgetState::Green) {
                Some(state) if share > self.share() => {
                    Err(format!("the budget is {}: the canary share can grow when it is green", state.name()))
                }
                _ => Ok(RolloutState::Trial { share }),
            },
            RolloutCommand::Promote { anyway: true } => Ok(RolloutState::Promoted),
            RolloutCommand::Promote { anyway: false } => {
                let judged = lock(&self.judged);
                match (judged.may_promote, judged.why.as_str()) {
                    (true, _) => Ok(RolloutState::Promoted),
                    (false, "") => Err(
                        "it has no verdict yet; {\"do\": \"promote\", \"anyway\": true} promotes it anyway"
                            .to_owned(),
                    ),
                    (false, why) => {
                        Err(format!("{why}; {{\"do\": \"promote\", \"anyway\": true}} promotes it anyway"))
                    }
                }
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
