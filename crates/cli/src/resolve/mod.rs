//! Turns flags and a scenario file into the resolved scenario, and a scenario back into a command that repeats it.
//!
//! Each flag sets one place of the scenario's JSON and overrides the file of `--spec`. The scenario's own checks then
//! judge the result. `--set path=value` reaches keys without a flag. The command in the manifest is rendered from the
//! *resolved* scenario, so it includes the values of files and defaults. Secrets appear in the
//! command only by name, because the scenario contains only their names.

mod again;
mod said;

use std::path::Path;

use plimsoll_model::{Carries, Protocol};
use plimsoll_workload::scenario::LONGEST;
use plimsoll_workload::{AudioSpec, Documents, Pause, Scenario, Size, SpecError};
use serde_json::{Map, Value, json};

use crate::exit::Stop;
use crate::flags::{ClientArgs, LoadArgs, ScrapeArgs, TargetArgs, WorkloadArgs};
use crate::tensors;

pub use again::{quoted, repeat, reproduce};
use said::check_url;
pub use said::{SCHEMES, arrivals, asked_budget, bare, budget, budget_for, cost, traffic};

type CliResult<T> = Result<T, Stop>;

/// Headers that contain secrets: a literal value is refused; `$NAME` is read from the environment when it is sent.
const SECRET_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key"];

/// Default tokens of a query if documents have a length and the query has none: a question of one line.
const QUERY_TOKENS: &str = "16";
/// Default tokens of a text for speech or images: two sentences.
const MEDIA_TOKENS: &str = "40";

/// A scenario as JSON, before it is checked.
pub struct Draft(Value);

impl Draft {
    /// Reads the scenario file, or starts with an empty draft.
    pub fn new(spec: Option<&Path>) -> CliResult<Draft> {
        let Some(path) = spec else { return Ok(Draft(json!({}))) };
        mapping(path, "scenario").map(Draft)
    }

    /// Returns a draft of a scenario that was part of another file.
    pub fn of(value: Value) -> Draft {
        Draft(value)
    }

    /// Returns whether the draft sets no key.
    pub fn is_empty(&self) -> bool {
        self.0.as_object().is_none_or(Map::is_empty)
    }

    /// Sets the value at a dotted path and creates the objects on the way.
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

    /// Sets the endpoint, its protocol and its body from flags.
    pub fn target(&mut self, args: &TargetArgs) -> CliResult<()> {
        check_url(&args.url)?;
        self.set("target.url", args.url.clone().into());
        self.set_some("target.model", args.model.clone());
        self.set_some("target.protocol", args.protocol.as_deref());
        tensors::over_grpc(self);
        if args.no_stream {
            self.set("target.stream", false.into());
        }
        if args.natural_length {
            self.set("target.ignore_eos", false.into());
        }
        self.set_some("target.key_env", args.key_env.clone());
        self.set_some("target.key_file", args.key_file.as_ref().map(|path| path.display().to_string()));
        self.set_some("target.ca_file", args.ca_file.as_ref().map(|path| path.display().to_string()));
        self.set_some("target.client_cert", args.client_cert.as_ref().map(|path| path.display().to_string()));
        self.set_some("target.client_key", args.client_key.as_ref().map(|path| path.display().to_string()));
        if args.insecure {
            self.set("target.tls_verify", false.into());
        }
        if let Some(path) = &args.body {
            let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(path.display(), &e))?;
            // The last line break of the template is removed, because it would break the line under Repeat.
            self.set("target.body_template", text.trim_end().into());
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
            no_secret(&name, value)?;
            let headers = format!("target.headers.{name}");
            self.set(&headers, value.into());
        }
        Ok(())
    }

    /// Sets the further endpoints; an empty list keeps the file's endpoints.
    pub fn further(&mut self, urls: &[String]) {
        if !urls.is_empty() {
            self.set("target.further_urls", urls.into());
        }
    }

    /// Replaces the endpoints by a simulated engine.
    pub fn simulated(&mut self, engine: &str) {
        self.set("target.url", format!("simulated:{engine}").into());
        self.set("target.further_urls", json!([]));
    }

    /// Sets the lengths, prompts and other properties of the requests from flags.
    pub fn workload(&mut self, args: &WorkloadArgs) -> CliResult<()> {
        tensors::workload(self, args)?;
        self.set_some("sizes.prompt", args.isl.clone());
        self.set_some("sizes.output", args.osl.clone());
        if let Some(trace) = &args.trace {
            self.set("arrivals", json!({"process": "trace", "file": trace.display().to_string()}));
            self.set_some("arrivals.speed", args.speed);
            let drawn = args.documents.as_ref().is_some_and(|law| law.contains('*'));
            if args.isl.is_some() || args.osl.is_some() || drawn {
                // Explicit length flags override the lengths of a trace, which then supplies only the times.
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
        if args.real_answers {
            self.set("prompts.answers", json!("real"));
        }
        if let Some(text) = &args.documents {
            self.documents(text)?;
        }
        if let Some(text) = &args.images {
            let (count, size) = text.split_once('*').unwrap_or(("1", text));
            let (width, height) = size.split_once('x').ok_or_else(|| {
                Stop::usage(format!(
                    "--images {text}: write WIDTHxHEIGHT or N*WIDTHxHEIGHT such as 2*1024x768"
                ))
            })?;
            for (name, law) in [("count", count), ("width", width), ("height", height)] {
                self.set(&format!("prompts.images.{name}"), law.trim().into());
            }
        }
        if let Some(text) = &args.audio {
            let (count, length) = text.split_once('*').unwrap_or(("1", text));
            if Pause::parse(length.trim()).is_err() {
                return Err(Stop::usage(format!(
                    "--audio {text}: write TIME or N*TIME such as 8s, 2*30s or lognormal:8s,0.5"
                )));
            }
            self.set("prompts.audio.count", count.trim().into());
            self.set("prompts.audio.length", length.trim().into());
        }
        if let Some(text) = &args.models {
            self.models(text)?;
        }
        self.set_some("seed", args.seed);
        self.set_some("nonce", args.nonce);
        Ok(())
    }

    fn documents(&mut self, text: &str) -> CliResult<()> {
        if !Protocol::from_name(self.protocol()).is_some_and(Protocol::takes_texts) {
            return Err(Stop::usage(
                "--documents: only --protocol rerank, score, pooling, classify and embeddings send documents",
            ));
        }
        Documents::parse(text).map_err(|_| {
            Stop::usage(format!(
                "--documents {text}: write N or N*TOKENS such as 20, uniform:5,50 or 20*lognormal:120,0.6"
            ))
        })?;
        self.set("target.documents", text.into());
        Ok(())
    }

    /// Sets a mix of models: one class of requests per model, with the scenario's own sizes and prompts.
    fn models(&mut self, text: &str) -> CliResult<()> {
        if self.has("classes") {
            return Err(Stop::usage("--models: the scenario has classes; set a model in each class"));
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

    /// Sets the client's behaviour from flags.
    pub fn client(&mut self, args: &ClientArgs) -> CliResult<()> {
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
        self.set_some("target.http", args.http.as_deref());
        self.set_some("target.streams_per_connection", args.streams_per_connection);
        self.set_some("client.timeouts.total", args.timeout.clone());
        self.set_some("client.timeouts.first_token", args.first_token_timeout.clone());
        self.set_some("client.timeouts.idle", args.idle_timeout.clone());
        self.set_some("client.retries.max", args.retries);
        self.set_some("client.cancel.share", args.cancel);
        self.set_some("client.max_in_flight", args.max_in_flight);
        self.set_some("client.before_level", args.before_level.as_deref());
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

    /// Sets the metrics that are read from the server.
    pub fn scrape(&mut self, args: &ScrapeArgs) -> CliResult<()> {
        self.set_some("scrape.every", args.scrape_every.clone());
        let word = args.scrape.iter().find(|page| matches!(page.as_str(), "off" | "endpoint"));
        if let Some(word) = word.filter(|_| args.scrape.len() > 1) {
            return Err(Stop::usage(format!(
                "--scrape {word}: contradicts another --scrape; drop one of the two"
            )));
        }
        match word.map(String::as_str) {
            Some("off") => self.set("scrape.discover", false.into()),
            Some(_) => self.set("scrape.ports", json!([])),
            None if args.scrape.is_empty() => {}
            None => self.set("scrape.pages", args.scrape.clone().into()),
        }
        Ok(())
    }

    /// Sets the load and the arrival process of `plimsoll run`. Must be called last, because it reads `--set` and the file.
    pub fn load(&mut self, args: &LoadArgs, trace: bool) -> CliResult<()> {
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
        if args.requests.is_some() && matches!(self.mode(), "open" | "wave") {
            return Err(Stop::usage(
                "--requests: ends only a closed loop (--concurrency, --saturate); an open loop ends after a time: --for 60s",
            ));
        }
        if let Some(requests) = args.requests {
            self.set("load.requests", requests.into());
            // The default window is raised, because it would cut off a load that ends by its number of requests.
            self.set("load.window", plimsoll_workload::format_span(LONGEST).into());
        }
        self.set_some("load.warm_up", args.warm_up);
        self.set_some("load.alone", args.alone);
        self.set_some("load.rate", args.rate.clone());
        if let Some(text) = &args.duration {
            plimsoll_workload::parse_span(text)
                .map_err(|e| Stop::usage(format!("--for: {e}{}", unit(text))))?;
            self.set("load.window", text.clone().into());
        }
        if self.has("load") && !self.has("load.mode") {
            self.set("load.mode", "open".into());
        }
        Ok(())
    }

    /// Returns whether the value at a path is set and not null.
    pub fn has(&self, path: &str) -> bool {
        self.get(path).is_some_and(|value| !value.is_null())
    }

    /// Returns the value at a dotted path.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.0.pointer(&format!("/{}", path.replace('.', "/")))
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }

    fn mode(&self) -> &str {
        self.0.pointer("/load/mode").and_then(Value::as_str).unwrap_or("open")
    }

    /// Sets the defaults of a rerank or score request.
    fn settle_documents(&mut self) {
        if !self.has("target.documents") {
            self.set("target.documents", Documents::usual().to_string().into());
        }
        let own = self.text("target.documents").is_some_and(|law| law.contains('*'));
        if own && !self.has("sizes.prompt") && !self.has("sizes.pairs") {
            self.set("sizes.prompt", QUERY_TOKENS.into());
        }
    }

    /// Checks the scenario and reads the files that it names. Uses `nonce` if the scenario sets none.
    pub fn finish(self, nonce: u64) -> CliResult<Scenario> {
        self.finish_with(nonce, |name| std::fs::read(name).map_err(|e| e.to_string()))
    }

    /// Checks the scenario like [`Draft::finish`], but reads files with `read`.
    pub fn finish_with(
        mut self,
        nonce: u64,
        read: impl FnMut(&str) -> Result<Vec<u8>, String>,
    ) -> CliResult<Scenario> {
        if self.0.pointer("/nonce").is_none_or(Value::is_null) {
            self.set("nonce", nonce.into());
        }
        // All headers are checked here (--header, --set, a file), because the scenario is written to disk.
        let headers = self.get("target.headers").and_then(Value::as_object);
        for (name, value) in headers.into_iter().flatten() {
            no_secret(name, value.as_str().unwrap_or_default())?;
        }
        let further = self.get("target.further_urls").and_then(Value::as_array);
        further.into_iter().flatten().filter_map(Value::as_str).try_for_each(check_url)?;
        self.text("target.token.url").map_or(Ok(()), check_url)?;
        tensors::over_grpc(&mut self);
        let named = self.text("target.protocol").and_then(Protocol::from_name);
        self.set_some("target.protocol", named.map(Protocol::name));
        if named.is_some_and(|protocol| !protocol.pins_length()) && !self.has("target.ignore_eos") {
            // Servers of this protocol do not know the field, and strict ones reject it.
            self.set("target.ignore_eos", false.into());
        }
        if named.is_some_and(|protocol| protocol.carries() == Carries::Documents) {
            self.settle_documents();
        }
        if named.is_some_and(|protocol| protocol.carries() == Carries::Sound) && !self.has("prompts.audio") {
            let usual = serde_json::to_value(AudioSpec::default()).unwrap_or_default();
            self.set("prompts.audio", usual);
        }
        let generates_media = matches!(named, Some(Protocol::Speech | Protocol::Images));
        if generates_media && !self.has("sizes.prompt") && !self.has("sizes.pairs") {
            self.set("sizes.prompt", MEDIA_TOKENS.into());
        }
        let is_kserve = named.is_some_and(|protocol| protocol.carries() == Carries::Tensors);
        if is_kserve {
            tensors::settle(&mut self)?;
        }
        let mut scenario = Scenario::from_json(&self.0).map_err(usage)?;
        if is_kserve {
            tensors::check(&scenario)?;
        }
        // The request has no length if nothing is generated or the template fixes the length.
        let template = scenario.target.body_template.as_deref();
        let is_fixed = template.is_some_and(|text| !text.contains("{{max_tokens}}"));
        let protocol = scenario.target.protocol;
        if !protocol.takes_output_length() || is_fixed {
            scenario.sizes.output = Size::Fixed(0);
        }
        scenario.attach(read).map_err(usage)?;
        Ok(scenario)
    }
}

/// Refuses a header with a literal secret, because its value may only name a variable.
fn no_secret(name: &str, value: &str) -> CliResult<()> {
    match SECRET_HEADERS.contains(&name.to_ascii_lowercase().as_str()) && !value.contains('$') {
        true => Err(Stop::usage(format!(
            "header {name}: put the secret into an environment variable and write '{name}: $NAME', or use --key-env"
        ))),
        false => Ok(()),
    }
}

fn usage(error: SpecError) -> Stop {
    Stop::usage(error.to_string())
}

/// Reads a file that contains a mapping, as JSON; an empty file is an empty mapping.
pub fn mapping(path: &Path, what: &str) -> CliResult<Value> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(&name, &e))?;
    let value: Value = serde_saphyr::from_str(&text)
        .map_err(|e| Stop::usage(format!("{name}{}", crate::yaml::wrong(&e))))?;
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => Ok(json!({})),
        _ => Err(Stop::usage(format!("{name}: a {what} is a mapping (see: plimsoll schema {what})"))),
    }
}

/// Returns a suggestion for a number without a unit of time.
fn unit(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(_) => format!("; a number needs its unit: {text}s, {text}m"),
        Err(_) => String::new(),
    }
}
