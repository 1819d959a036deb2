//! The target: the first look at it, and a client that is ready to send to it.

use std::collections::BTreeMap;

use plimsoll_client::{Client, ClientConfig, Clock, probe::ProbeError};
use plimsoll_model::run::{NOT_TRACED, TRACED, TRACING};
use plimsoll_model::{Protocol, Span};
use plimsoll_workload::{Scenario, parse_span};

use crate::exit::{Exit, Stop};
use crate::flags::ClientArgs;
use crate::screen::Screen;
use crate::tensors;

/// What the first look found.
pub struct TargetLook {
    /// Facts for the manifest.
    pub facts: BTreeMap<String, Option<String>>,
    /// The models that the endpoint lists; empty where it lists none.
    pub models: Vec<String>,
    /// Lines for the screen. They wait for their caller, who first catches the signals: a Ctrl-C that answers a line must not kill.
    pub words: Vec<String>,
}

impl TargetLook {
    /// Says the lines.
    pub fn say(&self, screen: &mut Screen) {
        self.words.iter().for_each(|line| screen.say(line));
    }
}

/// Between two looks at a target that does not answer yet.
const AGAIN: Span = Span::from_millis(500);

/// The first look, again and again as long as `--wait-ready` says, while no load could be sent: nothing answers, or what answers is not ready, as
/// llama.cpp's server is not while it loads a model.
///
/// # Errors
/// As [`look`], the last of them.
pub fn look_until(
    scenario: &mut Scenario,
    (before, clock): (Option<&str>, Clock),
    args: &ClientArgs,
    screen: &mut Screen,
) -> Result<TargetLook, Stop> {
    let Some(text) = &args.wait_ready else { return look(scenario, before) };
    let most = parse_span(text).map_err(|e| Stop::usage(format!("--wait-ready: {e}")))?;
    let until = clock.now() + most;
    let mut said = false;
    loop {
        let looked = look(scenario, before);
        let Err(stop) = &looked else { return looked };
        if stop.exit != Exit::Unreachable || clock.now() >= until {
            return looked;
        }
        if !said {
            screen.say(&format!("waiting up to {text} for the target: {}", stop.line));
            said = true;
        }
        std::thread::sleep(AGAIN.min(until - clock.now()).max(Span::ZERO).as_duration());
    }
}

/// The first look: is it there, is it what it should be, which models does it list? Fills in the model if none is asked
/// for: the only one, or of several the one asked for before.
pub fn look(scenario: &mut Scenario, before: Option<&str>) -> Result<TargetLook, Stop> {
    let probed = plimsoll_client::probe::probe(&scenario.target, None).map_err(|e| match e {
        ProbeError::Target(_) | ProbeError::NoModel { .. } => Stop::usage(e.to_string()),
        other => Stop::unreachable(other.to_string()),
    })?;
    let mut words = probed.notes;
    let unlisted = scenario.classes.iter().filter_map(|class| class.model.as_ref());
    for name in unlisted.filter(|name| !probed.models.is_empty() && !probed.models.contains(name)) {
        words.push(format!("the endpoint does not list {name}, which a class asks for"));
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
        tensors::learn(scenario, probed.served, &mut words)?;
    }
    facts.insert("model".into(), scenario.target.model.clone());
    if let Some(said) = traced(&scenario.target.headers) {
        facts.insert(TRACING.into(), Some(said.into()));
    }
    for unknown in ["engine", "engine_version", "engine_flags", "gpu", "driver", "replicas"] {
        facts.entry(unknown.into()).or_insert(None);
    }
    Ok(TargetLook { facts, models: probed.models, words })
}

/// Whether requests with these headers ask to be traced, by the sampled flag of W3C's `traceparent` (version-trace-span-flags); `None` where
/// they leave it to the server.
fn traced(headers: &BTreeMap<String, String>) -> Option<&'static str> {
    let said = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("traceparent"))?.1;
    let parts: Vec<&str> = said.trim().split('-').collect();
    let [_, trace, span, flags, ..] = parts.as_slice() else { return None };
    let sound = (trace.len() == 32 || *trace == "{trace}") && (span.len() == 16 || *span == "{span}");
    let flags = u8::from_str_radix(flags, 16).ok().filter(|_| sound)?;
    Some(if flags & 1 == 1 { TRACED } else { NOT_TRACED })
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

#[cfg(test)]
mod tests {
    use super::{NOT_TRACED, TRACED, traced};

    /// The examples of W3C Trace Context, section 3.2.2.
    #[test]
    fn the_sampled_flag_says_whether_requests_ask_to_be_traced() {
        let says = |name: &str, value: &str| traced(&[(name.to_owned(), value.to_owned())].into());
        let id = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        assert_eq!(says("Traceparent", &format!("{id}-01")), Some(TRACED));
        assert_eq!(says("traceparent", "00-{trace}-{span}-00"), Some(NOT_TRACED));
        assert_eq!(says("traceparent", &format!("{id}-00")), Some(NOT_TRACED));
        assert_eq!(says("traceparent", "$TRACEPARENT"), None);
        assert_eq!(says("traceparent", "00-1-2-01"), None);
        assert_eq!(says("x-trace", &format!("{id}-01")), None);
    }
}
