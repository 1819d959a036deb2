//! Delivery of alerts: the messages at a fake Alertmanager and a fake webhook.
//! Both refuse at times, and the watch is killed and restarted.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_client::{Secret, SigningKey};
use serde_json::{Value, json};

use crate::kit::{PLIMSOLL, Server, plimsoll, plimsoll_with, reply, until};

const SIGNING: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const TOKEN: &str = "sk-plimsoll-0123456789abcdef";
const PAGE: &str = "vllm:num_requests_running 0\nvllm:request_success_total{finished_reason=\"stop\"} 5\n\
    vllm:time_to_first_token_seconds_bucket{le=\"0.25\"} 5\nvllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 5\n\
    vllm:time_to_first_token_seconds_count 5\nvllm:time_to_first_token_seconds_sum 0.5\n";

/// Requests as they came: head and body.
type Requests = Vec<(String, Vec<u8>)>;

/// A server that a test switches on and off, and what it has taken while it was on: heads and bodies.
#[derive(Clone, Default)]
pub struct Switch {
    is_on: Arc<AtomicBool>,
    taken: Arc<Mutex<Requests>>,
}

impl Switch {
    pub fn start(answer: &'static str) -> (Switch, Server) {
        let switch = Switch::default();
        switch.set(true);
        let seen = switch.clone();
        let server = Server::whole(move |head, body, socket| match seen.is_on.load(Ordering::SeqCst) {
            true => {
                seen.taken.lock().expect("no panic before").push((head.to_owned(), body.to_vec()));
                reply(socket, "200 OK", "Content-Type: text/plain\r\n", answer);
            }
            false => reply(socket, "503 Service Unavailable", "", "not now"),
        });
        (switch, server)
    }

    fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::SeqCst);
    }

    pub fn taken(&self) -> Vec<(String, Value)> {
        let taken = self.taken.lock().expect("no panic before");
        taken.iter().map(|(head, body)| (head.clone(), serde_json::from_slice(body).expect("JSON"))).collect()
    }

    /// Alerts of a lost source that an Alertmanager took: what names them, and when they end.
    fn lost(&self) -> Vec<(Value, Value, Value)> {
        let posts = self.taken().into_iter().flat_map(|(_, body)| body.as_array().expect("a list").clone());
        let lost = posts.filter(|alert| alert["labels"]["alertname"] == "PlimsollSourceLost");
        lost.map(|alert| (alert["labels"].clone(), alert["startsAt"].clone(), alert["endsAt"].clone()))
            .collect()
    }

    /// Returns the messages that a webhook accepted: their ids and states. A repeated id is one message, because a kill may come
    /// between the acceptance and its record.
    fn messages(&self) -> Vec<(String, String)> {
        let one = |(head, body): (String, Value)| {
            (header(&head, "webhook-id"), body["state"].as_str().expect("a state").to_owned())
        };
        let mut messages: Vec<_> = self.taken().into_iter().map(one).collect();
        messages.dedup();
        messages
    }
}

fn header(head: &str, name: &str) -> String {
    let of = |line: &str| {
        Some(line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name))?.1.trim().to_owned())
    };
    head.lines().find_map(of).unwrap_or_else(|| panic!("no {name} in {head}"))
}

/// Starts a watch of this file that appends its output to `said`.
pub fn watch(file: &Path, said: &Path) -> Child {
    let out = || std::fs::OpenOptions::new().append(true).create(true).open(said).expect("a file");
    let mut command = Command::new(PLIMSOLL);
    command.args(["watch", &file.display().to_string()]).env("HOOK_KEY", SIGNING).env("AM_KEY", TOKEN);
    let mut child =
        command.stdin(Stdio::null()).stdout(out()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let (stderr, mut log) = (child.stderr.take().expect("piped"), out());
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = std::io::Write::write_all(&mut log, format!("{line}\n").as_bytes());
        }
    });
    child
}

fn killed(mut child: Child) {
    child.kill().expect("it lives");
    child.wait().expect("ended");
}

/// A watch of two pages with both kinds of receivers.
fn files(folder: &Path, pages: [&str; 2], managers: [&str; 2], hook: &str) -> std::path::PathBuf {
    let budget = folder.join("budget.yaml");
    let rows = "  - {id: ttft, metric: ttft, p: 99, max: 250ms}\n";
    std::fs::write(&budget, format!("version: 1\nname: chat\nbudgets:\n{rows}")).expect("written");
    let spec = json!({
        "sources": [{"name": "a", "url": format!("{}/metrics", pages[0])}, {"name": "b", "url": format!("{}/metrics", pages[1])}],
        "budget": budget, "every": "200ms", "window": "20s", "listen": "127.0.0.1:0",
        "journal": folder.join("watch.journal"),
        "sinks": {
            "labels": {"service": "chat"},
            "alertmanager": {"urls": managers, "resend": "1s", "key_env": "AM_KEY"},
            "webhook": {"url": hook, "sign_env": "HOOK_KEY", "body": {
                "state": "{{state}}", "text": "{{alertname}} {{about}}: {{summary}}", "starts": "{{starts_at}}",
                "ends": "{{ends_at}}", "fingerprint": "{{fingerprint}}", "labels": "{{labels}}"
            }}
        }
    });
    let file = folder.join("watch.yaml");
    std::fs::write(&file, spec.to_string()).expect("written");
    file
}

/// An endpoint becomes unreachable while the webhook refuses, the watch is killed, and the endpoint returns while the Alertmanagers refuse.
///
/// Each state of the alert arrives once at the webhook, signed, and at both Alertmanagers under one name and one start.
#[test]
fn an_alert_arrives_once_per_state_through_kills_and_refusals() {
    let folder = tempfile::tempdir().expect("a folder");
    let ((_, a), (b_page, b)) = (Switch::start(PAGE), Switch::start(PAGE));
    let ((first, m1), (second, m2), (hook, h)) = (Switch::start(""), Switch::start(""), Switch::start(""));
    let file = files(folder.path(), [&a.url, &b.url], [&m1.url, &m2.url], &h.url);
    let said = folder.path().join("said");

    let child = watch(&file, &said);
    until("the watchdog is told", || !first.taken().is_empty() && !second.taken().is_empty());
    hook.set(false);
    b_page.set(false);
    until("the loss is told", || !first.lost().is_empty() && !second.lost().is_empty());
    killed(child);
    assert!(hook.messages().is_empty(), "{:?}", hook.messages());

    // The endpoint is still unreachable: the watch starts anyway, and sends the webhook the undelivered messages.
    hook.set(true);
    let child = watch(&file, &said);
    until("the webhook is told", || !hook.messages().is_empty());
    killed(child);

    first.set(false);
    b_page.set(true);
    let before = second.lost().len();
    let child = watch(&file, &said);
    until("the page is back", || hook.messages().len() > 1);
    until("one Alertmanager knows", || second.lost().len() > before);
    killed(child);
    first.set(true);
    let child = watch(&file, &said);
    let is_over =
        |switch: &Switch| switch.lost().last().is_some_and(|last| Some(&last.2) == ends(&hook).as_ref());
    until("both Alertmanagers know the end", || is_over(&first) && is_over(&second));
    // After two more resends there is no second notification.
    let posts = first.taken().len();
    until("it is resent", || first.taken().len() > posts + 2);
    killed(child);

    let messages = hook.messages();
    let states: Vec<&str> = messages.iter().map(|(_, state)| state.as_str()).collect();
    assert_eq!(states, ["firing", "resolved"], "{messages:?}");
    let names: BTreeSet<String> = [&first, &second]
        .iter()
        .flat_map(|manager| manager.lost())
        .map(|(labels, starts, _)| format!("{labels} {starts}"))
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let (_, fired) = &hook.taken()[0];
    let labels =
        json!({"alertname": "PlimsollSourceLost", "about": "b", "budget": "chat", "service": "chat"});
    assert_eq!(fired["labels"], labels);
    assert_eq!(first.lost()[0].0, labels);
    assert_eq!(fired["starts"], first.lost()[0].1);
    assert_eq!(fired["ends"], Value::Null);
    let posts = first.taken().into_iter().flat_map(|(_, body)| body.as_array().expect("a list").clone());
    for alert in posts.filter(|alert| alert["labels"]["about"] == "b") {
        let said = alert["annotations"].as_object().expect("annotations");
        assert!(said["do_first"].as_str().is_some_and(|step| step.contains("curl")), "{alert}");
        assert!(
            said["summary"].as_str().is_some_and(|said| said.contains("b does not answer: HTTP 503")),
            "{alert}"
        );
        assert!(said.values().all(|text| text.as_str() != Some("")), "{alert}");
    }
    assert!(fired["text"].as_str().is_some_and(|text| text.contains("b does not answer")), "{fired}");
    signed(&hook);
    silent(folder.path(), &[&first, &second, &hook]);
}

/// Returns the end of the alert as delivered to the webhook.
fn ends(hook: &Switch) -> Option<Value> {
    hook.taken()
        .into_iter()
        .find(|(_, body)| body["state"] == "resolved")
        .map(|(_, body)| body["ends"].clone())
}

/// Checks that each message's signature matches its bytes.
fn signed(hook: &Switch) {
    let key = SigningKey::new(&Secret::new(SIGNING, "test").expect("usable"), "test").expect("base64");
    let taken = hook.taken.lock().expect("no panic before");
    for (head, body) in taken.iter() {
        let at_s = header(head, "webhook-timestamp").parse().expect("seconds");
        let wanted = key.headers(&header(head, "webhook-id"), at_s, body);
        let wanted = wanted.iter().find(|(name, _)| name == "webhook-signature").expect("signed");
        assert_eq!(header(head, "webhook-signature"), wanted.1.to_str().expect("ascii"));
    }
}

/// Checks that no key is in the files or the messages; the token is only in its header.
fn silent(folder: &Path, told: &[&Switch]) {
    for (name, bytes) in crate::kit::files(folder) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(&SIGNING[6..]) && !text.contains(TOKEN), "{name} holds a key: {text}");
    }
    for switch in told {
        for (head, body) in switch.taken() {
            let body = body.to_string();
            assert!(!body.contains(&SIGNING[6..]) && !body.contains(TOKEN), "{body}");
            assert!(!head.contains(&SIGNING[6..]), "{head}");
        }
    }
    assert_eq!(header(&told[0].taken()[0].0, "authorization"), format!("Bearer {TOKEN}"));
}

/// Alerts that can't be delivered are refused in one line before the watch starts.
#[test]
fn sinks_that_cannot_be_are_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = folder.path().join("budget.yaml");
    std::fs::write(&budget, "version: 1\nname: chat\nbudgets: [{id: t, metric: ttft, p: 90, max: 250ms}]\n")
        .expect("written");
    let file = folder.path().join("watch.yaml");
    let hook = "webhook: {url: \"http://127.0.0.1:9/x\"";
    for (more, word) in [
        (format!("sinks: {{{hook}}}}}"), "journal: FILE"),
        (format!("sinks: {{{hook}, sign_env: NO_SUCH_KEY}}}}"), "NO_SUCH_KEY"),
        (format!("sinks: {{{hook}, body: {{text: \"{{{{nonsense}}}}\"}}}}}}"), "{{nonsense}}"),
        ("sinks: {webhook: {}}".to_owned(), "either url or url_env"),
        ("sinks: {webhook: {url_env: NO_SUCH_URL}}".to_owned(), "NO_SUCH_URL"),
        ("sinks: {webhook: {url: \"hooks.example/x\"}}".to_owned(), "http://"),
        ("sinks: {alertmanager: {urls: []}}".to_owned(), "names no instance"),
        ("sinks: {alertmanager: {urls: [\"http://127.0.0.1:9\"], resend: 1ms}}".to_owned(), "resend"),
        ("sinks: {labels: {budget: x}}".to_owned(), "sinks.labels: budget"),
        ("sinks: {labels: {a-b: x}}".to_owned(), "sinks.labels: a-b"),
        ("sinks: {pager: {}}".to_owned(), "pager"),
        ("journal: no/such/folder/journal".to_owned(), "its folder does not exist"),
        (format!("journal: {}", budget.display()), "no journal of a watch"),
        ("alerts: {burn: [{long_s: 60, short_s: 300, factor: 2}]}".to_owned(), "alerts.burn"),
    ] {
        let text = format!(
            "sources: [{{url: \"http://127.0.0.1:9/metrics\"}}]\nbudget: {}\n{more}\n",
            budget.display()
        );
        std::fs::write(&file, text).expect("written");
        let ended = plimsoll(&["watch", &file.display().to_string()]);
        assert_eq!(ended.code, 2, "{more}: {}", ended.stderr);
        assert!(ended.stderr.contains(word) && ended.stderr.lines().count() == 1, "{more}: {}", ended.stderr);
    }
    let secret = "http://u:sk-hidden@127.0.0.1:9/x";
    std::fs::write(&file, format!("sources: [{{url: \"http://127.0.0.1:9/metrics\"}}]\nbudget: {}\nsinks: {{webhook: {{url_env: HOOK}}}}\n", budget.display()))
        .expect("written");
    let ended = plimsoll_with(&["watch", &file.display().to_string()], &[("HOOK", secret)]);
    assert!(
        ended.code == 2 && ended.stderr.contains("HOOK") && !ended.stderr.contains("sk-hidden"),
        "{}",
        ended.stderr
    );
}

/// The lint refuses a burn rate that no row can reach, in text and in JSON.
/// It accepts one that some row can reach, and names the other rows.
#[test]
fn burn_rates_that_can_never_fire_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(|_, socket| reply(socket, "200 OK", "", PAGE));
    let lint = |rows: &str, more: &str, format: &str| {
        let (budget, file) = (folder.path().join("budget.yaml"), folder.path().join("watch.yaml"));
        std::fs::write(&budget, format!("version: 1\nname: chat\nbudgets: [{rows}]\n")).expect("written");
        let text =
            format!("sources: [{{url: \"{}/metrics\"}}]\nbudget: {}\n{more}\n", server.url, budget.display());
        std::fs::write(&file, text).expect("written");
        plimsoll(&["watch", "lint", &file.display().to_string(), "--format", format])
    };
    let (p90, p99) =
        ("{id: p90, metric: ttft, p: 90, max: 250ms}", "{id: p99, metric: ttft, p: 99, max: 250ms}");
    let refused = lint(p90, "", "json");
    assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{}", refused.stderr);
    assert!(refused.stderr.contains("14.4 (1 h, 5 min) can never fire"), "{}", refused.stderr);
    let reach = |rows: &Value, row: usize| -> Vec<bool> {
        let pairs = rows[row]["burn"].as_array().expect("a list");
        pairs.iter().map(|pair| pair["reachable"].as_bool().expect("yes or no")).collect()
    };
    // All over it burn at 10: 14.4 is out of reach, 6, 3 and 1 are not.
    assert_eq!(reach(&refused.json(), 0), [false, true, true, true]);
    assert_eq!(lint(p90, "", "text").code, 2);
    let mended = "alerts: {burn: [{long_s: 3600, short_s: 300, factor: 9}]}";
    let mended = lint(p90, mended, "json");
    assert_eq!((mended.code, reach(&mended.json(), 0)), (0, vec![true]), "{}", mended.stderr);
    let both = lint(&format!("{p90}, {p99}"), "", "json");
    assert_eq!(both.code, 0, "{}", both.stderr);
    assert_eq!((reach(&both.json(), 0)[0], reach(&both.json(), 1)[0]), (false, true));
    let text = lint(&format!("{p90}, {p99}"), "", "text");
    assert!(text.words().contains("p90: burn rates of 14.4 are out of its reach"), "{}", text.stdout);
}
