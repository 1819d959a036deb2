//! The first look: nothing there, something else there, and what is learnt when it is the right thing.

use std::net::TcpListener;

use plimsoll_client::{Probe, ProbeError, Secret, doctor, probe};
use plimsoll_model::Protocol;

use crate::rig::Rig;
use crate::server::{Seen, Server, Step, good, json, write};

fn look(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Result<Probe, ProbeError> {
    let server = Server::plain(script);
    probe(&Rig::at(server.url()).target, None)
}

fn path(seen: &Seen) -> &str {
    seen.head.split(' ').nth(1).unwrap_or_default()
}

fn models() -> Step {
    let body = r#"{"object":"list","data":[{"id":"m","owned_by":"vllm","max_model_len":8192,"root":"org/m"},{"id":"n"}]}"#;
    json("200 OK", "server: uvicorn\r\nx-replica: r1\r\n", body)
}

#[test]
fn a_good_endpoint_tells_what_it_is() {
    let found = look(|seen| match path(seen) {
        "/v1/models" => vec![models()],
        "/version" => vec![json("200 OK", "", r#"{"version":"0.33.0"}"#)],
        _ => vec![json("404 Not Found", "", "{}")],
    })
    .unwrap();
    assert_eq!(found.models, ["m", "n"]);
    assert_eq!(found.model.as_deref(), Some("m"));
    let fact = |name: &str| found.fingerprint.facts[name].as_deref();
    assert_eq!(
        (fact("engine"), fact("max_context"), fact("server_header")),
        (Some("vllm"), Some("8192"), Some("uvicorn"))
    );
    assert_eq!(
        (fact("replica"), fact("model_root"), fact("model_digest")),
        (Some("r1"), Some("org/m"), None)
    );
    assert_eq!(fact("engine_version"), Some("0.33.0"));
    assert!(found.notes.is_empty());
}

#[test]
fn a_model_that_is_not_listed_is_noted() {
    let server = Server::plain(|_| vec![models()]);
    let mut target = Rig::at(server.url()).target;
    target.model = Some("other".into());
    let found = probe(&target, None).unwrap();
    assert!(found.notes[0].contains("other") && found.notes[0].contains("m, n"), "{:?}", found.notes);
    target.model = None;
    assert_eq!(probe(&target, None).unwrap().model.as_deref(), Some("m"));
}

#[test]
fn nothing_there_is_not_something_else_there() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nothing = probe(&Rig::at(format!("http://{gone}/v1")).target, None).unwrap_err();
    assert!(matches!(nothing, ProbeError::Unreachable { .. }), "{nothing}");
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n<html>hi</html>";
    let else_there = look(move |_| vec![write(page)]).unwrap_err();
    assert!(matches!(else_there, ProbeError::NotThis { .. }), "{else_there}");
    let not_http = look(|_| vec![write("SSH-2.0-x\r\n\r\n"), Step::Close]).unwrap_err();
    assert!(matches!(not_http, ProbeError::NotThis { .. }), "{not_http}");
}

#[test]
fn a_forgotten_v1_is_pointed_out() {
    let server = Server::plain(|seen| match path(seen) {
        "/v1/models" => vec![models()],
        _ => vec![json("404 Not Found", "", r#"{"detail":"Not Found"}"#)],
    });
    let error = probe(&Rig::at(format!("http://{}", server.addr)).target, None).unwrap_err();
    assert!(error.to_string().contains("/v1 does: use that"), "{error}");
}

#[test]
fn no_list_of_models_and_a_first_request_that_works() {
    let found = look(|seen| match path(seen) {
        "/v1/chat/completions" => vec![good()],
        _ => vec![json("404 Not Found", "", "{}")],
    })
    .unwrap();
    assert_eq!((found.models.len(), found.model.as_deref(), found.notes.len()), (0, Some("m"), 1));
}

#[test]
fn a_key_that_is_missing_is_asked_for_and_one_that_is_there_is_not_shown() {
    let server = Server::plain(|_| vec![json("401 Unauthorized", "", r#"{"error":"no"}"#)]);
    let key = Secret::new("sk-hidden", "test").unwrap();
    let error = probe(&Rig::at(server.url()).target, Some(key)).unwrap_err();
    assert!(matches!(error, ProbeError::Forbidden { status: 401, .. }));
    assert!(error.to_string().contains("--key-env") && !error.to_string().contains("sk-hidden"));
}

#[test]
fn any_http_endpoint_is_only_knocked_at() {
    let server = Server::plain(|_| vec![json("405 Method Not Allowed", "", "{}")]);
    let mut target = Rig::at(server.url()).target;
    target.protocol = Protocol::Http;
    assert!(probe(&target, None).is_ok());
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn every_check_of_the_machine_says_what_it_found_and_what_to_do() {
    let findings = doctor::check(Some(u32::MAX));
    assert!(findings.len() >= 8);
    for finding in &findings {
        assert!(!finding.found.is_empty());
        assert!(
            finding.severity == doctor::Severity::Good || finding.check == "ports" || !finding.fix.is_empty()
        );
    }
    let descriptors = findings.iter().find(|f| f.check == "descriptors").unwrap();
    assert_eq!(descriptors.severity, doctor::Severity::Bad);
}
