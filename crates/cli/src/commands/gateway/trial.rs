//! Judges a canary behind the gateway from the gateway's own requests, by the rules of `plimsoll canary`. It
//! reports the verdict, and rolls the canary back once the canary is proven worse. A shadow is judged alike
//! and never rolled back, because no client sees it.
//!
//! The record's thread passes finished requests. The gateway's main thread evaluates once a minute and acts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_gateway::pool::ReplicaPool;
use plimsoll_gateway::rollout::{RolloutState, SplitVerdict};
use plimsoll_gateway::{GatewaySpec, ReplicaRole, RolloutSpec, TrafficRecorder};
use plimsoll_judge::budget::BudgetFile;
use plimsoll_model::{Arm, At, Attempt, Span};
use plimsoll_policy::ReplicaAvailability;
use plimsoll_watch::canary::{CanaryFinding, CanarySpec, CanaryVerdict, RequestsTrial};
use serde::{Deserialize, Serialize};

use crate::budget_file;
use crate::commands::canary;
use crate::exit::Stop;

/// Seed for placebo groups and ties. Any seed works; a fixed seed gives reproducible results.
const SEED: u64 = 1;
/// File with the stage of a trial, next to the recorded runs.
const KEPT: &str = "rollout.json";

/// Locks the trials, also after a panic of another thread.
pub fn lock(trials: &Mutex<Trials>) -> MutexGuard<'_, Trials> {
    trials.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The comparison of one canary or shadow with the serving replicas.
struct RolloutTrial {
    spec: CanarySpec,
    budget: Option<BudgetFile>,
    arms: HashMap<String, Arm>,
    trial: RequestsTrial,
    begun: At,
    verdict: CanaryVerdict,
}

impl RolloutTrial {
    fn new(
        spec: &RolloutSpec,
        budget: Option<BudgetFile>,
        arms: HashMap<String, Arm>,
        now: At,
    ) -> RolloutTrial {
        let spec = CanarySpec {
            alpha: spec.alpha,
            before: Span::from_secs_f64(spec.before_s),
            least: Span::from_secs_f64(spec.least_s),
            seed: SEED,
        };
        let trial = RequestsTrial::new(spec.clone(), budget.clone(), arms.clone());
        RolloutTrial { spec, budget, arms, trial, begun: now, verdict: CanaryVerdict::KeepWatching }
    }

    fn begin_again(&mut self, now: At) {
        self.trial = RequestsTrial::new(self.spec.clone(), self.budget.clone(), self.arms.clone());
        (self.begun, self.verdict) = (now, CanaryVerdict::KeepWatching);
    }

    /// Returns a finding once a minute.
    fn tick(&mut self, now: At, pools: &[&ReplicaPool]) -> Option<CanaryFinding> {
        let at = At::ZERO + (now - self.begun);
        let mut up = Vec::new();
        for pool in pools {
            let shown = pool.shown().0;
            let answer =
                |standing| matches!(standing, ReplicaAvailability::Ready | ReplicaAvailability::Trial);
            up.extend(shown.into_iter().filter(|shown| answer(shown.standing)).map(|shown| shown.replica));
        }
        self.trial.tick(at, up.iter().map(|replica| replica.name.as_str())).then(|| self.trial.finding(at))
    }
}

/// The canary and shadow trials of a gateway.
pub struct Trials {
    canary: Option<RolloutTrial>,
    shadow: Option<RolloutTrial>,
    roll_back: bool,
    stand: Option<RolloutState>,
    kept: Option<StageFile>,
}

/// The saved stage of a trial, for the next start.
struct StageFile {
    path: PathBuf,
    /// Replicas of the canary, because another canary is another trial.
    of: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct KeptStand {
    of: Vec<String>,
    stand: RolloutState,
}

impl Trials {
    /// Creates the configured trials; `None` if there are none.
    ///
    /// # Errors
    /// Fails if the budget file is unreadable or invalid. Its ceilings are compared too.
    pub fn new(spec: &GatewaySpec, now: At) -> Result<Option<Trials>, Stop> {
        let (canary, shadow) = (spec.canary_share().is_some(), spec.shadow_share().is_some());
        if !canary && !shadow {
            return Ok(None);
        }
        let budget = spec.budget.as_deref().map(budget_file::read).transpose()?.map(|text| text.file);
        let asked = spec.canary.clone().unwrap_or_default();
        let against = |role| {
            let side = |role, arm| spec.of(role).map(move |replica| (replica.named(), arm));
            let arms = side(ReplicaRole::Serve, Arm::Base).chain(side(role, Arm::Canary)).collect();
            RolloutTrial::new(&asked, budget.clone(), arms, now)
        };
        Ok(Some(Trials {
            canary: canary.then(|| against(ReplicaRole::Canary)),
            shadow: shadow.then(|| against(ReplicaRole::Shadow)),
            roll_back: asked.roll_back,
            // The initial stage, and not the current one. An operator may already have changed it, and that
            // change must be saved.
            stand: spec.canary_share().map(|share| RolloutState::Trial { share }),
            kept: spec.record.as_ref().filter(|_| canary).map(|record| StageFile {
                path: record.dir.join(KEPT),
                of: spec.of(ReplicaRole::Canary).map(|one| format!("{} {}", one.named(), one.url)).collect(),
            }),
        }))
    }

    /// Records the rows of a request, or of a shadow's copy of a request.
    pub fn take(&mut self, rows: &[Attempt], is_copy: bool) {
        for row in rows {
            self.canary.iter_mut().filter(|_| !is_copy).for_each(|judging| judging.trial.take(row));
            self.shadow.iter_mut().for_each(|judging| judging.trial.take(row));
        }
    }

    /// Restores the stage of an ended trial at start-up. Returns a message.
    pub fn resume(&mut self, pool: &Arc<ReplicaPool>) -> Option<String> {
        let stand = self.kept.as_ref().and_then(StageFile::read);
        if let Some(stand) = stand {
            pool.set_stand(stand);
            self.stand = Some(stand);
        }
        let kept = self.kept.as_ref().filter(|_| stand.is_some())?;
        Some(format!(
            "canary: {} ({}); remove that file to restart the trial",
            words(stand),
            kept.path.display()
        ))
    }

    /// Evaluates once a minute, and acts. Returns messages.
    pub fn tick(
        &mut self,
        now: At,
        pool: &Arc<ReplicaPool>,
        shadows: Option<&Arc<ReplicaPool>>,
        told: &TrafficRecorder,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        self.follow(now, pool, &mut lines);
        let on_trial = matches!(self.stand, Some(RolloutState::Trial { share }) if share > 0.0);
        if let (Some(judging), Some(rollout)) = (self.canary.as_mut().filter(|_| on_trial), &pool.rollout)
            && let Some(found) = judging.tick(now, &[&**pool])
        {
            rollout.judge(judged(&found, "canary"));
            lines.extend(changed(judging, &found, "canary"));
            if found.verdict == CanaryVerdict::RollBack && self.roll_back {
                pool.set_stand(RolloutState::RolledBack);
                self.follow(now, pool, &mut lines);
            }
        }
        if let (Some(judging), Some(shadows)) = (&mut self.shadow, shadows)
            && let Some(found) = judging.tick(now, &[&**pool, &**shadows])
        {
            told.judge_shadow(judged(&found, "shadow"));
            lines.extend(changed(judging, &found, "shadow"));
        }
        lines
    }

    /// Follows a stage change by an operator or by the verdict.
    fn follow(&mut self, now: At, pool: &ReplicaPool, lines: &mut Vec<String>) {
        let stand = pool.rollout.as_ref().map(|rollout| rollout.stand());
        let before = std::mem::replace(&mut self.stand, stand);
        if stand == before {
            return;
        }
        lines.push(format!("canary: {}", words(stand)));
        self.kept.iter().zip(stand).for_each(|(kept, stand)| lines.extend(kept.write(stand)));
        let Some(judging) = &mut self.canary else { return };
        match (before, stand) {
            (Some(RolloutState::Trial { .. }), Some(RolloutState::Trial { .. })) => {
                judging.trial.share_changed()
            }
            (_, Some(RolloutState::Trial { .. })) => judging.begin_again(now),
            _ => {}
        }
    }
}

impl StageFile {
    fn read(&self) -> Option<RolloutState> {
        let kept: KeptStand = serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()?;
        (kept.of == self.of).then_some(kept.stand)
    }

    /// Saves the stage. Returns a message if saving fails.
    fn write(&self, stand: RolloutState) -> Option<String> {
        let bytes = serde_json::to_vec(&KeptStand { of: self.of.clone(), stand }).unwrap_or_default();
        replace(&self.path, &bytes)
            .err()
            .map(|e| format!("{}: {e}; a gateway restart restarts the trial", self.path.display()))
    }
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension("json.new");
    std::fs::write(&draft, bytes)?;
    std::fs::rename(&draft, path)
}

fn judged(found: &CanaryFinding, what: &str) -> SplitVerdict {
    SplitVerdict {
        may_promote: found.verdict == CanaryVerdict::Promote,
        why: found.why.clone(),
        json: serde_json::to_string(found).unwrap_or_default(),
        metrics: canary::metrics(found, what),
    }
}

fn changed(judging: &mut RolloutTrial, found: &CanaryFinding, what: &str) -> Option<String> {
    let before = std::mem::replace(&mut judging.verdict, found.verdict);
    (before != found.verdict).then(|| format!("{what}: {}: {}", found.verdict.words(), found.why))
}

fn words(stand: Option<RolloutState>) -> String {
    match stand {
        Some(RolloutState::Trial { share }) => {
            format!("it gets {} of the sessions", plimsoll_measure::say::percent(share))
        }
        Some(RolloutState::Promoted) => "promoted; its replicas serve like all others".to_owned(),
        Some(RolloutState::RolledBack) => "rolled back; its replicas get no requests".to_owned(),
        None => "there is none".to_owned(),
    }
}
