//! A version on trial: which share of the requests its replicas get, and what becomes of it. A shadow is one whose answers nobody sees.
//!
//! Who judges it (the same code as `plimsoll canary`, from the gateway's own record) tells its verdict here; who decides is an operator, by the admin
//! address, or the verdict itself where it says that the version is worse. Nothing is promoted unasked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_model::BudgetState;
use plimsoll_policy::SettingError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a replica is there for.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaRole {
    /// It serves.
    #[default]
    Serve,
    /// It serves a share, as a version on trial.
    Canary,
    /// It gets copies of requests, and nobody sees its answers.
    Shadow,
}

impl ReplicaRole {
    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            ReplicaRole::Serve => "one that serves",
            ReplicaRole::Canary => "a canary",
            ReplicaRole::Shadow => "a shadow",
        }
    }
}

/// How a canary is given requests and judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSpec {
    /// The share of sessions (and of requests that name none) that is the canary's, 0 to 1; none = the canaries' share of the replicas, with which each
    /// replica gets equally much and the comparison is fair.
    pub share: Option<f64>,
    /// For how long after the start all replicas run the same version, seconds, so that it is known what is a replica's own.
    pub before_s: f64,
    /// It is not called fit to be promoted before it was watched for so long, seconds: a day has all kinds of traffic.
    pub least_s: f64,
    /// Accepted chance that a canary which is no worse is ever called worse.
    pub alpha: f64,
    /// Take the requests off it by itself once it is proven worse.
    pub roll_back: bool,
}

/// How shadows are given copies.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShadowSpec {
    /// The share of sessions of which copies are sent, 0 to 1; none = as many as a serving replica gets, for each shadow.
    pub share: Option<f64>,
    /// Most copies in progress on each shadow: further ones are left out, and counted.
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
    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        is_share("canary.share", self.share)?;
        if self.before_s != 0.0 && !(600.0..=604_800.0).contains(&self.before_s) {
            let why = "in less than 600 s a replica's own share is not known; write 0 or 600 to 604800";
            return Err(conflict("canary.before_s", format!("{}: {why}", self.before_s)));
        }
        if !(0.0..=31_536_000.0).contains(&self.least_s) {
            return Err(conflict("canary.least_s", format!("{} is not from 0 to 31536000 s", self.least_s)));
        }
        if !(self.alpha > 0.0 && self.alpha < 0.5) {
            let why = format!("{} is no share above 0 and under 0.5, such as 0.05", self.alpha);
            return Err(conflict("canary.alpha", why));
        }
        Ok(())
    }
}

impl ShadowSpec {
    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        is_share("shadow.share", self.share)?;
        match self.requests {
            0 => Err(conflict("shadow.requests", "0 would send no copy; write 1 or more".to_owned())),
            _ => Ok(()),
        }
    }
}

fn conflict(name: &str, why: String) -> SettingError {
    SettingError::Conflict { name: name.to_owned(), why }
}

fn is_share(name: &str, share: Option<f64>) -> Result<(), SettingError> {
    match share.filter(|share| !(0.0..=1.0).contains(share)) {
        Some(share) => Err(conflict(name, format!("{share} is no share from 0 to 1"))),
        None => Ok(()),
    }
}

/// Where a rollout stands.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage")]
pub enum Stand {
    /// The canary has this share.
    Trial {
        /// Of sessions, 0 to 1.
        share: f64,
    },
    /// Its replicas serve like all others.
    Promoted,
    RolledBack,
}

/// What an operator asks, as JSON.
#[derive(Copy, Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum RolloutAsk {
    /// Another share; begins the trial again where it had ended.
    Share {
        /// Of sessions, 0 to 1.
        share: f64,
    },
    /// Its replicas are to serve like all others.
    Promote {
        /// Whatever the verdict says.
        #[serde(default)]
        anyway: bool,
    },
    /// They are to get no requests.
    RollBack,
}

/// The verdict on it, as whoever judges it says.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SplitJudged {
    /// Is it proven to be no worse, for as long as was asked?
    pub may_promote: bool,
    /// Why, or why not yet.
    pub why: String,
    /// All of it, as JSON.
    pub json: String,
    /// The same as lines of a metrics page.
    pub metrics: String,
}

#[derive(Debug)]
pub struct Rollout {
    /// What each request reads: the share, as bits.
    share: AtomicU64,
    stand: Mutex<Stand>,
    judged: Mutex<SplitJudged>,
}

impl Rollout {
    /// A trial with this share.
    pub fn new(share: f64) -> Rollout {
        Rollout {
            share: AtomicU64::new(share.to_bits()),
            stand: Mutex::new(Stand::Trial { share }),
            judged: Mutex::default(),
        }
    }

    /// The canary's share now.
    pub fn share(&self) -> f64 {
        f64::from_bits(self.share.load(Ordering::Relaxed))
    }

    pub fn stand(&self) -> Stand {
        *lock(&self.stand)
    }

    /// It stands elsewhere from now on; the replicas' sides are the pool's.
    pub(crate) fn set(&self, stand: Stand) {
        let share = match stand {
            Stand::Trial { share } => share,
            Stand::Promoted | Stand::RolledBack => 0.0,
        };
        *lock(&self.stand) = stand;
        self.share.store(share.to_bits(), Ordering::Relaxed);
    }

    /// What was judged last.
    pub fn judged(&self) -> SplitJudged {
        lock(&self.judged).clone()
    }

    pub fn judge(&self, judged: SplitJudged) {
        *lock(&self.judged) = judged;
    }

    /// Where it is to stand if an operator asks this; or why not. `budget`: where the budget in force stands.
    pub fn asked(&self, ask: RolloutAsk, budget: Option<BudgetState>) -> Result<Stand, String> {
        match ask {
            RolloutAsk::RollBack => Ok(Stand::RolledBack),
            RolloutAsk::Share { share } if !(0.0..=1.0).contains(&share) => {
                Err(format!("{share} is no share from 0 to 1"))
            }
            RolloutAsk::Share { share } => match budget.filter(|state| *state != BudgetState::Green) {
                Some(state) if share > self.share() => Err(format!(
                    "the budget in force is {}: a canary does not grow until it is green",
                    state.name()
                )),
                _ => Ok(Stand::Trial { share }),
            },
            RolloutAsk::Promote { anyway: true } => Ok(Stand::Promoted),
            RolloutAsk::Promote { anyway: false } => {
                let judged = lock(&self.judged);
                match (judged.may_promote, judged.why.as_str()) {
                    (true, _) => Ok(Stand::Promoted),
                    (false, "") => Err(
                        "it was not judged yet; {\"do\": \"promote\", \"anyway\": true} does it all the same"
                            .to_owned(),
                    ),
                    (false, why) => {
                        Err(format!("{why}; {{\"do\": \"promote\", \"anyway\": true}} does it all the same"))
                    }
                }
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
