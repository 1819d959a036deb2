//! The Job of Kubernetes, checked against Kubernetes' own schemas and run as a kubelet would.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::kit::{Engine, PLIMSOLL, plimsoll};

/// The documents that a command prints.
fn printed(more: &[&str]) -> Vec<Value> {
    let args =
        [&["k8s", "http://vllm:8000/v1", "--shards", "8", "--claim", "load", "--rate", "400/s"][..], more];
    let ended = plimsoll(&args.concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    serde_saphyr::from_multiple(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stdout))
}

/// Kubernetes' word on a document; see the file for where it is from.
fn faults(document: &Value) -> Vec<String> {
    let schemas: Value =
        serde_json::from_str(include_str!("../fixtures/kubernetes-1.37.json")).expect("JSON");
    let one = if document["kind"] == "Job" { 0 } else { 1 };
    let mut schema = schemas["oneOf"][one].clone();
    schema["$defs"] = schemas["$defs"].clone();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    validator.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

#[test]
fn what_is_printed_is_what_kubernetes_takes() {
    for more in [
        &[][..],
        &[
            "--key-secret",
            "vllm/token",
            "--namespace",
            "perf",
            "--image",
            "registry.internal/plimsoll:1",
            "--cpus",
            "4",
        ],
        &[
            "--name",
            "monday",
            "--isl",
            "lognormal:512,0.8",
            "--set",
            "client.retries.max=2",
            "--workers",
            "3",
        ],
    ] {
        let documents = printed(more);
        assert_eq!(documents.len(), 2);
        for document in &documents {
            assert_eq!(faults(document), Vec::<String>::new(), "{document:#}");
        }
        let job = &documents[1]["spec"];
        assert_eq!(
            (&job["completions"], &job["parallelism"], &job["backoffLimitPerIndex"]),
            (&json!(8), &json!(8), &json!(0))
        );
        let pod = &job["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let container = &pod["containers"][0];
        let resources = &container["resources"];
        // QoS class Guaranteed with whole CPUs, because the static CPU manager requires both.
        assert_eq!(resources["limits"], resources["requests"]);
        assert!(resources["limits"]["cpu"].as_str().is_some_and(|cpus| cpus.parse::<u32>().is_ok()));
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        // The spread is over the pods of this Job, or over none.
        let spread = &pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"];
        let labels = &job["template"]["metadata"]["labels"];
        for (label, value) in spread.as_object().expect("labels") {
            assert_eq!(&labels[label], value);
        }
        assert_eq!(pod["volumes"][1]["configMap"]["name"], documents[0]["metadata"]["name"]);
    }
    let secret =
        &printed(&["--key-secret", "vllm/token"])[1]["spec"]["template"]["spec"]["containers"][0]["env"][1];
    assert_eq!(secret["valueFrom"]["secretKeyRef"], json!({"name": "vllm", "key": "token"}));
}

/// Pods that meet in an object store: what gives them the right to it, and nothing that they could share.
#[test]
fn a_place_in_an_object_store_needs_no_claim() {
    let print = |more: &[&str]| {
        let base = ["k8s", "http://vllm:8000/v1", "--shards", "8", "--rate", "4/s", "--name", "monday"];
        let ended = plimsoll(&[&base[..], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let documents: Vec<Value> = serde_saphyr::from_multiple(&ended.stdout).expect("YAML");
        for document in &documents {
            assert_eq!(faults(document), Vec::<String>::new(), "{document:#}");
        }
        (documents[1]["spec"]["template"].clone(), ended.stderr)
    };
    let (pod, said) = print(&["--place", "s3://load/perf/", "--place-secret", "load-keys"]);
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["envFrom"], json!([{"secretRef": {"name": "load-keys"}}]));
    let args: Vec<&str> =
        container["args"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    assert!(
        args.contains(&"--rendezvous=s3://load/perf/monday") && args.contains(&"--out=s3://load/perf/monday")
    );
    assert_eq!(pod["spec"]["volumes"][0], json!({"name": "place", "emptyDir": {}}));
    assert!(
        said.contains("the Secret load-keys contains AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"),
        "{said}"
    );
    assert!(said.contains("plimsoll merge s3://load/perf/monday -o monday"), "{said}");
    let (pod, said) = print(&["--place", "az://load", "--service-account", "load"]);
    assert_eq!(pod["spec"]["serviceAccountName"], "load");
    assert_eq!(pod["metadata"]["labels"]["azure.workload.identity/use"], "true");
    assert!(
        said.contains("the service account load has a role with Storage Blob Data Contributor"),
        "{said}"
    );
    let (pod, said) = print(&["--place", "gs://load"]);
    assert_eq!(pod["spec"]["serviceAccountName"], Value::Null);
    assert!(said.contains("by the identity that their nodes have"), "{said}");
    for (more, why) in [
        (&["--place", "load"][..], "--place"),
        (&["--place", "s3://load", "--claim", "load"], "--claim"),
        (&["--claim", "load", "--place-secret", "keys"], "--place"),
        (&[], "--claim"),
    ] {
        let base = ["k8s", "http://vllm:8000/v1", "--shards", "8", "--rate", "4/s"];
        let ended = plimsoll(&[&base[..], more].concat());
        assert_eq!(ended.code, 2, "{more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{more:?}: {}", ended.stderr);
    }
}

#[test]
fn a_search_from_pods_is_a_sweep_in_each() {
    let search = ["--sweep", "--time", "15m", "--slo", "ttft p99 < 500ms", "--name", "monday"];
    let base = ["k8s", "http://vllm:8000/v1", "--shards", "8", "--claim", "load"];
    let ended = plimsoll(&[&base[..], &search].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&ended.stdout).expect("YAML");
    for document in &documents {
        assert_eq!(faults(document), Vec::<String>::new(), "{document:#}");
    }
    let args = &documents[1]["spec"]["template"]["spec"]["containers"][0]["args"];
    let args: Vec<&str> = args.as_array().expect("words").iter().filter_map(Value::as_str).collect();
    assert_eq!(args[0], "sweep");
    for word in ["--shard=$(SHARD)/8", "--rendezvous=/place/monday", "--time=15m", "--slo=ttft p99 < 500ms"] {
        assert!(args.contains(&word), "{word} in {args:?}");
    }
    assert!(ended.stderr.contains("/place/monday/run is its run"), "{}", ended.stderr);
    let lone = plimsoll(&[&base[..], &["--rate", "4/s", "--hold", "1m"]].concat());
    assert_eq!(lone.code, 2, "{}", lone.stderr);
    assert!(lone.stderr.contains("--hold: belongs to a search; add --sweep"), "{}", lone.stderr);
}

/// A schema that lets everything pass would prove nothing.
#[test]
fn what_kubernetes_does_not_take_is_found() {
    let job = printed(&[]).remove(1);
    for (pointer, wrong) in [
        ("/spec/completions", json!("eight")),
        ("/spec/template/spec/containers/0/args", json!("run")),
        ("/spec/template/spec/topologySpreadConstraints/0/maxSkew", Value::Null),
        ("/kind", json!("Jobs")),
    ] {
        let mut broken = job.clone();
        *broken.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is there")) = wrong;
        assert_ne!(faults(&broken), Vec::<String>::new(), "{pointer}");
    }
    let mut unknown = job;
    unknown["spec"]["completionsMode"] = json!("Indexed");
    assert_ne!(faults(&unknown), Vec::<String>::new());
}

/// A kubelet inserts variables into a container's arguments, mounts volumes and starts it. This test has no mounts; the paths
/// are inserted instead.
#[test]
fn the_pods_of_a_job_send_one_load() {
    let engine = Engine::start("canned");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let load = [
        "--rate",
        "60/s",
        "--for",
        "1s",
        "--osl",
        "4",
        "--scrape",
        "off",
        "--max-errors",
        "1000",
        "--name",
        "job",
    ];
    let args =
        [&["k8s", &engine.url, "--shards", "3", "--claim", "load", "--format", "json"][..], &load].concat();
    let list = plimsoll(&args).json();
    let (map, job) = (&list["items"][0], &list["items"][1]);
    let scenario = at("scenario.json");
    std::fs::write(&scenario, map["data"]["scenario.json"].as_str().expect("text")).expect("written");
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let pod = |index: u32| -> Child {
        let args = container["args"].as_array().expect("arguments").iter().map(|word| {
            let word = word.as_str().expect("text").replace("$(SHARD)", &index.to_string());
            word.replace("/scenario/scenario.json", &scenario).replace("/place/job", &at("place"))
        });
        let mut pod = Command::new(PLIMSOLL);
        pod.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        pod.spawn().expect("the binary starts")
    };
    let pods: Vec<Child> = (0..3).map(pod).collect();
    for mut pod in pods {
        assert!(matches!(pod.wait().expect("ended").code(), Some(0 | 4)));
    }
    let merge = plimsoll(&["merge", &at("place"), "-o", &at("run"), "--format", "json"]);
    assert!(matches!(merge.code, 0 | 4), "{}", merge.stderr);
    let json = merge.json();
    assert_eq!(json["progress"]["state"], "complete");
    assert_eq!(json["shards"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["levels"][0]["load"]["rate_per_s"], 60.0);
}

#[test]
fn what_pods_could_not_do_is_refused_in_one_line() {
    for (more, why) in [
        (&["--name", "Monday"][..], "--name Monday"),
        (&["--trace", "azure.csv"], "azure.csv: pods cannot read files of this machine"),
        (&["--key-env", "KEY"], "--key-secret SECRET/KEY"),
        (&["--key-secret", "vllm"], "write SECRET/KEY"),
        (&["-o", "run"], "--out"),
        (&["--cpus", "0"], "--cpus 0"),
        (&["--warm-up", "5"], "--shard: every shard would send the requests before the load"),
    ] {
        let args =
            [&["k8s", "http://vllm:8000/v1", "--shards", "8", "--claim", "load", "--rate", "4/s"][..], more];
        let ended = plimsoll(&args.concat());
        assert_eq!(ended.code, 2, "{more:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(why) && ended.stderr.lines().count() == 1,
            "{more:?}: {}",
            ended.stderr
        );
    }
}
