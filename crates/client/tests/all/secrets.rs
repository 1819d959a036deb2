//! Checks that a key reaches only the server.

use plimsoll_client::{Client, ClientConfig, Clock, Control, Secret};

use crate::rig::{Rig, run_on};
use crate::server::{Server, json};

#[test]
fn a_server_that_echoes_the_key_does_not_get_it_into_the_row() {
    let server = Server::plain(|seen| {
        let line =
            seen.head.lines().find(|l| l.to_lowercase().starts_with("authorization")).unwrap_or("none");
        let body = format!(r#"{{"error":{{"message":"bad {line}"}}}}"#);
        vec![json("401 Unauthorized", "", &body)]
    });
    let rig = Rig::at(server.url());
    let config = ClientConfig {
        target: rig.target.clone(),
        classes: Vec::new(),
        key: Some(Secret::new("sk-very-secret", "test").unwrap()),
        workers: Some(1),
        run_id: "r".into(),
        clock: Clock::start(),
        keep_text: true,
    };
    let client = Client::start(config).unwrap();
    let (_, rows) = run_on(&client, &rig.plan(&[plimsoll_model::Span::ZERO]), &Control::default());
    assert!(server.seen()[0].head.contains("authorization: Bearer sk-very-secret"));
    let error = rows[0].answer.error.as_deref().unwrap();
    assert!(error.contains("bad") && error.contains("***"), "{error}");
    assert!(!format!("{rows:?} {client:?}").contains("sk-very-secret"));
}
