//! Coordinates the levels of a search on several machines.
//!
//! Shard 0 announces each level and its start. Each other shard uploads its part of the rows, and shard 0 continues when it
//! has all parts.
//!
//! A planner on every machine was rejected: all would need identical rows to decide alike, so the rows have to travel anyway.
//! Announcements and parts are files in the place where the shards met, and no file is ever replaced. Every wait is
//! bounded. A shard that ends in order writes a file; a shard that died silently is missed after `--shard-wait`.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_client::clock::realtime_ns;
use plimsoll_client::clock_error::wall_clock_error_ns;
use plimsoll_client::{Clock, Control};
use plimsoll_model::{At, Manifest, RunState, Shard, ShardPart, Span};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::meet::wait_for;
use super::{ShardAgreement, ShardLevel, larger_error};
use crate::exit::{Exit, Stop};
use crate::place::ShardStore;

/// Time from the announcement to the start of a level, without the time to read and plan; connections are opened in it.
const NOTICE: Span = Span(1_000_000_000);

/// Length of a wait after which it is reported on the screen.
const QUIET: Span = Span(3_000_000_000);

/// File with which shard 0 reports that its user stopped it; the other shards poll for it.
const STOP: &str = "levels/stop";

/// An announcement of shard 0.
#[derive(Serialize, Deserialize)]
enum Word {
    Level {
        id: u32,
        start_unix_ns: i64,
        step: Value,
    },
    Over,
    /// The search failed, with its reason; there are no further levels.
    Failed(String),
}

/// The levels as seen by one shard.
pub struct Levels {
    place: Arc<dyn ShardStore>,
    shard: Shard,
    patience: Span,
    /// Largest error of this clock so far in ns; `None` if it was unknown at any time.
    worst_error_ns: Option<i64>,
    words: u32,
    over: bool,
    /// Shard 0 only: the last report of every shard, by its number.
    seen: BTreeMap<u32, ShardPart>,
}

/// The next task of a shard other than shard 0.
pub enum NextLevel<T> {
    Step {
        /// Number of the level, the same on all shards.
        id: u32,
        step: T,
    },
    /// The search has ended and there is no further level.
    Over,
}

/// The received parts of a level.
pub struct LevelParts {
    pub parts: Vec<ShardLevel>,
    /// Reasons, one per missing shard.
    pub missing: Vec<String>,
}

fn word_name(number: u32) -> String {
    format!("levels/{number:04}.json")
}

impl Levels {
    pub(super) fn new(
        (place, shard): (Arc<dyn ShardStore>, Shard),
        patience: Span,
        agreed: &ShardAgreement,
    ) -> Levels {
        let mut seen = BTreeMap::new();
        if shard.index == 0 {
            // The parts have no schedule hash here, because each level has its own schedule.
            let part = agreed.part(0, String::new());
            seen = (0..shard.of)
                .map(|index| {
                    let shard = Shard { index, ..shard };
                    (
                        index,
                        ShardPart {
                            shard,
                            clock_error_ns: part.clock_error_ns.filter(|_| index == 0),
                            progress: RunState::Complete,
                            ..part.clone()
                        },
                    )
                })
                .collect();
        }
        let worst_error_ns = agreed.clock_error_ns;
        Levels { place, shard, patience, worst_error_ns, words: 0, over: false, seen }
    }

    /// Returns whether this shard announces the levels (shard 0).
    pub fn leads(&self) -> bool {
        self.shard.index == 0
    }

    /// Announces a level to the other shards and returns its start on this run's time axis.
    /// `took` is the time that the schedule took here, because the other shards draw it after they read the announcement.
    pub fn say(&mut self, id: u32, step: &impl Serialize, (clock, took): (Clock, Span)) -> Result<At, Stop> {
        let poll = Span::from_secs_f64(4.0 * self.place.poll().as_secs_f64());
        let start_unix_ns = realtime_ns() + NOTICE.0 + poll.0 + 3 * took.0;
        let step = serde_json::to_value(step).map_err(|e| Stop::invalid(e.to_string()))?;
        self.put(&Word::Level { id, start_unix_ns, step })?;
        Ok(clock.at_unix(start_unix_ns))
    }

    fn put(&mut self, word: &Word) -> Result<(), Stop> {
        let bytes = serde_json::to_vec_pretty(word).unwrap_or_default();
        let name = word_name(self.words);
        self.words += 1;
        match self.place.put_new(&name, &bytes)? {
            true => Ok(()),
            false => Err(Stop::usage(format!(
                "{}: {name} is there already; a new search needs a new place",
                self.place.name()
            ))),
        }
    }

    /// Waits for the other shards' parts of the last announced level, which ends by `latest`.
    pub fn take(
        &mut self,
        of: u32,
        latest: At,
        (clock, control): (Clock, &Control),
        waits: &mut dyn FnMut(&str),
    ) -> Result<LevelParts, Stop> {
        if control.stops() > 0 {
            // The other shards are stopped too, because no one watches the target any more.
            let _ = self.place.put_new(STOP, format!("{:016x}", crate::measure::random()).as_bytes());
        }
        let begun = clock.now();
        let until = begun.max(latest) + self.patience;
        let mut taken = LevelParts { parts: Vec::new(), missing: Vec::new() };
        for index in 1..of {
            let shard = Shard { index, ..self.shard };
            let name = self.part_name(index);
            let mut told = false;
            let over = || {
                let now = clock.now();
                if !told && now > latest.max(begun) + QUIET {
                    told = true;
                    waits(&format!("waiting for the part of shard {shard} of this level"));
                }
                control.stops() > 1 || now > until
            };
            match self.take_one(index, &name, over)? {
                Ok(part) if part.level.is_none() => {
                    let why = match &part.shard.progress {
                        RunState::Partial { why } => why.clone(),
                        _ => format!("shard {shard} sent nothing"),
                    };
                    taken.missing.push(why);
                }
                Ok(part) => {
                    self.note(&part.shard);
                    taken.parts.push(part);
                }
                Err(why) => taken.missing.push(why),
            }
        }
        Ok(taken)
    }

    fn take_one(
        &self,
        index: u32,
        name: &str,
        mut over: impl FnMut() -> bool,
    ) -> Result<Result<ShardLevel, String>, Stop> {
        let shard = Shard { index, ..self.shard };
        loop {
            // The file of the leave is read before the part, because a shard writes its last part first.
            let gone = self.place.get(&self.gone_name(index))?;
            if let Some(bytes) = self.place.get(name)? {
                let part =
                    ShardLevel::read(&format!("{}/{name}", self.place.name().trim_end_matches('/')), &bytes)?;
                return Ok(Ok(part));
            }
            if let Some(why) = gone {
                return Ok(Err(format!("shard {shard}: {}", String::from_utf8_lossy(&why))));
            }
            if over() {
                return Ok(Err(format!("shard {shard} did not bring its part in time (--shard-wait)")));
            }
            std::thread::sleep(self.place.poll());
        }
    }

    fn part_name(&self, index: u32) -> String {
        format!("levels/{:04}/shard-{index}.log", self.words.saturating_sub(1))
    }

    fn gone_name(&self, index: u32) -> String {
        format!("levels/gone-{index}")
    }

    /// Records a part's report about its shard.
    fn note(&mut self, part: &ShardPart) {
        if let Some(known) = self.seen.get_mut(&part.shard.index) {
            // The first part has no earlier error.
            let before = if known.host.is_some() { known.clock_error_ns } else { part.clock_error_ns };
            known.host = part.host.clone();
            known.clock_error_ns = larger_error(before, part.clock_error_ns);
        }
    }

    /// Adds the arrivals and the lost rows of a level to each shard's record, with the reason of missing parts.
    pub fn owes(&mut self, lost: &[u64], arrivals: u64, missing: &[String]) {
        for part in self.seen.values_mut() {
            part.arrivals += arrivals;
            let owed = lost.get(part.shard.index as usize).copied().unwrap_or(0);
            part.lost += owed;
            let named = format!("shard {}", part.shard);
            if let Some(why) = missing.iter().find(|why| why.starts_with(&named)) {
                part.progress = RunState::Partial { why: why.clone() };
            }
        }
    }

    /// Waits for shard 0's next announcement, for at most the time that shard 0 waits for the slowest shard.
    pub fn next<T: DeserializeOwned>(
        &mut self,
        after: At,
        (clock, control): (Clock, &Control),
    ) -> Result<(NextLevel<T>, At), Stop> {
        let until = clock.now().max(after) + self.patience + self.patience;
        let over = || control.stops() > 0 || clock.now() > until;
        let word = wait_for::<Word>(&*self.place, &word_name(self.words), over)?;
        let shard = self.shard;
        let (id, start_unix_ns, step) = match word {
            Some(Word::Level { id, start_unix_ns, step }) => (id, start_unix_ns, step),
            Some(Word::Over) => {
                self.over = true;
                return Ok((NextLevel::Over, clock.now()));
            }
            Some(Word::Failed(why)) => {
                self.over = true;
                return Err(Stop::invalid(format!("shard {shard}: shard 0 ended early: {why}")));
            }
            None if control.stops() > 0 => {
                let line = format!("shard {shard}: stopped between two levels");
                return Err(Stop { exit: Exit::Interrupted, line });
            }
            None => {
                return Err(Stop::invalid(format!(
                    "shard {shard}: shard 0 announced no further level at {} in time (--shard-wait): it was lost",
                    self.place.name()
                )));
            }
        };
        self.words += 1;
        let step = serde_json::from_value(step).map_err(|e| {
            Stop::usage(format!("{}: {} is none of ours: {e}", self.place.name(), word_name(self.words - 1)))
        })?;
        Ok((NextLevel::Step { id, step }, clock.at_unix(start_unix_ns)))
    }

    /// Measures the current error of this clock in ns; `None` if it is unknown.
    pub fn clock_error_ns(&mut self) -> Option<i64> {
        let now = wall_clock_error_ns();
        self.worst_error_ns = larger_error(self.worst_error_ns, now);
        now
    }

    /// Returns the largest clock error of all levels in ns; `None` if it was unknown at any time.
    pub(super) fn worst_clock_error_ns(&self) -> Option<i64> {
        self.worst_error_ns
    }

    /// Uploads this shard's part of the level.
    pub fn bring(&mut self, part: &ShardLevel, manifest: &Manifest) -> Result<(), Stop> {
        let name = self.part_name(self.shard.index);
        match self.place.put_new(&name, &part.bytes(manifest))? {
            true => Ok(()),
            false => Err(Stop::usage(format!(
                "{}: {name} is there already: two processes are shard {}",
                self.place.name(),
                self.shard
            ))),
        }
    }

    /// Returns whether shard 0 was stopped. Polled while a level runs.
    pub fn is_stopped(&self) -> bool {
        self.place.get(STOP).is_ok_and(|found| found.is_some())
    }

    /// Completes the manifest of all shards after the search.
    pub(super) fn close(&mut self, manifest: &mut Manifest) {
        manifest.shard = None;
        if let Some(own) = self.seen.get_mut(&0) {
            own.host = Some(manifest.host.clone());
            own.clock_error_ns = self.worst_error_ns;
        }
        manifest.shards = self.seen.values().cloned().collect();
        self.over = self.put(&Word::Over).is_ok();
    }

    /// Reports once why this shard leaves before the search is over.
    pub fn leave(&mut self, why: &str) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let _ = match self.leads() {
            true => self.put(&Word::Failed(why.to_owned())).map(|()| true),
            false => self.place.put_new(&self.gone_name(self.shard.index), why.as_bytes()),
        };
    }
}

impl std::fmt::Debug for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "levels of shard {} at {}", self.shard, self.place.name())
    }
}

/// Reports the leave on every exit path, so that the other shards do not wait for this one.
impl Drop for Levels {
    fn drop(&mut self) {
        self.leave("it ended before the search did");
    }
}
