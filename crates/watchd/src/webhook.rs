//! Sends one message per alert and state to a webhook, when an alert fires and when it resolves. Messages are
//! sent in order. Each is retried with exponential backoff until a 2xx response.
//!
//! If the process dies after a delivery and before its journal entry, the message is sent again with an
//! unchanged `webhook-id`. A receiver that stores ids sees each message once. Bodies are JSON filled with
//! values and not with text, so alert text cannot break them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use plimsoll_client::auth::sign;
use plimsoll_client::clock::realtime_ns;
use plimsoll_client::{PostClient, Secret, SigningKey};
use plimsoll_model::{At, Span};
use plimsoll_workload::TargetSpec;
use serde_json::{Map, Value};

use crate::file::WebhookSpec;
use crate::journal::{Journal, JournalLine};
use crate::outbox::{self, Outbox};
use crate::told::AlertMessage;

/// Maximum backoff between two attempts, and the response timeout.
const MOST_WAIT: Span = Span::from_secs(60);
const PATIENCE: Span = Span::from_secs(10);

/// Fields that a body may contain.
const FIELDS: [&str; 17] = [
    "state",
    "kind",
    "alertname",
    "about",
    "row",
    "budget",
    "summary",
    "diagnosis",
    "do_first",
    "do_not",
    "ask",
    "run",
    "since",
    "starts_at",
    "ends_at",
    "fingerprint",
    "labels",
];

impl WebhookSpec {
    /// Returns the sender.
    ///
    /// # Errors
    /// Fails if a setting is invalid, with a one-line message that contains no key and no secret URL.
    pub fn sender(&self) -> Result<Webhook, String> {
        let named = |why: String| format!("sinks.webhook: {why}");
        let url = match (&self.url, &self.url_env) {
            (Some(url), None) => url.clone(),
            (None, Some(name)) => std::env::var(name).map_err(|_| {
                named(format!("the environment variable {name} is not set; set it to a URL, or write url"))
            })?,
            _ => return Err(named("write either url or url_env".to_owned())),
        };
        let target = TargetSpec {
            url,
            stream: false,
            headers: self.headers.clone(),
            key_env: self.key_env.clone(),
            key_file: self.key_file.clone(),
            ca_file: self.ca_file.clone(),
            tls_verify: !self.insecure,
            ..TargetSpec::default()
        };
        let poster = PostClient::new(&target, "").map_err(|e| {
            named(match &self.url_env {
                Some(name) => format!("the environment variable {name} contains no valid URL"),
                None => e.to_string(),
            })
        })?;
        if let Some(body) = &self.body {
            check(body).map_err(named)?;
        }
        let key = self.key().map_err(named)?;
        let name = outbox::name_of("webhook", &poster);
        Ok(Webhook { name, poster, body: self.body.clone(), key })
    }

    fn key(&self) -> Result<Option<SigningKey>, String> {
        let (secret, from) = match (&self.sign_env, &self.sign_file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err("write either sign_env or sign_file".to_owned()),
            (Some(name), None) => (Secret::from_env(name), name),
            (None, Some(file)) => (Secret::from_file(Path::new(file)), file),
        };
        // The underlying error names a flag that does not apply here.
        let secret = secret.map_err(|_| format!("no signing key in {from}: missing, empty or not text"))?;
        SigningKey::new(&secret, from).map(Some).map_err(|e| e.to_string())
    }
}

pub struct Webhook {
    name: String,
    poster: PostClient,
    body: Option<Value>,
    key: Option<SigningKey>,
}

impl Webhook {
    /// Sends messages until the watch ends.
    pub fn work(self, outbox: &Arc<Outbox>, journal: &Arc<Mutex<Journal>>) {
        let (mut failures, mut due) = (0, At(i64::MIN));
        while let Some((message, is_last)) = outbox.message(due) {
            let answer = self.send(&message);
            let refusal = outbox::refusal(&answer);
            match &refusal {
                None => {
                    let arrived =
                        JournalLine::Arrived { id: message.id().to_owned(), state: message.state() };
                    if let Ok(mut journal) = journal.lock() {
                        journal.append(&[arrived], realtime_ns());
                    }
                    outbox.arrived();
                    (failures, due) = (0, At(i64::MIN));
                }
                Some(_) => {
                    failures += 1;
                    let asked = answer.ok().and_then(|posted| posted.retry_after);
                    due = outbox::now() + outbox::wait_after(failures, MOST_WAIT, asked);
                }
            }
            outbox.note(&self.name, refusal.as_deref(), outbox.waiting());
            if is_last && refusal.is_some() {
                return;
            }
        }
    }

    fn send(&self, message: &AlertMessage) -> Result<plimsoll_client::PostResponse, String> {
        let fields = message.fields();
        let body =
            self.body.as_ref().map_or_else(|| Value::Object(fields.clone()), |body| filled(body, &fields));
        let body = body.to_string().into_bytes();
        let (id, at_s) = (message.message_id(), realtime_ns() / 1_000_000_000);
        let headers = match &self.key {
            Some(key) => key.headers(&id, at_s, &body),
            None => sign::plain_headers(&id, at_s).into_iter().flatten().collect(),
        };
        self.poster.json(body, &headers, PATIENCE)
    }
}

/// Fills the names in a body. A string that consists of one name becomes its value, of any type.
fn filled(body: &Value, fields: &Map<String, Value>) -> Value {
    match body {
        Value::String(text) => {
            let parts = parts(text);
            match &parts[..] {
                [Part::Name(name)] => fields.get(*name).cloned().unwrap_or_default(),
                parts => parts.iter().map(|part| part.shown(fields)).collect::<String>().into(),
            }
        }
        Value::Array(all) => all.iter().map(|one| filled(one, fields)).collect(),
        Value::Object(all) => all.iter().map(|(key, one)| (key.clone(), filled(one, fields))).collect(),
        other => other.clone(),
    }
}

enum Part<'a> {
    Text(&'a str),
    Name(&'a str),
}

impl Part<'_> {
    fn shown(&self, fields: &Map<String, Value>) -> String {
        match self {
            Part::Text(text) => (*text).to_owned(),
            Part::Name(name) => match fields.get(*name) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            },
        }
    }
}

/// Splits a template: `a {{b}} c` → `a `, b, ` c`.
fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, name, after)) = rest
        .split_once("{{")
        .and_then(|(before, rest)| rest.split_once("}}").map(|(name, after)| (before, name, after)))
    {
        if !before.is_empty() {
            parts.push(Part::Text(before));
        }
        parts.push(Part::Name(name.trim()));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    parts
}

/// # Errors
/// Fails on an unknown field name.
fn check(body: &Value) -> Result<(), String> {
    match body {
        Value::String(text) => {
            let unknown = parts(text).into_iter().find_map(|part| match part {
                Part::Name(name) if !FIELDS.contains(&name) => Some(name.to_owned()),
                _ => None,
            });
            unknown.map_or(Ok(()), |name| {
                Err(format!("body: {{{{{name}}}}} is unknown; names are {}", FIELDS.join(", ")))
            })
        }
        Value::Array(all) => all.iter().try_for_each(check),
        Value::Object(all) => all.values().try_for_each(check),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_body_is_filled_with_values_and_no_text_breaks_it() {
        let fields = json!({"summary": "p99 \"over\" {{state}}", "state": "firing", "ends_at": null, "labels": {"a": "b"}});
        let Value::Object(fields) = fields else { unreachable!() };
        let body = json!({"text": "{{ state }}: {{summary}}{{ends_at}}!", "raw": ["{{labels}}", "{{ends_at}}", 7, "{{"]});
        let wanted = json!({"text": "firing: p99 \"over\" {{state}}!", "raw": [{"a": "b"}, null, 7, "{{"]});
        assert_eq!(filled(&body, &fields), wanted);
        assert!(
            check(&json!({"a": ["{{summary}} {{nothing}}"]})).expect_err("unknown").contains("{{nothing}}")
        );
    }
}
