//! Renders the command that repeats a scenario: its differences from the defaults, as flags and `--set`.

use plimsoll_model::{Carries, Protocol};
use plimsoll_workload::{AudioSpec, ClassSpec, ImageSpec, Scenario, TargetSpec};
use serde_json::Value;

/// Returns a command that repeats a scenario: every value that is not a default, as a flag or `--set`.
pub fn reproduce(command: &str, scenario: &Scenario, more: &[(&str, String)]) -> String {
    let urls = scenario.target.urls().map(|url| quoted(url));
    let head: Vec<String> = ["plimsoll".to_owned(), command.to_owned()].into_iter().chain(urls).collect();
    let one = scenario.target.only(&scenario.target.url);
    repeat(&head.join(" "), &Scenario { target: one, ..scenario.clone() }, more)
}

/// Returns the repeating command with `head` as its start.
pub fn repeat(head: &str, scenario: &Scenario, more: &[(&str, String)]) -> String {
    let value = serde_json::to_value(scenario).unwrap_or_default();
    let default = serde_json::to_value(Scenario::default()).unwrap_or_default();
    let mut words = vec![head.to_string()];
    for (flag, argument) in more {
        words.push(format!("--{flag}"));
        if !argument.is_empty() {
            words.push(quoted(argument));
        }
    }
    let mut differing = Vec::new();
    difference("", &value, &default, &mut differing);
    let protocol = scenario.target.protocol;
    let is_kserve = protocol.carries() == Carries::Tensors;
    if protocol == Protocol::KserveGrpc && scenario.target.stream {
        // Set explicitly, because it is the scenario's default but not the default of KServe over gRPC.
        words.extend(["--set".to_owned(), "target.stream=true".to_owned()]);
    }
    let simulated = scenario.target.url.strip_prefix("simulated:");
    for (path, value) in differing {
        match path.as_str() {
            "target.url" => {}
            // A simulated world sets these values, and its command has no flags for them.
            "target.model" if simulated.is_some() && value.as_str() == simulated => {}
            "target.protocol" if simulated.is_some() && is_kserve => {}
            // The protocol sets these values.
            "target.stream" if is_kserve => {}
            "sizes.output" if !protocol.takes_output_length() => {}
            "target.ignore_eos" if !scenario.target.protocol.pins_length() => {}
            "target.key_env" | "target.model" | "target.protocol" | "seed" | "nonce" | "sizes.prompt"
            | "sizes.output" => {
                let flag = match path.as_str() {
                    "target.key_env" => "key-env",
                    "target.model" => "model",
                    "target.protocol" => "protocol",
                    "sizes.prompt" if is_kserve => "batch",
                    "sizes.prompt" => "isl",
                    "sizes.output" => "osl",
                    other => other,
                };
                words.push(format!("--{flag}"));
                words.push(quoted(&plain(&value)));
            }
            "classes" => {
                let classes = value.as_array().into_iter().flatten().map(short).collect::<Vec<_>>();
                words.push(format!("--set {}", quoted(&format!("classes={}", Value::from(classes)))));
            }
            _ => match flags(&path, &value) {
                Some(flags) => words.extend(flags.iter().map(|word| quoted(word))),
                None => {
                    words.push("--set".into());
                    words.push(quoted(&format!("{path}={}", plain(&value))));
                }
            },
        }
    }
    if scenario.target.ignore_eos && !scenario.target.protocol.pins_length() {
        // Set explicitly, because it is the scenario's default but not the default of these protocols.
        words.push("--set target.ignore_eos=true".into());
    }
    words.join(" ")
}

/// Returns a class without the fields that have their defaults.
fn short(class: &Value) -> Value {
    let default = serde_json::to_value(ClassSpec::default()).unwrap_or_default();
    let mut class = without(class, &default);
    if let Some(target) = class.get_mut("target") {
        *target = without(target, &serde_json::to_value(TargetSpec::default()).unwrap_or_default());
    }
    class
}

/// Returns an object without the fields that are equal in `default`.
fn without(object: &Value, default: &Value) -> Value {
    let fields = object.as_object().into_iter().flatten();
    let other = fields.filter(|(key, value)| default.get(key.as_str()) != Some(*value));
    Value::Object(other.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Returns the flags that express a value completely; `None` if there are none.
fn flags(path: &str, value: &Value) -> Option<Vec<String>> {
    let one = |flag: &str| Some(vec![format!("--{flag}"), plain(value)]);
    match path {
        "load" => load(value),
        "arrivals" => arrivals(value),
        "client.timeouts.total" => one("timeout"),
        "client.timeouts.first_token" => one("first-token-timeout"),
        "client.timeouts.idle" => one("idle-timeout"),
        "client.retries.max" => one("retries"),
        "client.cancel.share" => one("cancel"),
        "client.max_in_flight" => one("max-in-flight"),
        "client.before_level" => one("before-level"),
        "target.key_file" => one("key-file"),
        "target.ca_file" => one("ca-file"),
        "target.client_cert" => one("client-cert"),
        "target.client_key" => one("client-key"),
        "target.tls_verify" if *value == Value::Bool(false) => Some(vec!["--insecure".to_owned()]),
        "target.http" => one("http"),
        "target.streams_per_connection" => one("streams-per-connection"),
        "client.connections" => {
            let policy = value["policy"].as_str()?;
            let limit = value["limit"].as_u64();
            let said = limit.map_or_else(|| policy.to_owned(), |limit| format!("{policy}:{limit}"));
            Some(vec!["--connections".to_owned(), said])
        }
        "prompts.file" => one("prompts"),
        "prompts.images" => {
            media(value, "images", &["width", "height"], ("bits", ImageSpec::default().bits.into()))
        }
        "prompts.audio" => media(value, "audio", &["length"], ("rate", AudioSpec::default().rate.into())),
        "target.documents" => one("documents"),
        "scrape.every" => one("scrape-every"),
        "scrape.discover" if *value == Value::Bool(false) => {
            Some(vec!["--scrape".to_owned(), "off".to_owned()])
        }
        "scrape.ports" if value.as_array().is_some_and(Vec::is_empty) => {
            Some(vec!["--scrape".to_owned(), "endpoint".to_owned()])
        }
        _ => None,
    }
}

/// Returns the flag of images or audio, and `--set` for properties without a flag that are not the default.
fn media(value: &Value, flag: &str, laws: &[&str], (rest, usual): (&str, Value)) -> Option<Vec<String>> {
    let law = |name: &str| value.get(name).map(plain);
    let sizes: Option<Vec<String>> = laws.iter().map(|name| law(name)).collect();
    let (count, size) = (law("count")?, sizes?.join("x"));
    let text = if count == "1" { size } else { format!("{count}*{size}") };
    let mut words = vec![format!("--{flag}"), text];
    if value[rest] != usual {
        words.extend(["--set".to_owned(), format!("prompts.{flag}.{rest}={}", plain(&value[rest]))]);
    }
    Some(words)
}

fn load(value: &Value) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = value.as_object()?.clone();
    let mode = rest.remove("mode")?;
    // The window is left out, because the number of requests ends the load.
    if rest.contains_key("requests") && mode == "closed" {
        rest.remove("window");
    }
    match mode.as_str()? {
        "saturating" => words.push("--saturate".to_owned()),
        "wave" => words.extend(["--wave".to_owned(), plain(&rest.remove("requests")?)]),
        _ => {}
    }
    let named = [
        ("rate", "rate"),
        ("concurrency", "concurrency"),
        ("window", "for"),
        ("requests", "requests"),
        ("warm_up", "warm-up"),
        ("alone", "alone"),
    ];
    for (key, flag) in named {
        let Some(value) = rest.remove(key).filter(|value| !value.is_null()) else { continue };
        words.extend([format!("--{flag}"), plain(&value)]);
    }
    rest.is_empty().then_some(words)
}

/// Returns the flag of an arrival process if the flag expresses all of it.
fn arrivals(value: &Value) -> Option<Vec<String>> {
    let mut rest = value.as_object()?.clone();
    let process = rest.remove("process")?;
    let process = process.as_str()?;
    if process == "trace" {
        let mut words = vec!["--trace".to_owned(), plain(&rest.remove("file")?)];
        let speed = rest.remove("speed").filter(|speed| speed.as_f64() != Some(1.0));
        words.extend(speed.into_iter().flat_map(|speed| ["--speed".to_owned(), plain(&speed)]));
        rest.retain(|_, value| !value.is_null());
        return rest.is_empty().then_some(words);
    }
    let keys: &[&str] = match process {
        "gamma" | "weibull" => &["cv"],
        "on_off" => &["on", "off", "floor"],
        "ramp" => &["from", "to"],
        "spike" => &["height"],
        "diurnal" => &["peak_to_trough"],
        _ => &[],
    };
    let values: Option<Vec<String>> = keys.iter().map(|key| rest.get(*key).map(plain)).collect();
    let text = match keys {
        [] => process.to_owned(),
        _ => format!("{process}:{}", values?.join(",")),
    };
    (super::arrivals(&text).ok()? == *value).then(|| vec!["--arrivals".to_owned(), text])
}

/// Collects the paths at which two values differ. Values with a tag (`process`, `mode`, `policy`) and lists are compared whole.
pub(super) fn difference(path: &str, value: &Value, default: &Value, out: &mut Vec<(String, Value)>) {
    if value == default {
        return;
    }
    match (value, default) {
        (Value::Object(a), Value::Object(b))
            if !["process", "mode", "policy"]
                .iter()
                .any(|tag| a.contains_key(*tag) || b.contains_key(*tag)) =>
        {
            for (key, inner) in a {
                let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match b.get(key) {
                    Some(usual) => difference(&at, inner, usual, out),
                    // A field of the user's own body; `null` removes a field of the protocol.
                    None => out.push((at, inner.clone())),
                }
            }
        }
        _ => out.push((path.to_string(), value.clone())),
    }
}

/// Returns a value as typed: a string without its quotes.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns a word for the shell, quoted if necessary.
pub fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Draft;
    use super::*;
    use crate::flags::WorkloadArgs;

    #[test]
    fn the_command_to_repeat_resolves_to_the_same_scenario() {
        let mut draft = Draft(json!({
            "target": {"url": "http://host:8000/v1", "key_env": "LLM_KEY", "headers": {"x-team": "$TEAM_KEY"}},
            "load": {"mode": "open", "rate": "12/s", "window": "30s"},
            "arrivals": {"process": "gamma", "cv": 3.0},
            "sizes": {"prompt": "lognormal:512,0.8"},
            "client": {"retries": {"max": 2}},
            "seed": 7,
        }));
        draft.set("prompts.words_per_token", 0.75.into());
        let scenario = draft.finish(99).expect("valid");
        let command = reproduce("run", &scenario, &[]);
        assert!(command.contains("--key-env LLM_KEY"), "{command}");
        assert!(command.contains("$TEAM_KEY"), "{command}");
        // The command, parsed as by a shell, gives the original scenario.
        let mut again = Draft(json!({"target": {"url": "http://host:8000/v1"}, "load": {"mode": "open"}}));
        let words = shell_words(&command);
        let mut rest = words[3..].iter();
        while let Some(flag) = rest.next() {
            let argument = rest.next().expect("every flag has a value");
            let (path, text) = match flag.as_str() {
                "--set" => argument.split_once('=').expect("path=value"),
                "--key-env" => ("target.key_env", argument.as_str()),
                "--isl" => ("sizes.prompt", argument.as_str()),
                "--seed" => ("seed", argument.as_str()),
                "--nonce" => ("nonce", argument.as_str()),
                "--retries" => ("client.retries.max", argument.as_str()),
                "--rate" => ("load.rate", argument.as_str()),
                "--for" => ("load.window", argument.as_str()),
                "--arrivals" => {
                    again.set("arrivals", super::super::arrivals(argument).expect("a process"));
                    continue;
                }
                other => panic!("unexpected {other}"),
            };
            again.set(path, serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.into())));
        }
        assert_eq!(again.finish(0).expect("valid"), scenario);
    }

    /// The settings of TLS trust and client certificates are repeated by their usual flags.
    #[test]
    fn certificates_are_repeated_by_their_flags() {
        let mut draft =
            Draft(json!({"target": {"url": "https://h/v1"}, "load": {"mode": "open", "rate": "1/s"}}));
        for name in ["ca_file", "client_cert", "client_key"] {
            draft.set(&format!("target.{name}"), format!("{name}.pem").into());
        }
        draft.set("target.tls_verify", false.into());
        let command = reproduce("run", &draft.finish(9).expect("valid"), &[]);
        for words in [
            "--ca-file ca_file.pem",
            "--client-cert client_cert.pem",
            "--client-key client_key.pem",
            "--insecure",
        ] {
            assert!(command.contains(words), "no {words} in {command}");
        }
        assert!(!command.contains("--set"), "{command}");
    }

    /// The content of a request is repeated by the usual flags and keeps its meaning.
    #[test]
    fn what_a_request_carries_is_repeated_by_its_flags() {
        let cases = [
            (
                "chat",
                "prompts.images",
                json!({"count": "uniform:1,3", "width": "640", "height": "normal:480,9"}),
            ),
            ("chat", "prompts.images", json!({"width": "32", "height": "16", "bits": 24})),
            ("chat", "prompts.audio", json!({"count": "2", "length": "lognormal:8s,0.5", "rate": 8000})),
            ("transcriptions", "prompts.audio", json!({"length": "12s"})),
            ("rerank", "target.documents", json!("uniform:5,50*lognormal:120,0.6")),
            ("pooling", "target.documents", json!("32")),
        ];
        for (protocol, path, value) in cases {
            let mut draft =
                Draft(json!({"target": {"url": "http://h/v1"}, "load": {"mode": "open", "rate": "1/s"}}));
            draft.set("target.protocol", protocol.into());
            draft.set(path, value.clone());
            let scenario = draft.finish(9).expect("valid");
            let command = reproduce("run", &scenario, &[]);
            let words = shell_words(&command);
            let flag = |name: &str| {
                let at = words.iter().position(|word| word == name)?;
                Some(words[at + 1].clone())
            };
            let args = WorkloadArgs {
                images: flag("--images"),
                audio: flag("--audio"),
                documents: flag("--documents"),
                isl: flag("--isl"),
                osl: flag("--osl"),
                nonce: Some(9),
                ..WorkloadArgs::default()
            };
            let mut again =
                Draft(json!({"target": {"url": "http://h/v1"}, "load": {"mode": "open", "rate": "1/s"}}));
            again.set("target.protocol", protocol.into());
            again.workload(&args).expect("flags");
            if let Some((path, text)) = flag("--set").as_deref().and_then(|set| set.split_once('=')) {
                again.set(path, serde_json::from_str(text).expect("a number"));
            }
            assert_eq!(again.finish(0).expect("valid"), scenario, "{command}");
            assert!(!command.contains("={"), "{command}");
        }
    }

    fn shell_words(command: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for c in command.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                c => word.push(c),
            }
        }
        words.push(word);
        words
    }
}
