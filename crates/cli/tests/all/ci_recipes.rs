//! The recipes for CI servers, run step by step against the embedded engine: `action.yml`, `packages/ci/gitlab.yml` and `packages/ci/gate.sh`.
//!
//! The forges are stand-ins on the path (`gh`, `curl`, `unzip`) that log their arguments, because a test reaches no forge.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::kit::{Engine, PLIMSOLL};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn yaml(path: &str) -> Value {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A working folder of a job, with stand-ins for the tools of a forge first on its path.
struct Job {
    folder: tempfile::TempDir,
}

impl Job {
    fn new(tools: &[(&str, &str)]) -> Job {
        let job = Job { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(job.at("bin")).expect("created");
        for (name, script) in tools {
            let path = job.at("bin").join(name);
            fs::write(&path, format!("#!/bin/bash\necho \"{name} $*\" >>\"$LOG\"\n{script}\n"))
                .expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permitted");
        }
        job
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// Runs one step as a runner would, with `-e` and `pipefail`; returns its exit code.
    fn step(&self, script: &str, settings: &[(&str, &str)]) -> i32 {
        let tools = Path::new(PLIMSOLL).parent().expect("a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let ended = Command::new("bash")
            .args(["-e", "-o", "pipefail", "-c", script])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{}:{path}", self.at("bin").display(), tools.display()))
            .env("LOG", self.at("log"))
            .envs(settings.iter().copied())
            .output()
            .expect("a bash");
        fs::write(self.at("stderr"), &ended.stderr).expect("written");
        ended.status.code().expect("an exit code")
    }
}

/// A short load of the embedded engine.
const LOAD: [(&str, &str); 3] = [("RATE", "20/s"), ("MAX", "30s"), ("ARGS", "--isl 64 --osl 8 -q")];

/// Two pushes to a pull request: the first has no baseline and passes, the second has one, breaks its limit and replaces the comment.
#[test]
fn the_github_action_gates_two_pushes() {
    let action = yaml("action.yml");
    let steps = action["runs"]["steps"].as_array().expect("steps");
    let script = |name: &str| {
        let step = steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no step {name}"));
        step["run"].as_str().expect("a script").to_owned()
    };
    let job = Job::new(&[(
        "gh",
        r#"case "$1 $2" in
          "run list") [ ! -e base ] || echo 7 ;;
          "run download") mkdir -p "$7" && cp -r base/run "$7/run" ;;
          "api repos/o/r/issues/3/comments") [ ! -e base ] || echo 41 ;;
        esac"#,
    )]);
    let engine = Engine::start("demo");
    let recipes = root().join("packages/ci").display().to_string();
    let (summary, output) = (job.at("summary").display().to_string(), job.at("output").display().to_string());
    let gate = |slo: &str| {
        let own = [
            ("TARGET", engine.url.as_str()),
            ("SLO", slo),
            ("BUDGET", ""),
            ("BASELINE", "plimsoll-baseline/run"),
            ("OUT", "plimsoll-gate"),
            ("RECIPES", &recipes),
            ("GITHUB_STEP_SUMMARY", &summary),
            ("GITHUB_OUTPUT", &output),
        ];
        job.step(&script("Gate"), &[&own[..], &LOAD].concat())
    };
    let forge = [("GH_REPO", "o/r"), ("PR", "3"), ("PAGE", "https://forge/run/9"), ("BRANCH", "main")];
    let further = [("WORKFLOW", "gate"), ("NAME", "plimsoll-gate")];
    let forge = [&forge[..], &further].concat();

    assert_eq!(job.step(&script("Baseline"), &forge), 0);
    assert_eq!(gate("e2e p95 < 10s"), 0, "{}", job.read("summary"));
    assert_eq!(job.read("output"), "verdict=pass\n");
    assert_eq!(job.step(&script("Comment"), &forge), 0);
    assert!(job.read("log").contains("gh pr comment 3 --body-file"), "{}", job.read("log"));
    let answer: Value = serde_json::from_str(&job.read("plimsoll-gate/gate.json")).expect("JSON");
    assert_eq!((&answer["verdict"], &answer["data"]["baseline"]), (&"pass".into(), &Value::Null));

    fs::rename(job.at("plimsoll-gate"), job.at("base")).expect("moved");
    assert_eq!(job.step(&script("Baseline"), &forge), 0);
    assert_eq!(gate("e2e p95 < 1us"), 1, "{}", job.read("summary"));
    assert_eq!(job.read("output"), "verdict=pass\nverdict=broken\n");
    assert_eq!(job.step(&script("Comment"), &forge), 0);
    assert!(job.read("log").contains("--method PATCH repos/o/r/issues/comments/41"), "{}", job.read("log"));
    let answer: Value = serde_json::from_str(&job.read("plimsoll-gate/gate.json")).expect("JSON");
    assert!(answer["data"]["baseline"].is_string(), "the second push was not compared");
    let comment = job.read("plimsoll-comment.md");
    assert!(comment.starts_with("<!-- plimsoll-gate -->\n### Budget"), "{comment}");
    assert!(comment.contains("BROKEN") && comment.contains("(https://forge/run/9)"), "{comment}");
    assert!(comment.lines().count() <= 40, "{comment}");
    assert!(job.read("plimsoll-gate/gate.svg").contains("✗ broken e2e p95"));
    assert!(job.read("plimsoll-gate/gate.xml").contains("<testsuite"));
}

/// The GitLab job with a baseline of the target branch, and a comment that shows the picture.
#[test]
fn the_gitlab_job_gates_a_merge_request() {
    let file = yaml("packages/ci/gitlab.yml");
    let part = |name: &str| -> String {
        let lines = file["plimsoll-gate"][name].as_array().expect("a script");
        lines.iter().map(|line| format!("{}\n", line.as_str().expect("a line"))).collect()
    };
    let job = Job::new(&[
        ("curl", r#"[[ "$*" != *baseline.zip* ]] || touch baseline.zip"#),
        (
            "unzip",
            r#"mkdir -p plimsoll-baseline/plimsoll-gate && cp -r base plimsoll-baseline/plimsoll-gate/run"#,
        ),
    ]);
    fs::create_dir(job.at("ci")).expect("created");
    fs::copy(root().join("packages/ci/gate.sh"), job.at("ci/gate.sh")).expect("copied");
    let engine = Engine::start("demo");
    let forge = [
        ("TARGET", engine.url.as_str()),
        ("SLO", "e2e p95 < 10s"),
        ("OUT", "base-gate"),
        ("CI_API_V4_URL", "https://forge/api/v4"),
        ("CI_PROJECT_ID", "5"),
        ("CI_JOB_TOKEN", "job"),
        ("CI_JOB_URL", "https://forge/jobs/9"),
    ];
    // On the target branch itself nothing is fetched.
    let forge = [&forge[..], &LOAD].concat();
    assert_eq!(job.step(&part("script"), &forge), 0);
    assert_eq!(job.read("log"), "");
    fs::rename(job.at("base-gate/run"), job.at("base")).expect("moved");

    let request = [
        ("OUT", "plimsoll-gate"),
        ("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main"),
        ("CI_MERGE_REQUEST_IID", "3"),
        ("GITLAB_TOKEN", "own"),
    ];
    let forge = [&forge[..], &request].concat();
    assert_eq!(job.step(&part("script"), &forge), 0);
    let log = job.read("log");
    assert!(log.contains("/projects/5/jobs/artifacts/main/download?job=plimsoll-gate"), "{log}");
    let answer: Value = serde_json::from_str(&job.read("plimsoll-gate/gate.json")).expect("JSON");
    assert!(answer["data"]["baseline"].is_string(), "the merge request was not compared");
    assert_eq!(job.step(&part("after_script"), &forge), 0);
    assert!(job.read("log").contains("/merge_requests/3/notes"), "{}", job.read("log"));
    assert!(
        job.read("plimsoll-gate/gate.md")
            .contains("(https://forge/jobs/9/artifacts/raw/plimsoll-gate/gate.svg)")
    );
}

/// The plain script judges a recorded run with a budget file, and says which setting is missing.
#[test]
fn the_shell_recipe_judges_a_run_and_names_a_missing_setting() {
    let job = Job::new(&[]);
    let load = "plimsoll simulate --profile demo --rate 200/s --for 60s --isl 64 --osl 4 -q -o run >&2";
    assert_eq!(job.step(load, &[]), 0);
    fs::write(
        job.at("budget.yaml"),
        "version: 1\nname: demo\nbudgets:\n  - {id: e2e-p95, metric: e2e, p: 95, max: 1ms}\n",
    )
    .expect("written");
    let script = root().join("packages/ci/gate.sh").display().to_string();
    assert_eq!(job.step(&script, &[("TARGET", "run"), ("BUDGET", "budget.yaml")]), 1);
    assert_eq!(job.read("plimsoll-gate/verdict"), "broken\n");
    assert!(job.at("plimsoll-gate/gate.sarif").exists());
    // A call that fails leaves nothing of an earlier one that could pass for its result.
    let wrong = [("TARGET", "run"), ("SLO", "tftt p99 < 1s")];
    assert_eq!(job.step(&format!("{script} >said"), &wrong), 2);
    assert_eq!((job.read("said").as_str(), job.read("plimsoll-gate/verdict").as_str()), ("", "error\n"));
    assert!(!job.at("plimsoll-gate/gate.md").exists() && job.at("plimsoll-gate.previous/gate.md").exists());
    assert_ne!(job.step(&format!("{script} 2>missing"), &[("TARGET", "run")]), 0);
    assert!(job.read("missing").contains("set SLO or BUDGET"), "{}", job.read("missing"));
}
