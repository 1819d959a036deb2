//! Which replicas may get a request: those that are not broken, whatever they refuse.
//!
//! Four things that others mix up are kept apart. A replica that *sheds* (429, or 503 with `Retry-After`) works: it gets a penalty in
//! seconds that decays, and stays the choice where all others are worse. A replica that *fails* (no connection, reset, 5xx of its own, an answer
//! of no use) gets a penalty too, because failures are fast and an empty queue attracts requests; it is
//! ejected by a breaker, for a time that doubles, and comes back by one request at a time. A replica that *refuses* (4xx) fails where its peers answer
//! ([`Health::compared`], and by their shares where nothing was compared); where they refuse alike the client is wrong. A replica that is *silent* (requests
//! run, and nothing came of any for long) is ejected like one that fails. Ejected is at most a share of the pool, and where less than half of it would be left, all of it is used:
//! if everything looks broken, the one who looks is the likelier culprit. So are replicas whose health pages are slow, where no replica looks better.

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// When a replica is ejected.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerSpec {
    /// Failures one after another.
    pub consecutive: u32,
    /// Successes as a share of the last 20 s' requests, below which it is ejected.
    pub success_share: f64,
    /// Requests in the last 20 s from which that share counts.
    pub samples: u32,
    /// First ejection, seconds; the next ones last twice as long each, to [`BreakerSpec::most_s`].
    pub first_s: f64,
    /// Longest ejection, seconds.
    pub most_s: f64,
    /// Most replicas ejected at once, as a share; one may be always.
    pub most_ejected: f64,
    /// Silence after which a replica with running streams is ejected, seconds, where its steps are not slower still; 0 = never.
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
    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// A number is outside what its field means.
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

/// How a request to a replica ended, as far as its health goes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ReplicaOutcome {
    Worked,
    /// It was refused for want of room; come back after this long.
    Shed(Option<Span>),
    /// It was answered, which says nothing of what the replica computes: a page, or an object that another one keeps.
    Neutral,
    /// It was refused as the client's own mistake. The replica is at fault where its peers answer such requests.
    Refused,
    Failed,
}

/// Whether a replica may get requests, and why not.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It may.
    Ready,
    /// It does not answer: connections fail, or its health page says so.
    Down,
    /// Ejected for failures.
    Ejected,
    /// Ejected for silence while streams run.
    Silent,
    /// Its ejection is over: one request shows whether it works.
    Trial,
    /// It ends what it has.
    Draining,
}

/// The window that [`BreakerSpec::success_share`] looks at, in as many parts.
const PARTS: usize = 10;
const PART: Span = Span::from_secs(2);
/// The shortest penalty for having shed.
const LEAST_PENALTY: Span = Span::from_millis(500);
/// The longest that is believed: a `Retry-After` of an hour must not keep a replica empty for an hour.
const MOST_PENALTY: Span = Span::from_secs(60);
/// Below this share of usable replicas all are used.
const PANIC: f64 = 0.5;
/// Refusals one after another from which another replica is asked whether it refuses alike; twice as many after each time that it did, so many times.
const DOUBTED: u32 = 2;
const DOUBLINGS: u32 = 4;
/// Refusals one after another from which a replica gets a penalty: mistakes of clients come in pairs.
const PENALISED: u32 = 3;
/// The penalty for each failure of late from the third on.
const FAILED_PENALTY: Span = Span::from_millis(10);
/// Failures, or requests that clients give up, in a row that are enough where the peers answered so many, and by the share that they fail it is no chance.
const FEW: u32 = 3;
const FEW_BY_CHANCE: f64 = 1e-3;
/// Where nothing was compared, a replica refuses alone if it refused so many in a row, its peers answered as many, and by the share that they refuse so many in a
/// row have no more than this chance. That chance is larger for a replica that was ejected.
const ALONE: u32 = 10;
const BY_CHANCE: f64 = 1e-4;
const BY_CHANCE_ON_TRIAL: f64 = 0.1;

#[derive(Clone, Debug)]
struct ReplicaHealth {
    /// Is there a replica of this number?
    here: bool,
    up: bool,
    /// Not up, because its health page did not come in time: it may be busy.
    slow: bool,
    draining: bool,
    /// Failures since the last success.
    streak: u32,
    /// Refusals since then that no peer was seen to share.
    refused: u32,
    /// Times that peers were seen to refuse alike.
    shared: u32,
    /// Requests since the last success that clients gave up without a sign of an answer.
    given_up: u32,
    parts: [Part; PARTS],
    part: i64,
    open: Option<Open>,
    /// Ejections since it last worked for good.
    ejections: u32,
    penalty: (At, Span),
}

/// Requests that ended in a part of the window.
#[derive(Copy, Clone, Default, Debug)]
struct Part {
    worked: u32,
    failed: u32,
    refused: u32,
}

const NOTHING: Part = Part { worked: 0, failed: 0, refused: 0 };

/// One of which nothing is known.
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

/// An ejection.
#[derive(Copy, Clone, Debug)]
struct Open {
    until: At,
    silent: bool,
    /// Is the one request on its way that shows whether it works?
    trial: bool,
}

#[derive(Clone, Debug)]
pub struct Health {
    spec: BreakerSpec,
    each: Vec<ReplicaHealth>,
}

impl Health {
    /// So many replicas, of which nothing is known: they are down until somebody says that they are up.
    pub fn new(spec: &BreakerSpec, replicas: usize) -> Health {
        Health { spec: *spec, each: vec![FRESH; replicas] }
    }

    /// A replica joins, down: the first number that is free is its.
    pub fn join(&mut self) -> u32 {
        let free = self.each.iter().position(|one| !one.here).unwrap_or(self.each.len());
        match self.each.get_mut(free) {
            Some(one) => *one = FRESH,
            None => self.each.push(FRESH),
        }
        free as u32
    }

    /// A replica is not there any more, and its number is free.
    pub fn part(&mut self, replica: u32) {
        self.each[replica as usize] = ReplicaHealth { here: false, ..FRESH };
    }

    /// Replicas that there are.
    pub fn count(&self) -> usize {
        self.each.iter().filter(|one| one.here).count()
    }

    /// A replica answers on its health page, or does not, or a connection to it could not be made.
    pub fn set_up(&mut self, replica: u32, up: bool) {
        let one = &mut self.each[replica as usize];
        if up && !one.up && !one.slow {
            // A process that came back is a new one.
            *one = ReplicaHealth {
                draining: one.draining,
                ejections: one.ejections,
                penalty: one.penalty,
                ..FRESH
            };
        }
        (one.up, one.slow) = (up, false);
    }

    /// A replica's health page does not come in time. It gets requests only where no replica is up.
    pub fn set_slow(&mut self, replica: u32) {
        let one = &mut self.each[replica as usize];
        (one.up, one.slow) = (false, true);
    }

    /// A replica is to end what it has, or not any more.
    pub fn set_draining(&mut self, replica: u32, draining: bool) {
        self.each[replica as usize].draining = draining;
    }

    /// Does it answer at all?
    pub fn is_up(&self, replica: u32) -> bool {
        self.each[replica as usize].up
    }

    /// Does it answer, and is it to go on?
    pub fn answers(&self, replica: u32) -> bool {
        let one = &self.each[replica as usize];
        one.up && !one.draining
    }

    /// Does it answer neither on its health page nor on its port?
    pub fn is_gone(&self, replica: u32) -> bool {
        let one = &self.each[replica as usize];
        !one.up && !one.slow
    }

    pub fn standing(&self, replica: u32, now: At) -> Standing {
        let one = &self.each[replica as usize];
        match one.open {
            _ if one.draining => Standing::Draining,
            _ if !one.up => Standing::Down,
            None => Standing::Ready,
            Some(open) if now >= open.until => Standing::Trial,
            Some(open) if open.silent => Standing::Silent,
            Some(_) => Standing::Ejected,
        }
    }

    /// What is laid on top of a replica's cost for having shed: what it asked for, decaying with half of it as time constant.
    pub fn penalty(&self, replica: u32, now: At) -> Span {
        self.each[replica as usize].left(now)
    }

    /// Puts into `usable` the replicas that may get a request now, in order of their names.
    pub fn usable(&self, now: At, usable: &mut Vec<u32>) {
        usable.clear();
        let (mut up, mut trials) = (0usize, 0usize);
        for replica in 0..self.each.len() as u32 {
            match self.standing(replica, now) {
                Standing::Ready => usable.push(replica),
                Standing::Trial if !self.each[replica as usize].open.is_some_and(|open| open.trial) => {
                    usable.push(replica);
                    trials += 1;
                }
                Standing::Down | Standing::Draining => continue,
                _ => {}
            }
            up += 1;
        }
        if (usable.len() - trials) as f64 >= PANIC * up as f64 && !usable.is_empty() {
            return;
        }
        self.last_resort(usable, |_| true);
    }

    /// Puts into `usable` those that `may` get a request and answer, whatever else is known of them; where none does, those whose health page is slow.
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

    /// A request goes to this replica.
    pub fn sent(&mut self, replica: u32, now: At) {
        if let Some(open) = self.each[replica as usize].open.as_mut().filter(|open| now >= open.until) {
            open.trial = true;
        }
    }

    /// A request that was sent ended without saying anything of its replica: its client went away.
    pub fn untold(&mut self, replica: u32) {
        if let Some(open) = &mut self.each[replica as usize].open {
            open.trial = false;
        }
    }

    /// A request that was sent ended. `chance`: a draw from 0 to 1, by which ejections end apart.
    pub fn ended(&mut self, replica: u32, verdict: ReplicaOutcome, now: At, chance: f64) {
        match verdict {
            ReplicaOutcome::Worked => self.worked(replica, now),
            ReplicaOutcome::Neutral => self.untold(replica),
            ReplicaOutcome::Failed => self.failed(replica, now, chance),
            ReplicaOutcome::Refused => self.refused(replica, now, chance),
            ReplicaOutcome::Shed(after) => {
                let asked = after.unwrap_or(LEAST_PENALTY).clamp(LEAST_PENALTY, MOST_PENALTY);
                self.each[replica as usize].penalty = (now, asked);
                // It answered, so it is no worse than before; whether it computes is still to be shown.
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
        // Not before the breaker may be sure: it has to see a few.
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

    /// Do its peers answer such requests, by the shares of late?
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

    /// Another replica was asked the same as one that refused it: it was `alike`, or it answered.
    pub fn compared(&mut self, replica: u32, alike: bool, now: At, chance: f64) {
        let one = &mut self.each[replica as usize];
        if alike {
            (one.refused, one.shared) = (0, one.shared + 1);
        } else {
            (one.refused, one.shared) = (one.refused.saturating_sub(1), 0);
            self.failed(replica, now, chance);
        }
    }

    /// Is a refusal, or a failure, of this replica's to be held against another one's answer?
    pub fn is_doubted(&self, replica: u32) -> bool {
        let one = &self.each[replica as usize];
        one.open.is_some() || one.streak > 0 || one.refused + 1 >= DOUBTED << one.shared.min(DOUBLINGS)
    }

    /// A client went away from a request that it had waited for longer than streams may be silent, and nothing had come. True if the replica is ejected for that now.
    pub fn given_up(&mut self, replica: u32, now: At, chance: f64) -> bool {
        let one = &mut self.each[replica as usize];
        one.given_up += 1;
        let is_silent =
            self.spec.silence_s > 0.0 && one.given_up >= FEW && self.peers(replica, now).worked >= ALONE;
        let stands = self.standing(replica, now);
        is_silent
            && matches!(stands, Standing::Ready | Standing::Trial)
            && self.eject(replica, true, now, chance)
    }

    /// What ended at the other replicas in the window.
    fn peers(&self, replica: u32, now: At) -> Part {
        let part = now.0.div_euclid(PART.0);
        let peers = self.each.iter().enumerate().filter(|(number, _)| *number != replica as usize);
        let fresh = peers.filter(|(_, one)| one.here && part - one.part < PARTS as i64);
        fresh.fold(NOTHING, |sum, (_, one)| sum.and(one.sum()))
    }

    /// Is silence for so long more than may be?
    pub(crate) fn is_too_long(&self, silence: Span, patience: Span) -> bool {
        let least = self.spec.silence_s;
        least > 0.0 && silence >= patience.max(Span::from_secs_f64(least))
    }

    /// Requests run on this replica, and nothing came of them for so long. True if it is ejected for that now.
    pub fn silent(&mut self, replica: u32, silence: Span, patience: Span, now: At, chance: f64) -> bool {
        let stands = self.standing(replica, now);
        self.is_too_long(silence, patience)
            && matches!(stands, Standing::Ready | Standing::Trial)
            && self.eject(replica, true, now, chance)
    }

    /// Ejects a replica, unless too many are.
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
        // At least half of it: an ejection of no time would be none.
        let lasts = Span::from_secs_f64(longest * (0.5 + 0.5 * chance));
        one.open = Some(Open { until: now + lasts, silent, trial: false });
        one.ejections += 1;
        (one.streak, one.refused, one.given_up) = (0, 0, 0);
        true
    }
}

impl ReplicaHealth {
    /// It would get more requests for failing, because failures are fast. `failures`: of late.
    fn penalise(&mut self, failures: u32, now: At) {
        let asked = Span(FAILED_PENALTY.0.saturating_mul(i64::from(failures))).min(LEAST_PENALTY);
        if self.left(now) < asked {
            self.penalty = (now, asked);
        }
    }

    /// What is left of the penalty.
    fn left(&self, now: At) -> Span {
        let (at, span) = self.penalty;
        if span == Span::ZERO {
            return span;
        }
        let halves = (now - at).as_secs_f64() / (0.5 * span.as_secs_f64());
        let left = span.as_secs_f64() * (-halves).exp();
        if left < 1e-3 { Span::ZERO } else { Span::from_secs_f64(left) }
    }

    /// The part of the window that it is now.
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
