//! Probes the target and prepares a client that can send to it.

use std::collections::BTreeMap;

use plimsoll_client::{
    Client, ClientConfig, Clock, Probe, ProbeError, SecretError, TargetError, probe::probe,
};
use plimsoll_model::run::{NOT_TRACED, TRACED, TRACING};
use plimsoll_model::{At, Carries, Protocol, Span};
use plimsoll_workload::{Scenario, TargetSpec, parse_span};

use super::proxy;
use crate::exit::{Exit, Stop};
use crate::flags::ClientArgs;
use crate::screen::Screen;
use crate::tensors;

/// The result of the first probe of a target.
pub struct TargetProbe {
    pub facts: BTreeMap<String, Option<String>>,
    /// Models that the endpoint lists; empty if it lists none.
    pub models: Vec<String>,
    /// URL of the endpoint that was probed: the first that answers.
    pub url: String,
    /// Reasons of the endpoints that do not answer.
    pub silent: Vec<String>,
    /// Lines for the screen. The caller prints them after it catches the signals, because a Ctrl-C on a printed line must not kill.
    pub words: Vec<String>,
}

impl TargetProbe {
    pub fn say(&self, screen: &mut Screen) {
        self.words.iter().for_each(|line| screen.say(line));
    }
}

/// Interval between two probes of a target that is not ready.
pub(super) const AGAIN: Span = Span::from_millis(500);

/// A limit on the wait for a target.
pub(super) struct Ready {
    pub until: At,
    /// Text of `--wait-ready` as typed.
    pub text: String,
}

impl Ready {
    /// Parses `--wait-ready`; `None` if the flag is not given.
    pub fn of(args: &ClientArgs, clock: Clock) -> Result<Option<Ready>, Stop> {
        let Some(text) = &args.wait_ready else { return Ok(None) };
        let most = parse_span(text).map_err(|e| Stop::usage(format!("--wait-ready: {e}")))?;
        Ok(Some(Ready { until: clock.now() + most, text: text.clone() }))
    }
}

/// Probes the target repeatedly until `--wait-ready` ends or a load can be sent.
///
/// A probe is repeated if no server answers or if the server is not ready, for example while llama.cpp loads a model.
pub fn look_until(
    scenario: &mut Scenario,
    (before, clock): (Option<&str>, Clock),
    ready: Option<&Ready>,
    screen: &mut Screen,
) -> Result<TargetProbe, Stop> {
    let Some(Ready { until, text }) = ready else { return look(scenario, before) };
    let until = *until;
    let mut said = false;
    loop {
        let looked = look(scenario, before);
        let why = match &looked {
            Ok(looked) => looked.silent.first(),
            Err(stop) => Some(&stop.line).filter(|_| stop.exit == Exit::Unreachable),
        };
        let Some(why) = why.filter(|_| clock.now() < until) else { return looked };
        if !said {
            screen.say(&format!("waiting up to {text} for the target: {why}"));
            said = true;
        }
        std::thread::sleep(AGAIN.min(until - clock.now()).max(Span::ZERO).as_duration());
    }
}

/// Probes the target: whether it answers, is the expected kind of server, and which models it lists.
///
/// Fills in a missing model: the only listed model, or of several the model `before` of an earlier run. Of several
/// endpoints, the first that answers is used; the silent ones are reported.
pub fn look(scenario: &mut Scenario, before: Option<&str>) -> Result<TargetProbe, Stop> {
    let env = |name: &str| std::env::var(name).ok();
    let proxy = scenario.target.urls().find_map(|url| proxy::unused(url, env));
    let AnsweringEndpoint { probed, url, silent } =
        probe_each(&scenario.target).map_err(|stop| match &proxy {
            Some(proxy) if stop.exit == Exit::Unreachable => {
                Stop { line: format!("{}; {proxy}", stop.line), ..stop }
            }
            _ => stop,
        })?;
    let mut words = probed.notes;
    words.extend(proxy);
    let unlisted = scenario.classes.iter().filter_map(|class| class.model.as_ref());
    for name in unlisted.filter(|name| !probed.models.is_empty() && !probed.models.contains(name)) {
        words.push(format!("the endpoint does not list {name}, the model of a class"));
    }
    let mut facts = probed.fingerprint.facts;
    if scenario.target.model.is_none() && scenario.target.protocol != Protocol::Http {
        let bases: Vec<&String> = probed.models.iter().filter(|m| !probed.adapters.contains(m)).collect();
        match bases.as_slice() {
            [only] => scenario.target.model = Some((*only).clone()),
            [] => {
                let why = probed.no_list.map(|why| format!(" ({why})")).unwrap_or_default();
                return Err(Stop::usage(format!("{url} lists no model{why}: name one with --model")));
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
    let of_classes = look_at_classes(scenario)?;
    if scenario.target.protocol.carries() == Carries::Tensors {
        tensors::learn(scenario, probed.served, &mut words)?;
    }
    let beside = beside(&scenario.target, &url, &facts);
    facts.insert("model".into(), scenario.target.model.clone());
    if let Some(said) = traced(&scenario.target.headers) {
        facts.insert(TRACING.into(), Some(said.into()));
    }
    for unknown in ["engine", "engine_version", "engine_flags", "gpu", "driver", "replicas"] {
        facts.entry(unknown.into()).or_insert(None);
    }
    let silent: Vec<String> = silent.into_iter().chain(beside.silent).chain(of_classes).collect();
    words.extend(beside.words);
    words
        .extend(silent.iter().map(|why| format!("{why}; its share of the requests will fail in the record")));
    Ok(TargetProbe { facts, models: probed.models, words, url, silent })
}

/// Probes the targets of classes and fills in their models. Returns the reasons of those that do not answer.
fn look_at_classes(scenario: &mut Scenario) -> Result<Vec<String>, Stop> {
    let mut silent = Vec::new();
    for class in scenario.own_targets().collect::<Vec<_>>() {
        let target = scenario.target_of(class);
        let looked = probe_each(&target);
        let probed = match looked {
            Ok(AnsweringEndpoint { probed, silent: others, .. }) => {
                silent.extend(others);
                probed
            }
            Err(stop) if stop.exit == Exit::Unreachable => {
                silent.push(stop.line);
                continue;
            }
            Err(stop) => return Err(stop),
        };
        let own = &mut scenario.classes[usize::from(class)];
        if target.model.is_some() || target.protocol == Protocol::Http {
            continue;
        }
        own.model = match probed.models.as_slice() {
            [only] => Some(only.clone()),
            several => {
                let names = several.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
                let what = if names.is_empty() {
                    "no model".to_owned()
                } else {
                    format!("several models ({names})")
                };
                return Err(Stop::usage(format!(
                    "{} lists {what}: set model in the class {}",
                    target.url, own.name
                )));
            }
        };
    }
    Ok(silent)
}

/// The first endpoint that answers, and the errors of the endpoints before it.
struct AnsweringEndpoint {
    probed: Probe,
    url: String,
    silent: Vec<String>,
}

fn probe_each(target: &TargetSpec) -> Result<AnsweringEndpoint, Stop> {
    let mut first = None;
    let mut silent = Vec::new();
    for url in target.urls() {
        match probe(&target.only(url), None) {
            Ok(probed) => return Ok(AnsweringEndpoint { probed, url: url.clone(), silent }),
            Err(e @ ProbeError::Target(TargetError::Key(SecretError::Token { .. }))) => {
                return Err(Stop::unreachable(e.to_string()));
            }
            Err(e @ (ProbeError::Target(_) | ProbeError::NoModel { .. })) => {
                return Err(Stop::usage(e.to_string()));
            }
            Err(other) => {
                silent.push(other.to_string());
                first.get_or_insert(Stop::unreachable(other.to_string()));
            }
        }
    }
    Err(first.unwrap_or_else(|| Stop::usage("no endpoint is named")))
}

/// Properties of the endpoints after the probed one.
#[derive(Default)]
struct OtherEndpoints {
    silent: Vec<String>,
    words: Vec<String>,
}

/// Probes the endpoints after `reference`: whether they answer, serve the model, and report equal facts.
fn beside(target: &TargetSpec, reference: &str, facts: &BTreeMap<String, Option<String>>) -> OtherEndpoints {
    let mut found = OtherEndpoints::default();
    for url in target.urls().skip_while(|url| *url != reference).skip(1) {
        let probed = match probe(&target.only(url), None) {
            Ok(probed) => probed,
            Err(why) => {
                found.silent.push(why.to_string());
                continue;
            }
        };
        if let Some(model) =
            target.model.as_ref().filter(|model| !probed.models.is_empty() && !probed.models.contains(model))
        {
            found.words.push(format!("{url} does not list {model}"));
        }
        for fact in ["engine", "engine_version"] {
            let of = |facts: &BTreeMap<String, Option<String>>| facts.get(fact).cloned().flatten();
            if let (Some(own), Some(first)) = (of(&probed.fingerprint.facts), of(facts))
                && own != first
            {
                let fact = fact.replace('_', " ");
                found.words.push(format!("{url}: {fact} {own}, where {reference} has {first}"));
            }
        }
    }
    found
}

/// Returns whether these headers request a trace, from the sampled flag of W3C's `traceparent` (version-trace-span-flags).
/// `None` if the headers leave the decision to the server.
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
        classes: scenario.classes.clone(),
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

    /// Examples of W3C Trace Context, section 3.2.2.
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
