//! Alerts at a real Alertmanager while it and the watch are killed: none is lost, none is doubled, and each resolved alert ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::kit::{Server, reply, until};
use crate::real::{free_port, or_skipped};
use crate::watch::{EACH, Ended, page};
use crate::watch_alerts::{Switch, watch};

const NAME: &str = "PlimsollCeilingBroken";
/// Kills of a watch after a notification; every third kills Alertmanager too. 200 kills take half a minute more, with the same result.
const KILLS: usize = 30;

/// An Alertmanager that notifies one receiver of ceilings, and restarts on the same port and storage.
struct Manager {
    folder: PathBuf,
    port: u16,
    process: Option<Ended>,
}

impl Manager {
    fn start(folder: &Path, receiver: &str) -> Option<Manager> {
        let config = json!({
            "route": {
                "receiver": "nobody", "group_by": ["alertname", "about"], "group_wait": "1s", "group_interval": "1s",
                "routes": [{"receiver": "hook", "matchers": [format!("alertname=\"{NAME}\"")]}]
            },
            "receivers": [
                {"name": "nobody"},
                {"name": "hook", "webhook_configs": [{"url": receiver, "send_resolved": true}]}
            ]
        });
        std::fs::write(folder.join("alertmanager.yml"), config.to_string()).expect("written");
        let mut manager = Manager { folder: folder.to_owned(), port: free_port(), process: None };
        let why = "prometheus-alertmanager is not installed: apt-get install prometheus-alertmanager";
        or_skipped(manager.begin().map_err(|_| why.to_owned()))?;
        Some(manager)
    }

    /// Starts Alertmanager: Debian's binary or another one.
    fn begin(&mut self) -> std::io::Result<()> {
        let begin = |name: &str| {
            let mut command = Command::new(name);
            command
                .arg(format!("--config.file={}", self.folder.join("alertmanager.yml").display()))
                .arg(format!("--storage.path={}", self.folder.join("alertmanager").display()))
                .arg(format!("--web.listen-address=127.0.0.1:{}", self.port))
                .args(["--cluster.listen-address=", "--data.maintenance-interval=1s"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        self.process = Some(Ended(begin("prometheus-alertmanager").or_else(|_| begin("alertmanager"))?));
        until("Alertmanager is ready", || self.get("/-/ready").is_some());
        Ok(())
    }

    fn kill(&mut self) {
        self.process = None;
    }

    /// The body of an answer of 200. HTTP/1.0, because that one comes in one piece.
    fn get(&self, path: &str) -> Option<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(socket, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
    }

    /// The ceiling's alert; there are never two.
    fn ceiling(&self) -> Option<Value> {
        let all: Vec<Value> = serde_json::from_str(&self.get("/api/v2/alerts")?).expect("a list");
        let mut ceilings = all.into_iter().filter(|alert| alert["labels"]["alertname"] == NAME);
        let one = ceilings.next()?;
        assert_eq!(ceilings.next(), None, "beside {one:#}");
        Some(one)
    }

    /// Returns the number of received posts of resolved alerts.
    fn resolved(&self) -> Option<f64> {
        let metrics = self.get("/metrics")?;
        let of = metrics.lines().filter(|line| line.starts_with("alertmanager_alerts_received_total{"));
        let counts = of.filter(|line| line.contains("status=\"resolved\"") && line.contains("v2"));
        Some(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Returns whether the notification log is written. A kill before that makes Alertmanager notify again.
    fn remembers(&self) -> bool {
        let log = std::fs::read(self.folder.join("alertmanager/nflog")).unwrap_or_default();
        String::from_utf8_lossy(&log).contains(NAME)
    }
}

/// A metrics endpoint whose every scrape adds requests over the ceiling, until it is switched to fast requests.
#[derive(Default)]
struct Slow {
    scrapes: AtomicU64,
    slow: AtomicU64,
    /// Whether requests are slow (0) or fast.
    is_over: AtomicU64,
}

impl Slow {
    fn serve() -> (Arc<Slow>, Server) {
        let state: Arc<Slow> = Arc::default();
        let seen = Arc::clone(&state);
        let server = Server::start(move |_, socket| {
            let scrapes = seen.scrapes.fetch_add(1, Ordering::SeqCst) + 1;
            let more = 1 - seen.is_over.load(Ordering::SeqCst);
            let slow = seen.slow.fetch_add(more, Ordering::SeqCst) + more;
            let text = page((scrapes - slow) * EACH, slow * EACH);
            reply(socket, "200 OK", "Content-Type: text/plain\r\n", &text);
        });
        (state, server)
    }

    /// Waits until the endpoint was scraped this many more times.
    fn scraped(&self, more: u64) {
        let before = self.scrapes.load(Ordering::SeqCst);
        until("it is scraped", || self.scrapes.load(Ordering::SeqCst) >= before + more);
    }
}

/// Writes a watch file for this endpoint and this Alertmanager.
fn files(folder: &Path, page: &str, manager: u16) -> PathBuf {
    let budget = folder.join("budget.yaml");
    let rows = "budgets: [{id: ttft, metric: ttft, p: 99, max: 250ms}]\n";
    std::fs::write(&budget, format!("version: 1\nname: chat\n{rows}")).expect("written");
    let spec = json!({
        "sources": [{"name": "a", "url": format!("{page}/metrics")}],
        "budget": budget, "every": "500ms", "window": "20s", "listen": "127.0.0.1:0",
        "journal": folder.join("watch.journal"), "alerts": {"burn": []},
        "sinks": {
            "labels": {"service": "chat"}, "alertmanager": {"urls": [format!("http://127.0.0.1:{manager}")]}
        }
    });
    let file = folder.join("watch.yaml");
    std::fs::write(&file, spec.to_string()).expect("written");
    file
}

/// Returns the identity of an alert, without the parts that change with each post. Trailing zeros are removed from the start,
/// because only one of the messages has them.
fn lasting(alert: &Value) -> ([&Value; 3], String) {
    let starts = alert["startsAt"].as_str().expect("an instant").trim_end_matches('Z');
    let starts =
        if starts.contains('.') { starts.trim_end_matches('0').trim_end_matches('.') } else { starts };
    (["labels", "annotations", "fingerprint"].map(|name| &alert[name]), starts.to_owned())
}

/// A ceiling breaks, and the watch is killed as soon as it has stored that, and again several times after the notification.
///
/// Alertmanager is killed too. It is unreachable when the ceiling passes again, and still gets the resolution.
#[test]
fn a_real_alertmanager_tells_of_a_broken_ceiling_once_through_kills_of_both_sides() {
    let folder = tempfile::tempdir().expect("a folder");
    let (hook, receiver) = Switch::start("");
    let Some(mut manager) = Manager::start(folder.path(), &receiver.url) else { return };
    let (slow, page) = Slow::serve();
    let file = files(folder.path(), &page.url, manager.port);
    let start = || Ended(watch(&file, &folder.path().join("said")));
    let is_written = |state: &str| {
        let journal = std::fs::read_to_string(folder.path().join("watch.journal")).unwrap_or_default();
        let state = format!("\"state\":\"{state}\"");
        journal.lines().any(|line| line.contains("\"kind\":\"ceiling_broken\"") && line.contains(&state))
    };

    let running = start();
    slow.scraped(100);
    until("the ceiling is broken", || is_written("firing"));
    drop(running);
    let mut running = start();
    until("Alertmanager knows", || manager.ceiling().is_some());
    let first = manager.ceiling().expect("it stands");
    let labels = json!({"alertname": NAME, "about": "ttft", "budget": "chat", "service": "chat"});
    assert_eq!((&first["labels"], &first["status"]["state"]), (&labels, &"active".into()), "{first:#}");
    let said = |name: &str| first["annotations"][name].as_str().unwrap_or_default();
    assert!(said("summary").contains("100 % of") && said("summary").contains("1 % allowed"), "{first:#}");
    assert!(!said("diagnosis").is_empty() && said("ask").contains("plimsoll diagnose"), "{first:#}");
    until("its receiver is told", || !hook.taken().is_empty());

    for kill in 0..KILLS {
        let before = manager.ceiling().expect("it stands")["updatedAt"].clone();
        drop(running);
        if kill % 3 == 2 {
            until("Alertmanager has written down what it told", || manager.remembers());
            manager.kill();
            running = start();
            manager.begin().expect("it starts again");
        } else {
            running = start();
        }
        until("it is told again", || manager.ceiling().is_some_and(|alert| alert["updatedAt"] != before));
        let again = manager.ceiling().expect("it stands");
        assert_eq!(lasting(&again), lasting(&first), "after kill {kill}");
    }

    until("Alertmanager has written down what it told", || manager.remembers());
    manager.kill();
    slow.is_over.store(1, Ordering::SeqCst);
    slow.scraped(120);
    until("the ceiling holds", || is_written("resolved"));
    drop(running);
    running = start();
    manager.begin().expect("it starts again");
    until("its receiver is told of the end", || hook.taken().len() > 1);
    // The next watch posts the resolved alert again, without effect.
    let before = manager.resolved().expect("it answers");
    drop(running);
    let _running = start();
    until("it is posted again", || manager.resolved().is_some_and(|now| now > before));
    slow.scraped(8);
    assert_eq!(manager.ceiling(), None);

    let told = hook.taken();
    let alerts: Vec<_> = told.iter().map(|(_, group)| lasting(&group["alerts"][0])).collect();
    assert_eq!(alerts, [lasting(&first), lasting(&first)]);
    let states: Vec<(&Value, usize)> = told
        .iter()
        .map(|(_, group)| (&group["status"], group["alerts"].as_array().map_or(0, Vec::len)))
        .collect();
    assert_eq!(states, [(&"firing".into(), 1), (&"resolved".into(), 1)], "{told:#?}");
}
