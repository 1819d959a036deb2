//! Which replicas may get a request: those that are not broken, whatever they refuse.
//!
//! Three things that others mix up are kept apart. A replica that *sheds* (429, or 503 with `Retry-After`) works: it gets a penalty in
//! seconds that decays, and stays the choice where all others are worse. A replica that *fails* (no connection, reset, 5xx of its own) is
//! ejected by a breaker, for a time that doubles, and comes back by one request at a time. A replica that is *silent* (streams run, and none had
//! a token for long) is ejected like one that fails. Ejected is at most a share of the pool, and where less than half of it would be left, all of it is used:
//! if everything looks broken, the one who looks is the likelier culprit.

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
    /// It was answered; a refusal of a client's own mistake is an answer.
    Worked,
    /// It was refused for want of room; come back after this long.
    Shed(Option<Span>),
    /// The replica failed.
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

#[derive(Clone, Debug)]
struct ReplicaHealth {
    /// Is there a replica of this number?
    here: bool,
    up: bool,
    draining: bool,
    /// Failures since the last success.
    streak: u32,
    parts: [(u32, u32); PARTS],
    part: i64,
    open: Option<Open>,
    /// Ejections since it last worked for good.
    ejections: u32,
    penalty: (At, Span),
}

/// One of which nothing is known.
const FRESH: ReplicaHealth = ReplicaHealth {
    here: true,
    up: false,
    draining: false,
    streak: 0,
    parts: [(0, 0); PARTS],
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

/// See the module.
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
        if up && !one.up {
            // A process that came back is a new one.
            one.streak = 0;
            one.parts = [(0, 0); PARTS];
            one.open = None;
        }
        one.up = up;
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

    /// Where a replica stands.
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
        let (at, span) = self.each[replica as usize].penalty;
        if span == Span::ZERO {
            return span;
        }
        let halves = (now - at).as_secs_f64() / (0.5 * span.as_secs_f64());
        let left = span.as_secs_f64() * (-halves).exp();
        if left < 1e-3 { Span::ZERO } else { Span::from_secs_f64(left) }
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
        usable.clear();
        usable.extend((0..self.each.len() as u32).filter(|replica| self.answers(*replica)));
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
        let failed = match verdict {
            ReplicaOutcome::Worked => false,
            ReplicaOutcome::Failed => true,
            ReplicaOutcome::Shed(after) => {
                let asked = after.unwrap_or(LEAST_PENALTY).clamp(LEAST_PENALTY, MOST_PENALTY);
                let one = &mut self.each[replica as usize];
                one.penalty = (now, asked);
                // It answered, so it is no worse than before; whether it computes is still to be shown.
                return self.untold(replica);
            }
        };
        let spec = self.spec;
        let one = &mut self.each[replica as usize];
        one.count(now, failed);
        if !failed {
            one.streak = 0;
            if one.open.take().is_some() {
                one.parts = [(0, 0); PARTS];
            }
            if one.successes_in_window() >= spec.samples {
                one.ejections = 0;
            }
            return;
        }
        one.streak += 1;
        let (all, bad) = one.parts.iter().fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
        let share = 1.0 - f64::from(bad) / f64::from(all.max(1));
        let trial = one.open.is_some_and(|open| now >= open.until);
        let broken =
            trial || one.streak >= spec.consecutive || all >= spec.samples && share < spec.success_share;
        if broken && one.open.is_none_or(|open| now >= open.until) {
            self.eject(replica, false, now, chance);
        }
    }

    /// Streams run on this replica, and none of them moved for so long. True if it is ejected for that now.
    pub fn silent(&mut self, replica: u32, for_: Span, patience: Span, now: At, chance: f64) -> bool {
        let least = self.spec.silence_s;
        if least == 0.0 || for_ < patience.max(Span::from_secs_f64(least)) {
            return false;
        }
        let stands = self.standing(replica, now);
        matches!(stands, Standing::Ready | Standing::Trial) && self.eject(replica, true, now, chance)
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
        one.streak = 0;
        true
    }
}

impl ReplicaHealth {
    fn count(&mut self, now: At, failed: bool) {
        let part = now.0.div_euclid(PART.0);
        for passed in (self.part + 1..=part).take(PARTS) {
            self.parts[passed.rem_euclid(PARTS as i64) as usize] = (0, 0);
        }
        if part - self.part >= PARTS as i64 {
            self.parts = [(0, 0); PARTS];
        }
        self.part = self.part.max(part);
        let place = &mut self.parts[self.part.rem_euclid(PARTS as i64) as usize];
        place.0 += 1;
        place.1 += u32::from(failed);
    }

    fn successes_in_window(&self) -> u32 {
        self.parts.iter().map(|(all, bad)| all - bad).sum()
    }
}
