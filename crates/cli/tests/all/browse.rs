//! `plimsoll browse`: its rows against the runs' own manifests, a change that was put there, the live page over HTTP, and the page in a browser.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::browser::{chromium, look};
use crate::kit::{PLIMSOLL, plimsoll};

/// A served page; the server ends with this value.
struct Served {
    child: Child,
    host: String,
}

impl Served {
    fn start(dir: &str) -> Served {
        let mut child = Command::new(PLIMSOLL)
            .args(["browse", dir])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("the address");
        let url = line.split_whitespace().last().expect("a URL");
        let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Served { child, host }
    }

    /// Status and body of a GET under this `Host`.
    fn get_as(&self, path: &str, host: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(&self.host).expect("it listens");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"), body.to_owned())
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.get_as(path, &self.host)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The data inside a page.
fn data(page: &str) -> Value {
    let start = page.find("id=\"data\">").expect("data") + "id=\"data\">".len();
    let end = start + page[start..].find("</script>").expect("closed");
    serde_json::from_str(&page[start..end]).expect("JSON")
}

fn simulated(at: &Path, more: &[&str]) {
    let load = [
        "simulate",
        "--profile",
        "demo",
        "--rate",
        "100/s",
        "--for",
        "30s",
        "--isl",
        "64",
        "--osl",
        "4",
        "-q",
        "-o",
    ];
    let ended = plimsoll(&[&load[..], &[at.to_str().expect("utf-8")], more].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn manifest(run: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(run.join("run.json")).expect("a manifest")).expect("JSON")
}

#[test]
fn a_live_page_lists_opens_and_compares_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    simulated(&at("a"), &["--label", "<b>nightly</b>", "--slo", "e2e p95 < 10s"]);
    simulated(&at("b"), &["--seed", "1"]);
    simulated(&at("a2"), &[]);
    fs::create_dir(at("broken")).expect("created");
    fs::write(at("broken/run.json"), "{\"id\": 7}").expect("written");
    let served = Served::start(folder.path().to_str().expect("utf-8"));

    let (status, page) = served.get("/");
    assert_eq!(status, 200);
    assert!(!page.contains("<b>nightly"), "a label is not markup");
    let rows = data(&page)["runs"].as_array().expect("rows").clone();
    let named =
        |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!((rows.len(), named("broken")["state"].as_str()), (4, Some("not finished")));
    let (row, whole) = (named("a"), manifest(&at("a")));
    let summary = &whole["findings"]["levels"][0]["summary"];
    assert_eq!((&row["label"], &row["slo"]), (&json!("<b>nightly</b>"), &json!("pass")));
    assert_eq!(row["trust"], whole["findings"]["validity"]["verdict"]);
    for (metric, p) in [("e2e", "p50"), ("ttft", "p99")] {
        let reading = &summary["latency"][metric][p];
        let seen = if reading["is"] == "estimate" { reading } else { &reading["seen"] };
        let shown = &row["figures"][format!("{metric} {p}")];
        let (value, shown) = (seen["value"].as_f64().expect("a value"), shown[0].as_f64().expect("shown"));
        assert!((shown / value - 1.0).abs() < 1e-3, "{metric} {p}: {shown} of {value}");
    }

    let (status, report) = served.get("/run?at=a");
    assert!(status == 200 && report.contains("measurement"), "{status}");
    let (status, compared) = served.get("/compare?base=a&candidate=a2");
    assert!(status == 200 && compared.contains("(base)"), "{status} {compared}");
    // Nothing outside the folder is read, and a broken run is answered in a line.
    assert_eq!(served.get("/run?at=..%2F..%2Fetc").0, 404);
    assert_eq!(served.get("/run?at=broken").0, 422);
    assert_eq!(served.get("/nothing").0, 404);
    assert_eq!(served.get_as("/", "evil.example").0, 403);

    // A run that ends later is there at the next look.
    simulated(&at("c"), &["--seed", "2"]);
    assert_eq!(data(&served.get("/").1)["runs"].as_array().expect("rows").len(), 5);
}

#[test]
fn one_file_shows_a_change_where_it_was_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = folder.path().join("runs/run-00");
    simulated(&first, &[]);
    let mut run = manifest(&first);
    // Sixteen results, of which the last six are a quarter slower; a hundredth of noise.
    for i in 0..16 {
        let dir = folder.path().join(format!("runs/run-{i:02}"));
        fs::create_dir_all(&dir).expect("created");
        run["id"] = json!(format!("{i:016x}"));
        run["clock"]["realtime_ns"] = json!(1_760_000_000_000_000_000_i64 + i * 3_600_000_000_000);
        let value = 0.02 * if i < 10 { 1.0 } else { 1.25 } * (1.0 + 0.01 * ((i * 7 % 5) as f64 - 2.0) / 2.0);
        run["findings"]["levels"][0]["summary"]["latency"]["e2e"]["p99"] = json!({"is": "estimate", "value": value, "lower": value * 0.98, "upper": value * 1.02, "n": 3000, "n_eff": 3000.0});
        fs::write(dir.join("run.json"), run.to_string()).expect("written");
    }
    let page = folder.path().join("page.html");
    let (dir, out) = (folder.path().join("runs"), page.display().to_string());
    let ended = plimsoll(&["browse", dir.to_str().expect("utf-8"), "-o", &out]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, out.as_str()), "{}", ended.stderr);
    let data = data(&fs::read_to_string(&page).expect("a page"));
    let changes: Vec<&Value> =
        data["changes"].as_object().expect("experiments").values().map(|found| &found["e2e p99"]).collect();
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].as_array().expect("changes").len(), 1, "{changes:?}");
    assert_eq!(changes[0][0]["at"], format!("{:016x}", 10));
    let ratio = changes[0][0]["ratio"][0].as_f64().expect("a ratio");
    assert!((ratio - 1.25).abs() < 0.02, "{ratio}");

    let Some(browser) = chromium() else { return };
    let (dom, console) = look(browser, &format!("file://{out}"), &["--virtual-time-budget=4000"]);
    assert_eq!(console, "");
    assert!(
        dom.contains("data-ready=\"16\"") && dom.contains("u-wrap"),
        "{}",
        &dom[dom.len().saturating_sub(600)..]
    );
    assert!(dom.contains("<td class=\"left\"><input type=\"checkbox\"") && dom.contains("run-15"));
}

#[test]
fn a_folder_that_is_missing_and_an_open_address_are_refused() {
    let missing = plimsoll(&["browse", "no-such-folder"]);
    assert_eq!((missing.code, missing.stderr.lines().count()), (2, 1), "{}", missing.stderr);
    let open = plimsoll(&["browse", ".", "--listen", "0.0.0.0:0"]);
    assert!(open.code == 2 && open.stderr.contains("127.0.0.1"), "{}", open.stderr);
}
