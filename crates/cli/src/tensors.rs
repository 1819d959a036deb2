//! Resolves a KServe target: the model's name from the path, rows instead of tokens, and the model's input tensors.
//!
//! Everything learnt is written into the scenario, so the manifest and the command that repeats the run contain it.
//! A separate mode next to the scenario was rejected, because sweeps, schedules and reports would each depend on it.

use plimsoll_client::probe::ProbedModel;
use plimsoll_model::{Carries, Protocol, SizeUnit};
use plimsoll_wire::kserve;
use plimsoll_workload::{ClassSpec, Scenario, TensorEncoding};
use serde_json::{Value, json};

use crate::exit::Stop;
use crate::flags::{ClientArgs, WorkloadArgs};
use crate::resolve::Draft;

/// A parsed KServe URL: `http://host:8000`, `…/v2`, `…/v2/models/NAME[/versions/V][/infer]`, also with `grpc://`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KserveUrl {
    /// URL up to and including `/v2`; for gRPC up to the port.
    pub base: String,
    /// Model in the path; `None` if the path names none.
    pub model: Option<String>,
    /// Version in the path; `None` if the path names none.
    pub version: Option<String>,
}

impl KserveUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// The path below `/v2` is not the path of a model.
    pub fn read(url: &str) -> Result<KserveUrl, Stop> {
        let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
        let authority = path.find("://").map_or(0, |at| at + 3);
        let root = path[authority..].find('/').map_or(path.len(), |at| authority + at);
        let below = path[root..].trim_end_matches('/');
        let grpc = is_grpc(url);
        let base = |end: usize| {
            let query = query.map(|query| format!("?{query}")).unwrap_or_default();
            // The path of a gRPC call is its service and method, without a base path.
            if grpc {
                path[..root].to_owned()
            } else {
                format!("{}{}/v2{query}", &path[..root], &below[..end])
            }
        };
        if grpc && !below.is_empty() && !below.starts_with("/v2/") && below != "/v2" {
            return Err(Stop::usage(format!(
                "{url}: write grpc://HOST:PORT or grpc://HOST:PORT/v2/models/NAME"
            )));
        }
        let Some(at) = (below.to_owned() + "/").find("/v2/") else {
            return Ok(KserveUrl { base: base(below.len()), model: None, version: None });
        };
        let rest: Vec<&str> = below[at + 3..].split('/').filter(|part| !part.is_empty()).collect();
        let (model, version) = match rest[..] {
            [] => (None, None),
            ["models", name] | ["models", name, "infer"] => (Some(name), None),
            ["models", name, "versions", version] | ["models", name, "versions", version, "infer"] => {
                (Some(name), Some(version))
            }
            _ => {
                return Err(Stop::usage(format!(
                    "{url}: write http://HOST:PORT/v2 or http://HOST:PORT/v2/models/NAME"
                )));
            }
        };
        Ok(KserveUrl { base: base(at), model: model.map(str::to_owned), version: version.map(str::to_owned) })
    }
}

/// Refuses tensor flags without a KServe target and token flags with one.
pub fn workload(draft: &mut Draft, args: &WorkloadArgs) -> Result<(), Stop> {
    let given = [
        ("--isl", args.isl.is_some()),
        ("--osl", args.osl.is_some()),
        ("--prompts", args.prompts.is_some()),
        ("--prefix", args.prefix.is_some()),
        ("--sessions", args.sessions.is_some()),
    ];
    let is_kserve = draft.carries_tensors();
    let named = Protocol::from_name(draft.protocol());
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) if is_kserve => {
            return Err(Stop::usage(format!(
                "{flag}: a KServe request contains tensors, not tokens; set the rows with --batch"
            )));
        }
        Some((flag, _)) if named == Some(Protocol::Transcriptions) => {
            return Err(Stop::usage(format!(
                "{flag}: a transcription contains audio, not text; set its length with --audio"
            )));
        }
        _ if !is_kserve && (args.batch.is_some() || !args.shapes.is_empty()) => {
            let flag = if args.batch.is_some() { "--batch" } else { "--shape" };
            return Err(Stop::usage(format!("{flag}: only --protocol kserve and kserve_grpc send tensors")));
        }
        _ => {}
    }
    if args.osl.is_some() && named.is_some_and(|protocol| !protocol.takes_output_length()) {
        let protocol = draft.protocol();
        return Err(Stop::usage(format!("--osl: {protocol} requests set no output length; drop this flag")));
    }
    if let Some(batch) = &args.batch {
        draft.set("sizes.prompt", batch.clone().into());
    }
    for text in &args.shapes {
        let bad = || Stop::usage(format!("--shape {text}: write INPUT=LENGTH,… such as INPUT_IDS=384"));
        let (name, lengths) = text.split_once('=').ok_or_else(bad)?;
        let lengths: Result<Vec<u32>, _> = lengths.split(',').map(|part| part.trim().parse()).collect();
        draft.set_in("target.tensors.shapes", name.trim(), json!(lengths.map_err(|_| bad())?));
    }
    Ok(())
}

/// Refuses client flags that depend on tokens.
pub fn client(draft: &Draft, args: &ClientArgs) -> Result<(), Stop> {
    if draft.protocol() != Protocol::Kserve.name() {
        // A response over gRPC may be a stream.
        return Ok(());
    }
    match (&args.first_token_timeout, args.cancel) {
        (Some(_), _) => {
            Err(Stop::usage("--first-token-timeout: a KServe answer is not streamed; use --timeout"))
        }
        (_, Some(_)) => Err(Stop::usage(
            "--cancel: a KServe answer is not streamed, so no client can cancel half-way; drop this flag",
        )),
        _ => Ok(()),
    }
}

/// Writes the consequences of a KServe target into the draft: the URL's parts, no streaming, one row by default.
pub fn settle(draft: &mut Draft) -> Result<(), Stop> {
    let url = draft.text("target.url").unwrap_or_default();
    // A simulated target has a name and no paths.
    let grpc = is_grpc(url);
    if draft.protocol() == Protocol::KserveGrpc.name() && url.starts_with("http") {
        return Err(Stop::usage(format!(
            "{url}: write grpc://HOST:PORT (with TLS grpcs://) for --protocol kserve_grpc"
        )));
    }
    let place = match url.starts_with("http") || grpc {
        true => KserveUrl::read(url)?,
        false => KserveUrl { base: url.to_owned(), model: None, version: None },
    };
    for (path, found, flag) in
        [("target.model", place.model, "--model"), ("target.version", place.version, "target.version")]
    {
        let Some(found) = found else { continue };
        if let Some(given) = draft.text(path).filter(|given| *given != found) {
            return Err(Stop::usage(format!("{flag} {given}: the URL names {found}")));
        }
        draft.set(path, found.into());
    }
    draft.set("target.url", place.base.into());
    further(draft)?;
    // A recorded run over gRPC that is repeated in simulation has whole batches, like every other simulated run.
    if !grpc {
        draft.set("target.protocol", Protocol::Kserve.name().into());
    }
    if !grpc || !draft.has("target.stream") {
        draft.set("target.stream", false.into());
    }
    no_body(draft, grpc)?;
    draft.set("target.ignore_eos", false.into());
    for path in ["prompts.file", "prompts.shared_prefix", "prompts.sessions", "sizes.pairs"] {
        if draft.has(path) {
            return Err(Stop::usage(format!("{path}: a KServe request carries tensors, not text")));
        }
    }
    if draft.has("arrivals.file") && !draft.has("arrivals.sizes") {
        // A trace's lengths are tokens, which tensors don't have, so only its times are used.
        draft.set("arrivals.sizes", "drawn".into());
    }
    if let Some(body) = draft.text("target.body_template") {
        let rows = kserve::rows(&body.replace("{{id}}", "id"))
            .map_err(|why| Stop::usage(format!("--body: no KServe inference request: {why}")))?;
        if draft.has("sizes.prompt") && draft.text("sizes.prompt") != Some(&rows.to_string()) {
            return Err(Stop::usage("--batch: the body of --body has its own rows; drop one of the two"));
        }
        draft.set("sizes.prompt", rows.to_string().into());
    }
    if !draft.has("sizes.prompt") {
        draft.set("sizes.prompt", "1".into());
    }
    draft.set("sizes.output", "0".into());
    Ok(())
}

/// Refuses settings that a request over gRPC can't contain, because it is not JSON.
fn no_body(draft: &Draft, grpc: bool) -> Result<(), Stop> {
    let extra = draft.get("target.extra").and_then(Value::as_object);
    let odd = extra.and_then(|fields| fields.keys().find(|name| *name != "parameters"));
    match (grpc, draft.has("target.body_template"), odd, draft.has("client.before_level")) {
        (true, true, ..) => {
            Err(Stop::usage("--body: a gRPC request is made of tensors; use --batch and --shape"))
        }
        (true, _, Some(name), _) => {
            Err(Stop::usage(format!("target.extra.{name}: a gRPC request accepts only `parameters`")))
        }
        (true, .., true) => Err(Stop::usage("--before-level: a gRPC port takes no HTTP request")),
        _ => Ok(()),
    }
}

/// Returns whether the URL names a gRPC endpoint.
fn is_grpc(url: &str) -> bool {
    url.starts_with("grpc://") || url.starts_with("grpcs://")
}

/// Sets the protocol, and the gRPC variant of KServe, for a URL that starts with `grpc`.
pub fn over_grpc(draft: &mut Draft) {
    let said = draft.text("target.protocol").map(Protocol::from_name);
    if matches!(said, None | Some(Some(Protocol::Kserve))) && draft.text("target.url").is_some_and(is_grpc) {
        draft.set("target.protocol", Protocol::KserveGrpc.name().into());
    }
}

/// Reduces the URLs of further endpoints to their bases; a URL that names a model must name the first endpoint's model.
fn further(draft: &mut Draft) -> Result<(), Stop> {
    let Some(urls) = draft.get("target.further_urls").and_then(Value::as_array) else { return Ok(()) };
    let mut bases = Vec::new();
    for url in urls.iter().filter_map(Value::as_str) {
        let place = KserveUrl::read(url)?;
        let said = [(place.model, "target.model"), (place.version, "target.version")];
        for (found, path) in said.into_iter().filter_map(|(found, path)| Some((found?, path))) {
            if draft.text(path) != Some(&found) {
                return Err(Stop::usage(format!(
                    "{url}: endpoints of one run serve one model, the first URL's"
                )));
            }
        }
        bases.push(Value::from(place.base));
    }
    draft.set("target.further_urls", bases.into());
    Ok(())
}

/// Refuses settings of the resolved scenario that no KServe request can express.
pub fn check(scenario: &Scenario) -> Result<(), Stop> {
    let odd = |class: &&ClassSpec| class.model.is_some() || class.prompts.is_some();
    match scenario.classes.iter().find(odd) {
        Some(class) => Err(Stop::usage(format!(
            "classes: {}: a KServe run sends tensors to one model; a class may set only sizes, a priority and a \
             queue_timeout",
            class.name
        ))),
        None => Ok(()),
    }
}

/// Fills in the model's metadata from the server.
pub fn learn(
    scenario: &mut Scenario,
    served: Option<ProbedModel>,
    words: &mut Vec<String>,
) -> Result<(), Stop> {
    let Some(ProbedModel { model, max_batch, binary, decoupled }) = served else { return Ok(()) };
    if decoupled && scenario.target.protocol == Protocol::KserveGrpc && !scenario.target.stream {
        // Streaming is required, because Triton refuses other requests for a decoupled model.
        scenario.target.stream = true;
        words.push(format!("{} is decoupled: responses are requested as a stream", model.name));
    }
    if scenario.target.body_template.is_some() {
        return Ok(());
    }
    let url = &scenario.target.url;
    if model.inputs.is_empty() && scenario.target.tensors.inputs.is_empty() {
        return Err(Stop::usage(format!(
            "{url} does not report the inputs of {}: set a request with --body FILE, or target.tensors.inputs in a scenario",
            model.name
        )));
    }
    let declared: Vec<_> =
        model.inputs.into_iter().map(|input| (input.name, input.datatype, input.shape)).collect();
    let tensors = &mut scenario.target.tensors;
    let notes = tensors.resolve(&declared, max_batch, &scenario.sizes.prompt);
    words.extend(notes.map_err(|e| Stop::usage(e.to_string()))?);
    let wanted = *tensors.encoding.get_or_insert(match binary {
        true => TensorEncoding::Binary,
        false => TensorEncoding::Json,
    });
    if wanted == TensorEncoding::Binary && !binary {
        words.push("the server does not list the binary tensor extension; requests use it anyway".into());
    }
    Ok(())
}

/// Refuses a price per token for tensors.
pub fn priced(scenario: &Scenario, per_token: bool) -> Result<(), Stop> {
    match scenario.target.protocol.counts() {
        SizeUnit::Items if per_token => Err(Stop::usage(
            "--price: a KServe request has no tokens; write a price per hour, such as 2.49USD/h",
        )),
        _ => Ok(()),
    }
}

impl Draft {
    /// Returns the name of the configured protocol; the default is chat.
    pub fn protocol(&self) -> &str {
        let said = self.text("target.protocol").unwrap_or(Protocol::Chat.name());
        Protocol::from_name(said).map_or(said, |known| known.name())
    }

    /// Returns whether the protocol's requests contain tensors.
    pub fn carries_tensors(&self) -> bool {
        Protocol::from_name(self.protocol()).is_some_and(|known| known.carries() == Carries::Tensors)
    }

    /// Sets a value under a key that may contain dots.
    fn set_in(&mut self, path: &str, key: &str, value: Value) {
        let mut map = self.get(path).and_then(Value::as_object).cloned().unwrap_or_default();
        map.insert(key.to_owned(), value);
        self.set(path, Value::Object(map));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart() {
        let read = |url: &str| {
            let place = KserveUrl::read(url).expect(url);
            (place.base, place.model.unwrap_or_default(), place.version.unwrap_or_default())
        };
        let want = |base: &str, model: &str, version: &str| (base.into(), model.into(), version.into());
        assert_eq!(read("http://h:8000"), want("http://h:8000/v2", "", ""));
        assert_eq!(read("http://h:8000/v2/"), want("http://h:8000/v2", "", ""));
        assert_eq!(read("http://h/v2/models/m"), want("http://h/v2", "m", ""));
        assert_eq!(read("http://h/v2/models/m/infer"), want("http://h/v2", "m", ""));
        assert_eq!(read("https://h/team/x/v2/models/m/versions/3"), want("https://h/team/x/v2", "m", "3"));
        assert_eq!(read("http://h/team?a=b"), want("http://h/team/v2?a=b", "", ""));
        assert_eq!(read("http://v2/v2x"), want("http://v2/v2x/v2", "", ""));
        assert_eq!(read("grpc://h:8001/v2/models/m/versions/3"), want("grpc://h:8001", "m", "3"));
        assert_eq!(read("grpcs://h/"), want("grpcs://h", "", ""));
        assert!(KserveUrl::read("http://h/v2/health").is_err());
        assert!(KserveUrl::read("grpc://h:8001/inference.GRPCInferenceService").is_err());
    }
}
