//! The rendezvous of shards. Each shard reports its presence and its command; shard 0 announces the start or an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_client::clock::realtime_ns;
use plimsoll_client::{Clock, Control};
use plimsoll_model::{Shard, Span};
use plimsoll_report::figure::counted;
use plimsoll_workload::{AcceptedFields, Scenario};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Levels, ShardAgreement, ShardRequest, StartBy, difference, stopped};
use crate::exit::Stop;
use crate::place::ShardStore;
use crate::screen::Screen;

/// Facts of the target for the manifest.
pub type TargetFacts = BTreeMap<String, Option<String>>;

/// Time from shard 0's announcement to the start.
/// In it the other shards read the announcement, draw the schedule, make their folders and open connections.
const NOTICE: Span = Span(3_000_000_000);

/// File of the start's announcement.
const START: &str = "rendezvous/start.json";

fn ready_name(index: u32) -> String {
    format!("rendezvous/ready-{index}.json")
}

/// The presence of a shard: `ready-<number>.json`.
#[derive(Serialize, Deserialize)]
struct Ready {
    tool: String,
    /// Command of the shard: `run`, `sweep` or `gate`.
    command: String,
    of: u32,
    scenario: Value,
    /// Random number of this process, so that no other process writes an identical file.
    by: u64,
}

/// The announcement in `start.json`, written once by shard 0.
#[derive(Serialize, Deserialize)]
enum Word {
    Start(StartMessage),
    Refused(String),
}

/// The values that shard 0 passes to the other shards.
#[derive(Serialize, Deserialize, Debug)]
struct StartMessage {
    start_unix_ns: i64,
    nonce: u64,
    words_per_token: f64,
    template_tokens: u32,
    fields: AcceptedFields,
    facts: TargetFacts,
}

impl ShardRequest {
    /// Agrees with the other shards.
    /// `calibrate` measures the target's tokens per word. If the shards meet, one shard calls it for all.
    pub fn agree(
        &self,
        scenario: &mut Scenario,
        facts: TargetFacts,
        (clock, control, screen): (Clock, &Control, &mut Screen),
        calibrate: impl FnOnce(&mut Scenario, TargetFacts, &mut Screen) -> Result<TargetFacts, Stop>,
    ) -> Result<(TargetFacts, ShardAgreement), Stop> {
        let (place, patience) = match &self.start {
            StartBy::Time(at) => {
                let facts = calibrate(scenario, facts, screen)?;
                return Ok((facts, self.agreed(clock, *at)));
            }
            StartBy::Meeting(place, patience) => (place, *patience),
        };
        let table = Table { asked: self, place: &**place, until: clock.now() + patience, clock, control };
        let (facts, mut agreed) = match self.shard.index {
            0 => table.lead(scenario, facts, screen, calibrate),
            _ => table.follow(scenario, facts, screen),
        }?;
        if self.command != "run" {
            agreed.levels = Some(Levels::new((Arc::clone(place), self.shard), patience, &agreed));
        }
        Ok((facts, agreed))
    }

    fn ready(&self, scenario: &Scenario) -> Ready {
        let mut scenario = scenario.clone();
        if !self.nonce_is_said {
            scenario.nonce = None;
        }
        let tool = env!("CARGO_PKG_VERSION").to_owned();
        Ready {
            tool,
            command: self.command.into(),
            of: self.shard.of,
            scenario: serde_json::to_value(&scenario).unwrap_or_default(),
            by: crate::measure::random(),
        }
    }
}

/// One shard at the rendezvous.
struct Table<'a> {
    asked: &'a ShardRequest,
    place: &'a dyn ShardStore,
    until: plimsoll_model::At,
    clock: Clock,
    control: &'a Control,
}

impl Table<'_> {
    fn lead(
        &self,
        scenario: &mut Scenario,
        facts: TargetFacts,
        screen: &mut Screen,
        calibrate: impl FnOnce(&mut Scenario, TargetFacts, &mut Screen) -> Result<TargetFacts, Stop>,
    ) -> Result<(TargetFacts, ShardAgreement), Stop> {
        let own = self.asked.ready(scenario);
        self.arrive(&own)?;
        let checked = calibrate(scenario, facts, screen).and_then(|facts| {
            let others = counted(u64::from(own.of - 1), "other shard");
            screen.say(&format!("waiting for {others} at {}", self.place.name()));
            for index in 1..own.of {
                let other: Ready = self
                    .wait_for(&ready_name(index), || format!("shard {index}/{} did not connect", own.of))?;
                alike(&own, &other, index)?;
            }
            Ok(facts)
        });
        let facts = match checked {
            Ok(facts) => facts,
            Err(stop) => {
                // The error is announced, because the other shards must not wait for a start that does not come.
                let _ = self.say(&Word::Refused(stop.line.clone()));
                return Err(stop);
            }
        };
        if !self.asked.nonce_is_said {
            scenario.nonce = Some(crate::measure::random());
        }
        let told = StartMessage {
            start_unix_ns: realtime_ns() + NOTICE.0,
            nonce: scenario.nonce.unwrap_or_default(),
            words_per_token: scenario.prompts.words_per_token,
            template_tokens: scenario.prompts.template_tokens,
            fields: scenario.target.fields(),
            facts: facts.clone(),
        };
        let start = told.start_unix_ns;
        if !self.say(&Word::Start(told))? {
            return Err(self.been_here());
        }
        Ok((facts, self.asked.agreed(self.clock, start)))
    }

    fn follow(
        &self,
        scenario: &mut Scenario,
        facts: TargetFacts,
        screen: &mut Screen,
    ) -> Result<(TargetFacts, ShardAgreement), Stop> {
        let Shard { index, of } = self.asked.shard;
        screen.say(&format!("waiting for shard 0/{of} at {}", self.place.name()));
        let _: Ready = self.wait_for(&ready_name(0), || format!("shard 0/{of} did not connect"))?;
        self.arrive(&self.asked.ready(scenario))?;
        let told = match self.wait_for(START, || format!("shard 0/{of} gave no start"))? {
            Word::Start(told) => told,
            Word::Refused(why) => return Err(Stop::usage(format!("shard {index}/{of}: no start: {why}"))),
        };
        scenario.nonce = Some(told.nonce);
        scenario.prompts.words_per_token = told.words_per_token;
        scenario.prompts.template_tokens = told.template_tokens;
        scenario.target.take_fields(told.fields);
        let mut all = facts;
        all.extend(told.facts);
        Ok((all, self.asked.agreed(self.clock, told.start_unix_ns)))
    }

    /// Registers this shard. Refuses a number that is registered, because its part would be sent twice.
    fn arrive(&self, ready: &Ready) -> Result<(), Stop> {
        let name = ready_name(self.asked.shard.index);
        let bytes = serde_json::to_vec_pretty(ready).unwrap_or_default();
        if self.place.put_new(&name, &bytes)? { Ok(()) } else { Err(self.been_here()) }
    }

    fn been_here(&self) -> Stop {
        let (shard, place) = (self.asked.shard, self.place.name());
        Stop::usage(format!(
            "--shard {shard}: has already used {place}; name a new place, because no request may be sent twice"
        ))
    }

    fn say(&self, word: &Word) -> Result<bool, Stop> {
        self.place.put_new(START, &serde_json::to_vec_pretty(word).unwrap_or_default())
    }

    fn wait_for<T: DeserializeOwned>(&self, name: &str, missing: impl Fn() -> String) -> Result<T, Stop> {
        let over = || self.control.stops() > 0 || self.clock.now() > self.until;
        match wait_for(self.place, name, over)? {
            Some(word) => Ok(word),
            None if self.control.stops() > 0 => Err(stopped()),
            None => {
                let place = self.place.name();
                Err(Stop::invalid(format!("{} to {place} in time (--shard-wait)", missing())))
            }
        }
    }
}

/// Waits for a file of the rendezvous; `None` if it did not appear in time.
pub(super) fn wait_for<T: DeserializeOwned>(
    place: &dyn ShardStore,
    name: &str,
    over: impl Fn() -> bool,
) -> Result<Option<T>, Stop> {
    loop {
        if let Some(bytes) = place.get(name)? {
            return serde_json::from_slice(&bytes).map(Some).map_err(|e| {
                Stop::usage(format!("--rendezvous {}: {name} is none of ours: {e}", place.name()))
            });
        }
        if over() {
            return Ok(None);
        }
        std::thread::sleep(place.poll());
    }
}

/// Checks that another shard has the same command and the same settings.
fn alike(own: &Ready, other: &Ready, index: u32) -> Result<(), Stop> {
    let wrong = |what: &str, own: &str, other: &str| {
        Err(Stop::usage(format!(
            "shard {index} was started with another {what}: {other}, where shard 0 has {own}"
        )))
    };
    if own.tool != other.tool {
        return wrong("version of plimsoll", &own.tool, &other.tool);
    }
    if own.command != other.command {
        return wrong("command", &own.command, &other.command);
    }
    if own.of != other.of {
        return wrong("number of shards", &own.of.to_string(), &other.of.to_string());
    }
    match difference(&own.scenario, &other.scenario, "") {
        Some((path, own, other)) => wrong(&path, &own, &other),
        None => Ok(()),
    }
}
