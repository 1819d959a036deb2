//! `plimsoll k8s`: a load from many pods, as an Indexed Job of Kubernetes that is printed and applied by whoever may.
//!
//! The scheduler of machines is one that is there. An Indexed Job gives each pod its number and starts none twice by itself; an operator of
//! our own, as others have, would have to be installed, trusted with rights and kept. The pods talk to nobody but the target, each other and the place
//! that they are given, so that they get no token of Kubernetes and no role in it.

use serde_json::{Map, Value, json};

use plimsoll_model::Shard;
use plimsoll_workload::Scenario;

use super::{follow, run, sweep};
use crate::exit::{Exit, Stop};
use crate::flags::{Format, K8sArgs, SearchArgs};
use crate::measure::stop_limits;
use crate::out;
use crate::place::{BucketUrl, Cloud};

/// Where pods see the claim, or a folder of their own for what goes into an object store.
const PLACE: &str = "/place";
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
    let name = name.as_str();
    check(args, name)?;
    let job = JobOf { args, name, scenario: &scenario, place: Meeting::of(args, name)? };
    let documents = [config_map(args, name, &scenario), job.document()];
    match args.format() {
        Format::Json => out::raw_json(&json!({"apiVersion": "v1", "kind": "List", "items": documents})),
        Format::Text => {
            let text = serde_saphyr::to_string_multiple(&documents);
            out::line(&text.map_err(|e| Stop::invalid(format!("can't be written as YAML: {e}")))?);
        }
    }
    out::note(&job.next_steps());
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
        (wanted.target.client_cert.is_some(), "--client-cert"),
    ] {
        if is_given {
            let instead = match flag {
                "--key-env" | "--key-file" => "--key-secret SECRET/KEY",
                "--ca-file" => "an image that trusts it",
                "--client-cert" => "an image that holds it, and target.client_cert in its place there",
                _ => "--shards and --claim or --place, which say it for all pods",
            };
            return Err(Stop::usage(format!("{flag}: pods have nothing of this machine; use {instead}")));
        }
    }
    let no_files = |_: &str| Err("pods cannot read files of this machine".to_owned());
    let (draft, nonce_is_said) = run::draft(wanted)?;
    let mut scenario = draft.finish_with(0, no_files)?;
    if args.sweep {
        sweep::own_arrivals_only(&mut scenario, wanted.output.quiet)?;
        // Said here, so that no Job is made of a search that its pods refuse.
        sweep::plan(
            scenario.clone(),
            &args.search,
            &wanted.limits.slo,
            stop_limits(&wanted.ceilings)?,
            &wanted.ceilings.price,
        )?;
    } else {
        run::rate(&scenario)?;
        run::only_open(wanted, &scenario)?;
    }
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
    let (search, none) =
        (sweep::search_flags(&args.search, &[]), sweep::search_flags(&SearchArgs::default(), &[]));
    if let Some((flag, _)) = search.iter().find(|flag| !args.sweep && !none.contains(flag)) {
        return Err(Stop::usage(format!("--{flag}: of a search; --sweep asks for one")));
    }
    if args.cpus == 0 {
        return Err(Stop::usage("--cpus 0: a generator needs a CPU of its own, better two"));
    }
    if args.place_secret.is_some() && args.place.is_none() {
        return Err(Stop::usage("--place-secret: a claim needs no keys; it is for --place, an object store"));
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

/// Where the pods meet and leave their runs.
enum Meeting {
    /// A folder of a claim that all mount.
    Claim(String),
    Store(BucketUrl),
}

impl Meeting {
    fn of(args: &K8sArgs, name: &str) -> Result<Meeting, Stop> {
        match (&args.claim, &args.place) {
            (None, Some(url)) => {
                let url = format!("{}/{name}", url.trim_end_matches('/'));
                Ok(Meeting::Store(
                    BucketUrl::parse(&url).map_err(|why| Stop::usage(format!("--place {why}")))?,
                ))
            }
            (claim, _) => Ok(Meeting::Claim(claim.clone().unwrap_or_default())),
        }
    }
}

struct JobOf<'a> {
    args: &'a K8sArgs,
    name: &'a str,
    scenario: &'a Scenario,
    place: Meeting,
}

impl JobOf<'_> {
    fn document(&self) -> Value {
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(self.args, self.name),
            "spec": {
                "completionMode": "Indexed",
                "completions": self.args.shards,
                "parallelism": self.args.shards,
                // A pod that failed has sent; a second one must not send the same again.
                "backoffLimitPerIndex": 0,
                "podReplacementPolicy": "Failed",
                "template": {"metadata": {"labels": self.labels()}, "spec": self.pod()},
            },
        })
    }

    fn labels(&self) -> Value {
        let mut labels =
            json!({"app.kubernetes.io/name": "plimsoll", "app.kubernetes.io/instance": self.name});
        // Azure gives a pod its account's identity only where the pod asks for it.
        if let (Meeting::Store(BucketUrl { cloud: Cloud::Azure, .. }), Some(_)) =
            (&self.place, &self.args.service_account)
        {
            labels["azure.workload.identity/use"] = "true".into();
        }
        labels
    }

    fn pod(&self) -> Value {
        let place = match &self.place {
            Meeting::Claim(claim) => {
                json!({"name": "place", "persistentVolumeClaim": {"claimName": claim}})
            }
            Meeting::Store(_) => json!({"name": "place", "emptyDir": {}}),
        };
        let mut pod = json!({
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
                "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": self.name}},
            }],
            "containers": [self.container()],
            "volumes": [place, {"name": "scenario", "configMap": {"name": self.name}}],
        });
        if let Some(account) = &self.args.service_account {
            pod["serviceAccountName"] = account.clone().into();
        }
        pod
    }

    fn container(&self) -> Value {
        let args = self.args;
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
        container.insert("args".into(), self.words().into());
        container.insert("workingDir".into(), PLACE.into());
        container.insert("env".into(), env.into());
        if let Some(secret) = &args.place_secret {
            container.insert("envFrom".into(), json!([{"secretRef": {"name": secret}}]));
        }
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

    /// The place as pods name it.
    fn place(&self) -> String {
        match &self.place {
            Meeting::Claim(_) => format!("{PLACE}/{}", self.name),
            Meeting::Store(url) => url.text.clone(),
        }
    }

    /// What each pod runs. Kubernetes puts a variable in the place of `$(NAME)`; `$$(` is what it leaves alone.
    fn words(&self) -> Vec<String> {
        let (place, wanted) = (self.place(), &self.args.run);
        let command = if self.args.sweep { "sweep" } else { "run" };
        let mut words = vec![
            command.to_owned(),
            self.scenario.target.url.replace("$(", "$$("),
            format!("--spec={SPEC}/scenario.json"),
            format!("--shard=$(SHARD)/{}", self.args.shards),
            format!("--rendezvous={place}"),
            format!("--out={place}"),
            format!("--shard-wait={}", wanted.shard.shard_wait),
        ];
        let slo = &wanted.limits.slo;
        let search = match self.args.sweep {
            true => sweep::search_flags(&self.args.search, slo),
            false => slo.iter().map(|slo| ("slo", slo.trim().to_owned())).collect(),
        };
        for (flag, value) in run::ceiling_flags(&wanted.client, &wanted.ceilings).into_iter().chain(search) {
            words.push(if value.is_empty() { format!("--{flag}") } else { format!("--{flag}={value}") });
        }
        words
    }

    /// What whoever applies it does then, and what the pods need for it.
    fn next_steps(&self) -> String {
        let (name, place) = (self.name, self.place());
        let apply = "plimsoll k8s … | kubectl apply -f -; when the Job has ended";
        let merge = match self.args.sweep {
            true => format!("{place}/{} is its run", follow::WHOLE),
            false => format!("plimsoll merge {place} -o {name}"),
        };
        let url = match &self.place {
            Meeting::Claim(claim) => return format!("{apply}, where the claim {claim} is mounted: {merge}"),
            Meeting::Store(url) => url,
        };
        let (keys, right) = match url.cloud {
            Cloud::S3 => (
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (AWS_ENDPOINT_URL for another store than Amazon's)",
                "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject",
            ),
            Cloud::Google => ("GOOGLE_SERVICE_ACCOUNT_KEY", "roles/storage.objectUser"),
            Cloud::Azure => {
                ("AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY", "Storage Blob Data Contributor")
            }
        };
        let who = match (&self.args.place_secret, &self.args.service_account) {
            (Some(secret), _) => format!("the Secret {secret} holds {keys}"),
            (None, Some(account)) => format!("the service account {account} has a role with {right} there"),
            (None, None) => format!(
                "pods write by the identity that their nodes have; else name --place-secret (with {keys}) or --service-account"
            ),
        };
        format!("{who}\n{apply}: {merge}")
    }
}
