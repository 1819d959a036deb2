//! `plimsoll k8s`: a load from many pods, as an Indexed Job of Kubernetes that is printed and applied by whoever may.
//!
//! The scheduler of machines is one that is there. An Indexed Job gives each pod its number and starts none twice by itself; an operator of
//! our own, as others have, would have to be installed, trusted with rights and kept. The pods talk to nobody but the target and each other, so
//! that they get no token and no role at all.

use serde_json::{Map, Value, json};

use plimsoll_model::Shard;
use plimsoll_workload::Scenario;

use super::run;
use crate::exit::{Exit, Stop};
use crate::flags::{Format, K8sArgs};
use crate::out;

/// Where pods see the claim.
const PLACE: &str = "/place";
/// Where they see the scenario.
const SPEC: &str = "/scenario";
/// The variable that holds the key.
const KEY: &str = "PLIMSOLL_KEY";
/// Kubernetes gives a pod of an Indexed Job its number in this annotation.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
/// The user that the image is made for.
const USER: u32 = 65_532;
/// A Job's pods are called by its name and their number, which is to stay a host name (63 letters).
const NAME_MOST: usize = 50;

/// Prints the manifest.
pub fn run(args: &K8sArgs) -> Result<Exit, Stop> {
    let scenario = scenario(args)?;
    let random = || format!("plimsoll-{:08x}", crate::measure::random() as u32);
    let name = args.name.clone().unwrap_or_else(random);
    check(args, &name)?;
    let documents = [config_map(args, &name, &scenario), job(args, &name, &scenario)];
    match args.format() {
        Format::Json => out::json(&json!({"apiVersion": "v1", "kind": "List", "items": documents})),
        Format::Text => {
            let text = serde_saphyr::to_string_multiple(&documents);
            out::line(&text.map_err(|e| Stop::invalid(format!("can't be written as YAML: {e}")))?);
        }
    }
    out::note(&format!(
        "plimsoll k8s … | kubectl apply -f -; when the Job has ended, where the claim {} is mounted: plimsoll merge {PLACE}/{name} -o {name}",
        args.claim
    ));
    Ok(Exit::Done)
}

/// The scenario as pods are given it: whole, every flag in it, so that no pod needs a file of this machine.
fn scenario(args: &K8sArgs) -> Result<Scenario, Stop> {
    let wanted = &args.run;
    for (is_given, flag) in [
        (wanted.shard.shard.is_some(), "--shard"),
        (wanted.output.out.is_some(), "--out"),
        (wanted.target.key_env.is_some(), "--key-env"),
        (wanted.target.key_file.is_some(), "--key-file"),
        (wanted.target.ca_file.is_some(), "--ca-file"),
    ] {
        if is_given {
            let instead = match flag {
                "--key-env" | "--key-file" => "--key-secret SECRET/KEY",
                "--ca-file" => "an image that trusts it",
                _ => "--shards and --claim, which say it for all pods",
            };
            return Err(Stop::usage(format!("{flag}: pods have nothing of this machine; use {instead}")));
        }
    }
    let no_files = |name: &str| Err(format!("{name} is a file of this machine, and pods can't read it"));
    let (draft, nonce_is_said) = run::draft(wanted)?;
    let mut scenario = draft.finish_with(0, no_files)?;
    run::rate(&scenario)?;
    run::only_open(wanted, &scenario)?;
    if !nonce_is_said {
        // The shards agree on one when they meet.
        scenario.nonce = None;
    }
    if args.key_secret.is_some() {
        scenario.target.key_env = Some(KEY.into());
    }
    Ok(scenario)
}

fn check(args: &K8sArgs, name: &str) -> Result<(), Stop> {
    let label = |text: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        text.chars().all(|c| plain(c) || c == '-') && text.starts_with(plain) && text.ends_with(plain)
    };
    if !label(name) || name.len() > NAME_MOST {
        return Err(Stop::usage(format!(
            "--name {name}: Kubernetes takes small letters, digits and - in between, here at most {NAME_MOST}"
        )));
    }
    if !(1..=Shard::MOST).contains(&args.shards) {
        return Err(Stop::usage(format!("--shards {}: from 1 to {}", args.shards, Shard::MOST)));
    }
    if args.cpus == 0 {
        return Err(Stop::usage("--cpus 0: a generator needs a CPU of its own, better two"));
    }
    let is_secret = |text: &String| text.split_once('/').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty());
    match args.key_secret.as_ref().filter(|text| !is_secret(text)) {
        Some(text) => Err(Stop::usage(format!("--key-secret {text}: write SECRET/KEY"))),
        None => Ok(()),
    }
}

fn metadata(args: &K8sArgs, name: &str) -> Value {
    let mut metadata = json!({"name": name, "labels": {"app.kubernetes.io/name": "plimsoll"}});
    if let (Some(namespace), Some(object)) = (&args.namespace, metadata.as_object_mut()) {
        object.insert("namespace".into(), namespace.clone().into());
    }
    metadata
}

fn config_map(args: &K8sArgs, name: &str, scenario: &Scenario) -> Value {
    let text = serde_json::to_string_pretty(scenario).unwrap_or_default();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(args, name),
        "immutable": true,
        "data": {"scenario.json": text},
    })
}

fn job(args: &K8sArgs, name: &str, scenario: &Scenario) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(args, name),
        "spec": {
            "completionMode": "Indexed",
            "completions": args.shards,
            "parallelism": args.shards,
            // A pod that failed has sent; a second one must not send the same again.
            "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": "plimsoll", "app.kubernetes.io/instance": name}},
                "spec": pod(args, name, scenario),
            },
        },
    })
}

fn pod(args: &K8sArgs, name: &str, scenario: &Scenario) -> Value {
    json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        // Told to stop, it lets what is in flight end.
        "terminationGracePeriodSeconds": 120,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // Two generators of one host share its network and its CPUs' caches.
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": name}},
        }],
        "containers": [container(args, name, scenario)],
        "volumes": [
            {"name": "place", "persistentVolumeClaim": {"claimName": args.claim}},
            {"name": "scenario", "configMap": {"name": name}},
        ],
    })
}

fn container(args: &K8sArgs, name: &str, scenario: &Scenario) -> Value {
    // Whole CPUs, asked for and granted alike: the static CPU manager then gives the generator CPUs of its own.
    let resources = json!({"cpu": args.cpus.to_string(), "memory": args.memory});
    let mut env = vec![json!({"name": "SHARD", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}})];
    if let Some((secret, key)) = args.key_secret.as_deref().and_then(|text| text.split_once('/')) {
        env.push(json!({"name": KEY, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}));
    }
    let mut container = Map::new();
    let image = || format!("plimsoll:{}", env!("CARGO_PKG_VERSION"));
    container.insert("name".into(), "plimsoll".into());
    container.insert("image".into(), args.image.clone().unwrap_or_else(image).into());
    container.insert("args".into(), words(args, name, scenario).into());
    container.insert("workingDir".into(), PLACE.into());
    container.insert("env".into(), env.into());
    container.insert("resources".into(), json!({"requests": resources, "limits": resources}));
    let security = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    });
    container.insert("securityContext".into(), security);
    let mounts = json!([
        {"name": "place", "mountPath": PLACE},
        {"name": "scenario", "mountPath": SPEC, "readOnly": true},
    ]);
    container.insert("volumeMounts".into(), mounts);
    Value::Object(container)
}

/// What each pod runs. Kubernetes puts a variable in the place of `$(NAME)`; `$$(` is what it leaves alone.
fn words(args: &K8sArgs, name: &str, scenario: &Scenario) -> Vec<String> {
    let place = format!("{PLACE}/{name}");
    let mut words = vec![
        "run".to_owned(),
        scenario.target.url.replace("$(", "$$("),
        format!("--spec={SPEC}/scenario.json"),
        format!("--shard=$(SHARD)/{}", args.shards),
        format!("--rendezvous={place}"),
        format!("--out={place}"),
        format!("--shard-wait={}", args.run.shard.shard_wait),
    ];
    for (flag, value) in run::ceiling_flags(&args.run.client, &args.run.ceilings) {
        words.push(if value.is_empty() { format!("--{flag}") } else { format!("--{flag}={value}") });
    }
    words
}
