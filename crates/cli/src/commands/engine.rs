//! `plimsoll engine`: the embedded engine as a server, until it is told to stop.

use std::io::Read;
use std::net::SocketAddr;

use plimsoll_server::{EngineServerConfig, ServeError};
use plimsoll_sim::{EngineSpec, profile};
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{EngineArgs, Format};
use crate::out;
use crate::screen::Watch;

/// Lists the profiles, or serves one.
pub fn run(args: &EngineArgs) -> Result<Exit, Stop> {
    if args.list {
        return list(args.format);
    }
    let listen: SocketAddr = args.listen.parse().map_err(|_| {
        Stop::usage(format!("--listen {}: write ADDRESS:PORT such as 127.0.0.1:8000", args.listen))
    })?;
    let engine = find(&args.profile)?;
    let model = args.model.clone().unwrap_or_else(|| engine.name.clone());
    let mut config = EngineServerConfig::new(listen, engine);
    config.model = model;
    config.seed = args.seed;
    config.truth_log = args.truth_log.clone();
    let running = plimsoll_server::serve(config).map_err(|e| match e {
        ServeError::Listen { .. } | ServeError::Spec(_) => Stop::usage(e.to_string()),
        other => Stop::invalid(other.to_string()),
    })?;
    // The first line of stdout tells a parent process where to go; the rest is for people.
    out::line(&format!("http://{}/v1", running.addr()));
    out::note(&format!(
        "serving profile {} as model {}; Ctrl-C drains, twice stops at once",
        args.profile,
        args.model.as_deref().unwrap_or(&args.profile)
    ));
    let stopper = running.stopper();
    let asked = std::sync::atomic::AtomicU32::new(0);
    let on_stop = stopper.clone();
    let _watch = Watch::start(false, move || {
        if asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            on_stop.drain()
        } else {
            on_stop.now()
        }
    });
    if args.until_stdin_ends {
        // The parent holds the other end: when it dies, however it dies, the pipe closes.
        std::thread::spawn(move || {
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            stopper.now();
        });
    }
    running.wait().map_err(|e| Stop::invalid(e.to_string()))?;
    Ok(Exit::Done)
}

/// A profile by name, or from a YAML file.
pub fn find(name: &str) -> Result<EngineSpec, Stop> {
    let is_file = name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".json");
    if !is_file {
        return profile::find(name)
            .map(|profile| profile.spec)
            .map_err(|e| Stop::usage(format!("--profile: {e}")));
    }
    let text = std::fs::read_to_string(name).map_err(|e| Stop::usage(format!("--profile {name}: {e}")))?;
    let spec: EngineSpec = serde_saphyr::from_str(&text).map_err(|e| {
        let first = e.to_string().lines().next().unwrap_or_default().to_string();
        Stop::usage(format!("--profile {name}: {first}"))
    })?;
    spec.validate().map_err(|e| Stop::usage(format!("--profile {name}: {e}")))?;
    Ok(spec)
}

fn list(format: Format) -> Result<Exit, Stop> {
    let profiles = profile::all();
    if format == Format::Json {
        let list: Vec<_> = profiles
            .iter()
            .map(|p| json!({"name": p.name, "summary": p.summary, "derivation": p.derivation(), "spec": p.spec}))
            .collect();
        out::json(&json!(list));
        return Ok(Exit::Done);
    }
    for profile in &profiles {
        out::line(&format!("{}\n  {}", profile.name, profile.summary));
        for line in profile.derivation().lines() {
            out::line(&format!("    {line}"));
        }
    }
    Ok(Exit::Done)
}
