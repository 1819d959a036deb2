//! The target: the first look at it, and a client that is ready to send to it.

use std::collections::BTreeMap;

use plimsoll_client::{Client, ClientConfig, Clock, probe::ProbeError};
use plimsoll_model::Protocol;
use plimsoll_workload::Scenario;

use crate::exit::Stop;
use crate::flags::ClientArgs;
use crate::screen::Screen;
use crate::tensors;

/// The first look: is it there, is it what it should be, which models does it list? Fills in the model if none is asked
/// for: the only one, or of several the one asked for before.
pub fn look(
    scenario: &mut Scenario,
    before: Option<&str>,
    screen: &mut Screen,
) -> Result<BTreeMap<String, Option<String>>, Stop> {
    let probed = plimsoll_client::probe::probe(&scenario.target, None).map_err(|e| match e {
        ProbeError::Target(_) => Stop::usage(e.to_string()),
        other => Stop::unreachable(other.to_string()),
    })?;
    for note in &probed.notes {
        screen.say(note);
    }
    let unlisted = scenario.classes.iter().filter_map(|class| class.model.as_ref());
    for name in unlisted.filter(|name| !probed.models.is_empty() && !probed.models.contains(name)) {
        screen.say(&format!("the endpoint does not list {name}, which a class asks for"));
    }
    let mut facts = probed.fingerprint.facts;
    if scenario.target.model.is_none() && scenario.target.protocol != Protocol::Http {
        let bases: Vec<&String> = probed.models.iter().filter(|m| !probed.adapters.contains(m)).collect();
        match bases.as_slice() {
            [only] => scenario.target.model = Some((*only).clone()),
            [] => {
                return Err(Stop::usage(format!(
                    "{} lists no model: name one with --model",
                    scenario.target.url
                )));
            }
            several if several.iter().any(|name| before == Some(name.as_str())) => {
                scenario.target.model = before.map(str::to_owned);
            }
            several => {
                let names = several.iter().take(8).map(|m| m.as_str()).collect::<Vec<_>>().join(", ");
                return Err(Stop::usage(format!(
                    "the endpoint lists several models: choose one with --model ({names})"
                )));
            }
        }
    }
    if scenario.target.protocol == Protocol::Kserve {
        tensors::learn(scenario, probed.served, screen)?;
    }
    facts.insert("model".into(), scenario.target.model.clone());
    for unknown in ["engine", "engine_version", "engine_flags", "gpu", "driver", "replicas"] {
        facts.entry(unknown.into()).or_insert(None);
    }
    Ok(facts)
}

pub(super) fn start(scenario: &Scenario, args: &ClientArgs, id: &str, clock: Clock) -> Result<Client, Stop> {
    let config = ClientConfig {
        target: scenario.target.clone(),
        key: None,
        workers: args.workers,
        run_id: id.into(),
        clock,
        keep_text: args.keep_text,
    };
    Client::start(config).map_err(|e| Stop::usage(e.to_string()))
}
