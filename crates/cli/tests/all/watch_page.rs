//! The data behind the page of a watch, over HTTP: charts of requests compared with their log, and the cost of the fleet.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::browser::{chromium, look};
use crate::gateway::Running;
use crate::kit::{Engine, PLIMSOLL, Server, plimsoll, reply, until};
use crate::watch::get;

/// A watch and where it is read; it ends with the test.
pub struct Watching(Child, String);

impl Watching {
    pub fn start(sources: &[&str], budget: &str, more: &[&str]) -> Watching {
        Watching::with(&[sources, &["-b", budget], more].concat())
    }

    /// Starts a watch with this file.
    pub fn of(file: &str, more: &[&str]) -> Watching {
        Watching::with(&[&[file], more].concat())
    }

    fn with(args: &[&str]) -> Watching {
        let mut command = Command::new(PLIMSOLL);
        command.arg("watch").args(args).args(["--every", "200ms", "--listen", "127.0.0.1:0", "-q"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut said = String::new();
        BufReader::new(child.stderr.as_mut().expect("piped"))
            .read_line(&mut said)
            .expect("where it is served");
        let addr = said.trim().rsplit("http://").next().expect("an address").to_owned();
        Watching(child, addr)
    }

    pub fn get(&self, path: &str) -> String {
        let answer = get(&self.1, &format!("GET {path}"));
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    pub fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path)).unwrap_or_default()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn budget(folder: &std::path::Path) -> String {
    let path = folder.join("budget.yaml");
    let text = "version: 1\nname: chat\nbudgets:\n  - {id: first, metric: ttft, p: 90, max: 5s}\n";
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

/// Returns the number of requests in these minutes.
fn held(course: &Value) -> u64 {
    let minutes = course["minutes"].as_array().map_or(&[][..], Vec::as_slice);
    let number = |minute: &Value, key: &str| minute[key].as_f64().unwrap_or(0.0);
    let each = minutes
        .iter()
        .map(|minute| number(minute, "requests_per_s") * (number(minute, "to_s") - number(minute, "from_s")));
    each.sum::<f64>().round() as u64
}

/// A gateway records requests before and after the watch starts. The charts contain all of them, and each percentile is the time
/// of one request.
#[test]
fn charts_of_a_record_hold_the_requests_of_its_log() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (record, budget) = (at("traffic"), budget(folder.path()));
    let gateway = Running::start(&["--replica", &engine.url, "--record", &record]);
    let load = |name: &str| {
        let size = ["--rate", "30/s", "--for", "2s", "--isl", "32", "--osl", "4", "-o", &at(name), "-q"];
        let ended = plimsoll(&[&["run", &gateway.url, "--model", "demo"], &size[..]].concat());
        assert!(ended.code != 2, "{}", ended.stderr);
    };
    load("first");
    let run = || std::fs::read_dir(&record).expect("a record").flatten().next().expect("a run").path();
    let rows = || plimsoll_store::open(&run()).map_or(Vec::new(), |run| run.attempts);
    until("it is on the disk", || !rows().is_empty());
    let watching = Watching::start(&[&record], &budget, &["--price", "36USD/h"]);
    until("the page draws what was recorded before", || held(&watching.json("/v1/course")) > 0);
    load("second");
    until("the charts hold all", || {
        let rows = rows().len() as u64;
        rows > 0 && held(&watching.json("/v1/course")) == rows
    });
    let (course, rows) = (watching.json("/v1/course"), rows());
    assert_eq!((&course["of"], &course["ceilings"][0]["latency"]), (&"requests".into(), &"ttft".into()));
    let first = rows.iter().filter_map(|row| Some((row.first_token? - row.due).0));
    let ttfts: HashSet<i64> = first.collect();
    for minute in course["minutes"].as_array().expect("a list") {
        let Some(p50) = minute["latencies"]["ttft"][0].as_object() else { continue };
        let own = p50["value_s"].as_f64().expect("it is known");
        assert!(ttfts.contains(&((own * 1e9).round() as i64)), "{own}");
        assert!(p50["over_s"].as_f64().is_none_or(|low| low <= own), "{p50:?}");
        assert!(p50["most_s"].as_f64().is_none_or(|high| high >= own), "{p50:?}");
    }
    assert_eq!(watching.json("/v1/rows")["cost"]["per_hour"], 36.0);
    if let Some(browser) = chromium() {
        let url = format!("http://{}/", watching.1);
        // The event stream never ends, so the browser gets a time limit.
        until("a browser draws it", || {
            let (dom, console) = look(browser, &url, &["--timeout=6000", "--window-size=1280,1600"]);
            assert_eq!(console, "");
            ["Cost at 36USD/h", "every request is seen", "class=\"own p50\"", "class=\"limit\""]
                .iter()
                .all(|drawn| dom.contains(drawn))
        });
    }
    drop(watching);
    gateway.end();
}

/// More than sixty replicas are drawn as one picture, and outliers are named next to it.
#[test]
fn a_large_fleet_is_drawn_and_its_odd_ones_are_named() {
    let Some(browser) = chromium() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(|_, socket| {
        let each = (0..70).map(|n| {
            let waits = if n == 7 { 5 } else { 0 };
            format!("vllm:num_requests_running{{engine=\"{n}\"}} 1\nvllm:num_requests_waiting{{engine=\"{n}\"}} {waits}\n")
        });
        reply(socket, "200 OK", "Content-Type: text/plain\r\n", &each.collect::<String>());
    });
    let watching = Watching::start(&[&format!("{}/metrics", server.url)], &budget(folder.path()), &[]);
    let url = format!("http://{}/", watching.1);
    until("it is drawn", || {
        let (dom, console) = look(browser, &url, &["--timeout=6000", "--window-size=1280,900"]);
        assert_eq!(console, "");
        // A canvas has a height once cells were drawn into it.
        let drawn = [
            "70 replicas: 0 stalled, 0 do not answer, at 1 requests wait",
            "<div>7</div>",
            "1 run, 5 wait",
            "style=\"height: ",
        ];
        drawn.iter().all(|drawn| dom.contains(drawn))
    });
}

/// Two replicas with a price each: the cost of an hour on every path; a removed replica is not counted.
#[test]
fn what_replicas_cost_is_said_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let gone = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let of = |gone: std::sync::Arc<std::sync::atomic::AtomicBool>| {
        Server::start(move |_, socket| match gone.load(std::sync::atomic::Ordering::Relaxed) {
            true => reply(socket, "503 Service Unavailable", "", "gone"),
            false => reply(
                socket,
                "200 OK",
                "Content-Type: text/plain\r\n",
                "vllm:num_requests_running 1\nvllm:generation_tokens_total 5\n",
            ),
        })
    };
    let (stays, goes) = (of(std::sync::Arc::default()), of(std::sync::Arc::clone(&gone)));
    let file = folder.path().join("watch.yaml");
    let source = format!("sources: [\"{}\", \"{}\"]\nprice: 2.5USD/replica-hour\n", stays.url, goes.url);
    std::fs::write(&file, source).expect("written");
    let file = file.display().to_string();
    let watching = Watching::start(&[&file], &budget, &[]);
    let cost = || watching.json("/v1/rows")["cost"].clone();
    until("both are paid for", || cost()["per_hour"] == 5.0);
    assert_eq!(cost()["currency"], "USD");
    // Both answer, and no token was generated, however slow the machine is.
    assert!(cost()["per_million_output"].is_null(), "{}", cost());
    let metrics = watching.get("/metrics");
    assert!(metrics.contains("plimsoll_watch_cost_per_hour{currency=\"USD\"} 5\n"), "{metrics}");
    gone.store(true, std::sync::atomic::Ordering::Relaxed);
    until("one of them is", || cost()["per_hour"] == 2.5);
    drop(watching);
    let page = format!("{}/metrics", stays.url.trim_end_matches("/v1"));
    let ended = plimsoll(&[
        "watch",
        &page,
        "-b",
        &budget,
        "--price",
        "9EUR/replica-hour",
        "--listen",
        "none",
        "--for",
        "2s",
        "-q",
    ]);
    assert!(ended.stdout.contains("9.00 EUR an hour (1 replica, all that there are)"), "{}", ended.stdout);
    for (args, word) in [
        (&["--price", "2.5/replica-hour"][..], "the currency is missing"),
        (&["--price", "2USD/gpu-hour"], "give --gpus N"),
        (&["--price", "nowhere.yaml"], "nowhere.yaml"),
    ] {
        let ended = plimsoll(&[&["watch", &page, "-b", &budget], args].concat());
        assert!(ended.code == 2 && ended.stderr.contains(word), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    // A key that there is none of is answered by its place and the nearest that there is.
    std::fs::write(&file, format!("sources: [\"{page}\"]\nprize: 3USD/h\n")).expect("written");
    let ended = plimsoll(&["watch", &file, "-b", &budget]);
    assert!(ended.code == 2 && ended.stderr.contains(&format!("{file}:2:1: ")), "{}", ended.stderr);
    assert!(ended.stderr.contains("did you mean price?"), "{}", ended.stderr);
    // An error in the file is reported with its key there.
    for (price, said) in
        [("2.5/replica-hour", "price: 2.5/"), ("2USD/gpu-hour", "price: 2USD/gpu-hour: a price")]
    {
        std::fs::write(&file, format!("sources: [\"{page}\"]\nprice: {price}\n")).expect("written");
        let ended = plimsoll(&["watch", &file, "-b", &budget]);
        assert!(ended.code == 2 && ended.stderr.contains(said), "{}", ended.stderr);
        assert!(!ended.stderr.contains("--price"), "{}", ended.stderr);
    }
}
