//! Flags + scenario file → the resolved scenario, and back to a command that repeats it.
//!
//! Flags are sugar: each sets one place of the scenario's JSON, over what the file of `--spec` says; the scenario's own
//! checks then judge the whole. `--set path=value` reaches what has no flag. The command in the manifest is rendered
//! from the *resolved* scenario, not from what was typed, so that it holds whatever file or default a value came from;
//! secrets are only ever names in it, because the scenario holds nothing else.

use std::path::Path;

use plimsoll_analysis::cost::{Bill, Rate};
use plimsoll_analysis::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_model::Protocol;
use plimsoll_workload::scenario::LONGEST;
use plimsoll_workload::{Scenario, Size, SpecError};
use serde_json::{Map, Value, json};

use crate::exit::Stop;
use crate::flags::{CeilingArgs, ClientArgs, LoadArgs, ScrapeArgs, TargetArgs, WorkloadArgs};
use crate::{price, tensors};

type Resolved<T> = Result<T, Stop>;

/// Headers that hold secrets: a literal value is refused, `$NAME` is taken from the environment when it is sent.
const SECRET_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key"];

/// Query parameters that hold secrets.
const SECRET_PARAMETERS: [&str; 6] = ["key", "api_key", "api-key", "apikey", "token", "access_token"];

/// The scenario as JSON under construction.
pub struct Draft(Value);

impl Draft {
    /// What the scenario file says, or nothing yet.
    pub fn new(spec: Option<&Path>) -> Resolved<Draft> {
        let Some(path) = spec else { return Ok(Draft(json!({}))) };
        mapping(path, "scenario").map(Draft)
    }

    /// A scenario that was part of another file.
    pub fn of(value: Value) -> Draft {
        Draft(value)
    }

    /// Does it say nothing?
    pub fn is_empty(&self) -> bool {
        self.0.as_object().is_none_or(Map::is_empty)
    }

    /// Puts a value at a dotted path, making the objects on the way.
    pub fn set(&mut self, path: &str, value: Value) {
        let mut place = &mut self.0;
        for key in path.split('.') {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            place = match place {
                Value::Object(map) => map.entry(key.to_string()).or_insert(Value::Null),
                _ => return,
            };
        }
        *place = value;
    }

    fn set_some<T: Into<Value>>(&mut self, path: &str, value: Option<T>) {
        if let Some(value) = value {
            self.set(path, value.into());
        }
    }

    /// The endpoint.
    pub fn target(&mut self, args: &TargetArgs) -> Resolved<()> {
        check_url(&args.url)?;
        self.set("target.url", args.url.clone().into());
        self.set_some("target.model", args.model.clone());
        self.set_some("target.protocol", args.protocol.as_deref().map(tensors::protocol));
        if args.no_stream {
            self.set("target.stream", false.into());
        }
        if args.natural_length {
            self.set("target.ignore_eos", false.into());
        }
        self.set_some("target.key_env", args.key_env.clone());
        self.set_some("target.key_file", args.key_file.as_ref().map(|path| path.display().to_string()));
        self.set_some("target.ca_file", args.ca_file.as_ref().map(|path| path.display().to_string()));
        if args.insecure {
            self.set("target.tls_verify", false.into());
        }
        if let Some(path) = &args.body {
            let text =
                std::fs::read_to_string(path).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))?;
            self.set("target.body_template", text.into());
        }
        if args.protocol.as_deref() == Some("http")
            && args.body.is_none()
            && !self.has("target.body_template")
        {
            return Err(Stop::usage("--protocol http: name the request's body with --body FILE"));
        }
        for header in &args.headers {
            let (name, value) = header
                .split_once(':')
                .ok_or_else(|| Stop::usage(format!("--header {header}: write NAME: VALUE")))?;
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            if SECRET_HEADERS.contains(&name.as_str()) && !value.contains('$') {
                return Err(Stop::usage(format!(
                    "--header {name}: put the secret into an environment variable and write '{name}: $NAME', or use --key-env"
                )));
            }
            let headers = format!("target.headers.{name}");
            self.set(&headers, value.into());
        }
        Ok(())
    }

    /// What the requests are.
    pub fn workload(&mut self, args: &WorkloadArgs) -> Resolved<()> {
        tensors::workload(self, args)?;
        self.set_some("sizes.prompt", args.isl.clone());
        self.set_some("sizes.output", args.osl.clone());
        if let Some(trace) = &args.trace {
            self.set("arrivals", json!({"process": "trace", "file": trace.display().to_string()}));
            self.set_some("arrivals.speed", args.speed);
            if args.isl.is_some() || args.osl.is_some() {
                // Lengths that are named are meant: the trace gives the times, the laws the lengths.
                self.set("arrivals.sizes", "drawn".into());
            }
        }
        self.set_some("prompts.file", args.prompts.as_ref().map(|path| path.display().to_string()));
        if let Some(text) = &args.prefix {
            let parts = text.split_once(',').and_then(|(share, groups)| {
                Some((share.trim().parse::<f64>().ok()?, groups.trim().parse::<u32>().ok()?))
            });
            let (share, groups) = parts
                .ok_or_else(|| Stop::usage(format!("--prefix {text}: write SHARE,GROUPS such as 0.5,8")))?;
            self.set("prompts.shared_prefix", json!({"share": share, "groups": groups}));
        }
        if let Some(text) = &args.sessions {
            let (turns, think) = text
                .split_once(',')
                .ok_or_else(|| Stop::usage(format!("--sessions {text}: write TURNS,THINK such as 4,10s")))?;
            self.set("prompts.sessions", json!({"turns": turns.trim(), "think": think.trim()}));
        }
        if let Some(text) = &args.models {
            self.models(text)?;
        }
        self.set_some("seed", args.seed);
        self.set_some("nonce", args.nonce);
        Ok(())
    }

    /// A mix of models: one class of requests for each, with the scenario's own sizes and prompts.
    fn models(&mut self, text: &str) -> Resolved<()> {
        if self.has("classes") {
            return Err(Stop::usage(
                "--models: the scenario has classes of its own; give each of them a model",
            ));
        }
        let class = |part: &str| {
            let (name, weight) = part.rsplit_once('=').unwrap_or((part, "1"));
            let weight =
                weight.trim().parse::<f64>().ok().filter(|weight| weight.is_finite() && *weight >= 0.0);
            let name = Some(name.trim()).filter(|name| !name.is_empty());
            Some(json!({"name": name?, "model": name?, "weight": weight?}))
        };
        let classes: Option<Vec<Value>> = text.split(',').map(class).collect();
        let wrong = || {
            Stop::usage(format!("--models {text}: write NAME=WEIGHT,NAME=WEIGHT such as base=3,sql-lora=1"))
        };
        self.set("classes", classes.ok_or_else(wrong)?.into());
        Ok(())
    }

    /// How the client behaves.
    pub fn client(&mut self, args: &ClientArgs) -> Resolved<()> {
        tensors::client(self, args)?;
        if let Some(policy) = &args.connections {
            let value = match policy.split_once(':') {
                Some(("pool", limit)) => {
                    let limit: u32 = limit.parse().map_err(|_| {
                        Stop::usage(format!("--connections {policy}: write pool:N with a whole number"))
                    })?;
                    json!({"policy": "pool", "limit": limit})
                }
                None if policy == "prewarmed" || policy == "fresh" => json!({"policy": policy}),
                _ => {
                    let want = "prewarmed, fresh or pool:N with a whole number";
                    return Err(Stop::usage(format!("--connections {policy}: write {want}")));
                }
            };
            self.set("client.connections", value);
        }
        self.set_some("client.timeouts.total", args.timeout.clone());
        self.set_some("client.timeouts.first_token", args.first_token_timeout.clone());
        self.set_some("client.timeouts.idle", args.idle_timeout.clone());
        self.set_some("client.retries.max", args.retries);
        self.set_some("client.cancel.share", args.cancel);
        self.set_some("client.max_in_flight", args.max_in_flight);
        self.scrape(&args.scrape)?;
        for pair in &args.set {
            let (path, text) = pair.split_once('=').ok_or_else(|| {
                Stop::usage(format!("--set {pair}: write PATH=VALUE such as client.retries.max=2"))
            })?;
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_string()));
            self.set(path.trim(), value);
        }
        Ok(())
    }

    /// What is looked at on the server's side.
    pub fn scrape(&mut self, args: &ScrapeArgs) -> Resolved<()> {
        self.set_some("scrape.every", args.scrape_every.clone());
        let off = args.scrape.iter().any(|page| page == "off");
        if off && args.scrape.len() > 1 {
            return Err(Stop::usage("--scrape off: pages are named beside it; drop one of the two"));
        }
        if off {
            self.set("scrape.discover", false.into());
        } else if !args.scrape.is_empty() {
            self.set("scrape.pages", args.scrape.clone().into());
        }
        Ok(())
    }

    /// The load and the arrival process of `plimsoll run`. Comes last, so that it sees what `--set` and the file say.
    pub fn load(&mut self, args: &LoadArgs, trace: bool) -> Resolved<()> {
        if let Some(text) = &args.arrivals {
            if trace {
                return Err(Stop::usage(
                    "--arrivals: a trace has its own arrivals; drop one of --trace and --arrivals",
                ));
            }
            self.set("arrivals", arrivals(text)?);
        }
        if args.saturate {
            self.set("load", json!({"mode": "saturating"}));
        } else if let Some(concurrency) = args.concurrency {
            self.set("load", json!({"mode": "closed", "concurrency": concurrency}));
        } else if args.rate.is_some() && self.mode() != "open" {
            self.set("load", json!({"mode": "open"}));
        }
        if let Some(requests) = args.wave {
            self.set("load", json!({"mode": "wave", "requests": requests}));
        }
        if let Some(requests) = args.requests {
            self.set("load.requests", requests.into());
            // Whoever ends by requests does not want to be cut off by a default.
            self.set("load.window", plimsoll_workload::format_span(LONGEST).into());
        }
        self.set_some("load.warm_up", args.warm_up);
        self.set_some("load.rate", args.rate.clone());
        self.set_some("load.window", args.duration.clone());
        if self.has("load") && !self.has("load.mode") {
            self.set("load.mode", "open".into());
        }
        Ok(())
    }

    /// Is something said at this place?
    pub fn has(&self, path: &str) -> bool {
        self.get(path).is_some_and(|value| !value.is_null())
    }

    /// What is said at this place.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.0.pointer(&format!("/{}", path.replace('.', "/")))
    }

    /// The text at this place.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }

    fn mode(&self) -> &str {
        self.0.pointer("/load/mode").and_then(Value::as_str).unwrap_or("open")
    }

    /// Checks the whole and reads the files it names. The nonce is drawn here if none is given.
    pub fn finish(self, nonce: u64) -> Resolved<Scenario> {
        self.finish_with(nonce, |name| std::fs::read(name).map_err(|e| e.to_string()))
    }

    /// The same where the files it names are read by other means.
    pub fn finish_with(
        mut self,
        nonce: u64,
        read: impl FnMut(&str) -> Result<Vec<u8>, String>,
    ) -> Resolved<Scenario> {
        if self.0.pointer("/nonce").is_none_or(Value::is_null) {
            self.set("nonce", nonce.into());
        }
        let is_kserve = self.protocol() == Protocol::Kserve.name();
        if is_kserve {
            tensors::settle(&mut self)?;
        }
        let mut scenario = Scenario::from_json(&self.0).map_err(usage)?;
        if is_kserve {
            tensors::check(&scenario)?;
        }
        // Where nothing is generated, or the template fixes the length itself, no length is asked for.
        let template = scenario.target.body_template.as_deref();
        let is_fixed = template.is_some_and(|text| !text.contains("{{max_tokens}}"));
        if !scenario.target.protocol.streams() || is_fixed {
            scenario.sizes.output = Size::Fixed(0);
        }
        scenario.attach(read).map_err(usage)?;
        Ok(scenario)
    }
}

fn usage(error: SpecError) -> Stop {
    Stop::usage(error.to_string())
}

/// A file that holds a mapping, as JSON; an empty one is an empty mapping.
pub fn mapping(path: &Path, what: &str) -> Resolved<Value> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    let value: Value = serde_saphyr::from_str(&text).map_err(|e| {
        let first = e.to_string();
        let first = first.lines().next().unwrap_or_default().to_string();
        Stop::usage(format!("{name}: {first}"))
    })?;
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => Ok(json!({})),
        _ => Err(Stop::usage(format!("{name}: a {what} is a mapping (see: plimsoll schema {what})"))),
    }
}

/// A base URL that can be spoken to and holds no secret.
fn check_url(url: &str) -> Resolved<()> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or_else(|| Stop::usage(format!("{url}: a URL starts with http:// or https://")))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(Stop::usage(
            "the URL holds a user or password: use --key-env or --header 'authorization: $NAME'",
        ));
    }
    if authority.is_empty() {
        return Err(Stop::usage(format!("{url}: the host is missing")));
    }
    let query = path.split_once('?').map_or("", |(_, query)| query);
    for parameter in query.split('&') {
        let name = parameter.split('=').next().unwrap_or_default().to_ascii_lowercase();
        if SECRET_PARAMETERS.contains(&name.as_str()) {
            return Err(Stop::usage(format!(
                "the URL holds a key (?{name}=…), which would be written down: send it as a header with --key-env or --header"
            )));
        }
    }
    Ok(())
}

/// The short form of an arrival process: `poisson`, `gamma:3`, `onoff:2s,8s`, `ramp:1,4`, …
pub fn arrivals(text: &str) -> Resolved<Value> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let parts: Vec<&str> = rest.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let bad = |form: &str| Stop::usage(format!("--arrivals {text}: write {form}"));
    let number = |i: usize, form: &str| -> Resolved<f64> {
        parts.get(i).and_then(|part| part.parse().ok()).ok_or_else(|| bad(form))
    };
    Ok(match name {
        "gamma" | "weibull" => {
            json!({"process": name, "cv": number(0, &format!("{name}:CV such as {name}:3"))?})
        }
        "onoff" | "on_off" => {
            let form = "onoff:ON,OFF[,FLOOR] such as onoff:2s,8s (FLOOR = rate in a pause / rate in a burst)";
            let (on, off) = (parts.first().ok_or_else(|| bad(form))?, parts.get(1).ok_or_else(|| bad(form))?);
            let floor = if parts.len() > 2 { number(2, form)? } else { 0.0 };
            json!({"process": "on_off", "on": on, "off": off, "floor": floor})
        }
        "ramp" => {
            let form = "ramp:FROM,TO with relative heights such as ramp:0,1";
            json!({"process": "ramp", "from": number(0, form)?, "to": number(1, form)?})
        }
        "step" => {
            let heights: Option<Vec<f64>> = parts.iter().map(|part| part.parse().ok()).collect();
            let heights =
                heights.filter(|h| !h.is_empty()).ok_or_else(|| bad("step:A,B,… with relative heights"))?;
            json!({"process": "step", "heights": heights})
        }
        "spike" => {
            json!({"process": "spike", "height": number(0, "spike:HEIGHT such as spike:5 (the rest being 1)")?})
        }
        "diurnal" => {
            json!({"process": "diurnal", "peak_to_trough": number(0, "diurnal:PEAK/TROUGH such as diurnal:4")?})
        }
        other => json!({"process": other}),
    })
}

/// Kinds of traffic of a sweep: `steady`, `burst`, or `NAME=PROCESS`. Gives the name and the arrival process.
pub fn traffic(text: &str) -> Resolved<(String, Value)> {
    match text.split_once('=') {
        Some((name, process)) if !name.is_empty() => Ok((name.to_string(), arrivals(process)?)),
        None if text == "steady" => Ok((text.into(), json!({"process": "poisson"}))),
        None if text == "burst" => Ok((text.into(), json!({"process": "gamma", "cv": 3.0}))),
        _ => Err(Stop::usage(format!(
            "--traffic {text}: steady, burst, or NAME=PROCESS such as evening=onoff:2s,8s"
        ))),
    }
}

/// Ceilings such as `ttft p99 < 500ms` → a budget. A metric may have several, at different percentiles.
pub fn budget(ceilings: &[String]) -> Resolved<Option<BudgetSpec>> {
    if ceilings.is_empty() {
        return Ok(None);
    }
    let mut budget = BudgetSpec {
        name: ceilings.iter().map(|text| text.trim()).collect::<Vec<_>>().join(", "),
        latency: Vec::new(),
        error_rate: None,
    };
    for text in ceilings {
        let bad = || {
            Stop::usage(format!(
                "--slo {text}: write METRIC pXX < TIME such as 'ttft p99 < 500ms', or 'errors < 1%'"
            ))
        };
        let (left, ceiling) = text.split_once('<').ok_or_else(bad)?;
        let ceiling = ceiling.trim_start_matches('=').trim();
        let mut words = left.split_whitespace();
        let metric = words.next().ok_or_else(bad)?;
        if metric == "errors" || metric == "error_rate" {
            let share: f64 =
                ceiling.strip_suffix('%').unwrap_or(ceiling).trim().parse().map_err(|_| bad())?;
            budget.error_rate = Some(if ceiling.ends_with('%') { share / 100.0 } else { share });
            continue;
        }
        let p: f64 = words.next().and_then(|p| p.strip_prefix('p')?.parse().ok()).ok_or_else(bad)?;
        let p = p / 100.0;
        if !(p > 0.0 && p < 1.0) || words.next().is_some() {
            return Err(bad());
        }
        let limit = plimsoll_workload::units::parse_span(ceiling).map_err(|_| bad())?.as_secs_f64();
        if limit <= 0.0 {
            return Err(bad());
        }
        let named = Metric::ALL.into_iter().find(|known| known.name() == metric);
        let metric = named.ok_or_else(|| {
            Stop::usage(format!("--slo {text}: the metrics are ttft, tpot, e2e and errors"))
        })?;
        // A higher percentile is never the smaller one: a budget that asks for that asks for one ceiling twice.
        for other in budget.latency.iter().filter(|other| other.metric == metric) {
            let rises = (p - other.percentile) * (limit - other.limit_s);
            if rises <= 0.0 {
                return Err(Stop::usage(format!(
                    "--slo {}: contradicts or repeats {} p{}: a higher percentile needs a higher ceiling",
                    text.trim(),
                    metric.name(),
                    plimsoll_report::text::percentile(other.percentile)
                )));
            }
        }
        budget.latency.push(Ceiling::new(metric, p, limit));
    }
    Ok(Some(budget))
}

/// What the ceilings say it costs, if they do.
pub fn cost(args: &CeilingArgs, scenario: &Scenario) -> Resolved<Option<Bill>> {
    let bill = price::bill(&args.price, None)?;
    let per_token = bill.as_ref().is_some_and(|bill| matches!(bill.rate, Rate::PerMtok { .. }));
    tensors::priced(scenario, per_token)?;
    Ok(bill)
}

/// The budget of a sweep: as asked, else the example that fits how this endpoint answers.
pub fn budget_for(scenario: &Scenario, ceilings: &[String]) -> Resolved<BudgetSpec> {
    let target = &scenario.target;
    let whole = !target.stream || !target.protocol.streams();
    let asked = budget(ceilings)?;
    let of_tokens = asked.iter().flat_map(|budget| &budget.latency).find(|c| c.metric != Metric::E2e);
    match (asked.as_ref(), of_tokens) {
        (Some(_), Some(ceiling)) if whole => Err(Stop::usage(format!(
            "--slo: answers come whole here and have no {}; put the ceiling on e2e",
            ceiling.metric.name()
        ))),
        (Some(budget), _) => Ok(budget.clone()),
        (None, _) if !whole => Ok(BudgetSpec::default()),
        (None, _) if !target.protocol.streams() => Ok(BudgetSpec::recommendation()),
        // How long a whole generated answer may take depends on its length: no example would mean anything.
        (None, _) => Ok(BudgetSpec {
            name: "example: errors < 1%".into(),
            latency: Vec::new(),
            error_rate: Some(0.01),
        }),
    }
}

/// A command that repeats a scenario: every value that is not a default, as flags or `--set`.
pub fn reproduce(command: &str, scenario: &Scenario, more: &[(&str, String)]) -> String {
    let head = ["plimsoll".to_string(), command.to_string(), quoted(&scenario.target.url)];
    repeat(&head.join(" "), scenario, more)
}

/// The same after a head of one's own.
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
    let is_kserve = scenario.target.protocol == Protocol::Kserve;
    let simulated = scenario.target.url.strip_prefix("simulated:");
    for (path, value) in differing {
        match path.as_str() {
            "target.url" => {}
            // A simulated world says these by itself; its command has no flags for them.
            "target.model" if simulated.is_some() && value.as_str() == simulated => {}
            "target.protocol" if simulated.is_some() && is_kserve => {}
            // The protocol says these by itself.
            "target.stream" | "target.ignore_eos" | "sizes.output" if is_kserve => {}
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
            _ => {
                words.push("--set".into());
                words.push(quoted(&format!("{path}={}", plain(&value))));
            }
        }
    }
    words.join(" ")
}

/// Paths at which two values differ. What carries a tag (`process`, `mode`, `policy`) and lists are taken whole.
fn difference(path: &str, value: &Value, default: &Value, out: &mut Vec<(String, Value)>) {
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
                difference(&at, inner, b.get(key).unwrap_or(&Value::Null), out);
            }
        }
        _ => out.push((path.to_string(), value.clone())),
    }
}

/// A value as it is typed: a string without its quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A word for the shell: quoted where it needs to be.
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
    use super::*;

    #[test]
    fn a_url_with_a_secret_is_refused_without_repeating_it() {
        for url in [
            "http://user:hunter2@host/v1",
            "https://host/v1?api_key=hunter2",
            "https://host/v1?a=1&token=hunter2",
        ] {
            let stop = check_url(url).expect_err("refused");
            assert!(!stop.line.contains("hunter2"), "{}", stop.line);
        }
        assert!(check_url("https://host:8443/v1?version=2").is_ok());
        assert!(check_url("host:8000").is_err());
    }

    #[test]
    fn slo_texts_become_a_budget() {
        let texts = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let budget = budget(&texts(&["ttft p95 < 500ms", "tpot p95 < 30ms", "errors < 1%"]))
            .expect("valid")
            .expect("some");
        let ceilings = [Ceiling::new(Metric::Ttft, 0.95, 0.5), Ceiling::new(Metric::Tpot, 0.95, 0.03)];
        assert_eq!(budget.latency, ceilings);
        assert_eq!(budget.error_rate, Some(0.01));
        let several = super::budget(&texts(&["e2e p50 < 60ms", "e2e p95 < 150ms", "e2e p99 < 350ms"]));
        let several = several.expect("valid").expect("some");
        assert_eq!(several.latency, BudgetSpec::recommendation().latency);
        for wrong in [
            &["ttft < 5s"][..],
            &["ttft p99 < 0s"],
            &["wait p99 < 1s"],
            &["e2e p99 < 1s", "e2e p99 < 2s"],
            &["e2e p50 < 1s", "e2e p99 < 1s"],
            &["e2e p99 < 1s", "e2e p50 < 2s"],
        ] {
            assert!(super::budget(&texts(wrong)).is_err(), "{wrong:?}");
        }
    }

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
        // What the command says, read back as a shell would, is the same scenario.
        let mut again = Draft(json!({"target": {"url": "http://host:8000/v1"}}));
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
                other => panic!("unexpected {other}"),
            };
            again.set(path, serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.into())));
        }
        assert_eq!(again.finish(0).expect("valid"), scenario);
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
