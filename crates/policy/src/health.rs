//! Replica health: a circuit breaker that decides which replicas can get requests.
//!
//! It distinguishes four cases that other breakers mix:
//!
//! * A replica that *sheds* (429, or 503 with `Retry-After`) works. It gets a decaying penalty in seconds, and is
//!   still chosen if all others are worse.
//! * A replica that *fails* (no connection, reset, 5xx, useless response) gets a penalty too, because fast failures
//!   empty its queue and attract requests. The breaker ejects it for a time that doubles, and readmits it with a
//!   single trial request.
//! * A replica that *refuses* (4xx) counts as failed if its peers answer such requests. This is known from
//!   [`Health::compared`], otherwise from the shares of refusals. If the peers refuse too, the client is wrong.
//! * A replica that is *silent* (requests run without progress for long) is ejected like a failing one.
//!
//! Only a share of the pool is ejected at a time. If less than half of it would remain, all of it is used, because a
//! fault of the observer is then more likely. If no replica is up, replicas with slow health endpoints are used.

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// Settings of the circuit breakers of replicas.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerSpec {
    /// Number of consecutive failures that eject a replica [default: 5].
    pub consecutive: u32,
    /// Minimum success share over 20 s; a replica below it is ejected [default: 0.5].
    pub success_share: f64,
    /// Minimum number of requests in 20 s for the success share to count [default: 20].
    pub samples: u32,
    /// Duration of the first ejection in s; each further one doubles, up to `most_s` [default: 5].
    pub first_s: f64,
    /// Maximum duration of an ejection in s [default: 60].
    pub most_s: f64,
    /// Limit on ejected replicas as a share of the pool; one replica can always be ejected [default: 0.3].
    pub most_ejected: f64,
    /// Silence in s of a replica with running streams before it is ejected, longer if its decode steps are slower; 0
    /// disables this [default: 3].
    pub silence_s: f64,
}

impl Default for BreakerSpec {
    fn default() -> BreakerSpec {
        BreakerSpec {
            consecutive: 5,
            success_share: 0.5,
            samples: 20,
            first_s: 5.0,
            most_s: 60.0,
            most_ejected: 0.3,
            silence_s: 3.0,
        }
    }
}

impl BreakerSpec {
    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// Fails if a number is out of range.
    pub fn validate(&self) -> Result<(), SettingError> {
        let range = |key, value: f64, from: f64, to: f64, want| match (from..=to).contains(&value) {
            true => Ok(()),
            false => {
                Err(SettingError::Value { name: "breaker".to_owned(), key, value: value.to_string(), want })
            }
        };
        range("consecutive", f64::from(self.consecutive), 1.0, f64::MAX, "a whole number from 1")?;
        range("success_share", self.success_share, 0.0, 1.0, "a share from 0 to 1")?;
        range("first_s", self.first_s, 0.1, 3600.0, "seconds from 0.1 to 3600")?;
        range("most_s", self.most_s, self.first_s, 86_400.0, "seconds from first_s on")?;
        range("most_ejected", self.most_ejected, 0.0, 1.0, "a share from 0 to 1")?;
        range("silence_s", self.silence_s, 0.0, 3600.0, "seconds from 0 to 3600")
    }
}

/// The outcome of a request with respect to the replica's health.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ReplicaOutcome {
    Worked,
    /// The replica rejected the request for lack of capacity. The value is its `Retry-After`.
    Shed(Option<Span>),
    /// The replica answered without evidence about its engine: a static page, or an object of another replica.
    Neutral,
    /// The replica rejected the request as a client error. It counts as a failure if its peers answer such requests.
    Refused,
    Failed,
}

/// Health state of a replica.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Standing")]
pub enum ReplicaAvailability {
    /// The replica is healthy and can get requests.
    Ready,
    /// The replica is unreachable, or its health check fails.
    Down,
    /// The replica is ejected for failures.
    Ejected,
    /// The replica is ejected for silence while streams run.
    Silent,
    /// The ejection is over, and one trial request decides.
    Trial,
    /// The replica finishes its requests and gets no new ones.
    Draining,
}

/// Number and length of the intervals in the window of [`BreakerSpec::success_share`].
const PARTS: usize = 10;
const PART: Span = Span::from_secs(2);
/// Minimum penalty for shedding, also for a response without `Retry-After`.
const LEAST_PENALTY: Span = Span::from_millis(500);
/// Maximum penalty for shedding: a `Retry-After` of an hour must not keep a replica empty for an hour.
const MOST_PENALTY: Span = Span::from_secs(60);
/// Share of usable replicas below which all replicas are used.
const PANIC: f64 = 0.5;
/// Number of consecutive refusals before another replica is checked for the same request. It doubles with each
/// refusal that the other replica shares, up to `DOUBLINGS` times.
const DOUBTED: u32 = 2;
const DOUBLINGS: u32 = 4;
/// Number of consecutive refusals before a replica gets a penalty, because client errors come in pairs.
const PENALISED: u32 = 3;
/// Penalty per recent failure, from the third on.
const FAILED_PENALTY: Span = Span::from_millis(10);
/// Number of consecutive failures, or of requests that clients gave up, that suffice for an ejection. The peers must
/// have answered enough requests, and their failure share must make chance this improbable.
const FEW: u32 = 3;
const FEW_BY_CHANCE: f64 = 1e-3;
/// Number of consecutive refusals that suffice for an ejection without a comparison. The peers must have answered as
/// many requests, and their refusal share must make chance this improbable. The probability limit is larger for a
/// replica on trial.
const ALONE: u32 = 10;
const BY_CHANCE: f64 = 1e-4;
const BY_CHANCE_ON_TRIAL: f64 = 0.1;

#[derive(Clone, Debug)]
struct ReplicaHealth {
    /// Set if a replica has this number.
    here: bool,
    up: bool,
    /// Set if the replica is down because its health check timed out; it may only be busy.
    slow: bool,
    draining: bool,
    streak: u32,
    /// Refusals since the last success that no peer was seen to share.
    refused: u32,
    /// Number of refusals that peers were seen to share.
    shared: u32,
    /// Requests since the last success that clients gave up before any response.
    given_up: u32,
    parts: [Part; PARTS],
    part: i64,
    open: Option<Open>,
    /// Ejections since the replica last worked reliably.
    ejections: u32,
    penalty: (At, Span),
}

/// The requests that ended in an interval of the window.
#[derive(Copy, Clone, Default, Debug)]
struct Part {
    worked: u32,
    failed: u32,
    refused: u32,
}

const NOTHING: Part = Part { worked: 0, failed: 0, refused: 0 };

/// The state of a new replica.
const FRESH: ReplicaHealth = ReplicaHealth {
    here: true,
    up: false,
    slow: false,
    draining: false,
    streak: 0,
    refused: 0,
    shared: 0,
    given_up: 0,
    parts: [NOTHING; PARTS],
    part: 0,
    open: None,
    ejections: 0,
    penalty: (At::ZERO, Span::ZERO),
};

/// An ejection of a replica.
#[derive(Copy, Clone, Debug)]
struct Open {
    until: At,
    silent: bool,
    /// Set while the trial request is in flight.
    trial: bool,
}

#[derive(Clone, Debug)]
pub struct Health {
    spec: BreakerSpec,
    each: Vec<ReplicaHealth>,
}

impl Health {
    /// Returns the health of this many new replicas. They are down until their first successful health check.
    pub fn new(spec: &BreakerSpec, replicas: usize) -> Health {
        Health { spec: *spec, each: vec![FRESH; replicas] }
    }

    /// Adds a replica, which is down, and returns its number: the first free one.
    pub fn join(&mut self) -> u32 {
        let free = self.each.iter().position(|one| !one.here).unwrap_or(self.each.len());
        match self.each.get_mut(free) {
            Some(one) => *one = FRESH,
            None => self.each.push(FRESH),
        }
        free as u32
    }

    /// Removes a replica and frees its number.
    pub fn part(&mut self, replica: u32) {
        self.each[replica as usize] = ReplicaHealth { here: false, ..FRESH };
    }

    pub fn count(&self) -> usize {
        self.each.iter().filter(|one| one.here).count()
    }

    /// Records the result of a health check, or a failed connection.
    pub fn set_up(&mut self, replica: u32, up: bool) {
        let one = &mut self.each[replica as usize];
        if up && !one.up && !one.slow {
            // A process that returns is a new one.
            *one = ReplicaHealth {
                draining: one.draining,
                ejections: one.ejections,
                penalty: one.penalty,
                ..FRESH
            };
        }
        (one.up, one.slow) = (up, false);
    }

    /// Records a timeout of a health check. The replica gets requests only if no replica is up.
    pub fn set_slow(&mut self, replica: u32) {
        let one = &mut self.each[replica as usize];
        (one.up, one.slow) = (false, true);
    }

    /// Starts or ends the draining of a replica.
    pub fn set_draining(&mut self, replica: u32, draining: bool) {
        self.each[replica as usize].draining = draining;
    }

    /// Returns whether the last health check succeeded.
    pub fn is_up(&self, replica: u32) -> bool {
        self.each[replica as usize].up
    }

    /// Returns whether the replica is up and not draining.
    pub fn answers(&self, replica: u32) -> bool {
        let one = &self.each[replica as usize];
        one.up && !one.draining
    }

    /// Returns whether the replica is down and not only slow.
    pub fn is_gone(&self, replica: u32) -> bool {
        let one = &self.each[replica as usize];
        !one.up && !one.slow
    }

    pub fn standing(&self, replica: u32, now: At) -> ReplicaAvailability {
        let one = &self.each[replica as usize];
        match one.open {
            _ if one.draining => ReplicaAvailability::Draining,
            _ if !one.up => ReplicaAvailability::Down,
            None => ReplicaAvailability::Ready,
            Some(open) if now >= open.until => ReplicaAvailability::Trial,
            Some(open) if open.silent => ReplicaAvailability::Silent,
            Some(_) => ReplicaAvailability::Ejected,
        }
    }

    /// Returns the remaining penalty of a replica. It decays with half of its initial value as time constant.
    pub fn penalty(&self, replica: u32, now: At) -> Span {
        self.each[replica as usize].left(now)
    }

    /// Writes the replicas that can get a request into `usable`, in ascending order.
    pub fn usable(&self, now: At, usable: &mut Vec<u32>) {
        usable.clear();
        let (mut up, mut trials) = (0usize, 0usize);
        for replica in 0..self.each.len() as u32 {
            match self.standing(replica, now) {
                ReplicaAvailability::Ready => usable.push(replica),
                ReplicaAvailability::Trial
                    if !self.each[replica as usize].open.is_some_and(|open| open.trial) =>
                {
                    usable.push(replica);
                    trials += 1;
                }
                ReplicaAvailability::Down | ReplicaAvailability::Draining => continue,
                _ => {}
            }
            up += 1;
        }
        if (usable.len() - trials) as f64 >= PANIC * up as f64 && !usable.is_empty() {
            return;
        }
        self.last_resort(usable, |_| true);
    }

    /// Writes the healthy replicas that satisfy `may` into `usable`, regardless of ejections. If there are none, uses
    /// replicas with a slow health endpoint.
    pub(crate) fn last_resort(&self, usable: &mut Vec<u32>, may: impl Fn(u32) -> bool) {
        let all = || (0..self.each.len() as u32).filter(|&replica| may(replica));
        usable.clear();
        usable.extend(all().filter(|&replica| self.answers(replica)));
        if usable.is_empty() {
            let each = &self.each;
            let is_slow = |replica: &u32| each[*replica as usize].slow && !each[*replica as usize].draining;
            usable.extend(all().filter(is_slow));
        }
    }

    /// Records that a request was sent to this replica.
    pub fn sent(&mut self, replica: u32, now: At) {
        if let Some(open) = self.each[replica as usize].open.as_mut().filter(|open| now >= open.until) {
            open.trial = true;
        }
    }

    /// Records the end of a request without evidence, for example because its client disconnected.
    pub fn untold(&mut self, replica: u32) {
        if let Some(open) = &mut self.each[replica as usize].open {
            open.trial = false;
        }
    }

    /// Records the outcome of a request. `chance` is a random number in 0..1 that spreads the ends of ejections.
    pub fn ended(&mut self, replica: u32, verdict: ReplicaOutcome, now: At, chance: f64) {
        match verdict {
            ReplicaOutcome::Worked => self.worked(replica, now),
            ReplicaOutcome::Neutral => self.untold(replica),
            ReplicaOutcome::Failed => self.failed(replica, now, chance),
            ReplicaOutcome::Refused => self.refused(replica, now, chance),
            ReplicaOutcome::Shed(after) => {
                let asked = after.unwrap_or(LEAST_PENALTY).clamp(LEAST_PENALTY, MOST_PENALTY);
                self.each[replica as usize].penalty = (now, asked);
                // The replica answered, so its state is not worse. Whether it computes is still unknown.
                self.untold(replica);
            }
        }
    }

    fn worked(&mut self, replica: u32, now: At) {
        let one = &mut self.each[replica as usize];
        one.count(now).worked += 1;
        (one.streak, one.refused, one.given_up) = (0, 0, 0);
        if one.open.take().is_some() {
            one.parts = [NOTHING; PARTS];
        }
        if one.sum().worked >= self.spec.samples {
            one.ejections = 0;
        }
    }

    fn failed(&mut self, replica: u32, now: At, chance: f64) {
        let (spec, peers) = (self.spec, self.peers(replica, now));
        let alone = match peers.worked >= ALONE {
            true => f64::from(peers.failed + 1) / f64::from(peers.worked + peers.failed + 2),
            false => 1.0,
        };
        let one = &mut self.each[replica as usize];
        one.count(now).failed += 1;
        one.streak += 1;
        let Part { worked, failed, .. } = one.sum();
        // The penalty starts later than the first failure, because the breaker must see a few failures.
        one.penalise(failed.saturating_sub(FEW - 1), now);
        let share = f64::from(worked) / f64::from((worked + failed).max(1));
        let trial = one.open.is_some_and(|open| now >= open.until);
        let in_a_row = one.streak;
        let broken = trial
            || in_a_row >= spec.consecutive
            || in_a_row >= FEW && alone.powi(in_a_row.min(1_000) as i32) < FEW_BY_CHANCE
            || worked + failed >= spec.samples && share < spec.success_share;
        if broken && one.open.is_none_or(|open| now >= open.until) {
            self.eject(replica, false, now, chance);
        }
    }

    fn refused(&mut self, replica: u32, now: At, chance: f64) {
        let one = &mut self.each[replica as usize];
        one.count(now).refused += 1;
        one.refused += 1;
        let (in_a_row, trial) = (one.refused, one.open.is_some_and(|open| now >= open.until));
        if in_a_row >= PENALISED {
            one.penalise(in_a_row, now);
        }
        if self.refuses_alone(replica, trial, now) && (trial || self.each[replica as usize].open.is_none()) {
            self.eject(replica, false, now, chance);
        } else {
            self.untold(replica);
        }
    }

    /// Returns whether the peers' refusal share makes chance an improbable cause of these refusals.
    fn refuses_alone(&self, replica: u32, trial: bool, now: At) -> bool {
        let peers = self.peers(replica, now);
        let in_a_row = self.each[replica as usize].refused;
        let share = f64::from(peers.refused + 1) / f64::from(peers.worked + peers.refused + 2);
        let by_chance = share.powi(in_a_row.min(1_000) as i32);
        match trial {
            true => by_chance < BY_CHANCE_ON_TRIAL,
            false => in_a_row >= ALONE && peers.worked >= ALONE && by_chance < BY_CHANCE,
        }
    }

    /// Records the response of another replica to a request that this one refused. `alike` is set if both refused.
    pub fn compared(&mut self, replica: u32, alike: bool, now: At, chance: f64) {
        let one = &mut self.each[replica as usize];
        if alike {
            (one.refused, one.shared) = (0, one.shared + 1);
        } else {
            (one.refused, one.shared) = (one.refused.saturating_sub(1), 0);
            self.failed(replica, now, chance);
        }
    }

    /// Returns whether a refusal or failure of this replica should be checked on another replica.
    pub fn is_doubted(&self, replica: u32) -> bool {
        let one = &self.each[replica as usize];
        one.open.is_some() || one.streak > 0 || one.refused + 1 >= DOUBTED << one.shared.min(DOUBLINGS)
    }

    /// Records that a client gave up a request without any response, after more than the permitted silence. Returns
    /// whether the replica is ejected for it.
    pub fn given_up(&mut self, replica: u32, now: At, chance: f64) -> bool {
        let one = &mut self.each[replica as usize];
        one.given_up += 1;
        let is_silent =
            self.spec.silence_s > 0.0 && one.given_up >= FEW && self.peers(replica, now).worked >= ALONE;
        let stands = self.standing(replica, now);
        is_silent
            && matches!(stands, ReplicaAvailability::Ready | ReplicaAvailability::Trial)
            && self.eject(replica, true, now, chance)
    }

    /// Returns the outcomes at the other replicas in the window.
    fn peers(&self, replica: u32, now: At) -> Part {
        let part = now.0.div_euclid(PART.0);
        let peers = self.each.iter().enumerate().filter(|(number, _)| *number != replica as usize);
        let fresh = peers.filter(|(_, one)| one.here && part - one.part < PARTS as i64);
        fresh.fold(NOTHING, |sum, (_, one)| sum.and(one.sum()))
    }

    /// Returns whether a silence exceeds the limit.
    pub(crate) fn is_too_long(&self, silence: Span, patience: Span) -> bool {
        let least = self.spec.silence_s;
        least > 0.0 && silence >= patience.max(Span::from_secs_f64(least))
    }

    /// Records that the replica's requests made no progress for this time. Returns whether the replica is ejected for
    /// it.
    pub fn silent(&mut self, replica: u32, silence: Span, patience: Span, now: At, chance: f64) -> bool {
        let stands = self.standing(replica, now);
        self.is_too_long(silence, patience)
            && matches!(stands, ReplicaAvailability::Ready | ReplicaAvailability::Trial)
            && self.eject(replica, true, now, chance)
    }

    /// Ejects a replica unless too many are ejected already. Returns whether the replica was ejected.
    fn eject(&mut self, replica: u32, silent: bool, now: At, chance: f64) -> bool {
        let out = |one: &ReplicaHealth| one.open.is_some_and(|open| now < open.until);
        let ejected = self.each.iter().filter(|one| out(one)).count();
        let most = ((self.spec.most_ejected * self.count() as f64) as usize).max(1);
        let one = &mut self.each[replica as usize];
        if ejected >= most {
            one.open = None;
            return false;
        }
        let longest = (self.spec.first_s * 2f64.powi(one.ejections.min(30) as i32)).min(self.spec.most_s);
        // An ejection lasts at least half of its maximum, because a very short one would have no effect.
        let lasts = Span::from_secs_f64(longest * (0.5 + 0.5 * chance));
        one.open = Some(Open { until: now + lasts, silent, trial: false });
        one.ejections += 1;
        (one.streak, one.refused, one.given_up) = (0, 0, 0);
        true
    }
}

impl ReplicaHealth {
    /// Sets a penalty for recent failures. Without it, a replica would attract requests by fast failures.
    fn penalise(&mut self, failures: u32, now: At) {
        let asked = Span(FAILED_PENALTY.0.saturating_mul(i64::from(failures))).min(LEAST_PENALTY);
        if self.left(now) < asked {
            self.penalty = (now, asked);
        }
    }

    /// Returns the penalty that remains at `now`; it decays exponentially.
    fn left(&self, now: At) -> Span {
        let (at, span) = self.penalty;
        if span == Span::ZERO {
            return span;
        }
        let halves = (now - at).as_secs_f64() / (0.5 * span.as_secs_f64());
        let left = span.as_secs_f64() * (-halves).exp();
        if left < 1e-3 { Span::ZERO } else { Span::from_secs_f64(left) }
    }

    /// Returns the current interval of the window, after clearing expired ones.
    fn count(&mut self, now: At) -> &mut Part {
        let part = now.0.div_euclid(PART.0);
        for passed in (self.part + 1..=part).take(PARTS) {
            self.parts[passed.rem_euclid(PARTS as i64) as usize] = NOTHING;
        }
        if part - self.part >= PARTS as i64 {
            self.parts = [NOTHING; PARTS];
        }
        self.part = self.part.max(part);
        &mut self.parts[self.part.rem_euclid(PARTS as i64) as usize]
    }

    fn sum(&self) -> Part {
        self.parts.iter().fold(NOTHING, |sum, part| sum.and(*part))
    }
}

impl Part {
    fn and(self, other: Part) -> Part {
        Part {
            worked: self.worked + other.worked,
            failed: self.failed + other.failed,
            refused: self.refused + other.refused,
        }
    }
}
