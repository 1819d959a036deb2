//! The meeting: each shard says that it is there and what it was asked, shard 0 says when all begin, or why not.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use plimsoll_client::peer_clock::{ClockServer, ClockWatch, address_towards, compare};
use plimsoll_client::{Clock, Control};
use plimsoll_model::{ClockOffset, Shard, Span};
use plimsoll_report::figure::counted;
use plimsoll_workload::{AcceptedFields, Scenario};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Agreed, Asked, EXCHANGES, Levels, StartBy, difference, stopped};
use crate::exit::Stop;
use crate::place::Place;
use crate::screen::Screen;

/// The facts of the target that go into the manifest.
pub type Facts = BTreeMap<String, Option<String>>;

/// From shard 0's word to the start: time for the others to see it, draw the schedule, make their folder and open their connections.
const NOTICE: Span = Span(3_000_000_000);

/// The last word's file.
const START: &str = "rendezvous/start.json";

fn ready_name(index: u32) -> String {
    format!("rendezvous/ready-{index}.json")
}

/// "I am here": `ready-<number>.json`.
#[derive(Serialize, Deserialize)]
struct Ready {
    tool: String,
    /// The command: `run`, `sweep`, `gate`.
    command: String,
    of: u32,
    scenario: Value,
    /// Of shard 0: where it tells the time.
    clock: Option<SocketAddr>,
    /// A number of this process alone: no other puts the same file.
    by: u64,
}

/// The last word: `start.json`. Shard 0 says it, of which there is one.
#[derive(Serialize, Deserialize)]
enum Word {
    /// All begin then.
    Start(Told),
    /// Nobody does.
    Refused(String),
}

/// What shard 0 tells the others.
#[derive(Serialize, Deserialize, Debug)]
struct Told {
    start_unix_ns: i64,
    nonce: u64,
    words_per_token: f64,
    template_tokens: u32,
    fields: AcceptedFields,
    facts: Facts,
}

impl Asked {
    /// Agrees with the others; `calibrate` asks the target what prompts need, and is called by one shard for all where they meet.
    pub fn agree(
        &self,
        scenario: &mut Scenario,
        facts: Facts,
        (clock, control, screen): (Clock, &Control, &mut Screen),
        calibrate: impl FnOnce(&mut Scenario, Facts, &mut Screen) -> Result<Facts, Stop>,
    ) -> Result<(Facts, Agreed), Stop> {
        let (place, patience) = match &self.start {
            StartBy::Time(at) => {
                let facts = calibrate(scenario, facts, screen)?;
                return Ok((facts, self.agreed(clock, *at, None)));
            }
            StartBy::Meeting(place, patience) => (place, *patience),
        };
        let table = Table { asked: self, place: &**place, until: clock.now() + patience, clock, control };
        let (facts, mut agreed) = match self.shard.index {
            0 => table.lead(scenario, facts, screen, calibrate),
            _ => table.follow(scenario, facts, screen),
        }?;
        if self.command != "run" {
            agreed.levels =
                Some(Levels::new((Arc::clone(place), self.shard), patience, self.clock, &mut agreed));
        }
        Ok((facts, agreed))
    }

    fn ready(&self, scenario: &Scenario, clock: Option<SocketAddr>) -> Ready {
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
            clock,
            by: crate::measure::random(),
        }
    }
}

/// One shard at the meeting.
struct Table<'a> {
    asked: &'a Asked,
    place: &'a dyn Place,
    until: plimsoll_model::At,
    clock: Clock,
    control: &'a Control,
}

impl Table<'_> {
    fn lead(
        &self,
        scenario: &mut Scenario,
        facts: Facts,
        screen: &mut Screen,
        calibrate: impl FnOnce(&mut Scenario, Facts, &mut Screen) -> Result<Facts, Stop>,
    ) -> Result<(Facts, Agreed), Stop> {
        let server = clock_server(&scenario.target.url, self.asked, screen);
        let own = self.asked.ready(scenario, server.as_ref().map(ClockServer::address));
        self.arrive(&own)?;
        let checked = calibrate(scenario, facts, screen).and_then(|facts| {
            let others = counted(u64::from(own.of - 1), "other shard");
            screen.say(&format!("waiting for {others} at {}", self.place.name()));
            for index in 1..own.of {
                let other: Ready =
                    self.wait_for(&ready_name(index), || format!("shard {index}/{} did not come", own.of))?;
                alike(&own, &other, index)?;
            }
            Ok(facts)
        });
        let facts = match checked {
            Ok(facts) => facts,
            Err(stop) => {
                // The others must not wait for a start that does not come.
                let _ = self.say(&Word::Refused(stop.line.clone()));
                return Err(stop);
            }
        };
        if !self.asked.nonce_is_said {
            scenario.nonce = Some(crate::measure::random());
        }
        let told = Told {
            start_unix_ns: self.asked.clock.now_ns() + NOTICE.0,
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
        let agreed = self.asked.agreed(self.clock, start, Some(ClockOffset::default()));
        Ok((facts, Agreed { _server: server, ..agreed }))
    }

    fn follow(
        &self,
        scenario: &mut Scenario,
        facts: Facts,
        screen: &mut Screen,
    ) -> Result<(Facts, Agreed), Stop> {
        let Shard { index, of } = self.asked.shard;
        screen.say(&format!("waiting for shard 0/{of} at {}", self.place.name()));
        let first: Ready = self.wait_for(&ready_name(0), || format!("shard 0/{of} did not come"))?;
        let seen = first.clock.and_then(|peer| {
            let seen = compare(peer, self.asked.clock, EXCHANGES).ok().flatten()?;
            Some((peer, seen))
        });
        if seen.is_none() {
            screen.say("shard 0 does not answer over UDP, so the clocks are not compared: the start is this machine's own clock's");
        }
        self.arrive(&Ready { clock: None, ..self.asked.ready(scenario, None) })?;
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
        let mut agreed = self.asked.agreed(self.clock, told.start_unix_ns, seen.map(|(_, seen)| seen));
        agreed.peer = seen.map(|(peer, _)| peer);
        if self.asked.command == "run" {
            agreed.watch = seen.and_then(|(peer, _)| ClockWatch::start(peer, self.asked.clock).ok());
        }
        Ok((all, agreed))
    }

    /// A number that has been here must not send again: its part would be on the target twice.
    fn arrive(&self, ready: &Ready) -> Result<(), Stop> {
        let name = ready_name(self.asked.shard.index);
        let bytes = serde_json::to_vec_pretty(ready).unwrap_or_default();
        if self.place.put_new(&name, &bytes)? { Ok(()) } else { Err(self.been_here()) }
    }

    fn been_here(&self) -> Stop {
        let (shard, place) = (self.asked.shard, self.place.name());
        Stop::usage(format!(
            "--shard {shard}: has been at {place} before, and what it sent must not be sent twice; a new run needs a new place"
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

/// Waits for a file of ours; `None` = it was not there when nobody would wait any longer.
pub(super) fn wait_for<T: DeserializeOwned>(
    place: &dyn Place,
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

/// Was this shard asked the same?
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

/// Tells the time on the address that leads to the target: shards that send to one target see each other there.
fn clock_server(url: &str, asked: &Asked, screen: &mut Screen) -> Option<ClockServer> {
    let started = target_address(url)
        .ok_or_else(|| std::io::Error::other("the target has no address"))
        .and_then(address_towards)
        .and_then(|address| ClockServer::start(address, asked.clock));
    match started {
        Ok(server) => Some(server),
        Err(e) => {
            screen.say(&format!("the shards' clocks can't be compared: {e}"));
            None
        }
    }
}

fn target_address(url: &str) -> Option<SocketAddr> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?']).next()?;
    let host = host.rsplit('@').next()?;
    let port = if scheme == "https" { 443 } else { 80 };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let named = if has_port { host.to_owned() } else { format!("{host}:{port}") };
    named.to_socket_addrs().ok()?.next()
}
