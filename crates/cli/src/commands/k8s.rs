//! `plimsoll k8s` prints an Indexed Job of Kubernetes that runs a load from many pods. The user applies the
//! manifest.
//!
//! Kubernetes schedules the pods. An Indexed Job gives each pod its number and does not start a pod twice. An
//! operator was rejected because it needs installation, permissions and maintenance. The pods connect only to
//! the target, each other and the shared place, so they get no Kubernetes token and no role.

use serde_json::{Map, Value, json};

use plimsoll_model::Shard;
use plimsoll_workload::Scenario;

use super::{follow, run, sweep};
use crate::exit::{Exit, Stop};
use crate::flags::{K8sArgs, OutputFormat, SearchArgs};
use crate::measure::stop_limits;
use crate::out;
use crate::place::{BucketUrl, Cloud};

/// Mount path of the claim, or of a local folder that is copied to an object store.
const PLACE: &str = "/place";
const SPEC: &str = "/scenario";
/// Environment variable with the API key.
const KEY: &str = "PLIMSOLL_KEY";
/// Annotation in which Kubernetes gives a pod of an Indexed Job its number.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
/// User id of the container image.
const USER: u32 = 65_532;
/// Maximum length of the Job's name. A pod's name adds its number and must stay a host name (63 characters).
const NAME_MOST: usize = 50;

pub fn run(args: &K8sArgs) -> Result<Exit, Stop> {
    let scenario = scenario(args)?;
    let random = || format!("plimsoll-{:08x}", crate::measure::random() as u32);
    let name = args.name.clone().unwrap_or_else(random);
    let name = name.as_str();
    check(args, name)?;
    let job = JobOf { args, name, scenario: &scenario, place: Meeting::of(args, name)? };
    let documents = [config_map(args, name, &scenario), job.document()];
    match args.format() {
        OutputFormat::Json => out::raw_json(&json!({"apiVersion": "v1", "kind": "List", "items": documents})),
        OutputFormat::Text => {
            let text = serde_saphyr::to_string_multiple(&documents);
            out::line(&text.map_err(|e| Stop::invalid(format!("can't be written as YAML: {e}")))?);
        }
    }
    out::note(&job.next_steps());
    Ok(Exit::Done)
}

/// Returns the complete scenario for the pods. It contains every flag, so that no pod needs a file of this
/// machine.
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
                "--client-cert" => "an image that contains it, and target.client_cert with its path",
                _ => "--shards and --claim or --place, which apply to all pods",
            };
            return Err(Stop::usage(format!("{flag}: pods cannot use this machine; use {instead}")));
        }
    }
    let no_files = |_: &str| Err("pods cannot read files of this machine".to_owned());
    let (draft, nonce_is_said) = run::draft(wanted)?;
    let mut scenario = draft.finish_with(0, no_files)?;
    if args.sweep {
        sweep::own_arrivals_only(&mut scenario, wanted.output.quiet)?;
        // An invalid search is rejected here, so that no Job is created for it.
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
        // The shards agree on a nonce at their rendezvous.
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
        return Err(Stop::usage(format!("--{flag}: belongs to a search; add --sweep")));
    }
    if args.cpus == 0 {
        return Err(Stop::usage("--cpus 0: a generator needs at least one CPU, better two"));
    }
    if args.place_secret.is_some() && args.place.is_none() {
        return Err(Stop::usage(
            "--place-secret: applies to --place (object store) only; a claim needs no keys",
        ));
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

/// The place where the pods meet and write their runs.
enum Meeting {
    /// A folder of a volume claim that all pods mount.
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
                // A failed pod has already sent requests; a replacement must not send them again.
                "backoffLimitPerIndex": 0,
                "podReplacementPolicy": "Failed",
                "template": {"metadata": {"labels": self.labels()}, "spec": self.pod()},
            },
        })
    }

    fn labels(&self) -> Value {
        let mut labels =
            json!({"app.kubernetes.io/name": "plimsoll", "app.kubernetes.io/instance": self.name});
        // Azure assigns the account's identity only to pods that request it.
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
            // On termination the pod waits for its requests in flight.
            "terminationGracePeriodSeconds": 120,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            // Two load generators on one host would share its network and its CPU caches.
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
        // Whole CPUs with equal request and limit, because the static CPU manager then assigns dedicated
        // CPUs.
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

    /// Returns the place as pods name it.
    fn place(&self) -> String {
        match &self.place {
            Meeting::Claim(_) => format!("{PLACE}/{}", self.name),
            Meeting::Store(url) => url.text.clone(),
        }
    }

    /// Returns the command of each pod. Kubernetes replaces `$(NAME)` by a variable and leaves `$$(`
    /// unchanged.
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

    /// Returns the next steps for the user, and the requirements of the pods.
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
        let access = match (&self.args.place_secret, &self.args.service_account) {
            (Some(secret), _) => format!("the Secret {secret} contains {keys}"),
            (None, Some(account)) => format!("the service account {account} has a role with {right} there"),
            (None, None) => format!(
                "pods write by the identity that their nodes have; else name --place-secret (with {keys}) or --service-account"
            ),
        };
        format!("{access}\n{apply}: {merge}")
    }
}
