//! `plimsoll gateway` runs a streaming proxy in front of replicas until it is stopped.

pub mod again;
pub mod deadlines;
mod explain;
pub mod in_force;
pub mod record;
mod semantic;
mod traces;
mod trial;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_gateway::keys;
use plimsoll_gateway::pool::ReplicaStatus;
use plimsoll_gateway::stats::{ENDS, Stats};
use plimsoll_gateway::{
    Gateway, GatewayError, GatewaySpec, PickerSpec, RecordSpec, ReplicaRole, ReplicaSpec,
};
use plimsoll_policy::{ReplicaAvailability, RouteSpec};
use plimsoll_report::figure::counted;
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{GatewayAction, GatewayArgs, GatewayCommand, GatewayKeyArgs, OutputFormat};
use crate::out;
use crate::screen::KeyWatch;
use crate::yaml;
use again::ConfigReloader;
use deadlines::with_deadlines;
use record::{RecordEnd as Recorded, TrafficRecord};

/// Polling interval of the replica states.
const LOOK: Duration = Duration::from_millis(100);
/// Number of polls for which `check` waits for replicas.
const CHECK_LOOKS: u32 = 30;

/// Serves until it is stopped, or runs the selected subcommand.
pub fn run(command: &GatewayCommand) -> Result<Exit, Stop> {
    let args = match &command.action {
        None => &command.settings,
        Some(GatewayAction::Explain(args)) => {
            return explain::run(args.format, &args.run, args.request.as_deref());
        }
        Some(GatewayAction::Key(args)) => return fresh_key(args),
        Some(GatewayAction::Check(args)) => {
            let mut spec = asked(args, args.file.as_deref())?;
            // The check listens on no fixed port, because a running gateway may use the ports of this file.
            spec.listen.set_port(0);
            (spec.admin, spec.picker) = (None, None);
            return checked(args, &spec);
        }
    };
    let file = args.file.as_deref();
    serve(args, file, &asked(args, file)?)
}

fn started(spec: &GatewaySpec, clock: Clock, record: Option<&TrafficRecord>) -> Result<Gateway, Stop> {
    Gateway::recording(spec, clock, record.map(|record| &record.traffic)).map_err(|e| match e {
        GatewayError::System(_) => Stop::invalid(e.to_string()),
        other => Stop::usage(other.to_string()),
    })
}

fn serve(args: &GatewayArgs, file: Option<&str>, spec: &GatewaySpec) -> Result<Exit, Stop> {
    let clock = Clock::start();
    let record = TrafficRecord::start(spec, clock, args.quiet)?;
    let gateway = match started(spec, clock, record.as_ref()) {
        Ok(gateway) => gateway,
        Err(stop) => {
            record.map(TrafficRecord::end);
            return Err(stop);
        }
    };
    let ended = Arc::new(AtomicBool::new(false));
    let (stopper, on_stop) = (gateway.stopper(), Arc::clone(&ended));
    let _watch = KeyWatch::start(false, move || {
        on_stop.store(true, Ordering::SeqCst);
        stopper.stop();
    });
    let mut again = ConfigReloader::new(
        args,
        file,
        spec,
        gateway.reloader(),
        record.as_ref().map(|record| record.replicas.clone()),
    );
    // The first line on stdout is the address for a parent process; all other lines are for the user.
    out::line(&format!("{}://{}/v1", scheme(spec), gateway.addr));
    let say = |line: &str| {
        if !args.quiet {
            out::note(line);
        }
    };
    begins(&gateway, spec).iter().for_each(|line| say(line));
    let (pool, stats, shadows) =
        (Arc::clone(&gateway.pool), Arc::clone(&gateway.stats), gateway.shadows.clone());
    let on_trial =
        record.as_ref().and_then(|record| Some((record.trials.clone()?, Arc::clone(&record.traffic))));
    if let Some((trials, _)) = &on_trial {
        trial::lock(trials).resume(&pool).iter().for_each(|line| say(line));
    }
    let reloader = gateway.reloader();
    let mut near = semantic::SemanticWatch::default();
    let pools: Vec<_> = [Some(&pool), shadows.as_ref()].into_iter().flatten().cloned().collect();
    let (done, is_done) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        let ended = gateway.wait();
        let _ = done.send(());
        ended
    });
    let mut standings = vec![Standings::default(); pools.len()];
    while is_done.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
        if ended.load(Ordering::SeqCst) {
            continue;
        }
        again.tick().iter().for_each(|line| say(line));
        near.tick(&reloader).iter().for_each(|line| say(line));
        if let Some((trials, told)) = &on_trial {
            let lines = trial::lock(trials).tick(clock.now(), &pool, shadows.as_ref(), told);
            lines.iter().for_each(|line| say(line));
        }
        for (standings, pool) in standings.iter_mut().zip(&pools) {
            standings.look(&pool.shown().0).iter().for_each(|line| say(line));
        }
    }
    drop(on_trial);
    match waiting.join() {
        Ok(ended) => ended.map_err(|e| Stop::invalid(e.to_string()))?,
        Err(_) => return Err(Stop::invalid("the gateway's thread died")),
    }
    let recorded = record.map(TrafficRecord::end).filter(|_| spec.record.is_some());
    ends(&stats, recorded.as_ref(), args.format);
    match recorded.and_then(|recorded| recorded.error) {
        Some(error) => Err(Stop::invalid(format!("the record is not whole: {error}"))),
        None => Ok(Exit::Done),
    }
}

/// Returns the URL scheme of the gateway.
fn scheme(spec: &GatewaySpec) -> &'static str {
    if spec.tls.is_some() { "https" } else { "http" }
}

/// Returns the start-up messages, one per line.
fn begins(gateway: &Gateway, spec: &GatewaySpec) -> Vec<String> {
    let scheme = scheme(spec);
    let mut lines = Vec::new();
    let mut say = |line: String| lines.push(line);
    say(format!("in front of {}; Ctrl-C drains, twice stops immediately", in_front_of(spec)));
    if !gateway.addr.ip().is_loopback() && spec.keys.is_empty() {
        say(format!("any client that reaches {} is accepted: the file has no keys", gateway.addr));
    }
    if let Some(picker) = gateway.picker {
        let tls = spec.picker.as_ref().is_some_and(|picker| picker.tls.is_some());
        let scheme = if tls { "TLS" } else { "in the clear" };
        say(format!("endpoint picker for proxies at {picker} (Envoy's ext_proc, gRPC, {scheme})"));
        if !picker.ip().is_loopback() && spec.picker.as_ref().is_some_and(PickerSpec::is_open) {
            say(format!("any client that reaches {picker} can place requests: picker.tls has no client_ca"));
        }
    }
    let near = spec.cache.iter().flat_map(|cache| &cache.semantic);
    near.for_each(|near| say(semantic::plan(near)));
    match gateway.admin {
        Some(admin) => {
            let scheme = if admin.ip().is_loopback() { "http" } else { scheme };
            say(format!("/metrics, /v1/replicas, /v1/scale and /readyz on {scheme}://{admin}"));
        }
        None => say("no metrics are served; --admin 127.0.0.1:8081 serves them".to_owned()),
    }
    if let Some(budget) = &spec.budget {
        say(format!(
            "budget {}: state in plimsoll_gateway_budget_state, rows at /v1/budget",
            budget.display()
        ));
    }
    if let Some(record) = &spec.record {
        say(format!("every request is recorded, without its text, in runs under {}", record.dir.display()));
    }
    lines
}

/// Prints the numbers of requests by outcome.
fn ends(stats: &Stats, recorded: Option<&Recorded>, format: OutputFormat) {
    let retries = stats.retries.load(Ordering::Relaxed);
    match format {
        OutputFormat::Json => {
            let counts: serde_json::Map<String, serde_json::Value> =
                ENDS.iter().map(|(end, name)| ((*name).to_owned(), stats.ended(*end).into())).collect();
            out::json(&json!({
                "requests": stats.all(),
                "ends": counts,
                "retries": retries,
                "recorded": recorded.map(recorded_json),
            }));
        }
        OutputFormat::Text => {
            let parts: Vec<String> = ENDS
                .iter()
                .filter(|(end, _)| stats.ended(*end) > 0)
                .map(|(end, name)| format!("{} {}", stats.ended(*end), name.replace('_', " ")))
                .collect();
            let parts = if parts.is_empty() { "none".to_owned() } else { parts.join(", ") };
            out::line(&format!("Requests: {parts}; {retries} retries."));
            recorded.into_iter().for_each(|recorded| out::line(&recorded_line(recorded)));
        }
    }
}

/// The last known state of each replica, by replica id.
#[derive(Clone, Default)]
struct Standings(BTreeMap<u64, (String, ReplicaAvailability)>);

impl Standings {
    /// Returns a line for each change.
    fn look(&mut self, shown: &[ReplicaStatus]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut now = BTreeMap::new();
        for shown in shown {
            let name = &shown.replica.name;
            let before =
                self.0.remove(&shown.replica.id).map_or(ReplicaAvailability::Down, |(_, before)| before);
            // A trial request is an intermediate state that follows every ejection, so it is not reported.
            let standing = if shown.standing == ReplicaAvailability::Trial { before } else { shown.standing };
            if standing != before {
                lines.push(format!("replica {name}: {}", words(standing)));
            }
            now.insert(shown.replica.id, (name.clone(), standing));
        }
        let gone = std::mem::replace(&mut self.0, now);
        lines.extend(
            gone.into_values().map(|(name, ..)| format!("replica {name}: has ended and is forgotten")),
        );
        lines
    }
}

/// Formats the number of replicas: `3 replicas, 1 canary and 1 shadow`.
fn in_front_of(spec: &GatewaySpec) -> String {
    let count = |role| spec.of(role).count() as u64;
    let beside = [(ReplicaRole::Canary, "canary"), (ReplicaRole::Shadow, "shadow")];
    let beside = beside.into_iter().filter(|(role, _)| count(*role) > 0);
    let beside: Vec<String> =
        beside.map(|(role, what)| format!("{} in the role of a {what}", count(role))).collect();
    let serving = counted(count(ReplicaRole::Serve), "replica");
    if beside.is_empty() { serving } else { format!("{serving} and {}", beside.join(", ")) }
}

fn recorded_json(recorded: &Recorded) -> serde_json::Value {
    json!({"folder": recorded.dir, "requests": recorded.requests, "lost": recorded.lost})
}

fn recorded_line(recorded: &Recorded) -> String {
    let lost = match recorded.lost {
        0 => String::new(),
        lost => format!(", {lost} not, because the disk was too slow"),
    };
    let newest = match &recorded.dir {
        Some(dir) => format!("; newest run: {}", dir.display()),
        None => String::new(),
    };
    format!("Recorded: {}{lost}{newest}", counted(recorded.requests, "request"))
}

/// Creates an API key. The key is printed only once; its hash goes into the gateway file.
fn fresh_key(args: &GatewayKeyArgs) -> Result<Exit, Stop> {
    let id = args.name.as_str();
    if !keys::is_plain(id) {
        return Err(Stop::usage(format!("key {id:?}: write 1 to 64 letters, digits and -_.:@/")));
    }
    let (key, digest) = keys::fresh().map_err(|e| Stop::invalid(e.to_string()))?;
    match args.format {
        OutputFormat::Json => out::json(&json!({"id": id, "key": key, "sha256": digest.hex()})),
        OutputFormat::Text => {
            out::line(&key);
            out::line(&format!("  - {{id: {id:?}, key: {{sha256: {}}}}}", digest.hex()));
            if !args.quiet {
                out::note(
                    "the first line is for its owner, shown this once; the second goes under keys: in the file",
                );
            }
        }
    }
    Ok(Exit::Done)
}

/// Prints the settings of a gateway file and the replicas that respond.
fn checked(args: &GatewayArgs, spec: &GatewaySpec) -> Result<Exit, Stop> {
    let gateway = started(spec, Clock::start(), None)?;
    let mut shown: Vec<ReplicaStatus> = Vec::new();
    for _ in 0..CHECK_LOOKS {
        shown = gateway.pool.shown().0;
        if shown.iter().all(|shown| shown.standing == ReplicaAvailability::Ready) {
            break;
        }
        std::thread::sleep(LOOK);
    }
    let answers = shown.iter().filter(|shown| shown.standing == ReplicaAvailability::Ready).count();
    match args.format {
        OutputFormat::Json => {
            let each: Vec<_> = shown
                .iter()
                .map(|shown| json!({"name": shown.replica.name, "standing": shown.standing}))
                .collect();
            out::json(&json!({"spec": spec, "replicas": each}));
        }
        OutputFormat::Text => {
            let widest = shown.iter().map(|shown| shown.replica.name.len()).max().unwrap_or(0);
            for shown in &shown {
                out::line(&format!("{:widest$}  {}", shown.replica.name, words(shown.standing)));
            }
            let near = spec.cache.iter().flat_map(|cache| &cache.semantic);
            near.for_each(|near| out::line(&semantic::plan(near)));
            out::line(&format!("The file is sound; {answers} of {} replicas answer.", shown.len()));
        }
    }
    Ok(if answers == 0 { Exit::Unreachable } else { Exit::Done })
}

fn words(standing: ReplicaAvailability) -> &'static str {
    match standing {
        ReplicaAvailability::Ready => "answers",
        ReplicaAvailability::Down => "does not answer; it gets no requests until it does",
        ReplicaAvailability::Ejected => "fails; it gets no requests for a while",
        ReplicaAvailability::Silent => "its streams stall; no new requests until they resume",
        ReplicaAvailability::Trial => "gets one request as a probe",
        ReplicaAvailability::Draining => "finishes its requests and gets no new ones",
    }
}

/// Returns the configuration from file and flags. A flag overrides the file.
fn asked(args: &GatewayArgs, path: Option<&str>) -> Result<GatewaySpec, Stop> {
    let mut spec = path.map(|path| read(Path::new(path))).transpose()?.unwrap_or_default();
    if !args.replicas.is_empty() {
        spec.replicas = args.replicas.iter().map(|text| replica(text)).collect();
    }
    if spec.replicas.is_empty() {
        return Err(Stop::usage(
            "no replica: name each with --replica http://host:8000, or in a gateway file",
        ));
    }
    if let Some(text) = &args.listen {
        spec.listen = address("--listen", text)?;
    }
    if let Some(text) = &args.admin {
        spec.admin = (text != "none").then(|| address("--admin", text)).transpose()?;
    }
    if let Some(text) = &args.picker {
        let listen = (text != "none").then(|| address("--picker", text)).transpose()?;
        spec.picker = listen.map(|listen| match spec.picker.take() {
            Some(picker) => PickerSpec { listen, ..picker },
            None => PickerSpec::new(listen),
        });
    }
    if let Some(text) = &args.route {
        spec.route = RouteSpec::parse(text).map_err(|e| Stop::usage(format!("--route {text}: {e}")))?;
    }
    if let Some(path) = &args.health {
        spec.health.path.clone_from(path);
    }
    spec.budget = args.budget.clone().or(spec.budget);
    if let Some(dir) = &args.record {
        spec.record = Some(match spec.record.take() {
            Some(record) => RecordSpec { dir: dir.clone(), ..record },
            None => RecordSpec::new(dir.clone()),
        });
    }
    spec.name_replicas |= args.name_replicas;
    spec.insecure |= args.insecure;
    spec.threads = args.threads.unwrap_or(spec.threads);
    spec.ca_file = args.ca_file.clone().or(spec.ca_file);
    let named = |e: &dyn std::fmt::Display| match path {
        Some(path) => Stop::usage(format!("{path}: {e}")),
        None => Stop::usage(e.to_string()),
    };
    spec.validate().map_err(|e| named(&e))?;
    with_deadlines(spec)
}

fn replica(text: &str) -> ReplicaSpec {
    match text.split_once('=') {
        Some((name, url)) if !name.contains("//") => ReplicaSpec::new(url, Some(name.to_owned())),
        _ => ReplicaSpec::new(text, None),
    }
}

fn address(flag: &str, text: &str) -> Result<SocketAddr, Stop> {
    let bare = text.trim().trim_start_matches(':');
    let whole = match bare.bytes().all(|b| b.is_ascii_digit()) && !bare.is_empty() {
        true => format!("127.0.0.1:{bare}"),
        false => bare.replace("localhost:", "127.0.0.1:"),
    };
    whole.parse().map_err(|_| Stop::usage(format!("{flag} {text}: write PORT or ADDRESS:PORT")))
}

/// Reads a gateway file. An error has the form `FILE:LINE:COLUMN: problem`.
pub fn read(path: &Path) -> Result<GatewaySpec, Stop> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| out::unread(&name, &e))?;
    serde_saphyr::from_str(&text).map_err(|e| Stop::usage(format!("{name}{}", yaml::wrong(&e))))
}
