//! The tools: their typed parameters, and the command line that each becomes.
//!
//! Each value follows `=` in the same argument, so a text that starts with `-` remains a value. No parameter is a flag.

use std::path::{Path, PathBuf};

use rmcp::model::{Tool, ToolAnnotations};
use schemars::{JsonSchema, schema_for};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::caps::{AllowedHosts, LoadAsk};
use crate::budget_file;
use crate::commands::docs;

/// Maximum number of requests in one simulation.
const SIMULATED_REQUESTS: u64 = 1_000_000;

/// Maximum simulated time in seconds: one day.
const SIMULATED_S: f64 = 24.0 * 3600.0;

/// Tokens of a prompt if a call names none, as for `plimsoll run`.
const PROMPT_TOKENS: u32 = 128;

/// Tokens of an answer if a call names none.
const OUTPUT_TOKENS: u32 = 64;

/// The server's settings that tools read.
pub struct ToolContext {
    pub runs: PathBuf,
    pub hosts: AllowedHosts,
    /// Words of the credentials and the price.
    pub target_words: Vec<String>,
}

#[derive(Debug)]
pub enum Job {
    /// A text of this process.
    Text(String),
    Command(CommandJob),
}

#[derive(Debug, Default)]
pub struct CommandJob {
    pub words: Vec<String>,
    /// Load on a host; `None` for commands that send nothing.
    pub load: Option<LoadAsk>,
    /// Whether it uses the processor for long: only one load or simulation runs at a time.
    pub is_heavy: bool,
    /// Kind of the run folder that it creates.
    pub creates: Option<&'static str>,
    /// Run folders that it reads.
    pub reads: Vec<PathBuf>,
    /// Path of the part of `data` to return.
    pub path: Option<String>,
    /// Number of items of a list to return.
    pub items: Option<usize>,
}

type Build = Box<dyn Fn(Value, &ToolContext) -> Result<Job, String> + Send + Sync>;

/// A tool: its description for clients, and the work of a call.
pub struct ToolEntry {
    pub tool: Tool,
    /// Returns the work for parameters.
    pub build: Build,
}

/// Effect of a tool on the world.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Effect {
    Reads,
    /// Creates a run by simulation.
    Simulates,
    Loads,
}

/// Returns all tools in the order of a reader's work.
pub fn all() -> Vec<ToolEntry> {
    vec![
        entry("list_runs", Effect::Reads, "Lists the recorded runs, newest first.", list_runs),
        entry(
            "show",
            Effect::Reads,
            "Shows the result of a run: verdict of the measurement, figures with intervals, levels. Use path for a part of data, such as findings.levels.0.summary.",
            show,
        ),
        entry(
            "gate",
            Effect::Reads,
            "Judges a recorded run against SLOs or a budget file: pass, broken, inconclusive or invalid.",
            gate,
        ),
        entry(
            "compare",
            Effect::Reads,
            "Compares two runs of the same load: regressed, improved, no_change or inconclusive.",
            compare,
        ),
        entry("diagnose", Effect::Reads, "Finds the slow layer in a recorded run, with evidence.", diagnose),
        entry("profile", Effect::Reads, "Splits the request time of a run into stages.", profile),
        entry(
            "plan",
            Effect::Reads,
            "Finds the replicas that carry a load within SLOs, from a recorded run, by simulation.",
            plan,
        ),
        entry(
            "explain_metric",
            Effect::Reads,
            "Explains how a figure or term of the results is computed, from the manual.",
            explain,
        ),
        entry("schema", Effect::Reads, "Returns the JSON Schema of a file or an output.", schema),
        entry(
            "simulate",
            Effect::Simulates,
            "Sends a load to a simulated engine in virtual time. Sends nothing to a host.",
            simulate,
        ),
        entry(
            "smoke",
            Effect::Loads,
            "Checks whether an endpoint answers: one request at a time for some seconds.",
            smoke,
        ),
        entry(
            "run",
            Effect::Loads,
            "Sends one load to an endpoint and measures it. Give rate or concurrency.",
            run,
        ),
        entry("sweep", Effect::Loads, "Finds the load that an endpoint carries within SLOs.", sweep),
        entry(
            "gate_url",
            Effect::Loads,
            "Measures an endpoint until SLOs or a budget file are decided, and judges it.",
            gate_url,
        ),
    ]
}

fn entry<P: DeserializeOwned + JsonSchema + 'static>(
    name: &'static str,
    effect: Effect,
    about: &'static str,
    build: fn(P, &ToolContext) -> Result<Job, String>,
) -> ToolEntry {
    let mut schema = schema_for!(P).to_value();
    let mut schema = schema.as_object_mut().map(std::mem::take).unwrap_or_default();
    ["$schema", "title"].iter().for_each(|key| drop(schema.remove(*key)));
    let annotations = ToolAnnotations::new()
        .read_only(effect == Effect::Reads)
        .destructive(false)
        .open_world(effect == Effect::Loads);
    let about = match effect {
        Effect::Loads => {
            format!("{about} Sends load: only to hosts that the user allowed, and within the caps.")
        }
        _ => about.to_owned(),
    };
    let build = move |value: Value, context: &ToolContext| {
        let params = serde_json::from_value(value).map_err(|e| format!("{name}: {e}"))?;
        build(params, context)
    };
    ToolEntry { tool: Tool::new(name, about, schema).with_annotations(annotations), build: Box::new(build) }
}

/// Input parameters of the tool `list_runs`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListParams {
    /// Highest number of runs [default: 20].
    limit: Option<u32>,
}

fn list_runs(params: ListParams, context: &ToolContext) -> Result<Job, String> {
    let items = Some(params.limit.unwrap_or(20) as usize);
    Ok(Job::Command(CommandJob { items, ..command(&["ls", &folder(context)]) }))
}

/// Input parameters of the tool `show`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowParams {
    /// Run folder, as list_runs returns it.
    run: String,
    /// Part of data to return, such as findings.levels.0.summary.latency.
    path: Option<String>,
}

fn show(params: ShowParams, context: &ToolContext) -> Result<Job, String> {
    let run = run_at(&params.run, context)?;
    Ok(Job::Command(CommandJob { path: params.path, ..reading(&["show", &text(&run)], vec![run]) }))
}

/// Input parameters of the tool `gate`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GateParams {
    /// Run folder, as a path or a name.
    run: String,
    /// SLOs, such as "ttft p99 < 500ms" or "errors < 1%".
    #[serde(default)]
    slo: Vec<String>,
    /// Budget file, in place of slo; below the working folder of the server.
    budget: Option<String>,
    /// Run folder of the baseline to compare with.
    baseline: Option<String>,
    /// Path of the part of `data` to return [default: all].
    path: Option<String>,
}

fn gate(params: GateParams, context: &ToolContext) -> Result<Job, String> {
    let run = run_at(&params.run, context)?;
    let mut job = reading(&["gate", &text(&run)], vec![run]);
    job.words.extend(judged_by(&params.slo, params.budget.as_deref())?);
    with_baseline(&mut job, params.baseline.as_deref(), context)?;
    Ok(Job::Command(CommandJob { path: params.path, ..job }))
}

/// Input parameters of the tool `compare`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CompareParams {
    /// Run folder of the measurement before the change.
    before: String,
    /// Run folder after the change, under the same load.
    after: String,
    /// Path of the part of `data` to return [default: all].
    path: Option<String>,
}

fn compare(params: CompareParams, context: &ToolContext) -> Result<Job, String> {
    let (before, after) = (run_at(&params.before, context)?, run_at(&params.after, context)?);
    let words = ["compare", &text(&before), &text(&after)].map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok(Job::Command(CommandJob { path: params.path, ..reading(&words, vec![before, after]) }))
}

/// Input parameters of the tools `diagnose` and `profile`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExplainParams {
    /// Run folder, as a path or a name.
    run: String,
    /// Run folder of the baseline to compare with.
    baseline: Option<String>,
    /// Path of the part of `data` to return [default: all].
    path: Option<String>,
}

fn diagnose(params: ExplainParams, context: &ToolContext) -> Result<Job, String> {
    explained("diagnose", params, context)
}

fn profile(params: ExplainParams, context: &ToolContext) -> Result<Job, String> {
    explained("profile", params, context)
}

fn explained(name: &str, params: ExplainParams, context: &ToolContext) -> Result<Job, String> {
    let run = run_at(&params.run, context)?;
    let mut job = reading(&[name, &text(&run)], vec![run]);
    with_baseline(&mut job, params.baseline.as_deref(), context)?;
    Ok(Job::Command(CommandJob { path: params.path, ..job }))
}

/// Input parameters of the tool `plan`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanParams {
    /// Run folder that supplies lengths and engine.
    run: String,
    /// Planned arrivals per second at the mean load.
    rate_per_s: f64,
    /// SLOs, such as "ttft p99 < 500ms".
    slo: Vec<String>,
    /// Peak load as a multiple of the mean.
    peak: Option<f64>,
    /// Replicas that may fail at the peak.
    spare: Option<u32>,
    /// Price for the cost of the plan, such as 2.49USD/gpu-hour.
    price: Option<String>,
    /// Path of the part of `data` to return [default: all].
    path: Option<String>,
}

fn plan(params: PlanParams, context: &ToolContext) -> Result<Job, String> {
    let run = run_at(&params.run, context)?;
    let mut job = reading(&["plan", &format!("--from={}", text(&run))], vec![run]);
    job.words.push(format!("--rate={}/s", positive("rate_per_s", params.rate_per_s)?));
    job.words.extend(judged_by(&params.slo, None)?);
    if let Some(peak) = params.peak {
        job.words.push(format!("--peak={}x", positive("peak", peak)?));
    }
    job.words.extend(params.spare.map(|spare| format!("--spare={spare}")));
    if let Some(price) = params.price {
        no_file("price", &price)?;
        job.words.push(format!("--price={price}"));
    }
    Ok(Job::Command(CommandJob { is_heavy: true, path: params.path, ..job }))
}

/// Input parameters of the tool `explain_metric`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MetricParams {
    /// Name as results show it, such as ttft, tpot, itl, n_eff or trust.
    metric: String,
}

fn explain(params: MetricParams, _: &ToolContext) -> Result<Job, String> {
    docs::passages(&params.metric).map(Job::Text)
}

/// Input parameters of the tool `schema`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SchemaParams {
    /// File or output, such as answer, findings, gate, budget, scenario or progress.
    of: String,
    /// Part of the schema to return, such as properties.levels.
    path: Option<String>,
}

fn schema(params: SchemaParams, _: &ToolContext) -> Result<Job, String> {
    Ok(Job::Command(CommandJob { path: params.path, ..command(&["schema", &name("of", &params.of)?]) }))
}

/// The sizes of requests, in tokens.
#[derive(Deserialize, JsonSchema, Clone, Copy, Default)]
struct Sizes {
    /// Prompt tokens of a request [default: 128].
    prompt_tokens: Option<u32>,
    /// Output tokens of a request [default: 64].
    output_tokens: Option<u32>,
}

/// Input parameters of the tool `simulate`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SimulateParams {
    /// Engine, such as demo or llama-3.1-8b@h100 [default: demo].
    profile: Option<String>,
    /// Number of simulated replicas [default: 1].
    replicas: Option<u32>,
    /// Arrivals per second, as an open loop.
    rate_per_s: f64,
    /// Simulated time in seconds, up to one day.
    seconds: f64,
    /// Prompt tokens of a request [default: 128].
    prompt_tokens: Option<u32>,
    /// Output tokens of a request [default: 64].
    output_tokens: Option<u32>,
    /// SLOs that judge the load [default: none].
    #[serde(default)]
    slo: Vec<String>,
    /// Label of the run in lists [default: none].
    label: Option<String>,
}

fn simulate(params: SimulateParams, _: &ToolContext) -> Result<Job, String> {
    let (rate, seconds) = (positive("rate_per_s", params.rate_per_s)?, positive("seconds", params.seconds)?);
    let requests = rate * seconds;
    if requests > SIMULATED_REQUESTS as f64 || seconds > SIMULATED_S {
        return Err(format!(
            "{requests:.0} requests in {seconds} s: a simulation has at most {SIMULATED_REQUESTS} requests and {SIMULATED_S} s; reduce the load"
        ));
    }
    let profile = params.profile.as_deref().unwrap_or("demo");
    no_file("profile", profile)?;
    let mut job = command(&["simulate", &format!("--profile={profile}"), &format!("--rate={rate}/s")]);
    job.words.push(format!("--for={seconds}s"));
    job.words.extend(params.replicas.map(|n| format!("--replicas={n}")));
    let sizes = Sizes { prompt_tokens: params.prompt_tokens, output_tokens: params.output_tokens };
    job.words.extend(sizes.words());
    job.words.extend(limits(&params.slo)?);
    job.words.extend(label(params.label));
    Ok(Job::Command(CommandJob { is_heavy: true, creates: Some("simulate"), ..job }))
}

/// Input parameters of the tool `smoke`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SmokeParams {
    /// Base URL of the endpoint, such as http://host:8000/v1.
    url: String,
    /// Time of the load, s [default: 10].
    seconds: Option<f64>,
    /// Model name [default: the only model of the endpoint].
    model: Option<String>,
    /// Protocol, such as chat, completions, responses, embeddings or messages [default: chat].
    protocol: Option<String>,
    /// Label of the run in lists [default: none].
    label: Option<String>,
}

fn smoke(params: SmokeParams, context: &ToolContext) -> Result<Job, String> {
    let seconds = positive("seconds", params.seconds.unwrap_or(10.0))?;
    let target = Target { model: params.model, protocol: params.protocol };
    let mut job = loading("run", &params.url, &target, context)?;
    job.words.extend(["--smoke".to_owned(), format!("--for={seconds}s")]);
    job.words.extend(Sizes::default().words());
    job.words.extend(label(params.label));
    Ok(load(job, "smoke", Sizes::default().ask(None, seconds, 1)))
}

/// Input parameters of the tool `run`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunParams {
    /// Base URL of the endpoint, such as http://host:8000/v1.
    url: String,
    /// Open loop: arrivals per second. Use it for latency.
    rate_per_s: Option<f64>,
    /// Closed loop: requests in flight. Use it for throughput.
    concurrency: Option<u32>,
    /// Time of the load, s [default: 60].
    seconds: Option<f64>,
    /// Prompt tokens of a request [default: 128].
    prompt_tokens: Option<u32>,
    /// Output tokens of a request [default: 64].
    output_tokens: Option<u32>,
    /// Sequential requests before an open loop, which diagnose and profile use for the time without load.
    isolated_requests: Option<u32>,
    /// SLOs that judge the load, such as "ttft p99 < 500ms".
    #[serde(default)]
    slo: Vec<String>,
    /// Failed requests that stop the load [default: 100].
    max_errors: Option<u64>,
    /// Model name [default: the only model of the endpoint].
    model: Option<String>,
    /// Protocol, such as chat, completions, responses, embeddings or messages [default: chat].
    protocol: Option<String>,
    /// Label of the run in lists [default: none].
    label: Option<String>,
}

fn run(params: RunParams, context: &ToolContext) -> Result<Job, String> {
    let seconds = positive("seconds", params.seconds.unwrap_or(60.0))?;
    let isolated = params.isolated_requests.unwrap_or(0);
    let target = Target { model: params.model, protocol: params.protocol };
    let mut job = loading("run", &params.url, &target, context)?;
    let (requests, in_flight) = match (params.rate_per_s, params.concurrency) {
        (Some(rate), None) => {
            let rate = positive("rate_per_s", rate)?;
            job.words.push(format!("--rate={rate}/s"));
            (Some((rate * seconds).ceil() as u64 + u64::from(isolated)), 0)
        }
        (None, Some(n)) if isolated == 0 => {
            job.words.push(format!("--concurrency={n}"));
            (None, n)
        }
        (None, Some(_)) => {
            return Err("isolated_requests: only before an open loop; give rate_per_s".to_owned());
        }
        _ => return Err("give rate_per_s for an open loop, or concurrency for a closed loop".to_owned()),
    };
    job.words.push(format!("--for={seconds}s"));
    job.words.extend((isolated > 0).then(|| format!("--alone={isolated}")));
    job.words.push(format!("--max-errors={}", params.max_errors.unwrap_or(100)));
    let sizes = Sizes { prompt_tokens: params.prompt_tokens, output_tokens: params.output_tokens };
    job.words.extend(sizes.words());
    job.words.extend(limits(&params.slo)?);
    job.words.extend(label(params.label));
    Ok(load(job, "run", sizes.ask(requests, seconds, in_flight)))
}

/// Input parameters of the tool `sweep`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SweepParams {
    /// Base URL of the endpoint, such as http://host:8000/v1.
    url: String,
    /// Longest time of the whole sweep, min [default: 10].
    minutes: Option<f64>,
    /// Highest rate to offer, per second.
    max_rate_per_s: f64,
    /// SLOs of the load to find, such as "ttft p99 < 500ms".
    #[serde(default)]
    slo: Vec<String>,
    /// Prompt tokens of a request [default: 128].
    prompt_tokens: Option<u32>,
    /// Output tokens of a request [default: 64].
    output_tokens: Option<u32>,
    /// Failed requests that stop the load [default: 100].
    max_errors: Option<u64>,
    /// Model name [default: the only model of the endpoint].
    model: Option<String>,
    /// Protocol, such as chat, completions, responses, embeddings or messages [default: chat].
    protocol: Option<String>,
    /// Label of the run in lists [default: none].
    label: Option<String>,
}

fn sweep(params: SweepParams, context: &ToolContext) -> Result<Job, String> {
    let seconds = 60.0 * positive("minutes", params.minutes.unwrap_or(10.0))?;
    let target = Target { model: params.model, protocol: params.protocol };
    let mut job = loading("sweep", &params.url, &target, context)?;
    job.words.push(format!("--time={seconds}s"));
    job.words.push(format!("--max-rate={}/s", positive("max_rate_per_s", params.max_rate_per_s)?));
    job.words.push(format!("--max-errors={}", params.max_errors.unwrap_or(100)));
    let sizes = Sizes { prompt_tokens: params.prompt_tokens, output_tokens: params.output_tokens };
    job.words.extend(sizes.words());
    job.words.extend(limits(&params.slo)?);
    job.words.extend(label(params.label));
    Ok(load(job, "sweep", sizes.ask(None, seconds, 0)))
}

/// Input parameters of the tool `gate_url`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GateUrlParams {
    /// Base URL of the endpoint, such as http://host:8000/v1.
    url: String,
    /// Arrivals per second, as an open loop.
    rate_per_s: f64,
    /// Longest time of the measurement, min; it ends earlier if every SLO is decided.
    max_minutes: f64,
    /// SLOs, such as "ttft p99 < 500ms" or "errors < 1%".
    #[serde(default)]
    slo: Vec<String>,
    /// Budget file, in place of slo; below the working folder of the server.
    budget: Option<String>,
    /// Run folder of the baseline to compare with.
    baseline: Option<String>,
    /// Prompt tokens of a request [default: 128].
    prompt_tokens: Option<u32>,
    /// Output tokens of a request [default: 64].
    output_tokens: Option<u32>,
    /// Failed requests that stop the load [default: 100].
    max_errors: Option<u64>,
    /// Model name [default: the only model of the endpoint].
    model: Option<String>,
    /// Protocol, such as chat, completions, responses, embeddings or messages [default: chat].
    protocol: Option<String>,
}

fn gate_url(params: GateUrlParams, context: &ToolContext) -> Result<Job, String> {
    let (rate, seconds) =
        (positive("rate_per_s", params.rate_per_s)?, 60.0 * positive("max_minutes", params.max_minutes)?);
    let target = Target { model: params.model, protocol: params.protocol };
    let mut job = loading("gate", &params.url, &target, context)?;
    if let Some(budget) = &params.budget {
        names_no_scenario(budget)?;
    }
    job.words.extend(judged_by(&params.slo, params.budget.as_deref())?);
    job.words.extend(["--until-decided".to_owned(), format!("--max={seconds}s"), format!("--rate={rate}/s")]);
    job.words.push(format!("--max-errors={}", params.max_errors.unwrap_or(100)));
    let sizes = Sizes { prompt_tokens: params.prompt_tokens, output_tokens: params.output_tokens };
    job.words.extend(sizes.words());
    with_baseline(&mut job, params.baseline.as_deref(), context)?;
    Ok(load(job, "gate", sizes.ask(Some((rate * seconds).ceil() as u64), seconds, 0)))
}

/// Model and protocol of an endpoint.
struct Target {
    model: Option<String>,
    protocol: Option<String>,
}

impl Sizes {
    fn words(self) -> [String; 2] {
        let (prompt, output) = self.tokens();
        [format!("--isl={prompt}"), format!("--osl={output}")]
    }

    fn tokens(self) -> (u32, u32) {
        (self.prompt_tokens.unwrap_or(PROMPT_TOKENS), self.output_tokens.unwrap_or(OUTPUT_TOKENS))
    }

    fn ask(self, requests: Option<u64>, seconds: f64, in_flight: u32) -> LoadAsk {
        let (prompt_tokens, output_tokens) = self.tokens();
        LoadAsk { requests, prompt_tokens, output_tokens, seconds, in_flight }
    }
}

fn command(words: &[&str]) -> CommandJob {
    CommandJob { words: words.iter().map(|word| (*word).to_owned()).collect(), ..CommandJob::default() }
}

fn reading(words: &[&str], reads: Vec<PathBuf>) -> CommandJob {
    CommandJob { reads, ..command(words) }
}

/// Returns a command on an endpoint, if its host may be loaded.
fn loading(name_of: &str, url: &str, target: &Target, context: &ToolContext) -> Result<CommandJob, String> {
    context.hosts.check(url)?;
    let mut job = command(&[name_of, url]);
    job.words.extend(target.model.iter().map(|model| format!("--model={model}")));
    if let Some(protocol) = &target.protocol {
        job.words.push(format!("--protocol={}", name("protocol", protocol)?));
    }
    job.words.extend(context.target_words.iter().cloned());
    Ok(job)
}

fn load(job: CommandJob, creates: &'static str, ask: LoadAsk) -> Job {
    Job::Command(CommandJob { load: Some(ask), is_heavy: true, creates: Some(creates), ..job })
}

fn label(label: Option<String>) -> Option<String> {
    label.map(|label| format!("--label={label}"))
}

/// Returns the words of SLOs. A limit has a `<`, so that no file name is one.
fn limits(slo: &[String]) -> Result<Vec<String>, String> {
    let word = |slo: &String| match slo.contains('<') {
        true => Ok(format!("--slo={slo}")),
        false => Err(format!("slo {slo}: no limit; write \"ttft p99 < 500ms\"")),
    };
    slo.iter().map(word).collect()
}

/// Returns the words of SLOs or a budget file.
fn judged_by(slo: &[String], budget: Option<&str>) -> Result<Vec<String>, String> {
    match (slo.is_empty(), budget) {
        (false, None) => limits(slo),
        (true, Some(budget)) => Ok(vec![format!("--budget={}", text(&budget_at(budget)?))]),
        _ => Err("give slo, such as [\"ttft p99 < 500ms\"], or budget".to_owned()),
    }
}

/// Returns the budget file, if it is below the working folder.
fn budget_at(budget: &str) -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|e| e.to_string())?;
    inside(&here, &here.join(budget))
        .ok_or_else(|| format!("budget {budget}: no file below the working folder of the server"))
}

/// Refuses a budget file with its own scenario, because the caps know only the sizes of the call.
fn names_no_scenario(budget: &str) -> Result<(), String> {
    let file = budget_file::read(&budget_at(budget)?).map_err(|stop| stop.line)?.file;
    match file.load.and_then(|load| load.scenario) {
        Some(name) => Err(format!(
            "budget {budget}: names the scenario {name}, whose load the caps do not know; remove load.scenario"
        )),
        None => Ok(()),
    }
}

fn with_baseline(job: &mut CommandJob, baseline: Option<&str>, context: &ToolContext) -> Result<(), String> {
    if let Some(name) = baseline {
        let run = run_at(name, context)?;
        job.words.push(format!("--baseline={}", text(&run)));
        job.reads.push(run);
    }
    Ok(())
}

/// Returns the folder of a run, if it is below the folder of the runs. A run is named as tools return it, or only by its folder's name.
fn run_at(run: &str, context: &ToolContext) -> Result<PathBuf, String> {
    let candidates = [context.runs.join(run), PathBuf::from(run)];
    let found = candidates.iter().find_map(|path| inside(&context.runs, path).map(|_| path.clone()));
    found.ok_or_else(|| format!("{run}: no run below {}; list_runs lists them", context.runs.display()))
}

/// Returns the path without links, if it exists below the folder.
fn inside(folder: &Path, path: &Path) -> Option<PathBuf> {
    let (folder, path) = (folder.canonicalize().ok()?, path.canonicalize().ok()?);
    (path != folder && path.starts_with(&folder)).then_some(path)
}

fn folder(context: &ToolContext) -> String {
    text(&context.runs)
}

/// Returns a path as a word that no parser takes for a flag.
fn text(path: &Path) -> String {
    let text = path.display().to_string();
    if text.starts_with('-') { format!("./{text}") } else { text }
}

/// Returns a name that is one plain word.
fn name(key: &str, value: &str) -> Result<String, String> {
    let is_plain = !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_plain {
        Ok(value.to_owned())
    } else {
        Err(format!("{key} {value}: no name of letters, digits and _"))
    }
}

/// Refuses a value that its command would read as a file.
fn no_file(key: &str, value: &str) -> Result<(), String> {
    let is_file =
        [".yaml", ".yml", ".json"].iter().any(|end| value.ends_with(end)) || Path::new(value).exists();
    if is_file { Err(format!("{key} {value}: a file; give a name or a value")) } else { Ok(()) }
}

fn positive(key: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(format!("{key} {value}: must be above 0")) }
}
