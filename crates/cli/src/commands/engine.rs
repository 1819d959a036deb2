//! `plimsoll engine` serves the embedded engine until it is stopped.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use plimsoll_client::tls::certs::{Identity, server_config};
use plimsoll_server::{EngineServerConfig, EngineTls, ServeError};
use plimsoll_sim::catalogue::{Gpu, gpus, models};
use plimsoll_sim::{EngineSpec, ModeSpec, WorldSpec, catalogue::profile};
use plimsoll_wire::kserve::server::ServedInput;
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{EngineArgs, OutputFormat};
use crate::screen::KeyWatch;
use crate::{out, resolve, simulation};

/// Lists the profiles, or serves one.
pub fn run(args: &EngineArgs) -> Result<Exit, Stop> {
    if args.list {
        return list(args.format);
    }
    let listen: SocketAddr = args.listen.parse().map_err(|_| {
        Stop::usage(format!("--listen {}: write ADDRESS:PORT such as 127.0.0.1:8000", args.listen))
    })?;
    let (WorldSpec { engine, fleet, faults }, has_load) =
        simulation::served(args.spec.as_deref(), &args.world)?;
    if has_load && !args.quiet {
        out::note("the scenario in the file is ignored: the engine only serves incoming requests");
    }
    let profile = engine.name.clone();
    let model = args.model.clone().unwrap_or_else(|| profile.clone());
    let is_batcher = matches!(engine.mode, ModeSpec::Dynamic(_));
    let mut config = EngineServerConfig::new(listen, engine);
    (config.fleet, config.faults) = (fleet, faults);
    config.model = model;
    config.seed = args.seed;
    config.inputs = inputs(&args.inputs)?;
    if !is_batcher && !config.inputs.is_empty() {
        return Err(Stop::usage(format!(
            "--input: profile {profile} does not batch whole requests; take one of kind dynamic"
        )));
    }
    config.truth_log = args.truth_log.clone();
    config.tls = tls(args)?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let running = plimsoll_server::serve(config).map_err(|e| match e {
        ServeError::Listen { .. } | ServeError::Spec(_) => Stop::usage(e.to_string()),
        other => Stop::invalid(other.to_string()),
    })?;
    let stopper = running.stopper();
    let asked = std::sync::atomic::AtomicU32::new(0);
    let on_stop = stopper.clone();
    let _watch = KeyWatch::start(false, move || {
        if asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            on_stop.drain()
        } else {
            on_stop.now()
        }
    });
    // The first line on stdout is the address for a parent process; all other lines are for the user.
    out::line(&format!("{scheme}://{}/{}", running.addr(), if is_batcher { "v2" } else { "v1" }));
    if !args.quiet {
        let model = args.model.as_deref().unwrap_or(&profile);
        out::note(&format!(
            "serving profile {profile} as model {model}; Ctrl-C drains, twice stops immediately"
        ));
    }
    if args.until_stdin_ends {
        // The parent process has the other end of the pipe, which closes however the parent ends.
        std::thread::spawn(move || {
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            stopper.now();
        });
    }
    running.wait().map_err(|e| Stop::invalid(e.to_string()))?;
    Ok(Exit::Done)
}

/// Returns the TLS settings for clients, which offer HTTP/1.1 and HTTP/2.
fn tls(args: &EngineArgs) -> Result<Option<EngineTls>, Stop> {
    let Some((cert, key)) = args.tls_cert.clone().zip(args.tls_key.clone()) else { return Ok(None) };
    let config = server_config(&Identity { cert, key }, args.tls_client_ca.as_deref(), &["h2", "http/1.1"]);
    config.map(|config| Some(EngineTls(config))).map_err(|e| Stop::usage(e.to_string()))
}

/// Returns the declared inputs. Fails on a duplicate name.
fn inputs(texts: &[String]) -> Result<Vec<ServedInput>, Stop> {
    let mut all: Vec<ServedInput> = Vec::new();
    for text in texts {
        let one = ServedInput::parse(text).map_err(|e| Stop::usage(format!("--input {text}: {e}")))?;
        if all.iter().any(|known| known.name == one.name) {
            return Err(Stop::usage(format!("--input {text}: {} is there already", one.name)));
        }
        all.push(one);
    }
    Ok(all)
}

/// Returns a profile by name, or from a YAML or JSON file.
pub fn find(name: &str) -> Result<EngineSpec, Stop> {
    let is_file = name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".json");
    if !is_file {
        return profile::find(name)
            .map(|profile| profile.spec)
            .map_err(|e| Stop::usage(format!("--profile: {e}")));
    }
    let wrong = |e: String| Stop::usage(format!("--profile {name}: {e}"));
    let file = resolve::mapping(Path::new(name), "profile")?;
    simulation::check_engine(&file).map_err(|e| wrong(e.to_string()))?;
    let spec: EngineSpec = serde_json::from_value(file).map_err(|e| wrong(e.to_string()))?;
    spec.validate().map_err(|e| wrong(e.to_string()))?;
    Ok(spec)
}

fn list(format: OutputFormat) -> Result<Exit, Stop> {
    let profiles = profile::all();
    let (models, gpus) = (models::all(), gpus::all());
    if format == OutputFormat::Json {
        let list: Vec<_> = profiles
            .iter()
            .map(|p| json!({"name": p.name, "summary": p.summary, "derivation": p.derivation(), "spec": p.spec}))
            .collect();
        let models: Vec<_> = models
            .iter()
            .map(|m| json!({"name": m.name, "parameters": m.shape.params(), "max_context": m.max_context}))
            .collect();
        let gpus: Vec<_> = gpus.iter().map(gpu_json).collect();
        out::json(&json!({"profiles": list, "models": models, "gpus": gpus}));
        return Ok(Exit::Done);
    }
    for profile in &profiles {
        out::line(&format!("{}\n  {}", profile.name, profile.summary));
        for line in profile.derivation().lines() {
            out::line(&format!("    {line}"));
        }
    }
    out::line("\nany other pair: MODEL[-DTYPE]@GPU[xTP], dtype bf16, fp8 or fp4, TP 1, 2, 4 or 8; that is");
    out::line(&format!("  models: {}", models.iter().map(|m| m.name).collect::<Vec<_>>().join(", ")));
    out::line("  gpus:");
    for gpu in &gpus {
        let kernels = &gpu.kernels;
        out::line(&format!(
            "    {:<13} {} (±{:.0} %): {}",
            gpu.name,
            kernels.basis.word(),
            kernels.expected_error_percent,
            kernels.source
        ));
    }
    Ok(Exit::Done)
}

fn gpu_json(gpu: &Gpu) -> serde_json::Value {
    json!({
        "name": gpu.name,
        "basis": gpu.kernels.basis.word(),
        "expected_error_percent": gpu.kernels.expected_error_percent,
        "source": gpu.kernels.source,
        "memory_gb": gpu.memory_gb,
        "bandwidth_tb_s": gpu.bandwidth_tb_s,
        "bf16_tflops": gpu.bf16_tflops,
        "fp8_tflops": gpu.fp8_tflops,
    })
}
