//! The page on security agrees with the program: its figures are compared with the program's own constants.

use plimsoll_server::ServerLimits;
use plimsoll_server::collector::CollectorConfig;
use serde_json::Value;

use crate::kit::{Server, plimsoll, plimsoll_in, reply};

/// The cells of the page's row that begins with this.
fn row(begins: &str) -> Vec<String> {
    let page = include_str!("../../../../docs/security.md");
    let line = page.lines().find(|line| line.starts_with(&format!("| {begins} |")));
    let line = line.unwrap_or_else(|| panic!("docs/security.md has no row {begins}"));
    line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

fn figures(begins: &str) -> Vec<Vec<u64>> {
    let number = |word: &str| word.trim_matches(',').parse().ok();
    row(begins)[1..].iter().map(|cell| cell.split_whitespace().filter_map(number).collect()).collect()
}

fn gateway_default(pointer: &str) -> Value {
    let schema = plimsoll(&["schema", "gateway"]).json();
    schema.pointer(pointer).unwrap_or_else(|| panic!("{pointer}")).clone()
}

#[test]
fn every_listener_listens_where_the_page_says() {
    for (name, flags) in [
        ("`plimsoll engine`", "engine"),
        ("`plimsoll watch`", "watch"),
        ("`plimsoll canary`", "canary"),
        ("`plimsoll collect`", "collect"),
    ] {
        let address = row(name)[1].trim_matches('`').to_owned();
        let help = plimsoll(&[flags, "--help"]).words();
        let port = address.rsplit_once(':').expect("a port").1;
        assert!(help.contains(&address) || help.contains(&format!("[default: :{port}")), "{name}: {help}");
        assert!(address.starts_with("127.0.0.1:"));
    }
    let gateway = row("`plimsoll gateway`")[1].trim_matches('`').to_owned();
    assert_eq!(gateway_default("/properties/listen/default"), gateway.as_str());
    assert_eq!(gateway_default("/properties/admin/default"), Value::Null);
    assert_eq!(row("gateway admin API")[1], "none");
}

#[test]
fn what_is_refused_beyond_loopback_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    write("budget.yaml", "version: 1\nname: a\nbudgets:\n  - {id: a, metric: ttft, p: 50, max: 60s}\n");
    write("gateway.yaml", "admin: 0.0.0.0:0\nreplicas: [{url: http://127.0.0.1:9}]\n");
    let page = Server::start(|_, socket| reply(socket, "200 OK", "", "vllm:num_requests_running 0\n"));
    let url = page.url.replace("/v1", "/metrics");
    let watch = ["watch", &url, "-b", "budget.yaml", "--listen", "0.0.0.0:0", "--for", "1s"];
    let ended = plimsoll_in(folder.path(), &watch);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("--listen-open"), "{}", ended.stderr);
    let ended = plimsoll_in(folder.path(), &["gateway", "gateway.yaml"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("admin_key"), "{}", ended.stderr);
}

#[test]
fn every_bound_is_the_one_of_the_page() {
    let engine = ServerLimits::default();
    let collect = CollectorConfig::new(Vec::new());
    let gateway = |field: &str| {
        let value = gateway_default(&format!("/$defs/LimitSpec/properties/{field}/default"));
        value.as_f64().expect("a number") as u64
    };
    let bytes = |n: usize| n as u64;
    assert_eq!(
        figures("body, bytes"),
        [
            vec![bytes(engine.body_bytes)],
            vec![gateway("body_bytes")],
            vec![],
            vec![bytes(collect.body_bytes), bytes(collect.inflated_bytes)]
        ]
    );
    let head = figures("head, bytes");
    assert_eq!(head[..2], [vec![bytes(engine.head_bytes)], vec![gateway("head_bytes")]]);
    let within = figures("timeout of head and body, s");
    let engine_s = engine.request_read.0 as u64 / 1_000_000_000;
    assert_eq!(within, [vec![engine_s], vec![gateway("head_s")], vec![5], vec![collect.idle.as_secs()]]);
    assert_eq!(gateway("head_s"), gateway("body_s"));
    assert_eq!(figures("connections")[1..], [vec![gateway("connections")], vec![64], vec![1024]]);
    assert_eq!(figures("waiting in memory, bytes")[3], [bytes(collect.pending_bytes)]);
}

/// The exceptions in `deny.toml` equal the documented ones, and the list of refused headers is the program's.
#[test]
fn headers_that_hold_secrets_are_refused_by_name() {
    let page = include_str!("../../../../docs/security.md");
    let line = page.lines().find(|line| line.starts_with("* A literal value of")).expect("the line");
    let names: Vec<&str> = line.split('`').skip(1).step_by(2).take_while(|name| *name != "--set").collect();
    assert_eq!(names.len(), 6, "{names:?}");
    for name in names {
        for more in [
            vec!["-H".to_owned(), format!("{name}: x")],
            vec!["--set".to_owned(), format!("target.headers.{name}=x")],
        ] {
            let args: Vec<&str> = ["run", "http://127.0.0.1:9/v1", "--rate", "1/s"]
                .into_iter()
                .chain(more.iter().map(String::as_str))
                .collect();
            let ended = plimsoll(&args);
            assert_eq!(ended.code, 2, "{name}: {}", ended.stderr);
            assert!(ended.stderr.contains(&format!("header {name}")), "{}", ended.stderr);
        }
    }
}
