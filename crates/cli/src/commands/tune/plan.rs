//! The plan of a tuning: flags → settings, load and times, checked before a server starts.

use std::collections::BTreeSet;

use plimsoll_judge::cost::{Bill, EndpointPrice};
use plimsoll_judge::tune::{TuneGoal, TuneSpec};
use plimsoll_measure::findings::BudgetSpec;
use plimsoll_model::{SizeUnit, Span};
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, parse_span};
use serde_json::{Value, json};

use super::template::{self, PORT, SetValue};
use crate::exit::Stop;
use crate::flags::{ClientArgs, PriceArgs, TargetArgs, TuneArgs};
use crate::measure::random;
use crate::resolve::{self, Draft};

/// Default longest wait for a started server.
const READY: &str = "5m";

/// Port of an endpoint that is only checked.
const ANY_PORT: &str = "9";

pub struct TunePlan {
    /// Words of the command, with placeholders.
    pub words: Vec<String>,
    /// Base URL of the server, with placeholders.
    pub url: String,
    pub settings: Vec<Vec<SetValue>>,
    /// Price of the server, per setting; empty without a price.
    pub bills: Vec<Bill>,
    pub spec: TuneSpec,
    pub scenario: Scenario,
    /// Limits of the load; `None` for the saturating throughput.
    pub budget: Option<BudgetSpec>,
    pub slo: Vec<String>,
    pub warm_up: u32,
    pub ready: Span,
    pub client: ClientArgs,
    /// Values that a continued tuning must repeat.
    pub identity: Value,
}

impl TunePlan {
    /// Checks the flags.
    pub fn of(args: &TuneArgs) -> Result<TunePlan, Stop> {
        let launch = args.launch.as_deref().unwrap_or_default();
        let words = template::split(launch).map_err(|why| Stop::usage(format!("--launch: {why}")))?;
        let has_dot = |pair: &&String| pair.split('=').next().is_some_and(|name| name.contains('.'));
        let (fields, own): (Vec<&String>, Vec<&String>) = args.client.set.iter().partition(has_dot);
        let mut sets: Vec<(String, Vec<String>)> = Vec::new();
        for text in own {
            let (name, values) = template::values(text).map_err(Stop::usage)?;
            if sets.iter().any(|(known, _)| *known == name) {
                return Err(Stop::usage(format!(
                    "--set {text}: {name} has values already; join them with commas"
                )));
            }
            sets.push((name, values));
        }
        check_names(&words, args, &sets)?;
        let settings = template::combinations(&sets).map_err(Stop::usage)?;
        let ready = args.client.wait_ready.clone().unwrap_or_else(|| READY.into());
        let client = ClientArgs {
            set: fields.into_iter().cloned().collect(),
            wait_ready: Some(ready.clone()),
            ..args.client.clone()
        };
        let span =
            |flag: &str, text: &str| parse_span(text).map_err(|e| Stop::usage(format!("--{flag}: {e}")));
        let first = span("first", &args.first)?;
        if first < Span::from_secs(1) {
            return Err(Stop::usage(format!("--first {}: at least 1s", args.first)));
        }
        let url = args.target.url.clone();
        let scenario = scenario(args, &client, &address(&url, &settings[0], ANY_PORT))?;
        let spec = TuneSpec { goal: args.goal.into(), settings: settings.len(), first, rungs: args.rungs };
        let slo = &args.limits.slo;
        let budget = resolve::asked_budget(&scenario, slo)?;
        let bills = bills(args, &scenario, &settings)?;
        let mut identity = json!({
            "launch": words, "set": sets, "url": url, "goal": spec.goal, "first": first, "rungs": args.rungs,
            "warm_up": args.warm_up, "slo": slo, "price": args.price, "gpus": args.gpus, "scenario": scenario,
        });
        identity["scenario"]["nonce"] = Value::Null;
        Ok(TunePlan {
            words,
            url,
            settings,
            bills,
            spec,
            scenario,
            budget,
            slo: slo.iter().map(|limit| limit.trim().to_owned()).collect(),
            warm_up: args.warm_up,
            ready: span("wait-ready", &ready)?,
            client,
            identity,
        })
    }

    /// Returns the command line of a setting, and its base URL, with this port.
    pub fn launch(&self, setting: usize, port: &str) -> (Vec<String>, String) {
        let values = &self.settings[setting];
        (
            self.words.iter().map(|word| address(word, values, port)).collect(),
            address(&self.url, values, port),
        )
    }

    /// Returns the values of a setting as text.
    pub fn name(&self, setting: usize) -> String {
        let values = self.settings[setting].iter().map(|(name, value)| format!("{name}={value}"));
        let text = values.collect::<Vec<_>>().join(" ");
        if text.is_empty() { "as given".to_owned() } else { text }
    }
}

/// Replaces the values and the port.
fn address(text: &str, values: &[SetValue], port: &str) -> String {
    let port = (PORT.to_owned(), port.to_owned());
    template::fill(text, &values.iter().cloned().chain([port]).collect::<Vec<_>>())
}

/// Checks that every placeholder has values and every name is used.
fn check_names(words: &[String], args: &TuneArgs, sets: &[(String, Vec<String>)]) -> Result<(), Stop> {
    let wrong = |line: String| Err(Stop::usage(line));
    let launch: BTreeSet<String> = words.iter().flat_map(|word| template::names(word)).collect();
    let url = template::names(&args.target.url);
    let gpus = args.gpus.as_deref().map(template::names).unwrap_or_default();
    let known = |name: &String| name == PORT || sets.iter().any(|(set, _)| set == name);
    for (flag, names) in [("launch", &launch), ("url", &url), ("gpus", &gpus)] {
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return wrong(format!("--{flag}: {{{name}}} has no value; add --set {name}=VALUE,VALUE"));
        }
    }
    match sets.iter().map(|(name, _)| name).find(|name| !launch.contains(*name) && !url.contains(*name)) {
        _ if sets.iter().any(|(name, _)| name == PORT) => {
            wrong("--set port: {port} is a free port; take another name, or a fixed --url".into())
        }
        Some(name) => {
            wrong(format!("--set {name}: --launch has no {{{name}}}; write it where the value goes"))
        }
        None if url.contains(PORT) && !launch.contains(PORT) => wrong(
            "--launch: has no {port}; write it where the server takes its port, or name the address with --url"
                .into(),
        ),
        None if launch.contains(PORT) && !url.contains(PORT) => {
            wrong("--url: has no {port}, but --launch has; write it in both".into())
        }
        None => Ok(()),
    }
}

/// Returns the scenario of every measurement; the search chooses its loads.
fn scenario(args: &TuneArgs, client: &ClientArgs, url: &str) -> Result<Scenario, Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    draft.target(&TargetArgs { url: url.to_owned(), ..args.target.clone() })?;
    draft.workload(&args.workload)?;
    draft.client(client)?;
    let mut scenario = draft.finish(random())?;
    if scenario.arrivals != ArrivalSpec::default() {
        return Err(Stop::usage(
            "tune chooses its loads and has Poisson arrivals; take the lengths of a trace with --set sizes.pairs=FILE",
        ));
    }
    scenario.load = LoadSpec::default();
    Ok(scenario)
}

fn bills(args: &TuneArgs, scenario: &Scenario, settings: &[Vec<SetValue>]) -> Result<Vec<Bill>, Stop> {
    let goal = TuneGoal::from(args.goal);
    let protocol = scenario.target.protocol;
    if goal == TuneGoal::Cost && (protocol.counts() != SizeUnit::Tokens || !protocol.takes_output_length()) {
        return Err(Stop::usage("--goal cost: this protocol has no output tokens; take --goal load"));
    }
    let Some(price) = &args.price else {
        return match goal {
            TuneGoal::Cost => {
                Err(Stop::usage("--goal cost: needs the price of the server; add --price 2.49USD/h"))
            }
            TuneGoal::Load => Ok(Vec::new()),
        };
    };
    let bill = |values: &Vec<SetValue>| {
        let gpus = args.gpus.as_ref().map(|gpus| template::fill(gpus, values));
        let wrong = |text: &String| Stop::usage(format!("--gpus {text}: write a whole number"));
        let gpus = gpus.map(|text| text.parse().map_err(|_| wrong(&text))).transpose()?;
        let bill = resolve::cost(&PriceArgs { price: Some(price.clone()), gpus }, scenario)?;
        match bill {
            Some(bill) if matches!(bill.rate, EndpointPrice::PerHour(_)) => Ok(bill),
            _ => Err(Stop::usage(format!(
                "--price {price}: a price per token does not depend on the setting; give one per hour"
            ))),
        }
    };
    settings.iter().map(bill).collect()
}
