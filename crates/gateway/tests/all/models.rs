//! Replicas with different models.

use std::time::Duration;

use plimsoll_gateway::{Gateway, GatewaySpec, ReplicaSpec};
use plimsoll_policy::HedgeSpec;
use serde_json::Value;

use crate::kit::{Act, Answer, Mock, gateway, get, is_empty, request, send, until};

fn ask(gateway: &Gateway, model: &str) -> Answer {
    let body = format!(r#"{{"model": "{model}", "prompt": "hello"}}"#);
    send(gateway.addr, &request(&body)).expect("an answer")
}

fn by(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("x-plimsoll-replica"))
}

#[test]
fn a_request_goes_to_those_that_serve_its_model() {
    let a = Mock::serving(Act::Answer, &["large", "shared"]);
    let b = Mock::serving(Act::Answer, &["small", "shared", "small-lora"]);
    let gateway = gateway(&[&a, &b], |_| {});
    for _ in 0..20 {
        assert_eq!(by(&ask(&gateway, "large")), (200, Some("r0")));
        assert_eq!(by(&ask(&gateway, "small")), (200, Some("r1")));
        assert_eq!(by(&ask(&gateway, "small-lora")), (200, Some("r1")));
    }
    let (before_a, before_b) = (a.count(), b.count());
    (0..40).for_each(|_| assert_eq!(ask(&gateway, "shared").status, 200));
    assert!(a.count() > before_a && b.count() > before_b, "both serve it");
    // A model that no replica lists goes to any replica.
    assert_eq!(ask(&gateway, "unheard-of").status, 200);
    is_empty(&gateway);
}

#[test]
fn clients_see_one_list_of_all() {
    let (a, b) =
        (Mock::serving(Act::Answer, &["large", "shared"]), Mock::serving(Act::Answer, &["shared", "small"]));
    let gateway = gateway(&[&a, &b], |_| {});
    let answer = get(gateway.addr, "/v1/models", "");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let list: Value = serde_json::from_str(&answer.text()).expect("JSON");
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["large", "shared", "small"]));
    // The replica's model entry is unchanged.
    assert_eq!(list["data"][0]["max_model_len"], 4096);
    assert_eq!(by(&get(gateway.addr, "/v1/models/small", "")), (200, Some("r1")));
    assert_eq!(by(&get(gateway.addr, "/v1/models/large", "")), (200, Some("r0")));
}

#[test]
fn replicas_that_serve_the_same_answer_for_themselves() {
    let (a, b) = (Mock::serving(Act::Answer, &["m"]), Mock::serving(Act::Answer, &["m"]));
    let gateway = gateway(&[&a, &b], |_| {});
    let answer = get(gateway.addr, "/v1/models", "");
    let same = a.models.lock().expect("nobody panicked").clone();
    assert_eq!(Some(answer.text()), same);
    assert!(answer.header("x-plimsoll-replica").is_some());
}

/// The replica of one model is full; requests for another model are not blocked.
#[test]
fn one_models_queue_is_not_anothers() {
    let (a, b) = (Mock::serving(Act::Silence, &["large"]), Mock::serving(Act::Answer, &["small"]));
    let gateway = gateway(&[&a, &b], |spec| spec.admission.per_replica = Some(1));
    let at = gateway.addr;
    let large: Vec<_> = (0..5)
        .map(|_| std::thread::spawn(move || send(at, &request(r#"{"model": "large", "prompt": "hello"}"#))))
        .collect();
    until("four wait behind one", || {
        gateway.pool.queued().0.iter().map(|held| held.requests).sum::<u32>() == 4
    });
    for _ in 0..20 {
        let answer = ask(&gateway, "small");
        assert_eq!(by(&answer), (200, Some("r1")));
    }
    assert_eq!(a.count(), 1);
    a.set(Act::Stream(1, Duration::ZERO));
    a.leave();
    drop(gateway);
    large.into_iter().for_each(|one| drop(one.join().expect("a thread")));
}

/// A request for a model waits while its only replica is down, and never goes to a replica without the model.
#[test]
fn a_model_that_nobody_serves_now_is_waited_for() {
    let (a, b) = (Mock::serving(Act::Answer, &["large"]), Mock::serving(Act::Answer, &["small"]));
    let gateway = gateway(&[&a, &b], |spec| spec.admission.wait_s = 0.5);
    a.leave();
    until("it is seen to be gone", || !gateway.pool.is_up(0));
    let before = b.count();
    assert_eq!(ask(&gateway, "large").status, 503);
    assert_eq!(b.count(), before);
    assert_eq!(ask(&gateway, "small").status, 200);
}

/// The configured model list takes precedence; the replica is not queried.
#[test]
fn the_file_says_what_a_replica_serves() {
    let (a, b) = (Mock::serving(Act::Answer, &["x"]), Mock::serving(Act::Answer, &["x"]));
    let gateway = gateway(&[&a, &b], |spec| {
        spec.replicas[0].models = Some(vec!["large".to_owned()]);
        spec.replicas[1].models = Some(vec!["small".to_owned()]);
    });
    for _ in 0..10 {
        assert_eq!(by(&ask(&gateway, "large")), (200, Some("r0")));
        assert_eq!(by(&ask(&gateway, "small")), (200, Some("r1")));
    }
}

/// A reload applies the configured model list immediately; without one, the replica is queried again.
#[test]
fn what_the_file_says_of_models_is_read_again() {
    let (a, b) = (Mock::serving(Act::Answer, &["own"]), Mock::serving(Act::Answer, &["other"]));
    let mut spec = None;
    let gateway = gateway(&[&a, &b], |now| {
        now.replicas[0].models = Some(vec!["large".to_owned()]);
        spec = Some(now.clone());
    });
    let mut spec = spec.expect("it was made");
    let reloader = gateway.reloader();
    assert_eq!(by(&ask(&gateway, "large")), (200, Some("r0")));
    spec.replicas[0].models = Some(vec!["renamed".to_owned()]);
    assert!(reloader.reload(&spec).expect("sound").later.is_empty());
    assert_eq!(gateway.pool.replicas()[0].models(), Some(vec!["renamed".to_owned()]));
    (0..10).for_each(|_| assert_eq!(by(&ask(&gateway, "renamed")), (200, Some("r0"))));
    spec.replicas[0].models = None;
    reloader.reload(&spec).expect("sound");
    assert_eq!(
        gateway.pool.replicas()[0].models(),
        None,
        "it is asked, and gets requests for any until then"
    );
}

#[test]
fn a_file_that_can_match_nothing_is_refused() {
    let mock = Mock::new(Act::Answer);
    let replicas = vec![ReplicaSpec::new(format!("http://{}", mock.addr), Some("a".to_owned()))];
    let spec = GatewaySpec { replicas, ..GatewaySpec::default() };
    let said = |change: fn(&mut GatewaySpec)| {
        let mut spec = spec.clone();
        change(&mut spec);
        spec.validate().expect_err("refused").to_string()
    };
    let none = said(|spec| spec.replicas[0].models = Some(Vec::new()));
    assert!(none.contains("a: models is empty"), "{none}");
    for paths in [vec![], vec!["v1/completions".to_owned()]] {
        let hedge = Some(HedgeSpec { paths, ..HedgeSpec::default() });
        let error = GatewaySpec { hedge, ..spec.clone() }.validate().expect_err("refused").to_string();
        assert!(error.starts_with("hedge: paths: "), "{error}");
    }
}

fn chat(gateway: &Gateway) -> Answer {
    let text = String::from_utf8(request(CHAT)).expect("text");
    let text = text.replace("Host: gateway", "Host: gateway\r\nx-plimsoll-explain: 1");
    send(gateway.addr, text.as_bytes()).expect("an answer")
}

const CHAT: &str =
    r#"{"prompt":"chat about \"model\": \"chat\"", "n": {"model": "chat"},"model" : "chat" , "x":1}"#;

/// Returns the body that the replica received.
fn seen(mock: &Mock) -> String {
    let last = mock.last.lock().expect("nobody panicked").clone();
    let last = String::from_utf8(last).expect("text");
    last.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// One name has two models: the first serves while its replica is up, then the second. The rest of the body is
/// unchanged.
#[test]
fn a_name_for_several_models_asks_the_first_that_is_there() {
    let large = Mock::new(Act::Answer);
    let small = Mock::serving(Act::Answer, &["small"]);
    let tiers = vec!["org/large \"v2\"".to_owned(), "small".to_owned()];
    let gateway = gateway(&[&large, &small], |spec| {
        spec.replicas[0].models = Some(tiers[..1].to_vec());
        spec.tiers.insert("chat".to_owned(), tiers);
        spec.explain_header = true;
    });
    let of = |answer: &Answer| {
        assert_eq!(answer.status, 200);
        answer.header("x-plimsoll-model").map(str::to_owned)
    };
    let why = |answer: &Answer| -> Value {
        serde_json::from_str(answer.header("x-plimsoll-explain").expect("asked for")).expect("JSON")
    };
    let answer = chat(&gateway);
    assert_eq!(of(&answer).as_deref(), Some("org/large \"v2\""));
    assert_eq!(seen(&large), CHAT.replace("\"model\" : \"chat\"", "\"model\" : \"org/large \\\"v2\\\"\""));
    assert_eq!(why(&answer)["asked_of"]["passed_over"], Value::Array(vec![]));
    // A request for a specific model gets that model, with an unchanged body.
    let own = ask(&gateway, "small");
    assert_eq!((of(&own), by(&own)), (None, (200, Some("r1"))));
    large.leave();
    // This holds before and after the replica is marked as down.
    for _ in 0..3 {
        let answer = chat(&gateway);
        assert_eq!((of(&answer).as_deref(), by(&answer)), (Some("small"), (200, Some("r1"))));
        assert_eq!(seen(&small), CHAT.replace("\"model\" : \"chat\"", "\"model\" : \"small\""));
    }
    until("it is seen to be gone", || !gateway.pool.is_up(0));
    let why = why(&chat(&gateway));
    assert_eq!(why["asked_of"]["model"], "small");
    assert_eq!(
        why["asked_of"]["passed_over"][0],
        serde_json::json!({"model": "org/large \"v2\"", "late_s": null})
    );
    is_empty(&gateway);
}

#[test]
fn a_name_for_several_models_is_listed_among_them() {
    let (large, small) = (Mock::serving(Act::Answer, &["large"]), Mock::serving(Act::Answer, &["small"]));
    let gateway = gateway(&[&large, &small], |spec| {
        spec.tiers.insert("chat".to_owned(), vec!["large".to_owned(), "small".to_owned()]);
    });
    let list: Value = serde_json::from_str(&get(gateway.addr, "/v1/models", "").text()).expect("JSON");
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["large", "small", "chat"]);
    let one: Value = serde_json::from_str(&get(gateway.addr, "/v1/models/chat", "").text()).expect("JSON");
    assert_eq!((one["id"].as_str(), one["object"].as_str()), (Some("chat"), Some("model")));
}

#[test]
fn names_for_several_models_that_make_no_sense_are_refused() {
    let mut spec = GatewaySpec::default();
    for (name, model) in [("a", "large"), ("b", "small")] {
        let replica = ReplicaSpec::new(format!("http://{name}"), None);
        spec.replicas.push(ReplicaSpec { models: Some(vec![model.to_owned()]), ..replica });
    }
    let said = |spec: &GatewaySpec, tiers: &[(&str, &[&str])]| {
        let mut spec = spec.clone();
        let owned = |models: &[&str]| models.iter().map(|&model| model.to_owned()).collect();
        spec.tiers = tiers.iter().map(|(name, models)| ((*name).to_owned(), owned(models))).collect();
        spec.validate().map_err(|error| error.to_string())
    };
    assert_eq!(said(&spec, &[("chat", &["large", "small"])]), Ok(()));
    type Tiers<'a> = &'a [(&'a str, &'a [&'a str])];
    let cases: [(Tiers<'_>, &str); 7] = [
        (&[("chat", &[])], "tiers: chat: names no model"),
        (&[("chat", &["chat"])], "tiers: chat: chat is a tier itself"),
        (&[("a", &["b"]), ("b", &["a"])], "tiers: a: b is a tier itself"),
        (&[("large", &["small"])], "tiers: large: is a model that a replica serves"),
        (&[("chat", &["large", "tiny"])], "tiers: chat: no replica serves tiny"),
        (&[("chat", &["large", "large"])], "tiers: chat: large is there twice"),
        (&[("chat", &["la\nrge"])], "can't be in a header"),
    ];
    for (tiers, says) in cases {
        let error = said(&spec, tiers).expect_err("refused");
        assert!(error.contains(says) && error.lines().count() == 1, "{error}");
    }
    // A replica that is queried may serve the model.
    spec.replicas[1].models = None;
    assert_eq!(said(&spec, &[("chat", &["large", "tiny"])]), Ok(()));
}
