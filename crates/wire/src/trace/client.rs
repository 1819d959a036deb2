//! Writes attempts as client spans in OTLP's JSON: a line per batch, as OpenTelemetry's file exporter writes and collectors read it.
//!
//! Names follow the GenAI semantic conventions (open-telemetry/semantic-conventions-genai, 2026; all of it is in development). A span is
//! named `{operation} {model}`, has kind CLIENT and lasts from sending to the last byte. It covers one attempt, not the request with its
//! retries. This rule is Plimsoll's, because a server's spans are of attempts; `http.request.resend_count` is the attempt's number.
//! Attributes without a standard name are under `plimsoll.`.

use plimsoll_model::{At, Attempt, How, Protocol};
use serde_json::{Value, json};

/// OTLP's numbers for a client span and for a failed span.
const CLIENT: u8 = 3;
const ERROR: u8 = 2;

/// The shared facts of all spans of a run.
#[derive(Clone, Debug)]
pub struct ClientSpans {
    pub run: String,
    pub version: String,
    pub protocol: Protocol,
    pub stream: bool,
    /// Requested model; `None` if none was set.
    pub model: Option<String>,
    /// Provider of the model; `None` if unknown.
    pub provider: Option<String>,
    pub server: Option<(String, u16)>,
    /// Instant of 0 on the run's axis, ns since 1970.
    pub base_ns: i64,
}

impl ClientSpans {
    /// Returns a batch of spans as a line of a file.
    pub fn batch(&self, spans: &[Value]) -> Value {
        let resource = [
            ("service.name", json!("plimsoll")),
            ("service.version", json!(self.version)),
            ("plimsoll.run", json!(self.run)),
        ];
        json!({"resourceSpans": [{
            "resource": {"attributes": attributes(resource.into_iter())},
            "scopeSpans": [{"scope": {"name": "plimsoll", "version": self.version}, "spans": spans}],
        }]})
    }

    /// Returns the span of an attempt with these trace and span ids in hexadecimal; `None` if it was never sent.
    pub fn span(&self, attempt: &Attempt, (trace, id): (&str, &str)) -> Option<Value> {
        if attempt.outcome.how == How::NeverSent {
            return None;
        }
        let start = attempt.sent.unwrap_or(attempt.due);
        let last = [attempt.end, attempt.last_token, attempt.first_byte].into_iter().flatten().next();
        let end = last.unwrap_or(start).max(start);
        let operation = operation(self.protocol);
        let mut span = json!({
            "traceId": trace,
            "spanId": id,
            "name": match &self.model {
                Some(model) => format!("{operation} {model}"),
                None => operation.to_owned(),
            },
            "kind": CLIENT,
            "startTimeUnixNano": self.nano(start),
            "endTimeUnixNano": self.nano(end),
            "attributes": attributes(self.attributes(attempt, start)),
            "status": {},
        });
        if !attempt.outcome.is_finished() {
            span["status"] = json!({"code": ERROR});
        }
        Some(span)
    }

    /// Formats a 64-bit number as a text, as in protobuf's JSON.
    fn nano(&self, at: At) -> String {
        self.base_ns.saturating_add(at.0).to_string()
    }

    fn attributes(&self, attempt: &Attempt, start: At) -> impl Iterator<Item = (&'static str, Value)> {
        let answer = &attempt.answer;
        let tokens = &answer.tokens;
        let how = attempt.outcome.how;
        let failed =
            answer.status.filter(|code| *code >= 400).map_or(how.name().to_owned(), |code| code.to_string());
        let first = attempt.first_token.or(attempt.first_byte.filter(|_| self.stream));
        let (address, port) = self.server.clone().unzip();
        let session = attempt.session.map(|session| format!("{}-{}-s{session}", self.run, attempt.level));
        let all = [
            ("gen_ai.operation.name", Some(json!(operation(self.protocol)))),
            (
                "gen_ai.provider.name",
                Some(json!(self.provider.as_deref().unwrap_or(self.protocol.provider()))),
            ),
            ("gen_ai.request.model", self.model.as_ref().map(|model| json!(model))),
            ("gen_ai.request.stream", Some(json!(self.stream))),
            ("gen_ai.request.max_tokens", Some(attempt.asked_output).filter(|n| *n > 0).map(|n| json!(n))),
            ("gen_ai.response.finish_reasons", answer.finish_reason.as_ref().map(|reason| json!([reason]))),
            ("gen_ai.response.time_to_first_chunk", first.map(|at| json!((at - start).as_secs_f64()))),
            ("gen_ai.usage.input_tokens", tokens.prompt.map(|n| json!(n))),
            ("gen_ai.usage.output_tokens", tokens.output.map(|n| json!(n))),
            ("gen_ai.usage.cache_read.input_tokens", tokens.cached.map(|n| json!(n))),
            ("gen_ai.usage.reasoning.output_tokens", tokens.reasoning.map(|n| json!(n))),
            ("gen_ai.conversation.id", session.map(|session| json!(session))),
            ("server.address", address.map(|address| json!(address))),
            ("server.port", port.map(|port| json!(port))),
            ("http.response.status_code", answer.status.map(|code| json!(code))),
            ("http.request.resend_count", Some(attempt.attempt).filter(|n| *n > 0).map(|n| json!(n))),
            ("error.type", (how != How::Finished).then(|| json!(failed))),
            ("plimsoll.level", Some(json!(attempt.level))),
            ("plimsoll.request", Some(json!(attempt.request))),
            ("plimsoll.outcome", Some(json!(how.name()))),
            ("plimsoll.intended_start", Some(json!(self.base_ns.saturating_add(attempt.due.0)))),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Returns the conventions' operation name for a protocol.
fn operation(protocol: Protocol) -> &'static str {
    protocol.operation().unwrap_or("generate_content")
}

/// Returns OTLP's list of names and typed values.
fn attributes(all: impl Iterator<Item = (&'static str, Value)>) -> Value {
    all.map(|(name, value)| json!({"key": name, "value": typed(value)})).collect()
}

fn typed(value: Value) -> Value {
    match value {
        Value::Bool(flag) => json!({"boolValue": flag}),
        Value::Number(n) if n.is_f64() => json!({"doubleValue": n}),
        Value::Number(n) => json!({"intValue": n.to_string()}),
        Value::Array(values) => {
            let values: Vec<Value> = values.into_iter().map(typed).collect();
            json!({"arrayValue": {"values": values}})
        }
        other => json!({"stringValue": other}),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{By, Outcome, Span};

    use super::*;

    fn spans() -> ClientSpans {
        ClientSpans {
            run: "r".into(),
            version: "1".into(),
            protocol: Protocol::Chat,
            stream: true,
            model: Some("m".into()),
            provider: None,
            server: Some(("h".into(), 8000)),
            base_ns: 1_000,
        }
    }

    fn attempt() -> Attempt {
        let mut attempt = Attempt::new(7, 1, 0, At(100));
        attempt.sent = Some(At(200));
        attempt.first_token = Some(At(200) + Span::from_secs(1));
        attempt.end = Some(At(200) + Span::from_secs(2));
        attempt.outcome = Outcome::FINISHED;
        attempt.answer.tokens.output = Some(3);
        attempt.answer.finish_reason = Some("stop".into());
        attempt
    }

    fn of(span: &Value, name: &str) -> Value {
        let all = span["attributes"].as_array().expect("attributes");
        all.iter().find(|one| one["key"] == name).map_or(Value::Null, |one| one["value"].clone())
    }

    #[test]
    fn an_attempt_is_a_span_from_sending_to_its_end() {
        let span = spans().span(&attempt(), ("0a", "0b")).expect("it was sent");
        assert_eq!((&span["name"], &span["kind"]), (&json!("chat m"), &json!(3)));
        assert_eq!(span["startTimeUnixNano"], "1200");
        assert_eq!(span["endTimeUnixNano"], "2000001200");
        assert_eq!(of(&span, "plimsoll.intended_start"), json!({"intValue": "1100"}));
        assert_eq!(of(&span, "gen_ai.usage.output_tokens"), json!({"intValue": "3"}));
        assert_eq!(of(&span, "gen_ai.response.time_to_first_chunk"), json!({"doubleValue": 1.0}));
        let reasons = json!({"arrayValue": {"values": [{"stringValue": "stop"}]}});
        assert_eq!(of(&span, "gen_ai.response.finish_reasons"), reasons);
        assert_eq!(of(&span, "http.request.resend_count"), json!({"intValue": "1"}));
        // Unknown values are left out.
        for unknown in ["gen_ai.usage.input_tokens", "error.type", "http.response.status_code"] {
            assert_eq!(of(&span, unknown), Value::Null, "{unknown}");
        }
    }

    #[test]
    fn a_failed_attempt_says_how_and_one_that_was_never_sent_says_nothing() {
        let mut failed = attempt();
        failed.outcome = Outcome::new(How::Shed, By::Server, true);
        failed.answer.status = Some(503);
        failed.answer.error = Some("prompt was: secret".into());
        let span = spans().span(&failed, ("0a", "0b")).expect("it was sent");
        assert_eq!(
            (&span["status"]["code"], of(&span, "error.type")),
            (&json!(2), json!({"stringValue": "503"}))
        );
        assert!(!span.to_string().contains("secret"), "{span}");
        failed.outcome = Outcome::new(How::NeverSent, By::Client, false);
        assert!(spans().span(&failed, ("0a", "0b")).is_none());
    }
}
