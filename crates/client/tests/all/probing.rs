//! Tests the probe: no server, another server, and the facts of a supported server.

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
fn a_url_with_the_path_of_a_question_is_cut_to_its_base() {
    let server = Server::plain(|seen| match path(seen) {
        "/v1/models" => vec![models()],
        _ => vec![json("404 Not Found", "", r#"{"detail":"Not Found"}"#)],
    });
    for question in ["/chat/completions", "/completions/"] {
        let url = format!("http://{}/v1{question}", server.addr);
        let error = probe(&Rig::at(url).target, None).unwrap_err().to_string();
        assert!(error.contains(&format!("; http://{}/v1 does: use that", server.addr)), "{error}");
    }
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
    let error = error.to_string();
    assert!(error.contains("the key was refused") && !error.contains("sk-hidden"), "{error}");
    let error = probe(&Rig::at(server.url()).target, None).unwrap_err().to_string();
    assert!(error.contains("give a key with --key-env"), "{error}");
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
            finding.severity == doctor::CheckSeverity::Good
                || finding.check == "ports"
                || !finding.fix.is_empty()
        );
    }
    let descriptors = findings.iter().find(|f| f.check == "descriptors").unwrap();
    assert_eq!(descriptors.severity, doctor::CheckSeverity::Bad);
}

/// A Triton server with one model, as in `triton/*.http` of the wire crate's recordings; `model` is its metadata.
fn triton(model: &'static str) -> Server {
    Server::plain(move |seen| match path(seen) {
        "/v2" => vec![json(
            "200 OK",
            "",
            r#"{"name":"triton","version":"2.51.0","extensions":["binary_tensor_data","parameters"]}"#,
        )],
        "/v2/repository/index" => {
            vec![json("200 OK", "", r#"[{"name":"addsub","version":"1","state":"READY"}]"#)]
        }
        "/v2/models/addsub" => vec![json("200 OK", "", model)],
        "/v2/models/addsub/config" => vec![json("200 OK", "", r#"{"name":"addsub","max_batch_size":8}"#)],
        _ => vec![json("404 Not Found", "", r#"{"error":"Request for unknown model: 'nope' is not found"}"#)],
    })
}

fn kserve(server: &Server, model: Option<&str>) -> Result<Probe, ProbeError> {
    let mut target = Rig::at(server.url().replace("/v1", "/v2")).target;
    (target.protocol, target.model) = (Protocol::Kserve, model.map(str::to_owned));
    probe(&target, None)
}

const ADDSUB: &str = r#"{"name":"addsub","versions":["1"],"platform":"python","inputs":[{"name":"A","datatype":"FP32","shape":[-1,4]}]}"#;

#[test]
fn a_kserve_server_tells_what_its_model_takes() {
    let found = kserve(&triton(ADDSUB), None).expect("a Triton");
    assert_eq!(
        (found.models.as_slice(), found.model.as_deref()),
        (&["addsub".to_owned()][..], Some("addsub"))
    );
    let served = found.served.expect("metadata");
    assert_eq!((served.max_batch, served.binary), (Some(8), true));
    let input = &served.model.inputs[0];
    assert_eq!((input.name.as_str(), &input.shape[..]), ("A", &[-1, 4][..]));
    let fact = |name: &str| found.fingerprint.facts[name].as_deref();
    assert_eq!((fact("engine"), fact("engine_version")), (Some("triton"), Some("2.51.0")));
    assert_eq!(
        (fact("model_platform"), fact("model_versions"), fact("max_batch")),
        (Some("python"), Some("1"), Some("8"))
    );
}

#[test]
fn what_is_no_kserve_server_or_has_no_such_model_says_so() {
    let unknown = kserve(&triton(ADDSUB), Some("nope")).expect_err("no such model").to_string();
    assert!(unknown.contains("'nope' is not found") && unknown.contains("addsub"), "{unknown}");
    let odd = r#"{"name":"addsub","inputs":[{"name":"A","datatype":"FP8","shape":[1]}]}"#;
    let odd = kserve(&triton(odd), None).expect_err("an unknown type").to_string();
    assert!(odd.contains("FP8"), "{odd}");
    let other = kserve(&Server::plain(|_| vec![models()]), None).expect_err("another protocol").to_string();
    assert!(other.contains("but not as kserve should") && other.contains("ends in /v2"), "{other}");
}
